"""Movers between real processes: every way to move, the table that chooses, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard.errors import ConfigError
from meshard.runtime.settings import Table
from meshard.settings import from_environment
from tests.ranks.test_failures import run

pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)
ROOT = Path(__file__).parents[2]
TABLES = {
    "usual": {},
    "all through memory": {"pushed": 1, "replicas": 1},
    "short messages": {"memory": False, "packed": 64, "slab": 4096, "window": 8192, "typed": 1},
}


@pytest.mark.parametrize("name", TABLES)
def test_random_steps_give_what_numpy_gives(name: str, tmp_path: Path) -> None:
    program = f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.ranks.soak import main
main(60, {len(name)})
"""
    code, told, said, _ = run(tmp_path, program, 4, MESHARD_TABLE=json.dumps(TABLES[name]))
    assert code == 0, said
    assert told.count(": 60 steps, ") == 4


MESSAGES = """
from mpi4py import MPI
from meshard.mpi.messages import Datatypes, run_bytes
from meshard.mpi.outside.channel import OpenChannel
from meshard.mpi.messages import Communicator, Messages, slabs
from meshard.mpi.transport import JobTransport
from meshard.mpi.watch import MpiSideChannel
from meshard.runtime.processes.identity import KeeperLine
from meshard.runtime.settings import Table
import meshard.runtime.world
"""


def test_boxes_of_all_kinds_pass_as_messages(tmp_path: Path) -> None:
    program = """
import os
os.environ.pop("MESHARD_KEEPER", None)  # these channels are no processes
rng = np.random.default_rng(5)
def kinds(n, m):
    x = rng.integers(0, 100, (n, m)).astype(np.float64)
    return [x, x.T, x[::-1, ::2], x[1:, 3:-2], np.broadcast_to(x[:1], (n, m)), x[0, 0], x[:0],
            x[:, ::-3], x.reshape(1, n, m)[:, 5:], x.astype(np.int8)[:, 1:]]
shapes = [(9, 17), (300, 257), (700, 600)]
for table in (Table(), Table(slab=1 << 14, window=1 << 15), Table(typed=1 << 30), Table(typed=1)):
    me = MPI.COMM_WORLD.Get_rank()
    channel = OpenChannel(me, 3, MpiSideChannel(MPI.COMM_WORLD, KeeperLine()))
    transport = JobTransport(me, channel, 30, Communicator(MPI.COMM_WORLD), table)
    for n, m in shapes:
        given = kinds(n, m)  # all draw the same
        sends = [(p, [b + 0 * p for b in given] if p == 9 else given) for p in range(3) if p != me]
        targets = {p: [np.full((*b.shape, 2), -1, b.dtype)[..., 0] if i % 2 else
                       np.full(b.shape, -1, b.dtype) for i, b in enumerate(given)]
                   for p in range(3) if p != me}
        transport.exchange(sends, list(targets.items()))
        for found in targets.values():
            for a, b in zip(found, given):
                assert (a == b).all(), (table, n, m, b.shape, b.strides)
    assert transport.all_gather(("from", me), range(3)) == [("from", p) for p in range(3)]
    assert transport.all_gather(me, [0, 1, 2]) == [0, 1, 2]
    transport.barrier(range(3))
tell("all arrived")
"""
    code, told, said, _ = run(tmp_path, MESSAGES + program, 3)
    assert code == 0, said
    assert told.count("all arrived") == 3


def test_datatypes_are_kept_and_freed(tmp_path: Path) -> None:
    program = """
made = Datatypes(most=2)
x = np.arange(60.0).reshape(3, 4, 5)
first = made.message(x[:, 1:3])
assert made.message(x[:, 2:4])[2] is first[2]
assert len(made) == 1
for n in 1, 2, 3:
    made.message(x[:, :, :n])
assert len(made) == 2
again = made.message(x[:, 1:3])
assert again[2] is not first[2]
comm = MPI.COMM_SELF
found = np.zeros((3, 2, 5))
request = comm.Irecv(found, 0)
comm.Send(again, 0)
request.Wait()
assert (found == x[:, 1:3]).all()
made.free()
assert len(made) == 0
assert run_bytes(x) == x.nbytes
assert run_bytes(x[:, 1:3]) == 2 * 5 * 8
assert run_bytes(x[..., ::2]) == 8
assert [s.shape for s in slabs(x, 160)] == [(1, 4, 5)] * 3
assert [s.shape for s in slabs(x, 50)] == [(1, 1, 5)] * 12
assert [s.shape for s in slabs(x[:1, :1], 16)] == [(1, 1, 2), (1, 1, 2), (1, 1, 1)]
assert [s.shape for s in slabs(x[0, 0, 0], 1)] == [()]
tell("freed")
"""
    code, told, said, _ = run(tmp_path, MESSAGES + program, 1)
    assert code == 0, said
    assert "freed" in told


def test_replicas_on_a_host_are_one_memory(tmp_path: Path) -> None:
    program = """
from meshard.runtime.memory.arena import chunk_of
from meshard.runtime.world import here
value = np.arange(200_000.0)
y = meshard.reshard(split(value), NamedSharding(mesh, P()))
mine = y.addressable_shards[0].data._blocks[0]
assert (mine == value).all()
tell("in my arena:", chunk_of(mine) is not None, "writable:", np.asarray(y).flags.writeable)
arena = here().memory.arena
del mine, y
meshard.multihost_utils.sync_global_devices("dropped")
tell("lent:", arena.lent_bytes)
"""
    code, told, said, _ = run(tmp_path, program, 4)
    assert code == 0, said
    assert told.count("in my arena: True") == 1
    assert told.count("in my arena: False") == 3
    assert "writable: True" not in told
    assert told.count("lent: 0") == 4


def test_hosts_share_nothing_with_each_other(tmp_path: Path) -> None:
    program = """
from meshard.runtime.world import here
y = meshard.reshard(split(np.arange(200_000.0)), NamedSharding(mesh, P()))
assert (np.asarray(y.addressable_shards[0].data) == np.arange(200_000)).all()
tell("hosts", here().transport.hosts)
"""
    start = """
import os
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ["MESHARD_HOST"] = "odd" if rank % 2 else "even"
"""
    code, told, said, _ = run(tmp_path, "", 4, start=start + START_AGAIN + program)
    assert code == 0, said
    assert told.count("hosts (0, 1, 0, 1)") == 4


START_AGAIN = """
import sys
import numpy as np
import meshard
from meshard.sharding import Mesh, NamedSharding, P
me = meshard.process_index()
def tell(*words):
    sys.stdout.write(f"{me}: " + " ".join(map(str, words)) + "\\n")
mesh = meshard.make_mesh((meshard.device_count(),), ("i",))
def split(value):
    return meshard.device_put(value, NamedSharding(mesh, P("i")))
"""


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("nowhere.json", "table must be a JSON object or a file that holds one; 'nowhere.json' is"),
        ("{'pushed'", "table must be a JSON object or a file that holds one"),
        (
            '{"push": 1}',
            "must be a JSON object with the names ['packed', 'slab', 'window', 'typed', ",
        ),
        ('{"slab": 0}', "slab in table must be a positive integer, a number of bytes, not 0."),
        ('{"slab": 1.5}', "slab in table must be a positive integer, a number of bytes, not 1.5."),
        (
            '{"slab": true}',
            "slab in table must be a positive integer, a number of bytes, not true.",
        ),
        ('{"memory": 1}', "memory in table must be true or false, not 1."),
    ],
)
def test_a_table_that_is_none_is_refused(given: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match="The variable MESHARD_TABLE is set to") as refused:
        from_environment({"MESHARD_TABLE": given})
    assert complaint in str(refused.value)


def test_a_table_is_read_from_a_file_or_as_it_stands(tmp_path: Path) -> None:
    assert from_environment({})["table"] == Table()
    given = '{"slab": 7, "memory": false}'
    assert from_environment({"MESHARD_TABLE": given})["table"] == Table(slab=7, memory=False)
    file = tmp_path / "table.json"
    file.write_text('{"window": 9}')
    assert from_environment({"MESHARD_TABLE": str(file)})["table"] == Table(window=9)


def test_the_first_processs_table_holds_for_all(tmp_path: Path) -> None:
    start = """
import os
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ["MESHARD_TABLE"] = '{"slab": %d}' % (1000 + rank)
"""
    program = "from meshard.runtime.world import here\ntell(here().transport.table.slab)\n"
    code, told, said, _ = run(tmp_path, "", 3, start=start + START_AGAIN + program)
    assert code == 0, said
    assert [f"{p}: 1000" in told for p in range(3)] == [True] * 3


def test_a_killed_job_leaves_no_file(tmp_path: Path) -> None:
    program = """
import os, signal, time
y = meshard.reshard(split(np.arange(300_000.0)), NamedSharding(mesh, P()))
open(f"ready{me}", "w").close()
while len([f for f in os.listdir() if f.startswith("ready")]) < count:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    before = shared_files()
    code, _, _, seconds = run(tmp_path, program, 3)
    assert code != 0
    assert seconds < 45
    until = time.monotonic() + 10
    while shared_files() - before and time.monotonic() < until:
        time.sleep(0.1)
    assert not shared_files() - before


def shared_files() -> set[str]:
    """Return the names of meshard's files in shared memory."""
    folder = Path("/dev/shm")
    return {f.name for f in folder.iterdir() if "meshard" in f.name} if folder.exists() else set()


def test_neighbours_need_no_mpi() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import meshard.mpi.neighbours, sys; assert 'mpi4py' not in sys.modules",
        ],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
