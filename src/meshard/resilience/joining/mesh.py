"""Meshes of those that are there.

In: names of axes, and wishes for their sizes. Out: a mesh of as many devices as fit them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from meshard.algebra.arguments import count_of, instance_of, items_of, refusal, shown
from meshard.algebra.device import Device, devices_of
from meshard.algebra.mesh import Mesh
from meshard.algebra.world import current
from meshard.errors import ArgumentError, ShardingError, SpecError

Sizes = Mapping[str, int]


def mesh(
    axes: str | Sequence[str] | Mapping[str, int | None],
    prefer: Sizes | None = None,
    *,
    devices: Iterable[Device] | None = None,
) -> Mesh:
    """Return the best mesh of the devices that are there, now.

    The best is one that leaves out the fewest devices; of several the one whose sizes are nearest
    to those that are preferred, and then the one whose sizes differ least, the longer axes first.
    Layouts may be uneven, so that a mesh of 7 devices is as good as one of 8. The devices of one
    process, and of one host, lie next to each other along the last axis.

    Args:
        axes: the names of the axes; or a mapping from names to sizes. A size is kept; None leaves
            the axis free.
        prefer: preferred sizes of some of the free axes.
        devices: the devices; by default those of all processes that take part.

    Returns:
        The mesh. All processes get the same one.

    Raises:
        ShardingError: if there are fewer devices than the given sizes need.
        SpecError: if an axis that is preferred does not exist or is not free.
        ArgumentError: if the arguments are of other types.

    >>> from meshard import elastic
    >>> from meshard.testing import virtual_devices
    >>> elastic.mesh(("data", "model"), {"model": 2}, devices=virtual_devices(8)).shape
    OrderedDict([('data', 4), ('model', 2)])
    >>> elastic.mesh({"data": None, "model": 2}, devices=virtual_devices(7)).shape
    OrderedDict([('data', 3), ('model', 2)])
    """
    what = "elastic.mesh"
    sizes = _sizes(axes, what)
    wishes = _wishes(prefer, sizes, what)
    have = current().devices_by_host if devices is None else devices_of(devices, what)
    least = math.prod(n for n in sizes.values() if n is not None)
    if least > len(have):
        told = ", ".join(f"{name}={n}" for name, n in sizes.items() if n is not None)
        raise ShardingError(
            f"{what}: axes of the sizes {told} need {least} devices, and {len(have)} are there. "
            "Give None for the size of an axis that may be shorter, or the size in prefer."
        )
    free = [name for name, n in sizes.items() if n is None]
    best = min(
        _factors(len(have) // least, len(free)),
        key=lambda found: _cost(found, free, wishes, len(have) // least),
    )
    chosen = dict(zip(free, best, strict=True))
    shape = tuple([chosen[name] if n is None else n for name, n in sizes.items()])
    grid = np.empty(math.prod(shape), object)
    grid[:] = list(have)[: math.prod(shape)]
    return Mesh(grid.reshape(shape), tuple(sizes))


def _sizes(axes: object, what: str) -> dict[str, int | None]:
    """Return the size of each axis; None if it is free."""
    if isinstance(axes, str):
        return {axes: None}
    if isinstance(axes, Mapping):
        found = {}
        for name, size in axes.items():
            instance_of(name, str, what, "each name of axes")
            free = size is None or (type(size) is int and size == -1)
            found[name] = None if free else count_of(size, what, f"axes[{name!r}]", least=1)
        return found
    names = items_of(axes, what, "axes", "the names of axes, or a mapping from names to sizes")
    for name in names:
        instance_of(name, str, what, "each of axes")
    if len(set(names)) < len(names):
        raise SpecError(f"{what}: axes has a name twice: {shown(axes)}.")
    return dict.fromkeys(names)


def _wishes(prefer: object, sizes: Mapping[str, int | None], what: str) -> dict[str, int]:
    if prefer is None:
        return {}
    if not isinstance(prefer, Mapping):
        raise ArgumentError(refusal(what, "prefer", "a mapping from axes to sizes", prefer))
    wrong = [name for name in prefer if name not in sizes or sizes[name] is not None]
    if wrong:
        free = [name for name, n in sizes.items() if n is None]
        raise SpecError(
            f"{what}: prefer has {', '.join(map(repr, wrong))}; the free axes are "
            f"{', '.join(map(repr, free)) or 'none'}."
        )
    return {n: count_of(size, what, f"prefer[{n!r}]", least=1) for n, size in prefer.items()}


def _factors(number: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of some axes whose product is a number."""
    if axes <= 1:
        yield (number,) * axes
        return
    for n in range(1, number + 1):
        if number % n == 0:
            for rest in _factors(number // n, axes - 1):
                yield (n, *rest)


def _cost(
    found: tuple[int, ...], free: Sequence[str], wishes: Sizes, most: int
) -> tuple[float, ...]:
    """Return what makes a choice worse: devices left out, wishes missed, sizes that differ."""
    missed = sum(
        abs(math.log(n / wishes[name]))
        for name, n in zip(free, found, strict=True)
        if name in wishes
    )
    spread = max(found, default=1) / min(found, default=1)
    return (most - math.prod(found), missed, spread, *[-n for n in found])
