"""Drawing: what makes random arrays, tile by tile.

A *sampler* fills one whole tile from the words of its stream. `drawn` makes an array of tiles on
any sharding: each process draws the tiles that overlap its pieces, once each. Inside a
transformation, where the key has no value yet, the same samplers run as rows named ``random_...``.
A number depends on the key, the function, the shape and the dtype alone. Bits are the same on
every machine; logarithms and sines are NumPy's, whose last bit may differ between processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.errors import ShardingError
from meshard.ops.engine.later import in_program, make_later
from meshard.ops.engine.operand_mesh import OperandMesh
from meshard.ops.engine.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.ops.random.keys import DOMAINS, Stream, key_term, key_value, key_words, single_key
from meshard.ops.random.tiles import tiling
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.memo import memoized
from meshard.runtime.moving.place import as_sharding, check_devices_exist
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here
from meshard.tuning import LARGE

Sampler = Callable[..., None]
"""Called with a `Draw`, a flat contiguous block to fill, and constants."""

_TASKS = 8
"""Tasks per worker: enough to even out, few enough that starting one costs nothing."""


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

    def generator(self) -> np.random.Generator:
        """Return NumPy's generator at the start of the tile's first part."""
        return self._stream.generator(self._tile)


# the engine


@final
class _Tile:
    """One tile that this process draws, and where it goes.

    Attributes:
        number: the tile's number.
        shape: its shape.
        targets: the piece, the region of the piece and the region of the tile that is copied.
        direct: whether it can be drawn straight into its one target.
    """

    __slots__ = ("direct", "number", "shape", "targets")

    def __init__(self, number: int, shape: tuple[int, ...]) -> None:
        self.number = number
        self.shape = shape
        self.targets: list[tuple[int, Any, Any]] = []
        self.direct = False


def _tiles_of(kind: ArrayType) -> list[_Tile]:
    tiles, layout = tiling(kind.shape), kind.layout
    found: dict[int, _Tile] = {}
    for piece in kind.local:
        box = layout.box(piece)
        for number in tiles.within(box):
            own = tiles.box(number)
            tile = found.get(number)
            if tile is None:
                tile = found[number] = _Tile(number, own.shape)
            both = own.intersect(box)
            tile.targets.append((piece, both.within(box).slices, both.within(own).slices))
            # The tile's elements lie side by side in the piece, if all dims after the first in
            # which it has more than one are the piece's own.
            long = [d for d, n in enumerate(own.shape) if n > 1][:1]
            rest = slice((long or [len(own.shape)])[0] + 1, None)
            tile.direct = both == own and own.shape[rest] == box.shape[rest]
    for tile in found.values():
        tile.direct = tile.direct and len(tile.targets) == 1
    return [found[number] for number in sorted(found)]


def _fill(
    tiles: Sequence[_Tile],
    blocks: Mapping[int, Block],
    dtype: Dtype,
    stream: Stream,
    sampler: Sampler,
    constants: tuple[Any, ...],
) -> None:
    """Draw some tiles, into the blocks that they go to."""
    room = np.empty(max([math.prod(t.shape) for t in tiles if not t.direct], default=0), dtype)
    with np.errstate(all="ignore"):
        for tile in tiles:
            draw = Draw(stream, tile.number)
            if tile.direct:
                piece, where, _ = tile.targets[0]
                sampler(draw, blocks[piece][(..., *where)].reshape(-1), *constants)
                continue
            flat = room[: math.prod(tile.shape)]
            sampler(draw, flat, *constants)
            value = flat.reshape(tile.shape)
            for piece, where, of in tile.targets:
                blocks[piece][where] = value[of]


@memoized(most=1 << 12)
def _tiles_here(
    world: RuntimeWorld, kind: ArrayType
) -> tuple[list[_Tile], list[tuple[int, tuple[int, ...]]], int]:
    """Return the tiles of an array, the pieces that are drawn here with their shapes, and bytes."""
    boxes = {i: kind.layout.box(i) for i in kind.local}
    nbytes = sum([b.volume for b in boxes.values()]) * kind.dtype.itemsize
    return _tiles_of(kind), [(i, b.shape) for i, b in boxes.items()], nbytes


def _made(
    world: RuntimeWorld,
    kind: ArrayType,
    value: int,
    domain: int,
    sampler: Sampler,
    constants: tuple[Any, ...],
) -> Array:
    """Draw the pieces that this process holds."""
    tiles, shapes, nbytes = _tiles_here(world, kind)
    empty, dtype = world.memory.allocate, kind.dtype
    blocks = {i: empty(shape, dtype) for i, shape in shapes}
    if nbytes < LARGE:
        if tiles:
            _fill(tiles, blocks, dtype, Stream(value, domain), sampler, constants)
    else:
        step = -(-len(tiles) // (_TASKS * world.workers.threads))
        world.workers.run(
            [
                partial(
                    _fill,
                    tiles[i : i + step],
                    blocks,
                    dtype,
                    Stream(value, domain),
                    sampler,
                    constants,
                )
                for i in range(0, len(tiles), step)
            ]
        )
    return Array(kind, tuple([blocks.get(i) for i in range(kind.layout.piece_count)]))


def _place(world: RuntimeWorld, kind: ArrayType, shape: tuple[int, ...]) -> tuple[Sharding, bool]:
    """Return where numbers of a key lie that nobody placed: whole, on the key's devices."""
    if isinstance(kind.sharding, SingleDeviceSharding):
        return kind.sharding, kind.committed
    whole = tuple([Split((), (0, n)) for n in shape])
    return OperandMesh("random", [kind]).sharding(whole), kind.committed


def drawn(
    what: str,
    key: Any,
    sampler: str,
    shape: tuple[int, ...],
    dtype: Dtype,
    place: Any = None,
    constants: tuple[Any, ...] = (),
) -> Any:
    """Return an array of random numbers.

    Args:
        what: the function's name, which is the streams' domain too.
        key: one key.
        sampler: the name that a sampler was registered by.
        shape: the global shape.
        dtype: the dtype.
        place: a sharding, or a spec where a mesh is set; None for where the key is.
        constants: what the sampler is given besides.

    Raises:
        ShardingError: if the shape cannot lie so, or a sharding is asked for in a transformation.
        NotAddressableError: if this process needs the key and does not hold it.
    """
    one = single_key(key, what)
    if isinstance(one, Traced) and not in_program():
        refuse_place(what, place)
        domain = DOMAINS[what]
        return bind(
            f"random_{sampler}", one, shape=shape, dtype=dtype, domain=domain, constants=constants
        )
    world = here()
    sharding = as_sharding(place, what)
    if sharding is not None:
        check_devices_exist(world, sharding, what)

    def beside(key: ArrayType) -> ArrayType:
        where, committed = (sharding, True) if sharding is not None else _place(world, key, shape)
        return world.type_of(shape, dtype, where, committed)

    operands = (one,) if isinstance(one, Traced) else ()

    def make(kind: ArrayType, key: Array = one) -> Array:
        value = key_words(key, what) if kind.local else 0
        return _made(here(), kind, value, DOMAINS[what], _SAMPLERS[sampler], constants)

    return make_later(
        what, beside(one._type), make, *operands, asked=sharding is not None, place=beside
    )


def refuse_place(what: str, place: Any) -> None:
    """Refuse a sharding for what is drawn inside a transformation."""
    if place is not None and not in_program():
        raise ShardingError(
            f"{what}: out_sharding={place!r} has no meaning inside a transformed function: each "
            "device draws a block of its own there. Leave it out, and let out_specs say how the "
            "blocks make one array."
        )


def draw_box(shape: tuple[int, ...], box: Box) -> list[tuple[int, tuple[int, ...], Any, Any]]:
    """Return the tiles that a box overlaps: number, shape, region of the box, of the tile."""
    tiles = tiling(shape)
    found = []
    for number in tiles.within(box):
        own = tiles.box(number)
        both = own.intersect(box)
        found.append((number, own.shape, both.within(box).slices, both.within(own).slices))
    return found


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    sizes = {f"d{i}": n for i, n in enumerate(params["shape"])}
    return f"{key_term(operands[0])} -> {' '.join(sizes)}", sizes


def _law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (params["dtype"],)


_SAMPLERS: dict[str, Sampler] = {}
"""All samplers by name; written while the modules of this floor are imported."""


def register_sampler(name: str, sampler: Sampler) -> None:
    """Add a sampler, and the row that runs it where the key has no value yet."""

    def kernel(
        key: Block, *, shape: tuple[int, ...], dtype: Dtype, domain: int, constants: tuple[Any, ...]
    ) -> Block:
        block = np.empty(shape, dtype)
        stream = Stream(key_value(key), domain)
        with np.errstate(all="ignore"):
            for number, sizes, where, _ in draw_box(shape, Box.whole(shape)):
                room = np.empty(math.prod(sizes), dtype)
                sampler(Draw(stream, number), room, *constants)
                block[where] = room.reshape(sizes)
        return block

    _SAMPLERS[name] = sampler
    register(Op(f"random_{name}", _rule, kernel, dtypes=_law))
