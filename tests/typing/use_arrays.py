"""Arrays: functions, operators, methods, properties and updates."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import Array, Device
from meshard.sharding import PartitionSpec, Sharding
from meshard.typing import ArrayLike, DTypeLike

x = mnp.ones((4, 2))
key = meshard.random.key(0)


def scaled(a: ArrayLike, by: ArrayLike = 2, dtype: DTypeLike = None) -> Array:
    return mnp.multiply(a, by).astype(dtype or "float32")


def making() -> None:
    assert_type(x, Array)
    assert_type(mnp.zeros(3, "int32"), Array)
    assert_type(mnp.full((2, 2), 7, dtype=mnp.bfloat16), Array)
    assert_type(mnp.arange(3), Array)
    assert_type(mnp.array([[1, 2], [3, 4]]), Array)
    assert_type(mnp.asarray(np.ones(2), dtype=np.float32), Array)
    assert_type(mnp.zeros_like(x), Array)
    assert_type(mnp.linspace(0, 1), Array)
    assert_type(mnp.linspace(0, 1, retstep=True)[0], Array)
    assert_type(mnp.meshgrid(mnp.arange(2), mnp.arange(3)), tuple[Array, ...])
    assert_type(mnp.indices((2, 2)), Array)
    assert_type(mnp.indices((2, 2), sparse=True), tuple[Array, ...])
    for taken in (x, np.ones(3), np.float32(2), 3, 2.5, True, 1j):
        mnp.absolute(taken)
    for taken in (x, np.ones(3), np.float32(2), 3, 2.5, True):
        assert_type(scaled(taken), Array)
    assert_type(mnp.fromfunction(lambda i, j: mnp.add(i, j), (2, 3)), Array)


def functions() -> None:
    assert_type(mnp.tanh(x), Array)
    assert_type(mnp.add(x, 1), Array)
    assert_type(mnp.maximum(x, np.zeros(2)), Array)
    assert_type(mnp.where(x > 0, x, 0), Array)
    assert_type(mnp.where(x > 0), tuple[Array, ...])
    assert_type(mnp.divmod(x, 2), tuple[Array, Array])
    assert_type(mnp.sum(x, axis=0), Array)
    assert_type(mnp.mean(x, dtype=np.float32), Array)
    assert_type(mnp.concatenate([x, x]), Array)
    assert_type(mnp.stack([x, np.ones((4, 2))]), Array)
    assert_type(mnp.split(x, 2), list[Array])
    assert_type(mnp.unstack(x), tuple[Array, ...])
    assert_type(mnp.take(x, mnp.arange(2), axis=0), Array)
    assert_type(mnp.sort(x), Array)
    assert_type(mnp.nonzero(x), tuple[Array, ...])
    assert_type(mnp.unique(x), Array)
    assert_type(mnp.unique_counts(x).counts, Array)
    assert_type(mnp.histogram(x), tuple[Array, Array])
    assert_type(mnp.allclose(x, 1), Array)
    assert_type(mnp.einsum("ij,kj->ik", x, x), Array)
    assert_type(mnp.dot(x, x.T), Array)
    assert_type(mnp.fft.fft(x), Array)
    assert_type(mnp.linalg.norm(x), Array)
    assert_type(mnp.linalg.qr(x).Q, Array)
    assert_type(mnp.linalg.svd(x).S, Array)
    assert_type(mnp.linalg.svd(x, compute_uv=False), Array)
    assert_type(mnp.linalg.eigh(x.T @ x).eigenvalues, Array)
    assert_type(mnp.shape(x), tuple[int, ...])
    assert_type(mnp.iinfo(np.int8).max, int)
    assert_type(meshard.typeof(x).shape, tuple[int, ...])
    assert_type(mnp.result_type(x, np.float32), np.dtype[Any])


def operators() -> None:
    assert_type(x + 1, Array)
    assert_type(2 * x, Array)
    assert_type(x / x, Array)
    assert_type(x @ x.T, Array)
    assert_type(1 - x, Array)
    assert_type(x**2, Array)
    assert_type(x // 2, Array)
    assert_type(x % 2, Array)
    assert_type(divmod(x, 2), tuple[Array, Array])
    assert_type(-x, Array)
    assert_type(abs(x), Array)
    assert_type(x == 1, Array)
    assert_type(x != x, Array)
    assert_type(x < 2, Array)
    assert_type((x > 0) & (x < 2), Array)
    assert_type(~(x > 0), Array)
    assert_type(x[0], Array)
    assert_type(x[1:, ::2], Array)
    assert_type(x[..., None], Array)
    assert_type(x[x > 0], Array)
    assert_type(iter(x), Iterator[Array])
    y = x
    y += 1
    assert_type(y, Array)
    for row in x:
        assert_type(row, Array)


def methods() -> None:
    assert_type(x.sum(axis=0), Array)
    assert_type(x.mean(keepdims=True).astype("float32").reshape(1, -1), Array)
    assert_type(x.reshape((2, 4)), Array)
    assert_type(x.T.mT.real, Array)
    assert_type(x.argmax(), Array)
    assert_type(x.clip(0, 1), Array)
    assert_type(x.nonzero(), tuple[Array, ...])
    assert_type(x.copy().block_until_ready(), Array)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.dtype, np.dtype[Any])
    assert_type(x.ndim, int)
    assert_type(x.size, int)
    assert_type(len(x), int)
    assert_type(float(x[0, 0]), float)
    assert_type(int(x[0, 0]), int)
    assert_type(bool(x.any()), bool)
    assert_type(np.asarray(x).ndim, int)


def updates() -> None:
    assert_type(x.at[0].set(1), Array)
    assert_type(x.at[0, :].add(x[1]), Array)
    assert_type(x.at[mnp.asarray([0, 1])].mul(2, mode="drop"), Array)
    assert_type(x.at[0].get(), Array)
    assert_type(x.at[0].apply(mnp.exp), Array)


def places() -> None:
    assert_type(x.sharding, Sharding)
    assert_type(x.devices(), set[Device])
    assert_type(x.committed, bool)
    assert_type(x.addressable_shards[0].data, Array)
    assert_type(x.addressable_shards[0].device, Device)
    assert_type(x.addressable_data(0), Array)
    assert_type(x.is_fully_replicated, bool)
    mesh = meshard.make_mesh((2,), ("i",))
    placed = meshard.device_put(x, meshard.NamedSharding(mesh, meshard.P("i")))
    assert_type(placed.sharding.spec, PartitionSpec)


def neural() -> None:
    assert_type(meshard.nn.relu(x), Array)
    assert_type(meshard.nn.softmax(x, axis=-1), Array)
    assert_type(meshard.nn.logsumexp(x), Array)
    assert_type(meshard.nn.logsumexp(x, return_sign=True), tuple[Array, Array])
    assert_type(meshard.nn.one_hot(mnp.arange(3), 3), Array)


def drawing() -> None:
    one, two = meshard.random.split(key)
    assert_type(meshard.random.normal(one, (3,)), Array)
    assert_type(meshard.random.fold_in(two, 3), Array)
    assert_type(meshard.random.randint(one, (3,), 0, 5), Array)


def main() -> None:
    making()
    functions()
    operators()
    methods()
    updates()
    places()
    neural()
    drawing()
