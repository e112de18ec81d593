"""The rows of the foundation by hand: kept blocks, two threads, results written in place."""

from collections.abc import Callable

import numpy as np

from bench.by_hand import Array, Blocks, Piece, copy, each, one_blas_thread, pieces
from bench.row import ByHand

CHAIN = 5
COUNTED = 1 << 24


def reshard(parts: tuple[int, int], before: tuple[int, int] = (4, 2)) -> Callable[[Array], ByHand]:
    """Copy the overlaps of two grids."""

    def make(x: Array) -> ByHand:
        source, target = Blocks(x.shape, before), Blocks(x.shape, parts)
        plan = pieces(source, target)
        return ByHand(lambda: source.load(x), lambda: each(copy, plan), lambda _: target.whole())

    return make


def reshard_tree(arrays: list[Array]) -> ByHand:
    """All copies of all arrays in one loop; threads only wait for each other at this size."""
    sources = [Blocks(x.shape, (4, 2)) for x in arrays]
    targets = [Blocks(x.shape, (2, 4)) for x in arrays]
    plan = [p for s, t in zip(sources, targets, strict=True) for p in pieces(s, t)]

    def load() -> None:
        for source, x in zip(sources, arrays, strict=True):
            for box, buffer in zip(source.boxes, source.buffers, strict=True):
                np.copyto(buffer, x[box])

    def run() -> None:
        for target, source in plan:
            np.copyto(target, source)

    return ByHand(load, run, lambda _: [target.whole() for target in targets])


def from_callback(parts: tuple[int, int]) -> Callable[[Array], ByHand]:
    """Copy the slices into kept blocks; all devices share a replicated one."""

    def make(x: Array) -> ByHand:
        target = Blocks(x.shape, parts)
        # Strips, so that both threads have work when there is only one block.
        plans = [_strips(target, source) for source in (x, x.copy())]

        def run() -> None:
            plans.reverse()
            each(copy, plans[0])

        return ByHand(lambda: None, run, lambda _: target.whole())

    return make


def _strips(target: Blocks, source: Array) -> list[Piece]:
    found = []
    for box, buffer in zip(target.boxes, target.buffers, strict=True):
        half = len(buffer) // 2
        found += [(buffer[:half], source[box][:half]), (buffer[half:], source[box][half:])]
    return found


def arange(_: Array) -> ByHand:
    """Count in kept blocks, in place: a thousand numbers that are moved along."""
    target = Blocks((COUNTED,), (8,))
    line = np.arange(1024, dtype=np.float32)

    def fill(k: int) -> None:
        rows = target.buffers[k].reshape(-1, len(line))
        first = np.arange(len(rows), dtype=np.float32)[:, None] * len(line)
        np.add(first + np.float32(k * rows.size), line, out=rows)

    return ByHand(lambda: None, lambda: each(fill, range(8)), lambda _: target.whole())


def add_one(x: Array) -> ByHand:
    """The op on kept blocks, on two threads."""
    source, target = Blocks(x.shape, (4, 2)), Blocks(x.shape, (4, 2))
    pairs = list(zip(source.buffers, target.buffers, strict=True))
    return ByHand(
        lambda: source.load(x),
        lambda: each(lambda pair: np.add(pair[0], 1, out=pair[1]), pairs),
        lambda _: target.whole(),
    )


def each_small(kernel: Callable[[Array, Array], object]) -> Callable[[Array], ByHand]:
    """A kernel on 8 tiny blocks, in line; it writes into its second argument."""

    def make(x: Array) -> ByHand:
        source, target = Blocks(x.shape, (8,)), Blocks(x.shape, (8,))
        pairs = list(zip(source.buffers, target.buffers, strict=True))

        def run() -> None:
            for data, out in pairs:
                kernel(data, out)

        return ByHand(lambda: source.load(x), run, lambda _: target.whole())

    return make


def add_one_small(v: Array, out: Array) -> None:
    """The op."""
    np.add(v, 1, out=out)


def chain(v: Array, out: Array) -> None:
    """The 20 ops, in place."""
    for _ in range(CHAIN):
        np.multiply(v, 0.5, out=out)
        np.add(out, 1, out=out)
        np.abs(out, out=out)
        v = np.sqrt(out, out=out)


def total(x: Array) -> ByHand:
    """Sums of blocks on two threads, then their sum."""
    source = Blocks(x.shape, (4, 2))
    return ByHand(
        lambda: source.load(x),
        lambda: np.sum(each(np.sum, source.buffers), dtype=np.float32),
        lambda total: total,
    )


def argmax(x: Array) -> ByHand:
    """The place of the largest element in every block, then the first of the largest."""
    source = Blocks(x.shape, (4, 2))

    def run() -> int:
        best, place = -np.inf, 0
        places = each(np.argmax, source.buffers)
        for local, box, buffer in zip(places, source.boxes, source.buffers, strict=True):
            value = float(buffer.flat[local])
            row, column = divmod(int(local), buffer.shape[1])
            flat = (box[0].start + row) * x.shape[1] + box[1].start + column
            if value > best or (value == best and flat < place):
                best, place = value, flat
        return place

    return ByHand(lambda: source.load(x), run, np.asarray)


def affine(x: Array, w: Array, b: Array) -> ByHand:
    """One block a thread, one BLAS thread each, the bias added while the block is warm.

    BLAS's own two threads, block after block, take 6 % longer on a quiet machine and four times
    as long beside another busy process: they wait for each other by spinning.
    """
    left, right = Blocks(x.shape, (4, 1)), Blocks(w.shape, (1, 2))
    bias, target = Blocks(b.shape, (2,)), Blocks((len(x), w.shape[1]), (4, 2))

    def load() -> None:
        for blocks, value in ((left, x), (right, w), (bias, b)):
            blocks.load(value)

    def block(k: int) -> None:
        out = target.buffers[k]
        np.matmul(left.buffers[k // 2], right.buffers[k % 2], out=out)
        np.add(out, bias.buffers[k % 2], out=out)

    def run() -> None:
        with one_blas_thread():
            each(block, range(len(target.buffers)))

    return ByHand(load, run, lambda _: target.whole())


def contract(x: Array, w: Array) -> ByHand:
    """Rows of the result on every thread: each adds up its products of the four blocks."""
    left, right = Blocks(x.shape, (1, 4)), Blocks(w.shape, (4, 1))
    total, part = Blocks((len(x), w.shape[1]), (1, 1)), np.zeros_like(w)
    out = total.buffers[0]
    half = len(x) // 2

    def rows(strip: slice) -> None:
        np.matmul(left.buffers[0][strip], right.buffers[0], out=out[strip])
        for a, b in zip(left.buffers[1:], right.buffers[1:], strict=True):
            np.matmul(a[strip], b, out=part[strip])
            np.add(out[strip], part[strip], out=out[strip])

    def load() -> None:
        left.load(x)
        right.load(w)

    def run() -> None:
        with one_blas_thread():
            each(rows, [slice(0, half), slice(half, None)])

    return ByHand(load, run, lambda _: total.whole())


def gram(x: Array) -> ByHand:
    """A symmetric product of every block, one BLAS thread on each core, then their sum."""
    source = Blocks(x.shape, (8, 1))
    parts = np.zeros((8, x.shape[1], x.shape[1]), np.float32)
    total: Array = np.zeros_like(parts[0])
    pairs = list(zip(source.buffers, parts, strict=True))

    def run() -> Array:
        with one_blas_thread():
            each(lambda pair: np.matmul(pair[0].T, pair[0], out=pair[1]), pairs)
        np.sum(parts, axis=0, out=total)
        return total

    return ByHand(lambda: source.load(x), run, np.copy)
