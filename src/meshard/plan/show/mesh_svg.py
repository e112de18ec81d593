"""Pictures of meshes, shardings and layouts: devices on named axes, and what a spec splits.

In: a mesh, a sharding or a layout. Out: a title, parts of a page, and a drawing. A large mesh is
drawn by its corners, so that the picture of ten thousand devices is as small as that of sixty-four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ShardingError
from meshard.plan.captions import (
    PALETTE,
    count_text,
    device_label,
    layout_summary,
    platform_of,
    process_summary,
    wrap,
)
from meshard.plan.show.drawing import kept
from meshard.plan.show.layout_svg import schematic
from meshard.plan.show.page import Markup, wide
from meshard.plan.show.report import Table
from meshard.plan.show.svg import (
    SMALLEST,
    Panel,
    Place,
    Sheet,
    evenly,
    fit,
    gap,
    lettered,
    rect,
)

MOST_DEVICES = 64  # of a mesh that is drawn whole
MOST_ALONG, FEW_ALONG = 16, 8  # cells along an axis; along an axis of a larger mesh
MOST_SLABS_DRAWN, FEW_SLABS = 16, 4  # grids of the last two axes
MOST_PROCESSES = 8  # in the legend
CELL, HIGH = 46.0, 32.0


def shown_mesh(value: object) -> _MeshPicture | _NamedPicture | _ShardingPicture | _LayoutPicture:
    """Return what shows a mesh, a sharding or a layout."""
    if isinstance(value, Layout):
        return _LayoutPicture(value)
    if isinstance(value, Mesh):
        return _MeshPicture(value)
    if isinstance(value, NamedSharding):
        return _NamedPicture(value)
    assert isinstance(value, Sharding)
    return _ShardingPicture(value)


def _devices_text(devices: Sequence[Device]) -> str:
    """Return how many devices there are, and which."""
    if not devices:
        return "no devices"
    ids = device_label((d.id for d in devices), devices[0].platform.upper())
    return f"{count_text(len(devices), 'device')}, {ids}"


@final
class _MeshPicture:
    """A mesh: a cell for each device, coloured by its process."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def _title(self) -> str:
        return f"{self._mesh!r}: {_devices_text(self._mesh.flat_devices)}"

    def _parts(self) -> Iterator[Markup]:
        yield wide(self._drawing([]))

    def _svg(self) -> Markup:
        mesh = self._mesh
        lines = [repr(mesh), _devices_text(mesh.flat_devices)]
        return self._drawing(wrap(lines, 96, between=" · "))

    def _drawing(self, title: Sequence[str]) -> Markup:
        sheet = Sheet(*title)
        sheet.panels([_panel(self._mesh, *grid) for grid in _grids(self._mesh)])
        sheet.legend(self._owners())
        sheet.notes(self._notes())
        return sheet.picture(f"{self._title()}; axes {', '.join(self._mesh.axis_names) or 'none'}")

    def _owners(self) -> Iterator[tuple[str, str]]:
        """Yield the colour of each process, and what it is."""
        mesh = self._mesh
        owned: dict[int, list[int]] = {}
        for d in mesh.flat_devices:
            owned.setdefault(d.process_index, []).append(d.id)
        for process in mesh.processes[:MOST_PROCESSES] if mesh.is_multi_process else ():
            yield _color(mesh, process), f"process {process}: {device_label(owned[process])}"

    def _notes(self) -> Iterator[str]:
        """Yield the notes below."""
        mesh = self._mesh
        cells = chain.from_iterable(row for _, rows in _grids(mesh) for row in rows)
        shown = sum(place is not None for place in cells)
        if len(mesh.processes) > MOST_PROCESSES:
            yield f"and {len(mesh.processes) - MOST_PROCESSES:,} more processes"
        if shown < mesh.size:
            yield f"{shown:,} of {mesh.size:,} devices are shown"


def _color(mesh: Mesh, process: int) -> str:
    return PALETTE[mesh.processes.index(process) % len(PALETTE)]


_Cells = list[list[tuple[int, ...] | None]]


def _grids(mesh: Mesh) -> list[tuple[str, _Cells]]:
    """Return grids of the last two axes: a heading, and in rows the places, None in a gap."""
    sizes = mesh.axis_sizes
    if not mesh.size:
        return []
    whole = mesh.size <= MOST_DEVICES
    most, slabs = (MOST_ALONG, MOST_SLABS_DRAWN) if whole else (FEW_ALONG, FEW_SLABS)
    *_, high, across = (1, 1, *sizes)
    rows, columns = kept(high, most), kept(across, most if len(sizes) > 1 else MOST_ALONG)
    found = []
    for number in kept(math.prod(sizes[:-2]), slabs):
        if number is None:
            continue
        place = tuple(map(int, np.unravel_index(number, sizes[:-2]))) if sizes[:-2] else ()
        words = [f"{a}={i}" for a, i in zip(mesh.axis_names, place, strict=False)]
        cells: _Cells = [
            [
                None if i is None or j is None else (*place, i, j)[-len(sizes) or 2 :]
                for j in columns
            ]
            for i in rows
        ]
        found.append((", ".join(words), cells))
    return found


def _panel(mesh: Mesh, heading: str, cells: _Cells) -> Panel:
    """Return a grid's cells, with the places along the axes at its edges."""
    width, height = CELL * len(cells[0]), HIGH * len(cells)
    grid = evenly(len(cells[0]), len(cells), CELL, HIGH)
    parts: list[Markup] = []
    rows, columns = {}, {}
    for r, row in enumerate(cells):
        for c, place in enumerate(row):
            x, y, wide, high = grid.place((r, r + 1), (c, c + 1))
            inner = x + 1, y + 1, wide - 2, high - 2
            parts += _cell(mesh, place, inner, down=row.count(None) == len(row))
            if place:
                rows[y + high / 2], columns[x + wide / 2] = str(place[-2:][0]), str(place[-1])
    names = mesh.axis_names[-2:]
    return Panel(
        parts,
        width,
        height,
        heading,
        names,
        rows=list(rows.items()) * (len(names) > 1),
        columns=list(columns.items()) * bool(names),
    )


def _cell(
    mesh: Mesh, spot: tuple[int, ...] | None, place: Place, *, down: bool
) -> Iterator[Markup]:
    """Yield one device, or what stands for those left out."""
    if spot is None:
        yield from gap(place, down=down, rx=3)
        return
    number = np.ravel_multi_index(spot[-len(mesh.axis_sizes) :], mesh.axis_sizes)
    device = mesh.flat_devices[int(number) if mesh.axis_sizes else 0]
    where = ", ".join(f"{a}={i}" for a, i in zip(mesh.axis_names, spot, strict=False))
    owner, color = f"process {device.process_index}", _color(mesh, device.process_index)
    yield rect(*place, color, f"{device.platform.upper()} {device.id}, {owner}: {where}", rx=3)
    x, y, width, height = place
    upper = height * (0.6 if mesh.is_multi_process else 1)
    yield from lettered((x, y + 1, width, upper), str(device.id), color)
    if mesh.is_multi_process:
        low = x, y + upper - 3, width, height - upper
        owner = owner if fit(low, len(owner))[0] >= SMALLEST else f"p{device.process_index}"
        yield from lettered(low, owner, color)


@final
class _NamedPicture:
    """A sharding by a spec: the blocks of the smallest array that it splits, and its axes."""

    def __init__(self, sharding: NamedSharding) -> None:
        self._sharding = sharding

    def _title(self) -> str:
        return f"NamedSharding: {self._sharding.spec!r} over {self._sharding.mesh!r}"

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of the smallest array, one element in each block where cuts are free."""
        s = self._sharding
        shape = list(s.shards(len(s.spec)))
        cuts = s.uneven if isinstance(s.uneven, tuple) else ()
        shape += [1] * (len(cuts) - len(shape))
        for dim, own in enumerate(cuts):
            shape[dim] = shape[dim] if own is None else own[-1]
        return tuple(shape)

    def _svg(self) -> Markup:
        s = self._sharding
        return self._drawing(f"{s.spec!r} over {s.mesh!r}")

    def _drawing(self, title: str) -> Markup:
        s = self._sharding
        lines = [title] * bool(title)
        layout, why = self._layout()
        if layout is None:
            return Sheet(*lines, why).picture(self._title())
        copies, blocks = layout.replicas, count_text(layout.piece_count, "block")
        told = f"{blocks}, each on {copies:,} devices" if copies > 1 else blocks
        lines += wrap([told, *self._more()], 96, between=" · ")
        names = [
            f"dim {d} over {', '.join(axes)}" if axes else f"dim {d}, whole"
            for d, axes in enumerate(s.spec.axes(len(layout.shape)))
        ]
        return schematic(layout, "\n".join(lines), names, platform=platform_of(s))

    def _layout(self) -> tuple[Layout | None, str]:
        """Return the layout of the smallest array, or why there is none."""
        s = self._sharding
        if s.spec.unconstrained:
            return None, "a dim is free: any layout will do"
        if not s.mesh.size:
            return None, "no devices"
        try:
            return s.layout(self._shape()), ""
        except ShardingError as error:  # cuts that fit no array
            return None, str(error).splitlines()[0].partition(". ")[0]

    def _more(self) -> list[str]:
        """Return what the spec and the mesh do not say."""
        s = self._sharding
        found = [process_summary(s.device_order)] if len(s.mesh.processes) <= MOST_PROCESSES else []
        if s.memory_kind != "device":
            found.append(f"in {s.memory_kind} memory")
        if s.uneven is not None:
            found.append("uneven cuts" if isinstance(s.uneven, tuple) else f"uneven: {s.uneven}")
        return [text for text in found if text]

    def _parts(self) -> Iterator[Markup]:
        s = self._sharding
        yield wide(self._drawing(""))
        rows = []
        for dim, axes in enumerate(s.spec.axes(len(s.spec))):
            count = math.prod(s.mesh.shape[a] for a in axes)
            free = dim in s.spec.unconstrained
            told = "free" if free else f"{count:,}" if axes else "whole"
            rows.append((f"dim {dim}", ", ".join(axes) or "-", told))
        rest = [a for a in s.mesh.axis_names if a in s.replicated_axes]
        copies = math.prod(s.mesh.shape[a] for a in rest)
        if rest:
            rows.append(("copies", ", ".join(rest), f"{copies:,}"))
        if rows:
            yield Table(("", "axes", "parts"), rows, "<<>").html()


@final
class _LayoutPicture:
    """A layout: its blocks, and who holds them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def _title(self) -> str:
        shape = ",".join(map(str, self._layout.shape))
        return f"Layout of [{shape}]: {layout_summary(self._layout)}"

    def _svg(self) -> Markup:
        return schematic(self._layout, self._title(), ())

    def _parts(self) -> Iterator[Markup]:
        yield wide(schematic(self._layout, "", ()))


@final
class _ShardingPicture:
    """A sharding without a mesh: what it is, and its devices."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding

    def _title(self) -> str:
        return type(self._sharding).__name__

    def _parts(self) -> Iterator[Markup]:
        s = self._sharding
        rows = [("devices", _devices_text(s.device_order)), ("memory", str(s.memory_kind))]
        owners = process_summary(s.device_order)
        rows += [("processes", owners if len(owners) < 300 else f"{owners[:300]}…")] * bool(owners)
        rows.append(("each device has", "all" if s.is_fully_replicated else "a part"))
        yield Table((), rows, "<<").html()
