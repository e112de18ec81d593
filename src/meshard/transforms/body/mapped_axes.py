"""Axes that `vmap` binds: names for a dim of examples, which collectives take like mesh axes.

In: a name and the number of examples. Out: a `MappedAxis`, which stands for the name in the
parameters of a collective. Such an operation is only written down, with the type of its result: it
becomes one of the new dim when the function is run for all examples (`transforms/batching`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np

from meshard.runtime.doors import bind, innermost, interpreters
from meshard.transforms.body.boundary import cell_type
from meshard.transforms.body.scope import GridKind, Scope

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class MappedAxis:
    """An axis that `vmap` has bound.

    Attributes:
        name: its name.
        size: the number of examples.
    """

    name: Hashable
    size: int

    def __repr__(self) -> str:
        return repr(self.name)


@final
class Examples(int):
    """The number of examples, the axis by which collectives know them, and where they are.

    Attributes:
        axis: the axis; None if there is no name.
        split: the mesh axes that constraints and `shard_map` split the examples over.
    """

    axis: MappedAxis | None
    split: tuple[str, ...]

    def __new__(
        cls, size: int, name: Hashable | None = None, split: tuple[str, ...] = ()
    ) -> Examples:
        """Return a number of examples."""
        made = super().__new__(cls, size)
        made.axis = None if name is None else MappedAxis(name, int(size))
        made.split = split
        return made


_BOUND: ContextVar[Mapping[Hashable, tuple[MappedAxis, int]]] = ContextVar(
    "meshard_mapped_axes", default=MappingProxyType({})
)
"""By name the axis, and how many interpreters were at work when it was bound."""


def mapped_axes() -> Mapping[Hashable, MappedAxis]:
    """Return the axes that are bound here, by name; mesh axes of bodies within hide their names."""
    bound = _BOUND.get()
    if not bound:
        return {}
    stack = interpreters()
    return {
        name: axis
        for name, (axis, depth) in bound.items()
        if not any(name in inner.axis_sizes for inner in stack[depth:])
    }


@contextlib.contextmanager
def axis_bound(axis: MappedAxis | None) -> Iterator[None]:
    """Bind an axis within a ``with`` statement; another one of its name is hidden."""
    if axis is None:
        yield
        return
    token = _BOUND.set({**_BOUND.get(), axis.name: (axis, len(interpreters()))})
    try:
        yield
    finally:
        _BOUND.reset(token)


def are_mapped(params: Mapping[str, Any]) -> bool:
    """Whether some axis of a collective is one that `vmap` has bound."""
    return any(type(a) is MappedAxis for a in params.get("axes", ()))


def result_of(
    name: str,
    shape: Shape,
    dtype: np.dtype[Any],
    params: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> tuple[Shape, np.dtype[Any]]:
    """Return the shape and dtype of a collective's result, of which no cell is known.

    Args:
        name: the collective.
        shape: the operand's shape; none for `axis_index`.
        dtype: its dtype.
        params: the collective's parameters.
        sizes: those of the mesh axes that are bound.
    """
    count = math.prod([a.size if type(a) is MappedAxis else sizes[a] for a in params["axes"]])
    if name == "axis_index":
        return (), np.dtype(np.int32)
    if name == "all_to_all":
        split, concat = params["split"], params["concat"]
        if params["tiled"]:
            now = list(shape)
            now[split] //= count
            now[concat] *= count
            return tuple(now), dtype
        kept = [n for d, n in enumerate(shape) if d != split]
        return (*kept[:concat], count, *kept[concat:]), dtype
    if name not in ("all_gather", "psum_scatter"):
        return shape, dtype
    dim, gathers = params["dim"], name == "all_gather"
    before, rest = shape[:dim], shape[dim:]
    if params["tiled"]:
        size = rest[0] * count if gathers else rest[0] // count
        return (*before, size, *rest[1:]), dtype
    return ((*before, count, *rest) if gathers else (*before, *rest[1:])), dtype


_FORGETS = ("psum", "pmax", "pmin", "pbroadcast")
"""Collectives whose results are the same along their axes."""


def kind_of(scope: Scope, name: str, kinds: Sequence[Any], params: Mapping[str, Any]) -> GridKind:
    """Return the kind of a collective's result in a body."""
    own = [a for a in params["axes"] if type(a) is not MappedAxis]
    grids = [k for k in kinds if isinstance(k, GridKind)]
    given: Any = grids[0] if grids else None
    shape, dtype = result_of(
        name,
        given.shape if given is not None else (),
        given.dtype if given is not None else np.dtype(np.int32),
        params,
        scope.sizes,
    )
    before = given.varies if given is not None else frozenset()
    varies = before - frozenset(own) if name in _FORGETS else before | frozenset(own)
    extent = scope.extent((*(given.extent if given is not None else ()), *own))
    return scope.kind(cell_type(scope, shape, dtype), extent, varies)


def count_of(axes: Sequence[Any]) -> int:
    """Return the number of positions along axes that are bound here."""
    interpreter = innermost()
    sizes = {} if interpreter is None else interpreter.axis_sizes
    return math.prod([a.size if type(a) is MappedAxis else sizes[a] for a in axes])


def axis_index_over(axes: Sequence[Any]) -> Any:
    """Return the position along axes that are bound here, as one."""
    if len(axes) == 1 or not are_mapped({"axes": axes}):
        return bind("axis_index", axes=tuple(axes))
    found: Any = 0
    for axis in axes:
        found = found * count_of((axis,)) + bind("axis_index", axes=(axis,))
    return found
