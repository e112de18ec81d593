"""After a transformation has failed, everything else works, and nothing of it is left.

Each failure is caught, then ten more operations run, of all transformations, and no interpreter is
left on the stack. A KeyboardInterrupt in the function counts as a failure, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.lax
import meshard.numpy as mnp
from meshard import P, lax
from meshard.runtime.doors import interpreters
from tests.laws.test_derivatives_against_jax import OURS
from tests.misuses import MISUSES
from tests.transformed_calls import CALLS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def ten_operations() -> None:
    """Run ten operations whose results are known."""
    assert interpreters() == ()
    x = mnp.arange(4.0)
    found = [
        float(meshard.grad(lambda v: (v**2).sum())(x).sum()),
        float(meshard.jvp(mnp.sin, (0.0,), (2.0,))[1]),
        float(meshard.vjp(lambda v: v * 3, 1.0)[1](1.0)[0]),
        float(meshard.jit(meshard.grad(lambda v: v**3))(2.0)),
        float(meshard.vmap(meshard.grad(lambda v: v * v))(x).sum()),
        float(meshard.jacfwd(lambda v: v * 2)(x).sum()),
        float(meshard.grad(meshard.remat(lambda v: mnp.exp(v)))(0.0)),
        float(meshard.grad(lambda v: lax.fori_loop(0, 3, lambda i, y: y * v, v))(1.0)),
        float(x.sum()),
        float(lax.cond(x[1] > 0, lambda v: v * 2, lambda v: v, x[1])),
    ]
    assert found == [12, 2, 3, 12, 12, 8, 1, 4, 6, 2]


def fails(call: Callable[[Any], Any]) -> bool:
    try:
        with np.errstate(all="ignore"):
            call(OURS)
    except Exception:
        return True
    return False


def test_after_each_refusal_everything_works() -> None:
    refused = [name for name, f in {**MISUSES, **CALLS}.items() if fails(f) and not left(name)]
    assert len(refused) > 80
    ten_operations()


def left(name: str) -> bool:
    """Check that nothing is left on the stack, and that a gradient works."""
    assert interpreters() == (), name
    assert float(meshard.grad(lambda x: x * x)(3.0)) == 6, name
    return False


def _stopping(kind: type[BaseException]) -> Callable[..., Any]:
    def f(x: Any, *rest: Any) -> Any:
        y = mnp.sin(x) * 2
        raise kind("stop")
        return y

    return f


def _ruled(f: Any) -> Any:
    g = meshard.custom_jvp(lambda x: x)
    g.defjvp(lambda p, t: f(*p))
    h = meshard.custom_vjp(lambda x: x)
    h.defvjp(lambda x: (x, x), lambda kept, c: f(kept))
    return g, h


def _in_body(f: Any) -> Any:
    mesh = meshard.make_mesh((1,), ("d",))
    return meshard.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))


X = np.ones(3)
PLACES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: meshard.grad(f)(X),
    "value_and_grad": lambda f: meshard.value_and_grad(f)(X),
    "vjp": lambda f: meshard.vjp(f, X),
    "jvp": lambda f: meshard.jvp(f, (X,), (X,)),
    "linearize": lambda f: meshard.linearize(f, X),
    "linear_transpose": lambda f: meshard.linear_transpose(f, X),
    "jacfwd": lambda f: meshard.jacfwd(f)(X),
    "jacrev": lambda f: meshard.jacrev(f)(X),
    "hessian": lambda f: meshard.hessian(f)(X),
    "vmap": lambda f: meshard.vmap(f)(X),
    "grad of grad": lambda f: meshard.grad(lambda x: meshard.grad(f)(x).sum())(X),
    "jit of grad": lambda f: meshard.jit(meshard.grad(f))(X),
    "grad of jit": lambda f: meshard.grad(meshard.jit(f))(X),
    "vmap of grad": lambda f: meshard.vmap(meshard.grad(f))(X),
    "remat": lambda f: meshard.grad(meshard.remat(f))(X),
    "policy": lambda f: meshard.grad(
        meshard.remat(lambda x: x.sum(), policy=lambda *_, **__: f(X))
    )(X),
    "scan": lambda f: meshard.grad(lambda x: lax.scan(lambda c, _: (f(c), 1), x, None, 2)[0])(X),
    "cond": lambda f: meshard.grad(lambda x: lax.cond(x[0] > 0, f, f, x))(X),
    "rule for tangents": lambda f: meshard.grad(lambda x: _ruled(f)[0](x).sum())(X),
    "rule for the way back": lambda f: meshard.grad(lambda x: _ruled(f)[1](x).sum())(X),
    "body": lambda f: meshard.grad(lambda x: _in_body(f)(x).sum())(X),
    "grad in a body": lambda f: _in_body(meshard.grad(f))(X),
    "solver": lambda f: meshard.grad(
        lambda b: lax.custom_linear_solve(lambda x: x, b, lambda g, c: f(c)).sum()
    )(X),
    "converted": lambda f: meshard.closure_convert(f, X),
    "residuals": lambda f: meshard.ad_checkpoint.saved_residuals(f, X),
}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError, GeneratorExit])
@pytest.mark.parametrize("place", PLACES)
def test_after_a_stop_in_the_function_everything_works(
    place: str, kind: type[BaseException]
) -> None:
    with pytest.raises(kind, match="stop"):
        PLACES[place](_stopping(kind))
    ten_operations()
