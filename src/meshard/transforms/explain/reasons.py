"""Why something moves: which dims of which operand get another layout, and what asks for it.

In: an `Item` of a program and what it moves. Out: `Notice`s, sentences with the dim, the axis, the
reason, and what to do. Reasons are read off the operation's rule and the operands' shardings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

from meshard.algebra.rule import BoundRule
from meshard.algebra.sharding import NamedSharding
from meshard.errors import MeshardError
from meshard.ops.engine.decide import bound_rule, find_row
from meshard.ops.row import MoveOp
from meshard.plan.move.wires import Move, Wire
from meshard.runtime.types import ArrayType
from meshard.transforms.body.scope import GridKind
from meshard.transforms.explain.steps_in_order import Item
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
    return [
        change
        for source, origin in zip(move.sources, move.origins, strict=True)
        if isinstance(origin, NamedSharding) and source.layout.piece_count > 1
        for change in _changed_dims(origin, source.layout.ndim, move, wire.kind == "move")
    ]


def _changed_dims(origin: NamedSharding, ndim: int, move: Move, apart: bool) -> list[_Change]:
    """Return the dims of one operand that are split otherwise afterwards.

    Args:
        origin: how the operand is laid out.
        ndim: its number of dims.
        move: the move.
        apart: whether its dims are not those of the result.
    """
    before, target = _split_axes(origin, ndim), move.target
    if not isinstance(target, NamedSharding) or target.mesh != origin.mesh:
        every = tuple(chain.from_iterable(before))
        return [_Change(None, every, True)] if move.destination.piece_count == 1 else []
    after = _split_axes(target, move.destination.ndim)
    kept = set(chain.from_iterable(after))
    found: list[_Change] = []
    for dim, axes in enumerate(before):
        place = dim if len(before) == len(after) else None
        lost = tuple(a for a in axes if a not in kept)
        if lost:
            found.append(_Change(place, lost, True))
        elif not apart and axes and after[dim][: len(axes)] != axes:
            found.append(_Change(place, axes, False))
    return found


def _split_axes(sharding: NamedSharding, ndim: int) -> list[tuple[str, ...]]:
    shape = sharding.mesh.shape
    return [tuple(a for a in axes if shape[a] > 1) for axes in sharding.spec.axes(ndim)]


# why


Users = Mapping[Var, tuple[Eqn, int, Sequence[Any]]]
"""For each value that was moved for an operation: that, as which operand, and how its operands were
laid out."""
_Reason = tuple[bool, str, str]
"""Whether the program asks for it, why something moves, and what to do about it."""


_ON_PURPOSE = frozenset({"take_whole"})
"""Rows that bring a small part of an operand together, of functions that keep the rest in place."""


def notices_of(number: int, item: Item, users: Users, names: Names) -> list[Notice]:
    """Return what a step makes whole, or splits otherwise, and why.

    Args:
        number: the step's number.
        item: the step, of one operation.
        users: what values of its program were moved for.
        names: what values are called.
    """
    (eqn,) = item.eqns
    found: list[Notice] = []
    if eqn.name in _ON_PURPOSE:
        return found
    for wire, place in item.wires:
        total = sum(wire.received.values())
        operand = names.of(eqn.inputs[place]) if place is not None else f"a {wire.array}"
        for change in _changes(wire):
            asked, reason, advice = _reason(item, place, change, users, names)
            found.append(
                Notice(
                    step=number,
                    line=item.line,
                    operand=operand,
                    dim=change.dim,
                    axes=change.axes,
                    whole=change.whole,
                    asked=asked,
                    reason=reason,
                    advice=advice,
                    total_bytes=total,
                )
            )
    return found


def _reason(item: Item, number: int | None, change: _Change, users: Users, names: Names) -> _Reason:
    """Return why an operand moves; ``number`` is None for partial results."""
    (eqn,) = item.eqns
    call = eqn.call
    if isinstance(call, ShardMapCall):
        return _by_specs(call, 0 if number is None else number - len(call.body.captured))
    if isinstance(call, WhileCall | ForCall | ScanCall):
        return _by_turns(eqn, number)
    if isinstance(call, ConstraintCall):
        user = users.get(eqn.outputs[0])
        if user is None:
            return _by_constraint(call, id(eqn) in names.written, item.around is None)
        used, place, kinds = user
        return _by_row(used, place, change, kinds, names)
    if number is None:
        return False, f"{eqn.name} lays its operands out together", ""
    return _by_row(eqn, number, change, item.inputs, names)


def _by_specs(call: ShardMapCall, place: int) -> _Reason:
    """Return why an operand of a body moves: an argument, or before them a captured value."""
    if place < 0:
        return (
            True,
            "the body of shard_map uses it as a captured value, which is whole there",
            "Pass it as an argument with a spec that keeps it split.",
        )
    return (
        True,
        f"asked for by in_specs, {call.in_specs[place]!r}, of shard_map",
        "Name the axes in in_specs if the body can work on its own part.",
    )


def _by_turns(eqn: Eqn, number: int | None) -> _Reason:
    """Return why an operand of a loop moves."""
    call = eqn.call
    if number is None or (isinstance(call, ScanCall) and _is_array(call, number)):
        return (
            False,
            "scan takes one position after another of the first dim",
            "Split another dim than the first before the scan.",
        )
    return (
        False,
        f"the carry of {eqn.name} must have one layout in every turn, and this is what its body "
        "gives",
        "Let the body end with lax.with_sharding_constraint, or lay the first carry out as "
        "the body does.",
    )


def _by_constraint(call: ConstraintCall, written: bool, final: bool) -> _Reason:
    """Return why a value moves by itself.

    Args:
        call: the constraint.
        written: whether it is written in the program.
        final: whether the result is one of the whole program.
    """
    if written:
        return (
            True,
            f"asked for by with_sharding_constraint, {_spec(call.sharding)}",
            "Leave the constraint out, or name the axis in its spec.",
        )
    if final:
        return (
            True,
            f"asked for by out_shardings, {_spec(call.sharding)}",
            "Leave out_shardings None, or name the axis in its spec, if the result may stay split.",
        )
    return (
        False,
        "a loop's carry, or the result of a branch, must have the same layout every time",
        "Lay the first carry, or the other branches' results, out as this one.",
    )


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


def _by_row(eqn: Eqn, number: int, change: _Change, kinds: Sequence[Any], names: Names) -> _Reason:
    """Return why an operand of a row moves."""
    if isinstance(find_row(eqn.name), MoveOp):
        return (
            False,
            f"{eqn.name} moves elements along that dim, and its result cannot keep the cuts",
            "Do it along a dim that is whole, or split another dim first.",
        )
    rule = rule_of(eqn, kinds)
    if rule is None or change.dim is None or number >= len(rule.inputs):
        return False, f"{eqn.name} needs it that way", ""
    if rule.whole.intersection(rule.inputs[number][change.dim]):
        return (
            False,
            f"{eqn.name} needs that dim whole",
            "Split another dim of it first, with lax.with_sharding_constraint or in_shardings.",
        )
    clash = _clash(rule, number, change, kinds)
    if clash is None:
        return _by_factors(eqn, rule, set(rule.inputs[number][change.dim]))
    other, place, axes = clash
    theirs = f"split over {_listed(axes)}" if axes else "whole"
    shared = set(rule.inputs[number][change.dim]) & set(rule.inputs[other][place])
    same = ", which goes with it," if shared else ""
    return (
        False,
        f"operands of {eqn.name} disagree: dim {place} of {names.of(eqn.inputs[other])}"
        f"{same} is {theirs}",
        "Lay one of them out like the other where it is made, with "
        "lax.with_sharding_constraint or in_shardings.",
    )


def _by_factors(eqn: Eqn, rule: BoundRule, factors: set[str]) -> _Reason:
    """Return why a dim with some factors moves, if no other operand wants it otherwise."""
    dims = [set(d) for term in (*rule.inputs, *rule.outputs) for d in term]
    if any(len(d) > 1 and factors & d for d in dims):
        return (
            False,
            f"{eqn.name} merges or splits dims, and no dim of the result can keep that split",
            "Split the slowest of the dims that are merged.",
        )
    if not any(factors.intersection(d) for term in rule.outputs for d in term):
        return (
            False,
            f"{eqn.name} cannot combine partial results over that dim"
            if factors
            else f"{eqn.name} leaves that dim out",
            "Split another dim of it first.",
        )
    return False, f"{eqn.name} lays its operands out together", "Lay them out alike beforehand."


def _clash(
    rule: BoundRule, number: int, change: _Change, kinds: Sequence[Any]
) -> tuple[int, int, tuple[str, ...]] | None:
    """Return another operand's dim that claims the factor, or the axes, of a dim."""
    assert change.dim is not None
    mine = set(rule.inputs[number][change.dim])
    claims: list[tuple[int, int, tuple[str, ...]]] = []
    for other, place, axes, size in _split_dims(kinds):
        if other == number:
            continue
        shared = bool(mine & set(rule.inputs[other][place]))
        if (axes and axes != change.axes) if shared else set(axes) & set(change.axes):
            return other, place, axes
        if shared and not axes and size > 1:
            claims.append((other, place, axes))
    return claims[0] if claims else None


def _split_dims(kinds: Sequence[Any]) -> Iterator[tuple[int, int, tuple[str, ...], int]]:
    """Yield for each dim of the operands that are arrays: operand, dim, its axes, its size."""
    for number, kind in enumerate(kinds):
        own = kind.type if isinstance(kind, GridKind) else kind
        if isinstance(own, ArrayType) and isinstance(own.sharding, NamedSharding):
            for dim, axes in enumerate(_split_axes(own.sharding, own.ndim)):
                yield number, dim, axes, own.shape[dim]
