"""Windows: the most bytes that may be in flight at once, one rule for planning and for moving.

``max_bytes`` is the most bytes that are in flight from and to one process at once, besides its
parts of source and destination. Half of it is for bytes that leave a process and half for bytes
that enter, in equal parts for each other process. Boxes are cut as small as that requires, so it
must hold one element for each. Layouts between two hops count, too. Within one process nothing is
in flight. Devices that do not exist belong to the processes that they name; if only layouts are
known, each device is a process by itself.
"""

from __future__ import annotations

from itertools import pairwise
from operator import index

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError
from meshard.plan.figures.footprint import added, held
from meshard.plan.hops.cells import CellGrid, Units
from meshard.plan.hops.route import Route


def checked_window(max_bytes: object, what: str) -> int | None:
    """Return ``max_bytes`` as an integer, or None for no limit.

    Raises:
        ArgumentError: if it is neither None nor a positive integer.
    """
    if max_bytes is None:
        return None
    try:
        window = -1 if isinstance(max_bytes, bool) else index(max_bytes)  # type: ignore[arg-type]
    except TypeError:
        window = -1
    if window < 1:
        raise ArgumentError(
            f"{what}: max_bytes must be a positive number of bytes, or None for no limit, not "
            f"{shown(max_bytes)}."
        )
    return window


def quota(window: int, processes: int) -> int:
    """Return the bytes that may be in flight between two processes in one direction.

    >>> quota(600, 4), quota(600, 1)
    (100, 300)
    """
    return window // (2 * max(1, processes - 1))


def check_window(window: int | None, processes: int, itemsize: int, array: str, what: str) -> None:
    """Refuse a window that does not hold one element to and from each other process.

    Args:
        window: the bytes; None for no limit.
        processes: how many processes there are.
        itemsize: bytes per element.
        array: the array's name, for the message.
        what: the function that was called, for the message.

    Raises:
        ArgumentError: if it is too small.
    """
    if window is None or processes < 2 or itemsize <= quota(window, processes):
        return
    raise ArgumentError(
        f"{what}: max_bytes={window} allows {quota(window, processes)} bytes at a time to each of "
        f"{processes - 1} other processes, and as many from it, but one element of {array} takes "
        f"{itemsize} bytes. Give at least {2 * (processes - 1) * itemsize}."
    )


def between(route: Route, itemsize: int, units: Units) -> int:
    """Return the most bytes that one process holds of layouts between source and destination.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout
    >>> a, b, c = (Layout((4,), ((0, 4),), np.array([[d]])) for d in range(3))
    >>> between(Route("around", (a, b, c)), 8, lambda ids: ids)
    32
    """
    middle = [(held(CellGrid(layout, units)), itemsize) for layout in route.layouts[1:-1]]
    pairs = [[a, b] for a, b in pairwise(middle)] or [middle]
    return max([added(pair).most for pair in pairs])
