"""Contractions: products of arrays summed over common dims, by rules in factors.

Every product of two arrays is one row, ``contract``, with its rule as parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import shown
from meshard.algebra.rule import OpRule, Term
from meshard.errors import ArgumentError, IncompatibleDevicesError, ShapeError
from meshard.ops.array.shape import broadcast_to, expand_dims, moveaxis, order_of_dims
from meshard.ops.checked import DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import as_dtype, cast, common_dtype, is_float, operand_dtype, promoted
from meshard.ops.row import Dtype, Op, Operand, Params, Partial, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block
from meshard.tuning import SMALL_PRODUCT, SMALL_RESULTS


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    rule: str = params["rule"]
    return rule


def _law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    if params["dtype"] is not None:
        return (params["dtype"],)
    return (promoted([operand_dtype(x) for x in operands]),)


def _letters(term: Term) -> list[str]:
    return [dim[0] for dim in term]


@final
@dataclass(frozen=True, slots=True)
class _Product:
    """A rule as one (batched) product of matrices.

    Attributes:
        plain: whether the operands and the result are matrices, none of them transposed.
        batch: the number of dims that both operands and the result have.
        rows: the number of dims that only the first operand and the result have.
        inner: the number of dims that are summed over.
        left: the first operand's dims in the order batch, rows, inner.
        right: the second operand's dims in the order batch, inner, columns.
        out: the dims of the result, counted in the order batch, rows, columns.
    """

    plain: bool
    batch: int
    rows: int
    inner: int
    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]


@lru_cache(maxsize=4096)
def _product_of(rule: str) -> _Product:
    parsed = OpRule.parse(rule)
    a, b, out = map(_letters, (*parsed.inputs, *parsed.outputs))
    batch = [f for f in out if f in a and f in b]
    rows = [f for f in out if f in a and f not in b]
    columns = [f for f in out if f in b and f not in a]
    inner = [f for f in a if f in b and f not in out]
    left = tuple(map(a.index, (*batch, *rows, *inner)))
    right = tuple(map(b.index, (*batch, *inner, *columns)))
    places = tuple(map([*batch, *rows, *columns].index, out))
    plain = not batch and left == right == places == (0, 1)
    return _Product(plain, len(batch), len(rows), len(inner), left, right, places)


def _product(x: Block, y: Block, rule: str, result: Block | None) -> Any:
    """Contract two blocks by a rule, as one (batched) matrix product."""
    way = _product_of(rule)
    if way.plain:
        thin = x.shape[0] == 1 or y.shape[1] == 1
        return _multiplied(_steady(x, thin), _steady(y, thin), result)
    first = [x.shape[d] for d in way.left]
    batch, rows = first[: way.batch], first[way.batch :][: way.rows]
    columns = [y.shape[d] for d in way.right[way.batch + way.inner :]]
    m, n, k = math.prod(rows), math.prod(columns), math.prod(first[way.batch + way.rows :])
    thin = m == 1 or n == 1
    left, right = _steady(x, thin).transpose(way.left), _steady(y, thin).transpose(way.right)
    if not len(rows) == len(columns) == way.inner == 1:  # reshaped, strided blocks would be copied
        left, right = left.reshape((*batch, m, k)), right.reshape((*batch, k, n))
    if result is not None and way.out == tuple(range(result.ndim)) and m > 1 < n:
        _multiplied(left, right, result.reshape((*batch, m, n)))
        return result
    found = _multiplied(left, right, None)
    return found.reshape((*batch, *rows, *columns)).transpose(way.out)


def _multiplied(x: Block, y: Block, out: Block | None) -> Block:
    """Return the product of matrices: a small one of long matrices as a sum of small products."""
    least, most = SMALL_RESULTS
    size = x.shape[-2] * y.shape[-1]
    if x.ndim > 2 or not least <= size <= most or x.dtype.kind != "f" or x.dtype != y.dtype:
        found: Block = np.matmul(x, y, out=out)
        return found
    inner = x.shape[1]
    step = 1 << (SMALL_PRODUCT // size).bit_length() - 1
    total: Block = np.matmul(x[:, :step], y[:step], out=out)
    more = np.empty_like(total) if inner > step else total
    for start in range(step, inner, step):
        np.matmul(x[:, start : start + step], y[start : start + step], out=more)
        total += more
    return total


def _steady(x: Block, thin: bool) -> Block:
    """Return a block whose memory order does not show in the last bits of a product.

    BLAS sums products of matrices in one order, whatever their memory order, if it can read them;
    those with vectors in another for each order. Whether a block is a view or was received depends
    on the number of processes, and must not show.
    """
    if x.flags.c_contiguous or not (is_float(x.dtype) or x.dtype.kind == "c"):
        return x
    return np.ascontiguousarray(x) if thin or x.itemsize not in x.strides[-2:] else x


def _kernel(
    x: Block,
    y: Block,
    *,
    rule: str,
    dtype: Dtype | None,
    accumulator: Dtype,
    out: Block | None = None,
) -> Any:
    if x.dtype != accumulator:
        x = cast(x, accumulator)
    if y.dtype != accumulator:
        y = cast(y, accumulator)
    return _product(x, y, rule, out)


register(
    Op(
        "contract",
        _rule,
        _kernel,
        dtypes=_law,
        partial=Partial(np.add, "wide"),
        style="blas",
    )
)


def contract(what: str, x: Any, y: Any, rule: str, dtype: Any = None) -> Any:
    """Return the product of two arrays by a rule, for the function named ``what``.

    Raises:
        DtypeError: if there is no common dtype, and ``dtype`` is not given.
        IncompatibleDevicesError: if the arrays are committed to different devices.
    """
    if dtype is None and x.dtype != y.dtype:
        common_dtype(what, (x.dtype, y.dtype))
    wanted = None if dtype is None else as_dtype(dtype)
    given, _, out = rule.partition("->")
    (x, left), (y, right) = map(_turned_back, (x, y), given.split(","))
    rule = f"{left}, {right} -> {out.strip()}".rstrip()
    try:
        return bind("contract", x, y, rule=rule, dtype=wanted)
    except IncompatibleDevicesError as error:
        message = str(error).replace("contract:", f"{what}:", 1)
        raise IncompatibleDevicesError(message) from None


def _turned_back(x: Any, term: str) -> tuple[Any, str]:
    """Return the array that ``x`` is a transpose of, and the names of its dims.

    Its blocks are in C order as a rule, so that BLAS can read them as they are.
    """
    order, names = order_of_dims(x), term.split()
    if order is None or len(names) != len(order):
        return x, " ".join(names)
    places = tuple(map(order.index, range(len(order))))
    return bind("transpose", x, axes=places), " ".join([names[p] for p in places])


@checked
def matmul(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    preferred_element_type: DtypeLike = None,
    precision: Any = None,
) -> Array:
    """Return the matrix product, with leading dims broadcast as in NumPy.

    Args:
        x1: array of shape ``(..., m, k)``, or ``(k,)``.
        x2: array of shape ``(..., k, n)``, or ``(k,)``.
        preferred_element_type: the result's dtype.
        precision: accepted as in JAX; products are computed in full precision.

    A split dim that is not contracted stays split. Where the contracted dim is split, local
    products are summed in mesh order.

    Raises:
        ShapeError: if the contracted dims differ, or an operand has no dims.

    >>> import meshard.numpy as mnp
    >>> mnp.matmul(mnp.ones((2, 3)), mnp.ones((3, 4))).shape
    (2, 4)
    """
    x, y = as_array(x1), as_array(x2)
    if not x.ndim or not y.ndim:
        raise ShapeError(f"matmul: operands need at least one dim, got {x.shape} and {y.shape}.")
    k = x.shape[-1], y.shape[-2 if y.ndim > 1 else 0]
    if k[0] != k[1]:
        raise ShapeError(
            f"matmul: contracting dims must have one size, but the last of {x.shape} is {k[0]} "
            f"and that of {y.shape} is {k[1]}."
        )
    if x.ndim > 2 or y.ndim > 2:
        x, y = _aligned("matmul", x, y, 2)
    batch = [f"b{i}" for i in range(max(x.ndim, y.ndim) - 2)]
    left = [*batch[len(batch) - max(x.ndim - 2, 0) :], *(["m"] if x.ndim > 1 else []), "k"]
    right = [*batch[len(batch) - max(y.ndim - 2, 0) :], "k", *(["n"] if y.ndim > 1 else [])]
    out = [*batch, *(["m"] if x.ndim > 1 else []), *(["n"] if y.ndim > 1 else [])]
    rule = f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}"
    return contract("matmul", x, y, rule, preferred_element_type)


def _aligned(what: str, x: Array, y: Array, core: int) -> tuple[Any, Any]:
    """Broadcast those dims before the last ``core`` that are of size one against longer ones."""
    a, b = x.shape[:-core], y.shape[:-core]
    try:
        common = np.broadcast_shapes(a, b)
    except ValueError as error:
        raise ShapeError(
            f"{what}: the leading dims {a} of {x.shape} and {b} of {y.shape} do not broadcast."
        ) from error
    if a != common[len(common) - len(a) :]:
        x = broadcast_to(x, common[len(common) - len(a) :] + x.shape[-core:])
    if b != common[len(common) - len(b) :]:
        y = broadcast_to(y, common[len(common) - len(b) :] + y.shape[-core:])
    return x, y


@checked
def dot(
    a: ArrayLike,
    b: ArrayLike,
    out: None = None,
    *,
    preferred_element_type: DtypeLike = None,
    precision: Any = None,
) -> Array:
    """Return the dot product: over the last dim of ``a`` and the second last of ``b``.

    Args:
        a: the first operand; a number multiplies.
        b: the second operand; of one dim, it is summed over that.
        out: None; arrays are immutable.
        preferred_element_type: the result's dtype.
        precision: accepted as in JAX.

    Raises:
        ShapeError: if the dims differ that are summed over.

    >>> import meshard.numpy as mnp
    >>> float(mnp.dot(mnp.asarray([1.0, 2.0]), mnp.asarray([3.0, 4.0])))
    11.0
    """
    x, y = as_array(a), as_array(b)
    if not x.ndim or not y.ndim:
        found = bind("multiply", x, y)
        return found if preferred_element_type is None else found.astype(preferred_element_type)
    last, but_one = x.ndim - 1, max(y.ndim - 2, 0)
    if x.shape[last] != y.shape[but_one]:
        raise ShapeError(
            f"dot: contracting dims must have one size, but the last of {x.shape} is "
            f"{x.shape[last]} and dim {but_one} of {y.shape} is {y.shape[but_one]}."
        )
    return _paired("dot", x, y, [(last, but_one)], preferred_element_type)


@checked
def tensordot(
    a: ArrayLike, b: ArrayLike, axes: Any = 2, *, preferred_element_type: DtypeLike = None
) -> Array:
    """Return the product summed over pairs of dims.

    Args:
        a: the first operand.
        b: the second operand.
        axes: a number n for the last n dims of ``a`` with the first n of ``b``, or two lists of
            dims that go together.
        preferred_element_type: the result's dtype.

    Raises:
        ShapeError: if two dims that go together differ.
        ArgumentError: if ``axes`` names no dims, one twice, or lists that do not pair up.

    >>> import meshard.numpy as mnp
    >>> mnp.tensordot(mnp.ones((2, 3, 4)), mnp.ones((3, 4, 5))).shape
    (2, 5)
    """
    x, y = as_array(a), as_array(b)
    pairs = _pairs(x, y, axes)
    for i, j in pairs:
        if x.shape[i] != y.shape[j]:
            raise ShapeError(
                f"tensordot: dim {i} of {x.shape} is {x.shape[i]}, and dim {j} of {y.shape}, which "
                f"goes with it, is {y.shape[j]}."
            )
    return _paired("tensordot", x, y, pairs, preferred_element_type)


def _pairs(x: Array, y: Array, axes: Any) -> list[tuple[int, int]]:
    """Return which dims ``axes`` of tensordot pairs up."""
    try:
        count = index(axes)
    except TypeError:
        pass
    else:
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise ArgumentError(
                f"tensordot: axes={count} must be from 0 to the number of dims that both operands, "
                f"of shapes {x.shape} and {y.shape}, have."
            )
        return [(x.ndim - count + i, i) for i in range(count)]
    try:
        left, right = ([index(d)] if hasattr(d, "__index__") else [*map(index, d)] for d in axes)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"tensordot: axes must be a number of dims or two lists of dims, got {shown(axes)}."
        ) from None
    if len(left) != len(right):
        raise ArgumentError(
            f"tensordot: axes={axes!r} do not pair up: {len(left)} dims of the first operand go "
            f"with {len(right)} of the second."
        )
    for dims, operand in ((left, x), (right, y)):
        normalised_axes(dims, operand.ndim, "tensordot")
    return [(i % x.ndim, j % y.ndim) for i, j in zip(left, right, strict=True)]


def _paired(
    what: str, x: Array, y: Array, pairs: Sequence[tuple[int, int]], dtype: Any = None
) -> Any:
    """Return the product summed over pairs of dims, the others of ``x`` before those of ``y``."""
    first = [f"i{d}" for d in range(x.ndim)]
    second = [f"j{d}" for d in range(y.ndim)]
    for i, j in pairs:
        second[j] = first[i]
    out = [f for f in first if f not in second] + [f for f in second if f not in first]
    rule = f"{' '.join(first)}, {' '.join(second)} -> {' '.join(out)}"
    return contract(what, x, y, rule, dtype)


def inner(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the product summed over both last dims.

    Raises:
        ShapeError: if the last dims differ.

    >>> import meshard.numpy as mnp
    >>> mnp.inner(mnp.ones((2, 3)), mnp.ones((4, 3))).shape
    (2, 4)
    """
    x, y = as_array(a), as_array(b)
    if not x.ndim or not y.ndim:
        return bind("multiply", x, y)
    _check_last("inner", x, y)
    return _paired("inner", x, y, [(x.ndim - 1, y.ndim - 1)])


def _check_last(what: str, x: Array, y: Array) -> None:
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"{what}: contracting dims must have one size, but that of {x.shape} is {x.shape[-1]} "
            f"and that of {y.shape} is {y.shape[-1]}."
        )


@checked
def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """Return all products of elements of two arrays, as a matrix.

    >>> import meshard, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> mnp.outer(mnp.arange(4, device=split), mnp.arange(3)).sharding.spec
    P('i',)
    """
    x, y = as_array(a).reshape(-1), as_array(b).reshape(-1)
    return bind("multiply", expand_dims(x, 1), expand_dims(y, 0))


def vdot(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the sum of products of all elements, the first conjugated.

    >>> import meshard.numpy as mnp
    >>> mnp.vdot(mnp.asarray([1j, 2.0]), mnp.asarray([1j, 1.0])).item()
    (3+0j)
    """
    x, y = as_array(a).reshape(-1), as_array(b).reshape(-1)
    _check_last("vdot", x, y)
    return contract("vdot", _conjugated(x), y, "k, k ->")


def _conjugated(x: Array) -> Any:
    return bind("conjugate", x) if x.dtype.kind == "c" else x


@checked
def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    preferred_element_type: DtypeLike = None,
    precision: Any = None,
) -> Array:
    """Return the products summed over one dim, the first operand conjugated.

    The other dims broadcast. Arguments as of `matmul`; ``axis`` counts in each operand.

    Raises:
        ShapeError: if the summed dims differ, or an operand has no dims.

    >>> import meshard.numpy as mnp
    >>> mnp.vecdot(mnp.ones((2, 3)), mnp.ones(3)).tolist()
    [3.0, 3.0]
    """
    x, y = as_array(x1), as_array(x2)
    if not x.ndim or not y.ndim:
        raise ShapeError(f"vecdot: operands need at least one dim, got {x.shape} and {y.shape}.")
    x, y = (moveaxis(v, normalised_axes((axis,), v.ndim, "vecdot")[0], -1) for v in (x, y))
    _check_last("vecdot", x, y)
    x, y = _aligned("vecdot", _conjugated(x), y, 1)
    batch = [f"b{i}" for i in range(max(x.ndim, y.ndim) - 1)]
    left, right = (" ".join([*batch[len(batch) - v.ndim + 1 :], "k"]) for v in (x, y))
    rule = f"{left}, {right} -> {' '.join(batch)}"
    return contract("vecdot", x, y, rule, preferred_element_type)
