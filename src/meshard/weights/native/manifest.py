"""The manifest: what a checkpoint holds and how it is laid out in files, as one JSON text.

In: tensors with their layouts, and what is known about the data files. Out: a text, and the same
values read back. Where each element lies follows from the layouts by `native_pieces`, so the text
does not grow with the number of devices: tensors that differ only by the numbers in their names, as
those of many layers do, are one entry::

    {"names": "layers.{}.w", "each": [[0, 61]], "shape": [4, 4], "dtype": "float32", "sharding": 0}

Its last line holds a checksum of the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise, product
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import shown
from meshard.algebra.box import Box
from meshard.algebra.layout import balanced_cuts
from meshard.errors import CheckpointError, CorruptFileError, MeshardError
from meshard.plan.file.json_shardings import Shardings, read_shardings
from meshard.plan.file.json_values import as_list, as_mapping, as_number, as_numbers, as_text
from meshard.runtime.moving.place import checked_dtype
from meshard.runtime.types import KEY, dtype_name
from meshard.tuning import PIECE_BYTES
from meshard.weights.catalogue.safetensors_header import MOST_HEADER

VERSION = 1
NAME = "manifest.json"
_FORMAT = "meshard checkpoint"
_SHARED = 1 << 20
"""Bytes of a piece from which the processes that hold it each write a part."""
_NUMBER = re.compile("[0-9]+")
_DTYPE = re.compile("[a-z][a-z0-9_]{1,40}")
_NO_NUMBERS = re.compile("[{}]|(?<![0-9])0[0-9]|[0-9]{19}")
"""What a name has whose numbers could not be put back as they were."""


@final
@dataclass(frozen=True)
class Entry:
    """One tensor: its name, shape, dtype and how it is laid out."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Sharding

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@final
@dataclass(frozen=True)
class DataFile:
    """What is known about the file that one process has written.

    Attributes:
        process: the process.
        start: the byte at which the data begins.
        size: the bytes of the file.
        header: the checksum of what comes before the data.
    """

    process: int
    start: int
    size: int
    header: int


@final
@dataclass(frozen=True)
class Saver:
    """Who has saved a checkpoint: some processes of a job, which may have lost others before.

    Attributes:
        launch: how the job was started, the same for all attempts of it; empty if by no launcher.
        attempt: the number of the attempt.
        job: the name of the job.
        epoch: how often those who take part in it had changed.
        members: a checksum of who they were.
    """

    launch: str
    attempt: int
    job: str
    epoch: int
    members: str

    def is_outside_of(self, other: Saver) -> bool:
        """Whether others have gone on without these processes, and ``other`` is them."""
        if self.job != other.job:
            return (
                bool(self.launch) and self.launch == other.launch and self.attempt < other.attempt
            )
        return self.epoch < other.epoch or (
            self.epoch == other.epoch and self.members != other.members
        )


@final
@dataclass(frozen=True)
class Manifest:
    """A checkpoint without its data.

    Attributes:
        entries: the tensors, in the order in which each file holds its pieces of them.
        structure: the tree.
        tied: other names of tensors.
        folder: the folder of the data files.
        files: the data files.
        piece_bytes: the most bytes of a piece, which has a checksum of its own.
        saver: who has saved it, if that is known.
    """

    entries: tuple[Entry, ...]
    structure: Any = None
    tied: Mapping[str, str] = field(default_factory=dict)
    folder: str = "data"
    files: tuple[DataFile, ...] = ()
    piece_bytes: int = PIECE_BYTES
    saver: Saver | None = None

    def to_text(self) -> str:
        """Return the manifest as text."""
        shardings = Shardings()
        tensors = [_group_form(*group, shardings) for group in _groups(self.entries)]
        form = {
            "format": _FORMAT,
            "version": VERSION,
            "folder": self.folder,
            "piece_bytes": self.piece_bytes,
            "files": [[f.process, f.start, f.size, f"{f.header:016x}"] for f in self.files],
            "tree": self.structure,
            "tied": dict(self.tied),
            "meshes": shardings.meshes(),
            "shardings": shardings.shardings(),
            "tensors": tensors,
        }
        if (who := self.saver) is not None:
            form["saver"] = [who.launch, who.attempt, who.job, who.epoch, who.members]
        rows = [f"{json.dumps(key)}: {_text(value)}" for key, value in form.items()]
        text = "{\n" + ",\n".join(rows) + ",\n"
        return f'{text}"checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n'


def _text(value: object) -> str:
    """Return JSON with a line for each member of a long list."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))


Sizes = Callable[[str, Sequence[DataFile]], None]
"""Refuses data files that are not there, or have other sizes; it is given their folder."""


def read_manifest(text: str, path: str, sizes: Sizes | None = None) -> Manifest:
    """Return the manifest of a text.

    A short text can name more tensors and devices than fit into memory. So none is listed before it
    is known that the data files, whose headers name each box again, are long enough for them.

    Args:
        text: the text.
        path: the file's path, for messages.
        sizes: looks at the data files; None if there are none, and the text is trusted.

    Raises:
        CorruptFileError: if it is cut off, was changed, or is malformed.
        MissingFileError: if a data file is missing.
    """
    with _malformed(path):
        form = _form(text, path)
        folder = _folder(form)
        files = tuple([_file(row) for row in as_list(form["files"])])
    if sizes is not None:
        sizes(folder, files)
    room = None if sizes is None else _Room(len(text), files)
    with _malformed(path):
        shardings = read_shardings(form["meshes"], form["shardings"])
        piece_bytes = as_number(form["piece_bytes"])
        if piece_bytes < 1:
            raise ValueError(f"its pieces have {piece_bytes} bytes")
        groups = [_Group(given, shardings) for given in as_list(form["tensors"])]
        if room is not None:
            room.check(groups, piece_bytes)
        entries = [entry for group in groups for entry in group.entries()]
        if len({entry.name for entry in entries}) < len(entries):
            raise ValueError("two tensors have the same name")
        tied = {as_text(k): as_text(v) for k, v in as_mapping(form["tied"]).items()}
        saver = _saver(form["saver"]) if "saver" in form else None
        return Manifest(tuple(entries), form["tree"], tied, folder, files, piece_bytes, saver)


def read_folder(text: str, path: str) -> str:
    """Return the folder of the data files that a manifest names, and list nothing.

    Raises:
        CorruptFileError: if the text is cut off, was changed, or is malformed.
    """
    with _malformed(path):
        return _folder(_form(text, path))


def read_saver(text: str, path: str) -> Saver | None:
    """Return who has saved the checkpoint of a manifest, if it says so, and list nothing.

    Raises:
        CorruptFileError: if the text is cut off, was changed, or is malformed.
    """
    with _malformed(path):
        form = _form(text, path)
        return _saver(form["saver"]) if "saver" in form else None


def _form(text: str, path: str) -> Mapping[str, Any]:
    """Return the JSON of a text, which must have its checksum."""
    body, mark, rest = text.rpartition('"checksum": "')
    found = rest[:16]
    expected = xxhash.xxh3_64_hexdigest(body.encode("utf-8", "surrogatepass"))
    if not mark or rest != f'{found}"\n}}\n' or found != expected:
        raise CorruptFileError(
            f"{path}: the checkpoint's manifest is cut off or was changed: its checksum is "
            f"{expected}, but the file says {found!r}."
        )
    form = as_mapping(json.loads(text))
    if form["format"] != _FORMAT or form["version"] != VERSION:
        raise ValueError(f"it is a {shown(form['format'])} of version {shown(form['version'])}")
    return form


def _folder(form: Mapping[str, Any]) -> str:
    folder = as_text(form["folder"])
    if not re.fullmatch(r"[\w.-]{1,255}", folder) or folder.startswith("."):
        raise ValueError(f"its folder is {shown(folder)}")
    return folder


@contextmanager
def _malformed(path: str) -> Iterator[None]:
    """Raise whatever is found wrong with a text as an error that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except (
        *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
        *(MeshardError, RecursionError, MemoryError),
    ) as error:
        why = " ".join(str(error).split())[:300]
        raise CorruptFileError(f"{path}: the manifest is malformed: {why}") from error


def _saver(row: object) -> Saver:
    launch, attempt, job, epoch, members = as_list(row)
    return Saver(
        as_text(launch), as_number(attempt), as_text(job), as_number(epoch), as_text(members)
    )


def _file(row: object) -> DataFile:
    process, start, size, header = as_list(row)
    found = DataFile(
        as_number(process), as_number(start), as_number(size), int(as_text(header), 16)
    )
    if not (0 <= found.process < 1 << 31 and 0 <= found.start <= found.size < 1 << 63) or (
        found.start > 8 + MOST_HEADER
    ):
        raise ValueError(f"a data file is given as {shown(row)}")
    return found


# names


def grouped(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return tensors in the order of a manifest: those that differ by numbers side by side."""
    return tuple([e for _, rows in _groups(entries) for _, e in rows])


_Numbers = tuple[int, ...]


def _groups(entries: Sequence[Entry]) -> Iterator[tuple[str, list[tuple[_Numbers, Entry]]]]:
    """Yield names with their numbers left out, and for each the numbers and the tensors."""
    found: dict[tuple[str, object], list[tuple[_Numbers, Entry]]] = {}
    for e in entries:
        # What has no elements is listed by name: no file bounds how many there are.
        skeleton, numbers = (e.name, ()) if 0 in e.shape else _counted(e.name)
        key = skeleton, (e.shape, e.dtype.str, e.dtype, e.sharding)
        found.setdefault(key, []).append((numbers, e))
    for (skeleton, _), rows in found.items():
        yield skeleton, sorted(rows, key=lambda row: row[0])


def _counted(name: str) -> tuple[str, _Numbers]:
    """Return a name with its numbers left out, and the numbers."""
    if _NO_NUMBERS.search(name):
        return name, ()
    return _NUMBER.sub("{}", name), tuple(map(int, _NUMBER.findall(name)))


def _group_form(
    skeleton: str, rows: Sequence[tuple[_Numbers, Entry]], shardings: Shardings
) -> object:
    first = rows[0][1]
    form = {
        "shape": list(first.shape),
        "dtype": dtype_name(first.dtype),
        "sharding": shardings.number(first.sharding),
    }
    numbers = [row for row, _ in rows]
    if len(rows) == 1 or not numbers[0]:
        return {"name": first.name, **form}
    names = {"names": skeleton}
    columns = [sorted(set(column)) for column in zip(*numbers, strict=True)]
    full = math.prod(map(len, columns)) == len(numbers)
    if full and list(product(*columns)) == numbers:
        return {**names, "each": [_spans(column) for column in columns], **form}
    return {**names, "list": [list(n) for n in numbers], **form}


def _spans(numbers: Sequence[int]) -> list[int]:
    """Return ascending numbers as starts and stops of runs: 0, 1, 2, 5 as [0, 3, 5, 6]."""
    found: list[int] = []
    for n in numbers:
        if found and found[-1] == n:
            found[-1] = n + 1
        else:
            found += (n, n + 1)
    return found


@final
class _Group:
    """Tensors that differ by the numbers in their names, before they are listed.

    Attributes:
        count: how many there are.
        letters: the characters of all names.
        shape: the shape of each.
        dtype: the dtype of each.
        layout: how each is laid out.
    """

    def __init__(self, form: object, shardings: Sequence[Sharding]) -> None:
        given = as_mapping(form)
        self.shape, self.dtype = as_numbers(given["shape"]), _dtype(as_text(given["dtype"]))
        if len(self.shape) > _MOST_DIMS or not all(0 <= n < 1 << 63 for n in self.shape):
            raise ValueError(f"a shape is {shown(self.shape)}")
        self._sharding = shardings[as_number(given["sharding"])]
        self.layout = self._sharding.layout(self.shape)  # refused if it does not fit
        self._name_them(given)
        sizes = [sum(map(len, runs)) for runs in self._columns]
        self.count = len(self._rows) or math.prod(sizes)
        digits = sum([len(str(n)) for row in self._rows for n in row])
        for runs, size in zip(self._columns, sizes, strict=True):
            digits += sum(map(_digits, runs)) * (self.count // size)
        self.letters = self.count * sum(map(len, self._parts)) + digits

    def _name_them(self, given: Mapping[str, Any]) -> None:
        """Note the parts of the names between numbers, and the numbers: rows, or runs to combine.

        Raises:
            ValueError: if there are not as many numbers as places for them.
        """
        self._columns: list[list[range]] = []
        self._rows: list[_Numbers] = [()]
        if "name" in given:
            self._parts = [as_text(given["name"])]
        else:
            self._parts = as_text(given["names"]).split("{}")
            self._rows = [as_numbers(row) for row in as_list(given.get("list", []))]
            self._columns = [_runs(as_numbers(spans)) for spans in as_list(given.get("each", []))]
        wide = {len(row) for row in self._rows} or {len(self._columns)}
        if wide != {len(self._parts) - 1} or (self._rows and self._columns):
            raise ValueError(f"{shown('{}'.join(self._parts))} has {wide} numbers")

    @property
    def nbytes(self) -> int:
        """The bytes of the elements of one of them."""
        return math.prod(self.shape) * self.dtype.itemsize

    def entries(self) -> Iterator[Entry]:
        """Yield the tensors."""
        rows: Iterable[_Numbers] = self._rows or product(*[chain(*runs) for runs in self._columns])
        first, *others = self._parts
        for row in rows:
            name = first + "".join([f"{n}{part}" for n, part in zip(row, others, strict=True)])
            yield Entry(name, self.shape, self.dtype, self._sharding)


def _runs(spans: _Numbers) -> list[range]:
    """Return the runs of numbers that starts and stops say."""
    found = [range(a, b) for a, b in zip(spans[::2], spans[1::2], strict=True)]
    if not found or not all(0 <= run.start < run.stop < 1 << 63 for run in found):
        raise ValueError(f"runs of numbers are given as {shown(spans)}")
    return found


def _digits(run: range) -> int:
    """Return how many digits the numbers of a run have, those of ``range(9, 11)`` three."""
    return sum([max(0, run.stop - max(run.start, 10**d if d else 0)) for d in range(20)])


@final
class _Room:
    """What a manifest may name: as much as its data files, whose sizes are known, can hold.

    Args:
        text: the characters of the manifest.
        files: the data files.
    """

    def __init__(self, text: int, files: Sequence[DataFile]) -> None:
        self._heads = sum([file.start for file in files])
        self._data = sum([file.size - file.start for file in files])
        self._text = text

    def check(self, groups: Sequence[_Group], piece_bytes: int) -> None:
        """Refuse groups of tensors for which there is no room, before they are listed.

        The header of a data file names each box with elements, in some 50 bytes beside the name,
        and has 16 digits for each piece. The boxes of a layout, of which some may have no elements,
        are gone through once for tensors that are alike.
        """
        full = [group for group in groups if group.nbytes]
        empty = [group for group in groups if not group.nbytes]
        nbytes = sum([group.count * group.nbytes for group in full])
        self._compare("bytes of elements", nbytes, self._data, exact=True)
        letters = sum([group.letters + 40 * group.count for group in full])
        self._compare("bytes of names", letters, self._heads)
        bare = sum([group.letters + 40 * group.count for group in empty])
        self._compare("bytes of names without elements", bare, 40 * self._text + _FEW)
        pieces = sum([g.count * (g.nbytes // max(piece_bytes, g.dtype.itemsize)) for g in full])
        self._compare("pieces", pieces, self._heads // 16)
        boxes = sum([group.layout.piece_count for group in groups])
        self._compare("boxes of devices", boxes, self._heads + 40 * self._text + _FEW)

    def _compare(self, what: str, count: int, room: int, *, exact: bool = False) -> None:
        if count > room or (exact and count < room):
            raise ValueError(
                f"it names {min(count, 1 << 64):,} {what} or more, but its files, by their sizes, "
                f"hold {room:,}"
            )


_MOST_DIMS = 64
_FEW = 1 << 20


def _dtype(name: str) -> np.dtype[Any]:
    if name == dtype_name(KEY):
        return KEY
    found = checked_dtype(np.dtype(name), "a tensor") if _DTYPE.fullmatch(name) else None
    if found is None or dtype_name(found) != name:
        raise ValueError(f"a dtype is {shown(name)}")
    return found


# where elements lie


def native_pieces(entry: Entry, number: int) -> Iterator[tuple[Box, int]]:
    """Yield the boxes in which a tensor is stored, and the process that writes each.

    A box that several processes hold is written by one of them, or in equal parts by all.

    Args:
        entry: the tensor.
        number: its number.
    """
    for k, box, holders in _held_boxes(entry.sharding, entry.shape):
        for part, owners in _parts(box, holders, entry.dtype.itemsize):
            if part.volume:
                yield part, owners[(number + k) % len(owners)]


@lru_cache(maxsize=8)  # tensors that are alike follow each other
def _held_boxes(
    sharding: Sharding, shape: tuple[int, ...]
) -> tuple[tuple[int, Box, tuple[int, ...]], ...]:
    """Return disjoint boxes that are all of a tensor: number, box, and who holds each."""
    layout = sharding.layout(shape)
    processes = {d.id: d.process_index for d in sharding.device_order}
    if not layout.regular and not _are_disjoint(layout.boxes):
        holders = tuple(sorted({processes[i] for i in layout.device_ids}))
        return ((0, Box.whole(shape), holders),)
    return tuple(
        [
            (k, box, tuple(sorted({processes[i] for i in layout.holders(k)})))
            for k, box in enumerate(map(layout.box, range(layout.piece_count)))
            if box.volume
        ]
    )


def _parts(
    box: Box, holders: tuple[int, ...], itemsize: int
) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """Yield the parts of a box that are written by one process each, and which may write it."""
    if len(holders) == 1 or box.volume * itemsize < _SHARED:
        yield box, holders
        return
    dim = next(d for d, n in enumerate(box.shape) if n > 1)
    cuts = balanced_cuts(box.shape[dim], len(holders))
    for process, (a, b) in zip(holders, pairwise(cuts), strict=True):
        starts, stops = list(box.starts), list(box.stops)
        starts[dim], stops[dim] = box.starts[dim] + a, box.starts[dim] + b
        yield Box(tuple(starts), tuple(stops)), (process,)


def _are_disjoint(boxes: Sequence[Box]) -> bool:
    full = [b for b in boxes if b.volume]
    return not any(a.intersect(b).volume for k, a in enumerate(full) for b in full[k + 1 :])


def written_by(entries: Sequence[Entry]) -> dict[int, int]:
    """Return the bytes that each process writes.

    Tensors of one shape, dtype and layout are counted once: their numbers only decide who writes
    small replicas.

    Args:
        entries: the tensors, in the order of the manifest.
    """
    alike: dict[object, list[int]] = {}
    for number, entry in enumerate(entries):
        alike.setdefault((entry.shape, entry.dtype, entry.sharding), []).append(number)
    found: dict[int, int] = {}
    for numbers in alike.values():
        entry = entries[numbers[0]]
        for k, box, holders in _held_boxes(entry.sharding, entry.shape):
            for part, owners in _parts(box, holders, entry.dtype.itemsize):
                nbytes = part.volume * entry.dtype.itemsize
                if len(owners) == 1:
                    found[owners[0]] = found.get(owners[0], 0) + nbytes * len(numbers)
                    continue
                for number in numbers:
                    owner = owners[(number + k) % len(owners)]
                    found[owner] = found.get(owner, 0) + nbytes
    return found
