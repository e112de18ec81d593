"""What newcomers are told about their mistakes: the right error, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mistakes import MISTAKES, Mistake, elsewhere, printed
from tests.tracebacks import internal_frames, watched

MOST_CHARACTERS = 960
"""Of a message: eight lines of a wide terminal."""


@pytest.fixture(scope="module", autouse=True)
def as_users_see_it() -> Iterator[None]:
    with watched(), elsewhere():
        yield


def test_there_are_ninety() -> None:
    assert len(MISTAKES) >= 90


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_message_says_what_is_wrong(mistake: Mistake) -> None:
    error = mistake.run()
    assert error is not None, "nothing was raised"
    text = printed(error)
    assert type(error).__name__ == mistake.kind, text
    for words in mistake.words:
        assert words in str(error), text
    assert internal_frames(error) == []
    assert "During handling" not in text
    assert "direct cause" not in text
    assert "Raised inside meshard" not in text
    assert len(str(error)) <= MOST_CHARACTERS
    assert str(error).count("\n") <= 2
    assert text.count('File "') == text.count(f'File "{mistake.file}"')
