"""Stocks: where one array still is, cell by cell, from however many sources.

In: layouts of one shape (an array's own, of copies, of what is read from files) whose cells may
have no holder, and the blocks of this process. Out: one layout in which every cell has all its
holders, and the views of this process's cells of it. To the engine it is a source like any other.

What is left of a tree: for each array who holds which boxes, and this process's own elements.

In: a tree of arrays. Out: its leaves, as values that processes can tell each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
import optree

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError, DataLoss
from meshard.plan.hops.cells import CellGrid
from meshard.runtime.agree import meet
from meshard.runtime.array.array import Array
from meshard.runtime.lines.letters import sent, sent_as
from meshard.runtime.moving.execute import view_of
from meshard.runtime.moving.moved import leaf_names
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.processes.divergence import numbered
from meshard.runtime.trees.trees import flatten_with_accessors, unflatten
from meshard.runtime.types import Block, dtype_name
from meshard.runtime.world import RuntimeWorld, here

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


@final
@dataclass(frozen=True, repr=False)
class Kept:
    """What is left of one leaf of a tree.

    Attributes:
        name: its name.
        value: the leaf, if it is not an array that is planned.
        array: shape and dtype; None for another leaf.
        own: what the array's own devices held, as a grid.
        copies: what was kept on purpose, as a grid; None for nothing.
        blocks: for both grids the elements that this process holds, when they are asked for.
        process_of: the process of each device.
        tie: the same for all places of a tree that hold one array.
        source: the array, or what stands for it.
        torn: whether it was made where the processes had not come equally far.
    """

    name: str
    value: Any = None
    array: tuple[tuple[int, ...], np.dtype[Any]] | None = None
    own: Layout | None = None
    copies: Layout | None = None
    blocks: tuple[Callable[[], Sequence[Block | None]], ...] = ()
    process_of: Mapping[int, int] | None = None
    tie: object = None
    source: Any = None
    torn: bool = False

    @property
    def text(self) -> str:
        """Dtype and shape of the array."""
        assert self.array is not None
        shape, dtype = self.array
        return f"{dtype_name(dtype)}[{','.join(map(str, shape))}]"

    def __repr__(self) -> str:
        return repr(self.value) if self.array is None else self.text


@sent
@final
@dataclass(frozen=True)
class KeptTree:
    """What is left of a tree: its leaves, and what makes a tree of them."""

    leaves: tuple[Kept, ...]
    structure: optree.PyTreeSpec

    @property
    def tree(self) -> Any:
        """A tree of the leaves' values, and of what is left where there are arrays."""
        shown = [leaf if leaf.array else leaf.value for leaf in self.leaves]
        return unflatten(self.structure, shown)

    def with_copies(self, grids: Sequence[Layout | None]) -> KeptTree:
        """Return the same with copies: for each leaf the devices that have one of each cell."""
        pairs = zip(self.leaves, grids, strict=True)
        return KeptTree(tuple([replace(k, copies=grid) for k, grid in pairs]), self.structure)


def _told(leaf: Kept) -> tuple[Any, ...]:
    """Return what another process learns of a leaf: nothing of its elements."""
    own = leaf.own, leaf.copies, len(leaf.blocks), leaf.process_of
    return leaf.name, leaf.value, leaf.array, *own, leaf.tie, leaf.torn


def _as_told(
    name: str, value: Any, array: Any, own: Any, copies: Any, grids: int, *more: Any
) -> Kept:
    """Return a leaf of another process, of which this one holds nothing."""
    process_of, tie, torn = more
    blocks = tuple([_nothing] * grids)
    return Kept(name, value, array, own, copies, blocks, process_of, tie, torn=torn)


def _nothing() -> Sequence[Block | None]:
    return ()


sent_as(Kept, _told, _as_told)


def kept_tree(tree: Any, what: str) -> KeptTree:
    """Return what is left of a tree of arrays.

    Args:
        tree: the tree.
        what: the function that was called, for messages.

    Raises:
        ArgumentError: if what stands for an array has no sharding.
    """
    accessors, leaves, structure = flatten_with_accessors(tree)
    names = leaf_names(accessors)
    found = [_kept(name, leaf, what) for name, leaf in zip(names, leaves, strict=True)]
    return KeptTree(tuple(found), structure)


def _kept(name: str, leaf: Any, what: str) -> Kept:
    spans = type(leaf) is Array and not leaf._type.unplaced
    if not spans and type(leaf) is not ShapeDtypeStruct:
        return Kept(name, leaf)
    if leaf.sharding is None:
        raise ArgumentError(
            f"{what}: {name} is {leaf!r}, which has no sharding. Give it one with "
            "ShapeDtypeStruct(shape, dtype, sharding=...)."
        )
    blocks = (partial(own_blocks, leaf),) if type(leaf) is Array else ()
    own = gridded(leaf.sharding.layout(leaf.shape))
    owners = {d.id: d.process_index for d in leaf.sharding.device_order}
    array = leaf.shape, leaf.dtype
    torn = type(leaf) is Array and is_torn(here(), leaf)
    return Kept(name, None, array, own, None, blocks, owners, id(leaf), leaf, torn)


def is_torn(world: RuntimeWorld, x: Array) -> bool:
    """Whether an array was made where the processes had not come equally far."""
    return any(first <= x._born <= last for first, last in world.torn)


def check_whole(world: RuntimeWorld, tree: KeptTree, what: str) -> None:
    """Refuse arrays that were made where the processes had not come equally far.

    Raises:
        DataLoss: if there are some, on any process.
    """
    if not world.membership:
        return
    meet(world, world.processes, f"`{what}`")
    mine = [leaf.name for leaf in tree.leaves if leaf.torn]
    told: list[Any] = world.transport.all_gather(mine, world.processes)
    names = sorted({name for some in told for name in some})
    if names:
        ahead = [p for p, some in zip(world.processes, told, strict=True) if some]
        raise DataLoss(
            f"{what}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''} may be of "
            f"different steps: when a process was lost, {numbered(ahead)} had already made "
            "arrays that others had not. Restore what elastic.protect keeps, whose versions "
            "are complete on all processes, or a checkpoint."
        )
