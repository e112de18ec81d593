"""The rows of programs by hand, and the same programs in plain NumPy on whole arrays."""

from collections.abc import Callable

import numpy as np

from bench.by_hand import Array, Blocks, copy, each, one_blas_thread
from bench.row import ByHand

RATE = 0.2
ROWS_AT_ONCE = 64


def _grid(source: Blocks) -> list[list[Array]]:
    """The buffers of a 4 x 2 grid, by row and column."""
    return [source.buffers[2 * i : 2 * i + 2] for i in range(4)]


def psum(x: Array) -> ByHand:
    """Sum the 4 blocks of each column in cache-sized pieces."""
    source, target = Blocks(x.shape, (4, 2)), Blocks((len(x) // 4, x.shape[1]), (1, 2))
    grid = _grid(source)
    rows = max(1, min(ROWS_AT_ONCE, len(target.buffers[0])))
    work = [(j, k) for j in range(2) for k in range(0, len(target.buffers[0]), rows)]

    def piece(place: tuple[int, int]) -> None:
        j, k = place
        out = target.buffers[j][k : k + rows]
        np.add(grid[0][j][k : k + rows], grid[1][j][k : k + rows], out=out)
        for i in (2, 3):
            np.add(out, grid[i][j][k : k + rows], out=out)

    return ByHand(lambda: source.load(x), lambda: each(piece, work), lambda _: target.whole())


def psum_scatter(x: Array) -> ByHand:
    """Each of 8 devices sums its quarter of the 4 blocks of its column."""
    source, target = Blocks(x.shape, (4, 2)), Blocks((len(x) // 4, x.shape[1]), (4, 2))
    grid = _grid(source)
    own = len(target.buffers[0])

    def piece(number: int) -> None:
        i, j = divmod(number, 2)
        part, out = slice(i * own, (i + 1) * own), target.buffers[number]
        np.add(grid[0][j][part], grid[1][j][part], out=out)
        for k in (2, 3):
            np.add(out, grid[k][j][part], out=out)

    return ByHand(lambda: source.load(x), lambda: each(piece, range(8)), lambda _: target.whole())


def all_gather(x: Array) -> ByHand:
    """Copy the blocks of each column into one, which its devices share."""
    source, target = Blocks(x.shape, (4, 2)), Blocks(x.shape, (1, 2))
    rows = len(x) // 4
    pairs = [
        (target.buffers[j][i * rows : (i + 1) * rows], block)
        for i, line in enumerate(_grid(source))
        for j, block in enumerate(line)
    ]
    return ByHand(lambda: source.load(x), lambda: each(copy, pairs), lambda _: target.whole())


def all_to_all(x: Array) -> ByHand:
    """Copy the 4 row parts of each block to the 4 blocks of its column, side by side."""
    rows, columns = x.shape
    source, target = Blocks(x.shape, (4, 2)), Blocks((rows // 4, columns * 4), (4, 2))
    own, wide = rows // 16, columns // 2
    pairs = [
        (
            target.buffers[2 * i + j][:, k * wide : (k + 1) * wide],
            block[i * own : (i + 1) * own],
        )
        for k, line in enumerate(_grid(source))
        for j, block in enumerate(line)
        for i in range(4)
    ]
    return ByHand(lambda: source.load(x), lambda: each(copy, pairs), lambda _: target.whole())


def ppermute(x: Array) -> ByHand:
    """Blocks change hands by reference."""
    source = Blocks(x.shape, (4, 2))
    moved = Blocks(x.shape, (4, 2))

    def run() -> list[Array]:
        return [source.buffers[(n - 2) % 8] for n in range(8)]

    def fetch(blocks: list[Array]) -> Array:
        for buffer, block in zip(moved.buffers, blocks, strict=True):
            np.copyto(buffer, block)
        return moved.whole()

    return ByHand(lambda: source.load(x), run, fetch)


def heat_numpy(steps: int) -> Callable[[Array], Array]:
    """The heat equation on the whole plate, in plain NumPy."""

    def run(plate: Array) -> Array:
        for _ in range(steps):
            wide = np.pad(plate, 1)
            around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
            plate = plate + RATE * (around - 4 * plate)
        return plate

    return run


def heat_rows(old: Array, new: Array, start: int, buffer: Array) -> None:
    """A step of some rows of a plate with a border, as many as the buffer has at most."""
    end = min(start + len(buffer), len(old) - 1)
    around, out = buffer[: end - start], new[start:end, 1:-1]
    np.add(old[start - 1 : end - 1, 1:-1], old[start + 1 : end + 1, 1:-1], out=around)
    np.add(around, old[start:end, :-2], out=around)
    np.add(around, old[start:end, 2:], out=around)
    np.multiply(old[start:end, 1:-1], 4, out=out)
    np.subtract(around, out, out=around)
    np.multiply(around, RATE, out=around)
    np.add(old[start:end, 1:-1], around, out=out)


def heat(steps: int) -> Callable[[Array], ByHand]:
    """Two plates with a cold border, written in turn, some rows at a time while they are warm."""

    def make(x: Array) -> ByHand:
        n, m = x.shape
        plates = [np.zeros((n + 2, m + 2), np.float32) for _ in range(2)]
        pieces = range(1, n + 1, ROWS_AT_ONCE)
        buffers = {k: np.empty((ROWS_AT_ONCE, m), np.float32) for k in pieces}

        def load() -> None:
            plates[0][1:-1, 1:-1] = x

        def run() -> Array:
            old, new = plates
            for _ in range(steps):

                def part(k: int, old: Array = old, new: Array = new) -> None:
                    heat_rows(old, new, k, buffers[k])

                each(part, pieces)
                old, new = new, old
            return old

        return ByHand(load, run, lambda plate: plate[1:-1, 1:-1].copy())

    return make


def _nearest(points: Array, centres: Array) -> Array:
    return np.argmin((centres**2).sum(axis=1) - points @ (2 * centres.T), axis=1)


def kmeans_numpy(iterations: int) -> Callable[[Array, Array], Array]:
    """k-means on all points, in plain NumPy."""

    def run(points: Array, centres: Array) -> Array:
        for _ in range(iterations):
            nearest = _nearest(points, centres)
            member = (nearest[:, None] == np.arange(len(centres))).astype(points.dtype)
            count = np.maximum(member.sum(axis=0), 1)
            centres = (member.T @ points) / count[:, None]
        return centres

    return run


def kmeans(iterations: int) -> Callable[[Array, Array], ByHand]:
    """Sums of 8 blocks of points on two threads, one BLAS thread each."""

    def make(points: Array, centres: Array) -> ByHand:
        source = Blocks(points.shape, (8, 1))
        numbers = np.arange(len(centres))

        def run() -> Array:
            now = centres
            with one_blas_thread():
                for _ in range(iterations):

                    def part(block: Array, now: Array = now) -> tuple[Array, Array]:
                        member = (_nearest(block, now)[:, None] == numbers).astype(block.dtype)
                        return member.T @ block, member.sum(axis=0)

                    found = each(part, source.buffers)
                    total = sum(t for t, _ in found)
                    count = sum(c for _, c in found)
                    now = total / np.maximum(count, 1)[:, None]
            return now

        return ByHand(lambda: source.load(points), run, lambda found: found)

    return make
