"""A plan as one picture: the blocks before, the bytes that flow, the blocks after.

In: a plan. Out: one ``<svg>`` element. A device has one colour throughout: that of its blocks, of
what it sends, and of its places on both sides. A block with replicas is striped in the colours of
its holders. Of many arrays the largest group is drawn, and of many devices neighbours as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.plan.captions import (
    count_text,
    device_label,
    time_text,
    whole_text,
)
from meshard.plan.figures.plan_figures import DEVICES, Flow, Places, flow_of, hosts_of, stages
from meshard.plan.show.drawing import Drawing, Rectangle, Slab, draw_layout
from meshard.plan.show.page import Markup, element
from meshard.plan.show.svg import (
    LETTER,
    SMALLEST,
    Grid,
    Place,
    centred,
    fit,
    gap,
    lettered,
    middle,
    moved,
    picture,
    rect,
    steps,
)
from meshard.plan.views.flow_svg import Span, banded, colors_of, ids_text
from meshard.plan.views.words import (
    array_text,
    device_word,
    headline,
    kind_of_hop,
    layout_text,
    names_text,
    shortened,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshard.algebra.layout import Layout
    from meshard.plan.figures.plan_figures import PlanFigures

    Floats = NDArray[np.float64]

MARGIN, GAP = 18.0, 12.0
PANEL, FLOW, TOP, FOOT = 208.0, 230.0, 84.0, 44.0
MOST_ROWS, MOST_HOPS = 16, 3  # devices, or groups of them, on each side; hops that are drawn
_ELEMENTS = 16  # along a dim, up to which each element is outlined
_SHEETS, _BEHIND = 3, 9.0  # slabs that are drawn behind each other, and how far apart
_STRIPES = 8  # holders of a block, up to which each has its stripe
_SEAM = "stroke:var(--meshard-card);stroke-width:2"
_BLOCKS = 8  # blocks along a dim; of more, those in between are left out


def plan_picture(plan: PlanFigures) -> Markup:
    """Return a plan as one ``<svg>`` element, for a page that has the style sheet."""
    if not plan.leaves:
        told = headline(plan)
        return picture(360, 60, told, [centred(180, 30, told, "middle", font_size=13)])
    number = _drawn_group(plan)
    leaf = plan.groups[number][0]
    few = plan.device_count <= 2 * MOST_ROWS
    places = DEVICES if few else hosts_of(plan) or DEVICES
    count = stages(plan)
    flows = [
        flow_of(plan, stage, places=places, most=MOST_ROWS)
        for stage in range(min(count, MOST_HOPS))
    ]
    rows = max(len(side) for flow in flows for side in (flow.senders, flow.receivers))
    high = max(PANEL, rows * (28.0 if rows <= 8 else 17.0))
    colors = colors_of(flows)
    before = _Tiling(leaf.source, flows[0].senders, colors, places)
    after = _Tiling(leaf.destination, flows[-1].receivers, colors, places)
    x, middle = MARGIN, TOP + high / 2
    ends = (
        ("before", leaf.source_text or layout_text(leaf.source, devices=False)),
        ("after", leaf.destination_text or layout_text(leaf.destination, devices=False)),
    )
    parts = [*_title(x + PANEL / 2, *ends[0]), *before.drawn(x, middle)]
    x += PANEL + GAP
    for stage, flow in enumerate(flows):
        names = [_names_width(side) for side in (flow.senders, flow.receivers)]
        x += names[0]
        parts += _title(x + FLOW / 2, *_flow_title(plan, number, stage))
        stays = _stays(plan, stage, flow, places)
        parts += banded(flow, colors, (x, TOP, FLOW, high), stays)
        if stage == 0:
            parts.append(centred(x - 5, TOP - 10, flow.unit, "end", font_size=10))
        if stage == len(flows) - 1:
            parts.append(centred(x + FLOW + 5, TOP - 10, flow.unit, font_size=10))
        x += FLOW + names[1] + GAP
    parts += [*_title(x + PANEL / 2, *ends[1]), *after.drawn(x, middle)]
    right, bottom = x + PANEL + MARGIN, TOP + high + FOOT
    foot = _foot(plan, number, count - len(flows), int(right / 7))
    parts.append(centred(right / 2, bottom - 18, foot, "middle", font_size=12))
    stripes = {**before.stripes, **after.stripes}
    defined = [element("defs", *[stripes[k] for k in sorted(stripes)])] * bool(stripes)
    return picture(right, bottom, f"{headline(plan)}: before, flow, after", [*defined, *parts])


def _drawn_group(plan: PlanFigures) -> int:
    """Return the number of the group that moves most, or that is largest if nothing moves."""
    sizes = [
        (sum(hop.moved for hop in choice.route.hops) * weight, sum(x.nbytes for x in group))
        for choice, weight, group in zip(plan.choices, plan.weights, plan.groups, strict=True)
    ]
    return max(range(len(sizes)), key=sizes.__getitem__)


def _title(x: float, first: str, second: str) -> Iterator[Markup]:
    yield centred(x, 28, first, "middle", "ink", font_size=14, font_weight="600")
    size = min(13.0, (PANEL + 16) / (LETTER * max(len(second), 1)))
    yield centred(x, 49, second, "middle", font_size=f"{size:.1f}")


def _flow_title(plan: PlanFigures, number: int, stage: int) -> tuple[str, str]:
    """Return the lines above the bands of one hop."""
    moved = sum(
        r.hops[stage].moved * w
        for r, w in zip(plan.routes, plan.weights, strict=True)
        if stage < len(r.hops)
    )
    if not moved:
        return "nothing moves", "every device has its part"
    hops = plan.choices[number].route.hops
    kind = kind_of_hop(hops[stage]) if stage < len(hops) else "exchange"
    if plan.simulation is not None:
        told = time_text(plan.simulation.hops[stage].seconds)
        return f"{whole_text(moved)} in {told}", f"{kind}, {plan.simulation.topology}"
    least = plan.lower_bound_bytes == plan.bytes_moved == moved
    return f"{whole_text(moved)} move", f"{kind}{', the least possible' * least}"


def _foot(plan: PlanFigures, number: int, hidden: int, most: int) -> str:
    """Return the line below the picture: what is drawn."""
    group = plan.groups[number]
    names, rest = names_text([x.name for x in group]), len(plan.leaves) - len(group)
    told = f"{array_text(group[0])} on {count_text(plan.device_count, device_word(plan))}"
    if len(plan.leaves) > 1:
        told = f"{names}: {told}"
    if rest:
        told += f"; the bands are of all {len(plan.leaves):,} arrays"
    told += f"; {count_text(hidden, 'more hop')}" * bool(hidden)
    return shortened(told, most)


# the flow


def _stays(plan: PlanFigures, stage: int, flow: Flow, places: Places) -> Floats:
    """Return the bytes that stay where they are in one hop, from each row to each column."""
    found = np.zeros(flow.amounts.shape)
    for route, weight in zip(plan.routes, plan.weights, strict=True):
        if stage < len(route.hops):
            keeper, _, _, _, kept = route.hops[stage].stays
            numbers = places.of(keeper)
            rows, columns = (
                np.searchsorted([first for first, _ in side], numbers, side="right") - 1
                for side in (flow.senders, flow.receivers)
            )
            np.add.at(found, (rows, columns), kept.astype(np.float64) * weight)
    return found


def _names_width(side: Sequence[Span]) -> float:
    return 8 + 7.0 * max([len(ids_text(span)) for span in side], default=0)


# the blocks


@final
class _Tiling:
    """The blocks of a layout, in the colours of their holders.

    Args:
        layout: the layout.
        spans: the devices that have a colour, or groups of them.
        colors: their colours.
        places: the groups of devices.

    Attributes:
        stripes: the patterns that it needs, by their names.
    """

    def __init__(
        self,
        layout: Layout,
        spans: Sequence[Span],
        colors: Mapping[Span, str],
        places: Places,
    ) -> None:
        self._drawing: Drawing = draw_layout(layout, platform="", max_slabs=_SHEETS)
        self._shape = layout.shape
        self._spans, self._colors, self._places = spans, colors, places
        self._firsts = np.array([first for first, _ in spans], np.int64)
        self.stripes: dict[str, Markup] = {}

    def drawn(self, x: float, middle: float) -> Iterator[Markup]:
        """Yield the blocks, within a column that begins at ``x``, around a line."""
        if not self._drawing.slabs:
            yield rect(x, middle - 20, PANEL, 40, "gap", rx=4)
            yield centred(x + PANEL / 2, middle, "no elements", "middle", font_size=12)
            return
        behind = _BEHIND * (len(self._drawing.slabs) - 1)
        width, height = self._size(PANEL - behind)
        left, top = x + (PANEL - behind - width) / 2, middle - (height - behind) / 2
        for n, slab in reversed([*enumerate(self._drawing.slabs)]):
            place = left + n * _BEHIND, top - n * _BEHIND
            yield moved(*place, self._slab(slab, (width, height), front=n == 0))
        hidden = self._drawing.slab_count - len(self._drawing.slabs)
        notes = [f"{self._drawing.slab_count} slabs"] * (hidden > 0)
        if self._elided:
            notes.append(f"{self._drawing.layout.piece_count:,} blocks")
        if notes:
            yield centred(left + width / 2, top + height + 14, ", ".join(notes), "middle")

    @property
    def _elided(self) -> bool:
        slab = self._drawing.slabs[0]
        return max(len(slab.rows), len(slab.columns)) - 1 > _BLOCKS

    def _size(self, most: float) -> tuple[float, float]:
        """Return the width and the height of a slab, in the array's ratio within limits."""
        if len(self._shape) < 2:
            return (most, 44.0) if self._shape else (64.0, 64.0)
        ratio = min(max(self._shape[-1] / self._shape[-2], 0.5), 2.0)
        return (most, most / ratio) if ratio > 1 else (most * ratio, most)

    def _slab(self, slab: Slab, size: tuple[float, float], *, front: bool) -> Iterator[Markup]:
        short = slab.shortened(_BLOCKS, _BLOCKS, apart=False)
        heights, widths = short.sizes
        grid = Grid(steps(widths, size[0]), steps(heights, size[1]))
        for one in short.rectangles:
            place = grid.place(one.rows, one.columns)
            if one.area < 0:
                yield from gap(place, down=place[2] > place[3])
            else:
                yield from self._block(one, place, front)
        if not short.elided and self._shape and max(self._shape[-2:]) <= _ELEMENTS:
            rows, columns = (1, *self._shape)[-2:]
            fine = Grid(steps([1] * columns, size[0]), steps([1] * rows, size[1]))
            yield fine.lines(0.7, stroke_opacity=0.45)
        yield rect(0, 0, *size, "outline", pointer_events="none")

    def _block(self, one: Rectangle, place: Place, front: bool) -> Iterator[Markup]:
        """Yield one block: its colours, its border, and its devices if there is room."""
        devices = self._drawing.devices(one.area)
        pieces = self._drawing.pieces(one.area)
        boxes = ", ".join([str(self._drawing.layout.box(piece)) for piece in pieces])
        colors = self._holders(devices)
        told = f"{boxes} on {device_label(devices, 'device', most=32)}"
        yield rect(*place, self._fill(colors), told, style=_SEAM)
        text = device_label(devices, most=2)
        size, turned = fit(place, len(text) + 1)
        if not front or not one.labelled or size < SMALLEST:
            return
        if len(colors) > 1:
            x, y = middle(place)
            across, down = size * LETTER * len(text) + 8, size * 1.4
            wide, high = (down, across) if turned else (across, down)
            yield rect(x - wide / 2, y - high / 2, wide, high, "card", rx=4)
        yield from lettered(place, text, colors[0] if len(colors) == 1 else "card", len(text) + 1)

    def _holders(self, devices: Sequence[int]) -> list[str]:
        """Return the colours of some devices, but for those that take no part."""
        numbers = self._places.of(np.array(devices, np.int64))
        at = np.searchsorted(self._firsts, numbers, side="right") - 1
        pairs = zip(at.tolist(), numbers.tolist(), strict=True)
        spans = {self._spans[n] for n, number in pairs if n >= 0 and number <= self._spans[n][1]}
        return [self._colors[span] for span in sorted(spans)]

    def _fill(self, colors: Sequence[str]) -> str:
        """Return the colour of a block, or the pattern of its holders' colours."""
        if len(colors) < 2:
            return colors[0] if colors else "gap"
        shown = colors[:_STRIPES]
        name = "meshard-" + "-".join(color[1:] for color in shown)
        step = 8 if len(shown) < 5 else 5
        rects = [rect(n * step, 0, step, 8, color) for n, color in enumerate(shown)]
        self.stripes[name] = element(
            "pattern",
            *rects,
            id=name,
            patternUnits="userSpaceOnUse",
            width=step * len(shown),
            height=8,
            patternTransform="rotate(45)",
        )
        return f"url(#{name})"
