"""Intermediate layouts: routes of two hops, found by a search over grids of cells.

One hop between devices always moves the fewest bytes, so a layout in between pays only for fewer
messages, over slow links between two sets of devices, or if senders would wait for each other.
A candidate is a grid whose number of cells along each dim is a prefix of the digits of the source's
or the destination's; then every hop trades some digits and leaves the others where they are. How
many messages a hop takes follows from the grids alone; the elements that stay put follow from
the places of the digits (`plan/routes/mixed_radix`). Only the few best become layouts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from meshard.algebra.layout import Cuts, Layout
from meshard.plan.hops.hop import Route
from meshard.plan.hops.jobs import total
from meshard.plan.routes.device_order import best_device_order, kept_elements, living
from meshard.plan.routes.mixed_radix import MixedRadix, closed_form_moved, mixed_radix_of
from meshard.plan.routes.relay import refined_cuts
from meshard.tuning import MOST_GRIDS, ORDERED_DEVICES, PLACED_GRIDS, ROUTES_OF_A_KIND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def candidates(
    source: Layout,
    destination: Layout,
    *,
    limit: int = 16,
    most: int | None = None,
    split: bool = True,
    alive: Collection[int] | None = None,
) -> list[Route]:
    """Return routes of two hops that may be better than one hop, the best of each kind first.

    On one set of devices they take fewer messages ("two-phase"). Between two sets they lay the
    array out again on the devices of the source ("split replicas first", which moves nothing, and
    "retile first") or of the destination ("retile last"), so that fewer messages or fewer bytes
    cross. The order is the same in every process.

    Args:
        source: where the elements are.
        destination: where they are to be.
        limit: how many routes to return at most.
        most: how many elements of the intermediate layout a device may hold; by default as many as
            it holds of the source or the destination, whichever is more.
        split: whether a box may be cut between two senders.
        alive: the ids of the devices that still have their part of the source; None for all. If
            some do not, the source's devices are left as they are.

    Returns:
        The routes; none if there are no elements, or the boxes of a layout are not a product of
        cuts.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((16, 16), (even_cuts(16, 16), (0, 16)), np.arange(16).reshape(16, 1, 1))
    >>> columns = Layout((16, 16), ((0, 16), even_cuts(16, 16)), np.arange(16).reshape(1, 16, 1))
    >>> route = candidates(rows, columns)[0]
    >>> route.name, route.layouts[1].grid
    ('two-phase', (4, 4))
    """
    if not (source.regular and destination.regular) or not math.prod(source.shape):
        return []
    if int(destination.tensor.min()) < 0 or source == destination:
        return []
    if most is None:
        most = max(math.prod(source.largest_piece), math.prod(destination.largest_piece))
    complete = int(living(source, alive).tensor.min()) >= 0
    if complete and _same_devices(source, destination):
        found = _two_phase(source, destination, most)
    else:
        found = _first(source, destination, most) if complete else []
        found += _last(source, destination, most)
    distinct: dict[Layout, Route] = {source: _none(source), destination: _none(destination)}
    for route in found:
        distinct.setdefault(route.layouts[1], route)
    own = None if alive is None else tuple(sorted(alive))
    kept = list(distinct.values())[2 : 2 + limit]
    return [replace(route, split=split, alive=own) for route in kept]


def _none(layout: Layout) -> Route:
    """Return a route that stands for a layout that is not an intermediate one."""
    return Route("", (layout, layout))


def _same_devices(a: Layout, b: Layout) -> bool:
    if a.tensor.size != b.tensor.size:
        return False
    if a.slots is not None and b.slots is not None:
        return np.array_equal(a.slots[0], b.slots[0])
    return bool((np.sort(a.tensor, axis=None) == np.sort(b.tensor, axis=None)).all())


# kinds of routes


def _two_phase(source: Layout, destination: Layout, most: int) -> list[Route]:
    direct = _direct_messages(source, destination)
    grids = _grids(source, destination, source.tensor.size, most, (1, 1))
    copies = source.tensor.size // np.prod(grids, axis=1)
    into = _messages(_one(source), source.replicas, grids, copies)
    out = _messages(grids, copies, _one(destination), destination.replicas)
    order = np.lexsort((*_outermost_first(grids), np.abs(into - out), into + out))
    order = order[(into + out < direct)[order]][:PLACED_GRIDS]
    both = mixed_radix_of([source, destination])
    routes: list[Route] = []
    least, measured = -1, 0
    for i in order.tolist():
        if len(routes) == ROUTES_OF_A_KIND or measured == ROUTES_OF_A_KIND:
            break
        grid = tuple(grids[i].tolist())
        found = None if both is None else _placed_by_digits(source, destination, grid, both)
        if found is None:
            layout = _placed(source, destination, grid)
            moved = _lacking(source, layout) + _lacking(layout, destination)
            measured += 1
        else:
            moved, layout = found
        # Those with more messages must save bytes.
        if math.prod(layout.largest_piece) <= most and (moved < least or not routes):
            least = moved
            why = (
                f"In two phases a device has about {int(into[i]):,} and {int(out[i]):,} messages, "
                f"where a direct exchange has {direct:,}."
            )
            routes.append(Route("two-phase", (source, layout, destination), why))
    return routes


def _lacking(source: Layout, destination: Layout) -> int:
    needed = math.prod(source.shape) * destination.replicas
    return needed - total(kept_elements(source, destination))


def _first(source: Layout, destination: Layout, most: int) -> list[Route]:
    """Return routes over other layouts on the devices of the source."""
    count = source.tensor.size
    direct = _direct_messages(source, destination)
    grids = _grids(source, destination, count, most, (source.replicas, 1))
    copies = count // np.prod(grids, axis=1)
    inside = _messages(_one(source), source.replicas, grids, copies)
    across = _messages(grids, copies, _one(destination), destination.replicas)
    routes = []
    # Cells cut up among their replicas: each then sends its own part, and nothing moves before.
    splits = (grids % _one(source) == 0).all(axis=1) & (copies == 1) & (source.replicas > 1)
    for i in _best(grids, splits, across)[:1]:
        layout = _placed(source, destination, tuple(grids[i].tolist()))
        why = (
            f"The {source.replicas:,} replicas of a cell keep a part each, which moves nothing; "
            f"then every one sends its own part, in about {int(across[i]):,} messages."
        )
        routes.append(Route("split replicas first", (source, layout, destination), why))
    for i in _best(grids, across < direct, across, copies, inside):
        layout = _placed(source, destination, tuple(grids[i].tolist()))
        why = (
            "The array is first laid out again on the devices that hold it; then a device has "
            f"about {int(across[i]):,} messages to or from the others instead of {direct:,}."
        )
        routes.append(Route("retile first", (source, layout, destination), why))
    return [r for r in routes if math.prod(r.layouts[1].largest_piece) <= most]


def _last(source: Layout, destination: Layout, most: int) -> list[Route]:
    """Return routes over other layouts on the devices of the destination."""
    count = destination.tensor.size
    direct = _direct_messages(source, destination)
    grids = _grids(source, destination, count, most, (1, destination.replicas))
    copies = count // np.prod(grids, axis=1)
    across = _messages(_one(source), source.replicas, grids, copies)
    inside = _messages(grids, copies, _one(destination), destination.replicas)
    fewer = copies < destination.replicas
    helps = fewer | ((copies == destination.replicas) & (across < direct))
    routes = []
    for i in _best(grids, helps, copies, across, inside):
        layout = _placed(destination, source, tuple(grids[i].tolist()))
        times = f"{_times(int(copies[i]))} instead of {_times(destination.replicas)}"
        why = (
            f"Every element crosses {times if fewer[i] else _times(int(copies[i]))}, and a device "
            f"has about {int(across[i]):,} messages to or from the others instead of {direct:,}; "
            "then the devices that need it exchange it among themselves."
        )
        routes.append(Route("retile last", (source, layout, destination), why))
    return [r for r in routes if math.prod(r.layouts[1].largest_piece) <= most]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _best(grids: Ints, wanted: NDArray[np.bool_], *figures: Ints) -> list[int]:
    """Return some grids in ascending order of figures, each better than all before in one figure.

    Of equal grids, the one that cuts outer dims more comes first.
    """
    order = np.lexsort((*_outermost_first(grids), *reversed(figures)))
    order = order[wanted[order]]
    found: list[int] = []
    while len(order) and len(found) < ROUTES_OF_A_KIND:
        i = int(order[0])
        found.append(i)
        order = order[np.any([f[order] < f[i] for f in figures], axis=0)]
    return found


def _outermost_first(grids: Ints) -> Ints:
    return -grids.T[::-1]


# grids


def _one(layout: Layout) -> Ints:
    return np.array([layout.grid], np.int64)


def _grids(
    source: Layout, destination: Layout, devices: int, most: int, replicas: tuple[int, int]
) -> Ints:
    """Return grids of cells ``[grid, dim]`` that fit a number of devices and their memory.

    Along each dim the cells are a prefix of the source's or of the destination's digits, or those
    cut further by some of the ``replicas`` of either.
    """
    options = []
    for s, d in zip(source.grid, destination.grid, strict=True):
        more = [s * k for k in _divisors(replicas[0])] + [d * k for k in _divisors(replicas[1])]
        options.append(sorted({*_divisors(s), *_divisors(d), *more}))
    ends = list(zip(source.grid, destination.grid, strict=True))
    if math.prod(map(len, options)) > MOST_GRIDS:
        options = [sorted({math.gcd(s, d), s, d}) for s, d in ends]
    if math.prod(map(len, options)) > MOST_GRIDS:
        options = [sorted({s, d}) for s, d in ends]
    mesh = np.meshgrid(*[np.array(o, np.int64) for o in options], indexing="ij")
    grids = np.stack([m.reshape(-1) for m in mesh], axis=1) if mesh else np.ones((1, 0), np.int64)
    # Products beyond the devices are found as floats, which do not overflow.
    grids = grids[np.prod(grids.astype(float), axis=1) <= devices]
    shape = np.array(source.shape, np.int64)
    piece = np.prod(-(-shape // grids).astype(float), axis=1)
    fits = (devices % np.prod(grids, axis=1) == 0) & (piece <= most)
    real = (grids <= np.maximum(shape, _ends(source, destination))).all(axis=1)
    found: Ints = grids[fits & real]
    return found


def _ends(source: Layout, destination: Layout) -> Ints:
    """Return for each dim the most cells of either, which alone may exceed its elements."""
    found: Ints = np.maximum(_one(source), _one(destination))[0]
    return found


def _divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending."""
    low = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return low + [number // k for k in reversed(low) if k * k != number]


def _messages(
    source: Ints, source_copies: Ints | int, destination: Ints, destination_copies: Ints | int
) -> Ints:
    """Return about how many messages a device receives or sends, whichever is more.

    Grids are ``[grid, dim]``; one of the two may be a single grid for all. The holders of a cell
    divide the needed elements evenly, or a part of it, if fewer devices need one than hold it.
    """
    # A device receives from every source cell that its own overlaps. If a cell has more holders
    # than devices that need it, several of them send a share each. And a device sends to all that
    # need part of its cell, divided by the holders that do the same.
    cells = np.prod(_overlapping(source, destination), axis=1)
    needed = np.prod(_overlapping(destination, source), axis=1) * destination_copies
    found: Ints = np.maximum(
        cells * np.maximum(1, source_copies // needed), -(-needed // source_copies)
    ).astype(np.int64)
    return found


def _direct_messages(source: Layout, destination: Layout) -> int:
    copies = source.replicas, destination.replicas
    return int(_messages(_one(source), copies[0], _one(destination), copies[1])[0])


def _overlapping(one: Ints, other: Ints) -> NDArray[np.float64]:
    """Return how many cells of one grid a cell of the other overlaps along each dim, at most."""
    # Of n even cells one of m overlaps n / m where they nest, and else up to one more: of 10 cells
    # one of 4 overlaps 2.5, which is 3, or 4 where it begins inside of one.
    nested = (one % other == 0) | (other % one == 0)
    found: NDArray[np.float64] = np.minimum(-(-one // other) + np.where(nested, 0, 1), one) * 1.0
    return found


# layouts


def _placed(side: Layout, other: Layout, grid: Sequence[int]) -> Layout:
    """Return a layout of a grid on the devices of one side, which differs little from that side.

    The common parts of the grid's and the side's cells along each dim stay with their devices;
    the remaining digits of the devices, replicas last, are dealt out to the remaining cells.
    """
    common = [math.gcd(n, m) for n, m in zip(side.grid, grid, strict=True)]
    rank = side.ndim
    # Of each dim's n cells the first digit, of g = gcd(n, m), says where the devices stay; the
    # other, of n / g, is handed over. Say 6 cells become 4: g is 2, and the 3 cells of each half
    # are dealt out, with the replicas, to its 2 new ones.
    split = [k for n, g in zip(side.grid, common, strict=True) for k in (g, n // g)]
    tensor = side.tensor.reshape(*split, -1)
    tensor = tensor.transpose(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank)
    needed = [m // g for m, g in zip(grid, common, strict=True)]
    tensor = tensor.reshape(*common, *needed, -1)
    order = [axis for dim in range(rank) for axis in (dim, rank + dim)]
    tensor = tensor.transpose(*order, 2 * rank).reshape(*grid, -1)
    layout = Layout(side.shape, _cuts(side, other, grid), np.ascontiguousarray(tensor))
    nests = all(n % m == 0 or m % n == 0 for n, m in zip(side.grid, grid, strict=True))
    return layout if nests or tensor.size > ORDERED_DEVICES else best_device_order(side, layout)


def _cuts(side: Layout, other: Layout, grid: Sequence[int]) -> tuple[Cuts | Ints, ...]:
    """Return the cuts of a grid: one side's, or the other's, or finer cuts than the side's own.

    Cells that are parts of the side's have cuts that refine its own.
    """
    found: list[Cuts | Ints] = []
    for mine, yours, m in zip(side.points, other.points, grid, strict=True):
        n, k = len(mine) - 1, len(yours) - 1
        if n % m == 0:
            found.append(mine[:: n // m])
        elif k % m == 0 and (m % n or np.array_equal(yours[:: k // n], mine)):
            found.append(yours[:: k // m])
        else:
            found.append(refined_cuts(mine, m // n))
    return tuple(found)


def _placed_by_digits(
    source: Layout, destination: Layout, grid: tuple[int, ...], both: list[MixedRadix]
) -> tuple[int, Layout] | None:
    """Return the elements that move in both hops, and a layout of a grid that moves fewer.

    None if the grid is not a prefix of the digits.
    """
    before, after = both
    best: tuple[int, MixedRadix] | None = None
    for near, far in ((before, after), (after, before)):
        found = _dealt(near, far, grid)
        if found is not None:
            moved = closed_form_moved(before, found) + closed_form_moved(found, after)
            if best is None or moved < best[0]:
                best = moved, found
    if best is None:
        return None
    tensor = best[1].tensor(source.tensor.reshape(-1))
    return best[0], Layout(source.shape, _cuts(source, destination, grid), tensor)


def _digit_sizes(
    near: MixedRadix, far: MixedRadix, grid: tuple[int, ...]
) -> list[list[int]] | None:
    """Return for each dim of a grid the sizes of its digits; None if the grid is not a prefix."""
    found: list[list[int]] = []
    for mine, yours, cells in zip(near.dims, far.dims, grid, strict=True):
        chain = [near.sizes[p] for p in (mine if len(mine) >= len(yours) else yours)]
        products = np.cumprod([1, *chain]).tolist()
        if cells not in products:
            return None
        found.append(chain[: products.index(cells)])
    return found


def _dealt(near: MixedRadix, far: MixedRadix, grid: tuple[int, ...]) -> MixedRadix | None:
    """Return a map for a grid: digits stay where one layout has them, or where the other has them.

    Others go to the first digit of the devices that is free. None if the grid is not a prefix.
    """
    sizes, wanted = near.sizes, _digit_sizes(near, far, grid)
    if wanted is None:
        return None
    places: list[list[int]] = [[-1] * len(w) for w in wanted]
    free = [True] * len(sizes)
    for dims in (near.dims, far.dims):
        for row, known in zip(places, dims, strict=True):
            for k, place in enumerate(known[: len(row)]):
                if row[k] < 0 and free[place]:
                    row[k], free[place] = place, False
    for row, chain in zip(places, wanted, strict=True):
        for k, size in enumerate(chain):
            if row[k] < 0:
                # There is one, since the number of cells divides the number of devices.
                row[k] = next(p for p, n in enumerate(sizes) if free[p] and n == size)
                free[row[k]] = False
    return replace(near, dims=tuple(map(tuple, places)))
