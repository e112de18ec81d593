"""Changes: the elements of a slab that differ from the version before, and where they are.

In: a slab of two versions. Out: codes and values, smaller than the slab if few elements changed. A
code is a byte: how far it is from one changed element to the next; 255 means 255 further and no
element there. So a change costs little more than a byte and its value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshard.runtime.types import Block

_FAR = 255
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(block: Block) -> npt.NDArray[Any]:
    """Return a C-contiguous block as a flat one whose elements are equal if their bits are."""
    flat = block.reshape(-1)
    size = block.dtype.itemsize
    if size in _UNSIGNED:
        return flat.view(_UNSIGNED[size])
    return flat.view(np.uint8).reshape(len(flat), size)


def changed(old: Block, new: Block) -> npt.NDArray[np.int64]:
    """Return the positions, in C order, of the elements whose bits differ."""
    differ = _bits(old) != _bits(new)
    if differ.ndim > 1:
        differ = differ.any(axis=1)
    return np.flatnonzero(differ)


def encoded(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the codes of ascending positions.

    >>> encoded(np.array([3, 4, 600])).tolist()
    [3, 1, 255, 255, 86]
    """
    gaps = np.diff(positions, prepend=0)
    jumps = gaps // _FAR
    ends = np.cumsum(jumps + 1)
    codes = np.full(int(ends[-1]) if len(ends) else 0, _FAR, np.uint8)
    codes[ends - 1] = gaps % _FAR
    return codes


def decoded(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the positions of codes.

    >>> decoded(np.array([3, 1, 255, 255, 86], np.uint8)).tolist()
    [3, 4, 600]
    """
    found: npt.NDArray[np.int64] = np.cumsum(codes, dtype=np.int64)[codes != _FAR]
    return found


def applied(place: Block, positions: npt.NDArray[np.int64], values: Block) -> None:
    """Put values to positions, in C order, of a block that may be strided."""
    if place.flags.c_contiguous:
        flat = place.reshape(-1)
        flat[positions] = values
    else:
        place[np.unravel_index(positions, place.shape)] = values
