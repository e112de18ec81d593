"""`vectorize`: a function of arrays of given ranks, mapped over the dims in front of these.

`apply_along_axis`: a function of arrays of one dim, mapped over all others.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import function_of, integer_of, refusal, shown
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.shape import moveaxis, reshape
from meshard.ops.checked import DtypeLike, normalised_axes
from meshard.ops.dtypes.laws import as_dtype
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array
from meshard.transforms.batching.vmap import vmap

Shape = tuple[int, ...]
Term = tuple[str, ...]
_TERM = r"\(\s*(?:[A-Za-z_]\w*|\d+)?(?:\s*,\s*(?:[A-Za-z_]\w*|\d+))*\s*\)"
_SIGNATURE = re.compile(rf"^\s*({_TERM}(?:\s*,\s*{_TERM})*)?\s*->\s*{_TERM}(?:\s*,\s*{_TERM})*\s*$")


def vectorize(
    pyfunc: Callable[..., Any] | None = None,
    *,
    otypes: str | Sequence[DtypeLike] | None = None,
    doc: str | None = None,
    excluded: Collection[int | str] = (),
    cache: bool = False,
    signature: str | None = None,
) -> Callable[..., Any]:
    """Return a function that broadcasts over the dims which another does not know.

    Args:
        pyfunc: a function of numbers, or of arrays as the signature says. Without it a decorator
            is returned.
        otypes: the dtypes of the results, as a list or as characters; by default those that the
            function gives.
        doc: the docstring of what is returned; by default that of the function.
        excluded: positions and names of arguments that are passed on as they are; so are those
            that are None.
        cache: accepted as in NumPy; the function is called once in any case.
        signature: the dims of one example, as in ``"(n,m),(m)->(n)"``; without it arguments and
            results have none.

    Raises:
        ArgumentError: if the signature cannot be read, or the number of arguments, results or
            dtypes is another. The function that is returned raises `ShapeError` for shapes that do
            not broadcast, and for results that are not as the signature says.

    Source: the semantics are those of ``numpy.vectorize`` and ``jax.numpy.vectorize``.

    >>> import meshard.numpy as mnp
    >>> f = mnp.vectorize(mnp.dot, signature="(n),(n)->()")
    >>> f(mnp.ones((2, 1, 3)), mnp.ones((4, 3))).shape
    (2, 4)
    """
    options = _Options(
        None if signature is None else Signature.parse(signature),
        _excluded(excluded),
        None if otypes is None else _dtypes(otypes),
    )
    if pyfunc is None:
        return functools.partial(_vectorized, options, doc)
    return _vectorized(options, doc, pyfunc)


@final
@dataclass(frozen=True, slots=True)
class _Options:
    """What `vectorize` was told.

    Attributes:
        signature: the dims of one example; None where it has none.
        excluded: positions and names of arguments that are passed on.
        dtypes: those of the results; None for what comes.
    """

    signature: Signature | None
    excluded: frozenset[int | str]
    dtypes: tuple[np.dtype[Any], ...] | None


def _vectorized(
    options: _Options, doc: str | None, pyfunc: Callable[..., Any]
) -> Callable[..., Any]:
    f = function_of(pyfunc, "vectorize", "pyfunc")

    @functools.wraps(pyfunc, updated=())
    @bounded
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _called(f, options, args, kwargs)

    if doc is not None:
        mapped.__doc__ = doc
    return mapped


def _called(f: Callable[..., Any], options: _Options, args: tuple[Any, ...], kwargs: Any) -> Any:
    given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    names = [n for n, x in given.items() if n not in options.excluded and x is not None]
    values = [_value(given[n]) for n in names]
    signature, sizes = options.signature, dict[str, int]()
    terms: Sequence[Term] = [()] * len(values)
    if signature is not None:
        terms = signature.terms_of([n for n in given if n not in options.excluded], names)
    heads = _heads(names, values, terms, sizes, signature)
    whole = _joined(heads)

    def one(*own: Any) -> Any:
        now = {**given, **dict(zip(names, own, strict=True))}
        positional = [now[n] for n in range(len(args))]
        found = f(*positional, **{n: now[n] for n in kwargs})
        return _checked(found, options, dict(sizes))

    one.__name__ = getattr(f, "__name__", one.__name__)
    run = _over(one, heads, whole)
    return run(*[_squeezed(x, head, whole) for x, head in zip(values, heads, strict=True)])


def _over(run: Callable[..., Any], heads: Sequence[Shape], whole: Shape) -> Callable[..., Any]:
    """Return a function mapped over the dims in front."""
    for dim in reversed(range(len(whole))):
        axes = tuple([0 if _has(head, whole, dim) else None for head in heads])
        run = vmap(run, in_axes=axes, axis_size=whole[dim])
    return run


def _checked(found: Any, options: _Options, sizes: dict[str, int]) -> Any:
    """Return the results of one example, which must be as the signature and the dtypes say."""
    signature, dtypes = options.signature, options.dtypes
    if signature is None and dtypes is None:
        return found
    if isinstance(found, list):
        raise ArgumentError(
            "vectorize: the function returned a list. Several results are returned as a tuple, and "
            "an array of several is made by meshard.numpy.stack."
        )
    several = isinstance(found, tuple)
    results = [_value(y) for y in (found if several else (found,))]
    if signature is not None:
        signature.check(results, sizes)
    if dtypes is not None:
        if len(dtypes) != len(results):
            raise ArgumentError(
                f"vectorize: otypes has {len(dtypes)} dtypes, but the function returned "
                f"{len(results)} results."
            )
        results = [y.astype(d) for y, d in zip(results, dtypes, strict=True)]
    return tuple(results) if several else results[0]


def _dtypes(given: Any) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes of results."""
    if not isinstance(given, (str, list, tuple)):
        wanted = "a list of dtypes, or characters that stand for them"
        raise ArgumentError(refusal("vectorize", "otypes", wanted, given))
    return tuple([as_dtype(d) for d in given])


def _excluded(given: Any) -> frozenset[int | str]:
    """Return the positions and names of arguments that are passed on."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ArgumentError(refusal("vectorize", "excluded", "a set of positions and names", given))
    wrong = [x for x in given if isinstance(x, bool) or not isinstance(x, (int, str))]
    wrong += [x for x in given if isinstance(x, int) and x < 0]
    if wrong:
        raise ArgumentError(
            "vectorize: excluded holds names of arguments and their positions, counted from 0, not "
            f"{shown(wrong[0])}."
        )
    return frozenset(given)


def _told(name: int | str) -> str:
    return f"argument {name}" if isinstance(name, int) else f"argument {name!r}"


def _heads(
    names: Sequence[int | str],
    values: Sequence[Any],
    terms: Sequence[Term],
    sizes: dict[str, int],
    signature: Signature | None,
) -> list[Shape]:
    """Return for each argument the dims that are mapped over, and note the sizes of the others."""
    heads = []
    for name, x, term in zip(names, values, terms, strict=True):
        front = len(x.shape) - len(term)
        if front < 0:
            raise ShapeError(
                f"vectorize: {_told(name)} of shape {x.shape} must have at least {len(term)} dims, "
                f"as the signature {str(signature)!r} says."
            )
        _check_sizes(sizes, term, x.shape[front:], _told(name))
        heads.append(x.shape[:front])
    return heads


def _joined(heads: list[Shape]) -> Shape:
    """Return the shape that the dims in front broadcast to."""
    try:
        return tuple([int(n) for n in np.broadcast_shapes(*heads)])
    except ValueError as error:
        raise ShapeError(
            f"vectorize: the dims in front, {', '.join(map(str, heads))}, do not broadcast."
        ) from error


def _has(head: Shape, whole: Shape, dim: int) -> bool:
    """Whether an argument differs along a dim of the joined shape."""
    at = dim - (len(whole) - len(head))
    return at >= 0 and head[at] == whole[dim]


def _squeezed(x: Any, head: Shape, whole: Shape) -> Any:
    """Return an argument without the dims of size one that broadcast."""
    kept = [n for dim, n in enumerate(whole) if _has(head, whole, dim)]
    return reshape(x, (*kept, *x.shape[len(head) :]))


def _value(x: Any) -> Any:
    return x if isinstance(x, (Array, Traced)) else as_array(x)


@final
@dataclass(frozen=True, slots=True)
class Signature:
    """The dims of one example, as in ``"(n,m),(m)->(n)"``.

    Attributes:
        text: what it was read from.
        inputs: the names of the dims of each argument.
        outputs: those of each result.
    """

    text: str
    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]

    @classmethod
    def parse(cls, text: Any) -> Signature:
        """Read a signature.

        Raises:
            ArgumentError: if it cannot be read.
        """
        if not isinstance(text, str) or not _SIGNATURE.match(text):
            raise ArgumentError(
                f"vectorize: signature must be like '(n,m),(m)->(n)', not {shown(text)}."
            )
        given, _, made = text.partition("->")
        return cls(text, _terms(given), _terms(made))

    def __str__(self) -> str:
        return self.text

    def terms_of(self, every: Sequence[int | str], names: Sequence[int | str]) -> list[Term]:
        """Return the dims of some of the arguments; the others are None, and have no dims.

        Raises:
            ArgumentError: if it has another number of arguments.
        """
        if len(every) != len(self.inputs):
            named = [n for n in every if isinstance(n, str)]
            more = (
                f" Names to be passed on, such as {named[0]!r}, go to excluded=." if named else ""
            )
            raise ArgumentError(
                f"vectorize: the signature {self.text!r} is of {len(self.inputs)} arguments, but "
                f"{len(every)} were passed.{more}"
            )
        terms = dict(zip(every, self.inputs, strict=True))
        missing = [n for n in every if n not in names and terms[n]]
        if missing:
            raise ArgumentError(
                f"vectorize: {_told(missing[0])} is None, but the signature {self.text!r} says "
                f"that it has the dims {', '.join(terms[missing[0]])}."
            )
        return [terms[n] for n in names]

    def check(self, results: Sequence[Any], sizes: dict[str, int]) -> None:
        """Refuse results of one example that are not as the signature says.

        Raises:
            ArgumentError: if there are more or fewer.
            ShapeError: if one has other dims.
        """
        if len(results) != len(self.outputs):
            raise ArgumentError(
                f"vectorize: the signature {self.text!r} is of {len(self.outputs)} results, but "
                f"the function returned {len(results)}. Several are returned as a tuple."
            )
        for number, (y, term) in enumerate(zip(results, self.outputs, strict=True)):
            if len(y.shape) != len(term):
                raise ShapeError(
                    f"vectorize: the result {number} of one example has shape {y.shape}, but the "
                    f"signature {self.text!r} says that its dims are ({', '.join(term)})."
                )
            _check_sizes(sizes, term, y.shape, f"result {number}")


def _terms(text: str) -> tuple[Term, ...]:
    """Return the names of the dims of each argument or result."""
    found = []
    for each in re.findall(_TERM, text):
        inside = each.strip()[1:-1].strip()
        found.append(tuple([d.strip() for d in inside.split(",")]) if inside else ())
    return tuple(found)


def _check_sizes(sizes: dict[str, int], term: Term, shape: Shape, what: str) -> None:
    """Refuse a dim whose size is another than that of an earlier dim of its name."""
    for name, n in zip(term, shape, strict=True):
        wanted = int(name) if name.isdigit() else sizes.setdefault(name, n)
        if wanted != n:
            raise ShapeError(
                f"vectorize: dim {name!r} of {what} has size {n}, but it must be {wanted}."
            )


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> Array:
    """Return what a function makes of each line of an array along a dim.

    The function is called once, by `meshard.vmap`, and so must not look at values.

    Args:
        func1d: takes an array of one dim; the dims of its result stand where the dim was.
        axis: the dim.
        arr: the array.
        args: what the function takes besides.
        kwargs: the same, by name.

    Raises:
        ArgumentError: if there is no such dim.

    >>> import meshard.numpy as mnp
    >>> mnp.apply_along_axis(
    ...     lambda v: v[0] + v[-1], 1, mnp.asarray([[1, 2, 3], [4, 5, 6]])
    ... ).tolist()
    [4, 10]
    """
    f = function_of(func1d, "apply_along_axis", "func1d")
    x = as_array(arr)
    (dim,) = normalised_axes(
        integer_of(axis, "apply_along_axis", "axis"), x.ndim, "apply_along_axis"
    )
    last = moveaxis(x, dim, -1)
    heads = last.shape[:-1]
    rows = reshape(last, (math.prod(heads), last.shape[-1]))
    found = vmap(lambda row: as_array(f(row, *args, **kwargs)))(rows)
    own = found.ndim - 1
    found = reshape(found, (*heads, *found.shape[1:]))
    # Behind the dims that were not applied over, to where the dim was.
    return moveaxis(found, range(len(heads), len(heads) + own), range(dim, dim + own))
