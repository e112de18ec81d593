"""Reductions of windows by the names of ``jax.lax``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.errors import ShapeError
from meshard.ops.array import elementwise
from meshard.ops.engine.concrete import is_traced
from meshard.ops.lax import table
from meshard.ops.lax.convolution import numbers_of, pads_of
from meshard.ops.lax.reduce import on_leaves, to_reduce
from meshard.ops.lax.table import named
from meshard.ops.windows.convolve import reached
from meshard.ops.windows.reduce import Window, folded, least_of, reduced
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees

_KNOWN = (
    ("add", table.add, elementwise.add),
    ("max", table.max, elementwise.maximum),
    ("min", table.min, elementwise.minimum),
)


@named(
    "lax.reduce_window(mnp.arange(6.0), 0.0, lax.add, (2,), (2,)).tolist()",
    "[1.0, 5.0, 9.0]",
    operand="an array, or a tree of arrays of one shape.",
    init_value="for each array the value to begin with, which is also around it.",
    computation="a function of two trees like ``operand``, elementwise.",
    window_dimensions="the size of a window along each dim.",
    base_dilation="for each dim how far its elements are moved apart, 1 by default.",
    window_dilation="for each dim how far the elements of a window are apart, 1 by default.",
)
def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Return an array, or a tree of arrays, with one element for each window.

    ``lax.add``, ``lax.max`` and ``lax.min`` are done along one dim after another; any other
    operation is applied to one position of all windows after another. A split dim stays split, and
    of it only what windows reach beyond the cuts moves.

    Raises:
        ShapeError: if the windows have not the dims of the arrays, or the shapes of these differ.
        TreeError: if the trees differ.
        ArgumentError: if strides, dilations or padding are not those of windows.
    """
    what = "reduce_window"
    arrays, begin, structure = to_reduce(operand, init_value, what)
    shape = arrays[0].shape
    rank = len(shape)
    if len(window_dimensions) != rank:
        raise ShapeError(
            f"{what}: window_dimensions {tuple(window_dimensions)} for arrays of shape {shape}; "
            "a window has a size for each dim."
        )
    sizes = numbers_of(what, "window_dimensions", window_dimensions, rank)
    strides = numbers_of(what, "window_strides", window_strides, rank)
    between = numbers_of(what, "base_dilation", base_dilation, rank)
    dilation = numbers_of(what, "window_dilation", window_dilation, rank)
    room = [reached(n, b) for n, b in zip(shape, between, strict=True)]
    reach = [reached(n, d) for n, d in zip(sizes, dilation, strict=True)]
    pads = pads_of(what, padding, room, reach, strides)
    work = []
    for d, (pair, *way) in enumerate(zip(pads, sizes, strides, between, dilation, strict=True)):
        size, *rest = way
        window = Window(size, *pair, *rest)
        if window != Window(1, 0, 0, 1, 1, window.dilation):
            work.append((d, window))
    if len(arrays) == 1 and work:
        known = _by_one(arrays[0], init_value, computation, tuple(work))
        if known is not None:
            return trees.unflatten(structure, [known])
    combine = on_leaves(what, computation, structure)
    if not work:
        return trees.unflatten(structure, combine(begin, arrays))
    return trees.unflatten(structure, folded(arrays, begin, tuple(work), combine))


def _by_one(x: Any, init_value: Any, computation: Any, work: Any) -> Any:
    """Return the reduction by a known operation; None if the operation is another one."""
    known = next((how for how, *of in _KNOWN if any(f is computation for f in of)), None)
    if known is None:
        return None
    found, begin = reduced(x, work, known), trees.flatten(init_value)[0][0]
    own = 0 if known == "add" else least_of(x.dtype, known)
    if not is_traced(begin) and np.asarray(begin) == own:
        return found
    return computation(as_array(begin).astype(x.dtype, copy=False), found)
