"""Whatever a public array function is called with, it computes or refuses in meshard's words.

Every function of the array modules and every method of `Array` is called with odd values for each
of its arguments in turn. By default a sample of these calls is made, the same in every run; the
profile "thorough" makes all of them.
"""

import os
from collections.abc import Iterator
from functools import partial
from zlib import crc32

import numpy as np
import pytest

import meshard.numpy as mnp
from meshard.errors import ArgumentError
from tests.odd_array_calls import MODULES, ODD, Case, cases, fault, parameters

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning"),
    pytest.mark.timeout(600),
]

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
EVERY = 1 if ALL else 7
EVERY_TRACED = 1 if ALL else 60

CASES = list(cases())


def sample(every: int, salt: str) -> Iterator[tuple[Case, str, str]]:
    """Yield cases with a parameter and the name of an odd value for it: one of so many."""
    for case in CASES:
        for parameter in parameters(case):
            for odd in ODD:
                if not crc32(f"{salt} {case.name} {parameter} {odd}".encode()) % every:
                    yield case, parameter, odd


def test_every_function_has_a_valid_call() -> None:
    functions = sum(len(module.__all__) for module in MODULES)
    assert len(CASES) > functions * 0.9
    wrong = {case.name: found for case in CASES if (found := failure(case)) is not None}
    assert not wrong, f"tests.odd_array_calls.py needs other arguments for these: {wrong}"


def failure(case: Case) -> str | None:
    try:
        case.call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_odd_values_are_accepted_or_refused_in_meshards_words() -> None:
    wrong = [
        f"{case.name}({parameter}={odd}): {found}"
        for case, parameter, odd in sample(EVERY, "eager")
        if (found := fault(partial(case.call, parameter, ODD[odd]()))) is not None
    ]
    assert not wrong, "\n".join(wrong)


def test_odd_values_under_jit() -> None:
    wrong = [
        f"{case.name}({parameter}={odd}): {found}"
        for case, parameter, odd in sample(EVERY_TRACED, "traced")
        if not case.in_mesh
        and (found := fault(partial(case.traced, parameter, ODD[odd]()))) is not None
    ]
    assert not wrong, "\n".join(wrong)


def test_a_raw_error_is_found() -> None:
    def careless(x: object) -> object:
        return x.shape  # type: ignore[attr-defined]

    case = Case("careless", careless, {"x": lambda: np.zeros(2)})
    assert fault(case.call) is None
    found = fault(lambda: case.call("x", None))
    assert found is not None
    assert found.startswith("AttributeError")

    def careful(x: object) -> object:
        raise ArgumentError("careful: x is refused.")

    assert fault(lambda: careful(0)) is None


def test_each_sample_is_the_same_and_wide() -> None:
    chosen = list(sample(EVERY, "eager"))
    assert chosen == list(sample(EVERY, "eager"))
    assert {case.name for case, _, _ in chosen} == {c.name for c in CASES if parameters(c)}
    assert {odd for _, _, odd in chosen} == set(ODD)
    assert mnp.zeros in [case.function for case in CASES]
