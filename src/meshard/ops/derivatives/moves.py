"""Derivatives of rows that move elements: what is moved back, and added up where it meets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.errors import DerivativeError
from meshard.ops.array.create import zeros, zeros_like
from meshard.ops.array.shape import broadcast_to, moveaxis, reshape, transpose
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import Derivative, Linear, Pulls, Site, Values, dtype_of, in_body
from meshard.ops.engine.later import Advised, when_laid_out
from meshard.ops.engine.operand_mesh import named_sharding


def _reshape(site: Site, number: int, g: Values) -> Any:
    return reshape(g[0], site.x.shape)


def _broadcast(site: Site, number: int, g: Values) -> Any:
    return g[0]  # it is summed where it is made to fit


def _transpose(site: Site, number: int, g: Values) -> Any:
    axes = site.params["axes"]
    return transpose(g[0], tuple([axes.index(d) for d in range(len(axes))]))


def _concatenate(site: Site, number: int, g: Values) -> Any:
    dim = site.params["axis"] % g[0].ndim
    start = sum([x.shape[dim] for x in site.operands[:number]])
    stop = start + site.operands[number].shape[dim]
    return g[0][(*[slice(None)] * dim, slice(start, stop))]


def _flip(site: Site, number: int, g: Values) -> Any:
    return o.flip(g[0], **site.params)


def _roll(site: Site, number: int, g: Values) -> Any:
    return o.roll(g[0], dims=tuple([(d, (-shift,)) for d, (shift,) in site.params["dims"]]))


def _pad(site: Site, number: int, g: Values) -> Any:
    back = [(d, (-low, -high)) for d, (low, high) in site.params["dims"]]
    return o.pad_zeros(g[0], dims=tuple(back))


def _tile(site: Site, number: int, g: Values) -> Any:
    found = g[0]
    for dim, (reps,) in sorted(site.params["dims"], reverse=True):
        shape = (*found.shape[:dim], reps, site.x.shape[dim], *found.shape[dim + 1 :])
        found = o.sum(reshape(found, shape), axis=(dim,), keepdims=False, dtype=None)
    return found


def _take_positions(site: Site, number: int, g: Values) -> Any:
    found = g[0]
    for dim, (positions,) in site.params["dims"]:
        shape = [site.x.shape[d] if d == dim else n for d, n in enumerate(found.shape)]
        places = np.asarray(positions, np.int64)
        empty = zeros_like(site.x, shape=tuple(shape), dtype=found.dtype)
        found = o.scatter(empty, moveaxis(found, dim, 0), places, arrays=(dim,), how="add")
    return found


def _slice(site: Site, number: int, g: Values) -> Any:
    spans = [slice(*s).indices(n) for s, n in zip(site.params["slices"], site.x.shape, strict=True)]
    dense = not site.params["dropped"] and all(step == 1 for _, _, step in spans)
    if not dense or not in_body(site.x):  # a global array is laid out as the operand is
        empty = zeros_like(site.x, dtype=g[0].dtype)
        return o.overlay(empty, g[0], slices=site.params["slices"])
    dims = []
    for d, ((first, _, _), n) in enumerate(zip(spans, g[0].shape, strict=True)):
        if n < site.x.shape[d]:
            dims.append((d, (first, site.x.shape[d] - n - first)))
    return o.pad_zeros(g[0], dims=tuple(dims))


def _overlay(site: Site, number: int, g: Values) -> Any:
    slices = site.params["slices"]
    if number:
        return o.slice(g[0], slices=slices, dropped=())
    return o.overlay(g[0], zeros_like(site.operands[1], dtype=g[0].dtype), slices=slices)


def _triangle(site: Site, number: int, g: Values) -> Any:
    return o.triangle(g[0], **site.params)


def _on_diagonal(site: Site, number: int, g: Values) -> Any:
    k, count = site.params["k"], site.x.shape[0]
    first, size = max(-k, 0), max(0, count - abs(k))
    found = o.diagonal(g[0], dims=(0, 1), k=k, size=size)
    return o.pad_zeros(found, dims=((0, (first, count - first - size)),))


def _diagonal(site: Site, number: int, g: Values) -> Any:
    (rows, columns), k = site.params["dims"], site.params["k"]
    steps = np.arange(site.params["size"])
    places = (steps + max(-k, 0), steps + max(k, 0))
    empty = zeros_like(site.x, dtype=g[0].dtype)
    return o.scatter(empty, moveaxis(g[0], -1, 0), *places, arrays=(rows, columns), how="add")


def _einsum_diagonal(site: Site, number: int, g: Values) -> Any:
    """Return a cotangent spread over letters that were summed, on the diagonals of the others."""
    inputs, output, shape = site.params["inputs"], site.params["output"], site.x.shape
    first = {f: inputs.index(f) for f in inputs}
    order = sorted(range(len(output)), key=lambda i: first[output[i]])
    found = transpose(g[0], tuple(order))
    held = {first[f] for f in output}
    found = reshape(found, tuple([n if d in held else 1 for d, n in enumerate(shape)]))
    found = broadcast_to(
        found,
        tuple(
            [n if first[f] == d else 1 for d, (f, n) in enumerate(zip(inputs, shape, strict=True))]
        ),
    )
    for d, f in enumerate(inputs):
        if first[f] != d:
            at = [
                np.arange(n).reshape([n if k == e else 1 for k in range(len(shape))])
                for e, n in ((first[f], shape[d]), (d, shape[d]))
            ]
            found = o.where(at[0] == at[1], found, 0)
    return found


def _dynamic_slice(site: Site, number: int, g: Values) -> Any:
    empty = zeros_like(site.x, dtype=g[0].dtype)
    return o.dynamic_update_slice(empty, g[0], *site.operands[1:], wrap=site.params["wrap"])


def _dynamic_update(site: Site, number: int, g: Values) -> Any:
    _, update, *starts = site.operands
    wrap = site.params["wrap"]
    if number:
        return o.dynamic_slice(g[0], *starts, sizes=tuple(update.shape), wrap=wrap)
    return o.dynamic_update_slice(g[0], zeros_like(update, dtype=g[0].dtype), *starts, wrap=wrap)


def _places_first(g: Any, rank: int, at: int) -> Any:
    """Return a gathered cotangent with the dims of the positions first."""
    return moveaxis(g, tuple(range(at, at + rank)), tuple(range(rank))) if at else g


def _gather(site: Site, number: int, g: Values) -> Any:
    dims, at = site.params["dims"], site.params["at"]
    places = site.operands[1:]
    value = _places_first(g[0], np.ndim(places[0]), at)
    empty = zeros_like(site.x, dtype=g[0].dtype)
    if in_body(site.x) or in_body(value):
        return o.scatter(empty, value, *places, arrays=dims, how="add")
    return when_laid_out("scatter", _AddedUp(dims), empty, value, *places)


@final
class _AddedUp(Advised):
    """Values added to rows that each device has whole, such as a table's that tokens look up.

    Where values are split and the table is smaller than they are, each device adds its own values
    to a table of its own, and the tables are added up: then a table crosses instead of the values.
    """

    def __init__(self, dims: tuple[int, ...]) -> None:
        self.dims = dims

    def __call__(self, *operands: Any) -> Any:
        """Return the table."""
        empty, value, *places = operands
        split = _split_of_values(empty, value, places, self.dims)
        if split is None:
            return o.scatter(empty, value, *places, arrays=self.dims, how="add")
        own, count = empty.sharding, split.shards
        line = Split(split.axes, tuple(range(count + 1)))
        axes = own.spec.axes(empty.ndim)
        kept = [Split(a, c) for a, c in zip(axes, empty.aval.layout.cuts, strict=True)]
        apart = named_sharding(own.mesh, (line, *kept), own.memory_kind)
        tables = zeros((count, *empty.shape), empty.dtype, device=apart)
        shape = np.broadcast_shapes(*map(np.shape, places))
        numbers = np.repeat(np.arange(count), np.diff(split.cuts))
        numbers = np.broadcast_to(numbers.reshape(-1, *[1] * (len(shape) - 1)), shape)
        arrays = (0, *[d + 1 for d in self.dims])
        found = o.scatter(tables, value, numbers, *places, arrays=arrays, how="add")
        return o.sum(found, axis=(0,), keepdims=False, dtype=None)


def _split_of_values(
    empty: Any, value: Any, places: Sequence[Any], dims: Sequence[int]
) -> Split | None:
    """Return how values are split if adding them up on each device first moves less, else None."""
    table, given = empty.aval, value.aval
    rank = np.ndim(places[0])
    if not rank or not all(isinstance(t.sharding, NamedSharding) for t in (table, given)):
        return None
    if table.sharding.mesh != given.sharding.mesh:
        return None
    axes = given.sharding.spec.axes(given.ndim)
    cuts = given.layout.cuts
    others = {a for own in table.sharding.spec.axes(table.ndim) for a in own}
    rows_whole = all(len(table.layout.cuts[d]) == 2 for d in dims)
    split = len(cuts[0]) > 2 and all(len(c) == 2 for c in cuts[1:rank])
    if not rows_whole or not split or others & set(axes[0]):
        return None
    if table.nbytes * given.layout.piece_count > given.nbytes * table.layout.piece_count:
        return None
    return Split(axes[0], cuts[0])


def _check_scatter(site: Site, moved: Sequence[bool]) -> str:
    """Return how values are scattered; refuse what has no derivative by those that move."""
    how: str = site.params["how"]
    if how not in ("multiply", "divide", "power") or (how != "power" and not moved[1]):
        return how
    raise DerivativeError(
        f"x.at[...].{how}(v) has no derivative with respect to {'v' if moved[1] else 'x'}, since "
        "positions may repeat. Compute the new values first, as in x.at[i].set(x[i] * v)."
    )


def _shares(site: Site) -> tuple[Any, Any]:
    """Return the shares of the array's elements and of values in extremes; equal ones share."""
    x, value, *places = site.operands
    dims, dtype = site.params["arrays"], dtype_of(site.y)
    own = o.astype(o.equal(x, site.y), dtype=dtype)
    given = o.astype(o.equal(value, o.gather(site.y, *places, dims=dims, at=0)), dtype=dtype)
    count = o.scatter(own, given, *places, arrays=dims, how="add")
    return o.divide(own, count), o.divide(given, o.gather(count, *places, dims=dims, at=0))


def _scatter_forward(site: Site, t: Values) -> list[Any]:
    how = _check_scatter(site, [x is not None for x in t])
    if how in ("min", "max"):
        own, given = _shares(site)
        found = zeros_like(site.y) if t[0] is None else o.multiply(t[0], own)
        if t[1] is None:
            return [found]
        more, places = o.multiply(t[1], given), site.operands[2:]
        return [o.scatter(found, more, *places, arrays=site.params["arrays"], how="add")]
    x, value, *places = site.operands
    change = zeros_like(x) if t[0] is None else t[0]
    if how in ("set", "add", "subtract"):
        value = zeros_like(value) if t[1] is None else t[1]
    return site.again(change, value, *places)


def _scatter_back(site: Site, g: Values, wanted: Sequence[bool]) -> list[Any]:
    how, arrays = _check_scatter(site, wanted), site.params["arrays"]
    x, value, *places = site.operands
    (to_x,) = g
    if how in ("multiply", "divide"):
        return [site.again(g[0], value, *places)[0], None, *[None] * len(places)]
    found = o.gather(g[0], *places, dims=arrays, at=0)
    if how in ("min", "max"):
        own, given = _shares(site)
        return [o.multiply(g[0], own), o.multiply(found, given), *[None] * len(places)]
    if how == "set":
        to_x = site.again(g[0], zeros_like(value, dtype=g[0].dtype), *places)[0]
        last = _written_last(x.shape, arrays, places)
        found = o.where(reshape(last, (*last.shape, *[1] * (found.ndim - last.ndim))), found, 0)
    found = o.negative(found) if how == "subtract" else found
    return [to_x, found, *[None] * len(places)]


def _written_last(shape: Sequence[int], arrays: Sequence[int], places: Values) -> Any:
    """Return for positions whether what is set there stays: of those that repeat, the last does."""
    numbers = np.arange(int(np.prod(places[0].shape))).reshape(places[0].shape)
    empty = zeros([shape[d] for d in arrays], numbers.dtype)
    dims = tuple(range(len(arrays)))
    written = o.scatter(empty, numbers, *places, arrays=dims, how="set")
    return o.equal(o.gather(written, *places, dims=dims, at=0), numbers)


def _take_along(site: Site, number: int, g: Values) -> Any:
    x, places = site.operands
    dim = site.params["dim"]
    shape = g[0].shape
    own: list[Any] = []
    for d, n in enumerate(shape):
        if d == dim:
            own.append(broadcast_to(places, shape))
        else:
            steps = np.arange(n) if x.shape[d] != 1 else np.zeros(n, np.int64)
            own.append(
                np.broadcast_to(
                    steps.reshape([-1 if e == d else 1 for e in range(len(shape))]), shape
                )
            )
    empty = zeros_like(x, dtype=g[0].dtype)
    return o.scatter(empty, g[0], *own, arrays=tuple(range(len(shape))), how="add")


MOVES: dict[str, Derivative] = {
    "flat": Linear(_reshape),
    "reshape": Linear(_reshape),
    "broadcast_to": Linear(_broadcast),
    "transpose": Linear(_transpose),
    "concatenate": Linear(_concatenate),
    "flip": Linear(_flip),
    "roll": Linear(_roll),
    "pad_zeros": Linear(_pad),
    "tile": Linear(_tile),
    "take_positions": Linear(_take_positions),
    "slice": Linear(_slice),
    "overlay": Linear(_overlay),
    "triangle": Linear(_triangle),
    "on_diagonal": Linear(_on_diagonal),
    "diagonal": Linear(_diagonal),
    "einsum_diagonal": Linear(_einsum_diagonal),
    "dynamic_slice": Linear(_dynamic_slice, of=(0,)),
    "dynamic_update_slice": Linear(_dynamic_update, of=(0, 1)),
    "gather": Linear(_gather, of=(0,)),
    "scatter": Pulls(_scatter_forward, _scatter_back),
    "take_along_axis": Linear(_take_along, of=(0,)),
}
"""The derivative of each row that moves elements."""
