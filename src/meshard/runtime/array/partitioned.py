"""``__partitioned__``: how an array is cut, and who holds which part, for other libraries.

In: an array. Out: its grid of pieces, and the dict of the draft of a protocol (IntelPython's
DPPY-Spec) by which libraries of distributed arrays tell each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from meshard.errors import ShardingError
from meshard.runtime.world import here

Cuts = tuple[int, ...]
Position = tuple[int, ...]


@final
class Partitioned(dict[str, Any]):
    """What ``x.__partitioned__`` is: a dict, which returns itself where it is called.

    The draft calls it a method, and libraries made it an attribute.
    """

    def __call__(self) -> Mapping[str, Any]:
        """Return itself."""
        return self


def data_of(handles: Any) -> Any:
    """Return the data that a handle stands for, or those of a sequence: they are themselves."""
    return list(handles) if isinstance(handles, (list, tuple)) else handles


def partitioned(x: Any) -> Partitioned:
    """Return how an array is cut, and the parts that this process holds.

    Raises:
        ShardingError: if its shards are not a grid.
    """
    cuts, grid = grid_of(x, "__partitioned__")
    me = here().process_index
    parts: dict[Position, dict[str, Any]] = {}
    own: list[Position] = []
    for position, shards in sorted(grid.items()):
        start = tuple([c[p] for c, p in zip(cuts, position, strict=True)])
        mine = [s for s in shards if s.device.process_index == me]
        if mine:
            own.append(position)
        parts[position] = {
            "start": start,
            "shape": tuple([c[p + 1] - c[p] for c, p in zip(cuts, position, strict=True)]),
            "data": np.asarray(mine[0].data) if mine else None,
            "location": sorted({s.device.process_index for s in shards}),
            "dtype": x.dtype,
            "device": "cpu",
        }
    return Partitioned(
        shape=x.shape,
        partition_tiling=tuple([len(c) - 1 for c in cuts]),
        partitions=parts,
        locals=own,
        get=data_of,
    )


def grid_of(x: Any, what: str) -> tuple[list[Cuts], dict[Position, list[Any]]]:
    """Return where the pieces of an array are cut, and the shards at each place of the grid.

    Raises:
        ShardingError: if the pieces are not a grid.
    """
    shards: dict[Any, list[Any]] = {}
    for shard in x.global_shards:
        box = tuple([s.indices(n)[:2] for s, n in zip(shard.index, x.shape, strict=True)])
        if all(a < b for a, b in box) or not x.size:
            shards.setdefault(box, []).append(shard)
    cuts = [
        tuple(sorted({0, x.shape[d]} | {edge for box in shards for edge in box[d]}))
        for d in range(x.ndim)
    ]
    if not x.size:
        box, *_ = shards
        cuts = [(0, n) for n in x.shape]
        return cuts, {(0,) * x.ndim: shards[box]}
    grid: dict[Position, list[Any]] = {}
    for box, some in shards.items():
        place = tuple([c.index(a) for c, (a, _) in zip(cuts, box, strict=True)])
        whole = all(c[p + 1] == b for c, p, (_, b) in zip(cuts, place, box, strict=True))
        if not whole:
            raise ShardingError(
                f"{what}: the shards of {x.aval.str_short()} are not a grid: one is {box}, and "
                "others end within it. Move the array to a NamedSharding first."
            )
        grid[place] = some
    return cuts, grid
