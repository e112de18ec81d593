"""`meshard explain`: what a function of a file does and moves, before it runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, final

import click
import numpy as np

from meshard.cli.arguments import Command, gathered
from meshard.cli.errors import CommandError
from meshard.cli.output import as_json, print_json, print_text, save
from meshard.cli.written.notation import (
    WrittenMesh,
    WrittenSpec,
    dtype_named,
    mesh_of,
    shape_of,
    spec_of,
    topology_option,
    wrong,
)

if TYPE_CHECKING:
    from meshard.algebra.mesh import Mesh
    from meshard.plan.figures.topology import Topology

_HELP = """\
Say what a function does step by step, what it moves between devices and why,
before it runs: nothing is computed, and arrays need not exist. The file is
imported.

An --arg is SHAPE[:DTYPE[:SPEC]], or value: and a number or a text in quotes.
The specs are over --mesh, which is also the one that the function finds set.

\b
For example:
  meshard explain model.py:layer --mesh data=4,model=2 \\
      --arg "512x1024:bfloat16:P('data')" \\
      --arg "1024x4096:bfloat16:P(None, 'model')"
"""


class _Argument(NamedTuple):
    """An argument as it was written: a shape, dtype and spec, or a value."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    spec: WrittenSpec | None
    value: object = None


def _argument(text: str) -> _Argument:
    """Return what an ``--arg`` describes."""
    first, _, rest = text.partition(":")
    if first.strip() == "value":
        try:
            return _Argument(None, None, None, ast.literal_eval(rest.strip()))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            wrong(text, len(first) + 1, "a value is a number, a text in quotes, None or a tuple")
    dtype, _, spec = rest.partition(":")
    return _Argument(
        shape_of(first),
        dtype_named(dtype.strip() or "float32"),
        spec_of(spec) if spec.strip() else None,
    )


@final
@dataclass(frozen=True)
class _Options:
    function: str
    arguments: tuple[_Argument, ...]
    mesh: WrittenMesh | None
    uneven: bool
    topology: Topology | None
    html: Path | None
    as_json: bool


@click.command("explain", cls=Command, help=_HELP)
@click.argument("function", metavar="FILE:FUNCTION", type=click.Path())
@click.option(
    "--arg",
    "arguments",
    type=_argument,
    multiple=True,
    metavar="SHAPE[:DTYPE[:SPEC]]",
    help="The next argument.",
)
@click.option("--mesh", type=mesh_of, metavar="AXIS=SIZE,...", help="The mesh of the specs.")
@click.option("--uneven", is_flag=True, help="Let blocks differ by one where a dim is not divided.")
@topology_option
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page too.")
@as_json
@gathered(_Options)
def command(given: _Options) -> None:
    """Explain a function."""
    import meshard
    from meshard.transforms.jit.jit import explain

    mesh = None
    if given.mesh is not None:
        meshard.config.update("num_devices", given.mesh.count)
        mesh = meshard.make_mesh(given.mesh.sizes, given.mesh.names)
        meshard.set_mesh(mesh)
    arguments = [_struct(x, mesh, given.uneven) for x in given.arguments]
    path, function = _function(given.function)
    try:
        found = explain(function, *arguments, topology=given.topology)
    except Exception as error:
        raise CommandError(f"{given.function} fails\n{_trace(error, path)}") from error
    if given.html is not None:
        save(given.html, found.to_html())
    if given.as_json:
        print_json(json.loads(found.to_json()))
        return
    first, _, rest = str(found).partition("\n")
    print_text(rest, title=first)


def _struct(given: _Argument, mesh: Mesh | None, uneven: bool) -> object:
    """Return an argument of the function."""
    from meshard.runtime.moving.structs import ShapeDtypeStruct

    if given.shape is None or given.dtype is None:
        return given.value
    if given.spec is None:
        return ShapeDtypeStruct(given.shape, given.dtype)
    if mesh is None:
        raise click.UsageError(
            f"{given.spec.text} needs a mesh; give --mesh, as in --mesh data=4,model=2",
            click.get_current_context(),
        )
    sharding = given.spec.over(mesh, "balanced" if uneven else None)
    return ShapeDtypeStruct(given.shape, given.dtype, sharding=sharding)


def _function(text: str) -> tuple[Path, Callable[..., Any]]:
    """Return the function that ``FILE:FUNCTION`` names, and its file."""
    file, colon, name = text.rpartition(":")
    if not colon or not name:
        raise click.UsageError(
            f"{text!r} names no function; write the file and the function, as in "
            f"{file or text}:main",
            click.get_current_context(),
        )
    path = Path(file)
    found: Any = _imported(path)
    for word in name.split("."):
        names = [n for n in dir(found) if not n.startswith("_") and callable(getattr(found, n))]
        if not hasattr(found, word):
            raise CommandError(f"{file} has no function {name!r}{_near(word, names)}")
        found = getattr(found, word)
    if not callable(found):
        raise CommandError(f"{name!r} of {file} is of type {type(found).__name__}; name a function")
    return path, found


def _near(word: str, names: Sequence[str]) -> str:
    near = get_close_matches(word, names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(names) or 'none'}"


def _imported(path: Path) -> ModuleType:
    """Return a file as a module, with the modules beside it."""
    if not path.is_file():
        raise CommandError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is not a Python file; its name should end with .py")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CommandError(f"{path} cannot be imported\n{_trace(error, path)}") from error
    return module


def _trace(error: Exception, path: Path) -> str:
    from meshard.cli.scripts import traceback_from

    return traceback_from(error, str(path))
