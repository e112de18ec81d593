"""Announcing an operation that all processes of its arrays must run in the same way.

In: a name, parameters, and the types of arrays. Out: a step of the world's agreement, if the arrays
span processes; the token is kept beside the other decisions about the same types.

What arrays have lost: the boxes that no device of a process which takes part holds.

In: a type of arrays, and the world. Out: boxes, and the ids of the devices that still hold theirs.
Nobody looks through a layout twice: the world remembers the answers until its processes change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.device import device_ids_of
from meshard.algebra.layout import Layout
from meshard.errors import DataLoss, IncompatibleDevicesError
from meshard.plan.hops.cells import CellGrid, each_device
from meshard.plan.hops.hop import only_alive
from meshard.runtime.doors import Params, innermost
from meshard.runtime.processes.agreement import (
    Agreement,
    Token,
    call_text,
    canonical,
    described,
    laid_out,
)
from meshard.runtime.processes.divergence import numbered
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld, memoized


@memoized(most=1 << 12)
def living_ids(world: RuntimeWorld, sharding: Sharding) -> frozenset[int] | None:
    """Return the ids of a sharding's devices whose processes take part; None if all of them do."""
    processes = frozenset(world.processes)
    order = sharding.device_order
    found = frozenset([d.id for d in order if d.process_index in processes])
    return None if len(found) == len(order) else found


@memoized(most=1 << 12)
def missing_boxes(world: RuntimeWorld, type_: ArrayType) -> tuple[Box, ...]:
    """Return the boxes of arrays of a type that no process which takes part holds."""
    living = living_ids(world, type_.sharding)
    return () if living is None else lost_boxes(type_.layout, living)


def alive_ids(given: object, what: str) -> frozenset[int] | None:
    """Return the ids of devices that were given as those that are alive; None if none were given.

    Raises:
        ArgumentError: if they are not devices, or ids of devices.
    """
    return None if given is None else frozenset(device_ids_of(given, what, "alive"))


def alive_part(
    world: RuntimeWorld, type_: ArrayType, given: frozenset[int] | None
) -> frozenset[int] | None:
    """Return the devices that still hold their part of an array; None if all of them do.

    Args:
        world: this process's world.
        type_: the array's type.
        given: the devices that are said to be alive; None for those of all that take part.
    """
    found = living_ids(world, type_.sharding)
    if given is None or type_.unplaced:
        return found
    ids = frozenset(type_.layout.device_ids) if found is None else found
    return found if ids <= given else ids & given


def lost_boxes(layout: Layout, alive: frozenset[int]) -> tuple[Box, ...]:
    """Return the boxes of a layout that none of some devices holds.

    >>> import numpy as np
    >>> rows = Layout((8,), ((0, 4, 8),), np.array([[0], [1]]))
    >>> lost_boxes(rows, frozenset([0]))
    (Box(starts=(4,), stops=(8,)),)
    """
    return CellGrid(layout, only_alive(each_device, alive)).lost


def agreed(world: RuntimeWorld, members: Iterable[int], key: Hashable, text: str) -> None:
    """Record that each of some processes runs an operation now.

    Args:
        world: this process's world.
        members: the processes.
        key: what must be the same on all of them, also the key of the token.
        text: the name of the operation in messages.

    Raises:
        AgreementError: if each step is compared, and another process runs another operation.
        IncompatibleDevicesError: if one of them takes part no more.
    """
    agreement = world.agreement
    if agreement is None or agreement.mode == "off":
        return
    token = _token_of_key(world, agreement, tuple(members), key, text)
    if token is not None:
        agreement.enter(token)


@memoized(most=1 << 12)
def _token_of_key(
    world: RuntimeWorld, agreement: Agreement, members: tuple[int, ...], key: Hashable, text: str
) -> Token | None:
    gone = sorted(set(members) - set(world.processes))
    if gone:
        raise IncompatibleDevicesError(
            f"{text} has devices of {numbered(gone)}, which "
            f"{'takes' if len(gone) == 1 else 'take'} part no more. meshard.elastic.restore brings "
            "arrays to devices that are left, and meshard.elastic.mesh makes a mesh of these."
        )
    return agreement.token(members, canonical(key), text)


def agree(
    world: RuntimeWorld, name: str, params: Params, types: Sequence[ArrayType | type]
) -> None:
    """Record that an operation on arrays of some types is run now.

    In a body the collectives are the steps: what is placed there, such as a value from outside, is
    placed by those only whose devices run the code at hand.

    Raises:
        AgreementError: if each step is compared, and another process runs another operation.
    """
    agreement = world.agreement
    if agreement is None or agreement.mode == "off" or innermost() is not None:
        return
    token = token_of(world, name, params, tuple(types))
    if token is not None:
        agreement.enter(token)


def agree_to_make(
    world: RuntimeWorld,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | None,
    sharding: Sharding,
) -> None:
    """Record that an array is going to be made, before the user's functions are called for it.

    If a function raises on one process only, all of them have run the same operations.

    Raises:
        AgreementError: if each step is compared, and another process runs another operation.
    """
    agreement = world.agreement
    if agreement is None or agreement.mode == "off" or innermost() is not None:
        return
    token = _token_to_make(world, agreement, name, shape, dtype, sharding)
    if token is not None:
        agreement.enter(token)


@memoized(most=1 << 12)
def _token_to_make(
    world: RuntimeWorld,
    agreement: Agreement,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | None,
    sharding: Sharding,
) -> Token | None:
    members = agreement.members([sharding])
    if members is None:
        return None
    exact, told = (laid_out(shape, dtype, sharding, exact=exact) for exact in (True, False))
    return agreement.token(members, f"{name} {exact}", f"`{name}` of {told}")


def meet(world: RuntimeWorld, members: Sequence[int], text: str) -> None:
    """Record that some processes are about to exchange objects, whatever the function is called.

    Raises:
        AgreementError: if each step is compared, and another process runs another operation.
    """
    agreement = world.agreement
    if agreement is not None:
        token = agreement.token(members, "meeting", text)
        if token is not None:
            agreement.enter(token)


@memoized(most=1 << 14)
def token_of(
    world: RuntimeWorld, name: str, params: Params, types: tuple[ArrayType | type, ...]
) -> Token | None:
    """Return the token of an operation on arrays of some types; None if nothing is to be checked.

    An uncommitted array on one device belongs to each process alone, and spans nothing.
    """
    agreement = world.agreement
    if agreement is None:
        return None
    arrays = [t for t in types if isinstance(t, ArrayType)]
    for type_ in arrays:
        check_living(world, name, type_)
    shardings: list[Sharding] = [t.sharding for t in arrays if not t.unplaced]
    members = agreement.members(shardings)
    if members is None:
        return None
    exact = [
        described(t, exact=True) if isinstance(t, ArrayType) else t.__qualname__ for t in types
    ]
    told = [described(t) if isinstance(t, ArrayType) else t.__name__ for t in types]
    text = f"{call_text(name, params)} of {', '.join(told)}"
    return agreement.token(members, f"{name} {canonical(params)} {exact}", text)


def check_living(world: RuntimeWorld, name: str, type_: ArrayType) -> None:
    """Refuse to work with an array of which some devices are gone.

    Raises:
        DataLoss: if it has lost elements.
        IncompatibleDevicesError: if all its elements are on other devices too.
    """
    order = type_.sharding.device_order
    gone = sorted({d.process_index for d in order} - set(world.processes))
    if not gone:
        return
    dead = [d for d in order if d.process_index in gone]
    lost = missing_boxes(world, type_)
    told = (
        f"{name}: of the {len(order)} devices of {described(type_)}, {len(dead)} "
        f"{'belongs' if len(dead) == 1 else 'belong'} to {numbered(gone)}, which "
        f"{'takes' if len(gone) == 1 else 'take'} part no more"
    )
    way = "meshard.elastic.restore(x, sharding) brings it to devices that are left"
    if lost:
        some = ", ".join(map(str, lost[:4])) + (", ..." if len(lost) > 4 else "")
        raise DataLoss(f"{told}; it has lost {some}. {way}, if there is a copy.", lost)
    raise IncompatibleDevicesError(f"{told}. {way}.")
