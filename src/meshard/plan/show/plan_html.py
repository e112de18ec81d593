"""Plans as HTML: tilings before and after, the flow between devices, tables, alternatives.

Everything stands in the text itself: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from meshard.plan.captions import PALETTE, amount_text, bytes_text, size_text
from meshard.plan.figures.flow import Flow, flow_of, stages
from meshard.plan.show.plan_table import (
    array_text,
    facts,
    figures_text,
    layout_text,
    names_text,
    steps_of,
)
from meshard.plan.show.svg import drawing_svg, xml_text

if TYPE_CHECKING:
    from meshard.plan.figures.plan_figures import Planned


MOST_DRAWN = 4  # choices whose layouts are drawn
MOST_ROWS = 100  # of a table
MOST_BANDS = 32  # devices on either side, up to which every band is drawn
CELL, LEFT, TOP = 10.0, 76.0, 64.0  # of the heat map
BAND_WIDTH, ROW, BLOCK = 420.0, 26.0, 84.0

SHEET = (
    ".meshard-plan{--ink:#1f2328;--faint:#59636e;--line:#d0d7de;--card:#ffffff;--hot:#0b5a8f;"
    "color:var(--ink);font:14px/1.45 system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif}"
    "@media (prefers-color-scheme:dark){.meshard-plan{--ink:#f0f3f6;--faint:#a5adb7;"
    "--line:#3d444d;--card:#15181d;--hot:#6cc0f5}}"
    ".meshard-plan h2{font-size:17px;margin:0 0 4px}"
    ".meshard-plan h3{font-size:14px;margin:22px 0 6px}"
    ".meshard-plan p{margin:2px 0;color:var(--faint,#59636e);max-width:75ch}"
    ".meshard-plan .wide{overflow-x:auto}"
    ".meshard-plan table{border-collapse:collapse;font-size:13px}"
    ".meshard-plan th,.meshard-plan td{padding:3px 12px 3px 0;text-align:left;"
    "border-bottom:1px solid var(--line);vertical-align:top}"
    ".meshard-plan th{color:var(--faint,#59636e);font-weight:500}"
    ".meshard-plan .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".meshard-plan .tiles{display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start}"
    ".meshard-plan .chosen{font-weight:600}"
)


def page(plan: Planned) -> str:
    """Return a plan as a whole HTML page."""
    return whole_page(_headline(plan), plan_html(plan))


def whole_page(title: str, inside: str) -> str:
    """Return an HTML page around an element that uses the sheet."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        f"<title>{_text(title)}</title>"
        "<style>body{margin:24px;background:#ffffff}"
        "@media (prefers-color-scheme:dark){body{background:#15181d}}</style>"
        f"</head><body>{inside}</body></html>\n"
    )


def plan_html(plan: Planned) -> str:
    """Return a plan as one HTML element, for a notebook or a page."""
    parts = [f"<style>{SHEET}</style><h2>{_text(_headline(plan))}</h2>"]
    if plan.leaves:
        parts += _totals(plan)
        parts += _arrays(plan)
        parts += _tilings(plan)
        parts += _flows(plan)
        parts += _steps(plan)
        parts += _routes(plan)
    return f'<div class="meshard-plan">{"".join(parts)}</div>'


def _headline(plan: Planned) -> str:
    many = "s" * (len(plan.leaves) != 1)
    return (
        f"Plan: {len(plan.leaves):,} array{many}, {size_text(plan.nbytes)}, "
        f"{size_text(plan.bytes_moved)} moved"
    )


def _text(text: str) -> str:
    return xml_text(text)


def table_html(
    head: Sequence[str], rows: Iterable[Sequence[str]], texts: int, chosen: int = 0
) -> str:
    """Return a table of which the first columns are text; the first ``chosen`` rows stand out."""
    number = ' class="n"'

    def row(cells: Sequence[str], tag: str, more: str = "") -> str:
        inner = "".join(
            f"<{tag}{number * (i >= texts)}>{_text(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr{more}>{inner}</tr>"

    body = [row(r, "td", ' class="chosen"' * (i < chosen)) for i, r in enumerate(rows)]
    return (
        f'<div class="wide"><table><thead>{row(head, "th")}</thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _more(rest: int, what: str) -> str:
    return f"<p>and {rest:,} more {what}</p>" if rest > 0 else ""


def _totals(plan: Planned) -> Iterator[str]:
    rows = [(name, value, remark) for name, value, remark in facts(plan)]
    cells = "".join(
        f'<tr><td>{_text(name)}</td><td class="n">{_text(value)}</td><td>{_text(remark)}</td></tr>'
        for name, value, remark in rows
    )
    yield f'<div class="wide"><table><tbody>{cells}</tbody></table></div>'


def _arrays(plan: Planned) -> Iterator[str]:
    yield "<h3>What moves where</h3>"
    rows = [
        (
            names_text([x.name for x in group]),
            array_text(group[0]),
            group[0].source_text or layout_text(group[0].source),
            group[0].destination_text or layout_text(group[0].destination),
            choice.route.name,
            f"{len(group):,}",
            amount_text(sum(x.nbytes for x in group)),
        )
        for choice, group in islice(zip(plan.choices, plan.groups, strict=True), MOST_ROWS)
    ]
    yield table_html(("arrays", "what", "from", "to", "route", "count", "bytes"), rows, 5)
    yield _more(len(plan.groups) - MOST_ROWS, "groups of arrays")


def _tilings(plan: Planned) -> Iterator[str]:
    yield "<h3>Before and after</h3>"
    largest = sorted(range(len(plan.groups)), key=lambda i: -sum(x.nbytes for x in plan.groups[i]))
    for number in largest[:MOST_DRAWN]:
        leaf, route = plan.groups[number][0], plan.choices[number].route
        name = names_text([x.name for x in plan.groups[number]])
        middle = [(f"between ({route.name})", layout) for layout in route.layouts[1:-1]]
        views = [
            (f"before: {leaf.source_text}".rstrip(": "), leaf.source),
            *middle,
            (f"after: {leaf.destination_text}".rstrip(": "), leaf.destination),
        ]
        yield f'<p>{_text(f"{name}, {array_text(leaf)}")}</p><div class="tiles">'
        for title, layout in views:
            yield drawing_svg(layout, title=f"{title}\n{layout_text(layout)}")
        yield "</div>"
    yield _more(len(largest) - MOST_DRAWN, "groups of arrays lie otherwise")


def _flows(plan: Planned) -> Iterator[str]:
    count = stages(plan)
    for stage in range(count):
        which = "" if count == 1 else f", hop {stage + 1} of {count}"
        yield f"<h3>Bytes between devices{which}</h3>"
        few = flow_of(plan, stage, most=64)
        yield f'<div class="wide">{flow_svg(few)}</div>'


def _steps(plan: Planned) -> Iterator[str]:
    yield "<h3>Steps</h3>"
    steps = list(steps_of(plan))
    rows = [
        (
            f"{s.choice + 1}.{s.hop + 1}",
            s.kind,
            layout_text(plan.routes[s.choice].layouts[s.hop + 1]),
            amount_text(s.bytes_moved),
            amount_text(s.most_sent),
            amount_text(s.most_received),
            f"{'' if s.traffic.peers_exact else '≤ '}{s.traffic.peers:,}",
            f"{'' if s.traffic.exact else '≤ '}{s.traffic.messages:,}",
            f"{s.rounds:,}",
        )
        for s in steps[:MOST_ROWS]
    ]
    head = ("step", "operation", "to", "bytes", "most sent", "most received", "peers")
    yield table_html((*head, "messages", "rounds"), rows, 3)
    yield _more(len(steps) - MOST_ROWS, "steps")


def _routes(plan: Planned) -> Iterator[str]:
    yield "<h3>Why so</h3>"
    told: set[tuple[str, str, tuple[str, ...]]] = set()
    for choice, group in zip(plan.choices, plan.groups, strict=True):
        kind = (choice.route.name, choice.why, tuple([f"{o.name}{o.why}" for o in choice.others]))
        if kind in told or len(told) >= MOST_DRAWN:
            continue
        told.add(kind)
        rows = [(choice.route.name, choice.why or "as asked", figures_text(choice.figures))]
        rows += [(o.name, o.why, figures_text(o.figures)) for o in choice.others]
        yield f"<p>{_text(names_text([x.name for x in group]))}</p>"
        yield table_html(("route", "why", "figures of one array"), rows, 3, chosen=1)


# the flow


def flow_svg(flow: Flow) -> str:
    """Return a flow as one ``<svg>`` element: bands between devices, or a heat map of many."""
    single = all(a == b for a, b in (*flow.senders, *flow.receivers))
    few = max(len(flow.senders), len(flow.receivers)) <= MOST_BANDS
    return _bands(flow) if single and few else _heat(flow)


def open_svg(width: float, height: float, label: str) -> str:
    """Return the opening tag of a drawing."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="meshard-flow" role="img" '
        f'aria-label="{_text(label)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:100%;height:auto" font-size="11" '
        f'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif">'
    )


def _ids(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def label_svg(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    """Return a text in a drawing, centred on its line."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central" '
        f'fill="#59636e" style="fill:var(--faint,#59636e)"{more}>{_text(text)}</text>'
    )


def _bands(flow: Flow) -> str:
    """Return a band from each sender to each receiver, as wide as its bytes."""
    rows = max(len(flow.senders), len(flow.receivers), 1)
    height = TOP / 2 + rows * ROW + 14
    width = BAND_WIDTH + 2 * BLOCK
    most = max([1.0, *flow.amounts.sum(axis=1).tolist(), *flow.amounts.sum(axis=0).tolist()])
    scale = (ROW - 8) / most
    parts = [open_svg(width, height, "bytes from devices on the left to devices on the right")]
    parts.append(label_svg(BLOCK, 12, "sends", "end"))
    parts.append(label_svg(BLOCK + BAND_WIDTH, 12, "receives"))

    def at(index: int, count: int) -> float:
        return TOP / 2 + (index + 0.5 + (rows - count) / 2) * ROW

    left = [
        at(i, len(flow.senders)) - flow.amounts[i].sum() * scale / 2
        for i in range(len(flow.senders))
    ]
    right = [
        at(j, len(flow.receivers)) - flow.amounts[:, j].sum() * scale / 2
        for j in range(len(flow.receivers))
    ]
    middle = BLOCK + BAND_WIDTH / 2
    for i, j in np.argwhere(flow.amounts > 0).tolist():
        amount = float(flow.amounts[i, j])
        wide = amount * scale
        y, z = left[i] + wide / 2, right[j] + wide / 2
        left[i] += wide
        right[j] += wide
        told = f"{_ids(flow.senders[i])} to {_ids(flow.receivers[j])}: {bytes_text(round(amount))}"
        parts.append(
            f'<path d="M{BLOCK + 6:.1f} {y:.2f}C{middle:.1f} {y:.2f} {middle:.1f} {z:.2f} '
            f'{BLOCK + BAND_WIDTH - 6:.1f} {z:.2f}" fill="none" '
            f'stroke="{PALETTE[i % len(PALETTE)]}" stroke-opacity="0.75" '
            f'stroke-width="{max(wide, 0.6):.2f}"><title>{_text(told)}</title></path>'
        )
    for ends, x, anchor, axis in (
        (flow.senders, BLOCK - 4, "end", 1),
        (flow.receivers, BLOCK + BAND_WIDTH + 4, "start", 0),
    ):
        totals = flow.amounts.sum(axis=axis)
        for index, span in enumerate(ends):
            y = at(index, len(ends))
            bar = BLOCK if axis else BLOCK + BAND_WIDTH - 6
            color = PALETTE[index % len(PALETTE)] if axis else "#59636e"
            high = max(float(totals[index]) * scale, 1.0)
            parts.append(
                f'<rect x="{bar:.1f}" y="{y - high / 2:.2f}" width="6" height="{high:.2f}" '
                f'fill="{color}"><title>{_text(bytes_text(round(totals[index])))}</title></rect>'
            )
            parts.append(label_svg(x, y, f"device {_ids(span)}", anchor))
    return "".join([*parts, "</svg>"])


def _heat(flow: Flow) -> str:
    """Return a map with a row for each sender and a column for each receiver, or groups of them."""
    rows, columns = flow.amounts.shape
    width, height = LEFT + columns * CELL + 180, TOP + rows * CELL + 30
    most = float(flow.amounts.max(initial=0))
    parts = [open_svg(max(width, 360), height, "bytes from each device (row) to each (column)")]
    parts.append(label_svg(LEFT, 12, "receivers →"))
    parts.append(label_svg(4, TOP - 10, "senders ↓"))
    every = max(1, -(-max(rows, columns) // 16))
    for i in range(0, rows, every):
        parts.append(label_svg(LEFT - 6, TOP + (i + 0.5) * CELL, str(flow.senders[i][0]), "end"))
    for j in range(0, columns, every):
        x, y = LEFT + (j + 0.5) * CELL, TOP - 6
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"'
        parts.append(label_svg(x, y, str(flow.receivers[j][0]), "start", turn))
    parts.append(
        f'<rect x="{LEFT:.1f}" y="{TOP:.1f}" width="{columns * CELL:.1f}" '
        f'height="{rows * CELL:.1f}" fill="none" stroke="#d0d7de" '
        f'style="stroke:var(--line,#d0d7de)"/>'
    )
    for i, j in np.argwhere(flow.amounts > 0).tolist():
        amount = float(flow.amounts[i, j])
        told = f"{_ids(flow.senders[i])} to {_ids(flow.receivers[j])}: {bytes_text(round(amount))}"
        parts.append(
            f'<rect x="{LEFT + j * CELL:.1f}" y="{TOP + i * CELL:.1f}" width="{CELL:g}" '
            f'height="{CELL:g}" fill="#0b5a8f" style="fill:var(--hot,#0b5a8f)" '
            f'fill-opacity="{0.08 + 0.92 * amount / most:.3f}"><title>{_text(told)}</title></rect>'
        )
    x = LEFT + columns * CELL + 16
    for step, share in enumerate((1.0, 0.5, 0.0)):
        y = TOP + step * 18
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{CELL:g}" height="{CELL:g}" fill="#0b5a8f" '
            f'style="fill:var(--hot,#0b5a8f)" fill-opacity="{0.08 + 0.92 * share:.3f}"/>'
        )
        parts.append(label_svg(x + 16, y + CELL / 2, size_text(round(most * share))))
    note = []
    if any(a != b for a, b in (*flow.senders, *flow.receivers)):
        note.append("neighbouring devices stand together")
    if flow.estimated:
        note.append("estimated from some of the receivers")
    if note:
        parts.append(label_svg(LEFT, TOP + rows * CELL + 16, "; ".join(note)))
    return "".join([*parts, "</svg>"])
