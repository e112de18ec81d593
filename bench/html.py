"""The page with plots: how meshard compares, group by group, as one self-contained file.

In: a run. Out: HTML without scripts, drawn by the library's own elements, light or dark as the
reader's system is. A bar goes from 1, which is as fast as the best peer, to meshard's ratio to it.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from bench.claims import MESHARD, NO_RIVALS
from bench.compare import times
from bench.figures import with_quartiles, with_spread
from bench.record import RowRecord, Run, geometric_mean
from bench.report import best_text, disturbed, errors, limit_text, peak_text
from meshard.plan.show.page import Markup, element, fragment, whole_page, wide
from meshard.plan.show.report import Table
from meshard.plan.show.svg import centred, label, picture, rect

TITLE = "meshard beside its peers"
AHEAD, BEHIND = "hot", "#c2571a"
LABELS, PLOT, TAIL = 330, 470, 150
LINE, BAR = 20, 10
TOP, BOTTOM = 24, 8
STEP = 4.0
"""The factor between two lines of the scale."""


def page(run: Run) -> str:
    """The whole page."""
    parts = [element("p", *_legend())]
    for name, rows in run.groups().items():
        ratios = [row.ratio for row in rows if row.ratio is not None]
        parts.append(element("h3", f"{name[0].upper()}{name[1:]}"))
        if ratios:
            mean = (
                f"Geometric mean of the ratios to the best peer: {times(geometric_mean(ratios))}."
            )
            parts += [element("p", mean), wide(_bars(name, rows))]
        parts.append(_table(rows).html())
    parts.append(element("h3", "The machine"))
    parts.append(Table((), list(run.facts.items()), "<<").html())
    told = errors(run)
    if disturbed(run):
        told.append(f"Disturbed by other processes: {', '.join(disturbed(run))}")
    if told:
        parts += [element("h3", "What was left out"), *(element("p", line) for line in told)]
    return whole_page(TITLE, fragment(TITLE, *parts))


def _legend() -> Iterator[str]:
    yield "A bar shows how many times faster meshard is than the best peer; "
    yield element("b", "blue to the right", style="color:#2f81c4")
    yield ": meshard is ahead, "
    yield element("b", "orange to the left", style=f"color:{BEHIND}")
    yield ": behind. A dot is another peer, a bracket the limit of the machine."


def _range(rows: Sequence[RowRecord]) -> tuple[int, int]:
    """The scale's first and last line, as powers of the step."""
    found = [1.0]
    for row in rows:
        found += _ratios(row).values()
        found += [row.of_limit] if row.of_limit is not None else []
    low, high = (math.log(bound, STEP) for bound in (min(found), max(found)))
    return max(-5, math.floor(low)), min(6, max(1, math.ceil(high)))


def _ratios(row: RowRecord) -> dict[str, float]:
    """How many times meshard is faster than each peer."""
    ours = row.figures.get(MESHARD)
    if ours is None:
        return {}
    return {p: f.median / ours.median for p, f in row.figures.items() if p not in NO_RIVALS}


def _bars(name: str, rows: Sequence[RowRecord]) -> Markup:
    """The plot of a group: a line for each row that has a peer."""
    rows = [row for row in rows if row.ratio is not None]
    first, last = _range(rows)

    def place(ratio: float) -> float:
        exponent = min(max(math.log(ratio, STEP), first), last)
        return LABELS + PLOT * (exponent - first) / (last - first)

    height = TOP + LINE * len(rows) + BOTTOM
    parts: list[str] = []
    for power in range(first, last + 1):
        x = place(STEP**power)
        told = f"{STEP**power:g}" if power >= 0 else f"1/{STEP**-power:g}"
        parts.append(label(x, TOP - 10, told, text_anchor="middle"))
        color = "faint" if power == 0 else "gap"
        parts.append(rect(x - 0.5, TOP - 4, 1, height - TOP - BOTTOM + 8, color))
    for line, row in enumerate(rows):
        parts += _bar(row, TOP + LINE * line + LINE / 2, place)
    told = f"{name}: " + ", ".join(f"{row.title}: {best_text(row)}" for row in rows)
    return picture(LABELS + PLOT + TAIL, height, told, parts)


def _bar(row: RowRecord, y: float, place: Callable[[float], float]) -> Iterator[str]:
    """One row: its title, the bar to the best peer, the others' dots, and the limit."""
    assert row.ratio is not None
    one, end = place(1), place(row.ratio)
    color = AHEAD if row.ratio >= 1 else BEHIND
    yield centred(LABELS - 12, y, row.title[:56], "end", "ink")
    told = f"{row.title}: {best_text(row)}"
    yield rect(min(one, end), y - BAR / 2, max(1.5, abs(end - one)), BAR, color, told, rx=1.5)
    for peer, ratio in _ratios(row).items():
        if peer != row.best:
            tip = element("title", f"{peer}: {times(ratio)}")
            yield element(
                "circle", tip, class_="meshard-faint", fill="#59636e", cx=place(ratio), cy=y, r=3
            )
    if row.of_limit is not None:
        x, tip = place(row.of_limit), f"the machine's limit: {limit_text(row)}"
        yield rect(x - 1, y - BAR / 2 - 2, 2, BAR + 4, "ink", tip)
        for edge in (y - BAR / 2 - 2, y + BAR / 2 + 0.5):
            yield rect(x - 1, edge, 5, 1.5, "ink")
    yield centred(LABELS + PLOT + 12, y, best_text(row), color="ink")


def _table(rows: Sequence[RowRecord]) -> Table:
    """All figures of a group."""
    lines = []
    for row in rows:
        ours = row.figures.get(MESHARD)
        others = [
            f"{peer} {with_spread(figure)}"
            for peer, figure in row.figures.items()
            if peer != MESHARD
        ]
        others += [f"({peer}: {note})" for peer, note in row.notes.items()]
        lines.append(
            (
                row.title,
                "skipped" if ours is None else with_quartiles(ours),
                best_text(row),
                limit_text(row),
                peak_text(row),
                ", ".join(others),
            )
        )
    head = ("row", "meshard", "best peer", "limit", "memory", "others")
    return Table(head, lines, "<>>>><")
