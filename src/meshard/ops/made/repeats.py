"""Elements repeated, each as often as a number of its own says, where they are.

A device repeats its own elements, so that nothing but the numbers crosses. Where the length is
known and the numbers are not, each place of the result looks up which element it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import index
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import described
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.propagate import Placement, Split
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError
from meshard.ops.array.join import concatenate, each_repeated
from meshard.ops.array.samplesort import known, regular, told
from meshard.ops.array.shape import broadcast_to, ravel
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.engine.later import Advised, concrete, is_array, is_traced, relaid, when_laid_out
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.reductions.scan import cumsum
from meshard.ops.reductions.sort import searchsorted
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike, Block, Blocks
from meshard.runtime.world import here
from meshard.tuning import LARGE

_LONG = np.dtype(np.int64)


def _refuse_negative(least: int, repeats: Any) -> None:
    if least < 0:
        raise ArgumentError(f"repeat: repeats must not be negative, got {described(repeats)}.")


def _numbers(repeats: Any) -> Any:
    """Return how often elements are repeated, checked to be integers, of the host or where it is.

    Raises:
        ArgumentError: if they are not integers, or have several dims.
    """
    numbers = repeats if is_array(repeats) else as_host(repeats, "repeat: repeats")
    if numbers.size and (numbers.dtype.kind not in "biu" or numbers.ndim > 1):
        raise ArgumentError(
            f"repeat: repeats must be an integer or a list of integers, got {described(repeats)}."
        )
    return numbers


@final
class _Counts:
    """How often each element along a dim is repeated, by the pieces of the dim.

    Args:
        x: the array.
        dim: the dim.
        numbers: how often, of the host, or an array on the devices of ``x``.
    """

    def __init__(self, x: Array, dim: int, numbers: Any) -> None:
        self.cuts = x.aval.layout.cuts[dim]
        own, axes = x.sharding, tuple[str, ...]()
        if isinstance(own, NamedSharding):
            axes = own.spec.axes(x.ndim)[dim]
            own = named_sharding(own.mesh, (Split(axes, self.cuts),), own.memory_kind)
        if isinstance(numbers, np.ndarray):
            self._host: Block | None = numbers.astype(np.int64, copy=False)
            ends = np.concatenate([[0], np.cumsum(self._host)])[list(self.cuts)]
            self.ends = tuple(ends.tolist())
            _refuse_negative(int(self._host.min(initial=0)), numbers)
            return
        self._host, kind = None, here().type_of(numbers.shape, _LONG, own, x.committed)
        line = relaid(numbers.astype(_LONG, copy=False), kind, "repeat")
        self._layout, self._blocks = line.aval.layout, line._live()
        mine = [None if b is None else [b.sum(), b.min(initial=0)] for b in self._blocks]
        sums = told(mine, x, axes)
        _refuse_negative(int(sums[:, 1].min(initial=0)), numbers)
        self.ends = (0, *np.cumsum(sums[:, 0]).tolist())

    def of(self, part: int) -> Block:
        """Return the numbers of one piece of the dim."""
        if self._host is not None:
            return self._host[self.cuts[part] : self.cuts[part + 1]]
        block = self._blocks[self._layout.piece_at((part,))]
        assert block is not None
        return block


def _repeated_here(x: Array, dim: int, numbers: Any) -> Array:
    """Let each device repeat its own elements."""
    x = regular(x)
    layout, world, counts = x.aval.layout, here(), _Counts(x, dim, numbers)
    blocks: list[Block | None] = [None] * layout.piece_count

    def one(piece: int, block: Block) -> None:
        blocks[piece] = block.repeat(counts.of(layout.coordinate(piece)[dim]), axis=dim)

    tasks = [partial(one, i, b) for i, b in enumerate(x._live()) if b is not None]
    if x.nbytes >= LARGE:
        world.workers.run(tasks)
    else:
        for task in tasks:
            task()
    shape = tuple([counts.ends[-1] if d == dim else n for d, n in enumerate(x.shape)])
    sharding = x.sharding
    if isinstance(sharding, NamedSharding):
        axes = sharding.spec.axes(x.ndim)
        cuts = [counts.ends if d == dim else c for d, c in enumerate(layout.cuts)]
        placement = tuple([Split(a, c) for a, c in zip(axes, cuts, strict=True)])
        sharding = named_sharding(sharding.mesh, placement, sharding.memory_kind)
    found: Blocks = tuple(blocks)
    return Array(world.type_of(shape, x.dtype, sharding, x.committed), found)


@final
class _ToLength(Advised):
    """Elements repeated along a dim to a length that is known."""

    def __init__(self, dim: int, length: int) -> None:
        self.dim, self.length = dim, length

    def __call__(self, *operands: Any) -> Any:
        """Return for each place of the result the element that it gets."""
        (x, counts), dim, size = operands, self.dim, operands[0].shape[self.dim]
        ends = cumsum(broadcast_to(ravel(counts).astype(_LONG, copy=False), (size,)))
        places: Any = np.arange(self.length)
        own = x.aval.sharding
        axes = own.spec.axes(x.ndim)[dim] if isinstance(own, NamedSharding) else ()
        if axes:  # each device asks for its part
            cuts = balanced_cuts(self.length, len(x.aval.layout.cuts[dim]) - 1)
            split = named_sharding(own.mesh, (Split(axes, cuts),), own.memory_kind)
            kind = here().type_of(places.shape, _LONG, split, x.aval.committed)
            places = relaid(as_array(places), kind, "repeat")
        at = bind("minimum", searchsorted(ends, places, "right"), size - 1)
        return bind("gather", x, at, dims=(dim,), at=dim)


def _to_length(x: Any, repeats: Any, dim: int, length: int) -> Any:
    """Return elements repeated along a dim, cut to a length or filled up with the last."""
    size, counts = x.shape[dim], _numbers(repeats)
    if counts.ndim > 1 or counts.size not in (1, size) or not size:
        raise ArgumentError(
            f"repeat: dim {dim} has {size} positions, and repeats has shape {counts.shape}."
        )
    if is_traced(x, counts):
        return when_laid_out("repeat", _ToLength(dim, length), x, as_array(counts))
    if counts.size < size:
        counts = np.broadcast_to(known(counts).reshape(-1), (size,))
    found: Any = _repeated_here(x, dim, counts)
    missing = length - found.shape[dim]
    if missing > 0:
        last = bind("take_positions", x, dims=((dim, ((size - 1,),)),))
        found = concatenate([found, each_repeated(last, dim, missing)], dim)
    elif missing < 0:
        found = found[(*[slice(None)] * dim, slice(0, length))]
    placement = _equal_parts(found, dim)
    if placement is None:
        return found
    mesh, kind = found.sharding.mesh, found.sharding.memory_kind
    sharding = named_sharding(mesh, placement, kind)
    return relaid(found, here().type_of(found.shape, x.dtype, sharding, x.committed), "repeat")


def _equal_parts(x: Any, dim: int) -> Placement | None:
    """Return how an array is laid out with a dim in equal parts; None if it is not split."""
    own, kind = x.sharding, x.aval
    if not isinstance(own, NamedSharding):
        return None
    pairs = zip(own.spec.axes(x.ndim), kind.layout.cuts, strict=True)
    return tuple(
        [
            Split(a, balanced_cuts(c[-1], len(c) - 1) if d == dim else c)
            for d, (a, c) in enumerate(pairs)
        ]
    )


@checked
def repeat(
    a: ArrayLike,
    repeats: ArrayLike | Sequence[int],
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
) -> Array:
    """Return the array with each element repeated along a dim, or in the flat array.

    With a number for each element every device repeats its own elements, so that the result may be
    uneven; with ``total_repeat_length`` it is split into equal parts.

    Args:
        a: the array.
        repeats: how often; a number, or one for each position of the dim.
        axis: the dim.
        total_repeat_length: the size of the result's dim, which must be known if the numbers are
            traced: elements beyond it are left out, missing ones repeat the last element.

    Raises:
        ArgumentError: if a number is negative, or their number is not that of the positions.
        ConcretizationError: if the numbers are traced, and no length is given.

    >>> import meshard.numpy as mnp
    >>> mnp.repeat(mnp.asarray([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    x = as_array(a)
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, "repeat")
    if total_repeat_length is not None:
        return _to_length(x, repeats, dim, index(total_repeat_length))
    if is_traced(repeats):
        way_out = "The result's shape depends on repeats. Give total_repeat_length=, an integer."
        repeats = concrete(repeats, "repeat", way_out)
    size, numbers = x.shape[dim], _numbers(repeats)
    if numbers.size == 1:
        count = int(known(numbers).item() if is_array(numbers) else numbers.item())
        _refuse_negative(count, repeats)
        return each_repeated(x, dim, count)
    if numbers.size != size:
        raise ArgumentError(
            f"repeat: dim {dim} has {size} positions, and repeats gives {numbers.size} numbers."
        )
    if not is_traced(x):
        return _repeated_here(x, dim, numbers)
    counts = known(numbers) if is_array(numbers) else numbers
    _refuse_negative(int(counts.min(initial=0)), repeats)
    return bind("gather", x, np.repeat(np.arange(size), counts), dims=(dim,), at=dim)
