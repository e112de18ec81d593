"""Splitting a mesh along one of its axes, with the arrays on it, and joining meshes again.

In: trees of arrays on one mesh, or on several. Out: trees on parts of the mesh, or on the joined
one. No data moves: a part of an array *is* the shards of the part's devices, by reference. Its
value is those shards joined in mesh order. If the axis is the minor one of a tuple, that is not a
slice of the array; if no dim is split over it, it is the whole array.

Arrays that share the blocks of other arrays, device by device, without copying or moving.

In: arrays, and the type of another. Out: the array of that type, in which each device has the block
that it already has.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeVar, cast

import numpy as np

from meshard.algebra.arguments import flag_of, shown
from meshard.algebra.layout import Cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding, Uneven
from meshard.errors import (
    ArgumentError,
    CoverageError,
    ShapeError,
    ShardingError,
    SpecError,
    TreeError,
    did_you_mean,
)
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.runtime.array.array import Array
from meshard.runtime.trees.trees import flatten_with_plain_path, unflatten
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import here


def local_blocks(x: Array) -> dict[int, Block | None]:
    """Return the block of an array that each of this process's devices holds, by device id.

    Raises:
        DeletedArrayError: if it was deleted.
    """
    me, blocks, piece_of = here().process_index, x._live(), x._type.layout.piece_of
    local = [d.id for d in x.sharding.device_order if d.process_index == me]
    return {d: blocks[piece_of[d]] for d in local}


def of_blocks(kind: ArrayType, held: Mapping[int, Block | None]) -> Array:
    """Return an array of a type; replicas should be equal, and it has the first of them."""
    layout = kind.layout
    blocks: list[Block | None] = [None] * layout.piece_count
    for device in reversed(kind.sharding.device_order):
        if device.id in held:
            blocks[layout.piece_of[device.id]] = held[device.id]
    return Array(kind, tuple(blocks))


Leaves = list[tuple[tuple[Any, ...], Any]]
Shape = tuple[int, ...]
Laid = tuple[Shape, Uneven]
"""The shape of a result, and how its sharding says where it is cut."""

T = TypeVar("T")

_SPLIT = "split_by_mesh_axis"
_JOIN = "concatenate_by_mesh_axis"


def split_by_mesh_axis(
    arrays: T,
    mesh_axis: str,
    indices_or_sections: int | Sequence[int] | None = None,
    *,
    donate: bool = False,
) -> list[T]:
    """Split arrays and their mesh along a mesh axis, without moving data.

    Args:
        arrays: a tree of arrays with NamedShardings on one mesh.
        mesh_axis: the axis; each part's mesh keeps it, with a smaller size.
        indices_or_sections: None for one part per position of the axis; a number for that many
            equal parts; a list or tuple of the positions to cut at, as in ``numpy.split``.
        donate: delete the given arrays; their blocks live on in the parts.

    Returns:
        One tree per part, in mesh order. A part has the same spec; its value is its devices' shards
        joined in mesh order. A tree without arrays has no parts.

    Raises:
        SpecError: if the mesh has no such axis.
        ArgumentError: if the sections do not divide the axis, or the cuts do not ascend inside it.
        ShardingError: if a leaf is not an array with a NamedSharding, or is on another mesh.
        DeletedArrayError: if an array was deleted.

    >>> import numpy as np, meshard
    >>> from meshard import NamedSharding
    >>> from meshard.resharding import split_by_mesh_axis
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = meshard.device_put(np.arange(mesh.size), NamedSharding(mesh, meshard.P("x")))
    >>> [part.tolist() for part in split_by_mesh_axis(x, "x", 1)] == [x.tolist()]
    True
    """
    donate = flag_of(donate, _SPLIT, "donate")
    leaves, structure = flatten_with_plain_path(arrays)
    if not leaves:
        return []
    mesh = _one_mesh(leaves, _SPLIT, "arrays")
    place = _place(mesh, mesh_axis, _SPLIT)
    stops = _stops(indices_or_sections, mesh_axis, mesh.shape[mesh_axis])
    spans = list(pairwise((0, *stops)))
    meshes = []
    for start, stop in spans:
        positions = (slice(None),) * place + (slice(start, stop),)
        meshes.append(Mesh(mesh.devices[positions], mesh.axis_names, mesh.axis_types))
    parts: list[list[Array]] = [[] for _ in spans]
    arrays_blocks = [(x, local_blocks(x)) for _, x in leaves]
    for x, held in arrays_blocks:
        for own, span, part in zip(meshes, spans, parts, strict=True):
            laid = _part(_sharding(x), x.shape, own, mesh_axis, span)
            part.append(of_blocks(_type(own, x, laid), held))
    if donate:
        for _, leaf in leaves:
            leaf._discard(f"donated to {_SPLIT}")
    return [unflatten(structure, part) for part in parts]


def concatenate_by_mesh_axis(arrays: Sequence[T], mesh_axis: str, *, donate: bool = False) -> T:
    """Join meshes along an axis, and the arrays on them, without moving data.

    The inverse of `split_by_mesh_axis`. Devices and values are joined in the order given. A dim
    that no part splits over the axis must be the same in all; its blocks are then replicas, which
    must hold equal values.

    Args:
        arrays: a list or tuple of trees of arrays with NamedShardings, each tree on one mesh.
        mesh_axis: the axis to join along.
        donate: delete the given arrays; their blocks live on in the result.

    Returns:
        One tree on the joined mesh; an empty list if there are no trees.

    Raises:
        ArgumentError: if the trees are not given as a list or tuple, or the dtypes of one leaf
            differ.
        TreeError: if the trees' structures differ.
        SpecError: if the meshes have no such axis, or the specs of one leaf differ.
        ShardingError: if the meshes' axis names, the sizes of the other axes, or the memory kinds
            differ, a device is in two of them, or a leaf is not an array with a NamedSharding.
        ShapeError: if the ranks of one leaf differ, or the dims that are not joined.
        CoverageError: if dims that are not joined are cut differently.
        DeletedArrayError: if an array was deleted.

    >>> import numpy as np, meshard
    >>> from meshard import NamedSharding
    >>> from meshard.resharding import concatenate_by_mesh_axis, split_by_mesh_axis
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = meshard.device_put(np.arange(mesh.size), NamedSharding(mesh, meshard.P("x")))
    >>> joined = concatenate_by_mesh_axis(split_by_mesh_axis(x, "x"), "x")
    >>> joined.sharding == x.sharding, joined.tolist() == x.tolist()
    (True, True)
    """
    donate = flag_of(donate, _JOIN, "donate")
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(
            f"{_JOIN}: arrays is of type {type(arrays).__name__}; give a list or tuple of trees."
        )
    if not arrays:
        return cast("T", [])
    trees, structure = _same_trees(arrays)
    if not structure.num_leaves:
        return unflatten(structure, [])
    meshes = [_one_mesh(leaves, _JOIN, f"arrays[{i}]") for i, leaves in enumerate(trees)]
    mesh = _joined_mesh(meshes, mesh_axis)
    results = []
    for same in zip(*trees, strict=True):
        parts = [x for _, x in same]
        held = {d: block for x in parts for d, block in local_blocks(x).items()}
        _check_alike(parts, _named(same[0][0]))
        _check_dims(parts, mesh_axis, _named(same[0][0]))
        shapes = tuple([x.shape for x in parts])
        laid = _joined(tuple(map(_sharding, parts)), shapes, mesh, mesh_axis)
        results.append(of_blocks(_type(mesh, parts[0], laid), held))
    if donate:
        for leaves in trees:
            for _, leaf in leaves:
                leaf._discard(f"donated to {_JOIN}")
    return unflatten(structure, results)


# arguments


def _named(path: tuple[Any, ...], *tree: str) -> str:
    return ".".join([*tree, *map(str, path)]) or "the array"


def _same_trees(arrays: Sequence[Any]) -> tuple[list[Leaves], Any]:
    """Return the leaves of each tree, and the structure that all of them must have."""
    flat = [flatten_with_plain_path(tree) for tree in arrays]
    structure = flat[0][1]
    for i, (_, other) in enumerate(flat):
        if other != structure:
            raise TreeError(
                f"{_JOIN}: the trees must have one structure, but arrays[0] has {structure} and "
                f"arrays[{i}] has {other}."
            )
    return [leaves for leaves, _ in flat], structure


def _one_mesh(leaves: Leaves, what: str, name: str) -> Mesh:
    """Return the mesh of all leaves."""
    first: Mesh | None = None
    for path, leaf in leaves:
        whose = _named(path, name)
        if type(leaf) is not Array:
            raise ArgumentError(
                f"{what}: every leaf must be an Array with a NamedSharding, but {whose} is of "
                f"type {type(leaf).__name__}. Place it with meshard.device_put(x, "
                "NamedSharding(mesh, spec))."
            )
        sharding = leaf.sharding
        if not isinstance(sharding, NamedSharding):
            raise ShardingError(
                f"{what}: every leaf must have a NamedSharding, but {whose} has {sharding!r}. "
                "Move it with meshard.reshard(x, NamedSharding(mesh, spec))."
            )
        if first is None:
            first = sharding.mesh
        elif sharding.mesh != first:
            raise ShardingError(
                f"{what}: all leaves of a tree must be on one mesh, but "
                f"{_named(leaves[0][0], name)} is on {_mesh(first)}, and {whose} on "
                f"{_mesh(sharding.mesh)}. Reshard them to one mesh."
            )
    assert first is not None
    return first


def _mesh(mesh: Mesh) -> str:
    ids = [d.id for d in mesh.flat_devices]
    return f"{mesh!r} of devices {ids if len(ids) <= 16 else [*ids[:15], '...', ids[-1]]}"


def _place(mesh: Mesh, mesh_axis: object, what: str) -> int:
    """Return the position of an axis among a mesh's."""
    if not isinstance(mesh_axis, str) or mesh_axis not in mesh.axis_names:
        raise SpecError(
            f"{what}: mesh_axis {shown(mesh_axis)} is not found in mesh {mesh!r}; its axes are "
            f"{mesh.axis_names}.{did_you_mean(mesh_axis, mesh.axis_names)}"
        )
    return mesh.axis_names.index(mesh_axis)


def _stops(given: object, mesh_axis: str, size: int) -> tuple[int, ...]:
    """Return the positions of the axis at which the parts end."""
    axis = f"axis {mesh_axis!r} of size {size}"
    if given is None:
        return tuple(range(1, size + 1))
    if isinstance(given, (list, tuple)):
        cuts = tuple([_position(c, given) for c in given])
        if not all(a < b for a, b in pairwise((0, *cuts, size))):
            raise ArgumentError(
                f"{_SPLIT}: indices_or_sections {shown(given)} must be strictly increasing numbers "
                f"between 0 and {size}, both excluded, to cut {axis} without an empty part."
            )
        return (*cuts, size)
    sections = _position(given, given)
    if sections < 1 or size % sections:
        raise ArgumentError(
            f"{_SPLIT}: indices_or_sections asks for {sections} equal parts of {axis}; "
            f"their number must be a positive divisor of {size}. Give one, or a list of cuts."
        )
    step = size // sections
    return tuple(range(step, size + 1, step))


def _position(value: Any, given: object) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"{_SPLIT}: indices_or_sections must be None, an integer, or a list or tuple of "
            f"integers, not {shown(given)}; {shown(value)} is of type {type(value).__name__}."
        ) from None


def _joined_mesh(meshes: Sequence[Mesh], mesh_axis: str) -> Mesh:
    """Return the mesh of all devices, joined along an axis."""
    first = meshes[0]
    place = _place(first, mesh_axis, _JOIN)
    owner: dict[int, int] = {}
    for i, mesh in enumerate(meshes):
        if mesh.axis_names != first.axis_names:
            raise ShardingError(
                f"{_JOIN}: the meshes must have the same axis names in one order, but that of "
                f"arrays[0] has {first.axis_names} and that of arrays[{i}] has {mesh.axis_names}."
            )
        for axis, n in first.shape.items():
            if axis != mesh_axis and mesh.shape[axis] != n:
                raise ShardingError(
                    f"{_JOIN}: axes other than {mesh_axis!r} must have the same sizes, but "
                    f"{axis!r} has size {n} in the mesh of arrays[0] and {mesh.shape[axis]} in "
                    f"that of arrays[{i}]."
                )
        for device in mesh.flat_devices:
            if device.id in owner:
                raise ShardingError(
                    f"{_JOIN}: the meshes must have no device in common, but {device!r} is in "
                    f"those of arrays[{owner[device.id]}] and arrays[{i}]."
                )
        owner |= dict.fromkeys((d.id for d in mesh.flat_devices), i)
    devices = np.concatenate([mesh.devices for mesh in meshes], axis=place)
    return Mesh(devices, first.axis_names, first.axis_types)


def _sharding(x: Array) -> NamedSharding:
    found = x.sharding
    assert isinstance(found, NamedSharding)
    return found


def _check_alike(parts: Sequence[Array], leaf: str) -> None:
    """Refuse parts of one leaf that cannot be parts of one array."""
    first, laid = parts[0], _sharding(parts[0])
    for i, part in enumerate(parts):
        own = _sharding(part)
        if part.dtype != first.dtype:
            error: type[ValueError] = ArgumentError
            law, advice = "have one dtype", " Convert one with astype."
            had, has = f"has {first.dtype}", f"has {part.dtype}"
        elif part.ndim != first.ndim:
            error, law, advice = ShapeError, "have one rank", ""
            had, has = f"has shape {first.shape}", f"has {part.shape}"
        elif own.spec.axes(part.ndim) != laid.spec.axes(part.ndim):
            error, law, advice = SpecError, "have one spec", " Reshard one of them."
            had, has = f"has {laid.spec}", f"has {own.spec}"
        elif own.memory_kind != laid.memory_kind:
            error, law, advice = ShardingError, "be in one kind of memory", ""
            had, has = f"is in {laid.memory_kind!r}", f"in {own.memory_kind!r}"
        else:
            continue
        raise error(
            f"{_JOIN}: the parts of {leaf} must {law}, but arrays[0] {had} and arrays[{i}] {has}."
            f"{advice}"
        )


def _check_dims(parts: Sequence[Array], mesh_axis: str, leaf: str) -> None:
    """Refuse parts that differ along a dim that is not joined."""
    for dim, names in enumerate(_sharding(parts[0]).spec.axes(parts[0].ndim)):
        every = [part.aval.layout.cuts[dim] for part in parts]
        first, start = every[0], f"{_JOIN}: dim {dim} of {leaf} is not split over {mesh_axis!r}"
        for i, other in enumerate(() if mesh_axis in names else every):
            if other[-1] != first[-1]:
                raise ShapeError(
                    f"{start} and must have one size, but it has size {first[-1]} in arrays[0] "
                    f"and {other[-1]} in arrays[{i}]."
                )
            if other != first:
                raise CoverageError(
                    f"{start} and must be cut the same way, but its cut points are {first} in "
                    f"arrays[0] and {other} in arrays[{i}]. Reshard one."
                )


# layouts; what is remembered depends on nothing but the arguments, and so holds in every world


@lru_cache(maxsize=4096)
def _part(
    sharding: NamedSharding, shape: Shape, mesh: Mesh, mesh_axis: str, span: tuple[int, int]
) -> Laid:
    """Return how the part of an array between two positions of an axis is laid out on its mesh."""
    cuts = []
    for names, own in zip(sharding.spec.axes(len(shape)), sharding.dim_cuts(shape), strict=True):
        lengths = _lengths(sharding.mesh, names, own)
        if mesh_axis in names:
            lengths = lengths.take(range(*span), names.index(mesh_axis))
        cuts.append(_cuts(lengths))
    return _laid(mesh, sharding, tuple(cuts), [sharding.uneven])


@lru_cache(maxsize=4096)
def _joined(
    shardings: tuple[NamedSharding, ...], shapes: tuple[Shape, ...], mesh: Mesh, mesh_axis: str
) -> Laid:
    """Return how arrays on parts of a mesh, which may be joined, are laid out together."""
    every = [s.dim_cuts(shape) for s, shape in zip(shardings, shapes, strict=True)]
    cuts = list(every[0])
    for dim, names in enumerate(shardings[0].spec.axes(len(cuts))):
        if mesh_axis in names:
            parts = zip(shardings, every, strict=True)
            lengths = [_lengths(s.mesh, names, own[dim]) for s, own in parts]
            cuts[dim] = _cuts(np.concatenate(lengths, axis=names.index(mesh_axis)))
    return _laid(mesh, shardings[0], tuple(cuts), [s.uneven for s in shardings])


def _lengths(mesh: Mesh, axes: tuple[str, ...], cuts: Cuts) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the lengths of a dim's shards, as an array with one dim for each of its axes."""
    points = np.array(cuts, np.int64)
    return (points[1:] - points[:-1]).reshape([mesh.shape[a] for a in axes])


def _cuts(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Cuts:
    return tuple(accumulate(lengths.reshape(-1).tolist(), initial=0))


def _laid(mesh: Mesh, like: NamedSharding, cuts: tuple[Cuts, ...], rules: Sequence[Uneven]) -> Laid:
    """Return how dims are cut, said as one of the sources says it if that is true of the result.

    Args:
        mesh: the mesh of the result.
        like: a source, which has the spec.
        cuts: the cut points of each dim.
        rules: how the sources say where they are cut.
    """
    shape = tuple([c[-1] for c in cuts])
    for rule in dict.fromkeys(rules):
        uneven = rule
        if isinstance(rule, tuple):  # which may leave out the last dims
            uneven = tuple(None if r is None else c for r, c in zip(rule, cuts, strict=False))
        try:
            if NamedSharding(mesh, like.spec, uneven=uneven).dim_cuts(shape) == cuts:
                return shape, uneven
        except ShardingError:  # a dim does not divide
            continue
    placement = tuple(map(Split, like.spec.axes(len(cuts)), cuts))
    return shape, named_sharding(mesh, placement, None).uneven


def _type(mesh: Mesh, like: Array, laid: Laid) -> ArrayType:
    """Return the type of a result with the dtype, spec and memory kind of one of its sources."""
    source = _sharding(like)
    place = NamedSharding(mesh, source.spec, memory_kind=source.memory_kind, uneven=laid[1])
    return here().type_of(laid[0], like.dtype, place, True)
