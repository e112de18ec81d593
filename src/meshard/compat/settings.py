"""The settings of this floor: what ``jit`` returns to programs that were written for JAX."""

from __future__ import annotations

from meshard.settings import Setting


def _switch(given: object) -> bool:
    known = {"1": True, "true": True, "0": False, "false": False}
    if isinstance(given, bool):
        return given
    if not isinstance(given, str) or given.lower() not in known:
        raise ValueError
    return known[given.lower()]


PARALLEL_FUNCTIONS_OUTPUT_GDA: Setting[bool] = Setting(
    "parallel_functions_output_gda",
    False,
    "True or False ('1', 'true', '0' or 'false' in the environment)",
    _switch,
)
"""Whether jit returns a `GlobalDeviceArray` for each array."""
