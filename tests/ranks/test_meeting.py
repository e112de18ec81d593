"""Jobs without MPI: processes that meet at an address, and what is said if they do not."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import meshard
from meshard.errors import ConfigError
from meshard.mpi.outside.coordinator import Coordinator, address_of, key_that_is_set

START = """
import os, sys, time
import numpy as np
import meshard, meshard.numpy as mnp
from meshard import NamedSharding, P, lax
meshard.config.update("num_devices", 2)
"""
MEET = (
    START
    + """
meshard.distributed.initialize(f"localhost:{sys.argv[1]}", int(sys.argv[2]), int(sys.argv[3]))
me, mesh = meshard.process_index(), meshard.make_mesh((meshard.device_count(),), ("i",))
"""
)
MOVES = """
value = np.random.default_rng(0).normal(size=(300, 70))
x = meshard.device_put(value, NamedSharding(mesh, P("i"), uneven="balanced"))
for spec in (P(None, "i"), P(), P("i")):
    x = meshard.device_put(x, NamedSharding(mesh, spec, uneven="balanced"))
    for shard in x.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), value[shard.index]), spec
specs = {"in_specs": P("i"), "out_specs": P(), "uneven": True}
total = meshard.shard_map(lambda t: lax.psum(t.sum(), "i"), mesh=mesh, **specs)(x)
assert abs(float(total) - value.sum()) < 1e-9
assert float(meshard.jit(lambda x: (x @ x.T).sum())(x)) - float((value @ value.T).sum()) < 1e-6
print("right", me, meshard.process_count(), meshard.process_indices())
meshard.distributed.shutdown()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def started(
    program: str, port: int, numbers: list[tuple[int, int]], **settings: str
) -> list[subprocess.Popen[str]]:
    """Start processes, each with how many it thinks there are, and its number."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(("OMPI_", "PMIX_", "PMI_"))}
    env |= {"MESHARD_TIMEOUT": "20", **settings}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(port), str(count), str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for count, index in numbers
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return the exit code, the output and the errors of each process."""
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=90)
        finally:
            process.kill()
        found.append((process.returncode, out, err))
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "messages"])
def test_processes_meet_and_move_arrays(memory: bool) -> None:
    numbers = [(4, i) for i in (2, 0, 3, 1)]
    table = json.dumps({"memory": memory})
    for (code, out, err), (_, index) in zip(
        ended(started(MEET + MOVES, free_port(), numbers, MESHARD_TABLE=table)),
        numbers,
        strict=True,
    ):
        assert code == 0, err
        assert out == f"right {index} 4 [0, 1, 2, 3]\n"


GARBAGE = (
    *(b"", b"\0\0\0\5", b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"GET / HTTP/1.1\r\n\r\n"),
    *(b"meshard2" + bytes(64), pickle.dumps([1, 2]), bytes(1000)),
)


def visited(port: int, count: int) -> list[socket.socket]:
    """Connect to a port as strangers do: with garbage, or with silence, and stay."""
    found = []
    for number in range(count):
        visitor = socket.create_connection(("localhost", port))
        visitor.setblocking(False)
        with contextlib.suppress(OSError):
            visitor.send(GARBAGE[number % len(GARBAGE)])
        found.append(visitor)
    return found


@pytest.mark.timeout(120)
def test_strangers_do_not_hinder_processes_that_meet() -> None:
    port, strangers = free_port(), []
    secret = "a secret that nobody else knows"
    first = started(MEET + MOVES, port, [(2, 0)], MESHARD_SECRET=secret)
    try:
        while not strangers and first[0].poll() is None:
            with contextlib.suppress(ConnectionRefusedError):
                strangers += visited(port, 1)
            time.sleep(0.05)
        strangers += visited(port, 200)
        other = "another secret, guessed by a stranger"
        (wrong,) = ended(started(MEET, port, [(2, 1)], MESHARD_SECRET=other))
        assert wrong[0] != 0
        assert "process 1 has another secret than the process that listens" in wrong[2]
        second = started(MEET + MOVES, port, [(2, 1)], MESHARD_SECRET=secret)
        for index, (code, out, err) in enumerate(ended([*first, *second])):
            assert (code, out) == (0, f"right {index} 2 [0, 1]\n"), err
    finally:
        for visitor in strangers:
            visitor.close()


OTHER_USER = """
import encodings.idna, os, sys, socket
import meshard.mpi.outside.coordinator as c
import meshard.runtime.lines.letters, meshard.runtime.lines.rendezvous  # while it can read them
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    c.Coordinator(f"localhost:{sys.argv[1]}", 2, 1, 3.0)
except meshard.errors.ConfigError as error:
    print(error)
"""


def refused_to_another_user(port: int, folder: str, told: str) -> None:
    command = [sys.executable, "-c", OTHER_USER, str(port)]
    env = os.environ | {"MESHARD_RENDEZVOUS": folder, "XDG_CONFIG_HOME": "/"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert told in ran.stdout, (ran.stdout, ran.stderr)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.timeout(120)
def test_another_user_of_the_host_is_not_let_in(tmp_path: Path) -> None:
    own, port = {"MESHARD_RENDEZVOUS": str(tmp_path / "mine")}, free_port()
    first = started(MEET + MOVES, port, [(2, 0)], **own)
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            visited(port, 1)[0].close()
            break
        time.sleep(0.05)
    with tempfile.TemporaryDirectory() as theirs:
        os.chown(theirs, 65534, 65534)
        refused_to_another_user(port, own["MESHARD_RENDEZVOUS"], "none can be kept")
        refused_to_another_user(port, theirs, "has another secret")
    for index, (code, out, err) in enumerate(
        ended([*first, *started(MEET + MOVES, port, [(2, 1)], **own)])
    ):
        assert (code, out) == (0, f"right {index} 2 [0, 1]\n"), err


def test_without_a_secret_only_one_host_meets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MESHARD_SECRET", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no secret is set by which .*MESHARD_SECRET"):
        Coordinator("192.0.2.1:1234", 2, 1, 0.1)
    with pytest.raises(ConfigError, match="has 5 characters; it needs at least 16"):
        Coordinator("192.0.2.1:1234", 2, 1, 0.1, "short")
    with pytest.raises(ConfigError, match="secret must be a string, got 3"):
        meshard.distributed.initialize("localhost:1", 2, 1, secret=3)  # type: ignore[arg-type]
    (tmp_path / "meshard").mkdir()
    file = tmp_path / "meshard" / "secret"
    file.write_text("a secret of one user\n")
    for mode in (0o644, 0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=f"is not used.*has mode 0{mode:o}. Run chmod 600"):
            Coordinator("localhost:1", 2, 1, 0.1)
    file.chmod(0o600)
    assert key_that_is_set() == key_that_is_set("a secret of one user")
    monkeypatch.setenv("MESHARD_SECRET", "a secret of the environment")
    assert key_that_is_set() == key_that_is_set("a secret of the environment")


@pytest.mark.timeout(120)
def test_a_death_is_told_by_the_others() -> None:
    wait = """
print("ready", os.getpid(), flush=True)
x = mnp.ones(60, device=NamedSharding(mesh, P("i"), uneven="balanced"))
while True:
    x.sum().block_until_ready()
    time.sleep(0.01)
"""
    processes = started(MEET + wait, free_port(), [(3, i) for i in range(3)])
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
    time.sleep(0.3)
    processes[1].send_signal(signal.SIGKILL)
    for index, (code, _, err) in enumerate(ended(processes)):
        if index != 1:
            assert code != 0
            assert "Process 1 has died" in err or "process 1 has died" in err.lower(), err


CASES: dict[str, tuple[list[tuple[int, int]], Callable[[list[str]], bool]]] = {
    "another count": (
        [(2, 0), (3, 1)],
        lambda errors: all(
            "process 1 says num_processes=3, but process 0 says 2" in e for e in errors
        ),
    ),
    "twice": (
        [(3, 0), (3, 1), (3, 1)],
        lambda errors: "two processes say process_id=1" in errors[0],
    ),
    "missing": (
        [(3, 0), (3, 1)],
        lambda errors: all("processes [2] of 3 have not come to" in e for e in errors),
    ),
    "first missing": (
        [(2, 1)],
        lambda errors: "process 1 has not reached process 0 at" in errors[0],
    ),
}


# Those that wait for the timeout wait at the same time.
AT_ONCE = (("another count",), ("twice",), ("missing", "first missing"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cases", AT_ONCE, ids=", ".join)
def test_who_does_not_come_is_told(cases: tuple[str, ...]) -> None:
    program = START + (
        "meshard.distributed.initialize(f'localhost:{sys.argv[1]}', int(sys.argv[2]), "
        "int(sys.argv[3]), initialization_timeout=8)"
    )
    jobs = [started(program, free_port(), CASES[case][0]) for case in cases]
    for case, job in zip(cases, jobs, strict=True):
        found = ended(job)
        assert all(code != 0 for code, *_ in found)
        assert CASES[case][1]([err for *_, err in found]), found


def test_every_case_is_tried() -> None:
    assert sorted(case for cases in AT_ONCE for case in cases) == sorted(CASES)


@pytest.mark.timeout(60)
def test_a_program_that_has_begun_alone_cannot_join() -> None:
    late = (
        START + "meshard.devices()\nfrom meshard.mpi.launch import join\njoin(0, 2, lambda x: [x])"
    )
    ((code, _, err),) = ended(started(late, free_port(), [(2, 0)]))
    assert code != 0
    assert "cannot join others now: it has used meshard already" in err


@pytest.mark.timeout(60)
def test_arguments_that_are_missing_or_odd_are_refused() -> None:
    lines = [
        ("'localhost:1'", "num_processes is not"),
        ("'localhost:1', 2", "process_id is not"),
        ("'localhost:1', 2, 2", "process_id=2, but there are 2 processes"),
        ("'localhost', 2, 0", "is not a host and a port"),
        ("'localhost:1', 0, 0", "num_processes must be an integer"),
        ("3, 2, 0", "coordinator_address must be a string"),
    ]
    calls = "\n".join(
        f"try: meshard.distributed.initialize({given})\nexcept meshard.errors.ConfigError as e: "
        "print(str(e).splitlines()[0])"
        for given, _ in lines
    )
    ((code, out, err),) = ended(started(START + calls, free_port(), [(1, 0)]))
    assert code == 0, err
    for said, (_, expected) in zip(out.splitlines(), lines, strict=True):
        assert expected in said


def test_one_process_is_a_job_of_its_own() -> None:
    meshard.distributed.initialize(num_processes=1, process_id=0)
    with pytest.raises(ConfigError, match="num_processes=2, but it is 1"):
        meshard.distributed.initialize("localhost:1", 2, 0)


@pytest.mark.parametrize("given", ["host", ":12", "host:", "host:x", "host:70000"])
def test_addresses_are_a_host_and_a_port(given: str) -> None:
    with pytest.raises(ConfigError, match="is not a host and a port"):
        address_of(given)
    assert address_of("[::1]:80") == ("::1", 80)
