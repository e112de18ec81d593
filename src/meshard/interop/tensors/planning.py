"""Plans of moves between meshes, on layouts whose devices are the ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.arguments import flag_of
from meshard.interop.tensors.placed import Segment, segments
from meshard.interop.tensors.wanted import Entry, Goal, Reader, dtype_name, dtype_of, group_ranks
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.topology import Topology
from meshard.plan.figures.window import check_window, checked_window
from meshard.plan.plan import Plan
from meshard.plan.planner import PlanCache, PlanOptions, make_plan
from meshard.plan.show.progress import checked_progress

Planned = tuple[Plan, list[tuple[int, Segment]]]
"""A plan, and for each of its leaves which tensor it is, and which box of it."""

_PLANS = PlanCache()
_KNOWN: dict[Hashable, Planned] = {}
"""Plans of whole trees, by what ranks compare."""
_MOST = 64


@final
@dataclass(frozen=True)
class Options:
    """The arguments of `reshard` besides the tree and its target."""

    max_bytes: Any
    donate: Any
    progress: Any
    dtype: Any
    reduce: Any
    group: Any
    near: Any
    what: str

    def reader(self) -> Reader:
        """Return how tensors are read."""
        return Reader(self.group, flag_of(self.reduce, self.what, "reduce"), self.what)

    def checked(self) -> Options:
        """Return them, checked."""
        what = self.what
        return Options(
            checked_window(self.max_bytes, what),
            flag_of(self.donate, what, "donate"),
            checked_progress(self.progress, what),
            self.dtype,
            flag_of(self.reduce, what, "reduce"),
            self.group,
            None if self.near is None else flag_of(self.near, what, "near"),
            what,
        )


def planned(
    entries: Sequence[Entry],
    found: Sequence[Goal | None],
    options: Options,
    topology: Topology | str | None = None,
) -> Planned:
    """Return the plan, and for each of its leaves which tensor it is, and which box of it."""
    options = options.checked()
    leaves, passages = [], []
    for number, (entry, goal) in enumerate(zip(entries, found, strict=True)):
        if goal is None:
            continue
        before, after = dtype_of(entry.dtype), dtype_of(goal.dtype)
        wire = after if after.itemsize < before.itemsize else before
        every = segments(entry.before, goal.after)
        for segment in every:
            box = f"[{segment.box}]" if len(every) > 1 else ""
            leaf = PlanLeaf(
                entry.name + box,
                segment.before,
                segment.after,
                wire.itemsize,
                dtype_name(wire),
                entry.before.text,
                goal.after.text,
                path=f"{entry.path}{box}",
            )
            leaves.append(leaf)
            passages.append((number, segment))
    limits = PlanOptions(max_bytes=options.max_bytes, donate=options.donate, topology=topology)
    count = len(group_ranks(options.group))
    for leaf in leaves:
        if leaf.source != leaf.destination:
            check_window(limits.max_bytes, count, leaf.itemsize, leaf.name, options.what)
    return make_plan(leaves, limits, cache=_PLANS), passages


def kept_plan(
    key: Hashable, entries: Sequence[Entry], found: Sequence[Goal | None], options: Options
) -> Planned:
    """Return the plan of a tree, which is made once for each key."""
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        _KNOWN[key] = planned(entries, found, options)
    return _KNOWN[key]
