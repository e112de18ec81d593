"""`meshard reshard`: files in, the same tensors in another layout or format out.

In: a source, a target, and how tensors are to be laid out, named and cast. Out: the target, or with
a dry run what it would take. All processes of a job run it; process 0 prints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

import meshard
from meshard import checkpoint
from meshard.algebra.sharding import NamedSharding
from meshard.cli.errors import CommandError
from meshard.cli.output import print_json, print_table, print_text, warn
from meshard.cli.written.notation import WrittenMesh
from meshard.cli.written.tensors import Rule, Tensor, selected, shardings
from meshard.errors import KeyMapError, visible
from meshard.mpi.launch import job_size
from meshard.plan.captions import bytes_text, count_text, time_text
from meshard.weights.checkpoint.job import format_of
from meshard.weights.checkpoint.opening import Metadata
from meshard.weights.maps.fields import exactly
from meshard.weights.maps.keymap import KeyMap, Mapped


@final
@dataclass(frozen=True)
class Wish:
    """What is to be converted, and how.

    Attributes:
        source: a file or folder.
        target: the file or folder to be made.
        step: the step of a run; None for the newest.
        format: the target's format; None for that of its suffix.
        rules: how tensors are laid out; none for rows over all devices.
        mesh: the mesh of the rules, whose devices need not exist.
        uneven: whether blocks may differ by one.
        select: patterns of the names to keep; none for all.
        map: a file with a key map.
        overwrite: whether a target that exists is replaced.
        more: what `checkpoint.convert` takes besides.
    """

    source: Path
    target: Path
    step: int | None
    format: str | None
    rules: Sequence[Rule]
    mesh: WrittenMesh | None
    uneven: bool
    select: Sequence[str]
    map: Path | None
    overwrite: bool
    more: Mapping[str, Any]

    @cached_property
    def kind(self) -> str:
        """The target's format."""
        return format_of(self.target, self.format, "reshard")

    @cached_property
    def found(self) -> Metadata:
        """What the source holds."""
        return checkpoint.metadata(self.source, step=self.step)

    @cached_property
    def left_out(self) -> list[str]:
        """The values of the source that the target cannot hold."""
        return [] if self.kind == "meshard" else list(self.found.values)

    @cached_property
    def key_map(self) -> KeyMap | None:
        """The key map of the file, then the choice of names; None if all stays as it is."""
        map_ = self._read_map()
        if map_ is None and (self.select or self.left_out):
            map_ = KeyMap(rest="keep")
        if map_ is None or not self.select:
            return map_
        made = map_.apply(self.found.tensors, tied=self.found.tied)
        choice = KeyMap(rest="drop")
        for name in selected([*made.recipes, *made.tied], self.select):
            choice = choice.keep(exactly(name))
        return map_.then(choice)

    def _read_map(self) -> KeyMap | None:
        if self.map is None:
            return None
        try:
            return KeyMap.from_toml(self.map.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{self.map} cannot be read: {error}") from error
        except KeyMapError as error:
            raise CommandError(f"{self.map}: {error}") from error

    @cached_property
    def mapped(self) -> Mapped:
        """How each tensor is made."""
        map_ = self.key_map or KeyMap(rest="keep")
        return map_.apply(self.found.tensors, tied=self.found.tied)

    def shardings(self) -> Mapping[str, NamedSharding] | None:
        """Return how each tensor is laid out; None for rows over all devices."""
        if self.mesh is None:
            return None
        each = -(-self.mesh.count // (job_size() or 1))
        tensors = {n: Tensor(r.shape, r.dtype) for n, r in self.mapped.recipes.items()}
        mesh = self.mesh.on(devices_per_process=each)
        return shardings(tensors, self.rules, mesh, "--to", uneven=self.uneven)


def reshard(wish: Wish, *, dry_run: bool, as_json: bool) -> None:
    """Convert files, or say what it would take.

    Args:
        wish: what is to be converted.
        dry_run: whether to print what it would take instead.
        as_json: whether to print JSON.

    Raises:
        CommandError: if the target exists, or the options do not fit each other.
        MeshardError: what `checkpoint.convert` raises.
    """
    _check_target(wish)
    laid_out = wish.shardings()
    start = time.perf_counter()
    done = checkpoint.convert(
        wish.source,
        wish.target,
        None if laid_out is None else lambda name, struct: laid_out[name],
        format=wish.kind,
        step=wish.step,
        map=wish.key_map,
        overwrite=wish.overwrite,
        dry_run=dry_run,
        progress=None,
        **wish.more,
    )
    seconds = None if dry_run else time.perf_counter() - start
    if meshard.process_index() != 0:
        return
    if as_json:
        figures = ("source", "target", "tensors", "bytes_read", "bytes_written", "peak_bytes")
        facts = {name: getattr(done, name) for name in figures}
        print_json(facts | {"format": wish.kind, "seconds": seconds})
        return
    if dry_run and wish.key_map is not None:
        print_table(wish.mapped.table(24))
        print_text("")
    if dry_run:
        first, _, rest = str(done).partition("\n")
        print_text(rest, title=first)
    else:
        told = f"{count_text(done.tensors, 'tensor')}, {bytes_text(done.bytes_written)}"
        print_text(
            f"{visible(str(wish.target))} ({wish.kind}): {told}, in {time_text(seconds or 0.0)}"
        )
    if wish.left_out:
        warn([f"left out: {', '.join(wish.left_out)}; {wish.kind} holds arrays only"])
    if wish.found.pickled:
        warn([f"left out: {', '.join(wish.found.pickled[:8])}; pickled, and not read"])


def _check_target(wish: Wish) -> None:
    """Refuse a target that is the source, or that exists."""
    target = wish.target
    if target.exists() and wish.source.exists() and os.path.samefile(target, wish.source):
        raise CommandError(f"{target} is the source; name another target")
    if wish.overwrite or not target.exists():
        return
    held = ["it"] if target.is_file() else [x.name for x in target.iterdir()]
    if any(not name.startswith((".", "data-")) for name in held):
        raise CommandError(f"{target} exists already; name another target, or give --overwrite")


def options(
    dtype: np.dtype[Any] | None, max_bytes: int | None, shard_bytes: int | None
) -> dict[str, Any]:
    """Return the arguments of `checkpoint.convert` that were given."""
    given = {"dtype": dtype, "max_bytes": max_bytes, "shard_bytes": shard_bytes}
    return {name: value for name, value in given.items() if value is not None}
