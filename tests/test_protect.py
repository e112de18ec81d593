"""Trees that outlive processes: copies, versions, and what comes back from them."""

import random

import numpy as np
import pytest

import meshard
from meshard import elastic
from meshard.errors import (
    AgreementError,
    ArgumentError,
    DataLoss,
    DeletedArrayError,
    ProcessLostError,
    TreeError,
)
from meshard.resilience.copies import placement
from meshard.resilience.copies.protect import held_versions, newest_common, settle
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import die
from tests.losing import box_mask, held_mask, lose, random_sharding
from tests.test_missing import local_parts, rows
from tests.test_restore import SHAPES, values

SMALL = 1


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """Cut small boxes too."""
    monkeypatch.setattr(placement, "_LEAST_PART", SMALL)


def copied_mask(plan, name, process_of, alive):
    """Return by counting which elements some processes hold a copy of."""
    (array,) = [a for a in plan.arrays if a.name == name]
    found = np.zeros(array.own.shape, bool)
    for piece in range(array.copies.piece_count if array.copies is not None else 0):
        if any(d >= 0 and process_of[d] in alive for d in array.copies.holders(piece)):
            found[array.copies.box(piece).slices] = True
    return found


@pytest.mark.parametrize("seed", range(40))
def test_any_deaths_leave_the_same_bits_or_exactly_the_lost_boxes(seed):
    def program():
        pick = random.Random(seed)
        world, given = here(), values()
        count, copies = len(world.processes), pick.randint(1, 2)
        process_of = {d.id: d.process_index for d in world.devices}
        before = {k: random_sharding(pick, s, world.devices) for k, s in SHAPES.items()}
        tree = {k: meshard.device_put(given[k], before[k]) for k in SHAPES}
        guard = elastic.protect({"state": tree, "step": 7}, copies=copies)
        plan = guard.plan
        for k, s in SHAPES.items():  # each element is in enough processes
            holders = np.zeros(s, int)
            for p in range(count):
                mine = [d for d, q in process_of.items() if q == p]
                mask = copied_mask(plan, f"state.{k}", process_of, [p])
                own = held_mask(before[k], s, mine)
                assert not (mask & own).any()
                holders += mask | own
            assert (holders >= copies + 1).all()
        dead = pick.sample(range(count), pick.randint(0, 3))
        if not lose(*dead):
            return None
        alive = {d.id: d.process_index for d in world.devices}
        after = {k: random_sharding(pick, s, world.devices) for k, s in SHAPES.items()}
        places = {"state": after}
        lost, moved = {}, 0
        for k, s in SHAPES.items():
            name = f"state.{k}"
            has = held_mask(before[k], s, alive)
            has |= copied_mask(plan, name, process_of, world.processes)
            if (~has).any():
                lost[name] = ~has
            for p in world.processes:
                mine = [d for d, q in alive.items() if q == p]
                wanted = held_mask(after[k], s, mine)
                own = held_mask(before[k], s, mine)
                own |= copied_mask(plan, name, process_of, [p])
                moved += 8 * int((wanted & ~own).sum())
        planned = elastic.plan_restore(guard, places)
        assert planned.lost.keys() == lost.keys()
        for name, mask in lost.items():
            assert np.array_equal(box_mask(mask.shape, planned.lost[name]), mask)
        if len(dead) <= copies:
            assert not lost
        if lost:
            with pytest.raises(DataLoss, match=r"elastic.restore: state") as error:
                elastic.restore(guard, places)
            assert error.value.by_name == planned.lost
            return False
        assert planned.bytes_moved == planned.bound == moved
        with meshard.debug.ledger() as log:
            found = elastic.restore(guard, places)
        assert found["step"] == 7
        for k in SHAPES:
            local_parts(found["state"][k], given[k])
        guard.refresh({"state": found["state"], "step": 8})
        return log.received, str(planned), str(plan), guard.version

    hosts = [None, [0, 0, 1, 1, 1], [0, 1, 2, 3, 4]][seed % 3]
    found = [r for r in simulate(5, 2, program, hosts=hosts) if r is not None]
    assert all(r == found[0] for r in found)


def test_copies_take_as_much_memory_everywhere_and_donors_share():
    def program():
        world = here()
        x = meshard.device_put(np.arange(1 << 14).astype("float32"), rows(world.devices))
        guard = elastic.protect({"x": x})
        memory = guard.plan.memory
        assert sum(memory.values()) == x.nbytes == guard.plan.bytes_moved
        assert max(memory.values()) <= 1.02 * min(memory.values())
        assert max(guard.plan.sent.values()) <= 1.02 * min(guard.plan.sent.values())
        assert guard.nbytes == pytest.approx(2 * x.nbytes / 4, rel=0.02)
        if not lose(2):
            return None
        whole = NamedSharding(Mesh(np.array(world.devices), ("x",)), P())
        plan = elastic.plan_restore(guard, whole)
        assert np.array_equal(np.asarray(elastic.restore(guard, whole)["x"]), np.arange(1 << 14))
        return plan.balance

    found = simulate(4, 1, program)
    assert found[0] <= 1.05


def test_what_has_enough_holders_is_not_copied():
    def program():
        devices = np.array(here().devices)
        pairs = NamedSharding(Mesh(devices.reshape(2, 2), ("r", "x")), P("x"))
        x = meshard.device_put(np.arange(8.0), pairs)
        y = meshard.numpy.ones(4)  # each process has its own
        plan = elastic.plan_protect({"x": x, "y": y})
        assert plan.bytes_moved == 0
        assert "2 have enough holders" in str(plan)
        more = elastic.plan_protect({"x": x, "y": y}, copies=2)
        assert more.bytes_moved == x.nbytes
        assert here().protected == {}
        told = meshard.ShapeDtypeStruct((8,), "float64", sharding=pairs)
        assert elastic.plan_protect({"x": told}, copies=2).bytes_moved == x.nbytes
        with pytest.raises(ArgumentError, match=r"protect: x is not an array, but ShapeD"):
            elastic.protect({"x": told}, copies=2)
        guard = elastic.protect({"x": x, "y": y, "none": None}, copies=2)
        if not lose(0, 3):
            return
        found = elastic.restore(guard, {"x": rows(here().devices), "y": None, "none": None})
        local_parts(found["x"], np.arange(8.0))

    with pytest.raises(ArgumentError, match=r"elastic.restore: y has no sharding"):
        simulate(4, 1, program)


def test_hosts_keep_copies_apart():
    def program():
        world = here()
        x = meshard.device_put(np.arange(12.0), rows(world.devices))
        guard = elastic.protect({"x": x}, apart="host")
        if not lose(2, 3, 4):  # all of one host
            return None
        found = elastic.restore(guard, rows(world.devices))
        local_parts(found["x"], np.arange(12.0))
        with pytest.raises(ArgumentError, match=r"copies=2 with apart='host' needs 3 hosts, but"):
            elastic.protect({"x": found["x"]}, copies=2, apart="host")
        return guard.plan.apart.domains

    assert [r for r in simulate(6, 1, program, hosts=[0, 0, 1, 1, 1, 2]) if r] == [3, 3, 3]


def test_too_few_processes_are_refused_with_the_numbers():
    def program():
        x = meshard.device_put(np.arange(4.0), rows(here().devices))
        with pytest.raises(ArgumentError, match=r"copies=2 with apart='process' needs 3 processes"):
            elastic.protect({"x": x}, copies=2)
        with pytest.raises(ArgumentError, match=r"but 2 processes on 1 host take part. Keep fewer"):
            elastic.plan_protect({"x": x}, apart="host")
        guard = elastic.protect({"x": x}, name="state")
        with pytest.raises(ArgumentError, match=r"the name 'state' is taken"):
            elastic.protect({"x": x}, name="state")
        if lose(1):  # alone there is nobody to keep copies, and that is no fault
            x = elastic.restore(guard, rows(here().devices))["x"]
            guard.refresh({"x": x + 1})
            assert guard.plan.copies == 0
            assert np.array_equal(np.asarray(guard.tree["x"]), np.arange(4.0) + 1)

    simulate(2, 1, program)


def test_a_version_stays_until_the_next_is_complete_everywhere():
    def program():
        world = here()
        x = meshard.device_put(np.arange(8.0), rows(world.devices))
        guard = elastic.protect({"x": x, "step": 1})
        with pytest.raises(TreeError, match=r"'y' is in one of them only"):
            guard.refresh({"x": x, "y": 2})
        gone = x + 1
        gone.delete()
        with pytest.raises(DeletedArrayError):
            guard.refresh({"x": gone, "step": 2})
        real = world.transport.barrier

        def broken(peers):
            real(peers)
            if world.process_index == 1:
                raise RuntimeError("interrupted")

        world.transport.barrier = broken
        try:
            guard.refresh({"x": x + 1, "step": 2})
        except RuntimeError:
            assert world.process_index == 1
            assert guard.tree["step"] == 1
        world.transport.barrier = real
        told = world.transport.all_gather(held_versions(world), world.processes)
        assert [len(v) for ((_, v),) in told] == [1, 2, 1, 1]
        settle(world, newest_common(told))
        assert (guard.version, guard.tree["step"]) == (2, 2)
        local_parts(guard.tree["x"], np.arange(8.0) + 1)
        guard.refresh({"x": x, "step": 3})
        return guard.version

    assert simulate(4, 1, program) == [3, 3, 3, 3]


def test_donation_takes_no_version_away():
    def program():
        world = here()
        value = np.arange(1 << 15).astype(np.float64)
        x = meshard.device_put(value, rows(world.devices))
        guard = elastic.protect({"x": x, "same": x})
        both = guard.tree
        assert both["x"] is both["same"]
        meshard.reshard(x, rows(world.devices[::-1]), donate=True)
        meshard.jit(lambda x: x * 2, donate_argnums=0)(guard.tree["x"])
        guard.tree["x"].delete()
        local_parts(guard.tree["x"], value)
        nbytes = guard.nbytes
        for _ in range(3):
            guard.refresh(guard.tree)
            assert guard.nbytes == nbytes
        guard.close()
        assert guard.nbytes == 0
        with pytest.raises(ArgumentError, match=r"Protected.tree: 'protected 0' has been closed"):
            _ = guard.tree

    simulate(2, 2, program)


def test_values_travel_as_copies():
    box = {"x": meshard.device_put(np.ones(3), meshard.devices()[0]), "log": np.arange(3)}
    guard = elastic.protect({**box, "name": "run"})
    box["log"][0] = 9
    assert guard.tree["log"].tolist() == [0, 1, 2]
    guard.tree["log"][0] = 9
    assert guard.tree["log"].tolist() == [0, 1, 2]
    with pytest.raises(TreeError, match=r"the leaf 'f' is a function, which cannot be told"):
        elastic.protect({"f": lambda: 0})
    assert "version 1" in repr(guard)
    guard.close()


def test_a_newcomer_holds_nothing_and_gets_everything():
    def program():
        world = here()
        late = world.process_index == 3
        world.take_part([3] if late else [0, 1, 2])
        mine = rows(world.devices)
        x = meshard.device_put(np.arange(8.0) * (not late), mine)
        guard = elastic.protect({"x": x, "step": 0 if late else 4, "log": ["a"]})
        if not late:
            guard.refresh({"x": guard.tree["x"] + 1, "step": 5, "log": ["b"]})
        told = held_versions(world)
        world.take_part([0, 1, 2, 3])
        every = world.transport.all_gather(None if late else told, world.processes)
        settle(world, newest_common([t for t in every if t is not None]))
        assert guard.tree["step"] == (0 if late else 5)
        if late:
            with pytest.raises(ArgumentError, match=r"holds nothing of 'protected 0' yet"):
                elastic.plan_restore(guard, rows(world.devices))
        found = elastic.restore(guard, {"x": rows(world.devices), "log": None})
        local_parts(found["x"], np.arange(8.0) + 1)
        assert (found["step"], found["log"], guard.version) == (5, ["b"], 2)
        guard.refresh({**found, "step": 6})
        assert guard.tree["step"] == 6
        return guard.version, guard.plan.copies

    assert simulate(4, 1, program) == [(3, 1)] * 4


def test_lost_arrays_are_not_protected():
    def program():
        world = here()
        x = meshard.device_put(np.arange(8.0), rows(world.devices))
        if lose(1):
            with pytest.raises(DataLoss, match=r"x: No live device holds \[2:4\].*restore first"):
                elastic.protect({"x": x})
            assert not world.protected

    simulate(4, 1, program)


@pytest.mark.parametrize("seed", range(12))
def test_a_death_at_any_moment_leaves_one_version_to_all(seed):
    """One dies in its nth message; the others go on with the newest version that all have."""

    def program():
        pick = random.Random(seed)
        world = here()
        dies, moment = pick.randrange(4), pick.randint(1, 40)
        x = meshard.device_put(np.arange(40.0), rows(world.devices))
        guard = elastic.protect({"x": x, "step": 0})
        calls = [0]
        for name in ("exchange", "barrier", "all_gather"):
            real = getattr(world.transport, name)

            def counted(*given, real=real):
                calls[0] += 1
                if world.process_index == dies and calls[0] == moment and len(world.processes) == 4:
                    die()
                return real(*given)

            setattr(world.transport, name, counted)
        while guard.tree["step"] < 12:
            try:
                state = guard.tree
                if not state["x"].is_complete:
                    state = elastic.restore(guard, rows(world.devices))
                guard.refresh({"x": state["x"] * 1.5 + 1, "step": state["step"] + 1})
            except ProcessLostError:
                elastic.recover()
                told = world.transport.all_gather(held_versions(world), world.processes)
                settle(world, newest_common(told))
        expected = np.arange(40.0)
        for _ in range(12):
            expected = expected * 1.5 + 1
        local_parts(guard.tree["x"], expected)
        return guard.version

    found = simulate(4, 1, program)
    assert [v for v in found if v is not None] == [13] * (3 if None in found else 4)


def test_odd_arrays_are_kept_too():
    def program():
        world = here()
        devices = world.devices
        last = NamedSharding(Mesh(np.array(devices[2:]), ("x",)), P())
        tree = {
            "scalar": meshard.device_put(np.float32(3), last),
            "empty": meshard.device_put(np.zeros((0, 3)), rows(devices)),
            "short": meshard.device_put(np.arange(2, dtype=np.int8), rows(devices)),
            "flags": meshard.device_put(np.arange(9) % 2 == 0, rows(devices[::-1])),
            "half": meshard.device_put(np.arange(8), rows(devices)).astype("bfloat16"),
            "key": meshard.random.key(7),
            "nothing": (),
        }
        guard = elastic.protect(tree)
        if not lose(2):
            return
        places = {k: None if k == "nothing" else last_of(world) for k in tree}
        places["nothing"] = ()
        found = elastic.restore(guard, places)
        assert float(np.asarray(found["scalar"])) == 3
        assert found["empty"].shape == (0, 3)
        assert np.asarray(found["short"]).tolist() == [0, 1]
        assert np.asarray(found["flags"]).tolist() == [True, False] * 4 + [True]
        assert np.asarray(found["half"]).astype(int).tolist() == list(range(8))
        assert found["key"].dtype == tree["key"].dtype
        assert found["nothing"] == ()
        elastic.protect({"n": 3})
        elastic.protect({})

    def last_of(world):
        return NamedSharding(Mesh(np.array(world.devices), ("x",)), P())

    simulate(3, 1, program)


def test_more_deaths_than_copies_need_a_checkpoint(tmp_path):
    def program():
        world = here()
        value = np.arange(24.0)
        tree = {"a": {"x": meshard.device_put(value, rows(world.devices))}, "step": 4}
        guard = elastic.protect(tree)
        meshard.checkpoint.save(tmp_path / "c", tree)
        if not lose(1, 2):
            return None
        place = {"a": rows(world.devices)}
        with pytest.raises(DataLoss, match=r"elastic.restore: a.x: No live device holds"):
            elastic.restore(guard, place)
        plan = elastic.plan_restore(guard, place, tmp_path / "c")
        found = elastic.restore(guard, place, tmp_path / "c")
        local_parts(found["a"]["x"], value)
        assert found["step"] == 4
        return plan.bytes_read, plan.bytes_lost

    found = [r for r in simulate(4, 1, program) if r is not None]
    assert found[0] == found[1]
    read, lost = found[0]
    assert 0 < read < lost == 12 * 8  # some of what the two held is with the others


def test_the_newest_version_that_all_have_is_taken():
    one, two, other = (1, (0, 1)), (2, (0, 1)), (3, (4,))
    both, first = (("w", (one, two)), ("v", ())), (("w", (one,)), ("v", (one,)))
    assert newest_common([both, both]) == {"w": two}
    assert newest_common([both, first, ()]) == {"w": one, "v": one}
    assert newest_common([both, (("w", (other,)),)]) == {}
    assert newest_common([]) == {}


def test_numbers_must_be_the_same_on_all_processes():
    def program():
        guard = elastic.protect({"x": meshard.numpy.zeros(3), "step": 0})
        with pytest.raises(AgreementError, match=r"Protected\.refresh"):
            guard.refresh({"x": meshard.numpy.zeros(3), "step": meshard.process_index()})
        assert guard.tree["step"] == 0

    simulate(2, 1, program, deadline=10)
