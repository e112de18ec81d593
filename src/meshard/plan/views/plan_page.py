"""Plans as HTML: what decides first, where the bytes go, and all the rest folded below.

In: a plan. Out: the parts of a page, which is small for a tree of any size: of groups of arrays, of
devices and of blocks as many are shown as can be looked at, and the rest is added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from meshard.plan.captions import count_text, size_text
from meshard.plan.figures.plan_figures import DEVICES, Places, flow_of, hosts_of, stages
from meshard.plan.show.drawing import draw_layout
from meshard.plan.show.layout_svg import layout_picture
from meshard.plan.show.page import Markup, element, wide
from meshard.plan.show.summary import tiles
from meshard.plan.views.flow_svg import MOST_BANDS, flow_svg
from meshard.plan.views.plan_picture import plan_picture
from meshard.plan.views.plan_text import (
    arrays_table,
    largest_first,
    moved_by,
    routes_table,
    steps_table,
)
from meshard.plan.views.words import (
    array_text,
    facts_of,
    headline,
    is_imaginary,
    layout_text,
    names_text,
    shortened,
)

if TYPE_CHECKING:
    from meshard.algebra.layout import Layout
    from meshard.plan.figures.plan_figures import PlanFigures
    from meshard.plan.show.drawing import Drawing


MOST_DRAWN = 4  # groups whose layouts are drawn, and reasons that are told
MOST_ROWS = 60  # rows of a table
MOST_HOPS = 3  # hops whose flows are drawn
MOST_BLOCKS = 64  # of a layout that is drawn whole; of a larger one a schematic
MOST_LETTERS = 160  # of names
_SMALL = 16  # devices that are drawn one by one
_FEW, _SLABS = 6, 4  # blocks along a dim of a schematic, and slabs
_BAR = "height:9px;margin-top:5px;background:var(--meshard-hot);width:"


def page_title(plan: PlanFigures) -> str:
    """Return the headline of a plan's page."""
    return headline(plan)


def page_parts(plan: PlanFigures) -> Iterator[Markup]:
    """Yield what stands on a plan's page below the headline."""
    if not plan.leaves:
        return
    yield tiles(list(facts_of(plan)))
    hosts = hosts_of(plan)
    small = plan.device_count <= _SMALL
    if small:
        yield wide(element("div", plan_picture(plan), style="min-width:640px"))
    elif plan.bytes_moved:
        yield from _flows(plan, hosts or DEVICES)
    yield element("h3", "What moves, the largest first")
    yield _groups(plan)
    yield from _reasons(plan)
    drawn = Markup("".join(_tilings(plan)))
    yield element("details", element("summary", "Blocks before and after"), drawn)
    if not small and hosts is not None and plan.device_count <= MOST_BANDS:
        inside = Markup("".join(_flows(plan, DEVICES)))
        yield element("details", element("summary", "Bytes between devices"), inside)


def _flows(plan: PlanFigures, places: Places) -> Iterator[Markup]:
    """Yield a drawing for each of the first hops."""
    count = stages(plan)
    limit = plan.simulation.limit if plan.simulation is not None else None
    yield element("h3", f"Bytes between {count_text(2, places.name)[2:]}")
    drawn = []
    for stage in range(min(count, MOST_HOPS)):
        flow = flow_of(plan, stage, places=places, most=MOST_BANDS)
        moved = size_text(round(float(flow.amounts.sum())))
        which = f"hop {stage + 1} of {count}, " if count > 1 else ""
        name = element("p", f"{which}{moved}")
        drawn.append(element("div", name, wide(flow_svg(flow, marked=limit.name if limit else ""))))
    yield element("div", *drawn, class_="tiles")
    if count > MOST_HOPS:
        yield element("p", f"and {count_text(count - MOST_HOPS, 'more hop')}")


def _groups(plan: PlanFigures) -> Markup:
    """Return the table of the groups, with a bar for the bytes that each moves."""
    table = arrays_table(plan, MOST_ROWS)
    order = largest_first(plan)[: len(table.rows)]
    moved = {n: moved_by(plan, n) for n in order}
    most = max([1, *moved.values()])
    sides = ["n" if side == ">" else None for side in table.align]
    head = [element("th", name, class_=side) for name, side in zip(table.head, sides, strict=True)]
    rows = []
    for number, row in zip(order, table.rows, strict=True):
        cells = [
            element("td", shortened(cell, MOST_LETTERS), class_=side)
            for cell, side in zip(row, sides, strict=True)
        ]
        bar = element("div", style=f"{_BAR}{120 * moved[number] / most:.1f}px")
        rows.append(element("tr", *cells, element("td", bar)))
    body = element("table", element("thead", element("tr", *head, element("th", ""))), *rows)
    return Markup("".join([wide(body), *[element("p", note) for note in table.notes]]))


def _reasons(plan: PlanFigures) -> Iterator[Markup]:
    """Yield each reason for a route, with the steps and the routes that were not taken folded."""
    told: dict[tuple[str, str], list[int]] = {}
    for number in largest_first(plan):
        choice = plan.choices[number]
        told.setdefault((choice.route.name, choice.why or "as asked"), []).append(number)
    yield element("h3", "Why so")
    for (name, why), numbers in list(told.items())[:MOST_DRAWN]:
        choice = plan.choices[numbers[0]]
        names = shortened(names_text([x.name for x in plan.groups[numbers[0]]]), MOST_LETTERS)
        more = f" and {count_text(len(numbers) - 1, 'more group')}" if len(numbers) > 1 else ""
        yield element("p", f"{names}{more}: {name}. {_sentence(why)}")
        tables = [steps_table(plan, numbers[0]).html()]
        rejected = len(choice.others)
        if rejected:
            tables.append(routes_table(choice).html())
        count = f", and {count_text(rejected, 'other route')}" if rejected else ""
        yield element("details", element("summary", f"Its steps{count}"), *tables)
    rest = len(told) - MOST_DRAWN
    if rest > 0:
        yield element("p", f"and {count_text(rest, 'more reason')}; plan.why(group) tells each")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _tilings(plan: PlanFigures) -> Iterator[Markup]:
    """Yield the layouts of the largest groups, before, between and after."""
    platform = "imaginary" if is_imaginary(plan) else "device"
    order = largest_first(plan)
    for number in order[:MOST_DRAWN]:
        leaf, route = plan.groups[number][0], plan.choices[number].route
        between = route.layouts[1:-1]
        views = [
            (f"before: {leaf.source_text}".rstrip(": "), leaf.source),
            *((f"between ({route.name})", layout) for layout in between[:MOST_HOPS]),
            (f"after: {leaf.destination_text}".rstrip(": "), leaf.destination),
        ]
        names = shortened(names_text([x.name for x in plan.groups[number]]), MOST_LETTERS)
        yield element("p", f"{names}, {array_text(leaf)}")
        drawn = [
            layout_picture(
                schematic(layout, platform), f"{shortened(title, 60)}\n{layout_text(layout)}"
            )
            for title, layout in views
        ]
        yield element("div", *drawn, class_="tiles")
    rest = len(order) - MOST_DRAWN
    if rest > 0:
        yield element("p", f"{count_text(rest, 'more group')} of arrays")


def schematic(layout: Layout, platform: str, most: int = MOST_BLOCKS) -> Drawing:
    """Return the drawing of a layout; of one with many blocks only the first and last ones."""
    drawing = draw_layout(layout, platform=platform, max_slabs=_SLABS)
    if layout.piece_count <= most:
        return drawing
    slabs = [slab.shortened(_FEW, _FEW, apart=False) for slab in drawing.slabs]
    return replace(drawing, slabs=tuple(slabs))
