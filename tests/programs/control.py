"""Cases of control flow, and of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.lays import Lay
from tests.programs.draw import GRIDS, Draw, dtype_named, lay_of, letter_of
from tests.programs.table import CASES, Call, case


def double(x: Any) -> Any:
    return x + x


def square(x: Any) -> Any:
    return x * x


def turn(x: Any) -> Any:
    return 1 - x


def first(x: Any) -> Any:
    return x


def plus(x: Any, y: Any) -> Any:
    return x + y


def times(x: Any, y: Any) -> Any:
    return x * y


def less(x: Any, y: Any) -> Any:
    return x - y


def counted(i: Any, x: Any) -> Any:
    return x + x.sum().astype(x.dtype) * 0 + 1


def pairs(carry: Any, x: Any) -> Any:
    return carry + x, carry * x


def is_short(state: Any) -> Any:
    return state[0] < 3


def longer(state: Any) -> Any:
    return state[0] + 1, state[1] + state[1]


@case("lax: cond")
def cond(d: Draw, name: str) -> Call:
    x = d.array("if", domain="small")
    pred = d.given(np.array(d.chance(0.5))) if d.chance(0.6) else d.chance(0.5)
    return (pred, d.one_of([double, turn]), d.one_of([square, first]), x), {}


@case("lax: switch")
def switch(d: Draw, name: str) -> Call:
    x = d.array("if", domain="small")
    at: Any = d.integer(-1, 4)
    return (d.given(np.array(at)) if d.chance(0.6) else at, (double, turn, square), x), {}


@case("lax: fori_loop")
def fori_loop(d: Draw, name: str) -> Call:
    return (0, d.integer(0, 4), counted, d.array("if", domain="small")), {}


@case("lax: while_loop")
def while_loop(d: Draw, name: str) -> Call:
    start = d.given(np.array(d.integer(0, 3)))
    return (is_short, longer, (start, d.array("if", domain="small"))), {}


@case("lax: scan", weight=2)
def scan(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3)
    kind = d.one_of("if")
    xs = d.array(kind, shape=shape, domain="small")
    own = d.value(xs).dtype
    init = d.array(kind, shape=shape[1:], domain="small", ok=lambda v: v.dtype == own)
    return (pairs, init, xs), {"reverse": d.chance(0.4)}


@case("lax: map")
def map_(d: Draw, name: str) -> Call:
    xs = d.array("if", shape=d.shape(1, 3), domain="small")
    return (d.one_of([double, square, turn]), xs), {}


@case("lax: associative_scan", ulps=16, sums=True)
def associative_scan(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3)
    x = d.array("if", shape=shape, domain="small")
    axis = d.integer(0, len(shape) - 1)
    return (d.one_of([plus, times]), x), {"axis": axis, "reverse": d.chance(0.4)}


@case("lax: reduce", ulps=16, sums=True)
def reduce(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3)
    x = d.array("if", shape=shape, domain="small")
    dims = tuple(d.rng.permutation(len(shape))[: d.integer(1, len(shape))].tolist())
    function, start = d.one_of([(plus, 0), (times, 1)])
    if function is times and letter_of(d.value(x)) == "f":  # whether it overflows depends on order
        x = d.given(np.clip(d.value(x), -1, 1))
    return (x, d.given(np.array(start, d.value(x).dtype)), function, dims), {}


# random numbers

SHAPED = (
    "normal uniform exponential cauchy gumbel laplace logistic maxwell rademacher"
    " generalized_normal"
)
CONSTANTS: dict[str, tuple[Any, ...]] = {
    "double_sided_maxwell": (0.5, 2.0),
    "weibull_min": (1.5, 2.0),
    "generalized_normal": (1.5,),
    "bernoulli": (0.4,),
    "beta": (2.0, 0.5),
    "binomial": (9, 0.3),
    "chisquare": (3.0,),
    "f": (3.0, 5.0),
    "gamma": (2.5,),
    "geometric": (0.3,),
    "loggamma": (0.5,),
    "lognormal": (0.7,),
    "pareto": (2.5,),
    "poisson": (4.0,),
    "rayleigh": (1.5,),
    "t": (4.0,),
    "triangular": (-1.0, 0.5, 2.0),
    "truncated_normal": (-1.0, 1.5),
    "wald": (2.0,),
}
PARAMETRIC = " ".join(name for name in CONSTANTS if name not in SHAPED.split())


def seed(d: Draw) -> Any:
    """Draw the seed of a key; that of a traced key is an operand."""
    number = d.integer(0, 99)
    return d.given(np.array(number)) if d.chance(0.4) else number


def laid(d: Draw, shape: Any) -> dict[str, Any]:
    """Draw where random numbers are laid out."""
    lay = lay_of(d.rng, shape, d.team)
    return {"lay": lay} if lay is not None and (lay.grid or lay.boxes) else {}


UNPLACED = {"binomial", "double_sided_maxwell", "weibull_min"}


@case(f"random: {SHAPED}")
def shaped(d: Draw, name: str) -> Call:
    shape = d.shape()
    more = laid(d, shape)
    if d.chance(0.4) and name != "rademacher":
        more["dtype"] = dtype_named(d.one_of(["float32", "float16", "bfloat16"]))
    if name == "uniform" and d.chance(0.4):
        more["minval"] = d.given(d.rng.uniform(-1, 0, shape))
    return (seed(d), *CONSTANTS.get(name, ()), shape), more


@case("random: bits")
def bits(d: Draw, name: str) -> Call:
    shape = d.shape()
    return (seed(d), shape, d.one_of(["uint8", "uint32", "uint64"])), laid(d, shape)


@case("random: randint")
def randint(d: Draw, name: str) -> Call:
    shape = d.shape()
    high: Any = d.integer(4, 99)
    high = d.given(np.array(high)) if d.chance(0.3) else high
    return (seed(d), shape, -3, high, d.one_of(["int32", "int64"])), laid(d, shape)


@case(f"random: {PARAMETRIC}", weight=0.5)
def parametric(d: Draw, name: str) -> Call:
    constants = CONSTANTS[name]
    shape = d.shape()
    if d.chance(0.5):
        more = {} if name in UNPLACED else laid(d, shape)
        if name == "truncated_normal" and d.chance(0.5):
            more["dtype"] = dtype_named(d.one_of(["float32", "float16", "bfloat16"]))
        return (seed(d), *constants, shape), more
    chosen = d.integer(0, len(constants) - 1)
    args: list[Any] = list(constants)
    if isinstance(args[chosen], int):
        args[chosen] = d.given(np.full(shape, args[chosen]))
    else:
        args[chosen] = d.given(args[chosen] + d.rng.uniform(0, 0.2, shape))
    return (seed(d), *args, *([shape] if name in UNPLACED else [])), {}


@case("random: permutation")
def permutation(d: Draw, name: str) -> Call:
    if d.chance(0.4):
        return (seed(d), d.integer(0, 20)), {}
    x = d.array("bifc", shape=d.shape(1, 3))
    return (seed(d), x), {"axis": d.integer(0, d.value(x).ndim - 1)}


@case("random: choice")
def choice(d: Draw, name: str) -> Call:
    size = d.integer(3, 9)
    replace = d.chance(0.5)
    more: dict[str, Any] = {"replace": replace}
    if d.chance(0.6):
        weights = d.rng.uniform(0.1, 1, size)
        more["p"] = d.given(weights / weights.sum())
    x = d.given(d.rng.permutation(99)[:size]) if d.chance(0.5) else size
    return (seed(d), x, (d.integer(0, 3),)), more


@case("random: categorical")
def categorical(d: Draw, name: str) -> Call:
    logits = d.given(d.rng.standard_normal((*d.shape(0, 2, least=1), d.integer(1, 5))))
    return (seed(d), logits), {}


@case("random: dirichlet", ulps=16)
def dirichlet(d: Draw, name: str) -> Call:
    alpha = d.given(d.rng.uniform(0.5, 3, d.integer(1, 5)))
    return (seed(d), alpha, d.shape(0, 2)), {}


@case("random: multinomial")
def multinomial(d: Draw, name: str) -> Call:
    weights = d.rng.uniform(0.1, 1, d.integer(1, 5))
    return (seed(d), d.integer(0, 20), d.given(weights / weights.sum())), {}


@case("random: multivariate_normal", ulps=256, sums=True)
def multivariate_normal(d: Draw, name: str) -> Call:
    n = d.integer(1, 4)
    root = d.rng.standard_normal((n, n))
    mean, covariance = d.given(d.rng.standard_normal(n)), d.given(root @ root.T + np.eye(n))
    return (seed(d), mean, covariance, d.shape(0, 2)), {}


@case("random: ball orthogonal", ulps=256, sums=True)
def solids(d: Draw, name: str) -> Call:
    shape = d.shape(0, 2, most=12)
    return (seed(d), d.integer(1, 4)), {"shape": shape}


@case("random: split fold_in key_data wrap_key_data clone")
def keys(d: Draw, name: str) -> Call:
    count: Any = d.integer(0, 5)
    if name == "fold_in" and d.chance(0.5):
        count = d.given(np.array(count))
    return (seed(d), *((count,) if name in ("split", "fold_in") else ())), {}


@case(f"mapped: {SHAPED} {PARAMETRIC} bits randint choice permutation", weight=0.2)
def mapped(d: Draw, name: str) -> Call:
    call = CASES[f"random.{name}"].draw(d)
    assert call is not None
    args, kwargs = call
    kwargs.pop("lay", None)
    return args, {**kwargs, "grid": Lay(d.team, d.one_of(GRIDS[len(d.team)]))}
