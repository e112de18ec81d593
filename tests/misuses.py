"""Calls of transformations that are refused, or not, by JAX: the same ones must be by meshard.

Each takes the modules as ``m``, as the functions of `tests/corpus.py` do.
"""

import numpy as np


def forward(m, rule):
    f = m.custom_jvp(lambda x: x * 2)
    f.defjvp(rule)
    return f


def backward(m, fwd, bwd):
    f = m.custom_vjp(lambda x: x * 2)
    f.defvjp(fwd, bwd)
    return f


def kept_for_later(m):
    box = []
    m.grad(lambda x: box.append(x) or x * 1.0)(1.0)
    return box[0] + 1


MISUSES = {
    "grad of vector": lambda m: m.grad(lambda x: x * 2)(m.np.ones(3)),
    "grad of tuple": lambda m: m.grad(lambda x: (x, x))(1.0),
    "grad of int": lambda m: m.grad(lambda x: x * 2.0)(3),
    "grad of bool": lambda m: m.grad(lambda x: x * 2.0)(True),
    "grad to int": lambda m: m.grad(lambda x: m.np.argmax(x))(m.np.ones(3)),
    "grad complex in": lambda m: m.grad(lambda x: m.np.abs(x) * 1j)(m.np.asarray(1 + 1j)),
    "grad complex out": lambda m: m.grad(lambda x: x * 1j)(1.0),
    "holomorphic of real": lambda m: m.grad(lambda x: x * 2, holomorphic=True)(1.0),
    "argnums out": lambda m: m.grad(lambda x: x * 2, argnums=1)(1.0),
    "argnums string": lambda m: m.grad(lambda x: x * 2, argnums="x")(1.0),
    "argnums float": lambda m: m.grad(lambda x: x * 2, argnums=0.5)(1.0),
    "not callable": lambda m: m.grad(3)(1.0),
    "string arg": lambda m: m.grad(lambda x: 1.0)("a"),
    "has_aux no pair": lambda m: m.grad(lambda x: x, has_aux=True)(1.0),
    "returns None": lambda m: m.grad(lambda x: None)(1.0),
    "returns string": lambda m: m.grad(lambda x: "a")(1.0),
    "jvp not tuple": lambda m: m.jvp(lambda x: x, 1.0, 1.0),
    "jvp lengths": lambda m: m.jvp(lambda x: x, (1.0,), (1.0, 2.0)),
    "jvp shapes": lambda m: m.jvp(lambda x: x, (m.np.ones(3),), (m.np.ones(2),)),
    "jvp dtypes": lambda m: m.jvp(lambda x: x, (m.np.ones(3),), (m.np.ones(3, "float32"),)),
    "jvp int tangent": lambda m: m.jvp(
        lambda x: x * 1.0, (m.np.ones(3, int),), (m.np.ones(3, int),)
    ),
    "vjp wrong tree": lambda m: m.vjp(lambda x: (x, x), 1.0)[1](1.0),
    "vjp wrong shape": lambda m: m.vjp(lambda x: x, m.np.ones(3))[1](m.np.ones(2)),
    "vjp wrong dtype": lambda m: m.vjp(lambda x: x, m.np.ones(3))[1](m.np.ones(3, "float32")),
    "vjp two": lambda m: m.vjp(lambda x: x, m.np.ones(3))[1](m.np.ones(3), m.np.ones(3)),
    "while reverse": lambda m: m.grad(
        lambda x: m.lax.while_loop(lambda y: y < 5, lambda y: y * 2, x)
    )(1.0),
    "jacfwd int": lambda m: m.jacfwd(lambda x: x * 1.0)(3),
    "jacfwd complex": lambda m: m.jacfwd(lambda x: x * 1.0)(1j),
    "jacrev int": lambda m: m.jacrev(lambda x: x * 1.0)(3),
    "jacrev out int": lambda m: m.jacrev(lambda x: m.np.floor(x).astype(int))(3.0),
    "hessian int": lambda m: m.hessian(lambda x: x * 1.0)(3),
    "linearize shape": lambda m: m.linearize(lambda x: x, m.np.ones(3))[1](m.np.ones(2)),
    "linearize count": lambda m: m.linearize(lambda x: x, m.np.ones(3))[1](
        m.np.ones(3), m.np.ones(3)
    ),
    "linear_transpose nonlinear": lambda m: m.linear_transpose(lambda x: m.np.sin(x), m.np.ones(3))(
        m.np.ones(3)
    ),
    "linear_transpose shape": lambda m: m.linear_transpose(lambda x: 2 * x, m.np.ones(3))(
        m.np.ones(2)
    ),
    "float()": lambda m: m.grad(lambda x: float(x) * x)(1.0),
    "numpy": lambda m: m.grad(lambda x: np.asarray(x).sum())(m.np.ones(3)),
    "item": lambda m: m.grad(lambda x: x.item() * x)(m.np.asarray(1.0)),
    "int()": lambda m: m.grad(lambda x: int(x) * x)(1.5),
    "custom_jvp none": lambda m: m.grad(m.custom_jvp(lambda x: x * 2))(1.0),
    "custom_jvp not pair": lambda m: m.grad(forward(m, lambda p, t: p[0] * 2))(1.0),
    "custom_jvp shape": lambda m: m.grad(forward(m, lambda p, t: (p[0] * 2, m.np.ones(3))))(1.0),
    "custom_jvp dtype": lambda m: m.jvp(
        forward(m, lambda p, t: (p[0] * 2, t[0].astype("float32"))),
        (m.np.asarray(1.0),),
        (m.np.asarray(1.0),),
    ),
    "custom_vjp none": lambda m: m.grad(m.custom_vjp(lambda x: x))(1.0),
    "custom_vjp fwd not pair": lambda m: m.grad(backward(m, lambda x: x * 2, lambda r, g: (g,)))(
        1.0
    ),
    "custom_vjp bwd not tuple": lambda m: m.grad(backward(m, lambda x: (x * 2, x), lambda r, g: g))(
        1.0
    ),
    "custom_vjp bwd count": lambda m: m.grad(
        backward(m, lambda x: (x * 2, x), lambda r, g: (g, g))
    )(1.0),
    "custom_vjp bwd shape": lambda m: m.grad(
        backward(m, lambda x: (x * 2, x), lambda r, g: (m.np.ones(3),))
    )(1.0),
    "custom_vjp jvp": lambda m: m.jvp(
        backward(m, lambda x: (x * 2, x), lambda r, g: (g,)), (1.0,), (1.0,)
    ),
    "vmap in_axes str": lambda m: m.vmap(m.np.sin, in_axes="x")(m.np.ones(3)),
    "vmap in_axes len": lambda m: m.vmap(m.np.sin, in_axes=(0, 0))(m.np.ones(3)),
    "vmap scalar": lambda m: m.vmap(m.np.sin)(1.0),
    "vmap sizes": lambda m: m.vmap(m.np.add)(m.np.ones(3), m.np.ones(2)),
    "vmap all None": lambda m: m.vmap(m.np.sin, in_axes=None)(m.np.ones(3)),
    "vmap out None": lambda m: m.vmap(m.np.sin, out_axes=None)(m.np.ones(3)),
    "vmap out range": lambda m: m.vmap(m.np.sin, out_axes=3)(m.np.ones(3)),
    "vmap in tree": lambda m: m.vmap(lambda d: d["a"], in_axes=({"b": 0},))({"a": m.np.ones(3)}),
    "vmap if": lambda m: m.vmap(lambda x: x if x > 0 else -x)(m.np.ones(3)),
    "vmap axis_size": lambda m: m.vmap(m.np.sin, axis_size=4)(m.np.ones(3)),
    "sort in jit if": lambda m: m.jit(m.grad(lambda x: x if x > 0 else -x))(1.0),
    "set.multiply": lambda m: m.grad(
        lambda v: m.np.ones(3).at[m.np.asarray([0, 0])].multiply(v).sum()
    )(2.0),
    "at max": lambda m: m.grad(lambda v: m.np.ones(3).at[m.np.asarray([0, 0])].max(v).sum())(2.0),
    "leak": lambda m: kept_for_later(m),
    "wide qr": lambda m: m.grad(lambda x: m.np.linalg.qr(x)[0].sum())(m.np.ones((2, 3))),
    "fori dynamic": lambda m: m.grad(
        lambda x: m.lax.fori_loop(0, m.np.asarray(3), lambda i, y: y * 2, x)
    )(1.0),
    "fori dynamic jit": lambda m: m.jit(
        m.grad(lambda x, n: m.lax.fori_loop(0, n, lambda i, y: y * 2, x))
    )(1.0, 3),
}
