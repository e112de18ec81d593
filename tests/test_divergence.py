"""Control flow that takes other ways on other devices, inside shard_map."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, random
from meshard.errors import ArgumentError, ConcretizationError, TreeError
from meshard.ops.row import REGISTRY, Op
from meshard.runtime.doors import innermost
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, NamedSharding, P
from tests.test_api import collectives
from tests.worlds import alone, everywhere, in_processes, in_worlds, mesh, put, whole

both = P(("i", "j"))


def mapped(
    body: Callable[..., Any], *args: Any, specs: Any = both, out: Any = both, **k: Any
) -> Any:
    """Run a body on the 4 x 2 mesh and return its results' values."""
    specs = specs if isinstance(specs, tuple) and not isinstance(specs, P) else (specs,) * len(args)
    on = k.pop("on", None) or mesh()
    found = meshard.shard_map(body, mesh=on, in_specs=specs, out_specs=out, **k)(*args)
    return meshard.tree.map(whole, found)


def everyones(body: Callable[[], Any]) -> Any:
    """Run in one, two, four and eight processes, and return what all of them gave."""
    return in_processes(body, (2, 4, 8))


x = np.arange(8.0)
i, j = np.divmod(np.arange(8), 2)


# conditions


def test_cond() -> None:
    def body(v: Any) -> Any:
        return lax.cond(lax.axis_index("i") % 2 == 0, lambda u: u * 10, lambda u: -u, v)

    np.testing.assert_array_equal(
        everyones(lambda: mapped(body, x)), np.where(i % 2 == 0, 10 * x, -x)
    )


def test_cond_on_data_and_on_a_number() -> None:
    def body(v: Any) -> Any:
        first = lax.cond(v[0] > 4, lambda u: u, lambda u: u * 0 - 1, v)
        return lax.cond(lax.axis_index("j"), lambda: first, lambda: v)

    expected = np.where(j == 1, np.where(x > 4, x, -1), x)
    np.testing.assert_array_equal(everyones(lambda: mapped(body, x)), expected)


def test_switch_with_many_branches() -> None:
    def body(v: Any) -> Any:
        number = 2 * lax.axis_index("i") + lax.axis_index("j") - 1
        return lax.switch(number, [lambda u, n=n: u + 100 * n for n in range(6)], v)

    expected = x + 100 * np.clip(np.arange(8) - 1, 0, 5)
    np.testing.assert_array_equal(everyones(lambda: mapped(body, x)), expected)


def test_nested_conditions_over_both_axes() -> None:
    def body(v: Any) -> Any:
        def inner(u: Any) -> Any:
            return lax.cond(lax.axis_index("j") == 0, lambda w: w + 1, lambda w: w * 2, u)

        return lax.cond(lax.axis_index("i") < 2, inner, lambda u: inner(inner(u)), v)

    once = np.where(j == 0, x + 1, x * 2)
    expected = np.where(i < 2, once, np.where(j == 0, once + 1, once * 2))
    np.testing.assert_array_equal(everyones(lambda: mapped(body, x)), expected)


def test_trees_numbers_and_none_from_branches() -> None:
    def body(v: Any) -> Any:
        found = lax.cond(
            lax.axis_index("i") == 0,
            lambda t: {"a": t[0], "b": (1.5, None), "c": 7},
            lambda t: {"a": t[1], "b": (np.float32(2), None), "c": np.int8(3)},
            (v, -v),
        )
        assert found["b"][1] is None
        return found["a"], found["b"][0][None], found["c"][None]

    a, b, c = everyones(lambda: mapped(body, x))
    np.testing.assert_array_equal(a, np.where(i == 0, x, -x))
    np.testing.assert_array_equal(b, np.where(i == 0, 1.5, 2).astype(np.float32))
    np.testing.assert_array_equal(c, np.where(i == 0, 7, 3).astype(np.int8))


# loops


def test_while_with_other_counts_on_each_device() -> None:
    def body(v: Any) -> Any:
        def turn(s: Any) -> Any:
            return s[0] + 1, s[1] * 2

        n, doubled = lax.while_loop(lambda s: s[0] < lax.axis_index("i"), turn, (0, v))
        return n[None], doubled

    n, doubled = everyones(lambda: mapped(body, x + 1))
    np.testing.assert_array_equal(n, i)
    np.testing.assert_array_equal(doubled, (x + 1) * 2.0**i)


def test_while_on_data() -> None:
    def body(v: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 100, lambda s: s * 3, v)

    expected = x + 1
    while (expected < 100).any():
        expected = np.where(expected < 100, expected * 3, expected)
    np.testing.assert_array_equal(everyones(lambda: mapped(body, x + 1)), expected)


def test_fori_with_other_bounds_on_each_device() -> None:
    def body(v: Any) -> Any:
        a, b = lax.axis_index("i"), lax.axis_index("j")
        up = lax.fori_loop(b, a, lambda k, u: u * 2 + k, v)
        down = lax.fori_loop(3, a, lambda k, u: u + 1, 0)
        return up, down[None], lax.fori_loop(a, 3, lambda k, u: u + 1, 0.0)[None]

    up, none, rest = everyones(lambda: mapped(body, x))
    expected = x.copy()
    for d in range(8):
        for k in range(j[d], i[d]):
            expected[d] = expected[d] * 2 + k
    np.testing.assert_array_equal(up, expected)
    np.testing.assert_array_equal(none, np.zeros(8, int))
    np.testing.assert_array_equal(rest, 3.0 - i)


def test_loops_in_branches_and_branches_in_loops() -> None:
    def body(v: Any) -> Any:
        def loops(u: Any) -> Any:
            return lax.fori_loop(0, lax.axis_index("i"), lambda k, w: w + k, u)

        def scans(u: Any) -> Any:
            return lax.scan(lambda c, y: (c + y, None), u, mnp.arange(3.0))[0]

        v = lax.cond(lax.axis_index("j") == 0, loops, scans, v)
        return lax.fori_loop(
            0, 3, lambda k, u: lax.cond(lax.axis_index("i") == k, lambda w: -w, lambda w: w, u), v
        )

    expected = np.where(j == 0, x + i * (i - 1) / 2, x + 3)
    expected = np.where(i < 3, -expected, expected)
    np.testing.assert_array_equal(everyones(lambda: mapped(body, x)), expected)


def test_scan_and_map_over_what_varies() -> None:
    value = np.arange(24.0).reshape(8, 3)

    def body(v: Any) -> Any:
        def step(c: Any, y: Any) -> Any:
            c = lax.cond(y > 10, lambda: c + y, lambda: c)
            return c, c * lax.axis_index("j")

        last, rows = lax.scan(step, 0.0, v[0])
        back, _ = lax.scan(lambda c, y: (c * 2 + y, None), 0.0, v[0], reverse=True)
        return last[None], rows[None], lax.map(lambda y: y + 1, v[0])[None], back[None]

    last, rows, found, back = everyones(lambda: mapped(body, value))
    kept = np.cumsum(np.where(value > 10, value, 0), axis=1)
    np.testing.assert_array_equal(last, kept[:, -1])
    np.testing.assert_array_equal(rows, kept * j[:, None])
    np.testing.assert_array_equal(found, value + 1)
    np.testing.assert_array_equal(back, value @ [1, 2, 4])


def test_scan_of_nothing_in_a_body() -> None:
    def body(v: Any) -> Any:
        last, rows = lax.scan(lambda c, y: (c + y, (y * c, mnp.ones(2))), 0.0, v[:0])
        assert meshard.typeof(last).vma == meshard.typeof(rows[0]).vma == {"i", "j"}
        assert meshard.typeof(rows[1]).vma == frozenset()
        return last[None], rows[0][None], lax.map(lambda y: y[None], v[:0])[None], rows[1]

    last, rows, found, ones = everyones(lambda: mapped(body, x, out=(both, both, both, P())))
    assert last.shape == (8,)
    assert rows.shape == (8, 0)
    assert found.shape == (8, 0, 1)
    assert ones.shape == (0, 2)


def test_indices_that_differ_by_device() -> None:
    value = np.arange(6.0)

    def body(v: Any) -> Any:
        a = lax.axis_index("i")

        def turn(k: Any, u: Any) -> Any:
            own = lax.dynamic_slice(v, (a + k,), (2,))
            u = u.at[a].add(own.sum())
            return lax.dynamic_update_slice(u, own[:1] * k, (5 - k,))

        return lax.fori_loop(0, a, turn, v)[None]

    expected = np.tile(value, (8, 1))
    for d in range(8):
        for k in range(i[d]):
            at = min(i[d] + k, 4)
            own = value[at : at + 2]
            expected[d, i[d]] += own.sum()
            expected[d, 5 - k] = own[0] * k
    np.testing.assert_array_equal(everyones(lambda: mapped(body, value, specs=P())), expected)


def test_random_numbers_in_branches_and_loops() -> None:
    def body(key: Any) -> Any:
        own = random.fold_in(key, lax.axis_index("i"))
        drawn = lax.cond(
            lax.axis_index("j") == 0,
            lambda k: random.normal(k, (3,)),
            lambda k: random.uniform(k, (3,)) - 9,
            own,
        )

        def turn(k: Any, _: Any) -> Any:
            k, sub = random.split(k)
            return k, random.uniform(sub)

        return drawn[None], lax.scan(turn, own, None, length=2)[1][None]

    drawn, scanned = everyones(lambda: mapped(body, random.key(1), specs=P()))

    def model() -> list[np.ndarray]:
        found = []
        for d in range(8):
            own = random.fold_in(random.key(1), int(i[d]))
            wanted = random.normal(own, (3,)) if j[d] == 0 else random.uniform(own, (3,)) - 9
            found.append(np.asarray(wanted))
        return found

    np.testing.assert_array_equal(drawn, np.stack(alone(model)))
    np.testing.assert_array_equal(scanned[0::2], scanned[1::2])
    assert len(np.unique(scanned)) == 8


# the type does not depend on the number of turns


def test_a_carry_that_comes_to_vary_after_several_turns() -> None:
    def body(v: Any) -> Any:
        def shift(s: Any) -> Any:
            return s[1], s[2], s[3], v[0]

        seen = []
        for n in (0, 1, 2, 7):
            found = lax.fori_loop(0, n, lambda k, s: shift(s), (0.0, 1.0, 2.0, 3.0))
            assert all(meshard.typeof(u).vma == {"i", "j"} for u in found)
            seen.append(mnp.stack(found))
        return mnp.stack(seen)[None]

    found = everyones(lambda: mapped(body, x))
    np.testing.assert_array_equal(found[5, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(found[5, 1], [1, 2, 3, 5])
    np.testing.assert_array_equal(found[5, 2], [2, 3, 5, 5])
    np.testing.assert_array_equal(found[5, 3], [5, 5, 5, 5])


def test_what_varies_by_control_flow() -> None:
    def body(v: Any) -> Any:
        a, b = lax.axis_index("i"), lax.axis_index("j")
        one = mnp.ones(())

        def vma(u: Any) -> str:
            return "".join(sorted(meshard.typeof(u).vma))

        assert vma(lax.cond(a > 0, lambda: one, lambda: one)) == "i"
        assert vma(lax.cond(True, lambda: one, lambda: b * one)) == "j"
        assert vma(lax.switch(a, [lambda: one, lambda: b * one])) == "ij"
        assert vma(lax.cond(lax.psum(a, "i") > 0, lambda: one, lambda: one)) == ""
        assert vma(lax.while_loop(lambda c: c < 0, lambda c: c + a, 0)) == "i"
        assert vma(lax.while_loop(lambda c: (c < b) & False, lambda c: c, one)) == "j"
        assert vma(lax.fori_loop(0, 3, lambda k, c: c + 1, 0)) == ""
        assert vma(lax.fori_loop(0, a, lambda k, c: c + 1, 0)) == "i"
        assert vma(lax.fori_loop(0, 0, lambda k, c: c + b, 0)) == "j"
        last, rows = lax.scan(lambda c, y: (c + y, c + a), 0.0, v)
        assert vma(last) == vma(rows) == "ij"
        assert vma(lax.map(lambda y: y, mnp.ones(2))) == ""
        return v

    everyones(lambda: mapped(body, x))


def test_numbers_take_a_dtype_also_where_no_turn_is_taken() -> None:
    def body(v: Any) -> Any:
        a = lax.axis_index("i")
        counted = lax.fori_loop(0, a, lambda k, c: c + np.float32(1), 0.0)
        small = lax.while_loop(lambda c: c < 0, lambda c: c + np.int8(1), 0)
        return counted[None], (small + 0 * a.astype(np.int8))[None]

    counted, small = everyones(lambda: mapped(body, x))
    np.testing.assert_array_equal(counted, i.astype(np.float32))
    assert counted.dtype == np.float32
    assert small.dtype == np.int8


# collectives under a mask

COLLECTIVES: dict[str, tuple[Callable[[Any, str], Any], Callable[[np.ndarray], np.ndarray]]] = {
    # of a vector of four on each device; the model takes [member, element] of one group of two
    "psum": (lax.psum, lambda g: np.stack([g.sum(0)] * 2)),
    "pmean": (lax.pmean, lambda g: np.stack([g.mean(0)] * 2)),
    "pmax": (lax.pmax, lambda g: np.stack([g.max(0)] * 2)),
    "pmin": (lax.pmin, lambda g: np.stack([g.min(0)] * 2)),
    "all_gather": (
        lambda v, a: lax.all_gather(v, a).reshape(8),
        lambda g: np.stack([g.ravel()] * 2),
    ),
    "all_gather tiled": (
        lambda v, a: lax.all_gather(v, a, tiled=True),
        lambda g: np.stack([g.ravel()] * 2),
    ),
    "all_gather_invariant": (
        lambda v, a: lax.all_gather_invariant(v, a, tiled=True),
        lambda g: np.stack([g.ravel()] * 2),
    ),
    "psum_scatter": (
        lambda v, a: lax.psum_scatter(v, a, tiled=True),
        lambda g: g.sum(0).reshape(2, 2),
    ),
    "psum_scatter of a dim": (
        lambda v, a: lax.psum_scatter(v.reshape(2, 2), a),
        lambda g: g.sum(0).reshape(2, 2),
    ),
    "all_to_all": (
        lambda v, a: lax.all_to_all(v, a, 0, 0, tiled=True),
        lambda g: g.reshape(2, 2, 2).transpose(1, 0, 2).reshape(2, 4),
    ),
    "all_to_all of a dim": (
        lambda v, a: lax.all_to_all(v.reshape(2, 2), a, 0, 0).reshape(4),
        lambda g: g.reshape(2, 2, 2).transpose(1, 0, 2).reshape(2, 4),
    ),
    "ppermute": (lambda v, a: lax.ppermute(v, a, [(0, 1), (1, 0)]), lambda g: g[::-1]),
    "ppermute to one": (
        lambda v, a: lax.ppermute(v, a, [(0, 1)]),
        lambda g: np.stack([0 * g[0], g[0]]),
    ),
    "pshuffle": (lambda v, a: lax.pshuffle(v, a, [1, 0]), lambda g: g[::-1]),
    "pbroadcast": (lambda v, a: lax.pbroadcast(v, a, 1), lambda g: np.stack([g[1]] * 2)),
}


def test_every_collective_is_tried_under_a_mask() -> None:
    elsewhere = {
        "pswapaxes": "it is all_to_all",
        "ragged_all_to_all": "in test_ragged",
        **dict.fromkeys(("halo", "halo_add"), "of ppermute; in test_uneven_map"),
    }
    sends_nothing = {"axis_index", "axis_size", "pcast", "pvary"}
    tried = {name.split()[0] for name in COLLECTIVES}
    assert collectives() - tried - {*elsewhere} - sends_nothing == set(), "give it a model above"


# The mesh (stage, model) of 4 x 2: groups over model within a process of four, across processes,
# and some of each.
ORDERS = {
    "within": [0, 1, 2, 3, 4, 5, 6, 7],
    "across": [0, 4, 1, 5, 2, 6, 3, 7],
    "mixed": [5, 0, 7, 6, 1, 2, 3, 4],
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_stages_collectives_over_another_axis(order: str) -> None:
    value = np.arange(32.0).reshape(8, 4) ** 2 % 23

    def run() -> Any:
        devices = np.array(meshard.devices(), object)[ORDERS[order]].reshape(4, 2)
        on = Mesh(devices, ("stage", "model"))
        split = P(("stage", "model"))

        def one(collective: Any) -> Any:
            def body(v: Any) -> Any:
                v = v.reshape(4)
                stage = lax.axis_index("stage")
                shape = meshard.eval_shape(lambda u: collective(u, "model"), v).shape

                def takes_part(u: Any) -> Any:
                    return collective(u + stage, "model")

                once = lax.cond(stage % 3 == 1, takes_part, lambda u: mnp.full(shape, -1.0), v)

                def turn(s: Any) -> Any:
                    return s[0] + 1, s[1] + collective(v * s[0], "model").sum()

                total = lax.while_loop(lambda s: s[0] < stage, turn, (0, 0.0))[1]
                by_three = lax.switch(
                    stage - 1,
                    [lambda u: collective(u, "model")] * 2 + [lambda u: -collective(u, "model")],
                    v,
                )
                return once[None], total[None], by_three[None]

            return mapped(body, value, specs=split, out=split, on=on)

        return [one(collective) for collective, _ in COLLECTIVES.values()]

    results = everyones(run)
    stage = np.arange(8) // 2
    for (name, (_, model)), (once, total, three) in zip(COLLECTIVES.items(), results, strict=True):
        groups = (value + stage[:, None]).reshape(4, 2, 4)
        wanted = np.concatenate([np.asarray(model(g), float) for g in groups])
        wanted = np.where((stage % 3 == 1)[:, None], wanted, -1)
        np.testing.assert_allclose(once, wanted, err_msg=name)
        plain = np.concatenate([np.asarray(model(g), float) for g in value.reshape(4, 2, 4)])
        np.testing.assert_allclose(
            three, np.where((stage == 3)[:, None], -plain, plain), err_msg=name
        )
        np.testing.assert_allclose(total, plain.sum(axis=1) * stage * (stage - 1) / 2, err_msg=name)


def test_collectives_over_two_of_three_axes() -> None:
    def body(v: Any) -> Any:
        def part(u: Any) -> Any:
            u = lax.psum(u, ("b", "c"))
            return lax.pvary(u, ("b", "c")) + lax.cond(
                lax.axis_index("b") == 0, lambda w: lax.psum(w, "c"), lambda w: lax.pmax(w, "c"), v
            )

        return lax.cond(lax.axis_index("a") == 1, part, lambda u: -u, v)

    def run() -> list[np.ndarray]:
        found = []
        for order in [range(8), [0, 2, 4, 6, 1, 3, 5, 7], [7, 0, 3, 4, 1, 6, 2, 5]]:
            devices = np.array(meshard.devices(), object)[list(order)].reshape(2, 2, 2)
            on = Mesh(devices, ("a", "b", "c"))
            spec = P(("a", "b", "c"))
            found.append(mapped(body, x, specs=spec, out=spec, on=on))
        return found

    expected = np.array([0, -1, -2, -3, 22 + 9, 22 + 9, 22 + 7, 22 + 7.0])
    for found in everyones(run):
        np.testing.assert_array_equal(found, expected)


def test_groups_of_an_axis_under_a_mask() -> None:
    value = np.arange(8.0)

    def body(v: Any) -> Any:
        return lax.cond(
            lax.axis_index("j") == 1,
            lambda u: lax.psum(u, "i", axis_index_groups=[[0, 3], [1, 2]]),
            lambda u: u,
            v,
        )

    def run() -> Any:
        return mapped(body, value, check_vma=False)

    table = value.reshape(4, 2)
    expected = table.copy()
    expected[[0, 3], 1], expected[[1, 2], 1] = 1 + 7, 3 + 5
    np.testing.assert_array_equal(everyones(run), expected.ravel())


def refused(body: Callable[..., Any], axes: str, name: str = "psum") -> None:
    told = f"{name} over .* is inside code that runs under a condition which varies over the mesh "
    told += f"axis {axes}: some of the devices that should take part would not get here"

    def run() -> None:
        with pytest.raises(ArgumentError, match=told):
            mapped(body, x)

    everyones(run)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "cond": (
        lambda v: lax.cond(lax.axis_index("i") == 0, lambda u: lax.psum(u, "i"), lambda u: u, v),
        "'i'",
    ),
    "on data": (
        lambda v: lax.cond(v[0] > 3, lambda u: u, lambda u: lax.psum(u, ("j", "i")), v),
        "'j', 'i'",
    ),
    "switch": (
        lambda v: lax.switch(lax.axis_index("j"), [lambda u: u, lambda u: lax.psum(u, "j")], v),
        "'j'",
    ),
    "while, in the body": (
        lambda v: lax.while_loop(lambda s: s[0] < 9, lambda s: lax.psum(s, "i") + s, v),
        "'i'",
    ),
    "while, no turn taken": (
        lambda v: lax.while_loop(lambda s: s[0] < -9, lambda s: lax.psum(s, "j") + s, v),
        "'j'",
    ),
    "fori": (
        lambda v: lax.fori_loop(0, lax.axis_index("i"), lambda k, u: u + lax.psum(u, "i"), v),
        "'i'",
    ),
    "nested": (
        lambda v: lax.cond(
            lax.axis_index("i") == 0,
            lambda u: lax.cond(
                lax.axis_index("j") == 0, lambda w: lax.psum(w, "i"), lambda w: w, u
            ),
            lambda u: u,
            v,
        ),
        "'i'",
    ),
    "an even condition inside": (
        lambda v: lax.cond(
            lax.axis_index("i") == 0,
            lambda u: lax.cond(True, lambda w: lax.psum(w, "i"), lambda w: w, u),
            lambda u: u,
            v,
        ),
        "'i'",
    ),
    "may vary by its type only": (
        lambda v: lax.cond(
            lax.all_gather(lax.axis_index("i"), "i").sum() > 0,
            lambda u: lax.psum(u, "i"),
            lambda u: u,
            v,
        ),
        "'i'",
    ),
    "no device takes it": (
        lambda v: lax.cond(lax.axis_index("i") > 99, lambda u: lax.psum(u, "i"), lambda u: u, v),
        "'i'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_collective_over_an_axis_that_the_condition_varies_over(name: str) -> None:
    refused(*REFUSED[name])


@pytest.mark.parametrize("name", [n for n in COLLECTIVES if " " not in n and n != "pmean"])
def test_each_collective_is_refused(name: str) -> None:
    collective = COLLECTIVES[name][0]

    def body(v: Any) -> Any:
        wide = mnp.tile(v, 4)
        return lax.cond(
            lax.axis_index("j") == 0, lambda u: collective(u, "j")[:1], lambda u: u[:1], wide
        )

    told = {"pshuffle": "ppermute"}.get(name, name)
    refused(body, "'j'", told)


def test_a_while_loops_condition_may_hold_a_collective_where_it_is_even() -> None:
    def body(v: Any) -> Any:
        return lax.while_loop(lambda s: lax.psum(s, ("i", "j"))[0] < 500, lambda s: s * 2, v)

    expected = x.copy()
    while expected.sum() < 500:
        expected = expected * 2
    np.testing.assert_array_equal(everyones(lambda: mapped(body, x)), expected)


# what is run


@contextmanager
def counted(name: str) -> Iterator[list[int]]:
    """Record the size of each block that an operation's kernel is run on."""
    row = REGISTRY[name]
    kernel, runs = row.kernel, []  # type: ignore[union-attr]

    def counting(*args: Any, **kwargs: Any) -> Any:
        runs.append(np.size(args[0]))
        return kernel(*args, **kwargs)  # type: ignore[no-any-return]

    object.__setattr__(row, "kernel", counting)
    try:
        yield runs
    finally:
        object.__setattr__(row, "kernel", kernel)


LARGE = 5  # the number of elements that marks the runs to count


def test_kernels_run_for_active_cells_only() -> None:
    value = np.arange(8.0 * LARGE) / 100

    def runs(body: Callable[[Any], Any]) -> int:
        def once() -> int:
            with counted("sinh") as sizes:
                mapped(body, value)
            return sizes.count(LARGE)

        return alone(once)

    a, b = (lambda: lax.axis_index("i")), (lambda: lax.axis_index("j"))
    one = mnp.sinh

    assert runs(one) == 8
    assert runs(lambda v: lax.cond(a() == 2, one, lambda u: u, v)) == 2
    assert runs(lambda v: lax.cond(b() == 1, one, lambda u: u, v)) == 4
    assert runs(lambda v: lax.cond((a() == 2) & (b() == 1), one, lambda u: u, v)) == 1
    assert runs(lambda v: lax.cond(a() > 9, one, lambda u: u, v)) == 0
    assert runs(lambda v: lax.cond(False, one, lambda u: u, v)) == 0
    assert runs(lambda v: lax.cond(lax.psum(1, "i") == 4, one, lambda u: u, v)) == 8
    assert runs(lambda v: lax.switch(a(), [one, lambda u: u, one], v)) == 2 + 4
    nested = lambda u: lax.cond(b() == 0, one, lambda w: w, u)  # noqa: E731
    assert runs(lambda v: lax.cond(a() < 3, nested, lambda u: u, v)) == 3
    # 0, 1, 2 and 3 turns on two devices each; a condition over one axis, and what varies over one
    assert runs(lambda v: lax.fori_loop(0, a(), lambda k, u: one(u), v)) == 2 * 6
    alike = lambda v: lax.cond(a() < 2, lambda: one(mnp.ones(LARGE) * a()), lambda: v * 0)  # noqa: E731
    assert runs(alike) == 2
    same = lambda v: lax.cond(a() < 2, lambda: one(mnp.ones(LARGE)), lambda: v * 0)  # noqa: E731
    assert runs(same) == 1


def test_each_process_runs_its_own() -> None:
    def body(v: Any) -> Any:
        return lax.cond(lax.axis_index("i") < 1, mnp.sinh, lambda u: u, v)

    for processes in (1, 2, 4, 8):
        with counted("sinh") as sizes:  # the registry is shared by simulated processes
            value = np.arange(8.0 * LARGE)
            simulate(processes, 8 // processes, lambda v=value: mapped(body, v), deadline=20)
        assert sizes.count(LARGE) == 2


@in_worlds
def test_a_branch_that_no_device_here_takes_sends_nothing() -> None:
    """Nothing is computed, nothing is sent, and nobody waits."""

    def body(v: Any) -> Any:
        with meshard.debug.ledger() as log:
            found = lax.cond(
                lax.axis_index("i") > 99, lambda u: lax.psum(u * 2, "j"), lambda u: u, v
            )
        assert log.total_bytes == 0
        return found

    np.testing.assert_array_equal(mapped(body, x), x)


def test_values_that_no_device_here_has_cannot_be_looked_at() -> None:
    def body(v: Any) -> Any:
        def looks(u: Any) -> Any:
            return u * int(mnp.ones(2).sum() + 1)

        return lax.cond(lax.axis_index("i") > 99, looks, lambda u: u, v)

    def run() -> None:
        with pytest.raises(ConcretizationError, match="none of this process's devices runs this"):
            mapped(body, x)

    everyones(run)


def test_a_print_in_a_branch_shows_the_devices_that_run_it(capsys: Any) -> None:
    def body(v: Any) -> Any:
        def shows(u: Any) -> Any:
            print(u * 2)
            return u

        return lax.cond(lax.axis_index("i") == 3, shows, lambda u: u, v)

    alone(lambda: mapped(body, x))
    assert capsys.readouterr().out == (
        "float64[1]{V:(i,j)}\nat (i, j) = (3, 0):\n  [12.]\nat (i, j) = (3, 1):\n  [14.]\n"
    )


# refusals and errors


def test_branches_that_disagree() -> None:
    def run(branch: Callable[[Any], Any]) -> Any:
        return lambda v: lax.cond(lax.axis_index("i") == 0, lambda u: u, branch, v)

    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda u: (u, u), TreeError, "branch outputs must have the same pytree structure"),
        (lambda u: u.astype(int), ArgumentError, "has type int64[1], so the dtypes do not match"),
        (lambda u: u.sum(), ArgumentError, "has type float64[], so the shapes do not match"),
        (lambda u: "no", ArgumentError, "what false_fun returns must be arrays or numbers"),
    ]
    for branch, kind, message in cases:

        def check(branch: Any = branch, kind: Any = kind, message: str = message) -> None:
            with pytest.raises(kind, match=re.escape(message)):
                mapped(run(branch), x)

        everywhere(check)


def test_carries_that_change_also_where_no_turn_is_taken() -> None:
    def check() -> None:
        with pytest.raises(
            ArgumentError,
            match=r"fori_loop: .* has type float64\[1\], but the output carry has type int64\[1\]",
        ):
            mapped(
                lambda v: lax.fori_loop(0, lax.axis_index("i") * 0, lambda k, u: u.astype(int), v),
                x,
            )
        with pytest.raises(TreeError, match="must have the same pytree structure"):
            mapped(lambda v: lax.while_loop(lambda u: u[0] < -1, lambda u: (u,), v), x)
        with pytest.raises(ArgumentError, match="cond_fun must return a boolean scalar"):
            mapped(lambda v: lax.while_loop(lambda u: u < -1, lambda u: u, v.reshape(1, 1)), x)

    everywhere(check)


def test_an_error_in_a_branch_leaves_nothing_behind() -> None:
    def fails(u: Any) -> Any:
        raise KeyError("mine")

    def body(v: Any) -> Any:
        around = innermost()
        for use in (
            lambda: lax.cond(lax.axis_index("i") == 0, fails, lambda u: u, v),
            lambda: lax.cond(False, fails, lambda u: u, v),
            lambda: lax.fori_loop(0, lax.axis_index("i"), lambda k, u: fails(u), v),
            lambda: lax.while_loop(fails, lambda u: u, v),
            lambda: lax.scan(lambda c, y: fails(y), v, v),
        ):
            with pytest.raises(KeyError, match="mine"):
                use()
            assert innermost() is around
            assert around.mask is None  # type: ignore[union-attr]
        return v + 1

    def run() -> Any:
        found = mapped(body, x)
        with pytest.raises(KeyError, match="mine"):
            mapped(lambda v: lax.cond(lax.axis_index("i") == 0, fails, lambda u: u, v), x)
        assert innermost() is None
        return found

    np.testing.assert_array_equal(everyones(run), x + 1)


# some axes stay automatic, and bodies in bodies


def auto(body: Callable[..., Any], *args: Any, axis: str = "i", **k: Any) -> Any:
    return mapped(body, *args, specs=P(axis), out=P(axis), axis_names={axis}, **k)


square = np.arange(64.0).reshape(8, 8)


@pytest.mark.parametrize(("axis", "spec"), [("i", ("i", "j")), ("j", ("j", "i")), ("i", ())])
def test_divergence_with_automatic_axes(axis: str, spec: tuple[str, ...]) -> None:
    size = 4 if axis == "i" else 2
    rows = 8 // size

    def body(v: Any) -> Any:
        a = lax.axis_index(axis)
        v = lax.cond(a % 2 == 0, lambda u: u * 2, lambda u: u + u.sum(axis=1, keepdims=True), v)
        v = lax.while_loop(lambda s: s[0] < a, lambda s: (s[0] + 1, s[1] @ mnp.eye(8) + 1), (0, v))[
            1
        ]
        sure = lax.psum(a, axis) > 0
        v = lax.cond(sure, lambda u: lax.psum(u, axis) + u, lambda u: mnp.zeros((rows, 8)), v)
        return lax.switch(a, [lambda u: mnp.ones((rows, 8)), lambda u: u, lambda u: -u], v)

    def run() -> Any:
        return auto(body, put(square, *spec), axis=axis)

    parts = square.reshape(size, rows, 8)
    a = np.arange(size)[:, None, None]
    expected = np.where(a % 2 == 0, parts * 2, parts + parts.sum(axis=2, keepdims=True)) + a
    expected = expected.sum(axis=0) + expected
    expected = np.where(a == 0, 1, np.where(a == 1, expected, -expected))
    np.testing.assert_allclose(everyones(run), expected.reshape(8, 8))


def test_even_conditions_inside_uneven_ones_with_automatic_axes() -> None:
    """Their values exist only where code runs, and there is nothing at the first device."""

    def body(v: Any) -> Any:
        def inside(u: Any) -> Any:
            two = mnp.ones(2).sum()
            u = lax.cond(two > 1, lambda w: w * 2, lambda w: w, u)
            u = lax.fori_loop(0, two.astype(int), lambda k, w: w + 1, u)
            u = lax.while_loop(lambda s: s[0] < two, lambda s: (s[0] + 1, s[1] * 2), (0.0, u))[1]
            return lax.switch(two.astype(int), [lambda w: w, lambda w: w, lambda w: -w], u)

        return lax.cond(lax.axis_index("i") >= 2, inside, lambda u: u, v)

    expected = np.where(np.arange(8)[:, None] >= 4, -(square * 2 + 2) * 4, square)
    for spec in [("i", "j"), ()]:
        found = everyones(lambda spec=spec: auto(body, put(square, *spec)))
        np.testing.assert_array_equal(found, expected)
    found = everyones(lambda: mapped(body, square, specs=P("i"), out=P("i")))
    np.testing.assert_array_equal(found, expected)


def test_collectives_under_a_mask_with_automatic_axes() -> None:
    def body(v: Any) -> Any:
        return lax.cond(
            lax.axis_index("a") == 1,
            lambda u: lax.all_gather(u, "b").sum(axis=0) + lax.ppermute(u, "b", [(0, 1)]),
            lambda u: u * 1,
            v,
        )

    value = np.arange(64.0).reshape(4, 16)

    def run() -> list[np.ndarray]:
        found = []
        for order in [range(8), [0, 4, 2, 6, 1, 5, 3, 7], [7, 0, 3, 4, 1, 6, 2, 5]]:
            devices = np.array(meshard.devices(), object)[list(order)].reshape(2, 2, 2)
            on = Mesh(devices, ("a", "b", "c"))
            given = put(value, "a", ("b", "c"), on=on)
            found.append(
                mapped(
                    body, given, specs=P("a", "b"), out=P("a", "b"), on=on, axis_names={"a", "b"}
                )
            )
        return found

    left, right = value[2:, :8], value[2:, 8:]
    expected = value.copy()
    expected[2:, :8], expected[2:, 8:] = left + right, left + right + left
    for found in everyones(run):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("outer", "inner"), [("i", "j"), ("j", "i")])
def test_a_nested_shard_map_in_branches_and_loops(outer: str, inner: str) -> None:
    def nested(v: Any) -> Any:
        def body(u: Any) -> Any:
            own = lax.axis_index(inner)
            return lax.cond(own == 1, lambda w: w + 100, lambda w: w, lax.psum(u, inner) + 0 * u)

        return meshard.shard_map(
            body, in_specs=P(None, inner), out_specs=P(None, inner), axis_names={inner}
        )(v)

    def body(v: Any) -> Any:
        a = lax.axis_index(outer)
        v = lax.cond(a < 1, lambda u: nested(u * 2), lambda u: -u, v)
        return lax.fori_loop(0, a, lambda k, u: nested(u + k), v)

    sizes = {"i": 4, "j": 2}
    n, m = sizes[outer], sizes[inner]

    def model(v: np.ndarray) -> np.ndarray:
        parts = v.reshape(len(v), m, 8 // m)
        total = np.tile(parts.sum(axis=1, keepdims=True), (1, m, 1))
        total[:, 1] += 100
        return total.reshape(v.shape)

    expected = []
    for a, own in enumerate(square.reshape(n, 8 // n, 8)):
        v = model(own * 2) if a < 1 else -own
        for k in range(a):
            v = model(v + k)
        expected.append(v)
    found = everyones(lambda: auto(body, square, axis=outer))
    np.testing.assert_array_equal(found, np.concatenate(expected))


def test_values_from_around_in_loops_of_other_lengths() -> None:
    """A sharded array from outside is gathered once, by all processes, whatever their turns."""

    def run() -> Any:
        big = put(square, "i", "j")

        def body(v: Any) -> Any:
            return lax.while_loop(
                lambda s: s[0] < lax.axis_index("i"), lambda s: (s[0] + 1, s[1] + big[0, 1]), (0, v)
            )[1]

        return mapped(body, x)

    np.testing.assert_array_equal(everyones(run), x + i)


def test_eval_shape_in_a_body() -> None:
    def body(v: Any) -> Any:
        struct = meshard.ShapeDtypeStruct((4, 3), "float32")
        found = meshard.eval_shape(lambda u, w: (u @ w, lax.psum(u, "i"), 2), v, struct)
        assert [s.shape for s in found] == [(2, 3), (2, 4), ()]
        return v

    value = np.ones((8, 4))
    everyones(lambda: mapped(body, value, specs=P("i"), out=P("i")))
    everyones(lambda: auto(body, value))


def test_values_that_a_kernel_refuses_on_one_process_are_refused_by_all() -> None:
    def program() -> list[str]:
        sharding = NamedSharding(meshard.make_mesh((4,), ("x",)), P("x"))
        x = meshard.device_put(np.arange(8), sharding)
        last = meshard.device_put(np.array([*[1] * 7, -1]), sharding)
        told = []
        for call in (
            lambda: mnp.power(x, last),
            lambda: 2**last,
            lambda: meshard.jit(lambda a, b: (a + 1) ** b + 1)(x, last),
        ):
            with pytest.raises(ValueError, match="negative integer powers") as caught:
                call()
            told.append(str(caught.value))
            assert float((x ** abs(last)).sum()) == 28  # in step, so that others can follow
        return told

    one, other = simulate(2, 2, program)
    assert one == other


def test_rows_whose_kernels_refuse_values_say_so() -> None:
    nasty = {
        "int64": ([0, -1], [-(2**63), -1], [70, -70]),
        "uint8": ([0, 255],),
        "float64": ([np.nan, np.inf], [-1.0, 0.0]),
    }
    values = [np.array(v, d) for d, some in nasty.items() for v in some]
    for name, row in REGISTRY.items():
        if not isinstance(row, Op) or row.style != "ufunc":
            continue
        for operands in (*itertools.product(values), *itertools.product(values, values)):
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    row.kernel(*[np.ones_like(x) for x in operands])
                except Exception:  # not as many operands, or not of these dtypes
                    continue
                try:
                    row.kernel(*[x.copy() for x in operands])  # the last may be an `out`
                except Exception:
                    kinds = [(x.shape, x.dtype) for x in operands]
                    assert row.refuses is not None, f"{name} refuses {operands}"
                    assert row.refuses(kinds), f"{name} refuses {operands}"
