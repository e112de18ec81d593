"""Errors as values: their notes, and the sections of the guide that these name."""

import copy
import inspect
import pickle
import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import errors
from meshard._version import DOCS
from meshard.runtime.trees import trees
from tests.odd_array_calls import Case, cases, parameters

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ALL = [getattr(errors, name) for name in errors.__all__]
EXPLAINED = [kind for kind in ALL if kind("x").__dict__.get("__notes__")]


def sections() -> dict[str, str]:
    """Return the sections of the page that are about one class: name and text."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.split(r"^#{1,3} ", text, flags=re.MULTILINE)
    named = {part.partition("\n")[0]: part.partition("\n")[2] for part in found}
    return {name: text for name, text in named.items() if name.endswith(("Error", "DataLoss"))}


def test_each_address_has_a_section_and_each_section_an_error() -> None:
    own = {kind.__name__ for kind in EXPLAINED if "_section" in vars(kind)}
    assert own == set(sections())


@pytest.mark.parametrize("kind", EXPLAINED)
def test_the_last_line_is_the_address_of_the_section(kind: type[errors.MeshardError]) -> None:
    error = kind("x is not y.")
    assert str(error) == "x is not y."
    error.add_note("first")
    error.add_note("second")
    *notes, last = error.__notes__
    assert notes == ["first", "second"]
    address, _, slug = last.partition("#")
    assert address == f"See {DOCS}/errors.html"
    assert slug in {name.lower() for name in sections()}


@pytest.mark.parametrize("kind", ALL)
def test_errors_are_copied_and_pickled_whole(kind: type[errors.MeshardError]) -> None:
    error = kind("x is not y.")
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is kind
        assert other.args == error.args
        assert vars(other) == vars(error)


@pytest.mark.parametrize("name", sections())
def test_a_section_says_what_to_do(name: str) -> None:
    assert len(sections()[name].split()) > 35


def test_a_subclass_is_told_in_the_section_of_its_parent() -> None:
    kind = errors.NoIntermediateShardingNeededError
    assert kind("x").__notes__ == [f"See {DOCS}/errors.html#nointermediateshardingerror"]
    assert not hasattr(errors.ArgumentError("x"), "__notes__")


def test_errors_are_those_that_programs_for_numpy_catch() -> None:
    x = mnp.ones((2, 3))
    for call in (mnp.sum, mnp.sort, mnp.expand_dims, mnp.fft.fft):
        with pytest.raises(np.exceptions.AxisError, match="axis 4 is out of bounds"):
            call(x, axis=4)
    for function in (mnp.linalg.inv, mnp.linalg.det, mnp.linalg.cholesky):
        with pytest.raises(np.linalg.LinAlgError, match="square matrices"):
            function(x)
    for index in (lambda: x[7], lambda: mnp.take(x, 9), lambda: mnp.delete(x, 9)):
        with pytest.raises(IndexError):
            index()


DIMS = {"axis", "axes", "axis1", "axis2", "axisa", "axisb", "axisc", "source", "start"}
ABSENT = ((0, 99), (0, -99), ((0, 1), (0, 4)), ((1, 0), (-3, 0)), ([0, 1], [4, 1]))
"""Dims that an array of two dims has, and the like that it does not have."""


def _in_numpy(case: Case) -> Case:
    """Return the call that NumPy's function of the same name takes, of NumPy's arrays."""

    def function(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("inplace", None)
        return attrgetter(case.name.removeprefix("numpy."))(np)(*args, **kwargs)

    function.__signature__ = inspect.signature(case.function)  # type: ignore[attr-defined]
    return replace(case, function=function)


def _on_host(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = trees.map(
        lambda x: np.asarray(x) if isinstance(x, meshard.Array) else x, values
    )
    return found


def _outcome(case: Case, values: dict[str, Any]) -> type[Exception] | None:
    try:
        case._call(values)
    except Exception as error:
        return type(error)
    return None


def test_a_dim_that_is_not_there_is_the_error_that_it_is_in_numpy() -> None:
    tried = 0
    for case in cases():
        if not case.name.startswith("numpy.") or not hasattr(np, case.name.split(".")[1]):
            continue
        theirs = _in_numpy(case)
        for name in sorted(DIMS & {*parameters(case)}):
            for present, absent in ABSENT:
                good, bad = (case._values(name, axis) for axis in (present, absent))
                if _outcome(theirs, _on_host(good)) is not None:
                    continue
                if _outcome(theirs, _on_host(bad)) is np.exceptions.AxisError:
                    assert _outcome(case, bad) is errors.DimError, (case.name, name, absent)
                    tried += 1
    assert tried > 200
