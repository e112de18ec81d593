"""`Halo`: what passes between devices when a sparse matrix that is split by rows meets a vector.

In: how rows and columns are split, and how many entries of each part of a vector each part of the
rows needs. Out: the bytes that pass, known before anything moves. It is worked out once, when the
matrix is made, and is the same value in all processes.

Products of one block of rows, by SciPy.

In: the values, the columns among those that the block needs, and where rows begin, as SciPy's CSR
format has them; and dense blocks. Out: dense blocks. A row is added up from left to right whatever
the devices, so that products have the bits of SciPy's on one array.

Entries that pass between processes, along routes that all of them know.

In: which pieces of a result need something from which pieces of an operand, and how much. Out: for
each process what it sends, and what it receives, in an order that both ends share. No sizes and no
positions pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import count_of
from meshard.algebra.layout import Cuts, Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Split
from meshard.errors import DtypeError
from meshard.ops.exchange.lookups import Parties, pass_boxes
from meshard.runtime.types import Block, any_dtype_of
from meshard.runtime.world import RuntimeWorld


@final
@dataclass(frozen=True)
class Halo:
    """The entries that pass in each product of a sparse matrix and a vector, or of its transpose.

    Attributes:
        mesh: the devices.
        axes: the mesh axes along which rows are split, and vectors.
        rows: where the rows are cut, from 0 to their number.
        columns: where a vector that is multiplied is cut, from 0 to the number of columns.
        entries: where the values that are stored are cut: a part for each part of the rows.
        needed: where the columns that each part of the rows has values in are cut, one part after
            the other.
        counts: triples of two different parts and a number: so many entries of a vector's second
            part are needed for the first part of the rows.

    >>> import meshard, numpy as np, scipy.sparse
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((4,), ("i",)), meshard.P("i"))
    >>> line = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(8, 8))
    >>> halo = meshard.scipy.sparse.SparseRows.from_scipy(line, rows).halo
    >>> halo.counts
    ((0, 1, 1), (1, 0, 1), (1, 2, 1), (2, 1, 1), (2, 3, 1), (3, 2, 1))
    >>> halo.nbytes("float64")
    {0: 8, 1: 16, 2: 16, 3: 8}
    """

    mesh: Mesh
    axes: tuple[str, ...]
    rows: Cuts
    columns: Cuts
    entries: Cuts
    needed: Cuts
    counts: tuple[tuple[int, int, int], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.mesh, self.axes, self.rows, self.columns, self.entries, self.counts))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.rows[-1], self.columns[-1]

    @property
    def parts(self) -> int:
        """The number of parts that the rows are split into."""
        return len(self.rows) - 1

    @property
    def starts(self) -> Cuts:
        """Where the places at which rows begin are cut: one more than rows in each part."""
        return tuple([cut + part for part, cut in enumerate(self.rows)])

    @cached_property
    def sent(self) -> Cuts:
        """Where the entries that each part of a vector gives to others are cut."""
        given = np.zeros(self.parts + 1, np.int64)
        for _, source, count in self.counts:
            given[source + 1] += count
        return tuple(np.cumsum(given).tolist())

    @cached_property
    def needs(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each part of the rows the parts of a vector that it needs entries of, and how many.

        They are in order, and its own part is one of them.
        """
        found: list[dict[int, int]] = [{} for _ in range(self.parts)]
        for part, source, count in self.counts:
            found[part][source] = count
        for part, own in enumerate(found):
            own[part] = self.needed[part + 1] - self.needed[part] - sum(own.values())
        return tuple([tuple(sorted(own.items())) for own in found])

    @cached_property
    def given(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each part of a vector the other parts that need entries of it, and how many."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.parts)]
        for part, source, count in sorted(self.counts):
            found[source].append((part, count))
        return tuple(map(tuple, found))

    def nbytes(self, dtype: object = np.float64, width: int = 1) -> Mapping[int, int]:
        """Return the bytes that each device receives in a product with a vector.

        No product of this matrix, split as it is, can do with fewer, for a vector split like its
        columns: each device receives each entry that it needs and lacks once.

        Args:
            dtype: the dtype of the vector.
            width: the number of vectors that are multiplied at once.

        Raises:
            DtypeError: if ``dtype`` is not a dtype.
            ArgumentError: if ``width`` is below 0.
        """
        size = any_dtype_of(dtype, "Halo.nbytes").itemsize * count_of(width, "Halo.nbytes", "width")
        return self.received(size)

    def received(self, size: int, *, transposed: bool = False) -> dict[int, int]:
        """Return the bytes that each device receives, for entries of a size.

        Args:
            size: bytes that pass for each entry.
            transposed: whether what is added to a vector passes instead, back to where that is.
        """
        axes = self.mesh.axis_names
        ids = self.mesh.device_ids.transpose(
            [axes.index(a) for a in self.axes]
            + [i for i, a in enumerate(axes) if a not in self.axes]
        ).reshape(self.parts, -1)
        found = dict.fromkeys(sorted(self.mesh.device_ids.reshape(-1).tolist()), 0)
        for part, source, count in self.counts:
            for device in ids[source if transposed else part].tolist():
                found[device] += count * size
        return found

    def split(self, cuts: Cuts) -> Split:
        """Return the split of a dim along the axes."""
        return Split(self.axes, cuts)

    def __repr__(self) -> str:
        most = max(self.nbytes(np.int8).values(), default=0)
        total = sum(count for *_, count in self.counts)
        return (
            f"Halo({self.shape[0]}x{self.shape[1]} over {', '.join(self.axes)}: {total} entries "
            f"pass, at most {most} to a device)"
        )


def check_dtype(dtype: np.dtype[Any], what: str) -> None:
    """Refuse dtypes that SciPy has no sparse products of.

    Raises:
        DtypeError: if it is none of bool, integers of NumPy, float32 and longer floats.
    """
    if dtype.kind in "biu" and dtype.char in "?bBhHiIlLqQ":
        return
    if dtype.char in "fdgFDG":
        return
    raise DtypeError(
        f"{what}: SciPy has no sparse products of {dtype}; use float32 or float64, complex64 or "
        "complex128, bool, or integers."
    )


def csr(values: Block, columns: Block, starts: Block, width: int) -> Any:
    """Return a block of rows as SciPy's sparse array, without copying."""
    from scipy.sparse import csr_array

    shape = (len(starts) - 1, width)
    return csr_array((values, columns, starts), shape=shape, copy=False)


def times(values: Block, columns: Block, starts: Block, x: Block) -> Block:
    """Return the product of a block of rows and the entries that it needs."""
    found: Block = csr(values, columns, starts, len(x)) @ np.ascontiguousarray(x)
    return found


def transposed_times(values: Block, columns: Block, starts: Block, y: Block, width: int) -> Block:
    """Return what a block of rows adds to each entry that it has a column for."""
    found: Block = csr(values, columns, starts, width).T @ np.ascontiguousarray(y)
    return found


def sampled(columns: Block, starts: Block, y: Block, x: Block) -> Block:
    """Return for each value that is stored the product of its row of y and its column of x.

    Of matrices the products of all columns are added up.
    """
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    if x.ndim == 1:
        found: Block = y[rows] * x[columns]
        return found
    total: Block = np.zeros(len(columns), x.dtype)
    for k in range(x.shape[1]):
        total += y[rows, k] * x[columns, k]
    return total


Route = tuple[int, int]
"""A piece of the result, and the piece of the operand from which something passes to it."""


@final
@dataclass(frozen=True)
class Passing:
    """What passes between processes for one operation.

    Attributes:
        parties: who takes part.
        target: the layout of the result.
        source: the layout of the operand.
        needs: for each piece of the result the pieces of the operand that it needs, in order.
    """

    parties: Parties
    target: Layout
    source: Layout
    needs: Sequence[Sequence[int]]

    def _sender(self, receiver: int, source: int) -> int:
        """Return the process that another gets a piece's entries from: itself if it can."""
        owners = self.parties.owners(self.source)[source]
        if receiver in owners:
            return receiver
        return sorted(owners)[(receiver + source) % len(owners)]

    @cached_property
    def _routes(self) -> dict[tuple[int, int], list[Route]]:
        """What passes between each pair of processes, sender first, in order."""
        found: dict[tuple[int, int], list[Route]] = {}
        for receiver in self.parties.members:
            for target in self.parties.held(self.target, receiver):
                for source in self.needs[target]:
                    sender = self._sender(receiver, source)
                    if sender != receiver:
                        found.setdefault((sender, receiver), []).append((target, source))
        return found

    def passed(
        self,
        world: RuntimeWorld,
        message: Callable[[Route], Block],
        room: Callable[[Route], Block],
    ) -> Mapping[Route, Block]:
        """Send what other processes need; return what has come.

        Args:
            world: this process's world.
            message: makes what is sent.
            room: makes a block for what comes.
        """
        me = world.process_index
        if world.process_count == 1 or self.parties.alone:
            return {}
        sends, receives, came = {}, {}, {}
        for (sender, receiver), routes in self._routes.items():
            if sender == me:
                sends[receiver] = [message(route) for route in routes]
            elif receiver == me:
                came.update({route: room(route) for route in routes})
                receives[sender] = [came[route] for route in routes]
        pass_boxes(world, sends, receives)
        return came
