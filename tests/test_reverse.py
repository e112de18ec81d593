"""The way back says what each step is for: in explanations, ledgers, profiles and listings."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.debug import budget, ledger, profile
from meshard.errors import BudgetError
from meshard.sharding import P
from tests.worlds import alone, everywhere, in_processes, mesh, put, whole


def line_of(f: Any) -> str:
    """Return the first line of a function's body, as steps name it."""
    return f"test_reverse.py:{inspect.getsourcelines(f)[1] + 1}"


def params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": put(rng.normal(size=(6, 6))), "b": put(rng.normal(size=6))}


def batch() -> Any:
    return put(np.random.default_rng(1).normal(size=(8, 6)), "i")


def layer(p, x):
    return mnp.tanh(x @ p["w"] + p["b"])


def plain(p, x):
    return layer(p, x).sum()


def scanned(p, x):
    return lax.scan(lambda c, _: (layer(p, c), None), x, None, length=2)[0].sum()


def looped(p, x):
    return lax.fori_loop(0, 2, lambda i, c: layer(p, c), x).sum()


def chosen(p, x):
    return lax.cond(mnp.sum(x) > -1e9, layer, lambda p, x: x, p, x).sum()


def in_body(p, x):
    def body(p, x):
        return lax.psum(layer(p, x).sum(), "i")

    return meshard.shard_map(body, mesh=mesh(), in_specs=(P(), P("i")), out_specs=P())(p, x)


def again(p, x):
    return meshard.remat(layer)(p, x).sum()


FUNCTIONS = [plain, scanned, looped, chosen, in_body, again]


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_completes_a_gradient_names_its_argument(f):
    def body():
        p, x = params(), batch()
        found = meshard.explain(meshard.grad(f), p, x)
        told = [
            (s.purpose, s.line.rpartition("/")[2])
            for s in found.steps
            for c in s.communications
            if c.kind == "all-reduce" and s.bytes_per_device > 50
        ]
        at = line_of(layer)
        assert sorted(told) == [("gradient of p['b']", at), ("gradient of p['w']", at)], found

        def run(g):
            g(p, x)
            with ledger() as log:
                g(p, x)
            return {(r.purpose, r.line.rpartition("/")[2]) for r in log if r.purpose}

        big = {(s.purpose, s.line.rpartition("/")[2]) for s in found.steps if s.communications}
        assert run(meshard.jit(meshard.grad(f))) == {t for t in big if t[0]}
        assert set(told) <= run(meshard.grad(f))

    alone(body)


def test_values_on_the_way_are_named_by_operation_and_line():
    def twice(p, x):
        return mnp.sum((layer(p, x) @ p["w"]) ** 2)

    found = alone(lambda: meshard.explain(meshard.grad(twice, argnums=1), params(), batch()))
    at = line_of(layer)
    purposes = [s.purpose for s in found.steps]
    assert purposes[-1] == "gradient of x"
    assert f"gradient of tanh at {at}" in purposes
    assert not any(purposes[:2])


def test_what_runs_before_it_is_on_the_way_back_says_nothing():
    found = alone(lambda: meshard.explain(plain, params(), batch()))
    assert not any(s.purpose for s in found.steps)
    assert "gradient" not in str(found)


def test_what_is_computed_again_says_so():
    def body():
        for f in (scanned, looped, chosen, again):
            found = meshard.explain(meshard.grad(f), params(), batch())
            twice = [s for s in found.steps if s.name.startswith("contract") and not s.part]
            twice += [s for s in found.steps if s.name.startswith("contract") and s.part]
            assert sum(s.purpose == "computed again" for s in twice) == 1, found

    alone(body)


def test_a_rule_of_the_user_has_its_own_lines():
    @meshard.custom_vjp
    def f(x):
        return x * 2

    def back(kept, g):
        return (mnp.cumsum(g),)

    f.defvjp(lambda x: (x * 2, None), back)

    def body():
        found = meshard.explain(meshard.grad(lambda x: (f(x) ** 2).sum()), mnp.ones(4))
        (step,) = [s for s in found.steps if s.name == "cumsum"]
        assert step.line.endswith(line_of(back))
        assert step.purpose == "gradient of x"

    alone(body)


def test_a_budget_refuses_naming_the_gradient():
    def body():
        p, x = params(), batch()
        value = meshard.explain(plain, p, x).total_bytes
        for f in (meshard.grad(plain), meshard.jit(meshard.grad(plain))):
            told = r"test_reverse.py:\d+ \(gradient of p\['b'\]\)"
            with pytest.raises(BudgetError, match=told), budget(value + 1):
                f(p, x)

    everywhere(body)


def test_texts_pages_and_traces_tell_it(tmp_path):
    def body():
        p, x = params(), batch()
        found = meshard.explain(meshard.grad(plain), p, x)
        steps = json.loads(found.to_json())["steps"]
        assert [s["purpose"] for s in steps] == [s.purpose for s in found.steps]
        assert "gradient of p[&#x27;w&#x27;]" in found.to_html()
        assert "gradient of" in str(found)
        assert "p['w']" in str(found)
        jitted = meshard.jit(meshard.grad(plain))
        listed = jitted.lower(p, x).compile().as_text()
        assert "gradient of p['w']" in listed
        for f in (jitted, meshard.grad(plain)):
            with ledger() as log, profile() as seen:
                f(p, x)
            assert "gradient of" in str(log)
            assert "p[&#x27;w&#x27;]" in log.to_html()
            records = json.loads(log.to_json())["records"]
            assert [r["purpose"] for r in records][-2:] == [
                "gradient of p['b']",
                "gradient of p['w']",
            ]
            events = [e for e in seen.events if e.purpose == "gradient of p['w']"]
            assert any(e.total_bytes for e in events)
            named = [e["args"].get("for") for e in json.loads(seen.to_json())["traceEvents"]]
            assert "gradient of p['w']" in named

    alone(body)


def test_gradients_of_several_arguments_and_of_a_call():
    def body():
        def f(*args):
            return (args[0] @ args[1]).sum()

        found = meshard.explain(meshard.grad(f, argnums=(0, 1)), mnp.eye(4), mnp.eye(4))
        assert {"gradient of args[0]", "gradient of args[1]"} <= {s.purpose for s in found.steps}

    alone(body)


def test_in_a_body_what_is_used_in_several_places_is_summed_once():
    def over(body):
        return meshard.shard_map(
            body, mesh=mesh(), in_specs=(P(), P("i"), P(("i", "j"))), out_specs=P()
        )

    def several(w, x, y):
        return lax.psum(mnp.sum(mnp.tanh(x @ w) @ w) + mnp.sum(x @ w), "i")

    def of_two_kinds(w, x, y):
        """Some of it varies over more axes, and is summed over these by itself."""
        return several(w, x, y) + lax.psum(mnp.sum(mnp.sin(y @ w)), ("i", "j"))

    def body():
        rng = np.random.default_rng(0)
        w, x, y = put(rng.normal(size=(6, 6))), batch(), put(rng.normal(size=(8, 6)), ("i", "j"))
        found = {}
        for f, count in (several, 1), (of_two_kinds, 2):
            slope = meshard.grad(over(f))
            sums = [s for s in meshard.explain(slope, w, x, y).steps if s.name == "psum"]
            assert [s.purpose for s in sums if s.purpose.endswith("of w")] == (
                ["gradient of w"] * count
            )
            with ledger() as log:
                found[f.__name__] = whole(slope(w, x, y))
            assert [r.purpose for r in log].count("gradient of w") == count
        return found

    found = in_processes(body, (2, 4))
    rng = np.random.default_rng(0)
    w, x, y = rng.normal(size=(6, 6)), alone(lambda: whole(batch())), rng.normal(size=(8, 6))
    ones = np.ones(6)
    t = np.tanh(x @ w)
    back = np.outer(t.sum(0), ones) + x.T @ ((1 - t**2) * (w @ ones)) + np.outer(x.sum(0), ones)
    np.testing.assert_allclose(found["several"], back, rtol=1e-12)
    more = back + y.T @ np.cos(y @ w)
    np.testing.assert_allclose(found["of_two_kinds"], more, rtol=1e-12)
