"""`ShapeDtypeStruct`, which describes an array that need not exist, and `typeof`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import shape_of, shown
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding, Unplaced
from meshard.algebra.where import Where
from meshard.errors import ArgumentError, DtypeError, ShardingError, SpecError
from meshard.plan.captions import sharding_summary, size_text
from meshard.plan.show.pictured import Drawn
from meshard.runtime.array.array import Array
from meshard.runtime.array.show import array_svg, type_parts
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array, as_sharding, dtype_of, home
from meshard.runtime.types import ArrayLike, ArrayType, Shaped, dtype_name
from meshard.runtime.world import here

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup


@final
class ShapeDtypeStruct(Shaped, Drawn):
    """The shape, dtype and, optionally, sharding of an array that need not exist.

    Args:
        shape: the global shape.
        dtype: the dtype.
        sharding: a Sharding, a Device, or a spec where a mesh is set.
        weak_type: accepted as in JAX; only Python scalars are weak here.

    Raises:
        ShapeError: if ``shape`` is not a shape.
        DtypeError: if arrays cannot have the dtype.
        ShardingError: if ``sharding`` is not a sharding.
        SpecError: if its spec is longer than the rank.

    >>> import meshard
    >>> x = meshard.ShapeDtypeStruct((2, 3), "float32")
    >>> x
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    >>> x.update(shape=(4,)).nbytes
    16
    """

    __slots__ = ("dtype", "shape", "sharding")
    sharding: Sharding | None

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        *,
        sharding: Any = None,
        weak_type: bool = False,
    ) -> None:
        what = "ShapeDtypeStruct"
        if dtype is None:
            raise ArgumentError(f"{what}: a dtype is needed, got None.")
        whole = type(sharding) is not Where and isinstance(sharding, Sharding)
        found = sharding if whole else as_sharding(sharding, what)
        sizes = shape_of(shape, what)
        if isinstance(found, NamedSharding) and len(found.spec) > len(sizes):
            raise SpecError(
                f"{what}: {found!r} is only valid for arrays of rank at least {len(found.spec)}, "
                f"but the shape is {sizes}, of rank {len(sizes)}. Remove entries from the spec."
            )
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", dtype_of(dtype, what))
        object.__setattr__(self, "sharding", found)

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError(
            f"A ShapeDtypeStruct is immutable; instead of setting {name}, write "
            f"x.update({name}=...)."
        )

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        """Return a copy with another ``shape``, ``dtype`` or ``sharding``."""
        mine = {"shape": self.shape, "dtype": self.dtype, "sharding": self.sharding}
        return ShapeDtypeStruct(**{**mine, **changes})

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """Return the struct of an array, with its sharding if it is committed to one."""
        type_ = typeof(x)
        return cls(type_.shape, type_.dtype, sharding=type_.sharding if type_.committed else None)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len: an array without dims has no length.")
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStruct):
            return NotImplemented
        mine = (self.shape, self.dtype, self.sharding)
        return mine == (other.shape, other.dtype, other.sharding)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.sharding))

    def __repr__(self) -> str:
        shown_sharding = f", sharding={self.sharding!r}" if self.sharding is not None else ""
        return (
            f"ShapeDtypeStruct(shape={self.shape}, dtype={dtype_name(self.dtype)}{shown_sharding})"
        )

    def _title(self) -> str:
        told = f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"
        return told if self.sharding is None else f"{told} · {sharding_summary(self.sharding)}"

    def _svg(self) -> Markup:
        return array_svg(typeof(self))

    def _parts(self) -> Iterator[Markup]:
        from meshard.plan.show.page import element

        if self.sharding is None:
            yield element("p", f"no values, {size_text(self.nbytes)}, no sharding")
            return
        try:
            type_ = typeof(self)
        except ShardingError as error:  # the shape is not looked at before something is made of it
            yield element("p", f"no values, {size_text(self.nbytes)}. {error}")
            return
        yield from type_parts(type_, "no values")

    def __reduce__(self) -> tuple[object, ...]:
        return _struct, (self.shape, self.dtype, self.sharding)


def _struct(shape: tuple[int, ...], dtype: Any, sharding: Sharding | None) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _told(type_: Any) -> ArrayType:
    """Return the type of a value that is traced as its user sees it."""
    found: ArrayType = type_  # in a body it is that of a cell
    if not isinstance(type_, ArrayType) or found.committed:
        return found
    place = found.sharding
    if not isinstance(place, SingleDeviceSharding):
        return found
    return here().type_of(found.shape, found.dtype, Unplaced(place.device), False)


def typeof(x: ArrayLike | ShapeDtypeStruct) -> ArrayType:
    """Return all that is known about an array, or a value that would become one, except its data.

    A value that a function traced by `jit` computes has no devices yet: its sharding there, given
    as ``device=`` or ``out_sharding=``, asks for no place.

    Raises:
        DtypeError: if it is not an array, number or ShapeDtypeStruct; a list is a tree of them.

    >>> import meshard, numpy as np
    >>> meshard.typeof(np.ones((2, 3)))
    float64[2,3]
    """
    if isinstance(x, (Array, Traced)):
        return x.aval if type(x) is Array else _told(x.aval)
    if isinstance(x, ShapeDtypeStruct):
        world = here()
        committed = x.sharding is not None
        return world.type_of(x.shape, x.dtype, x.sharding or home(world), committed)
    if not (isinstance(x, (int, float, complex)) or hasattr(x, "__array__")):
        raise DtypeError(
            f"typeof: {shown(x)} of type {type(x).__name__} is not an array or a number."
        )
    type_: ArrayType = as_array(x)._type
    return type_
