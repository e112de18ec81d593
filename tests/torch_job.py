"""A job of PyTorch's on four ranks, or two, whose checks `test_interop_torch` reads.

    PYTHON -m torch.distributed.run --nproc-per-node 4 -m tests.torch_job moves FILE
    PYTHON -m torch.distributed.run --nproc-per-node 4 -m tests.torch_job arrays FILE
    PYTHON -m torch.distributed.run --nproc-per-node 2 -m tests.torch_job refused FILE
    meshard run -n 4 -- -m tests.torch_job arrays FILE

Rank 0 writes for each check what it found wrong, or nothing.
"""

import ctypes
import gc
import json
import os
import random
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard as Strided

import meshard
import meshard.interop.torch as interop
from meshard.checkpoint import KeyMap
from meshard.errors import (
    AgreementError,
    ArgumentError,
    ConfigError,
    DeletedArrayError,
    MeshardError,
    ProcessLostError,
    ShapeError,
    ShardingError,
)
from meshard.interop.tensors import agreeing, moving
from meshard.interop.tensors import near as near_memory

R, S = Replicate(), Shard
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]


def meshes():
    """Meshes of one and two dims, of four, three and two ranks."""
    four = init_device_mesh("cpu", (4,), mesh_dim_names=("x",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    others = [[0, 1], [2, 3], [[3], [0]], [1, 2, 3]]
    return [four, square, *[DeviceMesh("cpu", ranks) for ranks in others]]


def cut(full, mesh, placements):
    """What PyTorch's own splitting leaves on this rank."""
    place = mesh.get_coordinate()
    if place is None:
        return full.new_empty(0)
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            parts = placement._split_tensor(full, mesh.size(dim), with_padding=False)[0]
            full = parts[place[dim]]
    return full.clone()


def made(full, mesh, placements):
    stride = tuple(torch.empty(full.shape, device="meta").stride())
    local = cut(full, mesh, placements)
    return DTensor.from_local(local, mesh, placements, shape=full.shape, stride=stride)


def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8)


def values(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 100).to(dtype)


def same(x, full, mesh, placements):
    wanted = cut(full, mesh, placements)
    assert x.device_mesh == mesh
    assert tuple(x.placements) == tuple(placements)
    assert x.shape == full.shape
    assert x.dtype == full.dtype
    if mesh.get_coordinate() is None:
        assert not x.to_local().numel()
        return
    local = x.to_local()
    assert local.shape == wanted.shape, (local.shape, wanted.shape)
    assert torch.equal(bits(local), bits(wanted))


def some_placements(draw, mesh, ndim):
    found = []
    for _ in range(mesh.ndim):
        kind = draw.random()
        dim = draw.randrange(ndim)
        strided = Strided(dim, split_factor=draw.choice([2, 3]))
        found.append(R if kind < 0.25 else S(dim) if kind < 0.8 else strided)
    return found


def refused(error, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as found:
        told = str(found)
    else:
        told = "nothing was refused"
    assert text in told, told


# moves between meshes


def random_pairs(near, seed, count):
    draw, known = random.Random(seed), meshes()
    for number in range(count):
        shape = [draw.choice([0, 1, 3, 5, 8, 9, 64]) for _ in range(draw.choice([1, 2, 3]))]
        dtype, before, after = draw.choice(DTYPES), draw.choice(known), draw.choice(known)
        given = some_placements(draw, before, len(shape))
        wanted = some_placements(draw, after, len(shape))
        full = values(shape, dtype, number)
        cast = draw.choice([None, None, torch.bfloat16, torch.float64])
        options = {
            "max_bytes": draw.choice([None, None, 96, 1000]),
            "donate": draw.random() < 0.3,
            "dtype": cast,
            "near": near,
        }
        x = made(full, before, given)
        try:
            y = interop.reshard({"w": x}, (after, wanted), **options)["w"]
            cast = cast if dtype.is_floating_point else None
            same(y, full.to(cast or dtype), after, wanted)
        except BaseException as error:
            error.add_note(f"{number}: {shape} {dtype} {before} {given} {after} {wanted} {options}")
            raise


def moves_by_messages():
    random_pairs(False, 1, 40)


def moves_through_memory():
    random_pairs(None, 2, 60)


def every_pair_of_one_dim():
    """All pairs of placements of a 2-D mesh to a mesh of 4, uneven: 16 of 2-D, 3 of 1-D."""
    four, square = meshes()[:2]
    full = values((7, 5), torch.float32)
    two = [[a, b] for a in (R, S(0), S(1), Strided(0, split_factor=2)) for b in (R, S(0), S(1))]
    for given in two:
        x = made(full, square, given)
        for wanted in ([R], [S(0)], [S(1)]):
            same(interop.redistribute(x, four, wanted), full, four, wanted)


def halves_of_a_job():
    """From four ranks to two, and to the other two; those that hold nothing pass None."""
    four, _, low, high = meshes()[:4]
    tree = {"a": values((9, 4), torch.bfloat16), "b": {"c": values((5,), torch.float32)}}
    x = {"a": made(tree["a"], four, [S(0)]), "b": {"c": made(tree["b"]["c"], four, [S(0)])}}
    y = interop.reshard(x, {"a": (low, [S(1)]), "b": (low, [R])})
    same(y["a"], tree["a"], low, [S(1)])
    same(y["b"]["c"], tree["b"]["c"], low, [R])
    z = interop.reshard(y if dist.get_rank() < 2 else None, (high, [S(0)]))
    same(z["a"], tree["a"], high, [S(0)])
    same(z["b"]["c"], tree["b"]["c"], high, [S(0)])
    refused(
        (ArgumentError, AgreementError),
        "passed None for the tree",
        interop.reshard,
        z if dist.get_rank() < 3 else None,
        (low, [S(0)]),
    )


def trees():
    """Plain tensors, other leaves, targets as trees, functions and DTensors; ties are kept."""
    four, square = meshes()[:2]
    w, b = values((8, 6), torch.float32), values((6,), torch.float32)
    weight = made(w, four, [S(0)])
    tied = made(w, four, [S(0)])
    tree = {"w": weight, "same": weight, "also": tied, "b": b, "step": 3, "name": "m"}
    calls = []

    def target(name, shape):
        calls.append((name, tuple(shape)))
        return None if name == "b" else (square, [S(1), R])

    y = interop.reshard(tree, target)
    same(y["w"], w, square, [S(1), R])
    assert y["w"].to_local().data_ptr() == y["same"].to_local().data_ptr()
    assert y["w"].to_local().data_ptr() != y["also"].to_local().data_ptr()
    assert y["b"] is b
    assert (y["step"], y["name"]) == (3, "m")
    assert ("w", (8, 6)) in calls
    same(interop.reshard(b, (four, [S(0)])), b, four, [S(0)])
    same(interop.reshard(weight, y["w"]), w, square, [S(1), R])
    assert weight.to_local().data_ptr() != interop.redistribute(weight).to_local().data_ptr()


def whole_tensors():
    """Tensors without a mesh or without dims, at both ends; ranks without the tree get them too."""
    four, _, low, high = meshes()[:4]
    rank = dist.get_rank()
    full, one = values((5, 4), torch.float32), torch.tensor(3.5)
    tree = {"buffer": full.clone(), "w": made(full, low, [S(0)]), "step": one}
    for near in (False, None):
        held = tree if rank < 2 else None
        y = interop.reshard(held, {"buffer": (four, [S(0)]), "w": full, "step": one}, near=near)
        same(y["buffer"], full, four, [S(0)])
        for name, value in {"w": full, "step": one}.items():
            assert type(y[name]) is torch.Tensor
            assert torch.equal(y[name], value)
        assert y["w"].data_ptr() != full.data_ptr()
        z = interop.reshard(y, lambda name, shape: (low, [R]), near=near)
        same(z["step"], one, low, [R])
        z = interop.reshard(z, lambda name, shape: (high, [R]), near=near, dtype="bfloat16")
        same(z["step"], one.bfloat16(), high, [R])
        back = interop.reshard(z, tree, near=near)
        same(back["w"], full.bfloat16(), low, [S(0)])
        assert torch.equal(back["step"], one.bfloat16())
        assert torch.equal(back["buffer"], full.bfloat16())
    kept = interop.reshard(tree if rank < 2 else None, lambda *_: None)
    assert (kept["step"] is one) == (rank < 2)


def donated():
    four, square = meshes()[:2]
    full = values((64, 32), torch.float32)
    for near in (False, None):
        x, kept = made(full, four, [S(0)]), made(full, four, [S(1)])
        pointer = kept.to_local().data_ptr()
        shared = torch.zeros(2, 64 * 32 // 4)
        part = shared[1].view(16, 32)
        part.copy_(cut(full, four, [S(0)]))
        view = DTensor.from_local(part, four, [S(0)])
        y = interop.reshard({"x": x, "view": view}, (square, [R, S(1)]), donate=True, near=near)
        same(y["x"], full, square, [R, S(1)])
        same(y["view"], full, square, [R, S(1)])
        assert x.to_local().untyped_storage().nbytes() == 0
        assert shared.untyped_storage().nbytes() == shared.numel() * 4
        again = interop.reshard(kept, (four, [S(1)]), donate=True, near=near)
        assert again.to_local().data_ptr() == pointer
        refused(DeletedArrayError, "has been given up", interop.reshard, x, (four, [R]))


def sums():
    four = meshes()[0]
    x = DTensor.from_local(torch.full((8,), float(dist.get_rank())), four, [Partial()])
    refused(ShardingError, "reduce=True", interop.reshard, x, (four, [S(0)]))
    refused(ShardingError, "part of a sum", interop.reshard, x.detach(), (four, [R]))
    text = "by the target's P(sum) on mesh dim 0 each rank would hold"
    refused(
        ShardingError, text, interop.reshard, made(torch.ones(8), four, [R]), (four, [Partial()])
    )
    y = interop.reshard(x, (four, [S(0)]), reduce=True)
    same(y, torch.full((8,), 6.0), four, [S(0)])


def layouts_of_torch():
    """Tensors that PyTorch itself has laid out, in an order that is not left to right too."""
    square = meshes()[1]
    full = values((12, 6), torch.float32)  # of an uneven strided one PyTorch makes a wrong tensor
    for placements in ([S(0), S(0)], [S(0), S(1)], [Strided(0, split_factor=2), S(0)]):
        x = distribute_tensor(full, square, placements)
        y = interop.redistribute(x)
        assert torch.equal(y.to_local(), full), placements
    z = interop.redistribute(distribute_tensor(full, square, [S(1), S(1)]), placements=[S(0), R])
    same(z, full, square, [S(0), R])


def strides():
    """Local tensors that are transposed, or windows of others, move as they are."""
    four = meshes()[0]
    full = values((8, 12), torch.float32)
    for near in (False, None):
        local = cut(full, four, [S(0)])
        turned = local.t().contiguous().t()
        window = torch.zeros(2, 14)
        window[:, 1:13] = local
        for view in (turned, window[:, 1:13]):
            x = DTensor.from_local(view, four, [S(0)], shape=full.shape, stride=(12, 1))
            same(interop.reshard(x, (four, [S(1)]), near=near), full, four, [S(1)])
            same(interop.reshard(x, (four, [R]), near=near), full, four, [R])


def large():
    """Rows of many sizes, and many chunks; casts at both ends."""
    four = meshes()[0]
    for width in (4, 96, 4096):
        full = values((max(4, (1 << 20) // width), width), torch.float32)
        x = made(full, four, [S(0)])
        for near in (False, None):
            same(interop.reshard(x, (four, [S(1)]), near=near), full, four, [S(1)])
            y = interop.reshard(x, (four, [S(1)]), near=near, dtype=torch.bfloat16)
            same(y, full.to(torch.bfloat16), four, [S(1)])
        at_once, near_memory._CHUNK = near_memory._CHUNK, 10_000  # as for tensors of gigabytes
        try:
            for wanted in ([S(1)], [R]):
                same(interop.reshard(x, (four, wanted)), full, four, wanted)
        finally:
            near_memory._CHUNK = at_once


def refusals():
    """Each raises on all ranks, and nothing has moved; then everything goes on."""
    four, square, low = meshes()[:3]
    rank = dist.get_rank()
    full = values((8, 6), torch.float32)
    x = made(full, four, [S(0)])
    call = interop.reshard
    refused(ArgumentError, "2 placements for a mesh of shape (4,)", call, x, (four, [R, R]))
    refused(ShapeError, "cuts dim 2, but the tensor", call, x, (four, [S(2)]))
    refused(ArgumentError, "target is None", call, x, None)
    refused(ArgumentError, "the target of", call, {"w": x}, {"w": 3})
    refused(ValueError, "target is a dict with the keys v, and the", call, {"w": x}, {"v": None})
    refused(ValueError, "target is a DeviceMesh, and the tree of", call, {"w": x}, four)
    text = "must be a prefix of the tree of tensors, but at m it has a tuple with the keys 0, where"
    refused(ValueError, text, call, {"m": {"w": x}}, {"m": (3,)})
    text = "a Linear is not a tree of tensors. Pass its state_dict()."
    for tree, target in ((torch.nn.Linear(2, 2), (four, [R])), (x, torch.nn.Linear(2, 2))):
        refused(ArgumentError, text, call, tree, target)
    refused(ArgumentError, text, interop.to_meshard, {"m": torch.nn.Linear(2, 2)})
    refused(ArgumentError, "a generator is not a tree", call, (y for y in [x]), (four, [R]))
    meta = {"w": torch.ones(2, device="meta")}
    refused(ArgumentError, "w is on the meta device", call, meta, (four, [R]))
    assert call(meta, lambda *_: None)["w"] is meta["w"]
    refused(ArgumentError, "max_bytes", call, x, (four, [R]), max_bytes=0)
    refused(ArgumentError, "Give at least 24", call, x, (four, [S(1)]), max_bytes=8)
    refused(
        ArgumentError, "dense tensors move", call, {"w": torch.ones(2).to_sparse()}, (four, [R])
    )
    refused(ArgumentError, "expected a DTensor", interop.redistribute, full)
    # On one rank only: the others learn of it.
    wrong = (four, [S(2)]) if rank == 1 else (four, [S(1)])
    text = "cuts dim 2" if rank == 1 else "rank 1 refused: ShapeError"
    refused((ShapeError, AgreementError), text, call, x, wrong)
    other = (square, [R, S(1)]) if rank == 2 else (square, [S(1), R])
    refused(AgreementError, "[x: float32[8, 6] cpu [S(0)] on ranks (0, 1, 2, 3) as", call, x, other)
    other = square["tp" if rank == 2 else "dp"]
    refused(AgreementError, "] ((), ((1, 1),)) on ranks", call, x, (other, [S(1)]))
    text = "options max_bytes=1002, donate=False"
    refused(AgreementError, text, call, x, (four, [R]), max_bytes=1000 + 2 * (rank == 1))
    fewer = {"w": x, "x": x} if rank == 3 else {"w": x}
    refused(AgreementError, "[tensors: 1], rank 3 has [tensors: 2]", call, fewer, (four, [R]))
    text = "by zero" if rank == 1 else "modulo by zero. Nothing has moved."
    wrong = (lambda *_: 1 // 0) if rank == 1 else (four, [R])
    refused((ZeroDivisionError, AgreementError), text, call, x, wrong)
    short = DTensor.from_local(torch.ones(2 + rank, 6), four, [S(0)], shape=(8, 6), stride=(6, 1))
    text = "gives a tensor of shape (8, 6)" if rank else "refused: ShapeError"
    refused((ShapeError, AgreementError), text, call, short, (four, [R]))
    group = dist.new_group([0, 1])
    if rank < 2:
        y = made(full, low, [S(0)])
        refused(ArgumentError, "is not in the process group", call, y, (four, [R]), group=group)
        same(call(y, (low, [S(1)]), group=group), full, low, [S(1)])
    else:
        text = f"rank {rank} is not in the process group that was given"
        refused(ArgumentError, text, call, x, (four, [R]), group=group)
        refused(ArgumentError, text, interop.plan, x, (four, [R]), group=group)
    refused(ArgumentError, "group must be a process group", call, x, (four, [R]), group=3)
    same(call(x, (four, [S(1)])), full, four, [S(1)])


def groups():
    """A group of some ranks moves by itself, with meshes of its own."""
    pair = dist.new_group([1, 3])
    one, other = DeviceMesh("cpu", [3, 1]), DeviceMesh("cpu", [1])
    full = values((9, 6), torch.float32)
    if dist.get_rank() not in (1, 3):
        return
    for near in (False, None):
        x = made(full, one, [S(0)])
        y = interop.reshard({"x": x}, (other, [R]), group=pair, near=near, max_bytes=64)["x"]
        same(y, full, other, [R])
        z = interop.reshard(y if dist.get_rank() == 1 else None, (one, [S(1)]), group=pair)
        same(z, full, one, [S(1)])


def plans():
    """A plan prints what moves, needs no communication, and is what is moved."""
    four, square = meshes()[:2]
    x = {"w": made(values((64, 32), torch.float32), four, [S(0)])}
    if dist.get_rank() == 0:
        plan = interop.plan(x, (square, [S(1), R]), topology="8-gpu hosts")
        assert plan.bytes_moved == plan.lower_bound_bytes == 2 * 64 * 32 * 4 * 3 // 4
        assert "S(0)" in str(plan)
        assert plan.check()
        cast = interop.plan(x, (square, [S(1), R]), dtype="bfloat16")
        assert 2 * cast.bytes_moved == plan.bytes_moved
        limited = interop.plan(x, (square, [S(1), R]), max_bytes=600)
        assert limited.rounds > 1
    dist.barrier()


def memory_failure():
    """A rank that has no memory for its part: all raise, and the sources are as they were."""
    four = meshes()[0]
    full = values((16, 8), torch.float32)
    x = made(full, four, [S(0)])
    own = moving.Mover._target

    def failing(self, passage, hop):
        if dist.get_rank() == 2:
            raise MemoryError("no room")
        return own(self, passage, hop)

    moving.Mover._target = failing
    try:
        for near in (False, None):
            for donate in (False, True):
                text = "ranks [2] could not take part"
                options = {"near": near, "donate": donate}
                refused(MemoryError, text, interop.reshard, x, (four, [S(1)]), **options)
    finally:
        moving.Mover._target = own
    same(interop.reshard(x, (four, [S(1)])), full, four, [S(1)])


def budget():
    """Buffers of messages take no more than max_bytes."""
    four = meshes()[0]
    full = values((512, 1024), torch.float32)
    x = made(full, four, [S(0)])
    sizes = []
    own = moving.Carrier._place

    def seen(self, boxes):
        found = own(self, boxes)
        sizes.append(found.numel())
        return found

    moving.Carrier._place = seen
    try:
        y = interop.reshard(x, (four, [S(1)]), max_bytes=60_000, near=False)
    finally:
        moving.Carrier._place = own
    same(y, full, four, [S(1)])
    assert max(sizes) <= 60_000 // 6
    assert len(sizes) > 3


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def peak():
    """By the kernel's count a rank takes no more than its result and the buffers of messages."""
    four = meshes()[0]
    x = made(torch.ones(4096, 4096), four, [S(0)])
    most = 6 << 20
    kept = []  # freed memory may stay, and would be used again
    for options in ({"near": False, "max_bytes": most}, {"max_bytes": most}):
        kept += [interop.reshard(x, (four, [S(1)]), **options) for _ in range(2)]
        ctypes.CDLL(None).malloc_trim(0)
        dist.barrier()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS")
        y = interop.reshard(x, (four, [S(1)]), **options)
        used = status("VmHWM") - before - y.to_local().nbytes
        assert used > -(1 << 20), used
        assert used <= most + (4 << 20), (options, used)
        kept.append(y)


def progress():
    four = meshes()[0]
    x = made(values((512, 64), torch.float32), four, [S(0)])
    for near in (False, None):
        told = []
        interop.reshard(x, (four, [S(1)]), progress=lambda *a, told=told: told.append(a), near=near)
        assert told[-1] == (512 * 16 * 4, 512 * 16 * 4)


def state_dicts():
    """FSDP2's sharded weights become tensor parallel ones, and come back; modules take them."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    four, square = meshes()[:2]

    def model():
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.Linear(7, 5))
        made.register_buffer("scale", torch.tensor(2.0))
        return made

    whole = model().state_dict()
    trained = model()
    for layer in trained:
        fully_shard(layer, mesh=four)
    fully_shard(trained, mesh=four)
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    served = parallelize_module(model(), square["tp"], plan)
    with torch.no_grad():
        for parameter in served.parameters():
            parameter.zero_()
    target = {
        "0.weight": (square, [R, S(0)]),
        "0.bias": (square, [R, S(0)]),
        "1.weight": (square, [R, S(1)]),
        "1.bias": (square, [R, R]),
        "scale": (square, [R, R]),
    }
    moved = interop.reshard(trained.state_dict(), target)
    for name, (mesh, placements) in target.items():
        same(moved[name], whole[name], mesh, placements)
    straight = interop.reshard(trained.state_dict(), served.state_dict())
    served.load_state_dict(straight)
    back = interop.reshard(moved, trained.state_dict())
    for taken in (served.state_dict(), back):
        for name, value in taken.items():
            if name == "scale":
                assert type(value) is torch.Tensor
                assert value == 2
            else:
                same(value, whole[name], value.device_mesh, value.placements)
    trained.load_state_dict(back)


def strangers():
    """Where a process cannot see the others' memory, all send."""
    four = meshes()[0]
    full = values((9, 9), torch.float32)
    own = near_memory.own_memory
    near_memory.own_memory = lambda *args: None if dist.get_rank() == 3 else own(*args)
    group = dist.new_group(list(range(4)))
    try:
        y = interop.redistribute(made(full, four, [S(0)]), four, [S(1)], group=group)
        same(y, full, four, [S(1)])
        assert agreeing.known_ranks(group, "f").near is None
        assert agreeing.known_ranks(None, "f").near is not None
    finally:
        near_memory.own_memory = own


def leaving():
    """A rank that leaves a move is named at once by those that wait for it; all go on."""
    four = meshes()[0]
    full = values((512, 4096), torch.float32)
    x = made(full, four, [S(0)])
    pages = len(os.listdir("/proc/self/map_files"))
    for late in (None, 1, 2):

        def told(done, total):
            if dist.get_rank() == 1 and done > total // 2:
                raise KeyboardInterrupt

        own, memory = None, near_memory._CHUNK
        near_memory._CHUNK = 1 << 16
        try:
            interop.reshard(x, (four, [S(1)]), progress=told)
        except (KeyboardInterrupt, ProcessLostError) as error:
            own = error
        near_memory._CHUNK = memory
        if dist.get_rank() == 1:
            assert type(own) is KeyboardInterrupt
        else:
            assert isinstance(own, ProcessLostError), own
            assert "rank 1 failed: it has left this call" in str(own)
            assert own.processes == (1,)
        if dist.get_rank() == late:  # what is left of the call before does not count
            time.sleep(2.5)
        for wanted in ([S(1)], [R], [S(0)]):
            same(interop.reshard(x, (four, wanted)), full, four, wanted)
    assert len(os.listdir("/proc/self/map_files")) < pages + 40


def groups_that_end():
    """Nothing here keeps a group, or a mesh of it, whose threads and sockets are PyTorch's."""

    def used():
        status = Path("/proc/self/status").read_text()
        threads = int(status.partition("Threads:")[2].split()[0])
        return threads, len(os.listdir("/proc/self/fd"))

    full = values((64, 32), torch.float32)
    counts = []
    for _ in range(4):
        group = dist.new_group(list(range(4)))
        mesh = DeviceMesh.from_group(group, "cpu")
        for near in (None, False):
            x = interop.reshard(made(full, mesh, [S(0)]), (mesh, [R]), group=group, near=near)
        same(x, full, mesh, [R])
        interop.plan({"x": x}, (mesh, [S(1)]), group=group)
        dist.destroy_process_group(group)
        del group, mesh, x
        gc.collect()
        counts.append(used())
    assert counts[-1] <= counts[1], counts


def buffers():
    """Parts in buffers, between any two meshes, by the signature of PyTorch's RFC."""
    draw, known, rank = random.Random(11), meshes(), dist.get_rank()
    for number in range(60):
        shape = [draw.choice([1, 3, 5, 8, 9, 64]) for _ in range(draw.choice([0, 1, 2, 3]))]
        before, after = draw.choice(known), draw.choice(known)
        if number % 10 == 0:
            before, after, shape = known[0], known[1], [1 << 10, 1 << 9]
        given = some_placements(draw, before, len(shape)) if shape else [R] * before.ndim
        wanted = some_placements(draw, after, len(shape)) if shape else [R] * after.ndim
        holds, gets = before.get_coordinate() is not None, after.get_coordinate() is not None
        one = draw.random() < 0.5 or {*before.mesh.flatten().tolist()} & {
            *after.mesh.flatten().tolist()
        }
        dtypes = torch.float32, torch.float32 if one else torch.bfloat16
        full = values(shape, torch.float32, number)
        old, new = cut(full, before, given), cut(full.to(dtypes[1]), after, wanted)
        rest = 3
        buf = torch.full((max(old.numel(), new.numel()) + rest,), 7, dtype=dtypes[not holds])
        if holds:
            buf[: old.numel()] = old.reshape(-1)
        kept = buf.clone()
        interop.mxn_cast(buf, old.shape, before, given, new.shape, after, wanted)
        size = new.numel() if gets else 0
        assert torch.equal(bits(buf[:size]), bits(new)[: size * buf.element_size()]), number
        assert torch.equal(buf[size:], kept[size:]), number
    four, square = known[:2]
    buf = torch.zeros(6)
    call, sizes = interop.mxn_cast, ((2, 3), four, [S(0)])
    refused(ArgumentError, "holds 3 of type int", call, buf, *sizes, (8, 3), four, [3])
    refused(
        ArgumentError,
        "buf has 6 elements, and this rank's part has 24",
        call,
        buf,
        *sizes,
        (8, 3),
        four,
        [R],
    )
    refused(
        ArgumentError, "has strides (2,)", call, torch.zeros(12)[::2], *sizes, (2, 3), four, [S(0)]
    )
    refused(
        ArgumentError, "must be a tensor of this rank", call, None, *sizes, (2, 3), four, [S(0)]
    )
    refused(ArgumentError, "dst_mesh must be a torch", call, buf, *sizes, (2, 3), 4, [S(0)])
    refused(ArgumentError, "src_local_shape must be a shape", call, buf, 6, *sizes[1:], *sizes)
    refused(
        ShapeError,
        "rank 1 gave dst_local_shape=(1, 3), but by [S(0)]",
        call,
        buf,
        *sizes,
        (1 + (rank == 0), 3),
        four,
        [S(0)],
    )
    refused(
        ShapeError,
        "of shape (8, 3), and those of dst_mesh of one of shape (8, 2)",
        call,
        buf,
        *sizes,
        (2, 2),
        four,
        [S(0)],
    )
    if rank == 2:
        refused(ArgumentError, "buf has 2 elements", call, buf[:2], *sizes, *sizes)
    else:
        refused(
            AgreementError,
            "mxn_cast: rank 2 refused: ArgumentError: mxn_cast: buf has 2",
            call,
            buf,
            *sizes,
            *sizes,
        )
    half = buf.to(torch.float16) if rank == 3 else buf
    refused(
        ArgumentError, "are of float16 (rank 3) and float32 (rank 2)", call, half, *sizes, *sizes
    )
    refused(
        ShardingError,
        "says that each rank holds a part",
        call,
        buf,
        (2, 3),
        square,
        [Partial(), S(0)],
        *sizes,
    )
    call(buf, *sizes, *sizes)


# arrays over the same memory


def same_memory():
    """DTensors and arrays at the same addresses, over 200 random placements."""
    draw, known = random.Random(3), meshes()
    rank, checked, number = dist.get_rank(), 0, 0
    whole = meshard.NamedSharding(meshard.make_mesh((len(meshard.devices()),), ("d",)), meshard.P())
    while checked < 200:
        number += 1
        mesh = draw.choice(known)
        shape = [draw.choice([0, 1, 3, 5, 8, 9]) for _ in range(draw.choice([1, 2, 3]))]
        placements = some_placements(draw, mesh, len(shape))
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.int64])
        full = values(shape, dtype, number)
        x = made(full, mesh, placements)
        try:
            array = interop.to_meshard(x)
        except ShardingError:
            refused(ShardingError, "separate boxes of the whole", interop.to_meshard, x)
            continue
        local = x.to_local()
        inside = mesh.get_coordinate() is not None and local.numel()
        if inside:
            blocks = [b for b in array._blocks if b is not None and b.size]
            first = min(b.ctypes.data for b in blocks)
            assert local.data_ptr() <= first < local.data_ptr() + local.nbytes
            assert sum(b.nbytes for b in blocks) == local.nbytes
        try:
            back = interop.from_meshard(array, mesh, placements)
        except ShardingError:
            text = "made of several boxes"
            refused(ShardingError, text, interop.from_meshard, array, mesh, placements)
        else:
            assert back.to_local().data_ptr() == local.data_ptr() or not inside
            assert back.to_local().shape == local.shape
            same(back, full, mesh, placements)
        if number % 4 == 0:
            found = interop.from_meshard(meshard.reshard(array, whole))
            assert torch.equal(found, full)
        checked += 1
    assert rank in range(4)


def arrays_as_asked():
    four, square = meshes()[:2]
    full = values((6, 9), torch.bfloat16)
    x = made(full, four, [S(0)])
    array = interop.to_meshard({"w": x, "n": 2})["w"]
    text = "first"
    refused(ShardingError, text, interop.from_meshard, array, square, [S(1), R])
    wanted = interop.to_sharding(square, [S(1), R], array.shape)
    back = interop.from_meshard(meshard.reshard(array, wanted), square, [S(1), R])
    same(back, full, square, [S(1), R])
    part = DTensor.from_local(torch.ones(4), four, [Partial()])
    refused(ShardingError, "reduce=True", interop.to_meshard, part)
    assert interop.to_meshard(part, reduce=True).tolist() == [4.0] * 4
    refused(meshard.errors.NotAddressableError, "holds 1 of the 4", interop.from_meshard, array)


def mapped():
    """Projections are fused for two ranks on the way from rows on all ranks."""
    four, square, pair = meshes()[:3]
    sizes = {"q": 64, "k": 16, "v": 16}
    full = {f"{i}.{w}": values((sizes[w], 8), torch.float32, i) for i in (0, 1) for w in sizes}
    tree = {name: made(value, four, [S(0)]) for name, value in full.items()}
    fused = KeyMap().fuse([f"{{i}}.{w}" for w in sizes], "{i}.qkv", ranks=2)
    for target in ((square, [R, S(0)]), lambda name, shape: (pair, [S(0)])):
        found = interop.reshard(tree, target, map=fused, dtype="bfloat16")
        assert sorted(found) == ["0.qkv", "1.qkv"]
        for name, x in found.items():
            place = x.device_mesh.get_coordinate()
            if place is None:
                assert x.to_local().numel() == 0
                continue
            parts = [full[f"{name[0]}.{w}"].chunk(2)[place[-1]] for w in sizes]
            assert torch.equal(x.to_local(), torch.cat(parts).bfloat16())
            x.to_local().fill_(dist.get_rank())  # of this rank alone
    for name, x in tree.items():
        same(x, full[name], four, [S(0)])
    refused(ArgumentError, "that of '0.qkv' is None", interop.reshard, tree, {}, map=fused)
    refused(ArgumentError, "map must be a", interop.reshard, tree, (four, [R]), map={})
    # What one rank refuses all refuse, and nobody waits for a message.
    rank, both = dist.get_rank(), (ArgumentError, ShapeError, AgreementError)
    text = "rank 1 has passed None" if rank == 1 else "rank 1 refused: ArgumentError"
    refused(both, text, interop.reshard, None if rank == 1 else tree, (four, [R]), map=fused)
    wrong = (four, [S(7)]) if rank == 3 else (four, [S(1)])
    text = "0.qkv: S(7) on mesh dim 0 cuts dim 7, but the tensor of shape (96, 8)"
    refused(both, text, interop.reshard, tree, wrong, map=fused)
    other = (four, [S(0)]) if rank == 2 else (four, [S(1)])
    text = "Rank 0 has [target of 0.qkv: [S(1)] on ranks (0, 1, 2, 3) as (4,)], rank 2 has"
    refused(both, text, interop.reshard, tree, other, map=fused)
    less = dist.new_group([0, 1, 2])
    if rank < 3:
        text = "with map= all ranks of the job take part, but group has [0, 1, 2]"
        refused(both, text, interop.reshard, tree, (four, [R]), map=fused, group=less)
    sums = {n: DTensor.from_local(x.full_tensor(), four, [Partial()]) for n, x in tree.items()}
    refused(ShardingError, "reduce=True", interop.reshard, sums, (four, [R]), map=fused)
    found = interop.reshard(sums, (pair, [S(0)]), map=fused, reduce=True)
    if rank < 2:
        parts = [full[f"1.{w}"].chunk(2)[rank] for w in sizes]
        assert torch.equal(found["1.qkv"].to_local(), 4 * torch.cat(parts))


# every function after each that was refused


def joining(secret):
    os.environ["MESHARD_SECRET"] = secret
    try:
        interop.initialize()
    finally:
        del os.environ["MESHARD_SECRET"]


def refusals_of(mesh):
    """For each public function a call that is refused and one that is not; also with ``map``."""
    full = values((4, 6), torch.float32)
    x, part = made(full, mesh, [S(0)]), ((2, 6), mesh, [S(0)])
    target, buf, keys = (mesh, [S(1)]), torch.zeros(12), KeyMap(rest="keep")

    return {
        "reshard": (
            lambda: interop.reshard({"w": x}, (mesh, [S(7)])),
            lambda: same(interop.reshard({"w": x}, target)["w"], full, mesh, [S(1)]),
        ),
        "redistribute": (
            lambda: interop.redistribute(full),
            lambda: same(interop.redistribute(x, *target), full, mesh, [S(1)]),
        ),
        "plan": (lambda: interop.plan(x, 3), lambda: interop.plan({"w": x}, target)),
        "mxn_cast": (
            lambda: interop.mxn_cast(buf[:5], *part, *part),
            lambda: interop.mxn_cast(buf, *part, *part),
        ),
        "shapes of mxn_cast": (
            lambda: interop.mxn_cast(buf, *part, (2, 6), mesh, [S(1)]),
            lambda: interop.mxn_cast(buf, *part, *part),
        ),
        "initialize": (lambda: joining("short"), lambda: joining("of many characters")),
        "map": (
            lambda: interop.reshard({"w": x}, {}, map=keys),
            lambda: same(interop.reshard({"w": x}, target, map=keys)["w"], full, mesh, [S(1)]),
        ),
        "to_meshard": (
            lambda: interop.to_meshard([full, x, full.to_sparse()]),
            lambda: interop.to_meshard([full, x]),
        ),
        "to_sharding": (
            lambda: interop.to_sharding(mesh, [S(7)], (4, 6)),
            lambda: interop.to_sharding(*target, (4, 6)),
        ),
        "from_meshard": (
            lambda: interop.from_meshard(3),
            lambda: interop.from_meshard(interop.to_meshard(full)),
        ),
    }


def after_refusals(refusing, going):
    """Whatever was refused, on one rank or on all, each function then works at the first try."""
    rank = dist.get_rank()
    for name, (bad, good) in refusing.items():
        for alone in (True, False):
            for after, (_, call) in going.items():
                one = good if alone and rank == 0 and name in going else bad
                told = None
                try:
                    one()
                except MeshardError as error:
                    told = error
                try:
                    assert told is not None or one is good, "nothing was refused"
                    assert "left this call" not in str(told)
                    call()
                except BaseException as error:
                    error.add_note(f"{after} after {name}, which rank 1 alone refused: {alone}")
                    raise


def refused_before_it_is_a_job():
    """What is refused leaves the ranks able to join, also if it was for want of that."""
    mesh = init_device_mesh("cpu", (2,))
    calls = refusals_of(mesh)
    going = {name: calls[name] for name in list(calls)[:6]}
    needs = {name: (calls[name][1], None) for name in ("map", "to_meshard", "to_sharding")}
    join = agreeing.join
    agreeing.join = lambda index, count, gather: [gather({"index": index}) for _ in range(2)]
    try:
        after_refusals(calls, going)
        for bad, _ in needs.values():
            refused(ConfigError, "Call meshard.interop.torch.initialize()", bad)
            calls["initialize"][1]()
    finally:
        agreeing.join = join
    # Of a group that is none the others cannot be told: the next call finds it out.
    if dist.get_rank() == 1:
        refused(ArgumentError, "group must be a process group", interop.initialize, 3)
        refused(AgreementError, "but rank 0 reshard", interop.initialize)
    else:
        refused(AgreementError, "but rank 1 initialize", calls["reshard"][1])
    other = f"of many characters, {dist.get_rank()}"
    refused(ConfigError, "0 and process 1 have different secrets", joining, other)
    interop.initialize()
    assert meshard.process_count() == 2


def refused_in_a_job():
    calls = refusals_of(init_device_mesh("cpu", (2,)))
    del calls["initialize"]
    after_refusals(calls, calls | {"initialize": (None, interop.initialize)})


MOVES = [
    moves_by_messages,
    moves_through_memory,
    every_pair_of_one_dim,
    halves_of_a_job,
    trees,
    whole_tensors,
    donated,
    sums,
    layouts_of_torch,
    strides,
    large,
    refusals,
    groups,
    plans,
    memory_failure,
    budget,
    peak,
    progress,
    state_dicts,
    strangers,
    leaving,
    groups_that_end,
    buffers,
]
ARRAYS = [same_memory, arrays_as_asked, mapped]
REFUSED = [refused_before_it_is_a_job, refused_in_a_job]


def mismatch():
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        refused(ConfigError, "has the ranks [0, 1], but the job has 4", interop.initialize, pair)
    refused(
        ConfigError,
        "PyTorch's job has 4 ranks",
        interop.to_meshard,
        made(torch.ones(4), meshes()[0], [S(0)]),
    )


def start(kind):
    limit = timedelta(seconds=60)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo", timeout=limit)
        if kind == "arrays":
            interop.initialize()
            interop.initialize()
        return
    rank, count = meshard.process_index(), meshard.process_count()
    folder = Path(tempfile.gettempdir()) / f"meshard-torch-{sys.argv[2].replace('/', '_')}"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}", rank=rank, world_size=count, timeout=limit
    )


def main(kind, file):
    torch.set_num_threads(1)
    start(kind)
    found = {}
    for check in {"moves": [*MOVES, mismatch], "arrays": ARRAYS, "refused": REFUSED}[kind]:
        told = None
        try:
            check()
        except BaseException:
            told = traceback.format_exc()
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, told)
        found[check.__name__] = [f"rank {r}: {t}" for r, t in enumerate(every) if t]
        if any(every):
            break
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
