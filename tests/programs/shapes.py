"""Cases of functions that move elements: shapes, joins, indices, creation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.programs.draw import ALL, Draw, Ref, dtype_named, letter_of
from tests.programs.table import Call, case


def _some(d: Draw, low: int = 0, high: int = 4, kinds: str = ALL, **more: Any) -> tuple[Ref, Any]:
    """Draw an array of so many dims; return it and its shape."""
    x = d.array(kinds, shape=lambda: d.shape(low, high), ok=lambda v: low <= v.ndim <= high, **more)
    return x, d.value(x).shape


def factors(d: Draw, size: int) -> list[int]:
    """Draw a shape with that many elements."""
    if size == 0:
        return list(d.rng.permutation([0, d.integer(1, 4)][: d.integer(1, 2)]).tolist())
    shape = []
    while size > 1 and len(shape) < 4:
        n = d.one_of([k for k in range(1, size + 1) if size % k == 0])
        shape.append(n)
        size //= n
    return [*shape, size] if size > 1 else shape


@case("numpy: reshape lax: reshape")
def reshape(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    wanted = factors(d, math.prod(shape))
    if wanted and 0 not in wanted and d.chance(0.2):
        wanted[d.integer(0, len(wanted) - 1)] = -1
    return (x, tuple(wanted)), {}


@case("numpy: ravel atleast_1d atleast_2d atleast_3d squeeze size ndim shape")
def plain(d: Draw, name: str) -> Call:
    return (_some(d)[0],), {}


@case("numpy: transpose permute_dims lax: transpose")
def transpose(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    return (x, tuple(d.rng.permutation(len(shape)).tolist())), {}


@case("numpy: swapaxes moveaxis")
def two_axes(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1)
    return (x, d.axis(len(shape)), d.axis(len(shape))), {}


@case("numpy: matrix_transpose fliplr flipud rot90 tril triu numpy.linalg: matrix_transpose")
def matrices(d: Draw, name: str) -> Call:
    x, _ = _some(d, 2, 4)
    return (x,), ({"k": d.integer(-3, 3)} if name in ("tril", "triu", "rot90") else {})


@case("numpy: flip")
def flip(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    return (x,), {"axis": d.axes(len(shape))}


@case("lax: rev")
def rev(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    return (x, tuple(d.rng.permutation(len(shape))[: d.integer(0, len(shape))].tolist())), {}


@case("numpy: roll")
def roll(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1)
    if d.chance(0.3):
        return (x, d.integer(-9, 9)), {}
    axis = d.axis(len(shape))
    if d.chance(0.3):
        return (x, (d.integer(-9, 9), d.integer(-3, 3)), (axis, d.axis(len(shape)))), {}
    return (x, d.integer(-9, 9), axis), {}


@case("numpy: expand_dims lax: expand_dims")
def expand(d: Draw, name: str) -> Call:
    x, shape = _some(d, 0, 3)
    at = d.integer(-len(shape) - 1, len(shape))
    return (x, (at,) if d.chance(0.5) or name == "expand_dims" else at), {}


@case("lax: squeeze")
def squeeze(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    return (x, tuple(i for i, n in enumerate(shape) if n == 1)), {}


@case("numpy: broadcast_to lax: broadcast")
def broadcast(d: Draw, name: str) -> Call:
    shape = d.shape(0, 3)
    if name == "broadcast":
        return (_some(d, 0, 2)[0], d.shape(0, 2, most=8)), {}
    return (d.array(shape=d.like(shape)), shape), {}


@case("numpy: broadcast_arrays")
def broadcasts(d: Draw, name: str) -> Call:
    shape = d.shape(0, 3)
    return tuple(d.array(shape=d.like(shape)) for _ in range(d.integer(1, 3))), {}


@case("lax: broadcast_in_dim")
def broadcast_in_dim(d: Draw, name: str) -> Call:
    shape = d.shape(0, 4)
    dims = sorted(d.rng.permutation(len(shape))[: d.integer(0, len(shape))].tolist())
    own = tuple(shape[i] if d.chance(0.7) else 1 for i in dims)
    return (d.array(shape=own), shape, tuple(dims)), {}


@case("lax: collapse")
def collapse(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1)
    start = d.integer(0, len(shape) - 1)
    return (x, start, d.integer(start + 1, len(shape))), {}


@case("numpy: tile lax: tile")
def tile(d: Draw, name: str) -> Call:
    x, shape = _some(d, 0, 3)
    return (x, tuple(d.integer(0, 3) for _ in range(len(shape)))), {}


@case("numpy: repeat")
def repeat(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    axis = None if d.chance(0.3) else d.axis(len(shape))
    return (x, d.integer(0, 3)), {"axis": axis}


@case("numpy: pad")
def pad(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3, kinds="bifc")
    widths = tuple((d.integer(0, 3), d.integer(0, 3)) for _ in shape)
    modes = ["edge", "wrap", "reflect", "symmetric"] if 0 not in shape else []
    mode = d.one_of(["constant", *modes])
    more = {"constant_values": d.integer(0, 1)} if mode == "constant" else {}
    return (x, widths), {"mode": mode, **more}


@case("lax: pad")
def lax_pad(d: Draw, name: str) -> Call:
    x, shape = _some(d, 0, 3)
    config = tuple((d.integer(-1, 3), d.integer(-1, 3), d.integer(0, 2)) for _ in shape)
    value = d.array(letter_of(d.value(x)), shape=(), ok=lambda v: v.dtype == d.value(x).dtype)
    return (x, value, config), {}


def joined(d: Draw, low: int, high: int = 3, same: bool = False) -> tuple[list[Ref], int]:
    """Draw arrays that differ in one dim at most, and that dim."""
    mixed = d.chance(0.3)
    first, shape = _some(d, low, high)
    letter, own = letter_of(d.value(first)), d.value(first).dtype
    kinds = ALL if mixed else letter
    axis = d.integer(0, len(shape) - 1) if shape else 0
    arrays = [first]
    for _ in range(d.integer(0, 3)):
        size = d.integer(0, 4)
        wanted = shape if same else tuple(size if i == axis else n for i, n in enumerate(shape))
        arrays.append(d.array(kinds, shape=wanted, ok=lambda v: len(kinds) > 1 or v.dtype == own))
    return arrays, axis


@case("numpy: concatenate concat lax: concatenate")
def concatenate(d: Draw, name: str) -> Call:
    arrays, axis = joined(d, 1)
    return (arrays, axis), {}


@case("numpy: append")
def append(d: Draw, name: str) -> Call:
    arrays, axis = joined(d, 1)
    return (arrays[0], arrays[-1]), {"axis": axis if d.chance(0.7) else None}


@case("numpy: stack vstack hstack dstack column_stack lax: stack")
def stacks(d: Draw, name: str) -> Call:
    arrays, axis = joined(d, 1 if name != "stack" else 0, same=True)
    if name == "column_stack":
        arrays, _ = joined(d, 1, 2, same=True)
    return (arrays,), ({"axis": axis} if name == "stack" else {})


@case("numpy: split array_split hsplit vsplit dsplit")
def splits(d: Draw, name: str) -> Call:
    low = {"hsplit": 1, "vsplit": 2, "dsplit": 3}.get(name, 1)
    x, shape = _some(d, low)
    axis = {"hsplit": min(1, len(shape) - 1), "vsplit": 0, "dsplit": 2}.get(name)
    at = d.integer(0, len(shape) - 1) if axis is None else axis
    cuts = sorted(d.integer(0, shape[at] + 1) for _ in range(d.integer(0, 3)))
    if d.chance(0.4):
        even = [k for k in range(1, 5) if shape[at] % k == 0 or name == "array_split"]
        return (x, d.one_of(even)), ({"axis": at} if axis is None else {})
    return (x, cuts), ({"axis": at} if axis is None else {})


@case("lax: split")
def lax_split(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1)
    axis = d.integer(0, len(shape) - 1)
    first = d.integer(0, shape[axis])
    return (x, (first, shape[axis] - first), axis), {}


@case("numpy: unstack lax: unstack")
def unstack(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    return (x,), {"axis": d.integer(0, len(shape) - 1)}


# indices


def places(d: Draw, size: int, shape: Any, negative: bool = True) -> Ref:
    """Draw an array of positions in a dim."""
    low = -size if negative else 0
    return d.given(np.asarray(d.rng.integers(low, max(size, 1), shape)))


@case("numpy: take")
def take(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3, domain="any")
    axis = d.axis(len(shape)) if d.chance(0.7) else None
    size = math.prod(shape) if axis is None else shape[axis]
    own = d.shape(0, 2, most=12) if size else (0,)
    return (x, places(d, size, own)), {"axis": axis}


@case("numpy: take_along_axis")
def take_along(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    axis = d.axis(len(shape))
    count = d.integer(0, 4) if shape[axis] else 0
    own = tuple(count if i == axis % len(shape) else n for i, n in enumerate(shape))
    return (x, places(d, shape[axis], own)), {"axis": axis}


def index(d: Draw, shape: Any, arrays: float = 0.4) -> tuple[Any, ...]:
    """Draw an index: numbers, slices, an ellipsis, new dims, arrays of positions, a mask."""
    found: list[Any] = []
    own = d.shape(0, 2, most=6)
    many = d.chance(arrays)
    for n in shape[: d.integer(0, len(shape))]:
        kind = d.integer(0, 4)
        if kind == 0 and n:
            found.append(d.integer(-n, n - 1))
        elif kind == 1 and many and (n or 0 in own):
            found.append(places(d, n, tuple(own) if d.chance(0.7) else (1,) if n else own))
        elif kind == 2:
            found.append(slice(None, None, d.one_of([1, -1, 2, -2])))
        else:
            ends = [d.integer(-n - 1, n + 1) if d.chance(0.7) else None for _ in range(2)]
            found.append(slice(*ends, d.one_of([1, 1, None, -1, 2, -3])))
    if len(found) < len(shape) and d.chance(0.3):
        found.append(...)
    if d.chance(0.2):
        found.insert(d.integer(0, len(found)), None)
    return tuple(found)


@case("array: getitem", weight=4)
def getitem(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    return (x, index(d, shape)), {}


@case("array: select", eager=True)
def select(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1)
    return (x, d.array("b", shape=shape[: d.integer(1, len(shape))])), {}


@case("array: set add multiply min max", weight=3, ulps=4, sums=True)
def update(d: Draw, name: str) -> Call:
    kinds = {"set": ALL, "add": "if", "multiply": "if", "min": "ifh", "max": "ifh"}[name]
    x, shape = _some(d, kinds=kinds, domain="any" if name == "set" else "tame")
    if shape and d.chance(0.1):
        return (x, d.array("b", shape=shape), 1), {}
    where = index(d, shape, arrays=0 if name == "set" else 0.7)
    if d.chance(0.3):
        return (x, where, d.integer(0, 2) if letter_of(d.value(x)) != "b" else True), {}
    probe = d.value(x)[tuple(d.value(i) if isinstance(i, Ref) else i for i in where)]
    domain = "any" if name == "set" else "small"
    own = d.value(x).dtype
    values = d.array(
        letter_of(d.value(x)), shape=d.like(probe.shape), domain=domain, ok=lambda v: v.dtype == own
    )
    return (x, where, values), {}


@case("numpy: choose", eager=True)
@case("numpy: select")
def chosen(d: Draw, name: str) -> Call:
    shape = d.shape(0, 3)
    if name == "choose":
        arrays = [d.array("i", shape=d.like(shape)) for _ in range(d.integer(1, 3))]
        return (places(d, len(arrays), shape, negative=False), arrays), {}
    count = d.integer(1, 3)
    masks = [d.array("b", shape=shape) for _ in range(count)]
    return (masks, [d.array("if", shape=shape) for _ in range(count)], d.integer(0, 2)), {}


@case("numpy: diag diagflat")
def diag(d: Draw, name: str) -> Call:
    x, _ = _some(d, 1, 2)
    return (x,), {"k": d.integer(-3, 3)}


@case("numpy: diagonal")
def diagonal(d: Draw, name: str) -> Call:
    x, shape = _some(d, 2, 4)
    first, second = d.rng.permutation(len(shape))[:2].tolist()
    return (x,), {"offset": d.integer(-2, 2), "axis1": first, "axis2": second}


@case("numpy.linalg: diagonal")
def matrix_diagonal(d: Draw, name: str) -> Call:
    return (_some(d, 2, 4)[0],), {"offset": d.integer(-2, 2)}


@case("numpy: compress extract", eager=True)
def compress(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    if name == "extract":
        return (d.array("b", shape=shape), x), {}
    axis = d.axis(len(shape)) if d.chance(0.7) else None
    size = math.prod(shape) if axis is None else shape[axis]
    return (d.array("b", shape=(d.integer(0, size),)), x), {"axis": axis}


@case("numpy: nonzero flatnonzero argwhere", eager=True)
def positions(d: Draw, name: str) -> Call:
    known = {"size": d.integer(0, 9), "fill_value": d.integer(0, 2)} if d.chance(0.5) else {}
    return (_some(d, 1, 3)[0],), known


@case("lax: slice")
def lax_slice(d: Draw, name: str) -> Call:
    x, shape = _some(d)
    starts = [d.integer(0, n) for n in shape]
    stops = [d.integer(a, n) for a, n in zip(starts, shape, strict=True)]
    return (x, tuple(starts), tuple(stops), tuple(d.integer(1, 3) for _ in shape)), {}


@case("lax: slice_in_dim index_in_dim")
def in_dim(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1)
    axis = d.integer(0, len(shape) - 1)
    n = shape[axis]
    if name == "index_in_dim":
        return None if not n else ((x, d.integer(-n, n - 1), axis, d.chance(0.5)), {})  # type: ignore[return-value]
    start = d.integer(0, n)
    return (x, start, d.integer(start, n), d.integer(1, 2), axis), {}


def _corner(d: Draw, shape: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Draw sizes that fit into a shape, and where a block of them starts, traced or not."""
    sizes = tuple(d.integer(0, n) for n in shape)
    starts = [d.integer(-2, n + 1) for n in shape]
    return sizes, tuple(d.given(np.array(s)) if d.chance(0.5) else s for s in starts)


@case("lax: dynamic_slice dynamic_update_slice")
def dynamic(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    sizes, starts = _corner(d, shape)
    if name == "dynamic_slice":
        return (x, starts, sizes), {}
    own = d.value(x).dtype
    update = d.array(letter_of(d.value(x)), shape=sizes, ok=lambda v: v.dtype == own)
    return (x, update, starts), {}


@case(
    "lax: dynamic_slice_in_dim dynamic_index_in_dim dynamic_update_slice_in_dim"
    " dynamic_update_index_in_dim"
)
def dynamic_in_dim(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    axis = d.integer(0, len(shape) - 1)
    n = shape[axis]
    if not n:
        return None  # type: ignore[return-value]
    at: Any = d.integer(-n, n)
    at = d.given(np.array(at)) if d.chance(0.5) else at
    size = d.integer(1, n)
    if name == "dynamic_slice_in_dim":
        return (x, at, size, axis), {}
    if name == "dynamic_index_in_dim":
        return (x, at, axis, d.chance(0.5)), {}
    size = size if "slice" in name else 1
    own = d.value(x).dtype
    wanted = tuple(size if i == axis else m for i, m in enumerate(shape))
    update = d.array(letter_of(d.value(x)), shape=wanted, ok=lambda v: v.dtype == own)
    return (x, update, at, axis), {}


@case("lax: index_take")
def index_take(d: Draw, name: str) -> Call:
    x, shape = _some(d, 1, 3)
    if 0 in shape:
        return None  # type: ignore[return-value]
    axes = sorted(d.rng.permutation(len(shape))[: d.integer(1, len(shape))].tolist())
    count = d.integer(1, 4)
    return (x, tuple(places(d, shape[a], (count,), False) for a in axes), tuple(axes)), {}


# creation

NAMES = ["bool", "int8", "int64", "uint4", "float16", "float32", "float64", "bfloat16", "complex64"]


@case("numpy: zeros ones")
def constant(d: Draw, name: str) -> Call:
    return (d.shape(),), {"dtype": dtype_named(d.one_of(NAMES))}


@case("numpy: full lax: full")
def full(d: Draw, name: str) -> Call:
    return (d.shape(), d.integer(0, 1)), {"dtype": dtype_named(d.one_of(NAMES))}


@case("numpy: zeros_like ones_like")
def constant_like(d: Draw, name: str) -> Call:
    more = {"dtype": dtype_named(d.one_of(NAMES))} if d.chance(0.3) else {}
    return (_some(d)[0],), more | ({"shape": d.shape()} if d.chance(0.3) else {})


@case("numpy: full_like lax: full_like")
def full_like(d: Draw, name: str) -> Call:
    return (_some(d)[0], d.integer(0, 1)), {}


@case("numpy: arange")
def arange(d: Draw, name: str) -> Call:
    start = d.integer(-3, 3)
    return (start, start + d.integer(0, 20), d.integer(1, 3)), {
        "dtype": d.one_of([int, np.float32])
    }


@case("numpy: linspace", ulps=4, sums=True)
def linspace(d: Draw, name: str) -> Call:
    if d.chance(0.4):
        shape = d.shape(0, 2)
        ends = [d.array("f", shape=shape, domain="finite") for _ in range(2)]
        return tuple(ends), {"num": d.integer(1, 9), "endpoint": d.chance(0.6)}
    return (d.integer(-3, 3), d.integer(4, 9)), {"num": d.integer(0, 20), "endpoint": d.chance(0.6)}


@case("numpy: logspace geomspace", ulps=16, sums=True)
def logspace(d: Draw, name: str) -> Call:
    return (d.integer(1, 2), d.integer(3, 5)), {"num": d.integer(1, 20), "endpoint": d.chance(0.6)}


@case("numpy: eye tri")
def eye(d: Draw, name: str) -> Call:
    kwargs = {"k": d.integer(-3, 3), "dtype": dtype_named(d.one_of(NAMES))}
    return (d.integer(0, 9), d.integer(0, 9)), kwargs


@case("numpy: identity")
def identity(d: Draw, name: str) -> Call:
    return (d.integer(0, 9),), {}


@case("numpy: indices")
def indices(d: Draw, name: str) -> Call:
    return (d.shape(1, 3),), {"sparse": d.chance(0.3)}


@case("numpy: tril_indices triu_indices diag_indices")
def index_lists(d: Draw, name: str) -> Call:
    if name == "diag_indices":
        return (d.integer(0, 6), d.integer(1, 3)), {}
    return (d.integer(0, 6),), {"k": d.integer(-2, 2), "m": d.integer(0, 6)}


@case("numpy: meshgrid")
def meshgrid(d: Draw, name: str) -> Call:
    arrays = [_some(d, 1, 1)[0] for _ in range(d.integer(1, 3))]
    return tuple(arrays), {"indexing": d.one_of(["xy", "ij"]), "sparse": d.chance(0.3)}


def _sum_of_indices(*positions: Any) -> Any:
    return sum(p * 2.0 for p in positions)


@case("numpy: fromfunction")
def fromfunction(d: Draw, name: str) -> Call:
    return (_sum_of_indices, d.shape(1, 3)), {}


@case("numpy: vander", ulps=8)
def vander(d: Draw, name: str) -> Call:
    x, _ = _some(d, 1, 1, kinds="if", domain="small")
    return (x,), {"N": d.integer(0, 4), "increasing": d.chance(0.5)}


@case("numpy: unravel_index")
def unravel_index(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3, least=1)
    return (places(d, math.prod(shape), d.shape(0, 2), negative=False), shape), {}


@case("numpy: array asarray")
def array(d: Draw, name: str) -> Call:
    return (_some(d)[0],), {}


@case("lax: iota broadcasted_iota")
def iota(d: Draw, name: str) -> Call:
    dtype = np.dtype(d.one_of(["int32", "float32", "uint8"]))
    if name == "iota":
        return (dtype, d.integer(0, 12)), {}
    shape = d.shape(1, 3)
    return (dtype, shape, d.integer(0, len(shape) - 1)), {}
