"""Wishes: where values had better lie, from what becomes of them.

In: a program, and how its values lie when each operation only follows its operands. Out: shardings
for values inside, found backwards from the results that are asked for, the constraints, and what
the other operands of an operation are split over. A wish binds nobody: lowering takes it where that
moves fewer bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from meshard.algebra.abstract import Sharding
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import MeshardError
from meshard.ops.engine.decide import propagated, row_of
from meshard.ops.engine.row import MoveOp
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.transforms.body.constrained import settled
from meshard.transforms.program.calls import ConstraintCall, ShardMapCall
from meshard.transforms.program.program import Eqn, Kind, Literal, Program, Var


def wishes(
    program: Program,
    kinds: Mapping[Var, Kind],
    results: Sequence[Kind | Sharding | None] | None,
) -> dict[Var, NamedSharding]:
    """Return where values of a program had better lie.

    Args:
        program: the program.
        kinds: how each value lies where operations only follow their operands.
        results: for each result where it is asked to lie.
    """
    found: dict[Var, NamedSharding] = {}
    for atom, wanted in zip(program.outputs, results or (), strict=False):
        sharding = wanted.sharding if isinstance(wanted, ArrayType) else wanted
        if isinstance(atom, Var) and isinstance(sharding, NamedSharding):
            found[atom] = sharding
    given = {*program.captured, *program.inputs}
    for eqn in reversed(program.eqns):
        for var, sharding in _before(eqn, kinds, found):
            if (var not in given or _is_free(kinds[var])) and _fits(kinds[var], sharding):
                found[var] = sharding
    return found


def _is_free(kind: Kind) -> bool:
    """Whether an argument lies nowhere in particular."""
    return isinstance(kind, ArrayType) and kind.unplaced


def _fits(kind: Kind, sharding: NamedSharding) -> bool:
    """Whether a value can lie so: a piece that is laid over an array may be too short."""
    try:
        sharding.layout(kind.shape if isinstance(kind, ArrayType) else ())
    except MeshardError:
        return False
    return True


def _before(
    eqn: Eqn, kinds: Mapping[Var, Kind], found: Mapping[Var, NamedSharding]
) -> list[tuple[Var, NamedSharding]]:
    """Return where the operands of an operation had better lie."""
    if isinstance(eqn.call, ConstraintCall):
        (x,) = eqn.inputs
        lies, wish = eqn.call.sharding, found.get(eqn.outputs[0])
        kind = kinds[x] if isinstance(x, Var) else None
        if isinstance(kind, ArrayType):  # what is left open is as its readers wish, or as it comes
            if wish is not None:
                kind = here().type_of(kind.shape, kind.dtype, wish, True)
            lies = settled(lies, kind)
        return [(x, lies)] if isinstance(x, Var) and isinstance(lies, NamedSharding) else []
    if isinstance(eqn.call, ShardMapCall):
        specs = eqn.call.in_specs
        arguments = eqn.inputs[len(eqn.inputs) - len(specs) :]
        return [
            (x, NamedSharding(eqn.call.mesh, spec))
            for x, spec in zip(arguments, specs, strict=True)
            if isinstance(x, Var) and x.weak is None
        ]
    if eqn.call is not None:
        return []
    row = row_of(eqn.name)
    types = [type(x.value) if isinstance(x, Literal) else kinds[x] for x in eqn.inputs]
    if not any(isinstance(t, ArrayType) for t in types):
        return []
    if isinstance(row, MoveOp):
        return _before_move(eqn, row, kinds, found)
    wanted = [found.get(v) for v in eqn.outputs]
    types = _on_mesh(types, wanted)
    with contextlib.suppress(MeshardError):
        mesh, split = propagated(row, types, dict(eqn.params), wanted)
        return [
            (x, sharding)
            for x, kind, placement in zip(eqn.inputs, types, split.inputs, strict=True)
            if isinstance(x, Var) and isinstance(kind, ArrayType)
            if isinstance(sharding := mesh.sharding(placement), NamedSharding)
        ]
    return []


def _on_mesh(
    types: Sequence[ArrayType | type], wanted: Sequence[NamedSharding | None]
) -> list[ArrayType | type]:
    """Return operands' types on the mesh of the results' wishes, if nothing else says where."""
    meshes = [w.mesh for w in wanted if w is not None]
    if not meshes or not all(t.unplaced for t in types if isinstance(t, ArrayType)):
        return list(types)
    whole = NamedSharding(meshes[0], PartitionSpec())
    return [
        here().type_of(t.shape, t.dtype, whole, False) if isinstance(t, ArrayType) else t
        for t in types
    ]


def _before_move(
    eqn: Eqn, row: MoveOp, kinds: Mapping[Var, Kind], found: Mapping[Var, NamedSharding]
) -> list[tuple[Var, NamedSharding]]:
    """Return where the operands of a move had better lie: along the dims that it leaves alone."""
    wanted = found.get(eqn.outputs[0])
    arrays = [x for x in eqn.inputs if isinstance(x, Var)]
    types: list[Any] = [kinds[x] for x in arrays]
    if wanted is None or row.flat or not all(isinstance(t, ArrayType) for t in types):
        return []
    maps = row.maps([t.shape for t in types], dict(eqn.params))
    result: Any = kinds[eqn.outputs[0]]
    axes = wanted.spec.axes(len(maps[0]))
    before = []
    for x, kind, own in zip(arrays, types, maps, strict=True):
        entries = [
            a if m.is_identity and m.size == n == whole else ()
            for a, m, n, whole in zip(axes, own, kind.shape, result.shape, strict=False)
        ]
        if len(own) == kind.ndim and any(entries):
            spec = type(wanted.spec)(*entries)
            uneven: Any = wanted.uneven
            if isinstance(uneven, tuple):
                cuts = [c if e else None for c, e in zip_longest(uneven[: len(entries)], entries)]
                uneven = tuple(cuts) if any(c is not None for c in cuts) else None
            before.append((x, NamedSharding(wanted.mesh, spec, uneven=uneven)))
    return before
