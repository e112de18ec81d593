"""Between what each process has and what all have together."""

import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DeletedArrayError,
    DtypeError,
    IndivisibleError,
    ShapeError,
    ShardingError,
    SpecError,
    TreeError,
    UnequalError,
)
from meshard.multihost_utils import (
    assert_equal,
    broadcast_one_to_all,
    gather,
    global_array_to_host_local_array,
    global_to_local_shape,
    host_local_array_to_global_array,
    local_to_global_shape,
    process_allgather,
    sync_global_devices,
)
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P, Sharding, SingleDeviceSharding

from .lays import calm, in_boxes, on_meshes, shapes
from .worlds import alone, whole

WORLDS = pytest.mark.parametrize("processes", [1, 2, 4, 8])
GRID = np.arange(64.0).reshape(8, 8)
KINDS = ["f8", "f4", "i2", "u1", "?", "c16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def run(processes: int, body: Any) -> list[Any]:
    return simulate(processes, 8 // processes, body, deadline=20)


def me() -> int:
    return meshard.process_index()


def line(name: str = "x") -> Mesh:
    return Mesh(meshard.devices(), name)


def hosts() -> Mesh:
    grid = np.array(meshard.devices(), object).reshape(meshard.process_count(), -1)
    return Mesh(grid, ("host", "device"))


def spread(value: np.ndarray, *spec: Any, on: Mesh | None = None) -> meshard.Array:
    return meshard.device_put(value, NamedSharding(on or line(), P(*spec)))


def refusal(processes: int, kind: type[Exception], body: Any) -> str:
    """Return the one message with which all processes refuse."""

    def caught() -> str:
        with pytest.raises(kind) as error:
            body()
        return str(error.value)

    messages = run(processes, caught)
    assert len(set(messages)) == 1, messages
    return messages[0]


class Spy:
    """Counts the bytes that a process sends and receives in boxes."""

    def __init__(self) -> None:
        self.inner = here().transport
        self.index, self.count = self.inner.index, self.inner.count
        self.table, self.hosts = self.inner.table, self.inner.hosts
        self.sent: dict[int, int] = {}
        self.received = 0
        self.letters = 0
        here().transport = self  # type: ignore[assignment]

    def exchange(self, sends: Any, receives: Any) -> None:
        for peer, blocks in sends:
            self.sent[peer] = self.sent.get(peer, 0) + sum(b.nbytes for b in blocks)
        self.received += sum(b.nbytes for _, blocks in receives for b in blocks)
        self.inner.exchange(sends, receives)

    def share(self, lent: Any, taken: Any) -> list[Any]:
        return self.inner.share(lent, taken)

    def all_gather(self, value: object, peers: Any) -> list[object]:
        self.letters += 1
        return self.inner.all_gather(value, peers)

    def barrier(self, peers: Any) -> None:
        self.inner.barrier(peers)


# host-local to global


@WORLDS
@pytest.mark.parametrize("dtype", KINDS)
def test_local_rows_join_in_the_order_of_the_processes(processes, dtype):
    def body() -> None:
        local = (np.arange(8) * (me() + 1) % 7).astype(dtype)
        x = host_local_array_to_global_array(local, line(), P("x"))
        assert x.sharding == NamedSharding(line(), P("x"))
        assert x.committed
        expected = np.concatenate(
            [(np.arange(8) * (p + 1) % 7).astype(dtype) for p in range(processes)]
        )
        assert x.dtype == expected.dtype
        assert whole(x).tobytes() == expected.tobytes()
        back = global_array_to_host_local_array(x, line(), P("x"))
        assert back.is_fully_addressable
        assert back.sharding.is_equivalent_to(NamedSharding(line().local_mesh, P("x")), 1)
        assert np.array(back).tobytes() == local.tobytes()
        assert back.dtype == local.dtype

    run(processes, body)


@WORLDS
@pytest.mark.parametrize(
    ("spec", "global_of"),
    [
        (("host",), lambda parts: np.concatenate(parts)),
        (("device",), lambda parts: parts[0]),
        ((), lambda parts: parts[0]),
        ((None, "host"), lambda parts: np.concatenate(parts, axis=1)),
        ((("host", "device"),), lambda parts: np.concatenate(parts)),
        (("host", "device"), lambda parts: np.concatenate(parts)),
        (("device", "host"), lambda parts: np.concatenate(parts, axis=1)),
    ],
)
def test_a_dim_grows_by_the_processes_along_its_axes(processes, spec, global_of):
    """Split over host axes the parts join; over a process's own devices they do not."""
    used = [a for e in spec for a in ((e,) if isinstance(e, str) else e or ())]

    def body() -> None:
        parts = [GRID + (100 * p if "host" in used else 0) for p in range(processes)]
        x = host_local_array_to_global_array(parts[me()], hosts(), P(*spec))
        np.testing.assert_array_equal(whole(x), global_of(parts))
        back = global_array_to_host_local_array(x, hosts(), P(*spec))
        np.testing.assert_array_equal(np.array(back), parts[me()])

    run(processes, body)


@WORLDS
def test_local_arrays_share_their_blocks_and_others_are_laid_out(processes):
    def body() -> None:
        mine = line().local_mesh
        local = meshard.device_put(GRID, NamedSharding(mine, P("x")))
        x = host_local_array_to_global_array(local, line(), P("x"))
        assert x.shape == (8 * processes, 8)
        held = {id(b) for b in local._live()}
        assert {id(b) for b in x._live() if b is not None} == held
        for other in (
            meshard.device_put(GRID, mine.flat_devices[-1]),
            meshard.numpy.asarray(GRID),
            meshard.device_put(GRID, NamedSharding(mine, P(None, "x"))),
        ):
            again = host_local_array_to_global_array(other, line(), P("x"))
            assert whole(again).tobytes() == whole(x).tobytes()
        back = global_array_to_host_local_array(x, line(), P("x"))
        assert {id(b) for b in back._live()} == held

    run(processes, body)


@WORLDS
def test_specs_are_a_prefix_of_the_tree(processes):
    def body() -> None:
        tree = {"a": GRID, "b": [GRID[0], 3, None], "c": (np.float32(2.5), GRID)}
        specs = {"a": P("x"), "b": P(), "c": (P(), P(None, "x"))}
        x = host_local_array_to_global_array(tree, line(), specs)
        assert x["b"][2] is None
        shapes = [x["a"].shape, x["b"][0].shape, x["b"][1].shape, x["c"][0].shape, x["c"][1].shape]
        assert shapes == [(8 * processes, 8), (8,), (), (), (8, 8 * processes)]
        assert [x["b"][1].dtype, x["c"][0].dtype] == [np.dtype("i8"), np.dtype("f4")]
        back = global_array_to_host_local_array(x, line(), specs)
        assert back["b"][2] is None
        for part in ("a", "b", "c"):
            pairs = zip(
                meshard.tree.leaves(back[part]), meshard.tree.leaves(tree[part]), strict=True
            )
            for found, wanted in pairs:
                np.testing.assert_array_equal(np.array(found), wanted)
        # A None in the tree needs no spec, one spec serves a whole tree, none are needed for none.
        one, nothing = host_local_array_to_global_array((GRID, None), line(), (P("x"), None))
        assert one.shape == (8 * processes, 8)
        assert nothing is None
        assert host_local_array_to_global_array([], line(), P("x")) == []

    run(processes, body)


@WORLDS
def test_typed_keys_and_empty_arrays_go_both_ways(processes):
    def body() -> None:
        keys = meshard.random.split(meshard.random.key(me()), 8)
        x = host_local_array_to_global_array(keys, line(), P("x"))
        assert x.shape == (8 * processes,)
        back = global_array_to_host_local_array(x, line(), P("x"))
        assert np.asarray(back).tobytes() == np.asarray(keys).tobytes()
        empty = host_local_array_to_global_array(np.empty((0, 3)), line(), P("x"))
        assert empty.shape == (0, 3)
        assert global_array_to_host_local_array(empty, line(), P("x")).shape == (0, 3)

    run(processes, body)


@WORLDS
def test_what_is_converted_already_stays_as_it_is(processes):
    def body() -> None:
        x = spread(GRID, "x")
        again = host_local_array_to_global_array(x, line(), P(None, "x"))
        local = meshard.device_put(GRID, meshard.local_devices()[0])
        assert global_array_to_host_local_array(local, line(), P("x")) is local
        if processes > 1:
            assert again is x
        else:
            assert again.sharding == NamedSharding(line(), P(None, "x"))

    run(processes, body)


@WORLDS
def test_a_global_array_that_lies_otherwise_is_moved_first(processes):
    def body() -> None:
        x = spread(GRID, None, "x")
        local = global_array_to_host_local_array(x, line(), P("x"))
        if processes == 1:
            assert local is x
        rows = 8 // processes
        wanted = GRID if processes == 1 else GRID[me() * rows : (me() + 1) * rows]
        np.testing.assert_array_equal(np.array(local), wanted)
        replicated = global_array_to_host_local_array(x, line(), P())
        np.testing.assert_array_equal(np.array(replicated), GRID)

    run(processes, body)


def test_only_the_processes_of_a_mesh_need_to_call():
    def body() -> None:
        mesh = Mesh(meshard.devices()[2:6], "x")
        if me() in (0, 3):
            with pytest.raises(ShardingError, match=f"process {me()} has no part of") as error:
                host_local_array_to_global_array(GRID, mesh, P("x"))
            assert "whose devices belong to processes [1, 2]" in str(error.value)
            with pytest.raises(ShardingError, match=f"process {me()} has no part of"):
                global_array_to_host_local_array(GRID, mesh, P("x"))
            return
        x = host_local_array_to_global_array(GRID + me(), mesh, P("x"))
        assert x.shape == (16, 8)
        back = global_array_to_host_local_array(x, mesh, P("x"))
        np.testing.assert_array_equal(np.array(back), GRID + me())

    run(4, body)


def test_a_mesh_with_unlike_parts_takes_parts_in_proportion():
    def body() -> None:
        mesh = Mesh(meshard.devices()[:6], "x")
        local = np.arange([8, 4][me()]) + 10 * me()
        x = host_local_array_to_global_array(local, mesh, P("x"))
        assert whole(x).tolist() == [*range(8), *range(10, 14)]

    run(2, body)


def test_the_blocks_of_processes_may_lie_anywhere_in_a_mesh():
    def body() -> None:
        order = np.array(meshard.devices(), object).reshape(2, 2, 2).transpose(1, 0, 2)
        mesh = Mesh(order.reshape(2, 4), ("i", "j"))
        x = host_local_array_to_global_array(GRID + 100 * me(), mesh, P(None, "j"))
        np.testing.assert_array_equal(whole(x), np.concatenate([GRID, GRID + 100], axis=1))

    run(2, body)


def test_devices_of_a_process_that_form_no_block_are_refused():
    def body() -> None:
        mesh = Mesh([meshard.devices()[i] for i in (0, 4, 1, 5)], "x")
        host_local_array_to_global_array(GRID, mesh, P("x"))

    message = refusal(2, ShardingError, body)
    assert "the 2 devices of process 0 do not form a contiguous block" in message
    assert "make_array_from_process_local_data, which takes any mesh" in message


def test_local_shapes_of_no_one_global_shape_are_refused_by_all():
    def body() -> None:
        host_local_array_to_global_array({"w": np.zeros(4 * (1 + me()))}, line(), P("x"))

    message = refusal(2, ShapeError, body)
    assert "the local shapes of w do not belong to one global shape under P('x',)" in message
    assert "(4,) on process 0; (8,) on process 1" in message
    assert "(8,) on process 0; (16,) on process 1" in message

    def rank() -> None:
        host_local_array_to_global_array(np.zeros((8,) * (1 + me())), line(), P("x"))

    assert "one rank and dtype on all processes" in refusal(2, ShapeError, rank)

    def dtype() -> None:
        host_local_array_to_global_array(np.zeros(8, ["f4", "f8"][me()]), line(), P("x"))

    message = refusal(2, ShapeError, dtype)
    assert "float32[8] on process 0; float64[8] on process 1" in message


def test_a_local_dim_that_does_not_divide_is_refused_and_said_to_be_local():
    def body() -> None:
        host_local_array_to_global_array([GRID, np.zeros((8, 6))], line(), P(None, "x"))

    message = refusal(2, IndivisibleError, body)
    assert "1 has the local shape (8, 6) on process 0" in message
    assert "the local size of its dimension 1 should be divisible by 4, but it is equal to 6" in (
        message
    )
    assert "Inputs are host-local, not global" in message


@pytest.mark.parametrize("processes", [1, 2])
def test_wrong_specs_are_refused(processes):
    def at(tree: Any, specs: Any, mesh: Any = None) -> Any:
        return lambda: host_local_array_to_global_array(tree, mesh or line(), specs)

    def back(specs: Any) -> Any:
        return lambda: global_array_to_host_local_array(spread(GRID, "x"), line(), specs)

    for body in (at(GRID, None), at({"a": GRID}, {"a": None}), back(None)):
        message = refusal(processes, ArgumentError, body)
        assert "`None` is not a valid input to the pspecs argument" in message
    message = refusal(processes, ArgumentError, at(GRID, "x"))
    assert "pspecs holds 'x' of type str, not a PartitionSpec" in message
    message = refusal(processes, TreeError, at({"a": GRID}, {"b": P()}))
    assert "the tree of pspecs must be a prefix of the tree of values" in message
    for body in (at(GRID, P("x", None, None)), back(P("x", None, None))):
        assert "P('x', None, None)" in refusal(processes, SpecError, body)
    for body in (at(GRID, P("k")), back(P("k"))):
        assert "axis 'k' of P('k',) is not found" in refusal(processes, SpecError, body)
    message = refusal(processes, ArgumentError, at(GRID, P(), mesh=3))
    assert "global_mesh must be a Mesh, got 3 of type int" in message


def test_processes_that_disagree_are_refused_by_all():
    def specs() -> None:
        host_local_array_to_global_array(GRID, line(), P("x") if me() else P())

    message = refusal(2, ArgumentError, specs)
    assert "pspecs must be the same on all processes; it is P() on process 0; P('x',) on" in message

    def trees() -> None:
        host_local_array_to_global_array([GRID] * (1 + me()), line(), P())

    message = refusal(2, TreeError, trees)
    assert "their leaves are [0] on process 0; [0, 1] on process 1" in message

    def calls() -> None:
        (process_allgather if me() else broadcast_one_to_all)(GRID)

    def caught() -> str:
        with pytest.raises(ArgumentError) as error:
            calls()
        return str(error.value)

    for message in run(2, caught):
        assert "broadcast_one_to_all on process 0; process_allgather on process 1" in message

    def mixed() -> None:
        x = spread(GRID, "x")
        host_local_array_to_global_array(x if me() else GRID, line(), P("x"))

    message = refusal(2, ShardingError, mixed)
    assert "its own on process 0; one on processes (0, 1) on process 1" in message


def test_host_local_values_are_refused_where_a_global_array_is_meant():
    def back() -> None:
        global_array_to_host_local_array({"w": GRID}, line(), P("x"))

    def caught() -> str:
        with pytest.raises(ShardingError) as error:
            back()
        return str(error.value)

    for number, message in enumerate(run(2, caught)):
        assert f"w, float64[8,8], is a host-local value of process {number}" in message
        assert "host_local_array_to_global_array" in message
    # In one process what is local is global.
    x = alone(lambda: global_array_to_host_local_array(GRID, line(), P("x")).sharding.spec)
    assert x == P("x")

    for value in (lambda: GRID, lambda: meshard.device_put(GRID, meshard.local_devices()[0])):
        message = refusal(2, ShardingError, lambda value=value: gather([value()]))
        assert "gather: 0, float64[8,8], is host-local: each process has its own" in message
        assert "process_allgather(x) stacks them" in message


def test_an_array_that_lies_beyond_the_mesh_is_refused():
    def body() -> str:
        x = spread(GRID, "x")
        mesh = Mesh(meshard.devices()[:4], "x")
        with pytest.raises(ShardingError) as error:
            global_array_to_host_local_array(x, mesh, P("x"))
        return str(error.value)

    first, second = run(2, body)
    assert "is also on process 1, which has no device of Mesh('x': 4)" in first
    assert "process 1 has no part of Mesh('x': 4)" in second


# gathering


@WORLDS
@pytest.mark.parametrize("dtype", KINDS)
def test_allgather_stacks_or_joins_what_each_process_has(processes, dtype):
    def body() -> None:
        parts = [(GRID[:3] + p).astype(dtype) for p in range(processes)]
        local = parts[me()]
        for value in (meshard.numpy.asarray(local), local):
            stacked = process_allgather(value)
            assert isinstance(stacked, np.ndarray)
            assert not stacked.flags.writeable
            assert (stacked.shape, stacked.dtype) == ((processes, 3, 8), local.dtype)
            joined = process_allgather(value, tiled=True)
            assert joined.shape == (3 * processes, 8)
            assert joined.tobytes() == np.concatenate(parts).tobytes()
        expected = np.stack(parts).tobytes()
        local[...] = 0  # what was gathered is not its memory
        assert stacked.tobytes() == expected

    run(processes, body)


@WORLDS
def test_allgather_of_numbers_trees_and_empty_arrays(processes):
    def body() -> None:
        tree = {"n": me(), "f": 0.5 * me(), "none": None, "empty": np.empty((0, 2)), "k": (True,)}
        found = process_allgather(tree)
        np.testing.assert_array_equal(found["n"], np.arange(processes))
        np.testing.assert_array_equal(found["f"], 0.5 * np.arange(processes))
        assert found["none"] is None
        assert found["empty"].shape == (processes, 0, 2)
        assert found["k"][0].dtype == bool
        assert process_allgather(np.empty((0, 2)), tiled=True).shape == (0, 2)
        # As in JAX, one process gets a number back as it is.
        number = process_allgather(me(), tiled=True)
        assert number.tolist() == (list(range(processes)) if processes > 1 else 0)
        keys = process_allgather(meshard.random.key(me()))
        assert keys.shape == (processes,)

    run(processes, body)


@WORLDS
@pytest.mark.parametrize("spec", [("x",), (None, "x"), ()])
def test_allgather_of_an_array_that_spans_processes_is_the_whole(processes, spec):
    def body() -> None:
        x = spread(GRID, *spec)
        found = process_allgather(x, tiled=True)
        assert not found.flags.writeable
        assert found.tobytes() == GRID.tobytes()
        # Where there is nothing to stack, `tiled` does not matter: what the advice says is true.
        plain = process_allgather(x)
        assert plain.tobytes() == GRID.tobytes()
        assert plain.shape == (GRID.shape if processes > 1 else (1, *GRID.shape))

    run(processes, body)


def test_allgather_reaches_processes_that_hold_nothing():
    def body() -> None:
        devices = meshard.devices()
        for place in (
            SingleDeviceSharding(devices[3]),
            NamedSharding(Mesh([devices[5], devices[2]], "x"), P("x")),
            BoxSharding(
                (8, 8),
                {devices[7]: (slice(0, 3), slice(0, 8)), devices[0]: (slice(2, 8), slice(0, 8))},
            ),
        ):
            x = meshard.device_put(GRID, place)
            assert process_allgather(x, tiled=True).tobytes() == GRID.tobytes()

    for processes in (2, 4, 8):
        run(processes, body)


def test_the_advice_of_an_array_that_spans_processes_is_true():
    def body() -> None:
        x = spread(GRID, "x")
        with pytest.raises(RuntimeError, match=r"multihost_utils\.process_allgather") as error:
            np.asarray(x)
        call = str(error.value).split(" with ")[1].split(",")[0]
        assert eval(call, {"meshard": meshard, "x": x}).tobytes() == GRID.tobytes()

    run(2, body)


@WORLDS
def test_gather_gives_the_root_the_whole_and_the_others_nothing(processes):
    def body() -> None:
        for root in {0, processes - 1, processes // 2}:
            for spec in (("x",), (None, "x"), ()):
                x = spread(GRID, *spec)
                spy = Spy()
                found = gather(x, root=root)
                here().transport = spy.inner
                if me() == root:
                    assert isinstance(found, np.ndarray)
                    assert not found.flags.writeable
                    assert found.tobytes() == GRID.tobytes()
                    assert found.dtype == GRID.dtype
                    assert spy.sent == {}
                    share = (processes - 1) * GRID.nbytes // processes if spec else 0
                    assert spy.received == share
                else:
                    assert found is None
                    assert spy.received == 0
                    assert set(spy.sent) <= {root}

    run(processes, body)


@WORLDS
def test_gather_takes_trees_and_arrays_anywhere(processes):
    def body() -> None:
        last = processes - 1
        tree = {"a": spread(GRID, "x"), "n": None}
        tree["b"] = meshard.device_put(GRID[0], meshard.devices()[0])
        found = gather(tree, np.int64(last))
        assert found["n"] is None
        if me() == last:
            assert found["a"].tobytes() == GRID.tobytes()
            assert found["b"].tobytes() == GRID[0].tobytes()
        else:
            assert found == {"a": None, "b": None, "n": None}

    run(processes, body)


def test_gather_in_one_process_takes_any_value():
    def body() -> None:
        value = np.arange(3)
        found = gather({"v": value, "n": 2})
        value[0] = 9
        assert found["v"].tolist() == [0, 1, 2]
        assert found["n"].tolist() == 2

    alone(body)


@pytest.mark.parametrize("root", [2, -1, "0", 0.0, None])
def test_gather_refuses_a_root_that_is_no_process(root):
    message = refusal(2, ArgumentError, lambda: gather(spread(GRID, "x"), root))
    assert f"root={root!r} is not the number of a process; there are 2, from 0 to 1" in message


def test_gather_and_allgather_refuse_what_processes_disagree_on():
    message = refusal(2, ArgumentError, lambda: gather(spread(GRID, "x"), me()))
    assert "root must be the same on all processes; it is 0 on process 0; 1 on process 1" in message
    message = refusal(2, ArgumentError, lambda: process_allgather(GRID, tiled=bool(me())))
    assert "tiled must be the same on all processes" in message
    message = refusal(4, ShapeError, lambda: process_allgather({"w": GRID[: 4 + me() // 3]}))
    assert "w must have one shape and dtype on all processes; it is float64[4,8] on processes" in (
        message
    )
    assert "0, 1, 2; float64[5,8] on process 3" in message
    message = refusal(2, DtypeError, lambda: process_allgather("abc"))
    assert "process_allgather" in message


def test_deleted_and_traced_values_are_refused():
    def deleted() -> None:
        x = meshard.device_put(GRID, meshard.local_devices()[0])
        x.delete()
        process_allgather(x)

    with pytest.raises(DeletedArrayError, match=r"deleted by delete\(\)"):
        alone(deleted)

    def traced() -> None:
        meshard.shard_map(process_allgather, mesh=line(), in_specs=P("x"), out_specs=P("x"))(GRID)

    with pytest.raises(ConcretizationError):
        alone(traced)


# broadcasting


@WORLDS
@pytest.mark.parametrize("dtype", KINDS)
def test_broadcast_gives_all_the_bits_of_one(processes, dtype):
    def body() -> None:
        bits = [np.array([-0.0, 1, p, 3]).astype(dtype) for p in range(processes)]
        for source in {None, 0, processes - 1}:
            chosen = None if source is None else me() == source
            tree = {
                "v": bits[me()],
                "n": me(),
                "none": None,
                "a": meshard.numpy.asarray(bits[me()]),
            }
            found = broadcast_one_to_all(tree, is_source=chosen)
            assert found["none"] is None
            assert int(found["n"]) == (source or 0)
            for name in ("v", "a"):
                assert isinstance(found[name], np.ndarray)
                assert not found[name].flags.writeable
                assert found[name].dtype == bits[0].dtype
                assert found[name].tobytes() == bits[source or 0].tobytes()

    run(processes, body)


def test_broadcast_keeps_nan_payloads_and_does_not_alias():
    def body() -> None:
        value = np.array([0x7FF8000000000001 + me()], np.uint64).view(np.float64)
        found = broadcast_one_to_all(value)
        value[0] = 1
        assert found.view(np.uint64).tolist() == [0x7FF8000000000001]

    run(4, body)


def test_broadcast_wants_one_source():
    message = refusal(4, ArgumentError, lambda: broadcast_one_to_all(3, is_source=me() in (1, 3)))
    assert "processes [1, 3] all say is_source=True" in message
    message = refusal(2, ArgumentError, lambda: broadcast_one_to_all(3, is_source=False))
    assert "no process says is_source=True" in message
    assert alone(lambda: broadcast_one_to_all(3, is_source=False)) == 3
    message = refusal(2, ShapeError, lambda: broadcast_one_to_all(np.zeros(2 + me())))
    assert "float64[2] on process 0; float64[3] on process 1" in message
    message = refusal(2, ShardingError, lambda: broadcast_one_to_all(spread(GRID, "x")))
    assert "is one array of processes (0, 1), and no process has another value of it" in message


# waiting and comparing


@WORLDS
def test_equal_trees_pass(processes):
    def body() -> None:
        tree = {"a": GRID, "b": [3, -0.0 if me() else 0.0, "text", None], "c": spread(GRID, "x")}
        tree["k"] = meshard.random.key(1)
        tree["r"] = spread(GRID)
        tree["z"] = np.empty((0, 3))
        tree["h"] = np.array([1, 2], ml_dtypes.bfloat16)
        assert assert_equal(tree) is None
        assert assert_equal(None) is None
        assert sync_global_devices("here") is None

    run(processes, body)


def test_an_array_that_lies_on_one_process_is_one_array():
    def body() -> None:
        last = meshard.device_put(spread(GRID, "x"), meshard.devices()[-1])
        assert assert_equal({"all": last}) is None
        assert process_allgather(last).tolist() == GRID.tolist()
        mine = meshard.device_put(GRID, meshard.local_devices()[0])  # each has one of its own
        assert assert_equal(mine) is None

    run(4, body)
    message = refusal(
        2, UnequalError, lambda: assert_equal(meshard.device_put(me(), meshard.local_devices()[0]))
    )
    assert "the value of process 1 differs from that of process 0" in message


def test_a_leaf_that_differs_is_named_with_the_processes():
    def body() -> None:
        tree = {"step": 7, "rates": [np.ones(2), np.array([1.0, 2 + (me() == 2)])]}
        assert_equal(tree, "the states have diverged")

    message = refusal(4, UnequalError, body)
    assert message == (
        "the states have diverged. assert_equal: rates.1 of process 2 differs from that of "
        "processes 0, 1, 3. It is float64[2] [1.0, 2.0] on processes 0, 1, 3; "
        "float64[2] [1.0, 3.0] on process 2."
    )
    with pytest.raises(AssertionError):
        run(4, body)


def test_kinds_structures_and_replicas_that_differ_are_named():
    message = refusal(2, UnequalError, lambda: assert_equal(np.zeros(2, ["f4", "f8"][me()])))
    assert "the value of process 1 differs from that of process 0" in message
    assert "It is float32[2] on process 0; float64[2] on process 1" in message
    message = refusal(2, UnequalError, lambda: assert_equal({"ab"[me()]: 1}))
    assert "the trees differ" in message
    message = refusal(2, UnequalError, lambda: assert_equal(["x"] * (1 + me())))
    assert "with leaves ['0'] on process 0" in message
    message = refusal(2, UnequalError, lambda: assert_equal({"mode": ["run", "test"][me()]}))
    assert "mode of process 1 differs from that of process 0" in message
    assert "It is string[] 'run' on process 0; string[] 'test' on process 1" in message

    def replicas() -> None:
        x = host_local_array_to_global_array(np.arange(4.0) + me() // 3, hosts(), P())
        assert_equal({"x": x})

    message = refusal(4, UnequalError, replicas)
    assert (
        "x of process 3 differs from that of processes 0, 1, 2. It is float64[4], here" in message
    )
    assert "here [1.0, 2.0, 3.0, 4.0] on process 3" in message
    meshard.config.update("check", "off")  # which would tell before that they lie differently
    try:
        message = refusal(2, UnequalError, lambda: assert_equal(spread(GRID, *["x"][: me()])))
    finally:
        meshard.config.update("check", "hash")
    assert (
        "the value of process 1 differs from that of process 0. It is float64[8,8] with" in message
    )
    assert "spec=P('x',)" in message


@WORLDS
def test_nan_equals_nothing_as_in_numpy(processes):
    message = refusal(processes, UnequalError, lambda: assert_equal([1, np.array([1, np.nan])]))
    assert "assert_equal: 1 holds NaN, which equals nothing, on process" in message


def test_little_is_sent_to_compare_much():
    def body() -> None:
        value = np.zeros(1 << 18)
        spy = Spy()
        assert_equal(value)
        here().transport = spy.inner
        assert (spy.letters, spy.received) == (1, 0)

    run(2, body)


def test_processes_that_wait_at_different_places_are_refused():
    def caught() -> str:
        with pytest.raises(UnequalError) as error:
            sync_global_devices("b" if me() == 2 else "a")
        return str(error.value)

    messages = run(4, caught)
    assert "sync_global_devices name mismatch ('a')" in messages[0]
    for message in messages:
        assert "'a' on processes 0, 1, 3; 'b' on process 2" in message

    def other() -> str:
        with pytest.raises((UnequalError, ArgumentError)) as error:
            (assert_equal if me() else sync_global_devices)("a")
        return str(error.value)

    for message in run(2, other):
        assert "assert_equal on process 1" in message
    message = refusal(2, ArgumentError, lambda: sync_global_devices(3))  # type: ignore[arg-type]
    assert "name must be a string, got 3 of type int" in message


# shapes


@WORLDS
def test_local_and_global_shapes_follow_from_each_other(processes):
    def body() -> None:
        for spec in ((), ("x",), (None, "x")):
            for mesh in (line(), Mesh(meshard.devices()[::-1], "x")):
                sharding = NamedSharding(mesh, P(*spec))
                local = global_to_local_shape(sharding, (8, 16))
                wanted = [8, 16]
                for dim, entry in enumerate(spec):
                    wanted[dim] //= processes if entry else 1
                assert local == tuple(wanted)
                assert local_to_global_shape(sharding, local) == (8, 16)
                made = meshard.make_array_from_process_local_data(sharding, np.zeros(local))
                assert made.shape == (8, 16)
        both = NamedSharding(hosts(), P("device", "host"))
        assert local_to_global_shape(both, (8, 3)) == (8, 3 * processes)
        assert global_to_local_shape(both, (8, 8)) == (8, 8 // processes)
        assert local_to_global_shape(SingleDeviceSharding(meshard.devices()[0]), (3,)) == (3,)

    run(processes, body)


@calm
@given(data=st.data(), processes=st.sampled_from([1, 2, 4, 8]))
def test_a_local_shape_is_what_the_shards_of_a_process_cover(data, processes):
    shape = data.draw(shapes(min_dims=1))
    lay = data.draw(st.one_of(on_meshes(shape), in_boxes(shape)))

    def body() -> None:
        sharding = lay.sharding(shape)
        held = sharding.addressable_devices_indices_map(shape)
        if not held:
            with pytest.raises(ShardingError, match="has no device of"):
                global_to_local_shape(sharding, shape)
            return
        local = global_to_local_shape(sharding, shape)
        for dim, (found, n) in enumerate(zip(local, shape, strict=True)):
            spans = {index[dim].indices(n)[:2] for index in held.values()}
            covered = {i for a, b in spans for i in range(a, b)}
            if found is None:  # an empty box within another counts as an overlap too
                assert len(covered) < sum(max(1, b - a) for a, b in spans)
            else:
                assert found == len(covered) == sum(b - a for a, b in spans)
        if None not in local:
            joined = local_to_global_shape(sharding, local)
            assert all(m in (n, None) for m, n in zip(joined, shape, strict=True))

    run(processes, body)


def test_global_shapes_that_do_not_follow_are_none():
    def body() -> None:
        devices = np.array(meshard.devices(), object)
        # Rows: process 0 holds shards 0, 1, 2, and process 1 holds 1, 2, 3.
        mesh = Mesh(devices[[0, 1, 2, 4, 3, 5, 6, 7]].reshape(4, 2), ("i", "j"))
        assert local_to_global_shape(NamedSharding(mesh, P("i", "j")), (6, 4)) == (None, 4)
        uneven = NamedSharding(line(), P("x"), uneven="balanced")
        assert local_to_global_shape(uneven, (4, 2)) == (None, 2)
        assert global_to_local_shape(uneven, (11, 2)) == ([7, 4][me()], 2)
        cuts = NamedSharding(line(), P("x"), uneven=((0, 1, 1, 2, 3, 5, 8, 9, 11),))
        assert local_to_global_shape(cuts, (3, 2)) == (11, 2)
        assert global_to_local_shape(cuts, (11, 2)) == ([3, 8][me()], 2)

    run(2, body)


class Halves(Sharding):
    """A user's own sharding: the first half of the rows on process 0, the second on process 1."""

    @property
    def device_set(self):
        return set(meshard.devices())

    def devices_indices_map(self, global_shape):
        half = global_shape[0] // 2
        rest = (slice(None),) * (len(global_shape) - 1)
        return {
            d: (slice(0, half) if d.process_index == 0 else slice(half, None), *rest)
            for d in meshard.devices()
        }


def test_shapes_of_shardings_without_a_mesh():
    def body() -> None:
        assert local_to_global_shape(Halves(), (3, 5)) == (6, 5)
        assert global_to_local_shape(Halves(), (6, 5)) == (3, 5)
        first, last = meshard.devices()[0], meshard.devices()[-1]
        boxes = BoxSharding((8,), {first: (slice(0, 3),), last: (slice(3, 8),)})
        own = [(3,), (5,)][me()]
        assert global_to_local_shape(boxes, (8,)) == own
        assert local_to_global_shape(boxes, own) == (8,)
        with pytest.raises(ShapeError, match=r"array of shape \(8,\), of which process .* holds"):
            local_to_global_shape(boxes, (4,))
        second = meshard.devices()[1]
        overlap = {first: (slice(0, 3),), second: (slice(2, 5),), last: (slice(4, 8),)}
        found = global_to_local_shape(BoxSharding((8,), overlap), (8,))
        assert found == [(None,), (4,)][me()]

    run(2, body)


def test_shapes_are_refused_like_arrays():
    def body() -> None:
        with pytest.raises(IndivisibleError, match="divisible by 8, but it is equal to 6"):
            global_to_local_shape(NamedSharding(line(), P("x")), (6,))
        with pytest.raises(SpecError, match="has 2 entries, but the local shape"):
            local_to_global_shape(NamedSharding(line(), P("x", None)), (6,))
        for function in (local_to_global_shape, global_to_local_shape):
            with pytest.raises(ArgumentError, match="sharding must be a Sharding, got 3"):
                function(3, (6,))
        if me() == 1:
            with pytest.raises(ShardingError, match="process 1 has no device of"):
                global_to_local_shape(SingleDeviceSharding(meshard.devices()[0]), (6,))

    run(2, body)


# JAX


@pytest.mark.no_job
def test_one_process_does_what_jax_does(tmp_path):
    pytest.importorskip("jax")
    program = tmp_path / "oracle.py"
    program.write_text(
        "import sys\n"
        "import numpy as np\n"
        "if sys.argv[1] == 'jax':\n"
        "    import jax as m\n"
        "    m.config.update('jax_enable_x64', True)\n"
        "    from jax.experimental import multihost_utils as u\n"
        "    from jax.sharding import Mesh, PartitionSpec as P\n"
        "else:\n"
        "    import meshard as m\n"
        "    from meshard.experimental import multihost_utils as u\n"
        "    from meshard.sharding import Mesh, P\n"
        "mesh = Mesh(np.array(m.devices()).reshape(4, 2), ('i', 'j'))\n"
        "x = np.arange(16.0).reshape(8, 2)\n"
        "def show(value):\n"
        "    value = np.asarray(value)\n"
        "    print(value.dtype, value.shape, value.tolist())\n"
        "for tiled in (False, True):\n"
        "    for value in (x, 3, 2.5, True, np.float32(1), np.int8(2)):\n"
        "        show(u.process_allgather(value, tiled=tiled))\n"
        "for spec in (P(), P('i'), P(('i', 'j')), P('i', 'j'), P(None, 'j')):\n"
        "    g = u.host_local_array_to_global_array(x, mesh, spec)\n"
        "    show(g)\n"
        "    print([s.index for s in g.addressable_shards])\n"
        "    show(u.process_allgather(g))\n"
        "    print(u.global_array_to_host_local_array(g, mesh, P()) is g)\n"
        "for flag in (None, True, False):\n"
        "    show(u.broadcast_one_to_all(x, is_source=flag))\n"
        "u.sync_global_devices('name')\n"
        "u.assert_equal({'a': x, 'b': 3})\n"
        "for wrong in (np.nan, np.array([1, np.nan])):\n"
        "    try:\n"
        "        u.assert_equal(wrong)\n"
        "    except AssertionError:\n"
        "        print('differs')\n"
        "for pspecs in (None, {'a': P()}):\n"
        "    try:\n"
        "        u.host_local_array_to_global_array(x, mesh, pspecs)\n"
        "    except ValueError:\n"
        "        print('refused')\n"
    )
    env = {**os.environ, "MESHARD_NUM_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    said = [
        subprocess.run(
            [sys.executable, str(program), which],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.replace("None, None, None", "None, None")
        for which in ("jax", "meshard")
    ]
    assert said[0] == said[1]
    assert said[0].count("differs") == 2
    assert said[0].count("refused") == 2
