"""Random programs whose devices go different ways give what each device alone would compute.

A program is a tree of statements on one vector of integers: arithmetic, branches that depend on
where the device stands or on its data, loops with other counts on each device, and collectives
over axes along which the code at hand does not diverge. The model is NumPy: all devices in lock
step, each taking part in a statement where its mask says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, NamedSharding, P
from tests.worlds import alone

SIZES = [(2, 4), (4, 2), (2, 2, 2), (8,), (2, 1, 4), (2, 2), (4,), (2,)]
"""The manual axes; where they make less than 8 devices, another axis stays automatic."""
NAMES = ("i", "j", "k")
LENGTH = 8
MODULUS = 9973
Statement = tuple[Any, ...]
Block = list[Statement]


# programs


@st.composite
def statements(
    draw: st.DrawFn, sizes: tuple[int, ...], free: tuple[str, ...], depth: int
) -> Statement:
    """Draw a statement; collectives are over axes of ``free``."""
    names = NAMES[: len(sizes)]
    kinds = ["multiply", "place", "turn", "slice", "update"]
    kinds += ["psum", "pmax", "gather", "scatter", "exchange", "permute"] * bool(free)
    if depth:
        kinds += ["cond", "cond", "data", "switch", "while", "fori", "scan"] * 2
    kind = draw(st.sampled_from(kinds))
    if kind in ("psum", "pmax", "gather", "scatter", "exchange", "permute"):
        axes = draw(st.lists(st.sampled_from(free), min_size=1, unique=True))
        if kind in ("scatter", "exchange"):
            axes = axes[:1]
        shift = draw(st.integers(0, 3))
        return (kind, tuple(axes), shift)
    if kind in ("multiply", "place", "turn", "slice", "update"):
        return (kind, draw(st.sampled_from(names)), draw(st.integers(1, 5)))
    axis = draw(st.sampled_from(names))
    number = draw(st.integers(1, 3))
    inside = tuple(a for a in free if a != axis)
    if kind == "data":
        inside = ()
    if kind == "scan":
        inside = free
    ways = 3 if kind == "switch" else 2 if kind in ("cond", "data") else 1
    block = st.lists(statements(sizes, inside, depth - 1), max_size=2)
    return (kind, axis, number, *[draw(block) for _ in range(ways)])


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], Block]:
    """Draw the sizes of the manual axes, an order of the devices, and a program."""
    sizes = draw(st.sampled_from(SIZES))
    order = draw(st.permutations(range(8)))
    block = draw(
        st.lists(statements(sizes, NAMES[: len(sizes)], 2), min_size=1, max_size=4),
    )
    return sizes, list(order), block


# meshard


def run(block: Block, x: Any) -> Any:
    for statement in block:
        x = step(statement, x)
    return x


def step(statement: Statement, x: Any) -> Any:
    kind, axis, number, *blocks = statement
    if kind == "psum":
        return lax.psum(x, axis) % MODULUS
    if kind == "pmax":
        return lax.pmax(x, axis)
    if kind == "gather":
        return lax.all_gather(x, axis).sum(axis=0) % MODULUS + number
    if kind == "scatter":
        n = lax.axis_size(axis)
        found = lax.psum_scatter(x, axis, tiled=True) % MODULUS
        return mnp.tile(found, n)
    if kind == "exchange":
        return lax.all_to_all(x, axis, 0, 0, tiled=True)
    if kind == "permute":
        n = lax.axis_size(axis)
        return lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n - (number == 3))])
    i = lax.axis_index(axis)
    if kind == "multiply":
        return (x * number + 1) % MODULUS
    if kind == "place":
        return (x + number * i) % MODULUS
    if kind == "turn":
        return mnp.roll(x, number)
    if kind == "slice":
        return mnp.concatenate([lax.dynamic_slice(x, (i,), (4,)), x[:4]])
    if kind == "update":
        return x.at[i].set(number)
    if kind == "cond":
        return lax.cond(
            i % (number + 1) == 0, lambda v: run(blocks[0], v), lambda v: run(blocks[1], v), x
        )
    if kind == "data":
        return lax.cond(
            x[number] % 2 == 0, lambda v: run(blocks[0], v), lambda v: run(blocks[1], v), x
        )
    if kind == "switch":
        return lax.switch(i - number + 1, [lambda v, b=b: run(b, v) for b in blocks], x)
    if kind == "while":
        return lax.while_loop(
            lambda s: s[0] % 4 < 3 - s[1],
            lambda s: (s[0], s[1] + 1, run(blocks[0], s[2])),
            (i * number, 0, x),
        )[2]
    if kind == "fori":
        return lax.fori_loop(i - number, number, lambda t, v: run(blocks[0], (v + t) % MODULUS), x)
    assert kind == "scan"

    def turn(carry: Any, y: Any) -> Any:
        carry = run(blocks[0], (carry + y) % MODULUS)
        return carry, carry[0]

    last, firsts = lax.scan(turn, x, x[:number], reverse=number == 2)
    return (last + firsts.sum()) % MODULUS


def ours(sizes: tuple[int, ...], order: Sequence[int], block: Block, x: np.ndarray) -> np.ndarray:
    names = NAMES[: len(sizes)]
    rest = 8 // math.prod(sizes)
    devices = np.array(meshard.devices(), object)[list(order)]
    mesh = Mesh(devices.reshape(*sizes, rest), (*names, "auto"))
    alone = (1,) * len(sizes)
    body = meshard.shard_map(
        lambda v: run(block, v.reshape(LENGTH)).reshape(*alone, LENGTH),
        mesh=mesh,
        in_specs=P(*names),
        out_specs=P(*names),
        axis_names=set(names) if rest > 1 else set(),
    )
    given: Any = x
    if order[0] % 2:  # also split over the automatic axis
        given = meshard.device_put(x, NamedSharding(mesh, P(*names, "auto")))
    everyone = Mesh(meshard.devices(), "all")
    return np.array(meshard.device_put(body(given), NamedSharding(everyone, P())))


# the model


class Devices:
    """All devices in lock step; the last dim is each one's vector."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.names = NAMES[: len(sizes)]

    def index(self, axis: str) -> np.ndarray:
        place = self.names.index(axis)
        shape = [1] * len(self.sizes)
        shape[place] = self.sizes[place]
        return np.broadcast_to(np.arange(self.sizes[place]).reshape(shape), self.sizes)

    def run(self, block: Block, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        for statement in block:
            x = np.where(mask[..., None], self.step(statement, x, mask), x)
        return x

    def grouped(self, x: np.ndarray, axes: Sequence[str]) -> tuple[np.ndarray, Any]:
        """Return vectors as [group, member, element], and the way back."""
        places = [self.names.index(a) for a in axes]
        rest = [p for p in range(len(self.sizes)) if p not in places]
        order = [*rest, *places, len(self.sizes)]
        moved = x.transpose(order)
        count = math.prod(self.sizes[p] for p in places)
        back = np.argsort(order)
        return moved.reshape(-1, count, LENGTH), lambda y: y.reshape(moved.shape).transpose(back)

    def step(self, statement: Statement, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        kind, axis, number, *blocks = statement
        if isinstance(axis, tuple):
            return self.collective(kind, axis, number, x)
        i = self.index(axis)
        if kind == "multiply":
            return (x * number + 1) % MODULUS
        if kind == "place":
            return (x + number * i[..., None]) % MODULUS
        if kind == "turn":
            return np.roll(x, number, axis=-1)
        if kind == "slice":
            places = np.minimum(i, LENGTH - 4)[..., None] + np.arange(4)
            own = np.take_along_axis(x, places, axis=-1)
            return np.concatenate([own, x[..., :4]], axis=-1)
        if kind == "update":
            return np.where(np.arange(LENGTH) == i[..., None], number, x)
        if kind in ("cond", "data", "switch"):
            if kind == "cond":
                which = np.where(i % (number + 1) == 0, 0, 1)
            elif kind == "data":
                which = x[..., number] % 2
            else:
                which = np.clip(i - number + 1, 0, 2)
            for n, block in enumerate(blocks):
                x = self.run(block, x, mask & (which == n))
            return x
        if kind == "while":
            turn = np.zeros(self.sizes, int)
            running = mask & ((i * number) % 4 < 3 - turn)
            while running.any():
                x = self.run(blocks[0], x, running)
                turn = turn + running
                running = running & ((i * number) % 4 < 3 - turn)
            return x
        if kind == "fori":
            for t in range(-3, number):
                running = mask & (i - number <= t)
                x = np.where(running[..., None], (x + t) % MODULUS, x)
                x = self.run(blocks[0], x, running)
            return x
        positions = range(number - 1, -1, -1) if number == 2 else range(number)
        carry, total = x, np.zeros(self.sizes, int)
        for p in positions:
            carry = self.run(blocks[0], (carry + x[..., p : p + 1]) % MODULUS, mask)
            total = total + carry[..., 0]
        return (carry + total[..., None]) % MODULUS

    def collective(self, kind: str, axes: Any, number: int, x: np.ndarray) -> np.ndarray:
        groups, back = self.grouped(x, axes)
        n = groups.shape[1]
        total = groups.sum(axis=1, keepdims=True) % MODULUS
        if kind == "psum":
            found = np.broadcast_to(total, groups.shape)
        elif kind == "pmax":
            found = np.broadcast_to(groups.max(axis=1, keepdims=True), groups.shape)
        elif kind == "gather":
            found = np.broadcast_to(total + number, groups.shape)
        elif kind == "scatter":
            found = np.tile(total.reshape(-1, n, LENGTH // n), (1, 1, n))
        elif kind == "exchange":
            parts = groups.reshape(-1, n, n, LENGTH // n)
            found = parts.transpose(0, 2, 1, 3).reshape(groups.shape)
        else:
            found = np.zeros_like(groups)
            for i in range(n - (number == 3)):
                found[:, (i + 1) % n] = groups[:, i]
        return np.asarray(back(found))


def check(
    program: tuple[tuple[int, ...], list[int], Block], worlds: Sequence[tuple[int, int]]
) -> None:
    sizes, order, block = program
    x = np.arange(math.prod(sizes) * LENGTH).reshape(*sizes, LENGTH) * 7 % 101
    expected = Devices(sizes).run(block, x, np.ones(sizes, bool))
    found = alone(lambda: ours(sizes, order, block, x))
    np.testing.assert_array_equal(found, expected)
    for processes, devices in worlds:
        body = lambda: ours(sizes, order, block, x)  # noqa: E731
        for again in simulate(processes, devices, body, deadline=20):
            np.testing.assert_array_equal(again, expected)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(programs())
def test_what_each_device_alone_would_compute(program: Any) -> None:
    check(program, [(2, 4)])


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(programs())
def test_other_numbers_of_processes(program: Any) -> None:
    check(program, [(4, 2), (8, 1)])
