"""Functions with derivatives of their own: what they see, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DerivativeError,
    DtypeError,
    MeshardError,
    ShapeError,
    TreeError,
)

RULES: dict[str, Callable[[], Any]] = {
    "custom_jvp": lambda: with_tangents(lambda p, t: (p[0] * 2, t[0] * 7)),
    "custom_vjp": lambda: with_way_back(lambda x: (x * 2, None), lambda kept, g: (g * 7,)),
    "custom_gradient": lambda: meshard.custom_gradient(
        lambda x: (x * 2 if x > 0 else x, lambda g: g * 7)
    ),
}


def with_tangents(rule: Callable[..., Any]) -> Any:
    f = meshard.custom_jvp(lambda x: x * 2 if x > 0 else x)
    f.defjvp(rule)
    return f


def with_way_back(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Any:
    f = meshard.custom_vjp(lambda x: x * 2 if x > 0 else x)
    f.defvjp(fwd, bwd)
    return f


@pytest.mark.parametrize("name", RULES)
def test_without_jit_a_function_with_a_rule_sees_values(name: str) -> None:
    f = RULES[name]()
    assert float(meshard.grad(f)(1.0)) == 7
    assert float(meshard.grad(lambda x: f(f(x)))(mnp.asarray(2.0))) == 49
    with pytest.raises(ConcretizationError, match="A Python if"):
        meshard.jit(f)(1.0)


def test_a_derivative_calls_the_rule_alone() -> None:
    called: list[str] = []

    @meshard.custom_jvp
    def f(x: Any) -> Any:
        called.append("f")
        return x * 2

    @f.defjvp
    def follow(p: Any, t: Any) -> Any:
        called.append("rule")
        return p[0] * 5, t[0] * 3

    value, tangent = meshard.jvp(f, (1.0,), (1.0,))
    assert (float(value), float(tangent), called) == (5, 3, ["rule"])
    assert float(meshard.value_and_grad(f)(1.0)[0]) == 5
    assert "f" not in called


@pytest.mark.parametrize("name", ["custom_jvp", "custom_vjp"])
def test_what_a_rule_would_lose_is_refused(name: str) -> None:
    """A function with a rule takes what is differentiated as an argument."""

    def outer(y: Any) -> Any:
        if name == "custom_jvp":
            f: Any = meshard.custom_jvp(lambda x: x * y)
            f.defjvp(lambda p, t: (f(*p), 7 * t[0] * y))
        else:
            f = meshard.custom_vjp(lambda x: x * y)
            f.defvjp(lambda x: (x * y, None), lambda kept, g: (g,))
        return f(y)

    for g in (meshard.grad(outer), meshard.jit(meshard.grad(outer))):
        with pytest.raises(ConcretizationError, match="Pass it as an argument"):
            g(3.0)


def test_arguments_by_name_are_put_in_order() -> None:
    f = meshard.custom_jvp(lambda x, y=2.0: x * y)
    f.defjvp(lambda p, t: (f(*p), 10 * t[0] + t[1]))
    assert float(meshard.grad(lambda v: f(y=v, x=3.0))(4.0)) == 1
    assert float(meshard.grad(f)(4.0)) == 10
    with pytest.raises(ArgumentError, match=r"put in order .* missing a required argument: 'x'"):
        f(y=3.0)
    g = meshard.custom_vjp(lambda x, *, scale: x * scale)
    g.defvjp(lambda x, scale: (x, None), lambda kept, c: (c, c))
    with pytest.raises(ArgumentError, match="by name only, such as 'scale'"):
        g(1.0, scale=2.0)
    with pytest.raises(ArgumentError, match=r"names 'skale', but .* Did you mean 'scale'"):
        meshard.custom_vjp(lambda x, scale: x, nondiff_argnames=["skale"])


def test_arguments_without_derivative() -> None:
    f = meshard.custom_vjp(lambda x, n: x * n, nondiff_argnums=(1,))
    f.defvjp(lambda x, n: (x * n, None), lambda n, kept, g: (g * n * 10,))
    assert float(meshard.grad(f)(1.0, 2)) == 20
    with pytest.raises(ArgumentError, match=r"argument 1 is in nondiff_argnums, but its value"):
        meshard.grad(lambda n: f(1.0, n))(2.0)
    g = meshard.custom_jvp(lambda x, n: x * n, nondiff_argnums=(1,))
    g.defjvp(lambda n, p, t: (g(*p, n), t[0] * n * 10))
    assert float(meshard.grad(lambda v: g(v, v))(2.0)) == 20


def test_zeros_of_integers_have_no_values() -> None:
    seen: list[Any] = []
    f = meshard.custom_vjp(lambda x: (x * 2, mnp.argmax(x)))

    def back(kept: Any, g: Any) -> Any:
        seen.append(g)
        return (g[0],)

    f.defvjp(lambda x: ((x * 2, mnp.argmax(x)), None), back)
    found = meshard.grad(lambda x: f(x)[0].sum())(mnp.ones(3))
    assert found.tolist() == [1, 1, 1]
    assert seen[0][1].dtype == meshard.float0
    assert meshard.vmap(meshard.grad(lambda x: f(x)[0].sum()))(mnp.ones((2, 3))).shape == (2, 3)


def test_rules_that_ask_for_symbolic_zeros() -> None:
    f = meshard.custom_vjp(lambda x, y: x * y)

    def forth(x: Any, y: Any) -> Any:
        assert x.perturbed
        return x.value * y.value, (x.value, y.value)

    f.defvjp(forth, lambda kept, g: (g * kept[1], 3 * g), symbolic_zeros=True)
    assert [float(g) for g in meshard.grad(f, (0, 1))(2.0, 5.0)] == [5, 3]
    with pytest.raises(ArgumentError, match="optimize_remat must be"):
        f.defvjp(forth, lambda kept, g: g, optimize_remat="x")  # type: ignore[arg-type]


def _solve(found: Any, aux: bool = False, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        return lax.custom_linear_solve(
            lambda x: 2 * x, mnp.ones(3), lambda f, b: found(b), has_aux=aux, **options
        )

    return call


def _root(found: Any, f: Any = None, aux: bool = False, tangent: Any = None) -> Callable[[], Any]:
    def call(y: Any = 1.0) -> Any:
        return lax.custom_root(
            f or (lambda x: x - y),
            mnp.ones(3),
            lambda f, x: found(f, x),
            tangent or (lambda g, t: t),
            aux,
        )

    return call


REFUSED: dict[str, tuple[type[MeshardError], str, Callable[[], Any]]] = {
    "tree": (TreeError, "the solution that solve returned has the tree", _solve(lambda b: (b, b))),
    "shape": (ShapeError, r"float64\[2\], but it must be float64\[3\]", _solve(lambda b: b[:2])),
    "dtype": (DtypeError, "float32", _solve(lambda b: b.astype("float32"))),
    "aux": (TreeError, "solve must return a pair, of the solution", _solve(lambda b: b, True)),
    "no way back": (
        DerivativeError,
        "no way back without transpose_solve",
        lambda: meshard.grad(
            lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda f, c: c / 2)
        )(1.0),
    ),
    "matvec": (
        ArgumentError,
        "matvec must be a function, got 3",
        lambda: lax.custom_linear_solve(3, 1.0, _solve),
    ),  # type: ignore[arg-type]
    "product": (
        ShapeError,
        "what matvec returned",
        lambda: lax.custom_linear_solve(lambda x: x.sum(), mnp.ones(3), lambda f, b: f(b)),
    ),
    "root tree": (TreeError, "the root that solve returned", _root(lambda f, x: (x, x))),
    "root shape": (ShapeError, "the root that solve returned", _root(lambda f, x: x[:2])),
    "value shape": (ShapeError, "the value of f", _root(lambda f, x: f(x), lambda x: x[:2])),
    "root aux": (TreeError, "solve must return a pair", _root(lambda f, x: x, None, True)),
    "tangent": (
        ShapeError,
        "what tangent_solve returned",
        lambda: meshard.jvp(
            _root(lambda f, x: x, None, False, lambda g, t: t.sum()), (1.0,), (1.0,)
        ),
    ),
    "gradient alone": (
        TreeError,
        "must return a pair of its results and a function",
        lambda: meshard.custom_gradient(lambda x: x)(1.0),
    ),
    "converted tree": (
        TreeError,
        "was made for arguments of the tree",
        lambda: meshard.closure_convert(lambda x: x, 1.0)[0]((1.0, 2.0)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_solvers_and_rules_are_refused(name: str) -> None:
    error, text, call = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


def test_roots_are_found_by_loops_that_have_no_way_back() -> None:
    def bisect(f: Any, x: Any) -> Any:
        def turn(ends: Any) -> Any:
            low, high = ends
            middle = (low + high) / 2
            below = f(middle) < 0
            return mnp.where(below, middle, low), mnp.where(below, high, middle)

        low, high = lax.while_loop(lambda s: s[1] - s[0] > 1e-13, turn, (x * 0, x))
        return (low + high) / 2, {"width": high - low}

    def cube(y: Any) -> Any:
        x, aux = lax.custom_root(
            lambda x: x**3 - y, mnp.asarray(5.0), bisect, lambda g, t: t / g(1.0), has_aux=True
        )
        return x + 0 * aux["width"]

    np.testing.assert_allclose(meshard.grad(cube)(27.0), 1 / 27, rtol=1e-9)
    np.testing.assert_allclose(meshard.hessian(cube)(27.0), -2 / 9 / 243, rtol=1e-9)


def test_systems_are_solved_on_a_mesh() -> None:
    meshard.config.update("num_devices", 8)
    mesh = meshard.make_mesh((8,), ("d",))
    rows = meshard.NamedSharding(mesh, meshard.P("d"))
    scale = meshard.device_put(mnp.arange(1.0, 17.0), rows)
    b = meshard.device_put(mnp.ones(16), rows)

    def loss(scale: Any, b: Any) -> Any:
        x = lax.custom_linear_solve(
            lambda x: scale * x, b, lambda f, c: c / f(mnp.ones_like(c)), symmetric=True
        )
        return (x**2).sum()

    for f in (meshard.grad(loss, (0, 1)), meshard.jit(meshard.grad(loss, (0, 1)))):
        own, other = f(scale, b)
        assert own.sharding.spec == other.sharding.spec == meshard.P("d")
        np.testing.assert_allclose(np.asarray(own), -2 / np.arange(1.0, 17.0) ** 3, rtol=1e-12)
