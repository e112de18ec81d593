"""`meshard plan`: what a reshard will move, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click
import numpy as np

from meshard.cli.arguments import Command, gathered, positive
from meshard.cli.output import as_json, print_json, print_text, save
from meshard.cli.written.notation import (
    WrittenMesh,
    dtype_named,
    ids_of,
    mesh_of,
    shape_of,
    size_of,
    topology_option,
)
from meshard.cli.written.tensors import (
    Listing,
    Rule,
    Tensor,
    listing_of,
    rule_of,
    selected,
    shardings,
)
from meshard.runtime.moving.structs import ShapeDtypeStruct

if TYPE_CHECKING:
    from meshard.algebra.abstract import Sharding
    from meshard.plan.figures.simulate import Simulation
    from meshard.plan.figures.topology import Topology
    from meshard.plan.plan import Plan

_HELP = """\
Say what a reshard will do, without data: the bytes that move and the least
that any plan could move, the memory that a device needs, and the time on a
topology. Devices need not exist.

The tensors are one of a --shape, or those of FILE: a checkpoint, safetensors
files or their index, or a JSON file of {"name": {"shape": [2, 3], "dtype":
"bfloat16"}}; no tensor is read. --select takes some of them. A checkpoint
knows how it was laid out, and needs no --from; with --load the plan is that of
reading FILE: who reads which bytes, and passes them on.

A spec may be for a pattern of names; the first pattern that matches counts,
and a spec without one is for the rest.

\b
For example:
  meshard plan --shape 8192x8192 --dtype bfloat16 \\
      --from "P('fsdp')" --from-mesh fsdp=16 \\
      --to "P(None, 'model')" --to-mesh data=2,model=8 \\
      --topology "8-gpu hosts"
  meshard plan llama.json --from "P('fsdp')" --from-mesh fsdp=8 \\
      --to "*.q_proj.weight=P('model', None)" --to "P()" --to-mesh model=4 \\
      --to-devices 8:12 --max-bytes 1GB
"""


@final
@dataclass(frozen=True)
class _Options:
    file: Path | None
    step: int | None
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    select: tuple[str, ...]
    from_: tuple[Rule, ...]
    from_mesh: WrittenMesh | None
    from_devices: range | tuple[int, ...] | None
    to: tuple[Rule, ...]
    to_mesh: WrittenMesh | None
    to_devices: range | tuple[int, ...] | None
    uneven: bool
    donate: bool
    load: bool
    devices_per_process: int
    topology: Topology | None
    max_bytes: int | None
    limit: int
    html: Path | None
    as_json: bool


@click.command("plan", cls=Command, help=_HELP)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--shape", type=shape_of, metavar="SHAPE", help="Plan for one tensor, 8192x8192.")
@click.option(
    "--dtype", type=dtype_named, default="float32", metavar="DTYPE", help="Its dtype [float32]."
)
@click.option("--step", type=int, metavar="STEP", help="The step of a run [the newest].")
@click.option("--select", multiple=True, metavar="PATTERN", help="Plan for these names only.")
@click.option(
    "--from",
    "from_",
    type=rule_of,
    multiple=True,
    metavar="[PATTERN=]SPEC",
    help="How tensors are laid out.",
)
@click.option("--from-mesh", type=mesh_of, metavar="AXIS=SIZE,...", help="Over which mesh.")
@click.option(
    "--from-devices", type=ids_of, metavar="IDS", help="On which devices, 0:16 [the first ones]."
)
@click.option(
    "--to",
    type=rule_of,
    multiple=True,
    required=True,
    metavar="[PATTERN=]SPEC",
    help="How they are to be laid out.",
)
@click.option(
    "--to-mesh", type=mesh_of, metavar="AXIS=SIZE,...", help="Over which mesh [--from-mesh]."
)
@click.option("--to-devices", type=ids_of, metavar="IDS", help="On which devices.")
@click.option("--uneven", is_flag=True, help="Let blocks differ by one where a dim is not divided.")
@click.option("--load", is_flag=True, help="Plan to read FILE into the layout of --to.")
@click.option("--donate", is_flag=True, help="Give the sources up as they are read.")
@click.option(
    "--devices-per-process",
    type=positive,
    default="1",
    metavar="D",
    help="How many devices a process has [1].",
)
@topology_option
@click.option(
    "--max-bytes", type=size_of, metavar="SIZE", help="The most in flight per process, 1GB."
)
@click.option("--limit", type=positive, default="24", metavar="N", help="Rows of a table [24].")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page too.")
@as_json
@gathered(_Options)
def command(given: _Options) -> None:
    """Print a plan."""
    from meshard.plan.views.plan_text import plan_table

    listing = _listed(given)
    if given.load:
        _tell_load(given, listing)
        return
    plan = _planned(given, listing)
    simulation = None if given.topology is None else plan.simulate(given.topology)
    if given.html is not None:
        save(given.html, plan.to_html())
    if given.as_json:
        print_json(_facts(plan, simulation))
        return
    first, _, rest = plan_table(plan, given.limit).partition("\n")
    print_text(rest, title=first)
    if simulation is not None:
        print_text(f"\n{simulation}")


def _listed(given: _Options) -> Listing:
    """Return the tensors to plan for."""
    if (given.file is None) == (given.shape is None):
        raise _wrong("give a FILE that lists tensors, or the --shape of one")
    if given.shape is not None:
        return Listing({"x": Tensor(given.shape, given.dtype)})
    assert given.file is not None
    listing = listing_of(given.file, given.step)
    names = selected(listing.tensors, given.select)
    return Listing({name: listing.tensors[name] for name in names}, listing.shardings)


def _wrong(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())


def _tell_load(given: _Options, listing: Listing) -> None:
    """Print what a load of the file would take."""
    from meshard.checkpoint import metadata, plan_load

    others = (given.from_mesh, given.from_devices, given.topology, given.html)
    if given.file is None or given.from_ or any(x is not None for x in others):
        raise _wrong("--load plans to read a FILE, and takes no --from, --topology or --html")
    targets: dict[str, Sharding] = {**_targets(given, listing)}
    for other, name in metadata(given.file, step=given.step).tied.items():
        if name in targets:
            targets.setdefault(other, targets[name])
    like = {name: ShapeDtypeStruct(x.shape, x.dtype) for name, x in listing.tensors.items()}
    plan = plan_load(
        given.file,
        lambda name, struct: targets[name],
        like=like if given.select else None,
        step=given.step,
        max_bytes=given.max_bytes,
    )
    if given.as_json:
        names = ("bytes_read", "largest_reader_bytes", "bytes_moved", "lower_bound_bytes")
        facts: dict[str, object] = {"path": plan.path, "format": plan.format}
        facts |= {name: getattr(plan, name) for name in (*names, "peak_bytes")}
        print_json(facts | {"processes": plan.reading.processes, "max_bytes": plan.max_bytes})
        return
    first, _, rest = str(plan).partition("\n")
    print_text(rest, title=first)


def _planned(given: _Options, listing: Listing) -> Plan:
    from meshard.runtime.moving.plan_reshard import plan_reshard

    sources, targets = _sources(given, listing), _targets(given, listing)
    tree = {
        name: ShapeDtypeStruct(x.shape, x.dtype, sharding=sources[name])
        for name, x in listing.tensors.items()
    }
    return plan_reshard(
        tree, targets, max_bytes=given.max_bytes, donate=given.donate, topology=given.topology
    )


def _targets(given: _Options, listing: Listing) -> Mapping[str, Sharding]:
    """Return how tensors are to be laid out."""
    to_mesh = given.to_mesh or given.from_mesh
    if to_mesh is None:
        raise _wrong("--to needs a mesh; give --to-mesh, as in --to-mesh data=4,model=2")
    ids = given.to_devices or (None if given.to_mesh else given.from_devices)
    mesh = to_mesh.on(ids, given.devices_per_process)
    return shardings(listing.tensors, given.to, mesh, "--to", uneven=given.uneven)


def _sources(given: _Options, listing: Listing) -> Mapping[str, Sharding]:
    """Return how tensors are laid out."""
    if bool(given.from_) != (given.from_mesh is not None):
        raise _wrong("--from and --from-mesh belong together; one of them is missing")
    if given.from_mesh is not None:
        mesh = given.from_mesh.on(given.from_devices, given.devices_per_process)
        return shardings(listing.tensors, given.from_, mesh, "--from", uneven=given.uneven)
    if not listing.tensors.keys() <= listing.shardings.keys():
        raise _wrong(
            f"{given.file or '--shape'} does not say how its tensors are laid out; give --from and "
            "--from-mesh, as in --from \"P('data')\" --from-mesh data=8, or --load, which plans to "
            "read it"
        )
    return listing.shardings


def _facts(plan: Plan, simulation: Simulation | None) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "arrays": len(plan.leaves),
        "nbytes": plan.nbytes,
        "bytes_moved": plan.bytes_moved,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "ratio": plan.ratio if math.isfinite(plan.ratio) else None,
        "most_sent": plan.most_sent,
        "send_bound_bytes": plan.send_bound_bytes,
        "most_received": plan.most_received,
        "peak_bytes": plan.peak_bytes,
        "rounds": plan.rounds,
        "devices": plan.device_count,
        "max_bytes": plan.max_bytes,
        "topology": None if simulation is None else simulation.topology,
        "seconds": None if simulation is None else simulation.seconds,
        "groups": [
            {
                "names": [leaf.name for leaf in group],
                "shape": list(group[0].shape),
                "dtype": group[0].dtype,
                "from": group[0].source_text,
                "to": group[0].destination_text,
                "route": choice.route.name,
                "nbytes": sum(leaf.nbytes for leaf in group),
                "bytes_moved": sum(hop.moved for hop in choice.route.hops) * weight,
            }
            for choice, group, weight in zip(plan.choices, plan.groups, plan.weights, strict=True)
        ],
    }
