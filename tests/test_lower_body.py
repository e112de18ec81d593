"""Bodies of `shard_map` in jitted functions: lowered once per types, then run without building."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import debug, lax
from meshard.sharding import NamedSharding, P
from tests.worlds import in_worlds


def halves(x: Any) -> Any:
    for _ in range(10):
        x = x * 0.5 + x
    return x


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x)


def until(x: Any) -> Any:
    return lax.while_loop(lambda c: lax.pmax(c.max(), ("i", "j")) < 100, lambda c: 2 * c + 1, x)


def chosen(x: Any) -> Any:
    return lax.cond(lax.axis_index("i") > 0, lambda c: 2 * c, lambda c: c + 1, x)


def uniform(x: Any) -> Any:
    return lax.cond(lax.psum(1, "i") > 1, lambda c: lax.psum(c, "i") + c, lambda c: c, x)


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1]


def diverging(x: Any) -> Any:
    def grow(c: Any) -> Any:
        return c + (lax.axis_index("i") + 1).astype(c.dtype)

    return lax.while_loop(lambda c: (c < 20).all(), grow, x)


def exchanged(x: Any) -> Any:
    return lax.ppermute(lax.all_gather(x, "j", axis=1, tiled=True)[:, :2], "i", [(0, 1), (1, 0)])


BODIES: dict[str, tuple[Callable[..., Any], P]] = {
    "psum": (lambda x: lax.psum(x, ("i", "j")), P()),
    "elementwise": (lambda x: 2 * x + 1, P("i", "j")),
    "20 operations": (halves, P("i", "j")),
    "fori_loop": (counted, P("i", "j")),
    "while_loop": (until, P("i", "j")),
    "cond that differs": (chosen, P("i", "j")),
    "cond that is the same": (uniform, P("i", "j")),
    "scan": (scanned, P("i", "j")),
    "while_loop that differs": (diverging, P("i", "j")),
    "gather and permute": (exchanged, P("i", "j")),
}


def mapped(name: str) -> tuple[Callable[..., Any], Any]:
    body, out = BODIES[name]
    mesh = meshard.make_mesh((2, 2), ("i", "j"))
    f = meshard.shard_map(body, mesh=mesh, in_specs=P("i", "j"), out_specs=out)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    return f, meshard.device_put(x, NamedSharding(mesh, P("i", "j")))


def python_calls(f: Callable[..., Any], warm: int = 3) -> int:
    """Return how many Python functions one call runs, when all is known that is looked up.

    Args:
        f: the function.
        warm: how often it runs before.
    """
    for _ in range(warm):
        f()
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call"

    before = sys.getprofile()
    gc.disable()  # whose callbacks would be counted too
    sys.setprofile(count)
    try:
        f()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


def counts() -> dict[str, tuple[int, int]]:
    """Return for each body the Python calls of its jitted form and of the plain one."""
    found = {}
    for name in BODIES:
        f, x = mapped(name)
        jitted = meshard.jit(f)
        found[name] = python_calls(partial(jitted, x)), python_calls(partial(f, x))
    return found


def tiny(name: str) -> tuple[Callable[..., Any], list[Any]]:
    """Return a small program outside of bodies, and its arguments."""
    mesh = meshard.make_mesh((4,), ("i",))
    x = meshard.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
    f = TINY[name]
    return f, [x, x * 2][: len(signature(f).parameters)]


TINY: dict[str, Callable[..., Any]] = {
    "a number on the right": lambda x: x * 2,
    "a number on the left": lambda x: 1 - x,
    "two arrays": lambda x, y: x + y,
    "one array": lambda x: -x,
    "three operations": lambda x, y: mnp.tanh(x * y + 1),
    "a sum": lambda x: x.sum(),
    "two results": lambda x, y: (x + y, x - y),
    "a loop": lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + y, x),
}


def tiny_counts() -> dict[str, tuple[int, int]]:
    """Return for each tiny program the Python calls of its jitted form and of the plain one."""
    found = {}
    for name in TINY:
        f, operands = tiny(name)
        jitted = meshard.jit(f)
        # The function's own frame is not run when it is jitted.
        plain = python_calls(partial(f, *operands)) - 1
        found[name] = python_calls(partial(jitted, *operands)), plain
    return found


def growing() -> dict[str, int]:
    """Return the Python calls that tracing and lowering make the first time, by program."""
    count = meshard.device_count()
    mesh = meshard.make_mesh((count // 4, 4), ("i", "j"))
    whole = NamedSharding(mesh, P(("i", "j")))
    x = meshard.device_put(np.arange(8.0 * count), whole)
    y = x + x

    def body(v: Any) -> Any:
        v = mnp.tanh(v * 2 + 1)
        return lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, lax.psum(v, "j"))

    mapped = meshard.shard_map(body, mesh=mesh, in_specs=P(("i", "j")), out_specs=P("i"))
    programs: dict[str, Callable[..., Any]] = {
        "operations": lambda x, y: mnp.exp(x * 3 - y).max(),
        "a loop": lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * y, x),
        "a body": lambda x, y: mapped(x) + 1,
    }
    meshard.jit(lambda x, y: x * y).lower(x, y)  # what is made once for each mesh and layout
    found = {}
    for name, f in programs.items():
        found[name] = python_calls(partial(meshard.jit(f).lower, x, y), warm=0)
    return found


def told_by_another_process(function: str, devices: int) -> Any:
    """Return what a function of this module returns in a process with that many devices.

    Here every array that is made is checked, in Python.
    """
    script = f"import json; from tests.test_lower_body import *; print(json.dumps({function}()))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "MESHARD_NUM_DEVICES": str(devices)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.no_job
def test_the_jitted_form_makes_fewer_python_calls() -> None:
    found = told_by_another_process("counts", 4)
    assert found.keys() == BODIES.keys()
    more = {name: pair for name, pair in found.items() if pair[0] >= pair[1]}
    assert not more


@pytest.mark.no_job
def test_a_tiny_program_makes_no_more_python_calls_jitted_than_plain() -> None:
    found = told_by_another_process("tiny_counts", 4)
    assert found.keys() == TINY.keys()
    more = {name: pair for name, pair in found.items() if pair[0] > pair[1]}
    assert not more


@pytest.mark.no_job
def test_lowering_makes_as_many_python_calls_for_many_devices_as_for_few() -> None:
    # Cells are packed on both; what moves elements is planned piece by piece.
    few, many = (told_by_another_process("growing", count) for count in (128, 256))
    assert few.keys() == many.keys()
    # A call more or less is a table that was found full; what grows with devices grows by dozens.
    more = {name: (few[name], many[name]) for name in few if many[name] > few[name] + 8}
    assert not more


@in_worlds
@pytest.mark.parametrize("name", BODIES)
def test_the_jitted_form_gives_the_same(name: str) -> None:
    f, x = mapped(name)
    jitted = meshard.jit(f)
    for _ in range(2):
        found, expected = jitted(x), f(x)
        assert found.sharding == expected.sharding
        for a, b in zip(found.addressable_shards, expected.addressable_shards, strict=True):
            np.testing.assert_array_equal(a.data, b.data)


@in_worlds
@pytest.mark.parametrize("name", BODIES)
def test_a_ledger_sees_what_the_plain_form_moves(name: str) -> None:
    f, x = mapped(name)
    jitted = meshard.jit(f)
    f(x), jitted(x)
    with debug.ledger() as plain:
        f(x)
    with debug.ledger() as lowered:
        jitted(x)
    assert lowered.total_bytes == plain.total_bytes
    assert lowered.received == plain.received
