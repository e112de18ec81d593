"""Draws that are more than one number each: permutations, samples, categories, vectors, matrices.

In: a key, and what to choose from or the parameters of a distribution of vectors. Out: an array
whose elements depend on each other along some of its dims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshard.algebra.arguments import described, integer_of, shape_of
from meshard.errors import ArgumentError, DimError, DtypeError, ShapeError
from meshard.ops.array import elementwise as element
from meshard.ops.array.join import stack
from meshard.ops.array.shape import broadcast_to, matrix_transpose, moveaxis
from meshard.ops.array.take import take, take_along_axis
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dtypes.laws import is_float
from meshard.ops.engine.later import is_array, is_traced
from meshard.ops.linalg.contract import matmul
from meshard.ops.linalg.decompose import cholesky, eigh, qr, svd
from meshard.ops.linalg.norms import diagonal
from meshard.ops.random.keys import single_key
from meshard.ops.random.table import (
    ANY,
    FLOAT_OR_COMPLEX,
    Distribution,
    ShapeLaw,
    check_mode,
    elementwise_row,
    finished,
    result_shape,
    with_dims,
)
from meshard.ops.random.tiles import Request, refuse_place
from meshard.ops.random.uniform import randint
from meshard.ops.reductions.reduce import argmax
from meshard.ops.reductions.reduce import sum as total
from meshard.ops.reductions.scan import cumsum
from meshard.ops.reductions.sort import argsort, searchsorted
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import KEY, ArrayLike, DeviceLike, ShapeLike, dtype_name

_FLOAT64 = np.dtype(np.float64)


# permutations and samples


def _dim(what: str, axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise DimError(f"{what}: axis {axis} is out of bounds for array of dimension {ndim}.")
    return axis % ndim


def _order(what: str, key: Any, size: int, place: Any = None) -> Any:
    """Return the numbers up to ``size`` in random order, all orders equally likely.

    They are sorted by 64 random bits each: two are alike with probability 2^-64.
    """
    return argsort(Request(what, key, (size,), place=place).words())


def _count(what: str, name: str, given: Any, values: Any) -> int:
    """Return the integer that stands for the numbers up to it."""
    if values.dtype.kind not in "iu":
        got = f"{dtype_name(values.dtype)} without dims" if is_array(given) else described(given)
        raise DtypeError(f"{what}: {name} must be an integer or have at least one dim, got {got}.")
    return int(values)


@checked
def permutation(
    key: ArrayLike,
    x: ArrayLike,
    axis: int = 0,
    independent: bool = False,
    *,
    out_sharding: DeviceLike = None,
) -> Array:
    """Shuffle an array along a dim, or the integers below a number; all orders are as likely.

    Args:
        key: one key, typed or plain.
        x: an array, or an integer for ``arange(x)``.
        axis: the dim along which elements change places.
        independent: whether each line along the dim has an order of its own.
        out_sharding: how the result is laid out; None for where the key or the array is.

    Raises:
        DtypeError: if ``x`` is a number that is not an integer.
        ArgumentError: if ``axis`` is not a dim of ``x``.
        ShardingError: if the result cannot be laid out so.

    >>> import meshard
    >>> from meshard import P, random
    >>> with meshard.make_mesh((1,), ("i",)):
    ...     x = random.permutation(random.key(0), 4, out_sharding=P("i"))
    >>> x.sharding.spec, sorted(x.tolist())
    (P('i',), [0, 1, 2, 3])
    """
    what = "permutation"
    plain = isinstance(x, (int, np.integer))
    values = None if plain else as_array(x if is_array(x) else as_host(x, what))
    if values is None or not values.ndim:
        size = integer_of(x, what, "x") if values is None else _count(what, "x", x, values)
        _dim(what, axis, 1)
        return finished(what, _order(what, key, max(size, 0), out_sharding), out_sharding)
    dim = _dim(what, axis, values.ndim)
    if is_traced(key, values):
        refuse_place(what, out_sharding)
    if independent:
        words = Request(what, key, values.shape).beside(values).words()
        found = take_along_axis(values, argsort(words, axis=dim), axis=dim)
    else:
        found = take(values, _order(what, key, values.shape[dim]), axis=dim)
    return finished(what, found, out_sharding)


@checked
def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Draw elements of an array along a dim, or integers below a given one.

    Args:
        key: one key, typed or plain.
        a: an array, or an integer for ``arange(a)``.
        shape: the shape of the sample, which takes the place of the dim.
        replace: whether an element may be drawn more than once.
        p: the probabilities of the elements along the dim; all alike by default.
        axis: the dim.
        mode: None, ``"low"`` or ``"high"``, as in JAX; all numbers are precise here.

    Raises:
        ArgumentError: if more is to be drawn than there is, or ``axis`` is not a dim of ``a``.
        DtypeError: if ``a`` is a number that is not an integer.
        ShapeError: if ``p`` does not have one probability for each element.

    >>> from meshard import random
    >>> sorted(random.choice(random.key(0), 3, (3,), replace=False).tolist())
    [0, 1, 2]
    """
    what = "choice"
    check_mode(what, mode)
    one, sizes = single_key(key, what), shape_of(shape, what)
    draws, values = math.prod(sizes), as_array(a)
    dim = _dim(what, axis, values.ndim) if values.ndim else 0
    count = values.shape[dim] if values.ndim else _count(what, "a", a, values)
    if count <= 0 < draws:
        raise ArgumentError(f"{what}: a must be greater than 0 unless no samples are taken.")
    if not replace and draws > count:
        raise ArgumentError(
            f"{what}: cannot take a larger sample (size {draws}) than population (size {count}) "
            "when replace=False."
        )
    where: Array
    if p is not None:
        where = _weighted(what, one, count, sizes, replace, as_array(p))
    elif replace:
        where = randint(one, sizes, 0, max(count, 1))
    else:
        where = _order(what, one, count)[:draws].reshape(sizes)
    if values.ndim:
        around = (values.shape[:dim], values.shape[dim + 1 :])
        where = take(values, where, axis=dim).reshape((*around[0], *sizes, *around[1]))
    return where


def _weighted(
    what: str, key: Any, count: int, sizes: tuple[int, ...], replace: bool, chances: Any
) -> Any:
    """Return numbers below ``count`` with probabilities of their own."""
    if chances.shape != (count,):
        raise ShapeError(
            f"{what}: p must be None or a 1-D array with one probability for each element. "
            f"p has shape {chances.shape}, and a has {count} elements along the dim."
        )
    chances = chances.astype(np.float64)
    if replace:
        limits = cumsum(chances)
        return searchsorted(limits, limits[-1] * Request(what, key, sizes).uniforms())
    # The largest of log(p) plus Gumbel numbers are a sample without replacement.
    numbers = Request(what, key, (count,)).beside(chances).uniforms()
    scores = bind("random_chance_score", numbers, chances, dtype=_FLOAT64)
    return argsort(-scores)[: math.prod(sizes)].reshape(sizes)


elementwise_row("gumbel_score", lambda u, logits: logits - np.log(-np.log(u)), 2)
elementwise_row("chance_score", lambda u, p: np.log(p) - np.log(-np.log(u)), 2)


@checked
def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: ShapeLike | None = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: DeviceLike = None,
) -> Array:
    """Draw categories by the logarithms of their probabilities, which need not sum to 1.

    Args:
        key: one key, typed or plain.
        logits: the logarithms, of one category each along ``axis``.
        axis: the dim of the categories.
        shape: the result's shape; it ends with the shape of ``logits`` without ``axis``, which is
            the default.
        replace: whether a category may come up more than once for the same logits.
        mode: None, ``"low"`` or ``"high"``, as in JAX; all numbers are precise here.
        out_sharding: how the result is laid out; None for where the key and the logits are.

    Raises:
        DtypeError: if the logits are not real numbers.
        ShapeError: if ``shape`` does not end so.
        ArgumentError: if ``axis`` is not a dim, or too many are drawn without replacement.
        ShardingError: if the result cannot be laid out so.

    >>> import meshard
    >>> from meshard import P, random
    >>> with meshard.make_mesh((1,), ("i",)):
    ...     x = random.categorical(random.key(0), [0.0, 1.0], shape=(8,), out_sharding=P("i"))
    >>> x.sharding.spec
    P('i',)
    """
    what = "categorical"
    check_mode(what, mode)
    scores = as_array(logits)
    if scores.dtype == KEY or (scores.dtype.kind not in "biu" and not is_float(scores.dtype)):
        raise DtypeError(
            f"{what}: logits must be real numbers; their dtype is {dtype_name(scores.dtype)}."
        )
    dim = _dim(what, axis, with_dims(what, "logits", scores).ndim)
    sizes, lead = _with_batch(what, scores.shape, dim, shape)
    if is_traced(key, scores):
        refuse_place(what, out_sharding)
    each = list(sizes[len(lead) :])
    each.insert(dim, scores.shape[dim])
    if tuple(each) != scores.shape:
        scores = broadcast_to(scores, tuple(each))
    draws, at = math.prod(lead), len(lead) + dim
    if replace:
        order = (*range(at), None, *range(at, len(sizes)))
        request = Request(what, key, sizes, place=out_sharding)
        request = request.arranged((*lead, *scores.shape), order)
    elif draws > scores.shape[dim]:
        raise ArgumentError(
            f"{what}: number of samples without replacement ({draws}) cannot exceed number of "
            f"categories ({scores.shape[dim]})."
        )
    else:
        request = Request(what, key, scores.shape)
    numbers = request.beside(scores).uniforms()
    perturbed = bind("random_gumbel_score", numbers, scores, dtype=_FLOAT64)
    if replace:
        return finished(what, argmax(perturbed, axis=at), out_sharding)
    best = moveaxis(argsort(-perturbed, axis=dim), dim, 0)[:draws]
    return finished(what, best.reshape(sizes), out_sharding)


def _with_batch(
    what: str, logits: tuple[int, ...], dim: int, shape: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the result's shape, and what it has before the shape of the logits without a dim."""
    batch = logits[:dim] + logits[dim + 1 :]
    sizes = batch if shape is None else shape_of(shape, what)
    lead = sizes[: len(sizes) - len(batch)]
    end = sizes[len(lead) :]
    if len(end) < len(batch) or not all(n in (1, m) for n, m in zip(batch, end, strict=True)):
        raise ShapeError(
            f"{what}: incompatible shapes for broadcasting: shape={sizes} is asked for, and the "
            f"logits without their dim {dim} have shape {batch}. The shape must end with that."
        )
    return sizes, lead


# vectors and matrices


def _outcomes(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    p = with_dims(what, "p", parameters["p"])
    sizes = result_shape(what, p.shape if shape is None else shape, {"p": p})
    result_shape(what, sizes[:-1], {"n": parameters["n"]})
    return sizes


def _multinomial(request: Request, n: Any, p: Any) -> Any:
    chances = broadcast_to(p, request.shape).astype(np.float64)
    tries = Request(request.what, request.key, request.shape[:-1])
    left = broadcast_to(as_array(np.float64(n)) if isinstance(n, float) else n, tries.shape)
    if not request.shape[-1]:
        return chances
    found = []
    # Each outcome takes its share of the tries that the earlier ones have left.
    for i in range(request.shape[-1] - 1):
        rest = total(chances[..., i:], axis=-1)
        share = element.clip(chances[..., i] / element.where(rest == 0, 1.0, rest), 0.0, 1.0)
        numbers = tries.beside(share, left).uniforms(i)
        taken = bind("random_binomial_share", numbers, left, share, dtype=_FLOAT64)
        found.append(taken)
        left = left - taken
    found.append(element.where(chances[..., -1] > 0, left, 0.0))
    return stack(found, axis=-1)


@Distribution(
    None,
    {
        "n": "the tries; they broadcast to the result's shape without its last dim",
        "p": "the outcomes' probabilities, the last dim",
    },
    "6, [0.4, 0.6], shape=(8, 2)",
    ANY,
    ShapeLaw("the result's shape, its last dim included", _outcomes),
    _multinomial,
)
def multinomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    *,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    unroll: int | bool = 1,
) -> None:
    """Draw how often each of some outcomes comes up in ``n`` tries."""


def _gaussian(what: str, name: str, given: Any) -> Any:
    if name == "method":
        if given not in ("cholesky", "eigh", "svd"):
            raise ArgumentError(
                f"{what}: method must be 'cholesky', 'eigh' or 'svd', got {given!r}."
            )
        return given
    return with_dims(what, name, as_array(given), 2 if name == "cov" else 1)


def _with_mean(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    mean, cov = parameters["mean"], parameters["cov"]
    n = mean.shape[-1]
    if cov.shape[-2:] != (n, n):
        raise ShapeError(
            f"{what} requires cov.shape == (..., n, n) for n={n}, but got cov.shape == {cov.shape}."
        )
    return (*result_shape(what, shape, {"mean": mean[..., 0], "cov": cov[..., 0, 0]}), n)


def _multivariate_normal(request: Request, mean: Any, cov: Any, method: str) -> Any:
    cov = cov.astype(np.float64)
    if method == "cholesky":
        factor = cholesky(cov)
    else:
        vectors, values = svd(cov)[:2] if method == "svd" else eigh(cov)[::-1]
        factor = vectors * element.sqrt(values)[..., None, :]
    whole = request.arranged(request.shape, (*range(len(request.shape) - 1), None))
    return mean + matmul(factor, whole.drawn("normal")[..., None])[..., 0]


@Distribution(
    None,
    {
        "mean": "the means, the last dim",
        "cov": "the covariances, the last two dims",
        "method": 'how the root of ``cov`` is found: ``"cholesky"``, ``"eigh"`` or ``"svd"``',
    },
    "[1, 2], [[2, 1], [1, 3]]",
    shapes=ShapeLaw("the result's shape without its last dim", _with_mean),
    sample=_multivariate_normal,
    accept=_gaussian,
)
def multivariate_normal(
    key: ArrayLike,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    method: str = "cholesky",
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw vectors of normal numbers with a mean and a covariance.

    A LinAlgError is raised if ``cov`` does not have such a root.
    """


def _side(what: str, name: str, given: Any) -> int | None:
    return None if name == "m" and given is None else integer_of(given, what, name, least=0)


def _sides(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    n, m = parameters["n"], parameters["m"]
    return (*shape_of(shape, what), n, n if m is None else m)


def _orthogonal(request: Request, n: int, m: int | None) -> Any:
    *lead, rows, columns = request.shape
    sides = (*lead, max(rows, columns), min(rows, columns))
    work = request.arranged(sides, (*range(len(lead)), None, None))
    dtype = np.dtype(np.complex128 if request.dtype.kind == "c" else np.float64)
    q, r = qr(Request(work.what, work.key, sides, dtype, work.place).drawn("normal"))
    corner = diagonal(r, axis1=-2, axis2=-1)
    q = q * (corner / element.absolute(corner))[..., None, :]
    return q if rows >= columns else matrix_transpose(q)


@Distribution(
    None,
    {
        "n": "the rows",
        "m": "the columns, as many as rows by default; the shorter side is orthonormal",
    },
    "3",
    FLOAT_OR_COMPLEX,
    ShapeLaw("the result's shape without its last two dims", _sides),
    _orthogonal,
    _side,
)
def orthogonal(
    key: ArrayLike,
    n: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    m: ArrayLike | None = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw orthogonal matrices, or unitary ones, all equally likely."""
