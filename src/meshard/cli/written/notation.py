"""What users write in a command line: specs, meshes, shapes, dtypes, sizes and devices.

In: a text. Out: its value; nothing that is written is run. What cannot be read is wrong usage,
with a caret under the character where it goes wrong.
"""

from __future__ import annotations

import ast
import math
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, final

import click
import numpy as np
from click.shell_completion import CompletionItem

from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, Uneven
from meshard.algebra.spec import P, PartitionSpec
from meshard.cli.errors import CommandError
from meshard.cli.main import COMPLETE
from meshard.errors import DtypeError
from meshard.plan.captions import read_size
from meshard.plan.figures.topology import Topology, presets, topology
from meshard.runtime.moving.place import dtype_of

_LONGEST = 1000
_SHOWN = 70
_MOST_DEVICES = 1 << 24
_WRITTEN = "a spec is written P(...), with an axis, a tuple of axes or None for each dim"
_ENTRY = "expected an axis such as 'data', a tuple of axes, or None"
_AXIS = re.compile(r"\s*([^\W\d]\w*)\s*=\s*(\d+)\s*", re.ASCII)
_RANGE = re.compile(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?", re.ASCII)


def wrong(text: str, at: int, reason: str) -> NoReturn:
    """Refuse a text, with a caret under one of its characters.

    Raises:
        BadParameter: always.
    """
    if not text.isprintable():
        raise click.BadParameter(f"{reason}, in {text!r}")
    start = max(0, min(at - _SHOWN // 2, len(text) - _SHOWN))
    shown = f"    {text[start : start + _SHOWN]}\n    {' ' * (at - start)}^"
    raise click.BadParameter(f"{reason}\n{shown}", click.get_current_context(silent=True))


@final
@dataclass(frozen=True)
class WrittenSpec:
    """A spec as it was written.

    Attributes:
        text: the text.
        spec: the spec.
        places: each axis that it names, and the column where it does.
    """

    text: str
    spec: PartitionSpec
    places: tuple[tuple[str, int], ...]

    def over(self, mesh: Mesh, uneven: Uneven = None) -> NamedSharding:
        """Return the sharding of the spec over a mesh.

        Raises:
            BadParameter: if it names an axis twice, or one that the mesh does not have.
        """
        seen: set[str] = set()
        for name, at in self.places:
            if name not in mesh.axis_names:
                near = get_close_matches(name, mesh.axis_names, 1)
                axes = ", ".join(map(repr, mesh.axis_names)) or "none"
                meant = f"; did you mean {near[0]!r}?" if near else ""
                wrong(self.text, at, f"the mesh has no axis {name!r}; its axes: {axes}{meant}")
            if name in seen:
                wrong(self.text, at, f"axis {name!r} is named twice; it can split one dim only")
            seen.add(name)
        return NamedSharding(mesh, self.spec, uneven=uneven)


def spec_of(text: str) -> WrittenSpec:
    """Return the spec that a text such as ``P('data', ('x', 'y'), None)`` describes.

    Raises:
        BadParameter: if it is not one.

    >>> spec_of("P(None, ('x', 'y'))").spec
    P(None, ('x', 'y'))
    """
    text = text.strip()
    call = _parsed(text)
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        wrong(text, 0, _WRITTEN)
    if call.func.id not in ("P", "PartitionSpec"):
        wrong(text, 0, _WRITTEN)
    if call.keywords:
        wrong(text, _column(text, call.keywords[0]), f"{_WRITTEN}; it has no keywords")
    places: list[tuple[str, int]] = []
    entries = [_entry(text, node, places) for node in call.args]
    return WrittenSpec(text, P(*entries), tuple(places))


def _parsed(text: str) -> ast.expr:
    """Return the expression that a text is."""
    if len(text) > _LONGEST:
        wrong(text, 0, f"it has {len(text):,} characters, and {_LONGEST:,} are the most")
    if not text.isprintable():
        wrong(text, 0, "it has characters that cannot be printed")
    if not text:
        raise click.BadParameter(f"it is empty; {_WRITTEN}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        at = min(max((error.offset or 1) - 1, 0), len(text))
        wrong(text, at, f"it cannot be read ({error.msg}); {_WRITTEN}")
    except (ValueError, MemoryError, RecursionError) as error:
        wrong(text, 0, f"it cannot be read ({error}); {_WRITTEN}")


def _column(text: str, node: ast.expr | ast.keyword) -> int:
    """Return the character at which a node begins; `ast` counts bytes."""
    return len(text.encode()[: node.col_offset].decode(errors="replace"))


def _entry(text: str, node: ast.expr, places: list[tuple[str, int]]) -> Any:
    """Return one dim's entry, and note where it names axes."""
    if isinstance(node, ast.Tuple | ast.List):
        return tuple([_axis(text, part, places) for part in node.elts])
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    return _axis(text, node, places)


def _axis(text: str, node: ast.expr, places: list[tuple[str, int]]) -> str:
    at = _column(text, node)
    if isinstance(node, ast.Name):
        wrong(text, at, f"{node.id} is not quoted; write '{node.id}'")
    if isinstance(node, ast.Attribute) and node.attr == "UNCONSTRAINED":
        wrong(text, at, "UNCONSTRAINED does not say where the elements are; write an axis or None")
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        wrong(text, at, _ENTRY)
    places.append((node.value, at))
    return node.value


def check_fits(sharding: NamedSharding, shape: tuple[int, ...], what: str = "") -> None:
    """Refuse a sharding that does not fit a shape.

    Args:
        sharding: the sharding.
        shape: the shape.
        what: what the message begins with.

    Raises:
        CommandError: if the spec is too long, or a dim is not divided and must be.
    """
    spec, sizes = sharding.spec, "x".join(map(str, shape)) or "scalar"
    if len(spec) > len(shape):
        raise CommandError(
            f"{what}{spec} is for {len(spec)} or more dims, but the shape {sizes} has {len(shape)}"
        )
    for dim, axes in enumerate(spec.axes(len(shape))):
        shards = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if sharding.uneven is None and shape[dim] % shards:
            names = " and ".join(f"{axis}={sharding.mesh.shape[axis]}" for axis in axes)
            raise CommandError(
                f"{what}dim {dim} of {sizes} has size {shape[dim]}, which {names} "
                f"{'do' if len(axes) > 1 else 'does'} not divide; --uneven allows blocks that "
                "differ by one"
            )


@final
@dataclass(frozen=True)
class WrittenMesh:
    """A mesh as it was written: the names of its axes, and how long they are.

    Attributes:
        names: the names.
        sizes: the sizes.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of its devices."""
        return math.prod(self.sizes)

    def on(self, ids: range | tuple[int, ...] | None = None, devices_per_process: int = 1) -> Mesh:
        """Return the mesh, of virtual devices with these ids, or of the first ones.

        Args:
            ids: the ids.
            devices_per_process: how many devices each process has, in the order of ids.

        Raises:
            UsageError: if there are not as many ids as the mesh has devices.
        """
        ids = range(self.count) if ids is None else ids
        if len(ids) != self.count:
            sizes = ",".join(f"{n}={k}" for n, k in zip(self.names, self.sizes, strict=True))
            raise click.UsageError(
                f"the mesh {sizes} has {self.count:,} devices, but {len(ids):,} are named",
                click.get_current_context(silent=True),
            )
        grid = np.empty(self.count, object)
        grid[:] = [Device(i, i // devices_per_process, "virtual", "virtual") for i in ids]
        return Mesh(grid.reshape(self.sizes), self.names)


def mesh_of(text: str) -> WrittenMesh:
    """Return the mesh that a text such as ``data=4,model=2`` describes.

    Raises:
        BadParameter: if it is not one, or has more than 2^24 devices.

    >>> mesh_of("data=4, model=2").sizes
    (4, 2)
    """
    names: list[str] = []
    sizes: list[int] = []
    for at, part in _parts(text):
        found = _AXIS.fullmatch(part)
        if found is None:
            wrong(text, at, "a mesh is written as axes and their sizes, such as data=4,model=2")
        if found[1] in names:
            wrong(text, at, f"the axis {found[1]!r} is named twice")
        if len(found[2]) > 8 or not 0 < int(found[2]) <= _MOST_DEVICES:
            wrong(text, at + found.start(2), f"a size is from 1 to {_MOST_DEVICES:,}")
        names.append(found[1])
        sizes.append(int(found[2]))
    if math.prod(sizes) > _MOST_DEVICES:
        wrong(text, 0, f"it has {math.prod(sizes):,} devices; {_MOST_DEVICES:,} are the most")
    return WrittenMesh(tuple(names), tuple(sizes))


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield what stands between commas, and where."""
    if len(text) > _LONGEST:
        wrong(text, 0, f"it has {len(text):,} characters, and {_LONGEST:,} are the most")
    at = 0
    for part in text.split(","):
        yield at + len(part) - len(part.lstrip()), part
        at += len(part) + 1


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape that a text such as ``1024x512`` describes; ``scalar`` has no dims.

    Raises:
        BadParameter: if it is not one.

    >>> shape_of("1024x512"), shape_of("scalar")
    ((1024, 512), ())
    """
    if text.strip() == "scalar":
        return ()
    at, sizes = 0, []
    for part in text.lower().split("x"):
        if not re.fullmatch(r"\s*\d{1,18}\s*", part, re.ASCII):
            wrong(text, at, "a shape is written as sizes, such as 1024x512, or scalar")
        sizes.append(int(part))
        at += len(part) + 1
    return tuple(sizes)


def dtype_named(text: str) -> np.dtype[Any]:
    """Return the dtype of a name such as ``bfloat16``.

    Raises:
        BadParameter: if arrays cannot have it.

    >>> dtype_named("float32").itemsize
    4
    """
    try:
        return dtype_of(text, "dtype")
    except DtypeError:
        near = get_close_matches(text, _DTYPES, 1)
        meant = f"; did you mean {near[0]}?" if near else f": {', '.join(_DTYPES)}"
        wrong(text, 0, f"there is no such dtype{meant}")


_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"),
    *("bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)


def topology_of(text: str) -> Topology:
    """Return the topology of a preset's name, or of a TOML file.

    Raises:
        BadParameter: if there is neither.
        CommandError: if the file cannot be read.
        ArgumentError: if it does not describe a topology.

    >>> topology_of("two racks").levels[0].size
    8
    """
    if text in presets():
        return topology(text)
    if not (text.endswith(".toml") or Path(text).is_file()):
        near = get_close_matches(text, presets(), 1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        names = ", ".join(map(repr, presets()))
        raise click.BadParameter(
            f"there is no topology named {text!r}{meant} The presets are {names}; others are "
            "described by a TOML file"
        )
    try:
        return Topology.load(text)
    except OSError as error:
        raise CommandError(f"{text} cannot be read: {error.strerror or error}") from error


def _presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = [name for name in presets() if name.startswith(incomplete)]
    # Bash inserts what it is given as it is; the other shells quote it.
    blank = "\\ " if os.environ.get(COMPLETE, "").startswith("bash") else " "
    found = [CompletionItem(name.replace(" ", blank)) for name in names]
    return found or [CompletionItem(incomplete, type="file")]


topology_option = click.option(
    "--topology",
    type=topology_of,
    metavar="NAME|FILE",
    shell_complete=_presets,
    help="Where devices are: a preset's name or a TOML file.",
)


def size_of(text: str) -> int:
    """Return the number of bytes of a text such as ``1GB`` or ``64 MiB``.

    Raises:
        BadParameter: if it is not a positive number of bytes.
    """
    found = read_size(text)
    if not found:
        raise click.BadParameter(
            f"{text!r} is not a positive number of bytes; write 500000, 64MB, 1.5GiB or the like"
        )
    return found


def ids_of(text: str) -> range | tuple[int, ...]:
    """Return the device ids of a text such as ``8:24`` or ``0,2,4:8``.

    Raises:
        BadParameter: if it is not a list of distinct ids.

    >>> ids_of("8:11"), ids_of("0,4:6")
    (range(8, 11), (0, 4, 5))
    """
    runs: list[range] = []
    for at, part in _parts(text):
        found = _RANGE.fullmatch(part)
        if found is None:
            wrong(text, at, "devices are written as ids and ranges of them, such as 0,2,8:12")
        if any(len(number or "") > 18 for number in found.groups()):
            wrong(text, at, "a device's id has at most 18 digits")
        first = int(found[1])
        last = first + 1 if found[2] is None else int(found[2])
        if last <= first:
            wrong(text, at, f"the range {first}:{last} is empty; it ends before its second number")
        if sum(map(len, runs)) + last - first > _MOST_DEVICES:
            wrong(text, at, f"these are more than {_MOST_DEVICES:,} devices")
        runs.append(range(first, last))
    if len(runs) == 1:
        return runs[0]
    ids = tuple([i for run in runs for i in run])
    if len(set(ids)) < len(ids):
        wrong(text, 0, "a device is named twice")
    return ids
