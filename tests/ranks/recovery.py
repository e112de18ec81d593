"""One process of a job that catches one failure after the other and goes on.

`meshard run -n 3 -- -m tests.ranks.recovery NAME ...`: see `tests/caught.py`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

import meshard
from tests import caught

DEADLINE = 1.0


@caught.failure(KeyboardInterrupt, caught.TransportError)
def an_interrupt_in_a_wait(deadline: float) -> None:
    x = caught.made(caught.LARGE, "i")
    if caught.me() == caught.last():
        time.sleep(0.6 * deadline)
    elif caught.me() == 0:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.3 * deadline, signal.pthread_kill, (main, signal.SIGINT)).start()
    caught.moved(x)
    if caught.me() == 0:
        time.sleep(deadline)


def main(names: list[str]) -> None:
    """Run failures, all that there are by default; tell what was caught."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    told: Any = caught.survive(names or list(caught.FAILURES), DEADLINE)
    sys.stdout.write("".join(f"{caught.me()}: {line}\n" for line in told))
    sys.stdout.flush()
    caught.ten_operations(99)
    meshard.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
