"""Reductions across processes: partial results become whole ones.

Partial results are seen as one array with a leading dim over the reduced cells. Its cells are
brought together (all of them everywhere when small, else each device gets its share of the
result), combined in mesh order, and the shares then placed as the result lies. Each element is
combined once or by the same steps everywhere, so that all devices hold the same bits, whatever the
number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from meshard.algebra.layout import Layout, balanced_cuts
from meshard.algebra.propagate import Placement
from meshard.algebra.sharding import device_tensor
from meshard.plan.assemble import Part, Source, assemble
from meshard.runtime.world import RuntimeWorld

from .frame import Frame
from .registry import Dtype

__all__ = ["Reduction", "plan_reduction"]

_SMALL = 1 << 16


@final
@dataclass(frozen=True, slots=True)
class Reduction:
    """How partial results of several processes become the result.

    Attributes:
        cells: the number of partial results of each element.
        gather: brings partial results together; the pieces have a leading dim of ``cells``.
        place: from the combined shares to the result's pieces; None if they are those already.
        dtypes: the dtypes of the partial results.
        local: the pieces of the partial layout that this process gives.
    """

    cells: int
    gather: Part
    place: Part | None
    dtypes: tuple[Dtype, ...]
    pieces: int


def plan_reduction(
    world: RuntimeWorld,
    frame: Frame,
    reduced: Sequence[tuple[str, ...]],
    placement: Placement,
    shape: tuple[int, ...],
    dtypes: tuple[Dtype, ...],
) -> Reduction:
    """Plan the reduction over some axes of partial results that lie as ``placement``."""
    axes = tuple(a for dim in reduced for a in dim)
    mesh = frame.mesh
    tensor = device_tensor(mesh.device_ids, mesh.axis_names, [axes, *(s.axes for s in placement)])
    cells = tensor.shape[0]
    cuts = tuple(s.cuts for s in placement)
    partial = Layout((cells, *shape), (tuple(range(cells + 1)), *cuts), tensor)
    processes = {d.id: d.process_index for d in mesh.flat_devices}
    me = world.process_index
    outs = np.ascontiguousarray(np.moveaxis(tensor, 0, -2))
    outs = outs.reshape(*outs.shape[:-2], -1)
    volume = math.prod(shape) * sum(d.itemsize for d in dtypes)
    if cells * volume <= _SMALL or not shape:
        whole = Layout((cells, *shape), ((0, cells), *cuts), outs[None])
        gather = assemble(whole, [Source(partial)], processes, me)
        return Reduction(cells, gather, None, dtypes, partial.piece_count)
    dim = max(range(len(shape)), key=lambda d: shape[d] // placement[d].shards)
    own = cuts[dim]
    fine = (
        *(a + c for a, b in pairwise(own) for c in balanced_cuts(b - a, cells)[:-1]),
        own[-1],
    )
    shared = np.moveaxis(tensor, 0, dim + 1)
    shape_of = (*shared.shape[:dim], shared.shape[dim] * cells, *shared.shape[dim + 2 :])
    shared = np.ascontiguousarray(shared.reshape(shape_of))
    shares = (*cuts[:dim], fine, *cuts[dim + 1 :])
    middle = Layout((cells, *shape), ((0, cells), *shares), shared[None])
    final_layout = Layout(shape, cuts, outs)
    return Reduction(
        cells,
        assemble(middle, [Source(partial)], processes, me),
        assemble(final_layout, [Source(Layout(shape, shares, shared))], processes, me),
        dtypes,
        partial.piece_count,
    )
