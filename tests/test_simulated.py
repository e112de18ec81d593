"""Simulated processes: worlds of their own that only messages join, and that end together."""

import contextvars
import gc
import signal
import threading
import time
import weakref

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, TransportError
from meshard.runtime.processes.transport import LocalTransport
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P

from .worlds import whole

pytestmark = pytest.mark.no_job


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def both() -> NamedSharding:
    return NamedSharding(Mesh(meshard.devices(), ("i",)), P("i"))


@pytest.mark.parametrize(("processes", "devices"), [(1, 3), (2, 4), (4, 2), (3, 1)])
def test_each_process_has_a_world_of_its_own(processes, devices):
    def program():
        return (
            meshard.process_index(),
            meshard.process_count(),
            meshard.device_count(),
            [d.id for d in meshard.local_devices()],
            here(),
        )

    found = simulate(processes, devices, program)
    for i, (me, count, total, mine, _) in enumerate(found):
        assert (me, count, total) == (i, processes, processes * devices)
        assert mine == list(range(i * devices, (i + 1) * devices))
    assert len({id(world) for *_, world in found}) == processes


def test_the_callers_world_is_untouched():
    before = meshard.devices()
    simulate(2, 3, lambda: None)
    assert meshard.devices() == before


def test_the_callers_context_holds_in_every_process():
    setting = contextvars.ContextVar("setting")
    setting.set(3)
    assert simulate(2, 1, setting.get) == [3, 3]


@pytest.mark.parametrize(("processes", "devices"), [(0, 4), (2, 0), (-1, 1)])
def test_there_is_at_least_one_process_and_device(processes, devices):
    with pytest.raises(
        ArgumentError, match=rf"must be an integer from 1 .*got {min(processes, devices)}"
    ):
        simulate(processes, devices, lambda: None)


def test_values_move_between_processes():
    def program() -> np.ndarray:
        x = meshard.device_put(np.arange(8.0), both())
        return whole(mnp.flip(x) + x)

    for found in simulate(2, 4, program):
        np.testing.assert_array_equal(found, np.full(8, 7.0))


def test_objects_are_gathered_as_copies():
    shared = {"x": [1]}

    def program() -> bool:
        world = here()
        mine = {"me": world.process_index, "shared": shared}
        found = world.transport.all_gather(mine, [0, 1, 2])
        assert [f["me"] for f in found] == [0, 1, 2]
        world.transport.barrier([0, 1, 2])
        return any(f["shared"] is shared for f in found)

    assert simulate(3, 1, program) == [False] * 3


def test_messages_are_copies_of_what_was_sent():
    changed = threading.Event()

    def program() -> float:
        transport, block = here().transport, np.ones(4)
        if meshard.process_index() == 0:
            transport.exchange([(1, [block[::2]])], [])
            block[:] = 7
            changed.set()
            return 0.0
        changed.wait(20)
        target = np.zeros((2, 2))
        transport.exchange([], [(0, [target[:, 1]])])
        return float(target.sum())

    assert simulate(2, 1, program) == [0.0, 2.0]


# failures


class Own(BaseException):
    """Nobody catches it by mistake."""


@pytest.mark.parametrize("error", [ValueError, Own, KeyboardInterrupt, SystemExit])
def test_the_failure_of_one_process_ends_the_others(error):
    said: list[str] = []

    def program() -> None:
        if meshard.process_index() == 1:
            raise error("process 1 is done for")
        try:
            here().transport.barrier([0, 1])
        except TransportError as caught:
            said.append(str(caught))
            raise

    started = time.monotonic()
    with pytest.raises(error, match="process 1 is done for"):
        simulate(2, 1, program, deadline=60)
    assert time.monotonic() - started < 30
    assert said == ["Process 0 waits for a message of process 1, but process 1 has failed."]


def test_a_process_that_ends_early_ends_those_that_wait_for_it():
    def program() -> None:
        if meshard.process_index() == 0:
            here().transport.barrier([0, 1])

    with pytest.raises(
        TransportError, match=r"Process 0 waits for process 1\. Process 1 has ended its program\."
    ):
        simulate(2, 1, program, deadline=60)


def test_the_deadline_says_who_waits_for_whom():
    done = threading.Event()

    def program() -> None:
        if meshard.process_index() == 0:
            try:
                here().transport.barrier([0, 1])
            finally:
                done.set()
        else:
            done.wait(30)  # busy with something else

    with pytest.raises(
        TransportError,
        match=r"Process 0 has waited 0\.2 s for process 1\. Process 1 has not answered\. Do all",
    ):
        simulate(2, 1, program, deadline=0.2)


def test_operations_in_one_process_only_are_noticed():
    def program() -> None:
        x = meshard.device_put(np.arange(8.0), both())
        if meshard.process_index() == 0:
            mnp.flip(x)

    with pytest.raises(TransportError, match="Do all processes run the same operations"):
        simulate(2, 4, program, deadline=20)


def test_messages_that_nobody_receives_are_noticed():
    def program() -> None:
        if meshard.process_index() == 0:
            here().transport.exchange([(1, [np.ones(2)])], [])

    with pytest.raises(TransportError, match="Process 0 has sent process 1 1 messages that it nev"):
        simulate(2, 1, program)


@pytest.mark.parametrize(
    ("sent", "wanted", "message"),
    [
        ([np.ones(2)], [np.zeros(2)] * 2, "expects 2 boxes of process 0, which sent 1"),
        ([np.ones(3)], [np.zeros(2)], r"expects a box float64\(2,\) of process 0, which sent fl"),
        ([np.ones(2, "i4")], [np.zeros(2)], r"float64\(2,\) of process 0, which sent int32\(2,\)"),
    ],
)
def test_processes_out_of_step_are_noticed(sent, wanted, message):
    def program() -> None:
        if meshard.process_index() == 0:
            here().transport.exchange([(1, sent)], [])
        else:
            here().transport.exchange([], [(0, wanted)])

    with pytest.raises(TransportError, match=rf"{message}.*out of step"):
        simulate(2, 1, program)


def test_messages_of_another_kind_are_noticed():
    def program() -> None:
        if meshard.process_index() == 0:
            here().transport.exchange([(1, [np.ones(1)])], [])
        here().transport.barrier([0, 1])

    with pytest.raises(
        TransportError, match="Process 1 expects an object of process 0, which sent boxes: the pro"
    ):
        simulate(2, 1, program)


def test_an_interrupt_of_the_caller_ends_the_processes(interrupts):
    said: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    def program() -> None:
        if meshard.process_index() == 0:
            begun.wait(30)  # all threads have started
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            try:
                here().transport.barrier([0, 1])
            except TransportError as caught:
                said.append(str(caught))
            finally:
                ended.set()
        else:
            begun.set()
            ended.wait(30)

    with pytest.raises(KeyboardInterrupt):
        simulate(2, 1, program, deadline=60)
    for thread in threading.enumerate():
        if thread.name.startswith("process "):
            thread.join(30)
    assert said == ["Process 0 waits for a message of process 1, but the caller was interrupted."]


def test_a_failed_simulation_keeps_nothing_alive():
    held: list[weakref.ref] = []

    def program() -> None:
        x = mnp.ones(3)
        held.append(weakref.ref(x))
        raise ValueError("gone")

    gc.disable()  # nothing may hang on a cycle
    try:
        with pytest.raises(ValueError, match="gone"):
            simulate(1, 1, program)
        assert held[0]() is None
    finally:
        gc.enable()


def test_the_threads_of_a_process_end_with_it():
    def program() -> object:
        x = meshard.device_put(np.ones(1 << 20), both())
        assert float((x + x).sum()) == 1 << 21
        return here()  # the world itself lives on

    before = set(threading.enumerate())  # the default world may have workers by now
    worlds = simulate(2, 2, program)
    assert len(worlds) == 2
    assert set(threading.enumerate()) <= before


def test_worlds_may_be_simulated_within_one():
    def outer() -> list[int]:
        inner = simulate(2, 1, lambda: meshard.process_index() + 10)
        return [meshard.process_count(), *inner]

    assert simulate(3, 1, outer) == [[3, 10, 11]] * 3


def test_alone_there_is_nobody_to_talk_to():
    transport = LocalTransport()
    assert transport.all_gather("x", [0]) == ["x"]
    transport.barrier([0])
    transport.exchange([], [])
    with pytest.raises(TransportError, match="only this process"):
        transport.exchange([(1, [np.ones(1)])], [])


@pytest.mark.parametrize("move", [meshard.device_put, meshard.reshard])
def test_a_tree_is_one_message_to_each_process(move):
    def program():
        world, sent = here(), []
        exchange = world.transport.exchange

        def counted(sends, receives):
            sent.append([peer for peer, _ in sends])
            exchange(sends, receives)

        world.transport.exchange = counted
        mesh = meshard.make_mesh((4,), ("i",))
        rows, columns = (NamedSharding(mesh, P(*spec)) for spec in (("i",), (None, "i")))
        whole = np.arange(64.0).reshape(8, 8)
        tree = [
            meshard.make_array_from_callback((8, 8), rows, lambda i, n=n: whole[i] + n)
            for n in range(5)
        ]
        moved = move([*tree, tree[0]], columns)
        assert moved[5] is moved[0]
        for n, x in enumerate(moved[:5]):
            for shard in x.addressable_shards:
                assert (np.asarray(shard.data) == whole[shard.index] + n).all()
        return len([peer for peers in sent for peer in peers])

    assert simulate(4, 1, program) == [3] * 4


def test_letters_are_swapped():
    def program():
        world = here()
        me, others = world.process_index, [p for p in range(3) if p != world.process_index]
        letters = [(p, bytes([me, p]) * (me + 1)) for p in others]
        found = world.transport.swap(letters, [(p, 2 * (p + 1)) for p in others])
        return {p: bytes(letter) for p, letter in found.items()}

    for me, found in enumerate(simulate(3, 1, program)):
        assert found == {p: bytes([p, me]) * (p + 1) for p in range(3) if p != me}


def test_cells_of_one_process_meet_what_is_the_same_everywhere():
    mesh_axes = {"in_specs": P("i"), "out_specs": P("i")}

    def added(v):
        return meshard.lax.psum(v, "i") * 0.5 + v

    def twice(v):
        return meshard.lax.fori_loop(0, 2, lambda _, v: added(v), v)

    def program():
        mesh = meshard.make_mesh((3,), ("i",))
        x = meshard.device_put(np.arange(6.0), NamedSharding(mesh, P("i")))
        once, loop = (meshard.shard_map(f, mesh=mesh, **mesh_axes) for f in (added, twice))
        found = [once(x), meshard.jit(once)(x), meshard.jit(loop)(x)]
        return [[s.data.tolist() for s in y.addressable_shards] for y in found]

    def step(v):
        return v.sum(0)[None] * 0.5 + v

    one = step(np.arange(6.0).reshape(3, 2))
    for me, found in enumerate(simulate(3, 1, program)):
        assert found == [[v[me].tolist()] for v in (one, one, step(one))]
