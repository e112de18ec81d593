"""What type checkers say of a user's program, and that it is what happens.

The programs in `tests/typing` state types with ``assert_type``. mypy and pyright must agree with
them, and with the README's code; and when the programs run, the values must be of these types. One
more program, whose statements are wrong, is checked beside the others, so that the check is seen to
fail where it must.
"""

import doctest
import importlib
import importlib.util
import inspect
import json
import re
import runpy
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_overloads

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "tests" / "typing").glob("*.py"))

# Functions of a README are not annotated, as those of notebooks are not.
_UNTYPED = "# mypy: allow-untyped-defs, allow-untyped-calls\n# pyright: basic\n"

_WRONG = """from typing import assert_type

import numpy as np

import meshard
import meshard.numpy as mnp


@meshard.jit
def double(x: meshard.Array) -> meshard.Array:
    return 2 * x


x = mnp.ones(3)
assert_type(x + 1, np.ndarray)  # wrong
assert_type(mnp.sum(x), float)  # wrong
assert_type(x.sum(), int)  # wrong
assert_type(double(x), str)  # wrong
assert_type(x.sharding.spec, str)  # wrong
double(x, x)  # wrong
double("x")  # wrong
mnp.tanh("x")  # wrong
mnp.add(x)  # wrong
x.no_such_method()  # wrong
meshard.numpy.no_such_function(x)  # wrong
"""


def readme() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return _UNTYPED + "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def by_mypy(files: list[Path]) -> set[tuple[str, int]]:
    """The file and line of each error that mypy finds."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*?):(\d+): error: ", done.stdout, re.MULTILINE)
    return {(Path(file).name, int(line)) for file, line in found}


def by_pyright(files: list[Path]) -> set[tuple[str, int]]:
    """The file and line of each error that pyright finds."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)["generalDiagnostics"]
    errors = [d for d in told if d["severity"] == "error"]
    return {(Path(d["file"]).name, d["range"]["start"]["line"] + 1) for d in errors}


@pytest.mark.no_job
@pytest.mark.parametrize(("tool", "check"), [("mypy", by_mypy), ("pyright", by_pyright)])
def test_checkers_agree_with_what_programs_state(
    tool: str, check: Callable[[list[Path]], set[tuple[str, int]]], tmp_path: Path
) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed; it is in the group dev")
    wrong, code = tmp_path / "wrong.py", tmp_path / "readme.py"
    wrong.write_text(_WRONG, encoding="utf-8")
    code.write_text(readme(), encoding="utf-8")
    planted = {
        ("wrong.py", n) for n, line in enumerate(_WRONG.splitlines(), 1) if line.endswith("# wrong")
    }
    assert check([*PROGRAMS, code, wrong]) == planted


# that statements are what happens


def holds(value: object, hint: Any) -> bool:
    """Whether a value is what a type says; of a variable or a call's signature anything is."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Any or isinstance(hint, (typing.TypeVar, typing.ParamSpec)) or kind is Iterator:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(holds(value, h) for h in inner)
    if kind is None or kind is type(None):
        return value is None
    if kind is Callable or kind is typing.Literal:
        return callable(value) or value in inner
    if not isinstance(value, kind):
        return False
    if kind is tuple and inner:
        many = inner[1:] == (...,)
        hints = [inner[0]] * len(value) if many else list(inner)
        return len(value) == len(hints) and all(map(holds, value, hints))
    if kind in (list, set) and inner:
        return all(holds(v, inner[0]) for v in value)
    if kind is dict and inner:
        return all(holds(k, inner[0]) and holds(v, inner[1]) for k, v in value.items())
    return True


def in_a_process(code: str) -> None:
    """Run code that changes what all share, with the names of this module."""
    begin = "import meshard; meshard.config.update('num_devices', 8)"
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}; from tests.test_typing import *; {code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr


def run_program(path: str) -> None:
    """Run a program whose statements of types are checked as it goes."""

    def assert_type(value: object, hint: Any) -> object:
        assert holds(value, hint), f"{value!r} is stated to be {hint}"
        return value

    typing.assert_type = assert_type
    runpy.run_path(path)["main"]()


@pytest.mark.no_job
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_what_a_program_states_is_what_happens(program: Path) -> None:
    in_a_process(f"run_program({str(program)!r})")


@pytest.mark.no_job
def test_a_statement_that_does_not_hold_is_found_when_it_runs(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(
        "from typing import assert_type\n\ndef main():\n    assert_type([1, 'x'], list[int])\n",
        encoding="utf-8",
    )
    with pytest.raises(AssertionError, match="is stated to be list"):
        in_a_process(f"run_program({str(program)!r})")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, True),
        (1, str, False),
        (1, int | None, True),
        ("x", int | None, False),
        ((1, "x"), tuple[int, str], True),
        ((1, 2), tuple[int, str], False),
        ((1, 2), tuple[int], False),
        ((1, 2), tuple[int, ...], True),
        ([1, "x"], list[int], False),
        ({"x": 1}, dict[str, int], True),
        ({"x": 1}, dict[str, str], False),
        (None, None, True),
        (3, None, False),
        (len, Callable[..., int], True),
    ],
)
def test_holds(value: object, hint: Any, expected: bool) -> None:
    assert holds(value, hint) is expected


# that signatures are what happens

DOORS = [
    *("", "numpy", "numpy.fft", "numpy.linalg", "lax", "nn", "random", "tree", "resharding"),
    *("sharding", "multihost_utils", "distributed", "gda", "debug", "config"),
]

# What returns a value that really can be anything, or a tree of another make than its argument.
ANYTHING = {
    "numpy.polyfit": "the coefficients, and with full= or cov= more",
    "lax.custom_linear_solve": "a tree like the right-hand side, or a pair",
    "lax.custom_root": "a tree like the guess, or a pair",
    "jvp": "a pair, or three with what else the function returns",
    "linear_transpose": "a function of a tree like the results",
    "linearize": "a pair, or three with what else the function returns",
    "vjp": "a pair, or three with what else the function returns",
    "lax.platform_dependent": "what the function for the platform returns",
    "lax.reduce": "a tree like the operands",
    "lax.reduce_window": "a tree like the operand",
    "tree.broadcast": "a tree of one make with the leaves of another",
    "tree.map": "a tree of whatever the function returns",
    "tree.map_with_path": "a tree of whatever the function returns",
    "pure_callback": "a tree like result_shape_dtypes",
    "tree.reduce_associative": "whatever the operation returns",
    "tree.static": "a field of whatever type",
    "tree.reduce": "whatever the function returns",
    "tree.transpose": "a tree of another make",
    "tree.unflatten": "a tree of whatever the structure says",
    "multihost_utils.broadcast_one_to_all": "a tree of what NumPy has",
    "multihost_utils.gather": "a tree of what NumPy has, or None",
    "multihost_utils.process_allgather": "a tree of what NumPy has",
}


def functions() -> Iterator[tuple[str, types.ModuleType, Callable[..., Any]]]:
    for door in DOORS:
        module = importlib.import_module(f"meshard.{door}".rstrip("."))
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) and found.__module__.startswith("meshard."):
                yield f"{door}.{name}".lstrip("."), module, found


def returned(function: Callable[..., Any]) -> list[Any]:
    """What a function says that it returns, each of its overloads by itself."""
    own = inspect.unwrap(function)
    hints = []
    for f in get_overloads(own) or [own]:
        told = inspect.get_annotations(f).get("return", Any)
        hints.append(eval(told, own.__globals__) if isinstance(told, str) else told)
    return hints


def test_no_function_returns_anything_without_a_reason() -> None:
    bare = {name for name, _, f in functions() if all(hint is Any for hint in returned(f))}
    assert bare - set(ANYTHING) == set(), "say what they return, or here why it can be anything"
    assert set(ANYTHING) - bare == set(), "these say what they return, and need no reason"


def check_signatures() -> None:
    """Run the examples of all docstrings, and hold each result against the annotation."""
    untrue: dict[str, str] = {}
    called: set[str] = set()

    def held(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        hints = returned(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            called.add(name)
            if not any(holds(result, hint) for hint in hints):
                untrue[name] = f"{type(result).__name__}, not {hints}"
            return result

        return call

    examples = []
    for name, module, function in list(functions()):
        examples += doctest.DocTestFinder(recurse=False).find(inspect.unwrap(function), name)
        setattr(module, function.__name__, held(name, function))
    runner = doctest.DocTestRunner(verbose=False)
    for example in examples:
        runner.run(example, out=lambda _: None)
    assert untrue == {}
    assert len(called) > 150, f"only {len(called)} functions are called"


@pytest.mark.no_job
def test_functions_return_what_their_signatures_say() -> None:
    in_a_process("check_signatures()")
