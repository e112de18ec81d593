"""The tower's laws, read from the source with `ast` and never by importing it.

Imports point down only, wherever they are written: at the top of a module, inside a function,
under `TYPE_CHECKING`, or as a literal given to `import_module`. A folder below a floor is a room,
and so is a module that is on a floor itself: rooms are small and make no circle. Nor are there
hidden doors upwards: probes for what only a higher floor has, strings that name one, errors of all
kinds as an answer. The laws are the tables below; the second half of the file proves on small fake
trees that every law can be broken.

Functions have limits too; those beyond them are frozen in `golden/limits.txt`, which only shrinks:
`python -m bench.house --limits > tests/golden/limits.txt` writes it again.
"""

import ast
import itertools
import sys
from collections import Counter, deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import pytest

from bench import house

ROOT = Path(__file__).resolve().parent.parent / "src" / "meshard"
LIMITS = Path(__file__).resolve().parent / "golden" / "limits.txt"
MAX_MODULES = 14

TOWER = ("errors", "tuning", "settings", "algebra", "plan", "runtime", "ops", "transforms")
DOORS = frozenset(
    {"numpy", "lax", "random", "sharding", "debug", "tree", "nn", "config", "gda", "resharding"}
    | {"ad_checkpoint", "checkpoint_policies", "optim", "scipy"}
    | {"checkpoint", "elastic", "distributed", "multihost_utils", "experimental", "typing"}
    | {"array_api", "dtypes", "flatten_util", "tree_util"}
)
ROOF = frozenset({"cli", "testing"})
# The package itself, its version (seen by all), and `python -m meshard`.
PACKAGE, VERSION, MAIN = "meshard", "_version", "__main__"

# floor -> the floors that it may see, besides itself and the version.
SEES: dict[str, frozenset[str]] = {
    VERSION: frozenset(),
    **{floor: frozenset(TOWER[:height]) for height, floor in enumerate(TOWER)},
    "mpi": frozenset(TOWER[: TOWER.index("ops")]),
    **dict.fromkeys(("compat", "weights"), frozenset(TOWER)),
    "interop": frozenset({*TOWER, "mpi", "weights"}),
    "resilience": frozenset({*TOWER, "weights"}),
    "environment": frozenset({*TOWER, "compat"}),
}
FLOORS = frozenset(SEES)
SEES |= dict.fromkeys(DOORS, FLOORS)
SEES |= {PACKAGE: FLOORS | DOORS}
SEES |= dict.fromkeys(ROOF, FLOORS | DOORS | {PACKAGE})
SEES |= {MAIN: frozenset({"cli", PACKAGE})}

# floor -> what it may import from outside the standard library.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "errors": frozenset({"numpy"}),
    **dict.fromkeys(("tuning", "settings", "environment"), frozenset()),
    "algebra": frozenset({"numpy"}),
    "plan": frozenset({"numpy", "scipy", "rich"}),
    "runtime": frozenset({"numpy", "threadpoolctl", "optree", "ml_dtypes"}),
    "ops": frozenset({"numpy", "scipy", "ml_dtypes", "opt_einsum"}),
    "transforms": frozenset({"numpy", "optree"}),
    "mpi": frozenset({"numpy", "mpi4py"}),
    "weights": frozenset({"numpy", "ml_dtypes", "optree", "xxhash", "zarr", "h5py"}),
    "compat": frozenset({"numpy"}),
    "interop": frozenset(
        {"numpy", "scipy", "ml_dtypes", "jax", "llvmlite", "torch", "dask", "zarr"}
    ),
    "resilience": frozenset({"numpy", "optree", "rich", "xxhash"}),
    "cli": frozenset({"numpy", "click", "rich", "safetensors", "tokenizers"}),
    "testing": frozenset({"numpy", "hypothesis", "jax", "rich"}),
    # Doors pass on names such as float32 and bfloat16.
    **dict.fromkeys(DOORS, frozenset({"numpy", "ml_dtypes"})),
    PACKAGE: frozenset({"numpy", "ml_dtypes"}),
}

# Named exceptions, each with its reason. One that is no longer needed is itself an error.
# A folder with more than MAX_MODULES: "plan/hops" -> why.
FULL_FOLDERS: dict[str, str] = {
    ".": "the names that users import from, a module each",
    "algebra": "a value each: what all other floors are made of",
}
# A door that sees another door: ("numpy", "lax") -> why.
DOOR_SEES_DOOR: dict[tuple[str, str], str] = {}
# A function that catches all errors and raises none: "plan/steps.py:f" -> why.
CATCHES_ALL: dict[str, str] = {
    "algebra/arguments.py:shown": "a repr of the caller's may raise anything, and a message must "
    "still be written",
    "runtime/memory/workers.py:drain": "raised in the caller's thread, once all tasks have ended",
    "runtime/memory/workers.py:run": "raised once the helpers have finished their tasks",
    "runtime/moving/moved.py:told": "raised when nothing of the move is half done",
    "plan/show/progress.py:tell": "raised when the work is done, on which other processes count",
    "weights/checkpoint/save.py:run": "raised by the handle's wait, or told at the program's end",
    "resilience/feeding/feed.py:_run": "raised by the task's result",
    "resilience/feeding/serve.py:go_on": "told to the job that asked, and raised there",
    "transforms/body/members.py:_run": "raised in the thread that waits for the run",
    "runtime/simulated.py:body": "raised in the caller's thread",
    "interop/tensors/agreeing.py:checked_by_all": "told to the others, raised when they know",
    "mpi/launch.py:_made": "the job is aborted, since the other processes wait for this one",
}
# A module that names a higher floor in a string: "plan/steps.py" -> why.
NAMES_HIGHER: dict[str, str] = {
    "algebra/attributes.py": "the doors where a name is looked for that a module does not have",
    "runtime/callers.py": "modules whose frames count as the user's",
}

# Values that are asked what they are by their type or a method, never by a probe.
PROBED_VALUES = frozenset({"interpreter", "body", "outer", "recorder", "grid"})
INTERPRETERS = frozenset({"innermost", "current", "interpreters", "tracing", "recording"})
# What only values of meshard's own have: their classes are asked for.
PROBED_ATTRIBUTES = frozenset({"cells", "vma", "body", "recorder", "weak", "_type"})


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

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree; those of inner scopes come later."""
        return list(ast.walk(self.tree))

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
    for node in module.nodes:
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


def check_folders(modules: dict[str, Module], excused: Container[str]) -> Iterator[str]:
    """A folder is small enough to be known by heart; `__init__` is not counted."""
    for folder, count in count_modules(modules).items():
        if count > MAX_MODULES and folder not in excused:
            yield (
                f"src/meshard/{folder}/__init__.py:1: the folder has {count} modules and may have "
                f"{MAX_MODULES}; join those that are one idea or make a room of some, or give "
                f"FULL_FOLDERS in tests/test_floors.py a reason"
            )


def count_modules(modules: dict[str, Module]) -> Counter[str]:
    paths = [module.inside for module in modules.values()]
    return Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")


def room_of(name: str) -> str:
    """The room that a module is in: a folder below a floor, or else the module itself."""
    return ".".join(name.split(".")[:3])


def check_rooms(modules: dict[str, Module]) -> Iterator[str]:
    """The `__init__` of a room says what the room is for, and passes nothing on."""
    for name, module in modules.items():
        room = module.inside.parent
        if len(room.parts) < 2 or module.floor in DOORS:
            continue
        if ".".join([PACKAGE, *room.parts]) not in modules:
            yield f"{module.at(1)}: the room {room} has no __init__.py that says what it is for"
        elif module.path.name == "__init__.py" and len(module.tree.body) != 1:
            after = module.tree.body[1].lineno if module.tree.body else 1
            yield (
                f"{module.at(after)}: the __init__ of a room holds one docstring and nothing "
                f"else; import from the modules of {name} instead"
            )
        elif module.path.name == "__init__.py" and ast.get_docstring(module.tree) is None:
            yield f"{module.at(1)}: the __init__ of a room holds one docstring and nothing else"


def check_functions(
    modules: dict[str, Module], frozen: Mapping[str, Mapping[str, int]]
) -> Iterator[str]:
    """A function is short, has few parameters and decides little; exceptions only shrink."""
    sources = [house.Source(m.inside, m.text, m.tree) for m in modules.values()]
    found: dict[str, dict[str, int]] = {}
    for function, beyond in house.beyond_limits(sources):
        path, _, name = function.name.partition(":")
        found.setdefault(function.name, {}).update(beyond)
        for limit, value in beyond.items():
            most = frozen.get(function.name, {}).get(limit, house.LIMITS[limit])
            if value > most:
                yield (
                    f"src/meshard/{path}:{function.line}: {name} is beyond a limit, {limit} "
                    f"{value} of at most {most}; take a part out that deserves a name, or change "
                    f"the mechanism"
                )
    for name, limits in frozen.items():
        for limit, value in limits.items():
            if found.get(name, {}).get(limit, 0) < value:
                yield (
                    f"src/meshard/{name.partition(':')[0]}:1: golden/limits.txt allows {name} "
                    f"{limit} {value}, which it no longer needs; write the file again: "
                    f"python -m bench.house --limits > tests/golden/limits.txt"
                )


def read_limits() -> dict[str, dict[str, int]]:
    """The functions beyond the limits, by name: `ops/fft.py:fftn lines=70 complexity=18`."""
    found: dict[str, dict[str, int]] = {}
    for line in LIMITS.read_text(encoding="utf-8").splitlines():
        name, *limits = line.split()
        pairs = (limit.split("=") for limit in limits)
        found[name] = {limit: int(value) for limit, value in pairs}
    return found


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
        case ast.Expr(
            value=ast.Call(
                func=ast.Name(id="_install_namespace"), args=[ast.Constant()], keywords=[]
            )
        ):
            return True  # it is what `__array_namespace__` returns
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
    yield from check_listing(module)


def check_listing(module: Module) -> Iterator[str]:
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


def check_exceptions(modules: dict[str, Module], excused: Iterable[str]) -> Iterator[str]:
    """An exception that is no longer needed goes."""
    folders = count_modules(modules)
    for folder in excused:
        if folders[folder] <= MAX_MODULES:
            yield (
                f"src/meshard/{folder}/__init__.py:1: FULL_FOLDERS excuses a folder that is "
                f"missing or has at most {MAX_MODULES} modules; take the line out"
            )
    caught = {f"{m.inside.as_posix()}:{f}" for m in modules.values() for f, _ in catchers(m)}
    named = {m.inside.as_posix() for m in modules.values() if any(higher_names(m))}
    for table, excused, needed in (
        ("CATCHES_ALL", CATCHES_ALL, caught),
        ("NAMES_HIGHER", NAMES_HIGHER, named),
    ):
        for place in excused:
            if place not in needed:
                path = place.partition(":")[0]
                yield f"src/meshard/{path}:1: {table} excuses {place} without need; take it out"


Graph = dict[str, dict[str, str]]
"""For each module, or room, those that it imports, and where it does."""


def check_circles(modules: dict[str, Module], imports: dict[str, list[Import]]) -> Iterator[str]:
    """No module imports itself by way of others.

    Importing `a.b` also runs `a/__init__.py`; that edge is Python's, not ours, and is not counted.
    """
    graph: Graph = {name: {} for name in modules}
    for name, found in imports.items():
        for one in found:
            if one.target in modules:
                graph[name].setdefault(one.target, f"{modules[name].at(one.line)}")
    for circle in circles(graph):
        yield told(graph, circle, "imports make a circle", "no circles between modules")


def check_circles_of_rooms(
    modules: dict[str, Module], imports: dict[str, list[Import]]
) -> Iterator[str]:
    """The rooms of one floor stand one above the other, though their modules make no circle."""
    graph: Graph = {room_of(name): {} for name in modules}
    folders = {room_of(name) for name in modules if name.count(".") > 2}
    for name, found in imports.items():
        for one in found:
            here, there = room_of(name), room_of(one.target)
            if one.target in modules and here != there and floor_of(here) == floor_of(there):
                graph[here].setdefault(there, f"{modules[name].at(one.line)}")
    for circle in circles(graph):
        if folders & {*circle}:  # a circle of lone modules is told already
            yield told(graph, circle, "rooms make a circle", "no circles between rooms")


def circles(graph: Graph) -> Iterator[list[str]]:
    """The shortest circle of each knot, the first name first and last."""
    reported: set[str] = set()
    for start in graph:
        if start not in reported and (circle := shortest_circle(graph, start)):
            reported.update(circle)
            yield [*circle, start]


def told(graph: Graph, circle: list[str], what: str, law: str) -> str:
    """A circle as a sentence, with the line of each of its imports."""
    places = [(graph[a][b], b) for a, b in itertools.pairwise(circle)]
    steps = "; ".join(f"{place} imports {after}" for place, after in places)
    return f"{places[0][0]}: {what}, {' -> '.join(circle)} ({steps}); {law}"


def shortest_circle(graph: Graph, start: str) -> list[str]:
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


def last_name(node: ast.expr) -> str:
    """The last name of a dotted expression; of a call, that of what is called."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function) | ast.Subscript(value=function):
            return last_name(function)
    return ""


def attributes_of(modules: dict[str, Module]) -> dict[str, set[str]]:
    """The floors whose classes define an attribute: a method, a field, a slot or ``self.x``."""
    found: dict[str, set[str]] = {}
    for module in modules.values():
        if "class " not in module.text:
            continue
        for cls in (n for n in module.tree.body if isinstance(n, ast.ClassDef)):
            for node in ast.walk(cls):
                match node:
                    case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                        found.setdefault(name, set()).add(module.floor)
                    case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                        for slot in ast.walk(value):
                            if isinstance(slot, ast.Constant):
                                found.setdefault(slot.value, set()).add(module.floor)
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                        found.setdefault(name, set()).add(module.floor)
    return found


def check_probes(module: Module, defined: dict[str, set[str]]) -> Iterator[str]:
    """Nobody asks a value whether it has what only a higher floor, or an interpreter, has."""
    if "getattr(" not in module.text and "hasattr(" not in module.text:
        return
    named: dict[str, str] = {}
    for node in module.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
                named[name] = last_name(value)
            case ast.For(target=ast.Name(id=name), iter=value):
                named[name] = last_name(value.args[0] if is_reversed(value) else value)
    sees = SEES.get(module.floor, frozenset()) | {module.floor}
    for node in module.nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" as probe),
                args=[value, ast.Constant(value=str() as attribute), *_],
            ):
                name = last_name(value)
                higher = defined.get(attribute, set())
                protocol = attribute.startswith("__")
                above = bool(higher) and not higher & sees and not protocol
                asked = {name, named.get(name, "")} & (INTERPRETERS | PROBED_VALUES)
                hidden = attribute in PROBED_ATTRIBUTES and module.floor in TOWER
                if above or asked or hidden:
                    yield (
                        f"{module.at(node.lineno)}: {probe}({ast.unparse(value)}, {attribute!r}) "
                        f"is a hidden door upwards; name the method, with a default, in the base "
                        f"class (Interpreter in runtime/doors.py, Traced in runtime/array)"
                    )


def is_reversed(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value) == "reversed" and bool(value.args)


def check_names(module: Module) -> Iterator[str]:
    """No string names a higher floor."""
    if module.floor not in FLOORS or module.inside.as_posix() in NAMES_HIGHER:
        return
    for line, text in higher_names(module):
        yield (
            f"{module.at(line)}: {text!r} names a module that is not below {module.floor}; let "
            f"that module register what is needed here"
        )


def higher_names(module: Module) -> Iterator[tuple[int, str]]:
    sees = SEES.get(module.floor, frozenset()) | {module.floor, VERSION}
    imported = {(i.target, i.line) for i in read_imports(module, {})}
    for node in module.nodes:
        match node:
            case ast.Constant(value=str() as text) if text.startswith(f"{PACKAGE}."):
                if (text, node.lineno) in imported:
                    continue
                parts = text.split(".")
                if all(p.isidentifier() for p in parts) and {parts[1]} & (SEES.keys() - sees):
                    yield node.lineno, text
            case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(value=text)):
                if text == PACKAGE:
                    yield node.lineno, text


def catchers(module: Module) -> Iterator[tuple[str, int]]:
    """The functions that catch all errors and raise none, each with the line."""
    if "except" not in module.text and "suppress" not in module.text:
        return
    inside: dict[ast.AST, str] = {}  # inner functions come later, and have the last word
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef):
            inside |= dict.fromkeys(ast.walk(node), node.name)
    for node in module.nodes:
        match node:
            case ast.ExceptHandler(type=caught, body=body):
                raises = any(isinstance(n, ast.Raise) for part in body for n in ast.walk(part))
                if not raises and (caught is None or is_all(caught)):
                    yield inside.get(node, ""), node.lineno
            case ast.Call(args=args) if last_name(node) == "suppress" and any(map(is_all, args)):
                yield inside.get(node, ""), node.lineno


def is_all(caught: ast.expr) -> bool:
    """Whether an expression names the class of all errors."""
    return any(
        isinstance(n, ast.Name) and n.id in {"Exception", "BaseException"} for n in ast.walk(caught)
    )


def check_catches(module: Module) -> Iterator[str]:
    """Whoever catches all errors raises one: an error is never the answer to a question."""
    for function, line in catchers(module):
        if f"{module.inside.as_posix()}:{function}" not in CATCHES_ALL:
            yield (
                f"{module.at(line)}: catches all errors and raises none; ask first, catch the "
                f"errors that are meant, or give CATCHES_ALL in tests/test_floors.py a reason"
            )


def find_violations(
    modules: dict[str, Module],
    full_folders: Collection[str] = (),
    limits: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> list[str]:
    """Every broken law of a source tree, as sentences that begin with file:line."""
    imports = {name: list(read_imports(module, modules)) for name, module in modules.items()}
    defined = attributes_of(modules)
    found: list[str] = []
    for name, module in modules.items():
        found += check_place(module)
        found += check_floor(module, imports[name])
        found += check_third_party(module, imports[name])
        found += check_door(module)
        found += check_probes(module, defined)
        found += check_names(module)
        found += check_catches(module)
    found += check_circles(modules, imports)
    found += check_circles_of_rooms(modules, imports)
    found += check_folders(modules, full_folders)
    found += check_rooms(modules)
    found += check_functions(modules, limits)
    found += check_exceptions(modules, full_folders)
    return list(dict.fromkeys(found))


def test_the_source_keeps_the_laws() -> None:
    modules = read_modules(ROOT)
    assert modules, f"no modules under {ROOT}"
    violations = find_violations(modules, FULL_FOLDERS, read_limits())
    assert not violations, "\n\n" + "\n".join(violations)


# The checker itself: each law broken on a fake tree, and lawful trees that look suspicious.


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def no_excuses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named exceptions are those of the source, not of planted trees."""
    if "tmp_path" in request.fixturenames:
        for table in (CATCHES_ALL, NAMES_HIGHER):
            for place in list(table):
                monkeypatch.delitem(table, place)


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
    "weights never sees mpi": (
        {"weights/save.py": "from meshard.mpi import launch\n"},
        "weights/save.py:1: weights imports meshard.mpi",
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
    "a probe of an interpreter": (
        {"transforms/flow.py": "def f():\n    body = innermost()\n    getattr(body, 'x', None)\n"},
        "transforms/flow.py:3: getattr(body, 'x') is a hidden door upwards; name the method",
    ),
    "a probe of an interpreter, at once": (
        {"ops/later.py": "later = getattr(doors.current(), 'later', None)\n"},
        "ops/later.py:1: getattr(doors.current(), 'later') is a hidden door upwards",
    ),
    "a probe of each interpreter": (
        {"ops/later.py": "for i in reversed(interpreters()):\n    hasattr(i, 'later')\n"},
        "ops/later.py:2: hasattr(i, 'later') is a hidden door upwards",
    ),
    "a probe for cells": (
        {"ops/create.py": "def f(x):\n    return hasattr(x, 'cells')\n"},
        "ops/create.py:2: hasattr(x, 'cells') is a hidden door upwards",
    ),
    "a probe for what a higher floor has": (
        {
            "runtime/place.py": "def f(x):\n    return getattr(x, 'traces', False)\n",
            "transforms/jit.py": "class Traced:\n    traces: bool = True\n",
        },
        "runtime/place.py:2: getattr(x, 'traces') is a hidden door upwards",
    ),
    "a probe for what a higher floor's method sets": (
        {
            "plan/steps.py": "def f(x):\n    return hasattr(x, 'blocks')\n",
            "runtime/array.py": "class Array:\n    def f(self):\n        self.blocks = 1\n",
        },
        "plan/steps.py:2: hasattr(x, 'blocks') is a hidden door upwards",
    ),
    "a higher floor, by its name": (
        {"ops/install.py": "import sys\ndoor = sys.modules['meshard.numpy']\n"},
        "ops/install.py:2: 'meshard.numpy' names a module that is not below ops",
    ),
    "a higher module, by its name": (
        {"plan/steps.py": "where = ('x', 'meshard.runtime.array')\n"},
        "plan/steps.py:1: 'meshard.runtime.array' names a module that is not below plan",
    ),
    "the package, by its name": (
        {"algebra/box.py": "import sys\nwhole = sys.modules['meshard']\n"},
        "algebra/box.py:2: 'meshard' names a module that is not below algebra",
    ),
    "an error as an answer": (
        {"ops/f.py": "def f():\n    try:\n        g()\n    except Exception:\n        h()\n"},
        "ops/f.py:4: catches all errors and raises none",
    ),
    "any error as an answer": (
        {"plan/f.py": "def f():\n    try:\n        g()\n    except:\n        pass\n"},
        "plan/f.py:4: catches all errors and raises none",
    ),
    "one of many errors as an answer": (
        {"plan/f.py": "try:\n    g()\nexcept (OSError, BaseException):\n    pass\n"},
        "plan/f.py:3: catches all errors and raises none",
    ),
    "all errors suppressed": (
        {"mpi/f.py": "import contextlib\nwith contextlib.suppress(Exception):\n    g()\n"},
        "mpi/f.py:2: catches all errors and raises none",
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
    "utils/": ({"ops/utils/__init__.py": '"""Room."""'}, "ops/utils/__init__.py:1: no utils"),
    "core/": ({"ops/core/__init__.py": '"""Room."""'}, "ops/core/__init__.py:1: no core/"),
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
    "a full folder": (
        {f"plan/step{n}.py": "" for n in range(MAX_MODULES + 1)},
        "src/meshard/plan/__init__.py:1: the folder has 15 modules and may have 14",
    ),
    "a full room": (
        {f"ops/engine/{n}.py": "" for n in ["__init__", *range(MAX_MODULES + 1)]}
        | {"ops/engine/__init__.py": '"""Room."""'},
        "src/meshard/ops/engine/__init__.py:1: the folder has 15 modules",
    ),
    "a room that passes names on": (
        {
            "ops/engine/__init__.py": '"""Room."""\nfrom meshard.ops.engine.row import Row\n',
            "ops/engine/row.py": "class Row: ...\n",
        },
        "ops/engine/__init__.py:2: the __init__ of a room holds one docstring and nothing else",
    ),
    "a room that does not say what it is for": (
        {"ops/engine/__init__.py": "", "ops/engine/row.py": ""},
        "ops/engine/__init__.py:1: the __init__ of a room holds one docstring",
    ),
    "a room without an __init__": (
        {"ops/engine/row.py": ""},
        "ops/engine/row.py:1: the room ops/engine has no __init__.py",
    ),
    "rooms in a circle": (
        {
            **{f"ops/{room}/__init__.py": '"""Room."""' for room in ("engine", "fused")},
            "ops/engine/row.py": "def f():\n    import meshard.ops.fused.chain\n",
            "ops/engine/eager.py": "",
            "ops/fused/chain.py": "",
            "ops/fused/ways.py": "from meshard.ops.engine import eager\n",
        },
        "ops/engine/row.py:2: rooms make a circle, meshard.ops.engine -> meshard.ops.fused -> "
        "meshard.ops.engine (src/meshard/ops/engine/row.py:2 imports meshard.ops.fused; "
        "src/meshard/ops/fused/ways.py:1 imports meshard.ops.engine)",
    ),
    "a room and a module in a circle": (
        {
            "ops/engine/__init__.py": '"""Room."""',
            "ops/engine/row.py": "from meshard.ops import fft\n",
            "ops/engine/eager.py": "",
            "ops/fft.py": "import meshard.ops.engine.eager\n",
        },
        "rooms make a circle, meshard.ops.engine -> meshard.ops.fft -> meshard.ops.engine",
    ),
    "a long function": (
        {"plan/steps.py": "def f():\n" + "    x = 1\n" * 60},
        "plan/steps.py:1: f is beyond a limit, lines 61 of at most 60",
    ),
    "a function of many parameters": (
        {"plan/steps.py": "class A:\n    def f(self, a, b, c, d, *, e, f, g): ...\n"},
        "plan/steps.py:2: A.f is beyond a limit, parameters 7 of at most 6",
    ),
    "a function that decides much": (
        {"plan/steps.py": "def f(a):\n    return " + "a or " * 15 + "a\n"},
        "plan/steps.py:1: f is beyond a limit, complexity 16 of at most 15",
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
        "numpy.py": "import numpy as np\nfrom meshard.ops.eager import add, mean\n"
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
        "ops/eager.py": "from meshard import errors\nfrom meshard.runtime import array\n"
        "def mean(a, b, c, d, e, f, g): ...\n"
        "def f(x):\n    return hasattr(x, '__array__') and hasattr(x, 'dtype')\n",
        "runtime/array.py": "def f():\n" + '    """Long."""\n' + "    x = 1\n" * 59,
        "ops/engine/__init__.py": '"""Room."""',
        **{f"ops/engine/m{n}.py": "" for n in range(MAX_MODULES)},
        "ops/later.py": "def f(x):\n    try:\n        return current().later(x)\n"
        "    except Exception as error:\n        raise ValueError('meshard.f(x)') from error\n",
        "mpi/transport.py": "import mpi4py.MPI\nfrom meshard.runtime import array\n",
        "interop/jax.py": "def f():\n    import jax\n",
        "cli/__init__.py": "import rich\nimport meshard\nfrom meshard import numpy, plan\n",
        "testing/laws.py": "import hypothesis\nfrom meshard.mpi import transport\n",
    }
    assert find_violations(read_modules(plant(tmp_path, tree))) == []


def test_a_named_exception_is_heard_and_must_be_needed(tmp_path: Path) -> None:
    plant(tmp_path, {f"plan/step{n}.py": "" for n in range(MAX_MODULES + 1)})
    assert find_violations(read_modules(tmp_path), ["plan"]) == []
    (tmp_path / "plan" / "step0.py").unlink()
    (violation,) = find_violations(read_modules(tmp_path), ["plan"])
    assert "FULL_FOLDERS excuses a folder" in violation


def test_what_is_frozen_may_shrink_and_must_not_grow(tmp_path: Path) -> None:
    def violations(lines: int) -> list[str]:
        plant(tmp_path, {"plan/steps.py": "def f():\n" + "    x = 1\n" * (lines - 1)})
        limits = {"plan/steps.py:f": {"lines": 70}}
        return find_violations(read_modules(tmp_path), limits=limits)

    assert violations(70) == []
    (grown,) = violations(71)
    assert "steps.py:1: f is beyond a limit, lines 71 of at most 70" in grown
    for fewer in (69, 60):
        (shrunk,) = violations(fewer)
        assert "allows plan/steps.py:f lines 70, which it no longer needs" in shrunk


@pytest.mark.parametrize(
    ("table", "place", "text"),
    [
        (
            "CATCHES_ALL",
            "ops/f.py:f",
            "def f():\n    try:\n        g()\n    except Exception: ...\n",
        ),
        ("NAMES_HIGHER", "ops/f.py", "door = 'meshard.numpy'\n"),
    ],
)
def test_a_hidden_door_may_be_excused_and_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, place: str, text: str
) -> None:
    monkeypatch.setitem(globals()[table], place, "a reason")
    plant(tmp_path, {"ops/f.py": text})
    assert find_violations(read_modules(tmp_path)) == []
    plant(tmp_path, {"ops/f.py": "x = 1\n"})
    (violation,) = find_violations(read_modules(tmp_path))
    assert f"{table} excuses {place} without need" in violation


def test_a_door_may_be_excused_for_seeing_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"lax.py": "from meshard.numpy import add\n", "numpy.py": ""})
    monkeypatch.setitem(DOOR_SEES_DOOR, ("lax", "numpy"), "shares its names")
    assert find_violations(read_modules(tmp_path)) == []
