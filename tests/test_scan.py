"""The scan of all public functions: each has a call that runs, or a reason why it has none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bench.scan import SLOWER, _prepared, cases
from bench.scan_operands import Form, Operands

CASES, LEFT_OUT = cases()
FORMS = Form(1 << 10, 1), Form(1 << 10, 2)


def test_every_public_function_is_called_or_has_a_reason():
    assert len(CASES) > 400
    assert [key for key, why in LEFT_OUT.items() if why.startswith("no line")] == []
    assert SLOWER.keys() <= {case.key for case in CASES}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_calls_run_wherever_numpys_do(form):
    plain, ours = Operands(form, None, made := {}), Operands(form, "rows", made)
    for case in CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = _prepared(case.theirs, plain, {"peer": case.peer})()
            except (ValueError, IndexError):
                continue
            found = _prepared(case.ours, ours, {"f": case.function})()
        if isinstance(theirs, np.ndarray) and not isinstance(found, tuple):
            assert found.shape == theirs.shape, case
