"""Resharding trees: all together, donated, under a window, with progress, and what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import meshard
from meshard.errors import ArgumentError, DeletedArrayError, IndivisibleError, TreeError
from meshard.plan.figures import schedule
from meshard.plan.figures.choice import Choice, figures_of
from meshard.plan.routes.relay import striped
from meshard.resharding import Plan, plan_cache, plan_reshard, reshard
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from tests.watch import watched
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

BIG = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
GRID = np.arange(48 * 32, dtype=np.float32).reshape(48, 32)


def named(*spec, on=None, **more):
    return NamedSharding(on or mesh(), P(*spec), **more)


def test_a_tree_moves_together_and_keeps_its_bits() -> None:
    def body():
        tree = {
            "a": put(GRID, "i", "j"),
            "b": [put(GRID.astype(np.int8), ("i", "j")), put(np.float64(3))],
            "host": GRID[:4],
            "none": None,
        }
        moved = reshard(tree, named())
        assert moved["none"] is None
        assert all(x.committed for x in (moved["a"], *moved["b"], moved["host"]))
        again = reshard(
            moved, {"a": named("j", "i"), "b": named(), "host": named("i"), "none": None}
        )
        assert again["a"].sharding == named("j", "i")
        return [whole(x) for x in (moved["a"], *moved["b"], again["a"], again["host"])]

    a, b, c, d, e = everywhere(body)
    assert a.tobytes() == d.tobytes() == GRID.tobytes()
    assert (b == GRID.astype(np.int8)).all()
    assert c == 3
    assert e.tobytes() == GRID[:4].tobytes()


@in_worlds
def test_what_is_refused_is_refused_before_anything_moves() -> None:
    x = put(GRID, "i", "j")
    tree = [x, put(GRID[:6], None, "j")]
    with pytest.raises(IndivisibleError):
        reshard(tree, named(("i", "j")), donate=True)
    assert not x.is_deleted()
    with pytest.raises(TreeError, match="prefix"):
        reshard(tree, [named()])
    with pytest.raises(ArgumentError, match=r"donate and may_alias"):
        reshard(x, named(), donate=True, may_alias=True)
    gone = put(GRID, "i")
    gone.delete()
    with pytest.raises(DeletedArrayError, match=r"test_reshard\.py"):
        reshard([x, gone], named())
    assert (whole(x) == GRID).all()


@in_worlds
def test_donated_sources_say_who_took_them() -> None:
    x, y = put(GRID, "i", "j"), put(GRID, "i")
    moved = reshard([x, y], named("j", "i"), donate=True)
    assert x.is_deleted()
    assert y.is_deleted()
    with pytest.raises(DeletedArrayError, match=r"donated to reshard at .*test_reshard.py"):
        x + 1
    assert (whole(moved[0]) == GRID).all()
    assert (whole(moved[1]) == GRID).all()


def test_a_view_of_a_donated_array_keeps_its_values() -> None:
    big = np.arange(4096 * 2048, dtype=np.float32).reshape(4096, 2048)

    def body():
        line = Mesh(meshard.devices(), "x")
        x = put(big, "x", on=line)
        view = np.asarray(x.addressable_shards[0].data)
        other = put(big, "x", on=line)
        twin = other.copy()
        reshard([x, other], NamedSharding(line, P(None, "x")), donate=True)
        assert (view == big[:512]).all()
        assert (whole(twin) == big).all()

    alone(body)


def test_a_window_bounds_what_is_on_its_way() -> None:
    def body():
        x = put(GRID, "i", "j")
        before = whole(reshard(x, named("j", "i")))
        small = whole(reshard(x, named("j", "i"), max_bytes=1 << 10))
        return [before, small]

    for found in everywhere(body):
        assert found.tobytes() == GRID.tobytes()


@in_worlds
def test_one_window_is_refused_alike_by_whoever_takes_it() -> None:
    x, target = put(GRID, "i", "j"), named("j", "i")
    plan = plan_reshard(x, target)
    for window in (0, -3, 1.5, "4", True, float("nan"), [4]):
        for what, ask in (("reshard", reshard), ("plan_reshard", plan_reshard)):
            with pytest.raises(
                ArgumentError,
                match=rf"^{what}: max_bytes must be a positive number of bytes, or None",
            ):
                ask(x, target, max_bytes=window)
    peers = meshard.process_count() - 1
    for window in (1, 4, 8, 9, 4096):
        sized = Plan(plan.leaves, plan.choices, max_bytes=window)
        asks = (
            lambda window=window: reshard(x, target, max_bytes=window),
            lambda window=window: plan_reshard(x, target, max_bytes=window).run(x),
            lambda sized=sized: Plan.from_json(sized.to_json()).run(x),
        )
        for ask in asks:
            if window >= 2 * peers * x.dtype.itemsize:
                assert (whole(ask()) == GRID).all()
                continue
            with pytest.raises(ArgumentError) as error:
                ask()
            said = (
                f"max_bytes={window} allows {window // (2 * peers)} bytes at a time to each of "
                f"{peers} other processes, and as many from it, but one element of float32[48,32] "
                f"takes 4 bytes. Give at least {8 * peers}."
            )
            assert said in str(error.value)
    assert (whole(x) == GRID).all()


def test_progress_reaches_the_end() -> None:
    def body():
        seen = []
        tree = [put(GRID, "i", "j"), put(GRID, "i")]
        reshard(tree, named("j"), progress=lambda done, total: seen.append((done, total)))
        return seen[-1], all(a[0] <= b[0] for a, b in itertools.pairwise(seen))

    (done, total), rising = alone(body)
    assert done == total == 2 * GRID.nbytes
    assert rising


def test_a_bar_is_drawn_when_asked_for(capsys) -> None:
    alone(lambda: reshard(put(GRID, "i"), named(None, "j"), progress=True))
    assert "resharding" in capsys.readouterr().err


def test_between_device_sets_and_boxes() -> None:
    def body():
        devices = meshard.devices()
        left = Mesh(np.array(devices[:4]).reshape(2, 2), ("a", "b"))
        right = Mesh(np.array(devices[3:6]), "c")
        x = meshard.device_put(GRID, NamedSharding(left, P("a", "b")))
        y = reshard(x, NamedSharding(right, P("c"), uneven=((0, 1, 40, 48), None)))
        boxes = BoxSharding(
            (48, 32),
            {devices[7]: (slice(0, 30), slice(0, 32)), devices[0]: (slice(20, 48), slice(0, 32))},
        )
        z = reshard(y, boxes)
        return [whole(reshard(v, named())) for v in (y, z)]

    for found in everywhere(body):
        assert found.tobytes() == GRID.tobytes()


@in_worlds
def test_a_plan_runs() -> None:
    x = {"w": put(GRID, "i", "j"), "b": put(GRID[0], "j")}
    target = {"w": named("j"), "b": named()}
    plan = plan_reshard(x, target)
    moved = plan.run(x)
    assert moved["w"].sharding == target["w"]
    assert (whole(moved["w"]) == GRID).all()
    assert (whole(moved["b"]) == GRID[0]).all()
    with pytest.raises(
        ArgumentError, match=r"w is not laid out as planned\. The plan is for .*'j'"
    ):
        plan.run({"w": put(GRID, "j"), "b": x["b"]})
    with pytest.raises(
        TreeError, match=r"no leaf \['b'\], \['w'\], and the plan has no leaf \[0\]"
    ):
        plan.run([x["w"]])
    bare = Plan([replace(leaf, path=None) for leaf in plan.leaves], plan.choices)
    assert (whole(bare.run([x["b"], x["w"]])[1]) == GRID).all()
    with pytest.raises(TreeError, match="for 2 arrays, but the tree has 1"):
        bare.run([x["w"]])


def test_a_plan_of_several_hops_runs_hop_by_hop() -> None:
    """Stripes to each replica, which then gather: every process sends the array's bytes once."""

    def body():
        devices = meshard.devices()
        left = Mesh(devices[:4], "f")
        right = Mesh(devices[4:], "t")
        x = meshard.device_put(BIG, NamedSharding(left, P("f")))
        (leaf,) = plan_reshard(x, NamedSharding(right, P())).leaves
        route = striped(leaf.source, leaf.destination)
        choice = Choice(route, figures_of(route, leaf.itemsize))
        with watched() as seen:
            moved = Plan([leaf], [choice]).run(x)
        return route.name, seen.sent, whole(reshard(moved, named()))

    from meshard.runtime.simulated import simulate

    found = simulate(8, 1, body, deadline=30)
    assert {name for name, _, _ in found} == {"striped"}
    assert [sent for _, sent, _ in found[:4]] == [BIG.nbytes // 4] * 4
    assert all(value.tobytes() == BIG.tobytes() for _, _, value in found)
    assert alone(body)[2].tobytes() == BIG.tobytes()


def test_the_cache_finds_plans_and_their_like() -> None:
    def body():
        cache = plan_cache()
        devices = meshard.devices()
        for k in range(4):
            four = Mesh(np.array(devices[k : k + 4]), "x")
            x = meshard.device_put(GRID, NamedSharding(four, P("x")))
            plan_reshard(x, NamedSharding(four, P(None, "x")))
            plan_reshard(x, NamedSharding(four, P(None, "x")))
        found = cache.statistics
        cache.clear()
        return found, cache.statistics.size

    found, size = alone(body)
    assert (found.misses, found.renamed, found.hits, found.size) == (1, 3, 4, 1)
    assert size == 0


def test_only_what_is_lacking_crosses_between_processes() -> None:
    def body():
        x = put(GRID, "i", "j")
        with watched() as seen:
            reshard(x, named("i"))
        return seen

    from meshard.runtime.simulated import simulate

    for seen in simulate(8, 1, body, deadline=30):
        assert seen.sent <= GRID.nbytes // 8


@pytest.mark.parametrize("window", [None, 1 << 16])
def test_processes_that_hold_unequal_parts_cut_a_tree_alike(monkeypatch, window) -> None:
    monkeypatch.setattr(schedule, "BATCH", 1 << 12)

    def body() -> list[np.ndarray]:
        devices = meshard.devices()
        some = NamedSharding(Mesh(devices[:3], ("k",)), P())
        ends = [some, devices[0], NamedSharding(mesh(), P("i")), NamedSharding(mesh(), P())]
        values = [np.arange(96.0 * (k + 1)).reshape(12, -1) + k for k in range(24)]
        tree = [meshard.device_put(v, ends[k % 4]) for k, v in enumerate(values)]
        moved = reshard(tree, [ends[(k * k + 1) % 4] for k in range(24)], max_bytes=window)
        return [whole(x) for x in reshard(moved, NamedSharding(mesh(), P()))]

    for found, k in zip(everywhere(body), range(24), strict=True):
        assert (found == np.arange(96.0 * (k + 1)).reshape(12, -1) + k).all()
