"""Showing arrays: the texts that Python prints, and what a notebook draws.

Only the elements that are shown are fetched: the edges of a large array, the local pieces of one
that spans processes. Nothing is ever sent.
"""

from __future__ import annotations

from html import escape

import numpy as np

from meshard.runtime.array.fetch import gathered, picked
from meshard.runtime.types import KEY, ArrayType, Block, Blocks, dtype_name
from meshard.runtime.world import here

_MOST_PIECES = 8


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


def array_html(kind: ArrayType, blocks: Blocks | None) -> str:
    """Return an array's text, and a picture of how it is laid out."""
    text = f"<pre>{escape(array_repr(kind, blocks))}</pre>"
    if blocks is None:
        return text
    from meshard.plan.show.layout_svg import drawing_svg

    return text + str(drawing_svg(kind.layout, title=f"{kind.str_short()}  {kind.sharding!r}"))


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
