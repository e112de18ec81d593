"""Faults are injected into simulated processes: each is named, on every process, and none hangs."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import TransportError
from meshard.multihost_utils import sync_global_devices
from meshard.runtime.processes.agreement import KEPT, NOWHERE, Agreement, canonical, crossed
from meshard.runtime.processes.divergence import divergence, modes
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P

pytestmark = pytest.mark.no_job

FILE = re.escape(__file__)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    meshard.config.update("check", "hash")


def me() -> int:
    return meshard.process_index()


def mesh(processes: list[int] | None = None) -> Mesh:
    """Return a mesh of the devices of some processes, of all by default."""
    devices = [d for d in meshard.devices() if processes is None or d.process_index in processes]
    return Mesh(devices, ("i",))


def split(value: Any, on: Mesh | None = None) -> meshard.Array:
    """Return a value that each process cuts for itself: one step, and nothing is sent."""
    sharding = NamedSharding(on or mesh(), P("i"))
    return meshard.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def double(x: Any) -> Any:
    return x * 2


def made(
    shape: tuple[int, ...], dtype: Any = np.float64, spec: P | None = None, on: Mesh | None = None
) -> meshard.Array:
    """Return zeros that each process makes for itself."""
    sharding = NamedSharding(on or mesh(), P("i") if spec is None else spec)
    return meshard.make_array_from_callback(
        shape, sharding, lambda index: np.zeros(shape, dtype)[index], dtype=dtype
    )


def faulty(
    count: int, body: Callable[[], Any], deadline: float = 20, within: float = 10
) -> list[str | None]:
    """Run a body whose fault is to be found; return what each process said, None if nothing."""
    said: list[str | None] = [None] * count

    def program() -> None:
        try:
            body()
        except TransportError as error:
            said[me()] = str(error)
            raise

    begun = time.monotonic()
    with pytest.raises(TransportError):
        simulate(count, 8 // count, program, deadline=deadline)
    assert time.monotonic() - begun < within
    return said


def line_of(text: str) -> int:
    """Return the number of the one line of this file that ends with a mark."""
    with open(__file__, encoding="utf-8") as file:
        (found,) = [n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}")]
    return found


# who has diverged


@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_who_runs_another_operation_is_named_by_all(wrong):
    def body() -> None:
        x = split(np.arange(8.0))
        y = x + 1
        if me() == wrong:
            y - 1  # mark: the odd one
        else:
            y * 2  # mark: the others
        x.sum()

    said = faulty(4, body)
    others = ", ".join(str(p) for p in range(4) if p != wrong)
    told = (
        rf"Process {wrong} has diverged in step 3 of processes 0, 1, 2, 3: ran `subtract` of "
        rf"float64\[8\] P\('i',\), int at {FILE}:{line_of('mark: the odd one')}, where the others "
        rf"ran `multiply` of float64\[8\] P\('i',\), int at {FILE}:{line_of('mark: the others')}\."
    )
    for text in said:
        assert re.match(told, text or ""), (text, others)


def test_a_minority_of_several_is_named():
    def body() -> None:
        x = split(np.arange(8.0))
        (mnp.cos if me() in (1, 6) else mnp.sin)(x).sum()

    for text in faulty(8, body):
        assert "Processes 1 and 6 have diverged in step 2" in text
        assert "where processes 0, 2, 3, 4, 5, 7 ran `sin`" in text


def test_two_processes_disagree():
    def body() -> None:
        x = split(np.arange(8.0))
        y = mnp.exp(x) if me() else mnp.log1p(x)
        y.sum()

    for text in faulty(2, body):
        assert text.startswith(
            "Processes 0 and 1 disagree in step 2 of processes 0 and 1: process 0 ran `log1p` of "
        )
        assert "; process 1 ran `exp` of float64[8] P('i',) at " in text


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: made((16,)), "`make_array_from_callback` of float64[16] P('i',)"),
        (lambda: made((8,), np.int64), "`make_array_from_callback` of int64[8] P('i',)"),
        (lambda: made((8,), spec=P()), "`make_array_from_callback` of float64[8] P()"),
        (
            lambda: made((8,), on=Mesh(meshard.devices()[::-1], ("i",))),
            "`make_array_from_callback` of float64[8] P('i',)",
        ),
    ],
)
def test_another_shape_dtype_sharding_or_order_of_devices_is_named(other, told):
    def body() -> None:
        x = other() if me() == 2 else made((8,))
        x.sum()
        sync_global_devices("the end")

    for text in faulty(4, body):
        assert f"Process 2 has diverged in step 1 of processes 0, 1, 2, 3: ran {told}" in text


def test_another_parameter_is_named():
    def body() -> None:
        mnp.sum(mnp.cumsum(made((8, 8)), axis=1 if me() == 1 else 0))

    for text in faulty(4, body):
        assert "Process 1 has diverged in step 2" in text


def test_a_call_that_one_process_leaves_out_is_named():
    def body() -> None:
        x = split(np.arange(8.0))
        if me() != 1:
            mnp.sin(x)  # mark: left out
        mnp.cos(x)
        x.sum()

    for text in faulty(4, body):
        assert "Process 1 has diverged in step 2" in text
        assert "ran `cos`" in text
        assert (
            "It looks as if process 1 left out the call at "
            f"{__file__}:{line_of('mark: left out')}: what it ran is what the others ran next."
        ) in text


def test_a_call_that_one_process_makes_alone_is_named():
    def body() -> None:
        x = split(np.arange(8.0))
        if me() == 3:
            mnp.sin(x)  # mark: alone
        mnp.cos(x)
        x.sum()

    for text in faulty(4, body):
        assert "Process 3 has diverged in step 2" in text
        assert (
            f"It looks as if only process 3 made the call at {__file__}:{line_of('mark: alone')}."
        ) in text


def test_an_operation_that_sends_nothing_is_found_at_the_next_that_does():
    def body() -> None:
        x = split(np.arange(8.0))
        if me() == 0:
            x + 1
        for _ in range(20):
            x = mnp.abs(x)
        meshard.device_put(x, NamedSharding(mesh(), P()))

    for text in faulty(4, body):
        assert "Process 0 has diverged in step 2 of processes 0, 1, 2, 3: ran `add`" in text


def test_processes_that_meet_in_different_sets_are_told():
    def body() -> None:
        x = split(np.arange(8.0))
        if me() in (0, 1):
            y = split(np.arange(4.0), mesh([0, 1]))
        if me() == 1:
            y.sum()
        else:
            x.sum()

    for text in faulty(4, body):
        assert text is not None
        assert text.startswith(
            "Process 1 has diverged: it ran step 2 of processes 0 and 1, `sum` (axis=(0,), "
        )
        assert "where process 0 ran step 2 of processes 0, 1, 2, 3, `sum`" in text


def test_what_diverged_longer_ago_than_is_remembered_is_said_to_have():
    def body() -> None:
        x = split(np.arange(8.0))
        if me() == 2:
            x + 1
        for _ in range(KEPT + 10):
            -x
        x.sum()

    for text in faulty(4, body):
        assert "have diverged before step" in text
        assert "MESHARD_CHECK=full compares each step at once." in text


def test_collectives_in_a_body_are_compared():
    def body() -> None:
        def program(x: Any) -> Any:
            return lax.psum(x, "i") if me() != 1 else lax.pmax(x, "i")

        meshard.shard_map(program, mesh=mesh(), in_specs=P("i"), out_specs=P())(np.arange(8.0))

    for text in faulty(4, body):
        assert "Process 1 has diverged in step" in text
        assert "ran `pmax` " in text
        assert "where the others ran `psum` " in text


def test_all_that_moves_an_array_is_compared():
    def body() -> None:
        x = split(np.arange(8.0))
        if me() == 3:
            meshard.reshard(x, NamedSharding(mesh(), P()))
        else:
            meshard.device_put(x, NamedSharding(mesh(), P()))

    for text in faulty(4, body):
        assert "Process 3 has diverged in step 2" in text
        assert "ran `reshard` of float64[8] P('i',), float64[8] P() at" in text


def test_jitted_functions_are_compared_as_wholes():
    def body() -> None:
        factor = 3 if me() == 2 else 2
        f = meshard.jit(lambda x: mnp.sin(x) * factor)
        x = split(np.arange(8.0))
        for _ in range(2):
            f(x)  # mark: the jitted call
        x.sum()

    for text in faulty(4, body):
        assert (
            "Process 2 has diverged in step 2 of processes 0, 1, 2, 3: ran `jit of '<lambda>'` at "
            f"{__file__}:{line_of('mark: the jitted call')}, where the others ran `jit of "
        ) in text


def random_program(seed: int, wrong: int | None, pause: float = 0.0) -> None:
    """Run random operations on random sets of processes, one process wrongly at one place."""
    shared, own = random.Random(seed), random.Random(f"{seed} {me()}")
    at, how = shared.randrange(2, 10), shared.choice(["out", "more"])
    x = split(np.arange(16.0))
    for turn in range(12):
        if own.random() < 0.2:
            time.sleep(pause)
        members = sorted(shared.sample(range(4), shared.choice([2, 3, 4])))
        kind = shared.randrange(4)
        faulty_here = turn == at and me() == wrong
        if turn == at:
            members = [0, 1, 2, 3]
        if faulty_here and how == "more":
            x.sum()
        if (faulty_here and how == "out") or (kind == 0 and me() not in members):
            continue
        if kind == 0:
            split(np.ones(24), mesh(members)).sum()
        elif kind == 1:
            x = meshard.device_put(x, NamedSharding(mesh(), P()))
        elif kind == 2:
            x = meshard.reshard(x, NamedSharding(mesh(), P("i")))
        else:
            x = x - x.mean()
    sync_global_devices("the end")


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_agree_and_their_faults_are_found(seed):
    simulate(4, 2, lambda: random_program(seed, None, 0.5 if seed == 0 else 0.0), deadline=20)
    wrong = seed % 4
    said = faulty(4, lambda: random_program(seed, wrong), deadline=3)
    assert all(said)
    for text in said:
        assert re.search(rf"[Pp]rocess(es)? ([0-9, ]|and)*{wrong}", text or "")


# what is legal


def test_local_arrays_lines_and_printing_are_each_processes_own_affair(capsys):
    def body() -> float:
        x = split(np.arange(8.0))
        own = mnp.arange(3 + me())
        for _ in range(me()):
            own = own * 2 + mnp.ones(3 + me()).sum()
        if me() == 0:
            print(repr(x), x.addressable_data(0) + 1, own)
            y = x + 1
        else:
            y = x + 1  # the same operation at another line
        if me() in (0, 1):
            part = split(np.arange(4.0), mesh([0, 1]))
            part = part * 3
            float(meshard.device_put(part.sum(), NamedSharding(mesh([0, 1]), P())))
        sync_global_devices("here")
        twice = meshard.jit(lambda x: x * 2)
        if me() == 0:  # at another line, and by another name
            own.sum()
            twice = meshard.jit(double)
        return float(twice(y).sum() / 2)

    for mode in ("hash", "full"):
        meshard.config.update("check", mode)
        assert simulate(4, 2, body, deadline=20) == [36.0] * 4


def test_devices_may_take_different_branches_of_a_body():
    def program(x: Any) -> Any:
        def step(carry: Any) -> Any:
            return carry[0] - 1, carry[1] + lax.psum(carry[1], "j")

        turns = lax.axis_index("i")
        return lax.while_loop(lambda c: c[0] > 0, step, (turns, x))[1]

    def body() -> None:
        on = meshard.make_mesh((4, 2), ("i", "j"))
        f = meshard.shard_map(program, mesh=on, in_specs=P("i", "j"), out_specs=P("i", "j"))
        for _ in range(3):
            f(np.ones((4, 2)))

    for mode in ("hash", "full"):
        meshard.config.update("check", mode)
        simulate(2, 4, body, deadline=20)
        simulate(8, 1, body, deadline=20)


# how it is checked


def test_full_finds_what_sends_nothing_at_once():
    meshard.config.update("check", "full")
    reached: list[int] = []

    def body() -> None:
        x = split(np.arange(8.0))
        y = mnp.sin(x) if me() == 1 else mnp.cos(x)  # mark: at once
        reached.append(me())
        y.sum()

    for text in faulty(4, body):
        assert f"ran `sin` of float64[8] P('i',) at {__file__}:{line_of('mark: at once')}" in text
    assert reached == []


def test_off_compares_nothing():
    meshard.config.update("check", "off")

    def body() -> float:
        x = split(np.arange(8.0))
        y = mnp.sin(x) if me() == 1 else mnp.cos(x)
        y.sum()
        assert here().agreement.account().steps == {}
        return 1.0

    assert simulate(4, 2, body, deadline=10) == [1.0] * 4


def test_processes_that_check_differently_are_told():
    accounts = {p: Agreement(p, 4, lambda members: None).account() for p in range(4)}
    assert modes(accounts) is None
    meshard.config.update("check", "off")
    accounts[2] = Agreement(2, 4, lambda members: None).account()
    assert (modes(accounts) or "").startswith(
        "The setting check (MESHARD_CHECK) is 'hash' on processes 0, 1, 3, 'off' on process 2: it "
    )


# those who do not come


def test_who_hangs_is_named_with_what_it_did_last():
    over = threading.Barrier(4)

    def body() -> None:
        x = split(np.arange(8.0))
        if me() == 2:
            over.wait(20)
            return
        try:
            x.sum()  # mark: waits
        finally:
            over.wait(20)

    said = faulty(4, body, deadline=1)
    waiting = [text for text in said if text]
    assert len(waiting) == 3
    where = f"{__file__}:{line_of('mark: waits')}"
    for text in waiting:
        assert f"`sum` (axis=(0,), keepdims=False) of float64[8] P('i',) at {where}" in text
        assert "process 2" in text.lower()
        assert "Process 2 has not answered" in text


def test_who_ends_its_program_early_is_named_with_what_it_did_last():
    def body() -> None:
        x = split(np.arange(8.0))
        y = x * 2  # mark: before it left
        if me() != 1:
            y.sum()

    said = faulty(4, body, deadline=20)
    assert said[1] is None
    for text in (said[0], said[2], said[3]):
        assert (
            "Process 1 has ended its program; it was last heard of in step 2 of processes 0, 1, 2, "
            "3, `multiply` of float64[8] P('i',), int at "
            f"{__file__}:{line_of('mark: before it left')}."
        ) in (text or "")


# the parts


def test_parameters_have_one_text_in_all_processes():
    assert canonical({"b": {3, 1}, "a": (1.5, None)}) == "{'a': (1.5, None), 'b': {1, 3}}"
    assert canonical(np.dtype("f4")) == "float32"
    assert canonical(slice(1, None, 2)) == "slice(1, None, 2)"
    assert canonical(object()) == "object"
    assert canonical(len) == "builtins.len"
    assert canonical(np.float32(0.5)) == "0.5"
    same = canonical(np.arange(3)), canonical(np.arange(3))
    assert same[0] == same[1] != canonical(np.arange(4))


def _run(index: int, *steps: tuple[tuple[int, ...], str]) -> Agreement:
    agreement = Agreement(index, 4, lambda members: None)
    for members, text in steps:
        token = agreement.token(members, text)
        assert token is not None
        agreement.enter(token)
    return agreement


def test_stamps_agree_where_the_shared_steps_do():
    everybody, pair = (0, 1, 2, 3), (0, 1)
    one = _run(0, (everybody, "a"), (pair, "b"))
    assert one.stamp(1) == _run(1, (everybody, "a"), (pair, "b"), ((1, 2), "c")).stamp(0)
    assert one.stamp(2) == _run(2, (everybody, "a")).stamp(0)
    assert one.stamp(1) != one.stamp(2)
    for other in ((everybody, "a"),), ((pair, "b"), (everybody, "b")), ():
        assert one.stamp(1) != _run(1, *other).stamp(0)
    assert _run(0).stamp(1) == NOWHERE


def test_order_enters_the_hash():
    everybody = (0, 1, 2, 3)
    one, other = (everybody, "a"), (everybody, "b")
    assert _run(0, one, other).stamp(1) != _run(0, other, one).stamp(1)


def test_an_earlier_look_is_no_divergence():
    everybody, pair = (0, 1, 2, 3), (0, 1)
    early, late = _run(0, (everybody, "a")), _run(1, (everybody, "a"), (pair, "b"))
    assert late.contradictions(early.account()) == {}
    assert crossed(early.account(), late.account()) is None
    assert divergence({0: early.account(whole=True), 1: late.account(whole=True)}) is None
    other = _run(1, (pair, "b"))
    assert other.contradictions(early.account()) == {everybody: 1, pair: 1}
    assert "Processes 0 and 1 run different operations: process 0 ran step 1 of processes 0, " in (
        divergence({0: early.account(whole=True), 1: other.account(whole=True)}) or ""
    )


def test_no_token_where_nobody_else_takes_part():
    agreement = Agreement(1, 4, lambda members: None)
    assert agreement.token((1,), "a") is None
    assert agreement.token((0, 2), "a") is None
    meshard.config.update("check", "off")
    assert agreement.token((0, 1), "a") is None
