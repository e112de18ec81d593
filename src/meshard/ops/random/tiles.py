"""Tiles: how a random array is cut into parts that are drawn one by one, and how they are drawn.

In: a key, a *sampler*, a shape, a dtype and a sharding. Out: an array of random numbers, or the row
``random_<sampler>`` that draws them where the key has no value yet.

A tile is an N-D box that depends on the array's shape alone, of about 64 K elements; each has a
stream of its own, and a sampler fills one whole tile from the words of its stream. So whoever holds
a part of the array draws the tiles that overlap it, once each, and nobody needs the others. The
dims are cut about equally often, in powers of two, at ``floor(i * size / count)``: an even split of
a dim over 2, 4, 8 … devices falls on these cuts.

A number depends on the key, the function, the shape and the dtype alone. Bits are the same on
every machine; logarithms and sines are NumPy's, whose last bit may differ between processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box, Index
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ShardingError
from meshard.ops.engine.later import (
    OfRow,
    in_program,
    is_array,
    is_traced,
    layouts_known,
    make_later,
)
from meshard.ops.engine.operand_mesh import OperandMesh
from meshard.ops.random.keys import DOMAINS, Stream, key_term, key_value, key_words, single_key
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_sharding, check_devices_exist
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here, memoized
from meshard.tuning import LARGE

TILE = 1 << 16
"""The most elements of a tile, if no dim is too short to be cut so."""

_FLOAT64, _UINT64 = np.dtype(np.float64), np.dtype(np.uint64)

_TASKS = 8
"""Tasks per worker: enough to even out, few enough that starting one costs nothing."""


class Overlap(NamedTuple):
    """A tile that a box overlaps: its number and shape, and the common region as seen from both."""

    number: int
    shape: tuple[int, ...]
    of_box: Index
    of_tile: Index


@final
class Tiling:
    """The tiles of one shape.

    Attributes:
        shape: the array's shape.
        counts: the number of tiles along each dim.

    >>> tiles = Tiling((1024, 1024))
    >>> tiles.counts, tiles.box(5)
    ((4, 4), Box(starts=(256, 256), stops=(512, 512)))
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        counts = [1] * len(self.shape)
        tiles = -(-math.prod(self.shape) // TILE)
        for _ in range(max(0, tiles - 1).bit_length()):
            able = [d for d, n in enumerate(self.shape) if n >= 2 * counts[d]]
            if not able:
                break
            dim = min(able, key=lambda d: (counts[d], -self.shape[d], d))
            counts[dim] *= 2
        self.counts = tuple(counts)

    def box(self, number: int) -> Box:
        """Return the region of one tile; tiles are numbered in C order."""
        place = []
        for count in reversed(self.counts):
            number, i = divmod(number, count)
            place.append(i)
        place.reverse()
        spans = list(zip(place, self.shape, self.counts, strict=True))
        return Box(
            tuple([i * n // c for i, n, c in spans]),
            tuple([(i + 1) * n // c for i, n, c in spans]),
        )

    def within(self, box: Box) -> Iterator[int]:
        """Yield the numbers of the tiles that overlap a box."""
        if not all(a < b for a, b in zip(box.starts, box.stops, strict=True)):
            return
        spans = [
            # The tile of an element: the last one that starts at or before it.
            range(((a + 1) * c - 1) // n, (b * c - 1) // n + 1)
            for a, b, n, c in zip(box.starts, box.stops, self.shape, self.counts, strict=True)
        ]
        for place in product(*spans):
            number = 0
            for i, c in zip(place, self.counts, strict=True):
                number = number * c + i
            yield number

    def overlaps(self, box: Box) -> Iterator[Overlap]:
        """Yield the tiles that overlap a box, with where they do."""
        for number in self.within(box):
            own = self.box(number)
            both = own.intersect(box)
            yield Overlap(number, own.shape, both.within(box).slices, both.within(own).slices)


@lru_cache(maxsize=1024)
def tiling(shape: tuple[int, ...]) -> Tiling:
    """Return the tiles of a shape."""
    return Tiling(shape)


# samplers


@final
class Draw:
    """One tile's random words."""

    __slots__ = ("_stream", "_tile")

    def __init__(self, stream: Stream, tile: int) -> None:
        self._stream = stream
        self._tile = tile

    def words(self, count: int, part: int = 0) -> Block:
        """Return uint64 words; each part of the tile has a stream of its own."""
        return self._stream.words(count, self._tile, part)

    def uniforms(self, count: int, part: int = 0) -> Block:
        """Return float64 numbers strictly between 0 and 1, of 52 bits, in the words' own memory."""
        words = self.words(count, part)
        numbers = words.view(np.float64)
        words >>= np.uint64(12)
        np.add(words, 0.5, out=numbers)  # exact: 53 bits
        numbers *= 2.0**-52
        return numbers

    def generator(self) -> np.random.Generator:
        """Return NumPy's generator at the start of the tile's first part."""
        return self._stream.generator(self._tile)


Sampler = Callable[..., None]
"""Called with a `Draw`, a flat contiguous block to fill, and constants."""

_SAMPLERS: dict[str, Sampler] = {}
"""All samplers by name; written while the modules of this floor are imported."""


def asked_dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    """Return the dtype of a row's result that is the parameter ``dtype``."""
    return (params["dtype"],)


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    sizes = {f"d{i}": n for i, n in enumerate(params["shape"])}
    return f"{key_term(operands[0])} -> {' '.join(sizes)}", sizes


def register_sampler(name: str, sampler: Sampler) -> None:
    """Add a sampler, and the row that runs it where the key has no value yet."""

    def kernel(
        key: Block, *, shape: tuple[int, ...], dtype: Dtype, domain: int, constants: tuple[Any, ...]
    ) -> Block:
        block = np.empty(shape, dtype)
        stream = Stream(key_value(key), domain)
        with np.errstate(all="ignore"):
            if 0 < block.size <= TILE:  # it is one tile
                sampler(Draw(stream, 0), block.reshape(-1), *constants)
                return block
            for tile in tiling(shape).overlaps(Box.whole(shape)):
                room = np.empty(math.prod(tile.shape), dtype)
                sampler(Draw(stream, tile.number), room, *constants)
                block[tile.of_box] = room.reshape(tile.shape)
        return block

    _SAMPLERS[name] = sampler
    register(Op(f"random_{name}", _rule, kernel, dtypes=asked_dtype))


def has_sampler(name: str) -> bool:
    """Whether a sampler has this name."""
    return name in _SAMPLERS


# drawing


@final
class _Task:
    """One tile that this process draws, and where it goes.

    Attributes:
        number: the tile's number.
        shape: its shape.
        targets: the pieces that it overlaps, and where.
        direct: whether it can be drawn straight into its one target.
    """

    __slots__ = ("direct", "number", "shape", "targets")

    def __init__(self, number: int, shape: tuple[int, ...]) -> None:
        self.number = number
        self.shape = shape
        self.targets: list[tuple[int, Overlap]] = []
        self.direct = False


def _tasks_of(kind: ArrayType) -> list[_Task]:
    found: dict[int, _Task] = {}
    for piece in kind.local:
        box = kind.layout.box(piece)
        for overlap in tiling(kind.shape).overlaps(box):
            number, shape = overlap.number, overlap.shape
            task = found.setdefault(number, _Task(number, shape))
            task.targets.append((piece, overlap))
            # The tile's elements lie side by side in the piece, if all dims after the first in
            # which it has more than one are the piece's own.
            long = [d for d, n in enumerate(shape) if n > 1][:1]
            rest = slice((long or [len(shape)])[0] + 1, None)
            whole = overlap.of_tile == Box.whole(shape).slices
            task.direct = len(task.targets) == 1 and whole and shape[rest] == box.shape[rest]
    return [found[number] for number in sorted(found)]


def _fill(
    tasks: Sequence[_Task],
    blocks: Mapping[int, Block],
    stream: Stream,
    sampler: Sampler,
    constants: tuple[Any, ...],
) -> None:
    """Draw some tiles, into the blocks that they go to."""
    dtype = next(iter(blocks.values())).dtype
    room = np.empty(max([math.prod(t.shape) for t in tasks if not t.direct], default=0), dtype)
    with np.errstate(all="ignore"):
        for task in tasks:
            draw = Draw(stream, task.number)
            if task.direct:
                piece, overlap = task.targets[0]
                where: Any = (..., *overlap.of_box)  # a view, also without dims
                sampler(draw, blocks[piece][where].reshape(-1), *constants)
                continue
            flat = room[: math.prod(task.shape)]
            sampler(draw, flat, *constants)
            value = flat.reshape(task.shape)
            for piece, overlap in task.targets:
                blocks[piece][overlap.of_box] = value[overlap.of_tile]


@memoized(most=1 << 12)
def _tasks_here(
    world: RuntimeWorld, kind: ArrayType
) -> tuple[list[_Task], list[tuple[int, tuple[int, ...]]], int]:
    """Return what is drawn here: tiles, pieces with their shapes, and bytes."""
    boxes = {i: kind.layout.box(i) for i in kind.local}
    nbytes = sum([b.volume for b in boxes.values()]) * kind.dtype.itemsize
    return _tasks_of(kind), [(i, b.shape) for i, b in boxes.items()], nbytes


def _made(
    kind: ArrayType, new_stream: Callable[[], Stream], sampler: Sampler, constants: tuple[Any, ...]
) -> Array:
    """Draw the pieces that this process holds."""
    world = here()
    tasks, shapes, nbytes = _tasks_here(world, kind)
    blocks = {i: world.memory.allocate(shape, kind.dtype) for i, shape in shapes}
    if tasks and nbytes < LARGE:
        _fill(tasks, blocks, new_stream(), sampler, constants)
    elif tasks:
        step = -(-len(tasks) // (_TASKS * world.workers.threads))
        world.workers.run(
            [
                partial(_fill, tasks[i : i + step], blocks, new_stream(), sampler, constants)
                for i in range(0, len(tasks), step)
            ]
        )
    return Array(kind, tuple([blocks.get(i) for i in range(kind.layout.piece_count)]))


def _place(world: RuntimeWorld, kind: ArrayType, shape: tuple[int, ...]) -> tuple[Sharding, bool]:
    """Return where numbers of a key are drawn that nobody placed: whole, on the key's devices."""
    if isinstance(kind.sharding, SingleDeviceSharding):
        return kind.sharding, kind.committed
    whole = tuple([Split((), (0, n)) for n in shape])
    return OperandMesh("random", [kind]).sharding(whole), kind.committed


class Request(NamedTuple):
    """What one call asks for.

    Attributes:
        what: the function's name, which is the streams' domain too.
        key: one key.
        shape: the global shape.
        dtype: the dtype.
        place: a sharding, or a spec where a mesh is set; None for where the key is.
    """

    what: str
    key: Any
    shape: tuple[int, ...]
    dtype: Dtype = _FLOAT64
    place: Any = None

    def beside(self, *parameters: Any) -> Request:
        """Return the request for numbers that meet parameters: where the largest of them is.

        A place that was asked for stays.
        """
        if self.place is not None:
            return self
        if is_traced(self.key, *parameters) and not layouts_known():
            return self
        arrays = [p for p in parameters if is_array(p) and p.committed and p.ndim and p.size > 1]
        for x in sorted(arrays, key=lambda p: -p.size):
            place: Sharding = x.sharding
            if x.shape == self.shape:
                return self._replace(place=place)
            lead = len(self.shape) - x.ndim
            if isinstance(place, NamedSharding) and x.shape == self.shape[lead:]:
                uneven = place.uneven
                entries = (*[()] * lead, *place.spec.axes(x.ndim))
                if uneven is None or isinstance(uneven, str):
                    spec = PartitionSpec(*entries)
                    return self._replace(place=NamedSharding(place.mesh, spec, uneven=uneven))
        return self

    def arranged(self, shape: tuple[int, ...], order: Sequence[int | None]) -> Request:
        """Return the request for an array of float64 that becomes the one asked for.

        Args:
            shape: its shape.
            order: for each of its dims the dim of the result that it is split like; None for whole.
        """
        place = as_sharding(self.place, self.what)
        if isinstance(place, NamedSharding):
            rank = len(self.shape)
            axes, uneven = place.spec.axes(rank), place.uneven
            if isinstance(uneven, tuple):
                cuts = (*uneven, *[None] * rank)
                uneven = tuple([None if d is None else cuts[d] for d in order])
            spec = PartitionSpec(*[() if d is None else axes[d] for d in order])
            place = NamedSharding(place.mesh, spec, uneven=uneven)
        elif not isinstance(place, SingleDeviceSharding):
            place = None
        return Request(self.what, self.key, shape, _FLOAT64, place)

    def double(self) -> Request:
        """Return the request for float64 numbers."""
        return self._replace(dtype=_FLOAT64)

    def drawn(self, sampler: str, *constants: Any) -> Array:
        """Return an array of random numbers.

        Args:
            sampler: the name that a sampler was registered by.
            constants: what the sampler is given besides.

        Raises:
            ShardingError: if the shape cannot be laid out so, or a sharding is asked for in a
                transformation.
            NotAddressableError: if this process needs the key and does not hold it.
        """
        what, shape, dtype = self.what, self.shape, self.dtype
        one: Any = single_key(self.key, what)
        found: Array
        make = _Drawing(self, one, sampler, constants)
        if isinstance(one, Traced) and not in_program():
            refuse_place(what, self.place)
            name, params = make.row
            found = bind(name, one, **params)
            return found
        world = here()
        sharding = as_sharding(self.place, what)
        if sharding is not None:
            check_devices_exist(world, sharding, what)

        def beside(key: ArrayType) -> ArrayType:
            chosen = (sharding, True) if sharding is not None else _place(world, key, shape)
            return world.type_of(shape, dtype, *chosen)

        operands = (one,) if isinstance(one, Traced) else ()
        found = make_later(
            what, beside(one._type), make, *operands, asked=sharding is not None, place=beside
        )
        return found

    def uniforms(self, part: int = 0) -> Array:
        """Draw float64 numbers strictly between 0 and 1, whatever the dtype asked for."""
        return self.double().drawn("open", part)

    def words(self, part: int = 0) -> Array:
        """Draw uint64 words, whatever the dtype asked for."""
        return self._replace(dtype=_UINT64).drawn("words", part)


@final
@dataclass(frozen=True, slots=True)
class _Drawing(OfRow):
    """Draws what a request asks for.

    Attributes:
        request: the request.
        key: its key; what is made later is given the key's value then.
        sampler: the name that a sampler was registered by.
        constants: what the sampler is given besides.
    """

    request: Request
    key: Any
    sampler: str
    constants: tuple[Any, ...]

    @property
    def row(self) -> tuple[str, Mapping[str, Any]]:
        """The row that draws it in one piece."""
        request = self.request
        return f"random_{self.sampler}", {
            "shape": request.shape,
            "dtype": request.dtype,
            "domain": DOMAINS[request.what],
            "constants": self.constants,
        }

    def __call__(self, kind: ArrayType, *operands: Any) -> Array:
        """Draw the pieces that this process holds."""
        (key,) = operands or (self.key,)
        what = self.request.what
        value = key_words(key, what) if kind.local else 0
        stream = partial(Stream, value, DOMAINS[what])
        return _made(kind, stream, _SAMPLERS[self.sampler], self.constants)


def _fill_uniforms(draw: Draw, out: Block, part: int) -> None:
    out[...] = draw.uniforms(out.size, part)


def _fill_words(draw: Draw, out: Block, part: int) -> None:
    out[...] = draw.words(out.size, part)


register_sampler("open", _fill_uniforms)
register_sampler("words", _fill_words)


def refuse_place(what: str, place: Any) -> None:
    """Refuse a sharding for what is drawn inside a transformation."""
    if place is not None and not in_program():
        raise ShardingError(
            f"{what}: out_sharding={place!r} has no meaning inside a transformed function: each "
            "device draws a block of its own there. Leave it out, and let out_specs say how the "
            "blocks make one array."
        )
