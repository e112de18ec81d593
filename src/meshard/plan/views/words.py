"""Words for what plans hold: names of many arrays, layouts, kinds of exchanges, figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshard.algebra.layout import Layout
from meshard.plan.captions import count_text, device_label, size_text, whole_text
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.hops.cells import distinct
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.jobs import Tally, total
from meshard.plan.show.summary import Fact

if TYPE_CHECKING:
    from meshard.plan.figures.plan_figures import PlanFigures

_TOKENS = re.compile(r"\{[^}]*\}|[^\W\d_]+(?:_[^\W\d_]+)*|\d+|.", re.DOTALL)
_SPOKEN = 80  # characters up to which two patterns of names are both given
_MOST = 4  # words that are listed in braces


def names_text(names: Sequence[str]) -> str:
    """Return one text for the names of arrays; names that differ in numbers or a word are joined.

    >>> names_text(["layer.0.w", "layer.1.w", "layer.7.w", "head"])
    'layer.{0..7}.w, head'
    >>> names_text([f"layer.{i}.{kind}.weight" for i in range(9) for kind in ("up", "down")])
    'layer.{0..8}.{up,down}.weight'
    >>> names_text(["a", "b", "c"])
    'a and 2 more'
    """
    patterns: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        patterns.setdefault(tuple(re.split(r"\d+", name)), []).append(name)
    told = [(_pattern_text(words, own), len(own)) for words, own in patterns.items()]
    if len(told) > 2:  # the pattern of most names stands for all
        told.sort(key=lambda pattern: -pattern[1])
    told = _joined(told)
    both = ", ".join([text for text, _ in told])
    if len(told) <= 2 and len(both) <= _SPOKEN:
        return both
    first, count = told[0]
    return f"{first} and {len(names) - count:,} more" if count < len(names) else first


def _joined(patterns: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return patterns and their counts; those that differ from the first in one word are one."""
    if len(patterns) < 2:
        return [*patterns]
    tokens = [_TOKENS.findall(text) for text, _ in patterns]
    first = tokens[0]
    alike: dict[int, list[int]] = {}
    for number, other in enumerate(tokens[1:], 1):
        if len(other) == len(first) > 1:
            places = [i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b]
            if len(places) == 1:
                alike.setdefault(places[0], []).append(number)
    if not alike:
        return [*patterns]
    place = max(alike, key=lambda i: len(alike[i]))
    members = [0, *alike[place]]
    words = [tokens[n][place].strip("{}") for n in members]
    shown = words if len(words) <= _MOST else [*words[: _MOST - 1], "..."]
    text = "".join([*first[:place], "{", ",".join(shown), "}", *first[place + 1 :]])
    rest = [pattern for n, pattern in enumerate(patterns) if n not in set(members)]
    return [(text, sum(patterns[n][1] for n in members)), *rest]


def shortened(text: str, most: int) -> str:
    """Return a text of at most some letters, without its middle.

    >>> shortened("model.layers.7.mlp.weight", 15)
    'model....weight'
    """
    room = most - 3
    return text if len(text) <= most else f"{text[: room - room // 2]}...{text[-(room // 2) :]}"


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
    return f"{words} on {devices_text(layout)}" if devices else words


def devices_text(layout: Layout) -> str:
    """Return the ids of the devices of a layout."""
    return device_label([d for d in layout.device_ids if d >= 0], most=3)


def ends_text(source: Collection[int], destination: Collection[int], kind: str = "device") -> str:
    """Return from which devices to which others something moves.

    >>> ends_text(range(8), range(8)), ends_text(range(8), range(8, 12), "imaginary device")
    ('on 8 devices, 0-7', 'from 8 imaginary devices, 0-7, to 4 others, 8-11')
    >>> ends_text(range(8), range(6)), ends_text(range(2), range(4))
    ('from 8 devices, 0-7, to 6 of them, 0-5', 'from 2 devices, 0,1, to 4, 0-3')
    """
    before, after = set(source), set(destination)
    told = f"{count_text(len(before), kind)}, {device_label(before, most=3)}"
    if before == after:
        return f"on {told}"
    word = " of them" if after < before else "" if after & before else " others"
    word = word.removesuffix("s") if len(after) == 1 and word == " others" else word
    return f"from {told}, to {len(after):,}{word}, {device_label(after, most=3)}"


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


# What matters most in a plan, which the text and the page share.


def headline(plan: PlanFigures) -> str:
    """Return the number of arrays of a plan, their size, and between which devices they move."""
    told = f"Plan: {count_text(len(plan.leaves), 'array')}, {size_text(plan.nbytes)}"
    if not plan.leaves:
        return f"{told}; nothing moves"
    sources, targets = (
        {d for layout in layouts for d in layout.device_ids if d >= 0}
        for layouts in ({r.source for r in plan.routes}, {r.destination for r in plan.routes})
    )
    return f"{told}, {ends_text(sources, targets, device_word(plan))}"


def device_word(plan: PlanFigures) -> str:
    """Return what the devices of a plan are: devices that only plan are called imaginary."""
    return "imaginary device" if is_imaginary(plan) else "device"


def is_imaginary(plan: PlanFigures) -> bool:
    """Return whether none of a plan's devices exist, as far as they are known."""
    shardings = {s for leaf in plan.leaves for s in (leaf.source_sharding, leaf.sharding)}
    known = [s for s in shardings if s is not None]
    return bool(known) and all(d.platform == "virtual" for s in known for d in s.device_set)


def facts_of(plan: PlanFigures) -> Iterator[Fact]:
    """Yield the figures of a plan, those that decide first."""
    if plan.simulation is not None:
        yield from plan.simulation.facts
    moved = plan.bytes_moved
    yield Fact("moved", whole_text(moved), _beside(moved, plan.lower_bound_bytes))
    if moved:
        yield _busiest("received", plan.received_tally)
        relayed = any(len(r.layouts) > 2 for r in plan.routes)
        beside = (
            ""
            if relayed
            else _beside(plan.most_sent, plan.send_bound_bytes).removesuffix(" possible")
        )
        yield _busiest("sent", plan.sent_tally, beside)
    memory = "on one device at once; sources " + ("freed as they go" if plan.donate else "stay")
    yield Fact("memory", whole_text(plan.peak_bytes), memory)
    if plan.max_bytes is not None:
        told = f"at most {whole_text(plan.max_bytes)} in flight besides"
        yield Fact("rounds", f"{plan.rounds:,}", told)
    if plan.alive is not None:
        alive = count_text(len(plan.alive), "device")
        yield Fact("alive", alive, device_label(plan.alive))


def _busiest(way: str, tally: Tally, beside: str = "") -> Fact:
    """Return which device sends or receives most, and how much more than the mean that is."""
    amounts, most = tally.amounts, tally.most
    busy = int((amounts > 0).sum())
    mean = tally.total / busy
    device = int(tally.units[int(np.argmax(amounts))])
    ratio = f"{most / mean:.2f} x the mean of {count_text(busy, 'device')}" if busy > 1 else "alone"
    told = f"at most, by device {device}, {ratio}"
    return Fact(way, whole_text(most), told + f"; {beside}" * bool(beside))


def _beside(amount: int, bound: int) -> str:
    if not bound:
        return "though nothing needs to move" if amount else "nothing needs to move"
    return f"{amount / bound:.3f} x the least possible"
