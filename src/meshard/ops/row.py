"""The registry: every operation is a row.

A row says how an operation relates to sharding (its rule), what it computes on one cell of blocks
(its kernel), which dtypes come out (its dtype law), and how partial results over a contracted
factor are combined. The engine needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from meshard.algebra.dimmap import DimMap
from meshard.runtime.types import Block

Dtype = np.dtype[Any]
Operand = tuple[tuple[int, ...], Dtype | type]
"""A shape and a dtype; of a Python scalar ``()`` and its type."""

Params = Mapping[str, Any]
Onto = tuple[tuple[int, int], ...] | None
Bounds = Mapping[str, tuple[int, int]]
"""For each factor the positions that one cell holds."""


RuleText = str | tuple[str, Mapping[str, int]]


@final
@dataclass(frozen=True, slots=True)
class Partial:
    """What happens where a contracted factor is split.

    Attributes:
        combine: a ufunc that joins two partial results, or a function from the list of all cells'
            results (each a tuple of blocks), in mesh order, to the final blocks.
        accumulates: what becomes of digits on the way. ``"wide"``: elements are added up or
            multiplied, in the dtype that the kernel is given as ``accumulator=``; the engine
            chooses it, and rounds once, at the end. ``"counts"``: the results are totals in int64,
            uint64, float64 or complex128, whatever the operands. ``"selects"``: elements are
            picked, and nothing is rounded.
        kernel: computes the partial results of one cell; None for the row's own kernel.
        dtypes: the partial results' dtypes, from the operands'; None for the results' own.
        along: the dim of the result along which a function combines elements, so that devices
            cannot share the work along it; None if it combines those of each position.
    """

    combine: np.ufunc | Callable[[Sequence[tuple[Block, ...]]], tuple[Block, ...]]
    accumulates: Literal["wide", "counts", "selects"]
    kernel: Callable[..., Any] | None = None
    dtypes: Callable[[Sequence[Operand], Params], tuple[Dtype, ...]] | None = None
    along: int | None = None

    def __post_init__(self) -> None:
        rounds = isinstance(self.combine, np.ufunc) and self.combine not in _SELECTING
        assert self.accumulates in ("wide", "counts", "selects"), self.accumulates
        assert not rounds or self.accumulates != "selects", f"{self.combine} does not only select"


_SELECTING = frozenset(
    (
        *(np.maximum, np.minimum, np.fmax, np.fmin),
        *(np.logical_and, np.logical_or, np.logical_xor),
        *(np.bitwise_and, np.bitwise_or, np.bitwise_xor),
    )
)
"""Ufuncs that give one of their operands, or its bits, and so never round."""


@final
@dataclass(frozen=True, slots=True)
class Positions:
    """That positions, which are values, name rows of the first operand.

    Where the dims that they count along are split, just those rows pass between devices.

    Attributes:
        dims: from the parameters to the dims of the first operand that are counted along.
        along: whether there is a position for each element; else for a row, of all other dims.
        by_value: whether they are values instead, to be found in the first operand, which is
            sorted; the third operand then has the first element of each of its pieces.
        updates: whether rows of the second operand change those that are named; else these are the
            result.
    """

    dims: Callable[[Params], tuple[int, ...]]
    along: bool = False
    updates: bool = False
    by_value: bool = False


@final
@dataclass(frozen=True, slots=True)
class Op:
    """One row: an operation whose cells are computed by a kernel.

    Attributes:
        name: what `bind` is given.
        rule: the sharding rule, or a function from operands and parameters to one.
        kernel: called with the operands' blocks of one cell and the parameters.
        dtypes: the results' dtypes, from the operands'; None: as the kernel says on empty blocks.
        partial: how to reduce over a split contracted factor; None: such a factor is made whole.
        local: the kernel's parameters for one cell, from the parameters, the positions of each
            factor and the shape of the cell's first result; None: the parameters themselves.
        outputs: the number of results.
        style: ``"ufunc"``: takes ``out=``; ``"blas"``: takes ``out=``, which it may ignore, and
            has threads of its own, to be limited while cells run side by side; ``"view"``: may
            return a view of its operand; ``"plain"``.
        sums: whether the kernel adds up elements, so that its last bits depend on memory order.
        alike: the first of the operands that meet in one dtype, with all that follow it; None:
            the kernel takes care of short dtypes itself.
        positions: how they name rows of the first operand, in an operation that looks them up or
            changes them; None in all others.
        stacked: the parameters with which the kernel does to many blocks, stacked along a new
            first dim, what it does to each, from its parameters; None: it cannot.
        refuses: whether the kernel may refuse values of operands of these types with an error.
            Where they are on several processes, all of them raise what the first of them finds.
        decides: makes the decision about operands of given types, from the world, the row, the
            types and the parameters, for an operation that no rule and kernel describe; None: the
            engine does.
    """

    name: str
    rule: str | Callable[[Sequence[Operand], Params], RuleText]
    kernel: Callable[..., Any]
    dtypes: Callable[[Sequence[Operand], Params], tuple[Dtype, ...]] | None = None
    partial: Partial | None = None
    local: Callable[[Params, Bounds, tuple[int, ...]], Params] | None = None
    outputs: int = 1
    style: Literal["ufunc", "blas", "view", "plain"] = "plain"
    sums: bool = False
    alike: int | None = None
    positions: Positions | None = None
    stacked: Callable[[Params], Params] | None = None
    refuses: Callable[[Sequence[Operand]], bool] | None = None
    decides: Callable[..., Any] | None = None


@final
@dataclass(frozen=True, slots=True)
class MoveOp:
    """One row: an operation that only moves elements, described by a `DimMap` per dim.

    Attributes:
        name: what `bind` is given.
        maps: from the operands' shapes and the parameters to each operand's maps, of which the
            result's dim sizes are the maps' sizes.
        whole: the dims of the result that are not to be split.
        follow: whether the result is always laid out like the first operand.
        onto: for each operand where its maps' results are laid in the result, as in `Source`; None
            where the maps say it all.
        flat: whether the result is the operand's elements in C order, one map for all of them, cut
            where the parameter ``cuts`` says and split over all axes that split the operand.
        even: whether split dims of which elements move are cut evenly, not where the operand is.
    """

    name: str
    maps: Callable[[Sequence[tuple[int, ...]], Params], Sequence[tuple[DimMap, ...]]]
    whole: Callable[[Params], frozenset[int]] = lambda params: frozenset()
    follow: bool = False
    onto: Callable[[Sequence[tuple[int, ...]], Params], Sequence[Onto]] | None = None
    flat: bool = False
    even: bool = False


REGISTRY: dict[str, Op | MoveOp] = {}
"""All rows by name; written while the modules of this floor are imported."""


def register(row: Op | MoveOp) -> Op | MoveOp:
    """Add a row."""
    assert row.name not in REGISTRY, row.name
    REGISTRY[row.name] = row
    return row
