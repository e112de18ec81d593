"""Feeds between real jobs: their processes, and kill -9 of either side in the middle."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from meshard import elastic
from meshard.errors import TransportError
from meshard.runtime.settings import RENDEZVOUS
from tests.feeding_job import NAMES, QKV, SHAPE, seen

ROOT = Path(__file__).parents[2]
LIMIT = 60
PYTHON = [sys.executable, "-m", "tests.feeding_job"]
MPI = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    RENDEZVOUS.value = str(tmp_path / "names")
    yield
    RENDEZVOUS.value = None


@contextmanager
def job(*words: object, processes: int = 0, host: str = "") -> Iterator[subprocess.Popen[str]]:
    """A job, perhaps on a host of its own, which has ended afterwards."""
    line = [*PYTHON, *map(str, words)]
    if host:
        line = ["ip", "netns", "exec", host, "env", f"MESHARD_HOST={host}", *line]
    if processes:
        run = ["-m", "meshard", "run", "-n", str(processes), "--devices-per-process", "1", "--"]
        line = [sys.executable, *run, *line[1:]]
    found = subprocess.Popen(
        line,
        cwd=ROOT,
        env=os.environ | {"MESHARD_RENDEZVOUS": str(RENDEZVOUS.value)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield found
    finally:
        if found.poll() is None:
            os.killpg(found.pid, signal.SIGKILL)
        found.communicate()


@MPI
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("trainers", "servers"), [(3, 2), (0, 2)])
def test_two_jobs(trainers: int, servers: int) -> None:
    with (
        job("publish", 1, 3, SHAPE[0], processes=trainers) as publishing,
        job("take", 3, processes=servers) as taking,
    ):
        told, errors = taking.communicate(timeout=LIMIT)
        assert taking.returncode == 0, errors
        said, errors = publishing.communicate(timeout=LIMIT)
        assert publishing.returncode == 0, errors
    served = [line.split() for line in told.splitlines() if " served " in line]
    last = [words for words in served if words[2] == "3"]
    assert sorted(words[0] for words in last) == [str(k) for k in range(servers)]
    needed = len(NAMES) * SHAPE[0] * SHAPE[1] * 2
    assert sum(int(words[3]) for words in last) == needed
    given = [int(line.split()[2]) for line in said.splitlines() if " given " in line]
    versions = {words[2] for words in served}
    assert sum(given) == needed * len(versions)
    assert max(given) - min(given) <= 0.02 * max(given)


@pytest.mark.timeout(120)
def test_a_publisher_that_is_killed_in_the_middle() -> None:
    """What was served stays whole, and another publisher goes on."""
    chosen, kills, failures, last = random.Random(7), 4, 0, 0
    feed = None
    for _ in range(kills):
        with job("flood", last + 1, 10_000, 4 * SHAPE[0]) as publisher:
            if feed is None:
                feed = elastic.subscribe("p", map=QKV, dtype="bfloat16", timeout=LIMIT)
            else:
                feed.wait(last + 1, timeout=LIMIT)
            until = time.monotonic() + chosen.uniform(0.02, 0.2)
            try:
                while time.monotonic() < until:
                    feed.update(timeout=LIMIT)
                publisher.kill()
                while True:
                    feed.update(timeout=LIMIT)
            except TransportError as error:
                failures += 1
                told = f"Version {feed.version} of 'p' is still served here."
                assert told in error.__notes__  # noqa: PT017
            assert seen(feed.tree) == {feed.version % 250}
            last = max(last, feed.version)
            publisher.wait()
        with pytest.raises(TransportError, match="has ended"):
            feed.update()
    assert failures == kills
    assert feed is not None
    feed.close()


@pytest.mark.timeout(120)
def test_a_taker_that_is_killed_in_the_middle() -> None:
    """The publisher goes on, and gives to others."""
    chosen = random.Random(8)

    def tree(version: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        return {n: np.full((4 * SHAPE[0], SHAPE[1]), version % 250, np.float32) for n in NAMES}

    with elastic.publish("p", tree(1)) as publisher:
        for _ in range(3):
            with job("take", 1 << 30) as taker:
                publisher.wait(timeout=LIMIT)
                until = time.monotonic() + chosen.uniform(0.02, 0.1)
                while time.monotonic() < until:
                    publisher.publish(tree(publisher.version + 1))
                taker.kill()
                publisher.publish(tree(publisher.version + 1))
        with elastic.subscribe("p", timeout=LIMIT) as feed:
            assert feed.version == publisher.version
            assert seen(feed.tree) == {feed.version % 250}
            deadline = time.monotonic() + LIMIT
            while len(publisher.readers) > 1:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{command}: {done.stderr.strip()}")


@contextmanager
def hosts() -> Iterator[tuple[str, str]]:
    """Two hosts, joined by a link; their names."""
    names = f"feed-a{os.getpid()}", f"feed-b{os.getpid()}"
    a, b = names
    try:
        run(f"ip netns add {a}", f"ip netns add {b}")
        run(f"ip link add v0 netns {a} type veth peer name v0 netns {b}")
        for number, name in enumerate(names, 1):
            run(f"ip -n {name} addr add 10.77.0.{number}/24 dev v0")
            run(f"ip -n {name} link set v0 up", f"ip -n {name} link set lo up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def said(taker: subprocess.Popen[str], word: str) -> str:
    """The next line of a job with a word; other lines are passed over."""
    assert taker.stdout is not None
    for line in taker.stdout:
        if f" {word} " in line:
            return line
    raise AssertionError("the job has ended")


@pytest.mark.timeout(120)
def test_hosts_whose_link_is_cut() -> None:
    """What crosses goes over the link; once it is cut, takers say so, and later go on."""
    with (
        hosts() as (near, far),
        job("flood", 1, 1 << 30, 4 * SHAPE[0], host=near),
        job("take", 1 << 30, 5, host=far) as taker,
    ):
        crossed = Path(f"/proc/{taker.pid}/net/dev")
        served = said(taker, "served")
        received = int(crossed.read_text().split("v0:")[1].split()[0])
        assert received >= int(served.split()[3])
        run(f"ip -n {far} link set v0 down")
        assert "publisher of 'p'" in said(taker, "failed")
        run(f"ip -n {far} link set v0 up")
        version = int(served.split()[2])
        while int(said(taker, "served").split()[2]) <= version:
            pass
