"""Removing what saves that were killed have left behind.

In: a folder. Out: the files and folders that belong to no complete checkpoint, removed.
"""

from __future__ import annotations

import re
from pathlib import Path

from meshard.algebra.arguments import flag_of, path_of
from meshard.errors import MissingFileError
from meshard.runtime.processes.whereabouts import has_ended
from meshard.weights.native.files import Storing, data_folder, remove_folder
from meshard.weights.native.manifest import NAME

_DATA = re.compile(r"data-(.+)-\d+")
_PARTIAL = re.compile(r"\.(?:.+\.json|latest)\.by-(.+)\.[0-9a-f]{8}\.partial")
_STEP = re.compile(r"step-\d{8,}")


def clean(path: str | Path, *, force: bool = False, dry_run: bool = False) -> list[Path]:
    """Remove what saves that were killed have left in a checkpoint or in the steps of a run.

    The files of a save that still runs stay: its job tells, if it runs on this host. Nothing that
    a complete checkpoint needs is removed.

    Args:
        path: the folder of a checkpoint or of a run.
        force: whether to remove what jobs on other hosts have left too. Whether those still run is
            unknown.
        dry_run: whether to remove nothing, and return what would be removed.

    Returns:
        The files and folders that were left behind.

    Raises:
        MissingFileError: if there is no such folder.
        CorruptFileError: if a manifest is damaged: what it needs is then unknown.

    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from meshard.checkpoint import clean, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"w": np.arange(4.0)}, step=1)
    ...     left = Path(folder) / "step-00000002" / "data-host.1.1-0"
    ...     left.mkdir(parents=True)
    ...     [p.name for p in clean(folder, force=True)], left.exists()
    (['step-00000002'], False)
    """
    what = "checkpoint.clean"
    flag_of(force, what, "force")
    flag_of(dry_run, what, "dry_run")
    root = Path(path_of(path, what))
    if not root.is_dir():
        raise MissingFileError(f"{root} is not a folder.")
    found: list[Path] = []
    for folder in (root, *sorted([p for p in root.iterdir() if _STEP.fullmatch(p.name)])):
        found += _left_in(folder, force=force, inner=folder != root)
    if not dry_run:
        for one in found:
            if one.is_dir():
                remove_folder(one)
            else:
                with Storing(one):
                    one.unlink(missing_ok=True)
    return found


def _left_in(folder: Path, *, force: bool, inner: bool) -> list[Path]:
    """Return what belongs to no checkpoint in a folder; the folder itself if it is a step's."""
    complete = (folder / NAME).is_file()
    needed = data_folder(folder) if complete else None
    every = sorted(folder.iterdir())
    jobs = {one: _job_of(one) for one in every if one.name != needed}
    left = [one for one, job in jobs.items() if job and (force or has_ended(job))]
    if needed is not None:
        left += sorted((folder / needed).glob("*.json"))
    if inner and not complete and len(left) == len(every):
        return [folder]
    return left


def _job_of(path: Path) -> str | None:
    """Return the job that a file or folder of an unfinished save belongs to; None for others."""
    pattern = _DATA if path.is_dir() else _PARTIAL
    found = pattern.fullmatch(path.name)
    return None if found is None else found[1]
