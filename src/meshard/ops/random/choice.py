"""Choosing: permutations, samples of an array, and categories by their logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshard.algebra.arguments import described, integer_of, shape_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.shape import broadcast_to, moveaxis
from meshard.ops.array.take import take, take_along_axis
from meshard.ops.engine.arguments import checked
from meshard.ops.engine.concrete import is_array, is_traced
from meshard.ops.engine.dtypes import is_float
from meshard.ops.random.continuous import check_mode
from meshard.ops.random.drawing import drawn, refuse_place
from meshard.ops.random.integers import randint
from meshard.ops.random.keys import single_key
from meshard.ops.random.transform import arranged, elementwise_row, finished, like, uniforms
from meshard.ops.reductions.reduce import argmax
from meshard.ops.reductions.scan import cumsum
from meshard.ops.reductions.sort import argsort, searchsorted
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import KEY, dtype_name

_WORDS = np.dtype(np.uint64)


def _dim(what: str, axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ArgumentError(f"{what}: axis {axis} is out of bounds for array of dimension {ndim}.")
    return axis % ndim


def _order(what: str, key: Any, size: int, place: Any) -> Any:
    """Return the numbers up to ``size`` in random order, all orders equally likely.

    They are sorted by 64 random bits each: two are alike with probability 2^-64.
    """
    return argsort(drawn(what, key, "words", (size,), _WORDS, place, (0,)))


@checked
def permutation(
    key: Any, x: Any, axis: int = 0, independent: bool = False, *, out_sharding: Any = None
) -> Any:
    """Shuffle an array along a dim, or the numbers up to one; all orders are equally likely.

    Args:
        key: one key, typed or plain.
        x: an array, or an integer for ``arange(x)``.
        axis: the dim along which elements change places.
        independent: whether each line along the dim has an order of its own.
        out_sharding: how the result lies; None for where the key or the array is.

    Raises:
        DtypeError: if ``x`` is a number that is not an integer.
        ArgumentError: if ``axis`` is no dim of ``x``.

    >>> from meshard import random
    >>> sorted(random.permutation(random.key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    what = "permutation"
    if isinstance(x, (int, np.integer)) or (not is_array(x) and not as_host(x, what).ndim):
        if not isinstance(x, (int, np.integer)):
            raise DtypeError(
                f"{what}: x must be an integer or have at least one dim, got {described(x)}."
            )
        _dim(what, axis, 1)
        found = _order(what, key, max(integer_of(x, what, "x"), 0), out_sharding)
        return finished(what, found, out_sharding)
    values = as_array(x)
    if not values.ndim:
        if values.dtype.kind not in "iu":
            raise DtypeError(
                f"{what}: x must be an integer or at least 1-dimensional; it is "
                f"{dtype_name(values.dtype)} without dims."
            )
        return permutation(key, int(values), axis, independent, out_sharding=out_sharding)
    dim = _dim(what, axis, values.ndim)
    if is_traced(key, values):
        refuse_place(what, out_sharding)
    if independent:
        words = drawn(
            what, key, "words", values.shape, _WORDS, like(key, values.shape, values), (0,)
        )
        found = take_along_axis(values, argsort(words, axis=dim), axis=dim)
    else:
        found = take(values, _order(what, key, values.shape[dim], None), axis=dim)
    return finished(what, found, out_sharding)


@checked
def choice(
    key: Any,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Any:
    """Draw elements of an array along a dim, or numbers below one.

    Args:
        key: one key, typed or plain.
        a: an array, or an integer for ``arange(a)``.
        shape: the shape of the sample, which takes the place of the dim.
        replace: whether an element may be drawn more than once.
        p: the probabilities of the elements along the dim; all alike by default.
        axis: the dim.
        mode: None, ``"low"`` or ``"high"``, as in JAX; all numbers are precise here.

    Raises:
        ArgumentError: if more is to be drawn than there is, or ``axis`` is no dim of ``a``.
        ShapeError: if ``p`` does not have one probability for each element.

    >>> from meshard import random
    >>> random.choice(random.key(0), 5, (2,), replace=False).shape
    (2,)
    """
    what = "choice"
    check_mode(what, mode)
    one, sizes = single_key(key, what), shape_of(shape, what)
    draws = math.prod(sizes)
    values = as_array(a)
    if not values.ndim:
        if values.dtype.kind not in "iu":
            raise DtypeError(
                f"{what}: a must be an integer or at least 1-dimensional; it is "
                f"{dtype_name(values.dtype)} without dims."
            )
        count, dim, outer = int(values), 0, ((), ())
    else:
        dim = _dim(what, axis, values.ndim)
        count, outer = values.shape[dim], (values.shape[:dim], values.shape[dim + 1 :])
    if count <= 0 < draws:
        raise ArgumentError(f"{what}: a must be greater than 0 unless no samples are taken.")
    if not replace and draws > count:
        raise ArgumentError(
            f"{what}: cannot take a larger sample (size {draws}) than population (size {count}) "
            "when replace=False."
        )
    where = None
    if p is not None:
        chances = as_array(p)
        if chances.shape != (count,):
            raise ShapeError(
                f"{what}: p must be None or a 1-D array with one probability for each element. "
                f"p has shape {chances.shape}, and a has {count} elements along the dim."
            )
        chances = chances.astype(np.float64)
        if replace:
            limits = cumsum(chances)
            where = searchsorted(limits, limits[-1] * uniforms(what, one, sizes, None))
        else:
            # The largest of log(p) plus Gumbel numbers are a sample without replacement.
            numbers = uniforms(what, one, (count,), like(one, (count,), chances))
            scores = bind("random_chance_score", numbers, chances, dtype=np.dtype(np.float64))
            where = argsort(-scores)[:draws].reshape(sizes)
    elif replace:
        where = randint(one, sizes, 0, max(count, 1))
    else:
        where = _order(what, one, count, None)[:draws].reshape(sizes)
    if not values.ndim:
        return where
    return take(values, where, axis=dim).reshape((*outer[0], *sizes, *outer[1]))


elementwise_row("gumbel_score", lambda u, logits: logits - np.log(-np.log(u)), 2)
elementwise_row("chance_score", lambda u, p: np.log(p) - np.log(-np.log(u)), 2)


@checked
def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw categories by the logarithms of their probabilities, which need not sum to 1.

    Args:
        key: one key, typed or plain.
        logits: the logarithms, of one category each along ``axis``.
        axis: the dim of the categories.
        shape: the result's shape; it ends with the shape of ``logits`` without ``axis``, which is
            the default.
        replace: whether a category may come up more than once for the same logits.
        mode: None, ``"low"`` or ``"high"``, as in JAX; all numbers are precise here.
        out_sharding: how the result lies.

    Raises:
        ShapeError: if ``shape`` does not end so.
        ArgumentError: if ``axis`` is no dim, or too many are drawn without replacement.

    >>> import meshard.numpy as mnp
    >>> from meshard import random
    >>> random.categorical(random.key(0), mnp.zeros((2, 3)), shape=(4, 2)).shape
    (4, 2)
    """
    what = "categorical"
    check_mode(what, mode)
    scores = as_array(logits)
    if scores.dtype == KEY or (scores.dtype.kind not in "biu" and not is_float(scores.dtype)):
        raise DtypeError(
            f"{what}: logits must be real numbers; their dtype is {dtype_name(scores.dtype)}."
        )
    if not scores.ndim:
        raise ShapeError(f"{what} requires logits.ndim >= 1, got logits.ndim == 0.")
    dim = _dim(what, axis, scores.ndim)
    batch = scores.shape[:dim] + scores.shape[dim + 1 :]
    sizes = batch if shape is None else shape_of(shape, what)
    lead = sizes[: len(sizes) - len(batch)]
    if len(sizes) < len(batch) or not _reaches(batch, sizes[len(lead) :]):
        raise ShapeError(
            f"{what}: incompatible shapes for broadcasting: shape={sizes} is asked for, and the "
            f"logits without their dim {dim} have shape {batch}. The shape must end with that."
        )
    if is_traced(key, scores):
        refuse_place(what, out_sharding)
    if batch != sizes[len(lead) :]:
        inner = list(sizes[len(lead) :])
        inner.insert(dim, scores.shape[dim])
        scores = broadcast_to(scores, tuple(inner))
    if replace:
        full, at = (*lead, *scores.shape), len(lead) + dim
        order = [*range(at), None, *range(at, len(sizes))]
        where = arranged(what, out_sharding, len(sizes), order) or like(key, full, scores)
        numbers = uniforms(what, key, full, where)
        perturbed = bind("random_gumbel_score", numbers, scores, dtype=np.dtype(np.float64))
        return finished(what, argmax(perturbed, axis=at), out_sharding)
    draws, categories = math.prod(lead), scores.shape[dim]
    if draws > categories:
        raise ArgumentError(
            f"{what}: number of samples without replacement ({draws}) cannot exceed number of "
            f"categories ({categories})."
        )
    numbers = uniforms(what, key, scores.shape, like(key, scores.shape, scores))
    perturbed = bind("random_gumbel_score", numbers, scores, dtype=np.dtype(np.float64))
    chosen = moveaxis(argsort(-perturbed, axis=dim), dim, 0)[:draws]
    return finished(what, chosen.reshape(sizes), out_sharding)


def _reaches(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(n in (1, m) for n, m in zip(shape, wanted, strict=True))
