"""Taking a mesh apart along one of its axes, with the arrays on it, and putting it together.

No data moves: a part of an array *is* the shards of the part's devices, by reference. Its value is
those shards joined in mesh order. Where the axis is the minor one of a tuple that is not a slice of
the array; where no dim is split over it, it is the whole array.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from meshard.algebra.arguments import flag_of, shown
from meshard.algebra.layout import Cuts, Layout
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
)
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.runtime.array.array import Array
from meshard.runtime.memo import Memo
from meshard.runtime.trees import flatten_with_path, unflatten
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld, here

Leaves = list[tuple[tuple[Any, ...], Any]]
Sources = tuple[tuple[int, int, int], ...]
"""Where blocks come from: (piece of the result, number of the source, piece of that)."""


def split_by_mesh_axis(
    arrays: Any,
    mesh_axis: str,
    indices_or_sections: int | Sequence[int] | None = None,
    *,
    donate: bool = False,
) -> list[Any]:
    """Take arrays and their mesh apart along a mesh axis, without moving data.

    Args:
        arrays: a tree of arrays with NamedShardings on one mesh.
        mesh_axis: the axis; each part's mesh keeps it, with a smaller size.
        indices_or_sections: None for one part per position of the axis; a number for so many equal
            parts; a list or tuple of the positions to cut at, as ``numpy.split`` has them.
        donate: delete the arrays given; their blocks live on in the parts.

    Returns:
        One tree per part, in mesh order. A part has the same spec; its value is its devices' shards
        joined in mesh order. Of a tree without arrays there are no parts.

    Raises:
        SpecError: if the mesh has no such axis.
        ArgumentError: if the sections do not divide the axis, or the cuts do not rise inside it.
        ShardingError: if a leaf is no array with a NamedSharding, or lies on another mesh.
        DeletedArrayError: if an array was deleted.

    >>> import numpy as np, meshard
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = meshard.device_put(np.arange(mesh.size), NamedSharding(mesh, meshard.P("x")))
    >>> [part.tolist() for part in split_by_mesh_axis(x, "x", 1)] == [x.tolist()]
    True
    """
    what = "split_by_mesh_axis"
    donate = flag_of(donate, what, "donate")
    leaves, structure = flatten_with_path(arrays)
    if not leaves:
        return []
    mesh = _one_mesh(leaves, what, "arrays")
    place = _place(mesh, mesh_axis, what)
    stops = _stops(indices_or_sections, mesh_axis, mesh.shape[mesh_axis], what)
    meshes = []
    for start, stop in pairwise((0, *stops)):
        positions = (slice(None),) * place + (slice(start, stop),)
        meshes.append(Mesh(mesh.devices[positions], mesh.axis_names, mesh.axis_types))
    world = here()
    live = [leaf._live() for _, leaf in leaves]
    parts: list[list[Array]] = [[] for _ in stops]
    for (_, leaf), blocks in zip(leaves, live, strict=True):
        for (kind, sources), part in zip(
            _parts(world, leaf._type, mesh_axis, meshes), parts, strict=True
        ):
            part.append(_from_blocks(kind, sources, (blocks,)))
    if donate:
        for _, leaf in leaves:
            leaf._discard(f"donated to {what}")
    return [unflatten(structure, part) for part in parts]


def concatenate_by_mesh_axis(arrays: Sequence[Any], mesh_axis: str, *, donate: bool = False) -> Any:
    """Join meshes along an axis, and the arrays on them, without moving data.

    The inverse of `split_by_mesh_axis`. Devices and values are joined in the order given. A dim
    that no part splits over the axis must be the same in all; its blocks are then replicas, which
    must hold equal values.

    Args:
        arrays: a list or tuple of trees of arrays with NamedShardings, each tree on one mesh.
        mesh_axis: the axis to join along.
        donate: delete the arrays given; their blocks live on in the result.

    Returns:
        One tree on the joined mesh; an empty list if there are no trees.

    Raises:
        ArgumentError: if the trees are not given as a list or tuple, or the dtypes of one leaf
            differ.
        TreeError: if the trees' structures differ.
        SpecError: if the meshes have no such axis, or the specs of one leaf differ.
        ShardingError: if the meshes' axis names, the sizes of the other axes, or the memory kinds
            differ, a device stands in two of them, or a leaf is no array with a NamedSharding.
        ShapeError: if the ranks of one leaf differ, or the dims that are not joined.
        CoverageError: if dims that are not joined are cut differently.
        DeletedArrayError: if an array was deleted.

    >>> import numpy as np, meshard
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = meshard.device_put(np.arange(mesh.size), NamedSharding(mesh, meshard.P("x")))
    >>> joined = concatenate_by_mesh_axis(split_by_mesh_axis(x, "x"), "x")
    >>> joined.sharding == x.sharding, joined.tolist() == x.tolist()
    (True, True)
    """
    what = "concatenate_by_mesh_axis"
    donate = flag_of(donate, what, "donate")
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(
            f"{what}: arrays is of type {type(arrays).__name__}; give a list or tuple of trees."
        )
    if not arrays:
        return []
    flat = [flatten_with_path(tree) for tree in arrays]
    structure = flat[0][1]
    for i, (_, other) in enumerate(flat):
        if other != structure:
            raise TreeError(
                f"{what}: the trees must have one structure, but arrays[0] has {structure} and "
                f"arrays[{i}] has {other}."
            )
    if not structure.num_leaves:
        return unflatten(structure, [])
    trees = [leaves for leaves, _ in flat]
    meshes = [_one_mesh(leaves, what, f"arrays[{i}]") for i, leaves in enumerate(trees)]
    mesh = _joined_mesh(meshes, mesh_axis, what)
    world = here()
    results = []
    for same in zip(*trees, strict=True):
        parts = [leaf for _, leaf in same]
        blocks = tuple([leaf._live() for leaf in parts])
        kinds = tuple([leaf._type for leaf in parts])
        kind, sources = _join(world, kinds, mesh, mesh_axis, _named(same[0][0]))
        results.append(_from_blocks(kind, sources, blocks))
    if donate:
        for leaves in trees:
            for _, leaf in leaves:
                leaf._discard(f"donated to {what}")
    return unflatten(structure, results)


# arguments


def _named(path: tuple[Any, ...], *tree: str) -> str:
    return ".".join([*tree, *map(str, path)]) or "the array"


def _one_mesh(leaves: Leaves, what: str, name: str) -> Mesh:
    """Return the mesh that all leaves lie on."""
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
    """Return the place of an axis among a mesh's."""
    if not isinstance(mesh_axis, str) or mesh_axis not in mesh.axis_names:
        raise SpecError(
            f"{what}: mesh_axis {shown(mesh_axis)} is not found in mesh {mesh!r}; its axes are "
            f"{mesh.axis_names}."
        )
    return mesh.axis_names.index(mesh_axis)


def _stops(given: object, mesh_axis: str, size: int, what: str) -> tuple[int, ...]:
    """Return the positions of the axis at which the parts end."""
    axis = f"axis {mesh_axis!r} of size {size}"
    if given is None:
        return tuple(range(1, size + 1))
    if isinstance(given, (list, tuple)):
        cuts = tuple([_position(c, what, given) for c in given])
        if not all(a < b for a, b in pairwise((0, *cuts, size))):
            raise ArgumentError(
                f"{what}: indices_or_sections {shown(given)} must be strictly increasing numbers "
                f"between 0 and {size}, both excluded, to cut {axis} without an empty part."
            )
        return (*cuts, size)
    sections = _position(given, what, given)
    if sections < 1 or size % sections:
        raise ArgumentError(
            f"{what}: indices_or_sections asks for {sections} equal parts of {axis}, which "
            f"{sections} does not divide. Give a divisor of {size}, or a list of cuts."
        )
    step = size // sections
    return tuple(range(step, size + 1, step))


def _position(value: Any, what: str, given: object) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"{what}: indices_or_sections {shown(given)} is not None, an integer, or a list or "
            f"tuple of integers; {shown(value)} is of type {type(value).__name__}."
        ) from None


def _joined_mesh(meshes: Sequence[Mesh], mesh_axis: str, what: str) -> Mesh:
    first = meshes[0]
    place = _place(first, mesh_axis, what)
    owner: dict[int, int] = {}
    for i, mesh in enumerate(meshes):
        if mesh.axis_names != first.axis_names:
            raise ShardingError(
                f"{what}: the meshes must have the same axis names in one order, but that of "
                f"arrays[0] has {first.axis_names} and that of arrays[{i}] has {mesh.axis_names}."
            )
        for axis, n in first.shape.items():
            if axis != mesh_axis and mesh.shape[axis] != n:
                raise ShardingError(
                    f"{what}: axes other than {mesh_axis!r} must have the same sizes, but "
                    f"{axis!r} has size {n} in the mesh of arrays[0] and {mesh.shape[axis]} in "
                    f"that of arrays[{i}]."
                )
        for device in mesh.flat_devices:
            if device.id in owner:
                raise ShardingError(
                    f"{what}: the meshes must have no device in common, but {device!r} is in "
                    f"those of arrays[{owner[device.id]}] and arrays[{i}]."
                )
        owner |= dict.fromkeys((d.id for d in mesh.flat_devices), i)
    devices = np.concatenate([mesh.devices for mesh in meshes], axis=place)
    return Mesh(devices, first.axis_names, first.axis_types)


# layouts


def _lengths(mesh: Mesh, axes: tuple[str, ...], cuts: Cuts) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the lengths of a dim's shards, as an array with one dim for each of its axes."""
    points = np.array(cuts, np.int64)
    return (points[1:] - points[:-1]).reshape([mesh.shape[a] for a in axes])


def _cuts(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Cuts:
    return tuple(accumulate(lengths.reshape(-1).tolist(), initial=0))


def _laid(
    mesh: Mesh, like: NamedSharding, cuts: tuple[Cuts, ...], rules: Sequence[Uneven]
) -> NamedSharding:
    """Return the sharding on a mesh with given cuts, said as one of the sources says its own.

    Args:
        mesh: the mesh.
        like: what has the spec and the memory kind.
        cuts: the cut points of each dim.
        rules: how the sources say where they are cut.
    """
    shape = tuple([c[-1] for c in cuts])
    for rule in dict.fromkeys(rules):
        uneven = rule
        if isinstance(rule, tuple):
            uneven = tuple(
                None if r is None else c
                for r, c in zip(rule, cuts, strict=False)  # the last dims may have none
            )
        found = NamedSharding(mesh, like.spec, memory_kind=like.memory_kind, uneven=uneven)
        try:
            if found.dim_cuts(shape) == cuts:
                return found
        except ShardingError:  # a dim does not divide
            continue
    placement = tuple(map(Split, like.spec.axes(len(cuts)), cuts))
    uneven = named_sharding(mesh, placement, like.memory_kind).uneven
    return NamedSharding(mesh, like.spec, memory_kind=like.memory_kind, uneven=uneven)


_PARTS: Memo[tuple[ArrayType, str, tuple[int, ...]], list[tuple[ArrayType, Sources]]] = Memo(
    "parts", 1 << 12
)
_JOINED: Memo[tuple[tuple[ArrayType, ...], str], tuple[ArrayType, Sources]] = Memo(
    "joined parts", 1 << 12
)


def _parts(
    world: RuntimeWorld, kind: ArrayType, mesh_axis: str, meshes: Sequence[Mesh]
) -> list[tuple[ArrayType, Sources]]:
    """Return the type of each part of an array, and where its blocks are found."""
    sizes = tuple([mesh.shape[mesh_axis] for mesh in meshes])
    key = kind, mesh_axis, sizes
    known = _PARTS.table(world).get(key)
    if known is not None:
        return known
    sharding = kind.sharding
    assert isinstance(sharding, NamedSharding)
    axes = sharding.spec.axes(kind.ndim)
    found = []
    for mesh, (start, stop) in zip(meshes, pairwise(accumulate(sizes, initial=0)), strict=True):
        cuts = []
        for dim, names in enumerate(axes):
            lengths = _lengths(sharding.mesh, names, kind.layout.cuts[dim])
            if mesh_axis in names:
                lengths = lengths.take(range(start, stop), names.index(mesh_axis))
            cuts.append(_cuts(lengths))
        laid = _laid(mesh, sharding, tuple(cuts), [sharding.uneven])
        part = world.type_of(tuple([c[-1] for c in cuts]), kind.dtype, laid, True)
        found.append((part, _sources(world, part, [kind.layout])))
    return _PARTS.keep(world, key, found)


def _join(
    world: RuntimeWorld, kinds: tuple[ArrayType, ...], mesh: Mesh, mesh_axis: str, leaf: str
) -> tuple[ArrayType, Sources]:
    """Return the type of the joined array, and where its blocks are found."""
    key = kinds, mesh_axis
    known = _JOINED.table(world).get(key)
    if known is not None:
        return known
    shardings = [kind.sharding for kind in kinds]
    named = [s for s in shardings if isinstance(s, NamedSharding)]
    first, laid = kinds[0], named[0]
    for i, (kind, sharding) in enumerate(zip(kinds, named, strict=True)):
        _check_alike(first, laid, kind, sharding, i, leaf)
    cuts: list[Cuts] = []
    for dim, names in enumerate(laid.spec.axes(first.ndim)):
        if mesh_axis in names:
            lengths = [
                _lengths(s.mesh, names, kind.layout.cuts[dim])
                for kind, s in zip(kinds, named, strict=True)
            ]
            cuts.append(_cuts(np.concatenate(lengths, axis=names.index(mesh_axis))))
            continue
        for i, kind in enumerate(kinds):
            _check_dim(dim, first.layout.cuts[dim], kind.layout.cuts[dim], i, mesh_axis, leaf)
        cuts.append(first.layout.cuts[dim])
    whole = _laid(mesh, laid, tuple(cuts), [s.uneven for s in named])
    result = world.type_of(tuple([c[-1] for c in cuts]), first.dtype, whole, True)
    sources = _sources(world, result, [kind.layout for kind in kinds])
    return _JOINED.keep(world, key, (result, sources))


def _check_alike(
    first: ArrayType,
    laid: NamedSharding,
    kind: ArrayType,
    sharding: NamedSharding,
    i: int,
    leaf: str,
) -> None:
    """Refuse two sources of one leaf that cannot be parts of one array."""
    what = "concatenate_by_mesh_axis"
    if kind.dtype != first.dtype:
        raise ArgumentError(
            f"{what}: the parts of {leaf} must have one dtype, but arrays[0] has {first.dtype} "
            f"and arrays[{i}] has {kind.dtype}. Convert one with astype."
        )
    if kind.ndim != first.ndim:
        raise ShapeError(
            f"{what}: the parts of {leaf} must have one rank, but arrays[0] has shape "
            f"{first.shape} and arrays[{i}] has {kind.shape}."
        )
    if sharding.spec.axes(kind.ndim) != laid.spec.axes(kind.ndim):
        raise SpecError(
            f"{what}: the parts of {leaf} must have one spec, but arrays[0] has {laid.spec} and "
            f"arrays[{i}] has {sharding.spec}. Reshard one of them."
        )
    if sharding.memory_kind != laid.memory_kind:
        raise ShardingError(
            f"{what}: the parts of {leaf} must be in one kind of memory, but arrays[0] is in "
            f"{laid.memory_kind!r} and arrays[{i}] in {sharding.memory_kind!r}."
        )


def _check_dim(dim: int, cuts: Cuts, other: Cuts, i: int, mesh_axis: str, leaf: str) -> None:
    """Refuse sources that differ along a dim that is not joined."""
    what = "concatenate_by_mesh_axis"
    if cuts[-1] != other[-1]:
        raise ShapeError(
            f"{what}: dim {dim} of {leaf} is not split over {mesh_axis!r} and must have one size, "
            f"but it has size {cuts[-1]} in arrays[0] and {other[-1]} in arrays[{i}]."
        )
    if cuts != other:
        raise CoverageError(
            f"{what}: dim {dim} of {leaf} is not split over {mesh_axis!r} and must be cut the same "
            f"way, but its cut points are {cuts} in arrays[0] and {other} in arrays[{i}]. Reshard "
            "one."
        )


# blocks


def _sources(world: RuntimeWorld, kind: ArrayType, layouts: Sequence[Layout]) -> Sources:
    """Return where the block of each local piece of an array is found among its sources'."""
    where = {
        d: (i, piece) for i, layout in enumerate(layouts) for d, piece in layout.piece_of.items()
    }
    processes = world.process_map(kind.sharding)
    found = []
    for piece in kind.local:
        mine = next(
            d
            for d in kind.layout.holders(piece)
            if processes is None or processes[d] == world.process_index
        )
        found.append((piece, *where[mine]))
    return tuple(found)


def _from_blocks(kind: ArrayType, sources: Sources, blocks: Sequence[Any]) -> Array:
    """Return an array of blocks that its sources hold."""
    found: list[Any] = [None] * kind.layout.piece_count
    for piece, number, place in sources:
        found[piece] = blocks[number][place]
        assert found[piece].shape == kind.layout.box(piece).shape
    return Array(kind, tuple(found))
