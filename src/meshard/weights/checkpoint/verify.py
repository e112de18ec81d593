"""Checking files against the checksums that were written with them.

In: a path. Out: what is damaged: which file, tensor and box.
"""

from __future__ import annotations

from typing import Any

from meshard.errors import CorruptFileError, MissingFileError
from meshard.plan.show.progress import Progress, adding, checked_progress, telling
from meshard.runtime.agree import meet
from meshard.runtime.world import here
from meshard.weights.catalogue.verify import Damage, checked_bytes
from meshard.weights.catalogue.verify import verify as damages
from meshard.weights.checkpoint.opening import Files, is_checkpoint, opened


def verify(path: Files, *, step: int | None = None, progress: Progress = None) -> list[Damage]:
    """Return what is damaged in a file or folder: nothing, if all is as it was written.

    The processes of a job share the work; all get the whole list. A file of another program that
    has no checksums is told too, since a change could not be noticed.

    Args:
        path: see `load`.
        step: see `load`.
        progress: True shows a bar on process 0, False none, and None one on a terminal if it takes
            longer than a second; or a function, which each process calls with the bytes that it has
            read, and about those that it will have read. In a program of several processes, an
            error that it raises is raised when the work is done.

    Raises:
        MissingFileError: if there is no complete checkpoint at all.
        StorageError: if a file may not be read.

    >>> import numpy as np, pathlib, tempfile
    >>> from meshard.checkpoint import save, verify
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"w": np.arange(100.0)})
    ...     (file,) = pathlib.Path(folder).glob("data-*/*")
    ...     data = bytearray(file.read_bytes())
    ...     data[-1] ^= 1
    ...     _ = file.write_bytes(data)
    ...     [(d.tensor, str(d.box)) for d in verify(folder)]
    [('w', '[0:100]')]
    """
    what = "checkpoint.verify"
    asked = checked_progress(progress, what)
    world = here()
    everybody = world.processes
    if world.process_count > 1:
        meet(world, everybody, f"`{what}` of {path}")
    found: list[Damage] = []
    with telling(asked, "verifying", world=world, patient=world.process_count > 1) as tell:
        try:
            catalogue = opened(path, step, what, checked=True)
        except (CorruptFileError, MissingFileError) as error:
            if isinstance(error, MissingFileError) and not is_checkpoint(path, step, what):
                raise
            found.append(Damage(str(path), str(error)))
        else:
            try:
                count = len(everybody)
                told = adding(tell, checked_bytes(catalogue) // count)
                found += damages(catalogue, world.place, count, told)
            finally:
                catalogue.reader.close()
        all_found: list[Any] = world.transport.all_gather(found, everybody)
    return list(dict.fromkeys([damage for some in all_found for damage in some]))
