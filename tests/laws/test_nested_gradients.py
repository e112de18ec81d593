"""Gradients of random programs: nested `shard_map`, loops, branches, `vmap`, `remat`, collectives.

A program is drawn as a tree of steps that keep the shape of a value. It runs on a mesh, and as the
same steps on one device, where `vmap` with a named axis stands for each `shard_map`. Both gradients
are equal, eager and jitted, and agree with finite differences, with tangents pushed forward and
with second derivatives. ``GRADIENTS=2000 GRADIENTS_FROM=0 GRADIENTS_DEPTH=5`` runs more programs,
others, and deeper ones.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import Mesh, NamedSharding, P
from tests.worlds import mesh

RUNS = int(os.environ.get("GRADIENTS", 10))
FIRST = int(os.environ.get("GRADIENTS_FROM", 0))
DEPTH = int(os.environ.get("GRADIENTS_DEPTH", 3))
AXES = {"i": 2, "j": 2, "k": 2}
WIDTH = 8
WILD = 1e6
"""A gradient beyond this is of a program that makes its rounding errors as large as its values."""

Step = Callable[[Any, "Around"], Any]


@dataclass(frozen=True)
class Around:
    """What a step finds: whether it runs on the mesh, a parameter, and a value of the code around.

    Attributes:
        split: whether it runs on the mesh; else on one device.
        c: a parameter that all steps may close over.
        outer: a scalar of the code around the innermost `shard_map` or loop.
    """

    split: bool
    c: Any
    outer: Any


@dataclass(frozen=True)
class Place:
    """Where a step is drawn for.

    Attributes:
        shape: of the value there.
        bound: the axes that collectives may use.
        free: those that a `shard_map` may still bind.
        depth: how many steps may be nested.
        calm: whether devices may take different ways here, so that none waits for others.
    """

    shape: tuple[int, ...]
    bound: tuple[str, ...] = ()
    free: tuple[str, ...] = tuple(AXES)
    depth: int = 4
    calm: bool = False


def draw(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    """Return one to three steps in a row, and how they read."""
    drawn = [draw_one(rng, at) for _ in range(rng.integers(1, 4 if at.depth > 1 else 3))]

    def run(x: Any, around: Around) -> Any:
        for step, _ in drawn:
            x = step(x, around)
        return x

    return run, "; ".join(told for _, told in drawn)


def draw_one(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    kinds = [elementwise, elementwise]
    if at.bound and not at.calm:
        kinds += [collective] * 2
    if at.depth > 0:
        kinds += [looped, chosen, wrapped]
        if len(at.shape) > 1:
            kinds.append(mapped)
            if at.free and not at.calm:
                kinds += [sharded] * 4
    return kinds[rng.integers(len(kinds))](rng, at)


def elementwise(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    number = round(float(rng.uniform(0.3, 0.9)), 2)
    steps: dict[str, Step] = {
        f"sin(x) * {number}": lambda x, _: mnp.sin(x) * number,
        f"x * x * {number}": lambda x, _: mnp.tanh(x) * mnp.tanh(x) * number,
        "x * c": lambda x, o: x * o.c,
        "x + outer": lambda x, o: x + mnp.sin(o.outer),
        f"x - {number} * mean(x)": lambda x, _: x - number * mnp.mean(x),
        "where": lambda x, _: mnp.where(x > number, mnp.cos(x), x * number),
        "grad inside": lambda x, o: meshard.grad(lambda y: mnp.sum(mnp.sin(y) * o.c))(x),
        "roll": lambda x, _: mnp.roll(x, 1, axis=-1),
    }
    told = list(steps)[rng.integers(len(steps))]
    return steps[told], told


def collective(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    axis = at.bound[rng.integers(len(at.bound))]
    size = AXES[axis]
    steps: dict[str, Step] = {
        "psum": lambda x, _: lax.psum(mnp.sin(x), axis) * x,
        "pmean": lambda x, _: lax.pmean(x, axis),
        "x - pmean": lambda x, _: x - lax.pmean(x * x, axis) * 0.3,
        "ppermute": lambda x, _: lax.ppermute(x, axis, [(p, (p + 1) % size) for p in range(size)]),
        "all_gather": lambda x, _: x + mnp.sin(lax.all_gather(x, axis)[1]),
        "all_gather, tiled": lambda x, _: x * mnp.mean(lax.all_gather(x, axis, axis=0, tiled=True)),
        "axis_index": lambda x, _: x * (1.0 + lax.axis_index(axis)),
        "psum of c": lambda x, o: x * mnp.tanh(lax.psum(o.c, axis)),
        "psum of outer": lambda x, o: x + lax.psum(o.outer * o.c, axis) * 0.2,
    }
    told = list(steps)[rng.integers(len(steps))]
    return steps[told], f"{told} {axis}"


def within(step: Step, around: Around, x: Any) -> Callable[[Any], Any]:
    """Return a step as a function of its value, which closes over a scalar of the value around."""
    inner = replace(around, outer=mnp.mean(x))
    return lambda y: step(y, inner)


def looped(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    step, told = draw(rng, replace(at, depth=at.depth - 1))
    length, kind = int(rng.integers(1, 4)), ("scan", "scan of rows", "fori_loop")[rng.integers(3)]

    def run(x: Any, around: Around) -> Any:
        f = within(step, around, x)

        def turn(y: Any) -> Any:  # the carry varies as what is made of it does
            return 0.5 * (f(y) + x)

        if kind == "fori_loop":
            return lax.fori_loop(0, length, lambda _, y: turn(y), x)
        rows = mnp.arange(length) * 0.1 if kind == "scan" else mnp.sin(mnp.stack([x] * length))
        last, all_of = lax.scan(lambda y, row: (turn(y) + row, y), x, rows)
        return last + mnp.mean(all_of)

    return run, f"{kind} {length} ({told})"


def chosen(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    varies = bool(rng.integers(2))
    calm = at.calm or varies
    inner = replace(at, depth=at.depth - 1, calm=calm)
    (one, first), (other, second) = draw(rng, inner), draw(rng, inner)
    limit = float(rng.uniform(-0.2, 0.2))

    def run(x: Any, around: Around) -> Any:
        f, g = within(one, around, x), within(other, around, x)
        taken = mnp.mean(x) > limit if varies else limit > 0
        return lax.cond(taken, lambda y: f(y) + 0 * y, lambda y: g(y) + 0 * y, x)

    return run, f"cond {'x' if varies else ''} ({first} | {second})"


def wrapped(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    step, told = draw(rng, replace(at, depth=at.depth - 1))
    kind = ("remat", "remat, all kept", "jit", "jit of remat")[rng.integers(4)]
    everything = meshard.checkpoint_policies.everything_saveable

    def run(x: Any, around: Around) -> Any:
        f = within(step, around, x)
        if kind == "jit":
            return meshard.jit(f)(x)
        made = meshard.checkpoint(f, policy=everything if kind == "remat, all kept" else None)
        return (meshard.jit(made) if kind == "jit of remat" else made)(x)

    return run, f"{kind} ({told})"


def mapped(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    step, told = draw(rng, replace(at, shape=at.shape[1:], depth=at.depth - 1, calm=at.calm))
    column = bool(rng.integers(2)) and at.shape[0] == at.shape[1]

    def run(x: Any, around: Around) -> Any:
        dim = 1 if column else 0
        return meshard.vmap(within(step, around, x), in_axes=dim, out_axes=dim)(x)

    return run, f"vmap ({told})"


def sharded(rng: np.random.Generator, at: Place) -> tuple[Step, str]:
    axis = at.free[rng.integers(len(at.free))]
    size, dim = AXES[axis], int(rng.integers(len(at.shape)))
    whole = bool(rng.integers(3) == 0) or at.shape[dim] % size
    kind = ("whole", "whole, then joined")[rng.integers(2)] if whole else "split"
    local = [*at.shape]
    local[dim] //= 1 if whole else size
    inner = Place(
        tuple(local), (*at.bound, axis), tuple(a for a in at.free if a != axis), at.depth - 1
    )
    step, told = draw(rng, inner)

    def run(x: Any, around: Around) -> Any:
        f = within(step, around, x)

        def body(y: Any) -> Any:
            return lax.pmean(f(y), axis) if kind == "whole" else f(y)

        split = P(*[None] * dim, axis)
        ins = split if kind == "split" else P()
        outs = P() if kind == "whole" else split
        if around.split:
            given = mesh(tuple(AXES.values()), tuple(AXES))
            y = meshard.shard_map(
                body, mesh=given, in_specs=ins, out_specs=outs, axis_names={axis}
            )(x)
        else:
            y = on_one(body, x, axis, dim, kind)
        if kind == "whole, then joined":
            y = mnp.sum(y.reshape(*at.shape[:dim], size, *at.shape[dim:]), axis=dim)
        return y

    return run, f"shard_map {axis} of dim {dim}, {kind} ({told})"


def on_one(body: Callable[[Any], Any], x: Any, axis: str, dim: int, kind: str) -> Any:
    """Run a body on one device: the devices are examples."""
    size, shape = AXES[axis], x.shape
    if kind == "split":
        x = x.reshape(*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])
    y = meshard.vmap(
        body,
        in_axes=dim if kind == "split" else None,
        out_axes=None if kind == "whole" else dim,
        axis_name=axis,
        axis_size=size,
    )(x)
    return y if kind == "whole" else y.reshape(*shape[:dim], -1, *shape[dim + 1 :])


def program(seed: int) -> tuple[Callable[[bool], Callable[[Any, Any], Any]], str, Sequence[Any]]:
    """Return a program as a function of where it runs, how it reads, and its arguments."""
    rng = np.random.default_rng(seed)
    step, told = draw(rng, Place((WIDTH, WIDTH), depth=int(rng.integers(1, DEPTH + 1))))
    weights = rng.normal(size=(WIDTH, WIDTH))

    def of(split: bool) -> Callable[[Any, Any], Any]:
        return lambda x, c: mnp.sum(step(x, Around(split, c, c)) * weights)

    return of, told, (rng.normal(size=(WIDTH, WIDTH)), np.float64(rng.uniform(0.3, 0.9)))


def close(found: Any, wanted: Any, what: str) -> None:
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-7, atol=1e-9, err_msg=what)


def check(seed: int) -> None:
    """Check one program."""
    of, told, args = program(seed)
    args = tuple(map(mnp.asarray, args))
    rng = np.random.default_rng(seed + 10**6)
    f, alone = of(True), of(False)
    wanted = meshard.grad(alone, (0, 1))(*args)
    if max(float(mnp.max(abs(g))) for g in wanted) > WILD:
        return
    close([f(*args)], [alone(*args)], f"value of {told}")
    close(meshard.grad(f, (0, 1))(*args), wanted, f"gradient of {told}")
    close(meshard.jit(meshard.grad(f, (0, 1)))(*args), wanted, f"jitted gradient of {told}")
    moves = tuple(mnp.asarray(rng.normal(size=x.shape)) for x in args)
    slope = sum(float(mnp.sum(g * t)) for g, t in zip(wanted, moves, strict=True))
    steps = [
        (alone(*[x + e * t for x, t in zip(args, moves, strict=True)])
         - alone(*[x - e * t for x, t in zip(args, moves, strict=True)])) / (2 * e)
        for e in (1e-5, 1e-6)
    ]  # fmt: skip
    if abs(steps[0] - steps[1]) < 1e-4 * (1 + abs(slope)):  # no step crosses a branch
        np.testing.assert_allclose(slope, steps[0], rtol=1e-3, atol=1e-4, err_msg=told)
    kind = seed % 4
    if kind == 0:
        close([meshard.jvp(f, args, moves)[1]], [slope], f"tangent of {told}")
    elif kind == 1:
        close([meshard.linearize(f, *args)[1](*moves)], [slope], f"linear map of {told}")
    elif kind == 2:
        found, expected = (meshard.jvp(meshard.grad(g, (0, 1)), args, moves)[1] for g in (f, alone))
        close(found, expected, f"second derivative of {told}")
    else:
        many = [mnp.stack([x, x * 0.7]) for x in args]
        expected = [
            mnp.stack(pair)
            for pair in zip(
                wanted, meshard.grad(alone, (0, 1))(*[x * 0.7 for x in args]), strict=True
            )
        ]
        close(meshard.vmap(meshard.grad(f, (0, 1)))(*many), expected, f"mapped gradient of {told}")


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_a_nested_program_has_the_gradient_that_it_has_on_one_device(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        check(seed)


# single faults


def halves() -> tuple[Any, Any]:
    """Return two shardings that share no device."""
    devices = np.asarray(meshard.devices())
    return tuple(NamedSharding(Mesh(devices[n : n + 2], ("i",)), P("i")) for n in (0, 2))  # type: ignore[return-value]


def test_a_gradient_comes_back_over_stages_on_other_devices() -> None:
    here, there = halves()
    w, v = meshard.device_put(mnp.arange(1, 9.0), here), meshard.device_put(mnp.ones(8), there)

    def loss(w: Any, v: Any, first: Any) -> Any:
        return mnp.sum(meshard.device_put(first(w) * w, there) * v)

    for first in (mnp.sin, meshard.jit(mnp.sin), meshard.checkpoint(mnp.sin)):
        found = meshard.grad(loss, (0, 1))(w, v, first)
        assert [g.sharding for g in found] == [here, there]
        x = np.asarray(w)
        close(found, (np.cos(x) * x + np.sin(x), np.sin(x) * x), "stages")


def test_a_branch_that_is_not_taken_has_no_part_in_a_gradient() -> None:
    x, y = mnp.asarray([-1.0, 0.0, 2.0]), mnp.asarray(3.0)

    def one(x: Any, y: Any) -> Any:
        return lax.cond(x > 0, lambda x: mnp.log(x) * y, lambda x: 2 * x, x)

    def f(x: Any, y: Any) -> Any:
        return mnp.sum(meshard.vmap(one, in_axes=(0, None))(x, y))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for g in (meshard.grad(f, (0, 1)), meshard.jit(meshard.grad(f, (0, 1)))):
            close(g(x, y), ([2.0, 2.0, 1.5], np.log(2.0)), "branches")


@pytest.mark.parametrize("number", [2.5, 3, 2j])
def test_a_number_that_a_body_takes_keeps_its_dtype_open(number: complex) -> None:
    x = mnp.arange(8, dtype=np.int8 if isinstance(number, int) else np.float32)
    wanted = (x * number).dtype
    given = mesh((2, 2), ("i", "j"))

    def f(x: Any, c: Any, closed: bool) -> Any:
        if closed:
            return meshard.shard_map(
                lambda y: y * (c * 2), mesh=given, in_specs=P("i"), out_specs=P("i")
            )(x)
        return meshard.shard_map(
            lambda y, c: y * c, mesh=given, in_specs=(P("i"), P()), out_specs=P("i")
        )(x, c)

    for closed in (True, False):
        assert f(x, number, closed).dtype == wanted
        assert meshard.jit(f, static_argnums=2)(x, number, closed).dtype == wanted
        if isinstance(number, float):
            results = meshard.jvp(lambda c: f(x, c, closed), (number,), (1.0,))  # noqa: B023
            assert [y.dtype for y in results] == [wanted] * 2
            assert float(meshard.grad(lambda c: mnp.sum(f(x, c, closed)))(number)) > 0  # noqa: B023


@pytest.mark.parametrize("policy", [None, meshard.checkpoint_policies.everything_saveable])
def test_a_rule_for_tangents_may_use_its_own_function(policy: Any) -> None:
    @meshard.custom_jvp
    def double(x: Any) -> Any:
        return 2 * x

    double.defjvp(lambda x, t: (double(*x), double(*t)))
    f = meshard.checkpoint(lambda x: double(double(x) * x), policy=policy)
    for g in (meshard.grad(f), meshard.jit(meshard.grad(f))):
        assert (float(g(3.0)), float(meshard.grad(g)(3.0))) == (24.0, 8.0)


def test_each_device_has_its_own_cotangent_of_a_sum() -> None:
    x, w = mnp.arange(4.0), np.arange(1, 5.0)
    f = meshard.shard_map(
        lambda y, m: lax.psum(y + m, "i"),
        mesh=mesh((2, 2), ("i", "j")), in_specs=(P("i"), P()), out_specs=P("i"),
    )  # fmt: skip
    found = meshard.grad(lambda x, m: mnp.sum(f(x, m) * w), (0, 1))(x, mnp.asarray(1.0))
    close(found, ([4.0, 6.0, 4.0, 6.0], 20.0), "sums")


def test_a_carry_that_starts_the_same_everywhere_has_a_gradient() -> None:
    def body(y: Any) -> Any:
        def turn(c: Any, _: Any) -> Any:
            return c * (1.0 + lax.axis_index("i")), None

        return lax.psum(lax.scan(turn, y, None, length=2)[0], "i")

    f = meshard.shard_map(body, mesh=mesh((2, 2), ("i", "j")), in_specs=P(), out_specs=P())
    x = mnp.arange(3.0)
    g = meshard.grad(lambda x: mnp.sum(f(x)))
    for found in (g(x), meshard.jit(g)(x)):
        close([found], [[5.0] * 3], "carry")


def test_a_jitted_body_has_a_linear_map() -> None:
    def body(y: Any) -> Any:
        return mnp.sin(y) * lax.psum(y, "i")

    f = meshard.shard_map(body, mesh=mesh((2, 2), ("i", "j")), in_specs=P("i"), out_specs=P("i"))
    x, t = mnp.arange(4.0), mnp.ones(4)
    found, run = meshard.linearize(meshard.jit(f), x)
    wanted, moved = meshard.jvp(f, (x,), (t,))
    close([found, run(t), run(2 * t)], [wanted, moved, 2 * moved], "linear map")


def test_a_carry_that_comes_to_be_split_over_axes_that_a_body_leaves_alone() -> None:
    given = mesh((2, 2), ("i", "j"))

    def over(f: Any, axis: str, spec: Any) -> Any:
        return meshard.shard_map(
            f, mesh=given, in_specs=spec, out_specs=spec, axis_names={axis}, check_vma=False
        )

    def body(y: Any) -> Any:
        def turn(y: Any, _: Any) -> Any:
            return mnp.sin(over(lambda z: z * 2, "j", P(None, "j"))(y)), y

        return lax.scan(turn, y, None, length=2)[0]

    def f(x: Any, many: Any) -> Any:
        return lax.scan(lambda x, y: (over(body, "i", P("i"))(x) + y, x), x, many)[0]

    x, many = mnp.arange(16.0).reshape(4, 4), mnp.arange(32.0).reshape(2, 4, 4)
    g = meshard.grad(lambda *xs: mnp.sum(f(*xs) ** 2), (0, 1))
    close([meshard.jit(f)(x, many)], [f(x, many)], "value")
    once = over(body, "i", P("i"))
    assert meshard.jit(once)(x).sharding == once(x).sharding
    close(meshard.jit(g)(x, many), g(x, many), "gradient")
