"""The rows of jitted functions by hand: pieces that fit the cache, two threads, in place."""

from collections.abc import Callable

import numpy as np

from bench.by_hand import Array, Blocks, each, one_blas_thread
from bench.row import ByHand

PIECE = 1 << 16
"""Elements that are worked on at a time, in all steps: what fits a core's own cache."""
Step = Callable[[Array, Array], object]
"""Writes the result for some rows into the second array."""


def by_pieces(parts: tuple[int, int], step: Step) -> Callable[[Array], ByHand]:
    """`step` for some rows of each block at a time."""

    def make(x: Array) -> ByHand:
        source, target = Blocks(x.shape, parts), Blocks(x.shape, parts)
        rows = max(1, PIECE // source.buffers[0].shape[1])
        pieces = [
            (data[k : k + rows], out[k : k + rows])
            for data, out in zip(source.buffers, target.buffers, strict=True)
            for k in range(0, len(data), rows)
        ]
        return ByHand(
            lambda: source.load(x),
            lambda: each(lambda piece: step(*piece), pieces),
            lambda _: target.whole(),
        )

    return make


def twenty(v: Array, out: Array) -> None:
    """v * 0.5 + 1, ten times."""
    for _ in range(10):
        np.multiply(v, 0.5, out=out)
        v = np.add(out, 1, out=out)


def tanh_chain(v: Array, out: Array) -> None:
    """tanh(v * 2 + 1) * v."""
    np.multiply(v, 2, out=out)
    np.add(out, 1, out=out)
    np.tanh(out, out=out)
    np.multiply(out, v, out=out)


def arithmetic(v: Array, out: Array) -> None:
    """v * 2 + 1 - v * v."""
    squares = v * v
    np.multiply(v, 2, out=out)
    np.add(out, 1, out=out)
    np.subtract(out, squares, out=out)


def softmax(v: Array, out: Array) -> None:
    """Over the rows."""
    np.subtract(v, v.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=1, keepdims=True), out=out)


def layer_norm(v: Array, out: Array) -> None:
    """Over the rows."""
    np.subtract(v, v.mean(axis=1, keepdims=True), out=out)
    squares = np.einsum("ij,ij->i", out, out)[:, None] / np.float32(v.shape[1])
    np.divide(out, np.sqrt(squares + np.float32(1e-5)), out=out)


def softmax_split(x: Array) -> ByHand:
    """Over the columns of blocks of rows: largest elements, then exponentials, then quotients."""
    source, target = Blocks(x.shape, (8, 1)), Blocks(x.shape, (8, 1))
    rows = max(1, PIECE // x.shape[1])
    pieces = [
        (data[k : k + rows], out[k : k + rows])
        for data, out in zip(source.buffers, target.buffers, strict=True)
        for k in range(0, len(data), rows)
    ]

    def run() -> None:
        most = np.max(each(lambda data: data.max(axis=0), source.buffers), axis=0)

        def exponentials(piece: tuple[Array, Array]) -> Array:
            data, out = piece
            np.subtract(data, most, out=out)
            total: Array = np.exp(out, out=out).sum(axis=0)
            return total

        total = np.sum(each(exponentials, pieces), axis=0)
        each(lambda piece: np.divide(piece[1], total, out=piece[1]), pieces)

    return ByHand(lambda: source.load(x), run, lambda _: target.whole())


def power_iteration(rounds: int) -> Callable[[Array, Array], ByHand]:
    """Blocks of rows, on two threads, one BLAS thread each."""

    def make(a: Array, x: Array) -> ByHand:
        source = Blocks(a.shape, (8, 1))
        out = np.empty_like(x)
        parts = list(zip(source.buffers, np.split(out, 8), strict=True))

        def run() -> Array:
            now = x.copy()
            with one_blas_thread():
                for _ in range(rounds):

                    def part(pair: tuple[Array, Array], now: Array = now) -> None:
                        np.matmul(pair[0], now, out=pair[1])

                    each(part, parts)
                    np.divide(out, np.sqrt(np.vdot(out, out)), out=now)
            return now

        return ByHand(lambda: source.load(a), run, np.copy)

    return make


def ridge(x: Array, y: Array) -> ByHand:
    """Products of each block on two threads, one BLAS thread each, then their sums."""
    source, target = Blocks(x.shape, (8, 1)), Blocks(y.shape, (8,))
    pairs = list(zip(source.buffers, target.buffers, strict=True))

    def load() -> None:
        source.load(x)
        target.load(y)

    def run() -> list[Array]:
        with one_blas_thread():
            found = each(lambda pair: (pair[0].T @ pair[0], pair[0].T @ pair[1]), pairs)
        return [np.sum([part[k] for part in found], axis=0) for k in (0, 1)]

    return ByHand(load, run, lambda found: found)
