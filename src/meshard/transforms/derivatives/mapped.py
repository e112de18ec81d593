"""The derivative of a `shard_map`: a body for the way forward, and another for the way back.

In: a call that runs. Out: its results and what the way back needs, as blocks: a value that is kept
leaves the first body with one more dim, split over the axes over which it varies, and enters the
second like that. Nothing is computed or communicated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.spec import PartitionSpec
from meshard.ops.derivatives.kinds import Derivative, Site, Values, is_differentiable, varying
from meshard.runtime.doors import bind, innermost
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid
from meshard.transforms.body.scope import GridKind
from meshard.transforms.derivatives.calls import CallRule, Moving, _full, _spread
from meshard.transforms.derivatives.forward import pushed
from meshard.transforms.derivatives.levels import differentiable
from meshard.transforms.derivatives.reverse import recorded
from meshard.transforms.derivatives.rules import CALLS
from meshard.transforms.program.calls import ShardMapCall
from meshard.transforms.program.halves import halved
from meshard.transforms.program.program import Atom, Call, Program, Var, evaluate
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.tracing import sub_program


@final
class _Split:
    """A call that is differentiated, and then its derivative: two bodies.

    Args:
        call: the call.
        values: its operands.
        moving: which of them move.
        forward: whether tangents are pushed forward later, rather than cotangents pulled back.
        names: what the operands are called; empty strings for those without a name.
    """

    def __init__(
        self,
        call: ShardMapCall,
        values: Values,
        moving: Moving,
        forward: bool,
        names: Sequence[str],
    ) -> None:
        self._call, self._forward, self._names = call, forward, names
        self.moving = moving
        self._places = [i for i, moves in enumerate(moving) if moves]
        self._ins = (*[PartitionSpec()] * len(call.body.captured), *call.in_specs)
        self._moved = [self._ins[i] for i in self._places]
        self._late: list[PartitionSpec] = []
        self._ends: list[bool] = []
        joint, captured = self._joint(values)
        program, used = simplified(joint)
        constants = [captured[i] for i in used]
        results = len(call.out_specs)
        self._halves = halved(program, len(values), results, returned=False)
        self._early = [constants[i] for i in self._halves.early]
        self._more = [constants[i] for i in self._halves.late]
        self._blocks = [_axes(v, call) for v in self._halves.first.outputs[results:]]

    def _joint(self, values: Values) -> tuple[Program, list[Any]]:
        """Return the body and its derivative as one program, and the values that it captures."""
        found: list[tuple[Program, list[Any]]] = []

        def both(*cells: Any) -> list[Any]:
            inside = innermost()
            assert isinstance(inside, Body)
            assert inside.recorder is not None
            results, ends = self._both(list(cells), inside)
            self._ends = [x is not None for x in ends]
            every = [*results, *[x for x in ends if x is not None]]
            found.append(inside.recorder.finish([inside.lift(x) for x in every]))
            return results

        def flat(*given: Any) -> list[Any]:
            self._call.remapped(self._ins, list(self._call.out_specs), both)(*given)
            return []

        sub_program(self._call.name, flat, values)
        return found[-1]

    def _both(self, cells: list[Any], inside: Body) -> tuple[list[Any], list[Any]]:
        """Return the results of the body, and tangents of these or cotangents of what moves."""
        body, name = self._call.body, self._call.name
        count = len(body.captured)

        def f(*moved: Any) -> list[Any]:
            every = list(cells)
            for i, x in zip(self._places, moved, strict=True):
                every[i] = x
            return evaluate(body, every[:count], every[count:])

        told = [self._names[i] for i in self._places] if self._names else []
        own = [cells[i] for i in self._places]
        run = recorded(name, f, own, told, forward=self._forward)
        if self._forward:
            return run.results, run.push([_late(inside, cells[i], None) for i in self._places])
        given: list[Any] = []
        for y, spec in zip(run.results, self._call.out_specs, strict=True):
            if not differentiable(y):
                given.append(None)
                continue
            self._late.append(spec)
            given.append(_once(inside, _late(inside, inside.lift(y), spec), y, spec))
        return run.results, run.pull(given)

    def begin(self, values: Values) -> tuple[list[Any], list[Any]]:
        """Run the call; return its results and what is kept."""
        outs, count = self._call.out_specs, len(self._call.out_specs)

        def first(*cells: Any) -> list[Any]:
            found = evaluate(self._halves.first, self._early, cells)
            return [*found[:count], *[_block(x) for x in found[count:]]]

        found = self._call.remapped(self._ins, [*outs, *self._blocks], first)(*values)
        every = (*values, *found[count:])
        return found[:count], [every[i] for i in self._halves.kept]

    def end(self, kept: Sequence[Any], late: Sequence[Any]) -> list[Any]:
        """Return what the derivative makes of what is kept and of tangents or cotangents."""
        early = len(self._ins)
        ins = [(*self._ins, *self._blocks)[i] for i in self._halves.kept]
        blocks = [i >= early for i in self._halves.kept]

        def second(*cells: Any) -> list[Any]:
            own = [
                bind("reshape", x, shape=x.shape[1:]) if is_block else x
                for x, is_block in zip(cells, blocks, strict=False)
            ]
            return evaluate(self._halves.second, self._more, [*own, *cells[len(own) :]])

        outs = self._call.out_specs if self._forward else self._moved
        outs = [s for s, has in zip(outs, self._ends, strict=True) if has]
        more = self._moved if self._forward else self._late
        found = iter(self._call.remapped((*ins, *more), outs, second)(*kept, *late) if outs else ())
        return [next(found) if has else None for has in self._ends]


def _block(x: Any) -> Any:
    """Return a value with one more dim, along which the devices' values can be joined."""
    return bind("reshape", x, shape=(1, *x.shape))


def _axes(x: Any, call: ShardMapCall) -> PartitionSpec:
    """Return how the values that a variable of a body has on the devices are joined."""
    outer = innermost()
    around = outer.scope.manual if isinstance(outer, Body) else ()
    varies = x.aval.vma
    return PartitionSpec(tuple([a for a in call.manual if a in varies and a not in around]))


def _around(body: Body) -> frozenset[str]:
    """Return the axes that the bodies around a body run along."""
    return frozenset(body.outer.scope.manual if body.outer is not None else ())


def _late(body: Body, like: Any, spec: PartitionSpec | None) -> Any:
    """Return a value that comes late, an input of a body that is written down.

    Args:
        body: the body.
        like: a value of its type.
        spec: how it is split; None for as ``like`` is.
    """
    kind: GridKind = like.kind
    if spec is not None:
        named = {a for dim in spec.axes(like.ndim) for a in dim}
        varies = frozenset(named.union(kind.varies & _around(body)))
        extent = body.scope.extent(body.scope.manual if body.scope.auto else varies)
        kind = body.scope.kind(kind.type, extent, varies)
    made = abstract_grid(body, kind)
    assert body.recorder is not None
    body.recorder.input(made)
    return made


def _once(body: Body, g: Any, y: Any, spec: PartitionSpec) -> Any:
    """Return a cotangent on the first device only along axes of which the spec takes only that.

    Along the axes of the bodies around this one each device keeps a value of its own.
    """
    named = {a for dim in spec.axes(g.ndim) for a in dim}
    rest = tuple(sorted(varying(y) - named - _around(body)))
    if not rest:
        return g
    return bind("where", bind("equal", bind("axis_index", axes=rest), 0), g, 0)


@final
@dataclass(frozen=True, slots=True)
class _Mapped(Derivative):
    """The derivative of a `shard_map`: one of more values, by the specs that there were."""

    call: ShardMapCall

    def _kept(self, site: Site, moving: Moving, forward: bool) -> tuple[_Split, list[Any]]:
        """Return what was kept; where nothing was, in a body that is only followed, do it now."""
        found: tuple[_Split, list[Any]] | None = site.params["kept"]
        if found is not None:
            return found
        split = _Split(self.call, site.operands, moving, forward, site.names)
        return split, split.begin(site.operands)[1]

    def push(self, site: Site, tangents: Values) -> list[Any]:
        moving = tuple([t is not None for t in tangents])
        split, kept = self._kept(site, moving, True)
        moves = [x for x, m in zip(site.operands, split.moving, strict=True) if m]
        given = [t for t, m in zip(tangents, split.moving, strict=True) if m]
        return split.end(kept, _full(given, moves))

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        split, kept = self._kept(site, tuple(wanted), False)
        found = iter(split.end(kept, _full(cotangents, site.results)))
        return [next(found) if want else None for want in wanted]


@final
class _Maps(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, ShardMapCall)
        return _Mapped(call)

    def run(
        self, call: Call, values: Values, moving: Moving, forward: bool, names: Sequence[str]
    ) -> tuple[list[Any], Any]:
        assert isinstance(call, ShardMapCall)
        split = _Split(call, values, moving, forward, names)
        results, kept = split.begin(values)
        return results, (split, kept)

    def forth(
        self, call: Call, values: Values, tangents: Values
    ) -> tuple[list[Any], list[Any] | None]:
        assert isinstance(call, ShardMapCall)
        body, count, first = call.body, len(values), len(call.body.captured)
        ins = [*[PartitionSpec()] * first, *call.in_specs]
        moving = [t is not None for t in tangents]
        own = [s for s, moves in zip(ins, moving, strict=True) if moves]

        def both(*cells: Any) -> list[Any]:
            rest = iter(cells[count:])
            late = [next(rest) if moves else None for moves in moving]
            results, found = pushed(
                call.name, lambda *x: evaluate(body, x[:first], x[first:]), cells[:count], late
            )
            return [*results, *_full(found, results)]

        outs = call.out_specs
        moved = [s for s, v in zip(outs, body.outputs, strict=True) if _can_move(v)]
        mapped = call.remapped((*ins, *own), [*outs, *moved], both)
        found = mapped(*values, *[t for t in tangents if t is not None])
        results = found[: len(outs)]
        return results, _spread(found[len(outs) :], results)


def _can_move(atom: Atom) -> bool:
    return isinstance(atom, Var) and is_differentiable(atom.aval)


CALLS[ShardMapCall] = _Maps()
