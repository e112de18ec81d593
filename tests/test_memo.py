"""Memos: found once for each key in each world, bounded, and emptied by themselves."""

import pytest

from meshard.runtime.world import Memo, alone, memoized
from meshard.settings import config


@pytest.fixture
def world():
    world = alone(1)
    yield world
    world.close()


@pytest.fixture
def calls():
    return []


@pytest.fixture
def halved(calls):
    @memoized(most=3)
    def halved(world, n):
        """Return half."""
        calls.append(n)
        return n // 2 or None

    return halved


def test_a_function_runs_once_for_each_key_whatever_it_returned(world, calls, halved):
    assert [halved(world, n) for n in (4, 1, 4, 1)] == [2, None, 2, None]
    assert calls == [4, 1]
    assert (halved.__name__, halved.__doc__) == ("halved", "Return half.")


def test_what_raised_is_asked_again(world):
    answers = [ValueError("not yet"), 7]

    @memoized(most=3)
    def asked(world):
        answer = answers.pop(0)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    with pytest.raises(ValueError, match="not yet"):
        asked(world)
    assert [asked(world), asked(world)] == [7, 7]


def test_each_world_has_a_table_of_its_own(world, calls, halved):
    other = alone(1)
    assert [halved(world, 4), halved(other, 4), halved(other, 4)] == [2, 2, 2]
    assert calls == [4, 4]
    other.close()


def test_a_memo_that_is_full_empties_only_itself(world, calls, halved):
    names = Memo("names", 2)
    assert names.keep(world, "a", 1) == 1
    for n in range(20):
        assert halved(world, n) == (n // 2 or None)
        assert sorted(map(len, world.tables))[-1] <= 3
    assert halved(world, 19) == 9
    assert calls == list(range(20))
    assert names.table(world) == {"a": 1}
    names.keep(world, "b", 2)
    names.keep(world, "c", 3)
    assert names.table(world) == {"c": 3}
    assert repr(names) == "Memo('names', most=2)"


def test_a_setting_that_changes_empties_all_memos_of_all_worlds(world, calls, halved):
    other, names = alone(1), Memo("names", 2)
    halved(world, 4)
    names.keep(world, "a", 1)
    names.keep(other, "b", 2)
    config.update("check", config.read("check"))
    assert names.table(other) == {}
    assert names.table(world) == {}
    assert halved(world, 4) == 2
    assert calls == [4, 4]
    other.close()
