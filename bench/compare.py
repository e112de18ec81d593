"""Two runs side by side: what became faster, row by row.

In: the run before and the run after. Out: a table of times, of how many times faster each row is,
and of its ratio to the best peer in each run, which noise of the machine moves less.
"""

from rich.console import Console
from rich.table import Table

from bench.claims import MESHARD
from bench.figures import Figure, digits, with_spread
from bench.record import RowRecord, Run, geometric_mean

CHANGED = 1.1
"""A row that changed by less is not called faster or slower."""


def times(ratio: float | None) -> str:
    """For example `4.56x`; a dash for none."""
    return "-" if ratio is None else f"{digits(ratio)}x"


def factor(before: RowRecord, after: RowRecord) -> float | None:
    """How many times faster meshard is after than before."""
    old, new = _ours(before), _ours(after)
    return None if old is None or new is None else old.median / new.median


def _ours(row: RowRecord) -> Figure | None:
    return row.figures.get(MESHARD)


def compare(out: Console, before: Run, after: Run) -> None:
    """Print the rows that both runs have, and name the others."""
    old = {row.key: row for row in before.rows}
    both = [(old[row.key], row) for row in after.rows if row.key in old]
    table = Table(
        caption="faster: before / after. best peer: the best peer's time / meshard's, in each run.",
        caption_justify="left",
    )
    table.add_column("row")
    for heading in ("before", "after", "faster", "best peer before", "best peer after"):
        table.add_column(heading, justify="right", no_wrap=True)
    factors = []
    for first, second in both:
        found = factor(first, second)
        if found is not None:
            factors.append(found)
        table.add_row(
            second.key,
            *(_told(row) for row in (first, second)),
            _coloured(found),
            times(first.ratio),
            times(second.ratio),
        )
    out.print(table)
    out.print(f"{len(both)} rows, geometric mean {times(geometric_mean(factors))}")
    new = {row.key for row in after.rows}
    for told, keys in (
        ("only before", [key for key in old if key not in new]),
        ("only after", [row.key for row in after.rows if row.key not in old]),
    ):
        if keys:
            out.print(f"{told}: {', '.join(keys)}", soft_wrap=True)


def _told(row: RowRecord) -> str:
    ours = _ours(row)
    return "-" if ours is None else with_spread(ours)


def _coloured(found: float | None) -> str:
    if found is None or 1 / CHANGED < found < CHANGED:
        return times(found)
    return f"[green]{times(found)}[/]" if found > 1 else f"[red]{times(found)}[/]"
