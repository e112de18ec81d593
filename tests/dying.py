"""Saves that are killed at each call that changes a file, and what is then on the disk.

`python -m tests.dying` runs all programs at all points and prints figures; it takes a minute or
two. `tests/dying.c` is preloaded into this process, which never saves anything itself: it forks a
child for each point, arms it, and looks at the folder, again in a child, when it is dead.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import meshard
from meshard import checkpoint
from meshard.sharding import NamedSharding, P

BEFORE, AFTER, HALF = 0, 1, 2
PATIENCE = 5.0
"""Seconds that a program or a check may take."""

# the trees


def values(number: int) -> dict[str, Any]:
    """Return the values of a step: the same for the same number."""
    rng = np.random.default_rng(number)
    return {
        "w": rng.random((37, 16), np.float32),
        "layers": [{"c": rng.integers(0, 99, (6, 10))}, {"c": rng.integers(0, 99, (6, 10))}],
        "b": rng.random(5),
        "number": number,
    }


def tree(number: int) -> dict[str, Any]:
    """Return the same as arrays in several layouts."""
    found = values(number)
    mesh = meshard.make_mesh((4,), ("i",))

    def put(x: Any, *spec: Any) -> Any:
        return meshard.device_put(x, NamedSharding(mesh, P(*spec), uneven="balanced"))

    layers = [{"c": put(one["c"], None, "i")} for one in found["layers"]]
    return {
        "w": put(found["w"], "i"),
        "layers": layers,
        "b": put(found["b"]),
        "number": found["number"],
    }


def arrays(number: int) -> dict[str, Any]:
    """Return the arrays alone, for formats that hold nothing else."""
    found = tree(number)
    return {"w": found["w"], "b": found["b"], "c": found["layers"][0]["c"]}


def bits(found: Any) -> Any:
    """Return what a tree holds, to be compared."""
    if isinstance(found, dict):
        return {k: bits(v) for k, v in found.items()}
    if isinstance(found, list):
        return [bits(v) for v in found]
    if hasattr(found, "shape"):
        x = np.asarray(found)
        return x.dtype.name, x.shape, x.tobytes()
    return found


def same(found: Any, number: int) -> bool:
    """Whether a tree holds the values of a step."""
    return bool(bits(found) == bits(values(number)))


# the programs


class Program:
    """Something that saves; ``done`` tells which saves have returned, the last number first."""

    name = ""

    def run(self, folder: Path, done: Callable[[int], None]) -> None:
        """Save."""
        raise NotImplementedError

    def check(self, folder: Path, done: Sequence[int]) -> None:
        """Raise unless what is there is complete, and a further save works."""
        raise NotImplementedError


class Steps(Program):
    """Steps 1 and 2, and then a third one."""

    def __init__(self, *, wait: bool, keep: int | None = None) -> None:
        self.wait, self.keep = wait, keep
        self.name = f"steps, {'wait' if wait else 'behind the program'}, keep={keep}"

    def run(self, folder: Path, done: Callable[[int], None]) -> None:
        """Save three steps."""
        handles = []
        for step in (1, 2, 3):
            handles.append(
                checkpoint.save(folder, tree(step), step=step, keep=self.keep, wait=self.wait)
            )
            if self.wait:
                done(step)
        for step, handle in enumerate(handles, 1):
            handle.wait()
            done(step)

    def check(self, folder: Path, done: Sequence[int]) -> None:
        """Every step listed loads; every one that was told complete is listed."""
        listed = checkpoint.steps(folder) if folder.exists() else []
        kept = [s for s in done if self.keep is None or s > max(listed, default=0) - self.keep]
        assert set(kept) <= set(listed), f"{done} were complete, listed are {listed}"
        for step in listed:
            assert same(checkpoint.load(folder, step=step), step), f"step {step} has other bits"
        if listed:
            assert same(checkpoint.load(folder), listed[-1]), "the newest step has other bits"
            assert checkpoint.latest(folder) == listed[-1]
        pointer = folder / "latest"
        if pointer.exists():
            told = int(pointer.read_text().strip().removeprefix("step-"))
            assert told in listed, f"`latest` says {told}, listed are {listed}"
        following = max(listed, default=0) + 1
        checkpoint.save(folder, tree(following), step=following, keep=self.keep)
        assert checkpoint.latest(folder) == following, "a following save was skipped"
        assert same(checkpoint.load(folder), following), "a following save has other bits"


class Overwrite(Program):
    """One checkpoint, and another one in its place."""

    def __init__(self, *, wait: bool) -> None:
        self.wait = wait
        self.name = f"overwrite, {'wait' if wait else 'behind the program'}"

    def run(self, folder: Path, done: Callable[[int], None]) -> None:
        """Save twice."""
        for number in (1, 2):
            handle = checkpoint.save(folder, tree(number), overwrite=True, wait=self.wait)
            handle.wait()
            done(number)

    def check(self, folder: Path, done: Sequence[int]) -> None:
        """There is one of the two, all of it, and none only if none was told complete."""
        if (folder / "manifest.json").exists():
            found = checkpoint.load(folder)
            assert found["number"] >= max(done, default=0)
            assert same(found, found["number"]), "there are other bits"
        else:
            assert not done, "there was a checkpoint"
        checkpoint.save(folder, tree(3), overwrite=True)
        assert same(checkpoint.load(folder), 3), "a following save has other bits"


class Foreign(Program):
    """Files of another format, and others in their place."""

    def __init__(self, target: str, read: Callable[[Path], Any], **options: Any) -> None:
        self.target, self.read, self.options = target, read, options
        self.name = f"{options.get('format', target)}, overwrite"

    def tree(self, number: int) -> dict[str, Any]:
        """Return what is saved."""
        found = arrays(number)
        return {"w": found["w"]} if self.target.endswith(".npy") else found

    def run(self, folder: Path, done: Callable[[int], None]) -> None:
        """Save twice."""
        folder.mkdir(exist_ok=True)
        for number in (1, 2):
            saved = self.tree(number)
            checkpoint.save(folder / self.target, saved, overwrite=True, **self.options)
            done(number)

    def check(self, folder: Path, done: Sequence[int]) -> None:
        """There is one of the two, all of it, and none only if none was told complete."""
        path = folder / self.target
        found = self.read(path) if path.exists() else None
        if found:
            number = next((n for n in (1, 2) if bits(found) == bits(self.tree(n))), None)
            assert number is not None, "it is neither what was there nor what was saved"
            assert number >= max(done, default=0)
        else:
            assert not done, "there was one"
        folder.mkdir(exist_ok=True)
        checkpoint.save(path, self.tree(3), overwrite=True, **self.options)
        assert bits(self.read(path)) == bits(self.tree(3)), "a following save has other bits"
        left = [p.name for p in [*folder.iterdir(), *path.parent.iterdir()] if "partial" in p.name]
        assert not left, f"{left} are left"


def read_one(path: Path) -> dict[str, Any]:
    """Return what a safetensors file holds, by the reference library."""
    from safetensors.numpy import load_file

    return dict(load_file(path))


def read_index(path: Path) -> dict[str, Any]:
    """Return what a folder with an index holds, as the transformers library reads it."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return {}
    homes = json.loads(index.read_text())["weight_map"]
    return {name: read_one(path / file)[name] for name, file in homes.items()}


def read_ours(path: Path) -> dict[str, Any]:
    """Return what files hold, as this library reads them."""
    return dict(checkpoint.load(path))


def read_dcp(path: Path) -> dict[str, Any]:
    """Return what a folder of torch's distributed checkpoints holds; torch reads by its index."""
    return read_ours(path) if (path / ".metadata").exists() else {}


def read_npy(path: Path) -> dict[str, Any]:
    """Return what a .npy file holds."""
    return {"w": np.load(path)}


PROGRAMS: list[Program] = [
    Steps(wait=True),
    Steps(wait=False),
    Steps(wait=True, keep=1),
    Overwrite(wait=True),
    Overwrite(wait=False),
    Foreign("model.safetensors", read_one),
    Foreign("w.npy", read_npy),
    Foreign("model", read_index, format="safetensors", shard_bytes=700),
    Foreign("model.zarr", read_ours),
    Foreign("model", read_dcp, format="dcp"),
]


# points


@dataclass
class Found:
    """What came of one program.

    Attributes:
        name: the program.
        calls: how many calls it makes.
        points: how many times it was killed.
        faults: what was wrong, with the point.
        slowest: seconds of the slowest child.
    """

    name: str
    calls: int = 0
    points: int = 0
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0


def in_child(work: Callable[[int], None]) -> tuple[int, bytes, float]:
    """Run something in a forked child; return its status, what it wrote, and its seconds."""
    receive, send = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(receive)
            work(send)
            atexit._run_exitfuncs()
            code = 0
        except BaseException:
            os.write(send, traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(code)
    os.close(send)
    told = b""
    while True:
        left = begun + PATIENCE - time.monotonic()
        if not select.select([receive], [], [], max(0, left))[0]:
            os.kill(child, signal.SIGKILL)
            told += b"it takes longer than it may"
            break
        part = os.read(receive, 1 << 16)
        if not part:
            break
        told += part
    os.close(receive)
    status = os.waitpid(child, 0)[1]
    return status, told, time.monotonic() - begun


def run_program(program: Program, most: int | None, folder: Path) -> Found:
    """Kill a program at each of its calls, or at some of them."""
    shim = ctypes.CDLL(None)
    shim.dying_seen.restype = ctypes.c_long
    place = folder / "it"
    found = Found(program.name)

    def run(at: int, moment: int) -> Callable[[int], None]:
        def work(send: int) -> None:
            shim.dying_arm(os.fsencode(place), ctypes.c_long(at), moment)
            program.run(place, lambda number: os.write(send, b"%d " % number) and None)
            atexit._run_exitfuncs()
            os.write(send, b"calls %d" % shim.dying_seen())

        return work

    shutil.rmtree(place, ignore_errors=True)
    status, told, _ = in_child(run(0, BEFORE))
    if status:
        found.faults.append(f"without a kill: {told.decode()}")
        return found
    found.calls = int(told.rsplit(b" ", 1)[1])
    points = [(at, moment) for at in range(1, found.calls + 1) for moment in (BEFORE, AFTER, HALF)]
    if most is not None and len(points) > most:
        points = [points[i] for i in np.linspace(0, len(points) - 1, most).astype(int)]
    for at, moment in points:
        shutil.rmtree(place, ignore_errors=True)
        status, told, seconds = in_child(run(at, moment))
        found.slowest = max(found.slowest, seconds)
        if not os.WIFSIGNALED(status) or b"longer" in told:
            if b"calls" not in told:  # threads may make a call fewer
                found.faults.append(f"{at}.{moment}: not killed: {told.decode()}")
            continue
        found.points += 1
        done = [int(n) for n in told.split()]
        status, told, seconds = in_child(lambda _, done=done: program.check(place, done))
        found.slowest = max(found.slowest, seconds)
        if status:
            found.faults.append(f"call {at}, moment {moment}, {done}: {told.decode()}")
    return found


def quick_folder() -> str | None:
    """Return a folder in memory, where a sync takes no time; None if there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_job(program: Program, most: int | None, folder: Path) -> Found:
    """Kill one of two processes of a job at some of its calls."""
    place, found = folder / "it", Found(f"{program.name}, 2 processes")
    line = [sys.executable, "-m", "meshard", "run", "-n", "2", "--devices-per-process", "2"]
    line += [__file__, "program", str(PROGRAMS.index(program)), str(place)]

    def run(rank: int, at: int, moment: int) -> tuple[subprocess.CompletedProcess[str], float]:
        shutil.rmtree(place, ignore_errors=True)
        env = {n: v for n, v in os.environ.items() if n != "MESHARD_NUM_DEVICES"}
        env["DYING"] = f"{rank}:{at}:{moment}:{place}"
        begun = time.monotonic()
        done = subprocess.run(
            line, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        return done, time.monotonic() - begun

    done, usual = run(0, 0, 0)
    if done.returncode:
        found.faults.append(f"without a kill: {done.stderr[-2000:]}")
        return found
    points = []
    for rank in (0, 1):
        calls = next(int(c) for r, c in map(str.split, _told(done, "calls")) if int(r) == rank)
        found.calls += calls
        points += [(rank, at, m) for at in range(1, calls + 1) for m in (BEFORE, AFTER, HALF)]
    if most is not None and len(points) > most:
        points = [points[i] for i in np.linspace(0, len(points) - 1, most).astype(int)]
    for rank, at, moment in points:
        done, seconds = run(rank, at, moment)
        found.slowest = max(found.slowest, seconds - usual)
        point = f"process {rank}, call {at}, moment {moment}"
        if done.returncode == 0:
            continue  # it made a call fewer
        found.points += 1
        if seconds - usual > PATIENCE:
            found.faults.append(f"{point}: the job took {seconds:.1f} s: {done.stderr[-1000:]}")
        complete = [int(n) for n in _told(done, "done") if n.strip().isdigit()]
        status, told, _ = in_child(lambda _, c=complete: program.check(place, c))
        if status:
            found.faults.append(f"{point}, {complete}: {told.decode()}")
    return found


def _told(done: subprocess.CompletedProcess[str], what: str) -> list[str]:
    return [x.removeprefix(what) for x in done.stdout.splitlines() if x.startswith(what)]


def run_here(number: int, folder: Path) -> None:
    """Run a program in this process of a job."""
    shim = ctypes.CDLL(None)
    shim.dying_seen.restype = ctypes.c_long
    if os.environ["DYING"].split(":")[1] == "0":  # nobody dies, all count
        shim.dying_arm(os.fsencode(folder), ctypes.c_long(0), BEFORE)
    first = meshard.process_index() == 0
    PROGRAMS[number].run(folder, lambda n: print("done", n, flush=True) if first else None)
    print("calls", meshard.process_index(), shim.dying_seen(), flush=True)


def library(folder: Path) -> Path | None:
    """Return the compiled shim, or None where there is no compiler."""
    target = folder / "dying.so"
    source = Path(__file__).with_suffix(".c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    line = [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(source), "-ldl"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return target if done.returncode == 0 else None


def campaign(
    most: int | None, folder: Path, only: str = "", how: str = "alone"
) -> list[Found] | None:
    """Run programs in a process with the shim; None where it cannot be compiled.

    Args:
        most: at how many points each is killed; None for all.
        folder: where they save.
        only: what the names of the programs contain.
        how: "alone" in one process, "job" in two.
    """
    shim = library(folder)
    if shim is None:
        return None
    line = [sys.executable, "-m", "tests.dying", how, str(most or 0), str(folder), only]
    env = {**os.environ, "LD_PRELOAD": str(shim), "MESHARD_NUM_DEVICES": "4"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return [Found(**one) for one in json.loads(done.stdout)]


def main(arguments: list[str]) -> None:
    """Run all programs at all points and print figures, or serve `campaign`."""
    if arguments[:1] == ["program"]:
        run_here(int(arguments[1]), Path(arguments[2]))
        return
    if arguments[:1] in (["alone"], ["job"]):
        how, most, folder, only = arguments
        run = run_program if how == "alone" else run_job
        with contextlib.suppress(ImportError):
            import zarr  # noqa: F401  # once for all children
        found = [run(p, int(most) or None, Path(folder)) for p in PROGRAMS if only in p.name]
        print(json.dumps([asdict(one) for one in found]))
        return
    results = []
    with tempfile.TemporaryDirectory(dir=quick_folder()) as place:
        for how, most in (("alone", None), ("job", 20)):
            results += campaign(most, Path(place), *arguments[:1], how=how) or []
    if not results:
        print("there is no C compiler, so that nothing was run")
    for one in results:
        wrong = f"{len(one.faults)} wrong" if one.faults else "all right"
        counts = f"{one.calls:4} calls {one.points:5} kills"
        print(f"{one.name:45} {counts}, {wrong}, slowest {one.slowest:.2f} s")
        for fault in one.faults[:2]:
            print("   ", fault)
    print(sum(one.points for one in results), "kills in all")


if __name__ == "__main__":
    main(sys.argv[1:])
