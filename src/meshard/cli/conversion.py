"""`meshard reshard`: files in, the same tensors in another layout or format out.

In: a source, a target, and how tensors are to be laid out, named and cast. Out: the target, or with
a dry run what it would take. All processes of a job run it; process 0 prints.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

import meshard
from meshard import checkpoint
from meshard.algebra.abstract import Sharding
from meshard.cli.errors import CommandError
from meshard.cli.output import is_terminal, print_json, print_table, print_text, warn
from meshard.cli.written.notation import WrittenMesh
from meshard.cli.written.tensors import Rule, Tensor, selected, shardings
from meshard.errors import KeyMapError
from meshard.mpi.launch import job_size
from meshard.plan.captions import bytes_text, time_text
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.world import here
from meshard.weights.checkpoint.metadata import Metadata
from meshard.weights.checkpoint.sources import cast_to, rows
from meshard.weights.checkpoint.targets import format_of
from meshard.weights.maps.keymap import KeyMap


@final
@dataclass(frozen=True)
class Conversion:
    """What is to be converted, and how.

    Attributes:
        source: a file or folder.
        target: the file or folder to be made.
        step: the step of a run; None for the newest.
        format: the target's format; None for that of its suffix.
        rules: how tensors are laid out; none for rows over all devices.
        mesh: the mesh of the rules.
        uneven: whether blocks may differ by one.
        select: patterns of the names to keep; none for all.
        map: a file with a key map.
        dtype: what floats are cast to.
        max_bytes: the most bytes that a process holds besides the tensors.
        overwrite: whether a target that exists is replaced.
    """

    source: Path
    target: Path
    step: int | None = None
    format: str | None = None
    rules: Sequence[Rule] = ()
    mesh: WrittenMesh | None = None
    uneven: bool = False
    select: Sequence[str] = ()
    map: Path | None = None
    dtype: np.dtype[Any] | None = None
    max_bytes: int | None = None
    overwrite: bool = False

    @cached_property
    def kind(self) -> str:
        """The target's format."""
        return format_of(self.target, self.format, "reshard")

    @cached_property
    def found(self) -> Metadata:
        """What the source holds."""
        return checkpoint.metadata(self.source, step=self.step)

    @cached_property
    def key_map(self) -> KeyMap | None:
        """The key map."""
        if self.map is None:
            return None
        try:
            return KeyMap.from_toml(self.map.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{self.map} cannot be read: {error}") from error
        except KeyMapError as error:
            raise CommandError(f"{self.map}: {error}") from error

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are written, by name; other names of one are included."""
        found = self.found
        if self.key_map is None:
            made = {n: Tensor(x.shape, x.dtype) for n, x in found.tensors.items()}
            tied = found.tied
        else:
            mapped = self.key_map.apply(found.tensors, tied=found.tied)
            made = {n: Tensor(r.shape, r.dtype) for n, r in mapped.recipes.items()}
            tied = mapped.tied
        made |= {other: made[name] for other, name in tied.items()}
        kept = selected(made, self.select)
        cast = {n: cast_to(self.dtype, made[n].dtype, "reshard") for n in kept}
        return {n: Tensor(made[n].shape, cast[n]) for n in kept}

    @cached_property
    def laid_out(self) -> Callable[[str, Any], Sharding]:
        """Return how a tensor is laid out, by its name."""
        if self.mesh is None:
            world = here()
            return lambda name, struct: rows(world, struct.shape)
        mesh = meshard.make_mesh(self.mesh.sizes, self.mesh.names)
        chosen = shardings(self.tensors, self.rules, mesh, "--to", uneven=self.uneven)
        return lambda name, struct: chosen[name]

    @cached_property
    def like(self) -> dict[str, Any] | None:
        """The tree that is read; None for all of the source, with its structure and values."""
        if not self.select and (self.kind == "meshard" or not self.found.values):
            return None
        return {name: ShapeDtypeStruct(x.shape, x.dtype) for name, x in self.tensors.items()}

    def options(self) -> dict[str, Any]:
        """Return the arguments of `load` and of `plan_load`."""
        return {
            "shardings": self.laid_out,
            "like": self.like,
            "step": self.step,
            "dtype": self.dtype,
            "map": self.key_map,
            "max_bytes": self.max_bytes,
        }


def convert(given: Conversion, *, dry_run: bool, shard_bytes: int | None, as_json: bool) -> None:
    """Convert files, or say what it would take.

    Args:
        given: what is to be converted.
        dry_run: whether to print what it would take instead.
        shard_bytes: the most bytes of one of several safetensors files.
        as_json: whether to print JSON.

    Raises:
        CommandError: if the target exists, or the options do not fit each other.
        MeshardError: what `checkpoint.load` and `checkpoint.save` raise.
    """
    _use_devices(given.mesh)
    _check_target(given)
    first = meshard.process_index() == 0
    facts: dict[str, object] = {
        "source": given.found.path,
        "target": str(given.target),
        "format": given.kind,
        "tensors": len(given.tensors),
        "nbytes": sum(math.prod(x.shape) * x.dtype.itemsize for x in given.tensors.values()),
    }
    if dry_run:
        plan = checkpoint.plan_load(given.source, **given.options())
        if first:
            figures = ("bytes_read", "bytes_moved", "lower_bound_bytes", "peak_bytes")
            facts |= {name: getattr(plan, name) for name in figures}
            _tell_plan(given, facts, str(plan), as_json=as_json)
        return
    start = time.perf_counter()
    bar = first and is_terminal() and not as_json
    tree = checkpoint.load(given.source, **given.options(), progress=bar)
    more: dict[str, Any] = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
    checkpoint.save(
        given.target,
        tree,
        format=given.kind,
        overwrite=given.overwrite,
        max_bytes=given.max_bytes,
        **more,
    )
    seconds = time.perf_counter() - start
    if not first:
        return
    _warn_of_values(given)
    if as_json:
        print_json(facts | {"seconds": seconds})
        return
    told = f"{len(given.tensors):,} tensors, {bytes_text(int(str(facts['nbytes'])))}"
    print_text(f"{given.target} ({given.kind}): {told}, in {time_text(seconds)}")


def _use_devices(mesh: WrittenMesh | None) -> None:
    """Give each process its part of the mesh's devices."""
    if mesh is None:
        return
    size = job_size() or 1
    if mesh.count % size:
        raise CommandError(
            f"the mesh has {mesh.count} devices, which {size} processes cannot share equally"
        )
    meshard.config.update("num_devices", mesh.count // size)


def _check_target(given: Conversion) -> None:
    """Refuse a target before anything is read."""
    target = given.target
    if target.exists() and given.source.exists() and os.path.samefile(target, given.source):
        raise CommandError(f"{target} is the source; name another target")
    if given.overwrite or not target.exists():
        return
    held = ["it"] if target.is_file() else [x.name for x in target.iterdir()]
    if any(not name.startswith((".", "data-")) for name in held):
        raise CommandError(f"{target} exists already; name another target, or give --overwrite")


def _tell_plan(given: Conversion, facts: Mapping[str, object], plan: str, *, as_json: bool) -> None:
    """Print what a conversion would take."""
    if as_json:
        print_json(facts)
        return
    if given.key_map is not None:
        mapped = given.key_map.apply(given.found.tensors, tied=given.found.tied)
        print_table(mapped.table(24))
        print_text("")
    title, _, rest = plan.partition("\n")
    print_text(rest, title=title)
    print_text(f"\nwould write {given.target} ({given.kind})")
    _warn_of_values(given)


def _warn_of_values(given: Conversion) -> None:
    """Say which values of the source the target cannot hold."""
    if given.like is not None and not given.select:
        names = ", ".join(given.found.values)
        warn([f"left out: {names}; {given.kind} holds arrays only"])
