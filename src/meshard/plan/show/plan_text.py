"""Tables of plans: what moves where, step by step, and why each route was chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshard.algebra.layout import Layout
from meshard.plan.captions import amount_text, bytes_text, device_label, size_text, wrap
from meshard.plan.figures.choice import Candidate, Figures, PlanLeaf
from meshard.plan.figures.footprint import Traffic, traffic_of
from meshard.plan.hops.cells import distinct
from meshard.plan.hops.exact import total
from meshard.plan.hops.hop import Hop
from meshard.plan.show.report import WIDTH, Table

if TYPE_CHECKING:
    from meshard.plan.figures.plan_figures import PlanFigures


_ROWS = 24  # of arrays and of steps; the rest is added up in one line
_OTHERS = 3
_WORDS = 20  # characters that the words of a table of steps need beside its numbers


# words


def names_text(names: Sequence[str]) -> str:
    """Return one text for the names of arrays; names that differ only in numbers are joined.

    >>> names_text(["layer.0.w", "layer.1.w", "layer.7.w", "head"])
    'layer.{0..7}.w, head'
    >>> names_text(["a", "b", "c"])
    'a and 2 more'
    """
    patterns: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        patterns.setdefault(tuple(re.split(r"\d+", name)), []).append(name)
    told = [_pattern_text(words, alike) for words, alike in patterns.items()]
    if len(told) <= 2 and len(names) <= 4:
        return ", ".join(told)
    rest = len(names) - len(next(iter(patterns.values())))
    return f"{told[0]} and {rest:,} more" if rest else told[0]


def _pattern_text(words: Sequence[str], names: Sequence[str]) -> str:
    numbers = zip(*(re.findall(r"\d+", name) for name in names), strict=True)
    text = words[0]
    for word, digits in zip(words[1:], numbers, strict=True):
        values = sorted(set(map(int, digits)))
        first, last = values[0], values[-1]
        told = digits[0] if len(values) == 1 else f"{first},{last}" if len(values) == 2 else ""
        told = told or f"{first}..{last}"
        text += f"{{{told}}}{word}" if len(values) > 1 else f"{told}{word}"
    return text


def array_text(leaf: PlanLeaf) -> str:
    """Return an array's dtype and shape, such as ``float32[8,128]``."""
    dtype = leaf.dtype or f"{leaf.itemsize}-byte"
    return f"{dtype}[{','.join(map(str, leaf.shape))}]"


def layout_text(layout: Layout, *, devices: bool = True) -> str:
    """Return a short text of a layout: the shards along each dim, the replicas, the devices.

    >>> layout_text(Layout((4, 6), ((0, 1, 4), (0, 6)), np.arange(4).reshape(2, 1, 2)))
    '2x1 uneven, 2 copies on 0-3'
    """
    if layout.regular:
        words = "x".join(map(str, layout.grid)) or "scalar"
        words = "whole" if layout.piece_count == 1 else words
        words += "" if layout.even else " uneven"
        words += f", {layout.replicas} copies" if layout.replicas > 1 else ""
    else:
        words = f"{layout.piece_count} boxes"
    return f"{words} on {_devices_text(layout)}" if devices else words


def _devices_text(layout: Layout) -> str:
    return device_label([d for d in layout.device_ids if d >= 0], most=3)


def kind_of_hop(hop: Hop) -> str:
    """Return the name of a hop: that of the collective that it is, otherwise ``"exchange"``.

    >>> ids = np.arange(4)
    >>> rows = Layout((8,), ((0, 2, 4, 6, 8),), ids.reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), ids.reshape(1, 4))
    >>> turned = Layout((8,), ((0, 2, 4, 6, 8),), ids[::-1].reshape(4, 1))
    >>> [kind_of_hop(Hop(a, b)) for a, b in ((rows, whole), (whole, rows), (rows, turned))]
    ['all-gather', 'slice', 'permute']
    """
    before, after = hop.before, hop.after
    if not hop.moved:
        return "keep" if hop.source == hop.destination else "slice"
    if all(map(np.array_equal, before.cuts, after.cuts)):
        more = int(after.copies.max(initial=0)) > int(before.copies.max(initial=0))
        return "broadcast" if more else "permute"
    coarser = [np.isin(b, a).all() for a, b in zip(before.cuts, after.cuts, strict=True)]
    finer = [np.isin(a, b).all() for a, b in zip(before.cuts, after.cuts, strict=True)]
    same = np.array_equal(distinct(before.held[0]), distinct(after.held[0]))
    if all(coarser):
        if not same:
            return "gather"
        return "all-gather" if _keeps(hop) else "exchange"
    if all(finer):
        return "scatter"
    if same and all(c or f for c, f in zip(coarser, finer, strict=True)):
        return "all-to-all"
    return "exchange"


def _keeps(hop: Hop) -> bool:
    """Whether each unit's part of the source is also part of its destination."""
    return total(hop.stays[-1]) == total(hop.volumes[0][hop.before.held[1]])


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


def steps_of(plan: PlanFigures) -> Iterator[Step]:
    """Yield the steps of a plan, choice by choice."""
    for number, (route, weight) in enumerate(zip(plan.routes, plan.weights, strict=True)):
        for stage, hop in enumerate(route.hops):
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


# the tables


def plan_table(plan: PlanFigures, most: int = _ROWS) -> str:
    """Return a plan as text of at most 100 columns, whose tables have at most ``most`` rows."""
    if not plan.leaves:
        return f"{headline(plan)}; nothing moves"
    steps = steps_table(plan, most)
    if sum(steps.widths[-6:]) + 2 * len(steps.align) + _WORDS > WIDTH:
        steps = steps_table(plan, most, size_text)
    told = "\n".join(reasons(plan))
    parts = [headline(plan), _arrays(plan, most), steps.text(), totals_table(plan).text(None), told]
    return "\n\n".join(part for part in parts if part)


def headline(plan: PlanFigures) -> str:
    """Return the number of arrays of a plan and their size."""
    count = len(plan.leaves)
    return f"Plan: {count:,} array{'s' * (count != 1)}, {size_text(plan.nbytes)}"


def _arrays(plan: PlanFigures, most: int) -> str:
    """Return the table of what moves where; names that are too long are listed below it."""
    table = arrays_table(plan, most)
    if table.width <= WIDTH:
        return table.text()
    lines = [arrays_table(plan, most, names=False).text(), ""]
    for row in table.rows:
        lines += _wrapped(f"{row[0]}: {row[1]}", "   ")
    return "\n".join(lines)


def arrays_table(plan: PlanFigures, most: int, *, names: bool = True) -> Table:
    """Return the table of what moves where.

    Args:
        plan: the plan.
        most: the most rows that it has.
        names: whether it contains the names of the arrays.
    """
    first = plan.leaves[0]
    ends = [_devices_text(x) for x in (first.source, first.destination)]
    same = all(
        x.device_ids == y.device_ids
        for group in plan.groups
        for x, y in ((group[0].source, first.source), (group[0].destination, first.destination))
    )
    routes = len({choice.route.name for choice in plan.choices}) > 1
    rows: list[tuple[str, ...]] = []
    for choice, group in islice(zip(plan.choices, plan.groups, strict=True), most):
        leaf = group[0]
        rows.append(
            (
                f"{len(rows) + 1}",
                *[names_text([x.name for x in group])] * names,
                array_text(leaf),
                _end_text(leaf.source_text, leaf.source, devices=not same),
                _end_text(leaf.destination_text, leaf.destination, devices=not same),
                *[choice.route.name] * routes,
                f"{len(group):,}",
                amount_text(sum(x.nbytes for x in group)),
            )
        )
    notes = []
    if rest := plan.groups[most:]:
        count, nbytes = sum(map(len, rest)), sum(x.nbytes for group in rest for x in group)
        notes.append(f"and {count:,} more arrays in {len(rest):,} groups, {bytes_text(nbytes)}")
    if same and ends[0] == ends[1]:
        notes.append(f"all on devices {ends[0]}")
    elif same:
        notes.append(f"from devices {ends[0]} to devices {ends[1]}")
    words = ("#", *["arrays"] * names, "what", "from", "to", *["route"] * routes)
    return Table((*words, "count", "bytes"), rows, "<" * len(words) + ">>", notes)


def _end_text(text: str, layout: Layout, *, devices: bool) -> str:
    if not text:
        return layout_text(layout, devices=devices)
    return f"{text} on {_devices_text(layout)}" if devices else text


def steps_table(plan: PlanFigures, most: int, amount: Callable[[int], str] = amount_text) -> Table:
    """Return the table of the steps, of which at most ``most`` are listed."""
    steps = list(steps_of(plan))
    through = any(len(r.hops) > 1 for r in plan.routes)
    rows: list[tuple[str, ...]] = []
    for step in steps[:most]:
        choice = plan.choices[step.choice]
        route = choice.route
        last = step.hop + 1 == len(route.hops)
        to = "the end" if last else layout_text(route.layouts[step.hop + 1], devices=False)
        rows.append(
            (
                f"{step.choice + 1}" + f".{step.hop + 1}" * (len(route.hops) > 1),
                step.kind,
                *[to] * through,
                amount(step.bytes_moved),
                amount(step.most_sent),
                amount(step.most_received),
                _at_most(step.traffic.peers, exact=step.traffic.peers_exact),
                _at_most(step.traffic.messages * choice.count, exact=step.traffic.exact),
                f"{step.rounds:,}",
            )
        )
    notes = []
    if rest := steps[most:]:
        moved = bytes_text(sum(s.bytes_moved for s in rest))
        notes = [f"and {len(rest):,} more steps, {moved}"]
    head = ("step", "operation", *["to"] * through)
    numbers = ("bytes", "most sent", "received", "peers", "messages", "rounds")
    return Table((*head, *numbers), rows, "<" * len(head) + ">" * len(numbers), notes)


def _at_most(number: int, *, exact: bool) -> str:
    return f"{number:,}" if exact else f"<= {number:,}"


def _ratio(amount: int, bound: int, condition: str = "") -> str:
    if not bound:
        return "though nothing needs to move" if amount else "nothing needs to move"
    return f"{amount / bound:.3f} x the least{condition}, {amount_text(bound)}"


def totals_table(plan: PlanFigures) -> Table:
    """Return the totals of a plan: name, amount and a remark."""
    relayed = any(len(r.hops) > 1 for r in plan.routes)
    memory = "sources freed as they go" if plan.donate else "sources stay"
    if plan.max_bytes is not None:
        memory += f"; at most {amount_text(plan.max_bytes)} in flight besides"
    moved, sent = plan.bytes_moved, plan.most_sent
    beside_sent = _ratio(sent, plan.send_bound_bytes, " if direct" * relayed)
    rows = [
        ("bytes moved", amount_text(moved), _ratio(moved, plan.lower_bound_bytes)),
        ("most sent by a device", amount_text(sent), beside_sent),
        ("most received by a device", amount_text(plan.most_received), ""),
        ("peak memory of a device", amount_text(plan.peak_bytes), memory),
        ("rounds", f"{plan.rounds:,}", ""),
        ("devices", f"{plan.device_count:,}", ""),
    ]
    if plan.alive is not None:
        rows.append(("devices alive", f"{len(plan.alive):,}", device_label(plan.alive)))
    return Table((), rows, "<><")


def reasons(plan: PlanFigures) -> Iterator[str]:
    """Yield lines that say why each route was taken, and what the others would have cost."""
    told: dict[tuple[object, ...], list[int]] = {}
    for number, choice in enumerate(plan.choices):
        names = tuple([(o.name, o.why) for o in choice.others])
        told.setdefault((choice.route.name, choice.why, names), []).append(number)
    spoken = [n for n in told.values() if plan.choices[n[0]].why or plan.choices[n[0]].others]
    for numbers in spoken[: _ROWS // 2]:
        choice = plan.choices[numbers[0]]
        which = device_label([n + 1 for n in numbers])
        yield from _wrapped(f"why {choice.route.name} ({which}): {choice.why or 'as asked'}", "  ")
        if choice.others:
            yield from _wrapped(f"  {choice.route.name}: {figures_text(choice.figures)}", "    ")
        for other in choice.others[:_OTHERS]:
            yield from _wrapped(_other_text(other), "    ")
        rest = len(choice.others) - _OTHERS
        if rest > 0:
            yield f"  and {rest} more; plan.choices[{numbers[0]}].others lists them"
    if spoken[_ROWS // 2 :]:
        yield f"and {len(spoken) - _ROWS // 2:,} more reasons"


def _other_text(other: Candidate) -> str:
    if other.figures is None and other.why:
        return f"  not {other.name}: {other.why}"
    why = f"; {other.why}" if other.why else ""
    return f"  not {other.name}: {figures_text(other.figures)}{why}"


def figures_text(figures: Figures | None) -> str:
    """Return the figures of one route in one line."""
    return "no way" if figures is None else str(figures)


def _wrapped(text: str, indent: str) -> list[str]:
    start = len(text) - len(text.lstrip())
    first, *rest = wrap(text.split(), WIDTH - len(indent), between=" ")
    return [text[:start] + first, *[indent + line for line in rest]]
