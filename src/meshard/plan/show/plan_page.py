"""Plans as HTML: tilings before and after, the flow between devices, tables, alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshard.plan.captions import PALETTE, bytes_text, size_text
from meshard.plan.figures.flow import Flow, flow_of, stages
from meshard.plan.show.drawing import draw_layout
from meshard.plan.show.layout_svg import MOST_SLABS, layout_picture
from meshard.plan.show.page import Markup, element, fragment, whole_page, wide
from meshard.plan.show.plan_text import (
    array_text,
    arrays_table,
    figures_text,
    headline,
    layout_text,
    names_text,
    steps_table,
    totals_table,
)
from meshard.plan.show.report import Table
from meshard.plan.show.svg import centred, picture, rect, upright

if TYPE_CHECKING:
    from meshard.plan.figures.plan_figures import PlanFigures


MOST_DRAWN = 4  # choices whose layouts are drawn
MOST_ROWS = 100  # rows of a table
MOST_BANDS = 32  # devices on either side, up to which every band is drawn
CELL, LEFT, TOP = 10.0, 76.0, 64.0  # rows and columns of the heat map
BAND_WIDTH, ROW, BLOCK = 420.0, 26.0, 84.0


def page(plan: PlanFigures) -> str:
    """Return a plan as a whole HTML page."""
    return whole_page(_headline(plan), plan_html(plan))


def plan_html(plan: PlanFigures) -> Markup:
    """Return a plan as one HTML element, for a notebook or a page."""
    return fragment(_headline(plan), *(_parts(plan) if plan.leaves else ()))


def _headline(plan: PlanFigures) -> str:
    return f"{headline(plan)}, {size_text(plan.bytes_moved)} moved"


def _parts(plan: PlanFigures) -> Iterator[Markup]:
    yield totals_table(plan).html()
    yield element("h3", "What moves where")
    yield arrays_table(plan, MOST_ROWS).html()
    yield element("h3", "Before and after")
    yield from _tilings(plan)
    count = stages(plan)
    for stage in range(count):
        which = "" if count == 1 else f", hop {stage + 1} of {count}"
        yield element("h3", f"Bytes between devices{which}")
        yield wide(flow_svg(flow_of(plan, stage, most=64)))
    yield element("h3", "Steps")
    yield steps_table(plan, MOST_ROWS).html()
    yield element("h3", "Why so")
    yield from _routes(plan)


def _tilings(plan: PlanFigures) -> Iterator[Markup]:
    largest = sorted(range(len(plan.groups)), key=lambda i: -sum(x.nbytes for x in plan.groups[i]))
    for number in largest[:MOST_DRAWN]:
        leaf, route = plan.groups[number][0], plan.choices[number].route
        name = names_text([x.name for x in plan.groups[number]])
        views = [
            (f"before: {leaf.source_text}".rstrip(": "), leaf.source),
            *((f"between ({route.name})", layout) for layout in route.layouts[1:-1]),
            (f"after: {leaf.destination_text}".rstrip(": "), leaf.destination),
        ]
        yield element("p", f"{name}, {array_text(leaf)}")
        drawn = [
            layout_picture(
                draw_layout(layout, max_slabs=MOST_SLABS), f"{title}\n{layout_text(layout)}"
            )
            for title, layout in views
        ]
        yield element("div", *drawn, class_="tiles")
    rest = len(largest) - MOST_DRAWN
    if rest > 0:
        yield element("p", f"and {rest:,} more groups of arrays are laid out otherwise")


def _routes(plan: PlanFigures) -> Iterator[Markup]:
    told: set[tuple[str, str, tuple[str, ...]]] = set()
    for choice, group in zip(plan.choices, plan.groups, strict=True):
        kind = (choice.route.name, choice.why, tuple([f"{o.name}{o.why}" for o in choice.others]))
        if kind in told or len(told) >= MOST_DRAWN:
            continue
        told.add(kind)
        rows = [(choice.route.name, choice.why or "as asked", figures_text(choice.figures))]
        rows += [(o.name, o.why, figures_text(o.figures)) for o in choice.others]
        yield element("p", names_text([x.name for x in group]))
        yield Table(("route", "why", "figures of one array"), rows, "<<<", marked=1).html()


# the flow


def flow_svg(flow: Flow) -> Markup:
    """Return a flow as one ``<svg>`` element: bands between devices, or a heat map of many."""
    single = all(a == b for a, b in (*flow.senders, *flow.receivers))
    few = max(len(flow.senders), len(flow.receivers)) <= MOST_BANDS
    return _bands(flow) if single and few else _heat(flow)


def _ids(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def _moving(flow: Flow) -> Iterator[tuple[int, int, float, str]]:
    """Yield each pair of sender and receiver: row, column, bytes, and a text."""
    for i, j in np.argwhere(flow.amounts > 0).tolist():
        amount = float(flow.amounts[i, j])
        ends = f"{_ids(flow.senders[i])} to {_ids(flow.receivers[j])}"
        yield i, j, amount, f"{ends}: {bytes_text(round(amount))}"


def _bands(flow: Flow) -> Markup:
    """Return a band from each sender to each receiver, as wide as its bytes."""
    sent, received = flow.amounts.sum(axis=1), flow.amounts.sum(axis=0)
    rows = max(len(sent), len(received), 1)
    scale = (ROW - 8) / max([1.0, *sent.tolist(), *received.tolist()])
    end = BLOCK + BAND_WIDTH
    parts = [centred(BLOCK, 12, "sends", "end"), centred(end, 12, "receives")]
    # The middles of the devices, and how far the bands at each have filled its height.
    left, right = (
        [TOP / 2 + (n + 0.5 + (rows - len(side)) / 2) * ROW for n in range(len(side))]
        for side in (sent, received)
    )
    from_, to = (
        [y - total * scale / 2 for y, total in zip(ys, side.tolist(), strict=True)]
        for ys, side in ((left, sent), (right, received))
    )
    middle = BLOCK + BAND_WIDTH / 2
    for i, j, amount, told in _moving(flow):
        high = amount * scale
        y, z = from_[i] + high / 2, to[j] + high / 2
        from_[i] += high
        to[j] += high
        bend = f"C{middle:.1f} {y:.2f} {middle:.1f} {z:.2f} {end - 6:.1f} {z:.2f}"
        parts.append(
            element(
                "path",
                element("title", told),
                d=f"M{BLOCK + 6:.1f} {y:.2f}{bend}",
                fill="none",
                stroke=PALETTE[i % len(PALETTE)],
                stroke_opacity=0.75,
                stroke_width=max(high, 0.6),
            )
        )
    for n, (y, total, span) in enumerate(zip(left, sent.tolist(), flow.senders, strict=True)):
        high, color = max(total * scale, 1.0), PALETTE[n % len(PALETTE)]
        parts.append(rect(BLOCK, y - high / 2, 6, high, color, bytes_text(round(total))))
        parts.append(centred(BLOCK - 4, y, f"device {_ids(span)}", "end"))
    for y, total, span in zip(right, received.tolist(), flow.receivers, strict=True):
        high = max(total * scale, 1.0)
        parts.append(rect(end - 6, y - high / 2, 6, high, "faint", bytes_text(round(total))))
        parts.append(centred(end + 4, y, f"device {_ids(span)}"))
    told = "bytes from devices on the left to devices on the right"
    return picture(BAND_WIDTH + 2 * BLOCK, TOP / 2 + rows * ROW + 14, told, parts)


def _heat(flow: Flow) -> Markup:
    """Return a map with a row for each sender and a column for each receiver, or groups of them."""
    rows, columns = flow.amounts.shape
    right, bottom = LEFT + columns * CELL, TOP + rows * CELL
    most = float(flow.amounts.max(initial=0))

    def cell(x: float, y: float, share: float, told: str = "") -> Markup:
        return rect(x, y, CELL, CELL, "hot", told, fill_opacity=0.08 + 0.92 * share)

    parts = [centred(LEFT, 12, "receivers →"), centred(4, TOP - 10, "senders ↓")]
    every = max(1, -(-max(rows, columns) // 16))
    for i in range(0, rows, every):
        y = TOP + (i + 0.5) * CELL
        parts.append(centred(LEFT - 6, y, str(flow.senders[i][0]), "end"))
    for j in range(0, columns, every):
        x, y = LEFT + (j + 0.5) * CELL, TOP - 6
        parts.append(centred(x, y, str(flow.receivers[j][0]), transform=upright(x, y)))
    parts.append(rect(LEFT, TOP, columns * CELL, rows * CELL, "outline"))
    for i, j, amount, told in _moving(flow):
        parts.append(cell(LEFT + j * CELL, TOP + i * CELL, amount / most, told))
    for step, share in enumerate((1.0, 0.5, 0.0)):
        y = TOP + step * 18
        parts.append(cell(right + 16, y, share))
        parts.append(centred(right + 32, y + CELL / 2, size_text(round(most * share))))
    grouped = any(a != b for a, b in (*flow.senders, *flow.receivers))
    notes = ["neighbouring devices stand together"] * grouped
    notes += ["estimated from some of the receivers"] * flow.estimated
    if notes:
        parts.append(centred(LEFT, bottom + 16, "; ".join(notes)))
    told = "bytes from each device (row) to each (column)"
    return picture(max(right + 180, 360), bottom + 30, told, parts)
