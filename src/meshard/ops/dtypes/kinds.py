"""The order of dtypes: which are floats, which are integers, short ones and typed keys included.

In: a dtype, or a class of scalars. Out: whether it is one of those that another class stands for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from meshard.algebra.arguments import described
from meshard.errors import DtypeError, MeshardError
from meshard.ops.dtypes.laws import as_dtype
from meshard.ops.dtypes.promotion import BYTES, SMALL_FLOATS
from meshard.ops.row import Dtype
from meshard.runtime.types import KEY


class extended(ABC):
    """The class of dtypes that are not NumPy's: typed random keys.

    >>> import meshard, meshard.numpy as mnp
    >>> key = meshard.random.key(0)
    >>> mnp.issubdtype(key.dtype, meshard.dtypes.extended), mnp.issubdtype("int8", mnp.integer)
    (True, True)
    """

    @abstractmethod
    def __init__(self) -> None:
        """It has no instances: it is asked for in `issubdtype`."""


class prng_key(extended):
    """The class of typed random keys.

    >>> import meshard, meshard.numpy as mnp
    >>> mnp.issubdtype(meshard.random.key(0).dtype, meshard.dtypes.prng_key)
    True
    >>> mnp.issubdtype(meshard.random.PRNGKey(0).dtype, meshard.dtypes.prng_key)
    False
    """


_KIND_OF: dict[type, type] = {
    prng_key: np.generic,
    extended: np.generic,
    **{d.type: np.floating for d in SMALL_FLOATS},
    **{d.type: np.unsignedinteger if b.kind == "u" else np.signedinteger for d, b in BYTES.items()},
}
"""The class of NumPy's that scalars belong to where NumPy does not say so itself."""


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Return whether a dtype is at or below another in the order of dtypes.

    It is NumPy's, and knows that bfloat16 and the floats of 8 bits are floats, that integers of 2
    and 4 bits are integers, and what typed random keys are.

    Args:
        arg1: a dtype, or a class such as ``mnp.floating``.
        arg2: the same.

    Raises:
        DtypeError: if one is neither.

    >>> import meshard.numpy as mnp
    >>> mnp.issubdtype(mnp.bfloat16, mnp.floating), mnp.issubdtype(mnp.float32, mnp.integer)
    (True, False)
    """
    below, above = _class_of(arg1), _class_of(arg2)
    return issubclass(below, above) or issubclass(_KIND_OF.get(below, below), above)


def _class_of(given: Any) -> type:
    """Return the class of scalars that a dtype or a class stands for."""
    if isinstance(given, type) and issubclass(given, (np.generic, extended)):
        return given
    try:
        dtype = np.dtype(given)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, MeshardError):
            raise
        raise DtypeError(f"issubdtype: {described(given)} is not a dtype.") from None
    return prng_key if dtype == KEY else dtype.type


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Dtype:
    """Return the dtype that something stands for; the Python type ``float`` is the default float.

    Args:
        dtype: a dtype, its name, or what NumPy takes for one.
        allow_extended_dtype: whether the dtype of typed random keys is taken.

    Raises:
        DtypeError: if it is not a dtype of numbers.

    >>> import meshard
    >>> meshard.dtypes.canonicalize_dtype("bfloat16"), meshard.dtypes.canonicalize_dtype(float)
    (dtype(bfloat16), dtype('float64'))
    """
    found = as_dtype(dtype)
    if found == KEY and not allow_extended_dtype:
        raise DtypeError("canonicalize_dtype: typed random keys are not numbers.")
    return found
