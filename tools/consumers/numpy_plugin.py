"""A pytest plugin that runs NumPy's own tests with meshard in the place of NumPy.

The test modules are those of the installed NumPy. Whatever they import from NumPy becomes that of
`meshard.numpy`; new arrays are split over a 4 x 2 mesh. What meshard does not have, such as
``np.testing``, is NumPy's own::

    python -m pytest -c /dev/null -p tools.consumers.numpy_plugin --pyargs numpy.linalg.tests

What errors say is not compared. Tests that look into NumPy (memory, strides, subclasses, objects,
texts, records) fail by nature. A table by file, and what each failure says, are printed at the end;
``MESHARD_WHOLE=1`` leaves all arrays on one device.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_WHOLE = os.environ.pop("MESHARD_WHOLE", "")
os.environ.setdefault("MESHARD_NUM_DEVICES", "8")
os.environ.setdefault("MESHARD_WRITEABLE", "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

import meshard  # noqa: E402
import meshard.numpy as mnp  # noqa: E402
from meshard.errors import DtypeError, OutOfRangeError  # noqa: E402
from tools.consumers.sharded import _MAKERS, placed  # noqa: E402

_PLACED = (*_MAKERS, "array", "zeros_like", "ones_like", "full_like", "empty_like", "identity")
_DOORS = {np: mnp, np.linalg: mnp.linalg, np.fft: mnp.fft}


class _AnyArray(type):
    def __instancecheck__(cls, value: Any) -> bool:
        if cls is ndarray:
            return isinstance(value, (np.ndarray, meshard.Array))
        return type.__instancecheck__(cls, value)


class ndarray(np.ndarray, metaclass=_AnyArray):
    """What is an array of either library; tests make subclasses of it."""


def _making(own: Any, theirs: Any) -> Any:
    """Return a function that makes split arrays, or NumPy's of the dtypes that only NumPy has."""

    @functools.wraps(own)
    def make(*args: Any, **kwargs: Any) -> Any:
        try:
            found = own(*args, **kwargs)
        except (DtypeError, OutOfRangeError):
            return theirs(*args, **kwargs)
        if isinstance(found, tuple):
            return (found[0] if _WHOLE else placed(found[0]), *found[1:])
        return found if _WHOLE else placed(found)

    return make


def _plain(value: Any) -> Any:
    """Return a result as NumPy's comparisons take it."""
    if isinstance(value, meshard.Array):
        return np.asarray(value)[()]
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else tuple(value)
    return value


def _typed(self: Any, dtype: Any, *given: Any, **named: Any) -> Any:
    kind = np.dtype(dtype)
    return np.asarray(self).astype(kind) if kind.kind in "OSUVMm" else _astype(self, kind)


_astype = meshard.Array.astype
meshard.Array.astype = _typed
meshard.Array.setflags = lambda self, **_: None
meshard.Array.fill = lambda self, value: self.__setitem__(..., value)


def _comparing(function: Any) -> Any:
    @functools.wraps(function)
    def compare(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})

    return compare


class StandIn(types.ModuleType):
    """A module of NumPy, whose functions are meshard's where it has them."""

    def __init__(self, theirs: types.ModuleType) -> None:
        super().__init__(theirs.__name__)
        self.__dict__["_theirs"] = theirs

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._theirs, name)
        found = self.__dict__[name] = _instead(theirs, name)
        return found


_stand_ins: dict[types.ModuleType, StandIn] = {}


def _instead(theirs: Any, name: str) -> Any:
    """Return what stands for something of NumPy's: itself, unless it works on arrays."""
    if isinstance(theirs, types.ModuleType):
        if theirs.__name__.split(".")[0] != "numpy":
            return theirs
        return _stand_ins.setdefault(theirs, StandIn(theirs))
    if theirs is np.ndarray:
        return ndarray
    if theirs is np.testing.assert_raises_regex:
        return lambda kind, _, *given, **named: np.testing.assert_raises(kind, *given, **named)
    if getattr(np.testing, name, None) is theirs and callable(theirs):
        kept = isinstance(theirs, type) or "raises" in name or "warn" in name
        return theirs if kept else _comparing(theirs)
    for door, own in _DOORS.items():
        if not isinstance(theirs, type) and getattr(door, name, None) is theirs:
            if name in _PLACED:
                return _making(getattr(own, name), theirs)
            return getattr(own, name, theirs)
    return theirs


def _raises(kind: Any, *given: Any, match: Any = None, **named: Any) -> Any:
    """Expect an error, whatever it says."""
    return pytest.raises(kind, *given, **named)


def _imported(name: str, *given: Any, **named: Any) -> Any:
    if name == "pytest":
        return SimpleNamespace(**{**vars(pytest), "raises": _raises})
    return _instead(builtins.__import__(name, *given, **named), "")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    """Run modules of tests with imports of their own."""
    found = yield

    def run() -> types.ModuleType:
        module = types.ModuleType(f"numpys_{module_path.stem}")
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _imported}
        module.__file__ = str(module_path)
        sys.modules[module.__name__] = module
        exec(compile(module_path.read_text(), module_path, "exec"), vars(module))
        return module

    found._getobj = run
    return found


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests of each file pass, and what the others say."""
    passed, failed = Counter[str](), Counter[str]()
    for report in terminalreporter.stats.get("passed", []):
        passed[report.location[0]] += report.when == "call"
    for kind in ("failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            file, test = report.location[0], report.location[2]
            failed[file] += 1
            crash = getattr(report.longrepr, "reprcrash", None)
            said = getattr(crash, "message", str(report.longrepr)).strip().splitlines()
            print(f"LEFT {Path(file).name}::{test}  {' / '.join(said[:3])[:300]}")
    for file in sorted({*passed, *failed}):
        print(f"{passed[file]:6} passed {failed[file]:6} failed  {'/'.join(file.split('/')[-3:])}")
    print(f"{passed.total():6} passed {failed.total():6} failed  in all", file=sys.stdout)
