"""Attributes of modules and classes: what a door lists, loads late, and does not have.

In: a door's own globals, the names that are loaded when they are first asked for, and advice. Out:
the door's ``__all__``, ``__dir__`` and ``__getattr__``, and errors that name what the user may have
meant. `hasattr` and protocols ask for attributes that do not exist all the time, so what to suggest
is worked out only when the message is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import NoReturn, final
from warnings import warn

from meshard.algebra.boundary import bound_all, bounded
from meshard.errors import did_you_mean, likeness, nearest

_DOORS = (
    *("meshard", "meshard.numpy", "meshard.numpy.linalg", "meshard.numpy.fft", "meshard.lax"),
    *("meshard.nn", "meshard.optim", "meshard.random", "meshard.sharding", "meshard.debug"),
    "meshard.tree",
    *("meshard.resharding", "meshard.multihost_utils", "meshard.distributed", "meshard.gda"),
    *("meshard.config", "meshard.testing", "meshard.errors", "meshard.experimental"),
    *("meshard.typing", "meshard.checkpoint", "meshard.checkpoint_policies"),
    *("meshard.scipy", "meshard.scipy.sparse", "meshard.scipy.sparse.linalg"),
    *("meshard.ad_checkpoint", "meshard.array_api"),
    *(
        f"meshard.experimental.{name}"
        for name in ("mesh_utils", "multihost_utils", "global_device_array", "pjit", "shard_map")
    ),
)


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


def _meant(name: str, names: Iterable[str]) -> str:
    found = did_you_mean(name, names)
    return f".{found}" if found else ""


def no_attribute(kind: type, name: str, advice: Mapping[str, str]) -> NoAttribute:
    """Return the error for an attribute that a class's instances do not have.

    Args:
        kind: the class.
        name: the attribute.
        advice: for names that people look for what to do instead.
    """

    def advise() -> str:
        return f": {advice[name]}" if name in advice else _meant(name, dir(kind))

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


bounded(_Instead.__get__)


def advise_instead(kind: type, advice: Mapping[str, str]) -> None:
    """Let a class say what to do instead of attributes that it does not have.

    ``hasattr`` stays False for them, and `dir` must leave them out.
    """
    for name in advice:
        assert not hasattr(kind, name), name
        setattr(kind, name, _Instead(name, advice))


def absent(
    module: str,
    advice: Mapping[str, str] | None = None,
    reference: str | None = None,
    elsewhere: Iterable[str] = (),
) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which refuses each name with the nearest or the way.

    Args:
        module: the module's name; its ``__all__`` is read when a message is.
        advice: for names that people look for what to do instead.
        reference: a module after which this one is modelled, and which may have the name.
        elsewhere: modules that may have the name and are loaded to find out.
    """
    known = advice or {}

    def advise(name: str) -> str:
        if name in known:
            return f": {known[name]}"
        if not name.startswith("_"):
            for place in elsewhere:
                import_module(place)
        doors = [d for d in _DOORS if name in getattr(sys.modules.get(d), "__all__", ())]
        if doors:
            return f". Use {doors[0]}.{name}."
        own = getattr(sys.modules[module], "__all__", ())
        model = vars(sys.modules[reference]) if reference in sys.modules else {}
        if name in model:
            return f". NumPy has {reference}.{name}, but {module} does not."
        found, other = nearest(name, own, 1), nearest(name, set(model) - set(own), 1)
        if other and (not found or likeness(name, other[0]) > likeness(name, found[0])):
            close = f" The nearest name here is {found[0]!r}." if found else ""
            return f". NumPy has {reference}.{other[0]}, but {module} does not.{close}"
        return _meant(name, own)

    def missing(name: str) -> NoReturn:
        raise NoAttribute(f"module {module!r}", name, lambda: advise(name))

    return bounded(missing)


def door(
    module: str,
    *more: str,
    late: Iterable[str] = (),
    advice: Mapping[str, str] | None = None,
    reference: str | None = None,
    renamed: Mapping[str, tuple[str, str]] | None = None,
    called: str | None = None,
) -> tuple[list[str], Callable[[], list[str]], Callable[[str], object]]:
    """Return the ``__all__``, ``__dir__`` and ``__getattr__`` of a door that calls this at its end.

    The door lists what it has imported or assigned under names without a leading underscore, but
    of modules the doors only; these are imported as ``name as name``, which type checkers read as
    passing on. Exceptions leave what it lists without the library's frames (`boundary`).

    Args:
        module: the door's name.
        *more: names with a leading underscore that are listed as well.
        late: what is loaded when it is first asked for: modules, such as ``"meshard.lax"``, and
            names in modules, such as ``"meshard.transforms.shard_map:shard_map"``.
        advice: as of `absent`.
        reference: as of `absent`.
        renamed: for deprecated names the names that replace them, and the versions of meshard that
            remove them. They are not listed, and warn each time that they are asked for.
        called: the function that the door is if it is called, where JAX has one of its name.
    """
    old = renamed or {}
    if called is not None:
        sys.modules[module].__class__ = _callable_module(called)
    found = vars(sys.modules[module])
    sources = {entry.replace(":", ".").rpartition(".")[2]: entry for entry in late}
    listed = {name for name, value in found.items() if name[0] != "_" and _is_listed(value)}
    listed.update(more, sources)
    bound_all(found[name] for name in listed if name in found)
    doors = [entry for entry in sources.values() if ":" not in entry]
    missing = absent(module, advice, reference, doors)

    def load(name: str) -> object:
        if name in old:
            new, until = old[name]
            told = f"{module}.{name} is now {module}.{new}; meshard {until} removes the old name."
            warn(told, DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[module], new)
        if name not in sources:
            missing(name)
        source, _, inside = sources[name].partition(":")
        value = import_module(source)
        found[name] = getattr(value, inside) if inside else value
        bound_all((found[name],))
        return found[name]

    return sorted(listed), lambda: sorted({*found, *listed}), bounded(load)


def _callable_module(function: str) -> type[ModuleType]:
    """Return the class of a module that can be called as a function, named ``"module:name"``."""

    class CallableModule(ModuleType):
        """A module, and a function."""

        def __call__(self, *args: object, **kwargs: object) -> object:
            source, _, name = function.partition(":")
            return getattr(import_module(source), name)(*args, **kwargs)

    return CallableModule


def _is_listed(value: object) -> bool:
    """Whether a door lists a value: every value but modules that are not doors."""
    return not isinstance(value, ModuleType) or value.__name__ in _DOORS
