"""The command: `python -m bench [--only PATTERN] [--quick] [--json FILE]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.harness import Budget, measure
from bench.machine import facts
from bench.report import console, show, write_json
from bench.rows import ROWS, select

DESCRIPTION = "meshard beside JAX and NumPy by hand; exit code 0 whatever the figures are."
FULL, QUICK = Budget(), Budget(seconds=0.7, at_least=3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows, print the table; 0 always, for speed is shown and never asserted."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=DESCRIPTION)
    parser.add_argument(
        "--only", metavar="PATTERN", help="rows whose key or title has this, or matches this with *"
    )
    parser.add_argument("--quick", action="store_true", help="0.7 s a row instead of 3 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    chosen = parser.parse_args(arguments)
    rows, budget = select(chosen.only), QUICK if chosen.quick else FULL
    if not rows:
        print(f"no row has {chosen.only!r}; the rows are {', '.join(row.key for row in ROWS)}")
        return 0
    outcomes = []
    with Console(stderr=True).status("") as status:
        for place, row in enumerate(rows, 1):
            status.update(f"{place}/{len(rows)} {row.title}")
            outcomes.append(measure(row, budget))
    told = facts()
    show(console(), told, outcomes)
    if chosen.json:
        write_json(chosen.json, told, outcomes)
    return 0
