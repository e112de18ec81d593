"""Plans as JSON: written so that another program can run them, and checked when they are read.

The text is one object::

    format    "meshard.plan"
    version   2
    checksum  SHA-256 of the rest: of the object without this entry, its keys sorted, without blanks
    options   max_bytes, donate, alive, rounds
    layouts   a list; arrays and routes name them by number
    meshes    a list; shardings name them by number
    shardings a list; arrays name them by number (`json_shardings`)
    leaves    an object for each array: its name, path (and others that hold the same array),
              source, destination, itemsize, dtype, source_text, destination_text, source_sharding
              and sharding
    choices   route (name, layouts, why, split, alive), figures, why, others, count: one for each
              (source, destination, itemsize) among the leaves, in the order of their first leaf
    totals    bytes_moved and devices, with which the plan is compared when it is read
    transfers [choice, hop, sender, receiver, starts, stops], ...: only if asked for

A layout has a ``shape`` and, in the product form, the ``lengths`` of the shards along each dim as
runs ``[length, count]``, its number of ``replicas``, and the ``devices`` in C order
``[shard..., replica]``, as in `json_values`. Otherwise it has ``cuts``, ``boxes`` as
``[starts, stops]``, and for each box the ids of its ``holders``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NoReturn, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, layout_of_boxes
from meshard.errors import MeshardError, PlanError
from meshard.plan.figures.choice import Candidate, Choice, Figures, PlanLeaf
from meshard.plan.file.json_shardings import Shardings, read_shardings
from meshard.plan.file.json_values import (
    as_list,
    as_mapping,
    as_number,
    as_numbers,
    as_text,
    fields,
    ids_form,
    optional,
    read_ids,
)
from meshard.plan.hops.hop import Route

if TYPE_CHECKING:
    from meshard.plan.figures.plan_figures import PlanFigures


FORMAT, VERSION = "meshard.plan", 2
_MOST_SHARDS = 1 << 26
_LONGEST = (1 << 63) - 1


# writing


def json_text(plan: PlanFigures, *, transfers: bool = False) -> str:
    """Return a plan as JSON; ``transfers`` lists every box with its two devices."""
    numbers: dict[Layout, int] = {}

    def number(layout: Layout) -> int:
        return numbers.setdefault(layout, len(numbers))

    shardings = Shardings()
    leaves = [
        {
            **fields(x, "name", "path", "also"),
            "source": number(x.source),
            "destination": number(x.destination),
            **fields(x, "itemsize", "dtype", "source_text", "destination_text"),
            "source_sharding": shardings.number(x.source_sharding),
            "sharding": shardings.number(x.sharding),
        }
        for x in plan.leaves
    ]
    choices = [
        {
            "route": {
                "name": c.route.name,
                "layouts": [number(x) for x in c.route.layouts],
                **fields(c.route, "why", "split", "alive"),
            },
            "figures": asdict(c.figures),
            "why": c.why,
            "others": [
                {"name": o.name, "figures": o.figures and asdict(o.figures), "why": o.why}
                for o in c.others
            ],
            "count": c.count,
        }
        for c in plan.choices
    ]
    whole: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "options": {**fields(plan, "max_bytes", "donate", "alive"), "rounds": plan.given_rounds},
        "layouts": [_layout_form(layout) for layout in numbers],
        "meshes": shardings.meshes(),
        "shardings": shardings.shardings(),
        "leaves": leaves,
        "choices": choices,
        "totals": _totals(plan),
    }
    if transfers:
        whole["transfers"] = [
            [t.choice, t.hop, t.sender, t.receiver, list(t.box.starts), list(t.box.stops)]
            for t in plan.transfers()
        ]
    return json.dumps({**whole, "checksum": _checksum(whole)})


def _totals(plan: PlanFigures) -> dict[str, int]:
    return {"bytes_moved": plan.bytes_moved, "devices": plan.device_count}


def _checksum(whole: Mapping[str, object]) -> str:
    kept = {key: value for key, value in whole.items() if key != "checksum"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _layout_form(layout: Layout) -> dict[str, object]:
    shape = list(layout.shape)
    if not layout.regular:
        boxes = [[list(box.starts), list(box.stops)] for box in layout.boxes]
        holders = [list(map(int, layout.holders(i))) for i in range(layout.piece_count)]
        cuts = [list(c) for c in layout.cuts]
        return {"shape": shape, "cuts": cuts, "boxes": boxes, "holders": holders}
    lengths = [
        [[length, len(list(run))] for length, run in groupby(b - a for a, b in pairwise(cuts))]
        for cuts in layout.cuts
    ]
    devices = ids_form(layout.tensor.reshape(-1))
    return {"shape": shape, "lengths": lengths, "replicas": layout.replicas, "devices": devices}


# reading


@final
@dataclass(frozen=True)
class Read:
    """The content of a plan's text, checked."""

    leaves: tuple[PlanLeaf, ...]
    choices: tuple[Choice, ...]
    max_bytes: int | None
    donate: bool
    alive: tuple[int, ...] | None
    rounds: int | None
    totals: Mapping[str, int]

    def compare(self, plan: PlanFigures) -> None:
        """Refuse a text whose totals do not match its plan."""
        try:
            totals = _totals(plan)
        except MeshardError as error:
            _refuse(f"its layouts and routes contradict each other ({error})", "Plan anew")
        for name, found in totals.items():
            said = self.totals.get(name)
            if said != found:
                _refuse(
                    f"it says that {name} is {said}, but by its layouts and routes it is {found}",
                    "It was edited, or written by a faulty program: plan anew",
                )


@contextmanager
def refusing() -> Iterator[None]:
    """Turn any error in a part of a text into the one refusal."""
    try:
        yield
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, MeshardError) as error:
        what = f"has no entry {error}" if isinstance(error, KeyError) else f"is malformed: {error}"
        _refuse(f"a part of it {what}", "Write it with Plan.to_json")


def read_json(text: str) -> Read:
    """Return the content of a plan's text.

    Raises:
        PlanError: if it was cut, edited, or written by another version.
    """
    whole = _opened(text)
    with refusing():
        layouts = [_layout(form, i) for i, form in enumerate(as_list(whole["layouts"]))]
        shardings = read_shardings(whole["meshes"], whole["shardings"])
        leaves = tuple(
            [_leaf(form, i, layouts, shardings) for i, form in enumerate(as_list(whole["leaves"]))]
        )
        choices = tuple([_choice(form, layouts) for form in as_list(whole["choices"])])
        options, totals = as_mapping(whole["options"]), as_mapping(whole["totals"])
        found = Read(
            leaves,
            choices,
            optional(options["max_bytes"], as_number),
            bool(options["donate"]),
            optional(options["alive"], as_numbers),
            optional(options["rounds"], as_number),
            {name: as_number(value) for name, value in totals.items()},
        )
    _check_counts(found)
    return found


def _refuse(what: str, then: str = "Write the plan again with Plan.to_json") -> NoReturn:
    raise PlanError(f"Plan.from_json: this is not a plan that can be trusted: {what}. {then}.")


def _opened(text: str) -> Mapping[str, object]:
    """Return the object in a text whose format, version and checksum are right."""
    again = "Read the whole file, or write it again with Plan.to_json"
    given: object = text
    if not isinstance(given, str):
        _refuse(f"it is a {type(given).__name__}, not the text of a plan", again)
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        end = text.rstrip()
        at_end = error.pos >= len(end) or not end.endswith("}")
        what = "the text ends too early" if at_end else "the text is not JSON"
        _refuse(f"{what}, at character {error.pos:,} of {len(text):,} ({error.msg})", again)
    except (ValueError, RecursionError) as error:
        _refuse(f"the text cannot be read ({error})", again)
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        kind = f'an object of format "{FORMAT}"'
        _refuse(f"the text is not {kind}", again)
    version = whole.get("version")
    if version != VERSION:
        _refuse(
            f"it is of version {version!r}, and this library reads version {VERSION}",
            "Make the plan with this library, or read it with the one that wrote it",
        )
    said, found = whole.get("checksum"), _checksum(whole)
    if said != found:
        _refuse(
            f"its checksum is {str(said)[:12]}..., but its text gives {found[:12]}...: it was "
            "changed after it was written",
        )
    return whole


def _layout(form: object, number: int) -> Layout:
    given = as_mapping(form)
    shape = as_numbers(given["shape"])
    if "boxes" in given:
        return _layout_of_boxes(given, shape, number)
    dims = zip(as_list(given["lengths"]), shape, strict=True)
    cuts = tuple([_cuts(runs, n) for runs, n in dims])
    for dim, (c, n) in enumerate(zip(cuts, shape, strict=True)):
        if c[-1] != n:
            _refuse(f"the shards of dim {dim} of layout {number} have {c[-1]} elements, not {n}")
    grid, replicas = tuple([len(c) - 1 for c in cuts]), as_number(given["replicas"])
    ids = read_ids(given["devices"], math.prod(grid) * replicas)
    if len(ids) != math.prod(grid) * replicas:
        _refuse(
            f"layout {number} has {len(ids):,} devices for {math.prod(grid):,} shards of "
            f"{replicas:,} replicas"
        )
    if ids.min(initial=0) < 0 or len(np.unique(ids)) != len(ids):
        _refuse(f"layout {number} names a device twice, or has a negative id")
    return Layout(shape, cuts, ids.reshape(*grid, replicas))


def _layout_of_boxes(given: Mapping[str, object], shape: tuple[int, ...], number: int) -> Layout:
    boxes = tuple([Box(*map(as_numbers, as_list(box))) for box in as_list(given["boxes"])])
    holders = tuple([as_numbers(ids) for ids in as_list(given["holders"])])
    if len(boxes) != len(holders) or not all(_is_inside(box, shape) for box in boxes):
        _refuse(f"the boxes of layout {number} reach beyond its shape {shape}")
    pairs = [(d, box) for box, some in zip(boxes, holders, strict=True) for d in some]
    every = {d for d, _ in pairs}
    if len(every) != len(pairs) or any(not 0 <= d <= _LONGEST for d in every):
        _refuse(f"layout {number} names a device twice, or has a negative id")
    found = layout_of_boxes(shape, pairs)
    if found.regular or found.boxes != boxes:
        raise ValueError(f"the boxes of layout {number} are not distinct, or form a grid")
    return found


def _is_inside(box: Box, shape: tuple[int, ...]) -> bool:
    if not len(box.starts) == len(box.stops) == len(shape):
        return False
    return all(0 <= a <= b <= n for a, b, n in zip(box.starts, box.stops, shape, strict=True))


def _cuts(runs: object, size: int) -> tuple[int, ...]:
    if size > _LONGEST:
        raise ValueError(f"a dim has {size:,} elements; at most {_LONGEST:,} are possible")
    found = [0]
    for run in as_list(runs):
        length, count = as_numbers(run)
        if (
            length < 0
            or not 0 <= count <= _MOST_SHARDS - len(found)
            or length * count > size - found[-1]
        ):
            raise ValueError(f"{count} shards of {length} do not fit into a dim of {size}")
        found += [found[-1] + length * (k + 1) for k in range(count)]
    return tuple(found)


def _leaf(
    form: object, number: int, layouts: Sequence[Layout], shardings: Sequence[Sharding]
) -> PlanLeaf:
    given = as_mapping(form)
    a, b = layouts[as_number(given["source"])], layouts[as_number(given["destination"])]
    if a.shape != b.shape:
        _refuse(f"array {number} has shape {a.shape} before and {b.shape} afterwards")
    itemsize = as_number(given["itemsize"])
    if itemsize < 0:
        raise ValueError(f"array {number} has {itemsize} bytes per element")
    ends: list[Sharding | None] = []
    for key, layout in (("source_sharding", a), ("sharding", b)):
        which = optional(given[key], as_number)
        sharding = None if which is None else shardings[which]
        if sharding is not None and sharding.layout(layout.shape) != layout:
            _refuse(f"the {key} of array {number} does not give its layout")
        ends.append(sharding)
    return PlanLeaf(
        as_text(given["name"]),
        a,
        b,
        itemsize,
        as_text(given["dtype"]),
        as_text(given["source_text"]),
        as_text(given["destination_text"]),
        ends[1],
        ends[0],
        optional(given["path"], as_text),
        tuple([as_text(path) for path in as_list(given["also"])]),
    )


def _figures(form: object) -> Figures:
    given = dict(as_mapping(form))
    exact = bool(given.pop("messages_exact"))
    return Figures(**{k: as_number(v) for k, v in given.items()}, messages_exact=exact)


def _choice(form: object, layouts: Sequence[Layout]) -> Choice:
    given = as_mapping(form)
    route, others = as_mapping(given["route"]), [as_mapping(o) for o in as_list(given["others"])]
    passed = tuple([layouts[i] for i in as_numbers(route["layouts"])])
    if len(passed) < 2 or len({x.shape for x in passed}) > 1:
        _refuse(
            f"the route {route['name']} passes through {len(passed)} layouts of "
            f"{len({x.shape for x in passed})} shapes"
        )
    return Choice(
        Route(
            str(route["name"]),
            passed,
            str(route["why"]),
            bool(route["split"]),
            optional(route["alive"], as_numbers),
        ),
        _figures(given["figures"]),
        str(given["why"]),
        tuple(
            [
                Candidate(
                    str(o["name"]),
                    None if o["figures"] is None else _figures(o["figures"]),
                    str(o["why"]),
                )
                for o in others
            ]
        ),
        as_number(given["count"]),
    )


def _check_counts(read: Read) -> None:
    """Refuse choices that do not match the leaves."""
    kinds: dict[object, list[PlanLeaf]] = {}
    for leaf in read.leaves:
        kinds.setdefault((leaf.source, leaf.destination, leaf.itemsize), []).append(leaf)
    if len(kinds) != len(read.choices):
        _refuse(
            f"its {len(read.leaves):,} arrays need {len(kinds):,} choices, and it has "
            f"{len(read.choices):,}"
        )
    for number, (leaves, choice) in enumerate(zip(kinds.values(), read.choices, strict=True)):
        if choice.count != len(leaves):
            _refuse(
                f"choice {number} counts {choice.count:,} arrays, and {len(leaves):,} share it",
            )
        if choice.route.source.shape != leaves[0].shape:
            _refuse(
                f"choice {number} moves shape {choice.route.source.shape}, and its arrays have "
                f"{leaves[0].shape}",
            )
