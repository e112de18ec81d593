"""`vectorize`: a function of arrays of given ranks, mapped over the dims in front of these."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from meshard.algebra.arguments import function_of, refusal, shown
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.shape import reshape
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array
from meshard.transforms.batching.vmap import vmap

_TERM = r"\(\s*(?:[A-Za-z_]\w*|\d+)?(?:\s*,\s*(?:[A-Za-z_]\w*|\d+))*\s*\)"
_SIGNATURE = re.compile(rf"^\s*({_TERM}(?:\s*,\s*{_TERM})*)?\s*->\s*{_TERM}(?:\s*,\s*{_TERM})*\s*$")


def vectorize(
    pyfunc: Callable[..., Any],
    *,
    excluded: Collection[int | str] = (),
    signature: str | None = None,
) -> Callable[..., Any]:
    """Return a function that broadcasts over the dims which another does not know.

    Args:
        pyfunc: a function of numbers, or of arrays as the signature says.
        excluded: positions and names of arguments that are passed on as they are.
        signature: the dims of one example, as in ``"(n,m),(m)->(n)"``; without it arguments and
            results have none.

    Raises:
        ArgumentError: if the signature cannot be read, or the number of arguments is another. The
            function that is returned raises `ShapeError` for shapes that do not broadcast.

    Source: the semantics are those of ``jax.numpy.vectorize``.

    >>> import meshard.numpy as mnp
    >>> f = mnp.vectorize(mnp.dot, signature="(n),(n)->()")
    >>> f(mnp.ones((2, 1, 3)), mnp.ones((4, 3))).shape
    (2, 4)
    """
    f = function_of(pyfunc, "vectorize", "pyfunc")
    terms = None if signature is None else _terms(signature)
    left_out = frozenset(_excluded(excluded))

    @functools.wraps(pyfunc)
    @bounded
    def mapped(*args: Any, **kwargs: Any) -> Any:
        numbers = [n for n in range(len(args)) if n not in left_out]
        values = [_value(args[n]) for n in numbers]
        heads = _heads(values, numbers, terms, signature)
        whole = _joined(heads)

        def one(*own: Any) -> Any:
            every = list(args)
            for n, x in zip(numbers, own, strict=True):
                every[n] = x
            return f(*every, **kwargs)

        run: Callable[..., Any] = one
        for dim in reversed(range(len(whole))):
            axes = tuple([0 if _has(head, whole, dim) else None for head in heads])
            run = vmap(run, in_axes=axes, axis_size=whole[dim])
        return run(*[_squeezed(x, head, whole) for x, head in zip(values, heads, strict=True)])

    return mapped


Shape = tuple[int, ...]


def _excluded(given: Any) -> Collection[int | str]:
    """Return the positions and names of arguments that are passed on."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ArgumentError(refusal("vectorize", "excluded", "a set of positions and names", given))
    wrong = [x for x in given if isinstance(x, bool) or not isinstance(x, (int, str))]
    if wrong:
        raise ArgumentError(
            f"vectorize: excluded holds positions and names of arguments, not {shown(wrong[0])}."
        )
    return given


def _heads(
    values: list[Any],
    numbers: list[int],
    terms: list[tuple[str, ...]] | None,
    signature: str | None,
) -> list[Shape]:
    """Return for each argument the dims that are mapped over."""
    if terms is not None and len(terms) != len(numbers):
        raise ArgumentError(
            f"vectorize: the signature {signature!r} has {len(terms)} arguments, but "
            f"{len(numbers)} were passed."
        )
    sizes: dict[str, int] = {}
    heads = []
    for n, x, term in zip(numbers, values, terms or [()] * len(values), strict=True):
        front = len(x.shape) - len(term)
        if front < 0:
            raise ShapeError(
                f"vectorize: argument {n} of shape {x.shape} must have at least {len(term)} dims, "
                f"as the signature {signature!r} says."
            )
        _check_sizes(sizes, term, x.shape[front:], n)
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


def _terms(signature: Any) -> list[tuple[str, ...]]:
    """Return the names of the dims of each argument."""
    if not isinstance(signature, str) or not _SIGNATURE.match(signature):
        raise ArgumentError(
            f"vectorize: signature must be like '(n,m),(m)->(n)', not {shown(signature)}."
        )
    given = signature.split("->")[0]
    found = []
    for text in re.findall(_TERM, given):
        inside = text.strip()[1:-1].strip()
        found.append(tuple([d.strip() for d in inside.split(",")]) if inside else ())
    return found


def _check_sizes(
    sizes: dict[str, int], term: tuple[str, ...], shape: tuple[int, ...], number: int
) -> None:
    """Refuse a dim whose size is another than that of an earlier dim of its name."""
    for name, n in zip(term, shape, strict=True):
        wanted = int(name) if name.isdigit() else sizes.setdefault(name, n)
        if wanted != n:
            raise ShapeError(
                f"vectorize: dim {name!r} of argument {number} has size {n}, but it must be "
                f"{wanted}."
            )
