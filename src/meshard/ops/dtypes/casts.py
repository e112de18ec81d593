"""Dtypes that are functions too: ``float32`` is a dtype, and ``float32(x)`` an array of it."""

from __future__ import annotations

from typing import Any

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

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"meshard.numpy.{cls.__name__}"


def cast(scalar: Any, module: str) -> Cast:
    """Return a dtype that can be called.

    Args:
        scalar: NumPy's class of scalars, or another package's.
        module: where the name is public, so that it can be pickled.
    """
    dtype = np.dtype(scalar)
    return Cast(
        dtype.name, (), {"dtype": dtype, "__module__": module, "__doc__": _DOC.format(dtype)}
    )


_DOC = """The dtype {0}; called with a number, lists or an array, it makes an array of it.

    >>> import meshard.numpy as mnp
    >>> mnp.{0}([0, 1]).dtype == mnp.{0}
    True
    """
