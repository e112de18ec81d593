"""Examples of public docstrings run as they stand, pasted into a fresh interpreter."""

import doctest
import importlib
import inspect
from collections.abc import Iterator

import numpy as np
import pytest

from tests.test_api import public_names

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def ours() -> Iterator[tuple[str, object]]:
    """Each public function and class of meshard's own, once, with its first name."""
    seen = set()
    for name, found in public_names():
        own = str(getattr(found, "__module__", "")).startswith("meshard.")
        if callable(found) and own and id(inspect.unwrap(found)) not in seen:
            seen.add(id(inspect.unwrap(found)))
            yield name, found


def examples_of(name: str, found: object) -> Iterator[doctest.DocTest]:
    """The examples of one docstring, in an empty namespace."""
    for source in dict.fromkeys((found, inspect.unwrap(found))):
        tests = doctest.DocTestFinder(recurse=False).find(source, name, globs={})
        if examples := [test for test in tests if test.examples]:
            yield from examples
            return


def faults_of(test: doctest.DocTest) -> str:
    """What a pasted example gets wrong."""
    told: list[str] = []
    with np.errstate(all="ignore"):
        doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=told.append)
    return "".join(told)


DOORS = sorted({name.rpartition(".")[0] for name, _ in ours()})


@pytest.mark.no_job
@pytest.mark.parametrize("door", DOORS)
def test_examples_run_when_they_are_pasted(door: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [(name, found) for name, found in ours() if name.rpartition(".")[0] == door]
    names.append((door, importlib.import_module(door)))
    wrong = {
        test.name: fault
        for name, found in names
        for test in examples_of(name, found)
        if (fault := faults_of(test))
    }
    assert not wrong, "\n".join(wrong.values())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (">>> import meshard\n>>> meshard.P('x')\nP('x',)", ""),
        (">>> import meshard\n>>> meshard.P('x')\nP('y',)", "Expected:"),
        (">>> P('x')\nP('x',)", "NameError: name 'P' is not defined"),
    ],
)
def test_a_wrong_example_is_noticed(text: str, fault: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, "example", None, 0)
    assert fault in faults_of(test)
    assert bool(fault) == bool(
        faults_of(doctest.DocTestParser().get_doctest(text, {}, "e", None, 0))
    )


def test_every_public_function_has_an_example() -> None:
    bare = [
        name
        for name, found in ours()
        if inspect.isfunction(inspect.unwrap(found)) and not [*examples_of(name, found)]
    ]
    assert bare == []
