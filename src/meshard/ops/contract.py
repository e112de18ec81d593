"""Contractions: products of arrays summed over common dims, by rules in factors.

Every product of two arrays is one row, ``contract``, with its rule as parameter; einsum of more
operands is a chain of them in the order that opt_einsum finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.rule import OpRule, Term
from meshard.errors import ArgumentError, ShapeError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block

from .dtypes import accumulator, as_dtype, operand_dtype
from .reduce import sum as sum_
from .registry import Dtype, Op, Operand, Params, Partial, RuleText, register
from .shape import broadcast_to, transpose

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
        return np.matmul(x, y, out=result)
    batch = [f for f in out if f in a and f in b]
    rows = [f for f in out if f in a and f not in b]
    columns = [f for f in out if f in b and f not in a]
    inner_ = [f for f in a if f in b and f not in out]
    size = {**dict(zip(a, x.shape, strict=True)), **dict(zip(b, y.shape, strict=True))}
    m, n, k = (math.prod(size[f] for f in fs) for fs in (rows, columns, inner_))
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
    seen: list[str] = []
    for letter in a:
        if letter not in seen:
            seen.append(letter)
    marks = [f"!{f}{i}" if a.count(f) > 1 else f for i, f in enumerate(a)]
    return f"{' '.join(marks)} -> {' '.join(out)}", dict(zip(a, operands[0][0], strict=True))


def _own_kernel(x: Block, *, inputs: tuple[str, ...], output: tuple[str, ...]) -> Any:
    number = {f: i for i, f in enumerate(dict.fromkeys(inputs))}
    return np.einsum(x, [number[f] for f in inputs], [number[f] for f in output])


register(Op("einsum_diagonal", _own_rule, _own_kernel))


def _contract(x: Any, y: Any, rule: str, dtype: Any = None) -> Any:
    return bind("contract", x, y, rule=rule, dtype=None if dtype is None else as_dtype(dtype))


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
        x, y = _aligned(x, y)
    batch = [f"b{i}" for i in range(max(x.ndim, y.ndim) - 2)]
    left = [*batch[len(batch) - max(x.ndim - 2, 0) :], *(["m"] if x.ndim > 1 else []), "k"]
    right = [*batch[len(batch) - max(y.ndim - 2, 0) :], "k", *(["n"] if y.ndim > 1 else [])]
    out = [*batch, *(["m"] if x.ndim > 1 else []), *(["n"] if y.ndim > 1 else [])]
    rule = f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}"
    return _contract(x, y, rule, preferred_element_type)


def _aligned(x: Array, y: Array) -> tuple[Any, Any]:
    """Broadcast leading dims of size one against longer ones."""
    a, b = x.shape[:-2], y.shape[:-2]
    try:
        common = np.broadcast_shapes(a, b)
    except ValueError as error:
        raise ShapeError(f"matmul: leading dims of {x.shape} and {y.shape} differ.") from error
    if a != common[len(common) - len(a) :]:
        x = broadcast_to(x, common[len(common) - len(a) :] + x.shape[-2:])
    if b != common[len(common) - len(b) :]:
        y = broadcast_to(y, common[len(common) - len(b) :] + y.shape[-2:])
    return x, y


def dot(a: Any, b: Any, *, preferred_element_type: Any = None, precision: Any = None) -> Any:
    """Return the dot product: over the last dim of ``a`` and the last but one of ``b``."""
    x, y = as_array(a), as_array(b)
    if not x.ndim or not y.ndim:
        return bind("multiply", x, y)
    axes = (x.ndim - 1, max(y.ndim - 2, 0))
    return tensordot(x, y, ([axes[0]], [axes[1]]), preferred_element_type=preferred_element_type)


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
    """
    x, y = as_array(a), as_array(b)
    if isinstance(axes, int):
        if axes > min(x.ndim, y.ndim):
            raise ShapeError(
                f"tensordot: axes={axes} is more than the dims of {x.shape}, {y.shape}."
            )
        pairs = [(x.ndim - axes + i, i) for i in range(axes)]
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in axes)
        if len(left) != len(right):
            raise ArgumentError(f"tensordot: axes {axes} do not pair up.")
        pairs = [(i % x.ndim, j % y.ndim) for i, j in zip(left, right, strict=True)]
    for i, j in pairs:
        if x.shape[i] != y.shape[j]:
            raise ShapeError(f"tensordot: dim {i} of {x.shape} and dim {j} of {y.shape} differ.")
    first = [f"i{d}" for d in range(x.ndim)]
    second = [f"j{d}" for d in range(y.ndim)]
    for i, j in pairs:
        second[j] = first[i]
    out = [f for f in first if f not in second] + [f for f in second if f not in first]
    rule = f"{' '.join(first)}, {' '.join(second)} -> {' '.join(out)}"
    return _contract(x, y, rule, preferred_element_type)


def inner(a: Any, b: Any) -> Any:
    """Return the product summed over both last dims."""
    x, y = as_array(a), as_array(b)
    if not x.ndim or not y.ndim:
        return bind("multiply", x, y)
    return tensordot(x, y, ([x.ndim - 1], [y.ndim - 1]))


def outer(a: Any, b: Any) -> Any:
    """Return all products of elements of two arrays, as a matrix."""
    x, y = as_array(a).reshape(-1), as_array(b).reshape(-1)
    return _contract(x, y, "i, j -> i j")


def vdot(a: Any, b: Any) -> Any:
    """Return the sum of products of all elements, the first conjugated."""
    x, y = as_array(a).reshape(-1), as_array(b).reshape(-1)
    return tensordot(bind("conjugate", x) if x.dtype.kind == "c" else x, y, 1)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the products summed over one dim, the first operand conjugated."""
    x = as_array(x1)
    return sum_(bind("multiply", bind("conjugate", x) if x.dtype.kind == "c" else x, x2), axis)


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
        subscripts: as in ``numpy.einsum``: ``"ij,jk->ik"``, with ``...`` and implicit output.
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
    import opt_einsum

    arrays = [as_array(x) for x in operands]
    try:
        spelled, output, _ = opt_einsum.parser.parse_einsum_input(
            (subscripts, *[x.shape for x in arrays]), shapes=True
        )
        path, _info = opt_einsum.contract_path(
            f"{spelled}->{output}",
            *[x.shape for x in arrays],
            shapes=True,
            optimize="auto" if optimize is True else optimize or False,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ShapeError(
            f"einsum: {subscripts!r} does not fit operands of shapes "
            f"{', '.join(str(x.shape) for x in arrays)}: {error}"
        ) from error
    terms = [list(t) for t in spelled.split(",")]
    work: list[tuple[list[str], Any]] = list(zip(terms, arrays, strict=True))
    for step in path:
        chosen = [work[i] for i in sorted(step)]
        for i in sorted(step, reverse=True):
            del work[i]
        later = set(output).union(*(t for t, _ in work)) if work else set(output)
        while len(chosen) > 1:
            (a, x), (b, y), *rest = chosen
            keep = later.union(*(t for t, _ in rest)) if rest else later
            chosen = [_pair(a, x, b, y, keep, preferred_element_type), *rest]
        work.append(chosen[0])
    letters, found = work[0]
    return _unary(letters, found, list(output))


def _unary(letters: list[str], x: Any, out: list[str]) -> Any:
    """Take diagonals, sum and permute until the letters are those wanted."""
    if len(set(letters)) != len(letters):
        kept = list(dict.fromkeys(letters))
        x = bind("einsum_diagonal", x, inputs=tuple(letters), output=tuple(kept))
        letters = kept
    gone = tuple(i for i, f in enumerate(letters) if f not in out)
    if gone:
        x = sum_(x, axis=gone)
        letters = [f for f in letters if f in out]
    if letters != out:
        x = transpose(x, [letters.index(f) for f in out])
    return x


def _pair(
    a: list[str], x: Any, b: list[str], y: Any, keep: set[str], dtype: Any
) -> tuple[list[str], Any]:
    """Contract two operands, keeping the letters that are wanted later."""
    a2 = [f for f in dict.fromkeys(a) if f in keep or f in b]
    b2 = [f for f in dict.fromkeys(b) if f in keep or f in a]
    x, y = _unary(a, x, a2), _unary(b, y, b2)
    size = {f: n for t, v in ((a2, x), (b2, y)) for f, n in zip(t, v.shape, strict=True) if n != 1}
    for term, value in ((a2, x), (b2, y)):
        thin = [i for i, f in enumerate(term) if value.shape[i] == 1 and size.get(f, 1) != 1]
        if thin:  # a dim of size one against a longer one counts once
            if value is x:
                x = sum_(x, axis=tuple(thin))
                a2 = [f for i, f in enumerate(term) if i not in thin]
            else:
                y = sum_(y, axis=tuple(thin))
                b2 = [f for i, f in enumerate(term) if i not in thin]
    lone = [f for f in a2 if f not in b2 and f not in keep]
    lone += [f for f in b2 if f not in a2 and f not in keep]
    x, y = (
        _unary(a2, x, [f for f in a2 if f not in lone]),
        _unary(b2, y, [f for f in b2 if f not in lone]),
    )
    a2, b2 = [f for f in a2 if f not in lone], [f for f in b2 if f not in lone]
    out = [f for f in dict.fromkeys([*a2, *b2]) if f in keep]
    named = {f: f"l{ord(f)}" for f in {*a2, *b2}}
    left, right, result = (" ".join(named[f] for f in t) for t in (a2, b2, out))
    return out, _contract(x, y, f"{left}, {right} -> {result}", dtype)
