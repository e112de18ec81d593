"""A Fourier transform of a cube in three dims, by pencils.

    python examples/fft3d.py

A transform needs its dim whole on a device. On a mesh of two axes each device holds a pencil: one
dim whole, two split. After each transform an `all_to_all` over one mesh axis makes the next dim
whole, so that each element moves twice and no device ever holds more than its share.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

ALONG_0, ALONG_2 = P(None, "a", "b"), P("a", "b", None)


def forward(pencil):
    """Transform pencils along dim 0; return pencils along dim 2."""
    pencil = mnp.fft.fft(pencil, axis=0)
    pencil = lax.all_to_all(pencil, "a", split_axis=0, concat_axis=1, tiled=True)
    pencil = mnp.fft.fft(pencil, axis=1)
    pencil = lax.all_to_all(pencil, "b", split_axis=1, concat_axis=2, tiled=True)
    return mnp.fft.fft(pencil, axis=2)


def inverse(pencil):
    """Undo `forward`, in the opposite order."""
    pencil = mnp.fft.ifft(pencil, axis=2)
    pencil = lax.all_to_all(pencil, "b", split_axis=2, concat_axis=1, tiled=True)
    pencil = mnp.fft.ifft(pencil, axis=1)
    pencil = lax.all_to_all(pencil, "a", split_axis=1, concat_axis=0, tiled=True)
    return mnp.fft.ifft(pencil, axis=0)


def fft3d(x, mesh):
    """Return the transform of a cube; `mesh` has the axes a and b."""
    run = functools.partial(meshard.shard_map, mesh=mesh, in_specs=ALONG_0, out_specs=ALONG_2)
    return run(forward)(x)


def ifft3d(x, mesh):
    """Return the cube that has a given transform."""
    run = functools.partial(meshard.shard_map, mesh=mesh, in_specs=ALONG_2, out_specs=ALONG_0)
    return run(inverse)(x)


def main():
    """Transform a cube on 2 x 4 devices, there and back."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("a", "b"))
    cube = np.random.default_rng(0).normal(size=(32, 48, 64))
    x = meshard.device_put(cube, NamedSharding(mesh, ALONG_0))
    found = fft3d(x, mesh)
    expected = np.fft.fftn(cube)
    error = mnp.abs(found - expected).max() / np.abs(expected).max()
    print("pencils in: ", x.sharding.spec, x.addressable_shards[0].data.shape)
    print("pencils out:", found.sharding.spec, found.addressable_shards[0].data.shape)
    print(f"relative difference from numpy.fft.fftn: {error:.1e}")
    print(f"there and back: {mnp.abs(ifft3d(found, mesh) - cube).max():.1e}")


if __name__ == "__main__":
    main()
