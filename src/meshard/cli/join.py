"""Newcomers: processes that are started by hand to join a job that runs.

In: a program and the name of a job. Out: processes without MPI, which find the job by its name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from meshard.cli.run import check_program, environment


def join(
    job: str,
    program: Sequence[str],
    *,
    processes: int,
    devices_per_process: int | None = None,
    timeout: float | None = None,
) -> int:
    """Run a Python program in processes that join a job, and return the worst of their exit codes.

    Args:
        job: The name of the job.
        program: The arguments of ``python``.
        processes: How many processes to start.
        devices_per_process: How many devices each has; None leaves ``MESHARD_NUM_DEVICES`` as it
            is, or 1 if it is not set.
        timeout: Seconds that a process waits for the others before it fails; None leaves
            ``MESHARD_TIMEOUT`` as it is.

    Raises:
        RunError: There is no program, or its file is missing.
    """
    check_program(program)
    settings = environment(os.environ, devices_per_process=devices_per_process, timeout=timeout)
    settings["MESHARD_JOIN"] = job
    started = [subprocess.Popen([sys.executable, *program], env=settings) for _ in range(processes)]
    try:
        codes = [process.wait() for process in started]
    except KeyboardInterrupt:  # the terminal has told them too
        codes = [process.wait() for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
    return max(128 - code if code < 0 else code for code in codes)
