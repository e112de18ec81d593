"""`meshard show`: draws how an array is laid out over devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import click

from meshard.cli.arguments import Command, gathered
from meshard.cli.output import as_json, print_json, save
from meshard.cli.written.notation import (
    WrittenMesh,
    WrittenSpec,
    check_fits,
    mesh_of,
    shape_of,
    spec_of,
)

if TYPE_CHECKING:
    from meshard.algebra.sharding import NamedSharding

_HELP = """\
Draw how an array of a SHAPE is laid out over a mesh by a SPEC, as text, SVG or
HTML. The devices need not exist.

\b
For example:
  meshard show 1024x512 "P('data', 'model')" --mesh data=4,model=2
  meshard show 30522x384 "P('model')" --mesh model=8 --uneven --svg rows.svg

A dim that its axes do not divide is refused, unless --uneven allows blocks
that differ by one.
"""


@final
@dataclass(frozen=True)
class _Options:
    shape: tuple[int, ...]
    spec: WrittenSpec
    mesh: WrittenMesh
    uneven: bool
    svg: Path | None
    html: Path | None
    as_json: bool


@click.command("show", cls=Command, help=_HELP)
@click.argument("shape", type=shape_of)
@click.argument("spec", type=spec_of)
@click.option(
    "--mesh", type=mesh_of, required=True, metavar="AXIS=SIZE,...", help="The mesh's axes."
)
@click.option("--uneven", is_flag=True, help="Let blocks differ by one where a dim is not divided.")
@click.option(
    "--svg", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture instead."
)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page instead."
)
@as_json
@gathered(_Options)
def command(given: _Options) -> None:
    """Draw a layout."""
    from meshard import debug
    from meshard.plan.show.page import Markup, fragment, whole_page
    from meshard.plan.show.terminal import line_width

    shape = given.shape
    sharding = given.spec.over(
        given.mesh.on(devices_per_process=given.mesh.count), "balanced" if given.uneven else None
    )
    check_fits(sharding, shape)
    if given.svg is not None:
        save(given.svg, debug.sharding_svg(shape, sharding))
    if given.html is not None:
        title = f"{'x'.join(map(str, shape)) or 'scalar'}, {sharding.spec!r}"
        picture = Markup(debug.sharding_svg(shape, sharding))
        save(given.html, whole_page(title, fragment(title, picture)))
    if given.as_json:
        print_json(_facts(shape, sharding))
    elif given.svg is None and given.html is None:
        debug.visualize_sharding(shape, sharding, max_width=line_width())


def _facts(shape: tuple[int, ...], sharding: NamedSharding) -> dict[str, object]:
    """Return what `--json` prints."""
    layout = sharding.layout(shape)
    return {
        "shape": list(shape),
        "spec": repr(sharding.spec),
        "mesh": dict(sharding.mesh.shape),
        "uneven": sharding.uneven,
        "replicas": layout.replicas,
        "blocks": [
            {
                "start": list(box.starts),
                "stop": list(box.stops),
                "devices": [int(d) for d in layout.holders(number)],
            }
            for number, box in enumerate(layout.boxes)
        ],
    }
