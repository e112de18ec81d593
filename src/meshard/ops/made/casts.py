"""Dtypes that are functions too: ``float32`` is a dtype, and ``float32(x)`` an array of it."""

from __future__ import annotations

import builtins
import functools
from typing import Any

import ml_dtypes
import numpy as np

from meshard.ops.array.create import asarray
from meshard.runtime.array.array import Array
from meshard.runtime.types import ArrayLike


class Cast(type):
    """A dtype that makes arrays when it is called.

    Wherever a dtype is asked for, it stands for ``dtype``, to which it is equal; NumPy's scalars of
    this dtype are its instances.

    Attributes:
        dtype: the dtype.
    """

    dtype: np.dtype[Any]

    def __call__(cls, x: ArrayLike = 0, /) -> Array:
        """Return an array of this dtype: of a number, of lists, or of another array.

        Raises:
            DtypeError: if it holds no numbers.

        >>> import meshard.numpy as mnp
        >>> mnp.float32(3), mnp.int8(mnp.asarray([1.5, -2.5]))
        (Array(3., dtype=float32), Array([ 1, -2], dtype=int8))
        """
        return asarray(x, cls.dtype)

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: object) -> Any:
        return cls is other or other == cls.dtype.type or other == cls.dtype

    def __ne__(cls, other: object) -> Any:
        return not cls == other

    def __instancecheck__(cls, instance: Any) -> builtins.bool:
        return isinstance(instance, cls.dtype.type)

    def __subclasscheck__(cls, subclass: type) -> builtins.bool:
        return subclass is cls or issubclass(subclass, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"meshard.numpy.{cls.__name__}"


def _cast(scalar: Any) -> Cast:
    """Return a dtype that can be called, of NumPy's class of scalars or another package's."""
    return _named(np.dtype(scalar).name)


@functools.cache
def _named(name: str) -> Cast:
    dtype = np.dtype(name)
    more = {"dtype": dtype, "__module__": __name__, "__doc__": _DOC.format(dtype)}
    return Cast(dtype.name, (), more)


_DOC = """The dtype {0}; called with a number, lists or an array, it makes an array of it.

    >>> import meshard.numpy as mnp
    >>> mnp.{0}([0, 1]).dtype == mnp.{0}
    True
    """

bool_ = _cast(np.bool_)
bool = bool_
int2 = _cast(ml_dtypes.int2)
int4 = _cast(ml_dtypes.int4)
int8 = _cast(np.int8)
int16 = _cast(np.int16)
int32 = _cast(np.int32)
int64 = _cast(np.int64)
uint2 = _cast(ml_dtypes.uint2)
uint4 = _cast(ml_dtypes.uint4)
uint8 = _cast(np.uint8)
uint16 = _cast(np.uint16)
uint32 = _cast(np.uint32)
uint64 = _cast(np.uint64)
float16 = _cast(np.float16)
float32 = _cast(np.float32)
float64 = _cast(np.float64)
complex64 = _cast(np.complex64)
complex128 = _cast(np.complex128)
byte = _cast(np.byte)
ubyte = _cast(np.ubyte)
short = _cast(np.short)
ushort = _cast(np.ushort)
intc = _cast(np.intc)
uintc = _cast(np.uintc)
int_ = _cast(np.int_)
uint = _cast(np.uint)
intp = _cast(np.intp)
uintp = _cast(np.uintp)
long = _cast(np.long)
ulong = _cast(np.ulong)
longlong = _cast(np.longlong)
ulonglong = _cast(np.ulonglong)
half = _cast(np.half)
single = _cast(np.single)
double = _cast(np.double)
csingle = _cast(np.csingle)
cdouble = _cast(np.cdouble)
bfloat16 = _cast(ml_dtypes.bfloat16)
float8_e4m3fn = _cast(ml_dtypes.float8_e4m3fn)
float8_e3m4 = _cast(ml_dtypes.float8_e3m4)
float8_e4m3 = _cast(ml_dtypes.float8_e4m3)
float8_e8m0fnu = _cast(ml_dtypes.float8_e8m0fnu)
float4_e2m1fn = _cast(ml_dtypes.float4_e2m1fn)
float8_e5m2 = _cast(ml_dtypes.float8_e5m2)
float8_e4m3b11fnuz = _cast(ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fnuz = _cast(ml_dtypes.float8_e4m3fnuz)
float8_e5m2fnuz = _cast(ml_dtypes.float8_e5m2fnuz)
