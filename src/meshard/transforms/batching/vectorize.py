"""`vectorize`: a function of arrays of given ranks, mapped over the dims in front of these."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from meshard.algebra.arguments import function_of, shown
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
    left_out = frozenset(excluded)

    @functools.wraps(pyfunc)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        numbers = [n for n in range(len(args)) if n not in left_out]
        if terms is not None and len(terms) != len(numbers):
            raise ArgumentError(
                f"vectorize: the signature {signature!r} has {len(terms)} arguments, but "
                f"{len(numbers)} were passed."
            )
        values = {n: _value(args[n]) for n in numbers}
        cores = [0] * len(numbers) if terms is None else [len(t) for t in terms]
        sizes: dict[str, int] = {}
        heads = []
        for k, n in enumerate(numbers):
            shape, core = values[n].shape, cores[k]
            if len(shape) < core:
                raise ShapeError(
                    f"vectorize: argument {n} of shape {shape} must have at least {core} dims, as "
                    f"the signature {signature!r} says."
                )
            _check_sizes(sizes, terms[k] if terms else (), shape[len(shape) - core :], n)
            heads.append(shape[: len(shape) - core])
        try:
            whole = np.broadcast_shapes(*heads) if heads else ()
        except ValueError as error:
            raise ShapeError(
                f"vectorize: the dims in front, {', '.join(map(str, heads))}, do not broadcast."
            ) from error

        def one(*own: Any) -> Any:
            every = list(args)
            for n, x in zip(numbers, own, strict=True):
                every[n] = x
            return f(*every, **kwargs)

        given = [values[n] for n in numbers]
        run: Callable[..., Any] = one
        flat = []
        for x, head in zip(given, heads, strict=True):
            aligned = (1,) * (len(whole) - len(head)) + tuple(head)
            kept = tuple([n for n, m in zip(aligned, whole, strict=True) if not (n == 1 != m)])
            flat.append(reshape(x, (*kept, *x.shape[len(head) :])))
        for dim in reversed(range(len(whole))):
            axes = []
            for head in heads:
                at = dim - (len(whole) - len(head))
                axes.append(0 if at >= 0 and not (head[at] == 1 != whole[dim]) else None)
            run = vmap(run, in_axes=tuple(axes), axis_size=int(whole[dim]))
        return run(*flat)

    return mapped


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
