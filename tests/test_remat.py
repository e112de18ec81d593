"""Policies of `remat`: what they keep is not run again, what they do not keep is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P, ad_checkpoint, checkpoint_policies, lax
from meshard.ad_checkpoint import checkpoint_name, saved_residuals
from meshard.errors import ArgumentError
from meshard.ops.engine import eager

RNG = np.random.default_rng(0)
W1, W2, X = RNG.normal(size=(4, 8)), RNG.normal(size=(8, 4)), RNG.normal(size=(5, 4))
ROWS = ("contract", "sin", "tanh", "exp")

# policy, and how often one layer's way back runs each of ROWS; 4 products are the derivatives' own
POLICIES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "none": (lambda: None, (6, 1, 1, 1)),
    "nothing_saveable": (lambda: checkpoint_policies.nothing_saveable, (6, 1, 1, 1)),
    "everything_saveable": (lambda: checkpoint_policies.everything_saveable, (4, 0, 0, 0)),
    "dots_saveable": (lambda: checkpoint_policies.dots_saveable, (4, 1, 1, 1)),
    "dots_with_no_batch_dims_saveable": (
        lambda: checkpoint_policies.dots_with_no_batch_dims_saveable,
        (4, 1, 1, 1),
    ),
    "save_only_these_names": (
        lambda: checkpoint_policies.save_only_these_names("h"),
        (6, 0, 1, 1),
    ),
    "save_any_names_but_these": (
        lambda: checkpoint_policies.save_any_names_but_these("h"),
        (6, 1, 1, 1),
    ),
    "save_anything_except_these_names": (
        lambda: checkpoint_policies.save_anything_except_these_names("h"),
        (4, 0, 0, 0),
    ),
    "save_from_both_policies": (
        lambda: checkpoint_policies.save_from_both_policies(
            checkpoint_policies.dots_saveable, checkpoint_policies.save_only_these_names("h")
        ),
        (4, 0, 1, 1),
    ),
    "of the user": (lambda: lambda prim, *_, **__: prim == "tanh", (5, 1, 0, 1)),
}


def layer(w1: Any, w2: Any, x: Any) -> Any:
    return mnp.exp(mnp.tanh(checkpoint_name(mnp.sin(x @ w1), "h") @ w2))


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w1, w2, x: (f(w1, w2, x) ** 2).sum()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the operations that run."""
    found: Counter[str] = Counter()
    run = eager.Eager.run

    def counting(self: Any, name: str, operands: Any, params: Any) -> Any:
        found[name] += 1
        return run(self, name, operands, params)

    with monkeypatch.context() as patch:
        patch.setattr(eager.Eager, "run", counting)
        yield found


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_kept_is_not_run_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = POLICIES[name]
    f = meshard.remat(layer, policy=make())
    given = [mnp.asarray(x) for x in (W1, W2, X)]
    _, back = meshard.vjp(loss(f), *given)
    with counted(monkeypatch) as ran:
        found = back(mnp.ones(()))
    if name != "none":  # which computes again what it does not need, too
        assert tuple([ran[row] for row in ROWS]) == expected
    for a, b in zip(found, meshard.grad(loss(layer), (0, 1, 2))(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_in_jit_what_is_not_kept_is_computed_twice(name: str) -> None:
    make, expected = POLICIES[name]
    f = meshard.remat(layer, policy=make())
    jitted = meshard.jit(meshard.grad(loss(f), (0, 1, 2)))
    text = jitted.lower(W1, W2, X).as_text()
    ran = [text.count(f"= {row} ") + text.count(f"= {row}[") for row in ROWS]
    assert tuple([count - own for count, own in zip(ran, (2, 1, 1, 1), strict=True)]) == expected
    for a, b in zip(
        jitted(W1, W2, X), meshard.grad(loss(layer), (0, 1, 2))(W1, W2, X), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", ["dots_saveable", "everything_saveable", "save_only_these_names"])
def test_policies_compose_with_everything_else(name: str) -> None:
    """Second derivatives, batches, tangents, nested ones, and bodies."""
    f = meshard.remat(layer, policy=POLICIES[name][0]())
    meshard.config.update("num_devices", 8)
    mesh = meshard.make_mesh((8,), ("d",))

    def found(f: Callable[..., Any]) -> list[Any]:
        def second(w: Any) -> Any:
            return (meshard.grad(loss(f))(w, W2, X) ** 2).sum()

        def body(w: Any, x: Any) -> Any:
            def own(v: Any) -> Any:
                return loss(f)(v, W2, x + lax.psum(mnp.sin(x), "d"))

            return meshard.grad(own)(w)

        spread = meshard.shard_map(body, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
        rows = mnp.asarray(np.concatenate([X, X, X[:6]])[:8] / 3)
        nested = meshard.remat(lambda w: f(w, W2, f(w, W2, X)))
        return [
            meshard.grad(second)(W1),
            meshard.vmap(meshard.grad(lambda x: f(W1, W2, x).sum()))(X),
            meshard.jacfwd(lambda x: f(W1, W2, x))(X[0]),
            meshard.grad(lambda w: nested(w).sum())(W1),
            spread(mnp.asarray(W1), rows),
            meshard.jit(spread)(mnp.asarray(W1), rows),
            meshard.grad(lambda w: lax.scan(lambda c, x: (f(w, W2, c), x), X, None, 2)[0].sum())(
                W1
            ),
        ]

    for a, b in zip(found(f), found(layer), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_what_is_kept_decides_the_peak() -> None:
    big, w = mnp.ones((512, 256)), mnp.eye(256)

    def peak(policy: Any, plain: bool = False) -> int:
        def one(w: Any, x: Any) -> Any:
            return mnp.sin(mnp.sin(mnp.sin(x @ w)))

        f = one if plain else meshard.remat(one, policy=policy)

        def deep(w: Any) -> Any:
            y = big
            for _ in range(6):
                y = f(w, y)
            return y.sum()

        return meshard.explain(meshard.grad(deep), w).peak_bytes

    every, dots = peak(None, plain=True), peak(checkpoint_policies.dots_saveable)
    nothing = peak(checkpoint_policies.nothing_saveable)
    assert nothing < 0.75 * dots < 0.75 * 0.75 * every


def test_saved_residuals_tell_what_is_kept() -> None:
    meshard.config.update("num_devices", 8)
    mesh = meshard.make_mesh((4, 2), ("d", "m"))
    w1 = meshard.ShapeDtypeStruct((4, 8), "float64", sharding=NamedSharding(mesh, P(None, "m")))
    w2 = meshard.ShapeDtypeStruct((8, 4), "float64", sharding=NamedSharding(mesh, P("m")))
    x = meshard.ShapeDtypeStruct((8, 4), "float64", sharding=NamedSharding(mesh, P("d")))

    def kept(f: Any) -> list[tuple[str, int]]:
        return [(r.origin, r.bytes_per_device) for r in saved_residuals(f, w1, w2, x)]

    arguments = [("argument 0 ('w1')", 128), ("argument 1 ('w2')", 128), ("argument 2 ('x')", 64)]
    assert kept(meshard.remat(layer)) == arguments
    own = [("contract", 64), ("checkpoint_name", 64), ("tanh", 64), ("exp", 64)]
    assert kept(layer) == arguments + own
    dots = meshard.remat(layer, policy=checkpoint_policies.dots_saveable)
    assert kept(dots) == [*arguments, ("contract", 64), ("contract", 64)]
    named = meshard.remat(layer, policy=checkpoint_policies.save_only_these_names("h"))
    found = saved_residuals(named, w1, w2, x=x)
    assert len(found) == 4
    assert found.nbytes == 256 + 256 + 256 + 512
    assert found.bytes_per_device == sum(r.bytes_per_device for r in found) == 384
    text = str(found)
    assert text.startswith("layer keeps 4 arrays for the way back, 384 bytes on a device")
    assert "argument 'x'" in text
    assert "test_remat.py:" in text
    assert found.residuals[-1].line.endswith(str(layer.__code__.co_firstlineno + 1))


def test_residuals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ad_checkpoint.print_saved_residuals(lambda x: x * x, mnp.ones(3))
    assert "keeps 1 array for the way back, 24 bytes" in capsys.readouterr().out
    assert len(saved_residuals(lambda x: x.sum(), 1.0)) == 0


def test_the_number_of_residuals_is_that_of_jax(jax: ModuleType) -> None:
    """What is kept without a policy differs: JAX keeps slopes, such as cosines."""
    from jax._src.ad_checkpoint import saved_residuals as theirs
    from jax.ad_checkpoint import checkpoint_name as name

    def of_jax(w1: Any, w2: Any, x: Any) -> Any:
        h = name(jax.numpy.sin(x @ w1), "h")
        return jax.numpy.exp(jax.numpy.tanh(h @ w2))

    for policy in ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"):
        here = meshard.remat(layer, policy=getattr(checkpoint_policies, policy))
        there = jax.checkpoint(of_jax, policy=getattr(jax.checkpoint_policies, policy))
        assert len(saved_residuals(here, W1, W2, X)) == len(theirs(there, W1, W2, X)), policy


def test_all_names_of_jax_are_there_or_say_why_not(jax: ModuleType) -> None:
    for name in dir(jax.checkpoint_policies):
        if name.startswith("_"):
            continue
        if "offload" in name:
            with pytest.raises(AttributeError, match="there is one memory for all values"):
                getattr(checkpoint_policies, name)
        else:
            assert callable(getattr(checkpoint_policies, name)), name


def test_wrong_policies_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"policy must be a function, got 3.*nothing is kept"):
        meshard.remat(layer, policy=3)  # type: ignore[call-overload]
    named: Any = checkpoint_policies.save_only_these_names
    with pytest.raises(ArgumentError, match=r"must return True or False.*takes names is called"):
        meshard.grad(loss(meshard.remat(layer, policy=lambda *_, **__: named)))(W1, W2, X)
    with pytest.raises(ArgumentError, match=r"save_only_these_names.*must be a string, got 3"):
        named(3)
    with pytest.raises(ArgumentError, match="policy_2 must be a function, got None"):
        checkpoint_policies.save_from_both_policies(named("a"), None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="checkpoint_name: name must be a string, got 3"):
        checkpoint_name(1.0, 3)  # type: ignore[arg-type]


def test_custom_rules_hold_in_loops_branches_and_remat() -> None:
    @meshard.custom_jvp
    def f(x: Any) -> Any:
        return mnp.sin(x)

    f.defjvp(lambda p, t: (f(*p), 7.0 * t[0]))
    of = meshard.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])
    assert float(of(1.0)) == 49.0
    for g in (
        meshard.remat(f),
        meshard.remat(lambda x: f(x) * 1.0, policy=checkpoint_policies.everything_saveable),
        meshard.jit(lambda x: lax.cond(x > 0, f, f, x)),
        meshard.jit(lambda x: meshard.vmap(f)(x[None])[0]),
    ):
        assert float(meshard.grad(g)(mnp.asarray(1.0))) == 7.0
        assert float(meshard.jit(meshard.grad(g))(1.0)) == 7.0
        assert float(meshard.vmap(meshard.grad(g))(mnp.ones(2))[1]) == 7.0
