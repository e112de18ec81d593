"""Pictures of meshes, shardings and layouts: devices on named axes, and what a spec splits.

In: a mesh, a sharding or a layout. Out: a title, parts of a page, and a drawing. A large mesh is
drawn by its corners, so that the picture of ten thousand devices is as small as that of sixty-four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    ink,
    layout_summary,
    platform_of,
    process_summary,
    wrap,
)
from meshard.plan.show.drawing import kept
from meshard.plan.show.layout_svg import LETTER, LINE, MARGIN, schematic
from meshard.plan.show.page import Markup, element, number_text, wide
from meshard.plan.show.report import Table
from meshard.plan.show.svg import centred, label, picture, rect, upright

MOST_DEVICES = 64  # of a mesh that is drawn whole
MOST_ALONG, FEW_ALONG = 16, 8  # cells along an axis; along an axis of a larger mesh
MOST_SLABS_DRAWN, FEW_SLABS = 16, 4  # grids of the last two axes
MOST_PROCESSES = 8  # in the legend
CELL, HIGH, BETWEEN = 46.0, 32.0, 22.0
WIDEST = 820.0
LEGEND = 420.0  # the least width of the line of processes


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
        mesh = self._mesh
        parts = [
            label(MARGIN, MARGIN + LINE * n + 12, text, "ink", font_size=13, font_weight="700")
            for n, text in enumerate(title)
        ]
        width = max((13 * LETTER * len(text) for text in title), default=0.0)
        x, top, high = MARGIN, MARGIN + (LINE * len(title) + 8) * bool(title), 0.0
        for heading, cells in _grids(mesh):
            body, across, down = _grid(mesh, heading, cells)
            if x > MARGIN and x + across > WIDEST:
                x, top, high = MARGIN, top + high + BETWEEN, 0.0
            move = f"translate({number_text(x)} {number_text(top)})"
            parts.append(element("g", *body, transform=move))
            x, high = x + across + BETWEEN, max(high, down)
            width = max(width, x - BETWEEN - MARGIN)
        top += high + 4
        room = max(width, LEGEND)
        x = math.inf
        for color, text in self._notes():
            own = 15 * bool(color) + 11 * LETTER * len(text)
            if not color or x > MARGIN + room - own:
                x, top = MARGIN, top + LINE
            if color:
                parts.append(rect(x, top - 9, 10, 10, color))
            parts.append(label(x + 15 * bool(color), top, text))
            width = max(width, x + own - MARGIN)
            x = x + own + 8 if color else math.inf
        told = f"{self._title()}; axes {', '.join(mesh.axis_names) or 'none'}"
        return picture(width + 2 * MARGIN, top + MARGIN, told, parts)

    def _notes(self) -> Iterator[tuple[str, str]]:
        """Yield the notes below the grids, each with a colour or none."""
        mesh = self._mesh
        shown = sum(
            place is not None for _, cells in _grids(mesh) for row in cells for place in row
        )
        if shown < mesh.size:
            yield "", f"{shown:,} of {mesh.size:,} devices are shown"
        if not mesh.is_multi_process:
            return
        owned: dict[int, list[int]] = {}
        for d in mesh.flat_devices:
            owned.setdefault(d.process_index, []).append(d.id)
        for process in mesh.processes[:MOST_PROCESSES]:
            yield _color(mesh, process), f"process {process}: {device_label(owned[process])}"
        if len(owned) > MOST_PROCESSES:
            yield "", f"and {len(owned) - MOST_PROCESSES:,} more processes"


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


def _grid(mesh: Mesh, heading: str, cells: _Cells) -> tuple[list[Markup], float, float]:
    """Return a grid's elements, its width and its height."""
    names = mesh.axis_names
    left = 36.0 if len(names) > 1 else 0.0
    above = LINE * (bool(heading) + 2 * bool(names))
    width, height = CELL * len(cells[0]), HIGH * len(cells)
    parts = [label(0, 12, heading, "ink", font_size=12)] if heading else []
    if names:
        middle = left + width / 2
        parts.append(centred(middle, above - LINE - 7, f"{names[-1]} →", "middle"))
    if len(names) > 1:
        x, y = 8.0, above + height / 2
        parts.append(centred(x, y, f"← {names[-2]}", "middle", transform=upright(x, y)))
    for r, row in enumerate(cells):
        y = above + r * HIGH
        known = next((place for place in row if place is not None), None)
        if len(names) > 1 and known is not None:
            parts.append(centred(left - 6, y + HIGH / 2, str(known[-2]), "end", font_size=10))
        for c, place in enumerate(row):
            x = left + c * CELL
            if r == 0 and names and place is not None:
                parts.append(
                    centred(x + CELL / 2, above - 8, str(place[-1]), "middle", font_size=10)
                )
            parts += _cell(mesh, place, x, y, "⋮" if known is None else "⋯")
    return parts, left + width, above + height


def _cell(
    mesh: Mesh, place: tuple[int, ...] | None, x: float, y: float, gap: str
) -> Iterator[Markup]:
    """Yield one device, or what stands for those left out."""
    middle = x + CELL / 2, y + HIGH / 2
    if place is None:
        yield rect(x + 1, y + 1, CELL - 2, HIGH - 2, "gap", rx=3)
        yield centred(*middle, gap, "middle", font_size=12)
        return
    number = np.ravel_multi_index(place[-len(mesh.axis_sizes) :], mesh.axis_sizes)
    device = mesh.flat_devices[int(number) if mesh.axis_sizes else 0]
    spot = ", ".join(f"{a}={i}" for a, i in zip(mesh.axis_names, place, strict=False))
    told = f"{device.platform.upper()} {device.id}, process {device.process_index}"
    color = _color(mesh, device.process_index)
    yield rect(x + 1, y + 1, CELL - 2, HIGH - 2, color, f"{told}: {spot}", rx=3)
    text, size = str(device.id), 12.0
    size = min(size, 0.9 * CELL / (LETTER * len(text)))
    several = mesh.is_multi_process
    up = middle[1] - 5 * several
    yield centred(
        middle[0], up, text, "middle", ink(color), font_size=f"{size:.1f}", pointer_events="none"
    )
    if several:
        owner = f"process {device.process_index}"
        owner = owner if len(owner) * 8 * LETTER < CELL - 4 else f"p{device.process_index}"
        low = middle[1] + 8
        yield centred(
            middle[0], low, owner, "middle", ink(color), font_size=8, pointer_events="none"
        )


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
            lines.append(why)
            width = 13 * LETTER * max(map(len, lines)) + 2 * MARGIN
            parts = [
                label(MARGIN, MARGIN + 12 + LINE * n, text, "ink", font_size=13)
                for n, text in enumerate(lines)
            ]
            return picture(width, 2 * MARGIN + LINE * len(lines), self._title(), parts)
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
