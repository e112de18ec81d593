"""Explaining: from a lowered program to what it does, moves and needs, before it runs.

In: an `Executable`, the trace that it comes from, and a topology. Out: an `Explanation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from meshard.algebra.sharding import NamedSharding
from meshard.plan.figures import topology as presets
from meshard.plan.figures.simulate import seconds_of
from meshard.plan.figures.topology import Topology
from meshard.plan.move.wires import Wire
from meshard.runtime.moving.place import wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.scope import GridKind
from meshard.transforms.explain.costs import device_bytes, live_bytes, most
from meshard.transforms.explain.explanation import Communication, ExplainedStep, Explanation
from meshard.transforms.explain.reasons import Notice, Users, notices_of
from meshard.transforms.explain.steps_in_order import Item, steps_in_order
from meshard.transforms.lowering.executable import Executable
from meshard.transforms.program.calls import ConstraintCall
from meshard.transforms.program.program import Eqn, Kind, Literal, Var, layout_text
from meshard.transforms.program.value_names import Names
from meshard.transforms.tracing.signature import Trace

_HINT = " An argument of the function that has this name is passed by position."


def explained(
    world: RuntimeWorld,
    trace: Trace,
    kinds: Sequence[Kind],
    executable: Executable,
    topology: Topology | str | None,
) -> Explanation:
    """Return what a program does.

    Args:
        world: whose devices are used.
        trace: the function as it was traced.
        kinds: how the arguments are laid out when they come.
        executable: the program.
        topology: where the devices are, or its name; None for one process.

    Raises:
        ArgumentError: if a device has no place in the topology.
    """
    where = presets.as_topology("one process" if topology is None else topology, "explain", _HINT)
    names = Names(trace.program, trace.told)
    steps = _entering(trace, kinds, executable, where, world)
    notices: list[Notice] = []
    first = len(steps)
    items = steps_in_order(executable)
    numbers = {id(item): first + n for n, item in enumerate(items, 1)}
    held = live_bytes(executable, items)
    users = {id(p): _users(p, names) for p in _executables(items, executable)}
    for item in items:
        if item.around is not None and item.scope is None:
            variables = list(item.program.kinds)[: len(item.program.inputs)]
            names.learn_inputs(variables, item.around.eqns[0])
    for item, live in zip(items, held, strict=True):
        number = numbers[id(item)]
        steps.append(_step(number, item, live, where, names))
        own = users.get(id(item.program), {})
        if item.wires and len(item.eqns) == 1:  # operations that run as one move nothing
            notices += notices_of(number, item, own, names)
    notices.sort(key=lambda n: (n.asked, -n.total_bytes, n.step))
    arguments = most([device_bytes(k) for k in executable.inputs])
    devices = {d for k in (*executable.inputs, *executable.outputs) for d in device_bytes(k)}
    devices |= {d for s in steps for d in s.received}
    return Explanation(
        trace.name,
        where.name,
        tuple(sorted(devices)),
        tuple(steps),
        tuple(notices),
        arguments,
        max(held, default=arguments),
    )


def _entering(
    trace: Trace,
    kinds: Sequence[Kind],
    executable: Executable,
    topology: Topology,
    world: RuntimeWorld,
) -> list[ExplainedStep]:
    """Return the steps that lay arguments out as in_shardings say."""
    steps: list[ExplainedStep] = []
    given = executable.inputs[len(trace.captured) :]
    for told, kind, then in zip(trace.told, kinds, given, strict=True):
        if not isinstance(kind, ArrayType) or not isinstance(then, ArrayType) or kind is then:
            continue
        wires = wires_between(world, kind, then)
        if wires:
            steps.append(
                ExplainedStep(
                    len(steps) + 1,
                    f"in_shardings of {told}",
                    "",
                    0,
                    "",
                    1,
                    1,
                    _local(then),
                    (_layout_text(kind),),
                    (_layout_text(then),),
                    tuple(map(_communication, wires)),
                    seconds_of(wires, topology),
                    most([device_bytes(k) for k in executable.inputs]),
                )
            )
    return steps


def _executables(items: Sequence[Item], top: Executable) -> Iterator[Executable]:
    yield top
    seen = {id(top)}
    for item in items:
        if item.scope is None and id(item.program) not in seen:
            seen.add(id(item.program))
            yield item.program


def _users(program: Executable, names: Names) -> Users:
    """Return for each value that only was moved the operation that it was moved for."""
    for step in program.steps:
        for eqn in step.eqns:
            if isinstance(eqn.call, ConstraintCall) and id(eqn) not in names.written:
                (x,) = eqn.inputs
                if isinstance(x, Var):
                    names.original[eqn.outputs[0]] = x, program.kinds.get(x)

    def kind_of(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return type(atom.value)
        before = names.source(atom)[1]
        return program.kinds[atom] if before is None else before

    found: dict[Var, tuple[Eqn, int, Sequence[Any]]] = {}
    for step in program.steps:
        for eqn in step.eqns:
            for place, atom in enumerate(eqn.inputs):
                if isinstance(atom, Var) and atom in names.original and atom not in found:
                    found[atom] = eqn, place, [kind_of(x) for x in eqn.inputs]
    return found


def _step(number: int, item: Item, live: int, topology: Topology, names: Names) -> ExplainedStep:
    name, (eqn, *_) = item.name, item.eqns
    if isinstance(eqn.call, ConstraintCall) and id(eqn) not in names.written:
        name = "reshard" if item.around is not None or name == "reshard" else "out_shardings"
    wires = [w for w, _ in item.wires if any(w.received.values())]
    return ExplainedStep(
        number,
        name,
        item.line,
        item.depth,
        item.part,
        item.turns,
        item.counted,
        _local(*item.outputs),
        tuple([_layout_text(k) for k in item.inputs if not isinstance(k, type)]),
        tuple([_layout_text(k) for k in item.outputs]),
        tuple([_communication(w, everywhere=item.exact) for w in wires]),
        sum(seconds_of([w], topology) for w in wires),
        live,
        item.step.runner(),
        item.step.purpose,
    )


def _communication(wire: Wire, *, everywhere: bool = True) -> Communication:
    exact = everywhere and wire.exact
    received = {int(d): int(n) for d, n in sorted(wire.received.items())}
    return Communication(wire.kind, tuple(wire.axes), wire.array, received, exact)


def _local(*kinds: Any) -> str:
    """Return what one device has of values: dtype and shape of the largest piece."""
    told = []
    for kind in kinds:
        if isinstance(kind, type):
            told.append(kind.__name__)
            continue
        own = kind.type if isinstance(kind, GridKind) else kind
        layout = own.layout
        if layout.regular:
            shape = tuple([max(b - a for a, b in pairwise(c)) for c in layout.cuts])
        else:
            boxes = [layout.box(i) for i in range(layout.piece_count)]
            shape = max(boxes, key=lambda b: b.volume).shape
        told.append(f"{own.str_short().partition('[')[0]}[{','.join(map(str, shape))}]")
    if not told:
        return "-"
    more = len(told) - 1
    return told[0] + (f" +{more}" if more else "")


def _layout_text(kind: Any) -> str:
    """Return in a few words how a value is laid out; in a body the axes over which it varies."""
    if isinstance(kind, type):
        return "number"
    if isinstance(kind, GridKind):
        axes = ",".join(sorted(kind.varies))
        own = kind.type.sharding
        auto = f" {layout_text(kind.type)}" if isinstance(own, NamedSharding) else ""
        return f"{{{axes}}}{auto}"
    return layout_text(kind)
