"""Simplification: the same program with fewer operations.

In: a program. Out: one that gives the same results, without operations that nobody needs, that were
written twice, or that lay a value out only for it to be laid out again.

What a program needs for its results: the other operations go, in what its calls hold too.

In: operations, and the results that are wanted. Out: those that they need. A loop loses the carries
and results that nobody reads, a body the arguments, and each call the operands that go with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.decide import find_row
from meshard.ops.row import Op
from meshard.runtime.doors import Params
from meshard.transforms.program.calls import (
    ArrayCall,
    ConstraintCall,
    ForCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WholeCall,
)
from meshard.transforms.program.program import Atom, Eqn, Literal, Program, Var

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


def simplified(program: Program) -> tuple[Program, list[int]]:
    """Return a program that gives the same results with fewer operations.

    Returns:
        The program, and the numbers of the captured values that it still reads.
    """
    eqns, outputs = _unspread(*_shared(program))
    eqns = _merged(eqns, outputs)
    return without_unneeded(replace(program, eqns=tuple(eqns), outputs=tuple(outputs)))


def _key(atom: Atom) -> Any:
    return (type(atom.value), repr(atom.value)) if isinstance(atom, Literal) else atom


def _shared(program: Program) -> tuple[list[Eqn], list[Atom]]:
    """Compute the same thing once."""
    same: dict[Var, Var] = {}
    known: dict[Any, Eqn] = {}
    eqns = []

    def now(atom: Atom) -> Atom:
        return same.get(atom, atom) if isinstance(atom, Var) else atom

    for eqn in program.eqns:
        inputs = tuple(map(now, eqn.inputs))
        if inputs != eqn.inputs:
            eqn = replace(eqn, inputs=inputs)
        if eqn.call is None or isinstance(eqn.call, ConstraintCall):
            detail = eqn.call.sharding if isinstance(eqn.call, ConstraintCall) else None
            key = eqn.name, exact_key(eqn.params), detail, tuple(map(_key, inputs))
            before = known.setdefault(key, eqn)
            if before is not eqn:
                same.update(zip(eqn.outputs, before.outputs, strict=True))
                continue
        eqns.append(eqn)
    return eqns, list(map(now, program.outputs))


def _unspread(eqns: Sequence[Eqn], outputs: Sequence[Atom]) -> tuple[list[Eqn], list[Atom]]:
    """Leave spreading a value to the operation that reads it, and products with one out."""
    made: dict[Var, Eqn] = {}
    same: dict[Var, Var] = {}
    found = []
    for eqn in eqns:
        inputs = tuple([same.get(x, x) if isinstance(x, Var) else x for x in eqn.inputs])
        if _is_elementwise(eqn):
            inputs = _spread_by_reader(inputs, eqn.outputs[0].aval.shape, made)
            kept = _factor_of_one(eqn, inputs, made)
            if kept is not None:
                same[eqn.outputs[0]] = kept
                continue
        found.append(eqn if inputs == eqn.inputs else replace(eqn, inputs=inputs))
        made |= dict.fromkeys(eqn.outputs, found[-1])
    return found, [same.get(x, x) if isinstance(x, Var) else x for x in outputs]


def _is_elementwise(eqn: Eqn) -> bool:
    if eqn.call is not None or len(eqn.inputs) < 2 or len(eqn.outputs) != 1:
        return False
    row = find_row(eqn.name)
    return isinstance(row, Op) and isinstance(row.rule, str) and not set(row.rule) - set("., ->")


def _shape(atom: Atom) -> tuple[int, ...]:
    return () if isinstance(atom, Literal) else atom.aval.shape


def _spread_by_reader(
    inputs: Sequence[Atom], shape: tuple[int, ...], made: Mapping[Var, Eqn]
) -> tuple[Atom, ...]:
    """Return operands before they were spread, as far as the result's shape stays the same."""
    now = list(inputs)
    for number, x in enumerate(inputs):
        while isinstance(x, Var) and x in made and made[x].call is None:
            eqn = made[x]
            spread = eqn.name == "broadcast_to"
            if not spread and not (eqn.name == "reshape" and not _shape(eqn.inputs[0])):
                break
            (x,) = eqn.inputs
            others = [_shape(y) for k, y in enumerate(now) if k != number]
            if not isinstance(x, Var) or np.broadcast_shapes(_shape(x), *others) != shape:
                break
            now[number] = x
    return tuple(now)


def _factor_of_one(eqn: Eqn, inputs: Sequence[Atom], made: Mapping[Var, Eqn]) -> Var | None:
    """Return what an operation multiplies by an array of one; None if it does something else."""
    if eqn.name != "multiply":
        return None
    result = eqn.outputs[0].aval
    for one, x in (inputs, inputs[::-1]):
        source = made.get(one) if isinstance(one, Var) else None
        if source is None or not isinstance(source.call, ArrayCall) or not isinstance(x, Var):
            continue
        (number,) = source.inputs
        alike = x.aval.shape == result.shape and x.aval.dtype == result.dtype
        if isinstance(number, Literal) and number.value == 1 and alike and x.weak is None:
            return x
    return None


def exact_key(params: Params) -> Any:
    """Return parameters as a key, in which 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    numbers = float, complex, np.generic, tuple
    return tuple([(k, type(v), v, repr(v) if isinstance(v, numbers) else "") for k, v in params])


def _merged(eqns: list[Eqn], outputs: list[Atom]) -> list[Eqn]:
    """Lay a value out once where it is laid out twice in a row."""
    uses: dict[Var, int] = {}
    for x in (*(x for e in eqns for x in e.inputs), *outputs):
        if isinstance(x, Var):
            uses[x] = uses.get(x, 0) + 1
    origin: Mapping[Var, Atom] = {
        e.outputs[0]: e.inputs[0] for e in eqns if isinstance(e.call, ConstraintCall)
    }
    found = []
    for eqn in eqns:
        if isinstance(eqn.call, ConstraintCall):
            (x,) = eqn.inputs
            spec = getattr(eqn.call.sharding, "spec", None)
            says_all = not isinstance(spec, PartitionSpec) or not spec.unconstrained
            while says_all and isinstance(x, Var) and x in origin and uses[x] == 1:
                x = origin[x]
            eqn = replace(eqn, inputs=(x,))
        found.append(eqn)
    return found
