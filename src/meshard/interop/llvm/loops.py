"""NumPy's own inner loops, by their addresses: what compiled code calls where bits must be NumPy's.

In: a ufunc and dtypes. Out: the address of the C function that NumPy itself would run on contiguous
elements of these dtypes, and of its data. They are read from the ufunc as NumPy's public header
``ufuncobject.h`` lays it out; what is found there is compared with what the ufunc says of itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np


class _Ufunc(ctypes.Structure):
    """The first fields of ``PyUFuncObject``."""

    _fields_ = (
        ("head", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_char)),
    )


@final
@dataclass(frozen=True, slots=True)
class Loop:
    """An inner loop.

    Attributes:
        name: the ufunc and its dtypes, as ``"exp f->f"``.
        function: the address of the loop.
        data: the address of what it is given as its last argument.
    """

    name: str
    function: int
    data: int


@cache
def loop_of(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...]) -> Loop | None:
    """Return a ufunc's loop for operands and results of exactly these dtypes.

    Returns:
        The loop; None if there is none, or if the ufunc is not what the header says.
    """
    chars = [d.char for d in dtypes]
    text = f"{''.join(chars[: ufunc.nin])}->{''.join(chars[ufunc.nin :])}"
    if text not in ufunc.types or not _as_in_header(ufunc):
        return None
    number = ufunc.types.index(text)
    inside = _Ufunc.from_address(id(ufunc))
    function = inside.functions[number]
    data = inside.data[number] if inside.data else None
    return Loop(f"{ufunc.__name__} {text}", function, data or 0) if function else None


@cache
def _as_in_header(ufunc: np.ufunc) -> bool:
    """Whether a ufunc's memory says what its attributes say."""
    if np.ufunc.__basicsize__ < ctypes.sizeof(_Ufunc):
        return False
    inside = _Ufunc.from_address(id(ufunc))
    counts = (inside.nin, inside.nout, inside.nargs, inside.ntypes)
    if counts != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return False
    numbers = [ord(inside.types[i]) for i in range(ufunc.ntypes * ufunc.nargs)]
    own = [np.dtype(c).num for text in ufunc.types for c in text.replace("->", "")]
    return numbers == own and inside.name == ufunc.__name__.encode()
