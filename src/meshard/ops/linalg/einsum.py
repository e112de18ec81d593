"""Einsum: a chain of products of two arrays, in the order that opt_einsum finds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshard.algebra.arguments import described, integer_of
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.shape import transpose
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dtypes.laws import accumulator, as_dtype
from meshard.ops.dtypes.promotion import common_dtype
from meshard.ops.linalg.contract import contract
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import Block

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
