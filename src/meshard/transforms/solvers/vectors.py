"""Trees of arrays as vectors: sums, products with numbers, scalar products.

In: trees of one structure. Out: trees, or numbers. A scalar product adds up each leaf along all its
dims at once, so that of a leaf that is split one number passes between the devices.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from meshard.algebra.arguments import described
from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.array.elementwise import sqrt, where
from meshard.ops.array.info import result_type
from meshard.ops.linalg.contract import contract, dot, matmul
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees

Vector = Any
"""A tree of arrays."""
Operator = Callable[[Vector], Vector]


def combined(f: Callable[..., Any], *vectors: Vector) -> Vector:
    """Return a vector of what a function makes of the elements of others."""
    return trees.map(f, *vectors)


add = partial(combined, operator.add)
subtract = partial(combined, operator.sub)


def times(scalar: Any, x: Vector) -> Vector:
    """Return a vector times a number; a real one leaves the dtypes of the vector as they are."""
    if scalar.dtype.kind == "c":
        return trees.map(lambda leaf: scalar * leaf, x)
    return trees.map(lambda leaf: scalar.astype(leaf.dtype) * leaf, x)


def letters(x: Any) -> str:
    """Return a term of a rule, with a factor for each dim."""
    return " ".join(string.ascii_lowercase[: x.ndim])


def _product(x: Any, y: Any) -> Any:
    own = letters(x)
    left = x.conj() if x.dtype.kind == "c" else x
    return contract("vdot", left, y, f"{own}, {own} ->")


def product(x: Vector, y: Vector) -> Any:
    """Return the scalar product of two vectors, the first conjugated."""
    pairs = zip(trees.leaves(x), trees.leaves(y), strict=True)
    return reduce(operator.add, [_product(a, b) for a, b in pairs])


def real_product(x: Vector, y: Vector) -> Any:
    """Return the real part of the scalar product of two vectors."""
    found = product(x, y)
    return found.real if found.dtype.kind == "c" else found


def norm(x: Vector) -> Any:
    """Return the length of a vector."""
    return sqrt(real_product(x, x))


def dtype(x: Vector) -> Any:
    """Return the dtype in which all elements of a vector meet."""
    return result_type(*trees.leaves(x))


def chosen(condition: Any, x: Vector, y: Vector) -> Vector:
    """Return one of two vectors."""
    return trees.map(lambda a, b: where(condition, a, b), x, y)


# what solvers are given


def identity(x: Vector) -> Vector:
    """Return a vector as it is."""
    return x


def operator_of(given: Any, what: str, name: str) -> Operator:
    """Return the function that a linear operator is: it takes and returns vectors.

    Args:
        given: a function, a square matrix, or a value with a shape that ``@`` multiplies.
        what: the function that was called, for messages.
        name: its argument.

    Raises:
        ArgumentError: if it is not a linear operator.
        ShapeError: if it is not square.
    """
    if type(given).__module__.partition(".")[0] == "scipy":
        raise ArgumentError(
            f"{what}: {name} is a {type(given).__name__} of SciPy, which would gather each vector "
            "in order to multiply it. Lay a sparse matrix out with "
            "meshard.scipy.sparse.SparseRows.from_scipy(matrix, sharding), or give a function."
        )
    matrix = isinstance(given, (Array, Traced)) or hasattr(given, "__array__")
    if callable(given) and not matrix:
        return given
    shape = getattr(given, "shape", None)
    if not hasattr(given, "__matmul__") or shape is None:
        raise ArgumentError(
            f"{what}: {name} must be a function of a vector, a square matrix, or a value with a "
            f"shape that @ multiplies by a vector; got {described(given)}."
        )
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(
            f"{what}: {name} must be a square matrix, but it has the shape {tuple(shape)}."
        )
    if not matrix:
        return partial(operator.matmul, given)
    array = as_array(given)
    return lambda x: dot(array, x) if x.ndim == 1 else matmul(array, x)


def vector_of(given: Any, what: str, name: str) -> Vector:
    """Return a tree of arrays of floats or complex numbers.

    Raises:
        TreeError: if it has no leaves.
    """

    def leaf(x: Any) -> Any:
        found = as_array(x)
        return found if found.dtype.kind not in "biu" else found.astype(result_type(found, 1.0))

    if not trees.leaves(given):
        raise TreeError(f"{what}: {name} is a tree without arrays; a vector has at least one.")
    return trees.map(leaf, given)


def check_alike(x0: Vector, b: Vector, what: str) -> None:
    """Refuse a first guess that is not a vector like the right-hand side.

    Raises:
        TreeError: if it has another structure.
        ShapeError: if its arrays have other shapes.
    """
    own, wanted = trees.structure(x0), trees.structure(b)
    if own != wanted:
        raise TreeError(f"{what}: x0 has the tree {own}, but b has {wanted}; they must be alike.")
    shapes: Sequence[Any] = [[leaf.shape for leaf in trees.leaves(v)] for v in (x0, b)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"{what}: the arrays of x0 have the shapes {shapes[0]}, those of b {shapes[1]}; they "
            "must be alike."
        )
