"""Gradients laid out like what they are gradients of.

In: a value and its cotangent. Out: the cotangent, in the value's layout; and the wish, while it is
being computed, that it be laid out so where that moves less.
"""

from __future__ import annotations

import contextlib
from typing import Any

from meshard.ops.engine.accept import WEAK
from meshard.ops.engine.eager import Preferring
from meshard.runtime.array.array import Array
from meshard.runtime.doors import innermost, interpreting
from meshard.transforms.body.grid import Grid
from meshard.transforms.program.calls import AlikeCall

_NOTHING = contextlib.nullcontext()


def laid_like(g: Any, x: Any) -> Any:
    """Return a cotangent laid out like its value, where that is on a mesh."""
    if type(x) in WEAK or isinstance(g, Grid) or isinstance(x, Grid) or g.shape != x.shape:
        return g
    return AlikeCall().run([g, x])[0]


def wished_like(x: Any) -> contextlib.AbstractContextManager[None]:
    """Let what is run at once within a ``with`` statement be laid out with a view to a value.

    Where operations are written down, jit finds out for itself what is wished.
    """
    if type(x) is not Array or x._type.layout.piece_count < 2 or innermost() is not None:
        return _NOTHING
    return interpreting(Preferring(x._type))
