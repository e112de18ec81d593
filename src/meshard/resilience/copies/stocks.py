"""Stocks: where one array still is, cell by cell, from however many sources.

In: layouts of one shape (an array's own, of copies, of what is read from files) whose cells may
have no holder, and the blocks of this process. Out: one layout in which every cell has all its
holders, and the views of this process's cells of it. To the engine it is a source like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.plan.hops.cells import CellGrid
from meshard.runtime.array.array import Array
from meshard.runtime.moving.execute import view_of
from meshard.runtime.types import Block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Stock:
    """One source of an array.

    Attributes:
        layout: a grid of cells with the ids of the devices that hold each; -1 fills up.
        blocks: for each cell its elements, if this process holds it.
    """

    layout: Layout
    blocks: Sequence[Block | None] = ()


def own_stock(x: Array) -> Stock:
    """Return an array as a stock: its pieces, those of a layout without a grid in cells of one."""
    return Stock(gridded(x._type.layout), own_blocks(x))


def own_blocks(x: Array) -> Sequence[Block | None]:
    """Return for each cell of an array's grid the elements, if this process holds them."""
    layout, blocks = x._type.layout, x._live()
    if layout.regular:
        return blocks
    grid = CellGrid(layout)
    found: list[Block | None] = []
    for cell, pieces in enumerate(grid.pieces_of):
        piece = next((p for p in pieces if blocks[p] is not None), None)
        block = None if piece is None else blocks[piece]
        if piece is None or block is None:
            found.append(None)
        else:
            found.append(view_of(block, grid.box(cell).within(layout.box(piece)).slices))
    return found


def gridded(layout: Layout) -> Layout:
    """Return a layout as a grid of cells; -1 fills up where cells have fewer holders."""
    if layout.regular:
        return layout
    grid = CellGrid(layout)
    return Layout(layout.shape, layout.cuts, grid.holders.reshape(*grid.sizes, -1))


def united(layouts: Sequence[Layout]) -> Layout:
    """Return the layout in which every cell has the holders that it has in any of some grids.

    >>> a = Layout((8,), ((0, 4, 8),), np.array([[0], [1]]))
    >>> b = Layout((8,), ((0, 2, 8),), np.array([[-1], [2]]))
    >>> both = united([a, b])
    >>> both.cuts, both.tensor.tolist()
    (((0, 2, 4, 8),), [[0, -1], [0, 2], [1, 2]])
    """
    first, *others = layouts
    if not others:
        return first
    if all(other.cuts == first.cuts for other in others):
        tensor = np.concatenate([layout.tensor for layout in layouts], axis=-1)
        return Layout(first.shape, first.points, tensor)
    cuts = refined([layout.points for layout in layouts])
    tensors = [onto(layout, cuts) for layout in layouts]
    return Layout(first.shape, cuts, np.concatenate(tensors, axis=-1))


def left(layout: Layout, alive: Collection[int]) -> Layout:
    """Return what is left of a grid: -1 for the devices that are gone."""
    living = np.array(sorted(alive), np.int64)
    tensor = np.where(np.isin(layout.tensor, living), layout.tensor, -1)
    return Layout(layout.shape, layout.points, tensor)


def refined(cuts: Sequence[Sequence[Ints]]) -> tuple[Ints, ...]:
    """Return for each dim the points at which any of some grids is cut."""
    found = []
    for points in zip(*cuts, strict=True):
        every = np.unique(np.concatenate(points))
        found.append(every if len(every) > 1 else np.zeros(2, np.int64))
    return tuple(found)


def onto(layout: Layout, cuts: Sequence[Ints]) -> Ints:
    """Return the device tensor of a grid for finer cuts."""
    tensor = layout.tensor
    for dim, (points, fine) in enumerate(zip(layout.points, cuts, strict=True)):
        # The cell that holds a point is the last that begins at or before it and is not empty.
        cells = np.searchsorted(points, fine[:-1], side="right") - 1
        tensor = np.take(tensor, np.minimum(cells, len(points) - 2), axis=dim)
    return tensor


def blocks_of(whole: Layout, stocks: Sequence[Stock], mine: Sequence[int]) -> list[Block | None]:
    """Return the views of this process's cells of united stocks.

    Args:
        whole: the layout of all of them.
        stocks: the stocks.
        mine: the ids of this process's devices.
    """
    found: list[Block | None] = [None] * whole.piece_count
    flat = whole.tensor.reshape(whole.piece_count, whole.tensor.shape[-1])
    for cell in np.flatnonzero(np.isin(flat, np.asarray(mine, np.int64)).any(axis=1)).tolist():
        box = whole.box(cell)
        if box.volume:
            found[cell] = next((b for s in stocks if (b := _view(s, box)) is not None), None)
    return found


def _view(stock: Stock, box: Box) -> Block | None:
    """Return a box of a stock, if this process holds the cell that it is in."""
    layout = stock.layout
    place = [
        int(np.searchsorted(points, start, side="right")) - 1
        for points, start in zip(layout.points, box.starts, strict=True)
    ]
    cell = layout.piece_at(place)
    block = stock.blocks[cell] if stock.blocks else None
    if block is None:
        return None
    around = layout.box(cell)
    return block if around == box else view_of(block, box.within(around).slices)
