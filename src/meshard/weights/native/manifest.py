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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.layout import balanced_cuts
from meshard.errors import CorruptFileError, MeshardError
from meshard.plan.file.json_shardings import Shardings, read_shardings
from meshard.plan.file.json_values import as_list, as_mapping, as_number, as_numbers, as_text
from meshard.runtime.types import KEY, dtype_name
from meshard.tuning import PIECE_BYTES

VERSION = 1
NAME = "manifest.json"
_FORMAT = "meshard checkpoint"
_SHARED = 1 << 20
"""Bytes of a piece from which the processes that hold it each write a part."""
_NUMBER = re.compile("[0-9]+")
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


def read_manifest(text: str, path: str) -> Manifest:
    """Return the manifest of a text.

    Args:
        text: the text.
        path: the file's path, for messages.

    Raises:
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    body, mark, rest = text.rpartition('"checksum": "')
    found = rest[:16]
    expected = xxhash.xxh3_64_hexdigest(body.encode("utf-8", "surrogatepass"))
    if not mark or rest != f'{found}"\n}}\n' or found != expected:
        raise CorruptFileError(
            f"{path}: the checkpoint's manifest is cut off or was changed: its checksum is "
            f"{expected}, but the file says {found!r}."
        )
    try:
        form = as_mapping(json.loads(text))
        if form["format"] != _FORMAT or form["version"] != VERSION:
            raise ValueError(f"it is a {form['format']!r} of version {form['version']!r}")
        shardings = read_shardings(form["meshes"], form["shardings"])
        entries = [e for group in as_list(form["tensors"]) for e in _entries(group, shardings)]
        files = tuple([_file(row) for row in as_list(form["files"])])
        tied = {as_text(k): as_text(v) for k, v in as_mapping(form["tied"]).items()}
        folder = as_text(form["folder"])
        if not re.fullmatch(r"[\w.-]+", folder) or folder.startswith("."):
            raise ValueError(f"its folder is {folder!r}")
        piece_bytes = as_number(form["piece_bytes"])
        if piece_bytes < 1:
            raise ValueError(f"its pieces have {piece_bytes} bytes")
        saver = _saver(form["saver"]) if "saver" in form else None
        return Manifest(tuple(entries), form["tree"], tied, folder, files, piece_bytes, saver)
    except (ValueError, TypeError, KeyError, IndexError, MeshardError, RecursionError) as error:
        raise CorruptFileError(f"{path}: the manifest is malformed: {error}") from error


def _saver(row: object) -> Saver:
    launch, attempt, job, epoch, members = as_list(row)
    return Saver(
        as_text(launch), as_number(attempt), as_text(job), as_number(epoch), as_text(members)
    )


def _file(row: object) -> DataFile:
    process, start, size, header = as_list(row)
    return DataFile(as_number(process), as_number(start), as_number(size), int(as_text(header), 16))


# names


def grouped(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return tensors in the order of a manifest: those that differ by numbers side by side."""
    return tuple([e for _, rows in _groups(entries) for _, e in rows])


_Numbers = tuple[int, ...]


def _groups(entries: Sequence[Entry]) -> Iterator[tuple[str, list[tuple[_Numbers, Entry]]]]:
    """Yield names with their numbers left out, and for each the numbers and the tensors."""
    found: dict[tuple[str, object], list[tuple[_Numbers, Entry]]] = {}
    for e in entries:
        skeleton, numbers = _counted(e.name)
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
    if list(product(*columns)) == numbers:
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


def _entries(form: object, shardings: Sequence[Sharding]) -> Iterator[Entry]:
    given = as_mapping(form)
    shape, dtype = as_numbers(given["shape"]), _dtype(as_text(given["dtype"]))
    if min(shape, default=0) < 0:
        raise ValueError(f"a shape is {shape}")
    sharding = shardings[as_number(given["sharding"])]
    sharding.layout(shape)  # refused if it does not fit
    for name in _names(given):
        yield Entry(name, shape, dtype, sharding)


_MOST_NAMES = 1 << 24


def _names(given: Mapping[str, Any]) -> Iterator[str]:
    if "name" in given:
        yield as_text(given["name"])
        return
    skeleton = as_text(given["names"])
    if "list" in given:
        rows = [as_numbers(row) for row in as_list(given["list"])]
    else:
        columns = [as_numbers(spans) for spans in as_list(given["each"])]
        pairs = [list(zip(c[::2], c[1::2], strict=True)) for c in columns]
        if math.prod([sum([b - a for a, b in spans]) for spans in pairs]) > _MOST_NAMES:
            raise ValueError(f"{skeleton!r} stands for too many names")
        rows = list(product(*[[n for a, b in spans for n in range(a, b)] for spans in pairs]))
    if skeleton.count("{}") != len(rows[0]):
        raise ValueError(f"{skeleton!r} has not {len(rows[0])} numbers")
    for row in rows:
        yield skeleton.format(*row)


def _dtype(name: str) -> np.dtype[Any]:
    if name == dtype_name(KEY):
        return KEY
    found = np.dtype(name)
    if found.hasobject or (found.kind in "OSUVmM" and name.startswith(("object", "str", "bytes"))):
        raise ValueError(f"a dtype is {name!r}")
    return found


# where elements lie


def native_pieces(entry: Entry, number: int) -> Iterator[tuple[Box, int]]:
    """Yield the boxes in which a tensor is stored, and the process that writes each.

    A box that several processes hold is written by one of them, or in equal parts by all.

    Args:
        entry: the tensor.
        number: its number.
    """
    for k, (box, holders) in enumerate(_held_boxes(entry)):
        for part, owners in _parts(box, holders, entry.dtype.itemsize):
            if part.volume:
                yield part, owners[(number + k) % len(owners)]


def _held_boxes(entry: Entry) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """Yield disjoint boxes that are all of a tensor, and the processes that hold each."""
    layout = entry.sharding.layout(entry.shape)
    processes = {d.id: d.process_index for d in entry.sharding.device_order}
    if layout.regular or _are_disjoint(layout.boxes):
        for k in range(layout.piece_count):
            yield layout.box(k), tuple(sorted({processes[i] for i in layout.holders(k)}))
    else:
        yield Box.whole(entry.shape), tuple(sorted({processes[i] for i in layout.device_ids}))


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
        for k, (box, holders) in enumerate(_held_boxes(entry)):
            for part, owners in _parts(box, holders, entry.dtype.itemsize):
                nbytes = part.volume * entry.dtype.itemsize
                if len(owners) == 1:
                    found[owners[0]] = found.get(owners[0], 0) + nbytes * len(numbers)
                    continue
                for number in numbers:
                    owner = owners[(number + k) % len(owners)]
                    found[owner] = found.get(owner, 0) + nbytes
    return found
