"""Which operations are linear in what they got of a function's inputs.

In: a tape. Out: the first operation on it that is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshard.ops.derivatives.kinds import Linear, Partials, Pulls, Tangents
from meshard.transforms.derivatives.reverse import Node

_LINEAR = {"negative": ([0],), "multiply": ([0], [1]), "divide": ([0],), "solve": ([1],)}
"""Operations that are linear in some operands while the others stay: which these may be."""


def first_nonlinear(tape: Sequence[Node]) -> str | None:
    """Return the name of the first operation that is not linear; None if all are."""
    return next((node.site.name for node in tape if not _is_linear(node)), None)


def _is_linear(node: Node) -> bool:
    """Whether an operation is linear in what it got of the inputs; calls are taken to be."""
    name, derivative = node.site.name, node.derivative
    moved = [i for i, n in enumerate(node.inputs) if n is not None]
    if isinstance(derivative, Partials):
        constant = not any(callable(derivative.factors[i]) for i in moved)
        return constant or moved in _LINEAR.get(name, ())
    if isinstance(derivative, Linear):
        return derivative.together or len(moved) == 1
    if isinstance(derivative, (Tangents, Pulls)):
        return name in ("astype", "scatter") or moved in _LINEAR.get(name, ())
    return True
