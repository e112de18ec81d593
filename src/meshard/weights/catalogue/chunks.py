"""What formats that a library reads have in common: regular grids of chunks, optional libraries.

In: shapes of arrays and chunks, which a file may state as it likes. Out: boxes, not too many; a
library, or a refusal that says what to install.
"""

from __future__ import annotations

import importlib
import itertools
import math
import zlib
from collections.abc import Iterator
from types import ModuleType

from meshard.algebra.box import Box
from meshard.errors import CheckpointError
from meshard.tuning import MOST_CHUNK_BOXES


def needed(name: str, path: str) -> ModuleType:
    """Return an optional library.

    Raises:
        CheckpointError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckpointError(
            f"{path}: the library {name} is needed for it, and cannot be imported ({error}). "
            "Install it: pip install 'meshard[checkpoint]'."
        ) from error


def inflated(data: bytes, most: int, wbits: int) -> bytes | None:
    """Return what deflated bytes decode to; None if that is more than some bytes.

    Libraries decode as much as a file says, a thousand times its size: so a few megabytes can take
    all memory, however small the chunk is that they should be.

    Args:
        data: the bytes; more than one member, as gzip allows, follow each other.
        most: the most bytes of the result.
        wbits: the kind of the stream, as of `zlib.decompress`.

    Raises:
        zlib.error: if they are damaged.
    """
    found = bytearray()
    while data:
        stream = zlib.decompressobj(wbits)
        found += stream.decompress(data, most + 1 - len(found))
        if len(found) > most:
            return None
        if not stream.eof:
            raise zlib.error("the stream is cut off")
        data = stream.unused_data if wbits == GZIP else b""
        if not data.startswith(b"\x1f\x8b"):  # padding
            break
    return bytes(found)


GZIP, ZLIB = 31, 15


def grid_steps(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of boxes that are chunks, or several each where there are very many.

    >>> grid_steps((10, 7), (4, 8))
    (4, 8)
    """
    steps = [max(c, 1) for c in chunk]
    counts = [-(-n // c) for n, c in zip(shape, steps, strict=True)]
    while math.prod(counts) > MOST_CHUNK_BOXES:
        dim = max(range(len(shape)), key=counts.__getitem__)
        steps[dim] *= 2
        counts[dim] = -(-shape[dim] // steps[dim])
    return tuple(steps)


def grid_boxes(shape: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[Box]:
    """Yield the boxes of a grid in C order; those at the ends of dims may be smaller.

    >>> [str(box) for box in grid_boxes((5, 2), (3, 2))]
    ['[0:3, 0:2]', '[3:5, 0:2]']
    """
    starts = [range(0, n, step) for n, step in zip(shape, steps, strict=True)]
    for start in itertools.product(*starts):
        stops = [min(a + s, n) for a, s, n in zip(start, steps, shape, strict=True)]
        yield Box(start, tuple(stops))
