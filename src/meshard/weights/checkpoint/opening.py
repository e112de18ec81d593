"""Opening what is to be loaded: a checkpoint, the newest step of a run, or other files.

In: a path. Out: a catalogue.
"""

from __future__ import annotations

from pathlib import Path

from meshard.algebra.arguments import count_of, path_of
from meshard.errors import MissingFileError
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.checkpoint.manifest import NAME
from meshard.weights.checkpoint.native import native_catalogue
from meshard.weights.checkpoint.steps import step_folder, steps


def opened(path: str | Path, step: int | None, what: str) -> Catalogue:
    """Return the catalogue of a path.

    Args:
        path: the path.
        step: the step of a run; None for the newest, if it is the folder of a run.
        what: the function that was called, for messages.

    Raises:
        MissingFileError: if there is nothing to load.
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    root = Path(path_of(path, what))
    if step is not None:
        folder = step_folder(root, count_of(step, what, "step", least=0))
        if not (folder / NAME).is_file():
            raise MissingFileError(
                f"{what}: {root} has no complete step {step}; complete are {steps(root)[-8:]}."
            )
        return native_catalogue(folder)
    if root.is_dir() and not (root / NAME).is_file():
        found = steps(root)
        if found:
            return native_catalogue(step_folder(root, found[-1]))
    return native_catalogue(root)
