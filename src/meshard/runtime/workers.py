"""Workers: the thread pool on which the kernels of large blocks run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

__all__ = ["Workers"]


@final
class Workers:
    """A few threads and the caller, who share a list of tasks.

    Tasks never read the current world: what they need is bound into them.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
            threads = cores or os.cpu_count() or 1
        self.threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._blas: ThreadpoolController | None = None

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks and return when all are done.

        Raises:
            Exception: the error of the first task in order that failed; the tasks not yet begun
                are given up, and none is running any more.
        """
        helpers = min(self.threads, len(tasks)) - 1
        if helpers < 1:
            for task in tasks:
                task()
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="meshard")
        tickets = count()
        failures: list[tuple[int, BaseException]] = []

        def drain() -> None:
            while not failures:
                i = next(tickets)
                if i >= len(tasks):
                    return
                try:
                    tasks[i]()
                except BaseException as error:  # kept, and raised in the caller's thread
                    failures.append((i, error))

        futures = [self._executor.submit(drain) for _ in range(helpers)]
        drain()
        for future in futures:
            if not future.cancel():
                future.result()
        if failures:
            raise min(failures, key=lambda f: f[0])[1]

    @contextlib.contextmanager
    def one_blas_thread(self) -> Iterator[None]:
        """Give BLAS one thread per caller, while the workers share out large blocks."""
        if self._blas is None:
            from threadpoolctl import ThreadpoolController

            self._blas = ThreadpoolController()
        with self._blas.limit(limits=1, user_api="blas"):
            yield

    def close(self) -> None:
        """End the threads."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
