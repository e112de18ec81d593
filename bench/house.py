"""The house in figures: how large, how tangled and how far away things are, for one tree or two.

    python -m bench.house                 this checkout
    python -m bench.house ../before .     two checkouts side by side, "before → after"
    python -m bench.house --limits        the functions beyond the limits, as the laws' golden file

In: the root folders of checkouts. Out: tables of lines, modules per folder, functions beyond the
limits, hidden doors, names with two meanings, `Any` in public signatures, and the calls that
operations make the second time. All but the last two are read from the source; those come from
`bench/house_calls.py`, which runs in an interpreter of its own that imports that tree's meshard.
"""

import argparse
import ast
import io
import itertools
import json
import os
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.report import console

PACKAGE = Path("src", "meshard")
HERE = Path(__file__).resolve().parents[1]
DEVICES = 8

# The limits of a function: lines without its docstring, parameters, decisions.
LIMITS = {"lines": 60, "parameters": 6, "complexity": 15}
VERY_COMPLEX = 20

FLOORS = (
    *("errors", "tuning", "algebra", "plan", "runtime", "ops", "transforms"),
    *("mpi", "weights", "compat", "interop", "resilience", "testing", "cli"),
)
DOORS = "doors"
HIDDEN_DOORS = (
    "getattr of an interpreter",
    'sys.modules["meshard..."]',
    "except Exception, not always raised",
)
DESCRIPTION = "What can be counted of one or two source trees, side by side."
WORST = 8
TOTAL = "in all"

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One module: its path below the package, its text, and the text parsed."""

    inside: Path
    text: str
    tree: ast.Module

    @property
    def floor(self) -> str:
        """The floor that the module is on; every module that is on none is a door."""
        first = self.inside.with_suffix("").parts[0]
        return first if first in FLOORS else DOORS


@dataclass(frozen=True)
class Function:
    """A function or method, and what its limits are about."""

    name: str  # "ops/fft.py:fftn", "algebra/mesh.py:Mesh.axis_size"
    line: int
    lines: int
    parameters: int
    complexity: int

    def beyond(self, public: Container[str] = ()) -> dict[str, int]:
        """What is beyond its limit; NumPy or JAX chose the parameters of a public function."""
        found = {limit: getattr(self, limit) for limit in LIMITS}
        if self.name in public:
            del found["parameters"]
        return {limit: value for limit, value in found.items() if value > LIMITS[limit]}


@dataclass(frozen=True)
class Section:
    """A table: what it is about, its columns, and the figures of each label."""

    title: str
    headings: tuple[str, ...]
    rows: Mapping[str, tuple[object, ...]]


SMALL = 60
"""Lines of code below which a module is small."""

# What a source tree says.


def read(root: Path) -> list[Source]:
    """The modules of a checkout; the root of the package itself will do as well."""
    package = root / PACKAGE if (root / PACKAGE).is_dir() else root
    sources = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        sources.append(Source(path.relative_to(package), text, ast.parse(text, str(path))))
    return sources


def docstring_lines(node: ast.AST) -> int:
    """How many lines the docstring of a module, class or function takes."""
    body = getattr(node, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return 0
    value = body[0].value
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return 0
    return (value.end_lineno or value.lineno) - value.lineno + 1


def kinds_of_lines(source: Source) -> tuple[int, int, int, int]:
    """Lines of code, of docstrings, of comments alone, and blank ones outside docstrings."""
    owners = (ast.Module, ast.ClassDef, AnyFunction)
    docs = sum(docstring_lines(node) for node in ast.walk(source.tree) if isinstance(node, owners))
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    comments = {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    }
    blank_docs = sum(
        not line.strip()
        for node in ast.walk(source.tree)
        if isinstance(node, owners) and docstring_lines(node)
        for line in (ast.get_docstring(node, clean=False) or "").splitlines()
    )
    lines = source.text.splitlines()
    blank = sum(not line.strip() for line in lines) - blank_docs
    return len(lines) - docs - len(comments) - blank, docs, len(comments), blank


def decisions(function: AnyFunction) -> int:
    """One more than the places where a function decides, inner functions included.

    Stricter than ruff's C901: conditional expressions, `and` and `or`, comprehensions and asserts
    are decisions too.
    """
    found = 1
    for node in ast.walk(function):
        match node:
            case ast.If() | ast.IfExp() | ast.Assert() | ast.ExceptHandler() | ast.match_case():
                found += 1
            case ast.For() | ast.AsyncFor() | ast.While():
                found += 1 + bool(node.orelse)
            case ast.BoolOp():
                found += len(node.values) - 1
            case ast.comprehension():
                found += 1 + len(node.ifs)
    return found


def parameters_of(function: AnyFunction) -> int:
    """The parameters that a caller chooses: without `self`, `cls`, `*args` and `**kwargs`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def functions(source: Source) -> Iterator[Function]:
    """Every function, method and inner function of a module."""

    def walk(node: ast.AST, owner: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # no function is defined in there
            inner = owner
            if isinstance(child, (ast.ClassDef, AnyFunction)):
                inner = f"{owner}.{child.name}" if owner else child.name
            if isinstance(child, AnyFunction):
                whole = (child.end_lineno or child.lineno) - child.lineno + 1
                yield Function(
                    f"{source.inside.as_posix()}:{inner}",
                    child.lineno,
                    whole - docstring_lines(child),
                    parameters_of(child),
                    decisions(child),
                )
            yield from walk(child, inner)

    return walk(source.tree, "")


def type_names(source: Source) -> set[str]:
    """The classes and the aliases of types that a module defines at its top level."""
    found = set()
    for node in source.tree.body:
        match node:
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()):
                # Types are written in capitals and small letters, constants in capitals alone.
                if name.lstrip("_")[:1].isupper() and not name.isupper():
                    found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                found.add(name)
    return found


def hidden_doors(source: Source) -> Iterator[tuple[str, int]]:
    """The kind and the line of what reaches upwards unseen by the law of imports.

    An attribute of an interpreter that may not be there, a module of ours looked up in
    `sys.modules`, and an `except Exception` that can swallow what it catches.
    """
    interpreters = {"interpreter"} | {
        name.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign | ast.NamedExpr) and gives_interpreter(node.value)
        for name in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(name, ast.Name)
    }
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[first, *_]):
                named = isinstance(first, ast.Name) and first.id in interpreters
                if named or gives_interpreter(first):
                    yield HIDDEN_DOORS[0], node.lineno
            case (
                ast.Subscript(value=table, slice=ast.Constant(value=str(name)))
                | ast.Call(
                    func=ast.Attribute(value=table), args=[ast.Constant(value=str(name)), *_]
                )
            ) if ast.unparse(table) == "sys.modules" and name.startswith("meshard"):
                yield HIDDEN_DOORS[1], node.lineno
            case ast.ExceptHandler(type=caught) if catches_all(caught):
                if not isinstance(node.body[-1], ast.Raise):
                    yield HIDDEN_DOORS[2], node.lineno


def gives_interpreter(value: ast.expr) -> bool:
    """Whether an expression is a call of `innermost`."""
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Name) and function.id == "innermost"


def catches_all(caught: ast.expr | None) -> bool:
    """Whether a handler catches everything: it names `Exception`, or nothing."""
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(n is None or (isinstance(n, ast.Name) and n.id == "Exception") for n in names)


def private_all(source: Source) -> int:
    """How many lines a module below the doors spends on an `__all__`."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in source.tree.body
        if source.floor not in (DOORS, "testing") and isinstance(node, ast.Assign | ast.AugAssign)
        for name in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(name, ast.Name) and name.id == "__all__"
    )


def published(sources: Sequence[Source]) -> set[str]:
    """The functions that doors pass on, as `module:name`: NumPy or JAX chose their parameters."""
    found = set()
    for source in sources:
        if source.floor != DOORS and source.inside.as_posix() != "testing/__init__.py":
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                module = "/".join(node.module.split(".")[1:])
                found |= {f"{module}.py:{alias.name}" for alias in node.names}
    return found


def beyond_limits(sources: Sequence[Source]) -> list[tuple[Function, dict[str, int]]]:
    """The functions that break a limit, by name, each with what is beyond its limit."""
    public = published(sources)
    every = itertools.chain.from_iterable(map(functions, sources))
    found = [(function, beyond) for function in every if (beyond := function.beyond(public))]
    return sorted(found, key=lambda pair: pair[0].name)


def limits_text(sources: Sequence[Source]) -> str:
    """The functions beyond the limits as lines: `ops/fft.py:fftn lines=70 complexity=18`."""
    return "".join(
        f"{function.name} {' '.join(f'{limit}={value}' for limit, value in beyond.items())}\n"
        for function, beyond in beyond_limits(sources)
    )


# The tables.


def line_section(sources: Sequence[Source]) -> Section:
    """Lines by floor."""
    floors: dict[str, Counter[str]] = {}
    headings = ("code", "docstring", "comment", "blank")
    for source in sorted(sources, key=lambda source: [*FLOORS, DOORS].index(source.floor)):
        found = dict(zip(headings, kinds_of_lines(source), strict=True))
        for floor in (source.floor, TOTAL):
            floors.setdefault(floor, Counter()).update(found)
    floors[TOTAL] = floors.pop(TOTAL)
    rows = {
        floor: (*(kinds[h] for h in headings), kinds.total()) for floor, kinds in floors.items()
    }
    return Section("Lines", (*headings, TOTAL), rows)


def folder_section(sources: Sequence[Source]) -> Section:
    """Modules of each folder, without its `__init__`."""
    folders = Counter(s.inside.parent.as_posix() for s in sources if s.inside.stem != "__init__")
    rows: dict[str, tuple[object, ...]] = {name: (folders[name],) for name in sorted(folders)}
    return Section("Modules in a folder", ("modules",), {**rows, TOTAL: (folders.total(),)})


def count_section(sources: Sequence[Source]) -> Section:
    """What there should be less of, counted."""
    every = list(itertools.chain.from_iterable(map(functions, sources)))
    public = published(sources)
    private = [lines for source in sources if (lines := private_all(source))]
    counts = {
        f"functions over {most} in {limit}": sum(limit in f.beyond() for f in every)
        for limit, most in LIMITS.items()
    }
    counts["modules of rooms"] = sum(s.inside.name != "__init__.py" for s in sources)
    counts[f"modules of less than {SMALL} lines of code"] = sum(
        kinds_of_lines(s)[0] < SMALL for s in sources if s.inside.name != "__init__.py"
    )
    counts |= {
        f"functions over {VERY_COMPLEX} in complexity": sum(
            f.complexity > VERY_COMPLEX for f in every
        ),
        "functions over a limit, to be split": sum(bool(f.beyond(public)) for f in every),
        "functions": len(every),
        "private __all__, modules": len(private),
        "private __all__, lines": sum(private),
        "names of types with two meanings": len(two_meanings(sources)),
    }
    doors = Counter(kind for source in sources for kind, _ in hidden_doors(source))
    for kind in HIDDEN_DOORS:
        counts[kind] = doors[kind]
    return Section("Counts", ("found",), {label: (count,) for label, count in counts.items()})


def two_meanings(sources: Sequence[Source]) -> dict[str, int]:
    """The names of types that several modules define, the most frequent first."""
    found = Counter(name for source in sources for name in type_names(source))
    return {name: count for name, count in found.most_common() if count > 1}


def worst_names(sources: Sequence[Source]) -> dict[str, list[str]]:
    """The worst of what was counted, by name, one list for each kind."""
    every = list(itertools.chain.from_iterable(map(functions, sources)))
    public = published(sources)
    found = {}
    for limit in LIMITS:
        worst = sorted(every, key=lambda f: -f.beyond(public).get(limit, 0))[:WORST]
        found[f"most {limit}"] = [
            f"{f.name} {f.beyond(public)[limit]}" for f in worst if limit in f.beyond(public)
        ]
    meanings = two_meanings(sources).items()
    found["two meanings"] = [", ".join(f"{name} x{count}" for name, count in meanings)]
    found["hidden doors"] = [
        f"{source.inside.as_posix()}:{line} {kind}"
        for source in sources
        for kind, line in hidden_doors(source)
    ]
    return found


def measured_sections(root: Path) -> list[Section]:
    """What an interpreter of its own measures with the tree's meshard; nothing where it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    environment |= {"PYTHONPATH": str(root / "src"), "MESHARD_NUM_DEVICES": str(DEVICES)}
    command = [sys.executable, "-P", str(Path(__file__).with_name("house_calls.py"))]
    done = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{root}: its meshard could not be measured: {last}", file=sys.stderr)
        return []
    return [Section(**section) for section in json.loads(done.stdout.splitlines()[-1])]


def merged(cells: Sequence[object]) -> str:
    """One cell of the table: the figure, or the figures of two trees if they differ."""
    texts = ["-" if cell is None else f"{cell:,}" for cell in cells]
    return texts[0] if len(set(texts)) == 1 else " → ".join(texts)


def show(out: Console, sections: Sequence[Section | None]) -> None:
    """Print one section of all trees as one table."""
    present = [section for section in sections if section is not None]
    table = Table(title=present[0].title, title_justify="left")
    table.add_column("")
    for heading in present[0].headings:
        table.add_column(heading, justify="right", no_wrap=True)
    labels = dict.fromkeys(label for section in reversed(present) for label in section.rows)
    for label in sorted(labels, key=lambda label: label == TOTAL):
        none = (None,) * len(present[0].headings)
        rows = [none if s is None else s.rows.get(label, none) for s in sections]
        table.add_row(escape(label), *map(merged, zip(*rows, strict=True)))
    out.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the trees and print the tables; 0 always, for the laws are held by the tests."""
    parser = argparse.ArgumentParser(prog="python -m bench.house", description=DESCRIPTION)
    parser.add_argument(
        "trees", nargs="*", type=Path, metavar="TREE", help="the root of a checkout; at most two"
    )
    parser.add_argument(
        "--limits", action="store_true", help="print tests/golden/limits.txt of the tree instead"
    )
    chosen = parser.parse_args(arguments)
    roots = [tree.resolve() for tree in chosen.trees or [HERE]]
    if len(roots) > 2 or not all((root / PACKAGE).is_dir() for root in roots):
        parser.error(f"give one or two checkouts, folders that hold {PACKAGE}")
    trees = [read(root) for root in roots]
    if chosen.limits:
        print(limits_text(trees[-1]), end="")
        return 0
    out = console()
    out.print(" → ".join(map(str, roots)))
    for section in (line_section, folder_section, count_section):
        show(out, [section(sources) for sources in trees])
    for root, sources in zip(roots, trees, strict=True):
        out.print(f"\n[bold]{escape(str(root))}[/]")
        for title, names in worst_names(sources).items():
            out.print(f"[bold]{title}[/]")
            for name in names:
                out.print(f"  {escape(name)}")
    for sections in itertools.zip_longest(*map(measured_sections, roots)):
        show(out, sections)
    return 0


if __name__ == "__main__":
    sys.exit(main())
