"""Fields of rules: what each takes, checked when a rule is made.

In: a value from Python or TOML. Out: the value as rules keep it; another kind is refused.

Casts: which dtypes hold all values of which others.

In: two dtypes. Out: whether a cast there and back gives every value again.

Patterns of names: text with places for what differs between names.

In: a pattern as it is written. Out: which names it matches, what fills its places, and other names
with the same filling.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import KeyMapError
from meshard.runtime.lines.letters import sent_as


@functools.lru_cache(maxsize=1024)
def is_lossless(old: np.dtype[Any], new: np.dtype[Any]) -> bool:
    """Return whether every value of one dtype is a value of another.

    >>> is_lossless(np.dtype(ml_dtypes.bfloat16), np.dtype("f4"))
    True
    >>> is_lossless(np.dtype("i8"), np.dtype("f8")), is_lossless(np.dtype("f4"), np.dtype("f2"))
    (False, False)
    """
    if old == new:
        return True
    if new.kind == "c":
        part = np.dtype(f"f{new.itemsize // 2}")
        return is_lossless(np.dtype(f"f{old.itemsize // 2}") if old.kind == "c" else old, part)
    if old.kind == "c" or new == np.bool_:
        return False
    whole, into = _integers(old), _integers(new)
    if whole and into:
        return into[0] <= whole[0] and whole[1] <= into[1]
    if into:
        return False
    here, there = _float(old), _float(new)
    if there is None:
        return False
    if whole:
        bits = max(-whole[0], whole[1]).bit_length()
        return "0" in _special(new) and bits <= min(there[0] + 1, there[2])
    return here is not None and _within(here, there) and _special(old) <= _special(new)


def _within(here: tuple[int, int, int], there: tuple[int, int, int]) -> bool:
    return here[0] <= there[0] and here[1] >= there[1] and here[2] <= there[2]


def constant_in(value: float, dtype: np.dtype[Any]) -> float:
    """Return a number as a dtype has it.

    Raises:
        KeyMapError: if the dtype is one of integers and does not have it.

    >>> constant_in(0.1, np.dtype("f2")), constant_in(1.7, np.dtype("i4"))
    (0.0999755859375, 1.0)
    """
    whole = _integers(dtype)
    if whole and not (np.isfinite(value) and whole[0] <= math.trunc(value) <= whole[1]):
        raise KeyMapError(
            f"the value {value} is not one of {dtype}, which has {whole[0]} to {whole[1]}"
        )
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(dtype).astype("c16").real)


def dtype_named(name: object) -> np.dtype[Any]:
    """Return a dtype of numbers by its name.

    Raises:
        KeyMapError: if no dtype of numbers has this name.

    >>> dtype_named("bfloat16")
    dtype(bfloat16)
    """
    if isinstance(name, str) and len(name) < 32:
        own = getattr(ml_dtypes, name, None) if name.isidentifier() else None
        if isinstance(own, type) and issubclass(own, np.generic):
            return np.dtype(own)
    try:
        found: np.dtype[Any] = np.dtype(name)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError, OverflowError, RecursionError) as error:
        raise KeyMapError(f"no dtype is named {shown(name)}") from error
    if found.names or found.subdtype or not found.isnative:
        raise KeyMapError(f"{shown(name)} is not a dtype of numbers in this machine's byte order")
    if found.kind not in "biufc" and _float(found) is None and not _integers(found):
        raise KeyMapError(f"{shown(name)} is not a dtype of numbers")
    return found


def _integers(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    if dtype == np.bool_:
        return 0, 1
    try:
        found: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    return int(found.min), int(found.max)


def _float(dtype: np.dtype[Any]) -> tuple[int, int, int] | None:
    """Return the digits of a float, and the exponents of its least and its largest values."""
    try:
        found: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except (ValueError, KeyError, TypeError):
        return None
    return int(found.nmant), int(found.minexp - found.nmant), int(found.maxexp)


def _special(dtype: np.dtype[Any]) -> frozenset[str]:
    """Return which of zero, negative zero, infinity and NaN a float has."""
    with np.errstate(all="ignore"):
        held = np.array([0.0, -0.0, np.inf, np.nan]).astype(dtype).astype("f8").tolist()
    wanted = ("0", "-0", "inf", "nan")
    told = [repr(v) for v in held]
    return frozenset(w for w, v in zip(wanted, told, strict=True) if v in (w, f"{w}.0"))


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


MAX_SIZE = 2**62


def one_pattern() -> Any:
    """Return the field of a pattern."""
    return field(metadata={"check": _pattern})


def patterns() -> Any:
    """Return the field of several patterns."""
    return field(metadata={"check": _patterns})


def patterns_or_none() -> Any:
    """Return the field of several patterns, or of none."""
    return field(default=None, metadata={"check": _patterns_or_none})


def one_or_more() -> Any:
    """Return the field of a pattern or several."""
    return field(metadata={"check": _one_or_more})


def integer(default: int | None, least: int | None = None) -> Any:
    """Return the field of an integer, which may be None if that is its default."""
    check = _whole if default is not None else _whole_or_none
    return field(default=default, metadata={"check": functools.partial(check, least=least)})


def integers(least: int | None = None) -> Any:
    """Return the field of several integers, or of none."""
    return field(default=None, metadata={"check": functools.partial(_wholes, least=least)})


def word(default: str) -> Any:
    """Return the field of a text."""
    return field(default=default, metadata={"check": _word})


def real(default: float) -> Any:
    """Return the field of a number."""
    return field(default=default, metadata={"check": _value})


def dtype_of_numbers() -> Any:
    """Return the field of a dtype's name, which must be given."""
    return field(metadata={"check": _dtype})


def _pattern(given: object, where: str) -> str:
    return parse(_of(str, given, where, "a pattern")).text


def _patterns(given: object, where: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise KeyMapError(f"{where} is a list of patterns; found {shown(given)}.")
    return tuple([parse(_of(str, v, where, "a list of patterns")).text for v in given])


def _patterns_or_none(given: object, where: str) -> tuple[str, ...] | None:
    return None if given is None else _patterns(given, where)


def _one_or_more(given: object, where: str) -> str | tuple[str, ...]:
    several = isinstance(given, (tuple, list))
    return _patterns(given, where) if several else _pattern(given, where)


def _word(given: object, where: str) -> str:
    return str(_of(str, given, where, "a text"))


def flag(given: object, where: str) -> bool:
    """Return what is true or false."""
    return bool(_of(bool, given, where, "true or false"))


def _value(given: object, where: str) -> float:
    return float(_of((int, float), given, where, "a number"))


def _dtype(given: object, where: str) -> str:
    try:
        return dtype_named(given).name
    except KeyMapError as error:
        raise KeyMapError(f"{where}: {error}.") from None


def _of(kinds: Any, given: Any, where: str, expected: str) -> Any:
    if not isinstance(given, kinds) or (isinstance(given, bool) and kinds is not bool):
        raise KeyMapError(f"{where} is {expected}; found {shown(given)}.")
    return given


def _whole_or_none(given: Any, where: str, *, least: int | None) -> int | None:
    return None if given is None else _whole(given, where, least=least)


def _whole(given: Any, where: str, *, least: int | None) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise KeyMapError(f"{where} is made of integers; found {shown(given)}.")
    if abs(int(given)) > MAX_SIZE or (least is not None and int(given) < least):
        raise KeyMapError(f"{where} is between {least} and {MAX_SIZE}; found {shown(given)}.")
    return int(given)


def _wholes(given: Any, where: str, *, least: int | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise KeyMapError(f"{where} is a list of integers; found {shown(given)}.")
    return tuple([_whole(v, where, least=least) for v in given])
