"""The table for people and the JSON file for later comparison."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.claims import BY_HAND, JAX_EAGER, JAX_JIT, MESHARD, NUMPY, PEERS, ratio_of
from bench.figures import digits, with_quartiles, with_spread
from bench.harness import Outcome

PLAIN_WIDTH = 170
DISTURBED = 0.1
VERDICTS = {True: "[green]yes[/]", False: "[red]no[/]", None: "[dim]-[/]"}


def console() -> Console:
    """A console as wide as the terminal, or wide enough for the table in a pipe."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def verdict(outcome: Outcome) -> bool | None:
    """Whether all claims of the row are reached; None when that cannot be told."""
    reached = [claim.reached(outcome.figures) for claim in outcome.row.claims]
    if False in reached:
        return False
    return None if None in reached or not reached else True


def show(out: Console, facts: Mapping[str, str], outcomes: Sequence[Outcome]) -> None:
    """Print the head, the table, and the errors of peers that were left out."""
    for name, value in facts.items():
        out.print(f"[bold]{name:>11}[/]  {escape(value)}", soft_wrap=True)
    table = Table(
        caption="Medians with quartiles, or with half their distance. ratio: the better JAX"
        " / meshard. room: the better JAX / by hand.",
        caption_justify="left",
    )
    table.add_column("row")
    for heading in (MESHARD, JAX_EAGER, JAX_JIT, NUMPY, BY_HAND, "ratio", "room"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("target")
    table.add_column("reached", justify="center")
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    out.print(table)
    _show_others(out, outcomes)
    _show_errors(out, outcomes)
    _show_neighbours(out, outcomes)


def _cells(outcome: Outcome) -> list[str]:
    figures = outcome.figures
    ours = with_quartiles(figures[MESHARD]) if MESHARD in figures else _absent(outcome, MESHARD)
    others = [
        with_spread(figures[peer]) if peer in figures else _absent(outcome, peer)
        for peer in (JAX_EAGER, JAX_JIT, NUMPY, BY_HAND)
    ]
    ratios = (ratio_of(figures), ratio_of(figures, over=BY_HAND))
    return [
        outcome.row.title,
        ours,
        *others,
        *("-" if ratio is None else f"{digits(ratio)}x" for ratio in ratios),
        ", ".join(map(str, outcome.row.claims)),
        VERDICTS[verdict(outcome)],
    ]


def _absent(outcome: Outcome, peer: str) -> str:
    return "[yellow]skipped[/]" if peer in outcome.errors else "[dim]-[/]"


def _show_others(out: Console, outcomes: Sequence[Outcome]) -> None:
    """Peers that have no column."""
    for outcome in outcomes:
        for peer, figure in outcome.figures.items():
            if peer not in PEERS:
                out.print(f"{outcome.row.key}: {peer} {with_spread(figure)}", markup=False)


def _show_errors(out: Console, outcomes: Sequence[Outcome]) -> None:
    """Every different error once, with the rows it left out."""
    rows: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        for peer, error in outcome.errors.items():
            rows.setdefault((peer, error), []).append(outcome.row.key)
    for (peer, error), keys in rows.items():
        out.print(f"{peer} skipped in {', '.join(keys)}: {error}", markup=False, soft_wrap=True)


def _show_neighbours(out: Console, outcomes: Sequence[Outcome]) -> None:
    """Rows that were measured beside other work, whose figures deserve less trust."""
    disturbed = [f"{o.row.key} {o.others:.0%}" for o in outcomes if o.others > DISTURBED]
    if disturbed:
        out.print(
            f"disturbed, part of the cores that other processes took: {', '.join(disturbed)}",
            soft_wrap=True,
        )


def write_json(path: Path, facts: Mapping[str, str], outcomes: Sequence[Outcome]) -> None:
    """Write all that was measured, samples included, in seconds."""
    rows = [
        {
            "key": outcome.row.key,
            "title": outcome.row.title,
            "claims": [str(claim) for claim in outcome.row.claims],
            "reached": verdict(outcome),
            "ratio": ratio_of(outcome.figures),
            "room": ratio_of(outcome.figures, over=BY_HAND),
            "peers": {
                peer: {
                    "median": figure.median,
                    "q1": figure.q1,
                    "q3": figure.q3,
                    "samples": figure.samples,
                }
                for peer, figure in outcome.figures.items()
            },
            "errors": outcome.errors,
            "others": outcome.others,
        }
        for outcome in outcomes
    ]
    path.write_text(json.dumps({"facts": dict(facts), "rows": rows}, indent=1) + "\n")
