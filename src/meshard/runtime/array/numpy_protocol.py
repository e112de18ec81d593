"""NumPy's functions on arrays. In: a call that NumPy asks about. Out: its result, or a refusal.

NumPy's functions work on values that one process has. Some of them would call a method of the array
and so communicate silently; others would give a wrong answer where the values are not available
(``np.array_equal`` returns False).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from meshard.errors import NotAddressableError
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here

_OF_TYPES: frozenset[Any] = frozenset(
    {
        *(np.can_cast, np.common_type, np.iscomplexobj, np.isrealobj, np.ndim, np.result_type),
        *(np.shape, np.size),
    }
)
"""Functions that ask for shapes and dtypes alone."""


def numpy_call(
    kind: type[Any],
    function: Callable[..., Any],
    types: Collection[type[Any]],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call one of NumPy's functions on arguments that include arrays.

    Args:
        kind: the class of arrays.
        function: NumPy's function.
        types: the classes among its arguments that implement the protocol.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        NotAddressableError: if other processes hold parts of an array.
    """
    others = [t for t in types if t is not kind and not issubclass(t, np.ndarray)]
    plain = getattr(function, "_implementation", None)
    if others or plain is None:  # other classes may know more
        return NotImplemented
    if function not in _OF_TYPES:
        for x in _arrays(kind, (args, kwargs)):
            if not x.aval.complete:
                name = f"{function.__module__}.{function.__name__}"
                raise NotAddressableError(
                    f"{name}: {spans_processes(x.aval)} NumPy's functions see only what one "
                    "process holds. Call the function of this name in meshard.numpy on all "
                    "processes: it works on the whole array."
                )
    return plain(*args, **kwargs)


def _arrays(kind: type[Any], value: Any) -> Iterator[Any]:
    """Find the arrays among arguments, as deep as NumPy looks."""
    if type(value) is kind:
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _arrays(kind, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _arrays(kind, inner)


def spans_processes(kind: ArrayType) -> str:
    """Return the message that other processes hold parts of an array, and what to do instead."""
    me, held, count = here().process_index, len(kind.local), kind.layout.piece_count
    owners = sorted({d.process_index for d in kind.sharding.device_order})
    if len(owners) == 1:
        where = f"is on process {owners[0]}, and this is process {me}, which holds no part of it."
    else:
        where = (
            f"spans processes: process {me} holds {held} of its {count} pieces, and cannot show "
            "the whole."
        )
    return (
        f"This array {kind.str_short()} {where} "
        "Fetch it on every process with meshard.multihost_utils.process_allgather(x), or look at "
        "x.addressable_shards."
    )
