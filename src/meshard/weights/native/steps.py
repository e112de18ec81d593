"""Steps: the checkpoints of a run, each in a folder of its own beneath one.

In: the folder of a run. Out: which steps are complete, the newest, and what older ones are removed.
What is on the disk counts, never what a program remembers.
"""

from __future__ import annotations

import re
from pathlib import Path

from meshard.algebra.arguments import path_of
from meshard.errors import MissingFileError, StorageError
from meshard.weights.catalogue.raw_writer import sync_folder
from meshard.weights.native.files import remove_folder, replace_file
from meshard.weights.native.manifest import NAME

_LATEST = "latest"
_STEP = re.compile(r"step-(\d{8,})")


def unfinished(root: Path) -> str | None:
    """Return which save to a folder has not ended; None if the folder holds anything else."""
    names = [entry.name for entry in root.iterdir() if not entry.name.startswith(".")]
    left = [name for name in names if _STEP.fullmatch(name) or name.startswith("data-")]
    others = [name for name in names if name not in left and name != _LATEST]
    return max(left) if left and not others else None


def step_folder(root: Path, step: int) -> Path:
    """Return the folder of a step."""
    return root / f"step-{step:08d}"


def steps(path: str | Path) -> list[int]:
    """Return the complete steps of a run, in ascending order.

    Args:
        path: the folder that was given to `save` together with ``step``.

    Raises:
        MissingFileError: if there is no such folder.
        StorageError: if it may not be read.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import latest, save, steps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (10, 20, 30):
    ...         _ = save(folder, {"w": np.arange(4.0)}, step=step, keep=2)
    ...     steps(folder), latest(folder)
    ([20, 30], 30)
    """
    root = Path(path_of(path, "checkpoint.steps"))
    try:
        names = [entry.name for entry in root.iterdir()]
    except FileNotFoundError:
        raise MissingFileError(f"{root} does not exist.") from None
    except OSError as error:
        raise StorageError(f"{root} cannot be read: {error.strerror}.") from error
    numbers = [int(m[1]) for m in map(_STEP.fullmatch, names) if m is not None]
    return sorted([n for n in numbers if (step_folder(root, n) / NAME).is_file()])


def latest(path: str | Path) -> int | None:
    """Return the newest complete step of a run; None if there is none.

    Args:
        path: the folder that was given to `save` together with ``step``.

    Raises:
        MissingFileError: if there is no such folder.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import latest, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (10, 20):
    ...         handle = save(folder, {"w": np.arange(4.0)}, step=step)
    ...     latest(folder)
    20
    """
    found = steps(path)
    return found[-1] if found else None


def point_to(root: Path, step: int) -> None:
    """Write which step was saved last, for people and other tools."""
    replace_file(root / _LATEST, f"{step_folder(root, step).name}\n".encode())


def last_saved(folder: Path) -> Path | None:
    """Return the folder of the step that was saved last in the run that a step belongs to.

    Args:
        folder: the step's.

    Returns:
        The folder; None if nothing says it, or ``folder`` is not one of a step.
    """
    try:
        name = (folder.parent / _LATEST).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    both = _STEP.fullmatch(folder.name) and _STEP.fullmatch(name)
    return folder.parent / name if both else None


def keep_newest(root: Path, keep: int, saved: int) -> None:
    """Remove all complete steps but the newest, and the one just saved.

    A run that goes back to step 50 saves it beside 100 and 200: it is the one that is needed. Each
    step that is removed stops being one at once.
    """
    for step in steps(root)[:-keep]:
        if step == saved:
            continue
        folder = step_folder(root, step)
        (folder / NAME).unlink(missing_ok=True)
        sync_folder(str(folder))
        remove_folder(folder)
