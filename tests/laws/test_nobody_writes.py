"""Arrays are immutable: nothing that leaves one, or goes into one, can be written through.

Every public function and method is called. NumPy arrays among its results are written to, and the
array that they came from must not change; NumPy arrays among its arguments are written to after
the call, and its results must not change.
"""

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import gda, multihost_utils
from meshard.runtime.memory.memory import exported
from meshard.runtime.types import KEY
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding
from tests.laws.test_results_on_devices import _names
from tests.worlds import alone, everywhere, mesh, put

DTYPES = ("f8", "f4", "i8", "u1", "bool", "c16", "f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)


def _leaves(found: Any) -> Iterator[Any]:
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        for value in found:
            yield from _leaves(value)
    else:
        yield found


def test_blocks_of_every_dtype_are_shown_read_only() -> None:
    """Also where the dtype is only equal to NumPy's own instance, as an unpickled one is."""
    for kind in (*DTYPES, ml_dtypes.int4, KEY):
        for dtype in (np.dtype(kind), pickle.loads(pickle.dumps(np.dtype(kind)))):
            block = np.zeros((2, 3), dtype)
            shown = exported(block)
            assert (shown.dtype, shown.shape) == (block.dtype, block.shape)
            assert np.shares_memory(shown, block)
            with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
                shown.flags.writeable = True


def _spoil(value: np.ndarray) -> None:
    """Write ones, and zeros, wherever a user could through this array."""
    seen: list[Any] = [value, value.view(), value[...], value.T, value.reshape(-1)]
    strided = np.lib.stride_tricks.as_strided
    seen += [strided(value, writeable=True), np.asarray(value), np.require(value, requirements="A")]
    base = value.base
    while isinstance(base, np.ndarray):
        seen.append(base)
        base = base.base
    for view in seen:
        for wanted in True, False:
            try:
                view.flags.writeable = True
                view[...] = wanted
            except ValueError:
                continue
    if value.dtype.isbuiltin == 1 and value.size:
        try:
            memoryview(value).cast("B")[:] = bytes(value.nbytes)
        except TypeError:  # it cannot be written to, or is not contiguous
            return


class _Old:
    """Hands an array on as libraries from before DLPack 1.0 ask for it."""

    def __init__(self, x: meshard.Array) -> None:
        self.x = x

    def __dlpack__(self, **_: object) -> object:
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def _out_of_band(x: meshard.Array) -> list[np.ndarray]:
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(x, 5, buffer_callback=buffers.append)
    return [np.frombuffer(b.raw(), np.uint8) for b in buffers]


def _in_a_body(x: meshard.Array) -> list[np.ndarray]:
    seen: list[np.ndarray] = []

    def body(cell: Any) -> Any:
        seen.append(np.asarray(cell))
        return cell

    meshard.shard_map(body, Mesh(meshard.devices()[:1], "k"), P(), P())(x)
    return seen


OUT: dict[str, Callable[[meshard.Array], Any]] = {
    "np.asarray": np.asarray,
    "np.array, no copy": lambda x: np.array(x, copy=False),
    "np.from_dlpack": np.from_dlpack,
    "np.from_dlpack, no copy": lambda x: np.from_dlpack(x, copy=False),
    "an old np.from_dlpack": lambda x: np.from_dlpack(_Old(x)),
    "__array__": lambda x: x.__array__(),
    "device_get": lambda x: meshard.device_get({"x": x}),
    "shards": lambda x: [np.asarray(s.data) for s in x.addressable_shards],
    "addressable_data": lambda x: np.asarray(x.addressable_data(0)),
    "rows": lambda x: [np.asarray(r) for r in x],
    "slices": lambda x: [np.asarray(x[1:]), np.asarray(x.T), np.asarray(x.reshape(-1))],
    "pickle": _out_of_band,
    "process_allgather": lambda x: multihost_utils.process_allgather(x, tiled=True),
    "broadcast_one_to_all": multihost_utils.broadcast_one_to_all,
    "shard_map": _in_a_body,
    "tobytes": lambda x: np.frombuffer(x.tobytes(), np.uint8),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OUT)
def test_what_leaves_an_array_cannot_change_it(name: str, dtype: Any) -> None:
    value = (np.arange(12).reshape(4, 3) % 3).astype(dtype)

    def body() -> None:
        one = meshard.devices()[0]
        for x in meshard.device_put(value, one), mnp.asarray(value):
            try:
                found = OUT[name](x)
            except (BufferError, ValueError):
                assert "dlpack" in name or "no copy" in name
                continue
            for leaf in _leaves(found):
                _spoil(np.asarray(leaf))
            assert np.array(x).tobytes() == value.tobytes()

    alone(body, 2)


def test_one_block_is_shown_without_a_copy() -> None:
    for dtype in DTYPES:
        x = mnp.zeros((3, 4), dtype)
        for seen in np.asarray(x), np.asarray(x.T), np.asarray(x[1:, ::2]), meshard.device_get(x):
            assert not seen.flags.writeable
            assert seen.dtype == x.dtype
        assert np.asarray(x).ctypes.data == x.unsafe_buffer_pointer()
        assert np.array(x).flags.writeable


def test_nothing_that_a_public_function_returns_can_change_an_array() -> None:
    def body() -> None:
        value = np.arange(1.0, 17).reshape(4, 4)
        x = meshard.device_put(value, meshard.devices()[0])
        for name, function in _names().items():
            for operands in (x,), (x, x), (x, 0):
                try:
                    with np.errstate(all="ignore"):
                        found = function(*operands)
                except Exception:
                    continue
                for leaf in _leaves(found):
                    if isinstance(leaf, np.ndarray):
                        _spoil(leaf)
            assert np.array(x).tobytes() == value.tobytes(), name

    alone(body, 1)


# ways in


def _from_callback(n: np.ndarray) -> Any:
    place = SingleDeviceSharding(meshard.local_devices()[0])
    split = NamedSharding(mesh((8,), ("i",)), P("i"))
    return [
        meshard.make_array_from_callback(n.shape, place, lambda index: n),
        meshard.make_array_from_callback(n.shape, place, lambda index: n[index]),
        meshard.make_array_from_callback(n.shape, split, lambda index: n[index]),
    ]


IN: dict[str, Callable[[np.ndarray], Any]] = {
    "device_put": lambda n: [meshard.device_put(n), meshard.device_put([n, {"a": n}])],
    "device_put on a device": lambda n: meshard.device_put(n, meshard.local_devices()[0]),
    "device_put on a mesh": lambda n: [put(n), put(n, "i", uneven="balanced")],
    "device_put, aliased": lambda n: meshard.device_put(n, may_alias=True),
    "device_put, donated": lambda n: meshard.device_put(n, donate=True),
    "reshard": lambda n: meshard.reshard({"a": n}, NamedSharding(mesh(), P())),
    "make_array_from_callback": _from_callback,
    "make_array_from_process_local_data": lambda n: meshard.make_array_from_process_local_data(
        NamedSharding(mesh(), P()), n
    ),
    "host_local_array_to_global_array": lambda n: multihost_utils.host_local_array_to_global_array(
        n, mesh(), P()
    ),
    "from_callback": lambda n: meshard.tree.map(
        lambda s: s.data,
        gda.GlobalDeviceArray.from_callback(
            n.shape, mesh(), [None], lambda index: n[index]
        ).local_shards,
    ),
    "jit": lambda n: meshard.jit(lambda x: (x, x[:2], n))(n),
    "at": lambda n: mnp.zeros(8).at[:].set(n),
    "full": lambda n: mnp.full(n.shape, n),
    "from_dlpack": mnp.from_dlpack,
    "array": lambda n: [mnp.array(n), mnp.asarray(n), mnp.array([n, n])],
    "frombuffer": lambda n: mnp.asarray(memoryview(n)),
    "scan": lambda n: meshard.lax.scan(lambda c, x: (c, x), n, n),
    "shard_map": lambda n: meshard.shard_map(lambda x: (x, n), mesh(), P(), (P(), P()))(n),
    "pickle": lambda n: pickle.load(io.BytesIO(pickle.dumps(mnp.asarray(n)))),
}


@pytest.mark.parametrize("name", IN)
def test_what_went_into_an_array_cannot_change_it(name: str) -> None:
    def body() -> None:
        own = np.arange(8.0)
        found = [x for x in _leaves(IN[name](own)) if isinstance(x, meshard.Array)]
        shards = [s.data for x in found for s in x.addressable_shards]
        before = [np.array(x) for x in shards]
        assert shards
        own[...] = -1
        for x, value in zip(shards, before, strict=True):
            np.testing.assert_array_equal(x, value)

    everywhere(body)


def test_nothing_that_went_into_a_public_function_can_change_its_results() -> None:
    def body() -> None:
        for name, function in _names().items():
            for count in 1, 2, 3:
                given = [np.linspace(0.5, 1, 16).reshape(4, 4) for _ in range(count)]
                if name.startswith("Array."):
                    given[0] = mnp.asarray(given[0])
                try:
                    with np.errstate(all="ignore"):
                        found = function(*given)
                except Exception:
                    continue
                arrays = [x for x in _leaves(found) if type(x) is meshard.Array]
                arrays = [x for x in arrays if not x.dtype.names]
                before = [np.array(x).tobytes() for x in arrays]
                for operand in given:
                    if isinstance(operand, np.ndarray):
                        operand[...] = -7
                assert [np.array(x).tobytes() for x in arrays] == before, name

    alone(body, 1)
