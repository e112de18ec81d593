"""Files that a user named, opened: checkpoints, runs of steps, safetensors, `.npy`.

In: a path. Out: the catalogue of its tensors; nothing of them is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshard.cli.errors import CommandError
from meshard.errors import MissingFileError

if TYPE_CHECKING:
    from meshard.weights.catalogue.stored import Catalogue

_READ = "a checkpoint's folder, a folder of steps, safetensors files (or their index), .npy"


def open_files(path: Path, step: int | None = None) -> Catalogue:
    """Return the catalogue of a path.

    Args:
        path: a file or folder.
        step: the step of a run; None for the newest.

    Raises:
        CommandError: if it is of a kind that is not read.
        CheckpointError: if a file is missing, cut off or malformed.
    """
    from meshard.weights.catalogue.npy import open_npy
    from meshard.weights.catalogue.safetensors_file import open_safetensors
    from meshard.weights.checkpoint.manifest import NAME
    from meshard.weights.checkpoint.opening import opened
    from meshard.weights.checkpoint.steps import steps

    if not path.exists():
        raise MissingFileError(f"{path}: there is no such file or folder.")
    if path.is_dir():
        if step is not None or (path / NAME).exists() or steps(path):
            return opened(path, step, "step")
        return open_safetensors(str(path))
    if step is not None:
        raise CommandError(f"{path} is a file; --step is for a folder of steps")
    if path.suffix == ".npy":
        return open_npy(str(path))
    if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        return open_safetensors(str(path))
    raise CommandError(f"{path} is of a kind that is not read; these are: {_READ}")
