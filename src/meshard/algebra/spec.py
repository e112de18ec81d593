"""`PartitionSpec`: for each dim of an array, the mesh axes it is split over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, final, overload

from meshard.algebra.arguments import count_of, refusal, shown
from meshard.errors import IndexingError, SpecError


@final
class UnconstrainedType:
    """The type of `PartitionSpec.UNCONSTRAINED`: a dim that may be laid out freely."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        # A copy is the one there is: specs compare it by identity.
        return "UNCONSTRAINED"


UNCONSTRAINED = UnconstrainedType()


Entry = str | tuple[str, ...] | None | UnconstrainedType


def _entry(given: object) -> Entry:
    """Return one dim's entry in its normal form: a name, two or more names, or None."""
    if given is None or isinstance(given, (str, UnconstrainedType)):
        return given
    if isinstance(given, (tuple, list)):
        for name in given:
            if not isinstance(name, str):
                raise SpecError(
                    f"PartitionSpec: a tuple entry must hold axis names, but {shown(given)} holds "
                    f"{shown(name)}."
                )
        names = tuple(given)
        return names if len(names) > 1 else (names[0] if names else None)
    raise SpecError(
        f"PartitionSpec: each entry must be None, an axis name or a tuple of axis names, "
        f"but one is {shown(given)} of type {type(given).__name__}."
    )


_MOST_DIMS = 64  # NumPy's


@final
class PartitionSpec:
    """For each dim of an array, the mesh axes it is split over.

    An entry is ``None`` (the dim is whole on every device), an axis name, a tuple of names (split
    over their product, the first the slowest), or ``P.UNCONSTRAINED``, which leaves the dim as it
    is in `with_sharding_constraint` and means nothing elsewhere. Trailing ``None`` may be left
    out, yet ``P('x')`` and ``P('x', None)`` compare unequal, as in JAX; so do a spec and a tuple.

    Raises:
        SpecError: if an entry is of another kind.

    >>> from meshard import P
    >>> P("x", ("y", "z"), None)  # dim 0 over x, dim 1 over y and z, dim 2 whole
    P('x', ('y', 'z'), None)
    >>> P(("x",)) == P("x"), P("x") == P("x", None)
    (True, False)
    """

    __slots__ = ("_entries", "_hash")
    UNCONSTRAINED: ClassVar[UnconstrainedType] = UNCONSTRAINED
    _entries: tuple[Entry, ...]

    def __init__(self, *entries: object) -> None:
        self._entries = tuple([_entry(e) for e in entries])
        self._hash = hash(self._entries)

    @property
    def partitions(self) -> tuple[Entry, ...]:
        """The entries, one per dim."""
        return self._entries

    @property
    def unconstrained(self) -> tuple[int, ...]:
        """The dims whose entry is ``UNCONSTRAINED``: how they are laid out is left open."""
        return tuple([d for d, e in enumerate(self._entries) if isinstance(e, UnconstrainedType)])

    def index(self, entry: object) -> int:
        """Return the first dim with that entry.

        Raises:
            SpecError: if no dim has it.
        """
        wanted = _entry(entry)
        if wanted not in self._entries:
            raise SpecError(f"PartitionSpec.index: {shown(entry)} is not an entry of {self!r}.")
        return self._entries.index(wanted)

    def count(self, entry: object) -> int:
        """Return the number of dims with that entry."""
        return self._entries.count(_entry(entry))

    def axes(self, ndim: int) -> tuple[tuple[str, ...], ...]:
        """Return for each of ``ndim`` dims the tuple of its axes, empty where it is whole."""
        named: list[tuple[str, ...]] = []
        for entry in self._entries:
            if entry is None or isinstance(entry, UnconstrainedType):
                named.append(())
            else:
                named.append((entry,) if isinstance(entry, str) else entry)
        if type(ndim) is not int or not 0 <= ndim <= _MOST_DIMS:
            ndim = count_of(ndim, "PartitionSpec.axes", "ndim", most=_MOST_DIMS)
        return tuple(named) + ((),) * (ndim - len(named))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @overload
    def __getitem__(self, i: int) -> Entry: ...

    @overload
    def __getitem__(self, i: slice) -> tuple[Entry, ...]: ...

    def __getitem__(self, i: int | slice) -> Entry | tuple[Entry, ...]:
        try:
            return self._entries[i]
        except (IndexError, TypeError, ValueError) as error:
            allowed = f"an integer or a slice that fits its {len(self._entries)} entries"
            raise IndexingError(refusal(repr(self), "the index", allowed, i)) from error

    def __add__(self, other: PartitionSpec | tuple[object, ...]) -> PartitionSpec:
        if not isinstance(other, (PartitionSpec, tuple)):
            return NotImplemented
        return PartitionSpec(*self._entries, *other)

    def __radd__(self, other: tuple[object, ...]) -> PartitionSpec:
        if not isinstance(other, tuple):
            return NotImplemented
        return PartitionSpec(*other, *self._entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionSpec):
            return NotImplemented
        return self._entries == other._entries

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"P{self._entries!r}"

    def __reduce__(self) -> tuple[type[PartitionSpec], tuple[Entry, ...]]:
        return PartitionSpec, self._entries


P = PartitionSpec
