"""Trees of DTensors renamed, fused and split on the way to another layout.

In: a tree, targets by name, and a key map. Out: a dict of DTensors by the map's names. The tensors
are moved as arrays over their own memory, so that the ranks must be joined (`initialize`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshard.errors import ArgumentError
from meshard.interop.tensors.convert import from_meshard, to_meshard, to_sharding
from meshard.interop.tensors.loading import DeviceMesh, DTensor, torch
from meshard.interop.tensors.specs import mesh_of
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.moving.reshard import reshard as reshard_arrays


def mapped(tree: Any, target: Any, map: KeyMap, what: str, **options: Any) -> dict[str, Any]:
    """Return what a key map makes of a tree of tensors, laid out as targets say.

    Args:
        tree: a tree of tensors.
        target: a pair of mesh and placements, a dict of these by the map's names, or a function of
            a name and a shape.
        map: the key map.
        what: the function that was called, for messages.
        **options: ``max_bytes``, ``donate``, ``progress``, ``dtype`` and ``reduce`` of `reshard`.

    Raises:
        ArgumentError: if ``map`` is not a KeyMap, or a name has no target.
    """
    if not isinstance(map, KeyMap):
        raise ArgumentError(
            f"{what}: map must be a meshard.checkpoint.KeyMap, got {type(map).__name__}."
        )
    laid: dict[str, tuple[Any, Any]] = {}
    wanted = _wanted(target, what)

    def sharding(name: str, like: Any) -> Any:
        mesh, placements = laid[name] = wanted(name, torch.Size(like.shape))
        return to_sharding(mesh_of(mesh, what), placements, like.shape)

    reduce = options.pop("reduce")
    arrays = to_meshard(tree, reduce=reduce)
    moved = reshard_arrays(arrays, sharding, map=map, **options)
    found = {}
    for name, x in moved.items():
        made = from_meshard(x, *laid[name])
        # Replicas share memory between the processes of a host, and each rank's is its own here.
        local = made.to_local().clone(memory_format=torch.contiguous_format)
        found[name] = DTensor.from_local(
            local,
            made.device_mesh,
            made.placements,
            run_check=False,
            shape=made.shape,
            stride=made.stride(),
        )
    return found


def _wanted(target: Any, what: str) -> Callable[[str, Any], tuple[Any, Any]]:
    """Return what says for a name and a shape where a tensor goes."""

    def pair(given: Any, name: str) -> tuple[Any, Any]:
        if isinstance(given, DTensor):
            return given.device_mesh, given.placements
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], DeviceMesh):
            mesh, placements = given
            return mesh, placements if isinstance(placements, (tuple, list)) else [placements]
        raise ArgumentError(
            f"{what}: with map= each tensor needs a target, and that of {name!r} is {given!r}. "
            "Give a pair (device_mesh, placements), a dict of pairs by the map's names, or a "
            "function of a name and a shape that returns one."
        )

    if isinstance(target, Mapping):
        return lambda name, shape: pair(target.get(name), name)
    if callable(target):
        return lambda name, shape: pair(target(name, shape), name)
    return lambda name, shape: pair(target, name)
