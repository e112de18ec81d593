"""Removing what saves that were killed have left behind.

In: a folder. Out: the files and folders that belong to no complete checkpoint, removed.
"""

from __future__ import annotations

import re
from pathlib import Path

from meshard.algebra.arguments import flag_of, path_of
from meshard.errors import MissingFileError
from meshard.runtime.processes.whereabouts import has_ended
from meshard.weights.checkpoint.manifest import NAME
from meshard.weights.checkpoint.native import Storing, load_manifest, remove_folder

_DATA = re.compile(r"data-(.+)-\d+")
_PARTIAL = re.compile(r"\.(?:.+\.json|latest)\.by-(.+)\.[0-9a-f]{8}\.partial")
_STEP = re.compile(r"step-\d{8,}")


def clean(path: str | Path, *, force: bool = False, dry_run: bool = False) -> list[Path]:
    """Remove what saves that were killed have left in a checkpoint or in the steps of a run.

    What a save writes that still goes on stays: it is known by its job, if that runs on this host.
    Nothing that a complete checkpoint needs is removed.

    Args:
        path: the folder of a checkpoint or of a run.
        force: whether to remove what jobs on other hosts have left, which cannot be asked.
        dry_run: whether to remove nothing, but return what would be.

    Returns:
        The files and folders that were left behind.

    Raises:
        MissingFileError: if there is no such folder.
        CorruptFileError: if a manifest is damaged: what it needs is then unknown.

    >>> import tempfile, numpy as np
    >>> from meshard.weights.checkpoint.save import save
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
    needed = load_manifest(folder).folder if complete else None
    left, busy = [], False
    for one in sorted(folder.iterdir()):
        data = _DATA.fullmatch(one.name)
        if data is not None and one.name != needed and one.is_dir():
            if force or has_ended(data[1]):
                left.append(one)
            else:
                busy = True
        partial = _PARTIAL.fullmatch(one.name)
        if partial is not None and (force or has_ended(partial[1])):
            left.append(one)
    if complete and needed is not None:
        left += sorted((folder / needed).glob("*.json"))
    if inner and not complete and not busy and len(left) == len(list(folder.iterdir())):
        return [folder]
    return left
