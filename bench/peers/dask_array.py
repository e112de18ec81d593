"""Dask's arrays, in the chunks that a row's spec gives the devices, on a thread for each core.

A call makes the graph and runs it (`persist`), as a user's call does; the result stays in chunks.
"""

import math
from collections.abc import Callable
from typing import Any

import dask
import dask.array
import numpy as np

from bench.by_hand import one_blas_thread
from bench.libraries import AXES, Library, Spec
from bench.machine import usable_cores


class DaskLibrary(Library):
    """Dask behind the face of the other libraries, as far as it has one."""

    def chunks(self, shape: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        """The sizes of the chunks of an array that is split as a spec says."""
        axes = [(a,) if isinstance(a, str) else a or () for a in spec]
        parts = [math.prod(AXES[name] for name in names) for names in axes]
        return tuple(n // k for n, k in zip(shape, parts + [1] * len(shape), strict=False))

    def put(self, tree: Any, sharding: Any) -> Any:
        """An array in chunks of their own, in memory; `sharding` is a spec."""
        whole = dask.array.from_array(tree, self.chunks(tree.shape, sharding))
        return self._run(whole.map_blocks(np.copy, dtype=tree.dtype))

    def complete(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """`program`, with its result in memory."""
        return lambda *operands: self._run(program(*operands))

    @staticmethod
    def _run(lazy: Any) -> Any:
        with one_blas_thread():
            several = isinstance(lazy, list | tuple)
            told = {"scheduler": "threads", "num_workers": usable_cores()}
            found = dask.persist(*lazy, **told) if several else dask.persist(lazy, **told)
        return list(found) if several else found[0]


def library() -> DaskLibrary:
    """The library, without meshes."""
    return DaskLibrary(dask, dask.array, dask, None)
