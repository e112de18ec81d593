"""Listings of lowered programs: what runs, how each value lies, and what moves.

In: an `Executable`. Out: text, with what the collectives in bodies of `shard_map` move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshard.runtime.world import RuntimeWorld
from meshard.transforms.lowering.executable import Executable
from meshard.transforms.lowering.inside import Inside, inside
from meshard.transforms.program.calls import ShardMapCall
from meshard.transforms.program.program import Listed, Var, crossing_text, listing


def lowered_listing(world: RuntimeWorld, executable: Executable, called: Mapping[Var, str]) -> str:
    """Return what runs as a listing.

    Args:
        world: whose devices are used.
        executable: the program.
        called: for some variables what they are called in the user's program.
    """
    return listing(replace(_listed(world, executable), called=called))


def _listed(world: RuntimeWorld, executable: Executable) -> Listed:
    found = executable.listed()
    parts = dict(found.parts)
    for step in executable.steps:
        for eqn in step.eqns:
            if isinstance(eqn.call, ShardMapCall):
                body = inside(world, eqn.call, step.inputs)
                parts[id(eqn)] = [("body", _listed_inside(body))]
        if step.parts:
            parts[id(step.eqns[-1])] = [(n, _listed(world, p)) for n, p, _ in step.parts]
    return replace(found, parts=parts)


def _listed_inside(found: Inside) -> Listed:
    return Listed(
        found.program,
        notes={id(s.eqn): crossing_text(s.wires) for s in found.steps},
        parts={
            id(s.eqn): [(n, _listed_inside(p)) for n, p, _ in s.parts]
            for s in found.steps
            if s.parts
        },
    )
