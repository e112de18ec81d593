"""The memory that a row's first call takes beyond its operands and its result.

In: a row. Out: its peak, in multiples of the result, by the kernel's count (`bench.kernel_memory`),
in a process of its own, where nothing that other rows have left can serve it.
"""

import subprocess
import sys

from bench.asked import MARK
from bench.claims import MESHARD
from bench.harness import Row, Work
from bench.kernel_memory import Meter
from bench.verify import leaves

PATIENCE = 120


def peak_of(row: Row) -> float:
    """The peak of meshard's first call of a row.

    Raises:
        RuntimeError: the call failed.
    """
    told = subprocess.run(
        [sys.executable, "-m", "bench.peak", row.key],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    _, mark, text = told.stdout.rpartition(MARK)
    if told.returncode or not mark:
        last = (told.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the peak of {row.key} was not found: {last}")
    return float(text)


def measure(row: Row) -> float:
    """Call once, in this process."""
    import meshard

    meshard.numpy.ones(8).block_until_ready()  # what any first operation makes is not the row's
    work = row.peers()[MESHARD]()
    assert isinstance(work, Work)
    with Meter() as meter:
        operands = work.fresh()
        before = meter.now()
        meter.reset()
        result = work.call(*operands)
        taken = meter.most() - before
    size = sum(int(array.nbytes) for array in leaves(result))
    return max(0.0, taken / size - 1)


if __name__ == "__main__":
    from bench.__main__ import set_environment

    set_environment()
    from bench.rows import ROWS

    print(f"{MARK}{measure(next(row for row in ROWS if row.key == sys.argv[1]))}")
