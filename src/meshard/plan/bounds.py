"""Bounds: what any plan between two layouts must move at least.

Everything is summed over device coordinates with NumPy; device pairs are never compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshard.algebra.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["receive_bound"]


def _spans(
    layout: Layout, ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return each device's box as two arrays ``[dim, device]``, and whether it holds one."""
    starts = np.zeros((layout.ndim, len(ids)), np.int64)
    stops = np.zeros((layout.ndim, len(ids)), np.int64)
    if not layout.regular:
        held = np.array([int(i) in layout.piece_of for i in ids], bool)
        for column in np.flatnonzero(held):
            box = layout.box(layout.piece_of[int(ids[column])])
            starts[:, column], stops[:, column] = box.starts, box.stops
        return starts, stops, held
    flat = layout.tensor.reshape(-1)
    order = np.argsort(flat, kind="stable")
    place = np.minimum(np.searchsorted(flat, ids, sorter=order), len(flat) - 1)
    at = order[place]
    held = flat[at] == ids
    where = np.unravel_index(at // layout.tensor.shape[-1], layout.grid) if layout.ndim else ()
    for dim, (cuts, index) in enumerate(zip(layout.cuts, where, strict=True)):
        points = np.asarray(cuts, np.int64)
        starts[dim], stops[dim] = points[index], points[index + 1]
    return starts, stops, held


def receive_bound(source: Layout, destination: Layout) -> int:
    """Return the elements that must enter a device which lacks them, over all devices.

    For a device with source box S and destination box D that is ``|D| - |D ∩ S|``; a plan that
    sends each box directly moves exactly this (LB1 of the design).

    >>> from meshard.algebra.layout import even_cuts
    >>> ids = np.arange(4)
    >>> rows = Layout((8,), (even_cuts(8, 4),), ids.reshape(4, 1))
    >>> everywhere = Layout((8,), ((0, 8),), ids.reshape(1, 4))
    >>> receive_bound(rows, everywhere), receive_bound(everywhere, rows)
    (24, 0)
    """
    ids = np.array(sorted(destination.device_ids), np.int64)
    start, stop, _ = _spans(destination, ids)
    have_start, have_stop, held = _spans(source, ids)
    common = np.maximum(np.minimum(stop, have_stop) - np.maximum(start, have_start), 0)
    here = np.prod(common, axis=0, dtype=np.int64)[held]
    return int(np.prod(stop - start, axis=0, dtype=np.int64).sum() - here.sum())
