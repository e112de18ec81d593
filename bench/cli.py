"""The command: what is measured, and what becomes of the figures; see `python -m bench --help`."""

import argparse
import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.compare import compare
from bench.harness import Budget, Row, measure
from bench.history import HISTORY, append
from bench.html import page
from bench.limits import Limits, measure_limits
from bench.machine import facts
from bench.peak import peak_of
from bench.peers.apart import Apart
from bench.record import Run, load_runs, record
from bench.report import console, show
from bench.rows import GROUP_OF, ROWS, select
from bench.rows_ranks import RanksRow, message_seconds

DESCRIPTION = "meshard beside its peers and the machine's limits; exit code 0 whatever they say."
FULL, QUICK = Budget(), Budget(seconds=0.5, at_least=3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows, print the table; 0 always, for speed is shown and never asserted."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        if chosen.compare:
            compare(console(), *(load_runs([path]) for path in chosen.compare))
            return 0
        if chosen.load:
            run = ordered(load_runs(chosen.load))
        else:
            rows = select(chosen.only, chosen.quick)
            if not rows:
                told = ", ".join(row.key for row in ROWS)
                print(f"no row has {chosen.only!r}; the rows are {told}")
                return 0
            run = measured(rows, QUICK if chosen.quick else FULL, peaks=not chosen.quick)
    except ValueError as error:
        parser.error(str(error))
    show(console(), run)
    if chosen.json:
        run.write(chosen.json)
    if chosen.html:
        chosen.html.write_text(page(run), encoding="utf-8")
    if chosen.history:
        append(chosen.history, run, datetime.date.today())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=DESCRIPTION)
    add = parser.add_argument
    add(
        "--only", metavar="PATTERN", help="rows whose key or title has this, or matches this with *"
    )
    add("--quick", action="store_true", help="a row of each kind, half a second each, no memory")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    add("--html", type=Path, metavar="FILE", help="write a page with plots there")
    add(
        "--history",
        type=Path,
        metavar="FILE",
        nargs="?",
        const=HISTORY,
        help="add the ratios, with the date, to a Markdown file (bench/history.md)",
    )
    add(
        "--load",
        type=Path,
        metavar="FILE",
        nargs="+",
        help="report what these JSON files say, together, instead of measuring",
    )
    add(
        "--compare",
        type=Path,
        metavar=("OLD", "NEW"),
        nargs=2,
        help="show what became faster between two JSON files",
    )
    return parser


def ordered(run: Run) -> Run:
    """The rows in the order of the table, each in its group, which old files do not name."""
    places = {key: place for place, key in enumerate(GROUP_OF)}
    rows = sorted(run.rows, key=lambda row: places.get(row.key, len(places)))
    return Run(run.facts, [replace(r, group=GROUP_OF.get(r.key, r.group)) for r in rows])


def measured(rows: Sequence[Row], budget: Budget, peaks: bool) -> Run:
    """Measure the machine, then the rows."""
    found = []
    with Console(stderr=True).status("the machine") as status:
        between = any(isinstance(row, RanksRow) for row in rows)
        limits = measure_limits(message_seconds() if between else None)
        for place, row in enumerate(rows, 1):
            status.update(f"{place}/{len(rows)} {row.title}")
            outcome = measure(row, budget, lambda row, peer: Apart(row.key, peer))
            outcome.limit = limits.seconds(row.need)
            if peaks and row.memory:
                try:
                    outcome.peak = peak_of(row)
                except RuntimeError as error:
                    outcome.errors["memory"] = str(error)
            found.append(record(outcome, GROUP_OF[row.key]))
    return Run(_told(limits), found)


def _told(limits: Limits) -> dict[str, str]:
    return {**facts(), "limits": str(limits)}
