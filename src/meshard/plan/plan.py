"""Resharding plans as values: what moving arrays to other layouts will do.

In: arrays' layouts before and after, and for each distinct pair the route that was chosen. Out: a
`Plan`, whose figures are counted from the exchanges of its routes, beside the least that any plan
could move. A plan prints as a table, is drawn as HTML, is written as JSON, and proves by a replay
that every element arrives. It does not run itself: the floor above installs a runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast, final

from meshard.algebra.arguments import flag_of
from meshard.errors import MeshardError
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.plan_figures import PlanFigures
from meshard.plan.figures.simulate import Simulation, simulate_many
from meshard.plan.figures.topology import Topology
from meshard.plan.file.files import write_text
from meshard.plan.file.json_form import json_text, read_json, refusing
from meshard.plan.replay import Report, check_route
from meshard.plan.show.plan_page import page, plan_html
from meshard.plan.show.plan_text import plan_table
from meshard.plan.show.progress import telling

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
class Plan(PlanFigures):
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
        pairs = zip(self.choices, self.groups, strict=True)
        moves = [(c.route, g[0].itemsize, c.count) for c, g in pairs]
        with telling(None, "simulating", unit="moves") as tell:
            return simulate_many(moves, topology, together=self.batches, tell=tell)

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

    def save_html(self, path: str | Path) -> None:
        """Write the plan as one self-contained HTML page.

        Raises:
            OSError: if the file cannot be written; an existing file then stays as it was.
        """
        write_text(path, page(self), "Plan.save_html")

    def _repr_html_(self) -> str:
        return plan_html(self)

    def __str__(self) -> str:
        return plan_table(self)

    def __repr__(self) -> str:
        return f"Plan({len(self.leaves)} arrays, {self.bytes_moved} bytes moved)"
