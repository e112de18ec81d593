"""`Halo`: what passes between devices when a sparse matrix that is split by rows meets a vector.

In: how rows and columns are split, and how many entries of each part of a vector each part of the
rows needs. Out: the bytes that pass, known before anything moves. It is worked out once, when the
matrix is made, and is the same value in all processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshard.algebra.arguments import count_of
from meshard.algebra.layout import Cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Split
from meshard.runtime.types import any_dtype_of


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
