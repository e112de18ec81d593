"""Who else sees a block: measured by counts of references, and never guessed."""

import sys

import numpy as np
import pytest

import meshard
from meshard.runtime.memory import ownership
from meshard.runtime.memory.ownership import give_back_owned, handed_over, held_alone, memory_of
from meshard.runtime.world import here
from tests.worlds import alone

LARGE = 1 << 18


class Holder:
    __slots__ = ("_blocks",)

    def __init__(self, *blocks):
        self._blocks = blocks


def pooled():
    block = here().memory.allocate((LARGE,), np.dtype(np.float32))
    block[:] = 3
    return block


def owned():
    return np.full(LARGE, 3, np.float32)


WAYS = {
    "the block": lambda x: x._blocks[0],
    "the tuple": lambda x: x._blocks,
    "another array": lambda x: Holder(*x._blocks),
    "a view": lambda x: x._blocks[0][10:20],
    "another dtype": lambda x: x._blocks[0].view(np.int32),
    "a memoryview": lambda x: memoryview(x._blocks[0]),
    "a closure": lambda x: (lambda block: lambda: block)(x._blocks[0]),
    "a list in a list": lambda x: [[x._blocks[0]]],
    "dlpack": lambda x: np.from_dlpack(x._blocks[0]),
}


@pytest.mark.parametrize("make", [pooled, owned])
@pytest.mark.parametrize("way", WAYS)
def test_any_other_holder_is_noticed_and_forgotten_with_it(make, way) -> None:
    def body():
        x = Holder(make(), None)
        assert held_alone(x, 0)
        other = WAYS[way](x)
        assert not held_alone(x, 0)
        del other
        assert held_alone(x, 0)
        # The holder itself may be held by anybody.
        more = [x, x]
        assert held_alone(x, 0)
        del more

    alone(body)


def test_memory_that_is_not_ours_is_never_held_alone() -> None:
    def body():
        kept = bytearray(LARGE)
        for block in (np.frombuffer(kept, np.uint8), np.broadcast_to(np.float32(3), (LARGE,))):
            x = Holder(block)
            del block
            assert not held_alone(x, 0)
            assert memory_of(x._blocks[0]) is None
        read_only = Holder(np.frombuffer(bytes(LARGE), np.uint8))
        assert not held_alone(read_only, 0)

    alone(body)


def test_a_value_that_somebody_keeps_was_not_handed_over() -> None:
    value = np.ones(3)
    assert handed_over(value)
    kept = value
    assert not handed_over(value)
    del kept
    assert handed_over(value)
    assert not handed_over(value[:2])
    value.flags.writeable = False
    assert not handed_over(value)


def test_where_counts_are_not_exact_the_answer_is_no(monkeypatch) -> None:
    monkeypatch.setattr(ownership, "_count", None)

    def body():
        x = Holder(pooled())
        assert not held_alone(x, 0)
        value = np.ones(3)
        assert not handed_over(value)
        # What asks still works: it copies.
        big = meshard.numpy.ones((1024, 1024))
        out = meshard.jit(lambda y: y * 2 - y, donate_argnums=0)(big)
        assert float(out.sum()) == 1 << 20
        moved = meshard.reshard(out, meshard.devices()[1], donate=True)
        assert float(moved.sum()) == 1 << 20

    alone(body)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert ownership._exact_count() is None


def test_pages_that_numpy_allocated_are_given_back_only_by_their_holder() -> None:
    def body():
        x = Holder(owned(), pooled())
        seen = x._blocks[0]
        give_back_owned(x)
        assert (seen == 3).all()
        del seen
        give_back_owned(x)
        assert (x._blocks[0] == 0).sum() > LARGE // 2
        assert (x._blocks[1] == 3).all()  # the pool's to keep

    alone(body)
