"""Conway's game of life on a torus of devices.

    python examples/life.py

The board has no edge: its last row lies above its first, and so do the devices. Each device wraps
its tile in the nearest cells of its neighbours, `ppermute` around the ring of each mesh axis, then
counts. The population is a `psum` over both axes at once, so every device knows it.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P

SHIFTS = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]


def wrap_rows(tile, axis):
    """Put the nearest row of the previous and the next device before and after a tile."""
    size = lax.axis_size(axis)
    above = lax.ppermute(tile[-1:], axis, [(i, (i + 1) % size) for i in range(size)])
    below = lax.ppermute(tile[:1], axis, [(i, (i - 1) % size) for i in range(size)])
    return mnp.concatenate([above, tile, below])


def generation(tile):
    """Return a tile one generation later; cells are 0 or 1."""
    height, width = tile.shape
    # The columns come after the rows, so that they bring the corners along.
    wide = wrap_rows(wrap_rows(tile, "y").T, "x").T
    count = sum(wide[y : y + height, x : x + width] for y, x in SHIFTS)
    return ((count == 3) | ((count == 2) & (tile == 1))).astype(tile.dtype)


def evolve(board, mesh, generations):
    """Return the board after some generations, and the population of each.

    `mesh` has the axes y and x, which divide the board.
    """

    @functools.partial(
        meshard.shard_map, mesh=mesh, in_specs=P("y", "x"), out_specs=(P("y", "x"), P())
    )
    def run(tile):
        def one(tile, _):
            tile = generation(tile)
            return tile, lax.psum(tile.sum(), ("y", "x"))

        return lax.scan(one, tile, None, length=generations)

    return run(board)


def evolve_numpy(board, generations):
    """Compute the same on the whole board."""
    populations = []
    for _ in range(generations):
        count = sum(np.roll(board, (y - 1, x - 1), (0, 1)) for y, x in SHIFTS)
        board = ((count == 3) | ((count == 2) & (board == 1))).astype(board.dtype)
        populations.append(board.sum())
    return board, np.array(populations)


def main():
    """Let a glider fly over the edge of a 16 x 16 board on 2 x 4 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    board = np.roll(np.pad([[0, 1, 0], [0, 0, 1], [1, 1, 1]], (0, 13)), 10, axis=1)
    found, populations = evolve(board, meshard.make_mesh((2, 4), ("y", "x")), 24)
    found = meshard.multihost_utils.process_allgather(found, tiled=True)
    print("\n".join("".join(".#"[cell] for cell in row) for row in found))
    print("populations:", populations)
    print("as in plain NumPy:", np.array_equal(found, evolve_numpy(board, 24)[0]))


if __name__ == "__main__":
    main()
