"""The thread pool: all tasks are done, or none runs any more."""

import contextvars
import gc
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import meshard
from meshard.runtime.memory.workers import Workers

from .worlds import alone, put


@pytest.fixture
def workers():
    made = Workers(4)
    yield made
    made.close()


def names() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("meshard")]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_every_task_runs_once(workers, count):
    done: list[int] = []
    workers.run([lambda i=i: done.append(i) for i in range(count)])
    assert sorted(done) == list(range(count))


def test_tasks_run_on_several_threads(workers):
    together = threading.Barrier(3, timeout=20)
    seen: set[int] = set()

    def task() -> None:
        together.wait()
        seen.add(threading.get_ident())

    workers.run([task] * 3)
    assert len(seen) == 3
    assert threading.get_ident() in seen


def test_one_task_or_one_thread_needs_no_other_thread():
    for made, count in ((Workers(1), 5), (Workers(8), 1)):
        seen: list[int] = []
        made.run([lambda seen=seen: seen.append(threading.get_ident())] * count)
        assert set(seen) == {threading.get_ident()}
        assert made._executor is None


def test_by_default_there_is_a_thread_per_core(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda who: {1, 5, 7}, raising=False)
    assert Workers().threads == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert Workers().threads == 1


class Own(BaseException):
    """Nobody catches it by mistake."""


@pytest.mark.parametrize("error", [ValueError, Own, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_reaches_the_caller(threads, error):
    workers = Workers(threads)

    def fail() -> None:
        raise error("seven")

    with pytest.raises(error, match="seven"):
        workers.run([lambda: None, lambda: None, fail, lambda: None])
    workers.run([lambda: None] * 4)
    workers.close()


def test_of_several_errors_the_first_tasks_is_raised(workers):
    together = threading.Barrier(3, timeout=20)

    def fail(name: str) -> None:
        together.wait()
        raise ValueError(name)

    with pytest.raises(ValueError, match="task 0"):
        workers.run([lambda i=i: fail(f"task {i}") for i in range(3)])


def test_no_task_runs_after_the_return(workers):
    running, failed = threading.Event(), threading.Event()
    ended: list[str] = []

    def slow() -> None:
        running.set()
        failed.wait(20)
        time.sleep(0.05)
        ended.append("slow")

    def fail() -> None:
        running.wait(20)
        failed.set()
        raise ValueError("while the other runs")

    later: list[int] = []
    with pytest.raises(ValueError, match="while the other runs"):
        workers.run([slow, fail, *[lambda: later.append(1)] * 1000])
    assert ended == ["slow"]
    count = len(later)
    assert count < 1000
    time.sleep(0.02)
    assert len(later) == count


def test_an_interrupt_ends_the_tasks_before_it_is_raised(workers, interrupts):
    running = threading.Event()
    ended: list[bool] = []
    mine = threading.get_ident()

    def task() -> None:
        if threading.get_ident() == mine:
            running.wait(20)
            return  # and the caller waits for the helper
        running.set()
        time.sleep(0.05)
        signal.pthread_kill(mine, signal.SIGINT)
        time.sleep(0.1)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        workers.run([task, task])
    assert ended == [True]


def test_a_failed_run_keeps_nothing_alive(workers):
    block = np.ones(3)
    alive = weakref.ref(block)

    def fail(x: np.ndarray) -> None:
        raise ValueError("gone")

    gc.disable()  # nothing may hang on a cycle
    try:
        with pytest.raises(ValueError, match="gone"):
            workers.run([lambda b=block: None, lambda b=block: fail(b)])
        del block
        assert alive() is None
    finally:
        gc.enable()


def test_the_callers_context_holds_in_every_task(workers):
    setting = contextvars.ContextVar("setting", default="none")
    setting.set("the caller's")
    together = threading.Barrier(4, timeout=20)
    seen: list[str] = []

    def task() -> None:
        together.wait()
        seen.append(setting.get())
        setting.set("a task's")

    workers.run([task] * 4)
    assert set(seen) == {"the caller's"}


def test_the_callers_error_state_holds_in_every_task(workers):
    together = threading.Barrier(4, timeout=20)
    zero = np.zeros(3)

    def task() -> None:
        together.wait()
        np.divide(1.0, zero)

    with np.errstate(divide="ignore"):
        workers.run([task] * 4)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        workers.run([task] * 4)


def test_the_error_state_holds_in_large_operations():
    def body() -> None:
        x = put(np.zeros(1 << 20), "i")
        with np.errstate(divide="ignore"):
            assert np.isinf(np.asarray(1.0 / x)).all()
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            1.0 / x

    alone(body)


def test_tasks_may_run_tasks(workers):
    done: list[int] = []

    def outer(i: int) -> None:
        workers.run([lambda j=j: done.append(10 * i + j) for j in range(5)])

    workers.run([lambda i=i: outer(i) for i in range(8)])
    assert len(done) == 40


def test_several_callers_may_share_the_threads(workers):
    sums = [0] * 6

    def caller(i: int) -> None:
        parts: list[int] = []
        workers.run([lambda k=k: parts.append(k) for k in range(100)])
        sums[i] = sum(parts)

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [4950] * 6
    assert workers._executor is not None
    assert len(workers._executor._threads) <= 3


def test_closing_ends_the_threads():
    before = len(names())
    workers = Workers(3)
    together = threading.Barrier(3, timeout=20)
    workers.run([together.wait] * 3)
    assert len(names()) == before + 2
    workers.close()
    workers.close()
    assert len(names()) == before


def test_a_closed_world_has_no_threads():
    before = set(threading.enumerate())

    def body() -> None:
        x = put(np.ones(1 << 20), "i")
        np.testing.assert_array_equal(np.asarray(x + x)[:3], 2)

    alone(body)
    assert set(threading.enumerate()) <= before
    assert meshard.process_count() == 1


def blas_threads() -> list[int]:
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return [library.num_threads for library in found]


def in_a_thread(body: object) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(body()))
    thread.start()
    thread.join()
    return found[0]


def test_blas_has_one_thread_or_all(workers):
    before = blas_threads()
    assert before

    def limited() -> tuple[list[int], list[int]]:
        with workers.blas_threads(one=True):
            inside = blas_threads()
            with workers.blas_threads(one=True):
                return inside, blas_threads()

    ones = [1] * len(before)
    assert limited() == (ones, ones)
    assert blas_threads() == before
    # threadpoolctl alone lets one thread only change anything
    assert in_a_thread(limited) == (ones, ones)
    assert limited() == (ones, ones)
    assert blas_threads() == before
    with workers.blas_threads(one=False):
        assert blas_threads() == before
    with pytest.raises(ZeroDivisionError), workers.blas_threads(one=True):
        1 / 0
    assert blas_threads() == before


def test_those_who_want_other_numbers_of_blas_threads_wait(workers):
    inside, leave = threading.Event(), threading.Event()
    seen: list[str] = []

    def first() -> None:
        with workers.blas_threads(one=True):
            inside.set()
            assert leave.wait(20)
            seen.append("first")

    def second() -> None:
        with workers.blas_threads(one=False):
            seen.append("second")

    def third() -> None:
        with workers.blas_threads(one=True):
            seen.append("third")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert inside.wait(20)
    for body in (second, third):
        threads.append(threading.Thread(target=body))
        threads[-1].start()
    threads[2].join(20)  # wants what there is
    assert seen == ["third"]
    leave.set()
    for thread in threads:
        thread.join(20)
    assert seen == ["third", "first", "second"]
