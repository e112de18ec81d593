"""Where derivatives are found: those of rows, of what is put off, and of calls.

In: what ran. Out: its derivative.

Derivatives of collectives: each is transposed into another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshard.errors import DerivativeError
from meshard.ops.array.create import zeros_like
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import (
    FLAT,
    Derivative,
    Linear,
    Pulls,
    Refused,
    Site,
    Values,
    dtype_of,
    varying,
)
from meshard.ops.derivatives.table import DERIVATIVES, LATE
from meshard.ops.engine.each import SUFFIX
from meshard.runtime.callers import user_line
from meshard.transforms.body.mapped_axes import MappedAxis, axis_index_over
from meshard.transforms.program.calls import WholeCall
from meshard.transforms.program.program import Call


def _psum(site: Site, number: int, g: Values) -> Any:
    axes = site.params["axes"]
    if "groups" in site.params:
        return o.psum(g[0], **site.params)
    # Where the operand is the same everywhere, the sum is a multiple of it.
    same = tuple([a for a in axes if a not in varying(site.x)])
    found = o.psum(g[0], axes=same) if same else g[0]
    # Where it is not, each device has this cotangent of its own: what it is passed on to, such as
    # a value that is the same everywhere, gets one from each.
    own = tuple(sorted(varying(site.x) - varying(found)))
    return o.pcast(found, axes=own) if own else found


def _mapped(site: Site) -> tuple[Any, ...]:
    """Return the axes that vmap has bound: along these each example has a result of its own."""
    return tuple([a for a in site.params["axes"] if type(a) is MappedAxis])


def _share(site: Site) -> Any:
    """Return the share of each device in an extreme: those that are equal share it."""
    here = o.astype(o.equal(site.x, site.y), dtype=dtype_of(site.x))
    return o.divide(here, o.psum(here, **site.params))


def _chosen(site: Site, t: Values) -> Sequence[Any]:
    return [o.psum(o.multiply(t[0], _share(site)), **site.params)]


def _to_chosen(site: Site, g: Values, wanted: Sequence[bool]) -> Sequence[Any]:
    (found,) = g
    if "groups" in site.params:  # each device of a group has a result of its own
        found = o.psum(found, **site.params)
    elif _mapped(site):
        found = o.psum(found, axes=_mapped(site))
    return [o.multiply(found, _share(site))]


def _gathered(site: Site, number: int, g: Values) -> Any:
    return o.psum_scatter(g[0], **site.params)


def _own_part(site: Site, number: int, g: Values) -> Any:
    """Return the part of a gathered cotangent that is this device's."""
    axes, dim = site.params["axes"], site.params["dim"]
    at = o.axis_index(axes=axes)
    shape = list(g[0].shape)
    shape[dim] = site.x.shape[dim] if site.params["tiled"] else 1
    starts = [0] * len(shape)
    starts[dim] = o.multiply(at, shape[dim])
    found = o.dynamic_slice(g[0], *starts, sizes=tuple(shape), wrap=(True,) * len(shape))
    return found if site.params["tiled"] else found.reshape(site.x.shape)


def _scattered(site: Site, number: int, g: Values) -> Any:
    return o.all_gather(g[0], **site.params)


def _permuted(site: Site, number: int, g: Values) -> Any:
    sources = site.params["sources"]
    back: list[int | None] = [None] * len(sources)
    for to, source in enumerate(sources):
        if source is not None:
            back[source] = to
    return o.ppermute(g[0], axes=site.params["axes"], sources=tuple(back))


def _from_source(site: Site, number: int, g: Values) -> Any:
    at = axis_index_over(site.params["axes"])
    mapped = _mapped(site)
    found = o.psum(g[0], axes=mapped) if mapped else g[0]
    return o.where(o.equal(at, site.params["source"]), found, 0)


def _exchanged(site: Site, number: int, g: Values) -> Any:
    split, concat = site.params["concat"], site.params["split"]
    return o.all_to_all(g[0], **{**site.params, "split": split, "concat": concat})


def _ragged(site: Site, number: int, g: Values) -> Any:
    """Return the rows that were overwritten as zeros, or the rows sent back."""
    rows, _, table = site.operands
    if number:
        return o.ragged_all_to_all(zeros_like(rows, dtype=g[0].dtype), g[0], table, **site.params)
    own = {k: v for k, v in site.params.items() if k != "examples"}
    more = {"split": 0, "concat": 0, "tiled": True, **own}
    first, sizes, there, received = (table[i] for i in range(4))
    there, first = (o.all_to_all(x, **more) for x in (there, first))
    back = o.concatenate(
        *[o.reshape(x, shape=(1, *x.shape)) for x in (there, received, first, sizes)], axis=0
    )
    return o.ragged_all_to_all(g[0], zeros_like(rows, dtype=g[0].dtype), back, **site.params)


COLLECTIVES: dict[str, Derivative] = {
    "axis_index": FLAT,
    "psum": Linear(_psum),
    "pmax": Pulls(_chosen, _to_chosen),
    "pmin": Pulls(_chosen, _to_chosen),
    "pcast": Linear(lambda site, i, g: g[0]),
    "all_gather": Linear(_gathered),
    "all_gather_invariant": Linear(_own_part),
    "psum_scatter": Linear(_scattered),
    "ppermute": Linear(_permuted),
    "pbroadcast": Linear(_from_source),
    "all_to_all": Linear(_exchanged),
    "ragged_all_to_all": Linear(_ragged, of=(0, 1)),
}
"""The derivative of each collective."""


_UNKNOWN = Refused(
    "nobody has said what it is. Give the function around it one with meshard.custom_jvp, or use "
    "lax.stop_gradient where none is wanted."
)
CALLS: dict[type[Any], Any] = {}
"""The derivative of each kind of call; written while this room is imported."""
EACH: list[Callable[[Site], Derivative]] = []
"""What finds the derivative of a row for many examples; written while this room is imported."""


def derivative_of(site: Site, call: Call | None) -> Derivative:
    """Return the derivative of what ran.

    Raises:
        DerivativeError: if it has none.
    """
    if call is None and site.name.endswith(SUFFIX):
        found = EACH[0](site)
    elif call is None:
        found = COLLECTIVES.get(site.name) or DERIVATIVES.get(site.name, _UNKNOWN)
    elif isinstance(call, WholeCall) and site.name in LATE:
        found = LATE[site.name]
    else:
        found = CALLS[type(call)].of(call) if type(call) in CALLS else _UNKNOWN
    if isinstance(found, Refused):
        raise DerivativeError(f"{site.name} at {user_line()} has no derivative: {found.why}")
    return found


def run_call(
    call: Call,
    values: Sequence[Any],
    moving: Sequence[bool],
    forward: bool,
    names: Sequence[str] = (),
) -> tuple[list[Any], Any]:
    """Run a call; return its results and what is kept for its derivative.

    Args:
        call: the call.
        values: its operands.
        moving: which of them depend on the inputs.
        forward: whether tangents are pushed later, rather than cotangents pulled.
        names: what the operands are called; empty strings for those without a name.
    """
    rule = CALLS.get(type(call))
    if rule is None:
        return call.run(values), None
    found: tuple[list[Any], Any] = rule.run(call, values, tuple(moving), forward, names)
    return found


def push_call(
    call: Call, values: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any] | None]:
    """Run a call; return its results and their tangents, None if they are found afterwards."""
    rule = CALLS.get(type(call))
    if rule is None:
        return call.run(values), None
    found: tuple[list[Any], list[Any] | None] = rule.forth(call, values, tangents)
    return found


__all__ = ["CALLS", "EACH", "FLAT", "derivative_of", "push_call", "run_call"]
