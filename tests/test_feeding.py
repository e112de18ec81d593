"""Feeding: what one job publishes, another one has, whatever the layouts, maps and dtypes.

Both jobs are here worlds of simulated processes, or the test's own process; real jobs are in
`tests/ranks/test_feeding_ranks.py`.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
from meshard import elastic
from meshard.algebra.box import Box
from meshard.checkpoint import KeyMap
from meshard.errors import (
    AgreementError,
    ArgumentError,
    DataLoss,
    IncompatibleDevicesError,
    KeyMapError,
    PlanError,
    TransportError,
    TreeError,
)
from meshard.resilience.feeding import regions, serve
from meshard.resilience.feeding.offer import Offer, Tensor, Wish
from meshard.resilience.feeding.pull import GoneError
from meshard.resilience.feeding.serve import applied, changed, decoded, encoded
from meshard.resilience.feeding.stage import Opened, Stages
from meshard.runtime.settings import RENDEZVOUS
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import die, simulate, virtual_devices
from meshard.weights.checkpoint.sources import made_of
from meshard.weights.transfer.exchange import Held, Part, pieces_of
from tests.worlds import alone

LIMIT = 20.0
QKV = KeyMap(rest="keep").fuse(["{n}.q", "{n}.k", "{n}.v"], "{n}.qkv")
SPECS = [P(), P("a"), P(None, "a"), P("b", "a"), P(("a", "b")), P("b")]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    RENDEZVOUS.value = str(tmp_path / "names")
    yield
    RENDEZVOUS.value = None


def jobs(publishing: Callable[[], Any], taking: Callable[[], Any], sizes: tuple[int, int]) -> Any:
    """Run two jobs of simulated processes; return what the taking one returns."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(simulate(sizes[0], 4 // sizes[0], publishing, deadline=LIMIT))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        taken = simulate(sizes[1], 4 // sizes[1], taking, deadline=LIMIT)
    finally:
        thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return taken


def laid_out(value: Any, spec: P) -> Any:
    mesh = Mesh(np.array(meshard.devices()).reshape(2, 2), ("a", "b"))
    return meshard.make_array_from_callback(
        value.shape, NamedSharding(mesh, spec, uneven="balanced"), lambda i: value[i]
    )


def place(spec: P) -> NamedSharding:
    mesh = Mesh(np.array(meshard.devices()).reshape(2, 2), ("a", "b"))
    return NamedSharding(mesh, spec, uneven="balanced")


def values(version: int, shape: tuple[int, ...] = (7, 6)) -> dict[str, Any]:
    base = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return {f"l.{n}": base * (k + 1) + version for k, n in enumerate("qkvo")}


def check(array: Any, expected: Any) -> int:
    """Compare the parts of an array that are here; return their bytes."""
    for shard in array.addressable_shards:
        want = expected[shard.index].astype(array.dtype)
        got = np.asarray(shard.data)
        assert got.tobytes() == want.tobytes()
    me = meshard.process_index()
    boxes = {
        Box.from_index(s.index, array.shape)
        for s in array.global_shards
        if s.device.process_index == me
    }
    return sum(box.volume for box in boxes) * array.dtype.itemsize


class TestJobs:
    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        derandomize=True,
    )
    @given(
        st.sampled_from([1, 2, 4]),
        st.sampled_from([1, 2, 4]),
        st.sampled_from(SPECS),
        st.sampled_from(SPECS),
        st.sampled_from([None, "bfloat16", "float64"]),
        st.sampled_from([None, 20_000]),
        st.sampled_from(["auto", True, False]),
    )
    def test_any_layout_becomes_any_other(self, n, m, spec, other, dtype, most, delta) -> None:
        def publishing() -> None:
            trees = [{k: laid_out(x, spec) for k, x in values(v).items()} for v in (1, 2)]
            with elastic.publish("p", trees[0], delta=delta, max_bytes=most) as publisher:
                publisher.wait(timeout=LIMIT)
                assert publisher.publish(trees[1]) == 2
                publisher.wait(2, timeout=LIMIT)

        def taking() -> int:
            with elastic.subscribe(
                "p", place(other), map=QKV, dtype=dtype, max_bytes=most, delta=delta, timeout=LIMIT
            ) as feed:
                for version in (1, 2):
                    assert feed.wait(version, timeout=LIMIT) == version
                    want = values(version)
                    qkv = np.concatenate([want[f"l.{n}"] for n in "qkv"])
                    assert sorted(feed.tree) == ["l.o", "l.qkv"]
                    needed = check(feed.tree["l.o"], want["l.o"])
                    needed += check(feed.tree["l.qkv"], qkv)
                    if dtype == "float64":  # floats travel as they are
                        needed //= 2
                    assert feed.plan.nbytes == needed
                    if version == 1:
                        assert feed.received.nbytes == needed
                    assert feed.received.nbytes <= needed
                    assert sum(feed.received.by_giver.values()) == feed.received.nbytes
                return needed

        jobs(publishing, taking, (n, m))

    def test_givers_of_replicas_share_the_work(self) -> None:
        big = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)

        def publishing() -> int:
            with elastic.publish("p", {"w": laid_out(big, P())}) as publisher:
                publisher.wait(timeout=LIMIT)
                return publisher.bytes_given

        def taking() -> dict[int, int]:
            with elastic.subscribe("p", place(P("a")), timeout=LIMIT) as feed:
                check(feed.tree["w"], big)
                return feed.received.by_giver

        for by_giver in jobs(publishing, taking, (4, 2)):
            assert sorted(by_giver) == [0, 1, 2, 3]
            assert max(by_giver.values()) <= 1.01 * sum(by_giver.values()) / 4

    def test_a_tree_keeps_its_form_its_values_and_its_ties(self) -> None:
        def body() -> None:
            w = np.ones((2, 3), np.float32)
            tree = {"a": [w, (w, 3)], "name": "x", "step": 7, "none": None}
            with elastic.publish("p", tree) as publisher, elastic.subscribe("p") as feed:
                assert feed.tree["a"][0] is feed.tree["a"][1][0]
                assert (feed.tree["a"][1][1], feed.tree["name"], feed.tree["step"]) == (3, "x", 7)
                publisher.publish(tree | {"step": 8})
                feed.update()
                assert feed.tree["step"] == 8

        alone(body)

    def test_a_publisher_keeps_what_numpy_arrays_held(self) -> None:
        def body() -> None:
            w = np.zeros(4)
            with elastic.publish("p", {"w": w}):
                w += 1
                with elastic.subscribe("p") as feed:
                    assert not np.asarray(feed.tree["w"]).any()

        alone(body)

    def test_layouts_may_change_between_versions(self) -> None:
        def body() -> None:
            want = values(1)
            with (
                elastic.publish(
                    "p", {k: laid_out(x, P("a")) for k, x in want.items()}
                ) as publisher,
                elastic.subscribe("p", place(P("b"))) as feed,
            ):
                want = values(2)
                publisher.publish({k: laid_out(x, P(None, "b")) for k, x in want.items()})
                assert feed.update() == 2
                for name, x in want.items():
                    check(feed.tree[name], x)

        alone(body, 4)


class TestDeaths:
    @pytest.mark.parametrize("dead", [0, 1])
    def test_a_publisher_loses_a_process(self, dead) -> None:
        """The living raise the same error; what was served stays, and they publish again."""

        def tree(version: int) -> dict[str, Any]:
            whole = NamedSharding(elastic.mesh("i"), P())
            return {"w": meshard.device_put(np.full(999, version), whole)}

        def publishing() -> Any:
            rows = NamedSharding(elastic.mesh("i"), P("i"))
            old, split = tree(1), {"w": meshard.device_put(np.zeros(999, np.int64), rows)}
            with elastic.publish("p", old) as publisher:
                publisher.wait(timeout=LIMIT)
                if meshard.process_index() == dead:
                    die()
                with pytest.raises(elastic.ProcessLostError) as caught:
                    publisher.publish(tree(2))
                assert publisher.version == 1
                elastic.recover()
                with pytest.raises(DataLoss):
                    publisher.publish(split)
                with pytest.raises(IncompatibleDevicesError, match="'w': of the 3 devices"):
                    publisher.publish(old)
                assert publisher.publish(tree(3)) == 2
                publisher.wait(2, timeout=LIMIT)
                return caught.value.processes, str(caught.value)

        told: list[Any] = []
        thread = threading.Thread(
            target=lambda: told.extend(simulate(3, 1, publishing, deadline=LIMIT))
        )
        thread.start()

        def taking() -> None:
            with elastic.subscribe("p", timeout=LIMIT) as feed:
                for _ in range(5):
                    try:
                        feed.wait(2, timeout=LIMIT)
                        break
                    except TransportError:
                        assert np.asarray(feed.tree["w"])[-1] == 1
                        time.sleep(0.05)
                assert (feed.version, np.asarray(feed.tree["w"])[-1]) == (2, 3)

        simulate(2, 1, taking, deadline=LIMIT)
        thread.join()
        living = [found for found in told if found is not None]
        assert len(living) == 2
        assert len(set(living)) == 1
        assert living[0][0] == (dead,)


class TestReaders:
    def test_a_reader_never_sees_two_versions(self) -> None:
        def body() -> None:
            def tree(version: int) -> dict[str, Any]:
                return {k: np.full((64, 8), version, np.float32) for k in "abcd"}

            with elastic.publish("p", tree(1)) as publisher, elastic.subscribe("p") as feed:
                mixed, reads, stop = [], [0], threading.Event()

                def read() -> None:
                    while not stop.is_set():
                        with feed.lease() as leased:
                            found = [np.asarray(array) for array in leased.values()]
                            seen = {x for part in found for x in (part.min(), part.max())}
                        reads[0] += 1
                        if len(seen) != 1:
                            mixed.append(seen)

                readers = [threading.Thread(target=read) for _ in range(1)]
                for reader in readers:
                    reader.start()
                kept = feed.tree
                for version in range(2, 20):
                    publisher.publish(tree(version))
                    assert feed.update() == version
                stop.set()
                for reader in readers:
                    reader.join()
                assert not mixed
                assert reads[0] > 10
                assert float(np.asarray(kept["a"])[0, 0]) == 1  # however long it is kept

        alone(body)

    @pytest.mark.parametrize("processes", [1, 2])
    def test_polls_take_versions_behind_the_program(self, processes) -> None:
        def publishing() -> None:
            with elastic.publish("p", {"w": laid_out(np.full((8, 8), 1), P("a"))}) as publisher:
                for version in range(2, 7):
                    publisher.wait(timeout=LIMIT)
                    publisher.publish({"w": laid_out(np.full((8, 8), version), P("a"))})
                publisher.wait(timeout=LIMIT)

        def taking() -> list[int]:
            served = []
            with elastic.subscribe("p", place(P("b")), timeout=LIMIT) as feed:
                while True:
                    check(feed.tree["w"], np.full((8, 8), feed.version))
                    served.append(feed.version)
                    if feed.version == 6:
                        break
                    before = feed.version
                    while feed.poll() == before:
                        time.sleep(1e-3)

                def poll_for_ever() -> None:
                    while True:
                        feed.poll()
                        time.sleep(1e-3)

                with pytest.raises(TransportError, match="has stopped publishing") as caught:
                    poll_for_ever()
                assert "Version 6 of 'p' is still served here." in caught.value.__notes__
                assert feed.version == 6
            with pytest.raises(TransportError, match="is closed"):
                feed.poll()
            return served

        for served in jobs(publishing, taking, (2, processes)):
            assert served == [1, 2, 3, 4, 5, 6]

    def test_a_version_that_a_taker_was_told_of_stays_until_it_is_taken(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.zeros(4)}, delta=False) as publisher:
                server = publisher._server
                server.promise(7)
                for version in (2, 3):
                    publisher.publish({"w": np.zeros(4)})
                    assert sorted(server.versions) == [1, version]
                server.release(7)
                publisher.publish({"w": np.zeros(4)})
                assert sorted(server.versions) == [4]

        alone(body)

    def test_all_processes_swap_or_none(self, monkeypatch) -> None:
        """A version that is gone for one process is taken again by all."""
        assembled, calls = elastic.Feed._assembled, []

        def once_gone(feed: Any, world: Any, *given: Any) -> Any:
            calls.append(world.process_index)
            if world.process_index == 1 and calls.count(1) == 2:
                raise GoneError("gone")
            return assembled(feed, world, *given)

        monkeypatch.setattr(elastic.Feed, "_assembled", once_gone)

        def publishing() -> None:
            with elastic.publish("p", {"w": laid_out(np.zeros((8, 8)), P("a"))}) as publisher:
                publisher.wait(timeout=LIMIT)
                publisher.publish({"w": laid_out(np.ones((8, 8)), P("a"))})
                publisher.wait(timeout=LIMIT)

        def taking() -> int:
            with elastic.subscribe("p", place(P("b")), timeout=LIMIT) as feed:
                feed.wait(2, timeout=LIMIT)
                check(feed.tree["w"], np.ones((8, 8)))
                return feed.version

        assert jobs(publishing, taking, (1, 2)) == [2, 2]
        assert sorted(calls) == [0, 0, 0, 1, 1, 1]

    def test_memory_is_used_again_when_nobody_reads_it(self) -> None:
        def body() -> None:
            with (
                elastic.publish("p", {"w": np.zeros(1 << 16)}) as publisher,
                elastic.subscribe("p") as feed,
            ):
                places = set()
                for version in range(2, 12):
                    publisher.publish({"w": np.full(1 << 16, float(version))})
                    feed.update()
                    places.add(feed.tree["w"]._live()[0].__array_interface__["data"][0])
                assert len(places) == 2

        alone(body)

    def test_a_third_job_is_fed_by_the_second(self) -> None:
        def body() -> None:
            want = values(3)
            tree = {k: laid_out(x, P("a")) for k, x in want.items()}
            with (
                elastic.publish("p", tree, version=3) as publisher,
                elastic.subscribe("p", place(P("b")), map=QKV, serve=True) as second,
            ):
                given = publisher.bytes_given
                qkv = np.concatenate([want[f"l.{n}"] for n in "qkv"])
                for source in ("auto", "readers"):
                    with elastic.subscribe(
                        "p", place(P(None, "a")), map=QKV, source=source
                    ) as third:
                        assert third.version == 3
                        check(third.tree["l.qkv"], qkv)
                        check(third.tree["l.o"], want["l.o"])
                assert publisher.bytes_given == given
                publisher.publish({k: laid_out(x, P("a")) for k, x in values(4).items()})
                with elastic.subscribe("p", map=QKV) as third:  # the second has it not yet
                    assert third.version == 4
                assert publisher.bytes_given > given
                publisher.close()
                with elastic.subscribe("p", map=QKV, timeout=LIMIT) as third:
                    assert (third.version, second.version) == (3, 3)
                with pytest.raises(TransportError, match="No job that takes the same serves it"):
                    elastic.subscribe("p", dtype="bfloat16", source="readers", timeout=0.1)

        alone(body, 4)


class TestChanges:
    @given(st.integers(0, 3), st.data())
    @settings(deadline=None, max_examples=50, derandomize=True)
    def test_codes_say_which_elements_changed(self, kind, data) -> None:
        random = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
        dtype = [np.float32, np.uint8, np.float64, np.complex128][kind]
        old = random.integers(0, 3, data.draw(st.integers(0, 2000))).astype(dtype)
        new = old.copy()
        share = data.draw(st.sampled_from([0, 0.001, 0.01, 0.5, 1]))
        chosen = random.random(len(old)) < share
        new[chosen] += 1
        positions = changed(old, new)
        assert positions.tolist() == np.flatnonzero(chosen).tolist()
        assert decoded(encoded(positions)).tolist() == positions.tolist()
        grid = np.concatenate([old, old])[: len(old) // 2 * 2].reshape(-1, 2)
        strided = np.repeat(grid, 2, axis=1)[:, ::2]
        inside = positions[positions < strided.size]
        applied(strided, inside, new[: strided.size][inside])
        expected = strided.reshape(-1)
        assert (expected[inside] == new[: strided.size][inside]).all()
        applied(old, positions, new[positions])
        assert old.tobytes() == new.tobytes()

    def test_negative_zero_and_nan_are_compared_by_bits(self) -> None:
        old = np.array([0.0, np.nan, 1.0])
        assert changed(old, np.array([-0.0, np.nan, 1.0])).tolist() == [0]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_one_percent_of_changes_takes_four_percent_of_the_bytes(self, dtype) -> None:
        def body() -> None:
            random = np.random.default_rng(5)
            old = random.normal(size=(1 << 10, 1 << 9)).astype(np.float32)
            new = old.copy()
            new.reshape(-1)[random.permutation(old.size)[: old.size // 100]] += 1
            with (
                elastic.publish("p", {"w": laid_out(old, P("a"))}, delta=True) as publisher,
                elastic.subscribe("p", place(P(None, "b")), dtype=dtype, delta=True) as feed,
            ):
                whole = feed.received
                publisher.publish({"w": laid_out(new, P("a"))})
                feed.update()
                check(feed.tree["w"], new)
                assert feed.received.nbytes <= 0.04 * whole.nbytes
                assert feed.received.lines <= 0.04 * whole.lines
                assert feed.received.changed == old.size // 100
                publisher.publish({"w": laid_out(new, P("a"))})
                feed.update()
                assert feed.received.nbytes == 0

        alone(body, 4)

    def test_without_the_version_before_all_elements_travel(self) -> None:
        def body() -> None:
            with (
                elastic.publish("p", {"w": np.zeros(1000)}, delta=False) as publisher,
                elastic.subscribe("p", delta=True) as feed,
            ):
                publisher.publish({"w": np.zeros(1000)})
                feed.update()
                assert feed.received.nbytes == 8000
                assert feed.received.changed is None

        alone(body)


class TestRefusals:
    def refused(self, error: type[Exception], match: str, body: Callable[[], Any]) -> None:
        with pytest.raises(error, match=match):
            alone(body)

    def test_a_name_of_a_living_publisher(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}):
                elastic.publish("p", {"w": np.ones(2)})

        self.refused(
            ArgumentError, rf"The name 'p' is taken: process {os.getpid()} on .* alive", body
        )

    def test_all_processes_of_a_job_are_refused_alike(self) -> None:
        def taken() -> str:
            with pytest.raises(ArgumentError, match="The name 'p' is taken") as caught:
                elastic.publish("p", {"w": np.ones(2)})
            return str(caught.value)

        with alone_publisher({"w": np.ones(2)}):
            assert len(set(simulate(3, 1, taken, deadline=LIMIT))) == 1

    @pytest.mark.parametrize(
        ("tree", "told"),
        [
            ({"w": np.ones((2, 3))}, r"'w' is float64\[2,3\] in the tree, but float64\[2\] in ver"),
            (
                {"v": np.ones(2)},
                r"the tree lacks 'w' and has 'v' besides; version 1 of 'p' has 1 t",
            ),
            ({"w": np.ones(2, "f4")}, r"'w' is float32\[2\] in the tree, but float64\[2\] in vers"),
            ({}, r"the tree has no arrays"),
            ({"w": np.ones(2), "x": np.ones(1)}, r"the tree has 'x' besides"),
        ],
    )
    def test_a_version_of_another_tree(self, tree, told) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}) as publisher:
                try:
                    publisher.publish(tree)
                finally:
                    assert publisher.version == 1
                    assert publisher.publish({"w": np.ones(2)}) == 2

        self.refused((TreeError, ArgumentError), told, body)  # type: ignore[arg-type]

    def test_a_version_that_is_not_larger(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}, version=5) as publisher:
                publisher.publish({"w": np.ones(2)}, version=5)

        self.refused(ArgumentError, "version=5 of 'p' is not larger than the last one, 5", body)

    @pytest.mark.parametrize(
        ("given", "error", "told"),
        [
            ({"shardings": {"v": None}}, TreeError, "a sharding for 'v', which is not in the tree"),
            (
                {"shardings": {}},
                TreeError,
                "shardings has no sharding for 'w'. The tensors are 'w'",
            ),
            ({"shardings": [None]}, TreeError, "prefix of the tree"),
            (
                {"like": {"v": np.ones(2)}},
                TreeError,
                "what is published lacks 'v' and has 'w' besi",
            ),
            (
                {"like": {"w": np.ones(3)}},
                TreeError,
                r"'w' is float64\[2\] in what is published, b",
            ),
            ({"map": KeyMap().rename("q", "w")}, KeyMapError, "q"),
            ({"map": 3}, ArgumentError, "map"),
            ({"name": 3}, ArgumentError, "elastic.subscribe: name must be a string"),
            ({"name": ""}, ArgumentError, "elastic.subscribe: name must be a string of 1 to 200"),
            (
                {"shardings": Mesh(np.array([meshard.Device(0)]), ("x",))},
                ArgumentError,
                "'w': expected a Sharding.* A mesh needs a spec as well: NamedSharding",
            ),
            ({"delta": "yes"}, ArgumentError, "delta must be 'auto', True or False"),
            ({"source": "me"}, ArgumentError, "source"),
            (
                {"max_bytes": 7},
                ArgumentError,
                "max_bytes=7 allows 3 bytes at a time .* at least 128",
            ),
            ({"max_bytes": -7}, ArgumentError, "max_bytes must be a positive"),
        ],
    )
    def test_a_subscriber_with_another_tree(self, given, error, told) -> None:
        with alone_publisher({"w": np.ones(2)}):
            self.refused(error, told, lambda: elastic.subscribe(**{"name": "p", **given}))

    def test_a_name_that_cannot_be_one(self) -> None:
        for name in ("", "x" * 201, 3):
            self.refused(
                ArgumentError,
                "elastic.publish: name must be a string of 1 to 200 characters, .* got ",
                lambda name=name: elastic.publish(name, {"w": np.ones(2)}),  # type: ignore[misc]
            )

    def test_nobody_publishes(self) -> None:
        told = (
            "elastic.subscribe: a version of 'p' has not come in 0.1 seconds. "
            "There is no publisher of 'p' in "
        )
        self.refused(
            TransportError,
            f"{told}.*No process has pub",
            lambda: elastic.subscribe("p", timeout=0.1),
        )

    def test_a_version_that_never_comes(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}), elastic.subscribe("p") as feed:
                assert feed.wait(1, timeout=0.1) == 1
                feed.wait(9, timeout=0.1)

        told = (
            rf"version 9 of 'p' has not come in 0.1 .*\(process {os.getpid()} on .* is alive; its "
        )
        self.refused(TransportError, f"{told}newest version, 1, is", body)

    def test_a_feed_is_closed_while_its_thread_connects(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}):
                for _ in range(5):
                    with elastic.subscribe("p") as feed:
                        feed.poll()
                assert threading.active_count() == before + 1

        before = threading.active_count()
        alone(body)

    def test_a_publisher_that_has_ended(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}) as publisher:
                feed = elastic.subscribe("p")
                publisher.close()
                with pytest.raises(TransportError, match="the publisher of 'p' is closed"):
                    publisher.publish({"w": np.ones(2)})
                try:
                    feed.update()
                except TransportError as error:
                    notes = error.__notes__
                    assert notes[0] == "Version 1 of 'p' is still served here."
                    assert np.asarray(feed.tree["w"]).all()
                    with elastic.publish("p", {"w": np.zeros(2)}):  # another one, with its own
                        assert feed.wait() == 1
                        assert not np.asarray(feed.tree["w"]).any()
                    raise
                finally:
                    feed.close()

        self.refused(TransportError, "Its publisher, process .* and has stopped publishing", body)

    def test_a_feed_that_is_closed(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}):
                feed = elastic.subscribe("p")
                feed.close()
                assert repr(feed) == "Feed('p', closed)"
                with pytest.raises(TransportError, match="The feed of 'p' is closed"):
                    feed.update()
                feed.tree

        self.refused(TransportError, "The feed of 'p' is closed", body)

    def test_readers_that_never_come(self) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}) as publisher:
                publisher.wait(timeout=0.1)

        self.refused(
            TransportError, "0 of 1 jobs have taken version 1 of 'p'.*connected serve: none", body
        )

    def test_processes_that_publish_different_versions(self) -> None:
        def body() -> str:
            me = meshard.process_index()
            tree = {"w": laid_out(np.ones(4), P())}
            with pytest.raises(AgreementError) as caught:
                elastic.publish("p", tree, version=1 + me)
            return str(caught.value)

        (told,) = set(simulate(2, 2, body, deadline=LIMIT))
        assert "processes 0 and 1 publish versions of 'p' with different numbers (1 and 2)" in told

    def test_a_participant_that_is_missing_is_named_on_all(self) -> None:
        gone, over = threading.Event(), threading.Event()

        def publishing() -> None:
            with elastic.publish("p", {"w": laid_out(np.ones((8, 8)), P("a"))}) as publisher:
                if meshard.process_index() == 1:
                    publisher._server.close()
                    gone.set()
                assert over.wait(LIMIT)

        def taking() -> str:
            assert gone.wait(LIMIT)
            with pytest.raises(TransportError) as caught:
                elastic.subscribe("p", place(P("b")), timeout=LIMIT)
            return str(caught.value)

        def taken() -> set[str]:
            try:
                return set(simulate(2, 2, taking, deadline=LIMIT))
            finally:
                over.set()

        thread = threading.Thread(target=lambda: simulate(2, 2, publishing, deadline=LIMIT))
        thread.start()
        (told,) = taken()
        thread.join()
        assert "Process 1 of the publisher of 'p'" in told
        assert "cannot be reached: No connection" in told

    def test_another_plan_on_the_other_side(self, monkeypatch) -> None:
        def body() -> None:
            with elastic.publish("p", {"w": np.ones(2)}):
                theirs = regions.FeedPlan

                def other(*given: Any) -> Any:
                    plan = theirs(*given)
                    plan.digest = "another"
                    return plan

                monkeypatch.setattr(serve, "FeedPlan", other)
                elastic.subscribe("p", timeout=LIMIT)

        told = (
            "Process 0 of the publisher of 'p' .* has derived another plan for what process 0 takes"
        )
        self.refused(PlanError, told, body)

    def test_elements_that_change_on_their_way(self, monkeypatch) -> None:
        def body(delta: bool) -> None:
            with (
                elastic.publish("p", {"w": np.ones(5)}) as publisher,
                elastic.subscribe("p", delta=delta) as feed,
            ):
                before = serve.checksum
                monkeypatch.setattr(serve, "checksum", lambda block: before(block) ^ 1)
                publisher.publish({"w": np.zeros(5)})
                with pytest.raises(TransportError, match=r"\[0:5\] of 'w' was changed on its way"):
                    feed.update()
                assert feed.version == 1
                assert np.asarray(feed.tree["w"]).all()
                monkeypatch.setattr(serve, "checksum", before)
                assert feed.update() == 2
                assert not np.asarray(feed.tree["w"]).any()

        for delta in (False, True):
            alone(lambda delta=delta: body(delta))


class TestPlans:
    @pytest.mark.parametrize("dtype", [None, "bfloat16", "float64"])
    @pytest.mark.parametrize("map_", [None, QKV, KeyMap(rest="keep").transpose("l.q")])
    @pytest.mark.parametrize("spec", SPECS)
    def test_a_plan_counts_what_each_taker_needs(self, spec, map_, dtype) -> None:
        """As `FeedPlan` does, which is what moves; each device is a process by itself."""
        devices = np.array(virtual_devices(10, 1))
        give = Mesh(devices[:4].reshape(2, 2), ("a", "b"))
        take = Mesh(devices[4:].reshape(2, 3), ("a", "b"))
        tree = {
            name: meshard.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=NamedSharding(give, P("a", "b"), uneven="balanced")
            )
            for name, x in values(1).items()
        }
        place = NamedSharding(take, spec, uneven="balanced")
        plan = elastic.plan_publish(tree, place, map=map_, dtype=dtype, topology="8-gpu hosts")
        made = made_of(tree, {}, map_, None if dtype is None else meshard.numpy.dtype(dtype), "t")
        held = {
            name: Held(
                x.dtype,
                tuple(
                    Part(box, who, None)
                    for _, box, who in pieces_of(x.sharding.layout(x.shape), x.sharding)
                ),
            )
            for name, x in tree.items()
        }
        offer = Offer({n: Tensor(x.shape, x.dtype, held[n]) for n, x in tree.items()}, {})
        pieces = {
            n: tuple(pieces_of(place.layout(r.shape), place)) for n, r in made.recipes.items()
        }
        wish = Wish(map_, None, pieces, 64)
        plans = [regions.FeedPlan(offer, wish, k, made.recipes) for k in range(4, 10)]
        assert plan.bytes_moved == plan.lower_bound_bytes == sum(p.nbytes for p in plans)
        assert plan.most_received == max(p.nbytes for p in plans)
        assert plan.most_sent == max(regions.balance(plans).values())
        for p in plans:
            assert sum(p.bytes_from.values()) == p.nbytes
            assert str(p).startswith(f"Feed: process {p.taker} takes {p.nbytes:,} bytes from ")
            assert f"takes {p.nbytes:,} bytes from" in p.to_html()
            assert f"process {p.taker}, {p.nbytes} bytes" in repr(p)
        assert plan.bound_seconds <= plan.seconds
        assert "port bound" in str(plan)

    def test_a_trillion_parameters_come_at_the_speed_of_the_ports(self) -> None:
        """32 to 16 hosts of 8, with 50 GB/s for each; the tree of a public report, four copies."""
        devices = np.array(virtual_devices(384, 8))
        fsdp, served = Mesh(devices[:256], ("f",)), Mesh(devices[256:].reshape(4, 32), ("r", "e"))
        experts = {"gate": (384, 2048, 7168), "up": (384, 2048, 7168), "down": (384, 7168, 2048)}
        shapes = {f"{k}.{n}": shape for k in range(60) for n, shape in experts.items()}
        rows = NamedSharding(fsdp, P(None, "f"))
        tree = {
            n: meshard.ShapeDtypeStruct(shape, "bfloat16", sharding=rows)
            for n, shape in shapes.items()
        }
        assert sum(x.size for x in tree.values()) > 1e12
        plan = elastic.plan_publish(tree, NamedSharding(served, P("e")), topology="8-gpu hosts")
        assert (
            plan.bytes_moved == plan.lower_bound_bytes == 4 * sum(x.nbytes for x in tree.values())
        )
        assert plan.seconds <= 1.1 * plan.bytes_moved / 16 / 400e9
        few = elastic.plan_publish(
            tree, NamedSharding(served, P("e")), topology="8-gpu hosts", max_bytes=1 << 30
        )
        assert few.simulation.messages > plan.simulation.messages

    def test_what_is_not_planned(self) -> None:
        place = NamedSharding(Mesh(np.array(virtual_devices(2, 1)), ("a",)), P())
        w = meshard.ShapeDtypeStruct((4, 4), "f4", sharding=place)
        with pytest.raises(ArgumentError, match="device 0 holds 'w' and is to take 'w'"):
            elastic.plan_publish({"w": w}, place)
        with pytest.raises(ArgumentError, match="'w' has no sharding; give an Array"):
            elastic.plan_publish({"w": meshard.ShapeDtypeStruct((4,), "f4")}, place)
        with pytest.raises(KeyMapError, match="are interleaved or repeated in 'w'"):
            elastic.plan_publish({"w": w}, place, map=KeyMap().repeat("w", 2))
        other = NamedSharding(Mesh(np.array(virtual_devices(4, 1))[2:], ("a",)), P())
        with pytest.raises(ArgumentError, match="seconds need a topology"):
            elastic.plan_publish({"w": w}, other).seconds
        with pytest.raises(TreeError, match="'v', which is not in the tree"):
            elastic.plan_publish({"w": w}, {"v": other})


class TestStages:
    def test_a_stage_of_another_file_is_not_opened(self) -> None:
        stages = Stages()
        stage = stages.new([((4, 4), np.dtype("f4"))])
        assert stage.door is not None
        block = Opened(stage.door).block(0, (4, 4), np.dtype("f4"))
        block[:] = 3
        assert (stage.blocks[0] == 3).all()
        wrong = {**vars(stage.door), "mark": b"x" * 16}
        with pytest.raises(OSError, match="another host"):
            Opened(type(stage.door)(**wrong))
        wrong = {**vars(stage.door), "host": "elsewhere"}
        with pytest.raises(OSError, match="on elsewhere is out of reach"):
            Opened(type(stage.door)(**wrong))
        wrong = {**vars(stage.door), "identity": (0, 0)}
        with pytest.raises(OSError, match="another feed"):
            Opened(type(stage.door)(**wrong))

    def test_without_memory_of_the_host_elements_come_over_lines(self, monkeypatch) -> None:
        def body() -> None:
            def refuse(door: Any) -> None:
                raise PermissionError("not allowed")

            monkeypatch.setattr(serve, "Opened", refuse)
            want = values(1, (700, 30))
            tree = {k: laid_out(x, P("a")) for k, x in want.items()}
            with (
                elastic.publish("p", tree),
                elastic.subscribe("p", place(P(None, "b")), dtype="float64") as feed,
            ):
                for name, x in want.items():
                    check(feed.tree[name], x)
                assert feed.received.lines > feed.received.nbytes

        alone(body, 4)

    def test_memory_that_a_sender_may_still_write_to_is_not_used_again(self) -> None:
        stages = Stages()
        shapes = [((4, 4), np.dtype("f4"))]
        first = stages.new(shapes)
        del first  # never kept: its senders may not have finished
        assert not stages.spare
        second = stages.new(shapes)
        second.keep()
        block = second.blocks[0]
        del second
        assert not stages.spare
        del block
        assert len(stages.spare) == 1


class alone_publisher:
    """A publisher in a thread with a world of its own."""

    def __init__(self, tree: Any) -> None:
        self._ready, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: alone(self._run))
        self._tree = tree

    def _run(self) -> None:
        with elastic.publish("p", self._tree):
            self._ready.set()
            self._over.wait(LIMIT)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._ready.wait(LIMIT)

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()
        time.sleep(0)
