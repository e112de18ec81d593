"""Attributes that do not exist: an error that names what the user may have meant.

`hasattr` and protocols ask for such attributes all the time, so that what to suggest is worked out
only when the message is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from typing import NoReturn, final

_DOORS = (
    *("meshard", "meshard.numpy", "meshard.numpy.linalg", "meshard.numpy.fft", "meshard.lax"),
    *("meshard.nn", "meshard.random", "meshard.sharding", "meshard.debug", "meshard.tree"),
    *("meshard.resharding", "meshard.multihost_utils", "meshard.distributed", "meshard.gda"),
    *("meshard.config", "meshard.testing", "meshard.errors", "meshard.experimental.mesh_utils"),
)
_CLOSE = 0.7


@final
class NoAttribute(AttributeError):
    """An `AttributeError` whose advice is worked out when it is read."""

    def __init__(self, owner: str, attribute: str, advise: Callable[[], str]) -> None:
        super().__init__(owner, attribute)
        self._advise = advise

    def __str__(self) -> str:
        owner, attribute = self.args
        return f"{owner} has no attribute {attribute!r}{self._advise()}"

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:
        return AttributeError, (str(self),)


# To users it is the AttributeError that it stands for.
NoAttribute.__module__ = "builtins"
NoAttribute.__name__ = NoAttribute.__qualname__ = "AttributeError"


def nearest(name: str, names: Iterable[str], count: int = 2) -> list[str]:
    """Return the names that are spelled almost like another, the nearest first.

    Of names that are equally near, those that begin alike come first.
    """
    listed = [n for n in names if not n.startswith("_")]
    folded = {n.lower(): n for n in reversed(listed)}
    wanted = name.lower()

    def nearness(candidate: str) -> tuple[float, list[bool]]:
        alike = [a == b for a, b in zip(candidate, wanted, strict=False)]
        return _likeness(candidate, wanted), alike

    found = get_close_matches(wanted, list(folded), len(folded) or 1, _CLOSE)
    return [folded[n] for n in sorted(found, key=nearness, reverse=True)[:count]]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message: the names that are nearest, if any are near."""
    found = nearest(name, names)
    return f". Did you mean {' or '.join(map(repr, found))}?" if found else ""


def no_attribute(kind: type, name: str, advice: Mapping[str, str]) -> NoAttribute:
    """Return the error for an attribute that a class's instances do not have.

    Args:
        kind: the class.
        name: the attribute.
        advice: for names that people look for what to do instead.
    """

    def advise() -> str:
        return f": {advice[name]}" if name in advice else did_you_mean(name, dir(kind))

    return NoAttribute(f"{kind.__name__!r} object", name, advise)


@final
class _Instead:
    """An attribute that does not exist, and says what does.

    A ``__getattr__`` would do the same for all names, but it would slow down every protocol that
    asks an array for an attribute which it does not have.
    """

    __slots__ = ("_advice", "_name")
    __doc__ = None

    def __init__(self, name: str, advice: Mapping[str, str]) -> None:
        self._name = name
        self._advice = advice

    def __get__(self, value: object, kind: type) -> NoReturn:
        raise no_attribute(kind, self._name, self._advice)


def advise_instead(kind: type, advice: Mapping[str, str]) -> None:
    """Let a class say what to do instead of attributes that it does not have.

    ``hasattr`` stays False for them, and `dir` must leave them out.
    """
    for name in advice:
        assert not hasattr(kind, name), name
        setattr(kind, name, _Instead(name, advice))


def absent(
    module: str, advice: Mapping[str, str] | None = None, reference: str | None = None
) -> Callable[[str], list[str]]:
    """Return a module's ``__getattr__``, which refuses each name with the nearest or the way.

    It answers ``__all__`` alone, for a module that does not list its names again: they are those
    that it imports and that do not begin with an underscore.

    Args:
        module: the module's name; its ``__all__`` is read when a message is.
        advice: for names that people look for what to do instead.
        reference: a module after which this one is modelled, and which may have the name.
    """
    known = advice or {}

    def advise(name: str) -> str:
        if name in known:
            return f": {known[name]}"
        elsewhere = [d for d in _DOORS if name in getattr(sys.modules.get(d), "__all__", ())]
        if elsewhere:
            return f". Use {elsewhere[0]}.{name}."
        own = getattr(sys.modules[module], "__all__", ())
        model = vars(sys.modules[reference]) if reference in sys.modules else {}
        if name in model:
            return f". NumPy has {reference}.{name}, but {module} does not."
        found, other = nearest(name, own, 1), nearest(name, set(model) - set(own), 1)
        if other and (not found or _likeness(name, other[0]) > _likeness(name, found[0])):
            close = f" The nearest name here is {found[0]!r}." if found else ""
            return f". NumPy has {reference}.{other[0]}, but {module} does not.{close}"
        return did_you_mean(name, own)

    def missing(name: str) -> list[str]:
        if name == "__all__":
            return sorted(n for n in vars(sys.modules[module]) if not n.startswith("_"))
        raise NoAttribute(f"module {module!r}", name, lambda: advise(name))

    return missing


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()
