"""The table for people: what a run has found, in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.claims import BY_HAND, JAX_EAGER, JAX_JIT, MESHARD, NUMPY, PEERS
from bench.compare import times
from bench.figures import digits, with_quartiles, with_spread
from bench.record import RowRecord, Run

PLAIN_WIDTH = 190
DISTURBED = 0.1
VERDICTS = {True: "[green]yes[/]", False: "[red]no[/]", None: "[dim]-[/]"}
CAPTION = (
    "Medians with quartiles, or with half their distance. best peer: its time / meshard's. limit:"
    " the machine's least time / meshard's. memory: a first call's peak beyond operands and result,"
    " in results."
)


def console() -> Console:
    """A console as wide as the terminal, or wide enough for the table in a pipe."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def show(out: Console, run: Run) -> None:
    """Print the head, the table, and the errors of peers that were left out."""
    for name, value in run.facts.items():
        out.print(f"[bold]{name:>11}[/]  {escape(value)}", soft_wrap=True)
    table = Table(caption=CAPTION, caption_justify="left")
    table.add_column("row")
    for heading in (MESHARD, JAX_EAGER, JAX_JIT, NUMPY, BY_HAND, "best peer", "limit", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("target")
    table.add_column("reached", justify="center")
    for rows in run.groups().values():
        for row in rows:
            table.add_row(*_cells(row))
        table.add_section()
    out.print(table)
    _show_others(out, run)
    _show_errors(out, run)
    _show_neighbours(out, run)


def best_text(row: RowRecord) -> str:
    """For example `1.43x by hand`."""
    return "-" if row.ratio is None else f"{times(row.ratio)} {row.best}"


def limit_text(row: RowRecord) -> str:
    """For example `62 %`."""
    return "-" if row.of_limit is None else f"{digits(100 * row.of_limit)} %"


def peak_text(row: RowRecord) -> str:
    """For example `0.02x`."""
    return "-" if row.peak is None else f"{row.peak:.2f}x"


def _cells(row: RowRecord) -> list[str]:
    figures = row.figures
    ours = with_quartiles(figures[MESHARD]) if MESHARD in figures else _absent(row, MESHARD)
    others = [
        with_spread(figures[peer]) if peer in figures else _absent(row, peer)
        for peer in (JAX_EAGER, JAX_JIT, NUMPY, BY_HAND)
    ]
    return [
        row.title,
        ours,
        *others,
        best_text(row),
        limit_text(row),
        peak_text(row),
        ", ".join(row.claims),
        VERDICTS[row.reached],
    ]


def _absent(row: RowRecord, peer: str) -> str:
    return "[yellow]skipped[/]" if peer in row.errors else "[dim]-[/]"


def _show_others(out: Console, run: Run) -> None:
    """Peers that have no column, and what is to be known of a figure."""
    for row in run.rows:
        for peer, figure in row.figures.items():
            if peer not in PEERS:
                out.print(f"{row.key}: {peer} {with_spread(figure)}", markup=False)
        for peer, told in row.notes.items():
            out.print(f"{row.key}: {peer} is {told}", markup=False, soft_wrap=True)


def errors(run: Run) -> list[str]:
    """Every different error once, with the rows it left out."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row in run.rows:
        for peer, error in row.errors.items():
            rows.setdefault((peer, error), []).append(row.key)
    return [f"{peer} skipped in {', '.join(keys)}: {e}" for (peer, e), keys in rows.items()]


def _show_errors(out: Console, run: Run) -> None:
    for told in errors(run):
        out.print(told, markup=False, soft_wrap=True)


def disturbed(run: Run) -> list[str]:
    """Rows that were measured beside other work, whose figures deserve less trust."""
    return [f"{row.key} {row.others:.0%}" for row in run.rows if row.others > DISTURBED]


def _show_neighbours(out: Console, run: Run) -> None:
    found = disturbed(run)
    if found:
        out.print(
            f"disturbed, part of the cores that other processes took: {', '.join(found)}",
            soft_wrap=True,
        )
