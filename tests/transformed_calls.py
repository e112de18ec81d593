"""Calls of transformations with all kinds of arguments: what they give, or that they are refused.

Each takes the modules as ``m``, as the functions of `tests/corpus.py` do.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

NT = collections.namedtuple("NT", "a b")
f0 = np.zeros((), [("float0", np.void, 0)])


def fj(m, rule, f=lambda x: x * 2, **options):
    """Return a function with a rule for tangents."""
    g = m.custom_jvp(f, **options)
    g.defjvp(rule)
    return g


def fv(m, fwd, bwd, f=lambda x: x * 2, **options):
    """Return a function with a rule for the way back."""
    g = m.custom_vjp(f, **options)
    g.defvjp(fwd, bwd)
    return g


def c(m, x, dtype=None):
    """Return an array."""
    return m.asarray(x if dtype is None else np.asarray(x, dtype))


CALLS: dict[str, Callable[[Any], Any]] = {
    "argnums neg": lambda m: m.grad(lambda x, y: x * y**2, argnums=-1)(2.0, 3.0),
    "argnums neg out": lambda m: m.grad(lambda x, y: x * y**2, argnums=-3)(2.0, 3.0),
    "argnums dup": lambda m: m.grad(lambda x, y: x * y**2, argnums=(0, 0))(2.0, 3.0),
    "argnums dup neg": lambda m: m.grad(lambda x, y: x * y**2, argnums=(1, -1))(2.0, 3.0),
    "argnums list": lambda m: m.grad(lambda x, y: x * y**2, argnums=[0, 1])(2.0, 3.0),
    "argnums np": lambda m: m.grad(lambda x, y: x * y**2, argnums=np.int64(1))(2.0, 3.0),
    "argnums bool": lambda m: m.grad(lambda x, y: x * y**2, argnums=True)(2.0, 3.0),
    "argnums empty": lambda m: m.grad(lambda x, y: x * y**2, argnums=())(2.0, 3.0),
    "argnums None": lambda m: m.grad(lambda x, y: x * y**2, argnums=None)(2.0, 3.0),
    "kwargs only": lambda m: m.grad(lambda x: x**2)(x=2.0),
    "kwargs const": lambda m: m.grad(lambda x, y=1.0: x**2 * y)(2.0, y=5.0),
    "aux triple": lambda m: m.grad(lambda x: (x, x, x), has_aux=True)(1.0),
    "aux list": lambda m: m.grad(lambda x: [x, x], has_aux=True)(1.0),
    "aux tree": lambda m: m.value_and_grad(
        lambda x: (x * 2, {"a": x, "b": (None, 3)}), has_aux=True
    )(1.0),
    "aux string": lambda m: m.grad(lambda x: (x * 2, "a"), has_aux=True)(1.0),
    "aux none": lambda m: m.grad(lambda x: (x * 2, None), has_aux=True)(1.0),
    "aux int": lambda m: m.vjp(lambda x: (x * 2, 3), 1.0, has_aux=True)[2],
    "grad vector ok aux": lambda m: m.grad(lambda x: (x * 2, x), has_aux=True)(m.np.ones(2)),
    "dict": lambda m: m.grad(lambda d: d["a"] * d["b"]["c"].sum())(
        {"a": 2.0, "b": {"c": m.np.ones(2)}}
    ),
    "namedtuple": lambda m: m.grad(lambda t: t.a * t.b)(NT(2.0, 3.0)),
    "none leaf": lambda m: m.grad(lambda t: t[0] * 2)((2.0, None)),
    "none arg": lambda m: m.grad(lambda t: 1.0)(None),
    "empty tuple": lambda m: m.grad(lambda t: 1.0)(()),
    "empty dict": lambda m: m.grad(lambda t: m.np.sum(m.np.ones(2)))({}),
    "empty array": lambda m: m.grad(lambda x: x.sum())(m.np.zeros((0, 3))),
    "list arg": lambda m: m.grad(lambda x: x[0] * x[1])([1.0, 2.0]),
    "allow_int": lambda m: m.grad(lambda x: (x * 2.0).sum(), allow_int=True)(m.np.arange(3)),
    "allow_int bool": lambda m: m.grad(lambda x: (x * 2.0).sum(), allow_int=True)(
        m.np.asarray([True])
    ),
    "allow_int mixed": lambda m: m.grad(lambda t: t[0] * t[1], allow_int=True)((2, 3.0)),
    "unused": lambda m: m.grad(lambda x, y: x * 1.0, (0, 1))(2.0, m.np.ones(3)),
    "const": lambda m: m.grad(lambda x: 3.0)(2.0),
    "const int": lambda m: m.grad(lambda x: 3)(2.0),
    "const array": lambda m: m.grad(lambda x: np.float64(3))(2.0),
    "const bool": lambda m: m.grad(lambda x: True)(2.0),
    "out list1": lambda m: m.grad(lambda x: [x])(2.0),
    "out shape1": lambda m: m.grad(lambda x: x[None])(m.asarray(2.0)),
    "numpy in": lambda m: m.grad(lambda x: (x**2).sum())(np.ones(3, np.float32)),
    "np scalar": lambda m: m.grad(lambda x: x**2)(np.float32(3)),
    "f16": lambda m: m.grad(lambda x: (x * x).sum())(c(m, [1.0, 2.0], np.float16)),
    "bf16": lambda m: m.grad(lambda x: (x * x).sum())(c(m, [1.0, 2.0], ml_dtypes.bfloat16)),
    "c64 hol": lambda m: m.grad(lambda x: (x * x).sum(), holomorphic=True)(
        c(m, [1 + 1j, 2.0], np.complex64)
    ),
    "c64 abs": lambda m: m.grad(lambda x: m.np.abs(x).sum())(c(m, [1 + 1j, 2.0], np.complex64)),
    "mixed f32 f64": lambda m: m.grad(lambda x, y: (x * y).sum(), (0, 1))(
        c(m, [1.0, 2.0], np.float32), c(m, [3.0, 4.0], np.float64)
    ),
    "mixed f16 f32": lambda m: m.grad(lambda x, y: (x * y).sum().astype("float32"), (0, 1))(
        c(m, [1.0, 2.0], np.float16), c(m, [3.0, 4.0], np.float32)
    ),
    "real to complex": lambda m: m.grad(lambda x: m.np.real(x * (1 + 2j)).sum())(c(m, [1.0, 2.0])),
    "weak": lambda m: m.grad(lambda x, y: x * y, (0, 1))(2.0, c(m, 3.0, np.float32)),
    "py complex": lambda m: m.grad(lambda z: m.np.abs(z) ** 2)(1 + 2j),
    "int exponent": lambda m: m.grad(lambda x, n: x**n)(2.0, 3),
    "astype": lambda m: m.grad(lambda x: x.astype("float32").sum())(c(m, [1.0, 2.0])),
    "astype int": lambda m: m.grad(lambda x: (x.astype("int32") * x).sum())(c(m, [1.5, 2.0])),
    "hol real out": lambda m: m.grad(lambda z: m.np.abs(z), holomorphic=True)(1 + 2j),
    "jvp none tangent": lambda m: m.jvp(lambda x: x, (1.0,), (None,)),
    "jvp list": lambda m: m.jvp(lambda x: x * 2, [1.0], [1.0]),
    "jvp list tuple": lambda m: m.jvp(lambda x: x * 2, (1.0,), [1.0]),
    "jvp float0": lambda m: m.jvp(lambda x, y: x * y, (2.0, 3), (1.0, f0)),
    "jvp int tangent int": lambda m: m.jvp(lambda x, y: x * y, (2.0, 3), (1.0, 0)),
    "jvp bool": lambda m: m.jvp(lambda x, y: x * y, (2.0, True), (1.0, f0)),
    "jvp float0 for float": lambda m: m.jvp(lambda x: x, (2.0,), (f0,)),
    "jvp out int": lambda m: m.jvp(lambda x: m.np.floor(x).astype("int64"), (2.0,), (1.0,)),
    "jvp tree": lambda m: m.jvp(lambda d: {"r": d["a"] * 2}, ({"a": 2.0},), ({"a": 1.0},)),
    "jvp tree keys": lambda m: m.jvp(lambda d: d["a"], ({"a": 2.0},), ({"b": 1.0},)),
    "jvp weak py": lambda m: m.jvp(lambda x: x * 2, (m.np.ones(3),), (1.0,)),
    "jvp complex tangent": lambda m: m.jvp(lambda x: x * 2, (1.0,), (1j,)),
    "jvp real tangent": lambda m: m.jvp(lambda x: x * 2, (1j,), (1.0,)),
    "jvp int for float": lambda m: m.jvp(
        lambda x: x * 2, (m.np.ones(2),), (m.np.ones(2, "int64"),)
    ),
    "jvp np": lambda m: m.jvp(lambda x: x * 2, (np.ones(2),), (np.ones(2),)),
    "jvp aux": lambda m: m.jvp(lambda x: (x * 2, {"k": x}), (1.0,), (1.0,), has_aux=True),
    "jvp aux bad": lambda m: m.jvp(lambda x: x * 2, (1.0,), (1.0,), has_aux=True),
    "jvp string out": lambda m: m.jvp(lambda x: "a", (1.0,), (1.0,)),
    "jvp none out": lambda m: m.jvp(lambda x: None, (1.0,), (1.0,)),
    "jvp of jit": lambda m: m.jvp(m.jit(lambda x: m.np.sin(x)), (1.0,), (1.0,)),
    "vjp none out": lambda m: m.vjp(lambda x: (x, None), 1.0)[1]((1.0, None)),
    "vjp int out f0": lambda m: m.vjp(lambda x: (x, 3), 1.0)[1]((1.0, f0)),
    "vjp int out int": lambda m: m.vjp(lambda x: (x, 3), 1.0)[1]((1.0, 1)),
    "vjp cot int": lambda m: m.vjp(lambda x: x, m.np.ones(2))[1](m.np.ones(2, "int64")),
    "vjp cot py": lambda m: m.vjp(lambda x: x, 1.0)[1](1),
    "vjp cot complex": lambda m: m.vjp(lambda x: x, 1.0)[1](1j),
    "vjp cot list": lambda m: m.vjp(lambda x: (x, x), 1.0)[1]([1.0, 1.0]),
    "vjp cot kw": lambda m: m.vjp(lambda x: x, 1.0)[1](ct=1.0),
    "vjp int in": lambda m: m.vjp(lambda x: x * 2.0, 3)[1](1.0),
    "vjp no args": lambda m: m.vjp(lambda: 1.0)[1](1.0),
    "vjp not callable": lambda m: m.vjp(3, 1.0),
    "vjp twice": lambda m: (lambda b: (b(1.0), b(2.0)))(m.vjp(lambda x: x**2, 3.0)[1]),
    "vjp string": lambda m: m.vjp(lambda x: x, "a"),
    "vjp weak cot": lambda m: m.vjp(lambda x: x * 2, c(m, 1.0, np.float32))[1](1.0),
    "vjp float64 for float32": lambda m: m.vjp(lambda x: x * 2, c(m, [1.0], np.float32))[1](
        c(m, [1.0], np.float64)
    ),
    "vjp bcast": lambda m: m.vjp(lambda x: x * 2, m.np.ones(3))[1](1.0),
    "vjp aux bad": lambda m: m.vjp(lambda x: x, 1.0, has_aux=True),
    "jacfwd tuple": lambda m: m.jacfwd(lambda x, y: x * y, (0, 1))(m.np.ones(2), m.np.ones(2) * 3),
    "jacrev dict": lambda m: m.jacrev(lambda d: {"r": d["a"] * 2})({"a": m.np.ones(2)}),
    "jacrev tuple out": lambda m: m.jacrev(lambda x: (x, [x * 2, x.sum()]))(m.np.ones(2)),
    "jacfwd aux": lambda m: m.jacfwd(lambda x: (x * 2, {"k": x}), has_aux=True)(m.np.ones(2)),
    "jacrev aux": lambda m: m.jacrev(lambda x: (x * 2, {"k": x}), has_aux=True)(m.np.ones(2)),
    "hessian aux": lambda m: m.hessian(lambda x: ((x**3).sum(), {"k": x}), has_aux=True)(
        m.np.ones(2)
    ),
    "hessian tuple": lambda m: m.hessian(lambda x, y: (x * y * y).sum(), (0, 1))(
        m.np.ones(2), m.np.ones(2) * 3
    ),
    "jacrev allow_int": lambda m: m.jacrev(lambda x: x * 2.0, allow_int=True)(m.np.arange(2)),
    "jacfwd hol": lambda m: m.jacfwd(lambda z: z * z, holomorphic=True)(c(m, [1j, 2.0])),
    "jacrev hol": lambda m: m.jacrev(lambda z: z * z, holomorphic=True)(c(m, [1j, 2.0])),
    "jacrev complex": lambda m: m.jacrev(lambda z: z * z)(c(m, [1j, 2.0])),
    "jacfwd out complex": lambda m: m.jacfwd(lambda z: z * 1j)(c(m, [1.0, 2.0])),
    "jacrev out complex": lambda m: m.jacrev(lambda z: z * 1j)(c(m, [1.0, 2.0])),
    "jacfwd scalar": lambda m: m.jacfwd(lambda x: x**2)(3.0),
    "jacfwd unused": lambda m: m.jacfwd(lambda x: m.np.ones(2))(3.0),
    "jacrev mixed dtypes": lambda m: m.jacrev(lambda x, y: x.astype("float64") * y, (0, 1))(
        c(m, [1.0], np.float32), c(m, [2.0], np.float64)
    ),
    "jacfwd mixed dtypes": lambda m: m.jacfwd(lambda x, y: x.astype("float64") * y, (0, 1))(
        c(m, [1.0], np.float32), c(m, [2.0], np.float64)
    ),
    "jacfwd argnums out": lambda m: m.jacfwd(lambda x: x, 1)(3.0),
    "hessian vector out": lambda m: m.hessian(lambda x: x**3)(m.np.ones(2)),
    "jacrev none": lambda m: m.jacrev(lambda x: None)(3.0),
    "linearize dict": lambda m: m.linearize(lambda d: {"r": d["a"] ** 2}, {"a": 2.0})[1](
        {"a": 1.0}
    ),
    "linearize dtype": lambda m: m.linearize(lambda x: x, m.np.ones(3))[1](m.np.ones(3, "float32")),
    "linearize tree": lambda m: m.linearize(lambda x: x, (1.0, 2.0))[1]([1.0, 1.0]),
    "linearize int": lambda m: m.linearize(lambda x: x * 2.0, 3)[1](f0),
    "linearize int2": lambda m: m.linearize(lambda x: x * 2.0, 3)[1](1),
    "linearize aux": lambda m: m.linearize(lambda x: (x**2, {"k": 3}), 2.0, has_aux=True)[2],
    "transpose int": lambda m: m.linear_transpose(lambda x: 2 * x, m.np.ones(3, "int64"))(
        m.np.ones(3, "int64")
    ),
    "transpose dict": lambda m: m.linear_transpose(lambda d: d["a"] * 2, {"a": m.np.ones(2)})(
        m.np.ones(2)
    ),
    "transpose complex": lambda m: m.linear_transpose(lambda z: z * 1j, c(m, 1j))(c(m, 1j)),
    "transpose bilinear": lambda m: m.linear_transpose(
        lambda x, y: x * y, m.np.ones(2), m.np.ones(2)
    )(m.np.ones(2)),
    "transpose affine": lambda m: m.linear_transpose(lambda x: x + 1, m.np.ones(2))(m.np.ones(2)),
    "transpose tree wrong": lambda m: m.linear_transpose(lambda x: (x, x), m.np.ones(2))(
        m.np.ones(2)
    ),
    "transpose dtype": lambda m: m.linear_transpose(lambda x: x * 2, m.np.ones(2))(
        m.np.ones(2, "float32")
    ),
    "remat static": lambda m: m.grad(m.checkpoint(lambda x, n: x**n, static_argnums=(1,)))(2.0, 3),
    "remat static neg": lambda m: m.grad(m.checkpoint(lambda x, n: x**n, static_argnums=-1))(
        2.0, 3
    ),
    "remat static out": lambda m: m.grad(m.checkpoint(lambda x: x**2, static_argnums=(3,)))(2.0),
    "remat kw": lambda m: m.grad(lambda x: m.checkpoint(lambda x, y: x * y)(x, y=3.0))(2.0),
    "remat static str": lambda m: m.grad(
        m.checkpoint(lambda x, n: getattr(m.np, n)(x), static_argnums=1)
    )(2.0, "sin"),
    "remat if": lambda m: m.grad(m.checkpoint(lambda x: x if x > 0 else -x))(2.0),
    "remat int arg": lambda m: m.grad(m.checkpoint(lambda x, n: x * n))(2.0, 3),
    "remat tree": lambda m: m.grad(
        lambda x: m.checkpoint(lambda d: {"r": d["a"] ** 2})({"a": x})["r"]
    )(2.0),
    "remat closure": lambda m: m.grad(lambda x: m.checkpoint(lambda y: y * x)(x))(2.0),
    "jvp rule tree list": lambda m: m.grad(fj(m, lambda p, t: [p[0] * 2, t[0] * 3]))(1.0),
    "jvp rule out tree": lambda m: m.grad(
        lambda x: fj(m, lambda p, t: ((p[0], p[0]), (t[0], t[0])))(x)
    )(1.0),
    "jvp rule t tree": lambda m: m.jvp(
        fj(m, lambda p, t: ((p[0], p[0]), t[0]), lambda x: (x, x)), (1.0,), (1.0,)
    ),
    "jvp rule none": lambda m: m.grad(fj(m, lambda p, t: (p[0] * 2, None)))(1.0),
    "jvp rule out shape": lambda m: m.jvp(
        fj(m, lambda p, t: (m.np.ones(2), m.np.ones(2))), (1.0,), (1.0,)
    ),
    "jvp rule const": lambda m: m.grad(fj(m, lambda p, t: (p[0] * 2, m.np.zeros(()))))(1.0),
    "jvp rule weak": lambda m: m.grad(fj(m, lambda p, t: (p[0] * 2, t[0] * np.float64(3.0))))(
        c(m, 1.0, np.float32)
    ),
    "jvp rule py": lambda m: m.grad(fj(m, lambda p, t: (p[0] * 2, 0.0)))(1.0),
    "jvp rule nonlinear": lambda m: m.grad(fj(m, lambda p, t: (p[0] * 2, t[0] ** 2)))(1.0),
    "jvp rule int out": lambda m: m.jvp(
        fj(
            m,
            lambda p, t: (m.np.floor(p[0]).astype("int64"), f0),
            lambda x: m.np.floor(x).astype("int64"),
        ),
        (1.5,),
        (1.0,),
    ),
    "jvp rule int in": lambda m: m.grad(
        fj(m, lambda p, t: (p[0] * p[1], t[0] * p[1] * 9), lambda x, n: x * n)
    )(2.0, 3),
    "jvp rule not callable": lambda m: m.custom_jvp(lambda x: x).defjvp(3),
    "jvp no rule call": lambda m: m.custom_jvp(lambda x: x * 2)(1.0),
    "custom_jvp not callable": lambda m: m.custom_jvp(3),
    "jvp method": lambda m: m.grad(fj(m, lambda p, t: (p[0], t[0] * 7), lambda x: x))(1.0),
    "defjvps count": lambda m: (
        lambda f: (f.defjvps(lambda t, o, x: t), m.grad(f, (0, 1))(1.0, 2.0))[1]
    )(m.custom_jvp(lambda x, y: x * y)),
    "vjp rule list": lambda m: m.grad(fv(m, lambda x: (x, None), lambda r, g: [g * 3]))(1.0),
    "vjp rule none": lambda m: m.grad(fv(m, lambda x: (x, None), lambda r, g: (None,)))(1.0),
    "vjp rule dtype": lambda m: m.grad(
        fv(m, lambda x: (x, None), lambda r, g: (g.astype("float32"),))
    )(1.0),
    "vjp rule dtype array": lambda m: m.grad(
        lambda x: fv(m, lambda x: (x, None), lambda r, g: (g.astype("float32"),))(x).sum()
    )(m.np.ones(2)),
    "vjp rule out tree": lambda m: m.grad(fv(m, lambda x: ((x, x), None), lambda r, g: (g,)))(1.0),
    "vjp rule out shape": lambda m: m.grad(
        lambda x: fv(m, lambda x: (m.np.ones(3), None), lambda r, g: (g.sum(),))(x).sum()
    )(1.0),
    "vjp rule dict": lambda m: m.grad(
        lambda d: fv(m, lambda d: (d["a"], None), lambda r, g: ({"a": g * 3},), lambda d: d["a"])(d)
    )({"a": 2.0}),
    "vjp rule dict wrong": lambda m: m.grad(
        lambda d: fv(m, lambda d: (d["a"], None), lambda r, g: ({"b": g * 3},), lambda d: d["a"])(d)
    )({"a": 2.0}),
    "vjp rule dict None": lambda m: m.grad(
        lambda d: fv(
            m, lambda d: (d["a"], None), lambda r, g: ({"a": g * 3, "b": None},), lambda d: d["a"]
        )(d)
    )({"a": 2.0, "b": 1.0}),
    "vjp rule int arg": lambda m: m.grad(
        fv(m, lambda x, n: (x * n, n), lambda r, g: (g * r, None), lambda x, n: x * n)
    )(2.0, 3),
    "vjp rule int arg f0": lambda m: m.grad(
        fv(m, lambda x, n: (x * n, n), lambda r, g: (g * r, f0), lambda x, n: x * n)
    )(2.0, 3),
    "vjp rule int arg int": lambda m: m.grad(
        fv(m, lambda x, n: (x * n, n), lambda r, g: (g * r, 0), lambda x, n: x * n)
    )(2.0, 3),
    "vjp rule int arg float": lambda m: m.grad(
        fv(m, lambda x, n: (x * n, n), lambda r, g: (g * r, 0.0), lambda x, n: x * n)
    )(2.0, 3),
    "vjp rule py": lambda m: m.grad(fv(m, lambda x: (x, None), lambda r, g: (1.0,)))(
        c(m, 1.0, np.float32)
    ),
    "vjp rule np": lambda m: m.grad(fv(m, lambda x: (x, None), lambda r, g: (np.float64(1.0),)))(
        c(m, 1.0, np.float64)
    ),
    "vjp rule broadcast": lambda m: m.grad(
        lambda x: fv(m, lambda x: (x, None), lambda r, g: (g[:1],))(x).sum()
    )(m.np.ones(2)),
    "vjp rule fwd str": lambda m: m.grad(fv(m, lambda x: (x, "kept"), lambda r, g: (g * len(r),)))(
        1.0
    ),
    "vjp no rule call": lambda m: m.custom_vjp(lambda x: x * 2)(1.0),
    "vjp defvjp none": lambda m: m.custom_vjp(lambda x: x).defvjp(None, None),
    "vjp kw": lambda m: m.grad(
        lambda x: fv(
            m, lambda x, y: (x * y, y), lambda r, g: (g * r * 3, None), lambda x, y=5.0: x * y
        )(x, y=2.0)
    )(1.0),
    "vjp default": lambda m: m.grad(
        fv(m, lambda x, y: (x * y, y), lambda r, g: (g * r * 3, None), lambda x, y=5.0: x * y)
    )(1.0),
    "stop int": lambda m: m.lax.stop_gradient(3),
    "stop tree": lambda m: m.lax.stop_gradient({"a": 1.0, "b": None, "c": (2, m.np.ones(2))}),
    "stop in grad": lambda m: m.grad(lambda d: d["a"] * m.lax.stop_gradient(d)["a"])({"a": 3.0}),
    "bool()": lambda m: m.grad(lambda x: x if x else -x)(2.0),
    "index by": lambda m: m.grad(lambda x: m.np.arange(3.0)[x.astype("int64")] * x)(2.0),
    "range": lambda m: m.grad(lambda x: sum(x for _ in range(int(x))))(3.0),
    "iter": lambda m: m.grad(lambda x: sum(y * y for y in x))(m.np.arange(3.0)),
    "unpack": lambda m: m.grad(lambda x: (lambda a, b: a * b)(*x))(m.np.arange(2.0) + 2),
    "inplace": lambda m: m.grad(lambda x: x.at[0].set(1.0).sum())(m.np.ones(3)),
    "setitem": lambda m: m.grad(lambda x: x.__setitem__(0, 1.0))(m.np.ones(3)),
    "aug": lambda m: m.grad(lambda x: functools.reduce(lambda a, b: a + b, [x, x, x]))(3.0),
    "shape": lambda m: m.grad(lambda x: x.sum() * x.shape[0] * x.ndim * x.size)(m.np.ones(3)),
    "len": lambda m: m.grad(lambda x: x.sum() * len(x))(m.np.ones(3)),
    "reduce_axes": lambda m: m.grad(lambda x: x**2, reduce_axes=())(2.0),
    "jit static": lambda m: m.jit(m.grad(lambda x, n: x**n), static_argnums=1)(2.0, 3),
    "grad jit static": lambda m: m.grad(m.jit(lambda x, n: x**n, static_argnums=1))(2.0, 3),
    "grad grad int": lambda m: m.grad(m.grad(lambda x: x**3))(2),
    "grad sort": lambda m: m.grad(lambda x: m.np.sort(x)[0])(m.np.asarray([3.0, 1.0])),
    "vag holo": lambda m: m.value_and_grad(lambda z: z**2, holomorphic=True)(1 + 1j),
    "partial": lambda m: m.grad(functools.partial(lambda y, x: x * y, 3.0))(2.0),
    "callable obj": lambda m: m.grad(type("F", (), {"__call__": lambda s, x: x**2})())(3.0),
    "hol int": lambda m: m.grad(lambda z: z * 2, holomorphic=True)(3),
    "jvp linear_transpose": lambda m: m.linear_transpose(lambda x: m.np.cumsum(x), m.np.ones(3))(
        m.np.ones(3)
    ),
}

DIFFERENT = {
    "argnums bool": "a bool is not taken for a number",
    "jvp real tangent": "a Python number is taken in the dtype of the value",
    "vjp cot py": "the same",
    "vjp weak cot": "the same",
    "vjp int out int": "integers have cotangents of dtype float0",
    "jacrev allow_int": "the same",
    "transpose int": "the same",
    "jvp rule not callable": "refused at once",
    "custom_jvp not callable": "refused at once",
    "vjp defvjp none": "refused at once",
    "jvp no rule call": "a rule is needed for a derivative only",
    "vjp no rule call": "the same",
    "vjp rule dtype": "cotangents have the dtype of what they belong to",
    "vjp rule dtype array": "the same",
    "vjp rule py": "the same",
    "vjp rule fwd str": "what is kept may be anything",
}
"""Calls with another end than in JAX, and why."""
