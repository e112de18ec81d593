"""Kernels that put the elements of one block in order, all of them or some.

In: a block. Out: its elements sorted, those of some ranks, or their positions; NaN counts as the
greatest, and equal elements keep their order where positions are asked for.

NumPy sorts several elements at a time only where it need not keep equal ones in order. So positions
are sorted together with their elements, as one number of 64 bits, where an element has up to 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.ops.dtypes.laws import SMALL_FLOATS
from meshard.runtime.types import Block

_PACKED = 1 << 32
"""Elements whose positions fit 32 bits."""
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MANY_RANKS = 12
"""Ranks from which sorting a row costs less than looking for one after the other."""
_SCANNED = 256
"""Elements of a row from which its greatest are looked for without sorting the row."""


def sort_keys(x: Block) -> Block:
    """Return what NumPy can compare: the small floats' NaN would confuse it."""
    return x.astype(np.float32) if x.dtype in SMALL_FLOATS else x


def _mixed_zeros(x: Block) -> bool:
    """Whether there are zeros of both signs, whose order shows whether a sort is stable."""
    if x.dtype.kind == "c":
        return True
    if x.dtype.kind != "f":
        return False
    zeros = np.equal(x, 0)
    if not zeros.any():
        return False
    signs = np.signbit(x[zeros])
    return bool(signs.any() and not signs.all())


def sort_block(x: Block, *, dim: int, descending: bool) -> Block:
    """Return a block sorted along a dim, stably; NaN counts as the greatest."""
    keys = sort_keys(x)
    if descending:
        keys = np.flip(keys, dim)
    found = np.sort(keys, axis=dim, kind="stable" if _mixed_zeros(keys) else None)
    if descending:
        found = np.flip(found, dim)
    result: Block = found.astype(x.dtype, copy=False)
    return result


# positions


def packable(dtype: np.dtype[Any]) -> bool:
    """Whether an element and its position fit a number of 64 bits, in the order of the elements."""
    return dtype in SMALL_FLOATS or (dtype.kind in "biuf" and dtype.itemsize <= 4)


def pack(x: Block, first: int, descending: bool) -> Block:
    """Return numbers that are in order as the elements are; equal ones as their positions.

    Args:
        x: the elements, of a dtype that is `packable`.
        first: the position of the first along the last dim; all are below 2**32.
        descending: whether the greatest element comes first.
    """
    keys = _ordered(sort_keys(x))
    if descending:
        np.invert(keys, out=keys)
    packed = keys.astype(np.uint64)
    packed <<= _HALF
    packed |= np.arange(first, first + x.shape[-1], dtype=np.uint64)
    return packed


def unpack(packed: Block) -> Block:
    """Return the positions in packed numbers."""
    return (packed & _LOW).astype(np.int64)


def _ordered(x: Block) -> Block:
    """Return elements as uint32 in the same order: zeros are equal, and so are all NaN."""
    if x.dtype.kind in "bu":
        return x.astype(np.uint32)
    if x.dtype.kind == "i":
        found = x.astype(np.int32).view(np.uint32)
        found ^= np.uint32(1 << 31)
        return found
    zero = np.float32(0)
    plain = np.add(x, zero, dtype=np.float32)  # which makes the negative zero a positive one
    bits = plain.view(np.uint32)
    # A negative number has all its bits turned, a positive one its first.
    turned = (bits.view(np.int32) >> 31).view(np.uint32)
    turned |= np.uint32(1 << 31)
    turned ^= bits
    missing = np.isnan(plain)
    if missing.any():
        turned[missing] = np.uint32(0xFFFFFFFF)
    return turned


def argsort_block(x: Block, *, dim: int, descending: bool) -> Block:
    """Return the positions that sort a block along a dim, stably."""
    size = x.shape[dim]
    if packable(x.dtype) and size < _PACKED:
        packed = pack(np.moveaxis(x, dim, -1), 0, descending)
        packed.sort(-1)
        return np.moveaxis(unpack(packed), -1, dim)
    keys = sort_keys(x)
    if x.ndim == 1 and x.dtype.kind in "iuf" and x.dtype.itemsize == 8 and size < _PACKED:
        return _argsort_long(keys, descending)
    if not descending:
        return np.argsort(keys, axis=dim, kind="stable")
    found = np.argsort(np.flip(keys, dim), axis=dim, kind="stable")
    order: Block = size - 1 - np.flip(found, dim)
    return order


def _argsort_long(x: Block, descending: bool) -> Block:
    """Return the positions that sort elements of 64 bits: equal ones are put in order last."""
    if x.dtype.kind in "iu" and len(x):
        low = x.min()
        if int(x.max()) - int(low) < _PACKED:
            packed = pack((x - low).astype(np.uint32), 0, descending)
            packed.sort()
            return unpack(packed)
    order: Block = np.argsort(x)
    if descending:
        order = order[::-1]
    runs = x[order]
    same = runs[1:] == runs[:-1]
    if x.dtype.kind == "f":
        missing = np.isnan(runs)
        same |= missing[1:] & missing[:-1]
    if not same.any():
        return order
    inside = np.zeros(len(x), bool)
    inside[1:] = same
    inside[:-1] |= same
    places = np.flatnonzero(inside)
    begins = np.ones(len(x), bool)
    np.logical_not(same, out=begins[1:])
    packed = np.cumsum(begins[places]).astype(np.uint64)
    packed <<= _HALF
    packed |= order[places].astype(np.uint64)
    packed.sort()
    order = order.copy()
    order[places] = unpack(packed)
    return order


# ranks


def select_block(x: Block, *, kth: Sequence[int]) -> Block:
    """Return the elements that sorting along the last dim puts at some positions.

    Args:
        x: the block.
        kth: the positions, ascending and each once.
    """
    keys = np.array(sort_keys(x), order="C")
    found = np.empty((*keys.shape[:-1], len(kth)), keys.dtype)
    if len(kth) > _MANY_RANKS:
        keys.sort(-1)
        found[...] = keys[..., list(kth)]
    elif keys.size:
        _select_into(found, keys, list(kth))
    return found.astype(x.dtype, copy=False)


def _select_into(found: Block, x: Block, kth: Sequence[int]) -> None:
    """Put elements of some ranks into a block, changing the order of the others."""
    if not kth:
        return
    size = x.shape[-1]
    if len(kth) == 1 and x.dtype.kind in "biuf" and kth[0] in (0, size - 1):
        # NaN, which is the greatest, hides all others from `max`, and none from `fmin`.
        ufunc = np.maximum if kth[0] else np.fmin
        ufunc.reduce(x, -1, out=found[..., 0])
        return
    middle = len(kth) // 2
    at = kth[middle]
    x.partition(at, -1)
    found[..., middle] = x[..., at]
    _select_into(found[..., :middle], x[..., :at], kth[:middle])
    after = [k - at - 1 for k in kth[middle + 1 :]]
    _select_into(found[..., middle + 1 :], x[..., at + 1 :], after)


def select_at_block(x: Block, ranks: Block) -> Block:
    """Return the elements that sorting puts at positions, which each row has of its own."""
    if not x.size or not ranks.size:
        return np.empty(ranks.shape, x.dtype)
    flat = ranks.reshape(-1, ranks.shape[-1])
    if (flat == flat[0]).all():
        kth, back = np.unique(flat[0], return_inverse=True)
        return select_block(x, kth=kth.tolist())[..., back.reshape(-1)]
    found = np.take_along_axis(np.sort(sort_keys(x), -1), ranks, -1)
    return found.astype(x.dtype, copy=False)


def partition_block(x: Block, *, dim: int, kth: Sequence[int]) -> Block:
    """Return a block with the elements of some ranks in place along a dim, lesser ones before."""
    keys = np.array(np.moveaxis(sort_keys(x), dim, -1), order="C")
    _partition(keys, list(kth))
    return np.moveaxis(keys, -1, dim).astype(x.dtype, copy=False)


def _partition(x: Block, kth: Sequence[int]) -> None:
    """Put ranks in place, that in the middle first, so that others look through a part only."""
    if not kth or not x.size:
        return
    middle = len(kth) // 2
    at = kth[middle]
    x.partition(at, -1)
    _partition(x[..., :at], kth[:middle])
    _partition(x[..., at + 1 :], [k - at - 1 for k in kth[middle + 1 :]])


def argpartition_block(x: Block, *, dim: int, kth: Sequence[int]) -> Block:
    """Return the positions that put the elements of some ranks in place along a dim."""
    if not x.size or not kth:
        shape = [-1 if d == dim else 1 for d in range(x.ndim)]
        return np.broadcast_to(np.arange(x.shape[dim]).reshape(shape), x.shape).copy()
    return np.argpartition(sort_keys(x), list(kth), dim)


def top_block(x: Block, *, dim: int, k: int) -> tuple[Block, Block]:
    """Return the k greatest elements along a dim, equal ones in their order, and positions."""
    rows = np.moveaxis(x, dim, -1)
    keys = sort_keys(rows)
    n = keys.shape[-1]
    if n < _SCANNED or k > n // 4 or not k or keys.dtype.kind == "c":
        places = argsort_block(rows, dim=rows.ndim - 1, descending=True)[..., :k]
    else:
        flat = keys.reshape(-1, n)
        places = np.empty((len(flat), k), np.int64)
        for row, found in zip(flat, places, strict=True):
            end = np.partition(row, n - k)[n - k]
            # What is not less than the kth, and NaN, which is the greatest of all.
            near = np.flatnonzero(~(row < end) if end == end else row != row)
            found[:] = near[argsort_block(row[near], dim=0, descending=True)[:k]]
        places = places.reshape(*keys.shape[:-1], k)
    best = np.take_along_axis(rows, places, -1)
    return np.moveaxis(best, -1, dim), np.moveaxis(places, -1, dim)
