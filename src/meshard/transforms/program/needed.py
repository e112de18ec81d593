"""What a program needs for its results: the other operations go, in what its calls hold too.

In: operations, and the results that are wanted. Out: those that they need. A loop loses the carries
and results that nobody reads, a body the arguments, and each call the operands that go with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from meshard.transforms.program.calls import ForCall, ScanCall, ShardMapCall, SwitchCall, WholeCall
from meshard.transforms.program.program import Atom, Eqn, Program, Var

Flags = Sequence[bool]


def needed_eqns(eqns: Sequence[Eqn], outputs: Sequence[Atom]) -> list[Eqn]:
    """Return the operations that some results need, without what nobody reads of their calls."""
    needed = {x for x in outputs if isinstance(x, Var)}
    found = []
    for eqn in reversed(eqns):
        flags = [v in needed for v in eqn.outputs]
        if has_effect(eqn):
            needed.update(x for x in eqn.inputs if isinstance(x, Var))
            found.append(eqn)
        elif any(flags):
            prune = _PRUNED.get(type(eqn.call))
            eqn = eqn if prune is None else prune(eqn, eqn.call, flags)
            needed.update(x for x in eqn.inputs if isinstance(x, Var))
            found.append(eqn)
    return found[::-1]


def has_effect(eqn: Eqn) -> bool:
    """Return whether an operation does something besides computing its results."""
    call = eqn.call
    if call is None:
        return False
    if isinstance(call, WholeCall):
        return call.effect
    return any(has_effect(e) for _, program in call.programs for e in program.eqns)


def without_unneeded(program: Program) -> tuple[Program, list[int]]:
    """Return a program without what it does for nothing.

    Returns:
        The program, and the numbers of the captured values that it still reads.
    """
    eqns = needed_eqns(program.eqns, program.outputs)
    read = read_of(eqns, program.outputs)
    kept = [i for i, v in enumerate(program.captured) if v in read]
    captured = tuple([program.captured[i] for i in kept])
    return replace(program, captured=captured, eqns=tuple(eqns)), kept


def read_of(eqns: Sequence[Eqn], outputs: Sequence[Atom]) -> set[Var]:
    """Return the variables that operations read, or that are results."""
    found = {x for eqn in eqns for x in eqn.inputs if isinstance(x, Var)}
    return found.union(x for x in outputs if isinstance(x, Var))


def _chosen(values: Sequence[Any], flags: Flags) -> tuple[Any, ...]:
    return tuple([x for x, has in zip(values, flags, strict=True) if has])


def _part(program: Program, outputs: Sequence[Atom], always: Collection[Var] = ()) -> Program:
    """Return a program of some results, and of those arguments that they need."""
    eqns = needed_eqns(program.eqns, outputs)
    read = read_of(eqns, outputs).union(always)
    return Program(
        tuple([v for v in program.captured if v in read]),
        tuple([v for v in program.inputs if v in read]),
        tuple(eqns),
        tuple(outputs),
        program.name,
    )


def _kept(before: Program, after: Program) -> tuple[list[bool], list[bool]]:
    """Return which captured values and which arguments a program still has."""
    captured, inputs = set(after.captured), set(after.inputs)
    return [v in captured for v in before.captured], [v in inputs for v in before.inputs]


def _does_same(one: Program, other: Program) -> bool:
    """Whether two programs have the same operations."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _carried(body: Program, carry: Sequence[Var], flags: Flags, more: Sequence[Atom]) -> list[bool]:
    """Return which carries of a loop matter: those wanted in the end, and those that they read."""
    live = list(flags)
    while True:
        ends = [*_chosen(body.outputs[: len(carry)], live), *more]
        read = read_of(needed_eqns(body.eqns, ends), ends)
        now = [own or v in read for v, own in zip(carry, live, strict=True)]
        if now == live:
            return live
        live = now


def _scan(eqn: Eqn, call: ScanCall, flags: Flags) -> Eqn:
    body, count = call.body, call.carried
    rows = _chosen(body.outputs[count:], flags[count:])
    carry = body.inputs[:count]
    live = _carried(body, carry, flags[:count], rows)
    ends = [*_chosen(body.outputs[:count], live), *rows]
    part = _part(body, ends, _chosen(carry, live))
    captured, inputs = _kept(body, part)
    if all((*captured, *inputs, *live, *flags)) and _does_same(part, body):
        return eqn
    return replace(
        eqn,
        inputs=_chosen(eqn.inputs, [*captured, *inputs]),
        outputs=(*_chosen(eqn.outputs[:count], live), *_chosen(eqn.outputs[count:], flags[count:])),
        call=replace(call, body=part, carried=sum(live)),
    )


def _for(eqn: Eqn, call: ForCall, flags: Flags) -> Eqn:
    body = call.body
    index, *carry = body.inputs
    live = _carried(body, carry, flags, ())
    part = _part(body, _chosen(body.outputs, live), {index, *_chosen(carry, live)})
    captured, _ = _kept(body, part)
    if all((*captured, *live)) and _does_same(part, body):
        return eqn
    return replace(
        eqn,
        inputs=_chosen(eqn.inputs, [True, True, *captured, *live]),
        outputs=_chosen(eqn.outputs, live),
        call=replace(call, body=part),
    )


def _shard_map(eqn: Eqn, call: ShardMapCall, flags: Flags) -> Eqn:
    body = call.body
    part = _part(body, _chosen(body.outputs, flags))
    captured, inputs = _kept(body, part)
    if not any(inputs) or (all((*captured, *inputs, *flags)) and _does_same(part, body)):
        return eqn
    call = replace(
        call,
        body=part,
        in_specs=_chosen(call.in_specs, inputs),
        out_specs=_chosen(call.out_specs, flags),
    )
    return replace(
        eqn,
        inputs=_chosen(eqn.inputs, [*captured, *inputs]),
        outputs=_chosen(eqn.outputs, flags),
        call=call,
    )


def _switch(eqn: Eqn, call: SwitchCall, flags: Flags) -> Eqn:
    if all(flags):
        return eqn
    parts, kept = [], [True]
    for branch in call.branches:
        part = _part(branch, _chosen(branch.outputs, flags), branch.inputs)
        parts.append(part)
        kept += _kept(branch, part)[0]
    kept += [True] * (len(eqn.inputs) - len(kept))
    return replace(
        eqn,
        inputs=_chosen(eqn.inputs, kept),
        outputs=_chosen(eqn.outputs, flags),
        call=replace(call, branches=tuple(parts)),
    )


_PRUNED: dict[Any, Callable[[Eqn, Any, Flags], Eqn]] = {
    ScanCall: _scan,
    ForCall: _for,
    ShardMapCall: _shard_map,
    SwitchCall: _switch,
}
