"""Values that nobody meant to pass, and what a call with one of them may do.

A call may succeed, or raise one of meshard's errors. What it must not do is fail somewhere inside
with an error of Python's or NumPy's own, which says nothing of the argument.
"""

from __future__ import annotations

import contextlib
import math
import re
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import meshard
from meshard.errors import MeshardError
from meshard.sharding import Mesh, NamedSharding, P
from tests.tracebacks import ROOT, internal_frames, watched

# What Python says of a function of the caller's that does not take what it must be called with.
ARITY = re.compile(
    r"^(?!ContextDecorator).*\(\) (takes|missing) \d+ (required )?positional argument"
)
TESTS = str(Path(__file__).parent)


class Anything:
    """Made of any arguments."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass


def list_of_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def dict_of_itself() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["x"] = found
    return found


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def _mesh() -> Mesh:
    return meshard.make_mesh((2,), ("x",))


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "10**30": lambda: 10**30,
    "-10**30": lambda: -(10**30),
    "1.5": lambda: 1.5,
    "2.0": lambda: 2.0,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "complex": lambda: 1j,
    "Fraction": lambda: Fraction(1, 3),
    "empty string": lambda: "",
    "'x'": lambda: "x",
    "'no such name'": lambda: "no such name",
    "zero byte": lambda: "a\0b",
    "bytes": lambda: b"x",
    "object()": object,
    "a class": lambda: Anything,
    "lambda": lambda: lambda *args, **kwargs: None,
    "lambda of x": lambda: lambda *args, **kwargs: "x",
    "lambda of a list of itself": lambda: lambda *args, **kwargs: list_of_itself(),
    "[]": list,
    "()": tuple,
    "{}": dict,
    "set()": set,
    "{1}": lambda: {1},
    "{'x': 1}": lambda: {"x": 1},
    "{3: None}": lambda: {3: None},
    "keys that do not compare": lambda: {1: 1, "x": 2, None: 3},
    "(None,)": lambda: (None,),
    "[1, 2]": lambda: [1, 2],
    "(-1, -1)": lambda: (-1, -1),
    "('x', 'y')": lambda: ("x", "y"),
    "('x', 1)": lambda: ("x", 1),
    "(1.5, nan)": lambda: (1.5, math.nan),
    "((4,), 4)": lambda: ((4,), 4),
    "(10**30, 10**30)": lambda: (10**30, 10**30),
    "ragged": lambda: [[1, 2], [3]],
    "list of lists": lambda: [[], []],
    "list of itself": list_of_itself,
    "dict of itself": dict_of_itself,
    "deeply nested": lambda: nested(20_000),
    "range": lambda: range(3),
    "generator": lambda: (i for i in (1, "x")),
    "slice": lambda: slice(None, "x"),
    "Ellipsis": lambda: ...,
    "np.array(0)": lambda: np.array(0),
    "np.array([1, 2])": lambda: np.array([1, 2]),
    "np.array(nan)": lambda: np.array([math.nan]),
    "array of objects": lambda: np.array([None, "x"], object),
    "array of strings": lambda: np.array(["x", "y"]),
    "np.float32": lambda: np.float32(1.5),
    "np.bool_": lambda: np.bool_(True),
    "Array": lambda: meshard.numpy.arange(3),
    "Array of no dims": lambda: meshard.numpy.array(1.5),
    "Array that was deleted": lambda: _deleted(),
    "Device": lambda: meshard.devices()[-1],
    "Device that does not exist": lambda: meshard.Device(99),
    "Mesh": _mesh,
    "spec": lambda: P("x"),
    "spec of axes that do not exist": lambda: P("no", "such"),
    "UNCONSTRAINED": lambda: P.UNCONSTRAINED,
    "NamedSharding": lambda: NamedSharding(_mesh(), P("x")),
    "SingleDeviceSharding": lambda: meshard.sharding.SingleDeviceSharding(meshard.devices()[1]),
    "struct": lambda: meshard.ShapeDtypeStruct((3,), "float32"),
}


def _deleted() -> Any:
    x = meshard.numpy.arange(3)
    x.delete()
    return x


def complaint(call: Callable[[], Any], allowed: tuple[type[BaseException], ...] = ()) -> str | None:
    """Return what is wrong with how a call ends; None where it is as it should be."""
    try:
        with watched() as origin:
            call()
    except (MeshardError, *allowed) as error:
        return _bad_message(error)
    except Exception as error:
        # Raised where the call is written, by Python (an argument too many), or by the tests' own
        # function that meshard has called: it is the caller's.
        last = origin(error)
        arity = isinstance(error, TypeError) and ARITY.search(str(error))
        return None if last.filename.startswith(TESTS) or arity else _told(error, last)
    return None


def _bad_message(error: BaseException) -> str | None:
    text = str(error)
    if not text.strip():
        return f"{type(error).__name__} without a message"
    if len(text) > 2000:
        return f"{type(error).__name__} with a message of {len(text)} characters"
    frames = internal_frames(error)
    if frames:
        return f"{type(error).__name__} whose traceback shows {', '.join(frames)}"
    return None


def _told(error: BaseException, where: traceback.FrameSummary) -> str:
    place = f" at {where.filename.removeprefix(ROOT)}:{where.lineno}"
    with contextlib.suppress(RecursionError):
        return f"{type(error).__name__}: {str(error)[:150]!r}{place}"
    return f"{type(error).__name__}{place}"
