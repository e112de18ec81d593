"""Why something moves: which dims of which operand are laid out otherwise, and what asks for it.

In: an `Item` of a program and what it moves. Out: `Notice`s, sentences with the dim, the axis, the
reason, and what to do. Reasons are read off the operation's rule and the operands' shardings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.rule import BoundRule
from meshard.algebra.sharding import NamedSharding
from meshard.errors import MeshardError
from meshard.ops.engine.decide import bound_rule, find_row
from meshard.ops.engine.row import MoveOp
from meshard.plan.move.wires import Wire
from meshard.runtime.types import ArrayType
from meshard.transforms.body.scope import GridKind
from meshard.transforms.program.calls import (
    ConstraintCall,
    ForCall,
    ScanCall,
    ShardMapCall,
    WhileCall,
)
from meshard.transforms.program.program import Eqn, Var, short_line
from meshard.transforms.program.value_names import Names


@final
@dataclass(frozen=True, slots=True)
class Notice:
    """Something that was split over an axis is whole on each device after a step, or moves.

    Printed it is a sentence.

    Attributes:
        step: the number of the step.
        line: where in the program it is written.
        operand: what it is: an argument's name, or the result of an operation at a line.
        dim: the dim that was split; None where dims do not correspond.
        axes: the mesh axes that split it.
        whole: whether it is whole along these axes afterwards; else it is split otherwise.
        asked: whether the program asks for it, with a constraint, out_shardings or a spec.
        reason: why.
        advice: what to do about it.
        total_bytes: what all devices receive, each time.
    """

    step: int
    line: str
    operand: str
    dim: int | None
    axes: tuple[str, ...]
    whole: bool
    asked: bool
    reason: str
    advice: str
    total_bytes: int

    def __str__(self) -> str:
        dim = "" if self.dim is None else f"dim {self.dim} of "
        becomes = "is made whole on each device" if self.whole else "is split otherwise"
        where = f" (at {short_line(self.line)}, step {self.step})" if self.line else ""
        advice = f" {self.advice}" if self.advice else ""
        return (
            f"{dim}{self.operand}, split over {_listed(self.axes)}, {becomes}: {self.reason}"
            f"{where}; {self.total_bytes:,} bytes.{advice}"
        )


def _listed(axes: Sequence[str]) -> str:
    return ", ".join(map(repr, axes))


# what becomes of the dims


@final
@dataclass(frozen=True, slots=True)
class _Change:
    """One dim that is split otherwise afterwards."""

    dim: int | None
    axes: tuple[str, ...]
    whole: bool


def _changes(wire: Wire) -> list[_Change]:
    if wire.parts:
        return _changes(wire.parts[0][0])
    move = wire.move
    if move is None or not any(wire.received.values()):
        return []
    found: list[_Change] = []
    for source, origin in zip(move.sources, move.origins, strict=True):
        target = move.target
        if not isinstance(origin, NamedSharding) or source.layout.piece_count == 1:
            continue
        before = _split_axes(origin, source.layout.ndim)
        if not isinstance(target, NamedSharding) or target.mesh != origin.mesh:
            if move.destination.piece_count == 1:
                axes = tuple(a for dim in before for a in dim)
                found.append(_Change(None, axes, True))
            continue
        after = _split_axes(target, move.destination.ndim)
        kept = {a for dim in after for a in dim}
        for dim, axes in enumerate(before):
            lost = tuple(a for a in axes if a not in kept)
            place = dim if len(before) == len(after) else None
            if lost:
                found.append(_Change(place, lost, True))
            elif wire.kind != "move" and axes and after[dim][: len(axes)] != axes:
                found.append(_Change(place, axes, False))
    return found


def _split_axes(sharding: NamedSharding, ndim: int) -> list[tuple[str, ...]]:
    shape = sharding.mesh.shape
    return [tuple(a for a in axes if shape[a] > 1) for axes in sharding.spec.axes(ndim)]


# why


def notices_of(
    step: int,
    eqn: Eqn,
    wires: Sequence[tuple[Wire, int | None]],
    kinds: Sequence[Any],
    users: Mapping[Var, tuple[Eqn, int, Sequence[Any]]],
    names: Names,
    final: bool,
    line: str,
) -> list[Notice]:
    """Return what a step makes whole, or splits otherwise, and why.

    Args:
        step: the step's number.
        eqn: its operation.
        wires: what it moves, each with the operand that moves.
        kinds: how its operands lie.
        users: for each value that was moved for an operation: that, as which operand, and how its
            operands lay.
        names: what values are called.
        final: whether its result is one of the whole program.
        line: where it is written, or what is around it.
    """
    found: list[Notice] = []
    for wire, number in wires:
        total = sum(wire.received.values())
        operand = names.of(eqn.inputs[number]) if number is not None else f"a {wire.array}"
        for change in _changes(wire):
            asked, reason, advice = _reason(eqn, number, change, kinds, users, names, final)
            found.append(
                Notice(
                    step,
                    line,
                    operand,
                    change.dim,
                    change.axes,
                    change.whole,
                    asked,
                    reason,
                    advice,
                    total,
                )
            )
    return found


_Reason = tuple[bool, str, str]


def _reason(
    eqn: Eqn,
    number: int | None,
    change: _Change,
    kinds: Sequence[Any],
    users: Mapping[Var, tuple[Eqn, int, Sequence[Any]]],
    names: Names,
    final: bool,
) -> _Reason:
    call = eqn.call
    if isinstance(call, ShardMapCall):
        place = 0 if number is None else number - len(call.body.captured)
        what = f"in_specs, {call.in_specs[place]!r}," if place >= 0 else "a captured value"
        if place < 0:
            return (
                True,
                "the body of shard_map uses it as a captured value, which is whole there",
                "Pass it as an argument with a spec that keeps it split.",
            )
        return (
            True,
            f"asked for by {what} of shard_map",
            "Name the axes in in_specs if the body can work on its own part.",
        )
    if isinstance(call, WhileCall | ForCall | ScanCall):
        if number is None or (isinstance(call, ScanCall) and _is_array(call, number)):
            return (
                False,
                "scan takes one position after another of the first dim",
                "Split another dim than the first before the scan.",
            )
        return (
            False,
            f"the carry of {eqn.name} must lie alike in every turn, and its body gives it so",
            "Let the body end with lax.with_sharding_constraint, or lay the first carry out as "
            "the body does.",
        )
    if isinstance(call, ConstraintCall):
        user = users.get(eqn.outputs[0])
        if user is not None:
            used, place, own = user
            return _by_rule(used, place, change, own, names)
        if id(eqn) in names.written:
            return (
                True,
                f"asked for by with_sharding_constraint, {_spec(call.sharding)}",
                "Leave the constraint out, or name the axis in its spec.",
            )
        if final:
            return (
                True,
                f"asked for by out_shardings, {_spec(call.sharding)}",
                "Leave out_shardings None, or name the axis in its spec, if the result may stay "
                "split.",
            )
        return (
            False,
            "a loop's carry, or the result of a branch, must lie alike every time",
            "Lay the first carry, or the other branches' results, out as this one.",
        )
    if number is None:
        return False, f"{eqn.name} lays its operands out together", ""
    return _by_rule(eqn, number, change, kinds, names)


def _is_array(call: ScanCall, number: int) -> bool:
    return number >= len(call.body.captured) + call.carried


def _spec(sharding: Any) -> str:
    return repr(sharding.spec) if isinstance(sharding, NamedSharding) else repr(sharding)


def rule_of(eqn: Eqn, kinds: Sequence[Any]) -> BoundRule | None:
    """Return the rule of a row, applied to its operands; None where it has none."""
    row = find_row(eqn.name)
    if row is None or isinstance(row, MoveOp):
        return None
    types = [k.type if isinstance(k, GridKind) else k for k in kinds]
    try:
        return bound_rule(row, types, dict(eqn.params))
    except MeshardError:
        return None


def _by_rule(eqn: Eqn, number: int, change: _Change, kinds: Sequence[Any], names: Names) -> _Reason:
    if isinstance(find_row(eqn.name), MoveOp):
        return (
            False,
            f"{eqn.name} moves elements along that dim, and its result cannot keep the cuts",
            "Do it along a dim that is whole, or split another dim first.",
        )
    rule = rule_of(eqn, kinds)
    if rule is None or change.dim is None or number >= len(rule.inputs):
        return False, f"{eqn.name} needs it so", ""
    dim = change.dim
    factors = set(rule.inputs[number][dim])
    kept = {f for term in rule.outputs for d in term for f in d}
    if factors & rule.whole:
        return (
            False,
            f"{eqn.name} needs that dim whole",
            "Split another dim of it first, with lax.with_sharding_constraint or in_shardings.",
        )
    clash = _clash(rule, number, dim, change, kinds)
    if clash is not None:
        other, place, axes = clash
        theirs = f"split over {_listed(axes)}" if axes else "whole"
        same = ", which goes with it," if factors & set(rule.inputs[other][place]) else ""
        return (
            False,
            f"operands of {eqn.name} disagree: dim {place} of {names.of(eqn.inputs[other])}"
            f"{same} is {theirs}",
            "Lay one of them out like the other where it is made, with "
            "lax.with_sharding_constraint or in_shardings.",
        )
    merged = any(len(d) > 1 and factors & set(d) for t in (*rule.inputs, *rule.outputs) for d in t)
    if merged:
        return (
            False,
            f"{eqn.name} merges or splits dims, and that split is none of the result's dims",
            "Split the slowest of the dims that are merged.",
        )
    if not factors & kept:
        return (
            False,
            f"{eqn.name} cannot combine partial results over that dim"
            if factors
            else f"{eqn.name} leaves that dim out",
            "Split another dim of it first.",
        )
    return False, f"{eqn.name} lays its operands out together", "Lay them out alike beforehand."


def _clash(
    rule: BoundRule, number: int, dim: int, change: _Change, kinds: Sequence[Any]
) -> tuple[int, int, tuple[str, ...]] | None:
    """Return another operand's dim that claims the factor, or the axes, of a dim."""
    mine = set(rule.inputs[number][dim])
    claims: list[tuple[int, int, tuple[str, ...]]] = []
    for other, (term, kind) in enumerate(zip(rule.inputs, kinds, strict=True)):
        kind = kind.type if isinstance(kind, GridKind) else kind
        if other == number or not isinstance(kind, ArrayType):
            continue
        if not isinstance(kind.sharding, NamedSharding):
            continue
        for place, axes in enumerate(_split_axes(kind.sharding, kind.ndim)):
            shared = bool(mine & set(term[place]))
            if (shared and axes and axes != change.axes) or (
                not shared and set(axes) & set(change.axes)
            ):
                return other, place, axes
            if shared and not axes and kind.shape[place] > 1:
                claims.append((other, place, axes))
    return claims[0] if claims else None
