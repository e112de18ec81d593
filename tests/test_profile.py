"""`debug.profile`: a real run on lanes, with the bytes that a ledger sees; nothing without one."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.debug import join_profiles, ledger, profile
from meshard.errors import ArgumentError
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, in_worlds, mesh, put

V = np.arange(64.0).reshape(8, 8)
LARGE = np.arange(1024.0 * 1024).reshape(1024, 1024) / 2**20


def work(x, w):
    f = meshard.jit(lambda v, w: lax.fori_loop(0, 3, lambda i, c: mnp.tanh(c @ w), v).sum(0))
    g = meshard.shard_map(
        lambda v: lax.psum(v * 2, "i"), mesh=mesh(), in_specs=P("i"), out_specs=P()
    )
    y = f(x, w)
    g(x)
    z = mnp.sort(x, axis=0) + 1
    meshard.device_put(z, NamedSharding(mesh(), P(None, "i")))
    return y, meshard.reshard(z, NamedSharding(mesh(), P(None, "j")))


def arguments(value=V):
    return put(value, "i"), put(value[:, : value.shape[1]], None, "j")


@in_worlds
def test_its_bytes_are_those_of_a_ledger():
    args = arguments()
    work(*args)
    with ledger() as log:
        work(*args)
    with profile() as seen:
        work(*args)
    records = [r for e in seen.events for r in e.records]
    assert sum(r.total_bytes for r in records) == log.total_bytes > 0
    assert sorted((r.what, r.kind, r.total_bytes) for r in records) == sorted(
        (r.what, r.kind, r.total_bytes) for r in log
    )


@in_worlds
def test_it_sees_steps_operations_bodies_and_moves():
    args = arguments()
    work(*args)
    with profile() as seen:
        work(*args)
    found = {(e.category, e.name) for e in seen.events}
    assert {
        ("step", "fori_loop"),
        ("step", "tanh"),
        ("step", "sum"),
        ("body", "psum"),
        ("body", "multiply"),
        ("operation", "add"),
        ("move", "device_put"),
        ("move", "reshard"),
    } <= found
    lines = {e.line.rpartition(":")[0] for e in seen.events if e.category != "kernel"}
    assert lines == {__file__}
    turns = [e for e in seen.events if (e.category, e.name) == ("step", "contract")]
    assert len(turns) == 3


def test_nothing_is_watched_without_one():
    def body():
        args = arguments()
        world = here()
        assert (world.profiles, world.ledgers, world.workers.watch) == ((), (), None)
        with profile() as outer, profile() as inner:
            work(*args)
            assert len(world.profiles) == 2
        with pytest.raises(RuntimeError, match="stop"), profile() as failed:
            raise RuntimeError("stop")
        assert not failed.events
        assert (world.profiles, world.ledgers, world.workers.watch) == ((), (), None)
        count = len(outer.events)
        assert len(inner.events) == count
        work(*args)
        assert len(outer.events) == count

    alone(body)


def test_results_are_those_without_one():
    def body():
        args = arguments(LARGE)
        expected = [np.asarray(x) for x in meshard.tree.leaves(work(*args))]
        with profile():
            found = [np.asarray(x) for x in meshard.tree.leaves(work(*args))]
        for a, b in zip(found, expected, strict=True):
            assert a.tobytes() == b.tobytes()

    alone(body)


def lanes(text):
    """Return the events of each lane, after checking what viewers ask for."""
    value = json.loads(text)
    found = defaultdict(list)
    for event in value["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["name"]
            found[event["pid"], event["tid"]].append(event)
    return found


def test_the_trace_has_lanes_of_threads_and_devices(tmp_path):
    def body():
        args = arguments(LARGE)
        path = tmp_path / "trace.json"
        before = time.time() * 1e6
        with profile(path) as seen:
            work(*args)
        text = path.read_text()
        assert text == seen.to_json()
        found = lanes(text)
        assert {tid for _, tid in found} >= {0, *(1000 + d for d in range(8))}
        for lane in found.values():
            events = sorted(lane, key=lambda e: (e["ts"], -e["dur"]))
            ends = []
            for e in events:  # in one lane things lie apart, or inside each other
                assert e["ts"] >= before - 1e6
                while ends and ends[-1] <= e["ts"] + 1e-3:
                    ends.pop()
                assert not ends or e["ts"] + e["dur"] <= ends[-1] + 2
                ends.append(e["ts"] + e["dur"])
        received = sum(
            e["args"].get("bytes received", 0)
            for (_, tid), lane in found.items()
            for e in lane
            if tid >= 1000
        )
        assert received == sum(e.total_bytes for e in seen.events if e.devices)
        kernels = [e for lane in found.values() for e in lane if e["cat"] == "kernel"]
        assert {"contract", "copy"} <= {e["name"] for e in kernels}
        names = [e["args"]["name"] for e in json.loads(text)["traceEvents"] if e["ph"] == "M"]
        assert "process 0" in names
        assert "cpu:7" in names

    alone(body)


@pytest.mark.no_job
def test_each_process_writes_its_own(tmp_path):
    def body():
        with profile(tmp_path / "trace.json"):
            work(*arguments())

    simulate(2, 4, body, deadline=30)
    parts = sorted(tmp_path.iterdir())
    assert [p.name for p in parts] == ["trace.0.json", "trace.1.json"]
    for number, part in enumerate(parts):
        found = lanes(part.read_text())
        assert {pid for pid, _ in found} == {number}
        devices = {tid - 1000 for _, tid in found if tid >= 1000}
        assert devices == set(range(4 * number, 4 * number + 4))
    join_profiles(parts, tmp_path / "all.json")
    assert {pid for pid, _ in lanes((tmp_path / "all.json").read_text())} == {0, 1}


def test_an_error_leaves_a_trace(tmp_path):
    def body():
        path = tmp_path / "trace.json"
        x = put(V, "i")

        def wrong():
            x.sum()
            return x + np.ones(3)

        with pytest.raises(ValueError, match="incompatible shapes"), profile(path):
            wrong()
        assert [e["name"] for e in lanes(path.read_text())[0, 0]] == ["sum"]

    alone(body)


def test_threads_have_lanes_of_their_own():
    def body():
        x, world = put(V, "i"), here()

        def other():
            from meshard.algebra.world import entered

            with entered(world):
                x.sum()

        with profile() as seen:
            x.max()
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert {e.name: e.thread for e in seen.events} == {"max": 0, "sum": 1}

    alone(body)


def test_it_prints_the_lines_that_took_longest():
    def body():
        args = arguments()
        with profile() as seen:
            work(*args)
        with profile() as nothing:
            pass
        return str(seen), seen.by_line(), str(nothing), repr(seen)

    text, times, nothing, short = alone(body)
    head, *rows, last = text.split("\n")
    assert head.split() == ["line", "what", "count", "time", "share", "bytes"]
    assert len(rows) == len(times)
    assert list(times.values()) == sorted(times.values(), reverse=True)
    assert all(row.startswith("test_profile.py:") for row in rows)
    assert last.endswith("bytes between devices")
    assert nothing.startswith("nothing ran in ")
    assert short.startswith("Profile(")


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    for number, text in enumerate(("no json", "[1]", "{}")):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(ArgumentError, match=f"{number}.json is not a trace that meshard.debug"):
            join_profiles([path], tmp_path / "all.json")
