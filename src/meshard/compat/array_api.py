"""Array libraries' helpers, array-api-compat and array-api-extra, and what they are to know of us.

In: the copies of them that are loaded, of which SciPy and scikit-learn have one each. Out: the same
copies, which know meshard's arrays as they know JAX's: immutable, updated by ``x.at``, and lazy
only while a function is traced. For other libraries they stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from meshard.runtime.array.at import writing
from meshard.runtime.array.methods import ArrayMethods
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import namespace

_HELPERS = "array_api_compat.common._helpers"
_AT = ("array_api_extra._at", "array_api_extra._lib._at")


def is_meshard_array(x: object) -> bool:
    """Return whether a value is an array of meshard, or stands for one inside a transformation.

    >>> import meshard.numpy as mnp
    >>> from meshard.array_api import is_meshard_array
    >>> is_meshard_array(mnp.ones(2)), is_meshard_array([1.0])
    (True, False)
    """
    return isinstance(x, ArrayMethods)


def is_meshard_namespace(xp: object) -> bool:
    """Return whether a module is the namespace of meshard's arrays.

    >>> import meshard.numpy as mnp, numpy as np
    >>> from meshard.array_api import is_meshard_namespace
    >>> is_meshard_namespace(mnp), is_meshard_namespace(np)
    (True, False)
    """
    return xp is namespace()


def register() -> tuple[str, ...]:
    """Tell the loaded copies of array-api-compat and array-api-extra about meshard's arrays.

    From then on ``array_api_extra.at(x)[i].set(v)`` uses ``x.at``, and whether an array is
    writeable or lazy is known without looking at its elements. Call it after SciPy and scikit-learn
    are imported; calling it again does no harm. Code that writes ``x[i] = v`` itself needs
    `meshard.numpy.writeable` besides.

    Returns:
        The names of the modules that have been told.

    >>> from meshard.array_api import register
    >>> isinstance(register(), tuple)
    True
    """
    told = []
    for name, module in sorted(sys.modules.items()):
        if name.endswith(_HELPERS):
            _teach(module, "_is_lazy_cls", lambda kind: issubclass(kind, Traced))
            _teach(module, "_is_writeable_cls", lambda kind: _writeable(kind))
        elif name.endswith(_AT):
            _update_by_at(module)
        else:
            continue
        told.append(name)
    return tuple(told)


def _writeable(kind: type) -> bool:
    return writing() and not issubclass(kind, Traced)


def _teach(module: Any, name: str, answer: Callable[[type], bool]) -> None:
    """Let a function of a helper's, which is asked about a class, know ours."""
    known = getattr(module, name, None)
    if known is None or hasattr(known, "meshard"):
        return

    def asked(kind: type) -> Any:
        return answer(kind) if issubclass(kind, ArrayMethods) else known(kind)

    vars(asked)["meshard"] = True
    setattr(module, name, asked)


def _update_by_at(module: Any) -> None:
    """Let ``at`` of array-api-extra take our arrays for such as JAX's, which have ``x.at``."""
    place: Any = module
    if not hasattr(module, "is_jax_array") and hasattr(module, "_compat"):
        place = module._compat
        if not isinstance(place, SimpleNamespace):
            place = module._compat = SimpleNamespace(**vars(place))
    known = getattr(place, "is_jax_array", None)
    if known is None or hasattr(known, "meshard"):
        return

    def is_immutable(x: object) -> bool:
        return is_meshard_array(x) or bool(known(x))

    vars(is_immutable)["meshard"] = True
    place.is_jax_array = is_immutable
