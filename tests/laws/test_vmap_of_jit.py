"""A jitted function that is mapped stays compiled: one program for all examples.

Its Python does not run again, and its operations are not run one by one; mapped twice, with a name,
differentiated inside and around.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import P, lax
from meshard.transforms.batching.vmap import vmap
from tests.laws.test_vmap_rows import operations
from tests.worlds import mesh, whole

TRACES: list[None] = []


def body(x: Any, y: Any) -> Any:
    """Do twenty operations."""
    TRACES.append(None)
    for _ in range(6):
        x = mnp.sin(x) * mnp.sum(y) + x
    return x, mnp.sum(y)


Way = Callable[[Any], Callable[[Any], Any]]
WAYS: dict[str, tuple[Way, int]] = {
    "mapped": (lambda f: lambda x: vmap(f)(x, x), 0),
    "with a shared argument": (lambda f: lambda x: vmap(f, in_axes=(0, None))(x, 2.0), 4),
    "twice": (lambda f: lambda x: vmap(vmap(f))(mnp.stack([x, x]), mnp.stack([x, x])), 6),
    "inside": (lambda f: lambda x: vmap(lambda r: f(r, r)[0] + 1.0)(x), 1),
    "gradients": (lambda f: vmap(meshard.grad(lambda r: mnp.sum(f(r, r)[0]))), 4),
    "the gradient": (lambda f: meshard.grad(lambda x: mnp.sum(vmap(f)(x, x)[0])), 4),
    "tangents": (lambda f: lambda x: meshard.jvp(lambda v: vmap(f)(v, v)[0], (x,), (x,)), 0),
    "jacobians": (lambda f: vmap(meshard.jacfwd(lambda r: f(r, r)[0])), 6),
    "hessians": (lambda f: vmap(meshard.hessian(lambda r: mnp.sum(f(r, r)[0]))), 14),
}


@pytest.mark.parametrize("name", WAYS)
def test_one_program_for_all(name: str) -> None:
    way, most = WAYS[name]
    x = mnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    expected = meshard.tree.leaves(way(body)(x))
    mapped = way(meshard.jit(body))
    found = meshard.tree.leaves(mapped(x))
    for y, z in zip(found, expected, strict=True):
        np.testing.assert_allclose(whole(y), whole(z), 1e-12, 1e-13)
        assert y.dtype == z.dtype
    before = len(TRACES)
    assert operations(mapped, x) <= most
    assert len(TRACES) == before


def test_names_in_jitted_functions() -> None:
    x = mnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    total = meshard.jit(lambda v: lax.psum(v, "i") * v)
    np.testing.assert_allclose(whole(vmap(total, axis_name="i")(x)), whole(x).sum(0) * whole(x))
    both = meshard.jit(lambda v: lax.psum(v, ("i", "j")) + v)
    nested = vmap(vmap(both, axis_name="i"), axis_name="j")
    np.testing.assert_allclose(whole(nested(x)), whole(x).sum() + whole(x))
    places = vmap(lambda v: meshard.jit(lambda: lax.axis_index("i"))() * v, axis_name="i")
    np.testing.assert_allclose(whole(places(x)), np.arange(4)[:, None] * whole(x))
    counted = vmap(
        lambda v: lax.scan(lambda c, r: (c + lax.axis_index("i") + r, r), 0, mnp.arange(3))[0] * v,
        axis_name="i",
    )
    np.testing.assert_allclose(whole(counted(x)), (3 * np.arange(4) + 3)[:, None] * whole(x))


def test_in_bodies_and_around_them() -> None:
    x = meshard.device_put(
        np.random.default_rng(0).normal(size=(8, 3)), meshard.NamedSharding(mesh(), P("i"))
    )
    jitted = meshard.jit(body)
    expected = vmap(body)(x, x)
    mapped = meshard.shard_map(vmap(jitted), mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
    for found in (mapped(x, x), vmap(jitted)(x, x), meshard.jit(vmap(jitted))(x, x)):
        for y, z in zip(found, expected, strict=True):
            np.testing.assert_allclose(whole(y), whole(z), 1e-12, 1e-13)
            assert y.sharding.spec[:1] == ("i",)


def test_collectives_are_there_without_lax() -> None:
    """A gradient in a body needs them, whether or not the program names one."""
    program = """
import meshard
mesh = meshard.make_mesh((1,), ("d",))
f = meshard.grad(lambda x: (x * 2).sum())
x = meshard.numpy.ones(1)
print(meshard.shard_map(f, mesh=mesh, in_specs=meshard.P("d"), out_specs=meshard.P("d"))(x))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[2.]\n"
