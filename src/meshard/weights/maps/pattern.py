"""Patterns of names: text with places for what differs between names.

In: a pattern as it is written. Out: which names it matches, what fills its places, and other names
with the same filling.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from meshard.errors import KeyMapError
from meshard.runtime.lines.letters import sent_as

_DIGITS = frozenset("ijkle")
_MAX_LENGTH = 1024
_MAX_WIDE = 3
_LEGEND = (
    "A place is {i} (digits; so are j, k, l and e), {name} (one part, without dots), {*} or "
    "{name*} (any text); {{ and }} are braces"
)


@final
@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, parsed.

    Attributes:
        text: as it was written.
        parts: texts and places in turn; a text, perhaps empty, comes first and last.
        regex: what names match.

    >>> pattern = parse("layers.{i}.attn.{w}_proj.weight")
    >>> pattern.match("layers.12.attn.q_proj.weight")
    {'i': '12', 'w': 'q'}
    >>> parse("blocks.{i}.{w}").expand({"i": "12", "w": "q"})
    'blocks.12.q'
    """

    text: str
    parts: tuple[str, ...]
    regex: re.Pattern[str]

    @property
    def holes(self) -> tuple[str, ...]:
        """The names of its places, in order."""
        return self.parts[1::2]

    def match(self, name: str) -> dict[str, str] | None:
        """Return what fills the places in a name; None if the name does not match."""
        if not (name.startswith(self.parts[0]) and name.endswith(self.parts[-1])):
            return None
        found = self.regex.fullmatch(name)
        return None if found is None else dict(zip(self.holes, found.groups(), strict=True))

    def expand(self, filling: Mapping[str, str]) -> str:
        """Return the name that a filling gives."""
        parts = list(self.parts)
        parts[1::2] = [filling[h] for h in self.holes]
        return "".join(parts)

    def matches(self, names: Mapping[str, object]) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the names of a mapping that match, with their fillings."""
        if len(self.parts) == 1:
            if self.parts[0] in names:
                yield self.parts[0], {}
            return
        head, tail = self.parts[0], self.parts[-1]
        for name in names:
            if name.startswith(head) and name.endswith(tail):
                found = self.regex.fullmatch(name)
                if found is not None:
                    yield name, dict(zip(self.holes, found.groups(), strict=True))


def exactly(name: str) -> str:
    """Return the pattern that matches one name."""
    return name.replace("{", "{{").replace("}", "}}")


@functools.lru_cache(maxsize=65_536)
def parse(text: str) -> Pattern:
    """Return a pattern.

    Raises:
        KeyMapError: if a brace is not closed, a place's name is not one, or two places cannot be
            told apart; the message points at the character.
    """
    parts = [""]
    at = 0
    if not text or len(text) > _MAX_LENGTH or not text.isprintable():
        raise KeyMapError(
            f"A pattern has 1 to {_MAX_LENGTH} printable characters; found {text[:80]!r}, of "
            f"{len(text)} characters."
        )
    while at < len(text):
        if text[at : at + 2] in ("{{", "}}"):
            parts[-1] += text[at]
            at += 2
        elif text[at] == "}":
            raise _pointing(text, at, "this brace was not opened")
        elif text[at] == "{":
            end = text.find("}", at)
            if end < 0:
                raise _pointing(text, at, "this brace is not closed")
            _add_place(parts, text, at, end)
            at = end + 1
        else:
            parts[-1] += text[at]
            at += 1
    _check_effort(parts, text)
    regex = "".join([_place(p) if k % 2 else re.escape(p) for k, p in enumerate(parts)])
    return Pattern(text, tuple(parts), re.compile(regex))


def _add_place(parts: list[str], text: str, at: int, end: int) -> None:
    name = text[at + 1 : end]
    if name != "*" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name):
        raise _pointing(text, at + 1, "the name of a place is expected here")
    if name in parts[1::2]:
        raise _pointing(text, at, f"the place {{{name}}} is there twice")
    if len(parts) > 1 and not parts[-1]:
        raise _pointing(text, at, "where the place before this one ends cannot be told")
    parts += [name, ""]


def _check_effort(parts: list[str], text: str) -> None:
    """Refuse a pattern that could take long to match: too many places without dots between."""
    wide = sum([name.endswith("*") for name in parts[1::2]])
    narrow = most = 0
    for k, part in enumerate(parts):
        narrow = narrow + (not part.endswith("*")) if k % 2 else 0 if "." in part else narrow
        most = max(most, narrow)
    if wide + most > _MAX_WIDE:
        raise _pointing(
            text, 0, f"more than {_MAX_WIDE} places have no dot between them or match any text"
        )


def _place(name: str) -> str:
    if name.endswith("*"):
        return "(.+)"
    return "([0-9]+)" if name in _DIGITS else r"([^.]+)"


def _pointing(text: str, at: int, why: str) -> KeyMapError:
    return KeyMapError(f"The pattern cannot be read: {why}.\n  {text}\n  {' ' * at}^\n{_LEGEND}.")


def same_places(patterns: Iterable[Pattern]) -> bool:
    """Return whether patterns have the same places."""
    return len({frozenset(p.holes) for p in patterns}) == 1


sent_as(Pattern, lambda x: (x.text,), parse)
