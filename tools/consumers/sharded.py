r"""``meshard.numpy`` whose new arrays are split over a 4 x 2 mesh, for other projects' tests.

The Array API suite takes it as a module::

    MESHARD_NUM_DEVICES=8 MESHARD_WRITEABLE=1 ARRAY_API_TESTS_VERSION=2025.12 \
        ARRAY_API_TESTS_MODULE=tools.consumers.sharded pytest array_api_tests

and `scipy_plugin` runs SciPy's own tests with it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MESHARD_NUM_DEVICES", "8")

import meshard
import meshard.numpy as mnp

_MESH = meshard.make_mesh((4, 2), ("x", "y"))
_MAKERS = ("asarray", "zeros", "ones", "empty", "full", "arange", "linspace", "eye")


def placed(found: Any) -> Any:
    """Return a new array split over the mesh; one that has its place stays there."""
    if type(found) is not meshard.Array or found.committed:
        return found
    spec = meshard.P(*("x", "y")[: found.ndim])
    return meshard.device_put(found, meshard.NamedSharding(_MESH, spec, uneven="balanced"))


def _placing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        return placed(function(*args, **kwargs))

    return make


for _name in mnp.__all__:
    _found = getattr(mnp, _name)
    globals()[_name] = _placing(_found) if _name in _MAKERS else _found
__array_api_version__ = mnp.__array_api_version__
__array_namespace_info__ = mnp.__array_namespace_info__
