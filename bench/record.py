"""What a run has found, as a value: it goes to JSON and back, and all reports read it.

In: outcomes, or a file. Out: a `Run` of rows with the figures of all peers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.claims import BY_HAND, MESHARD, best_peer, best_ratio, ratio_of
from bench.figures import Figure
from bench.harness import Outcome

UNGROUPED = "rows"


@dataclass(frozen=True, kw_only=True)
class RowRecord:
    """One line of the table, as it was measured.

    Attributes:
        key: the row's.
        title: the row's.
        group: what the row is listed under.
        claims: what meshard promises here, as text.
        reached: whether it is kept; None where that cannot be told.
        figures: by peer.
        errors: one sentence for every peer that was left out.
        notes: what is to be known of a peer's figure.
        others: the part of all cores' time that other processes took.
        limit: the seconds below which the machine cannot do it.
        peak: memory beyond operands and result, in results.
    """

    key: str
    title: str
    group: str = UNGROUPED
    claims: Sequence[str] = ()
    reached: bool | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    others: float = 0.0
    limit: float | None = None
    peak: float | None = None

    @property
    def best(self) -> str | None:
        """The fastest peer that is not meshard."""
        return best_peer(self.figures)

    @property
    def ratio(self) -> float | None:
        """How many times meshard is faster than the best peer."""
        return best_ratio(self.figures)

    @property
    def of_limit(self) -> float | None:
        """The limit's part of meshard's time: 1 is as fast as the machine can."""
        ours = self.figures.get(MESHARD)
        return None if ours is None or self.limit is None else self.limit / ours.median

    def as_json(self) -> dict[str, Any]:
        """All of it, in seconds; ratios too, for readers without this program."""
        best = self.best
        return {
            "key": self.key,
            "title": self.title,
            "group": self.group,
            "claims": list(self.claims),
            "reached": self.reached,
            "ratio": ratio_of(self.figures),
            "room": ratio_of(self.figures, over=BY_HAND),
            "best": None if best is None else {"peer": best, "ratio": self.ratio},
            "limit": self.limit,
            "of_limit": self.of_limit,
            "peak": self.peak,
            "peers": {
                peer: {"median": f.median, "q1": f.q1, "q3": f.q3, "samples": f.samples}
                for peer, f in self.figures.items()
            },
            "errors": dict(self.errors),
            "notes": dict(self.notes),
            "others": self.others,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "RowRecord":
        """The row that `as_json` wrote, or an older version of it."""
        figures = {
            peer: Figure(tuple(f["samples"]), f["q1"], f["median"], f["q3"])
            for peer, f in found["peers"].items()
        }
        names = ("group", "claims", "reached", "errors", "notes", "others", "limit", "peak")
        known = {name: found[name] for name in names if name in found}
        return cls(key=found["key"], title=found["title"], figures=figures, **known)


@dataclass(frozen=True)
class Run:
    """Facts about the machine, and the rows."""

    facts: Mapping[str, str]
    rows: Sequence[RowRecord]

    def groups(self) -> dict[str, list[RowRecord]]:
        """The rows of every group, in the order of the table."""
        found: dict[str, list[RowRecord]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return found

    def write(self, path: Path) -> None:
        """Write all that was measured, samples included, in seconds."""
        rows = [row.as_json() for row in self.rows]
        path.write_text(json.dumps({"facts": dict(self.facts), "rows": rows}, indent=1) + "\n")


def verdict(outcome: Outcome) -> bool | None:
    """Whether all claims of the row are reached; None when that cannot be told."""
    reached = [claim.reached(outcome.figures) for claim in outcome.row.claims]
    if False in reached:
        return False
    return None if None in reached or not reached else True


def record(outcome: Outcome, group: str = UNGROUPED) -> RowRecord:
    """What an outcome says."""
    return RowRecord(
        key=outcome.row.key,
        title=outcome.row.title,
        group=group,
        claims=[str(claim) for claim in outcome.row.claims],
        reached=verdict(outcome),
        figures=outcome.figures,
        errors=outcome.errors,
        notes={p: told for p, told in outcome.row.notes.items() if p in outcome.figures},
        others=outcome.others,
        limit=outcome.limit,
        peak=outcome.peak,
    )


def load_runs(paths: Sequence[Path]) -> Run:
    """One run of several files; a row that is in more of them is the last one's.

    Raises:
        ValueError: a file is not one that a run has written.
    """
    facts: dict[str, str] = {}
    rows: dict[str, RowRecord] = {}
    for path in paths:
        try:
            found = json.loads(path.read_text())
            facts.update(found["facts"])
            rows.update((row["key"], RowRecord.from_json(row)) for row in found["rows"])
        except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a file of `python -m bench --json`: {error}"
            ) from error
    return Run(facts, list(rows.values()))


def geometric_mean(values: Sequence[float]) -> float | None:
    """The mean of ratios; None of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
