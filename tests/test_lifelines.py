"""How a process sees at once that others have ended, here or on other hosts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.mpi.watch import MOST_LINKED, Gone, Lifelines, links
from meshard.runtime.processes.identity import is_out_of_reach

hosts_of_jobs = st.lists(st.sampled_from("abcde"), min_size=1, max_size=40)


class TestLinks:
    @given(hosts_of_jobs, st.sampled_from([0, MOST_LINKED]))
    def test_they_join_processes_of_different_hosts(self, hosts: list[str], most: int) -> None:
        found = links(hosts, most)
        assert all(a < b and hosts[a] != hosts[b] for a, b in found)
        linked = {p for pair in found for p in pair}
        assert linked == (set(range(len(hosts))) if len(set(hosts)) > 1 else set())

    @given(hosts_of_jobs)
    def test_in_small_jobs_all_are_linked(self, hosts: list[str]) -> None:
        apart = sum(h != k for i, h in enumerate(hosts) for k in hosts[i + 1 :])
        assert len(links(hosts)) == apart

    @given(st.integers(2, 12), st.integers(1, 12))
    def test_in_large_jobs_each_process_has_few(self, hosts: int, slots: int) -> None:
        count = Counter(
            p for pair in links([f"h{i // slots}" for i in range(hosts * slots)], 0) for p in pair
        )
        assert max(count.values()) <= 4


def joined(hosts: list[str]) -> list[Lifelines]:
    """Return the lifelines of threads that play the processes of a job."""
    all_here = threading.Barrier(len(hosts), timeout=20)
    told: list[object] = [None] * len(hosts)
    made = [Lifelines(i, [(h, 0, "") for h in hosts]) for i in range(len(hosts))]

    def gather_for(index: int) -> Callable[[object], list[object]]:
        def gather(value: object) -> list[object]:
            told[index] = value
            all_here.wait()
            return told

        return gather

    threads = [
        threading.Thread(target=made[i].reach, args=[gather_for(i)]) for i in range(len(hosts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def soon(lifelines: Lifelines, count: int) -> dict[int, Gone]:
    """Return what is seen, once that many are gone."""
    found: dict[int, Gone] = {}
    until = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until:
        found |= lifelines.ended()
        time.sleep(1e-3)
    return found


class TestLifelines:
    def test_processes_of_other_hosts_are_seen_to_end_by_all_that_hold_a_line(self) -> None:
        a, b, c, d = joined(["x", "x", "y", "z"])
        assert [one.holds(p) for one in (a, b, c, d) for p in range(4)] == [
            *(False, False, True, True),
            *(False, False, True, True),
            *(True, True, False, True),
            *(True, True, True, False),
        ]
        assert a.ended() == {}
        c._forget()  # as its end would
        for one in a, b, d:
            assert soon(one, 1) == {2: Gone("has died (on y)", True)}
            assert one.ended() == {}

    def test_a_host_out_of_reach_takes_all_its_processes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, _, c, _ = joined(["x", "y", "y", "z"])
        monkeypatch.setattr("meshard.mpi.watch.is_out_of_reach", lambda reason: True)
        c._forget()
        how = "is out of reach: its host y does not answer, or the link to it is cut"
        assert soon(a, 2) == {1: Gone(how, False), 2: Gone(how, False)}
        assert not a.holds(1)
        assert a.holds(3)

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system has no pidfd_open")
    def test_processes_of_this_host_are_seen_to_end(self) -> None:
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        lifelines = Lifelines(0, [("x", 0, ""), ("x", sleeper.pid, "")])
        lifelines.watch(1, sleeper.pid)
        assert lifelines.ended() == {}
        sleeper.kill()
        assert soon(lifelines, 1) == {1: Gone(f"has died (pid {sleeper.pid})", True)}
        sleeper.communicate()
        lifelines.watch(1, sleeper.pid)  # one that has ended before
        assert lifelines.ended() == {}

    @pytest.mark.filterwarnings("ignore:.*fork")
    def test_a_forked_child_does_not_keep_a_line_open(self) -> None:
        a, b = joined(["x", "y"])
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # lives on until the parent says so
            os._exit(0)
        b._forget()
        try:
            assert soon(a, 1) == {1: Gone("has died (on y)", True)}
        finally:
            os.write(write, b"x")
            os.waitpid(child, 0)


def test_what_is_out_of_reach() -> None:
    for code in errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH:
        assert is_out_of_reach(f"receiving failed: {os.strerror(code)}")
    for reason in (
        "the other end has closed it, or its process has ended",
        f"receiving failed: {os.strerror(errno.ECONNRESET)}",
        "",
    ):
        assert not is_out_of_reach(reason)
