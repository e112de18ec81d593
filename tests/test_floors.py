"""The tower's laws, read from the source with `ast` and never by importing it.

Imports point down only, wherever they are written: at the top of a module, inside a function,
under `TYPE_CHECKING`, or as a literal given to `import_module`. The laws are the tables below;
the second half of the file proves on small fake trees that every law can be broken.
"""

import ast
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "meshard"
MAX_LINES = 600

TOWER = ("errors", "tuning", "algebra", "plan", "runtime", "ops", "transforms")
DOORS = frozenset(
    {"numpy", "lax", "random", "sharding", "debug", "tree", "nn", "config", "gda", "resharding"}
    | {"distributed", "multihost_utils", "experimental"}
)
ROOF = frozenset({"cli", "testing"})
# The package itself, its version (seen by all), and `python -m meshard`.
PACKAGE, VERSION, MAIN = "meshard", "_version", "__main__"

# floor -> the floors that it may see, besides itself and the version.
SEES: dict[str, frozenset[str]] = {
    VERSION: frozenset(),
    **{floor: frozenset(TOWER[:height]) for height, floor in enumerate(TOWER)},
    **dict.fromkeys(("mpi", "checkpoint"), frozenset(TOWER[: TOWER.index("ops")])),
    **dict.fromkeys(("compat", "interop", "elastic"), frozenset(TOWER)),
}
FLOORS = frozenset(SEES)
SEES |= dict.fromkeys(DOORS, FLOORS)
SEES |= {PACKAGE: FLOORS | DOORS}
SEES |= dict.fromkeys(ROOF, FLOORS | DOORS | {PACKAGE})
SEES |= {MAIN: frozenset({"cli", PACKAGE})}

# floor -> what it may import from outside the standard library.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "errors": frozenset({"numpy"}),
    "tuning": frozenset(),
    "algebra": frozenset({"numpy"}),
    "plan": frozenset({"numpy", "scipy", "rich"}),
    "runtime": frozenset({"numpy", "threadpoolctl", "optree", "ml_dtypes"}),
    "ops": frozenset({"numpy", "scipy", "ml_dtypes", "opt_einsum"}),
    "transforms": frozenset({"numpy", "optree"}),
    "mpi": frozenset({"numpy", "mpi4py"}),
    "checkpoint": frozenset({"numpy", "ml_dtypes", "safetensors", "zarr"}),
    "compat": frozenset({"numpy"}),
    "interop": frozenset({"numpy", "jax", "torch"}),
    "elastic": frozenset({"numpy"}),
    "cli": frozenset({"numpy", "rich", "safetensors", "tokenizers"}),
    "testing": frozenset({"numpy", "hypothesis", "jax", "rich"}),
    # Doors pass on names such as float32 and bfloat16.
    **dict.fromkeys(DOORS, frozenset({"numpy", "ml_dtypes"})),
    PACKAGE: frozenset({"numpy", "ml_dtypes"}),
}

# Named exceptions, each with its reason. One that is no longer needed is itself an error.
# A module longer than MAX_LINES: "plan/steps.py" -> why.
LONG_MODULES: dict[str, str] = {}
# A door that sees another door: ("numpy", "lax") -> why.
DOOR_SEES_DOOR: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Import:
    """One import: the module named (`meshard.plan.steps`, `numpy.linalg`) and its line."""

    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    inside: Path  # the path as seen from the package folder

    @property
    def floor(self) -> str:
        """The floor that the module lies on: the first name below the package."""
        return floor_of(self.name)

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        is_package = self.path.name == "__init__.py"
        return self.name if is_package else self.name.rpartition(".")[0]

    def at(self, line: int) -> str:
        """The place of a line, as editors understand it."""
        return f"src/meshard/{self.inside.as_posix()}:{line}"


def floor_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def read_modules(root: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        parts = [PACKAGE, *inside.with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text, str(path)), inside)
    return modules


def resolve(package: str, level: int, name: str | None) -> str:
    """The absolute name of a relative import; level 0 is absolute already."""
    if level == 0:
        return name or ""
    parts = package.split(".")
    kept = parts[: len(parts) - (level - 1)]
    return ".".join([*kept, name] if name else kept)


def read_imports(module: Module, known: dict[str, Module]) -> Iterator[Import]:
    """All imports of a module, in all scopes."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = resolve(module.package, node.level, node.module)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                is_module = whole in known or (base == PACKAGE and alias.name in SEES)
                yield Import(whole if is_module else base, node.lineno)
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else None
            called = function.id if isinstance(function, ast.Name) else called
            first = node.args[0]
            literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if called in {"import_module", "__import__"} and literal:
                name = first.value.lstrip(".")
                yield Import(
                    resolve(module.package, len(first.value) - len(name), name), node.lineno
                )


def is_ours(target: str) -> bool:
    return target == PACKAGE or target.startswith(f"{PACKAGE}.")


def check_floor(module: Module, imports: list[Import]) -> Iterator[str]:
    """Imports point down only."""
    floor = module.floor
    if floor not in SEES:
        yield (
            f"{module.at(1)}: the tower has no floor named {floor!r}; put the module on one of "
            f"{', '.join([*TOWER, *sorted(FLOORS - {*TOWER, VERSION})])}, or make it a named door"
        )
        return
    sees = SEES[floor] | {floor, VERSION}
    sees |= {other for door, other in DOOR_SEES_DOOR if door == floor}
    for found in imports:
        if is_ours(found.target) and (other := floor_of(found.target)) not in sees:
            below = ", ".join(sorted(sees - {floor, VERSION})) or "nothing"
            yield (
                f"{module.at(found.line)}: {floor} imports {found.target}, but {other} is not "
                f"below {floor}; imports point down only, and {floor} may see {below}"
            )


def check_third_party(module: Module, imports: list[Import]) -> Iterator[str]:
    """Each floor has its own short list of outside packages."""
    allowed = THIRD_PARTY.get(module.floor, frozenset())
    for found in imports:
        top = found.target.partition(".")[0]
        if not is_ours(found.target) and top not in sys.stdlib_module_names | allowed:
            yield (
                f"{module.at(found.line)}: {module.floor} imports {found.target}; from outside "
                f"the standard library it may import {', '.join(sorted(allowed)) or 'nothing'}"
            )


def check_place(module: Module) -> Iterator[str]:
    """A module's name says what is in it."""
    parts = module.inside.with_suffix("").parts
    if "utils" in parts:
        yield f"{module.at(1)}: no utils; name the module after what it holds"
    if "core" in parts[:-1]:
        yield f"{module.at(1)}: no core/; a folder is a floor of the tower, named for what it does"


def check_length(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > MAX_LINES and module.inside.as_posix() not in LONG_MODULES:
        yield (
            f"{module.at(lines)}: the module has {lines} lines and may have {MAX_LINES}; split "
            f"it, or give LONG_MODULES in tests/test_floors.py a reason"
        )


def is_plain(value: ast.expr | None) -> bool:
    """Whether an expression only names things: names, attributes, constants, lists of them."""
    if isinstance(value, ast.List | ast.Tuple):
        return all(is_plain(element) for element in value.elts)
    if isinstance(value, ast.Dict):
        return all(is_plain(part) for part in [*value.keys, *value.values])
    if isinstance(value, ast.Starred | ast.Attribute):
        return is_plain(value.value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return is_plain(value.left) and is_plain(value.right)
    return value is None or isinstance(value, ast.Name | ast.Constant)


def is_door_statement(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[ast.Name(id="__getattr__")], value=ast.Call()):
            return True  # what a missing name says
        case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.AugAssign(value=value):
            return is_plain(value)
        case ast.FunctionDef(name="__getattr__"):
            return True
        case ast.If(
            test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="_TYPE_CHECKING")),
            body=[ast.Assign(targets=[ast.Name(id="__getattr__")])],
            orelse=[],
        ):
            return True  # of a door that lists its names itself
        case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test), body=[last], orelse=[]):
            return is_type_checking(test) and listing(last) is not None
        case ast.If(test=test, body=body, orelse=[] | [_] as last):
            only_imports = all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in body)
            lists = all(listing(inner) is not None for inner in last)
            return is_type_checking(test) and only_imports and lists
    return False


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition is TYPE_CHECKING, by the names that type checkers know it by."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def listing(node: ast.stmt) -> ast.Call | None:
    """The call that gives a door its ``__all__``, ``__dir__`` and ``__getattr__``, if it is one."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call):
            if [ast.unparse(n) for n in names] == ["__all__", "__dir__", "__getattr__"]:
                return call
    return None


def check_door(module: Module) -> Iterator[str]:
    """A door lists names and holds no logic."""
    if module.floor not in DOORS | {PACKAGE}:
        return
    for node in module.tree.body:
        if not is_door_statement(node):
            yield (
                f"{module.at(node.lineno)}: a door holds a docstring, imports, __all__, plain "
                f"assignments and at most a __getattr__, no logic; move this to the floor that "
                f"it belongs to"
            )
    yield from check_names(module)


def check_names(module: Module) -> Iterator[str]:
    """A door that lists what it imports imports it as type checkers see it, late names included."""
    calls = [call for node in ast.walk(module.tree) if (call := listing(node))]
    if not calls:
        return
    for node in ast.walk(module.tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if alias.asname != alias.name and not (alias.asname or "").startswith("_"):
                yield (
                    f"{module.at(node.lineno)}: type checkers do not see that a door passes "
                    f"{alias.name} on; import it as `{alias.name} as {alias.name}`, or as a name "
                    f"with a leading underscore"
                )
    late = {
        entry.value.replace(":", ".").rpartition(".")[2]: entry.lineno
        for keyword in calls[0].keywords
        if keyword.arg == "late"
        for entry in ast.walk(keyword.value)
        if isinstance(entry, ast.Constant)
    }
    seen = {
        alias.name: inner.lineno
        for node in module.tree.body
        if isinstance(node, ast.If) and is_type_checking(node.test)
        for inner in node.body
        for alias in inner.names
    }
    for name in sorted((late.keys() ^ seen.keys()) - ROOF):
        at = module.at(late.get(name) or seen[name])
        yield f"{at}: {name} is loaded late or seen by type checkers, but not both"


def check_exceptions(modules: dict[str, Module]) -> Iterator[str]:
    """An exception that is no longer needed goes."""
    lengths = {m.inside.as_posix(): len(m.text.splitlines()) for m in modules.values()}
    for path in LONG_MODULES:
        if lengths.get(path, 0) <= MAX_LINES:
            yield (
                f"src/meshard/{path}:1: LONG_MODULES excuses a module that is missing or has at "
                f"most {MAX_LINES} lines; take the line out"
            )


def check_circles(modules: dict[str, Module], imports: dict[str, list[Import]]) -> Iterator[str]:
    """No module imports itself by way of others: one sentence for each knot, its shortest circle.

    Importing `a.b` also runs `a/__init__.py`; that edge is Python's, not ours, and is not counted.
    """
    graph: dict[str, dict[str, int]] = {name: {} for name in modules}
    for name, found in imports.items():
        for one in found:
            if one.target in modules:
                graph[name].setdefault(one.target, one.line)
    reported: set[str] = set()
    for start in graph:
        if start in reported:
            continue
        circle = shortest_circle(graph, start)
        if circle:
            reported.update(circle)
            steps = "; ".join(
                f"{modules[name].at(graph[name][after])} imports {after}"
                for name, after in zip(circle, [*circle[1:], start], strict=True)
            )
            yield (
                f"{modules[start].at(graph[start][[*circle, start][1]])}: imports make a circle, "
                f"{' -> '.join([*circle, start])} ({steps}); no circles between modules"
            )


def shortest_circle(graph: dict[str, dict[str, int]], start: str) -> list[str]:
    """The modules of the shortest way from `start` back to itself, or nothing."""
    came_from: dict[str, str] = {}
    queue = deque([start])
    while queue:
        name = queue.popleft()
        for after in graph[name]:
            if after == start:
                path = [name]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if after not in came_from:
                came_from[after] = name
                queue.append(after)
    return []


def find_violations(modules: dict[str, Module]) -> list[str]:
    """Every broken law of a source tree, as sentences that begin with file:line."""
    imports = {name: list(read_imports(module, modules)) for name, module in modules.items()}
    found: list[str] = []
    for name, module in modules.items():
        found += check_place(module)
        found += check_floor(module, imports[name])
        found += check_third_party(module, imports[name])
        found += check_length(module)
        found += check_door(module)
    found += check_circles(modules, imports)
    found += check_exceptions(modules)
    return list(dict.fromkeys(found))


def test_the_source_keeps_the_laws() -> None:
    modules = read_modules(ROOT)
    assert modules, f"no modules under {ROOT}"
    violations = find_violations(modules)
    assert not violations, "\n\n" + "\n".join(violations)


# The checker itself: each law broken on a fake tree, and lawful trees that look suspicious.


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


LISTING = "if not TYPE_CHECKING:\n    __all__, __dir__, __getattr__ = _door(__name__)\n"
BROKEN: dict[str, tuple[dict[str, str], str]] = {
    "up the tower": (
        {"algebra/mesh.py": "import os\nfrom meshard.plan.steps import Step\n"},
        "src/meshard/algebra/mesh.py:2: algebra imports meshard.plan.steps, but plan is not below",
    ),
    "up, by the folder's name": (
        {"runtime/array.py": "from meshard import ops\n"},
        "array.py:1: runtime imports meshard.ops, but ops is not below",
    ),
    "up, inside a function": (
        {"plan/steps.py": "def f():\n    import meshard.runtime.blocks\n"},
        "plan/steps.py:2: plan imports meshard.runtime.blocks",
    ),
    "up, for types only": (
        {
            "runtime/array.py": "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from meshard.transforms.jit import Traced\n"
        },
        "runtime/array.py:3: runtime imports meshard.transforms.jit",
    ),
    "up, by a relative import": (
        {"ops/reduce.py": "from ..transforms import jit\n"},
        "ops/reduce.py:1: ops imports meshard.transforms",
    ),
    "up, by import_module": (
        {"algebra/box.py": "import importlib\nimportlib.import_module('meshard.ops.eager')\n"},
        "algebra/box.py:2: algebra imports meshard.ops.eager",
    ),
    "up, by a relative import_module": (
        {"ops/eager.py": "from importlib import import_module\nimport_module('..cli', 'x')\n"},
        "ops/eager.py:2: ops imports meshard.cli",
    ),
    "errors see nobody": (
        {"errors.py": "from meshard.algebra.mesh import Mesh\n"},
        "errors.py:1: errors imports meshard.algebra.mesh",
    ),
    "mpi never sees ops": (
        {"mpi/groups.py": "from meshard.ops.eager import add\n"},
        "mpi/groups.py:1: mpi imports meshard.ops.eager",
    ),
    "checkpoint never sees mpi": (
        {"checkpoint/save.py": "from meshard.mpi import launch\n"},
        "checkpoint/save.py:1: checkpoint imports meshard.mpi",
    ),
    "compat never sees interop": (
        {"compat/gda.py": "import meshard.interop.jax\n"},
        "compat/gda.py:1: compat imports meshard.interop.jax",
    ),
    "nobody sees the roof": (
        {"transforms/explain.py": "from meshard.cli import show\n"},
        "transforms/explain.py:1: transforms imports meshard.cli",
    ),
    "no door sees the roof": (
        {"debug.py": "from meshard.testing import laws\n"},
        "debug.py:1: debug imports meshard.testing",
    ),
    "cli and testing never see each other": (
        {"cli/__init__.py": "from meshard.testing import laws\n"},
        "cli/__init__.py:1: cli imports meshard.testing",
    ),
    "no floor sees a door": (
        {"transforms/jit.py": "import meshard.numpy as jnp\n"},
        "transforms/jit.py:1: transforms imports meshard.numpy",
    ),
    "no floor sees the package": (
        {"ops/eager.py": "from meshard import device_put\n"},
        "ops/eager.py:1: ops imports meshard, but meshard is not below",
    ),
    "no door sees another": (
        {"lax.py": "from meshard.numpy import add\n", "numpy.py": ""},
        "lax.py:1: lax imports meshard.numpy",
    ),
    "an unknown floor": (
        {"attic/things.py": ""},
        "attic/things.py:1: the tower has no floor named 'attic'",
    ),
    "an outside package": (
        {"algebra/layout.py": "import numpy as np\nimport scipy.sparse\n"},
        "algebra/layout.py:2: algebra imports scipy.sparse; from outside the standard library",
    ),
    "mpi4py outside mpi": (
        {"runtime/local.py": "def f():\n    from mpi4py import MPI\n"},
        "runtime/local.py:2: runtime imports mpi4py",
    ),
    "jax outside interop": (
        {"compat/multihost.py": "import jax\n"},
        "compat/multihost.py:1: compat imports jax",
    ),
    "a circle": (
        {
            "plan/a.py": "from meshard.plan import b\n",
            "plan/b.py": "def f():\n    from meshard.plan.c import x\n",
            "plan/c.py": "import meshard.plan.a\n",
        },
        "meshard.plan.a -> meshard.plan.b -> meshard.plan.c -> meshard.plan.a "
        "(src/meshard/plan/a.py:1 imports meshard.plan.b; src/meshard/plan/b.py:2",
    ),
    "a circle through the folder": (
        {
            "algebra/__init__.py": "from meshard.algebra.mesh import Mesh\n",
            "algebra/mesh.py": "from meshard.algebra import Box\n",
        },
        "meshard.algebra -> meshard.algebra.mesh -> meshard.algebra",
    ),
    "a module that imports itself": (
        {"plan/a.py": "import meshard.plan.a\n"},
        "meshard.plan.a -> meshard.plan.a",
    ),
    "utils.py": ({"plan/utils.py": ""}, "plan/utils.py:1: no utils"),
    "utils/": ({"ops/utils/__init__.py": ""}, "ops/utils/__init__.py:1: no utils"),
    "core/": ({"ops/core/mesh.py": ""}, "ops/core/mesh.py:1: no core/"),
    "a function in a door": (
        {"nn.py": '"""Door."""\n\ndef relu(x):\n    return x\n'},
        "nn.py:3: a door holds",
    ),
    "a call in a door": ({"config.py": "table = dict()\n"}, "config.py:1: a door holds"),
    "a loop in a door": (
        {"experimental/__init__.py": "for x in ():\n    pass\n"},
        "experimental/__init__.py:1: a door holds",
    ),
    "logic in the package": ({"__init__.py": "import os\nos.getcwd()\n"}, "__init__.py:2: a door"),
    "a name that type checkers do not see": (
        {"nn.py": f"from meshard.ops.nn import relu\n{LISTING}"},
        "nn.py:1: type checkers do not see that a door passes relu on",
    ),
    "a new name that type checkers do not see": (
        {"nn.py": f"from meshard.ops.nn import relu as rectified\n{LISTING}"},
        "nn.py:1: type checkers do not see that a door passes relu on",
    ),
    "a late name that type checkers do not see": (
        {
            "numpy.py": "if _typing.TYPE_CHECKING:\n    from meshard.ops.a import a as a\n"
            "else:\n    __all__, __dir__, __getattr__ = door('x', late=('p:a', 'p.b'))\n"
        },
        "numpy.py:4: b is loaded late or seen by type checkers, but not both",
    ),
    "a name that is seen by type checkers only": (
        {
            "numpy.py": "if _typing.TYPE_CHECKING:\n    from meshard.ops.a import a as a\n"
            "else:\n    __all__, __dir__, __getattr__ = door('x')\n"
        },
        "numpy.py:2: a is loaded late or seen by type checkers, but not both",
    ),
    "a condition that type checkers do not know": (
        {"nn.py": "if not _TYPE_CHECKING:\n    __all__, __dir__, __getattr__ = door('nn')\n"},
        "nn.py:1: a door holds",
    ),
    "logic for type checkers": (
        {"nn.py": "if TYPE_CHECKING:\n    x = f()\n"},
        "nn.py:1: a door holds",
    ),
    "a long module": (
        {"plan/steps.py": "x = 1\n" * (MAX_LINES + 1)},
        "plan/steps.py:601: the module has 601 lines and may have 600",
    ),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_found(law: str, tmp_path: Path) -> None:
    tree, sentence = BROKEN[law]
    violations = find_violations(read_modules(plant(tmp_path, tree)))
    assert len(violations) == 1, violations
    assert sentence in violations[0]


def test_a_lawful_tree_passes(tmp_path: Path) -> None:
    tree = {
        "__init__.py": '"""The tower."""\n'
        "from typing import TYPE_CHECKING\n"
        "from meshard import lax, numpy\n"
        "from meshard._version import __version__ as __version__\n"
        "from meshard.algebra.mesh import Mesh\n"
        "if TYPE_CHECKING:\n    from meshard.ops.eager import add\n"
        '__all__ = ["Mesh", "add"]\n'
        "def __getattr__(name):\n    import meshard.ops.eager as eager\n"
        "    return getattr(eager, name)\n",
        "__main__.py": "from meshard.cli import main\nmain()\n",
        "_version.py": '__version__ = "0.1.0"\n',
        "numpy.py": "import numpy as np\nfrom meshard.ops.eager import add\n"
        'float32 = np.float32\n__all__ = ["add", *["float32"]]\n'
        '__all__ += ["e"]\ne: float = np.e\n',
        "lax.py": "from meshard.ops.eager import add\n",
        "nn.py": "import typing as _typing\nfrom meshard.ops.eager import relu as relu\n"
        "from meshard.ops.eager import Array as _Array\nArray = _Array\n"
        "if _typing.TYPE_CHECKING:\n    from meshard.ops.eager import late as late\n"
        "else:\n    __all__, __dir__, __getattr__ = door('nn', late=('meshard.ops.eager:late',))\n",
        "tree.py": f"from meshard.ops.eager import leaves as leaves\n{LISTING}",
        "errors.py": "class MeshardError(Exception): ...\n",
        "algebra/__init__.py": "from meshard.algebra.mesh import Mesh\n",
        "algebra/mesh.py": "import numpy as np\nfrom . import box\n"
        "from ..errors import MeshardError\n",
        "algebra/box.py": "from __future__ import annotations\nimport math\n",
        "plan/steps.py": "from meshard.algebra import Mesh\nimport scipy.sparse\n",
        "ops/eager.py": "from meshard import errors\nfrom meshard.runtime import array\n",
        "runtime/array.py": "x = 1\n" * MAX_LINES,
        "mpi/transport.py": "import mpi4py.MPI\nfrom meshard.runtime import array\n",
        "interop/jax.py": "def f():\n    import jax\n",
        "cli/__init__.py": "import rich\nimport meshard\nfrom meshard import numpy, plan\n",
        "testing/laws.py": "import hypothesis\nfrom meshard.mpi import transport\n",
    }
    assert find_violations(read_modules(plant(tmp_path, tree))) == []


def test_a_named_exception_is_heard_and_must_be_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LONG_MODULES, "plan/steps.py", "one table")
    plant(tmp_path, {"plan/steps.py": "x = 1\n" * (MAX_LINES + 1)})
    assert find_violations(read_modules(tmp_path)) == []
    plant(tmp_path, {"plan/steps.py": "x = 1\n"})
    (violation,) = find_violations(read_modules(tmp_path))
    assert "LONG_MODULES excuses a module" in violation


def test_a_door_may_be_excused_for_seeing_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"lax.py": "from meshard.numpy import add\n", "numpy.py": ""})
    monkeypatch.setitem(DOOR_SEES_DOOR, ("lax", "numpy"), "shares its names")
    assert find_violations(read_modules(tmp_path)) == []
