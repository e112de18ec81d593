"""Contractions: products of arrays summed over common dims, by rules in factors.

Every product of two arrays is one row, ``contract``, with its rule as parameter; einsum of more
operands is a chain of them in the order that opt_einsum finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from meshard.algebra.rule import OpRule, Term
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block

from .dtypes import accumulator, as_dtype, is_float, operand_dtype
from .reduce import normalised_axes
from .reduce import sum as sum_
from .registry import Dtype, Op, Operand, Params, Partial, RuleText, register
from .shape import broadcast_to, expand_dims, moveaxis, transpose

__all__ = ["dot", "einsum", "inner", "matmul", "outer", "tensordot", "vdot", "vecdot"]


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    rule: str = params["rule"]
    return rule


def _law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    if params["dtype"] is not None:
        return (params["dtype"],)
    return (np.result_type(operand_dtype(operands[0]), operand_dtype(operands[1])),)


def _wide(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (accumulator(_law(operands, params)[0]),)


def _letters(term: Term) -> list[str]:
    return [dim[0] for dim in term]


def _product(x: Block, y: Block, rule: str, result: Block | None) -> Any:
    """Contract two blocks by a rule, as one (batched) matrix product."""
    parsed = OpRule.parse(rule)
    a, b = (_letters(t) for t in parsed.inputs)
    out = _letters(parsed.outputs[0])
    if len(a) == 2 and len(b) == 2 and a[1] == b[0] and out == [a[0], b[1]]:
        thin = x.shape[0] == 1 or y.shape[1] == 1
        return np.matmul(_steady(x, thin), _steady(y, thin), out=result)
    batch = [f for f in out if f in a and f in b]
    rows = [f for f in out if f in a and f not in b]
    columns = [f for f in out if f in b and f not in a]
    inner_ = [f for f in a if f in b and f not in out]
    size = {**dict(zip(a, x.shape, strict=True)), **dict(zip(b, y.shape, strict=True))}
    m, n, k = (math.prod(size[f] for f in fs) for fs in (rows, columns, inner_))
    x, y = _steady(x, m == 1 or n == 1), _steady(y, m == 1 or n == 1)
    outer_shape = [size[f] for f in batch]
    left = x.transpose([a.index(f) for f in (*batch, *rows, *inner_)])
    right = y.transpose([b.index(f) for f in (*batch, *inner_, *columns)])
    if batch and len(rows) == len(columns) == len(inner_) == 1:
        found = np.matmul(left, right)
    else:
        found = np.matmul(left.reshape((*outer_shape, m, k)), right.reshape((*outer_shape, k, n)))
    order = [*batch, *rows, *columns]
    found = found.reshape([size[f] for f in order])
    return found.transpose([order.index(f) for f in out])


def _steady(x: Block, thin: bool) -> Block:
    """Return a block whose memory order does not show in the last bits of a product.

    Products of matrices are summed in one order, however these lie, as long as BLAS can read them;
    those with vectors in another for each order. Whether a block is a view or was received depends
    on the number of processes, and must not show.
    """
    if x.flags.c_contiguous or not (is_float(x.dtype) or x.dtype.kind == "c"):
        return x
    return np.ascontiguousarray(x) if thin or x.itemsize not in x.strides[-2:] else x


def _kernel(final: bool) -> Any:
    def kernel(
        x: Block, y: Block, *, rule: str, dtype: Dtype | None, out: Block | None = None
    ) -> Any:
        law = _law([(x.shape, x.dtype), (y.shape, y.dtype)], {"dtype": dtype})[0]
        wide = accumulator(law)
        if x.dtype != wide:
            x = x.astype(wide)
        if y.dtype != wide:
            y = y.astype(wide)
        found = _product(x, y, rule, out if out is not None and out.dtype == wide else None)
        return np.asarray(found, law) if final else found

    return kernel


register(
    Op(
        "contract",
        _rule,
        _kernel(final=True),
        dtypes=_law,
        partial=Partial(np.add, _kernel(final=False), _wide),
        style="blas",
    )
)


def _own_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    a, out = params["inputs"], params["output"]
    named = {f: f"l{ord(f)}" for f in a}
    marks = [f"!{named[f]}_{i}" if a.count(f) > 1 else named[f] for i, f in enumerate(a)]
    sizes = {named[f]: n for f, n in zip(a, operands[0][0], strict=True)}
    return f"{' '.join(marks)} -> {' '.join(named[f] for f in out)}", sizes


def _own_kernel(x: Block, *, inputs: tuple[str, ...], output: tuple[str, ...]) -> Any:
    number = {f: i for i, f in enumerate(dict.fromkeys(inputs))}
    return np.einsum(x, [number[f] for f in inputs], [number[f] for f in output])


register(Op("einsum_diagonal", _own_rule, _own_kernel))


def _contract(what: str, x: Any, y: Any, rule: str, dtype: Any = None) -> Any:
    if dtype is None and x.dtype != y.dtype:
        _common_dtype(what, (x, y))
    return bind("contract", x, y, rule=rule, dtype=None if dtype is None else as_dtype(dtype))


def _common_dtype(what: str, operands: Sequence[Any]) -> Dtype:
    try:
        return np.result_type(*[x.dtype for x in operands])
    except TypeError:
        kinds = ", ".join(x.dtype.name for x in operands)
        raise DtypeError(
            f"{what}: the dtypes {kinds} have none in common. Convert an operand with astype, or "
            "give preferred_element_type."
        ) from None


def matmul(
    x1: Any, x2: Any, /, *, preferred_element_type: Any = None, precision: Any = None
) -> Any:
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
    return _contract("matmul", x, y, rule, preferred_element_type)


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


def dot(a: Any, b: Any, *, preferred_element_type: Any = None, precision: Any = None) -> Any:
    """Return the dot product: over the last dim of ``a`` and the last but one of ``b``."""
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


def tensordot(a: Any, b: Any, axes: Any = 2, *, preferred_element_type: Any = None) -> Any:
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
            f"tensordot: axes={axes!r} is neither a number of dims nor two lists of them."
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
    return _contract(what, x, y, rule, dtype)


def inner(a: Any, b: Any) -> Any:
    """Return the product summed over both last dims."""
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


def outer(a: Any, b: Any) -> Any:
    """Return all products of elements of two arrays, as a matrix."""
    x, y = as_array(a).reshape(-1), as_array(b).reshape(-1)
    return bind("multiply", expand_dims(x, 1), expand_dims(y, 0))


def vdot(a: Any, b: Any) -> Any:
    """Return the sum of products of all elements, the first conjugated."""
    x, y = as_array(a).reshape(-1), as_array(b).reshape(-1)
    _check_last("vdot", x, y)
    return _contract("vdot", _conjugated(x), y, "k, k ->")


def _conjugated(x: Array) -> Any:
    return bind("conjugate", x) if x.dtype.kind == "c" else x


def vecdot(
    x1: Any,
    x2: Any,
    /,
    *,
    axis: int = -1,
    preferred_element_type: Any = None,
    precision: Any = None,
) -> Any:
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
    return _contract("vecdot", x, y, rule, preferred_element_type)


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    preferred_element_type: Any = None,
    precision: Any = None,
) -> Any:
    """Return the sum of products that Einstein's notation describes.

    Args:
        subscripts: as in ``numpy.einsum``: ``"ij,jk->ik"``, with ``...`` and implicit output; or
            operands and lists of numbers by turns.
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
        dtype = _common_dtype("einsum", arrays)
    else:
        dtype = as_dtype(preferred_element_type)
    work: list[tuple[list[str], Any]] = [(list(t), x) for t, x in zip(terms, arrays, strict=True)]
    for step in path:
        chosen = [work[i] for i in step]
        work = [pair for i, pair in enumerate(work) if i not in step]
        while len(chosen) > 1:
            (a, x), (b, y), *rest = chosen
            keep = set(output).union(*(t for t, _ in (*work, *rest)))
            chosen = [_pair(a, x, b, y, keep, dtype), *rest]
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
    if isinstance(optimize, (list, tuple)):
        return tuple(tuple(step) for step in optimize if not isinstance(step, str))
    return "auto" if optimize is True else optimize or False


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
            _check_diagonals(term, shape)
        path, _info = opt_einsum.contract_path(
            f"{spelled}->{output}",
            *shapes,
            shapes=True,
            optimize=list(optimize) if isinstance(optimize, tuple) else optimize,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ShapeError(
            f"einsum: {subscripts!r} does not fit operands of shapes "
            f"{', '.join(map(str, shapes)) or '(none)'}: {error}"
        ) from error
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


def _pair(
    a: list[str], x: Any, b: list[str], y: Any, keep: set[str], dtype: Dtype
) -> tuple[list[str], Any]:
    """Contract two operands, keeping the letters that are wanted later."""
    size = {f: n for t, v in ((a, x), (b, y)) for f, n in zip(t, v.shape, strict=True) if n != 1}
    terms = []
    for mine, value, other in ((a, x, b), (b, y, a)):
        long = {f for f, n in zip(mine, value.shape, strict=True) if n != 1 or f not in size}
        # A dim of size one against a longer one counts once, and a letter of one operand only
        # that nobody wants later is summed before.
        wanted = [f for f in dict.fromkeys(mine) if f in long and (f in keep or f in other)]
        terms.append((wanted, _unary(mine, value, wanted, dtype)))
    (a, x), (b, y) = terms
    out = [f for f in dict.fromkeys([*a, *b]) if f in keep]
    lone = {f for f in (*a, *b) if f not in keep and not (f in a and f in b)}
    if lone:  # the other operand's dim was of size one
        a2, b2 = ([f for f in t if f not in lone] for t in (a, b))
        x, y, a, b = _unary(a, x, a2, dtype), _unary(b, y, b2, dtype), a2, b2
    named = {f: f"l{ord(f)}" for f in (*a, *b)}
    left, right, result = (" ".join(named[f] for f in t) for t in (a, b, out))
    return out, _contract("einsum", x, y, f"{left}, {right} -> {result}", dtype)
