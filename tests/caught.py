"""Failures that a program catches, and the operations that it goes on with: for both worlds.

Each failure is a function that every process calls. It fails on some of them, or on all; what a
process raises is caught by `survive`, which then runs ten operations that must give right results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import meshard
import meshard.numpy as mnp
import meshard.runtime.world
from meshard import lax
from meshard.errors import AgreementError, TransportError, UnequalError
from meshard.sharding import Mesh, NamedSharding, P

LARGE = (192, 1920)
"""3 MiB: what is written straight into a neighbour's memory, or shared."""
SMALL = (24, 24)
Failure = Callable[[float], Any]
FAILURES: dict[str, tuple[Failure, tuple[type[BaseException], ...]]] = {}


class Lost(Exception):
    """What a callback of the user's raises."""


def failure(*kinds: type[BaseException]) -> Callable[[Failure], Failure]:
    """Register a failure, and the errors that processes may catch."""

    def register(function: Failure) -> Failure:
        FAILURES[function.__name__] = function, kinds
        return function

    return register


def me() -> int:
    return meshard.process_index()


def last() -> int:
    return meshard.process_count() - 1


def mesh(processes: list[int] | None = None) -> Mesh:
    """Return a mesh of the devices of some processes, of all by default."""
    devices = [d for d in meshard.devices() if processes is None or d.process_index in processes]
    return Mesh(devices, ("i",))


def value(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.arange(float(np.prod(shape))).reshape(shape) % 251 + seed


def made(shape: tuple[int, ...], *spec: Any, on: Mesh | None = None, seed: int = 0) -> Any:
    """Return an array that each process makes for itself."""
    whole = value(shape, seed)
    sharding = NamedSharding(on or mesh(), P(*spec))
    return meshard.make_array_from_callback(shape, sharding, lambda index: whole[index])


def moved(x: Any, *spec: Any) -> Any:
    return meshard.device_put(x, NamedSharding(x.sharding.mesh, P(*spec)))


def late(run: Callable[[Any], Any], shape: tuple[int, ...]) -> Failure:
    """Return a failure in which the last process comes to an operation after the deadline."""

    def fail(deadline: float) -> None:
        x = made(shape, "i")
        if me() == last():
            time.sleep(1.4 * deadline)
        run(x)

    return fail


for _name, _run, _shape in (
    ("late_to_a_sum", lambda x: x.sum(), SMALL),
    ("late_to_a_replica", lambda x: moved(x), LARGE),
    ("late_to_a_transposition", lambda x: moved(x, None, "i"), LARGE),
    ("late_to_a_reshard", lambda x: meshard.reshard(x, NamedSharding(mesh(), P(None, "i"))), SMALL),
):
    FAILURES[_name] = late(_run, _shape), (TransportError,)


@failure(AgreementError)
def another_operation(deadline: float) -> None:
    x = made(SMALL, "i")
    (mnp.sin if me() == 0 else mnp.cos)(x).sum()


@failure(AgreementError)
def another_large_move(deadline: float) -> None:
    x = made(LARGE, "i")
    moved(x, *((None, "i") if me() == 0 else ()))


@failure(AgreementError, TransportError)
def a_call_left_out(deadline: float) -> None:
    x = made(SMALL, "i")
    if me() != last():
        x.max()
    x.sum()
    x.min()


@failure(AgreementError, TransportError)
def other_sets_of_processes(deadline: float) -> None:
    pair = [0, 1]
    y = made((24,), "i", on=mesh(pair)) if me() in pair else None
    x = made(SMALL, "i")
    if me() == 1:
        assert y is not None
        y.sum()
    x.sum()


@failure(UnequalError)
def values_that_differ(deadline: float) -> None:
    meshard.device_put(np.full(SMALL, float(me())), NamedSharding(mesh(), P("i")))


@failure(Lost)
def a_callback_that_raises(deadline: float) -> None:
    def read(index: Any) -> np.ndarray:
        if me() == 0:
            raise Lost
        return value(SMALL)[index]

    meshard.make_array_from_callback(SMALL, NamedSharding(mesh(), P("i")), read)


@failure(Lost, TransportError)
def a_failure_of_one_in_the_middle(deadline: float) -> None:
    """One process raises where the others wait for what it would have sent."""
    x = made(LARGE, "i")
    if me() == 0:
        transport = meshard.runtime.world.here().transport

        def lost(*ignored: Any) -> Any:
            raise Lost

        transport.exchange = transport.share = lost
        try:
            moved(x)
        finally:
            del transport.exchange, transport.share
    else:
        moved(x)


def ten_operations(turn: int) -> None:
    """Run ten operations, and compare what this process has of the results with NumPy."""
    for k in range(10):
        shape = LARGE if k % 3 == 0 else SMALL
        expected = value(shape, turn + k)
        x = made(shape, "i", seed=turn + k)
        if k % 5 == 0:
            found = moved(x)
        elif k % 5 == 1:
            found, expected = mnp.sum(x, axis=0), expected.sum(axis=0)
        elif k % 5 == 2:
            found, expected = mnp.flip(x, 0) + x, expected[::-1] + expected
        elif k % 5 == 3:
            found = meshard.reshard(x, NamedSharding(mesh(), P(None, "i")))
        else:
            total = meshard.shard_map(
                lambda v: lax.psum(v.sum(), "i"), mesh=mesh(), in_specs=P("i"), out_specs=P()
            )
            found, expected = total(x), expected.sum()
        assert found.shape == expected.shape
        for shard in found.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def survive(names: list[str], deadline: float) -> list[str]:
    """Catch failures one after the other; return what this process caught.

    The deadline holds for what fails only: ten operations may take longer on a busy machine.
    """
    told = []
    watchdog = meshard.runtime.world.here().transport.watchdog
    assert watchdog is not None
    for turn, name in enumerate(names):
        fail, kinds = FAILURES[name]
        watchdog.deadline, patience = deadline, watchdog.deadline
        try:
            fail(deadline)
            told.append(f"{name}: nothing")
        except kinds as error:
            told.append(f"{name}: {type(error).__name__}")
        finally:
            watchdog.deadline = patience
        ten_operations(turn)
    return told
