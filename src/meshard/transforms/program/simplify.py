"""Simplification: the same program with fewer operations.

In: a program. Out: one that gives the same results, without operations that nobody needs, that were
written twice, or that lay a value out only for it to be laid out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.decide import find_row
from meshard.ops.row import Op
from meshard.runtime.doors import Params
from meshard.transforms.program.calls import ArrayCall, ConstraintCall
from meshard.transforms.program.needed import without_unneeded
from meshard.transforms.program.program import Atom, Eqn, Literal, Program, Var


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
