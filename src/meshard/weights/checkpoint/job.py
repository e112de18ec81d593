"""One save: from tensors and where they are to complete files.

In: tensors with recipes, their sources, and a target. Out: files that all processes have written,
complete or not there at all.

Targets: the writer of the files that a save is to make, by format.

In: a path, a format, and the tensors to be written. Out: a writer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import final

import xxhash

from meshard.algebra.arguments import choice_of
from meshard.algebra.box import Box
from meshard.errors import (
    ArgumentError,
    CheckpointError,
    FileInUseError,
    MeshardError,
    MissingFileError,
    StorageError,
)
from meshard.runtime.processes.identity import job_name, launcher
from meshard.runtime.world import RuntimeWorld
from meshard.weights.catalogue.npy import npy_file
from meshard.weights.catalogue.safetensors_writer import (
    WriteOptions,
    one_file,
    rank_files,
    several_files,
)
from meshard.weights.catalogue.stored import Writer
from meshard.weights.catalogue.zarr_store import zarr_store
from meshard.weights.checkpoint.sources import Source, storable
from meshard.weights.dcp.target import DcpWriter
from meshard.weights.native.files import (
    NativeWriter,
    data_folder,
    last_saved,
    remove_folder,
    saver_of,
    shards_of,
    write_manifest,
)
from meshard.weights.native.manifest import (
    NAME,
    DataFile,
    Entry,
    Manifest,
    Saver,
    grouped,
    native_pieces,
)
from meshard.weights.native.meeting import ByFiles, ByMessages, Meeting, Record
from meshard.weights.native.structure import Named, leaf_paths, leaf_values
from meshard.weights.transfer.exchange import Held
from meshard.weights.transfer.gather import Gatherer
from meshard.weights.transfer.writing import Output, Writing, with_owners

FORMATS = ("meshard", "safetensors", "safetensors-ranks", "npy", "zarr", "dcp")
_BY_SUFFIX = {".safetensors": "safetensors", ".npy": "npy", ".zarr": "zarr"}
_OTHERS = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), "HDF5"),
    **dict.fromkeys((".pt", ".pth", ".bin"), "torch.save's format, a pickle"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle"),
    ".npz": "NumPy's archives",
    ".gguf": "GGUF",
    ".onnx": "ONNX",
    ".msgpack": "MessagePack",
}
"""Suffixes of files that other programs write and meshard does not."""


def format_of(path: Path, given: str | None, what: str) -> str:
    """Return the format that is meant: the one given, or that of the path's suffix.

    Raises:
        ArgumentError: if there is no such format, or the suffix is that of files which meshard
            does not write: a folder of that name would not be what was asked for.
    """
    other = _OTHERS.get(path.suffix.lower()) if given is None else None
    if other is not None:
        raise ArgumentError(
            f"{what}: {path.name!r:.80} has the suffix of {other}, which meshard does not write. "
            f"It writes {', '.join(FORMATS)}: by the suffix {', '.join(_BY_SUFFIX)}, or by "
            'format=; format="meshard" makes a folder of any name.'
        )
    if given is None:
        return _BY_SUFFIX.get(path.suffix, "meshard")
    return choice_of(given, FORMATS, what, "format")


@final
@dataclass(frozen=True)
class Limits:
    """How files are written.

    Attributes:
        overwrite: whether files that exist are replaced.
        shard_bytes: the most bytes of one of several files.
    """

    overwrite: bool
    shard_bytes: int


def foreign_writer(
    path: Path,
    format_: str,
    entries: Mapping[str, Entry],
    tree: Named,
    limits: Limits,
) -> Writer:
    """Return the writer of another format than meshard's own.

    Args:
        path: the file or folder.
        format_: the format.
        entries: the tensors, and how they are laid out.
        tree: the tree that they are of.
        limits: how they are written.

    Raises:
        CheckpointError: if the format cannot hold the tree.
        FileInUseError: if the target exists and must not be replaced.
    """
    values = leaf_values(tree.structure)
    if values:
        name, value = next(iter(values.items()))
        raise CheckpointError(
            f"{path}: {format_} holds arrays only, but {name!r} of the tree is {value!r}. Save a "
            "meshard checkpoint, or leave it out."
        )
    options = WriteOptions(tied=tree.tied, overwrite=limits.overwrite)
    if format_ == "npy":
        if len(entries) != 1 or tree.tied:
            raise CheckpointError(
                f"{path}: a .npy file holds one array, and the tree has "
                f"{len(entries) + len(tree.tied)}."
            )
        (entry,) = entries.values()
        return npy_file(str(path), entry, WriteOptions(metadata={}, overwrite=limits.overwrite))
    if format_ == "dcp":
        _check_folder(path, overwrite=limits.overwrite)
        boxes = {e.name: list(native_pieces(e, k)) for k, e in enumerate(entries.values())}
        return DcpWriter(str(path), entries, boxes, leaf_paths(tree.structure), options)
    if format_ == "zarr":
        return zarr_store(str(path), entries, options)
    if format_ == "safetensors-ranks":
        _check_folder(path, overwrite=limits.overwrite)
        return rank_files(str(path), entries, _ranks(entries.values()), options)
    if path.suffix == ".safetensors":
        return one_file(str(path), entries, options)
    _check_folder(path, overwrite=limits.overwrite)
    return several_files(str(path), entries, options, shard_bytes=limits.shard_bytes)


def _check_folder(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something that would not be replaced.

    Raises:
        FileInUseError: if it does.
    """
    try:  # in one step, since another process may be making it
        names = sorted([p.name for p in path.iterdir() if not p.name.startswith(".")])
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise FileInUseError(f"{path} is a file; several files need a folder.") from None
    if names and not overwrite:
        raise FileInUseError(
            f"{path} holds {names[0]!r}. Give a new folder, or overwrite=True to replace it."
        )


def _ranks(entries: Iterable[Entry]) -> dict[str, list[Box]]:
    """Return the box of each device for each tensor: device by device in the shardings' order.

    Raises:
        ArgumentError: if the tensors are on different numbers of devices.
    """
    found: dict[str, list[Box]] = {}
    for entry in entries:
        layout = entry.sharding.layout(entry.shape)
        ids = [d.id for d in entry.sharding.device_order]
        found[entry.name] = [layout.box(layout.piece_of[i]) for i in ids]
    counts = {len(boxes): name for name, boxes in found.items()}
    if len(counts) > 1:
        (a, first), (b, second), *_ = counts.items()
        raise ArgumentError(
            f"safetensors-ranks writes a file for each device, but {first!r} is on {a} and "
            f"{second!r} on {b} devices. Reshard them to one mesh first."
        )
    return found


_numbers = count()
Told = Callable[[int], None] | None


@final
@dataclass(frozen=True)
class Request:
    """What is to be written, and where.

    Attributes:
        world: this process's world.
        root: the file or folder.
        tree: the tree that the tensors are.
        held: where the recipes' sources are in memory.
        sources: the tensors.
        limits: how files are written.
        after: what the first process does once the files are complete.
        files: what reads the recipes' sources, if they are in files.
    """

    world: RuntimeWorld
    root: Path
    tree: Named
    held: Mapping[str, Held]
    sources: Sequence[Source]
    limits: Limits
    after: Callable[[], None] = lambda: None
    files: Gatherer | None = None

    def job(
        self,
        format_: str,
        slab: int,
        *,
        wait: bool = True,
        told: Told = None,
    ) -> Job:
        """Return what writes the files.

        Args:
            format_: their format.
            slab: the most bytes that are brought to a writer at a time.
            wait: whether the program waits until they are complete.
            told: called with the bytes that have been written here since the last call.

        Raises:
            ArgumentError: if several processes write together, and the program does not wait.
            CheckpointError: if the format cannot hold the tensors.
            FileInUseError: if the target must not be replaced.
        """
        if format_ == "meshard":
            return self._native(slab, told, wait=wait)
        if not wait and self.world.process_count > 1:
            raise ArgumentError(
                f"checkpoint.save: several processes write {format_} together; wait=False is for "
                "meshard's own format, where each writes a file of its own."
            )
        entries = {s.entry.name: s.entry for s in self.sources}
        writer = foreign_writer(self.root, format_, entries, self.tree, self.limits)
        return self._foreign(writer, slab, told)

    def _native(self, slab: int, told: Told, *, wait: bool) -> Job:
        """Return the save of a checkpoint in meshard's own format."""
        world, root = self.world, self.root
        _check_target(root, overwrite=self.limits.overwrite)
        recipes = {s.entry.name: s.recipe for s in self.sources}
        entries = grouped(
            [
                replace(e, sharding=storable(e.sharding, e.shape))
                for e in (s.entry for s in self.sources)
            ]
        )
        number = next(_numbers) if world.process_count == 1 else _numbered(world)
        folder = f"data-{world.job}-{number}"
        manifest = Manifest(entries, self.tree.structure, self.tree.tied, folder)
        index, count = world.process_index, world.process_count
        shards = shards_of(entries)
        if max(shards, default=0) >= count:
            raise ArgumentError(
                f"{root}: the tensors are laid out on devices of process {max(shards)} too, but "
                f"there are {count} processes, of which each writes what is on its devices. Lay "
                "them out on devices that these processes have."
            )
        writer = NativeWriter(root, folder, index, shards, manifest.piece_bytes)
        outputs = [
            Output(stored, recipes[name], self.held, tuple(writer.pieces[name][1]), self.files)
            for name, stored in writer.tensors.items()
        ]
        writing = Writing(world, writer, outputs, slab, told)
        if not wait and writing.communicates:
            raise ArgumentError(
                "checkpoint.save: some boxes are held by no process that writes them, so that "
                "elements must move: save with wait=True."
            )
        watchdog = world.transport.watchdog
        by_files = ByFiles(
            root / folder,
            index,
            world.processes,
            lambda: _is_complete(root, folder),
            (lambda peers: {}) if watchdog is None else watchdog.lost_of,
        )

        def commit(records: Sequence[Record]) -> None:
            told = dict(zip(world.processes, records, strict=True))
            _complete(root, replace(manifest, saver=_saver(world)), told)
            self.after()

        return Job(
            writing,
            writer,
            ByMessages(world) if wait else by_files,
            manifest.to_text(),
            commit,
            owner=True,
        )

    def _foreign(self, writer: Writer, slab: int, told: Told) -> Job:
        """Return the save of files in another format, which all processes write together."""
        world, load = self.world, dict.fromkeys(self.world.processes, 0)
        recipes = {s.entry.name: s.recipe for s in self.sources}
        outputs = []
        for name, stored in writer.tensors.items():
            # A file of one array names it after itself.
            recipe = recipes[name] if name in recipes else next(iter(recipes.values()))
            plain = Output(stored, recipe, self.held, (), self.files)
            if isinstance(writer, DcpWriter):  # a file for each process, which writes it
                outputs.append(
                    replace(plain, owners=tuple(map(self._nearest, writer.owners[name])))
                )
            else:
                outputs.append(with_owners(plain, load))

        def commit(records: Sequence[Record]) -> None:
            writer.commit()
            self.after()

        return Job(
            Writing(world, writer, outputs, slab, told),
            writer,
            ByMessages(world),
            repr([(o.stored.name, o.stored.shape, o.stored.dtype, o.owners) for o in outputs]),
            commit,
            owner=world.process_index == world.first,
        )

    def _nearest(self, process: int) -> int:
        """Return who writes a process's file: itself, or one that exists if it does not."""
        processes = self.world.processes
        return process if process in processes else processes[process % len(processes)]


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
        return data_folder(root) == folder
    except MissingFileError:
        return False


@final
@dataclass(frozen=True)
class Job:
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

    def run_alone(self, pause: Callable[[float], object]) -> None:
        """Do all in this thread: make the file too, since all that it will hold is here.

        Args:
            pause: called after each piece with the seconds of a core that it took.
        """

        def work() -> None:
            self.writer.begin()
            self.writing.write_alone(pause)

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


def _complete(root: Path, manifest: Manifest, records: Mapping[int, Record]) -> None:
    """Write the manifest, and remove the data of the checkpoint that it replaces."""
    files = tuple(
        [
            DataFile(process, start, size, int(header, 16))
            for process, (_, _, start, size, header) in records.items()
            if isinstance(start, int) and isinstance(size, int) and isinstance(header, str)
        ]
    )
    before = None
    with contextlib.suppress(MeshardError):
        before = data_folder(root)
    write_manifest(root, replace(manifest, files=files), lambda: _check_saver(root, manifest.saver))
    if before is not None and before != manifest.folder:
        remove_folder(root / before)


def _saver_of(root: Path) -> Saver | None:
    """Return who has saved a checkpoint; None if there is none that says it."""
    with contextlib.suppress(MeshardError):
        return saver_of(root)
    return None


def _saver(world: RuntimeWorld) -> Saver:
    """Return who saves: the processes that take part, as far as this one knows."""
    started, members = launcher(), ",".join(map(str, world.processes))
    number = os.environ.get("MESHARD_RESTART", "")
    return Saver(
        job_name(started) if started[0] else "",
        int(number) if number.isdecimal() else 0,
        world.job,
        world.membership,
        xxhash.xxh3_64_hexdigest(members.encode()),
    )


def _check_saver(root: Path, saver: Saver | None) -> None:
    """Refuse to complete a checkpoint of processes that the others of their job have given up.

    Raises:
        CheckpointError: if the others have saved since, to the same folder or as another step.
    """
    for folder in (root, last_saved(root)):
        other = None if folder is None else _saver_of(folder)
        if saver and other and saver.is_outside_of(other):
            raise CheckpointError(
                f"The checkpoint {root} was not saved: this process takes part in its job no more. "
                f"{folder} was saved by others of the job, which have gone on without it (in "
                f"attempt {other.attempt}, after those who take part had changed "
                f"{other.epoch} times; here: attempt {saver.attempt}, {saver.epoch} times). "
                "Start it anew to join again."
            )


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
