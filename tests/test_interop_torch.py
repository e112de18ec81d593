"""`meshard.interop.torch`: tensors as leaves, DTensors as arrays, and jobs of four ranks.

What the ranks of a job check is in `torch_job`. Without PyTorch all of it is skipped.
"""

import doctest
import importlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, ConfigError, DtypeError

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard as Strided  # noqa: E402

import meshard.interop.torch as interop  # noqa: E402
from meshard.interop.tensors.bits import as_numpy, as_tensor  # noqa: E402
from meshard.interop.tensors.carrying import Donated, HostMemory  # noqa: E402
from meshard.interop.tensors.placed import Placed, segments  # noqa: E402
from meshard.interop.tensors.specs import placed  # noqa: E402

pytestmark = pytest.mark.no_job
ROOT = Path(__file__).parent.parent
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
OTHERS = ["bool", "uint8", "int64", "float16", "float32", "complex64", "uint16"]


# tensors where NumPy's arrays may be


@pytest.mark.parametrize("name", [*SMALL, *OTHERS])
def test_dtypes_pass_bit_by_bit(name):
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    block = as_numpy(x)
    assert block.ctypes.data == x.data_ptr()
    assert block.dtype == np.dtype(getattr(ml_dtypes, name, name))
    assert block.tobytes() == x.reshape(-1).view(torch.uint8).numpy().tobytes()
    back = as_tensor(block, "f")
    assert back.dtype == x.dtype
    assert back.data_ptr() == x.data_ptr()
    y = meshard.device_put(x, meshard.devices()[0])
    assert y.dtype == block.dtype
    assert np.asarray(y).tobytes() == block.tobytes()


def test_tensors_are_leaves():
    parameter = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
    tree = meshard.device_put({"w": parameter, "n": torch.arange(3)}, meshard.devices()[0])
    assert tree["w"].dtype == ml_dtypes.bfloat16
    assert tree["n"].tolist() == [0, 1, 2]
    assert (mnp.ones((2, 3)) + mnp.asarray(parameter)).tolist() == [[2.0] * 3] * 2
    assert mnp.add(mnp.ones(3), torch.ones(3)).tolist() == [2.0] * 3
    assert mnp.asarray(torch.arange(6).reshape(2, 3).t()).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert mnp.asarray(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    module = torch.nn.Linear(3, 2)
    state = meshard.device_put(module.state_dict(), meshard.devices()[0])
    assert state["weight"].shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: torch.zeros(3).to_sparse(), ArgumentError, "is sparse"),
        (lambda: torch.zeros(3, device="meta"), ArgumentError, "It has no data"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            ArgumentError,
            "is quantized",
        ),
        (lambda: torch.zeros(3, dtype=torch.complex32), DtypeError, "have no counterpart"),
    ],
    ids=["sparse", "meta", "quantized", "complex32"],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:.*quantiz")
def test_tensors_that_are_refused(make, error, text):
    for take in (mnp.asarray, interop.to_meshard):
        with pytest.raises(error, match=text):
            take(make())


def test_arrays_as_tensors():
    x = mnp.arange(6, dtype="bfloat16").reshape(2, 3)
    y = interop.from_meshard({"x": x, "n": 1})
    assert y["x"].data_ptr() == x._blocks[0].ctypes.data
    assert y["n"] == 1
    again = interop.to_meshard(y)
    assert again["x"]._blocks[0].ctypes.data == y["x"].data_ptr()
    assert not again["x"]._blocks[0].flags.writeable
    mesh = meshard.make_mesh((2,), ("d",))
    split = meshard.device_put(mnp.arange(6), meshard.NamedSharding(mesh, meshard.P("d")))
    assert interop.from_meshard(split).tolist() == list(range(6))
    assert torch.from_dlpack(mnp.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(DtypeError, match="random keys"):
        interop.from_meshard(meshard.random.key(0))
    with pytest.raises(DtypeError, match="PyTorch has no tensors of int4"):
        interop.from_meshard(mnp.ones(2, "int4"))
    with pytest.raises(ArgumentError, match="device_mesh and placements together"):
        interop.from_meshard(x, placements=[])
    with pytest.raises(ArgumentError, match="expected a meshard Array, got"):
        interop.from_meshard(3)


# what placements mean


def some_placed(draw):
    sizes = tuple(draw.choice([1, 2, 3, 4]) for _ in range(draw.choice([1, 2, 3])))
    shape = tuple(draw.choice([0, 1, 3, 5, 7, 8, 9]) for _ in range(draw.choice([1, 2, 3])))
    placements, steps = [], [[] for _ in shape]
    for number in range(len(sizes)):
        dim, factor = draw.randrange(len(shape)), draw.choice([1, 1, 2, 3, 4])
        if draw.random() < 0.3:
            placements.append(Replicate())
            continue
        steps[dim].append((number, factor))
        placements.append(Shard(dim) if factor == 1 else Strided(dim, split_factor=factor))
    ranks, names = tuple(range(math.prod(sizes))), ("a", "b", "c")[: len(sizes)]
    return Placed(shape, ranks, sizes, names, tuple(map(tuple, steps)), ""), placements


def test_runs_are_those_of_torch():
    draw, several = random.Random(0), 0
    for _ in range(400):
        place, placements = some_placed(draw)
        full = torch.arange(math.prod(place.shape)).reshape(place.shape)
        for rank, at in enumerate(itertools.product(*map(range, place.sizes))):
            wanted = full
            for number, placement in enumerate(placements):
                if not placement.is_replicate():
                    parts = placement._split_tensor(wanted, place.sizes[number], with_padding=False)
                    wanted = parts[0][at[number]]
            found = full
            for dim, runs in enumerate(place.runs(rank)):
                index = [i for a, b in runs for i in range(a, b)]
                found = found.index_select(dim, torch.tensor(index, dtype=torch.int64))
            assert torch.equal(found, wanted), (place, rank)
        if place.single:
            assert place.layout.shape == place.shape
        several += not place.single
        other, _ = some_placed(draw)
        uncut = tuple(() for _ in place.shape)
        other = Placed(place.shape, other.ranks, other.sizes, other.names, uncut, "")
        boxes = [s.box.volume for s in segments(place, other)]
        assert sum(boxes) == math.prod(place.shape)
    assert several > 20


def donated(going, staying=()):
    return Donated([(x, [x]) for x in going], staying)


def test_what_is_given_up():
    x = torch.zeros(4, 6)
    first, second, turned = x[:2], x[2:], x.t()
    assert donated([first]).arrived(first) == 0
    both = donated([first, second])
    assert both.arrived(first) == 0
    assert x.untyped_storage().nbytes() == 96
    twice = donated([first, x[:2].view(12)])
    assert twice.arrived(first) == twice.arrived(first) == 0
    gaps = donated([x[:, :3], x[:, 3:]])
    assert gaps.arrived(x[:, :3]) == gaps.arrived(x[:, 3:]) == 0
    assert donated([x], [second]).arrived(x) == 0
    assert donated([turned]).arrived(turned) == 96
    assert x.untyped_storage().nbytes() == 0


def test_memory_of_others_is_left_to_them():
    value = np.arange(3.0)
    x = torch.from_numpy(value)
    alias = x.view(3, 1)
    assert donated([x]).arrived(x) == 24
    assert x.shape == (3,)
    assert x.untyped_storage().nbytes() == 0
    assert alias.tolist() == [[0], [1], [2]]
    assert value.tolist() == [0, 1, 2]


def test_memory_of_large_results_is_used_again():
    memory, shape = HostMemory(), (1 << 10, 1 << 8)
    x = memory.empty(shape, torch.float32)
    place, view = x.data_ptr(), x[3:]
    x.fill_(7)
    del x
    assert memory.empty(shape, torch.float32).data_ptr() != place  # a view keeps it
    assert view.min() == 7
    del view
    assert memory.empty(shape, torch.bfloat16).dtype is torch.bfloat16
    found = {memory.empty(shape, torch.float32).data_ptr() for _ in range(2)}
    assert place in found


# in one rank


@pytest.fixture
def one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cpu", [0], mesh_dim_names=("x",))
    dist.destroy_process_group()


def test_one_rank(one):
    x = DTensor.from_local(torch.arange(6.0).reshape(2, 3), one, [Shard(0)])
    y = interop.to_meshard(x)
    assert y._blocks[0].ctypes.data == x.to_local().data_ptr()
    assert y.sharding.spec == meshard.P("x", None)
    assert interop.from_meshard(y, one, [Shard(1)]).to_local().data_ptr() == x.to_local().data_ptr()
    assert interop.redistribute(x, dtype="bfloat16").to_local().dtype == torch.bfloat16
    assert interop.to_sharding(one, [Replicate()], (4,)).is_fully_replicated
    with pytest.raises(ArgumentError, match=r"to_meshard\n?.*makes an array of it"):
        mnp.asarray(x)
    with pytest.raises(ArgumentError, match="placements holds 3"):
        placed((2,), one, [3], "f")
    with pytest.raises(ArgumentError, match="device_mesh must be"):
        interop.to_sharding(3, [], (2,))
    with pytest.raises(DtypeError, match="is not a dtype of PyTorch"):
        interop.reshard(x, (one, [Shard(0)]), dtype="int4")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["agreeing", "bits", "casting", "convert", "placed", "reshard"])
def test_examples_of_docstrings(name):
    module = importlib.import_module(f"meshard.interop.tensors.{name}")
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed


def test_without_a_group():
    with pytest.raises(ConfigError, match="there is no process group"):
        interop.initialize()
    with pytest.raises(ConfigError, match="there is no process group"):
        interop.plan({}, {})
    with pytest.raises(ConfigError, match="there is no process group"):
        interop.reshard({"w": torch.ones(2)}, {"w": None})


# in jobs


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "4"]


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env |= {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    env |= {f"OMPI_ALLOW_RUN_AS_ROOT{x}": "1" for x in ("", "_CONFIRM")}
    return env


def run(line):
    return subprocess.run(
        [sys.executable, "-m", *line],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
        env=environment(),
        check=False,
    )


def finished(line, file):
    done = run([*line, str(file)])
    assert file.exists(), (done.stdout + done.stderr)[-4000:]
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def moves(tmp_path_factory):
    file = tmp_path_factory.mktemp("torch") / "moves.json"
    return finished([*TORCHRUN, "-m", "tests.torch_job", "moves"], file)


JOB = (ROOT / "tests" / "torch_job.py").read_text()
CHECKS = re.findall(r"^    (\w+),$", JOB.partition("MOVES = [")[2].partition("]")[0], re.M)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [*CHECKS, "mismatch"])
def test_moves(moves, name):
    assert moves[name] == []


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("launcher", ["torch", "mpi"])
def test_arrays_of_the_same_memory(tmp_path, launcher):
    line = TORCHRUN
    if launcher == "mpi":
        pytest.importorskip("mpi4py")
        line = ["meshard", "run", "-n", "4", "--"]
    found = finished([*line, "-m", "tests.torch_job", "arrays"], tmp_path / "arrays.json")
    assert {name: told for name, told in found.items() if told} == {}
    assert len(found) == 3


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_function_after_each_that_was_refused(tmp_path):
    line = [*TORCHRUN[:-1], "2", "-m", "tests.torch_job", "refused"]
    found = finished(line, tmp_path / "refused.json")
    assert {name: told for name, told in found.items() if told} == {}
    assert len(found) == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_program_of_the_guide(tmp_path):
    page = (ROOT / "docs" / "migration" / "fsdp.md").read_text()
    program, printed = re.search(r"```py\n(.*?)```\n\n```\n(.*?)```", page, re.S).groups()
    file = tmp_path / "program.py"
    file.write_text(program)
    done = run([*TORCHRUN, str(file)])
    assert done.stdout == printed, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", ["near", "send"])
def test_a_rank_that_ends_is_named(tmp_path, way):
    line = [sys.executable, "-m", "tests.torch_death_job"]
    ranks = [
        subprocess.Popen([*line, str(rank), str(tmp_path), way], cwd=ROOT, env=environment())
        for rank in range(4)
    ]
    for rank in ranks:
        rank.wait(100)
    told = [(tmp_path / f"told{rank}").read_text() for rank in (0, 1, 3)]
    for one in told:
        assert one.startswith("(2,) True True reshard: the exchange with rank 2 failed"), told
