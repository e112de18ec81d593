"""Opening what is to be loaded: a checkpoint, the newest step of a run, or other files.

In: a path. Out: a catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from meshard.algebra.arguments import count_of, instance_of, integer_of, items_of, path_of, text_of
from meshard.errors import MissingFileError
from meshard.weights.catalogue.detect import FORMATS, open_catalogue
from meshard.weights.catalogue.safetensors_file import open_ranks
from meshard.weights.catalogue.stored import Catalogue, Stored
from meshard.weights.dcp.source import DCP
from meshard.weights.native.files import native_catalogue
from meshard.weights.native.manifest import NAME
from meshard.weights.native.steps import step_folder, steps, unfinished

FORMATS["dcp"] = DCP


@final
@dataclass(frozen=True)
class RankFiles:
    """Safetensors files of which each holds the shards of one rank of a tensor-parallel runtime.

    It stands where a path is expected: in `load`, `metadata`, `convert`. Files that `save` has
    written for ranks say themselves how they are cut.

    Args:
        paths: the files, in the order of the ranks.
        dims: the dim along which tensors are cut, by pattern of names; None where every file has
            all of a tensor.

    Raises:
        ArgumentError: if ``paths`` does not hold paths, or ``dims`` not dims by pattern.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import RankFiles
    >>> from safetensors.numpy import save_file
    >>> from meshard.checkpoint import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{rank}.safetensors" for rank in range(2)]
    ...     for path in paths:
    ...         save_file({"w": np.zeros((2, 3), "f4"), "norm": np.ones(3, "f4")}, path)
    ...     load(RankFiles(paths, {"w": 0, "norm": None}))["w"].shape
    (4, 3)
    """

    paths: Sequence[str | Path]
    dims: Mapping[str, int | None]

    def __post_init__(self) -> None:
        what = "RankFiles"
        paths = items_of(self.paths, what, "paths", "paths", ordered=True)
        given = instance_of(self.dims, Mapping, what, "dims")  # type: ignore[type-abstract]
        dims = {
            text_of(pattern, what, "each key of dims"): None
            if dim is None
            else integer_of(dim, what, f"dims[{pattern!r:.80}]")
            for pattern, dim in given.items()
        }
        object.__setattr__(self, "paths", tuple([path_of(p, what, "paths") for p in paths]))
        object.__setattr__(self, "dims", dims)


Files = str | Path | RankFiles
"""What can be loaded: a path, or files of ranks."""


def opened(path: Files, step: int | None, what: str, *, checked: bool = False) -> Catalogue:
    """Return the catalogue of a path, or of files of ranks.

    Args:
        path: the path.
        step: the step of a run; None for the newest, if it is the folder of a run.
        what: the function that was called, for messages.
        checked: whether to read the checksums of a checkpoint too.

    Raises:
        MissingFileError: if there is nothing to load.
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    if isinstance(path, RankFiles):
        return open_ranks([str(path_of(p, what)) for p in path.paths], path.dims)
    root = _checkpoint(path, step, what)
    while root is not None:
        try:
            return native_catalogue(root, checked=checked)
        except MissingFileError:
            newer = _checkpoint(path, step, what)
            if newer == root:
                raise
            root = newer  # the step was removed, since newer ones have been saved
    return open_catalogue(str(path_of(path, what)))


def is_checkpoint(path: Files, step: int | None, what: str) -> bool:
    """Whether a path is that of a checkpoint of meshard's own."""
    return not isinstance(path, RankFiles) and _checkpoint(path, step, what) is not None


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
    if not root.is_dir():
        return None
    found = steps(root)
    left = unfinished(root) if not found else None
    if left is not None:
        raise MissingFileError(
            f"{what}: {root} has no complete checkpoint and no complete step: the save that made "
            f"{left} has not ended, or was killed before it was complete. Wait for it, or save "
            "again; checkpoint.clean removes what a killed save has left."
        )
    return step_folder(root, found[-1]) if found else None


def in_order(catalogue: Catalogue) -> dict[str, Stored]:
    """Return the tensors in the order of their places in the files: the same for all processes."""

    def place(tensor: Stored) -> tuple[str, int, str]:
        first = tensor.pieces[0] if tensor.pieces else None
        return ("", 0, tensor.name) if first is None else (first.file, first.offset, tensor.name)

    return {t.name: t for t in sorted(catalogue.tensors.values(), key=place)}
