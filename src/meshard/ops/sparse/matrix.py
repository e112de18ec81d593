"""`SparseRows`: a sparse matrix that is split by rows over devices.

In: a matrix of SciPy, or a function that makes a block of rows. Out: a value that multiplies
vectors and matrices, at once and where it is traced. Its values are an array like any other, so
that derivatives by them exist; where they are is a `Structure`, shared by all that is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, final

import numpy as np

from meshard.algebra.arguments import described, function_of, shape_of
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.elementwise import where
from meshard.ops.array.info import result_type
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.sparse import products as _rows  # noqa: F401  (products bind its rows)
from meshard.ops.sparse.build import Builder, Structure, place_of, scipy_sparse
from meshard.ops.sparse.halo import Halo, check_dtype
from meshard.runtime.array.array import to_numpy
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.moving.make import device_put
from meshard.runtime.moving.place import as_array, made_of
from meshard.runtime.trees.nodes import register_pytree_node
from meshard.runtime.types import ArrayType, Block, any_dtype_of, dtype_name
from meshard.runtime.world import here

_NUMBERS = (int, float, complex, np.generic)


def _two_dims(shape: Any, what: str) -> tuple[int, int]:
    found = shape_of(shape, what)
    if len(found) != 2:
        raise ShapeError(f"{what}: a matrix has two dims, but the shape is {found}.")
    return found[0], found[1]


@final
class SparseRows:
    """A sparse matrix, a block of whole rows on each device.

    A product with a vector receives only those entries of it that the device's rows need and that
    it lacks; which these are is found out once, when the matrix is made (`halo`). The blocks are
    multiplied by SciPy. A matrix is a tree whose one leaf is `data`, so that it can be an argument
    of functions that are traced or differentiated.

    Make one with `from_scipy` or `from_callback`.

    >>> import meshard, meshard.numpy as mnp, scipy.sparse
    >>> from meshard.scipy.sparse import SparseRows
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((4,), ("i",)), meshard.P("i"))
    >>> line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(8, 8))
    >>> A = SparseRows.from_scipy(line, rows)
    >>> A
    SparseRows(shape=(8, 8), nnz=22, dtype=float64, rows over i: 4 parts)
    >>> with meshard.debug.ledger() as log:
    ...     y = A @ mnp.arange(8.0, device=rows)
    >>> y.tolist(), log.total_bytes
    ([-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0], 48)
    """

    __slots__ = ("_data", "_structure", "_transposed")
    _data: Any
    _structure: Structure
    _transposed: bool
    __array_ufunc__ = None
    __array_priority__ = 200

    def __init__(self) -> None:
        raise ArgumentError(
            "SparseRows: make one with SparseRows.from_scipy(matrix, sharding), or with "
            "SparseRows.from_callback(shape, sharding, callback)."
        )

    @classmethod
    def _made(cls, data: Any, structure: Structure, transposed: bool = False) -> Self:
        found = object.__new__(cls)
        found._data, found._structure, found._transposed = data, structure, transposed
        return found

    @classmethod
    def from_scipy(cls, matrix: Any, sharding: Any, *, column_sharding: Any = None) -> Self:
        """Lay out a sparse matrix that every process has.

        Each process keeps the rows of its own devices. Values in one place are added up.

        Args:
            matrix: a sparse array or matrix of SciPy in any format, the same on all processes.
            sharding: how rows are split: `NamedSharding(mesh, P(axes))`; columns are whole.
            column_sharding: how vectors are split that the matrix is multiplied by, over the same
                axes. By default, like the rows where it is square, and else as evenly as possible.

        Raises:
            ArgumentError: if it is not a sparse matrix, or SciPy is not there.
            ShardingError: if columns are split, or the shardings are not on one mesh.
            DtypeError: if SciPy has no products of its dtype.

        >>> import meshard, scipy.sparse
        >>> from meshard.scipy.sparse import SparseRows
        >>> meshard.config.update("num_devices", 8)
        >>> rows = meshard.NamedSharding(
        ...     meshard.make_mesh((4,), ("i",)), meshard.P("i"), uneven="balanced"
        ... )
        >>> A = SparseRows.from_scipy(scipy.sparse.eye_array(5), rows)
        >>> A.nnz, A.halo.nbytes()
        (5, {0: 0, 1: 0, 2: 0, 3: 0})
        """
        what = "SparseRows.from_scipy"
        if not scipy_sparse(what).issparse(matrix) or matrix.ndim != 2:
            raise ArgumentError(
                f"{what}: matrix must be a sparse array or matrix of SciPy with two dims; got "
                f"{described(matrix)}. scipy.sparse.csr_array(matrix) makes one."
            )
        shape = _two_dims(matrix.shape, what)
        place = place_of(what, shape, sharding, column_sharding)
        whole = matrix.tocsr()
        builder = Builder(what, shape, place, whole.dtype)
        structure, data = builder.made(lambda start, stop: whole[start:stop])
        return cls._made(data, structure)

    @classmethod
    def from_callback(
        cls,
        shape: Sequence[int],
        sharding: Any,
        callback: Callable[[slice], Any],
        *,
        dtype: Any = None,
        column_sharding: Any = None,
    ) -> Self:
        """Make a matrix whose blocks of rows a callback gives, so that no process has all of it.

        Args:
            shape: the shape of the matrix.
            sharding: how rows are split, as of `from_scipy`.
            callback: called with a slice of rows, once for each block of this process's devices;
                returns those rows as a sparse array or matrix of SciPy, with all columns.
            dtype: of the values; by default that in which all blocks meet.
            column_sharding: as of `from_scipy`.

        Raises:
            ArgumentError: if a block is not a sparse matrix, SciPy is not there, or the callback
                raises on another process; the error itself is raised where it happened.
            ShapeError: if a block has another shape than its rows.
            ShardingError: if columns are split, or the shardings are not on one mesh.
            DtypeError: if SciPy has no products of the dtype, or values do not become it.

        >>> import meshard, scipy.sparse
        >>> from meshard.scipy.sparse import SparseRows
        >>> meshard.config.update("num_devices", 8)
        >>> rows = meshard.NamedSharding(meshard.make_mesh((4,), ("i",)), meshard.P("i"))
        >>> def shift(rows):
        ...     return scipy.sparse.eye_array(rows.stop - rows.start, 8, k=rows.start + 1)
        >>> A = SparseRows.from_callback((8, 8), rows, shift)
        >>> (A @ range(8)).tolist()
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0]
        """
        what = "SparseRows.from_callback"
        function_of(callback, what, "callback")
        own = _two_dims(shape, what)
        place = place_of(what, own, sharding, column_sharding)
        wanted = None if dtype is None else any_dtype_of(dtype, what)
        builder = Builder(what, own, place, wanted)
        structure, data = builder.made(lambda start, stop: callback(slice(start, stop)))
        return cls._made(data, structure)

    # what it is

    @property
    def data(self) -> Any:
        """The values that are stored, row by row, laid out with the rows."""
        return self._data

    @property
    def halo(self) -> Halo:
        """What passes between devices in a product, the same for the transpose."""
        return self._structure.halo

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        rows, columns = self.halo.shape
        return (columns, rows) if self._transposed else (rows, columns)

    @property
    def ndim(self) -> int:
        """The number of dims, 2."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        found: np.dtype[Any] = self._data.dtype
        return found

    @property
    def nnz(self) -> int:
        """The number of values that are stored, explicit zeros too."""
        return self.halo.entries[-1]

    @property
    def sharding(self) -> NamedSharding:
        """How it is laid out: rows are split; of a transpose the columns."""
        own = self._structure.sharding
        axes, uneven = self.halo.axes, own.uneven
        if not self._transposed:
            return own
        if isinstance(uneven, tuple):
            uneven = (None, uneven[0])
        spec = PartitionSpec(None, axes)
        return NamedSharding(own.mesh, spec, memory_kind=own.memory_kind, uneven=uneven)

    @property
    def T(self) -> SparseRows:
        """The transpose, which shares all memory."""
        return self._made(self._data, self._structure, not self._transposed)

    @property
    def H(self) -> SparseRows:
        """The conjugate transpose."""
        return self.conj().T

    def conj(self) -> SparseRows:
        """Return the matrix of conjugate values; itself if it is real."""
        return self if self.dtype.kind != "c" else self.with_data(self._data.conj())

    def astype(self, dtype: Any) -> SparseRows:
        """Return the matrix with values of another dtype.

        Raises:
            DtypeError: if SciPy has no products of it.
        """
        wanted = any_dtype_of(dtype, "SparseRows.astype")
        check_dtype(wanted, "SparseRows.astype")
        return self.with_data(self._data.astype(wanted))

    def with_data(self, data: Any) -> SparseRows:
        """Return the matrix with other values in the same places.

        Args:
            data: the values, row by row, as `data` has them.

        Raises:
            ShapeError: if there are more or fewer.
            DtypeError: if SciPy has no products of their dtype.
        """
        values = as_array(data)
        if values.shape != (self.nnz,):
            raise ShapeError(
                f"SparseRows.with_data: the matrix stores {self.nnz} values, so that data "
                f"must have the shape {(self.nnz,)}; got {values.shape}."
            )
        check_dtype(values.dtype, "SparseRows.with_data")
        return self._made(values, self._structure, self._transposed)

    # products

    def _times(self, x: Any, what: str, *, transposed: bool) -> Any:
        """Return the product with a vector or a dense matrix."""
        values, x = self._data, as_array(x)
        shape = self.halo.shape[::-1] if transposed else self.halo.shape
        if x.ndim not in (1, 2) or x.shape[0] != shape[1]:
            raise ShapeError(
                f"{what}: a matrix of shape {shape} is multiplied by vectors of {shape[1]} "
                f"elements, and by matrices of {shape[1]} rows; got an array of shape {x.shape}."
            )
        if _in_body(x) or _in_body(values):
            raise ArgumentError(
                f"{what}: a SparseRows belongs to all devices of its mesh, so that no device alone "
                "can multiply it in the body of a shard_map. Multiply outside of the body, at once "
                "or under meshard.jit."
            )
        kind = result_type(values.dtype, x.dtype)
        check_dtype(kind, what)
        values = values if values.dtype == kind else values.astype(kind)
        x = x if x.dtype == kind else x.astype(kind)
        name = "sparse_times_transposed" if transposed else "sparse_times"
        return bind(name, *self._structure.arrays, values, x, halo=self.halo)

    def __matmul__(self, x: Any) -> Any:
        """Return the product with a vector or a dense matrix, laid out like the rows."""
        if isinstance(x, SparseRows):
            raise ArgumentError(
                "SparseRows @ SparseRows: products of two sparse matrices are not known. Multiply "
                "vectors by one after the other: A @ (B @ x)."
            )
        return self._times(x, "SparseRows @ x", transposed=self._transposed)

    def __rmatmul__(self, x: Any) -> Any:
        """Return the product of a vector or dense matrix with this matrix."""
        given = as_array(x)
        if given.ndim == 1:
            return self._times(given, "x @ SparseRows", transposed=not self._transposed)
        return self._times(given.T, "x @ SparseRows", transposed=not self._transposed).T

    def dot(self, x: Any) -> Any:
        """Return the product with a vector or a dense matrix."""
        return self @ x

    def matvec(self, x: Any) -> Any:
        """Return the product with a vector."""
        return self @ x

    def rmatvec(self, x: Any) -> Any:
        """Return the product of the conjugate transpose with a vector, as SciPy's operators do."""
        return self.H @ x

    def matmat(self, x: Any) -> Any:
        """Return the product with a dense matrix."""
        return self @ x

    def rmatmat(self, x: Any) -> Any:
        """Return the product of the conjugate transpose with a dense matrix."""
        return self.H @ x

    def __mul__(self, number: Any) -> SparseRows:
        if not _is_number(number):
            return NotImplemented
        return self.with_data(self._data * number)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> SparseRows:
        if not _is_number(number):
            return NotImplemented
        return self.with_data(self._data / number)

    def __neg__(self) -> SparseRows:
        return self.with_data(-self._data)

    # what is in it

    def diagonal(self) -> Any:
        """Return the diagonal, laid out like the rows; zero where nothing is stored."""
        halo, structure = self.halo, self._structure
        size = min(halo.shape)
        cuts = tuple([min(cut, size) for cut in halo.rows])
        blocks = [x._live() for x in (structure.columns, structure.starts, structure.needed)]

        def stored(part: int) -> tuple[Block, Block]:
            """Return the rows of a part that store a value on the diagonal, and which it is."""
            columns, starts, needed = [b[part] for b in blocks]
            assert columns is not None
            assert starts is not None
            assert needed is not None
            rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
            at = np.flatnonzero(needed[columns] == rows + halo.rows[part])
            return rows[at], at + halo.entries[part]

        def places(part: int) -> Block:
            # Rows without one name a value of their own block, which does not have to be sent.
            found = np.full(cuts[part + 1] - cuts[part], min(halo.entries[part], self.nnz - 1))
            rows, at = stored(part)
            found[rows] = at
            return found

        def known(part: int) -> Block:
            found = np.zeros(cuts[part + 1] - cuts[part], bool)
            found[stored(part)[0]] = True
            return found

        what, world = "SparseRows.diagonal", here()
        own = named_sharding(halo.mesh, (halo.split(cuts),), structure.sharding.memory_kind)
        mask = made_of(world, world.type_of((size,), np.dtype(bool), own, True), known, what)
        if not self.nnz:
            return mask.astype(self.dtype)
        kind = world.type_of((size,), np.dtype(np.int64), own, True)
        found = where(mask, self._data[made_of(world, kind, places, what)], 0)
        return found if found.dtype == self.dtype else found.astype(self.dtype)

    def to_scipy(self) -> Any:
        """Return the whole matrix as a ``scipy.sparse.csr_array``; on every process.

        All processes must call it: it gathers the values and their places.
        """
        structure, halo = self._structure, self.halo
        blocks = [x._live() for x in (structure.columns, structure.starts, structure.needed)]

        def columns(part: int) -> Block:
            own, _, needed = [b[part] for b in blocks]
            assert own is not None
            assert needed is not None
            found: Block = needed[own]
            return found

        what = "SparseRows.to_scipy"
        kind = here().type_of((self.nnz,), np.dtype(np.int64), structure.columns.sharding, True)
        whole = NamedSharding(halo.mesh, PartitionSpec())
        given = [self._data, made_of(here(), kind, columns, what), structure.starts]
        data, places, starts = [to_numpy(device_put(x, whole), what) for x in given]
        ends = [
            starts[a + 1 : b] + first
            for a, b, first in zip(halo.starts, halo.starts[1:], halo.entries, strict=False)
        ]
        pointers = np.concatenate([[0], *ends])
        found = scipy_sparse(what).csr_array((data, places, pointers), shape=halo.shape)
        return found.T.tocsr() if self._transposed else found

    def __repr__(self) -> str:
        told = "columns" if self._transposed else "rows"
        return (
            f"SparseRows(shape={self.shape}, nnz={self.nnz}, dtype={dtype_name(self.dtype)}, "
            f"{told} over {', '.join(self.halo.axes)}: {self.halo.parts} parts)"
        )


def _in_body(x: Any) -> bool:
    """Whether a value is one of a `shard_map` body."""
    return isinstance(x, Traced) and not isinstance(x.aval, ArrayType)


def _is_number(x: Any) -> bool:
    return isinstance(x, _NUMBERS) or getattr(x, "shape", None) == ()


def _flat(matrix: SparseRows) -> tuple[tuple[Any], tuple[Structure, bool]]:
    return (matrix._data,), (matrix._structure, matrix._transposed)


def _again(aux: tuple[Structure, bool], children: tuple[Any]) -> SparseRows:
    return SparseRows._made(children[0], *aux)


register_pytree_node(SparseRows, _flat, _again)
