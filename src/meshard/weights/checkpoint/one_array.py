"""One array in one file, as `numpy.save` and `numpy.load` have it, but each process only its part.

In: an array and a path. Out: a file, or an array in the layout that is wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshard.algebra.arguments import path_of
from meshard.errors import CheckpointError
from meshard.runtime.array.array import Array
from meshard.runtime.trees.trees import flatten
from meshard.runtime.types import ArrayLike
from meshard.weights.checkpoint import load as loading
from meshard.weights.checkpoint import save as saving


def save(path: str | Path, x: ArrayLike, *, overwrite: bool = True, dtype: Any = None) -> None:
    """Save one array to a file; all processes of a job write it together.

    Args:
        path: the file: ``.npy``, ``.safetensors`` or ``.zarr``; ``.npy`` is added to a name without
            a suffix, as `numpy.save` does.
        x: the array, in any layout.
        overwrite: whether a file that exists is replaced, once the new one is complete.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.

    Raises:
        FileInUseError: if the file exists and ``overwrite`` is False.
        StorageError: if the disk is full or the folder may not be written.
        CheckpointError: if the format cannot hold the dtype.

    >>> import tempfile, numpy as np, meshard
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     meshard.save(folder + "/x.npy", meshard.numpy.arange(6).reshape(2, 3))
    ...     np.load(folder + "/x.npy")
    array([[0, 1, 2],
           [3, 4, 5]])
    """
    target = Path(path_of(path, "save"))
    if not target.suffix:
        target = target.with_name(target.name + ".npy")
    saving.save(target, x, overwrite=overwrite, dtype=dtype)


def load(path: str | Path, sharding: Any = None, *, dtype: Any = None) -> Array:
    """Load the one array of a file, laid out as it is wanted; each process reads its share.

    Args:
        path: the file: ``.npy``, ``.safetensors``, ``.zarr`` or HDF5.
        sharding: a sharding, a device, or a spec where a mesh is set; None for the default device,
            or if there are several processes for all devices.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.

    Raises:
        MissingFileError: if there is no such file.
        CorruptFileError: if it is cut off or was changed.
        CheckpointError: if it holds several arrays.
        ShardingError: if the array cannot be laid out as asked.

    >>> import tempfile, numpy as np, meshard
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/x.npy", np.arange(4.0))
    ...     meshard.load(folder + "/x.npy", meshard.devices()[0])
    Array([0., 1., 2., 3.], dtype=float64)
    """
    found = flatten(loading.load(path, sharding, dtype=dtype))[0]
    arrays = [x for x in found if type(x) is Array]
    if len(arrays) != 1:
        raise CheckpointError(
            f"load: {path} holds {len(arrays)} arrays; meshard.checkpoint.load loads all of them."
        )
    return arrays[0]
