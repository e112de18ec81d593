"""Sparse matrices made: from one that all processes have, or from a block for each part of rows.

In: blocks of rows in SciPy's formats, of the parts that this process holds. Out: a `Structure`, and
the values. The processes tell each other how many values and columns each part has, and then, once,
which entries of vectors they need of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import described
from meshard.algebra.layout import Cuts, balanced_cuts
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError, DtypeError, ShapeError, ShardingError
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.exchange.lookups import Ints, Parties, among, distinct, tell
from meshard.ops.sparse.halo import Halo, Passing, check_dtype
from meshard.runtime.agree import agreed
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import needed_sharding
from meshard.runtime.moving.place import made_of
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld, here

_SHORT = np.iinfo(np.int32).max
_FAILED = -1


def scipy_sparse(what: str) -> Any:
    """Return the module ``scipy.sparse``, imported at first use.

    Raises:
        ArgumentError: if SciPy is not there.
    """
    try:
        import scipy.sparse
    except ImportError as error:
        raise ArgumentError(
            f"{what} needs SciPy, whose kernels multiply the blocks, and it cannot be imported "
            f"({error}). Install it with: pip install scipy"
        ) from error
    return scipy.sparse


@final
@dataclass(frozen=True, eq=False)
class Structure:
    """Where a sparse matrix has values: what all matrices with values in the same places share.

    Attributes:
        halo: what passes in a product.
        sharding: how the matrix is laid out.
        columns: for each value its column, as a number among those that its block needs.
        starts: for each block where its rows begin, and where the last one ends.
        needed: for each block the columns that it has values in, in order.
        sends: for each part of a vector the entries that each other part needs of it, in order.
    """

    halo: Halo
    sharding: NamedSharding
    columns: Array
    starts: Array
    needed: Array
    sends: Array

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """What products are given of it."""
        return self.columns, self.starts, self.needed, self.sends


@final
@dataclass(frozen=True)
class Place:
    """Where a sparse matrix goes.

    Attributes:
        sharding: how it is laid out.
        axes: the axes along which its rows are split.
        rows: where its rows are cut.
        columns: where a vector that it is multiplied by is cut.
    """

    sharding: NamedSharding
    axes: tuple[str, ...]
    rows: Cuts
    columns: Cuts

    def of(self, cuts: Cuts) -> NamedSharding:
        """Return the sharding of an array with a part for each part of the rows."""
        own = self.sharding
        return named_sharding(own.mesh, (Split(self.axes, cuts),), own.memory_kind)


def place_of(what: str, shape: tuple[int, int], sharding: Any, column_sharding: Any) -> Place:
    """Return where a matrix of a shape goes.

    Raises:
        ShardingError: if a sharding is not that of rows, or of a vector, on one mesh.
        IndivisibleError: if rows or columns do not divide, and the sharding is not uneven.
    """
    own = _named(needed_sharding(sharding, what), what, "sharding")
    layout = own.layout(shape)
    axes = own.spec.axes(2)
    if len(layout.cuts[1]) > 2:
        raise ShardingError(
            f"{what}: {own!r} splits the columns of the matrix over {axes[1]}; a SparseRows is "
            "split by rows. Write NamedSharding(mesh, P(axes of the rows))."
        )
    rows = layout.cuts[0]
    if column_sharding is None:
        alike = shape[0] == shape[1]
        return Place(own, axes[0], rows, rows if alike else balanced_cuts(shape[1], len(rows) - 1))
    other = _named(needed_sharding(column_sharding, what), what, "column_sharding")
    cuts, used = other.layout((shape[1],)).cuts[0], other.spec.axes(1)[0]
    if other.mesh != own.mesh or used != axes[0]:
        raise ShardingError(
            f"{what}: the rows are split over {axes[0]} of {own.mesh!r}, but column_sharding "
            f"splits vectors over {used} of {other.mesh!r}; both must be split over the "
            "same axes of one mesh. Only the cuts may differ."
        )
    return Place(own, axes[0], rows, cuts)


def _named(sharding: Any, what: str, name: str) -> NamedSharding:
    if isinstance(sharding, NamedSharding):
        return sharding
    raise ShardingError(
        f"{what}: {name} must be a NamedSharding, which splits rows over axes of a mesh; got "
        f"{described(sharding)}."
    )


@final
@dataclass(frozen=True)
class _Part:
    """One block of rows: its values, their columns among those needed, and where rows begin."""

    values: Block
    columns: Ints
    starts: Ints
    needed: Ints

    def counts(self, cuts: Cuts) -> list[int]:
        """Return how many entries are needed of each part of a vector."""
        found: list[int] = np.diff(np.searchsorted(self.needed, cuts)).tolist()
        return found


def _part(given: Any, shape: tuple[int, int], rows: tuple[int, int], what: str) -> _Part:
    """Return one block of rows, its values in order, and those in one place added up.

    Raises:
        ArgumentError: if it is not a sparse matrix.
        ShapeError: if it is not of the rows' shape.
    """
    sparse = scipy_sparse(what)
    if not sparse.issparse(given) or given.ndim != 2:
        raise ArgumentError(
            f"{what}: the block of rows {rows[0]} to {rows[1]} must be a sparse array or matrix of "
            f"SciPy with two dims; got {described(given)}. scipy.sparse.csr_array(block) makes one."
        )
    wanted = rows[1] - rows[0], shape[1]
    if given.shape != wanted:
        raise ShapeError(
            f"{what}: the block of rows {rows[0]} to {rows[1]} has the shape {given.shape}, but it "
            f"must be {wanted}: those rows of a matrix of shape {shape}."
        )
    block = sparse.csr_array(given)
    if not block.has_canonical_format:
        block = block.copy()
        block.sum_duplicates()
    check_dtype(block.dtype, what)
    indices = block.indices.astype(np.int64, copy=False)
    needed = distinct(indices, shape[1])
    columns = among(indices, needed, shape[1])
    return _Part(block.data, columns, block.indptr, needed)


Blocks = Callable[[int, int], Any]
"""Returns the block of rows from one number to another."""


@final
class Builder:
    """Makes one sparse matrix.

    Args:
        what: the function, for messages.
        shape: the shape of the matrix.
        place: where it goes.
        dtype: its dtype; None for that in which all blocks meet.
    """

    def __init__(
        self, what: str, shape: tuple[int, int], place: Place, dtype: np.dtype[Any] | None
    ) -> None:
        self.what, self.shape, self.place, self.dtype = what, shape, place, dtype
        self.world: RuntimeWorld = here()
        self.count = len(place.rows) - 1
        layout = place.sharding.layout(shape)
        self.layout = place.of(place.rows).layout((shape[0],))
        processes = {d.id: d.process_index for d in place.sharding.mesh.flat_devices}
        self.parties = Parties(processes)
        assert layout.piece_count == self.count
        self.held = self.parties.held(self.layout, self.world.process_index)

    def made(self, blocks: Blocks) -> tuple[Structure, Array]:
        """Return the structure of the matrix, and its values.

        Raises:
            ArgumentError: if another process could not make its blocks, or this one has none of the
                devices.
        """
        world, place, members = self.world, self.place, self.parties.members
        if world.process_index not in members:
            raise ArgumentError(
                f"{self.what}: process {world.process_index} has none of the devices of "
                f"{place.sharding!r}, so that nobody tells it where the matrix has values. Make "
                f"the matrix, and multiply by it, on processes {members} only."
            )
        if len(members) > 1:
            text = f"`{self.what}` of {self.shape}"
            agreed(world, members, (self.what, self.shape, place.rows, place.columns), text)
        parts: dict[int, _Part] = {}
        try:
            for part in self.held:
                rows = place.rows[part], place.rows[part + 1]
                parts[part] = _part(blocks(*rows), self.shape, rows, self.what)
        except Exception:
            self._told([_FAILED] * (len(self.held) * self._length))
            raise
        told = self._told([n for part in self.held for n in self._letter(parts[part])])
        return self._arrays(parts, told)

    # what processes tell each other

    @property
    def _length(self) -> int:
        return 2 + self.count

    def _letter(self, part: _Part) -> list[int]:
        return [len(part.values), ord(part.values.dtype.char), *part.counts(self.place.columns)]

    def _told(self, own: list[int]) -> dict[int, list[int]]:
        """Tell what is in the parts here; return what is in each part."""
        me, members = self.world.process_index, self.parties.members
        others = [p for p in members if p != me]
        held = {p: self.parties.held(self.layout, p) for p in members}
        letters = {me: own}
        if others:
            lengths = {p: len(held[p]) * self._length for p in others}
            letters |= tell(self.world, dict.fromkeys(others, own), lengths)
        failed = [p for p in others if letters[p] and letters[p][0] == _FAILED]
        if failed and own[:1] != [_FAILED]:
            raise ArgumentError(
                f"{self.what}: process {failed[0]} could not make its blocks of rows, and "
                "raised an error; so no process has the matrix."
            )
        found = {}
        for p, letter in letters.items():
            for i, part in enumerate(held[p]):
                found[part] = letter[i * self._length : (i + 1) * self._length]
        return found

    # arrays

    def _arrays(
        self, parts: Mapping[int, _Part], told: Mapping[int, Sequence[int]]
    ) -> tuple[Structure, Array]:
        halo = self._halo(told)
        short = max([self.shape[1], *np.diff(halo.entries).tolist()]) <= _SHORT
        index = np.dtype(np.int32 if short else np.int64)
        dtype = self.dtype or np.result_type(
            *[np.dtype(chr(told[i][1])) for i in range(self.count)]
        )
        check_dtype(dtype, self.what)
        sends = self._sends(parts, halo)

        def array(cuts: Cuts, kind: np.dtype[Any], of: Callable[[int], Block]) -> Array:
            type_ = self.world.type_of((cuts[-1],), kind, self.place.of(cuts), True)
            return made_of(self.world, type_, lambda p: of(p).astype(kind), self.what)

        def value(part: int) -> Block:
            own = parts[part].values
            if not np.can_cast(own.dtype, dtype, "same_kind"):
                raise DtypeError(
                    f"{self.what}: a block has values of {own.dtype}, which do not become {dtype} "
                    "without loss. Convert the block, or pass another dtype."
                )
            return own

        structure = Structure(
            halo,
            self.place.sharding,
            array(halo.entries, index, lambda p: parts[p].columns),
            array(halo.starts, index, lambda p: parts[p].starts),
            array(halo.needed, np.dtype(np.int64), lambda p: parts[p].needed),
            array(halo.sent, np.dtype(np.int64), lambda p: sends[p]),
        )
        return structure, array(halo.entries, dtype, value)

    def _halo(self, told: Mapping[int, Sequence[int]]) -> Halo:
        def cuts(sizes: Sequence[int]) -> Cuts:
            return (0, *np.cumsum(np.asarray(sizes, np.int64)).tolist())

        every = [told[part] for part in range(self.count)]
        return Halo(
            mesh=self.place.sharding.mesh,
            axes=self.place.axes,
            rows=self.place.rows,
            columns=self.place.columns,
            entries=cuts([letter[0] for letter in every]),
            needed=cuts([sum(letter[2:]) for letter in every]),
            counts=tuple(
                [
                    (part, source, n)
                    for part, letter in enumerate(every)
                    for source, n in enumerate(letter[2:])
                    if n and source != part
                ]
            ),
        )

    def _sends(self, parts: Mapping[int, _Part], halo: Halo) -> dict[int, Ints]:
        """Return which entries each part of a vector that is here gives to others."""
        cuts = halo.columns

        def wanted(part: int, source: int) -> Ints:
            low, high = np.searchsorted(parts[part].needed, [cuts[source], cuts[source + 1]])
            rows: Ints = parts[part].needed[low:high] - cuts[source]
            return rows

        # The way back of what passes in a product: from the parts that need to those that give.
        needs = [[other for other, _ in given] for given in halo.given]
        came = Passing(self.parties, self.layout, self.layout, needs).passed(
            self.world,
            lambda route: np.ascontiguousarray(wanted(route[1], route[0])),
            lambda route: np.empty(dict(halo.given[route[0]])[route[1]], np.int64),
        )
        found = {}
        for source in self.held:
            lists = [
                came[source, other] if (source, other) in came else wanted(other, source)
                for other in needs[source]
            ]
            found[source] = np.concatenate([np.empty(0, np.int64), *lists])
        return found
