"""Shardings given box by box instead of by a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from meshard.algebra.abstract import Sharding, box_of
from meshard.algebra.arguments import instance_of, items_of, shape_of, shown
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.errors import ShapeError, ShardingError


@final
class BoxSharding(Sharding):
    """A sharding of one shape, given box by box instead of by a mesh.

    Args:
        global_shape: the shape of the arrays that it lays out.
        boxes: for each device its box, as a tuple of slices with step one, or a `Box`.

    Devices may hold the same box (replicas), and boxes may overlap; together they must hold every
    element.

    Raises:
        CoverageError: if the boxes leave a gap; the message names it.
        ShardingError: if there are no boxes, or one does not fit the shape.

    >>> from meshard.sharding import BoxSharding
    >>> from meshard import Device
    >>> halves = BoxSharding((4,), {Device(0): (slice(0, 1),), Device(1): (slice(1, 4),)})
    >>> halves.layout((4,)).cuts
    ((0, 1, 4),)
    """

    def __init__(
        self, global_shape: Sequence[int], boxes: Mapping[Device, Box | Sequence[slice]]
    ) -> None:
        shape = shape_of(global_shape, "BoxSharding", "global_shape")
        advice = "It maps each device to its box."
        what = "BoxSharding"
        instance_of(boxes, Mapping, what, "boxes", advice=advice, error=ShardingError)  # type: ignore[type-abstract]
        if not boxes:
            raise ShardingError("BoxSharding: no boxes were given.")
        self.global_shape = shape
        self._boxes: dict[Device, Box] = {}
        for device, given in boxes.items():
            self._boxes[device] = _box_in(shape, given, device)
        if len({d.id for d in self._boxes}) != len(self._boxes):
            raise ShardingError("BoxSharding: two of the devices have the same id.")
        self._hash = hash((shape, tuple(self._boxes.items())))
        self.layout(shape)

    @property
    def device_set(self) -> set[Device]:
        """The devices, as a set."""
        return set(self._boxes)

    @property
    def device_order(self) -> tuple[Device, ...]:
        """The devices in the order in which their boxes were given."""
        return tuple(self._boxes)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return all(b == Box.whole(self.global_shape) for b in self._boxes.values())

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """Return for each device its box as slices.

        Raises:
            ShapeError: if the shape is not the one that the boxes were given for.
        """
        shape = self._shape(global_shape, "devices_indices_map")
        if shape != self.global_shape:
            raise ShapeError(
                f"BoxSharding: the boxes are those of an array of shape {self.global_shape}, and "
                f"cannot lay out one of shape {shape}."
            )
        return {d: b.slices for d, b in self._boxes.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoxSharding):
            return NotImplemented
        mine = (self.global_shape, tuple(self._boxes.items()))
        return mine == (other.global_shape, tuple(other._boxes.items()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return BoxSharding, (self.global_shape, self._boxes)

    def __repr__(self) -> str:
        shown = ", ".join(f"{d!r}: {b}" for d, b in list(self._boxes.items())[:4])
        more = f", ... {len(self._boxes) - 4} more" if len(self._boxes) > 4 else ""
        return f"BoxSharding({self.global_shape}, {{{shown}{more}}})"


def _box_in(shape: tuple[int, ...], given: object, device: object) -> Box:
    """Return a device's box in an array of a shape.

    Raises:
        ShardingError: if the device is not one, or the box does not fit the shape.
    """
    if not isinstance(device, Device):
        raise ShardingError(f"BoxSharding: {shown(device)} is not a Device.")
    index = given.slices if isinstance(given, Box) else _slices(given, device)
    box = box_of(index, shape, device, "BoxSharding")
    # NumPy lets a slice reach past the end; here that means the boxes are of another shape.
    outside = any(max(s.start or 0, s.stop or 0) > n for s, n in zip(index, shape, strict=True))
    if outside or (isinstance(given, Box) and box != given):
        asked = ", ".join(f"{_bound(s.start)}:{_bound(s.stop)}" for s in index)
        raise ShardingError(
            f"BoxSharding: the box [{asked}] of {device!r} does not fit the shape {shape}: it "
            "reaches outside, or stops before it starts."
        )
    return box


def _bound(bound: int | None) -> str:
    return "" if bound is None else str(bound)


def _slices(given: object, device: Device) -> Index:
    """Return the index of a device's box; what it holds is checked with the shape."""
    found: tuple[object, ...] = items_of(
        given, "BoxSharding", f"the box of {device!r}", "slices", error=ShardingError
    )
    return found  # type: ignore[return-value]
