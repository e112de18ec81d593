"""Safetensors as a target: one file, several with an index, or one for each rank.

In: names, shapes and dtypes. Out: a writer whose pieces are byte ranges of the files. What is
written has a checksum of each piece, and of headers and index.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Protocol, final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import ArgumentError, CheckpointError
from meshard.tuning import PIECE_BYTES
from meshard.weights.catalogue.raw_writer import Contents, NewFile, Place, RawWriter
from meshard.weights.catalogue.safetensors_file import INDEX_SUFFIX, SUFFIX, index_sum
from meshard.weights.catalogue.safetensors_header import PARTS_KEY, SUMS_KEY, encoded, format_header
from meshard.weights.catalogue.stored import Piece, Stored, contiguous_boxes

SHARD_BYTES = 5_000_000_000
"""Bytes of one of several files, as the Hugging Face libraries choose it."""


class ShapeDtype(Protocol):
    """What has a shape and a dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length along each dim."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""


@final
@dataclass(frozen=True)
class WriteOptions:
    """How files are written.

    Attributes:
        metadata: texts to store besides the tensors; the Hugging Face libraries ask for the format.
        tied: further names of tensors, which are stored once.
        piece_bytes: bytes of a tensor that one process writes, and that have a checksum.
        overwrite: whether files that exist are replaced.
    """

    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    tied: Mapping[str, str] = field(default_factory=dict)
    piece_bytes: int = PIECE_BYTES
    overwrite: bool = False


def one_file(
    path: str, tensors: Mapping[str, ShapeDtype], options: WriteOptions | None = None
) -> RawWriter:
    """Return a writer of one safetensors file.

    Args:
        path: the file.
        tensors: the shape and dtype of each tensor, by name.
        options: how it is written.

    Raises:
        CheckpointError: if the format cannot hold a dtype or name.
    """
    folder, name = os.path.split(path)
    boxes = {name: [(t, Box.whole(x.shape)) for t, x in tensors.items()]}
    return _writer(folder, boxes, tensors, options or WriteOptions())


def several_files(
    folder: str,
    tensors: Mapping[str, ShapeDtype],
    options: WriteOptions | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
    stem: str = "model",
) -> RawWriter:
    """Return a writer of a folder of safetensors files with an index.

    Files that replace others get names of their own, so that the index, which is renamed last,
    refers to all of the old ones or to all of the new ones at any moment.

    Args:
        folder: the folder.
        tensors: the shape and dtype of each tensor, by name.
        options: how they are written.
        shard_bytes: bytes of tensors in one file at most; a larger tensor has a file of its own.
        stem: what the files' names begin with: ``model-00001-of-00003.safetensors``.

    Raises:
        CheckpointError: if the format cannot hold a dtype or name.
    """
    given = options or WriteOptions()
    replaced, generation = _generations(folder, stem) if given.overwrite else ((), "")
    groups: list[list[tuple[str, Box]]] = [[]]
    filled = 0
    for name, x in tensors.items():
        size = math.prod(x.shape) * x.dtype.itemsize
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append((name, Box.whole(x.shape)))
        filled += size
    start, end = stem + generation, f"of-{len(groups):05}{SUFFIX}"
    files = {f"{start}-{i:05}-{end}": group for i, group in enumerate(groups, 1)}
    return _writer(folder, files, tensors, given, (stem + INDEX_SUFFIX, replaced))


def _generations(folder: str, stem: str) -> tuple[tuple[str, ...], str]:
    """Return the files of a folder that an index of that stem replaces, and a mark for new ones."""
    form = re.compile(rf"{re.escape(stem)}(?:(\.\d+)?-\d{{5,}}-of-\d{{5,}})?{re.escape(SUFFIX)}")
    try:
        found = {name: m[1] or "" for name in os.listdir(folder) if (m := form.fullmatch(name))}
    except OSError:
        return (), ""  # there is no such folder, or what is wrong shows when it is written
    marks = set(found.values())
    return tuple(found), next(m for m in chain([""], map(".{}".format, count(2))) if m not in marks)


def rank_files(
    folder: str,
    tensors: Mapping[str, ShapeDtype],
    parts: Mapping[str, Sequence[Box]],
    options: WriteOptions | None = None,
    *,
    stem: str = "model",
) -> RawWriter:
    """Return a writer of one safetensors file for each rank, with the rank's shards.

    Args:
        folder: the folder; its files are ``model-rank-00000-of-00004.safetensors``.
        tensors: the shape and dtype of each whole tensor, by name.
        parts: the box of each rank, by name. Boxes are equal or disjoint, and hold the tensor.
        options: how they are written.
        stem: what the files' names begin with.

    Raises:
        ArgumentError: if boxes overlap partly, leave a gap, or differ in number.
        CheckpointError: if the format cannot hold a dtype or name.
    """
    counts = {name: len(boxes) for name, boxes in parts.items()}
    if set(counts) != set(tensors) or len(set(counts.values())) > 1:
        raise ArgumentError(
            f"rank_files: parts must have the boxes of all ranks for each tensor, got {counts}."
        )
    for name, boxes in parts.items():
        _check_parts(name, tensors[name].shape, list(dict.fromkeys(boxes)))
    ranks = next(iter(counts.values()), 1)
    files = {
        f"{stem}-rank-{r:05}-of-{ranks:05}{SUFFIX}": [(t, parts[t][r]) for t in tensors]
        for r in range(ranks)
    }
    return _writer(folder, files, tensors, options or WriteOptions())


def _check_parts(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Refuse distinct boxes that overlap, or do not hold all of a tensor."""
    whole = Box.whole(shape)
    for number, box in enumerate(boxes):
        outside = box.intersect(whole) != box
        other = next((b for b in boxes[:number] if b.intersect(box).volume), None)
        if outside or other is not None:
            how = f"overlaps {other}" if other is not None else f"is not within {whole}"
            raise ArgumentError(
                f"rank_files: tensor {name!r}: box {box} {how}; ranks have equal or disjoint boxes."
            )
    if sum([box.volume for box in boxes]) != whole.volume:
        raise ArgumentError(
            f"rank_files: tensor {name!r} of shape {shape}: its {len(boxes)} distinct boxes leave "
            "a gap."
        )


def _writer(
    folder: str,
    files: Mapping[str, Sequence[tuple[str, Box]]],
    tensors: Mapping[str, ShapeDtype],
    options: WriteOptions,
    index: tuple[str, tuple[str, ...]] = ("", ()),
) -> RawWriter:
    """Return a writer of files that hold boxes of tensors, with an index that replaces others."""
    _check_names(tensors, options)
    made: list[NewFile] = []
    pieces: dict[str, dict[Box, tuple[int, Piece]]] = {name: {} for name in tensors}
    copies: dict[tuple[str, int], list[Place]] = {}
    sums: dict[tuple[str, int], list[Place]] = {}
    for file, boxes in files.items():
        home = dict(boxes)
        tied = {alias: t for alias, t in options.tied.items() if t in home}
        head, entries, at = format_header(
            [(name, tensors[name].dtype, box.shape) for name, box in boxes],
            {**options.metadata, **tied, **_parts_told(boxes, tensors)},
            options.piece_bytes,
        )
        made.append(NewFile(file, len(head) + (entries[-1].end if entries else 0), head))
        for entry in entries:
            place = len(head) + entry.begin
            for box in _moved(home[entry.name], entry.dtype.itemsize, options.piece_bytes):
                known = pieces[entry.name]
                if box in known:
                    copies.setdefault((entry.name, known[box][0]), []).append((file, place))
                else:
                    known[box] = (len(known), Piece(box, file, place))
                sums.setdefault((entry.name, known[box][0]), []).append((file, at))
                place += box.volume * entry.dtype.itemsize
                at += 16
    stored = {
        name: Stored(name, x.shape, x.dtype, tuple([p for _, p in pieces[name].values()]))
        for name, x in tensors.items()
    }
    name, replaced = index
    if name:
        text = _index(files, sum([t.nbytes for t in stored.values()]))
        made.append(NewFile(name, len(text), text))
    contents = Contents(made, stored, copies, sums, replaced)
    return RawWriter(folder, contents, overwrite=options.overwrite)


def _parts_told(
    boxes: Sequence[tuple[str, Box]], tensors: Mapping[str, ShapeDtype]
) -> dict[str, str]:
    """Return the metadata that says which parts of tensors a file has."""
    told = {
        name: [list(tensors[name].shape), list(box.starts)]
        for name, box in boxes
        if box != Box.whole(tensors[name].shape)
    }
    return {PARTS_KEY: json.dumps(told, separators=(",", ":"))} if told else {}


def _moved(home: Box, itemsize: int, most: int) -> Iterator[Box]:
    """Yield the pieces of a shard, in the coordinates of the whole tensor."""
    for box in contiguous_boxes(home.shape, itemsize, most):
        yield Box(
            tuple([a + o for a, o in zip(box.starts, home.starts, strict=True)]),
            tuple([b + o for b, o in zip(box.stops, home.starts, strict=True)]),
        )


def _check_names(tensors: Mapping[str, ShapeDtype], options: WriteOptions) -> None:
    if options.piece_bytes < 1:
        raise ArgumentError(
            f"safetensors: piece_bytes must be at least 1, got {options.piece_bytes}."
        )
    for name in tensors:
        if name == "__metadata__":
            raise CheckpointError(
                "safetensors: a tensor cannot be named '__metadata__': the format uses that name."
            )
    for alias, name in options.tied.items():
        if name not in tensors or alias in tensors or alias in options.metadata:
            raise ArgumentError(
                f"safetensors: {alias!r} is tied to {name!r}: the second must be a tensor that is "
                "stored, and the first a name that is not used."
            )
    if SUMS_KEY in options.metadata:
        raise ArgumentError(f"safetensors: metadata cannot have the key {SUMS_KEY!r}.")


def _index(files: Mapping[str, Sequence[tuple[str, Box]]], size: int) -> bytes:
    """Return the text of an index, with its own checksum."""
    zeros = "0" * 16
    homes = sorted([(name, file) for file, boxes in files.items() for name, _ in boxes])
    form = {"metadata": {"total_size": size, SUMS_KEY: zeros}, "weight_map": dict(homes)}
    text = encoded(json.dumps(form, indent=2, ensure_ascii=False)) + b"\n"
    return text.replace(zeros.encode(), index_sum(text).encode(), 1)
