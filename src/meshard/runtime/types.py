"""`ArrayType`: all that is known about an array except its data.

Types are interned per world, so that two arrays have the same type exactly when the objects are
the same; decisions about operations are keyed by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import refusal
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.where import Where
from meshard.errors import DtypeError

Block = np.ndarray[Any, np.dtype[Any]]
Blocks = tuple[Block | None, ...]
"""One block per piece of a layout; None for a piece that no device of this process holds."""


class SupportsArray(Protocol):
    """What NumPy makes an array of by asking it: arrays of any library, and NumPy's scalars."""

    def __array__(self) -> Any: ...


ArrayLike = SupportsArray | bool | int | float | complex
"""What functions take where an array is meant: any array, NumPy's scalars and Python's numbers."""

DTypeLike = npt.DTypeLike | None
"""What functions take where a dtype is meant; None: the function's default."""

DeviceLike = Sharding | Device | PartitionSpec | None
"""What functions take where it is said how a result is laid out; a spec where a mesh is set.
``x.device`` of an array counts as a Sharding or a Device."""

ShapeLike = int | Sequence[int]
"""What functions take where a shape is meant."""

KEY: np.dtype[Any] = np.dtype([("prng", np.uint32, (2,))])
"""The dtype of typed random keys: one element is one key, of 64 bits, the high word first."""


def any_dtype_of(given: Any, what: str, name: str = "dtype") -> np.dtype[Any]:
    """Return the dtype that is meant, also one that arrays cannot have.

    Raises:
        DtypeError: if it is not a dtype.
    """
    try:
        found: np.dtype[Any] = np.dtype(given)
    except Exception as error:  # NumPy raises TypeError, ValueError, SyntaxError and more
        allowed = "a dtype, such as 'float32' or numpy.int64"
        raise DtypeError(refusal(what, name, allowed, given)) from error
    return found


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name; that of typed keys names their generator."""
    return "key<philox>" if dtype == KEY else dtype.name


class Shaped:
    """Properties that follow from a shape and a dtype."""

    __slots__ = ()
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, replicas not counted."""
        return self.size * self.dtype.itemsize

    @property
    def weak_type(self) -> bool:
        """Always False: only Python scalars are weak here."""
        return False


@final
class Clock:
    """How many operations together with others a process has run; what is made is stamped with it.

    Attributes:
        turn: the number.
    """

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn: int = 0


@final
class ArrayType(Shaped):
    """Shape, dtype, sharding and commitment of an array.

    Types are made by the world, which knows the process of each device id (None: this process has
    all of them) and its own process.

    Attributes:
        shape: the global shape.
        dtype: the NumPy dtype.
        sharding: how it is laid out.
        committed: whether the user placed it there, so that operations must follow.
        layout: the sharding applied to the shape.
        local: the pieces that this process holds.
        addressable: whether all devices are this process's.
        complete: whether this process holds every piece.
        owner: the clock of the world to which it belongs.
    """

    __slots__ = (
        "addressable",
        "committed",
        "complete",
        "dtype",
        "layout",
        "local",
        "ndim",
        "owner",
        "shape",
        "sharding",
        "size",
    )
    ndim: int
    size: int

    def __init__(
        self,
        owner: Clock,
        processes: Mapping[int, int] | None,
        me: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        sharding: Sharding,
        committed: bool,
    ) -> None:
        self.owner: Clock = owner
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = dtype
        self.sharding: Sharding = sharding
        self.committed: bool = committed
        self.ndim: int = len(shape)
        self.size: int = math.prod(shape)
        given: object = sharding
        assert type(given) is not Where, "x.device of an array was taken for a sharding"
        layout: Layout = sharding.layout(shape)
        self.layout: Layout = layout
        if processes is None:
            self.local: tuple[int, ...] = tuple(range(layout.piece_count))
            self.addressable: bool = True
        else:
            self.local = tuple(
                i
                for i in range(layout.piece_count)
                if any(processes[d] == me for d in layout.holders(i))
            )
            self.addressable = all(p == me for p in processes.values())
        self.complete: bool = len(self.local) == layout.piece_count

    @property
    def vma(self) -> frozenset[str]:
        """The mesh axes over which a value in `shard_map` varies: none for an array."""
        return frozenset()

    @property
    def unplaced(self) -> bool:
        """Whether it is uncommitted on one device, and counts as if it were on every one."""
        return not self.committed and self.sharding.num_devices == 1

    def str_short(self) -> str:
        """Return dtype and shape as in ``float32[4,8]``."""
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        return self.str_short()


class Typed:
    """Properties of a value that has a type; in `shard_map` those of one device's part."""

    __slots__ = ()
    _type: ArrayType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: the global one, or inside `shard_map` that of one device's part."""
        return self._type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return self._type.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self._type.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._type.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, replicas not counted."""
        return self._type.nbytes

    @property
    def sharding(self) -> Sharding:
        """How it is laid out on devices."""
        return self._type.sharding

    @property
    def committed(self) -> bool:
        """Whether it was placed by the user, so that operations must follow it."""
        return self._type.committed

    @property
    def weak_type(self) -> bool:
        """Always False: only Python scalars are weak."""
        return False
