"""Weights from a training job to a serving one: bytes, seconds, pauses, reads, kills.

    python -m bench.publish                        two jobs by mpiexec: 4 trainers, 2 servers
    python -m bench.publish --torch PYTHON         and over gloo in the same run, by that Python
    python -m bench.publish --kills 50             either side killed in the middle, and again

The trainers hold float32 rows, as FSDP has them; the servers bfloat16 parts, as tensor parallelism
has them, with query, key and value in one tensor. What is served is compared with the formula that
it was made by.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
TRAINERS, SERVERS = 4, 2
NAME = "policy"


def shapes(layers: int, width: int) -> dict[str, tuple[int, int]]:
    """The tensors of a model with grouped heads: name and shape."""
    found = {}
    for k in range(layers):
        found |= {
            f"layers.{k}.q": (width, width),
            f"layers.{k}.k": (width // 4, width),
            f"layers.{k}.v": (width // 4, width),
            f"layers.{k}.o": (width, width),
            f"layers.{k}.up": (width * 11 // 4, width),
            f"layers.{k}.down": (width, width * 11 // 4),
        }
    return found


def formula(index: tuple[slice, ...], shape: tuple[int, int], version: int) -> Any:
    """A tensor's box in a version: small integers, so that bfloat16 holds them exactly."""
    rows, columns = (np.arange(*s.indices(n)) for s, n in zip(index, shape, strict=True))
    return ((rows[:, None] * 31 + columns) % 97 + version % 100).astype(np.float32)


# The trainers' program.


def train(options: argparse.Namespace) -> None:
    """Publish version after version; each when the folder says so."""
    import meshard
    import meshard.numpy as mnp
    from meshard import elastic
    from meshard.sharding import Mesh, NamedSharding, P

    mesh = Mesh(np.array(meshard.devices()), ("fsdp",))
    rows = NamedSharding(mesh, P("fsdp"))
    tensors = shapes(options.layers, options.width)

    dtype = mnp.dtype(options.dtype)

    def tree(version: int) -> dict[str, Any]:
        return {
            name: meshard.make_array_from_callback(
                shape, rows, lambda i, shape=shape: formula(i, shape, version).astype(dtype)
            )
            for name, shape in tensors.items()
        }

    trees = [tree(v) for v in (1, 2)]
    me = meshard.process_index()
    with elastic.publish(NAME, trees[0], delta=options.delta == "true" or False) as publisher:
        for k in range(2, options.versions + 1):
            publisher.wait(timeout=60)
            publisher.publish(trees[1 - k % 2])
        publisher.wait(timeout=60)
        tell(options.folder, f"trainer-{me}", {"given": publisher.bytes_given})


# The servers' program.


def serve(options: argparse.Namespace) -> None:
    """Take version after version while threads read."""
    import meshard
    from meshard import elastic
    from meshard.checkpoint import KeyMap
    from meshard.sharding import Mesh, NamedSharding, P

    mesh = Mesh(np.array(meshard.devices()), ("tp",))
    qkv = KeyMap(rest="keep").fuse(
        ["layers.{n}.q", "layers.{n}.k", "layers.{n}.v"], "layers.{n}.qkv"
    )

    def place(name: str, struct: Any) -> NamedSharding:
        return NamedSharding(mesh, P(None, "tp") if name.endswith(("o", "down")) else P("tp"))

    me = meshard.process_index()
    with elastic.subscribe(NAME, place, map=qkv, dtype="bfloat16", timeout=60) as feed:
        reads = Reads(feed, options.pause)
        seconds, copies, polls = [], [], [0.0]
        parts = [x._live()[n] for x in feed.tree.values() for n in x._type.local]
        scratch = [np.zeros_like(part) for part in parts]
        while feed.version < options.versions:
            if options.poll:
                polls.append(polled(feed))
                continue
            feed.wait(timeout=60)
            seconds.append(feed.received.seconds)
            begun = time.perf_counter()  # the other server copies at the same time
            for target, part in zip(scratch, parts, strict=True):
                np.copyto(target, part)
            copies.append(time.perf_counter() - begun)
        while reads.count < options.reads:
            time.sleep(0.01)
        reads.stop()
        tell(
            options.folder,
            f"server-{me}",
            {
                "seconds": seconds,
                "copies": copies,
                "polls": [len(polls), max(polls), float(np.quantile(polls, 0.999))],
                "nbytes": feed.received.nbytes,
                "needed": feed.plan.nbytes,
                "lines": feed.received.lines,
                "reads": reads.count,
                "mixed": reads.mixed,
                "slow": reads.slow,
                "longest": reads.longest,
                "wrong": wrong(feed, options),
            },
        )


def polled(feed: Any) -> float:
    """Poll once, as a server does between two requests; return the seconds that it took."""
    begun = time.perf_counter()
    feed.poll()
    took = time.perf_counter() - begun
    time.sleep(1e-3)
    return took


class Reads:
    """A thread that reads all the time, and looks whether what it reads is of one version."""

    def __init__(self, feed: Any, pause: float) -> None:
        self.count = self.mixed = self.slow = 0
        self.longest = 0.0
        self._feed = feed
        self._pause = pause
        self._stopped = False
        self._first = self._corners()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _corners(self) -> list[float]:
        """The first element of each tensor's part; it differs by one between versions."""
        with self._feed.lease() as tree:
            return [float(x._live()[x._type.local[0]][0, 0]) for x in tree.values()]

    def _run(self) -> None:
        while not self._stopped:
            begun = time.perf_counter()
            found = self._corners()
            took = time.perf_counter() - begun
            self.count += 1
            self.mixed += len({a - b for a, b in zip(found, self._first, strict=True)}) != 1
            self.slow += took > 10e-3
            self.longest = max(self.longest, took)
            time.sleep(self._pause)

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()


def wrong(feed: Any, options: argparse.Namespace) -> int:
    """How many elements of this process differ from the formula."""
    tensors = shapes(options.layers, options.width)
    count = 0
    version = 2 - feed.version % 2
    for name, array in feed.tree.items():
        base = name.removesuffix("qkv")
        parts = [base + part for part in "qkv"] if name.endswith("qkv") else [name]
        whole = np.concatenate([formula((slice(None),) * 2, tensors[p], version) for p in parts])
        for shard in array.addressable_shards:
            count += int((np.asarray(shard.data).astype(np.float32) != whole[shard.index]).sum())
    return count


def tell(folder: str, name: str, facts: dict[str, Any]) -> None:
    Path(folder, f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


# Both jobs.


def job(options: argparse.Namespace, role: str, count: int, folder: str) -> subprocess.Popen[bytes]:
    """Start a job of some processes."""
    given = ["--layers", options.layers, "--width", options.width, "--versions", options.versions]
    program = ["-m", "bench.publish", "--role", role, "--folder", folder, *map(str, given)]
    program += ["--delta", options.delta, "--pause", str(options.pause), "--dtype", options.dtype]
    program += ["--reads", str(options.reads), *["--poll"] * options.poll]
    line = [sys.executable, "-m", "meshard", "run", "-n", str(count), "--devices-per-process", "1"]
    variables = {"MESHARD_RENDEZVOUS": f"{folder}/names", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*line, "--", *program], cwd=HERE, env=os.environ | variables, start_new_session=True
    )


def facts(folder: str, role: str, count: int) -> Iterator[dict[str, Any]]:
    for k in range(count):
        yield json.loads(Path(folder, f"{role}-{k}.json").read_text(encoding="utf-8"))


def run(options: argparse.Namespace) -> None:
    """Run both jobs and print what they found."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            job(options, "trainer", TRAINERS, folder),
            job(options, "server", SERVERS, folder),
        ]
        try:
            codes = [one.wait(timeout=180) for one in jobs]
        finally:
            for one in jobs:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
        assert codes == [0, 0], codes
        servers = list(facts(folder, "server", SERVERS))
        trainers = list(facts(folder, "trainer", TRAINERS))
    needed = sum([s["needed"] for s in servers])
    if options.poll:
        count, longest, most = map(max, zip(*[s["polls"] for s in servers], strict=True))
        print(f"polls              {count:10d}, the longest took {longest * 1e3:.1f} ms, 99.9 % of")
        print(f"                   them {most * 1e3:.1f} ms at most")
        return
    seconds = statistics.median(
        [max(pair) for pair in zip(*[s["seconds"][1:] for s in servers], strict=False)]
    )
    raw = statistics.median(
        [max(pair) for pair in zip(*[s["copies"][1:] for s in servers], strict=False)]
    )
    given = [t["given"] for t in trainers]
    received = sum([s["nbytes"] + s["lines"] for s in servers])
    print(f"needed             {needed / 1e6:10.1f} MB of bfloat16 by {SERVERS} servers")
    print(f"received           {received / needed:10.4f} x what is needed, sockets included")
    print(f"over sockets       {sum([s['lines'] for s in servers]) / 1e3:10.1f} kB a version")
    print(f"largest sender     {max(given) / (sum(given) / len(given)):10.3f} x mean")
    print(f"a version takes    {seconds * 1e3:10.1f} ms, {needed / seconds / 1e9:.2f} GB/s")
    print(f"copying it takes   {raw * 1e3:10.1f} ms, by both servers at once")
    print(f"of a raw copy      {raw / seconds:10.2f}")
    print(f"reads              {sum([s['reads'] for s in servers]):10d}")
    print(f"of two versions    {sum([s['mixed'] for s in servers]):10d}")
    print(f"longer than 10 ms  {sum([s['slow'] for s in servers]):10d}")
    print(f"longest read       {max([s['longest'] for s in servers]) * 1e3:10.1f} ms")
    print(f"wrong elements     {sum([s['wrong'] for s in servers]):10d}")
    if options.torch:
        line = [options.torch, str(HERE / "bench" / "publish_gloo.py"), str(options.layers)]
        done = subprocess.run(
            [*line, str(options.width)], capture_output=True, text=True, timeout=180, check=True
        )
        gloo = float(done.stdout)
        print(f"gloo               {gloo * 1e3:10.1f} ms, {gloo / seconds:.1f} x as long")


# Kills.


def pids(role: str, folder: str) -> list[int]:
    """The processes of one side, by what the system says of them."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue
        program = {b"tests.feeding_job", role.encode()} <= set(words) and b"run" not in words
        if program and folder.encode() in variables:
            found.append(int(entry.name))
    return found


class Side:
    """A job that runs `tests.feeding_job`, and what it has said."""

    def __init__(self, folder: str, count: int, *words: object) -> None:
        self.role = str(words[0])
        self.folder = folder
        self.lines: list[str] = []
        run = ["-m", "meshard", "run", "-n", str(count), "--devices-per-process", "1", "--"]
        self.process = subprocess.Popen(
            [sys.executable, *run, "-m", "tests.feeding_job", *map(str, words)],
            cwd=HERE,
            env=os.environ | {"MESHARD_RENDEZVOUS": f"{folder}/names"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def served(self, more: int) -> None:
        """Wait until it has served that many more versions."""
        count = sum([" served " in line for line in self.lines]) + more
        until = time.monotonic() + 60
        while sum([" served " in line for line in self.lines]) < count:
            assert time.monotonic() < until, f"{self.role} does not go on: {self.lines[-3:]}"
            assert self.process.poll() is None, f"{self.role} has ended: {self.lines[-3:]}"
            time.sleep(0.005)

    def kill_one(self) -> None:
        """Kill -9 one of its processes, and wait for the end of the others."""
        os.kill(random.choice(pids(self.role, self.folder)), signal.SIGKILL)
        self.end(10)

    def end(self, patience: float) -> None:
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pid in pids(self.role, self.folder):
            os.kill(pid, signal.SIGKILL)


def kills(options: argparse.Namespace) -> None:
    """Kill either side in the middle; the other one goes on, and never sees half a version."""
    rows = 16 * 480
    random.seed(options.kills)
    with tempfile.TemporaryDirectory() as folder:
        servers = Side(folder, SERVERS, "take", 1 << 40)
        for k in range(options.kills // 2):
            trainers = Side(folder, TRAINERS, "flood", 1 + 1000 * k, 1 << 40, rows)
            servers.served(2 * SERVERS)
            time.sleep(random.uniform(0, 0.05))
            trainers.kill_one()
        failed = sum([" failed " in line for line in servers.lines])
        assert servers.process.poll() is None
        count = options.kills // 2
        print(f"trainers killed    {count:10d} times; the servers went on, {failed} waits failed")
        trainers = Side(folder, TRAINERS, "flood", 1 + 1000 * options.kills, 1 << 40, rows)
        servers.served(2 * SERVERS)
        servers.end(0)
        for _ in range(options.kills - options.kills // 2):
            servers = Side(folder, SERVERS, "take", 1 << 40)
            servers.served(2 * SERVERS)
            time.sleep(random.uniform(0, 0.05))
            servers.kill_one()
            assert trainers.process.poll() is None
        print(f"servers killed     {options.kills - count:10d} times; the trainers went on")
        trainers.end(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--role", choices=["both", "trainer", "server"], default="both")
    parser.add_argument("--folder", default="")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--versions", type=int, default=8)
    parser.add_argument("--delta", default="auto")
    parser.add_argument("--reads", type=int, default=0, help="reads of each server, at least")
    parser.add_argument("--poll", action="store_true", help="servers of one thread, which poll")
    parser.add_argument("--pause", type=float, default=1e-3, help="seconds between two reads")
    parser.add_argument("--dtype", default="float32", help="the trainers' dtype")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--torch", default="")
    options = parser.parse_args()
    if options.kills:
        kills(options)
    else:
        {"both": run, "trainer": train, "server": serve}[options.role](options)


if __name__ == "__main__":
    main()
