"""Drawings that only these pages need, made of what the library returns.

In: a value of meshard's. Out: an SVG, for a block ``{drawing}`` of a page.
"""

from __future__ import annotations

from collections.abc import Iterator

import meshard
from meshard import NamedSharding, P, make_mesh
from meshard.elastic import LossSimulation
from meshard.plan.captions import PALETTE
from meshard.plan.show.page import Markup, element
from meshard.plan.show.svg import centred, label, picture, rect, upright
from meshard.resilience.copies.restore_plan import KINDS, RestoredArray

COLOURS = dict(zip(KINDS, (PALETTE[0], PALETTE[1], PALETTE[2]), strict=True))
ROW, TOP, LEFT, BETWEEN = 11, 78, 40, 30  # a row's height; where the memories begin; gaps
COLUMN, NARROW = 26, 66  # the width of a process's memory, before and after
INK, LOST = "#1f2328", "#8b949e"


class _Sheet:
    """The parts of one picture, and how far it reaches."""

    def __init__(self, array: RestoredArray) -> None:
        self.rows = array.wanted.destination.shape[0]
        self.parts: list[Markup] = []
        self.right = LEFT

    def group(self, title: str, cost: str, heads: list[str], width: int) -> int:
        """Begin a group of columns; return its left edge."""
        left, self.right = self.right, self.right + len(heads) * width + BETWEEN
        middle = left + len(heads) * width / 2
        self.parts.append(centred(middle, 24, title, "middle", "ink", font_size=13))
        self.parts.append(centred(middle, 43, cost, "middle"))
        for number, head in enumerate(heads):
            x = left + number * width
            self.parts.append(centred(x + width / 2, TOP - 12, head, "middle"))
            self.parts.append(rect(x + 1, TOP, width - 2, self.rows * ROW, "gap"))
        return left

    def cell(
        self, x: float, width: float, rows: tuple[int, int], kind: str | None, text: str, told: str
    ) -> None:
        """Add some rows that a memory holds; without a kind, those that are lost."""
        start, stop = rows
        y, height = TOP + start * ROW, (stop - start) * ROW
        place = (x + 2, y + 1, width - 4, height - 2)
        if kind is None:
            shape = rect(*place, "outline", told, stroke_dasharray="3 3", style=f"stroke:{LOST}")
        else:
            shape = rect(*place, COLOURS[kind], told)
        self.parts.append(shape)
        if text:
            color = "faint" if kind is None else INK
            self.parts.append(centred(x + width / 2, y + height / 2, text, "middle", color))


def sources_svg(found: LossSimulation) -> str:
    """Return where the rows of an array come from after some processes have died.

    Args:
        found: the simulation of a tree of one array, whose rows are split over processes that
            have one device each.
    """
    assert found.protected is not None
    (array,), (copied,) = found.restored.arrays, found.protected.arrays
    assert copied.copies is not None
    sheet, dead = _Sheet(array), set(found.dead)
    names = [str(p) for p in range(found.processes)]
    for title, cost, kind, layout in (
        ("1  arrays", "what is left of them", KINDS[0], copied.own),
        ("2  copies", "of elastic.protect", KINDS[1], copied.copies),
    ):
        left = sheet.group(title, cost, names, COLUMN)
        for piece in range(layout.piece_count):
            ((start, *_), (stop, *_)) = layout.box(piece).starts, layout.box(piece).stops
            for p in layout.holders(piece):
                gone = p in dead
                told = f"rows {start} to {stop} in process {p}" + (", which has died" * gone)
                text = "" if gone else f"{start}:{stop}"
                x = left + p * COLUMN
                sheet.cell(x, COLUMN, (start, stop), None if gone else kind, "", told)
                if text:
                    middle = TOP + (start + stop) / 2 * ROW
                    spot = (x + COLUMN / 2, middle)
                    sheet.parts.append(
                        centred(*spot, text, "middle", INK, transform=upright(*spot))
                    )
    left = sheet.group("3  checkpoint", "these rows only", ["disk"], NARROW)
    for box in array.unheld:
        (start, *_), (stop, *_) = box.starts, box.stops
        sheet.cell(left, NARROW, (start, stop), KINDS[2], f"{start}:{stop}", "read from the disk")
    living = [p for p in range(found.processes) if p not in dead]
    heads = [str(p) for p in living]
    left = sheet.group("after elastic.restore", "on the processes that live", heads, NARROW)
    for p, rows, kind, text in _arrivals(array):
        x = left + living.index(p) * NARROW
        sheet.cell(x, NARROW, rows, kind, text, f"rows {rows[0]} to {rows[1]}: {text}")
    for row in range(0, sheet.rows + 1, 4):
        sheet.parts.append(label(LEFT - 8, TOP + row * ROW + 4, str(row), text_anchor="end"))
    foot = TOP + sheet.rows * ROW + 24
    gone = " and ".join(names[p] for p in found.dead)
    legend = (
        f"Dashed: gone with processes {gone}. Here: stays where it is. From: sent by that process. "
        "Read: from the disk."
    )
    sheet.parts.append(label(LEFT, foot, legend))
    told = "Where the rows of an array come from after processes have died"
    return picture(sheet.right, foot + 16, told, sheet.parts, sheet=True)


def _arrivals(array: RestoredArray) -> Iterator[tuple[int, tuple[int, int], str, str]]:
    """Yield for each process and rows that it gets: the process, the rows, the kind, the words."""
    own, copies = array.columns
    whole, wanted = array.whole, array.wanted.destination
    for piece in range(wanted.piece_count):
        (process,) = wanted.holders(piece)
        for number in range(whole.piece_count):
            box = whole.box(number).intersect(wanted.box(piece))
            if not box.volume:
                continue
            (start, *_), (stop, *_) = box.starts, box.stops
            held = whole.tensor.reshape(whole.piece_count, -1)[number].tolist()
            columns = held[:own], held[own : own + copies], held[own + copies :]
            here = [k for k, some in zip(KINDS, columns, strict=True) if process in some]
            kind = here[0] if here else KINDS[int(array.kinds[number])]
            donor = max(columns[KINDS.index(kind)])
            text = "here" if here else f"from {donor}"
            yield process, (start, stop), kind, "read" if kind == KINDS[2] else text


TILE, GAP, ABOVE = 52, 12, 66  # a drawn matrix and the space below it; where the matrices begin
STAGE = 176  # from one stage of a step to the next


def gradient_svg(axis: str, spec: P, used: P, sums: str) -> str:
    """Return what four devices hold of a matrix of weights in the stages of a training step.

    Args:
        axis: the axis of the mesh.
        spec: how the weights are kept between steps; the gradient is laid out alike.
        used: the spec by which the passes use them.
        sums: what adds up the gradients of several devices' examples; empty if there is nothing
            to add.
    """
    mesh, parts = make_mesh((4,), (axis,), devices=meshard.devices()[:4]), []
    devices = list(mesh.devices.flat)
    stages = (
        ("kept", spec, "" if used == spec else "all-gather", 1.0),
        ("used", used, "", 1.0),
        ("own gradient", used, sums, 0.35 if sums else 1.0),
        ("gradient", spec, "", 1.0),
    )
    left, high = 92, TILE + GAP
    for row, device in enumerate(devices):
        y = ABOVE + row * high + TILE / 2
        parts.append(centred(left - 16, y, f"device {device.id}", "end"))
    for number, (title, held, arrow, opacity) in enumerate(stages):
        x, middle = left + number * STAGE, ABOVE + len(devices) * high / 2 - GAP / 2
        parts.append(centred(x + TILE / 2, 34, title, "middle", "ink", font_size=13))
        boxes = NamedSharding(mesh, held).devices_indices_map((TILE, TILE))
        for row, device in enumerate(devices):
            y, (down, right) = ABOVE + row * high, boxes[device]
            (top, bottom, _), (start, end, _) = down.indices(TILE), right.indices(TILE)
            parts.append(rect(x, y, TILE, TILE, "gap"))
            own = (x + start, y + top, end - start, bottom - top)
            told = f"device {device.id}: rows {top}:{bottom}, columns {start}:{end} of {TILE}"
            parts.append(rect(*own, PALETTE[row], told, fill_opacity=opacity))
        if number < len(stages) - 1:
            spot = x + TILE / 2 + STAGE / 2
            parts.append(centred(spot, middle - 12, arrow or "nothing is sent", "middle", "ink"))
            line = f"M{spot - 42} {middle + 4}h80m-7 -5l7 5l-7 5"
            look = {"class_": "meshard-outline", "fill": "none", "stroke": LOST}
            parts.append(element("path", d=line, stroke_width=1.4, **look))
    foot = ABOVE + len(devices) * high + 8
    if sums:
        parts.append(label(left, foot, "Faint: only what its own examples add to the sum."))
    told = f"A weight kept by {spec}, its gradient, and what is sent in between"
    return picture(left + 3 * STAGE + TILE + 24, foot + 14, told, parts, sheet=True)
