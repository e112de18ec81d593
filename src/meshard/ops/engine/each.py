"""Rows for many examples: what a row does to one, done to each position of dims in front.

In: a row. Out: one named ``<row>_each``, whose operands may have such dims, as its parameter
``each`` says. It is one operation, decided once: its rule is the row's with a factor more for each
dim, so that examples stay where they are, and its kernel runs the row's for each position, or does
all positions at once where `TOGETHER` knows how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from meshard.ops.dtypes.laws import result_dtypes, same_dtype
from meshard.ops.row import REGISTRY, Bounds, Dtype, Op, Operand, Params, Partial, RuleText
from meshard.runtime.types import Block

SUFFIX = "_each"
Each = tuple[tuple[bool, ...], ...]
"""For each dim in front, the outermost first, which of the operands have it."""

Shape = tuple[int, ...]
Kernel = Callable[..., Any]
Together = Callable[[Kernel, Shape, Sequence[Any], Params], Any]
"""Called with the row's kernel, the sizes of the dims in front, operands that have all of these,
and the parameters of the row."""

TOGETHER: dict[str, Together] = {}
"""Kernels for all positions at once; written while the rows are imported."""


def each_row(name: str) -> Op | None:
    """Return the row of many examples that a name stands for; None if it stands for none."""
    row = REGISTRY.get(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
    return _each_row(row) if isinstance(row, Op) else None


def for_each(name: str, flags: Sequence[bool], params: Params) -> tuple[str, dict[str, Any]]:
    """Return the row and the parameters of an operation whose operands have one more dim.

    Args:
        name: the operation.
        flags: which of the operands have the dim.
        params: its parameters.
    """
    whole = name if name.endswith(SUFFIX) else name + SUFFIX
    return whole, {**params, "each": (tuple(flags), *params.get("each", ()))}


def of_one(name: str, params: Params) -> tuple[str, dict[str, Any], tuple[bool, ...]]:
    """Return the operation without its first dim, and which of the operands have that."""
    (flags, *rest) = params["each"]
    own = {k: v for k, v in params.items() if k != "each"}
    if rest:
        return name, {**own, "each": tuple(rest)}, flags
    return name.removesuffix(SUFFIX), own, flags


@lru_cache(maxsize=512)
def _each_row(row: Op) -> Op:
    law = row.partial
    parts = None
    if law is not None:
        lifted = None if law.dtypes is None else partial(_dtypes, law.dtypes)
        kernel = None if law.kernel is None else partial(_run, row.name, law.kernel)
        parts = Partial(law.combine, law.accumulates, kernel, lifted)
    own: Any = row.dtypes
    if own is not same_dtype:
        own = partial(_dtypes, partial(_law, row) if own is None else own)
    return replace(
        row,
        name=row.name + SUFFIX,
        rule=partial(_rule, row),
        kernel=partial(_run, row.name, row.kernel),
        dtypes=own,
        partial=parts,
        local=None if row.local is None else partial(_cell, row),
        style="plain",
        positions=None,
        stacked=None,
    )


def _law(row: Op, operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return result_dtypes(row, operands, params)[0]


def _ranks(each: Each, number: int) -> int:
    """Return how many dims in front an operand has."""
    return sum([flags[number] for flags in each])


def _of_one(operands: Sequence[Operand], params: Params) -> tuple[list[Operand], dict[str, Any]]:
    """Return operands and parameters as the row takes them."""
    each = params["each"]
    own = [(shape[_ranks(each, i) :], kind) for i, (shape, kind) in enumerate(operands)]
    return own, {k: v for k, v in params.items() if k != "each"}


def _dtypes(law: Any, operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    found: tuple[Dtype, ...] = law(*_of_one(operands, params))
    return found


def _rule(row: Op, operands: Sequence[Operand], params: Params) -> RuleText:
    each, (own, rest) = params["each"], _of_one(operands, params)
    given = row.rule if isinstance(row.rule, str) else row.rule(own, rest)
    text, sizes = (given, {}) if isinstance(given, str) else given
    ins, _, outs = text.partition("->")
    terms, made = ins.split(","), outs.split(",")
    free = [f"e{k}" for k in range(max([len(shape) for shape, _ in own], default=0))]
    dims = ""
    for (shape, _), term in zip(own, terms, strict=True):
        if "..." in term:  # of one operand only, in the rows that are done so
            dims = " ".join(free[: len(shape) - len(term.split()) + 1])
    fronts = [
        " ".join([f"each{k}" for k, flags in enumerate(each) if flags[i]])
        for i in range(len(terms))
    ]
    every = " ".join([f"each{k}" for k in range(len(each))])
    left = [
        f"{front} {term.replace('...', dims)}" for front, term in zip(fronts, terms, strict=True)
    ]
    right = [f"{every} {term.replace('...', dims)}" for term in made]
    return f"{', '.join(left)} -> {', '.join(right)}", sizes


def _cell(row: Op, params: Params, bounds: Bounds, shape: Shape) -> Params:
    assert row.local is not None
    each = params["each"]
    own = {k: v for k, v in params.items() if k != "each"}
    inner = {name: span for name, span in bounds.items() if not name.startswith("each")}
    return {**row.local(own, inner, shape[len(each) :]), "each": each}


def _run(name: str, kernel: Kernel, *blocks: Any, each: Each, **params: Any) -> Any:
    sizes = _sizes(blocks, each)
    given = [_with_all(x, i, each, sizes) for i, x in enumerate(blocks)]
    together = TOGETHER.get(name)
    if together is not None:
        return together(kernel, sizes, given, params)
    made: list[Block] = []
    for place in np.ndindex(*sizes):
        found = kernel(
            *[x if x is y else y[(*place, ...)] for x, y in _pairs(blocks, given)], **params
        )
        row = [np.asarray(y) for y in (found if isinstance(found, tuple) else (found,))]
        made = made or [np.empty((*sizes, *y.shape), y.dtype) for y in row]
        for out, y in zip(made, row, strict=True):
            out[place] = y
    if not made:
        made = _of_none(kernel, given, sizes, params)
    return made[0] if len(made) == 1 else tuple(made)


def _pairs(blocks: Sequence[Any], given: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(blocks, given, strict=True)


def _sizes(blocks: Sequence[Any], each: Each) -> Shape:
    """Return the sizes of the dims in front."""
    found = []
    for k, flags in enumerate(each):
        number = flags.index(True)
        found.append(blocks[number].shape[sum([before[number] for before in each[:k]])])
    return tuple(found)


def _with_all(x: Any, number: int, each: Each, sizes: Shape) -> Any:
    """Return an operand with all dims in front, which costs no copy; a Python number as it is."""
    if not isinstance(x, np.ndarray):
        return x
    rest = x.shape[_ranks(each, number) :]
    own = [n if flags[number] else 1 for n, flags in zip(sizes, each, strict=True)]
    return np.broadcast_to(x.reshape((*own, *rest)), (*sizes, *rest))


def _of_none(
    kernel: Kernel,
    given: Sequence[Any],
    sizes: Shape,
    params: Mapping[str, Any],
) -> list[Block]:
    """Return the results where there are no positions: as wide as those of zeros."""
    own = [
        np.zeros(x.shape[len(sizes) :], x.dtype) if isinstance(x, np.ndarray) else x for x in given
    ]
    found = kernel(*own, **params)
    return [
        np.empty((*sizes, *np.shape(y)), np.asarray(y).dtype)
        for y in (found if isinstance(found, tuple) else (found,))
    ]


# kernels for all positions at once


def _numbers(sizes: Shape, rank: int, shape: Shape) -> list[Block]:
    """Return the positions along the dims in front, for indices of a shape and rank behind them."""
    return [
        np.broadcast_to(np.arange(n).reshape((n, *[1] * (len(sizes) - 1 - k + rank))), shape)
        for k, n in enumerate(sizes)
    ]


def _gather(kernel: Kernel, sizes: Shape, blocks: Sequence[Any], params: Params) -> Block:
    x, *places = blocks
    count, at = len(sizes), params["at"]
    rank = places[0].ndim - count
    starts = params.get("starts", ())
    found = kernel(
        x,
        *_numbers(sizes, rank, places[0].shape),
        *places,
        dims=(*range(count), *[d + count for d in params["dims"]]),
        at=0,
        starts=(*[0] * count, *starts) if starts else (),
    )
    kept = range(count + rank, found.ndim)
    order = (*range(count), *kept[:at], *range(count, count + rank), *kept[at:])
    made: Block = found.transpose(order)
    return made


def _scatter(kernel: Kernel, sizes: Shape, blocks: Sequence[Any], params: Params) -> Block:
    x, value, *places = blocks
    count, dims = len(sizes), params["arrays"]
    rank = places[0].ndim - count
    found: Block = kernel(
        x,
        value,
        *_numbers(sizes, rank, places[0].shape),
        *places,
        arrays=(*range(count), *[d + count for d in dims]),
        how=params["how"],
        starts=(*[0] * count, *params.get("starts", [0] * len(dims))),
    )
    return found


def _spots(
    sizes: Shape,
    shape: Shape,
    starts: Sequence[Any],
    lengths: Sequence[int],
    wrap: Sequence[bool],
) -> tuple[Any, ...]:
    """Return the index of a slice of some lengths for each position of the dims in front."""
    taken = [n != m for n, m in zip(shape, lengths, strict=True)]
    last = max([d + 1 for d, part in enumerate(taken) if part], default=0)
    found: list[Any] = []
    for k, n in enumerate(sizes):
        found.append(np.arange(n).reshape((n, *[1] * (len(sizes) - 1 - k + last))))
    for d in range(last):
        begin = np.asarray(starts[d])
        begin = np.where((begin < 0) & wrap[d], begin + shape[d], begin)
        begin = np.clip(begin, 0, shape[d] - lengths[d]).reshape((*begin.shape, *[1] * last))
        run = np.arange(lengths[d]).reshape((lengths[d], *[1] * (last - 1 - d)))
        found.append(begin + run)
    return tuple(found)


def _dynamic_slice(kernel: Kernel, sizes: Shape, blocks: Sequence[Any], params: Params) -> Block:
    x, *starts = blocks
    shape = x.shape[len(sizes) :]
    lengths = [min(m, n) for m, n in zip(params["sizes"], shape, strict=True)]
    found: Block = x[_spots(sizes, shape, starts, lengths, params["wrap"])]
    return found


def _dynamic_update(kernel: Kernel, sizes: Shape, blocks: Sequence[Any], params: Params) -> Block:
    x, update, *starts = blocks
    count, result = len(sizes), np.array(x)
    shape, lengths = x.shape[count:], update.shape[count:]
    result[_spots(sizes, shape, starts, lengths, params["wrap"])] = update
    return result


TOGETHER.update(
    gather=_gather,
    scatter=_scatter,
    dynamic_slice=_dynamic_slice,
    dynamic_update_slice=_dynamic_update,
)
