"""What `python -m bench.house` counts, on a tree small enough to count by hand."""

from pathlib import Path

import pytest

from bench import house

SMALL = {
    **dict.fromkeys(
        ("algebra/box", "algebra/device", "algebra/frozen", "algebra/pictured"),
        "a value, or what values have in common, seen by all floors",
    ),
    **dict.fromkeys(
        ("compat/settings", "runtime/memory/memory", "plan/show/pictured", "ops/derivatives/table"),
        "a protocol or a table: what many others meet at",
    ),
    **dict.fromkeys(
        ("cli/errors", "cli/examples", "cli/join", "interop/torch", "transforms/install"),
        "a door, or what only commands share",
    ),
    **dict.fromkeys(
        (
            "ops/reductions/short_argmax",
            "transforms/derivatives/each",
            "weights/checkpoint/one_array",
        ),
        "its names are those of a neighbour, which it would hide",
    ),
    **dict.fromkeys(
        ("compat/array_api", "compat/jit_results", "ops/made/raveled", "testing/virtual"),
        "loaded by those alone who ask for it",
    ),
    "transforms/constraint": "used by several rooms, of which none sees the others",
}
"""Modules that are small, and why; the list only shrinks."""

STEPS = '''"""Steps.

In: nothing.
"""

import sys

# A comment.
Run = list[int]  # not a comment alone


class Step:
    """A step."""

    def go(self, a, *more, b=1 if sys else 2, **options):
        """Go."""
        return [x for x in more if x and a or b]


def watch(interpreter):
    try:
        return getattr(interpreter, "later")
    except Exception:
        return sys.modules["meshard.numpy"]
'''


@pytest.fixture
def sources(tmp_path: Path) -> list[house.Source]:
    for name, text in (("plan/steps.py", STEPS), ("ops/run.py", "class Run: ...\n")):
        path = tmp_path / "src" / "meshard" / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return house.read(tmp_path)


def test_each_line_is_of_one_kind(sources: list[house.Source]) -> None:
    steps = sources[1]
    code, docstring, comment, blank = house.kinds_of_lines(steps)
    assert (code, docstring, comment, blank) == (10, 6, 1, 7)
    assert code + docstring + comment + blank == len(STEPS.splitlines())


def test_functions_are_measured(sources: list[house.Source]) -> None:
    go, watch = house.functions(sources[1])
    assert (go.name, go.lines, go.parameters) == ("plan/steps.py:Step.go", 2, 2)
    assert go.complexity == 1 + 1 + 2 + 2  # a conditional, a comprehension with its if, and, or
    assert (watch.lines, watch.complexity) == (5, 2)


def test_names_and_doors_are_found(sources: list[house.Source]) -> None:
    assert house.two_meanings(sources) == {"Run": 2}
    kinds = [kind for source in sources for kind, _ in house.hidden_doors(source)]
    assert sorted(kinds) == sorted(house.HIDDEN_DOORS)


def test_few_modules_are_small() -> None:
    """A module is an idea, not a function: what is small is joined with its neighbour."""
    small = {
        source.inside.with_suffix("").as_posix()
        for source in house.read(house.HERE)
        if source.floor != house.DOORS and source.inside.name != "__init__.py"
        if source.inside.parts[:2] != ("cli", "commands")
        and house.kinds_of_lines(source)[0] < house.SMALL
    }
    grown, gone = sorted(small - SMALL.keys()), sorted(SMALL.keys() - small)
    assert not grown, f"fewer than {house.SMALL} lines of code: join them with neighbours: {grown}"
    assert not gone, f"no longer small, or gone: take them out of SMALL: {gone}"


def test_this_tree_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert house.main([str(house.HERE), "--limits"]) == 0
    shown = capsys.readouterr().out
    assert shown == (house.HERE / "tests" / "golden" / "limits.txt").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        house.main([str(tmp_path)])
    assert "give one or two checkouts" in capsys.readouterr().err
