"""The door up: `bind` goes to the innermost interpreter, methods to installed functions."""

import ast
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import meshard
import meshard.lax
import meshard.numpy as mnp
import meshard.random
from meshard.errors import ArgumentError, MeshardError
from meshard.ops.engine.eager import Eager
from meshard.ops.row import REGISTRY
from meshard.runtime import doors as primitive
from meshard.runtime.doors import (
    Interpreter,
    bind,
    call,
    current,
    install,
    install_namespace,
    interpreting,
    namespace,
)


class Recorder(Interpreter):
    """Writes down what it is asked for."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, tuple[Any, ...], Any]] = []

    def run(self, name: str, operands: tuple[Any, ...], params: Any) -> Any:
        self.asked.append((name, operands, params))
        return self.answer


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> primitive._Doors:
    """Doors behind which nothing is installed."""
    fresh = primitive._Doors()
    monkeypatch.setattr(primitive, "_DOORS", fresh)
    return fresh


def test_an_operation_goes_to_the_innermost_interpreter():
    outer, inner = Recorder("outer"), Recorder("inner")
    with interpreting(outer):
        with interpreting(inner):
            assert bind("add", 1, 2, axis=0, how="x") == "inner"
        assert bind("sin", 3) == "outer"
    assert inner.asked == [("add", (1, 2), (("axis", 0), ("how", "x")))]
    assert outer.asked == [("sin", (3,), ())]


def test_without_one_it_goes_to_the_base():
    assert bind("add", mnp.ones(2), 2).tolist() == [3, 3]


def test_operators_and_functions_of_arrays_are_bound():
    x, recorder = mnp.ones(2), Recorder("recorded")
    with interpreting(recorder):
        assert x + 1 == "recorded"
        assert -x == "recorded"
        assert (x > 2) == "recorded"
        assert mnp.sin(x) == "recorded"
    assert [name for name, _, _ in recorder.asked] == ["add", "negative", "greater", "sin"]


def test_an_interpreter_is_left_when_an_error_passes():
    with pytest.raises(KeyError), interpreting(Recorder()):
        raise KeyError
    assert bind("add", mnp.ones(1), 1).tolist() == [2]


def test_an_interpreter_that_says_no_more_calls_functions_where_they_stand():
    x = mnp.ones(3)
    with interpreting(Recorder()):
        here = current()
        assert (dict(here.axis_sizes), here.in_program, here.layouts_known) == ({}, False, False)
        for way in (here.when_laid_out, here.at_run_time):
            assert way("f", lambda *given, by: (given, by), (x, 2), {"by": 3}) == ((x, 2), 3)
        made = here.make_later("f", x._type, lambda *given: given, (x,), False, None)
        assert made == (x._type, x)
    assert isinstance(current(), Eager)


def test_operations_are_made_of_those_of_their_own_floor():
    source = Path(meshard.__file__).parent
    bound = {
        (path.name, node.args[0].value)
        for floor in ("runtime", "ops")
        for path in (source / floor).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "bind"
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(bound) > 50
    assert [(where, name) for where, name in bound if name not in REGISTRY] == []


def test_the_namespace_of_arrays_is_the_door_that_said_so(doors):
    install_namespace("meshard.lax")
    assert namespace() is meshard.lax


def test_an_interpreter_may_bind_to_the_one_outside():
    class Doubling(Interpreter):
        def run(self, name: str, operands: tuple[Any, ...], params: Any) -> Any:
            return ["twice", name]

    class Passing(Interpreter):
        def run(self, name: str, operands: tuple[Any, ...], params: Any) -> Any:
            with interpreting(Doubling()):
                return bind(name, *operands, **dict(params))

    with interpreting(Passing()):
        assert bind("add", 1) == ["twice", "add"]


def test_other_threads_have_their_own_interpreters():
    seen: list[Any] = []
    recorder = Recorder("recorded")
    with interpreting(recorder):
        thread = threading.Thread(target=lambda: seen.append(bind("add", mnp.ones(1), 1).tolist()))
        thread.start()
        thread.join()
    assert seen == [[2]]
    assert recorder.asked == []


def test_without_a_floor_above_nothing_can_be_done(doors):
    with pytest.raises(MeshardError, match="add: no operations are installed; import meshard"):
        bind("add", 1)
    with pytest.raises(ArgumentError, match="sum: this version of meshard has no such operation"):
        call("sum", 1)


def test_what_is_installed_is_used(doors):
    base = Recorder("base")
    install(base, {"double": lambda x, *, by=2: x * by})
    install(base, {"negate": lambda x: -x})
    assert bind("add", 1) == "base"
    assert call("double", 3) == 6
    assert call("double", 3, by=5) == 15
    assert call("negate", 3) == -3


def test_a_method_that_has_no_operation_says_so(monkeypatch):
    functions = {k: f for k, f in primitive._DOORS.functions.items() if k != "sum"}
    monkeypatch.setattr(primitive._DOORS, "functions", functions)
    with pytest.raises(ArgumentError, match="sum: this version of meshard has no such operation"):
        mnp.ones(2).sum()


_UNKNOWN = """
import ast, importlib, sys
door = importlib.import_module(sys.argv[1])
for name in dir(door):
    getattr(door, name)
from meshard.ops.row import REGISTRY
for name, module in sorted(sys.modules.items()):
    if name.startswith("meshard.ops.") and module.__file__:
        for node in ast.walk(ast.parse(open(module.__file__, encoding="utf-8").read())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "bind":
                row = node.args[0]
                if isinstance(row, ast.Constant) and row.value not in REGISTRY:
                    print(name, row.value)
"""
"""Prints the rows that modules bind, where no module registers them that a door loads."""


@pytest.mark.parametrize("door", ["numpy", "nn", "random", "lax", "optim", "scipy.linalg"])
def test_a_door_loads_the_rows_that_its_functions_bind(door: str) -> None:
    program = [sys.executable, "-W", "ignore", "-c", _UNKNOWN, f"meshard.{door}"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []
