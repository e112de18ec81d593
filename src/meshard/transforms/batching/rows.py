"""How each row takes one more dim, in front of all others.

In: operands, of which some have the dim, and parameters. Out: what to bind instead: operands whose
dims are aligned, and parameters whose dims count one further. A row that is not here, and whose
leading dims do not broadcast, is bound as one of many examples (`ops/engine/each`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshard.algebra.rule import OpRule
from meshard.ops.array.join import stack
from meshard.ops.array.shape import broadcast_to, moveaxis, reshape
from meshard.ops.array.take import take_along_axis
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import shape_of
from meshard.ops.engine.decide import find_row, row_of
from meshard.ops.engine.each import for_each
from meshard.ops.reductions.sort import argsort, sort
from meshard.runtime.doors import bind
from meshard.transforms.body.mapped_axes import count_of

Params = Mapping[str, Any]
Rule = Callable[[str, Sequence[Any], Sequence[bool], Params, int], Any]
"""From the name, operands, which of them have the dim, parameters and its size to the results."""
_BATCH = "batch"


def spread(x: Any, size: int) -> Any:
    """Return a value repeated along a new first dim."""
    return broadcast_to(x, (size, *shape_of(x)))


def all_spread(operands: Sequence[Any], flags: Sequence[bool], size: int) -> list[Any]:
    """Return operands of which each has the dim."""
    return [x if has else spread(x, size) for x, has in zip(operands, flags, strict=True)]


def bound(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> list[Any]:
    """Bind a row whose operands may have one more dim in front; all results have it."""
    rule = ROWS.get(name) or (_aligned if _is_stacked(name) else _each)
    found = rule(name, operands, flags, params, size)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _is_stacked(name: str) -> bool:
    """Whether the rule of a row begins each of its terms with dims that broadcast."""
    text: Any = getattr(find_row(name), "rule", None)
    if not isinstance(text, str):
        return False
    given, made = text.split("->")
    return all(term.strip().startswith("...") for term in (*given.split(","), *made.split(",")))


def _aligned(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    """Bind a row whose leading dims broadcast: the new one comes before the longest of them."""
    rule = OpRule.parse(row_of(name).rule)  # type: ignore[union-attr, arg-type]
    cores = [len(term) - 1 for term in rule.inputs]
    leading = [
        len(shape_of(x)) - core - has for x, core, has in zip(operands, cores, flags, strict=True)
    ]
    most = max(leading)
    given = []
    for x, has, own in zip(operands, flags, leading, strict=True):
        if has and own < most:
            shape = x.shape
            x = reshape(x, (shape[0], *[1] * (most - own), *shape[1:]))
        given.append(x)
    return bind(name, *given, **params)


def _each(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    """Bind a row for each of many examples, as one operation."""
    whole, own = for_each(name, flags, params)
    return bind(whole, *operands, **own)


def _shifted(*names: str) -> Rule:
    """Return the rule of a row of one operand whose dims are in some parameters."""

    def rule(
        name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
    ) -> Any:
        changed = {k: _behind(v) if k in names else v for k, v in params.items()}
        if "shape" in changed:
            changed["shape"] = (size, *changed["shape"])
        return bind(name, *all_spread(operands, flags, size), **changed)

    return rule


def sorted_along(given: Sequence[Any], descending: bool) -> list[Any]:
    """Return arrays sorted along their dim behind the new one as the first of them is."""
    if len(given) == 1:
        return [sort(given[0], 1, descending=descending)]
    order = argsort(given[0], 1, descending=descending)
    return [take_along_axis(x, order, 1) for x in given]


def _sorted(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    return sorted_along(all_spread(operands, flags, size), params["descending"])


def _behind(dims: Any) -> Any:
    """Return dims counted one further: one, several, or pairs of a dim and arguments."""
    if isinstance(dims, int):
        return dims + 1
    return tuple([(d[0] + 1, *d[1:]) if isinstance(d, tuple) else d + 1 for d in dims])


def _positions(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    """Bind a row for the position of an extreme, which over several dims counts all elements."""
    (x,), axis, keepdims = operands, params["axis"], params["keepdims"]
    if len(axis) == 1:
        return bind(name, x, axis=(axis[0] + 1,), keepdims=keepdims, shape=x.shape)
    flat = _flat("flat", operands, flags, params, size)
    found = bind(name, flat, axis=(1,), keepdims=False, shape=flat.shape)
    return reshape(found, (size, *[1] * (x.ndim - 1))) if keepdims else found


def _contract(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    terms, out = params["rule"].split("->")
    names = (f"{_BATCH}{n}" for n in itertools.count())
    new = next(n for n in names if n not in params["rule"])
    given = [
        f"{new} {term.strip()}" if has else term.strip()
        for term, has in zip(terms.split(","), flags, strict=True)
    ]
    rule = f"{', '.join(given)} -> {new} {out.strip()}".strip()
    return bind(name, *operands, **{**params, "rule": rule})


def _convolve(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    x, w, y = params["terms"]
    names = (f"{_BATCH}{n}" for n in itertools.count())
    new = next(n for n in names if n not in f"{x} {w} {y}".split())
    has = (flags[0], flags[1], True) if name == "convolve" else (True, flags[1], flags[0])
    terms = tuple([f"{new} {t}" if h else t for t, h in zip((x, w, y), has, strict=True)])
    return bind(name, *operands, **{**params, "terms": terms})


def _reshape(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    return reshape(operands[0], (size, *params["shape"]))


def _flat(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    return (
        reshape(operands[0], (size, -1))
        if size
        else reshape(operands[0], (0, int(np.prod(operands[0].shape[1:]))))
    )


def _broadcast(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    (x,), shape = operands, params["shape"]
    missing = len(shape) - (x.ndim - 1)
    return broadcast_to(reshape(x, (size, *[1] * missing, *x.shape[1:])), (size, *shape))


def _transpose(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    return bind(name, operands[0], axes=(0, *[a + 1 for a in params["axes"]]))


def _slice(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    slices = ((None, None, 1), *params["slices"])
    dropped = tuple([d + 1 for d in params["dropped"]])
    return bind(name, operands[0], slices=slices, dropped=dropped)


def _overlay(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    slices = ((None, None, 1), *params["slices"])
    return bind(name, *all_spread(operands, flags, size), slices=slices)


def _on_diagonal(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    (x,), places = operands, np.arange(operands[0].shape[1])
    at = places[:, None] + params["k"] == places
    return o.where(at, reshape(x, (*x.shape, 1)), 0)


def _einsum_diagonal(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    free = next(c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in params["inputs"])
    return bind(
        name,
        operands[0],
        inputs=(free, *params["inputs"]),
        output=(free, *params["output"]),
    )


def _dynamic_slice(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    x, *starts = operands
    if any(flags[1:]):
        return _each(name, operands, flags, params, size)
    wrap = (True, *params["wrap"])
    return bind(name, x, 0, *starts, sizes=(size, *params["sizes"]), wrap=wrap)


def _dynamic_update(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    if any(flags[2:]):
        return _each(name, operands, flags, params, size)
    x, update = all_spread(operands[:2], flags[:2], size)
    return bind(name, x, update, 0, *operands[2:], wrap=(True, *params["wrap"]))


def _gather(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    x, *places = operands
    dims, at = params["dims"], params["at"]
    if not any(flags[1:]):
        return bind(name, x, *places, dims=tuple([d + 1 for d in dims]), at=at + 1)
    if flags[0]:
        return _each(name, operands, flags, params, size)
    places = all_spread(places, flags[1:], size)
    return moveaxis(bind(name, x, *places, dims=dims, at=at), at, 0)


def _scatter(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    x, value, *places = operands
    if any(flags[2:]):
        return _each(name, operands, flags, params, size)
    x, value = all_spread([x, value], flags[:2], size)
    rank = len(shape_of(places[0]))
    moved = {**params, "arrays": tuple([d + 1 for d in params["arrays"]])}
    value = moveaxis(value, 0, rank)  # behind the positions, as the first of the other dims
    return bind(name, x, value, *places, **moved)


def _searchsorted(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    if flags[0]:
        return _each(name, operands, flags, params, size)
    return bind(name, *operands, **params)


def _as_it_is(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    return bind(name, *operands, **params)


def _first_only(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    if any(flags[1:]):
        return _each(name, operands, flags, params, size)
    return bind(name, *operands, **params)


def _sparse(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    """Bind a product of a sparse matrix: many vectors are a dense matrix.

    Many matrices, which have different values in the same places, are multiplied one by one.
    """
    *matrix, x = operands
    if any(flags[:-1]) or name == "sparse_sampled":
        rows = [
            [y[i] if f else y for y, f in zip(operands, flags, strict=True)] for i in range(size)
        ]
        return stack([bind(name, *row, **params) for row in rows])
    wide = moveaxis(x, 0, -1)
    rest = wide.shape[1:]
    found = bind(name, *matrix, reshape(wide, (wide.shape[0], -1)), **params)
    return moveaxis(reshape(found, (found.shape[0], *rest)), -1, 0)


def _ragged(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Any:
    """Bind an exchange of rows: with one list for all they are wider, else there are more of them.

    In lists of many examples, those of each stand together in what concerns one device.
    """
    rows, into = all_spread(operands[:2], flags[:2], size)
    table = operands[2]
    if not size:
        return into
    if not flags[2]:
        wide = bind(name, moveaxis(rows, 0, 1), moveaxis(into, 0, 1), table, **params)
        return moveaxis(wide, 1, 0)
    groups = params.get("groups")
    count = len(groups[0]) if groups else count_of(params["axes"])
    lists = moveaxis(reshape(table, (size, 4, count, -1)), 0, 2)
    found = bind(
        name,
        *[reshape(x, (size * x.shape[1], *x.shape[2:])) for x in (rows, into)],
        reshape(lists, (4, -1)),
        **{**params, "examples": size * params.get("examples", 1)},
    )
    return reshape(found, into.shape)


_REDUCTIONS = """
    sum prod max min any all nanmax nanmin reduce_and reduce_or reduce_xor
"""
_SORTS = "sort_runs sort_runs_with sort_whole sort_whole_with"
ROWS: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS.split(), _shifted("axis")),
    **dict.fromkeys(["concatenate", "select", "select_at"], _shifted("axis")),
    **dict.fromkeys(
        ["flip", "roll", "pad_zeros", "tile", "take_positions", "take_whole"], _shifted("dims")
    ),
    **dict.fromkeys(
        ["sort", "argsort", "partition", "argpartition", "fft", "scan"], _shifted("dim")
    ),
    **dict.fromkeys(["take_along_axis"], _shifted("dim")),
    **dict.fromkeys(["diagonal"], _shifted("dims")),
    **dict.fromkeys(
        ["qr", "qr_r", "svd", "svdvals", "top_k", "bitcast", "random_unwrap"], _as_it_is
    ),
    **dict.fromkeys(["interp"], _first_only),
    **dict.fromkeys(["argmax", "argmin"], _positions),
    "contract": _contract,
    **dict.fromkeys(["convolve", "convolve_back"], _convolve),
    **dict.fromkeys(
        ["reduce_windows", "sum_windows", "window_first", "runs", "tile_runs", "runs_like"],
        _shifted("dims"),
    ),
    "reshape": _reshape,
    "flat": _flat,
    "broadcast_to": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "overlay": _overlay,
    "on_diagonal": _on_diagonal,
    "einsum_diagonal": _einsum_diagonal,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    "scatter": _scatter,
    "searchsorted": _searchsorted,
    **dict.fromkeys(["sparse_times", "sparse_times_transposed", "sparse_sampled"], _sparse),
    **dict.fromkeys(_SORTS.split(), _sorted),
    # collectives of bodies
    **dict.fromkeys(["psum", "pmax", "pmin", "pcast", "ppermute", "pbroadcast"], _as_it_is),
    **dict.fromkeys(["all_gather", "all_gather_invariant", "psum_scatter"], _shifted("dim")),
    "all_to_all": _shifted("split", "concat"),
    "ragged_all_to_all": _ragged,
}
"""The rules of rows whose leading dims do not simply broadcast."""
