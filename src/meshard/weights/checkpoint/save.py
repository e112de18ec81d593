"""Saving trees.

In: a tree, and where it is to be saved. Out: a complete checkpoint, or what was there before.
Every process writes the boxes that it holds, all at the same time; nothing is negotiated, since
the layouts say who writes what. One agreement follows, and then the manifest is written: from that
moment there is a checkpoint.

Removing what saves that were killed have left behind.

In: a folder. Out: the files and folders that belong to no complete checkpoint, removed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from meshard.algebra.arguments import count_of, flag_of, number_of, path_of
from meshard.errors import ArgumentError, MissingFileError, visible
from meshard.plan.figures.footprint import checked_window
from meshard.plan.show.progress import Progress, adding, checked_progress, telling
from meshard.runtime.agree import meet
from meshard.runtime.processes.identity import has_ended
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.catalogue.safetensors_writer import SHARD_BYTES
from meshard.weights.checkpoint.job import Limits, Request, format_of
from meshard.weights.checkpoint.sources import held_arrays, made_of, sources_of
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.native.files import (
    Storing,
    data_folder,
    keep_newest,
    point_to,
    remove_folder,
    step_folder,
)
from meshard.weights.native.manifest import NAME
from meshard.weights.native.structure import named
from meshard.weights.transfer.reading import slab_bytes_of


def save(
    path: str | Path,
    tree: Any,
    *,
    format: str | None = None,
    step: int | None = None,
    keep: int | None = None,
    overwrite: bool = False,
    dtype: Any = None,
    map: KeyMap | None = None,
    shard_bytes: int = SHARD_BYTES,
    max_bytes: int | None = None,
    wait: bool = True,
    progress: Progress = None,
) -> SaveHandle:
    """Save a tree of arrays.

    All processes of a job call this together, with the same tree. Each writes the boxes that it
    holds; of replicas one writes. A save that fails or is killed, at any moment, leaves what was
    there before.

    Args:
        path: the folder of the checkpoint, with ``step`` that of all steps; or a file or folder of
            another format.
        tree: a tree of arrays; numbers, strings, booleans and None are kept too. An array in two
            places, as tied weights are, is saved once, and stays one array when it is loaded.
        format: ``"meshard"``; ``"safetensors"``, one file or a folder with an index, as Hugging
            Face's libraries read it; ``"safetensors-ranks"``, a folder with a file for each device;
            ``"zarr"``; ``"npy"``; ``"dcp"``, a folder as ``torch.distributed.checkpoint`` reads it,
            with a file for each process. None: by the path's suffix, and meshard's own without one.
        step: the number of the step, which is saved in a folder of its own.
        keep: how many of the newest steps to keep; None for all. The step that is saved now stays,
            also if there are that many with greater numbers.
        overwrite: whether what is there is replaced.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.
        map: which tensors are made of which arrays of the tree; their names are the map's.
        shard_bytes: the most bytes of one of several safetensors files.
        max_bytes: the most bytes that a process holds besides the arrays; None for 4 MiB a thread.
        wait: whether to return only when the checkpoint is complete. Otherwise it is written in the
            background, while the program may go on, and delete or donate the arrays.
        progress: True shows a bar on process 0, False none, and None one on a terminal if it takes
            longer than a second; or a function, which each process calls with the bytes that it has
            written, and those that it will have written. A save in the background shows none. In a
            program of several processes, an error that it raises is raised when the work is done.

    Returns:
        The handle of the save: `SaveHandle.wait` raises its error.

    Raises:
        FileInUseError: if there is a checkpoint and ``overwrite`` is False, or something else.
        StorageError: if the disk is full or the folder may not be written.
        CheckpointError: if another process has failed, or a leaf cannot be saved in the format.
        KeyMapError: if the map does not fit the tree.
        UnequalError: if the processes give different values for a leaf that is not spread.
        DeletedArrayError: if an array was deleted.

    >>> import numpy as np, meshard, tempfile
    >>> from meshard.checkpoint import save
    >>> tree = {"w": meshard.numpy.arange(6.0), "epoch": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     handle = save(folder + "/run", tree)
    ...     sorted(p.name.split("-")[0] for p in handle.path.iterdir())
    ['data', 'manifest.json']
    """
    what = "checkpoint.save"
    for name, given in (("overwrite", overwrite), ("wait", wait)):
        flag_of(given, what, name)
    asked = checked_progress(progress, what)
    window = checked_window(max_bytes, what)
    count_of(shard_bytes, what, "shard_bytes", least=1)
    root, after = _place(path, step, keep, what)
    kind = format_of(root, format, what)
    world, found = here(), named(tree, what)
    _wait_for(world, root)
    if world.process_count > 1:
        meet(world, world.processes, f"`{what}` to {root}")
    held, shardings = held_arrays(world, found, what, copied=not wait)
    made = made_of(found.arrays, found.tied, map, dtype, what)
    sources, found = sources_of(world, found, shardings, made)
    limits = Limits(overwrite, shard_bytes)
    request = Request(world, root, found, held, sources, limits, after)
    slab = slab_bytes_of(window, len(world.processes), world.workers.threads)
    handle = SaveHandle(root)
    if not wait:
        handle._start(world, request.job(kind, slab, wait=False).run_alone)
        return handle
    total = sum([s.entry.nbytes for s in sources]) // len(world.processes)
    with telling(asked, "saving", world=world, patient=world.process_count > 1) as tell:
        job = request.job(kind, slab, told=adding(tell, total))
        job.start()
        job.run()
    return handle


def _place(
    path: str | Path, step: int | None, keep: int | None, what: str
) -> tuple[Path, Callable[[], None]]:
    """Return the folder of a checkpoint, and what is done once it is complete."""
    root = Path(os.path.abspath(path_of(path, what)))
    newest = None if keep is None else count_of(keep, what, "keep", least=1)
    if step is None:
        if newest is not None:
            raise ArgumentError(f"{what}: keep={newest} counts steps, but no step= is given.")
        return root, lambda: None
    number = count_of(step, what, "step", least=0)

    def after() -> None:
        point_to(root, number)
        if newest is not None:
            keep_newest(root, newest, number)

    return step_folder(root, number), after


def _wait_for(world: RuntimeWorld, root: Path) -> None:
    """Wait for this process's saves to the same folder, or of other steps of the same run."""
    for handle in list(_pending):
        near = handle.path == root or handle.path.parent == root.parent
        if near and handle._world is world:
            handle._hurry.set()
            handle._thread.join()


_SHARE = 8
"""A save behind the program writes a piece in one of so many parts of the time, and then pauses."""


@final
class SaveHandle:
    """A save that goes on in the background.

    It uses a small part of a core, so the program's steps take about as long as without it. Once
    something waits for it, it no longer pauses. `wait` raises its error. The program waits for
    all saves when it ends, and writes errors that nobody has asked for to standard error.

    Attributes:
        path: the checkpoint's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._error: BaseException | None = None
        self._asked = False
        self._thread = threading.Thread(name="meshard save")
        self._world: RuntimeWorld | None = None
        self._hurry = threading.Event()

    @property
    def done(self) -> bool:
        """Whether the checkpoint is complete, or the save has failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Return when the checkpoint is complete.

        Args:
            timeout: the most seconds to wait; None for no limit.

        Raises:
            TimeoutError: if it takes longer; the save goes on.
            CheckpointError: if the save has failed.
        """
        if timeout is not None:
            timeout = number_of(timeout, "SaveHandle.wait", "timeout")
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(visible(f"the save to {self.path} takes longer than {timeout:g} s."))
        self._asked = True
        if self in _pending:
            _pending.remove(self)
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done" if self.done else "running"
        return f"SaveHandle({str(self.path)!r}, {state})"

    def _start(
        self, world: RuntimeWorld, work: Callable[[Callable[[float], object]], None]
    ) -> None:
        self._world = world

        def pause(seconds: float) -> None:
            self._hurry.wait((_SHARE - 1) * seconds)

        def run() -> None:
            with contextlib.suppress(OSError, AttributeError):  # less of a core beside busy threads
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
            try:
                work(pause)
            except BaseException as error:  # raised by `wait`
                self._error = error

        self._thread = threading.Thread(target=run, name="meshard save")
        _pending.append(self)
        self._thread.start()


_pending: list[SaveHandle] = []


@atexit.register
def _finish() -> None:
    """Wait for all saves, and report the errors that nobody has asked for."""
    while _pending:
        handle = _pending.pop(0)
        handle._hurry.set()
        handle._thread.join()
        if handle._error is not None and not handle._asked:
            told = visible(f"the save to {handle.path} failed: {handle._error}")
            print(f"meshard: {told}", file=sys.stderr)


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
