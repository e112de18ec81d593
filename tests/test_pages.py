"""The pool of pages: blocks return when the last view dies, and are handed out again."""

import gc
import itertools
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kernel_memory import Meter
from meshard.errors import AllocationError
from meshard.runtime.memory.arena import size_class
from meshard.runtime.memory.pages import HUGE, Lease, Pages
from meshard.tuning import POOLED_BYTES

F8 = np.dtype(np.float64)
LARGE = 1 << 16  # float64s: 512 KiB


def address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((LARGE,), "f8"), ((2, 300, 400), "i4"), ((1 << 19,), "u1"), ((7,), "c16")]
)
def test_arrays_have_the_shape_and_dtype_asked_for(shape, dtype):
    x = Pages().allocate(shape, np.dtype(dtype))
    assert (x.shape, x.dtype) == (shape, np.dtype(dtype))
    assert x.flags.c_contiguous
    assert x.flags.writeable
    x[...] = 3
    assert (x == 3).all()


@pytest.mark.parametrize("shape", [(), (0,), (0, 1 << 20), (100,)])
def test_small_arrays_do_not_come_from_the_pool(shape):
    pages = Pages()
    x = pages.allocate(shape, F8)
    assert x.shape == shape
    assert x.flags.owndata
    del x
    assert pages.idle_bytes == 0


def test_memory_is_handed_out_again_when_the_last_view_has_died():
    pages = Pages()
    x = pages.allocate((LARGE,), F8)
    where = address(x)
    del x
    assert pages.idle_bytes == LARGE * 8
    y = pages.allocate((LARGE // 2, 2), F8)
    assert address(y) == where
    assert pages.idle_bytes == 0


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[10:20],
        lambda x: x.reshape(2, -1)[1],
        lambda x: x.view(np.int64)[::3],
        lambda x: memoryview(x),
        lambda x: np.from_dlpack(x),
        lambda x: np.asarray(x)[None].T,
        lambda x: np.lib.stride_tricks.as_strided(x, (3,), (16,)),
    ],
)
def test_memory_is_not_handed_out_while_a_view_lives(look):
    pages = Pages()
    x = pages.allocate((LARGE,), F8)
    x[:] = 7
    view, where = look(x), address(x)
    del x
    gc.collect()
    assert pages.idle_bytes == 0
    others = [pages.allocate((LARGE,), F8) for _ in range(3)]
    for other in others:
        other[:] = -1
    assert where not in map(address, others)
    assert np.asarray(view).view(F8).reshape(-1)[0] == 7
    del view
    assert pages.idle_bytes == LARGE * 8


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "view", "drop"]), st.integers(0, 4), st.integers(0, 9)),
        max_size=30,
    )
)
def test_no_two_arrays_that_live_share_memory(steps):
    pages = Pages(keep=4 << 20)
    alive: list[tuple[np.ndarray, int]] = []
    for mark, (step, size, which) in enumerate(steps):
        if step == "take":
            x = pages.allocate(((size + 2) << 15,), F8)
            x[:] = mark
            alive.append((x, mark))
        elif alive and step == "view":
            x, own = alive[which % len(alive)]
            alive.append((x[which::7], own))
        elif alive:
            del alive[which % len(alive)]
        x = None
        assert all((view == own).all() for view, own in alive)
        assert pages.idle_bytes <= pages.keep
    alive.clear()
    pages.trim()
    assert pages.idle_bytes == 0


def test_the_youngest_memory_is_taken_first():
    pages = Pages()
    arrays = [pages.allocate((LARGE,), F8) for _ in range(3)]
    places = list(map(address, arrays))
    while arrays:
        del arrays[0]
    assert address(pages.allocate((LARGE,), F8)) == places[-1]


@given(st.integers(POOLED_BYTES, 1 << 40))
def test_size_classes_waste_little(size):
    found = size_class(size)
    assert size <= found <= size * 9 / 8 + mmap.PAGESIZE
    assert found % mmap.PAGESIZE == 0
    assert size_class(found) == found


def test_there_are_eight_classes_per_power_of_two():
    assert len({size_class(n) for n in range((1 << 20) + 1, (1 << 21) + 1, 4096)}) == 8


def test_another_size_of_the_same_class_fits():
    pages = Pages()
    where = address(pages.allocate((LARGE,), F8))
    x = pages.allocate((LARGE - 100,), F8)
    assert address(x) == where
    assert x.nbytes == (LARGE - 100) * 8


def test_another_class_does_not_fit():
    pages = Pages()
    x = pages.allocate((LARGE,), F8)
    where = address(x)
    del x
    assert address(pages.allocate((2 * LARGE,), F8)) != where
    assert pages.idle_bytes == LARGE * 8 + 2 * LARGE * 8


def test_no_more_than_the_limit_stays_idle():
    pages = Pages(keep=LARGE * 8 * 2)
    arrays = [pages.allocate((LARGE,), F8) for _ in range(4)]
    del arrays
    assert pages.idle_bytes == LARGE * 8 * 2


def test_trim_gives_idle_memory_back():
    pages = Pages()
    x = pages.allocate((LARGE,), F8)
    del x
    y = pages.allocate((2 * LARGE,), F8)
    y[:] = 3
    pages.trim()
    assert pages.idle_bytes == 0
    assert (y == 3).all()
    del y
    assert pages.idle_bytes == 2 * LARGE * 8


def test_a_closed_pool_keeps_nothing_and_still_serves():
    pages = Pages()
    x = pages.allocate((LARGE,), F8)
    pages.close()
    x[:] = 3
    assert x.sum() == 3 * LARGE
    del x
    assert pages.idle_bytes == 0
    assert pages.allocate((LARGE,), F8).shape == (LARGE,)
    assert pages.idle_bytes == 0


def test_blocks_outlive_their_pool():
    x = Pages().allocate((LARGE,), F8)
    gc.collect()
    x[:] = 3
    assert x.sum() == 3 * LARGE


def test_huge_pages_are_asked_for_where_there_are_any():
    x = Pages().allocate((1 << 19,), F8)  # 4 MiB
    x[:] = 1
    assert x.sum() == 1 << 19


def test_threads_may_take_and_give_at_once():
    pages = Pages()
    failures: list[str] = []

    def work(mark: int) -> None:
        for _ in range(300):
            x = pages.allocate((LARGE // 2,), F8)
            x[::4096] = mark
            if not (x[::4096] == mark).all():
                failures.append(f"{mark} was overwritten")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    # Each thread holds two for a moment, the old one and the new.
    assert 0 < pages.idle_bytes <= 8 * LARGE * 4


def test_a_lease_says_where_its_memory_is():
    pages = Pages()
    x = pages.allocate((1 << 20,), np.dtype(np.uint8))
    lease = x.base.base
    assert isinstance(lease, Lease)
    assert lease.__array_interface__["data"][0] == address(x)
    del lease
    x[:] = 1
    del x
    assert pages.idle_bytes == 1 << 20


def test_chunks_below_a_huge_page_are_carved_out_of_regions_of_huge_pages():
    pages = Pages()
    blocks = [pages.allocate((LARGE,), F8) for _ in range(40)]  # of 512 KiB: 32 to a region
    spans = sorted(address(b) for b in blocks)
    assert all(b - a >= LARGE * 8 for a, b in itertools.pairwise(spans))
    assert any(start % HUGE == 0 for start in spans)
    for number, block in enumerate(blocks):
        block[:] = number
    assert all((block == number).all() for number, block in enumerate(blocks))
    del block, blocks
    assert pages.idle_bytes == 40 * LARGE * 8
    pages.trim()
    assert pages.idle_bytes == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system lists no mappings")
def test_no_memory_is_shared_with_other_processes():
    pages = Pages()
    blocks = [pages.allocate((n,), F8) for n in (LARGE, 8 * LARGE)]
    blocks.append(pages.allocate((8 * LARGE,), F8, filled_in=1))
    seen = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, kind = line.split()[:2]
        first, last = (int(end, 16) for end in ends.split("-"))
        for block in blocks:
            if first <= address(block) < last:
                assert kind == "rw-p"
                seen += 1
    assert seen == len(blocks)


def test_trimmed_memory_is_gone_and_what_is_leased_stays():
    with Meter() as meter:
        pages = Pages()
        small = [pages.allocate((LARGE,), F8) for _ in range(64)]
        large = [pages.allocate((16 * LARGE,), F8) for _ in range(4)]
        for block in (*small, *large):
            block[:] = 3
        full = meter.now()
        assert full > 60 << 20
        del block, small[32:], large[1:]
        pages.trim()
        assert meter.now() < full - (36 << 20)  # 24 MiB of large ones, 16 of a region
        assert all((b == 3).all() for b in (*small, *large))
        del small, large
        pages.trim()
        assert meter.now() < 4 << 20


def test_memory_that_the_system_does_not_have_is_named():
    named = r"no memory for a block float64\[\d+,8\] of [\d,]+ bytes"
    with pytest.raises(AllocationError, match=named):
        Pages().allocate((1 << 50, 8), F8)
    with pytest.raises(MemoryError):
        Pages().allocate((1 << 62, 8), F8)
