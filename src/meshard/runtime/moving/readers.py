"""Readers: how the arrays of other libraries become NumPy arrays where NumPy's way falls short.

A library is known by the name of its package. A reader is installed by the module that knows the
library, or is an entry point of the group ``meshard.readers`` of that name, of this package or of
others, and is loaded when the first value of the library comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshard.runtime.types import Block

Reader = Callable[[Any, str], Block]
"""Makes an array of a value, if possible a view, for the function whose name it is told."""

_INSTALLED: dict[str, Reader] = {}
_KNOWN: dict[type[Any], Reader | None] = {}


def install_reader(package: str, reader: Reader) -> None:
    """Say how values of a package's types are read."""
    _INSTALLED[package] = reader
    _KNOWN.clear()


def reader_of(kind: type[Any]) -> Reader | None:
    """Return how values of a type are read; None if NumPy converts them.

    >>> reader_of(list) is None
    True
    """
    try:
        return _KNOWN[kind]
    except KeyError:
        packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
        _KNOWN[kind] = found = _found(packages - {"builtins", "numpy", "meshard"})
        return found


def _found(packages: set[str]) -> Reader | None:
    for package in packages & _INSTALLED.keys():
        return _INSTALLED[package]
    if not packages:
        return None
    from importlib.metadata import entry_points  # slow to import

    for entry in entry_points(group="meshard.readers"):
        if entry.name in packages:
            reader: Reader = entry.load()
            return reader
    return None
