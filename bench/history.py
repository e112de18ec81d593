"""Dated ratios: a line for each group of rows of each run, in a table that Markdown shows.

In: a run. Out: lines at the end of a file, which is begun if it is not there.
"""

import datetime
from pathlib import Path

from bench.figures import digits
from bench.record import Run, geometric_mean

HISTORY = Path(__file__).parent / "history.md"
HEAD = """\
# Ratios over time

How many times faster meshard was than the best peer of each row, in the same run: above 1 it was
ahead. `python -m bench --history` adds a line for each group of rows. The mean is geometric. Runs
on other machines or with other peers cannot be compared digit by digit.

| date | version | commit | group | mean | rows |
|---|---|---|---|---:|---|
"""


def lines(run: Run, day: datetime.date) -> list[str]:
    """The lines of a run; rows that only meshard can do are left out."""
    version, _, commit = run.facts.get("meshard", "").partition(" ")
    found = []
    for group, rows in run.groups().items():
        ratios = {row.key: row.ratio for row in rows if row.ratio is not None}
        mean = geometric_mean(list(ratios.values()))
        if mean is not None:
            told = ", ".join(f"{key} {digits(ratio)}" for key, ratio in ratios.items())
            cells = (day.isoformat(), version, commit or "-", group, digits(mean), told)
            found.append(f"| {' | '.join(cells)} |")
    return found


def append(path: Path, run: Run, day: datetime.date) -> None:
    """Add the lines of a run."""
    text = path.read_text() if path.exists() else HEAD
    if not text.endswith("\n"):
        text += "\n"
    path.write_text(text + "".join(f"{line}\n" for line in lines(run, day)))
