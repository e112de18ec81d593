"""Resharding plans as values: what moving arrays to other layouts will do.

In: arrays' layouts before and after, and for each distinct pair the route that was chosen. Out: a
`Plan`, whose figures are counted from the exchanges of its routes, beside the least that any plan
could move. A plan prints as a table, is drawn as HTML, is written as JSON, and proves by a replay
that every element arrives. It does not run itself: the floor above installs a runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast, final

from meshard.algebra.arguments import flag_of, shown
from meshard.errors import ArgumentError, MeshardError, did_you_mean
from meshard.plan.captions import count_text
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.plan_figures import PlanFigures
from meshard.plan.figures.simulate import Simulation
from meshard.plan.figures.topology import Topology
from meshard.plan.replay import Report, check_route
from meshard.plan.show.page import Markup
from meshard.plan.show.pictured import Drawn
from meshard.plan.views.plan_json import json_text, read_json, refusing
from meshard.plan.views.plan_page import page_parts, page_title
from meshard.plan.views.plan_picture import plan_picture
from meshard.plan.views.plan_text import plan_table, why_text

PlanRunner = Callable[["Plan", object], object]
"""What runs a plan on a tree of arrays."""


T = TypeVar("T")


class _Installed:
    """What the floor above has installed, once, at import."""

    def __init__(self) -> None:
        self.runner: PlanRunner | None = None


_INSTALLED = _Installed()


def install_runner(runner: PlanRunner) -> None:
    """Install the function that `Plan.run` calls with the plan and the tree of arrays."""
    _INSTALLED.runner = runner


@final
@dataclass(frozen=True, init=False, repr=False)
class Plan(PlanFigures, Drawn):
    """What a reshard of one or more arrays will move.

    Args:
        leaves: the arrays.
        choices: the route of each distinct triple of source, destination and element size among
            the leaves, in the order in which they first occur; by default all are direct.
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination; None for no limit.
        donate: whether the sources are freed as they go.
        alive: the ids of the devices that have their data; None for all.
        rounds: how many times the window opens; by default as often as `max_bytes` demands.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout, even_cuts
    >>> from meshard.resharding import Plan
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> from meshard.plan.figures.choice import PlanLeaf
    >>> plan = Plan([PlanLeaf("x", rows, whole, 4)])
    >>> plan.bytes_moved, plan.lower_bound_bytes, plan.peak_bytes
    (96, 96, 40)
    """

    @classmethod
    def direct(cls, leaves: Sequence[PlanLeaf], *, donate: bool = False) -> Plan:
        """Return the plan in which every array goes to its destination in one hop."""
        return cls(leaves, donate=donate)

    # what can be asked of it

    def check(self) -> Report:
        """Replay the plan on labelled boxes, and return a report of what was checked.

        Raises:
            PlanError: naming the first box that is missing or doubled, and the device.

        >>> import numpy as np
        >>> from meshard.algebra.layout import Layout
        >>> ids = np.arange(2).reshape(2, 1)
        >>> a, b = (Layout((4,), ((0, n, 4),), ids) for n in (2, 3))
        >>> print(Plan([PlanLeaf("x", a, b, 4)]).check())
        every element arrives once: 1 route, 1 hop, 1 part, all devices
        """
        return sum(map(check_route, dict.fromkeys(self.routes)), Report())

    def simulate(self, topology: Topology | str) -> Simulation:
        """Return the time and the traffic of each level that a topology predicts.

        Args:
            topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``.

        Raises:
            ArgumentError: if there is no such topology, or a device has no place in it.
        """
        return self._simulated(topology)

    def why(self, group: int | str = 1) -> str:
        """Return why some arrays go as they do: their steps, and the routes that were not taken.

        Args:
            group: the number of the arrays in the printed table, from 1 on, or the name of one.

        Raises:
            ArgumentError: if there is no such group, or no array of that name.

        >>> import numpy as np
        >>> from meshard.algebra.layout import Layout
        >>> ids = np.arange(2).reshape(2, 1)
        >>> a, b = (Layout((4,), ((0, n, 4),), ids) for n in (2, 3))
        >>> print(Plan([PlanLeaf("x", a, b, 4)]).why("x").splitlines()[0])
        Group 1: x
        """
        return why_text(self, self._group(group))

    def _group(self, group: object) -> int:
        """Return the number of a choice, from 0 on, that a user names."""
        count = len(self.choices)
        if isinstance(group, str):
            places = {p: n for n, x in enumerate(self.leaves) for p in (x.path, *x.also) if p}
            places |= {x.name: n for n, x in enumerate(self.leaves)}
            if group in places:
                return self.choice_of[places[group]]
            meant = did_you_mean(group, places)
            raise ArgumentError(f"Plan.why: the plan has no array named {shown(group)}.{meant}")
        if type(group) is not int or not 0 < group <= count:
            numbers = f"a number from 1 to {count:,}" if count else "none, since nothing moves"
            raise ArgumentError(
                f"Plan.why: group must be {numbers}, or the name of an array, not {shown(group)}."
            )
        return group - 1

    def run(self, x: T) -> T:
        """Move a tree of arrays as planned, without planning again.

        Args:
            x: a tree with an array for each leaf of the plan, in order, laid out as its source.

        Raises:
            MeshardError: if no runner is installed.
        """
        if _INSTALLED.runner is None:
            raise MeshardError("Plan.run: nothing is installed that moves arrays; import meshard.")
        return cast("T", _INSTALLED.runner(self, x))

    def to_json(self, *, transfers: bool = False) -> str:
        """Return the plan as JSON, which `from_json` reads without planning again.

        Args:
            transfers: also list every box with its sender and receiver, so that another program
                can run the plan; there may be many.
        """
        return json_text(self, transfers=flag_of(transfers, "Plan.to_json", "transfers"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises:
            PlanError: if the text was cut, edited, or written by another version.
        """
        read = read_json(text)
        with refusing():
            plan = cls(
                read.leaves,
                read.choices,
                max_bytes=read.max_bytes,
                donate=read.donate,
                alive=read.alive,
                rounds=read.rounds,
            )
        read.compare(plan)
        return plan

    def _title(self) -> str:
        return page_title(self)

    def _parts(self) -> Iterator[Markup]:
        return page_parts(self)

    def _svg(self) -> Markup:
        return plan_picture(self)

    def __str__(self) -> str:
        return plan_table(self)

    def __repr__(self) -> str:
        arrays = count_text(len(self.leaves), "array")
        return f"Plan({arrays}, {self.bytes_moved} bytes moved)"
