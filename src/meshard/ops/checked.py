"""Checks of arguments by their annotations: what a signature says is what is accepted.

`checked` reads the annotations of a public function once. From then on each argument that is not
an array (``axis: int``, ``keepdims: bool``, ``sizes: Sequence[int]``) is checked before the
function sees it, and a refusal names function, argument, what is allowed and what was given.
Arguments annotated ``Any`` are left to the function: arrays, which `bind` accepts or refuses.

Dims as arguments name them: in, what a user wrote for ``axis``; out, sorted numbers from 0.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from operator import index
from typing import Any, ParamSpec, TypeVar, final, overload

import numpy as np

from meshard.algebra.arguments import (
    LEAST_INTEGER,
    MOST_INTEGER,
    described,
    flag_of,
    function_of,
    integer_of,
    items_of,
    refusal,
    text_of,
)
from meshard.errors import ArgumentError, DimError, DtypeError, OutOfRangeError
from meshard.ops.dtypes.laws import as_dtype
from meshard.runtime.array.traced import Traced
from meshard.runtime.types import KEY, DTypeLike

DtypeLike = DTypeLike
"""What `as_dtype` takes: a NumPy dtype, its name, a scalar type, ``float`` for the default."""

AnyDtypeLike = DTypeLike
"""The same, with the dtype of typed random keys."""

P = ParamSpec("P")
R = TypeVar("R")
Accept = Callable[[Any, str, str], Any]
"""From a value, the function's name and the argument's to the value that the function gets."""
Many = Callable[[Sequence[Any]], bool]
"""Whether each of several values is accepted as it is."""


@final
class _Kind:
    """What one argument may be.

    Attributes:
        allowed: what it may be, as messages say it.
        accept: returns what the function gets, or raises an `ArgumentError` of any message.
        quick: types of which every value is accepted as it is.
        many: whether each of several values is accepted as it is, seen without a loop of Python.
    """

    __slots__ = ("accept", "allowed", "many", "quick")

    def __init__(
        self, allowed: str, accept: Accept, *quick: type, many: Many = lambda values: False
    ) -> None:
        self.allowed = allowed
        self.accept = accept
        self.quick = frozenset(quick)
        self.many = many


def number(value: Any, what: str, name: str) -> Any:
    """Return an argument that is one real number: as it is, if arrays can be multiplied by it.

    Raises:
        ArgumentError: if it is something else, or several.
    """
    kind = type(value)
    if kind is float or isinstance(value, Traced):
        return value
    real = hasattr(kind, "__float__") or hasattr(kind, "__index__")
    try:
        if not real or isinstance(value, (str, type)) or np.iscomplexobj(value):
            raise TypeError
        found = float(value)
    except OverflowError:
        raise OutOfRangeError(
            f"{what}: {name} must fit into a float, got an integer of {value.bit_length()} bits."
        ) from None
    except (TypeError, ValueError):
        raise ArgumentError(refusal(what, name, "a real number", value)) from None
    fits = not isinstance(value, int) or LEAST_INTEGER <= value <= MOST_INTEGER
    return found if isinstance(value, (Fraction, Decimal)) or not fits else value


def _integers(values: Sequence[Any]) -> bool:
    """Whether several values are integers of Python's of 64 bits."""
    plain = {int}.issuperset(map(type, values))
    return plain and (not values or LEAST_INTEGER <= min(values) <= max(values) <= MOST_INTEGER)


def _integer(value: Any, what: str, name: str) -> Any:
    if type(value) is int and LEAST_INTEGER <= value <= MOST_INTEGER:
        return value
    return value if isinstance(value, Traced) else integer_of(value, what, name)


def _nothing(value: Any, what: str, name: str) -> None:
    if value is not None:
        raise ArgumentError(refusal(what, name, "None", value))


def _any_dtype(value: Any, what: str, name: str) -> Any:
    if value is None:
        return None
    try:
        if hasattr(value, "__array__") and not isinstance(value, type):
            raise DtypeError(f"{described(value)} is not a dtype.")
        return as_dtype(value)
    except DtypeError as error:
        raise DtypeError(f"{what}: {name}: {error}") from None


def _dtype(value: Any, what: str, name: str) -> Any:
    found = _any_dtype(value, what, name)
    if found == KEY:
        raise DtypeError(
            f"{what}: {name} must be a dtype of numbers; random keys do not support arithmetic."
        )
    return found


_SIMPLE = {
    "int": _Kind("an integer", _integer, many=_integers),
    "bool": _Kind("True or False", flag_of, bool),
    "float": _Kind("a real number", number, float),
    "str": _Kind("a string", text_of, str),
    "None": _Kind("None", _nothing, type(None)),
    "DtypeLike": _Kind("a dtype", _dtype, type(None)),
    "AnyDtypeLike": _Kind("a dtype", _any_dtype, type(None)),
}
_ALIASES = {
    "Axis": "int | Sequence[int] | None",
    "ScalarOrSchedule": "float | Callable[[Any], Any]",
}


@functools.cache
def _kind_of(annotation: str) -> _Kind | None:
    """Return what an annotation allows; None where nothing is checked."""
    text = _ALIASES.get(annotation, annotation).strip()
    parts = _split(text, "|")
    if len(parts) > 1:
        return _union([_kind_of(part) for part in parts])
    if text in _SIMPLE:
        return _SIMPLE[text]
    if text.startswith("Callable"):
        return _Kind("a function", function_of)
    for opening in ("Sequence[", "tuple["):
        if text.startswith(opening) and text.endswith("]"):
            return _sequence(_split(text[len(opening) : -1], ","), opening == "tuple[")
    return None


def _written(annotation: Any) -> str:
    """Return an annotation as a signature has it, whether Python has evaluated it or not."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def _split(text: str, separator: str) -> list[str]:
    """Cut a text at the separators that no bracket encloses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _union(kinds: list[_Kind | None]) -> _Kind | None:
    """Return a kind that allows what any of several does."""
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    names = [kind.allowed for kind in known]
    allowed = f"{', '.join(names[:-1])} or {names[-1]}"

    def accept(value: Any, what: str, name: str) -> Any:
        for kind in known:
            try:
                return kind.accept(value, what, name)
            except (OutOfRangeError, DtypeError):
                raise
            except ArgumentError:
                continue
        raise ArgumentError(refusal(what, name, allowed, value))

    return _Kind(allowed, accept, *frozenset().union(*[kind.quick for kind in known]))


_ADVICE = {"out": "Arrays are immutable; use what the function returns."}
"""What to write instead of arguments that NumPy's functions have and none can take here."""

_PLURAL = {"True or False": "bools"}
_TUPLES = {2: "a pair", 3: "a triple"}


def _plural(allowed: str) -> str:
    """Return what several of a kind are called."""
    if allowed in _PLURAL:
        return _PLURAL[allowed]
    first, *rest = allowed.removeprefix("an ").removeprefix("a ").split(" of ", 1)
    return " of ".join([f"{first}s", *rest])


def _sequence(elements: list[str], fixed: bool) -> _Kind:
    """Return the kind of a sequence; ``tuple[int, int]`` is a sequence of two."""
    inner = _kind_of(elements[0])
    count = len(elements) if fixed and "..." not in elements else None
    of = "" if inner is None else f" of {_plural(inner.allowed)}"
    allowed = f"{'a sequence' if count is None else _TUPLES[count]}{of}"

    def accept(value: Any, what: str, name: str) -> Any:
        try:
            found = _items_of(value, what, name, inner, count)
        except OutOfRangeError:
            raise
        except ArgumentError:
            found = None
        if found is None or (count is not None and len(found) != count):
            raise ArgumentError(refusal(what, name, allowed, value))
        return found

    return _Kind(allowed, accept, many=_many_tuples(inner, count))


def _items_of(value: Any, what: str, name: str, inner: _Kind | None, count: int | None) -> Any:
    """Return the items of a sequence, each as the function gets it."""
    if isinstance(value, (list, tuple)):
        if inner is None:
            return value
        if count is None and inner.many(value):
            return tuple(value)
    found = items_of(value, what, name, "items", ordered=True)
    return found if inner is None else tuple([inner.accept(v, what, name) for v in found])


def _many_tuples(inner: _Kind | None, count: int | None) -> Many:
    """Return the test whether several values are tuples of that many values, all accepted."""

    def many(values: Sequence[Any]) -> bool:
        alike = {tuple}.issuperset(map(type, values)) and {count}.issuperset(map(len, values))
        return inner is not None and alike and inner.many(list(chain.from_iterable(values)))

    return many


@overload
def checked(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def checked(**advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def checked(function: Any = None, /, **advice: str) -> Any:
    """Check a function's arguments by its annotations before it runs.

    Args:
        function: the function; as a decorator with ``advice`` it is left out.
        advice: by an argument's name what to write instead, added to its refusal.

    >>> @checked
    ... def root(x: float, *, keepdims: bool = False): ...
    >>> root(2.0, keepdims="x")
    Traceback (most recent call last):
    meshard.errors.ArgumentError: root: keepdims must be True or False, got 'x' of type str.
    """
    if function is None:
        return lambda function: _checked(function, advice)
    return _checked(function, {})


def _checked(function: Callable[..., Any], advice: dict[str, str]) -> Callable[..., Any]:
    code, annotations = function.__code__, inspect.get_annotations(function)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    kinds = {n: k for n in names if (k := _kind_of(_written(annotations.get(n, Any))))}
    if not kinds:
        return function
    places = [(i, n, kinds[n].quick) for i, n in enumerate(names[: code.co_argcount]) if n in kinds]
    what = function.__name__

    def accept(name: str, value: Any) -> Any:
        try:
            return kinds[name].accept(value, what, name)
        except (ArgumentError, DtypeError) as error:
            told = advice.get(name, _ADVICE.get(name))
            if told is None:
                raise
            raise type(error)(f"{error} {told}") from None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        count = len(args)
        for place, name, quick in places:
            if place >= count:
                break
            if type(args[place]) not in quick:
                args = (*args[:place], accept(name, args[place]), *args[place + 1 :])
        for name, value in kwargs.items():
            if name in kinds and type(value) not in kinds[name].quick:
                kwargs[name] = accept(name, value)
        return function(*args, **kwargs)

    return call


Axis = int | Sequence[int] | None


def normalised_axes(axis: Axis, ndim: int, what: str) -> tuple[int, ...]:
    """Return dims as a sorted tuple of numbers from 0; None means all.

    Raises:
        DimError: if a dim does not exist.
        ArgumentError: if one is named twice, or ``axis`` is of another kind.
    """
    if axis is None:
        return tuple(range(ndim))
    try:
        given = (index(axis),) if hasattr(axis, "__index__") else tuple(map(index, axis))
    except TypeError:
        raise ArgumentError(
            f"{what}: axis={axis!r} must be an integer, a sequence of integers or None."
        ) from None
    for a in given:
        if not -ndim <= a < ndim:
            raise DimError(f"{what}: axis {a} is out of bounds for an array with {ndim} dims.")
    dims = tuple(sorted(a % ndim for a in given))
    if len(set(dims)) != len(dims):
        raise ArgumentError(f"{what}: axis {axis} names a dim twice.")
    return dims
