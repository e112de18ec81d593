"""The executor: does what a `Part` says, on blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshard.plan.assemble import Part

from .types import Block, Blocks
from .world import RuntimeWorld

__all__ = ["LARGE", "run_part"]

LARGE = 1 << 20
"""Bytes from which work is worth handing to the workers."""


def run_part(
    world: RuntimeWorld,
    part: Part,
    operands: Sequence[Blocks],
    dtype: np.dtype[Any],
    fill: object = None,
) -> Blocks:
    """Build the local pieces of a destination.

    Args:
        world: whose pages, workers and transport are used.
        part: what to do.
        operands: each source's blocks.
        dtype: the dtype of all blocks.
        fill: the value of elements that no source gives; None if there are none.
    """
    results: list[Block | None] = []
    tasks: list[Callable[[], None]] = []
    volume = 0
    for recipe in part.recipes:
        if recipe is None:
            results.append(None)
            continue
        if recipe.alias is not None:
            block = operands[recipe.alias.operand][recipe.alias.origin]
            assert block is not None
            whole = block.shape == recipe.shape
            results.append(block if whole else block[recipe.alias.region])
            continue
        target = world.pages.empty(recipe.shape, dtype)
        results.append(target)
        if not recipe.covered:
            target[...] = fill
        copies = []
        for copy in recipe.copies:
            origin = operands[copy.operand][copy.origin]
            assert origin is not None
            copies.append((target[copy.target], origin[copy.region]))
        if recipe.layered:
            tasks.append(partial(_in_order, copies))
        else:
            tasks += [partial(np.copyto, *c) for c in copies]
        volume += target.nbytes
    if volume < LARGE:
        for task in tasks:
            task()
    else:
        world.workers.run(tasks)
    if part.sends or part.receives:  # after the copies: what is received lies over them
        _exchange(world, part, operands, results)
    return tuple(results)


def _in_order(copies: Sequence[tuple[Block, Block]]) -> None:
    for target, origin in copies:
        np.copyto(target, origin)


def _exchange(
    world: RuntimeWorld, part: Part, operands: Sequence[Blocks], results: Sequence[Block | None]
) -> None:
    sends = []
    for message in part.sends:
        boxes = []
        for copy in message.copies:
            origin = operands[copy.operand][copy.origin]
            assert origin is not None
            boxes.append(np.broadcast_to(origin[copy.region], copy.shape))
        sends.append((message.peer, boxes))
    receives = []
    for message in part.receives:
        boxes = []
        for copy in message.copies:
            target = results[copy.piece]
            assert target is not None
            boxes.append(target[copy.target])
        receives.append((message.peer, boxes))
    world.transport.exchange(sends, receives)
