"""`shard_map`: one program for each device, written once.

In: a function of local arrays, and specs. Out: a function of global arrays. The body runs once, on
grids (`grid`), under the interpreter `body`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, final, overload

import numpy as np
import optree

from meshard.algebra.arguments import flag_of, instance_of, names_of, refusal
from meshard.algebra.boundary import bounded
from meshard.algebra.mesh import AbstractMesh, Mesh, ambient_mesh, entered_mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.world import current
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DtypeError,
    IndivisibleError,
    ReplicationError,
    ShardingError,
    SpecError,
    TreeError,
    did_you_mean,
)
from meshard.ops.engine.later import AbstractArray, is_array, number_type
from meshard.runtime.array.array import Array
from meshard.runtime.doors import innermost, interpreting
from meshard.runtime.moving.place import GLOBAL, as_array
from meshard.runtime.trees import trees
from meshard.runtime.world import here
from meshard.settings import config
from meshard.transforms import install as _install  # noqa: F401  (it adds the collectives)
from meshard.transforms.body.body import Body
from meshard.transforms.body.boundary import (
    cells_in,
    cells_out,
    known_way_in,
    to_array,
    to_grid,
    way_in,
)
from meshard.transforms.body.grid import Cells, Grid
from meshard.transforms.body.scope import GridKind, Scope, scope_of
from meshard.transforms.program.calls import ShardMapCall
from meshard.transforms.tracing.abstract import is_abstract, weak_type
from meshard.transforms.tracing.recorder import Recorder
from meshard.transforms.tracing.tracing import recording, unplaced_type
from meshard.transforms.uneven import Uneven

P = ParamSpec("P")
R = TypeVar("R")


@final
class _Infer:
    """Says that specs follow the arguments."""

    def __repr__(self) -> str:
        return "Infer"


_INFER = _Infer()


@final
class _Passed:
    """Says that the body gets an argument as it is."""

    def __repr__(self) -> str:
        return "None"


_PASSED = _Passed()


@final
class _Leaf:
    """Stands for an array where only the tree's structure is shown."""

    def __repr__(self) -> str:
        return "array"


_LEAF = _Leaf()
_MOST_READY = 256  # types of arguments for which a mapped function knows what to do


@overload
def shard_map(
    f: Callable[P, R],
    /,
    mesh: Mesh | None = None,
    in_specs: Any = _INFER,
    out_specs: Any = _INFER,
    *,
    check_vma: bool = True,
    axis_names: Collection[str] = frozenset(),
    check_rep: bool | None = None,
    auto: Collection[str] = frozenset(),
    uneven: bool = False,
) -> Callable[P, R]: ...
@overload
def shard_map(
    f: None = None,
    /,
    mesh: Mesh | None = None,
    in_specs: Any = _INFER,
    out_specs: Any = _INFER,
    *,
    check_vma: bool = True,
    axis_names: Collection[str] = frozenset(),
    check_rep: bool | None = None,
    auto: Collection[str] = frozenset(),
    uneven: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    mesh: Mesh | None = None,
    in_specs: Any = _INFER,
    out_specs: Any = _INFER,
    *,
    check_vma: bool = True,
    axis_names: Collection[str] = frozenset(),
    check_rep: bool | None = None,
    auto: Collection[str] = frozenset(),
    uneven: bool = False,
) -> Callable[..., Any]:
    """Map a function over the shards of its arguments.

    Args:
        f: the body. It is called once, with values of the local shape that stand for all devices'
            shards, and may use the collectives of ``meshard.lax`` over the mesh's axis names.
            Without it a decorator is returned.
        mesh: the mesh; by default the one that is set (``with mesh:`` or ``set_mesh``).
        in_specs: a spec for each argument: a tree of `P` that is a prefix of the tuple of
            arguments. Axes that a spec does not name leave the argument whole on each device
            along them. Where an entry is None, the body gets the value itself: an array, a
            string, or whatever else it is. By default each array's own.
        out_specs: a spec for each result, in the same way: how the devices' results are joined.
            Along axes that a spec does not name the result must be the same on all devices.
        check_vma: whether to refuse a result that may differ along an axis that its spec does
            not name; else the first device's is taken.
        axis_names: the axes that the body runs along; by default all. The others stay
            automatic: along them each operation is one on global arrays.
        check_rep: the older name of ``check_vma``.
        auto: the older way to say ``axis_names``: the axes that stay automatic.
        uneven: whether to take arguments whose dims are not divisible by the axes that split them;
            they are laid out as ``NamedSharding(mesh, spec, uneven="balanced")``. Arrays that are
            already split unevenly over these axes are taken as they are in any case. The body then
            runs once for each local shape, and each device sees its own; collectives are joint,
            and need operands of one shape.

    Returns:
        A function of global arrays, trees of them, or values that become arrays. Arguments are
        laid out as their specs say; they need not be placed before.

    Raises:
        ArgumentError: if an argument is of another kind.
        ShardingError: if there is no mesh. The function that is returned raises

            * `SpecError` if a spec is longer than the rank, or names an unknown axis or one twice;
            * `IndivisibleError` if an argument's dim is not divisible by the axes that split it;
            * `ReplicationError` if a result varies over an axis that its spec does not name;
            * `TreeError` if specs and values have different tree structures.

    The body may print: it runs in Python, once. Source: the semantics are those of
    ``jax.shard_map``.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> def share(tile):
    ...     print("local shape:", tile.shape)
    ...     return tile / lax.psum(tile.sum(), "i")
    >>> f = meshard.shard_map(share, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    >>> f(np.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
    local shape: (1,)
    [0.1, 0.2, 0.3, 0.4]
    """
    check = flag_of(check_vma, "shard_map", "check_vma")
    if check_rep is not None:
        check = flag_of(check_rep, "shard_map", "check_rep")
    axis_names = _axes(axis_names, "axis_names")
    auto = _axes(auto, "auto")
    if auto and axis_names:
        raise ArgumentError(
            "shard_map: give axis_names or auto, not both; each names the axes that the other "
            "leaves."
        )
    if mesh is not None:
        advice = "Write shard_map(f, mesh=mesh, in_specs=..., out_specs=...)."
        instance_of(mesh, Mesh, "shard_map", "mesh", advice=advice)
    if isinstance(out_specs, _Infer):
        raise ArgumentError("shard_map: out_specs is missing; it says how results are joined.")
    options = _Options(
        mesh=mesh,
        in_specs=tuple(in_specs) if type(in_specs) is list else in_specs,
        out_specs=out_specs,
        check=check,
        names=axis_names,
        auto=auto,
        uneven=flag_of(uneven, "shard_map", "uneven"),
    )
    return functools.partial(_Mapped, options) if f is None else _Mapped(options, f)


def _axes(given: Any, name: str) -> frozenset[str]:
    """Return a set of axis names."""
    if isinstance(given, str):
        raise ArgumentError(
            f"shard_map: {name} is a set of axis names, not the string {given!r}; write "
            f"{{{given!r}}}."
        )
    return frozenset(names_of(given, "shard_map", name))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What `shard_map` was told, except for the body.

    Attributes:
        mesh: the mesh; None for the one that is set.
        in_specs: the tree of specs of the arguments.
        out_specs: that of the results.
        check: whether to refuse results that may differ along axes that their specs do not name.
        names: the axes that the body runs along; none for all but ``auto``.
        auto: the axes that stay automatic, where ``names`` are none.
        uneven: whether to take arguments that do not divide.
    """

    mesh: Mesh | None
    in_specs: Any
    out_specs: Any
    check: bool
    names: frozenset[str]
    auto: frozenset[str]
    uneven: bool = False


@final
@dataclass(slots=True)
class _Call:
    """One call of a mapped function, while its body runs.

    Attributes:
        body: the interpreter of its body.
        args: the arguments, as they were passed.
        given: their leaves that have a spec, as arrays or values of the body around it.
        specs: the spec of each.
        values: what all leaves are in the body: grids, and what is passed on as it is.
    """

    body: Body
    args: tuple[Any, ...]
    given: list[Any]
    specs: list[PartitionSpec]
    values: list[Any]

    @property
    def scope(self) -> Scope:
        """The axes that the body runs along."""
        return self.body.scope


@final
@dataclass(frozen=True, slots=True)
class _Ready:
    """What a mapped function does with arrays of some types, where no other code is around it.

    Attributes:
        scope: the axes that its body runs along.
        ways_in: for each argument what makes its cells, and their kind.
        ways_out: by the kind of its only result what makes an array of the cells.
    """

    scope: Scope
    ways_in: Sequence[tuple[Callable[[Array], Cells], GridKind]]
    ways_out: dict[GridKind, Callable[[Cells], Array]]

    def values(self, body: Body, args: Sequence[Any]) -> list[Grid]:
        """Return the arguments as they are in the body."""
        found = []
        for (way, kind), x in zip(self.ways_in, args, strict=True):
            found.append(Grid(body, kind, way(x)))
        return found


@bounded
@final
class _Mapped:
    """What `shard_map` returns."""

    def __init__(self, options: _Options, f: Callable[..., Any]) -> None:
        if not callable(f):
            raise ArgumentError(refusal("shard_map", "f", "a function", f))
        functools.update_wrapper(self, f, updated=())
        self._f = f
        self._mesh = options.mesh
        self._follows = options.mesh is None or isinstance(options.mesh, AbstractMesh)
        self._in_specs = trees.map(_passed_if_none, options.in_specs, is_leaf=_is_spec_or_none)
        self._out_specs = options.out_specs
        self._check = options.check
        self._names = options.names
        self._auto = options.auto
        self._uneven = options.uneven
        self._inputs: dict[Any, list[Any]] = {}
        self._outputs: dict[Any, list[Any]] = {}
        self._passed: set[tuple[GridKind, PartitionSpec, bool]] = set()
        self._known: tuple[Any, Mesh, Scope] | None = None
        self._ready: dict[tuple[Any, ...], _Ready] = {}

    @property
    def _name(self) -> str:
        return getattr(self._f, "__name__", None) or repr(self._f)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise ArgumentError(
                f"shard_map of {self._name!r}: arguments must be passed by position, as in_specs "
                f"are; got the keyword argument {next(iter(kwargs))!r}."
            )
        outer = innermost()
        ready = self._ready_for(args) if outer is None else None
        if ready is not None:
            body = Body(ready.scope)
            call = _Call(body, args, [], [], ready.values(body, args))
            return self._run(call, ready, call.values)
        around = outer if isinstance(outer, Body) else None
        scope = self._scope(around, args)
        recorder = recording()
        body = Body(scope, around, is_abstract() or recorder is not None)
        if recorder is not None:
            body.recorder = Recorder(self._name, recorder)
        leaves, structure = trees.flatten(args)
        uneven = self._unevenly(scope, around, leaves, self._specs_of(args, structure), structure)
        if uneven is not None:
            return self._run_unevenly(uneven, body)
        call = self._arguments(body, args, leaves, structure)
        if outer is None:
            ready = self._kept(call)
        return self._run(call, ready, optree.tree_unflatten(structure, call.values))

    def _ready_for(self, args: tuple[Any, ...]) -> _Ready | None:
        """Return what is to do for arrays of these types, if it is known."""
        key: list[Any] = [config.epoch, ambient_mesh() if self._follows else None]
        for x in args:
            if type(x) is not Array:
                return None
            key.append(x._type)
        ready = self._ready.get(tuple(key))
        return ready if ready is not None and ready.scope.world is current() else None

    def _kept(self, call: _Call) -> _Ready | None:
        """Keep what is to do for arguments that are all arrays, one by one."""
        scope, arrays = call.scope, [x for x in call.args if type(x) is Array]
        if scope.auto or not len(arrays) == len(call.args) == len(call.given):
            return None
        ways_in = [
            (cells_in(scope, x._type, spec), value.kind)
            for x, spec, value in zip(arrays, call.specs, call.values, strict=True)
        ]
        if len(self._ready) >= _MOST_READY:
            self._ready.clear()
        mesh = ambient_mesh() if self._follows else None
        key = (config.epoch, mesh, *[x._type for x in arrays])
        found = self._ready[key] = _Ready(scope, ways_in, {})
        return found

    def _run(self, call: _Call, ready: _Ready | None, values: Any) -> Any:
        """Run the body on values, and return its results outside of it."""
        body = call.body
        try:
            with interpreting(body), entered_mesh(body.scope.mesh):
                result = self._f(*values)
                if ready is not None and type(result) is Grid and result.body is body:
                    leave = ready.ways_out.get(result.kind)
                    if leave is not None:
                        return leave(result._blocks or result._live())
                found, shape = trees.flatten(result)
                grids = self._lifted(body, found, result)
        finally:
            body.close()
        wanted = self._outputs.get(shape)
        if wanted is None:
            wanted = self._outputs[shape] = self._matched("out_specs", self._out_specs, result)
        joined = self._results(call, grids, wanted, result)
        if ready is not None and type(result) is Grid:
            ready.ways_out[result.kind] = cells_out(call.scope, result.kind, wanted[0])
        recorder = recording()
        if recorder is not None:
            joined = self._recorded(recorder, call, grids, wanted, joined)
        return optree.tree_unflatten(shape, joined)

    def _arguments(
        self, body: Body, args: tuple[Any, ...], leaves: Sequence[Any], structure: Any
    ) -> _Call:
        """Check the arguments, and make grids of them."""
        specs = self._specs_of(args, structure)
        call, scope, around = _Call(body, args, [], [], []), body.scope, body.outer
        for number, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
            if spec is _PASSED:
                call.values.append(leaf)
                continue
            x, weak = self._argument_value(call, leaf, number), weak_type(leaf)
            own = _own_spec(x, scope) if spec is _INFER else spec
            if around is not None:
                self._check_input(x, own, call, number)
                grid = to_grid(body, x.cells, own, x.kind.varies, x.kind.type)
            else:
                enter = known_way_in(scope, x._type, own)
                if enter is None:
                    self._check_input(x, own, call, number)
                    enter = way_in(scope, x._type, own)
                grid = enter(body, None if body.typed else x)
            grid = grid.standing_for(weak)
            call.given.append(x if number_type(leaf) is None else leaf)
            call.specs.append(own)
            call.values.append(grid)
            if body.recorder is not None:
                body.recorder.input(grid)
        return call

    def _specs_of(self, args: tuple[Any, ...], structure: Any) -> list[Any]:
        """Return the spec of each leaf of the arguments."""
        specs = self._inputs.get(structure)
        if specs is None:
            specs = self._inputs[structure] = self._matched_inputs(args)
        return specs

    def _unevenly(
        self,
        scope: Scope,
        around: Body | None,
        leaves: Sequence[Any],
        specs: Sequence[Any],
        structure: Any,
    ) -> Uneven | None:
        """Return how to run the body on arguments that do not divide; None if all do."""
        own = [
            None if spec is _PASSED else (_own_spec(as_array(x), scope) if spec is _INFER else spec)
            for x, spec in zip(leaves, specs, strict=True)
        ]
        pairs = list(zip(leaves, own, strict=True))
        odd = [spec is not None and not _divides(scope, x, spec) for x, spec in pairs]
        if not any(odd):
            return None
        shardings = [
            None if spec is None else self._uneven_sharding(scope, x, spec, is_odd)
            for x, spec, is_odd in zip(leaves, own, odd, strict=True)
        ]
        if around is not None or any(
            s is None and is_odd for s, is_odd in zip(shardings, odd, strict=True)
        ):
            return None  # it is refused
        told = f"shard_map of {self._name!r}"
        if scope.auto:
            raise ShardingError(
                f"{told}: uneven arguments are taken only where the body runs along all axes of "
                f"the mesh, but {', '.join(map(repr, scope.auto))} stays automatic. Leave out "
                "axis_names=, or pad the arguments."
            )
        return Uneven(
            told=told,
            f=self._f,
            structure=structure,
            leaves=leaves,
            specs=own,
            shardings=shardings,
            out_specs=functools.partial(self._matched, "out_specs", self._out_specs),
            check=functools.partial(self._check_output, scope),
            checked=self._check,
        )

    def _uneven_sharding(
        self, scope: Scope, x: Any, spec: PartitionSpec, odd: bool
    ) -> NamedSharding | None:
        """Return how an argument is laid out; None if it does not divide and is not to be taken."""
        if not odd:
            return NamedSharding(scope.mesh, spec)
        sharding = x._type.sharding if type(x) is Array else None
        if (
            isinstance(sharding, NamedSharding)
            and sharding.uneven is not None
            and sharding.mesh == scope.mesh
            and sharding.spec.axes(x.ndim) == spec.axes(x.ndim)
        ):
            return sharding
        return NamedSharding(scope.mesh, spec, uneven="balanced") if self._uneven else None

    def _run_unevenly(self, uneven: Uneven, body: Body) -> Any:
        """Run the body on arguments that do not divide, and return its results."""
        outer = innermost()
        if outer is None or is_abstract():
            structure, found = uneven.run(body, uneven.leaves)
            return trees.unflatten(structure, found)
        at = [n for n, x in enumerate(uneven.leaves) if is_array(x)]
        structures = []

        def run(*arrays: Any) -> list[Any]:
            leaves = list(uneven.leaves)
            for n, x in zip(at, arrays, strict=True):
                leaves[n] = x
            structure, found = uneven.run(Body(body.scope, None, is_abstract()), leaves)
            structures.append(structure)
            return found

        found = outer.at_run_time("shard_map", run, [uneven.leaves[n] for n in at], {})
        return trees.unflatten(structures[-1], found)

    def _argument_value(self, call: _Call, leaf: Any, number: int) -> Any:
        """Return a leaf of the arguments as an array, or as a value of the body around this one."""
        if call.body.outer is not None:
            return call.body.outer.lift(leaf)
        if type(leaf) is Grid:
            raise ConcretizationError(
                f"shard_map of {self._name!r}: {self._argument(call.args, number)}, "
                f"{leaf.kind.str_short()}, belongs to the body of a shard_map that has ended. "
                "Return it from its body instead of keeping it."
            )
        return as_array(leaf)

    def _results(
        self, call: _Call, grids: Sequence[Grid], specs: Sequence[PartitionSpec], result: Any
    ) -> list[Any]:
        """Check the results, and join the devices' values."""
        body, outermost = call.body, call.body.outer is None
        joined = []
        for number, (grid, spec) in enumerate(zip(grids, specs, strict=True)):
            if (grid.kind, spec, outermost) not in self._passed:
                self._check_output(call.scope, grid, spec, result, number)
                self._passed.add((grid.kind, spec, outermost))
            whole = to_array(body, grid, spec)
            joined.append(AbstractArray(whole._type) if body.typed and outermost else whole)
        return joined

    def _recorded(
        self,
        recorder: Recorder,
        call: _Call,
        grids: Sequence[Grid],
        out_specs: Sequence[PartitionSpec],
        joined: list[Any],
    ) -> list[Any]:
        """Write the call down in the code around it, and return its results there."""
        body, scope = call.body, call.scope
        program, captured = body.recorder.finish(grids)
        ins, outs = tuple(call.specs), tuple(out_specs)
        manual = tuple([a for a in scope.manual if a in body.axis_sizes])
        around = body.outer.scope.manual if body.outer is not None else ()
        options = _Options(
            mesh=scope.mesh if body.outer is None else None,
            in_specs=ins,
            out_specs=list(outs),
            check=False,
            names=frozenset(a for a in manual if a not in around),
            auto=frozenset(),
        )
        make = functools.partial(_mapped, options)
        written = ShardMapCall(make, program, scope.mesh, manual, ins, outs)
        operands = [*captured, *call.given]
        if body.outer is not None:
            return recorder.made(written, operands, joined)
        types = [(unplaced_type(scope.world, x), None) for x in joined]
        return list(recorder.result(written.name, (), operands, types, written))

    def _lifted(self, body: Body, found: Sequence[Any], result: Any) -> list[Grid]:
        number = 0
        try:
            grids = []
            for number, x in enumerate(found):  # noqa: B007  (told in the error)
                grids.append(body.lift(x))
        except DtypeError as error:
            raise DtypeError(
                f"shard_map of {self._name!r}: {_result(result, number)} is {found[number]!r}, "
                f"which is not an array: {error}"
            ) from error
        return grids

    # the axes

    def _scope(self, around: Body | None, args: tuple[Any, ...]) -> Scope:
        mesh, known = self._mesh, self._known
        if isinstance(mesh, AbstractMesh):
            mesh = mesh.concrete(f"shard_map of {self._name!r}", *_meshes(around, args))
        if mesh is None:
            mesh = around.scope.mesh if around is not None else ambient_mesh()
        if mesh is None:
            raise ShardingError(
                f"shard_map of {self._name!r}: no mesh is given and none is set. Pass mesh=, or "
                "call it within `with mesh:` or after meshard.set_mesh(mesh)."
            )
        world = here()
        if around is None and known is not None and known[0] is world and known[1] is mesh:
            return known[2]
        if around is not None and mesh != around.scope.mesh:
            raise ShardingError(
                f"shard_map of {self._name!r}: the mesh {mesh!r} of a nested shard_map must be "
                f"the one around it, {around.scope.mesh!r}. Leave mesh= out."
            )
        taken = frozenset(() if around is None else around.scope.manual)
        manual = self._manual(mesh, taken)
        found = scope_of(world, mesh, manual | taken)
        self._check_specs(found, manual - taken)
        if around is None:
            self._known = world, mesh, found
        return found

    def _manual(self, mesh: Mesh, taken: frozenset[str]) -> frozenset[str]:
        """Return the axes of a mesh that the body runs along, of which some are taken around it."""
        for name in (*self._names, *self._auto):
            if name not in mesh.shape:
                raise SpecError(
                    f"shard_map of {self._name!r}: axis_names holds {name!r}, which is not an axis "
                    f"of {mesh!r}.{did_you_mean(name, mesh.axis_names)}"
                )
        manual = self._names or frozenset(mesh.axis_names) - self._auto
        again = [a for a in mesh.axis_names if a in manual & taken]
        if again and (self._names or not (manual - taken)):
            raise ShardingError(
                f"shard_map of {self._name!r}: the axis {again[0]!r} is already manual, by the "
                "shard_map around this one. A nested shard_map runs along the axes that are "
                "left automatic: give the outer one axis_names= without it."
            )
        return manual

    def _check_specs(self, scope: Scope, manual: frozenset[str]) -> None:
        """Refuse specs with axes that this does not run along."""
        for name, tree in (("in_specs", self._in_specs), ("out_specs", self._out_specs)):
            for spec in trees.leaves(tree, _is_spec):
                if not isinstance(spec, (_Infer, _Passed)):
                    self._check_spec(name, spec, scope, manual)

    def _check_spec(self, name: str, spec: Any, scope: Scope, manual: frozenset[str]) -> None:
        what = f"shard_map of {self._name!r}"
        if not isinstance(spec, PartitionSpec):
            raise ArgumentError(
                f"{what}: {name} holds {spec!r} of type {type(spec).__name__}; each leaf is a "
                "PartitionSpec, as in P('i', None)."
            )
        if any(e is PartitionSpec.UNCONSTRAINED for e in spec):
            raise SpecError(
                f"{what}: {name} holds {spec!r}; in a shard_map each dim is split as its spec "
                "says, and none may be left free."
            )
        named = [a for dim in spec.axes(len(spec)) for a in dim]
        for axis in named:
            if axis not in manual:
                axes = [a for a in scope.manual if a in manual]
                bound = ", ".join(map(repr, axes))
                raise SpecError(
                    f"{what}: {name} refers to {axis!r} in {spec!r}, which is not one of the axes "
                    f"that it runs along: {bound or 'none'} of {scope.mesh!r}."
                    f"{did_you_mean(axis, axes)}"
                )
            if named.count(axis) > 1:
                raise SpecError(
                    f"{what}: the axis {axis!r} is repeated in {spec!r} of {name}; it can split "
                    "only one dim."
                )

    # trees

    def _matched_inputs(self, args: tuple[Any, ...]) -> list[Any]:
        if isinstance(self._in_specs, tuple) and len(self._in_specs) != len(args):
            raise TreeError(
                f"shard_map of {self._name!r}: in_specs has {len(self._in_specs)} entries, but "
                f"{len(args)} arguments are passed. Give one spec for each argument, or a single "
                "one for all."
            )
        return self._matched("in_specs", self._in_specs, args)

    def _matched(self, name: str, specs: Any, values: Any) -> list[Any]:
        """Return the spec of each leaf of a tree of values."""
        shape = trees.structure(values)
        bare = trees.unflatten(shape, [_LEAF] * shape.num_leaves)  # errors print what they find
        try:
            found = trees.broadcast_leaves(specs, bare, _is_spec)
        except TreeError:
            raise
        except ValueError as error:
            why = str(error).split("; ")[0].rstrip(".")
            told = "the tuple of arguments" if name == "in_specs" else "the result of the body"
            raise TreeError(
                f"shard_map of {self._name!r}: {name} must be a prefix of {told}: pytree structure "
                f"error: {why}. {name} is {specs!r}, and the values are {bare!r}."
            ) from None
        return found

    # each array

    def _check_input(self, x: Any, spec: PartitionSpec, call: _Call, number: int) -> None:
        scope, args = call.scope, call.args
        if len(spec) > x.ndim:
            hint = " For a value without dims the spec is P()." if not x.ndim else ""
            raise SpecError(
                f"shard_map of {self._name!r}: in_specs is {spec!r} of length {len(spec)} for "
                f"{self._argument(args, number)} of shape {x.shape}, which has rank {x.ndim} (and "
                f"{x.ndim} < {len(spec)}). A spec has at most one entry per dim.{hint}"
            )
        for dim, axes in enumerate(spec.axes(x.ndim)):
            count = math.prod(scope.sizes[a] for a in axes)
            if x.shape[dim] % count:
                axis = repr(axes[0]) if len(axes) == 1 else repr(axes)
                more = -x.shape[dim] % count
                local = f" {GLOBAL}" if scope.world.process_count > 1 else ""
                raise IndivisibleError(
                    f"shard_map of {self._name!r}: {self._argument(args, number)} of shape "
                    f"{x.shape} has in_specs {spec!r}, which splits dim {dim} of size "
                    f"{x.shape[dim]} over the mesh axis {axis} of size {count}, but {count} does "
                    f"not evenly divide {x.shape[dim]}: the body has one local shape. Pad the dim "
                    f"by {more} with meshard.numpy.pad; or pass uneven=True, so that each device "
                    "sees its own shape; or write it with global operations, which take uneven "
                    f"shards.{local}"
                )

    def _argument(self, args: tuple[Any, ...], number: int) -> str:
        """Return how to call a leaf of the arguments."""
        first, *rest = trees.leaves_with_plain_path(args)[number][0]
        told = f"args[{first}]" + "".join(f"[{k!r}]" for k in rest)
        try:
            names = list(inspect.signature(self._f).parameters)
            return f"{told} (parameter {names[first]!r})"
        except (ValueError, TypeError, IndexError):
            return told

    def _check_output(
        self, scope: Scope, grid: Grid, spec: PartitionSpec, result: Any, number: int
    ) -> None:
        if len(spec) > grid.ndim:
            raise SpecError(
                f"shard_map of {self._name!r}: out_specs is {spec!r} of length {len(spec)} for "
                f"{_result(result, number)}, {grid.kind.str_short()}, which has rank {grid.ndim} "
                f"(and {grid.ndim} < {len(spec)}). Make the spec shorter, or give the result more "
                "dims, for example x[None]; a single value that is the same everywhere has P()."
            )
        if not self._check:
            return
        named = {a for dim in spec.axes(grid.ndim) for a in dim}
        outer = grid.body.outer  # along its axes each device keeps its own value
        kept = outer.scope.sizes if outer is not None else {}
        varies = grid.kind.type_order(scope.manual)
        rest = [a for a in varies if a not in named and a not in kept]
        if rest:
            told = ", ".join(map(repr, rest))
            raise ReplicationError(
                f"shard_map of {self._name!r}: out_specs is {spec!r} for {_result(result, number)}"
                f", which claims that it is the same on all devices along the mesh axis {told}, "
                f"but it varies over {told}: it is {grid.kind.str_short()}. Name {told} in the "
                f"spec, to join the devices' values along a dim; or make them one value in the "
                f"body, with lax.psum, pmean, pmax or all_gather_invariant over {told}; or, if you "
                "know that they are equal, pass check_vma=False."
            )


def _mapped(options: _Options, ins: Any, outs: Any, f: Callable[..., Any]) -> _Mapped:
    """Return a function that is mapped as another is, with specs of its own."""
    return _Mapped(replace(options, in_specs=ins, out_specs=outs), f)


def _result(result: Any, number: int) -> str:
    path = "".join(f"[{k!r}]" for k in trees.leaves_with_plain_path(result)[number][0])
    return f"the result{path}"


def _is_spec(x: Any) -> bool:
    return isinstance(x, (PartitionSpec, _Infer, _Passed))


def _is_spec_or_none(x: Any) -> bool:
    return x is None or _is_spec(x)


def _passed_if_none(spec: Any) -> Any:
    return _PASSED if spec is None else spec


def _meshes(around: Body | None, args: Any) -> list[Mesh]:
    """Return the mesh of the body around, and those of the arguments."""
    shardings = [getattr(x, "sharding", None) for x in trees.leaves(args)]
    inside = [around.scope.mesh] if around is not None else []
    return inside + [s.mesh for s in shardings if isinstance(s, NamedSharding)]


def _divides(scope: Scope, x: Any, spec: PartitionSpec) -> bool:
    """Return whether the axes that split each dim divide it; too long a spec is refused later."""
    try:
        shape = np.shape(x)
    except (ValueError, TypeError):  # lists of unequal lengths, say
        return True
    if not isinstance(shape, tuple) or len(spec) > len(shape):
        return True
    return not any(
        n % math.prod([scope.sizes[a] for a in dim])
        for n, dim in zip(shape, spec.axes(len(shape)), strict=True)
    )


def _own_spec(x: Any, scope: Scope) -> PartitionSpec:
    """Return the spec that an array has, as far as it is over the axes at hand."""
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh != scope.mesh:
        return PartitionSpec()
    return PartitionSpec(
        *(tuple(a for a in dim if a in scope.sizes) for dim in sharding.spec.axes(x.ndim))
    )
