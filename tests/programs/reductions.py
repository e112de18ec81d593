"""Cases of reductions, scans, statistics, sorts and sets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.programs.draw import Draw, Ref, dtype_named, letter_of
from tests.programs.elementwise import first_dtype
from tests.programs.table import Call, case

SHORT = ("float16", "bfloat16")


def dims(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the dims that an axis argument names."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,)))


def reduced(d: Draw, kinds: str, domain: str = "tame", empty: bool = True) -> tuple[Ref, Any]:
    """Draw an array and the dims to reduce, with elements in them if need be."""
    while True:
        x = d.array(kinds, domain=domain)
        shape = d.value(x).shape
        axis = d.axes(len(shape))
        if empty or all(shape[i] for i in dims(axis, len(shape))):
            return x, axis
        d.begin()


@case("numpy: sum", ulps=8, wide=True, sums=True, weight=2)
def total(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "binfhc")
    kwargs: dict[str, Any] = {"axis": axis, "keepdims": d.chance(0.3)}
    if d.chance(0.15):
        kwargs["initial"] = d.integer(0, 2)
    if d.chance(0.15):
        kwargs["where"] = d.array("b", shape=d.value(x).shape)
    if d.chance(0.1) and letter_of(d.value(x)) in "bi":
        kwargs["dtype"] = np.dtype(d.one_of(["float64", "int64", "int8"]))
    return (x,), kwargs


@case("numpy: prod", ulps=64, sums=True)
def product(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "binfc", d.one_of(["small", "positive"]))
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: max min", weight=2)
def extremes(d: Draw, name: str) -> Call:
    if d.chance(0.2):
        x, axis = reduced(d, "ifh", "any")
        more = {"initial": d.integer(0, 2)}
        if d.chance(0.5):
            more["where"] = d.array("b", shape=d.value(x).shape)  # type: ignore[assignment]
        return (x,), {"axis": axis, **more}
    x, axis = reduced(d, "binfhs", "any", empty=False)
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: any all")
def tests(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "binfhsc", "any")
    more = {"where": d.array("b", shape=d.value(x).shape)} if d.chance(0.2) else {}
    return (x,), {"axis": axis, "keepdims": d.chance(0.3), **more}


@case("numpy: count_nonzero")
def count(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "bifhc", "any")
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: ptp", ulps=2)
def spread(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "if", "finite", empty=False)
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: argmax argmin", weight=2)
def places(d: Draw, name: str) -> Call:
    while True:
        x = d.array("bifhc" if d.chance(0.9) else "s")
        value = d.value(x)
        axis = d.axis(value.ndim) if value.ndim and d.chance(0.7) else None
        if value.size and (axis is None or value.shape[axis]):
            return (x,), {"axis": axis, "keepdims": d.chance(0.3)}
        d.begin()


@case("lax: argmax argmin")
def lax_places(d: Draw, name: str) -> Call:
    while True:
        x = d.array("bif")
        value = d.value(x)
        if value.ndim and value.size:
            return (x, d.integer(0, value.ndim - 1), np.dtype("int32")), {}
        d.begin()


@case("lax: reduce_sum reduce_prod", ulps=64, wide=True, sums=True, law=first_dtype)
def lax_sums(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "ifh", "small")
    return (x, dims(axis, d.value(x).ndim)), {}


@case("lax: reduce_max reduce_min")
def lax_extremes(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "if", "any", empty=False)
    return (x, dims(axis, d.value(x).ndim)), {}


@case("lax: reduce_and reduce_or reduce_xor")
def lax_bits(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "bi", "any")
    return (x, dims(axis, d.value(x).ndim)), {}


@case("numpy: mean var std nanmean nanvar nanstd", ulps=32, wide=True, sums=True)
def moments(d: Draw, name: str) -> Call:
    domain = "tame" if name.startswith("nan") else "finite"
    kinds = "if" if name.startswith("nan") else "infc"
    x, axis = reduced(d, kinds, domain, empty=False)
    kwargs: dict[str, Any] = {"axis": axis, "keepdims": d.chance(0.3)}
    if "mean" not in name and d.chance(0.3):
        kwargs["ddof"] = 1
    return (x,), kwargs


@case("numpy: nansum nanprod nanmax nanmin", ulps=64, wide=True, sums=True)
def without_nan(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "if", "small" if "prod" in name else "tame", empty=False)
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: average", ulps=32, sums=True)
def average(d: Draw, name: str) -> Call:
    x = d.array("if", domain="finite", ok=lambda v: v.size > 0)
    axis = d.axis(d.value(x).ndim) if d.value(x).ndim and d.chance(0.6) else None
    more = {"weights": d.array("f", shape=d.value(x).shape, domain="positive")}
    return (x,), {"axis": axis, "keepdims": d.chance(0.3), **(more if d.chance(0.5) else {})}


@case("numpy: median", ulps=4)
def median(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "if", "tame", empty=False)
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: nanmedian", ulps=4)
def nanmedian(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "f", "tame", empty=False)
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("numpy: quantile percentile", ulps=16, sums=True)
def quantile(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "f", "finite", empty=False)
    x = x if d.value(x).dtype.itemsize > 2 else d.array("f", shape=(5,), domain="unit")
    axis = axis if d.value(x).ndim > 1 else None
    top = 1 if name == "quantile" else 100
    q = d.one_of([0.0, 0.25 * top, [0.0, 0.5 * top, top]])
    q = d.given(np.asarray(q)) if d.chance(0.4) else q
    methods = ["linear", "lower", "higher", "midpoint", "nearest"]
    return (x, q), {"axis": axis, "method": d.one_of(methods), "keepdims": d.chance(0.3)}


@case("numpy: cumsum cumprod nancumsum nancumprod", ulps=64, sums=True)
def running(d: Draw, name: str) -> Call:
    x = d.array("bif" if name.startswith("nan") else "binf", domain="small")
    ndim = d.value(x).ndim
    return (x,), {"axis": d.axis(ndim) if ndim and d.chance(0.8) else None}


@case("numpy: cumulative_sum cumulative_prod", ulps=64, sums=True)
def cumulative(d: Draw, name: str) -> Call:
    x = d.array("if", shape=lambda: d.shape(1, 3), domain="small", ok=lambda v: v.ndim > 0)
    return (x,), {"axis": d.axis(d.value(x).ndim), "include_initial": d.chance(0.4)}


@case("lax: cumsum cumprod cummax cummin cumlogsumexp", ulps=64, sums=True)
def lax_running(d: Draw, name: str) -> Call:
    kinds = "f" if name == "cumlogsumexp" else "if"
    x = d.array(kinds, shape=lambda: d.shape(1, 3), domain="small", ok=lambda v: v.ndim > 0)
    axis = d.integer(0, d.value(x).ndim - 1)
    return (x, axis), {"reverse": d.chance(0.4)}


@case("numpy: diff", ulps=4, sums=True)
def diff(d: Draw, name: str) -> Call:
    x = d.array("if", shape=lambda: d.shape(1, 3), domain="tame", ok=lambda v: v.ndim > 0)
    return (x,), {"n": d.integer(0, 3), "axis": d.axis(d.value(x).ndim)}


@case("numpy: ediff1d", ulps=4, sums=True)
def ediff1d(d: Draw, name: str) -> Call:
    return (d.array("if", domain="tame"),), {}


@case("numpy: trapezoid", ulps=16, sums=True)
def trapezoid(d: Draw, name: str) -> Call:
    x = d.array("f", shape=lambda: d.shape(1, 3), domain="finite", ok=lambda v: v.ndim > 0)
    return (x,), {"axis": d.axis(d.value(x).ndim), "dx": d.one_of([1.0, 0.5, np.float64(2)])}


@case("numpy: cov corrcoef", ulps=256, sums=True)
def covariances(d: Draw, name: str) -> Call:
    x = d.given(d.rng.standard_normal((d.integer(1, 5), d.integer(3, 9))))
    return (x,), {"rowvar": (d.chance(0.5) and d.value(x).shape[0] > 2) or name == "cov"}


# sorts


@case("numpy: sort", weight=2)
def sort(d: Draw, name: str) -> Call:
    x = d.array("bifhc", ok=lambda v: v.ndim > 0, shape=lambda: d.shape(1, 3))
    ndim = d.value(x).ndim
    axis = None if d.chance(0.2) else d.axis(ndim)
    down = d.chance(0.3) and axis is not None and letter_of(d.value(x)) in "bi"
    return (x,), {"axis": axis, "descending": down}


@case("numpy: argsort", weight=3)
def argsort(d: Draw, name: str) -> Call:
    if d.chance(0.3):  # long enough to be sorted across devices
        x = d.array("bif", shape=(40,))
    else:
        x = d.array("bifhc", ok=lambda v: v.ndim > 0, shape=lambda: d.shape(1, 3))
    down = d.chance(0.3) and letter_of(d.value(x)) in "bi"
    return (x,), {"axis": d.axis(d.value(x).ndim), "descending": down}


def _in_order(x: Any, args: Any, said: Any) -> Any:
    """Return a partition whose lesser elements are in order, and its greater ones."""
    axis, k = said["axis"], args[1]
    low, element, high = np.split(x, [k, k + 1], axis)
    ordered = [np.sort(low, axis), element, np.sort(high, axis)]
    return np.concatenate(ordered, axis)


def _positions_in_order(x: Any, args: Any, said: Any) -> Any:
    every = np.sort(x, said["axis"])
    values = np.take_along_axis(np.asarray(args[0]), x, said["axis"])
    return np.stack([_in_order(values, args, said), every.astype(values.dtype)])


@case("numpy: argpartition", free=_positions_in_order)
@case("numpy: partition", free=_in_order)
def partition(d: Draw, name: str) -> Call:
    while True:
        x = d.array("if", shape=lambda: d.shape(1, 3), ok=lambda v: v.ndim > 0)
        axis = d.axis(d.value(x).ndim)
        size = d.value(x).shape[axis]
        if size:
            return (x, d.integer(0, size - 1)), {"axis": axis}
        d.begin()


@case("lax: sort")
def lax_sort(d: Draw, name: str) -> Call:
    x = d.array("if", shape=lambda: d.shape(1, 3), ok=lambda v: v.ndim > 0)
    return (x,), {"dimension": d.axis(d.value(x).ndim)}


@case("lax: sort_key_val")
def sort_pairs(d: Draw, name: str) -> Call:
    x = d.array("if", shape=lambda: d.shape(1, 3), ok=lambda v: v.ndim > 0)
    y = d.array("if", shape=d.value(x).shape)
    return (x, y), {"dimension": d.axis(d.value(x).ndim)}


@case("lax: top_k", weight=3)
def top_k(d: Draw, name: str) -> Call:
    if d.chance(0.5):  # each device finds its own
        return (d.array("if", shape=(48, 2)), d.integer(1, 2)), {"axis": 0}
    x = d.array("if", shape=lambda: d.shape(1, 3), ok=lambda v: v.ndim > 0)
    value = d.value(x)
    axis = d.axis(value.ndim)
    return (x, d.integer(0, value.shape[axis])), {"axis": axis}


@case("numpy: searchsorted")
@case("numpy: digitize", eager=True)
def search(d: Draw, name: str) -> Call:
    kind = d.one_of("if")
    edges = np.sort(d.value(d.array(kind, shape=(d.integer(1, 9),), domain="small")))
    d.begin()
    values = d.array(kind, domain="tame", ok=lambda v: v.dtype == edges.dtype)
    if name == "digitize":
        return (values, d.given(edges)), {"right": d.chance(0.5)}
    return (d.given(edges), values), {"side": d.one_of(["left", "right"])}


@case("numpy: isin")
def isin(d: Draw, name: str) -> Call:
    x = d.array("bifc")
    y = d.array(letter_of(d.value(x)), shape=lambda: d.shape(0, 2, most=12), domain="small")
    return (x, y), {"invert": d.chance(0.3)}


@case("numpy: unique", eager=True, weight=2, ulps=0)
def unique(d: Draw, name: str) -> Call:
    x = d.array("bifc", domain="tame")
    names = ["return_index", "return_inverse", "return_counts"]
    if d.chance(0.3) and d.value(x).size:
        return (x,), {"size": d.integer(1, 9)}
    return (x,), {n: True for n in names if d.chance(0.3)}


@case("numpy: unique_all unique_counts unique_inverse unique_values", eager=True, ulps=0)
def uniques(d: Draw, name: str) -> Call:
    return (d.array("bif", domain="finite"),), {}


@case("numpy: union1d intersect1d setdiff1d setxor1d", eager=True, ulps=0)
def sets(d: Draw, name: str) -> Call:
    kind = d.one_of("if")
    return tuple(
        d.array(kind, shape=lambda: d.shape(0, 2, most=12), domain="small") for _ in range(2)
    ), {}


@case("numpy: histogram", ulps=16, sums=True)
def histogram(d: Draw, name: str) -> Call:
    x = d.array("if", domain="small", shape=lambda: d.shape(0, 3, least=1))
    kwargs = {"bins": d.integer(1, 6)} if d.chance(0.7) else {"bins": [-2, 0, 1, 3]}
    if d.chance(0.4):
        kwargs["range"] = (-2, 3)  # type: ignore[assignment]
    return (x,), {**kwargs, "density": d.chance(0.3)}


@case("numpy: histogram_bin_edges", ulps=4, sums=True)
def edges(d: Draw, name: str) -> Call:
    x = d.array("if", domain="small", shape=lambda: d.shape(0, 3, least=1))
    return (x,), {"bins": d.integer(1, 6), "range": (-2, 3) if d.chance(0.5) else None}


@case("numpy: bincount", eager=True)
def bincount(d: Draw, name: str) -> Call:
    x = d.given(d.rng.integers(0, 6, d.integer(0, 12)))
    kwargs: dict[str, Any] = {"minlength": d.integer(0, 9)}
    if d.chance(0.4):
        kwargs["weights"] = d.array("f", shape=d.value(x).shape, domain="small")
    return (x,), kwargs


@case("numpy: convolve correlate", ulps=64, sums=True)
def sliding(d: Draw, name: str) -> Call:
    x, y = (
        d.array("if", shape=(d.integer(1, 20),), domain="small", ok=lambda v: v.size > 0)
        for _ in range(2)
    )
    return (x, y), {"mode": d.one_of(["full", "same", "valid"])}


@case("numpy: interp", ulps=16, sums=True)
def interp(d: Draw, name: str) -> Call:
    count = d.integer(2, 7)
    at = d.given(np.cumsum(d.rng.uniform(0.1, 1, count)))
    values = d.given(d.rng.standard_normal(count))
    return (d.array("f", domain="finite"), at, values), {}


@case("nn: softmax log_softmax standardize", ulps=16, wide=True, sums=True, law=first_dtype)
def normalised(d: Draw, name: str) -> Call:
    least = 4 if name == "standardize" else 2  # whose rounded mean may leave nothing of 16 bits
    while True:
        x = d.array(
            "fh" if least == 2 else "f",
            shape=lambda: d.shape(1, 3),
            domain="finite",
            ok=lambda v: v.ndim > 0 and v.dtype.itemsize >= least,
        )
        axis = d.axis(d.value(x).ndim)
        if d.value(x).shape[axis]:
            return (x,), {"axis": axis}
        d.begin()


@case("nn: logsumexp logmeanexp", ulps=16, wide=True, sums=True, law=first_dtype)
def logsumexp(d: Draw, name: str) -> Call:
    x, axis = reduced(d, "fh", "finite", empty=False)
    return (x,), {"axis": axis, "keepdims": d.chance(0.3)}


@case("nn: glu", ulps=16, wide=True, sums=True, law=first_dtype)
def glu(d: Draw, name: str) -> Call:
    x = d.array("fh", shape=(*d.shape(0, 2, most=16), 2 * d.integer(0, 4)), domain="finite")
    return (x,), {}


@case("nn: one_hot")
def one_hot(d: Draw, name: str) -> Call:
    count = d.integer(1, 5)
    x = d.given(np.asarray(d.rng.integers(-1, count + 1, d.shape(0, 2))))
    axis = d.integer(-d.value(x).ndim - 1, d.value(x).ndim)
    return (x, count), {"dtype": dtype_named(d.one_of(["float32", "int8"])), "axis": axis}


@case("nn: dot_product_attention", ulps=64, wide=True, sums=True, law=first_dtype)
def attention(d: Draw, name: str) -> Call:
    batch, queries, keys, heads, size = (d.integer(1, n) for n in (3, 5, 5, 4, 4))
    kind = d.one_of(["float32", "float64"])
    shapes = [(batch, queries, heads, size), *[(batch, keys, heads, size)] * 2]
    arrays = [d.given(d.rng.standard_normal(s).astype(kind)) for s in shapes]
    return tuple(arrays), {"is_causal": d.chance(0.4)}


def size_of(shape: Any) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
