"""Opening what is to be loaded: a checkpoint, the newest step of a run, or other files.

In: a path. Out: a catalogue.
"""

from __future__ import annotations

from pathlib import Path

from meshard.algebra.arguments import count_of, path_of
from meshard.errors import MissingFileError
from meshard.weights.catalogue.detect import open_catalogue
from meshard.weights.catalogue.stored import Catalogue, Stored
from meshard.weights.native.files import native_catalogue
from meshard.weights.native.manifest import NAME
from meshard.weights.native.steps import step_folder, steps


def opened(path: str | Path, step: int | None, what: str, *, checked: bool = False) -> Catalogue:
    """Return the catalogue of a path.

    Args:
        path: the path.
        step: the step of a run; None for the newest, if it is the folder of a run.
        what: the function that was called, for messages.
        checked: whether to read the checksums of a checkpoint too.

    Raises:
        MissingFileError: if there is nothing to load.
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    root = _checkpoint(path, step, what)
    if root is not None:
        return native_catalogue(root, checked=checked)
    return open_catalogue(str(path_of(path, what)))


def is_checkpoint(path: str | Path, step: int | None, what: str) -> bool:
    """Whether a path is that of a checkpoint of meshard's own."""
    return _checkpoint(path, step, what) is not None


def _checkpoint(path: str | Path, step: int | None, what: str) -> Path | None:
    """Return the folder of the checkpoint that a path means; None if it is another file.

    Raises:
        MissingFileError: if a step is asked for that is not complete.
    """
    root = Path(path_of(path, what))
    if step is not None:
        folder = step_folder(root, count_of(step, what, "step", least=0))
        if not (folder / NAME).is_file():
            raise MissingFileError(
                f"{what}: {root} has no complete step {step}; complete are {steps(root)[-8:]}."
            )
        return folder
    if (root / NAME).is_file():
        return root
    found = steps(root) if root.is_dir() else []
    return step_folder(root, found[-1]) if found else None


def in_order(catalogue: Catalogue) -> dict[str, Stored]:
    """Return the tensors in the order of their places in the files: the same for all processes."""

    def place(tensor: Stored) -> tuple[str, int, str]:
        first = tensor.pieces[0] if tensor.pieces else None
        return ("", 0, tensor.name) if first is None else (first.file, first.offset, tensor.name)

    return {t.name: t for t in sorted(catalogue.tensors.values(), key=place)}
