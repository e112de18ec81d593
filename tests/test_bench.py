"""The benchmarks' reports: what they print is read here; how fast anything is, is not asserted."""

import datetime
import io
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench import cli, history, html, jit_by_hand, peak, rows, rows_jit
from bench.asked import Asked, JobError
from bench.claims import BY_HAND, DASK, JAX_JIT, MESHARD, NUMPY, UNJITTED, Faster, best_peer
from bench.compare import compare
from bench.figures import Figure
from bench.harness import Budget, Peer, Row, Work, measure
from bench.limits import Limits, Need
from bench.peers import installed
from bench.peers.apart import Apart
from bench.record import RowRecord, Run, load_runs, record
from bench.report import show

DAY = datetime.date(2026, 11, 22)
FACTS = {"machine": "two cores", "meshard": "0.1.0 abc123"}


def figure(milliseconds: float) -> Figure:
    return Figure.of([milliseconds * 1e-3])


def a_row(key: str, ours: float, **others: float) -> RowRecord:
    names = {"hand": BY_HAND, "jax": JAX_JIT, "dask": DASK, "unjitted": UNJITTED}
    figures = {MESHARD: figure(ours)} | {names[k]: figure(t) for k, t in others.items()}
    return RowRecord(key=key, title=f"the row {key}", group="moves", figures=figures)


@pytest.fixture
def run() -> Run:
    one = replace(a_row("one", 2, hand=8, jax=16, dask=40, unjitted=1), limit=1e-3, peak=0.25)
    two = replace(
        a_row("two", 8, jax=2),
        errors={DASK: "JobError: the process of dask ended with SIGABRT"},
        notes={JAX_JIT: "one step at a time"},
        others=0.5,
    )
    return Run(FACTS, [one, two, a_row("alone", 3)])


def printed(work: Callable[[Console], None]) -> str:
    file = io.StringIO()
    work(Console(file=file, width=190, highlight=False))
    return file.getvalue()


def cells(text: str, start: str) -> list[str]:
    """The cells of the printed line that begins with a text."""
    line = next(line for line in text.splitlines() if line.lstrip("│ ").startswith(start))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_every_row_says_its_ratio_to_the_best_peer_and_to_the_limit(run: Run) -> None:
    text = printed(lambda out: show(out, run))
    one = cells(text, "the row one")
    assert one[6:9] == ["4.00x by hand", "50.0 %", "0.25x"]
    assert cells(text, "the row two")[6:9] == ["0.250x jax jit", "-", "-"]
    assert cells(text, "the row alone")[6:9] == ["-", "-", "-"]
    assert "one: dask 40.0 ms" in text
    assert "two: jax jit is one step at a time" in text
    assert "dask skipped in two: JobError: the process of dask ended with SIGABRT" in text
    assert "disturbed, part of the cores that other processes took: two 50%" in text


def test_meshard_in_other_ways_is_no_peer() -> None:
    assert best_peer({MESHARD: figure(2), UNJITTED: figure(1), JAX_JIT: figure(3)}) == JAX_JIT
    assert best_peer({MESHARD: figure(2), UNJITTED: figure(1)}) is None


def test_a_run_goes_to_json_and_back(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run.write(path)
    again = load_runs([path])
    assert again.facts == run.facts
    assert [row.as_json() for row in again.rows] == [row.as_json() for row in run.rows]
    newer = Run({"meshard": "0.2.0"}, [a_row("two", 1, jax=2)])
    newer.write(tmp_path / "newer.json")
    both = load_runs([path, tmp_path / "newer.json"])
    assert [row.ratio for row in both.rows] == [4.0, 2.0, None]
    assert both.facts["meshard"] == "0.2.0"


def test_older_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(
        '{"facts": {}, "rows": [{"key": "add", "title": "v + 1", "peers": {"meshard":'
        ' {"median": 1.0, "q1": 1.0, "q3": 1.0, "samples": [1.0]}}}]}'
    )
    [row] = cli.ordered(load_runs([path])).rows
    assert (row.group, row.limit, row.peak) == ("one operation", None, None)


@pytest.mark.parametrize("text", ["", "[]", '{"facts": {}}', '{"facts": {}, "rows": [{}]}'])
def test_other_files_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(SystemExit):
        cli.main(["--load", str(path)])
    assert f"{path} is not a file of `python -m bench --json`" in capsys.readouterr().err


def test_two_runs_are_compared(run: Run) -> None:
    faster = Run(FACTS, [a_row("one", 1, hand=8), a_row("two", 16, jax=2), a_row("new", 1)])
    text = printed(lambda out: compare(out, run, faster))
    assert cells(text, "one")[3:] == ["2.00x", "4.00x", "8.00x"]
    assert cells(text, "two")[3:] == ["0.500x", "0.250x", "0.125x"]
    assert "2 rows, geometric mean 1.00x" in text
    assert "only before: alone" in text
    assert "only after: new" in text


def test_the_command_compares_files(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    run.write(before)
    Run(FACTS, [a_row("one", 1)]).write(after)
    assert cli.main(["--compare", str(before), str(after)]) == 0
    assert cells(capsys.readouterr().out, "one")[3] == "2.00x"


def test_the_history_is_a_table_that_grows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    history.append(path, run, DAY)
    history.append(path, run, DAY + datetime.timedelta(days=1))
    text = path.read_text()
    assert text.count("| date |") == 1
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert table[2:] == [
        f"| 2026-11-{day} | 0.1.0 | abc123 | moves | 1.00 | one 4.00, two 0.250 |"
        for day in (22, 23)
    ]


def test_the_history_of_the_project_can_be_read() -> None:
    table = [x for x in history.HISTORY.read_text().splitlines() if x.startswith("|")]
    assert history.HISTORY.read_text().startswith(history.HEAD)
    known = set(rows.GROUPS)
    for line in table[2:]:
        day, _, _, group, mean, told = (cell.strip() for cell in line.strip("|").split("|"))
        assert datetime.date.fromisoformat(day) >= datetime.date(2026, 11, 1)
        assert group in known
        ratios = [float(part.split()[1]) for part in told.split(", ")]
        assert math.log(float(mean)) == pytest.approx(np.mean(np.log(ratios)), abs=0.01)


def test_the_page_stands_alone_and_its_bars_are_logarithms(run: Run) -> None:
    text = html.page(run)
    assert not re.search(r"<script|src=|href=|url\(", text)
    assert "prefers-color-scheme:dark" in text
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    bars = {}
    for rect in page.findall(".//{*}rect"):
        told = rect.findtext("{*}title")
        if told and told.startswith("the row"):
            bars[told] = float(rect.get("x", "")), float(rect.get("width", ""))
    (start, wide), (before, narrow) = (
        bars["the row one: 4.00x by hand"],
        bars["the row two: 0.250x jax jit"],
    )
    assert wide == pytest.approx(narrow)  # four times as fast, and a quarter
    assert before + narrow == pytest.approx(start)  # both end at 1
    dots = [circle.findtext("{*}title") for circle in page.findall(".//{*}circle")]
    assert dots == ["jax jit: 8.00x", "dask: 20.0x"]
    assert "the machine&#x27;s limit: 50.0 %" in text
    assert "SIGABRT" in text


def test_the_limit_is_what_takes_longest() -> None:
    limits = Limits(bandwidth=1e9, flops=1e10, call=1e-6)
    assert limits.seconds(Need()) is None
    assert limits.seconds(Need(bytes=1e9, flops=2e10)) == 2.0
    assert limits.seconds(Need(calls=3)) == pytest.approx(3e-6)
    assert limits.seconds(Need(bytes=1e9, rounds=1)) is None  # nobody measured messages
    assert replace(limits, message=2.0).seconds(Need(bytes=1e9, rounds=1)) == 2.0
    assert "copies 1.00 GB/s" in str(limits)


@dataclass(frozen=True, kw_only=True)
class FakeRow(Row):
    makers: Mapping[str, Callable[[], Peer]] = field(default_factory=dict)

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        return self.makers


@dataclass
class FakePeer:
    ended: bool = False
    fails: int = 99

    def warm_up(self) -> None: ...

    def sample(self) -> float:
        self.fails -= 1
        if not self.fails:
            raise JobError("it ended with SIGABRT")
        return 1e-3

    def end(self) -> None:
        self.ended = True


def test_a_peer_that_fails_is_left_out_and_says_so() -> None:
    def absent() -> Peer:
        raise ImportError("No module named 'jax'")

    ours, aborts = FakePeer(), FakePeer(fails=2)
    asked: list[str] = []

    def apart(row: Row, peer: str) -> Peer:
        asked.append(peer)
        return aborts

    row = FakeRow(
        key="a",
        title="A",
        claims=[Faster(1)],
        risky=(JAX_JIT,),
        makers={MESHARD: lambda: ours, NUMPY: absent, JAX_JIT: absent},
    )
    found = record(measure(row, Budget(seconds=0, at_least=3), apart))
    assert asked == [JAX_JIT]
    assert list(found.figures) == [MESHARD]
    assert "No module named 'jax'" in found.errors[NUMPY]
    assert "SIGABRT" in found.errors[JAX_JIT]
    assert ours.ended
    assert found.reached is None


def child(code: str, patience: float = 60) -> Asked:
    return Asked([sys.executable, "-c", code], "the child", patience=patience)


def test_a_process_that_hangs_is_ended() -> None:
    asked = child("import time; time.sleep(600)", patience=0.2)
    with pytest.raises(JobError, match=r"the child did not answer in 0\.2 s"):
        asked.ask(what="warm")
    assert not asked.alive


def test_a_process_that_aborts_says_its_last_words() -> None:
    asked = child("import os, sys; input(); print('rendezvous', file=sys.stderr); os.abort()")
    with pytest.raises(JobError, match="the child ended with SIGABRT: rendezvous"):
        asked.ask(what="warm")


def test_answers_are_told_from_what_libraries_print() -> None:
    asked = child(
        'input(); print("hello"); print(\'x@@{"seconds": 2}\', flush=True);'
        ' input(); print(\'@@{"error": "no"}\', flush=True); input()'
    )
    assert asked.ask(what="sample") == {"seconds": 2}
    with pytest.raises(JobError, match=r"^no$"):
        asked.ask(what="sample")
    asked.end()
    assert not asked.alive


def test_a_peer_runs_in_a_process_of_its_own() -> None:
    peer = Apart("small-op", BY_HAND)
    peer.warm_up()
    assert peer.sample() > 0
    peer.end()
    nobody = Apart("small-op", "nobody")
    with pytest.raises(JobError, match="KeyError: 'nobody'"):
        nobody.warm_up()
    nobody.end()


def test_absent_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed", lambda package: package == "mpi4py")
    told = installed.told()
    assert told.startswith("mpi4py ")
    assert told.endswith("; absent: jax, dask, torch, heat")


def test_rows_have_names_of_their_own_and_risky_peers_exist() -> None:
    keys = [row.key for row in rows.ROWS]
    assert len(set(keys)) == len(keys)
    assert set(rows.QUICK) <= set(keys)
    assert [row.key for row in rows.select(None, quick=True)] == [
        k for k in keys if k in rows.QUICK
    ]
    for row in rows.ROWS:
        assert {*row.risky, *row.notes} <= set(row.peers())


def _measured(temporaries: int) -> float:
    size = 40 << 20  # the C library gives back at once what is larger than 32 MB

    def call() -> Any:
        kept = [np.ones(size, np.uint8) for _ in range(temporaries)]
        result = np.ones(size, np.uint8)
        del kept
        return result

    made = Work(lambda: (), call, lambda _: None)
    return peak.measure(FakeRow(key="a", title="A", makers={MESHARD: lambda: made}))


def test_memory_beyond_the_result_is_counted() -> None:
    """In a process of its own, as `peak_of` does it: other tests leave memory that would serve."""
    for temporaries, least, most in ((0, 0.0, 0.3), (2, 1.7, 2.4)):
        program = f"from tests import test_bench; print(test_bench._measured({temporaries}))"
        told = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[1],
        )
        assert least <= float(told.stdout) < most


@pytest.mark.parametrize(
    ("hand", "work"),
    [
        (jit_by_hand.by_pieces((4, 2), jit_by_hand.tanh_chain), rows_jit.tanh_chain),
        (jit_by_hand.by_pieces((4, 2), jit_by_hand.arithmetic), rows_jit.arithmetic),
        (jit_by_hand.by_pieces((8, 1), jit_by_hand.softmax), rows_jit.softmax),
        (jit_by_hand.by_pieces((8, 1), jit_by_hand.layer_norm), rows_jit.layer_norm),
        (jit_by_hand.softmax_split, rows_jit.softmax_split),
    ],
)
def test_work_by_hand_is_the_same_work(hand: Any, work: Any) -> None:
    x = np.random.default_rng(0).standard_normal((64, 4096), dtype=np.float32)
    made = hand(x)
    made.load()
    np.testing.assert_allclose(made.fetch(made.call()), work(np, x), rtol=1e-4, atol=1e-6)
