"""Tables of plans: which arrays move, how, and why so, in as many lines as fit on a screen.

In: a plan. Out: its headline and figures, a row for each group of arrays that are laid out alike,
the largest first, and one line for each reason. `why_text` tells the rest of one group.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from meshard.plan.captions import (
    Unit,
    bytes_text,
    count_text,
    device_label,
    size_text,
    size_unit,
    time_text,
    time_unit,
)
from meshard.plan.figures.choice import Candidate, Choice, Figures
from meshard.plan.figures.footprint import Traffic, traffic_of
from meshard.plan.show.report import FIT, Table
from meshard.plan.show.summary import Fact, Summary
from meshard.plan.show.terminal import line_width
from meshard.plan.views.words import (
    array_text,
    device_word,
    devices_text,
    ends_text,
    facts_of,
    headline,
    kind_of_hop,
    layout_text,
    names_text,
    shortened,
)

if TYPE_CHECKING:
    from meshard.algebra.layout import Layout
    from meshard.plan.figures.choice import PlanLeaf
    from meshard.plan.figures.plan_figures import PlanFigures


MOST_ROWS = 24  # of groups of arrays; the rest is added up in one line
_REASONS = 6
_SHORT_NAMES = 14  # columns that the names of arrays may take beside everything else
_TIMES = re.compile(r"([\d.]+)x the time(?:; )?(.*)", re.DOTALL)


# steps


class Step(NamedTuple):
    """One hop of one choice, for all arrays that share it.

    Attributes:
        choice: the number of the choice.
        hop: the number of the hop.
        kind: its name.
        bytes_moved: the bytes that enter devices.
        most_sent: the most that one device sends.
        most_received: the most that one device receives.
        traffic: the messages of one array.
        rounds: how often the window opens for it.
    """

    choice: int
    hop: int
    kind: str
    bytes_moved: int
    most_sent: int
    most_received: int
    traffic: Traffic
    rounds: int


def steps_of(plan: PlanFigures, choices: Iterable[int] | None = None) -> Iterator[Step]:
    """Yield the steps of a plan, or of some choices only, choice by choice."""
    for number in range(len(plan.choices)) if choices is None else choices:
        weight = plan.weights[number]
        for stage, hop in enumerate(plan.choices[number].route.hops):
            sent, received = hop.sent.most * weight, hop.received.most * weight
            yield Step(
                number,
                stage,
                kind_of_hop(hop),
                hop.moved * weight,
                sent,
                received,
                traffic_of(hop),
                plan._opens(stage, [number]),
            )


# all groups


def plan_table(plan: PlanFigures, most: int = MOST_ROWS, width: int = FIT) -> str:
    """Return a plan as text.

    Args:
        plan: the plan.
        most: the most groups of arrays that are listed.
        width: the columns that it may take; by default those of the terminal, elsewhere 100.
    """
    width = line_width() if width == FIT else width
    if not plan.leaves:
        return headline(plan)
    facts = Summary(headline(plan), list(facts_of(plan))).text(width)
    return "\n\n".join([facts, _groups(plan, most, width), "\n".join(reasons(plan, width))])


def _groups(plan: PlanFigures, most: int, width: int) -> str:
    """Return the table of groups; where names find no room in it, each has a line of its own."""
    table = arrays_table(plan, most)
    if table.width <= width or table.widths[1] <= _SHORT_NAMES:
        return table.text(width)
    short = replace(
        table,
        head=(table.head[0], *table.head[2:]),
        rows=[(row[0], *row[2:]) for row in table.rows],
        align=table.align[0] + table.align[2:],
    )
    head, *rows = short.text(width).split("\n")
    names = [shortened(row[1], width - 3) for row in table.rows]
    lines = [line for pair in zip(rows, names, strict=False) for line in (pair[0], f"   {pair[1]}")]
    return "\n".join([head, *lines, *rows[len(names) :]])


def largest_first(plan: PlanFigures) -> list[int]:
    """Return the numbers of a plan's choices, those first that move most bytes."""
    return sorted(range(len(plan.choices)), key=lambda n: -moved_by(plan, n))


def moved_by(plan: PlanFigures, number: int) -> int:
    """Return the bytes that the arrays of one choice move."""
    return sum(hop.moved for hop in plan.choices[number].route.hops) * plan.weights[number]


def arrays_table(plan: PlanFigures, most: int) -> Table:
    """Return the table of what moves where, with at most ``most`` rows, one for each group."""
    order = largest_first(plan)
    shown, rest = order[:most], order[most:]
    words, numbers = _word_columns(plan), _number_columns(plan, shown)
    columns = [*words, *numbers]
    rows = [tuple([column.cell(number) for column in columns]) for number in shown]
    notes = []
    if rest:
        arrays = count_text(sum(len(plan.groups[n]) for n in rest), "more array")
        more = bytes_text(sum(moved_by(plan, n) for n in rest))
        notes.append(f"and {arrays} in {count_text(len(rest), 'group')}, {more} moved")
    spare = (numbers[0].head, "from", words[-4].head, "count")
    head, align = tuple([c.head for c in columns]), "".join([c.align for c in columns])
    return Table(head, rows, align, notes, spare=spare)


class _Column(NamedTuple):
    """One column: its title, its alignment, and the text of each group."""

    head: str
    align: str
    cell: Callable[[int], str]


def _word_columns(plan: PlanFigures) -> list[_Column]:
    """Return the columns of words: the number, the names, what there is, from where, to where."""
    groups, first = plan.groups, plan.leaves[0]
    devices = any(
        x.device_ids != y.device_ids
        for group in groups
        for x, y in ((group[0].source, first.source), (group[0].destination, first.destination))
    )
    kinds = {group[0].dtype for group in groups}
    dtype = kinds.pop() if len(kinds) == 1 else ""

    def source(n: int) -> str:
        return _end_text(groups[n][0].source_text, groups[n][0].source, devices=devices)

    def target(n: int) -> str:
        return _end_text(groups[n][0].destination_text, groups[n][0].destination, devices=devices)

    several = any(len(group) > 1 for group in groups)
    return [
        _Column("#", "<", lambda n: f"{n + 1}"),
        _Column("arrays", "<", lambda n: names_text([x.name for x in groups[n]])),
        *[_Column("count", ">", lambda n: f"{len(groups[n]):,}")] * several,
        _Column(dtype or "array", "<", lambda n: array_text(groups[n][0]).removeprefix(dtype)),
        _Column("from", "<", source),
        _Column("to", "<", target),
        _Column("how", "<", lambda n: _way_text(plan.choices[n])),
    ]


def _number_columns(plan: PlanFigures, shown: Sequence[int]) -> list[_Column]:
    """Return the columns of numbers, each in one unit, for the groups that are shown."""
    sizes = [sum(x.nbytes for x in group) for group in plan.groups]
    moved = [moved_by(plan, n) for n in range(len(sizes))]
    size, into = size_unit(sizes), size_unit(moved)
    found = [
        _Column(f"size {size.name}", ">", lambda n: size.text(sizes[n])),
        _Column(f"moved {into.name}", ">", lambda n: into.text(moved[n])),
    ]
    if plan.topology is not None and len(sizes) > 1:
        alone = {n: plan._alone_seconds(n) for n in shown}
        time = time_unit(alone.values())
        found.append(_Column(f"alone {time.name}", ">", lambda n: time.text(alone[n])))
    return found


def _end_text(text: str, layout: Layout, *, devices: bool) -> str:
    if not text:
        return layout_text(layout, devices=devices)
    return f"{text} on {devices_text(layout)}" if devices else text


def _way_text(choice: Choice) -> str:
    """Return the collective that a choice is, or the name of its detour."""
    hops = choice.route.hops
    return kind_of_hop(hops[0]) if len(hops) == 1 else choice.route.name


def reasons(plan: PlanFigures, width: int) -> Iterator[str]:
    """Yield one line for each reason for which routes were taken, and where there is more."""
    told: dict[tuple[str, str], list[int]] = {}
    for number, choice in enumerate(plan.choices):
        told.setdefault((choice.route.name, choice.why or "as asked"), []).append(number)
    for (name, why), numbers in list(told.items())[:_REASONS]:
        which = device_label([n + 1 for n in numbers], most=3)
        yield textwrap.shorten(f"why {name} ({which}): {why}", width, placeholder=" ...")
    rest = len(told) - _REASONS
    more = f"and {count_text(rest, 'more reason')}; " if rest > 0 else ""
    yield f"{more}plan.why({largest_first(plan)[0] + 1}) tells its steps and other routes"


# one group


def why_text(plan: PlanFigures, number: int, width: int = FIT) -> str:
    """Return all that is known of one group: its steps, why it goes so, and the other routes."""
    return why_summary(plan, number).text(width)


def why_summary(plan: PlanFigures, number: int) -> Summary:
    """Return all that is known of one group of a plan."""
    choice, group = plan.choices[number], plan.groups[number]
    leaf, route = group[0], choice.route
    ends = ends_text(leaf.source.device_ids, leaf.destination.device_ids, device_word(plan))
    source, target = (
        _end_text(text, layout, devices=False)
        for text, layout in (
            (leaf.source_text, leaf.source),
            (leaf.destination_text, leaf.destination),
        )
    )
    facts = [
        Fact("arrays", f"{len(group):,}", f"{array_text(leaf)}, {_size(group)} in all"),
        Fact("move", source, f"to {target}, {ends}"),
        Fact("route", route.name, choice.why or "as asked"),
    ]
    if plan.topology is not None:
        told = f"on {plan.topology.name}, if nothing else moved"
        facts.append(Fact("time", time_text(plan._alone_seconds(number)), told))
    tables = [steps_table(plan, number)]
    if choice.others:
        tables.append(routes_table(choice, apart=True))
    title = f"Group {number + 1}: {names_text([x.name for x in group])}"
    return Summary(title, facts, tables)


def _size(group: Sequence[PlanLeaf]) -> str:
    return size_text(sum(x.nbytes for x in group))


def steps_table(plan: PlanFigures, number: int) -> Table:
    """Return the table of the steps of one group."""
    choice = plan.choices[number]
    layouts = choice.route.layouts
    steps = list(steps_of(plan, [number]))
    moved = size_unit([s.bytes_moved for s in steps])
    each = size_unit([n for s in steps for n in (s.most_sent, s.most_received)])
    rows = [
        (
            f"{step.hop + 1}",
            step.kind,
            "the end" if step.hop + 2 == len(layouts) else _through(layouts[step.hop + 1]),
            moved.text(step.bytes_moved),
            each.text(step.most_sent),
            each.text(step.most_received),
            _at_most(step.traffic.peers, exact=step.traffic.peers_exact),
            _at_most(step.traffic.messages * choice.count, exact=step.traffic.exact),
            f"{step.rounds:,}",
        )
        for step in steps
    ]
    names = (f"moved {moved.name}", f"sent {each.name}", f"received {each.name}")
    head = ("step", "operation", "to", *names, "peers", "messages", "rounds")
    notes = ["sent, received, peers: those of the busiest device"]
    return Table(head, rows, "<<<>>>>>>", notes, spare=("rounds", "peers", "to", "messages"))


def _through(layout: Layout) -> str:
    return layout_text(layout, devices=False)


def _at_most(number: int, *, exact: bool) -> str:
    return f"{number:,}" if exact else f"<= {number:,}"


def routes_table(choice: Choice, *, apart: bool = False) -> Table:
    """Return the table of the route that was taken and of those that were not, for one array.

    Args:
        choice: the choice.
        apart: whether the reasons stand below the table, where there is more room for them.
    """
    taken = Candidate(choice.route.name, choice.figures, "taken")
    every = (taken, *choice.others)
    known = [c.figures for c in every if c.figures is not None]
    moved = size_unit([f.bytes_moved for f in known])
    each = size_unit([n for f in known for n in (f.most_sent, f.most_received, f.peak_bytes)])
    rows, notes = [], []
    for number, other in enumerate(every):
        found = _TIMES.fullmatch(other.why)
        times, why = found.groups("") if found else ("", other.why)
        told = [times or "1.00" * (number == 0), *_figures(other.figures, moved, each)]
        rows.append((f"{number}" if number else "", other.name, *told, *[why] * (not apart)))
        if apart and number and why:
            notes.append(f"{number}  {other.name}: {why}")
    names = (f"moved {moved.name}", f"sent {each.name}", "received", "memory")
    head = ("#", "route", "x the time", *names, "messages", "hops", *["why"] * (not apart))
    align = "><>>>>>>>" + "~" * (not apart)
    return Table(head, rows, align, notes, marked=1, spare=("hops", "memory", "messages"))


def _figures(figures: Figures | None, moved: Unit, each: Unit) -> tuple[str, ...]:
    if figures is None:
        return ("-",) * 6
    return (
        moved.text(figures.bytes_moved),
        each.text(figures.most_sent),
        each.text(figures.most_received),
        each.text(figures.peak_bytes),
        _at_most(figures.messages, exact=figures.messages_exact),
        f"{figures.hops:,}",
    )
