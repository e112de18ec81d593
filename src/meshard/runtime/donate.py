"""Donated reshards: the source's pages go back as they are read, the result's come as needed.

In: what to copy, and blocks that nobody else sees. The copies of one source block are cut into
slabs along its first dim; after each slab its pages are given back. So the two arrays together
never take much more memory than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshard.plan.assemble import Copy, Part

from .pages import lease_of, only_view
from .types import Block, Blocks
from .world import RuntimeWorld

__all__ = ["SLAB", "can_donate", "run_part_donating"]

SLAB = 8 << 20
"""Bytes that are copied between two times that pages are given back."""


def can_donate(part: Part, blocks: Blocks) -> bool:
    """Whether pages can be given back on the way: all is copied, here, from blocks of our own."""
    return (
        not part.sends
        and not part.receives
        and all(r is None or (r.alias is None and not r.layered) for r in part.recipes)
        and all(_is_ours(blocks, i) for i in range(len(blocks)))
    )


def _is_ours(blocks: Blocks, number: int) -> bool:
    if blocks[number] is None:
        return True
    # No variable may name the block while its holders are counted.
    contiguous = blocks[number].flags.c_contiguous  # type: ignore[union-attr]
    return bool(contiguous) and only_view(blocks, number)


def run_part_donating(
    world: RuntimeWorld,
    part: Part,
    blocks: Blocks,
    dtype: np.dtype[Any],
    window: int | None = None,
) -> Blocks:
    """Build the pieces of a destination from one source, whose blocks are used up.

    Args:
        world: whose pages and workers are used.
        part: what to do; see `can_donate`.
        blocks: the source's blocks. Nothing of them can be read afterwards.
        dtype: the dtype of all blocks.
        window: the most bytes that both arrays take beyond the larger of them; `SLAB` by default.
    """
    results: list[Block | None] = [
        None if r is None else world.pages.lazy(r.shape, dtype) for r in part.recipes
    ]
    by_origin: dict[int, list[Copy]] = {}
    for recipe in part.recipes:
        for copy in recipe.copies if recipe is not None else ():
            by_origin.setdefault(copy.origin, []).append(copy)
    slab = SLAB if window is None else max(1, min(window, SLAB))
    for origin, copies in sorted(by_origin.items()):
        block = blocks[origin]
        assert block is not None
        _use_up(world, block, copies, results, slab)
    return tuple(results)


def _use_up(
    world: RuntimeWorld,
    block: Block,
    copies: Sequence[Copy],
    results: Sequence[Block | None],
    slab: int,
) -> None:
    """Copy all that is read of one block, and give its pages back slab by slab."""
    lease = lease_of(block)
    row = max(1, block.nbytes // max(1, len(block)))
    rows = max(1, slab // row)
    for first in range(0, len(block), rows):
        last = min(first + rows, len(block))
        tasks = []
        for copy in copies:
            cut = _rows_of(copy, first, last)
            if cut is None:
                continue
            region, target = cut
            result = results[copy.piece]
            assert result is not None
            to, origin = result[target], block[region]
            own = lease_of(result)
            if own is not None:
                own.fill(to.nbytes)
            parts = min(len(to), world.workers.threads) if to.ndim else 1
            for i in range(parts):
                span = slice(len(to) * i // parts, len(to) * (i + 1) // parts)
                tasks.append(partial(np.copyto, to[span], origin[span]))
        world.workers.run(tasks)
        if lease is not None:
            lease.release(first * row, last * row if last < len(block) else 1 << 62)


def _rows_of(copy: Copy, first: int, last: int) -> tuple[Any, Any] | None:
    """Return the region and target of the part of a copy that reads some rows of its origin."""
    rows, target = copy.region[0], copy.target[0]
    low, high = max(rows.start, first), min(rows.stop, last)
    if low >= high:
        return None
    begin = target.start + low - rows.start
    return (
        (slice(low, high), *copy.region[1:]),
        (slice(begin, begin + high - low), *copy.target[1:]),
    )
