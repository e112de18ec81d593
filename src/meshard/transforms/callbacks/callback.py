"""A Python function that a program calls with values, when it runs.

In: the function, what it is called with, and the types of its results. Out: these, in the code at
hand: at once where code runs, at run time where it is traced, once per device in a shard_map body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.array.create import zeros
from meshard.ops.array.join import stack
from meshard.ops.derivatives.kinds import FLAT, Refused
from meshard.ops.derivatives.table import LATE
from meshard.ops.engine.eager import WEAK
from meshard.ops.engine.later import OfExamples, is_array
from meshard.runtime.array.array import Array
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array, made_of, placed
from meshard.runtime.trees import trees
from meshard.runtime.world import here
from meshard.transforms.body.body import Body
from meshard.transforms.body.boundary import cell_type
from meshard.transforms.body.grid import Grid, scattered
from meshard.transforms.program.calls import WholeCall
from meshard.transforms.tracing.abstract import is_abstract

DEBUG, PURE, IO = "debug_callback", "pure_callback", "io_callback"
_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")
_REFUSED = Refused(
    "a Python function has none that meshard could see. Give the function around it one with "
    "meshard.custom_jvp or meshard.custom_vjp."
)
LATE.update({DEBUG: FLAT, PURE: _REFUSED, IO: _REFUSED})


@final
@dataclass(frozen=True, eq=False)
class Callback(OfExamples):
    """A Python function as a program calls it.

    Attributes:
        name: which kind of callback it is.
        callback: the function.
        structure: the tree of its positional and keyword arguments.
        leaves: their leaves; those that are operands are None.
        at: which leaves are operands.
        results: the types of its results; None where what it returns is ignored.
        sharding: how its results are laid out.
        partitioned: whether it is called for each shard of its arguments.
        method: how it is called for many examples.
    """

    name: str
    callback: Callable[..., Any]
    structure: Any
    leaves: Sequence[Any]
    at: Sequence[int]
    results: Any = None
    sharding: Sharding | None = None
    partitioned: bool = False
    method: str | None = None
    types: Sequence[Any] = field(default=())

    @property
    def effect(self) -> bool:
        """Whether it is called even if nobody needs its results."""
        return self.name != PURE

    def __call__(self, *operands: Any) -> list[Any]:
        """Call the function, where there are values, and return the leaves of its results."""
        body = innermost()
        if isinstance(body, Body):
            return self._in_body(body, operands)
        if is_abstract():
            return [zeros(t.shape, t.dtype, device=self.sharding) for t in self.types]
        if self.partitioned:
            self._each_shard([as_array(x) for x in operands])
            return []
        return self._once([as_array(x) for x in operands])

    def of(self, **changes: Any) -> Callback:
        """Return the callback with other attributes."""
        return replace(self, **changes)

    def called(self, operands: Sequence[Any]) -> list[Any]:
        """Call the function here, or write it down where the code is traced."""
        interpreter = innermost()
        if interpreter is None:
            return self(*operands)
        if not isinstance(interpreter, Body) or interpreter.recorder is None:
            return list(interpreter.at_run_time(self.name, self, operands, {}))
        given = [interpreter.lift(x) for x in operands]
        call = WholeCall(self.name, self, {}, True, True)
        found: list[Any] = interpreter.recorder.made(call, given, self(*given))
        return found

    # where arrays are whole

    def _once(self, operands: Sequence[Array]) -> list[Any]:
        """Call the function with the values of arrays."""
        world, values = here(), [_value(x) for x in operands]
        alone = world.process_count > 1 and self.effect
        if alone and world.process_index > 0:
            found = [np.zeros(t.shape, t.dtype) for t in self.types]
        else:
            found = self._results(values)
        if alone and found:
            found = _from_first(found)
        return [self._laid_out(as_array(x, fresh=True)) for x in found]

    def _laid_out(self, x: Array) -> Array:
        return x if self.sharding is None else placed(x, self.sharding, what=self.name)

    def _each_shard(self, operands: Sequence[Array]) -> None:
        """Call the function with the shards of arrays on each device that has them."""
        shards: dict[Any, list[Any]] = {}
        for x in operands:
            for shard in x.addressable_shards:
                shards.setdefault(shard.device, []).append(np.asarray(shard.data))
        for values in shards.values() if operands else [[]]:
            if len(values) == len(operands):
                self._results(values)

    def _results(self, values: Sequence[Any]) -> list[Any]:
        """Call the function with NumPy arrays, and return its results as such.

        Raises:
            TreeError: if it returns another tree than was said.
            ShapeError: if it returns arrays of other shapes or dtypes.
        """
        leaves = list(self.leaves)
        for number, value in zip(self.at, values, strict=True):
            leaves[number] = value
        args, kwargs = trees.unflatten(self.structure, leaves)
        returned = self.callback(*args, **kwargs)
        if self.results is None:
            return []
        found, structure = trees.flatten(returned)
        if structure != self.results:
            raise TreeError(
                f"{self.name}: the function returned a tree of the structure {structure}, but "
                f"result_shape_dtypes says {self.results}."
            )
        given = [np.asarray(x) for x in found]
        for x, t in zip(given, self.types, strict=True):
            if x.shape != t.shape or (x.dtype != t.dtype and not _fits(x, t.dtype)):
                raise ShapeError(
                    f"{self.name}: the function returned an array of shape {x.shape} and dtype "
                    f"{x.dtype}, but result_shape_dtypes says {t.shape} and {t.dtype}."
                )
        return [x.astype(t.dtype, copy=True) for x, t in zip(given, self.types, strict=True)]

    # in bodies

    def _in_body(self, body: Body, operands: Sequence[Any]) -> list[Any]:
        """Call the function once for each device that runs the code at hand."""
        scope = body.scope
        extent = scope.extent(scope.manual)
        count, grids = scope.count(extent), [body.lift(x) for x in operands]
        kinds = [
            scope.kind(cell_type(scope, t.shape, t.dtype), extent, frozenset(scope.manual))
            for t in self.types
        ]
        if body.typed:
            return [Grid(body, kind, (None,) * count) for kind in kinds]
        if kinds and scope.auto:
            raise ArgumentError(
                f"{self.name}: where axes of the mesh stay automatic in a shard_map body, a "
                "callback cannot return arrays. Name all axes, or call it outside."
            )
        numbers = body.active(extent)
        onto = [scope.onto(x.kind.extent, extent) for x in grids]
        rows = [
            self._results([_cell(x.cells[m[i]]) for x, m in zip(grids, onto, strict=True)])
            for i in (range(count) if numbers is None else numbers)
        ]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
        return [
            Grid(body, kind, scattered(list(cells), numbers, count))
            for kind, cells in zip(kinds, columns, strict=True)
        ]

    # for many examples

    def of_examples(self, flags: Sequence[bool], size: int) -> OfExamples:
        """Return what `vmap` calls instead."""
        if self.types and self.method not in _METHODS:
            told = "vmap_method is not given" if self.method is None else f"{self.method!r}"
            raise ArgumentError(
                f"{self.name}: vmap does not know how to call the function for many examples, "
                f"since {told}. Give vmap_method= one of {', '.join(map(repr, _METHODS))}."
            )
        return _Many(self, tuple(flags), size)


@final
@dataclass(frozen=True, eq=False)
class _Many(OfExamples):
    """A callback for many examples.

    Attributes:
        one: the callback, or that of fewer dims of examples.
        flags: which operands have the dim of examples, in front.
        size: how many examples there are.
    """

    one: Any
    flags: tuple[bool, ...]
    size: int

    @property
    def effect(self) -> bool:
        """Whether it is called even if nobody needs its results."""
        return bool(self.one.effect)

    @property
    def types(self) -> Sequence[Any]:
        """The types of its results."""
        return [t.update(shape=(self.size, *t.shape)) for t in self.one.types]

    @property
    def _base(self) -> Callback:
        found = self.one
        while isinstance(found, _Many):
            found = found.one
        assert isinstance(found, Callback)
        return found

    def __call__(self, *operands: Any) -> list[Any]:
        """Call the function, and return the leaves of its results."""
        if self._base.method in ("expand_dims", "broadcast_all") and self.types:
            return self._at_once(operands)
        rows = [
            self.one(*[x[i] if has else x for x, has in zip(operands, self.flags, strict=True)])
            for i in range(self.size)
        ]
        return [stack(column) for column in zip(*rows, strict=True)]

    def _at_once(self, operands: Sequence[Any]) -> list[Any]:
        whole = replace(self._base, types=self.types) if isinstance(self.one, Callback) else None
        if whole is None:
            raise ArgumentError(
                f"{self._base.name}: vmap_method={self._base.method!r} is for one vmap; within "
                "another one give vmap_method='sequential'."
            )
        every = self._base.method == "broadcast_all"
        given = []
        for x, has in zip(operands, self.flags, strict=True):
            if has:
                given.append(x)
            else:
                row = as_array(x)[None]
                given.append(row.repeat(self.size, axis=0) if every else row)
        return whole(*given)

    def of_examples(self, flags: Sequence[bool], size: int) -> OfExamples:
        """Return what `vmap` calls instead."""
        return _Many(self, tuple(flags), size)


def callback_of(
    name: str, callback: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callback, list[Any]]:
    """Return a callback, and its operands: those of its arguments that are arrays."""
    leaves, structure = trees.flatten((args, kwargs))
    kinds = (np.ndarray, np.generic) if name == DEBUG else (np.ndarray, np.generic, *WEAK)
    at = [n for n, x in enumerate(leaves) if is_array(x) or isinstance(x, kinds)]
    rest = [None if n in at else x for n, x in enumerate(leaves)]
    return Callback(name, callback, structure, rest, at), [leaves[n] for n in at]


def _as_is(value: Any, _: int) -> Any:
    return value


def _fits(x: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a value may become one of a dtype, since Python made its own of it."""
    return x.dtype in (np.float64, np.int64, np.complex128) and x.dtype.kind == dtype.kind


def _value(x: Array) -> Any:
    """Return an array's values, on all processes."""
    if here().process_count > 1 and not x.is_fully_addressable and not x.is_fully_replicated:
        mesh = getattr(x.sharding, "mesh", None)
        if mesh is not None:
            x = placed(x, NamedSharding(mesh, PartitionSpec()), what="callback")
    return np.asarray(x.addressable_data(0) if not x.is_fully_addressable else x)


def _cell(cell: Any) -> Any:
    found = np.asarray(cell).view()
    found.flags.writeable = False
    return found


def _from_first(values: Sequence[Any]) -> list[Any]:
    """Return the values that the first process has, on all processes."""
    world = here()
    firsts = {d.process_index: d for d in reversed(world.devices)}
    devices = [firsts[p] for p in sorted(firsts)]
    split = NamedSharding(Mesh(devices, "process"), PartitionSpec("process"))
    found = []
    for value in values:
        kind = world.type_of((len(devices), *value.shape), value.dtype, split, True)
        own = np.array(value).reshape(1, *value.shape)
        found.append(_value(made_of(world, kind, partial(_as_is, own), "io_callback"))[0])
    return found
