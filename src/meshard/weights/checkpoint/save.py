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
from collections.abc import Callable, Mapping, Sequence
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
from meshard.weights.catalogue.safetensors_writer import SHARD_BYTES
from meshard.weights.catalogue.stored import Writer
from meshard.weights.checkpoint.manifest import NAME, DataFile, Manifest, grouped
from meshard.weights.checkpoint.meeting import ByFiles, ByMessages, Meeting, Record
from meshard.weights.checkpoint.native import (
    NativeWriter,
    load_manifest,
    remove_folder,
    shards_of,
    write_manifest,
)
from meshard.weights.checkpoint.sources import Source, held_arrays, sources_of
from meshard.weights.checkpoint.steps import keep_newest, point_to, step_folder
from meshard.weights.checkpoint.structure import Named, named
from meshard.weights.checkpoint.targets import Limits, foreign_writer, format_of
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.transfer.exchange import Held
from meshard.weights.transfer.reading import SLAB
from meshard.weights.transfer.writing import Output, Writing, owners_of

_numbers = count()


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
) -> SaveHandle:
    """Save a tree of arrays.

    All processes of a job call this together, with the same tree. Each writes the boxes that it
    holds; of replicas one writes. A save that fails, or is killed, at any moment leaves what was
    there before.

    Args:
        path: the folder of the checkpoint, with ``step`` that of all steps; or a file or folder of
            another format.
        tree: a tree of arrays; numbers, strings, booleans and None are kept too. An array in two
            places, as tied weights are, is saved once, and stays one array when it is loaded.
        format: ``"meshard"``; ``"safetensors"``, one file or a folder with an index, as Hugging
            Face's libraries read it; ``"safetensors-ranks"``, a folder with a file for each device;
            ``"npy"``. None: by the path's suffix, and meshard's own without one.
        step: the number of the step, which is saved in a folder of its own.
        keep: how many of the newest steps are kept; None for all.
        overwrite: whether what is there is replaced.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.
        map: which tensors are made of which arrays of the tree; their names are the map's.
        shard_bytes: the most bytes of one of several safetensors files.
        max_bytes: the most bytes that a process holds besides the arrays; None for 4 MiB a thread.
        wait: whether to return only when the checkpoint is complete. Otherwise it is written behind
            the program, which may go on, delete and donate the arrays.

    Returns:
        The handle of the save: `SaveHandle.wait` raises its error.

    Raises:
        FileInUseError: if there is a checkpoint and ``overwrite`` is False, or something else.
        StorageError: if the disk is full or the folder may not be written.
        CheckpointError: if another process has failed, or a leaf cannot be saved in the format.
        KeyMapError: if the map does not fit the tree.
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
    kind = format_of(root, format, what)
    world, found = here(), named(tree, what)
    _wait_for(root)
    if world.process_count > 1:
        meet(world, range(world.process_count), f"`{what}` to {root}")
    held, shardings = held_arrays(world, found, what, copied=not wait)
    sources, found = sources_of(world, found, shardings, dtype, map, what)
    request = _Request(world, root, found, held, sources, overwrite, after)
    slab = SLAB if window is None else max(1, window // (4 * world.workers.threads))
    if kind == "meshard":
        job = request.native(slab, wait=wait)
    else:
        if not wait and world.process_count > 1:
            raise ArgumentError(
                f"{what}: several processes write {kind} together; wait=False is for meshard's own "
                "format, where each writes a file of its own."
            )
        entries = {s.entry.name: s.entry for s in sources}
        limits = Limits(overwrite, shard_bytes)
        job = request.foreign(foreign_writer(root, kind, entries, found, limits), slab)
    handle = SaveHandle(root)
    if wait:
        job.start()
        job.run()
    else:
        handle._start(job.run_alone)
    return handle


@final
@dataclass(frozen=True)
class _Request:
    """What is to be saved, and where."""

    world: RuntimeWorld
    root: Path
    tree: Named
    held: Mapping[str, Held]
    sources: Sequence[Source]
    overwrite: bool
    after: Callable[[], None]

    def native(self, slab: int, *, wait: bool) -> _Job:
        """Return the save of a checkpoint in meshard's own format."""
        world, root = self.world, self.root
        _check_target(root, overwrite=self.overwrite)
        recipes = {s.entry.name: s.recipe for s in self.sources}
        entries = grouped([s.entry for s in self.sources])
        number = next(_numbers) if world.process_count == 1 else _numbered(world)
        folder = f"data-{world.job}-{number}"
        manifest = Manifest(entries, self.tree.structure, self.tree.tied, folder)
        index, count = world.process_index, world.process_count
        writer = NativeWriter(root, folder, index, shards_of(entries), manifest.piece_bytes)
        outputs = [
            Output(stored, recipes[name], self.held, tuple(writer.pieces[name][1]))
            for name, stored in writer.tensors.items()
        ]
        writing = Writing(world, writer, outputs, slab)
        if not wait and writing.communicates:
            raise ArgumentError(
                "checkpoint.save: some boxes are held by no process that writes them, so that "
                "elements must move: save with wait=True."
            )
        by_files = ByFiles(root / folder, index, count, lambda: _is_complete(root, folder))

        def commit(records: Sequence[Record]) -> None:
            _complete(root, manifest, records)
            self.after()

        return _Job(
            writing,
            writer,
            ByMessages(world) if wait else by_files,
            manifest.to_text(),
            commit,
            owner=True,
        )

    def foreign(self, writer: Writer, slab: int) -> _Job:
        """Return the save of files in another format, which all processes write together."""
        world, load = self.world, [0] * self.world.process_count
        recipes = {s.entry.name: s.recipe for s in self.sources}
        outputs = []
        for name, stored in writer.tensors.items():
            # A file of one array names it after itself.
            recipe = recipes[name] if name in recipes else next(iter(recipes.values()))
            owners = owners_of(world.process_count, stored, recipe, self.held, load)
            outputs.append(Output(stored, recipe, self.held, owners))

        def commit(records: Sequence[Record]) -> None:
            writer.commit()
            self.after()

        return _Job(
            Writing(world, writer, outputs, slab),
            writer,
            ByMessages(world),
            repr([(o.stored.name, o.stored.shape, o.stored.dtype, o.owners) for o in outputs]),
            commit,
            owner=world.process_index == 0,
        )


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
    """One save: all that its steps need.

    Attributes:
        writing: what this process writes.
        writer: the files.
        meeting: how it learns about the other processes.
        plan: a text of what is written, the same on all processes.
        commit: what the first process does once all have written.
        owner: whether this process makes files.
    """

    writing: Writing
    writer: Writer
    meeting: Meeting
    plan: str
    commit: Callable[[Sequence[Record]], None]
    owner: bool

    def start(self) -> None:
        """Make the files, and write what other processes hold, together with them."""
        error: MeshardError | None = None
        try:
            if self.owner:
                self.writer.begin()
        except MeshardError as failed:
            error = failed
        try:
            self._agreed(error, lambda _: None)
            self.writing.write_far()
        except BaseException:
            self.writer.abandon()
            raise

    def run(self) -> None:
        """Write what is here, agree with the others, and make the checkpoint complete."""
        self._run(self.writing.write_near)

    def run_alone(self) -> None:
        """Do all in this thread: make the file too, since all that it will hold is here."""

        def work() -> None:
            self.writer.begin()
            self.writing.write_alone()

        self._run(work)

    def _run(self, work: Callable[[], None]) -> None:
        error: MeshardError | None = None
        try:
            try:
                work()
                self.writer.sync(self.writing.sums)
            except MeshardError as failed:
                error = failed
            self._agreed(error, self.commit)
        except BaseException:
            self.writer.abandon()
            raise

    def _agreed(self, error: MeshardError | None, act: Callable[[Sequence[Record]], None]) -> None:
        """Let the first process act if nobody has failed.

        Raises:
            MeshardError: if somebody has: on all processes.
        """
        plan = xxhash.xxh3_64_hexdigest(self.plan.encode())
        file = self.writer.record if isinstance(self.writer, NativeWriter) else None
        outcome: str | None = None
        try:
            records = self.meeting.gather(_record(plan, error, file))
            if records is not None:
                _check(records, plan)
                act(records)
        except MeshardError as failed:
            error, outcome = error or failed, str(failed)
        told = self.meeting.announce(outcome)
        if told is not None:
            raise error or CheckpointError(told)


def _complete(root: Path, manifest: Manifest, records: Sequence[Record]) -> None:
    """Write the manifest, and remove the data of the checkpoint that it replaces."""
    files = tuple(
        [
            DataFile(process, start, size, int(header, 16))
            for process, (_, _, start, size, header) in enumerate(records)
            if isinstance(start, int) and isinstance(size, int) and isinstance(header, str)
        ]
    )
    before = None
    with contextlib.suppress(MeshardError):
        before = load_manifest(root)
    write_manifest(root, replace(manifest, files=files))
    if before is not None and before.folder != manifest.folder:
        remove_folder(root / before.folder)


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
