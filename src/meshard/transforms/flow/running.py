"""Loops and choices in a `shard_map` body: which devices take a turn, and whose results are kept.

In: values of the body, in a list, and functions from such lists to lists. Out: the last values. A
condition may differ between devices; the code then runs for those that it concerns, and a loop goes
on as long as any of this process's devices has a turn left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import choices, idle, merged, narrowed
from meshard.transforms.body.grid import Grid

Values = Sequence[Any]


def run_while(
    body: Body,
    predicate: Callable[[Values], Grid],
    turn: Callable[[Values], Values],
    values: Values,
) -> Values:
    """Return the values for which a condition does not hold any more, on each device its own."""
    mask = body.mask
    while True:
        with body.under(mask):
            if idle(body):
                return values
            holds = predicate(values)
        flags = choices(body, holds) > 0
        if not holds.kind.varies and mask is body.mask:
            if not flags.any():
                return values
            values = turn(values)
            continue
        with body.under(mask):
            mask = narrowed(body, holds, flags)
        with body.under(mask):
            if idle(body):
                return values
            after = turn(values)
        chosen = np.where(mask.grid, 1, 0)
        values = [
            merged(body, pair, chosen, holds.kind, mask.axes)
            for pair in zip(values, after, strict=True)
        ]


def run_each(
    body: Body, index: Grid, branches: Sequence[Callable[[], Any]]
) -> tuple[list[Any], Callable[[Sequence[Grid]], Grid]]:
    """Run each branch for the devices that chose it.

    Returns:
        What each branch returns, and a function that makes one value of those of all branches.
    """
    chosen = choices(body, index)
    results = []
    for number, branch in enumerate(branches):
        with body.under(narrowed(body, index, chosen == number)):
            results.append(branch())

    def merge(column: Sequence[Grid]) -> Grid:
        return merged(body, column, chosen, index.kind, index.kind.extent)

    return results, merge


def run_scan(
    count: int, reverse: bool, turn: Callable[[Values, int], Values], values: Values
) -> tuple[Values, list[list[Any]]]:
    """Take a turn for each position; return the last carry, and each result's column.

    Args:
        count: the number of positions.
        reverse: whether the last comes first.
        turn: from the carry and a position to the next carry, and the results behind it.
        values: the first carry.
    """
    carried = len(values)
    rows = []
    for position in range(count - 1, -1, -1) if reverse else range(count):
        found = turn(values, position)
        values = found[:carried]
        rows.append(found[carried:])
    ordered = rows[::-1] if reverse else rows
    return values, [list(column) for column in zip(*ordered, strict=True)]
