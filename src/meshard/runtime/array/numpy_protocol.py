"""NumPy's functions on arrays. In: a call that NumPy asks about. Out: its result, or a refusal.

A function of NumPy's that ``meshard.numpy`` has under the same name is that function, also for
values inside a transformation: it works on the blocks where they are. There is no list of names;
the namespaces are looked up. What ``meshard.numpy`` lacks is refused where an array would have to
be put together for it, and otherwise left to NumPy. Functions that write files or text are about
the host; they take the arrays there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, NotAddressableError
from meshard.runtime.doors import namespace
from meshard.runtime.types import ArrayType, Typed
from meshard.runtime.world import here

_OF_TYPES: frozenset[Any] = frozenset(
    {
        *(np.can_cast, np.common_type, np.iscomplexobj, np.isrealobj, np.ndim, np.result_type),
        *(np.shape, np.size),
    }
)
"""Functions that ask for shapes and dtypes alone."""

_OF_THE_HOST: frozenset[Any] = frozenset(
    {
        *(np.save, np.savez, np.savez_compressed, np.savetxt, np.copyto, np.put, np.place),
        *(np.array2string, np.array_repr, np.array_str, np.shares_memory, np.may_share_memory),
        *(np.putmask, np.put_along_axis, np.fill_diagonal),
    }
)
"""Functions that write files, texts and NumPy's arrays."""

_OF_METHODS: dict[str, dict[str, str]] = {
    "reduce": {
        "add": "sum",
        "multiply": "prod",
        "maximum": "max",
        "minimum": "min",
        "logical_and": "all",
        "logical_or": "any",
    },
    "accumulate": {"add": "cumsum", "multiply": "cumprod"},
}
"""The functions that methods of ufuncs are."""

_USUAL: dict[str, Any] = {
    "where": True,
    "casting": "same_kind",
    "order": "K",
    "subok": True,
    "dtype": None,
    "out": None,
    "keepdims": False,
    "like": None,
}
"""Arguments of ufuncs and what they are if they are left out."""


_RENAMED = {"a_min": "min", "a_max": "max"}
"""Arguments of NumPy's that have two names."""


def array_function(
    function: Callable[..., Any],
    types: Collection[type[Any]],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call one of NumPy's functions on arguments that include arrays.

    Args:
        function: NumPy's function.
        types: the classes among its arguments that implement the protocol.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        NotAddressableError: if it is left to NumPy, and other processes hold parts of an array.
        ArgumentError: if it is left to NumPy, and an array would have to be put together.
    """
    plain = getattr(function, "_implementation", None)
    if any(not issubclass(t, (Typed, np.ndarray)) for t in types):  # others may know more
        return NotImplemented
    args = tuple(args)
    found = None if function in _OF_THE_HOST else _ours(function)
    if found is not None and (plain is None or function not in _OF_TYPES):
        outs = [v for v in (kwargs.get("out"),) if v is not None]
        result = _called(found, function, args, {k: v for k, v in kwargs.items() if k != "out"})
        return _written(result, outs[0], _name(function)) if outs else result
    if plain is None:
        return NotImplemented
    if function not in _OF_TYPES:
        _check(function, (args, kwargs))
    return plain(*args, **kwargs)


def array_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call one of NumPy's ufuncs, or a method of it, on operands that include arrays.

    Raises:
        NotAddressableError: if it is left to NumPy, and other processes hold parts of an array.
        ArgumentError: if it is left to NumPy, and an array would have to be put together; if the
            result is to be written into an array; or if an argument has no meaning here.
    """
    if any(map(_is_others, inputs)):
        return NotImplemented
    found = _ours(ufunc)
    if found is not None and method == "__call__" and not kwargs:
        return found(*inputs)
    name = f"{_name(ufunc)}{'' if method == '__call__' else '.' + method}"
    outs = [x for x in kwargs.get("out", ()) if x is not None]
    _refuse_ours(outs, name)
    if method == "at":
        return _at(ufunc, name, inputs)
    found = _of_method(ufunc, method, found)
    if found is None or outs:
        if not outs:
            _check(ufunc, inputs, name)
        return getattr(ufunc, method)(*map(_on_host, inputs), **kwargs)
    return _of_ufunc(found, method, inputs, kwargs, name)


def _of_ufunc(
    found: Callable[..., Any],
    method: str,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
) -> Any:
    """Call the function that a ufunc or its method is here."""
    given = {k: v for k, v in kwargs.items() if not _is_usual(k, v)}
    if method == "__call__" and "dtype" in given:
        wanted = given.pop("dtype")
        inputs = tuple([x.astype(wanted) if hasattr(x, "astype") else x for x in inputs])
    if method in _OF_METHODS and len(inputs) == 1:
        given.setdefault("axis", 0)
    return _called(found, None, inputs, given, name)


def _on_host(x: Any) -> Any:
    """Return an operand as NumPy's functions take it."""
    return np.asarray(x) if isinstance(x, Typed) else x


def _refuse_ours(outs: Iterable[Any], name: str) -> None:
    """Refuse to write a result into an array of ours."""
    if any(isinstance(x, Typed) for x in outs):
        raise ArgumentError(
            f"{name}: out= is an array of meshard, and these are immutable; use what it returns."
        )


def _is_others(x: object) -> bool:
    """Whether an operand may know more than we do: it has a protocol of its own."""
    if isinstance(x, (Typed, np.ndarray, np.generic)):
        return False
    return getattr(type(x), "__array_ufunc__", None) is not None


def _is_usual(name: str, value: Any) -> bool:
    """Whether an argument of a ufunc is what it is if it is left out."""
    return name in _USUAL and (value is _USUAL[name] or shown(value) == shown(_USUAL[name]))


@cache
def _ours(function: Any) -> Callable[..., Any] | None:
    """Return the function of ``meshard.numpy`` that has the name of one of NumPy's."""
    name = function.__name__
    place = "numpy" if isinstance(function, np.ufunc) else str(function.__module__)
    first, *rest = place.split(".")
    theirs: Any = np
    ours: Any = namespace()
    if first != "numpy":
        return None
    for inner in rest:
        theirs, ours = getattr(theirs, inner, None), getattr(ours, inner, None)
    if getattr(theirs, name, None) is not function:
        return None
    found: Callable[..., Any] | None = getattr(ours, name, None)
    return found


def _of_method(ufunc: np.ufunc, method: str, found: Any) -> Callable[..., Any] | None:
    """Return what a method of a ufunc is here."""
    if method == "__call__" or found is None:
        return found if method == "__call__" else None
    own: Callable[..., Any] | None = getattr(found, method, None)
    if own is not None:
        return own
    if method == "outer":
        return lambda x, y: found(x.reshape((*np.shape(x), *[1] * np.ndim(y))), y)
    named = _OF_METHODS.get(method, {}).get(ufunc.__name__)
    return None if named is None else getattr(namespace(), named)


def _at(ufunc: np.ufunc, name: str, inputs: tuple[Any, ...]) -> None:
    """Change an array of NumPy's in place; refuse to change one of ours."""
    if isinstance(inputs[0], Typed):
        raise ArgumentError(
            f"{name}: arrays of meshard are immutable; write x = x.at[index].add(values), or "
            "another method of x.at[index]."
        )
    ufunc.at(*map(_on_host, inputs))


def _called(
    found: Callable[..., Any],
    theirs: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str = "",
) -> Any:
    """Call one of our functions with the arguments of NumPy's."""
    ours = _parameters(found)
    if not kwargs and (len(args) == 1 or ours is None):
        return found(*args)
    if ours is None or any(p.kind is p.VAR_POSITIONAL for p in ours.values()):
        return found(*args, **kwargs)
    asked = _parameters(theirs) or {}
    kept, named = _by_name([*ours.values()], [*asked.values()], args)
    named = {_RENAMED.get(k, k): v for k, v in {**named, **kwargs}.items()}
    for key in [k for k in named if k not in ours]:
        if not _left_out(key, named.pop(key), asked):
            raise ArgumentError(
                f"{name or _name(theirs)}: meshard.numpy.{found.__name__} does not take {key}=; it "
                f"takes {', '.join(ours)}. Leave it out, or pass np.asarray(x)."
            )
    return found(*kept, **named)


def _left_out(name: str, value: Any, asked: Mapping[str, inspect.Parameter]) -> bool:
    """Whether an argument is what it is if it is left out."""
    if value is None or _is_usual(name, value):
        return True
    return name in asked and value is asked[name].default


def _by_name(
    ours: list[inspect.Parameter], theirs: list[inspect.Parameter], args: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by place, and by name from the first on that has another place here."""
    for i, (_, other) in enumerate(zip(args, theirs, strict=False)):
        if other.kind is other.VAR_POSITIONAL:
            break
        own = ours[i] if i < len(ours) else other.replace(kind=other.KEYWORD_ONLY)
        alike = own.kind is own.POSITIONAL_OR_KEYWORD and own.name == other.name
        if i and not alike and own.kind is not own.POSITIONAL_ONLY:
            names = [p.name for p in theirs[i:]]
            return args[:i], dict(zip(names, args[i:], strict=False))
    return args, {}


@cache
def _parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return a function's parameters; None where it does not tell them."""
    try:
        return None if function is None else inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _written(result: Any, out: Any, name: str) -> Any:
    """Write a result into the array that the caller gave."""
    _refuse_ours([out], name)
    np.copyto(out, np.asarray(result), casting="same_kind")
    return out


def _check(function: Any, arguments: Any, name: str = "") -> None:
    """Refuse to leave a function to NumPy that would put arrays together for it."""
    name = name or _name(function)
    for x in _arrays(arguments):
        kind = x.aval
        if not hasattr(kind, "complete"):  # it has no data, and says so itself
            continue
        if not kind.complete:
            raise NotAddressableError(
                f"{name}: {spans_processes(kind)} NumPy's functions see only what one "
                "process holds. Call the function of this name in meshard.numpy on all "
                "processes: it works on the whole array."
            )
        if function not in _OF_THE_HOST and not kind.layout.replicated:
            raise ArgumentError(
                f"{name}: meshard.numpy has no such function, and {kind.str_short()} is spread "
                f"over {kind.layout.piece_count} blocks, which NumPy would put together on the "
                "host. If that is meant, pass np.asarray(x)."
            )


def _name(function: Any) -> str:
    """Return a function's name as users write it."""
    name: str = function.__name__
    if isinstance(function, np.ufunc):
        return f"numpy.{name}" if getattr(np, name, None) is function else name
    return f"{function.__module__}.{name}"


def _arrays(value: Any) -> Iterator[Any]:
    """Find the arrays among arguments, as deep as NumPy looks."""
    if isinstance(value, Typed):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _arrays(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _arrays(inner)


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
