"""The settings of this floor: what ``jit`` returns to programs that were written for JAX."""

from __future__ import annotations

from meshard.settings import Setting, switch

PARALLEL_FUNCTIONS_OUTPUT_GDA: Setting[bool] = Setting(
    "parallel_functions_output_gda", False, *switch()
)
"""Whether jit returns a `GlobalDeviceArray` for each array."""
