"""Shardings as JSON: meshes are written once, and shardings name them by number.

A mesh has its ``axes``, ``sizes`` and axis ``types``, and its ``devices`` in C order: their ``ids``
as in a layout, and runs of equal processes, platforms and kinds, ``[value, count]``. A sharding is
one of::

    {"mesh": number, "spec": [null | axis | [axis, ...], ...], "uneven": ..., "memory": kind}
    {"device": devices, "memory": kind}
    {"shape": [...], "boxes": [[starts, stops], ...], "devices": devices}

Shardings of other classes are not written: for these a plan keeps the layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding, Uneven
from meshard.algebra.spec import PartitionSpec
from meshard.plan.file.json_values import (
    MOST_DEVICES,
    as_list,
    as_mapping,
    as_number,
    as_numbers,
    as_text,
    ids_form,
    read_ids,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")


# writing


@final
class Shardings:
    """Collects the shardings of a plan, and the meshes that they are on."""

    def __init__(self) -> None:
        self._meshes: dict[Mesh, int] = {}
        self._numbers: dict[Sharding, int] = {}

    def number(self, sharding: Sharding | None) -> int | None:
        """Return the number of a sharding; None for one that is not written."""
        if not isinstance(sharding, (NamedSharding, SingleDeviceSharding, BoxSharding)):
            return None
        if isinstance(sharding, NamedSharding):
            self._meshes.setdefault(sharding.mesh, len(self._meshes))
        return self._numbers.setdefault(sharding, len(self._numbers))

    def meshes(self) -> list[object]:
        """Return the JSON of the meshes."""
        return [
            {
                "axes": list(mesh.axis_names),
                "sizes": list(mesh.axis_sizes),
                "types": [kind.name for kind in mesh.axis_types],
                "devices": _devices_form(mesh.flat_devices),
            }
            for mesh in self._meshes
        ]

    def shardings(self) -> list[object]:
        """Return the JSON of the shardings."""
        return [self._form(sharding) for sharding in self._numbers]

    def _form(self, sharding: Sharding) -> object:
        if isinstance(sharding, NamedSharding):
            return {
                "mesh": self._meshes[sharding.mesh],
                "spec": list(sharding.spec),
                "uneven": sharding.uneven,
                "memory": sharding.memory_kind,
            }
        if isinstance(sharding, SingleDeviceSharding):
            return {"device": _devices_form([sharding.device]), "memory": sharding.memory_kind}
        assert isinstance(sharding, BoxSharding)
        shape = sharding.global_shape
        boxes = [
            Box.from_index(index, shape) for index in sharding.devices_indices_map(shape).values()
        ]
        return {
            "shape": list(shape),
            "boxes": [[list(box.starts), list(box.stops)] for box in boxes],
            "devices": _devices_form(sharding.device_order),
        }


def _devices_form(devices: Sequence[Device]) -> dict[str, object]:
    def runs(value: Callable[[Device], object]) -> list[object]:
        return [[key, len(list(run))] for key, run in groupby(map(value, devices))]

    return {
        "ids": ids_form(np.array([d.id for d in devices], np.int64)),
        "processes": runs(lambda d: d.process_index),
        "platforms": runs(lambda d: d.platform),
        "kinds": runs(lambda d: d.device_kind),
    }


# reading


def read_shardings(meshes: object, shardings: object) -> list[Sharding]:
    """Return the shardings of a text.

    Raises:
        ValueError, TypeError, KeyError, IndexError: if a part of them is malformed.
    """
    forms = [as_mapping(form) for form in as_list(meshes)]
    count = sum([math.prod(as_numbers(form["sizes"])) for form in forms])
    if count > MOST_DEVICES:
        raise ValueError(f"its meshes have {count:,} devices; at most {MOST_DEVICES:,} can be read")
    known = [_mesh(form) for form in forms]
    return [_sharding(form, known) for form in as_list(shardings)]


def _mesh(form: object) -> Mesh:
    given = as_mapping(form)
    sizes = as_numbers(given["sizes"])
    if min(sizes, default=0) < 0:
        raise ValueError(f"a mesh has sizes {sizes}")
    devices = _devices(given["devices"], math.prod(sizes))
    grid = np.empty(len(devices), object)
    grid[:] = devices
    types = tuple([AxisType[as_text(kind)] for kind in as_list(given["types"])])
    axes = tuple([as_text(name) for name in as_list(given["axes"])])
    return Mesh(grid.reshape(sizes), axes, types)


def _devices(form: object, count: int) -> list[Device]:
    given = as_mapping(form)
    ids: NDArray[np.int64] = read_ids(given["ids"], count)
    if len(ids) != count or ids.min(initial=0) < 0:
        raise ValueError(f"{len(ids):,} device ids are given for {count:,} devices")
    processes = _spelt(given["processes"], count, as_number)
    platforms = _spelt(given["platforms"], count, as_text)
    kinds = _spelt(given["kinds"], count, as_text)
    return list(map(Device, ids.tolist(), processes, platforms, kinds))


def _spelt(runs: object, count: int, read: Callable[[object], T]) -> list[T]:
    """Return runs of equal values one by one."""
    found: list[T] = []
    for run in as_list(runs):
        value, length = as_list(run)
        if not 0 <= as_number(length) <= count - len(found):
            raise ValueError(f"a run of {length} devices does not fit into {count:,}")
        found += [read(value)] * as_number(length)
    if len(found) != count:
        raise ValueError(f"runs of {len(found):,} devices are given for {count:,}")
    return found


def _sharding(form: object, meshes: Sequence[Mesh]) -> Sharding:
    given = as_mapping(form)
    if "mesh" in given:
        entries = [tuple(e) if isinstance(e, list) else e for e in as_list(given["spec"])]
        return NamedSharding(
            meshes[as_number(given["mesh"])],
            PartitionSpec(*entries),
            memory_kind=as_text(given["memory"]),
            uneven=_uneven(given["uneven"]),
        )
    if "device" in given:
        (device,) = _devices(given["device"], 1)
        return SingleDeviceSharding(device, memory_kind=as_text(given["memory"]))
    boxes = [Box(*map(as_numbers, as_list(box))) for box in as_list(given["boxes"])]
    devices = _devices(given["devices"], len(boxes))
    return BoxSharding(as_numbers(given["shape"]), dict(zip(devices, boxes, strict=True)))


def _uneven(given: object) -> Uneven:
    if given is None or given == "balanced" or given == "ceil":
        return given
    return tuple([None if cuts is None else as_numbers(cuts) for cuts in as_list(given)])
