"""DTensors as arrays and back, over the same memory; renamed, fused and split on the way.

A rank is the process of its number, and its local tensor is the block of that process's first
device. Where a local tensor is made of several boxes, these are blocks of as many devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import described, flag_of, instance_of
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.sharding import BoxSharding
from meshard.errors import (
    ArgumentError,
    ConfigError,
    DtypeError,
    NotAddressableError,
    ShapeError,
    ShardingError,
)
from meshard.interop.tensors.agreeing import (
    Note,
    check_group,
    checked_by_all,
    known_ranks,
    same,
)
from meshard.interop.tensors.bits import as_numpy, as_tensor, numpy_dtype
from meshard.interop.tensors.placed import Placed, local_index
from meshard.interop.tensors.specs import (
    DTensor,
    distributed,
    is_partial,
    mesh_of,
    placed,
    placed_of,
    torch,
    without_sums,
)
from meshard.interop.tensors.wanted import (
    Options,
    check_leaf,
    digest,
    group_ranks,
    is_pair,
    laid,
    lines,
)
from meshard.mpi.launch import is_settled
from meshard.runtime.array.array import Array, to_numpy
from meshard.runtime.moving.execute import view_of
from meshard.runtime.moving.place import checked_dtype, home
from meshard.runtime.moving.plan_reshard import Options as MoveOptions
from meshard.runtime.trees.trees import flatten_with_none, unflatten
from meshard.runtime.types import KEY, Block
from meshard.runtime.world import here
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.moving import MappedMove


def to_meshard(x: Any, *, reduce: bool = False) -> Any:
    """Return DTensors and tensors as arrays over the same memory.

    Nothing is moved and nothing is copied: the blocks are the local tensors. So writing to a tensor
    shows in the array; meshard itself never writes there.

    Args:
        x: a tensor or DTensor, or a tree of them, such as a state dict. Parameters are taken
            without their gradients; other leaves stay as they are.
        reduce: take the sum of DTensors that are ``Partial``, which communicates; otherwise they
            are refused.

    Returns:
        The arrays. That of a DTensor is laid out as its placements say, on the first device of each
        rank's process; that of a tensor is on this process's first device.

    Raises:
        ArgumentError: if a tensor is sparse, quantized or not in the host's memory, or a leaf is a
            module.
        ConfigError: if the processes of this job are not those of the process group.
        DtypeError: if NumPy and ml_dtypes do not have the dtype.
        ShapeError: if a local tensor does not have the shape that its placements say.
        ShardingError: if a DTensor is ``Partial``, or its local tensors are made of more boxes than
            each process has devices.

    >>> import torch
    >>> weights = {"w": torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))}
    >>> arrays = to_meshard(weights)
    >>> arrays["w"].dtype, arrays["w"].shape
    (dtype(bfloat16), (2, 3))
    """
    what = "to_meshard"
    return _arrays_of(x, flag_of(reduce, what, "reduce"), what)


def _arrays_of(x: Any, reduce: bool, what: str) -> Any:
    leaves, structure = flatten_with_none(x)
    known: dict[int, Any] = {}
    blocks: dict[int, Block] = {}
    # What is refused is no use of meshard yet: `initialize` can still be called.
    for leaf in leaves:
        check_leaf(leaf, what)
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
            blocks[id(leaf)] = _checked_block(leaf, what)
    for leaf in leaves:
        if isinstance(leaf, DTensor) and id(leaf) not in known:
            known[id(leaf)] = _from_dtensor(leaf, reduce, what)
    for number, block in blocks.items():
        world = here()
        known[number] = Array(world.type_of(block.shape, block.dtype, home(world), False), (block,))
    return unflatten(structure, [known.get(id(leaf), leaf) for leaf in leaves])


def _checked_block(x: Any, what: str) -> Block:
    block = _frozen(as_numpy(x, what))
    checked_dtype(block.dtype, what)
    return block


def reduced(x: Any, reduce: bool, what: str) -> Any:
    """Return a DTensor of which no sum is still to be taken."""
    if not is_partial(x):
        return x
    if not reduce:
        placed_of(x, what)  # refuses it
    with torch.no_grad():
        return x.redistribute(placements=without_sums(x.placements))


def _from_dtensor(x: Any, reduce: bool, what: str) -> Array:
    x = reduced(x, reduce, what)
    place = placed_of(x, what)
    shape, dtype = tuple(x.shape), numpy_dtype(x.dtype, what)
    devices = devices_of(place, what)
    world, boxes = here(), _boxes(place, devices, what)
    sharding = boxes or place.sharding(devices[0])
    kind = world.type_of(shape, checked_dtype(dtype, what), sharding, True)
    blocks: list[Block | None] = [None] * kind.layout.piece_count
    if world.process_index in place:
        local = local_tensor(x, place, world.process_index, what)
        value = _frozen(as_numpy(local, what))
        for piece in kind.local:
            index = local_index(place, world.process_index, kind.layout.box(piece))
            blocks[piece] = view_of(value, index) if boxes else value
    return Array(kind, tuple(blocks))


def local_tensor(x: Any, place: Placed, rank: int, what: str) -> Any:
    """Return a DTensor's local tensor, without its gradient.

    Raises:
        ShapeError: if it does not have the shape that the placements say.
    """
    with torch.no_grad():
        local = x.to_local().detach()
    wanted = place.local_shape(rank)
    if tuple(local.shape) != wanted:
        raise ShapeError(
            f"{what}: on rank {rank} the local tensor has shape {tuple(local.shape)}, but "
            f"{place.text} on a mesh of shape {place.sizes} gives a tensor of shape {place.shape} "
            f"the local shape {wanted} there. Give DTensor.from_local the whole shape, with "
            "shape= and stride=."
        )
    return local


def _frozen(block: Block) -> Block:
    """Return a view that cannot be written through."""
    view = block.view()
    view.flags.writeable = False
    return view


Devices = tuple[Callable[[int], Device], Callable[[int], list[Device]]]
"""The first device of a rank, and all of them."""


def devices_of(place: Placed, what: str) -> Devices:
    """Return which devices the ranks of a mesh have.

    Raises:
        ConfigError: if the processes of this world are not those of the process group.
    """
    alone = place.ranks == (distributed.get_rank(),) and len(here().processes) == 1
    if not alone:
        check_world(what)
    world = here()
    offset = distributed.get_rank() - world.process_index if alone else 0
    owned: dict[int, list[Device]] = {}
    for device in world.devices:
        owned.setdefault(device.process_index + offset, []).append(device)
    missing = [r for r in place.ranks if r not in owned]
    if missing:
        raise ConfigError(
            f"{what}: rank {missing[0]} of the mesh has no process among those that take part: "
            f"{list(world.processes)}."
        )
    return lambda rank: owned[rank][0], lambda rank: owned[rank]


def check_world(what: str) -> None:
    """Refuse a job whose processes are not the ranks of the process group.

    A world is not made for this: a process that has one of its own cannot join others any more.

    Raises:
        ConfigError: with what to call.
    """
    ranks, rank = distributed.get_world_size(), distributed.get_rank()
    index, count = 0, 1
    if is_settled():
        world = here()
        index, count = world.process_index, len(world.processes)
    if (index, count) == (rank, ranks):
        return
    raise ConfigError(
        f"{what}: PyTorch's job has {ranks} ranks, of which this is rank {rank}; meshard's has "
        f"{count} process{'es' * (count != 1)}, of which this is process "
        f"{index}. Call meshard.interop.torch.initialize() after init_process_group "
        "and before the first use of meshard; or move DTensors with meshard.interop.torch.reshard, "
        "which without map= needs no processes of meshard's."
    )


def _boxes(place: Placed, devices: Devices, what: str) -> Sharding | None:
    """Return the sharding of local tensors that are made of several boxes; None for one each."""
    if place.single:
        return None
    found: dict[Device, Box] = {}
    for rank in place.ranks:
        boxes = [
            Box(tuple([a for a, _ in part]), tuple([b for _, b in part]))
            for part in product(*place.runs(rank))
        ] or [place.box(rank)]
        own = devices[1](rank)
        if len(boxes) > len(own):
            raise ShardingError(
                f"{what}: by {place.text} the local tensor of rank {rank} is made of {len(boxes)} "
                f"separate boxes of the whole, and its process has {len(own)} of meshard's "
                "devices, which hold one box each. Set MESHARD_NUM_DEVICES="
                f"{len(boxes)} for each process, or reshard the DTensor first, with "
                "meshard.interop.torch.reshard."
            )
        found |= dict(zip(own, boxes, strict=False))
    return BoxSharding(place.shape, found)


# back


def from_meshard(x: Any, device_mesh: Any = None, placements: Any = None) -> Any:
    """Return arrays as DTensors, or as tensors of this process, over the same memory.

    Nothing is moved. Arrays are immutable, and the tensors are not marked so. What is written to
    one shows in the array, and in those of other processes of this host if replicas share memory,
    as they do after `meshard.reshard`: clone a tensor that is to be written to.

    Args:
        x: an array, or a tree of them; other leaves stay as they are.
        device_mesh: the mesh of the DTensors; None for tensors.
        placements: one for each dim of the mesh. The arrays must be laid out so already:
            `meshard.reshard` them to `to_sharding` of these.

    Returns:
        The DTensors; on ranks outside of the mesh with an empty local tensor. Without a mesh
        tensors, which share the memory of arrays that are one block, and are put together if they
        are several.

    Raises:
        ArgumentError: if an argument is not what is said here.
        DtypeError: if PyTorch does not have the dtype.
        NotAddressableError: if a tensor is asked for, and other processes hold parts of the array.
        ShardingError: if an array is laid out otherwise.
        ConfigError: if the processes of this job are not those of the process group.

    >>> import meshard.numpy as mnp
    >>> from_meshard(mnp.arange(3, dtype="bfloat16"))
    tensor([0., 1., 2.], dtype=torch.bfloat16)
    """
    what = "from_meshard"
    if (device_mesh is None) != (placements is None):
        raise ArgumentError(f"{what}: give device_mesh and placements together, or neither.")
    leaves, structure = flatten_with_none(x)
    known: dict[int, Any] = {}
    for leaf in leaves:
        if type(leaf) is Array and id(leaf) not in known:
            known[id(leaf)] = _tensor_of(leaf, device_mesh, placements, what)
    if not known and leaves and len(leaves) == 1:
        raise ArgumentError(f"{what}: expected a meshard Array, got {described(leaves[0])}.")
    return unflatten(structure, [known.get(id(leaf), leaf) for leaf in leaves])


def _tensor_of(x: Array, mesh: Any, placements: Any, what: str) -> Any:
    blocks, kind = x._live(), x._type
    if kind.dtype == KEY:
        raise DtypeError(
            f"{what}: {kind.str_short()} holds random keys of meshard's generator, which mean "
            "nothing to PyTorch's. Pass meshard.random.key_data(x) for their bits."
        )
    if mesh is not None:
        return _dtensor_of(x, mesh, placements, what)
    if not kind.complete:
        raise NotAddressableError(
            f"{what}: this process holds {len(kind.local)} of the {kind.layout.piece_count} pieces "
            f"of {kind.str_short()}. Pass device_mesh and placements for a DTensor, or replicate "
            "it with meshard.reshard first."
        )
    block = blocks[0] if kind.layout.piece_count == 1 else to_numpy(x, what)
    assert block is not None
    return as_tensor(block, what)


def _dtensor_of(x: Array, mesh: Any, placements: Any, what: str) -> Any:
    world, kind = here(), x._type
    place = placed(kind.shape, mesh, placements, what)
    first, _ = devices_of(place, what)
    if any(math.prod(map(len, place.runs(r))) > 1 for r in place.ranks):
        raise ShardingError(
            f"{what}: by {place.text} a local tensor is made of several boxes, which are separate "
            "blocks here. Take placements that give each rank one box, and change them with "
            "meshard.interop.torch.reshard."
        )
    layout = kind.layout
    held = {r: layout.piece_of.get(first(r).id) for r in place.ranks}
    wrong = [r for r in place.ranks if held[r] is None or not _is_box(layout, held[r], place, r)]
    if wrong:
        at = held[wrong[0]]
        has = "nothing of it" if at is None else f"the box {layout.box(at)}"
        raise ShardingError(
            f"{what}: by {place.text} rank {wrong[0]} holds the box {place.box(wrong[0])} of "
            f"{kind.str_short()}, but its device holds {has}. Nothing is moved here: pass "
            "meshard.reshard(x, meshard.interop.torch.to_sharding(device_mesh, placements, "
            "x.shape)) first."
        )
    me = world.process_index
    if me in place:
        piece = held[me]
        assert piece is not None
        block = x._live()[piece]
        assert block is not None
        local = as_tensor(block.reshape(place.local_shape(me)), what)
    else:
        local = as_tensor(np.empty(0, kind.dtype), what)
    return dtensor(local, mesh, placements, kind.shape)


def _is_box(layout: Any, piece: int | None, place: Placed, rank: int) -> bool:
    assert piece is not None
    box = place.box(rank)
    return layout.box(piece) == box or (not box.volume and not layout.box(piece).volume)


def dtensor(local: Any, mesh: Any, placements: Any, shape: tuple[int, ...]) -> Any:
    """Return the DTensor of local tensors that are laid out as placements say."""
    if not shape and mesh.get_coordinate() is None:
        local = local.new_empty(())  # PyTorch takes a shape without dims for none given
    stride = [math.prod([max(n, 1) for n in shape[i + 1 :]]) for i in range(len(shape))]
    if isinstance(placements, torch.distributed.tensor.Placement):
        placements = [placements]
    with torch.no_grad():
        return DTensor.from_local(
            local,
            mesh,
            list(placements),
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(stride),
        )


def to_sharding(device_mesh: Any, placements: Any, shape: Any) -> Sharding:
    """Return the sharding that lays an array out as placements lay a tensor out.

    Args:
        device_mesh: the mesh of ranks.
        placements: one for each of its dims.
        shape: the array's shape. PyTorch cuts by the rule of `torch.chunk`, so that the cut points
            of a dim that is not divided evenly depend on its size.

    Raises:
        ArgumentError: if they are not a mesh and placements.
        ShapeError: if a dim does not exist.
        ShardingError: if they are ``Partial``, or give a rank several boxes.
        ConfigError: if the processes of this job are not those of the process group.

    >>> import torch.distributed as dist
    >>> from torch.distributed.tensor import Shard, init_device_mesh
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> to_sharding(init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)), [Shard(1)], (2, 3)).spec
    P(None, 'dp')
    >>> dist.destroy_process_group()
    """
    what = "to_sharding"
    check_group(what)
    mesh_of(device_mesh, what)
    place = placed(tuple(map(int, shape)), device_mesh, placements, what)
    devices = devices_of(place, what)
    return _boxes(place, devices, what) or place.sharding(devices[0])


# renamed, fused and split on the way


def mapped(tree: Any, target: Any, map: KeyMap, options: Options) -> dict[str, Any]:
    """Return what a key map makes of a tree of tensors, laid out as targets say.

    All ranks agree before anything moves.

    Args:
        tree: a tree of tensors.
        target: a pair of mesh and placements, a dict of these by the map's names, or a function of
            a name and a shape.
        map: the key map.
        options: the other arguments of `reshard`.

    Raises:
        ArgumentError: if ``map`` is not a KeyMap, a name has no target, or a rank has no tree.
        AgreementError: on all other ranks if one of them refuses, and on all if they differ.
    """
    what, group = options.what, options.group
    check_group(what, group)
    jobs: list[tuple[_Mapped, list[str]]] = []

    def listed() -> Note:
        job = _Mapped(tree, target, map, options)
        jobs.append((job, job.told()))
        return Note(digest(jobs[0][1]))

    with known_ranks(group, what).call():
        notes = checked_by_all(listed, group, what)
        job, told = jobs[0]
        same(notes, told, group, what)
    return job.run()


@final
class _Mapped:
    """One move by a map on one rank; when it is made everything is checked."""

    def __init__(self, tree: Any, target: Any, map: KeyMap, options: Options) -> None:
        self._tree, self._map = tree, instance_of(map, KeyMap, options.what, "map")
        self._what, self._options = options.what, options.checked()
        check_world(self._what)
        if len(group_ranks(options.group)) != distributed.get_world_size():
            raise ArgumentError(
                f"{self._what}: with map= all ranks of the job take part, but group has "
                f"{list(group_ranks(options.group))}. Leave group out."
            )
        if tree is None:
            raise ArgumentError(
                f"{self._what}: with map= every rank passes the tree; rank "
                f"{distributed.get_rank()} has passed None. DTensors of other ranks' meshes are "
                "empty here, and cost nothing."
            )
        self._wanted = _wanted(target, self._what)
        self._laid: dict[str, tuple[Any, Any]] = {}
        self._ends: dict[str, str] = {}
        self._listing, leaves = self._options.reader().listed(tree)
        self._partial = any(entry.partial for entry in self._listing.entries)
        parts = self._listing.structure.unflatten([_part(leaf) for leaf in leaves])
        self._move = self._prepared(parts)

    def _prepared(self, tree: Any) -> MappedMove:
        o = self._options
        options = MoveOptions(o.donate, None, False, o.max_bytes, o.progress, None)
        arrays = _arrays_of(tree, o.reduce, self._what)
        return MappedMove(arrays, self._sharding, self._map, options, o.dtype)

    def _sharding(self, name: str, like: Any) -> Sharding:
        mesh, placements = self._laid[name] = self._wanted(name, torch.Size(like.shape))
        text = f"{self._what}: {name}"
        place = placed(tuple(like.shape), mesh_of(mesh, self._what), placements, text)
        self._ends[name] = laid(place)
        devices = devices_of(place, text)
        return _boxes(place, devices, text) or place.sharding(devices[0])

    def told(self) -> list[str]:
        """Return what all ranks must agree on, line by line."""
        some = ("max_bytes", "donate", "dtype", "reduce")
        options = [(name, getattr(self._options, name)) for name in some]
        ends = [f"target of {name}: {self._ends[name]}" for name in sorted(self._ends)]
        none = [None] * len(self._listing.entries)
        return [*lines(self._listing, none, options), *ends, *str(self._map).splitlines()]

    def run(self) -> dict[str, Any]:
        """Return the tensors, moved."""
        move = self._prepared(self._tree) if self._partial else self._move  # takes the sums
        found = {}
        for name, x in move.run().items():
            made = from_meshard(x, *self._laid[name])
            # Replicas share memory between the processes of a host; each rank's is its own here.
            local = made.to_local().clone(memory_format=torch.contiguous_format)
            found[name] = dtensor(local, made.device_mesh, made.placements, tuple(made.shape))
        return found


def _part(x: Any) -> Any:
    """Return a DTensor that is a sum as if its parts were the sum, and anything else as it is."""
    if not is_partial(x):
        return x
    with torch.no_grad():
        return dtensor(x.to_local(), x.device_mesh, without_sums(x.placements), tuple(x.shape))


def _wanted(target: Any, what: str) -> Callable[[str, Any], tuple[Any, Any]]:
    """Return what says for a name and a shape where a tensor goes."""

    def pair(given: Any, name: str) -> tuple[Any, Any]:
        if isinstance(given, DTensor):
            return given.device_mesh, given.placements
        if is_pair(given):
            mesh, placements = given
            return mesh, placements if isinstance(placements, (tuple, list)) else [placements]
        raise ArgumentError(
            f"{what}: with map= each tensor needs a target, and that of {name!r} is "
            f"{described(given)}. Give a pair (device_mesh, placements), a dict of pairs by the "
            "map's names, or a function of a name and a shape that returns one."
        )

    if isinstance(target, Mapping):
        return lambda name, shape: pair(target.get(name), name)
    if callable(target):
        return lambda name, shape: pair(target(name, shape), name)
    return lambda name, shape: pair(target, name)
