"""Saving trees.

In: a tree, and where it is to be saved. Out: a complete checkpoint, or what was there before.
Every process writes the boxes that it holds, all at the same time; nothing is negotiated, since
the layouts say who writes what. One agreement follows, and then the manifest is written: from that
moment there is a checkpoint.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, final

import xxhash

from meshard.algebra.arguments import count_of, flag_of, path_of
from meshard.errors import (
    ArgumentError,
    CheckpointError,
    FileInUseError,
    MeshardError,
    MissingFileError,
    StorageError,
)
from meshard.plan.figures.window import checked_window
from meshard.runtime.agree import meet
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.checkpoint.manifest import NAME, DataFile, Manifest, grouped
from meshard.weights.checkpoint.meeting import ByFiles, ByMessages, Meeting, Record
from meshard.weights.checkpoint.native import (
    NativeWriter,
    load_manifest,
    remove_folder,
    stored_pieces,
    write_manifest,
)
from meshard.weights.checkpoint.sources import held_arrays, plain_sources
from meshard.weights.checkpoint.steps import keep_newest, point_to, step_folder
from meshard.weights.checkpoint.structure import named
from meshard.weights.transfer.reading import SLAB
from meshard.weights.transfer.writing import Output, Writing

_numbers = count()


def save(
    path: str | Path,
    tree: Any,
    *,
    step: int | None = None,
    keep: int | None = None,
    overwrite: bool = False,
    dtype: Any = None,
    max_bytes: int | None = None,
    wait: bool = True,
) -> SaveHandle:
    """Save a tree of arrays.

    All processes of a job call this together, with the same tree. Each writes the boxes that it
    holds; of replicas one writes. A save that fails, or is killed, at any moment leaves what was
    there before.

    Args:
        path: the folder of the checkpoint; with ``step`` that of all steps.
        tree: a tree of arrays; numbers, strings, booleans and None are kept too. An array in two
            places, as tied weights are, is saved once, and stays one array when it is loaded.
        step: the number of the step, which is saved in a folder of its own.
        keep: how many of the newest steps are kept; None for all.
        overwrite: whether a checkpoint that is there is replaced.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.
        max_bytes: the most bytes that a process holds besides the arrays; None for 4 MiB a thread.
        wait: whether to return only when the checkpoint is complete. Otherwise it is written behind
            the program, which may go on, delete and donate the arrays.

    Returns:
        The handle of the save: `SaveHandle.wait` raises its error.

    Raises:
        FileInUseError: if there is a checkpoint and ``overwrite`` is False, or something else.
        StorageError: if the disk is full or the folder may not be written.
        CheckpointError: if another process has failed, or a leaf cannot be saved.
        UnequalError: if the processes give different values for a leaf that is not spread.
        DeletedArrayError: if an array was deleted.

    >>> import tempfile, numpy as np, meshard
    >>> tree = {"w": meshard.numpy.arange(6.0), "epoch": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     handle = save(folder + "/run", tree)
    ...     sorted(p.name.split("-")[0] for p in handle.path.iterdir())
    ['data', 'manifest.json']
    """
    what = "checkpoint.save"
    for name, given in (("overwrite", overwrite), ("wait", wait)):
        flag_of(given, what, name)
    window = checked_window(max_bytes, what)
    root, after = _place(path, step, keep, what)
    world, found = here(), named(tree, what)
    _wait_for(root)
    if world.process_count > 1:
        meet(world, range(world.process_count), f"`{what}` to {root}")
    _check_target(root, overwrite=overwrite)
    held, shardings = held_arrays(world, found, what, copied=not wait)
    shapes = {name: tuple(x.shape) for name, x in found.arrays.items()}
    sources = {s.entry.name: s for s in plain_sources(held, shapes, shardings, dtype, what)}
    entries = grouped([s.entry for s in sources.values()])
    folder = f"data-{world.job}-{next(_numbers) if world.process_count == 1 else _numbered(world)}"
    manifest = Manifest(entries, found.structure, found.tied, folder)
    pieces = stored_pieces(entries, folder, {})
    outputs = [
        Output(stored, sources[name].recipe, held, owners)
        for name, (stored, owners) in pieces.items()
    ]
    writer = NativeWriter(root, folder, world.process_index, pieces)
    slab = SLAB if window is None else max(1, window // (4 * world.workers.threads))
    writing = Writing(world, writer, outputs, slab)
    index, size = world.process_index, world.process_count
    meeting = (
        ByMessages(world)
        if wait
        else ByFiles(root / folder, index, size, lambda: _is_complete(root, folder))
    )
    job = _Job(root, manifest, writer, writing, meeting, index, after)
    handle = SaveHandle(root)
    job.begin()
    if wait:
        job.run(behind=False)
    else:
        handle._start(lambda: job.run(behind=True))
    return handle


def _place(
    path: str | Path, step: int | None, keep: int | None, what: str
) -> tuple[Path, Callable[[], None]]:
    """Return the folder of a checkpoint, and what is done once it is complete."""
    root = Path(os.path.abspath(path_of(path, what)))
    if step is None:
        if keep is not None:
            raise ArgumentError(f"{what}: keep={keep} counts steps, but no step= is given.")
        return root, lambda: None
    number = count_of(step, what, "step", least=0)
    newest = None if keep is None else count_of(keep, what, "keep", least=1)

    def after() -> None:
        point_to(root, number)
        if newest is not None:
            keep_newest(root, newest)

    return step_folder(root, number), after


def _numbered(world: RuntimeWorld) -> int:
    """Return the number of a save, the same on all processes, which all save in one order."""
    world.saves += 1
    return world.saves


def _check_target(root: Path, *, overwrite: bool) -> None:
    """Refuse a target that must not be overwritten.

    Raises:
        FileInUseError: if it must not be.
        StorageError: if it cannot be looked at.
    """
    try:
        names = [entry.name for entry in root.iterdir()]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise FileInUseError(f"{root} is a file; a checkpoint is a folder.") from None
    except OSError as error:
        raise StorageError(f"{root} cannot be read: {error.strerror}.") from error
    if NAME in names:
        if not overwrite:
            raise FileInUseError(
                f"{root} holds a checkpoint. Give another path, or overwrite=True to replace it."
            )
        return
    others = [n for n in names if not n.startswith(("data-", "."))]
    if others:
        raise FileInUseError(
            f"{root} holds {sorted(others)[0]!r}, which does not belong to a checkpoint. Give a "
            "new folder, or an empty one."
        )


def _is_complete(root: Path, folder: str) -> bool:
    """Whether a checkpoint is the one whose data is in a folder."""
    try:
        return load_manifest(root).folder == folder
    except MissingFileError:
        return False


def _wait_for(root: Path) -> None:
    """Wait for saves to the same folder, or of other steps of the same run, that still go on."""
    for handle in list(_pending):
        if handle.path == root or handle.path.parent == root.parent:
            handle._thread.join()


@final
class SaveHandle:
    """A save that goes on behind the program.

    Its error is raised by `wait`; one that nobody has asked for is written to the standard error
    when the program ends, which waits for all saves.

    Attributes:
        path: the checkpoint's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._error: BaseException | None = None
        self._asked = False
        self._thread = threading.Thread(name="meshard save")

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
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the save to {self.path} takes longer than {timeout:g} s.")
        self._asked = True
        if self in _pending:
            _pending.remove(self)
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done" if self.done else "running"
        return f"SaveHandle({str(self.path)!r}, {state})"

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(OSError, AttributeError):  # the program's own threads first
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            try:
                work()
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
        handle._thread.join()
        if handle._error is not None and not handle._asked:
            print(f"meshard: the save to {handle.path} failed: {handle._error}", file=sys.stderr)


@final
@dataclass(frozen=True)
class _Job:
    """One save: all that its last steps need."""

    root: Path
    manifest: Manifest
    writer: NativeWriter
    writing: Writing
    meeting: Meeting
    index: int
    after: Callable[[], None]

    def begin(self) -> None:
        """Make the files, and write what other processes hold, together with them."""
        try:
            self.writer.begin()
            self.writing.write_far()
        except BaseException:
            self.writer.abandon()
            raise

    def run(self, *, behind: bool) -> None:
        """Write what is here, agree with the others, and make the checkpoint complete."""
        error: MeshardError | None = None
        try:
            self.writing.write_near(alone=behind)
            self.writer.sync(self.writing.sums)
        except MeshardError as failed:
            error = failed
        except BaseException:
            self.writer.abandon()
            raise
        self._settle(error)

    def _settle(self, error: MeshardError | None) -> None:
        plan = xxhash.xxh3_64_hexdigest(self.manifest.to_text().encode())
        outcome: str | None = None
        try:
            records = self.meeting.gather(_record(plan, error, self.writer.record))
            if records is not None:
                _check(records, plan)
                self._commit(records)
        except MeshardError as failed:
            error, outcome = error or failed, str(failed)
        told = self.meeting.announce(outcome)
        if told is not None:
            self.writer.abandon()
            raise error or CheckpointError(told)

    def _commit(self, records: Sequence[Record]) -> None:
        files = tuple(
            [
                DataFile(process, int(start), int(size), int(header, 16))
                for process, (_, _, start, size, header) in enumerate(records)
                if isinstance(start, int) and isinstance(size, int) and isinstance(header, str)
            ]
        )
        manifest = replace(self.manifest, files=files)
        before = None
        with contextlib.suppress(MeshardError):
            before = load_manifest(self.root)
        write_manifest(self.root, manifest)
        if before is not None and before.folder != manifest.folder:
            remove_folder(self.root / before.folder)
        self.after()


def _record(plan: str, error: MeshardError | None, file: DataFile | None) -> Record:
    told = None if error is None else f"{type(error).__name__}: {error}"
    if file is None:
        return [plan, told, None, None, None]
    return [plan, told, file.start, file.size, f"{file.header:016x}"]


def _check(records: Sequence[Record], plan: str) -> None:
    """Refuse to complete a checkpoint of which a part is missing or another one's.

    Raises:
        CheckpointError: if a process has failed, or has derived another plan.
    """
    for process, (other, told, *_) in enumerate(records):
        if told is not None:
            raise CheckpointError(f"The checkpoint was not saved: process {process} reports {told}")
        if other != plan:
            raise CheckpointError(
                f"The checkpoint was not saved: process {process} has another plan than process 0 "
                f"({other} and {plan}). Do all processes save the same tree?"
            )
