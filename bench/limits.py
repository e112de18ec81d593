"""What this machine can do at most, and how fast a row could therefore be.

In: what a row cannot do without (bytes, floating point operations, kernels, rounds of messages).
Out: seconds, by the copying, the product, the smallest kernel and the message that were measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.by_hand import copy, each, one_blas_thread
from bench.figures import digits

SIDE = 2048
COPIED = 64 << 20
CALLS = 2000
SECONDS = 0.5


@dataclass(frozen=True)
class Need:
    """What a piece of work cannot do without; nothing, where nobody knows.

    Attributes:
        bytes: read and written in memory, all passes that the work asks for together.
        flops: floating point operations of products.
        calls: kernels that run one after another, on data that costs nothing.
        rounds: messages between processes that wait for each other.
    """

    bytes: float = 0
    flops: float = 0
    calls: int = 0
    rounds: int = 0


NOTHING = Need()


@dataclass(frozen=True)
class Limits:
    """What was measured of the machine; None where it was not.

    Attributes:
        bandwidth: bytes per second, read and written, by copies on all cores.
        flops: operations per second of float32 products on all cores.
        call: seconds of NumPy's smallest kernel, written into a given array.
        message: seconds of the smallest message from one process to another, by MPI.
    """

    bandwidth: float
    flops: float
    call: float
    message: float | None = None

    def seconds(self, need: Need) -> float | None:
        """The time that a row needs at least; None if it says nothing, or nothing is known."""
        if need.rounds and self.message is None:
            return None
        message = self.message or 0.0
        found = max(
            need.bytes / self.bandwidth,
            need.flops / self.flops,
            need.calls * self.call,
            need.rounds * message,
        )
        return found or None

    def __str__(self) -> str:
        """For example `copies 21.3 GB/s, products 180 GFLOP/s, a kernel 0.41 us`."""
        told = [
            f"copies {digits(self.bandwidth / 1e9)} GB/s",
            f"products {digits(self.flops / 1e9)} GFLOP/s",
            f"a kernel {digits(self.call * 1e6)} us",
        ]
        if self.message is not None:
            told.append(f"a message {digits(self.message * 1e6)} us")
        return ", ".join(told)


def measure_limits(message: float | None = None) -> Limits:
    """Measure copies, products and kernels, for about two seconds: the best of many."""
    source, target = (np.ones(COPIED // 4, np.float32) for _ in range(2))
    cuts = [(np.split(target, n), np.split(source, n)) for n in (2, 16)]
    pieces = [list(zip(*pair, strict=True)) for pair in cuts]
    x, y = (np.ones((SIDE, SIDE), np.float32) for _ in range(2))
    out = np.empty_like(x)
    halves = [slice(0, SIDE // 2), slice(SIDE // 2, SIDE)]
    a, b, c = (np.ones(8, np.float32) for _ in range(3))

    def product() -> None:
        with one_blas_thread():
            each(lambda half: np.matmul(x[half], y, out=out[half]), halves)

    def kernels() -> None:
        add = np.add
        for _ in range(CALLS):
            add(a, b, out=c)

    return Limits(
        2 * COPIED / min(_best(lambda some=some: each(copy, some)) for some in pieces),
        2 * SIDE**3 / _best(product),
        _best(kernels) / CALLS,
        message,
    )


def _best(work: Callable[[], object]) -> float:
    """The seconds of the fastest of the repetitions of half a second."""
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while not found or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)
