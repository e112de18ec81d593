"""The column of derivatives: one for each row.

In: the name of a row. Out: its derivative. A row that is not here is a fault: the tables below must
name all of `REGISTRY`, and the collectives.
"""

from __future__ import annotations

import meshard.ops.fft
import meshard.ops.lax.elementwise
import meshard.ops.lax.ragged
import meshard.ops.lax.special
import meshard.ops.sparse.products
import meshard.ops.windows.kernels  # noqa: F401
from meshard.ops.derivatives.elementwise import ELEMENTWISE
from meshard.ops.derivatives.kinds import FLAT, Derivative, Refused
from meshard.ops.derivatives.linalg import LATE_LINALG, LINALG
from meshard.ops.derivatives.moves import MOVES
from meshard.ops.derivatives.random import RANDOM
from meshard.ops.derivatives.sums import LATE_SUMS, SPARSE, SUMS
from meshard.ops.derivatives.windows import WINDOWS, WINDOWS_LATE

_FLAT = """
    equal not_equal less less_equal greater greater_equal isclose isnan isinf isfinite signbit
    logical_not logical_and logical_or logical_xor
    floor ceil trunc rint round round_away floor_divide
    invert gcd lcm bitwise_and bitwise_or bitwise_xor left_shift right_shift shift_right_logical
    population_count bitwise_count leading_zeros bitcast spacing
    any all argmax argmin reduce_and reduce_or reduce_xor
    argsort argpartition searchsorted search_pieces positions positions_within first_true
    stop_gradient histogram bincount isin sort_counts true_counts window_first
"""
"""Rows whose results are bools, integers, positions or steps."""
_INSIDE = """
    scan scan_shift sort_runs sort_runs_with beside sort_whole sort_whole_with sort_pack sort_unpack
    qr_factors qr_both qr_joined qr_wide take_whole cholesky_panel cholesky_update
    triangular_stretch triangular_rest
"""
"""Rows that are parts of what is put off until layouts are known, which has a derivative itself."""
_PART = Refused("it is part of another operation, which has one.")

DERIVATIVES: dict[str, Derivative] = {
    **dict.fromkeys(_FLAT.split(), FLAT),
    **dict.fromkeys(_INSIDE.split(), _PART),
    **ELEMENTWISE,
    **MOVES,
    **SUMS,
    **LINALG,
    **RANDOM,
    **SPARSE,
    **WINDOWS,
}
"""The derivative of each row."""
LATE: dict[str, Derivative] = {**LATE_SUMS, **LATE_LINALG, **WINDOWS_LATE}
"""The derivative of what is put off until layouts or values are known, by name."""

__all__ = ["DERIVATIVES", "LATE"]
