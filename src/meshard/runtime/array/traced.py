"""`Traced`: a value that stands for an array while a transformation runs.

Operations take it like an `Array`, and the interpreter that made it decides what they do with it.
It has a type; only its interpreter knows whether there is data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.attributes import no_attribute
from meshard.algebra.boundary import bounded
from meshard.errors import ConcretizationError
from meshard.runtime.array.at import refuse_write
from meshard.runtime.array.methods import INSTEAD, ArrayMethods
from meshard.runtime.types import Block

_PLACED = frozenset(
    {
        *("addressable_data", "addressable_shards", "copy_to_host_async", "delete", "device"),
        *("devices", "global_shards", "is_deleted", "is_fully_addressable"),
        *("is_fully_replicated", "is_ready", "on_device_size_in_bytes", "tobytes"),
        "unsafe_buffer_pointer",
    }
)


@bounded
class Traced(ArrayMethods):
    """The base of values inside a transformation.

    A subclass implements `_concrete`, which returns the one value or says why there is none.

    Attributes:
        per_device: whether each device has a value of its own, whose layout the caller cannot
            choose.
    """

    __slots__ = ("__weakref__", "_type")
    per_device = False

    def _concrete(self, what: str) -> Block:
        """Return the one value that this stands for.

        Raises:
            ConcretizationError: if there is none; ``what`` names what the caller asked for.
        """
        raise ConcretizationError(
            f"{what}: {self._type.str_short()} is traced here and has no value yet."
        )

    def _known_array(self, what: str) -> Any:
        """Return that value where it is laid out, if it is an array; else as `_concrete` does."""
        return self._concrete(what)

    def _stray(self) -> str:
        """Return the message for a use outside its transformation."""
        return (
            f"{self.aval!r} is a value inside a transformation that is not running here, such as "
            "a shard_map body that has ended. Return it from the body instead of keeping it."
        )

    def _placed(self, sharding: Sharding, what: str) -> Any:
        """Return the value laid out as a sharding says.

        Raises:
            ConcretizationError: if the transformation decides how the value is laid out.
        """
        raise ConcretizationError(
            f"{what}: {self.aval.str_short()} is inside a transformation, which decides where "
            f"it is; it cannot be placed on {sharding!r} there. Place the arguments or the results "
            "of the transformation instead."
        )

    def _varying(self, x: Any) -> Any:
        """Return an array as a value that varies over the same devices as this one."""
        return x

    def __getattr__(self, name: str) -> Any:
        # Called only for missing names, such as those that say where an Array is placed.
        if name in _PLACED:
            raise AttributeError(
                f"{name}: this {self._type.str_short()} is a value inside a transformation, which "
                "has no devices of its own. Ask the array that goes in or comes out."
            )
        raise no_attribute(type(self), name, INSTEAD)

    def _live(self) -> Any:
        return (self._concrete("This function needs the values, not only the shape"),)

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_write(self)
        raise ConcretizationError(self._stray())

    def block_until_ready(self) -> Any:
        """Return the value itself."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Block:
        value = self._concrete("A NumPy function")
        return np.array(value, dtype) if copy else np.asarray(value, dtype)

    def item(self, *args: Any) -> Any:
        """Return one element as a Python scalar."""
        return self._concrete("item()").item(*args)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python scalars."""
        return self._concrete("tolist()").tolist()

    def __bool__(self) -> bool:
        return bool(self._concrete("A Python if, while, and, or, not or bool()"))

    def __int__(self) -> int:
        return int(self._concrete("int()"))

    def __float__(self) -> float:
        return float(self._concrete("float()"))

    def __complex__(self) -> complex:
        return complex(self._concrete("complex()"))

    def __index__(self) -> int:
        return self._concrete("A Python integer, as for range() or a shape,").__index__()

    def __format__(self, spec: str) -> str:
        return format(self._concrete("A format such as f'{x:.2f}'"), spec) if spec else repr(self)

    def __reduce__(self) -> Any:
        raise ConcretizationError("A value inside a transformation cannot be pickled or sent.")
