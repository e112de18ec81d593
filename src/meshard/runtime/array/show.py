"""Showing arrays: the texts that Python prints, and what a notebook draws.

In: a type, and the blocks of this process. Out: text, and the parts of a page: a line of facts, a
drawing, and the values folded below. Only the elements that are shown are fetched: the edges of a
large array, the local pieces of one that spans processes. Nothing is ever sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshard.runtime.agree import missing_boxes
from meshard.runtime.array.fetch import gathered, picked
from meshard.runtime.types import KEY, ArrayType, Block, Blocks, dtype_name
from meshard.runtime.world import here

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

_MOST_PIECES = 8
_TINY = 8  # elements that a notebook shows unfolded
_FEW = 200  # elements that it shows all of
_LINES = 40  # of values
_BOXES = 3  # that are named where some are missing


def array_repr(kind: ArrayType, blocks: Blocks | None) -> str:
    """Return an array as JAX prints it, or the local pieces of one that spans processes."""
    dtype = f"dtype={dtype_name(kind.dtype)}"
    if blocks is None:
        return f"Array(shape={kind.shape}, {dtype}, deleted)"
    if not kind.complete:
        return _local_repr(kind, blocks)
    width = int(np.get_printoptions()["linewidth"])
    if kind.dtype == KEY:
        return f"Array({kind.shape}, {dtype}) overlaying:\n{_key_words(kind, blocks)}"
    if kind.size:
        value, threshold = _shown(kind, blocks)
        text = np.array2string(
            value,
            prefix="Array(",
            suffix=",",
            separator=", ",
            max_line_width=width,
            threshold=threshold,
        )
    else:
        text = f"[], shape={kind.shape}"
    last_line = len(text) - text.rfind("\n") + 1
    # JAX puts spaces here too, and no line break.
    gap = " " * len("Array(") if last_line + len(dtype) + 2 > width else " "
    return f"Array({text},{gap}{dtype})"


def array_str(kind: ArrayType, blocks: Blocks | None) -> str:
    """Return an array's values as NumPy prints them, where this process can."""
    if blocks is None or not kind.complete or kind.dtype == KEY:
        return array_repr(kind, blocks)
    value, threshold = _shown(kind, blocks)
    return str(value[()]) if not kind.shape else np.array2string(value, threshold=threshold)


def array_title(kind: ArrayType) -> str:
    """Return dtype, shape and sharding of an array in one line."""
    from meshard.plan.captions import sharding_summary

    return f"{kind.str_short()} · {sharding_summary(kind.sharding)}"


def array_svg(kind: ArrayType) -> Markup:
    """Return the drawing of how an array is laid out, for a page that has the style sheet."""
    from meshard.plan.captions import layout_summary, platform_of
    from meshard.plan.show.layout_svg import dims_of, schematic

    names = dims_of(kind.sharding, kind.ndim)
    title = f"{array_title(kind)}\n{layout_summary(kind.layout)}"
    return schematic(kind.layout, title, names, platform=platform_of(kind.sharding))


def type_parts(kind: ArrayType, *state: str) -> Iterator[Markup]:
    """Yield what a notebook shows of an array without values: facts, and the drawing.

    Args:
        kind: the array's type.
        state: more facts, which come first.
    """
    from meshard.plan.captions import layout_summary, platform_of, process_summary
    from meshard.plan.show.layout_svg import dims_of, schematic
    from meshard.plan.show.page import element, wide

    layout, sharding = kind.layout, kind.sharding
    facts = [*state, *_sizes(kind), layout_summary(layout)]
    facts += ["uncommitted: it moves to where it is used"] * kind.unplaced
    owners = process_summary(sharding.device_order)
    facts += [owners] * (0 < len(owners) < 200)
    yield element("p", " · ".join(facts))
    if sharding.num_devices > 1 and kind.size:
        names = dims_of(sharding, kind.ndim)
        yield wide(schematic(layout, "", names, platform=platform_of(sharding)))


def array_parts(kind: ArrayType, blocks: Blocks | None, note: str) -> Iterator[Markup]:
    """Yield what a notebook shows of an array: facts, the drawing, and values.

    Args:
        kind: its type.
        blocks: the blocks of this process; None if they were deleted.
        note: how they were.
    """
    from meshard.plan.show.page import element, folded, preformatted

    if blocks is None:
        yield element("p", note)
        return
    lost = missing_boxes(here(), kind)
    state = []
    if lost:
        more = f" and {len(lost) - _BOXES:,} more" * (len(lost) > _BOXES)
        state.append(f"missing: {', '.join(map(str, lost[:_BOXES]))}{more}, which nobody holds")
    facts, *drawing = type_parts(kind, *state)
    yield facts
    values = [preformatted(_few_values(kind, blocks), most=_LINES)] * bool(kind.size)
    if kind.complete and kind.size <= _TINY:
        yield from (*values, *drawing)
        return
    told = "values"
    if not kind.complete:
        told = f"values of {len(kind.local):,} of {kind.layout.piece_count:,} blocks: those here"
    yield from (*drawing, folded(told, *values))


def _sizes(kind: ArrayType) -> Iterator[str]:
    """Yield the bytes of an array: once, on each device, and with all copies."""
    from meshard.plan.captions import size_text

    yield size_text(kind.nbytes)
    own = math.prod(kind.layout.largest_piece) * kind.dtype.itemsize
    if kind.sharding.num_devices > 1 and kind.size:
        yield f"{'' if kind.layout.even else 'at most '}{size_text(own)} on each device"
        if kind.layout.replicas > 1 and kind.layout.regular:
            yield f"{size_text(kind.nbytes * kind.layout.replicas)} with all copies"


def _few_values(kind: ArrayType, blocks: Blocks) -> str:
    """Return some values: the edges of a large array, with fewer the more dims there are."""
    edge = {1: 4, 2: 3, 3: 2}.get(kind.ndim, 1)
    with np.printoptions(edgeitems=edge, threshold=_FEW, linewidth=100):
        if not kind.complete:
            lines = _local_repr(kind, blocks).split("\n")[1:]
        elif kind.dtype == KEY:
            lines = _key_words(kind, blocks).split("\n")
        else:
            lines = array_str(kind, blocks).split("\n")
    return "\n".join(lines)


def _shown(kind: ArrayType, blocks: Blocks) -> tuple[Block, int]:
    """Return the elements that NumPy prints, and the threshold at which it prints them so.

    Where it leaves out the middle of a dim, one element stands for all those left out.
    """
    options = np.get_printoptions()
    edge, threshold = int(options["edgeitems"]), int(options["threshold"])
    if kind.layout.replicated:
        (block,) = blocks
        assert block is not None
        return block, threshold
    if kind.size <= threshold:
        return gathered(here(), kind, blocks), threshold
    places = [
        range(n) if n <= 2 * edge else [*range(edge + 1), *range(n - edge, n)] for n in kind.shape
    ]
    return picked(kind, blocks, places), 0


def _key_words(kind: ArrayType, blocks: Blocks) -> str:
    """Return the words of typed keys as NumPy prints them."""
    value, threshold = _shown(kind, blocks)
    return np.array2string(value["prng"], threshold=threshold)


def _local_repr(kind: ArrayType, blocks: Blocks) -> str:
    """Show what this process holds, labelled as such."""
    lines = [
        f"Array(shape={kind.shape}, dtype={dtype_name(kind.dtype)}, sharding={kind.sharding!r})"
    ]
    for piece in kind.local[:_MOST_PIECES]:
        block = blocks[piece]
        ids = kind.layout.holders(piece)
        devices = f"device{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}"
        shown = np.asarray(block)["prng"] if kind.dtype == KEY else np.asarray(block)
        text = np.array2string(shown, prefix="  ", threshold=20)
        lines.append(f"  {kind.layout.box(piece)} on {devices}:\n  {text}")
    hidden = len(kind.local) - _MOST_PIECES
    if hidden > 0:
        lines.append(f"  and {hidden} more pieces of this process")
    if not kind.local:
        lines.append("  no piece is on this process")
    return "\n".join(lines)
