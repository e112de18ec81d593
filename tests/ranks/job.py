"""One process of a job of tests: pytest in each, the same tests in the same order.

`python -m tests.ranks.job FOLDER [pytest's arguments]` under mpiexec. What each process says goes
to a file of its own, `FOLDER/rank0` and so on; a process whose tests have failed ends the job.
"""

import faulthandler
import os
import sys
import time

from tests.ranks.shares import rank

LIMIT = 220.0
"""Seconds after which all threads' stacks are printed and the job ends."""


def main(folder: str, arguments: list[str]) -> None:
    """Run pytest; end without waiting for the others if it fails."""
    file = os.open(os.path.join(folder, f"rank{rank()}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(file, standard)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    import pytest

    code = pytest.main(arguments)
    sys.stdout.flush()
    if code != 0:
        time.sleep(1)  # the others may be about to say something too
        os._exit(int(code))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
