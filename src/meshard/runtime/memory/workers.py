"""Workers: the thread pool on which the kernels of large blocks run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import count
from typing import Any, final

from meshard.runtime.memory.forks import renew_in_children


@final
class _Blas:
    """The number of BLAS threads, which is one setting of the whole process.

    Simulated processes share it: those that want one thread wait for those that want all.
    """

    def __init__(self) -> None:
        self._one = False
        self._libraries: list[Any] | None = None
        self._before: list[int] = []
        self._inside = 0
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with no thread inside, as a forked child must."""
        if self._inside and self._one:
            self._restore()
        self._changed = threading.Condition()
        self._inside = 0

    @contextlib.contextmanager
    def threads(self, one: bool) -> Iterator[None]:
        with self._changed:
            while self._inside and self._one != one:
                self._changed.wait()
            if not self._inside:
                self._one = one
                if one:
                    self._limit()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    if one:
                        self._restore()
                    self._changed.notify_all()

    def _limit(self) -> None:
        if self._libraries is None:
            self._libraries = blas_libraries()
        self._before = [library.get_num_threads() for library in self._libraries]
        for library in self._libraries:
            _set_threads(library, 1)

    def _restore(self) -> None:
        for library, threads in zip(self._libraries or (), self._before, strict=True):
            _set_threads(library, threads)


def blas_libraries() -> list[Any]:
    """Return the BLAS libraries that are loaded, as threadpoolctl's controllers."""
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextlib.contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let BLAS run on this many threads, within a ``with`` statement of the only busy thread."""
    libraries = blas_libraries()
    before = [library.get_num_threads() for library in libraries]
    try:
        for library in libraries:
            _set_threads(library, count)
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            _set_threads(library, threads)


def _set_threads(library: Any, threads: int) -> None:
    """Set the number of threads; any thread may, not only the first that has done so."""
    library.set_num_threads(threads)
    release = getattr(library, "clear_controlling_thread", None)  # since threadpoolctl 3.7
    if release is not None:
        release()


_blas = _Blas()


@final
class Workers:
    """A few threads that share a list of tasks with the caller.

    Tasks never read the current world: what they need is bound into them.

    Attributes:
        threads: how many there are, the caller included.
        watch: wraps each task in one that records when it runs; None while nothing records.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
            threads = cores or os.cpu_count() or 1
        self.threads = threads
        self.watch: Callable[[Callable[[], None]], Callable[[], None]] | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin without threads, as a forked child must: its parent's threads are not in it."""
        self._executor: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks and return when all are done.

        The caller's context, such as ``np.errstate``, holds in every task.

        Raises:
            BaseException: the error of the first task in order that failed, or an interrupt; the
                tasks not yet begun are given up, and none is running any more.
        """
        if self.watch is not None:
            tasks = list(map(self.watch, tasks))
        helpers = min(self.threads, len(tasks)) - 1
        if helpers < 1:
            for task in tasks:
                task()
            return
        with self._starting:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="meshard")
            executor = self._executor
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

        futures: list[Future[None]] = []
        try:
            for _ in range(helpers):
                futures.append(executor.submit(copy_context().run, drain))
            drain()
        except BaseException as error:  # an interrupt, between two tasks
            failures.append((-1, error))
        for future in futures:
            while not (future.cancel() or future.done()):
                try:
                    future.exception()
                except BaseException as error:  # an interrupt, while helpers finish their tasks
                    failures.append((-1, error))
        try:
            if failures:
                raise min(failures, key=lambda f: f[0])[1]
        finally:
            failures.clear()  # an error holds this frame, and so the blocks of all tasks
            tasks = ()  # and so does a thread that has not quite left ``drain``

    def blas_threads(self, *, one: bool) -> contextlib.AbstractContextManager[None]:
        """Give BLAS one thread per caller, or all of them, within a ``with`` statement."""
        return _blas.threads(one)

    def close(self) -> None:
        """End the threads."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
