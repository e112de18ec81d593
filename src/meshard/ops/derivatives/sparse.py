"""Derivatives of products of sparse matrices: each is linear in the values, and in the vector."""

from __future__ import annotations

from typing import Any

from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import Derivative, Linear, Site, Values


def _times(site: Site, number: int, g: Values) -> Any:
    *where, values, x = site.operands
    if number == len(where):
        return o.sparse_sampled(*where, g[0], x, **site.params)
    return o.sparse_times_transposed(*where, values, g[0], **site.params)


def _transposed(site: Site, number: int, g: Values) -> Any:
    *where, values, y = site.operands
    if number == len(where):
        return o.sparse_sampled(*where, y, g[0], **site.params)
    return o.sparse_times(*where, values, g[0], **site.params)


def _sampled(site: Site, number: int, g: Values) -> Any:
    *where, y, x = site.operands
    if number == len(where):
        return o.sparse_times(*where, g[0], x, **site.params)
    return o.sparse_times_transposed(*where, g[0], y, **site.params)


SPARSE: dict[str, Derivative] = {
    "sparse_times": Linear(_times, of=(4, 5), together=False),
    "sparse_times_transposed": Linear(_transposed, of=(4, 5), together=False),
    "sparse_sampled": Linear(_sampled, of=(4, 5), together=False),
}
"""The derivative of each row."""
