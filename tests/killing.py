"""Kills at random moments, by the hundred: what is left must be the same bits, or say what is not.

    python -m tests.killing                      200 kills, 16 MB of state
    python -m tests.killing --kills 40 --mb 256  as many as asked, with so much state
    python -m tests.killing --seed 7             the moments that this seed gives

Jobs of four processes and some spares work in rounds: an operation, a reshard, a collective, a
save, a refresh of what is protected. Processes are killed in these, and while others recover; one
or two at once. After each kill the job must come to its next result; at the end each process
compares its elements with those of an undisturbed run, computed by NumPy. If boxes are lost, they
must be exactly those of which no process that lives has a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PHASES = ("compute", "reshard", "collective", "save", "refresh", "recovery")
KILLS, SPARES, LIMIT = 6, 8, 160.0


def plan(seed: int) -> list[dict[str, Any]]:
    """Return the kills of a job: round, phase, places among those who live, delays."""
    rng = random.Random(seed)
    found, step = [], 2
    for _ in range(KILLS):
        phase = rng.choice(PHASES)
        victims = rng.sample(range(4), 2 if phase == "recovery" or rng.random() < 0.2 else 1)
        delays = [rng.random() * 0.03 for _ in victims]
        if phase == "recovery":
            delays[1] += 0.05 + 0.35 * rng.random()
        found.append({"step": step, "phase": phase, "victims": victims, "delays": delays})
        step += rng.randint(1, 3)
    return found


def expected(elements: int, steps: int) -> dict[str, Any]:
    """Return the state of an undisturbed run."""
    w = np.arange(elements, dtype=np.float64).reshape(-1, 256)
    v = np.zeros_like(w)
    for step in range(steps):
        w, v = advanced(w, v, step, float(w[0].sum()))
    return {"w": w, "v": v}


def advanced(w: Any, v: Any, step: int, first: float) -> tuple[Any, Any]:
    """Return the next state: exact in float64, and so the same on any mesh."""
    return (w * 5 + step + first % 7) % 1000003, (v + w) % 1000003


# the job


def run_job(seed: int, megabytes: int, folder: Path) -> None:
    """Work in rounds, and kill this process where the plan says so."""
    import meshard as ms
    from meshard import checkpoint, elastic
    from meshard.errors import DataLoss

    kills = {event["step"]: event for event in plan(seed)}
    last = max(kills) + 2
    elements = megabytes * (1 << 20) // 16
    log = (folder / f"{ms.process_index()}.log").open("a", buffering=1)

    def tell(**entry: Any) -> None:
        log.write(json.dumps({"t": time.time(), "pid": os.getpid(), **entry}) + "\n")

    def end() -> None:
        tell(what="killed")
        os.kill(os.getpid(), signal.SIGKILL)

    def maybe(phase: str, step: int) -> None:
        """Begin to die, if that is this process's part in the event of this step."""
        event = kills.get(step)
        if event is None or event["phase"] not in (phase, "recovery") or step in done:
            return
        if event["phase"] == "recovery" and phase != "compute":
            return
        living = sorted({d.process_index for d in ms.devices()})
        for victim, delay in zip(event["victims"], event["delays"], strict=True):
            if living[victim % len(living)] == ms.process_index():
                threading.Timer(delay, end).start()

    def layouts() -> tuple[Any, Any]:
        mesh = elastic.mesh("i")
        return tuple(
            ms.NamedSharding(mesh, spec, uneven="balanced") for spec in (ms.P("i"), ms.P(None, "i"))
        )  # type: ignore[return-value]

    done: set[int] = set()
    rows, columns = layouts()
    w = ms.device_put(expected(elements, 0)["w"], rows)
    begun = {"w": w, "v": ms.reshard(w * 0, columns), "step": 0}
    guard = elastic.protect(begun, copies=1 + seed % 2)
    del w, begun
    step_of = ms.jit(lambda w, step, first: (w * 5 + step + first % 7) % 1000003)
    while guard.tree["step"] < last:
        with elastic.surviving() as block:
            tell(what="block", changed=block.changed, lost=block.lost, joined=block.joined)
            state = guard.tree
            rows, columns = layouts()
            if block.changed:
                try:
                    found = elastic.plan_restore(guard, {"w": rows, "v": columns})
                    tell(what="plan", moved=found.bytes_moved, bound=found.bound)
                    tell(what="lost", bytes=found.bytes_lost, balance=found.balance)
                except elastic_nothing():
                    pass
                try:
                    state = elastic.restore(guard, {"w": rows, "v": columns})
                except DataLoss as error:
                    right = same_boxes(guard, error)
                    tell(what="data loss", right=right)
                    break
                done.add(state["step"])
            step = state["step"]
            maybe("compute", step)
            first = float(state["w"][0].sum())
            w = step_of(state["w"], step, first)
            maybe("reshard", step)
            turned = ms.reshard(state["w"], columns)
            maybe("collective", step)
            v = (state["v"] + turned) % 1000003
            float(v.sum())
            maybe("save", step)
            if step % 2 == 0:
                checkpoint.save(folder / "saved", {"w": w}, overwrite=True)
            maybe("refresh", step)
            guard.refresh({"w": w, "v": v, "step": step + 1})
            tell(what="result", step=step + 1)
        if block.lost:
            tell(what="recovered", told=[str(found) for found in block.recoveries])
    else:
        wanted = expected(elements, last)
        final = guard.tree
        for name in ("w", "v"):
            for shard in final[name].addressable_shards:
                same = np.array_equal(np.asarray(shard.data), wanted[name][shard.index])
                assert same, f"{name}{shard.index} differs"
        tell(what="same bits", living=ms.process_count())


def elastic_nothing() -> type[Exception]:
    """Return the error of a process that holds nothing yet."""
    from meshard.errors import ArgumentError

    return ArgumentError


def same_boxes(guard: Any, error: Any) -> bool:
    """Whether the boxes that are lost are those of which no process that lives has a copy."""
    from meshard.runtime.world import here

    world = here()
    living = {d.id for d in world.devices}
    version = guard.complete[max(guard.complete)].tree if guard.complete else None
    if version is None:
        return True  # it joined late: the others compare
    for leaf in version.leaves:
        if leaf.array is None:
            continue
        lost = np.ones(leaf.array[0], bool)
        for layout in (leaf.own, leaf.copies):
            for piece in range(layout.piece_count if layout is not None else 0):
                if living & set(layout.holders(piece)):
                    lost[layout.box(piece).slices] = False
        told = np.zeros_like(lost)
        for box in error.by_name.get(leaf.name, ()):
            told[box.slices] = True
        if not np.array_equal(lost, told):
            return False
    return True


# the campaign


def outcome(seed: int, megabytes: int, spares: int = SPARES) -> dict[str, Any]:
    """Run a job, and return what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        line = [sys.executable, "-m", "meshard", "run", "-n", "4", "--spares", str(spares), "--"]
        line += ["-m", "tests.killing", "--job", str(seed), "--mb", str(megabytes), "--in", name]
        job = subprocess.Popen(
            line,
            cwd=ROOT,
            env=os.environ | {"MESHARD_TIMEOUT": "40"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        in_time = True
        try:
            told = job.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            in_time = False
            job.send_signal(signal.SIGTERM)
            told = job.communicate()
        entries = [
            {"process": int(path.stem), **json.loads(text)}
            for path in sorted(folder.glob("*.log"))
            for text in path.read_text().splitlines()
        ]
        left = _left(name)
    kills = sorted([e["t"] for e in entries if e["what"] == "killed"])
    results = [(e["t"], e["step"]) for e in entries if e["what"] == "result"]
    known: dict[int, float] = {}
    for t, step in results:
        known[step] = max(known.get(step, 0.0), t)
    times = [min([t for t in known.values() if t > k], default=np.nan) - k for k in kills]
    same = [e for e in entries if e["what"] == "same bits"]
    loss = [e for e in entries if e["what"] == "data loss"]
    wrong = _wrong(entries)
    if job.returncode:
        wrong.append(f"exit code {job.returncode}" if in_time else f"no end after {LIMIT:.0f} s")
    if left:
        wrong.append(f"processes {', '.join(left)} are left behind")
    return {
        "seed": seed,
        "wrong": wrong,
        "how": "same bits" if same else "data loss" if loss else "nothing",
        "kills": len(kills),
        "times": [t for t in times if not np.isnan(t)],
        "ratios": [e["moved"] / e["bound"] for e in entries if e["what"] == "plan" and e["bound"]],
        "against lost": [
            (a["moved"], b["bytes"])
            for a, b in zip(
                [e for e in entries if e["what"] == "plan"],
                [e for e in entries if e["what"] == "lost"],
                strict=True,
            )
        ],
        "balance": [e["balance"] for e in entries if e["what"] == "lost"],
        "told": told[1][-3000:],
        "last": {e["pid"]: e for e in entries} if wrong else {},
    }


def _wrong(entries: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with what the processes of a job have told."""
    same = [e for e in entries if e["what"] == "same bits"]
    loss = [e for e in entries if e["what"] == "data loss"]
    # A death behind the last round is noticed by nobody, and who dies there compares nothing.
    killed = {e["pid"] for e in entries if e["what"] == "killed"}
    ended, living = {e["pid"] for e in (*same, *loss)}, [e["living"] for e in same]
    told = [
        (not ended, "nobody came to an end"),
        (not all(e["right"] for e in loss), "other boxes are lost than those without a copy"),
        (
            same and not len(same) <= max(living) <= len(ended | killed),
            f"{len(same)} compared their elements, {living} were to live",
        ),
    ]
    gone = {e["pid"] for e in entries} - ended - killed
    return [text for bad, text in (*told, (gone, f"processes {gone} told no end")) if bad]


def _left(name: str) -> list[str]:
    """Return the processes of a job that do not end; those killed may take a moment to."""
    until = time.monotonic() + 10
    while (found := _running(name)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _running(name: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(name) in words:
                found.append(entry.name)
    return found


def main() -> int:
    """Run the campaign, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mb", type=int, default=16)
    parser.add_argument("--job", type=int)
    parser.add_argument("--in", dest="folder", type=Path)
    asked = parser.parse_args()
    if asked.job is not None:
        run_job(asked.job, asked.mb, asked.folder)
        return 0
    seed, kills, bad = asked.seed, 0, 0
    times: list[float] = []
    ratios: list[float] = []
    balance: list[float] = []
    how: Counter[str] = Counter()
    while kills < asked.kills:
        found = outcome(seed, asked.mb)
        kills += found["kills"]
        times += found["times"]
        ratios += found["ratios"]
        balance += found["balance"]
        how[found["how"]] += 1
        bad += bool(found["wrong"])
        print(
            f"seed {seed}: {found['how']}, {found['kills']} kills, "
            f"next result after {max(found['times'], default=0):.2f} s at most"
            f"{'  WRONG' if found['wrong'] else ''}",
            flush=True,
        )
        if found["wrong"]:
            print(f"  {'; '.join(found['wrong'])}\n{found['told']}\n{found['last']}")
        seed += 1
    print(f"{kills} kills in {sum(how.values())} jobs: {dict(how)}, wrong {bad}")
    print(f"seconds to the next result: median {np.median(times):.2f}, p99 {_p99(times):.2f}")
    print(f"bytes moved / bound: at most {max(ratios, default=0):.3f}")
    print(f"largest sender / mean: at most {max(balance, default=0):.3f}")
    return 1 if bad else 0


def _p99(times: list[float]) -> float:
    return float(np.percentile(times, 99)) if times else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
