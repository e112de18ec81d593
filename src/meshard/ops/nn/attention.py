"""Attention, as ``jax.nn`` has it: products and a softmax, which keep the sharding."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import arange
from meshard.ops.array.shape import expand_dims, reshape, transpose
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import accumulator
from meshard.ops.linalg.products import einsum
from meshard.ops.nn.functions import logsumexp, softmax
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[False] = False,
) -> Array: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[True],
) -> tuple[Array, Array]: ...
@checked
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """Return the attention of queries to keys, applied to values.

    Batch and heads stay split as they are; of a split sequence of keys each device needs all.

    Args:
        query: ``(batch, t, heads, size)``, or without batch.
        key: ``(batch, s, key heads, size)``; the key heads divide the heads.
        value: the values, of the shape of the keys.
        bias: what is added to the logits; broadcasts to ``(batch, heads, t, s)``.
        mask: bools, where a query may look; broadcasts alike.
        scale: what the logits are multiplied by; one over the root of the size by default.
        is_causal: whether a query looks at its own position and those before only.
        query_seq_lengths: for each of the batch how many queries count; the others give zeros.
        key_value_seq_lengths: for each of the batch how many keys count.
        local_window_size: how many positions before and after its own a query looks at; one number
            or two.
        implementation: accepted as in JAX: None, or ``"xla"``.
        return_residual: also return the logarithm of the sum of the logits' exponentials,
            ``(batch, t, heads)``.

    Returns:
        An array of the shape of the query and the dtype of the key, split as the query is; with
        ``return_residual`` also that of the logarithms.

    Raises:
        ShapeError: if the shapes do not fit.
        ArgumentError: if the implementation is another.

    >>> import meshard, meshard.nn, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("batch",))
    >>> x = mnp.ones((2, 5, 4, 8), device=meshard.NamedSharding(mesh, meshard.P("batch")))
    >>> y = meshard.nn.dot_product_attention(x, x, x, is_causal=True)
    >>> y.shape, y.sharding.spec
    ((2, 5, 4, 8), P('batch',))
    """
    what = "dot_product_attention"
    if implementation not in (None, "xla"):
        raise ArgumentError(f"{what}: implementation is None or 'xla', not {implementation!r}.")
    given = as_array(query)
    q, k, v = (_with_batch(what, as_array(x)) for x in (query, key, value))
    batch, t, heads, size = q.shape
    s, shared = k.shape[1:3]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != size or heads % shared:
        raise ShapeError(
            f"{what}: query {q.shape}, key {k.shape} and value {v.shape}: (batch, t, heads, size) "
            "and twice (batch, s, key heads, size), of which the key heads divide the heads."
        )
    wide = np.result_type(accumulator(q.dtype), np.float32)
    grouped = reshape(q, (batch, t, shared, heads // shared, size))
    logits = einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=wide)
    logits = reshape(logits, (batch, heads, t, s))
    logits = logits * (float(1 / np.sqrt(size)) if scale is None else scale)
    if bias is not None:
        logits = (logits + _with_batch(what, as_array(bias))).astype(wide, copy=False)
    allowed = _allowed(what, mask, t, s, is_causal, local_window_size)
    lengths = (query_seq_lengths, key_value_seq_lengths)
    allowed += _inside(what, lengths, batch, t, s)
    least = -0.7 * float(np.finfo(np.float32).max)
    for part in allowed:
        logits = bind("where", part, logits, least)
    weights = softmax(logits, axis=-1).astype(k.dtype, copy=False)
    weights = reshape(weights, (batch, shared, heads // shared, t, s))
    found = einsum("bkgts,bskh->btkgh", weights, v)
    found = reshape(found, q.shape)
    if query_seq_lengths is not None:
        counts = _lengths(what, query_seq_lengths, batch)
        inside = bind("less", reshape(arange(t), (1, t)), reshape(counts, (batch, 1)))
        found = bind("where", expand_dims(inside, (2, 3)), found, 0)
    found = reshape(found, given.shape)
    if not return_residual:
        return found
    totals = transpose(logsumexp(logits, axis=-1).astype(k.dtype, copy=False), (0, 2, 1))
    return found, reshape(totals, given.shape[:-1])


def _with_batch(what: str, x: Any) -> Any:
    if x.ndim > 4:
        raise ShapeError(f"{what}: takes arrays of at most four dims, got shape {x.shape}.")
    return reshape(x, (1,) * (4 - x.ndim) + x.shape)


def _allowed(
    what: str, mask: Any, t: int, s: int, causal: bool, window: int | tuple[int, int] | None
) -> list[Any]:
    """Return where queries may look, as bools that broadcast to the logits."""
    found: list[Any] = []
    if mask is not None:
        bools = _with_batch(what, as_array(mask))
        if bools.dtype.kind != "b":
            raise ArgumentError(f"{what}: a mask holds bools, not {bools.dtype}.")
        found.append(bools)
    rows, columns = np.arange(t)[:, None], np.arange(s)
    if causal:
        found.append(columns <= rows)
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        found.append((rows <= columns + left) & (rows >= columns - right))
    return found


def _lengths(what: str, given: Any, batch: int) -> Any:
    found = as_array(given)
    if found.shape != (batch,) or found.dtype.kind not in "iu":
        raise ShapeError(
            f"{what}: lengths of shape {found.shape} and dtype {found.dtype}; they are integers, "
            f"one for each of the batch of {batch}."
        )
    return found


def _inside(what: str, lengths: tuple[Any, Any], batch: int, t: int, s: int) -> list[Any]:
    """Return which queries and keys count, as bools that broadcast to the logits."""
    found = []
    for given, size, shape in zip(lengths, (t, s), ((1, 1, t, 1), (1, 1, 1, s)), strict=True):
        if given is not None:
            counts = reshape(_lengths(what, given, batch), (batch, 1, 1, 1))
            found.append(bind("less", reshape(arange(size), shape), counts))
    return found
