"""Where an array is: what ``x.device`` says of an array that is on several devices.

In: the array's sharding. Out: a value that stands for it, and chooses layouts for other shapes on
the same devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from meshard.algebra.abstract import Sharding, same_devices
from meshard.algebra.layout import Cuts, balanced_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, Uneven
from meshard.algebra.spec import PartitionSpec
from meshard.errors import MeshardError


@final
class Where:
    """Where an array is: its devices, and how arrays are best split over them.

    It is the value of ``x.device`` for an array on several devices. It stands for ``x.sharding``:
    it is equal to it, an instance of its class, and has its attributes. Among themselves two such
    values are equal if they name the same devices and kind of memory, however the arrays are split,
    so that code for any array library finds that arrays on one mesh are on one device. As a key of
    a dict it stands for the devices.

    Where a function takes it as ``device=``, the new array is split like the old one as far as its
    shape allows (`fitting`). A sharding in its place is exact.
    """

    __slots__ = ("_sharding",)

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding

    if not TYPE_CHECKING:  # what it is to `isinstance`: a sharding, as in JAX

        @property
        def __class__(self) -> type[Sharding]:
            return type(self._sharding)

    @property
    def exact(self) -> Sharding:
        """The sharding itself."""
        return self._sharding

    def fitting(self, shape: tuple[int, ...]) -> Sharding:
        """Return a sharding for any shape on these devices: the array's own where it can be.

        Otherwise each dim is split over the axes that split the array's dim of that number, if it
        divides, or if the array's sharding lets parts differ and there are enough elements. All
        other dims are whole.
        """
        own = self._sharding
        try:
            own.layout(shape)
        except (MeshardError, ArithmeticError, LookupError, TypeError, ValueError):
            if isinstance(own, NamedSharding):
                return _fitted(own, shape)
            return NamedSharding(Mesh(list(own.device_order), "device"), PartitionSpec())
        return own

    def __getattr__(self, name: str) -> object:
        return getattr(self._sharding, name)

    def __dir__(self) -> list[str]:
        return dir(self._sharding)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Where:
            return self._sharding == other
        mine, theirs = self._sharding, other._sharding
        if mine is theirs:
            return True
        return same_devices(mine, theirs) and mine.memory_kind == theirs.memory_kind

    def __hash__(self) -> int:
        return hash(frozenset(self._sharding.device_order))

    def __repr__(self) -> str:
        return f"Where({self._sharding!r})"

    def __reduce_ex__(self, protocol: object) -> tuple[type[Where], tuple[Sharding]]:
        return Where, (self._sharding,)


def _fitted(own: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """Return the sharding of a shape that has another rank, or dims that do not divide."""
    axes = own.spec.axes(max(len(shape), len(own.spec)))
    kept: list[tuple[str, ...]] = []
    cuts: list[Cuts | None] = []
    for dim, (size, names) in enumerate(zip(shape, axes, strict=False)):
        one = NamedSharding(own.mesh, PartitionSpec(names or None))
        count = one.shards(1)[0]
        given = own.uneven[dim] if isinstance(own.uneven, tuple) and dim < len(own.uneven) else None
        points: Cuts | None = None
        if given is not None and given[-1] == size:
            points = given
        elif size % count and own.uneven is not None and size >= count:
            points = balanced_cuts(size, count)
        elif size % count:
            names = ()
        kept.append(names)
        cuts.append(points)
    while kept and not kept[-1]:
        kept.pop()
    spec = PartitionSpec(*[names or None for names in kept])
    return NamedSharding(
        own.mesh, spec, memory_kind=own.memory_kind, uneven=_rule(own, spec, shape, cuts)
    )


def _rule(
    own: NamedSharding, spec: PartitionSpec, shape: tuple[int, ...], cuts: list[Cuts | None]
) -> Uneven:
    """Return the cuts as the name of a rule, where they are those of one."""
    if not any(cuts):
        return None
    if isinstance(own.uneven, str):
        return own.uneven
    usual = NamedSharding(own.mesh, spec, uneven="balanced").dim_cuts(shape)
    same = all(c is None or c == p for c, p in zip(cuts, usual, strict=True))
    return "balanced" if same else tuple(cuts)
