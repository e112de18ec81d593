"""Products of matrices with vectors, and equations between tensors.

Einsum: a chain of products of two arrays, in the order that opt_einsum finds.

Covariances and correlations: a product of what is left when the means are taken off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import mul
from typing import Any

import numpy as np

from meshard.algebra.arguments import described, integer_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.join import concatenate
from meshard.ops.array.shape import (
    atleast_2d,
    expand_dims,
    matrix_transpose,
    moveaxis,
    reshape,
    squeeze,
    transpose,
)
from meshard.ops.checked import DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import (
    SMALL_FLOATS,
    accumulator,
    as_dtype,
    common_dtype,
    default_float,
    is_whole,
)
from meshard.ops.linalg.contract import contract, matmul
from meshard.ops.linalg.decompose import inv, solve
from meshard.ops.reductions.moments import mean
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

Lettered = tuple[list[str], Any]
"""An array, and the letters of its dims."""


def _diagonal_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    a, out = params["inputs"], params["output"]
    named = {f: f"l{ord(f)}" for f in a}
    marks = [f"!{named[f]}_{i}" if a.count(f) > 1 else named[f] for i, f in enumerate(a)]
    sizes = {named[f]: n for f, n in zip(a, operands[0][0], strict=True)}
    return f"{' '.join(marks)} -> {' '.join(named[f] for f in out)}", sizes


def _diagonal(x: Block, *, inputs: tuple[str, ...], output: tuple[str, ...]) -> Any:
    number = {f: i for i, f in enumerate(dict.fromkeys(inputs))}
    return np.einsum(x, [number[f] for f in inputs], [number[f] for f in output])


register(Op("einsum_diagonal", _diagonal_rule, _diagonal))


@checked
def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    preferred_element_type: DtypeLike = None,
    precision: Any = None,
) -> Array:
    """Return the sum of products that Einstein's notation describes.

    Args:
        subscripts: as in ``numpy.einsum``: ``"ij,jk->ik"``, with ``...`` and implicit output; or
            alternating operands and lists of numbers.
        operands: the arrays.
        optimize: how opt_einsum looks for an order of more than two operands.
        preferred_element_type: the result's dtype.
        precision: accepted as in JAX.

    Raises:
        ShapeError: if the subscripts do not fit the operands.

    >>> import meshard.numpy as mnp
    >>> mnp.einsum("ij,jk,kl->il", mnp.ones((2, 3)), mnp.ones((3, 4)), mnp.ones((4, 5))).shape
    (2, 5)
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _spelled(subscripts, operands)
    arrays = [as_array(x) for x in operands]
    terms, output, path = _path(subscripts, tuple([x.shape for x in arrays]), _ordering(optimize))
    if preferred_element_type is None:
        dtype = common_dtype("einsum", [x.dtype for x in arrays])
    else:
        dtype = as_dtype(preferred_element_type)
    work: list[Lettered] = [(list(t), x) for t, x in zip(terms, arrays, strict=True)]
    # As opt_einsum counts: what a step names is taken out, and its product comes last.
    for step in path:
        chosen = [work[i] for i in step]
        work = [pair for i, pair in enumerate(work) if i not in step]
        while len(chosen) > 1:
            first, second, *rest = chosen
            keep = set(output).union(*(t for t, _ in (*work, *rest)))
            chosen = [_pair(first, second, keep, dtype), *rest]
        work.append(chosen[0])
    letters, found = work[0]
    result = _unary(letters, found, list(output), dtype)
    return result if result.dtype == dtype else result.astype(dtype)


def _spelled(first: Any, rest: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return subscripts in letters, and the operands, of an einsum in numbers."""
    import opt_einsum

    lists = [*rest[::2], *(rest[-1:] if len(rest) % 2 == 0 else ())]
    if not lists or not all(isinstance(t, (list, tuple)) and all(map(_labels, t)) for t in lists):
        raise ArgumentError(
            "einsum: the first argument is neither a string such as 'ij,jk->ik' nor an array with "
            "its list of numbers after it."
        )
    text, operands = opt_einsum.parser.convert_interleaved_input((first, *rest))
    return text, tuple(operands)


def _labels(item: Any) -> bool:
    return item is ... or isinstance(item, (int, np.integer))


def _ordering(optimize: Any) -> Any:
    """Return einsum's ``optimize`` in a form that can be looked up."""
    try:
        if isinstance(optimize, (list, tuple)):
            return tuple(
                tuple([integer_of(i, "einsum", "a step of optimize") for i in step])
                for step in optimize
                if not isinstance(step, str)
            )
        if optimize is None or isinstance(optimize, (bool, str)):
            return "auto" if optimize is True else optimize or False
    except TypeError:
        pass
    raise ArgumentError(
        "einsum: optimize must be a bool, the name of a strategy, or a path as a list of tuples "
        f"of integers, got {described(optimize)}."
    )


@lru_cache(maxsize=4096)
def _path(
    subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: Any
) -> tuple[tuple[str, ...], str, tuple[tuple[int, ...], ...]]:
    """Return each operand's letters, the result's, and which operands to contract in turn."""
    import opt_einsum

    try:
        spelled, output, _ = opt_einsum.parser.parse_einsum_input(
            (subscripts, *shapes), shapes=True
        )
        terms = tuple(spelled.split(","))
        for term, shape in zip(terms, shapes, strict=True):
            if len(term) != len(shape):
                raise ShapeError(f"{term!r} has {len(term)} letters for {len(shape)} dims.")
            _check_diagonals(term, shape)
        path, _info = opt_einsum.contract_path(
            f"{spelled}->{output}",
            *shapes,
            shapes=True,
            optimize=list(optimize) if isinstance(optimize, tuple) else optimize,
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ShapeError(
            f"einsum: {subscripts!r} does not fit operands of shapes "
            f"{', '.join(map(str, shapes)) or '(none)'}: {str(error).rstrip('.')}."
        ) from None
    return terms, output, tuple(tuple(sorted(step)) for step in path)


def _check_diagonals(term: str, shape: Sequence[int]) -> None:
    for letter in dict.fromkeys(term):
        sizes = {n for f, n in zip(term, shape, strict=True) if f == letter}
        if len(sizes) > 1:
            raise ShapeError(f"the dims named {letter!r} of one operand are {sorted(sizes)}.")


def _unary(letters: list[str], x: Any, out: list[str], dtype: Dtype) -> Any:
    """Take diagonals, sum and permute until the letters are those wanted."""
    if len(set(letters)) != len(letters):
        kept = list(dict.fromkeys(letters))
        x = bind("einsum_diagonal", x, inputs=tuple(letters), output=tuple(kept))
        letters = kept
    gone = tuple(i for i, f in enumerate(letters) if f not in out)
    if gone:
        x = sum_(x, axis=gone, dtype=accumulator(dtype))
        letters = [f for f in letters if f in out]
    if letters != out:
        x = transpose(x, [letters.index(f) for f in out])
    return x


def _pair(first: Lettered, second: Lettered, keep: set[str], dtype: Dtype) -> Lettered:
    """Contract two operands, keeping the letters that are wanted later."""
    first, second = (
        _needed(first, second, keep, dtype),
        _needed(second, first, keep, dtype),
    )
    # A dim of size one is gone now, so that a letter may be left in one operand alone.
    (a, x), (b, y) = (
        _summed(first, [f for f in first[0] if f in keep or f in second[0]], dtype),
        _summed(second, [f for f in second[0] if f in keep or f in first[0]], dtype),
    )
    out = [f for f in dict.fromkeys([*a, *b]) if f in keep]
    named = {f: f"l{ord(f)}" for f in (*a, *b)}
    left, right, result = (" ".join(named[f] for f in t) for t in (a, b, out))
    return out, contract("einsum", x, y, f"{left}, {right} -> {result}", dtype)


def _needed(own: Lettered, other: Lettered, keep: set[str], dtype: Dtype) -> Lettered:
    """Return an operand without what the product with another one does not need.

    A dim of size one that meets a longer one counts once. A letter that only this operand has, and
    that is not wanted later, is summed before the product, which makes the product smaller.
    """
    longer = {f for f, n in zip(other[0], other[1].shape, strict=True) if n != 1}
    met = {f for f, n in zip(own[0], own[1].shape, strict=True) if n == 1 and f in longer}
    wanted = [f for f in dict.fromkeys(own[0]) if f not in met and (f in keep or f in other[0])]
    return _summed(own, wanted, dtype)


def _summed(own: Lettered, wanted: list[str], dtype: Dtype) -> Lettered:
    return wanted, _unary(*own, wanted, dtype)


@checked
def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    *,
    dtype: DtypeLike = None,
) -> Array:
    """Return the covariances of variables.

    A split dim of observations is summed part by part; the result is a small matrix.

    Args:
        m: one variable, or a variable per row.
        y: further variables.
        rowvar: whether rows are the variables, not columns.
        bias: whether to divide by the number of observations instead of one less.
        ddof: what is taken off the divisor, instead of what ``bias`` says.
        fweights: how often each observation occurs, integers of one dim.
        aweights: how much each observation counts, not negative.
        dtype: the result's dtype; by default the longest float, or complex numbers.

    Raises:
        ShapeError: if an array has more than two dims, or weights do not fit the observations.
        DtypeError: if ``fweights`` are not integers.

    >>> import meshard.numpy as mnp
    >>> mnp.cov(mnp.asarray([[0, 1, 2], [2, 1, 0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    parts = [_variables(v, rowvar, dtype) for v in (m, y) if v is not None]
    x = parts[0] if len(parts) == 1 else concatenate(parts, axis=0)
    less = ddof if ddof is not None else 0 if bias else 1
    weights = _weights(x.shape[1], fweights, aweights)
    if weights is None:
        off, other = (x - mean(x, axis=1, keepdims=True),) * 2
        count = max(x.shape[1] - less, 0)
        share: Any = 1 / count if count else np.inf
    else:
        total = sum_(weights)
        off = x - sum_(x * weights, 1, None, None, True) / total
        other = off * weights
        spread = total if aweights is None else sum_(weights * as_array(aweights)) / total
        divisor = total - less * (1 if aweights is None else spread)
        share = 1 / bind("maximum", divisor, 0)
    other = matrix_transpose(other)
    found = matmul(off, bind("conjugate", other) if x.dtype.kind == "c" else other)
    return squeeze(found * share).astype(x.dtype, copy=False)


def _weights(count: int, fweights: Any, aweights: Any) -> Any:
    """Return how much each observation counts; None: all alike.

    Raises:
        ShapeError: if weights are not one for each observation.
        DtypeError: if frequencies are not integers.
    """
    given = {n: as_array(w) for n, w in (("f", fweights), ("a", aweights)) if w is not None}
    for name, w in given.items():
        if w.shape != (count,):
            raise ShapeError(
                f"cov: {name}weights of shape {w.shape} for {count} observations; give one for "
                "each."
            )
        if name == "f" and not is_whole(w.dtype):
            raise DtypeError(f"cov: fweights must be integers, but their dtype is {w.dtype}.")
    return reduce(mul, given.values()).astype(default_float()) if given else None


def _variables(value: Any, rowvar: bool, dtype: Any) -> Any:
    x = as_array(value)
    if x.ndim > 2:
        raise ShapeError(f"cov: takes an array of one or two dims, got shape {x.shape}.")
    if dtype is not None:
        law = as_dtype(dtype)
    elif x.dtype in SMALL_FLOATS:
        law = x.dtype
    else:
        law = common_dtype(
            "cov", (default_float() if is_whole(x.dtype) else x.dtype, default_float())
        )
    rows = atleast_2d(x.astype(law, copy=False))
    return rows if rowvar or x.ndim == 1 else matrix_transpose(rows)


@checked
def corrcoef(
    x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, *, dtype: DtypeLike = None
) -> Array:
    """Return the correlation coefficients of variables, given as to `cov`.

    >>> import meshard.numpy as mnp
    >>> mnp.corrcoef(mnp.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).round(6).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    n = c.shape[0]
    scale = bind("sqrt", bind("real", c[np.arange(n), np.arange(n)]))
    found = c / reshape(scale, (n, 1)) / reshape(scale, (1, n))
    if found.dtype.kind == "c":
        return found
    return bind("minimum", bind("maximum", found, -1), 1)


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return the products of matrices with vectors; other dims broadcast.

    Raises:
        ShapeError: if the matrices have another number of columns than the vectors elements.

    >>> import meshard.numpy as mnp
    >>> mnp.matvec(mnp.asarray([[1, 2], [3, 4]]), mnp.asarray([1, 1])).tolist()
    [3, 7]
    """
    return squeeze(matmul(x1, expand_dims(x2, -1)), -1)


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return the products of vectors, conjugated, with matrices; other dims broadcast.

    Raises:
        ShapeError: if the matrices have another number of rows than the vectors elements.

    >>> import meshard.numpy as mnp
    >>> mnp.vecmat(mnp.asarray([1, 1]), mnp.asarray([[1, 2], [3, 4]])).tolist()
    [4, 6]
    """
    x = as_array(x1)
    x = bind("conjugate", x) if x.dtype.kind == "c" else x
    return squeeze(matmul(expand_dims(x, -2), x2), -2)


@checked
def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Return ``x`` of ``tensordot(a, x, x.ndim) == b``.

    Args:
        a: the coefficients, of shape ``b.shape + x.shape``, as many of each.
        b: the right-hand side.
        axes: dims of ``a`` that are moved to its end first.

    Raises:
        ShapeError: if the equations are not as many as the unknowns.

    >>> import meshard.numpy as mnp
    >>> a = mnp.eye(6).reshape(6, 2, 3)
    >>> mnp.linalg.tensorsolve(a, mnp.arange(6.0)).tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    x, y = as_array(a), as_array(b)
    if axes is not None:
        moved = [normalised_axes(d, x.ndim, "tensorsolve")[0] for d in axes]
        x = moveaxis(x, moved, range(x.ndim - len(moved), x.ndim))
    shape = x.shape[y.ndim :]
    if math.prod(shape) != y.size or x.size != y.size**2:
        raise ShapeError(
            f"tensorsolve: coefficients of shape {x.shape} for a right-hand side of shape "
            f"{y.shape} are {x.size // max(y.size, 1)} unknowns in {y.size} equations; they must "
            "be as many."
        )
    return reshape(solve(reshape(x, (y.size, y.size)), reshape(y, (-1,))), shape)


@checked
def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """Return the inverse of an array as a map between tensors: that of ``tensordot(a, x, ind)``.

    Args:
        a: the array.
        ind: how many of its first dims belong to what the map gives.

    Raises:
        ShapeError: if these dims have not as many elements as the others.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.tensorinv(mnp.eye(4).reshape(4, 2, 2), 1).shape
    (2, 2, 4)
    """
    x = as_array(a)
    first, last = x.shape[: max(ind, 0)], x.shape[max(ind, 0) :]
    if ind < 1 or math.prod(first) != math.prod(last):
        raise ShapeError(
            f"tensorinv: the first {ind} dims of the shape {x.shape} have {math.prod(first)} "
            f"elements, and the others {math.prod(last)}; they must be as many, and ind positive."
        )
    return reshape(inv(reshape(x, (math.prod(first), -1))), (*last, *first))
