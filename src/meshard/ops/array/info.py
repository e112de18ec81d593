"""What the namespace can do, and laws of dtypes, as the Array API standard asks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, final

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import choice_of, described
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, DtypeError, MeshardError, did_you_mean
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dtypes.laws import (
    BYTES,
    SMALL_FLOATS,
    as_dtype,
    common_dtype,
    default_complex,
    default_float,
)
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import home
from meshard.runtime.types import ArrayLike, DTypeLike
from meshard.runtime.world import here

_finfo: Callable[..., Any] = ml_dtypes.finfo
_iinfo: Callable[..., Any] = ml_dtypes.iinfo
_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]


_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@contextlib.contextmanager
def _refusing(what: str, name: str, *given: Any) -> Iterator[None]:
    """Turn NumPy's refusal of what should be a dtype into ours."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, MeshardError):
            raise
        raise DtypeError(
            f"{what}: {name} must be a dtype, an array or a number that it takes, got "
            f"{', '.join(map(described, given)) or 'nothing'}: {error}"
        ) from None


def _dtype(given: Any) -> Any:
    """Return the dtype of an array; anything else as it is."""
    return given.dtype if isinstance(given, (Array, Traced)) else given


def _kind(given: Any) -> Any:
    """Return the dtype of an array or a dtype; of a Python number its type."""
    if type(given) in (bool, int, float, complex):
        return type(given)
    if isinstance(given, (np.ndarray, np.generic)):
        return given.dtype
    return as_dtype(_dtype(given))


@checked
def isdtype(dtype: DtypeLike, kind: Any) -> bool:
    """Return whether a dtype is of a kind.

    Args:
        dtype: the dtype.
        kind: a dtype, ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``,
            ``"real floating"``, ``"complex floating"``, ``"numeric"``, or a tuple of these.

    Raises:
        ArgumentError: if the kind is another word.

    >>> import meshard.numpy as mnp
    >>> mnp.isdtype(mnp.float32, ("integral", "real floating"))
    True
    """
    if dtype is None or kind is None:
        raise DtypeError(f"isdtype: dtype and kind must be given, got {dtype} and {kind}.")
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    given = np.dtype(dtype)
    if not isinstance(kind, str) or kind not in _KINDS:
        if isinstance(kind, str):
            raise ArgumentError(
                f"isdtype: kind {kind!r} is not known; it must be a dtype or one of "
                f"{', '.join(map(repr, _KINDS))}.{did_you_mean(kind, _KINDS)}"
            )
        with _refusing("isdtype", "kind", kind):
            return bool(given == np.dtype(kind))
    if given in SMALL_FLOATS or given == np.float16:
        return kind in ("real floating", "numeric")
    if given in BYTES:
        word = "unsigned integer" if BYTES[given].kind == "u" else "signed integer"
        return kind in (word, "integral", "numeric")
    return given.name in _KINDS[kind]


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype that arrays, dtypes and Python scalars are promoted to together.

    >>> import meshard.numpy as mnp
    >>> mnp.result_type(mnp.ones(2, "float32"), 1.0)
    dtype('float32')
    """
    with _refusing("result_type", "arrays_and_dtypes", *arrays_and_dtypes):
        return common_dtype("result_type", [_kind(a) for a in arrays_and_dtypes])


@checked
def promote_types(type1: DtypeLike, type2: DtypeLike) -> np.dtype[Any]:
    """Return the dtype that two dtypes are promoted to together, as every function does it.

    >>> import meshard.numpy as mnp
    >>> mnp.promote_types(mnp.bfloat16, mnp.int32)
    dtype(bfloat16)
    """
    return common_dtype("promote_types", [as_dtype(type1), as_dtype(type2)])


@checked
def can_cast(from_: ArrayLike, to: DtypeLike, casting: str = "safe") -> bool:
    """Return whether a dtype, or that of an array, can be cast to another by a casting rule.

    >>> import meshard.numpy as mnp
    >>> mnp.can_cast(mnp.int32, mnp.float64), mnp.can_cast(mnp.float64, mnp.float32)
    (True, False)
    """
    choice_of(casting, _CASTINGS, "can_cast", "casting")
    with _refusing("can_cast", "from_", from_):
        return bool(np.can_cast(_dtype(from_), as_dtype(to), casting))  # type: ignore[arg-type]


def finfo(type: DTypeLike | ArrayLike, /) -> np.finfo[Any]:
    """Return the limits of a float dtype, or of that of an array: ``eps``, ``max`` and so on.

    >>> import meshard.numpy as mnp
    >>> float(mnp.finfo("float32").eps)
    1.1920928955078125e-07
    """
    with _refusing("finfo", "type", type):
        if type is None:
            raise TypeError("None is not a dtype")
        return _finfo(_dtype(type))


def iinfo(type: DTypeLike | ArrayLike, /) -> ml_dtypes.iinfo:
    """Return the limits of an integer dtype, or of that of an array: ``min`` and ``max``.

    >>> import meshard.numpy as mnp
    >>> int(mnp.iinfo("int8").max)
    127
    """
    with _refusing("iinfo", "type", type):
        return _iinfo(_dtype(type))


@bounded
@final
class NamespaceInfo:
    """What ``meshard.numpy`` can do, for code that is written for any array library."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional behaviours there are."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """Return the device of new arrays that are not placed."""
        return home(here()).device

    def devices(self) -> tuple[Any, ...]:
        """Return all devices."""
        return tuple(here().devices)

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the dtypes that Python numbers take."""
        integral = np.dtype(np.int64)
        return {
            "real floating": default_float(),
            "complex floating": default_complex(),
            "integral": integral,
            "indexing": integral,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the standard's dtypes, all or those of a kind, by name.

        Raises:
            ArgumentError: if the kind is not known.
        """
        kinds = (kind,) if isinstance(kind, str) else kind or ("bool", "numeric")
        unknown = [k for k in kinds if k not in _KINDS]
        if unknown:
            raise ArgumentError(
                f"dtypes: kind {unknown[0]!r} is not known; it must be one of "
                f"{', '.join(map(repr, _KINDS))}, or a tuple of them."
                f"{did_you_mean(unknown[0], _KINDS)}"
            )
        return {name: np.dtype(name) for k in kinds for name in _KINDS[k]}


def namespace_info() -> NamespaceInfo:
    """Return what ``meshard.numpy`` can do, as the Array API standard describes it.

    >>> import meshard.numpy as mnp
    >>> mnp.__array_namespace_info__().default_dtypes()["integral"]
    dtype('int64')
    """
    return NamespaceInfo()
