"""The names of the reference: what is public, in which group, and the page of each.

In: the doors' ``__all__``. Out: reStructuredText: a page for each function and class, with links to
what NumPy and SciPy say (made without asking their servers), and the rows of tables.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

ONE_PAGE = "meshard.errors"  # the errors are a tree, which is read as a whole
FOREIGN = ("numpy", "ml_dtypes", "typing", "types", "builtins")

NUMPY = "https://numpy.org/doc/stable/reference/"
SCIPY = "https://docs.scipy.org/doc/scipy/reference/generated/"
UFUNC = ("out", "where", "casting", "order", "dtype", "subok")  # taken by each of NumPy's

# The modules that functions come from, and what a table of them is called. In the order of pages.
GROUPS = {
    "ops.array.create": "Making arrays",
    "ops.array.patterns": "Patterns and shapes",
    "ops.array.shape": "Shapes and dims",
    "ops.lax.shape": "Shapes and dims",
    "ops.array.join": "Joining, splitting and repeating",
    "ops.array.take": "Picking elements",
    "ops.array.nonzero": "Picking elements",
    "ops.array.diagonals": "Diagonals and triangles",
    "ops.array.dynamic": "Slices at computed positions",
    "ops.array.elementwise": "Elementwise",
    "ops.lax.elementwise": "Elementwise, with options",
    "ops.lax.table": "Elementwise",
    "ops.made.pads": "Joining, splitting and repeating",
    "ops.made.editing": "Joining, splitting and repeating",
    "ops.made.grids": "Patterns and shapes",
    "ops.made.choices": "Made of other functions",
    "ops.reductions.composed": "Made of other functions",
    "ops.made.polynomials": "Polynomials",
    "ops.made.signals": "Signals",
    "transforms.batching.apply": "Programs of functions",
    "ops.reductions.reduce": "Sums, extremes and truth",
    "ops.lax.reduce": "Reductions, products and sorting",
    "ops.reductions.moments": "Means and variances",
    "ops.reductions.quantiles": "Quantiles, and sums without NaN",
    "ops.reductions.statistics": "Quantiles, and sums without NaN",
    "ops.reductions.histogram": "Counting",
    "ops.made.counts": "Counting",
    "ops.reductions.scan": "Running sums and differences",
    "ops.reductions.sort": "Sorting and searching",
    "ops.reductions.sets": "Sets",
    "ops.linalg.contract": "Products",
    "ops.linalg.einsum": "Products",
    "ops.linalg.products": "Products",
    "ops.linalg.covariance": "Covariance",
    "ops.linalg.norms": "Norms, diagonals and traces",
    "ops.linalg.decompose": "Decompositions",
    "ops.linalg.solve": "Equations",
    "transforms.collectives.named_axes": "Communication in bodies of `shard_map`",
    "transforms.collectives.ragged": "Communication in bodies of `shard_map`",
    "transforms.flow.control_flow": "Control flow",
    "transforms.flow.scans": "Control flow",
    "transforms.constraint": "Layout",
    "ops.optim.optimizers": "Optimizers",
    "transforms.solvers.krylov": "Linear systems",
    "transforms.solvers.gmres": "Linear systems",
    "ops.sparse.matrix": "Sparse matrices",
    "ops.optim.transformations": "Transformations of gradients",
    "ops.optim.schedules": "Schedules",
    "ops.random.keys": "Keys",
    "ops.random.uniform": "Bits, uniform and normal numbers",
    "ops.random.distributions": "Distributions",
    "ops.random.gamma": "Distributions made of gamma variates",
    "ops.random.choice": "Choices and permutations",
    "ops.array.info": "About dtypes",
    "algebra.mesh": "Devices, meshes and layouts",
    "algebra.sharding": "Devices, meshes and layouts",
    "algebra.spec": "Devices, meshes and layouts",
    "algebra.device": "Devices, meshes and layouts",
    "algebra.boxed": "Devices, meshes and layouts",
    "algebra.abstract": "Devices, meshes and layouts",
    "runtime.devices": "Devices, meshes and layouts",
    "runtime.array.array": "Arrays",
    "runtime.moving.structs": "Arrays",
    "runtime.moving.make": "Arrays",
    "runtime.moving.place": "Arrays",
    "runtime.moving.process_local": "Arrays",
    "runtime.moving.plan_reshard": "Moving arrays",
    "weights.moving.reshard": "Moving arrays",
    "weights.moving.leaf_by_leaf": "Moving arrays",
    "plan.plan": "Moving arrays",
    "weights.checkpoint.one_array": "Files",
    "transforms.shard_map": "Programs of functions",
    "transforms.jit.explain": "Programs of functions",
    "transforms.tracing.abstract": "Programs of functions",
    "compat.gda.jit_results": "Programs of functions",
}
LAST = ("Functions", "Classes", "Errors", "Modules", "Dtypes", "Values")
ORDER = {title: number for number, title in enumerate(dict.fromkeys([*GROUPS.values(), *LAST]))}


@dataclass(frozen=True)
class Entry:
    """A public name: its door, what it names, and the name under which that has a page."""

    door: str
    name: str
    value: object
    home: str

    @property
    def full(self) -> str:
        """The name in full, such as ``meshard.lax.psum``."""
        return f"{self.door}.{self.name}"

    @property
    def has_page(self) -> bool:
        """Whether a page is made for it."""
        return self.home == self.full and self.kind != "data" and self.door != ONE_PAGE

    @property
    def kind(self) -> str:
        """What the Python domain calls it."""
        if isinstance(self.value, ModuleType):
            return "module"
        if is_foreign(self.value):
            return "data"
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, BaseException) else "class"
        return "function" if callable(self.value) else "data"

    @property
    def group(self) -> str:
        """The title of the table that it stands in."""
        titles = {"module": "Modules", "exception": "Errors", "class": "Classes"}
        if self.kind == "data":
            return "Dtypes" if inspect.isclass(self.value) else "Values"
        home = str(getattr(self.value, "__module__", "")).removeprefix("meshard.")
        return GROUPS.get(home) or titles.get(self.kind, "Functions")


def is_foreign(value: object) -> bool:
    """Whether a value is passed on from NumPy or Python, as dtypes and constants are."""
    home = getattr(value, "__module__", None) or type(value).__module__
    return home.partition(".")[0] in FOREIGN


@cache
def doors() -> tuple[str, ...]:
    """Return the modules that users import from, outer ones first."""
    found = ["meshard"]
    for name in found:
        module = importlib.import_module(name)
        inside = (f"{name}.{part}" for part in module.__all__)
        found += [p for p in inside if is_door(p)]
    return tuple(found)


def is_door(name: str) -> bool:
    """Whether a name of a door is a door itself."""
    door, _, part = name.rpartition(".")
    return isinstance(getattr(importlib.import_module(door), part), ModuleType)


@cache
def entries() -> tuple[Entry, ...]:
    """Return every public name."""
    listed = [
        (door, name, getattr(importlib.import_module(door), name))
        for door in doors()
        for name in names_of(door)
    ]
    homes: dict[int, str] = {}
    for exact in (True, False):  # of several names the one that a thing calls itself
        for door, name, value in sorted(listed, key=lambda row: row[0] != ONE_PAGE):
            if not exact or name == getattr(value, "__name__", None):
                homes.setdefault(id(value), f"{door}.{name}")
    return tuple(
        Entry(door, name, value, f"{door}.{name}" if is_foreign(value) else homes[id(value)])
        for door, name, value in listed
    )


def names_of(door: str) -> list[str]:
    """Return the names that a door lists."""
    module = importlib.import_module(door)
    own = getattr(module, "__all__", None)
    return list(own) if own else [n for n, v in vars(module).items() if inspect.isclass(v)]


# What is written.


def first_sentence(value: object) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`\[(])", text)[0]


def numpy_page(name: str) -> str | None:
    """Return the address of what NumPy or SciPy says about a name, or None if they lack it."""
    library, *parts = name.split(".")
    try:
        found: object = importlib.import_module(library)
        for number, part in enumerate(parts):
            owner = found
            found = getattr(found, part, None) or importlib.import_module(
                ".".join([library, *parts[: number + 1]])
            )
    except ImportError:
        return None
    if library == "scipy":
        return f"{SCIPY}{name}.html"
    own = getattr(found, "__name__", parts[-1])
    own = own if hasattr(owner, own) else parts[-1]  # acos is arccos, which has the page
    if inspect.isclass(found) and hasattr(found, "dtype"):
        return f"{NUMPY}arrays.scalars.html#numpy.{own}"
    if isinstance(found, ModuleType):
        return f"{NUMPY}routines.{parts[-1]}.html"
    if not callable(found):
        return f"{NUMPY}constants.html#{name}"
    return f"{NUMPY}generated/{'.'.join(['numpy', *parts[:-1], own])}.html"


def linked(text: str) -> str:
    """Return the text of a docstring with links where it names functions of NumPy and SciPy."""

    def link(match: re.Match[str]) -> str:
        page = numpy_page(match[1])
        return f"`{match[1]} <{page}>`__" if page else match[0]

    return re.sub(r"``((?:numpy|scipy)(?:\.\w+)+)``", link, text)


def beside_numpy(entry: Entry) -> Iterator[str]:
    """Say which function of NumPy an entry is like, and how their arguments differ."""
    name = entry.full.removeprefix("meshard.")
    page = numpy_page(name) if name.startswith("numpy.") else None
    if page is None:
        return
    owner: object = importlib.import_module("numpy")
    for part in name.split(".")[1:]:
        owner = getattr(owner, part)
    theirs, ours = arguments(owner), arguments(entry.value)
    said = [f"In NumPy: `{name} <{page}>`__."]
    if theirs is not None and ours is not None:
        lacks = [n for n in theirs if n not in ours]
        adds = [n for n in ours if n not in theirs]
        if lacks:
            said.append(f"Not taken here: {in_words(lacks)}.")
        if adds:
            said.append(f"Only here: {in_words(adds)}.")
    yield from (".. seealso::", "", f"   {' '.join(said)}", "")


def arguments(function: object) -> list[str] | None:
    """Return the names of the optional arguments, or None if a function does not say."""
    if type(function).__name__ == "ufunc":
        return list(UFUNC)
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in found if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]


def in_words(names: list[str]) -> str:
    """Return names in code, as a sentence lists them."""
    return ", ".join(f"``{name}``" for name in names)


def table(rows: list[tuple[str, str]]) -> list[str]:
    """Return a table of names and what they do."""
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for name, said in rows:
        lines += [f"   * - {name}", f"     - {said}"]
    return [*lines, ""]


def members(kind: type) -> dict[str, str]:
    """Return the public methods and attributes of a class, with what each does."""
    found = {}
    for name in dir(kind):
        value = inspect.getattr_static(kind, name, None)
        told = inspect.getdoc(value) if name[0] != "_" else None
        home = next((base for base in kind.__mro__ if name in vars(base)), object)
        if told and home.__module__.startswith("meshard"):
            found[name] = first_sentence(value)
    return found


def page_of(entry: Entry) -> str:
    """Return the page of a function or class."""
    lines = [":orphan:", "", entry.full, "=" * len(entry.full), ""]
    lines += [f":doc:`Reference <../index>` / :py:mod:`{entry.door}`", ""]
    if entry.kind == "class":
        lines += [f".. autoclass:: {entry.full}", "   :members:", "   :inherited-members:", ""]
        own = members(entry.value)
        if len(own) > 4:
            rows = [(f":py:obj:`{n} <{entry.full}.{n}>`", t) for n, t in own.items()]
            index = lines.index(f".. autoclass:: {entry.full}")
            lines[index:index] = [".. dropdown:: Methods and attributes", ""] + [
                f"   {line}".rstrip() for line in table(rows)
            ]
    else:
        lines += [f".. autofunction:: {entry.full}", ""]
    return "\n".join([*lines, *beside_numpy(entry)])


def told(entry: Entry) -> tuple[str, str]:
    """Return the row of an entry in the tables of its door."""
    if entry.kind == "module":
        return f":py:mod:`{entry.name} <{entry.full}>`", first_sentence(entry.value)
    if entry.kind == "data":
        page = numpy_page(f"numpy.{entry.name}") if entry.door == "meshard.numpy" else None
        name = f"`{entry.name} <{page}>`__" if page else f"``{entry.name}``"
        return name, "" if inspect.isclass(entry.value) else f"``{entry.value!r}``"
    name = f":py:obj:`{entry.name} <{entry.home}>`"
    if entry.home == entry.full:
        return name, first_sentence(entry.value)
    own = entry.home.removeprefix(f"{entry.door}.")
    return name, f"Another name of :py:obj:`{own} <{entry.home}>`."
