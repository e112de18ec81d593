"""A bar that shows how far a move of many bytes has come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(total: int, doing: str = "resharding") -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the terminal; the yielded function moves it to a number of bytes."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    with Progress(doing, BarColumn(), DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
