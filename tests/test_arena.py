"""Arenas: memory that neighbours map; here two processes are a pair of maps in one."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from meshard.runtime.memory.arena import Arena, Neighbour, chunk_of
from meshard.runtime.memory.pages import Pages

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no memory files"
)
F8 = np.dtype(np.float64)
LARGE = 1 << 16  # float64s: 512 KiB


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    made.open_arena(3)
    yield made
    made.close()


def neighbour(pages: Pages, place: int = 1) -> Neighbour:
    return Neighbour(pages.arena.handle, place, 3)


def lent(pages: Pages, block: np.ndarray, *places: int) -> tuple[int, int]:
    chunk = chunk_of(block)
    pages.arena.lend(chunk, places)
    return chunk.offset, pages.arena.offset_of(block)


def test_what_the_owner_writes_a_neighbour_reads_and_the_other_way_round(pages):
    x = pages.reachable((LARGE // 4, 4), F8)
    x[...] = np.arange(LARGE).reshape(x.shape)
    peer = neighbour(pages)
    chunk, start = lent(pages, x, 1)
    seen = peer.borrowed(chunk, start, x.shape, F8)
    assert (seen == x).all()
    assert not seen.flags.writeable
    assert seen.__array_interface__["data"][0] != x.__array_interface__["data"][0]
    column = x[::-1, 1:3]
    peer.at(pages.arena.offset_of(column), column.shape, F8, column.strides)[...] = 7
    assert (x[:, 1:3] == 7).all()
    assert (x[:, 0] == np.arange(0, LARGE, 4)).all()
    assert (seen == x).all()


def test_small_blocks_and_other_memory_are_not_in_the_arena(pages):
    assert chunk_of(pages.reachable((10,), F8)) is None
    other = pages.allocate((LARGE,), F8)
    assert chunk_of(other) is None
    assert pages.arena.offset_of(other) is None
    without = Pages()
    assert chunk_of(without.reachable((LARGE,), F8)) is None


def test_a_chunk_is_used_again_when_nobody_holds_it(pages):
    x = pages.reachable((LARGE,), F8)
    view, where = x[::7], x.__array_interface__["data"][0]
    del x
    other = pages.reachable((LARGE,), F8)
    assert other.__array_interface__["data"][0] != where
    del view
    assert pages.reachable((LARGE,), F8).__array_interface__["data"][0] == where


def test_a_chunk_is_not_used_while_a_neighbour_holds_it(pages):
    x = pages.reachable((LARGE,), F8)
    x[:] = 7
    where = x.__array_interface__["data"][0]
    peers = [neighbour(pages, 1), neighbour(pages, 2)]
    chunk, start = lent(pages, x, 1, 2)
    lent(pages, x, 1)
    seen = [p.borrowed(chunk, start, (LARGE,), F8) for p in (*peers, peers[0])]
    part = seen[0][5:9]
    del x
    gc.collect()
    assert pages.arena.lent_bytes > LARGE * 8
    while seen:
        seen.pop()
        other = pages.reachable((LARGE,), F8)
        other[:] = -1
        assert other.__array_interface__["data"][0] != where
        assert (part == 7).all()
    del part, other
    assert pages.arena.lent_bytes == 0
    places = set()
    kept = []
    for _ in range(4):
        kept.append(pages.reachable((LARGE,), F8))
        places.add(kept[-1].__array_interface__["data"][0])
    assert where in places


def test_idle_memory_is_kept_up_to_a_limit_and_given_back(pages):
    pages.arena.keep = 3 * LARGE * 8
    blocks = [pages.reachable((LARGE,), F8) for _ in range(5)]
    for block in blocks:
        block[:] = 5
    del block, blocks
    assert 0 < pages.arena.idle_bytes <= 3 * LARGE * 8
    before = memory(pages)
    pages.trim()
    assert pages.arena.idle_bytes == 0
    assert memory(pages) < before
    again = pages.reachable((LARGE,), F8)
    again[:] = 1
    assert again.sum() == LARGE


def memory(pages: Pages) -> int:
    """Return the bytes of memory that the arena's file takes."""
    return os.stat(f"/proc/self/fd/{pages.arena.handle[1]}").st_blocks * 512


def test_an_arena_without_room_gives_ordinary_memory():
    arena = Arena(2, room=1 << 20)
    assert arena.lease(1 << 19) is not None or arena.lease(1 << 18) is not None
    pages = Pages()
    pages.arena = arena
    kept = [pages.reachable((LARGE,), F8) for _ in range(4)]
    assert chunk_of(kept[-1]) is None
    kept[-1][:] = 3
    assert kept[-1].sum() == 3 * LARGE


def test_an_arena_is_as_large_as_the_process_may_map():
    arena = Arena(2, room=1 << 62)
    assert arena.handle[2] < 1 << 62
    x = np.asarray(arena.lease(1 << 20))
    x[:] = 3
    assert x[-1] == 3


def test_a_process_that_may_map_little_has_no_arena():
    program = """
import resource
import numpy as np
from meshard.runtime.memory.pages import Pages
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
try:
    Pages().open_arena(2)
except OSError as error:
    print("refused:", type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("refused: OSError")


def test_another_file_is_no_arena(pages):
    process, _, room = pages.arena.handle
    with open(os.devnull) as other, pytest.raises(OSError, match="is not an arena"):
        Neighbour((process, other.fileno(), room), 1, 3)
    with pytest.raises(OSError, match="fd/99999"):
        Neighbour((process, 99999, room), 1, 3)


def test_the_mark_tells_whose_memory_it_is(pages):
    pages.arena.write_mark(b"0123456789")
    assert neighbour(pages).read_mark(10) == b"0123456789"


def test_a_fork_gives_nothing_back():
    program = """
import os
import numpy as np
from meshard.runtime.memory.pages import Pages
pages = Pages()
arena = pages.open_arena(2)
x = pages.reachable((1 << 17,), np.dtype(float))
process = os.fork()
if process == 0:
    del x
    os._exit(0 if arena.idle_bytes == 0 else 1)
assert os.waitpid(process, 0)[1] == 0
assert arena.idle_bytes == 0
del x
assert arena.idle_bytes > 0
"""
    # In a process of its own: this one may have threads that a fork would not like.
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_arrays_may_outlive_the_interpreter():
    program = """
import numpy as np
from meshard.runtime.memory.pages import Pages
from meshard.runtime.memory.arena import Neighbour, chunk_of
class Kept: pass
pages = Pages()
arena = pages.open_arena(2)
x = pages.reachable((1 << 17,), np.dtype(float))
arena.lend(chunk_of(x), (1,))
y = Neighbour(arena.handle, 1, 2).borrowed(chunk_of(x).offset, arena.offset_of(x), (8,), x.dtype)
ring = Kept(); ring.itself = ring; ring.x, ring.y = x, y
import builtins; builtins.kept = (x, y, ring)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
