"""`meshard doctor`: its options; `meshard.cli.doctor` does the work."""

from __future__ import annotations

from dataclasses import asdict

import click

from meshard.cli.arguments import Command
from meshard.cli.errors import DONE, FAILED
from meshard.cli.output import as_json, print_json, print_table

_HELP = """\
Look at what meshard runs on: Python, NumPy and BLAS, cores and memory, shared
memory and huge pages, MPI and optional packages; and say what to fix.

Each line is ok, a warning (slower, or something is missing that you may not
need), or wrong. The exit code is 1 if something is wrong.
"""


@click.command("doctor", cls=Command, help=_HELP)
@click.option("--run", is_flag=True, help="Start a job of two processes too.")
@as_json
def command(run: bool, as_json: bool) -> int:
    """Print what is found."""
    from meshard.cli.doctor import examine
    from meshard.plan.show.report import Table

    findings = list(examine(run=run))
    wrong = sum(x.status == "wrong" for x in findings)
    if as_json:
        print_json({"ok": not wrong, "findings": [asdict(x) for x in findings]})
        return FAILED if wrong else DONE
    rows: list[tuple[str, str, str]] = []
    for x in findings:
        rows.append((x.status, x.about, x.found))
        rows += [("", "", f"-> {line}") for line in x.fix.splitlines()]
    warnings = sum(x.status == "warn" for x in findings)
    note = f"{wrong} wrong, {warnings} warning{'s' * (warnings != 1)}"
    colors = {"ok": "green", "warn": "yellow", "wrong": "red"}
    print_table(Table((), rows, "<<~", ("", note)), colors)
    return FAILED if wrong else DONE
