"""Cases of products, linear algebra, Fourier transforms and polynomials."""

from __future__ import annotations

import itertools
import string
from typing import Any

import numpy as np

from tests.programs.draw import Draw, Ref, letter_of
from tests.programs.table import Call, case

SIZES = (4, 3, 1, 8, 2, 5, 0)


def factors(d: Draw, first: Any, second: Any) -> tuple[Ref, Ref]:
    """Draw two operands of a product."""
    x = d.array("bifc" if d.chance(0.8) else "h", shape=first, domain="finite")
    letter = letter_of(d.value(x))
    y = d.array(letter if d.chance(0.7) or letter == "h" else "if", shape=second, domain="finite")
    return (x, y) if d.chance(0.5) or first != second else (y, x)


PRODUCT: dict[str, Any] = {
    "ulps": 32,
    "wide": True,
    "sums": True,
    "law": lambda operands, kwargs: np.result_type(*operands),
}


@case("numpy: matmul numpy.linalg: matmul lax: batch_matmul", **PRODUCT)
def matmul(d: Draw, name: str) -> Call:
    m, k, n = (d.one_of(SIZES) for _ in range(3))
    if name == "batch_matmul":
        batch = d.shape(1, 2, most=8)
        return factors(d, (*batch, m, k), (*batch, k, n)), {}
    batch = d.shape(0, 2, most=8)
    low = 3 if "linalg" in name else 0
    left = (*d.like(batch), m, k) if d.integer(low, 3) else (k,)
    right = (*d.like(batch), k, n) if d.integer(low, 3) else (k,)
    return factors(d, left, right), {}


@case("numpy: dot inner vdot outer kron lax: dot numpy.linalg: outer", **PRODUCT)
def products(d: Draw, name: str) -> Call:
    m, k, n = (d.one_of(SIZES) for _ in range(3))
    pairs: dict[str, list[Any]] = {
        "dot": [((m, k), (k, n)), ((k,), (k,)), ((m, k), (k,)), ((k,), (k, n))],
        "inner": [((m, k), (n, k)), ((k,), (k,))],
        "vdot": [((m, k), (m, k)), ((k,), (k,))],
        "outer": [((m,), (n,))],
        "kron": [((2, m), (k, 2)), ((m,), (n,))],
    }
    return factors(d, *d.one_of(pairs[name])), {}


@case("numpy: vecdot numpy.linalg: vecdot", **PRODUCT)
def vecdot(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3)
    return factors(d, shape, shape), {"axis": -1}


@case("numpy: tensordot numpy.linalg: tensordot", **PRODUCT)
def tensordot(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3)
    other = (*shape[::-1], d.integer(0, 3))
    dims = list(range(len(shape)))
    return factors(d, shape, other), {"axes": (dims, dims[::-1])}


@case("numpy: einsum", **PRODUCT, weight=2)
def einsum(d: Draw, name: str) -> Call:
    letters = string.ascii_lowercase[: d.integer(1, 4)]
    size = {f: d.one_of([2, 4, 3, 1, 5, 0]) for f in letters}
    terms = []
    for _ in range(d.integer(1, 3)):
        count = d.integer(0, 3)
        terms.append("".join(d.one_of(letters) for _ in range(count)))
    used = sorted(set("".join(terms)))
    out = "".join(d.rng.permutation(used)[: d.integer(0, len(used))]) if used else ""
    kind = d.one_of("ifc")
    arrays = [d.array(kind, shape=[size[f] for f in t], domain="small") for t in terms]
    return (f"{','.join(terms)}->{out}", *arrays), {}


@case("lax: dot_general", **PRODUCT)
def dot_general(d: Draw, name: str) -> Call:
    b, m, k, n = (d.one_of(SIZES) for _ in range(4))
    kind = d.one_of("if")
    x, y = d.array(kind, shape=(b, m, k), domain="small"), None
    own = d.value(x).dtype
    y = d.array(kind, shape=(k, b, n), domain="small", ok=lambda v: v.dtype == own)
    return (x, y, (((2,), (0,)), ((0,), (1,)))), {}


@case("numpy: cross numpy.linalg: cross", ulps=8, sums=True)
def cross(d: Draw, name: str) -> Call:
    shape = (*d.shape(0, 2), 3)
    kind = d.one_of("if")
    return tuple(d.array(kind, shape=shape, domain="small") for _ in range(2)), {}


@case("numpy: trace", **PRODUCT)
def trace(d: Draw, name: str) -> Call:
    x = d.array("ifc", shape=lambda: d.shape(2, 3), domain="finite", ok=lambda v: v.ndim in (2, 3))
    return (x,), {"offset": d.integer(-2, 2)}


@case("numpy.linalg: trace", **PRODUCT)
def matrix_trace(d: Draw, name: str) -> Call:
    x = d.array("ifc", shape=lambda: d.shape(2, 4), domain="finite", ok=lambda v: v.ndim >= 2)
    return (x,), {"offset": d.integer(-2, 2)}


@case("numpy: polyval", ulps=16, sums=True)
def polyval(d: Draw, name: str) -> Call:
    p = d.array("f", shape=(d.integer(1, 4),), domain="small")
    return (p, d.array("f", shape=lambda: d.shape(0, 2), domain="unit")), {}


def stack_of(d: Draw, rows: int, columns: int, definite: bool = False) -> Ref:
    """Draw well-conditioned matrices, symmetric and positive definite or not."""
    leading = 1 if max(rows, columns) > 5 else 2  # the axes of long sides are to stay there
    shape = (*d.shape(0, leading, most=8), rows, columns)
    kind = d.one_of(["float32", "float64", "complex64", "complex128"])
    value = d.rng.standard_normal(shape)
    if kind.startswith("c"):
        value = value + 1j * d.rng.standard_normal(shape)
    if rows == columns:
        value = value @ np.conj(np.swapaxes(value, -1, -2)) if definite else value
        value = value + np.eye(rows) * 3 * (rows + 1)
    return d.given(value.astype(kind))


LINEAR: dict[str, Any] = {"ulps": 2048, "sums": True}


@case("numpy.linalg: inv det slogdet matrix_rank cond", **LINEAR)
def square(d: Draw, name: str) -> Call:
    n = d.integer(1, 5)
    return (stack_of(d, n, n),), {}


@case("numpy.linalg: cholesky eigvalsh", **LINEAR)
def definite(d: Draw, name: str) -> Call:
    n = d.integer(1, 5)
    return (stack_of(d, n, n, True),), {}


@case("numpy.linalg: solve", **LINEAR)
def solve(d: Draw, name: str) -> Call:
    n = d.integer(1, 5)
    a = stack_of(d, n, n)
    value = d.value(a)
    return (a, d.given(d.rng.standard_normal((*value.shape[:-1], 2)).astype(value.dtype))), {}


def long_sides(d: Draw) -> list[int]:
    """Return the sizes of a matrix that may be tall or wide enough to stay split."""
    sides = [d.integer(1, 5), d.integer(1, 5)]
    if d.chance(0.8):
        sides[1 if d.chance(0.6) else 0] *= 12
    return sides


@case("numpy.linalg: svdvals pinv", **LINEAR)
def oblong(d: Draw, name: str) -> Call:
    return (stack_of(d, *long_sides(d)),), {}


@case("numpy.linalg: svd qr", **LINEAR)
def decomposed(d: Draw, name: str) -> Call:
    x = stack_of(d, *long_sides(d))
    if name == "svd":
        return (x,), {"compute_uv": False}
    return (x,), {"mode": d.one_of(["reduced", "complete", "r"])}


@case("array: eigh eig eigvals", **LINEAR)
def eigen(d: Draw, name: str) -> Call:
    n = d.integer(1, 5)
    return (stack_of(d, n, n, True),), {}


@case("array: svd", **LINEAR)
def svd(d: Draw, name: str) -> Call:
    return (stack_of(d, d.integer(1, 5), d.integer(1, 5)), d.chance(0.5)), {}


@case("numpy.linalg: matrix_power", **LINEAR)
def matrix_power(d: Draw, name: str) -> Call:
    n = d.integer(1, 4)
    return (stack_of(d, n, n), d.integer(-2, 3)), {}


@case("numpy.linalg: multi_dot", **LINEAR)
def multi_dot(d: Draw, name: str) -> Call:
    sizes = [d.integer(1, 5) for _ in range(d.integer(3, 5))]
    shapes = itertools.pairwise(sizes)
    return ([d.given(d.rng.standard_normal(s)) for s in shapes],), {}


@case("numpy.linalg: lstsq", **LINEAR)
def lstsq(d: Draw, name: str) -> Call:
    rows, columns = d.integer(4, 6), d.integer(1, 3)
    a = d.given(d.rng.standard_normal((rows, columns)))
    return (a, d.given(d.rng.standard_normal((rows, 2)))), {}


@case("numpy.linalg: norm matrix_norm vector_norm", **LINEAR)
def norms(d: Draw, name: str) -> Call:
    if name == "vector_norm":
        x = d.array("fc", shape=lambda: d.shape(1, 3), domain="finite", ok=lambda v: v.size > 0)
        return (x,), {"ord": d.one_of([2, 1, np.inf, 3]), "keepdims": d.chance(0.3)}
    x = stack_of(d, d.integer(1, 4), d.integer(1, 4))
    orders = ["fro", 1, np.inf, -1, 2, "nuc"]
    axis = {"axis": (-2, -1)} if name == "norm" else {}
    return (x,), {"ord": d.one_of(orders), "keepdims": d.chance(0.3), **axis}


FOURIER: dict[str, Any] = {"ulps": 64, "sums": True}


@case("numpy.fft: fft ifft hfft rfft irfft ihfft", **FOURIER)
def transforms(d: Draw, name: str) -> Call:
    kinds = "if" if name in ("rfft", "ihfft") else "ifc"
    while True:
        x = d.array(kinds, shape=lambda: d.shape(1, 3), domain="finite", ok=lambda v: v.ndim > 0)
        value = d.value(x)
        axis = d.axis(value.ndim)
        least = 2 if name in ("hfft", "irfft") else 1
        if value.shape[axis] >= least and value.dtype != np.float16:
            break
        d.begin()
    more = {"n": d.integer(2, 9)} if d.chance(0.4) else {}
    norms = [None, "ortho", "forward", "backward"]
    return (x,), {"axis": axis, "norm": d.one_of(norms), **more}


@case("numpy.fft: fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn", **FOURIER)
def transforms_of_dims(d: Draw, name: str) -> Call:
    shape = (*d.shape(0, 1, most=4), d.integer(1, 5), d.integer(2, 6))
    kinds = ["float64", "float32"] if name.startswith("rfft") else ["complex128", "float64"]
    x = d.given(d.rng.standard_normal(shape).astype(d.one_of(kinds)))
    return (x,), {"axes": (-2, -1), "norm": d.one_of([None, "ortho"])}


@case("numpy.fft: fftshift ifftshift")
def shifts(d: Draw, name: str) -> Call:
    x = d.array(shape=lambda: d.shape(1, 3), ok=lambda v: v.ndim > 0)
    return (x,), {"axes": d.axis(d.value(x).ndim) if d.chance(0.6) else None}


@case("numpy.fft: fftfreq rfftfreq", ulps=4)
def frequencies(d: Draw, name: str) -> Call:
    return (d.integer(1, 12),), {"d": d.one_of([1.0, 0.5])}
