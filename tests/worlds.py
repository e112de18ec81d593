"""The two worlds of every test: one process of 8 devices, and 2 simulated processes of 4.

In a job (`tests/ranks`) there is one world, that of the real processes, which have 8 devices too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import meshard
from meshard.algebra.device import Device
from meshard.algebra.world import entered
from meshard.runtime.processes.transport import LocalTransport
from meshard.runtime.simulated import simulate
from meshard.runtime.world import RuntimeWorld, here
from meshard.sharding import Mesh, NamedSharding, P
from tests.ranks import shares

KINDS = ["1 x 8", "2 x 4"] if shares.processes() is None else ["ranks"]


def alone(body: Callable[[], Any], devices: int = 8) -> Any:
    """Run a body in one process of its own with some devices; return what it returns."""
    world = RuntimeWorld(0, 1, [Device(i) for i in range(devices)], LocalTransport())
    try:
        with entered(world):
            return body()
    finally:
        world.close()


def everywhere(body: Callable[[], Any]) -> Any:
    """Run a body in both worlds, check that all processes return the same bits, return them."""
    return in_processes(body, (2,))


def in_processes(body: Callable[[], Any], counts: Sequence[int]) -> Any:
    """Run a body in one process, and in each of these numbers of them; compare and return.

    In a job it runs in its processes instead, however many they are; the first of them also runs it
    alone, and tells the others what it found.
    """
    if shares.processes() is not None:
        world = here()
        told = alone(body) if world.process_index == 0 else None
        expected = world.transport.all_gather(told, range(world.process_count))[0]
        _same(body(), expected)
        return expected
    expected = alone(body)
    for count in counts:
        for found in simulate(count, 8 // count, body, deadline=30):
            _same(found, expected)
    return expected


def _same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            _same(a, b)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected


def in_worlds(test: Callable[..., None]) -> Callable[..., None]:
    """Make a test run in each of the two worlds; not for tests under ``@given``."""

    @functools.wraps(test)
    def run(*args: Any, world_kind: str, **kwargs: Any) -> None:
        body = functools.partial(test, *args, **kwargs)
        if world_kind == "ranks":
            body()
        elif world_kind == "1 x 8":
            alone(body)
        else:
            simulate(2, 4, body, deadline=30)

    own = inspect.signature(test)
    extra = inspect.Parameter("world_kind", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])
    return pytest.mark.parametrize("world_kind", KINDS)(run)


def whole(x: Any) -> np.ndarray:
    """Return the value of an array, fetched from all processes if need be."""
    if not isinstance(x, meshard.Array):
        return np.asarray(x)
    owners = {d.process_index for d in x.sharding.device_order}
    everybody = len(owners) == meshard.process_count()
    if not x.is_fully_addressable and not (x.is_fully_replicated and everybody):
        devices = x.sharding.device_order if everybody else meshard.devices()
        x = meshard.device_put(x, NamedSharding(Mesh(list(devices), "all"), P()))
    return np.array(x)


def mesh(shape: tuple[int, ...] = (4, 2), names: tuple[str, ...] = ("i", "j")) -> Mesh:
    """Return a mesh over the devices of the current world."""
    return meshard.make_mesh(shape, names)


def put(value: Any, *spec: Any, on: Mesh | None = None, uneven: Any = None) -> meshard.Array:
    """Lay a value out by a spec on the 4 x 2 mesh, or another."""
    return meshard.device_put(value, NamedSharding(on or mesh(), P(*spec), uneven=uneven))
