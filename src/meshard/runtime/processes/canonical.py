"""Texts of operations: an exact one, equal in all processes that mean the same, and a readable one.

In: names, parameters, types of arrays. Out: texts, and 64 bits of one. Python's own hashes and
addresses differ between processes, and are not used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.runtime.types import ArrayType, dtype_name

_LONGEST = 160


def digest(text: str) -> int:
    """Return 64 bits of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def canonical(value: Any) -> str:
    """Return a text of a parameter that is the same in all processes that mean the same."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list, set, frozenset, Mapping)):
        return _container(value)
    if isinstance(value, slice):
        return f"slice{canonical((value.start, value.stop, value.step))}"
    if isinstance(value, np.dtype):
        return dtype_name(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, np.ndarray):
        bits = np.ascontiguousarray(value).tobytes()
        return f"{dtype_name(value.dtype)}{list(value.shape)}#{digest(bits.hex()):x}"
    if isinstance(value, ArrayType):
        return described(value, exact=True)
    if isinstance(value, Sharding):
        return _lies(value, exact=True)
    if isinstance(value, Layout):
        return _layout(value)
    return _by_fields_or_name(value)


def _by_fields_or_name(value: Any) -> str:
    """Return the text of a value of an unknown class, which never contains its address."""
    if is_dataclass(value) and not isinstance(value, type):
        held = [canonical(getattr(value, f.name)) for f in fields(value)]
        return f"{type(value).__qualname__}({', '.join(held)})"
    if hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    if getattr(type(value), "__repr__", None) is object.__repr__:  # it would contain an address
        return type(value).__qualname__
    return repr(value)


def _container(value: Collection[Any]) -> str:
    """Return the text of a container; an unordered one is sorted by the texts of its items."""
    if isinstance(value, Mapping):
        items = sorted(f"{canonical(k)}: {canonical(v)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    inner = [canonical(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(inner))}}}"
    return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"


def described(type_: ArrayType, *, exact: bool = False) -> str:
    """Return dtype, shape and sharding of an array, in the exact or the readable form."""
    told = type_.str_short()
    if type_.unplaced:  # every process has its own
        return told
    return f"{told} {_lies(type_.sharding, exact=False)}" + (_layout(type_.layout) if exact else "")


def laid_out(
    shape: tuple[int, ...], dtype: np.dtype[Any] | None, sharding: Sharding, *, exact: bool
) -> str:
    """Return what is known about an array before it is made; None for an unknown dtype."""
    sizes = ",".join(map(str, shape))
    told = f"{'' if dtype is None else dtype_name(dtype)}[{sizes}] {_lies(sharding, exact=exact)}"
    return told + (_layout(sharding.layout(shape)) if exact else "")


def _lies(sharding: Sharding, *, exact: bool) -> str:
    """Return the text of a sharding."""
    ids = [d.id for d in sharding.device_order]
    if not isinstance(sharding, NamedSharding):
        return f"on devices {ids}" if exact or len(ids) <= 8 else f"on {len(ids)} devices"
    if not exact:
        return repr(sharding.spec)
    mesh = sharding.mesh
    return f"{sharding.spec!r} uneven={sharding.uneven!r} on {dict(mesh.shape)} {ids}"


def _layout(layout: Layout) -> str:
    holders = [layout.holders(i) for i in range(layout.piece_count)]
    boxes = None if layout.regular else [b.slices for b in layout.boxes]
    return f" {layout.cuts} {holders} {boxes}"


def shortened(text: str) -> str:
    """Return a text that is short enough for a message."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def call_text(name: str, params: Sequence[tuple[str, Any]]) -> str:
    """Return the name of an operation in messages, with its parameters."""
    told = ", ".join([f"{n}={canonical(v)}" for n, v in params if v is not None])
    if len(told) > _LONGEST // 2:
        told = f"{told[: _LONGEST // 2 - 4]} ..."
    return f"`{name}`" + (f" ({told})" if told else "")
