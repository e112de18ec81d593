"""A function like NumPy's own, of which no array library has heard."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy._core.overrides import array_function_dispatch


@array_function_dispatch(lambda x: (x,), module="numpy")  # type: ignore[untyped-decorator]
def unheard_of(x: Any) -> Any:
    """Return the sum, as a number."""
    return np.asarray(x).sum()
