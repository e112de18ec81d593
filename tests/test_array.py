"""`Array`: what it says of itself, its pieces, its life, and its way to NumPy and Python."""

import copy
import gc
import inspect
import pickle
import re
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import (
    ArgumentError,
    ConfigError,
    DeletedArrayError,
    NotAddressableError,
    ShardingError,
)
from meshard.runtime.array import array as module
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import BoxSharding, NamedSharding, P, SingleDeviceSharding

from .numpys import unheard_of
from .ranks import shares
from .worlds import alone, in_worlds, mesh, put, whole

GRID = np.arange(32.0).reshape(8, 4)


def spanning() -> meshard.Array:
    """In two processes: an array of which each holds half the rows."""
    return put(GRID, "i", "j")


def in_two(body: Callable[[], Any]) -> list[Any]:
    return simulate(2, 4, body, deadline=10)


# what it is


@in_worlds
def test_an_array_says_what_it_is():
    x = put(GRID.astype(np.float32), "i", "j")
    assert (x.shape, x.dtype, x.ndim, x.size) == ((8, 4), np.dtype("f4"), 2, 32)
    assert (x.itemsize, x.nbytes, len(x), x.weak_type) == (4, 128, 8, False)
    assert x.sharding == NamedSharding(mesh(), P("i", "j"))
    assert x.device == x.sharding
    assert isinstance(x.device, NamedSharding)
    assert x.devices() == set(meshard.devices())
    assert x.committed
    assert not x.is_fully_replicated
    assert x.is_fully_addressable is (meshard.process_count() == 1)
    assert (x.T.shape, x.mT.shape) == ((4, 8), (4, 8))
    assert str(x.aval) == "float32[8,4]"
    assert x.block_until_ready() is x
    assert x.is_ready()
    x.copy_to_host_async()


@in_worlds
def test_a_new_array_lies_uncommitted_on_this_process():
    x = mnp.arange(8)
    (first, *_) = meshard.local_devices()
    assert x.device == first
    assert x.devices() == {first}
    assert x.sharding == SingleDeviceSharding(first)
    assert not x.committed
    assert x.is_fully_addressable
    assert x.is_fully_replicated


def test_the_three_old_kinds_of_array_can_be_told_apart():
    def kind(x: meshard.Array) -> str:
        if not x.is_fully_addressable:
            return "global"
        return "single" if len(x.sharding.device_set) == 1 else "sharded"

    def body() -> list[str]:
        local = meshard.sharding.Mesh(meshard.local_devices(), ("i",))
        return [
            kind(mnp.ones(4)),
            kind(meshard.device_put(np.ones(8), NamedSharding(local, P("i")))),
            kind(spanning()),
        ]

    assert in_two(body) == [["single", "sharded", "global"]] * 2


# its pieces


@in_worlds
def test_shards_lie_in_mesh_order_and_their_data_on_their_device():
    x = put(GRID, "i")
    mine = [d for d in mesh().flat_devices if d.process_index == meshard.process_index()]
    shards = x.addressable_shards
    assert [s.device for s in shards] == mine
    for shard in shards:
        row = shard.device.id // 2 * 2
        assert shard.index == (slice(row, row + 2), slice(None))
        assert shard.replica_id == shard.device.id % 2
        assert shard.data.device == shard.device
        assert shard.data.committed
        assert not mnp.asarray(GRID).addressable_shards[0].data.committed  # as in JAX
        np.testing.assert_array_equal(shard.data, GRID[shard.index])
    for i, shard in enumerate(shards):
        np.testing.assert_array_equal(x.addressable_data(i), shard.data)
        assert x.addressable_data(i - len(shards)).device == shard.device


@in_worlds
def test_the_shards_of_other_processes_have_no_data():
    x = put(GRID, None, "j")
    me = meshard.process_index()
    shards = x.global_shards
    assert [s.device for s in shards] == meshard.devices()
    assert [s.replica_id for s in shards] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [s.data is None for s in shards] == [d.process_index != me for d in meshard.devices()]
    assert [s.index for s in x.addressable_shards] == [
        s.index for s in shards if s.data is not None
    ]


@in_worlds
def test_a_shard_that_does_not_exist_is_refused():
    x = put(GRID, "i")
    n = meshard.local_device_count()
    for i in (n, -n - 1):
        with pytest.raises(
            IndexError,
            match=rf"addressable_data: index {i} is out of range: this process holds {n} sh",
        ):
            x.addressable_data(i)


def test_a_shard_prints_its_values_and_is_compared_by_identity():
    def body() -> None:
        first, second = (put(GRID[:, 0], "i").addressable_shards[1] for _ in range(2))
        assert repr(first) == (
            "Shard(device=CpuDevice(id=1), index=(slice(0, 2, None),), replica_id=1, data=[0. 4.])"
        )
        assert first == first
        assert first != second
        assert first in {first}
        with pytest.raises(AttributeError):
            first.data = None

    alone(body)


def test_replicas_in_one_process_share_their_memory():
    def body() -> None:
        x = put(GRID)
        addresses = {np.asarray(s.data).ctypes.data for s in x.addressable_shards}
        assert len(addresses) == 1

    alone(body)


def test_irregular_boxes_have_shards_too():
    def body() -> None:
        a, b, c = meshard.devices()[:3]
        boxes = {
            a: (slice(0, 3), slice(0, 4)),
            b: (slice(2, 8), slice(0, 2)),
            c: (slice(3, 8), slice(2, 4)),
        }
        x = meshard.device_put(GRID, BoxSharding((8, 4), boxes))
        assert [s.data.shape for s in x.addressable_shards] == [(3, 4), (6, 2), (5, 2)]
        assert [s.replica_id for s in x.addressable_shards] == [0, 0, 0]
        np.testing.assert_array_equal(x, GRID)
        assert x.item(4, 3) == GRID[4, 3]

    alone(body)


# its life


def next_line() -> str:
    """The file and line after the one that calls this, as messages name them."""
    caller = inspect.currentframe().f_back
    return f"{__file__}:{caller.f_lineno + 1}"


@in_worlds
def test_a_deleted_array_names_its_type_and_the_line_that_deleted_it():
    x = put(GRID, "i")
    where = next_line()
    x.delete()
    assert x.is_deleted()
    x.delete()  # again: nothing happens
    for use in (np.asarray, lambda a: a.sum(), lambda a: a + 1, lambda a: a.global_shards, list):
        with pytest.raises(DeletedArrayError) as caught:
            use(x)
        assert str(caught.value) == (
            "Array has been deleted with shape=float64[8,4]. "
            f"It was deleted by delete() at {where}."
        )
    assert (x.shape, x.dtype, x.sharding.spec) == ((8, 4), np.dtype("f8"), P("i"))


@in_worlds
def test_a_donated_array_names_the_line_that_donated_it():
    sharding = NamedSharding(mesh(), P(None, "j"))
    x, y = put(GRID, "i"), put(GRID, "i")
    put_line = next_line()
    moved = meshard.device_put({"x": x}, sharding, donate=True)
    reshard_line = next_line()
    meshard.reshard([y], sharding, donate=True)
    np.testing.assert_array_equal(whole(moved["x"]), GRID)
    with pytest.raises(DeletedArrayError, match=re.escape(f"donated to device_put at {put_line}.")):
        x + 1
    with pytest.raises(DeletedArrayError, match=re.escape(f"donated to reshard at {reshard_line}")):
        y.block_until_ready()


def test_a_view_that_the_user_holds_outlives_its_array():
    def body() -> None:
        value = np.arange(200_000.0)
        x = meshard.device_put(value, meshard.devices()[0])
        view = np.asarray(x)[10:20]
        shard = np.asarray(put(value, "i").addressable_data(0))
        x.delete()
        del x
        gc.collect()
        new = [meshard.device_put(np.full(200_000, -1.0), meshard.devices()[0]) for _ in range(3)]
        np.testing.assert_array_equal(view, value[10:20])
        np.testing.assert_array_equal(shard, value[:50_000])
        assert float(new[0][0]) == -1

    alone(body)


def test_copies_outlive_the_deletion_of_the_original():
    def body() -> None:
        x = put(GRID, "i")
        copies = [x.copy(), copy.copy(x), copy.deepcopy(x), mnp.copy(x)]
        x.delete()
        for y in copies:
            assert y.sharding == NamedSharding(mesh(), P("i"))
            assert y.committed
            np.testing.assert_array_equal(y, GRID)

    alone(body)


def test_live_arrays_are_those_that_were_not_deleted():
    def body() -> None:
        x, y = put(GRID, "i"), mnp.ones(3)
        assert {id(a) for a in meshard.live_arrays()} == {id(x), id(y)}
        assert len(meshard.live_arrays("cpu")) == 2
        y.delete()
        del x
        assert meshard.live_arrays() == []

    alone(body)
    with pytest.raises(ConfigError, match="live_arrays: there is no platform 'tpu'"):
        meshard.live_arrays("tpu")


@pytest.mark.skipif(shares.processes() is not None, reason="a job's bodies run in one world")
def test_live_arrays_of_another_world_are_not_listed():
    outside = mnp.ones(3)
    assert alone(lambda: meshard.live_arrays()) == []
    assert any(x is outside for x in meshard.live_arrays())

    def body() -> list[int]:
        mine = [spanning(), mnp.ones(3)]
        here().transport.barrier([0, 1])
        found = {id(x) for x in meshard.live_arrays()}
        here().transport.barrier([0, 1])
        return [found == {id(x) for x in mine}]

    assert in_two(body) == [[True], [True]]


def test_arrays_can_be_weakly_referenced():
    x = mnp.ones(3)
    reference = weakref.ref(x)
    assert reference() is x
    del x
    assert reference() is None


# to NumPy


@in_worlds
def test_numpy_sees_the_whole_of_what_is_addressable():
    x = put(GRID)
    np.testing.assert_array_equal(np.asarray(x), GRID)
    assert np.asarray(x, dtype=np.int32).dtype == np.int32
    if meshard.process_count() == 1:
        np.testing.assert_array_equal(np.asarray(put(GRID, "i", "j")), GRID)


@pytest.mark.parametrize("spec", [(), ("i",)])
def test_views_are_read_only_and_copies_are_the_users(spec):
    def body() -> None:
        x = put(GRID, *spec)
        for seen in np.asarray(x), x.to_numpy():
            if spec:  # put together, and the caller's own
                seen[0] = 7
            else:
                with pytest.raises(ValueError, match="read-only"):
                    seen[0] = 7
        assert x.to_numpy(copy=True).flags.writeable
        assert x.to_numpy("f4").dtype == np.float32
        mine = np.array(x)
        mine[:] = 7
        np.testing.assert_array_equal(x, GRID)
        as_float32 = np.asarray(x, dtype=np.float32)
        as_float32[:] = 7
        np.testing.assert_array_equal(x, GRID)

    alone(body)


def test_numpys_copy_protocol_is_kept():
    def body() -> None:
        one, many = put(GRID), put(GRID, "i")
        shared = np.asarray(one, copy=False)
        assert np.shares_memory(shared, np.asarray(one))
        assert not np.shares_memory(np.array(one), shared)
        assert not np.shares_memory(np.asarray(one, copy=True), shared)
        with pytest.raises(ValueError, match=r"float64\[8,4\] is spread over 4 blocks.*without a"):
            np.asarray(many, copy=False)
        with pytest.raises(ValueError, match="holds float64, not float32"):
            np.asarray(one, dtype=np.float32, copy=False)
        assert np.asarray(one, dtype=np.float64, copy=False).dtype == np.float64

    alone(body)


def test_dlpack_copies_unless_the_memory_itself_is_asked_for():
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("from_dlpack has taken copy= since NumPy 2.1")

    def body() -> None:
        one, many = put(GRID), put(GRID, "i")
        assert one.__dlpack_device__() == (1, 0)
        for x in (one, many):
            for asked in True, None:  # not every library heeds the mark of read-only memory
                mine = np.from_dlpack(x, copy=asked)
                np.testing.assert_array_equal(mine, GRID)
                mine[:] = 7
                np.testing.assert_array_equal(x, GRID)
        seen = np.from_dlpack(one, copy=False)
        assert not seen.flags.writeable
        assert np.shares_memory(seen, np.asarray(one))
        with pytest.raises(BufferError, match=r"float64\[8,4\] is spread over 4 blocks"):
            np.from_dlpack(many, copy=False)
        with pytest.raises(BufferError, match=r"is immutable, which only DLPack 1.0"):
            one.__dlpack__(copy=False)
        with pytest.raises((BufferError, ValueError)):
            one.__dlpack__(dl_device=(2, 0))

    alone(body)


class OldConsumer:
    """Hands an array on as libraries from before DLPack 1.0 ask for it."""

    def __init__(self, x: meshard.Array) -> None:
        self.x = x

    def __dlpack__(self, **_: object) -> object:
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def test_a_consumer_that_knows_no_read_only_tensors_gets_a_copy():
    x = meshard.device_put(GRID, meshard.devices()[0])
    mine = np.from_dlpack(OldConsumer(x))
    assert not np.shares_memory(mine, np.asarray(x))
    np.testing.assert_array_equal(mine, GRID)


def test_the_namespace_is_meshards():
    x = mnp.ones(2)
    assert x.__array_namespace__() is mnp
    assert x.__array_namespace__(api_version="2024.12") is mnp
    with pytest.raises(ArgumentError, match=r"version '1999.12' is not supported"):
        x.__array_namespace__(api_version="1999.12")


UFUNCS: list[Callable[[Any], Any]] = [
    np.sin,
    lambda a: np.concatenate([a, a]),
    lambda a: np.add(a, 1),
    lambda a: np.stack([a, a]),
    lambda a: np.where(a > 3, a, 0),
    np.sort,
    np.linalg.norm,
    np.ptp,
]


@pytest.mark.parametrize("function", UFUNCS)
def test_numpys_functions_give_arrays(function):
    x = put(GRID, "i")
    found = function(x)
    assert isinstance(found, meshard.Array)
    np.testing.assert_array_equal(found, function(GRID))


METHODS: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum,
    "sum of dims": lambda a: np.sum(a, axis=(0, 1), keepdims=True),
    "sum as": lambda a: np.sum(a, axis=1, dtype=np.float32),
    "prod": lambda a: np.prod(a, axis=0),
    "max": lambda a: np.max(a, axis=0),
    "min": np.min,
    "mean": lambda a: np.mean(a, axis=1),
    "std": np.std,
    "var": lambda a: np.var(a, axis=0, ddof=1),
    "all": np.all,
    "any": lambda a: np.any(a, axis=1),
    "argmax": np.argmax,
    "argmin": lambda a: np.argmin(a, axis=0),
    "clip": lambda a: np.clip(a, 3, 9),
    "round": lambda a: np.round(a / 3, 1),
    "take": lambda a: np.take(a, np.array([1, 2]), axis=1, mode="clip"),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "reshape": lambda a: np.reshape(a, (4, 8)),
    "transpose": np.transpose,
    "permuted": lambda a: np.transpose(a, (1, 0)),
    "swapaxes": lambda a: np.swapaxes(a, 0, 1),
    "squeeze": lambda a: np.squeeze(a),
    "size": np.size,
    "shape": np.shape,
    "ndim": np.ndim,
}


@pytest.mark.parametrize("name", METHODS)
def test_numpys_functions_that_call_methods_stay_on_the_devices(name):
    found, expected = METHODS[name](put(GRID, "i")), METHODS[name](GRID)
    if name not in ("size", "shape", "ndim"):
        assert isinstance(found, meshard.Array)
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_methods_have_no_out():
    x, buffer = put(GRID, "i"), np.empty(())
    for method in ("sum", "prod", "max", "min", "mean", "std", "var", "any", "argmax", "cumsum"):
        with pytest.raises(ArgumentError, match=rf"{method}: out= is not supported.*immutable"):
            getattr(x, method)(out=buffer)


@pytest.mark.parametrize(
    "other",
    [
        GRID,
        GRID.astype(np.float32),
        np.float64(2),
        np.int8(3),
        np.ones(4, np.float32),
        2,
        2.5,
        True,
        1j,
        ml_dtypes.bfloat16(2),
    ],
)
def test_numpy_on_either_side_of_an_operator_gives_an_array(other):
    x = put(GRID, "i")
    for found, expected in [
        (x + other, GRID + other),
        (other + x, other + GRID),
        (other - x, other - GRID),
        (other * x, other * GRID),
        (x == other, np.equal(GRID, other)),
        (other == x, other == GRID),
    ]:
        assert isinstance(found, meshard.Array)
        np.testing.assert_array_equal(found, expected)


def test_matrices_and_in_place_operators_of_numpy():
    x = put(GRID, "i")
    assert isinstance(GRID.T @ x, meshard.Array)
    np.testing.assert_array_equal(GRID.T @ x, GRID.T @ GRID)
    first = total = GRID.copy()
    total += x  # NumPy's array, which the sum is written into
    assert total is first
    np.testing.assert_array_equal(total, 2 * GRID)
    y = x
    y += 1
    np.testing.assert_array_equal(x, GRID)
    np.testing.assert_array_equal(y, GRID + 1)


class Foreign:
    """A type that knows arrays and is not known by them."""

    def __radd__(self, other: object) -> str:
        return "radd"

    def __rmatmul__(self, other: object) -> str:
        return "rmatmul"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_operators_leave_unknown_types_to_themselves():
    x = mnp.ones((2, 2))
    assert x + Foreign() == "radd"
    assert x @ Foreign() == "rmatmul"
    assert (x == Foreign()) is True
    assert (x == object()) is False
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for -"):
        x - object()


@pytest.mark.parametrize("other", [[1.0], (1.0,), {1: 2}, {1}])
def test_containers_do_not_mix_with_arrays_in_operators(other):
    x = mnp.ones(1)
    kind = type(other).__name__
    for mix in (lambda: x + other, lambda: other == x, lambda: x == other, lambda: x[0] * other):
        with pytest.raises(TypeError, match=rf"not an array and a {kind}\. Make an array of it"):
            mix()


def test_anything_that_numpy_can_read_is_an_operand():
    class Readable:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(4.0)

    found = put(GRID, "i") * Readable()
    assert isinstance(found, meshard.Array)
    np.testing.assert_array_equal(found, GRID * np.arange(4.0))


# to Python


@in_worlds
def test_scalars_become_python_numbers():
    x = put(np.array(3))
    assert (bool(x), int(x), float(x), complex(x)) == (True, 3, 3.0, 3 + 0j)
    assert [10, 11, 12, 13][x] == 13
    assert f"{x:03d}" == "003"
    assert f"{put(np.array(2.5)):.2f}" == "2.50"
    assert (x.item(), x.tolist(), x.tobytes()) == (3, 3, np.array(3).tobytes())
    assert bool(put(np.array([[0]]))) is False


def test_items_are_found_in_their_block(monkeypatch):
    def body() -> None:
        x = put(GRID, "i", "j")
        monkeypatch.setattr(module, "gathered", None)
        found = [x.item(i, j) for i in range(8) for j in range(4)]
        assert found == GRID.reshape(-1).tolist()
        assert [x.item(k) for k in range(-32, 0)] == found
        assert x.item((7, -1)) == 31
        assert put(GRID[:1, :1]).item() == 0
        assert type(x.item(0)) is float

    alone(body)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((), ValueError, r"only an array of size 1.*shape is \(8, 4\).*x\.item\(0\)"),
        ((32,), IndexError, "index 32 is out of bounds for the flattened array with size 32"),
        ((8, 0), IndexError, "index 8 is out of bounds for dim 0 with size 8"),
        ((0, -5), IndexError, "index -5 is out of bounds for dim 1 with size 4"),
        ((1, 2, 3), ValueError, r"item\(1, 2, 3\): 3 indices for an array of shape \(8, 4\)"),
        ((1.0,), TypeError, r"item: index must be an integer, got 1\.0"),
    ],
)
def test_items_that_do_not_exist_are_refused(args, error, message):
    with pytest.raises(error, match=message):
        put(GRID, "i").item(*args)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (bool, ValueError, r"32 elements is ambiguous: its shape is \(8, 4\). Use x.any\(\)"),
        (lambda x: bool(x[:0]), ValueError, r"no elements is ambiguous.*Use x.size > 0"),
        (int, TypeError, r"without dims can become a Python int; the shape is \(8, 4\)"),
        (float, TypeError, "Python float"),
        (complex, TypeError, "Python complex"),
        (lambda x: range(9)[x], TypeError, "Only integer arrays.*float64"),
        (lambda x: range(9)[x.astype(int)], TypeError, r"Python index; the shape is \(8, 4\)"),
        (lambda x: len(x[0, 0]), TypeError, "len: an array without dims has no length"),
        (
            lambda x: iter(x[0, 0]),
            TypeError,
            "iteration: an array without dims cannot be iterated over",
        ),
        (hash, TypeError, r"unhashable: .*x\.tobytes\(\), or id\(x\)"),
        (lambda x: {x: 1}, TypeError, "unhashable"),
        (lambda x: x.__setitem__(0, 1), TypeError, r"write x = x\.at\[index\]\.set\(y\)"),
        (
            lambda x: None in x,
            TypeError,
            "in: an array holds numbers only, so None cannot be one of its elements",
        ),
        (
            lambda x: "a" in x,
            TypeError,
            "in: an array holds numbers only, so 'a' cannot be one of its elements",
        ),
        (lambda x: format(x, ".2f"), TypeError, "unsupported format string"),
        (lambda x: x.nonsense, AttributeError, "nonsense"),
        (lambda x: setattr(x, "shape", (4, 8)), AttributeError, "shape"),
    ],
)
def test_python_is_refused_with_advice(use, error, message):
    with pytest.raises(error, match=message):
        use(put(GRID, "i"))


def test_comparison_with_none_and_membership_in_lists_are_plain():
    x = put(GRID, "i")
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert (x == "a") is False
    assert x in [None, "a", x]
    assert x not in [None, "a"]
    assert [x, None].index(None) == 1
    with pytest.raises(ValueError, match="ambiguous"):
        assert x + 1 in [x]


def test_in_asks_for_elements():
    x = put(GRID, "i", "j")
    assert 31 in x
    assert 31.5 not in x
    assert GRID[0] in x  # as in NumPy: any element of the comparison
    assert object() not in x


@in_worlds
def test_iteration_gives_rows():
    x = put(GRID)
    rows = list(x)
    assert all(isinstance(row, meshard.Array) for row in rows)
    np.testing.assert_array_equal(np.stack([np.asarray(r) for r in rows]), GRID)
    a, b = put(np.arange(2))
    assert (int(a), int(b)) == (0, 1)
    assert [int(v) for v in reversed(put(np.arange(3)))] == [2, 1, 0]


def test_iterating_over_a_split_array_gives_rows():
    rows = list(put(GRID, "i", "j"))
    assert [r.shape for r in rows] == [(4,)] * 8
    np.testing.assert_array_equal(np.stack([np.asarray(r) for r in rows]), GRID)


@in_worlds
def test_round_gives_whole_numbers_as_in_python():
    x = put(np.array([2.567, -1.2]))
    assert round(x).dtype == np.int64
    assert whole(round(x)).tolist() == [3, -1]
    assert whole(round(x, 1)).tolist() == [2.6, -1.2]
    assert round(put(np.arange(3))).dtype == np.int64


# pickling


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["f8", "i4", "bool", "c16", ml_dtypes.bfloat16])
def test_pickling_keeps_the_value_and_not_the_place(protocol, dtype):
    value = (GRID % 5).astype(dtype)
    y = pickle.loads(pickle.dumps(put(value, "i"), protocol))
    assert y.dtype == value.dtype
    assert y.tobytes() == value.tobytes()
    assert (y.device, y.committed) == (meshard.devices()[0], False)


def test_a_pickled_array_does_not_share_the_pickles_buffer():
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(mnp.asarray(GRID), 5, buffer_callback=buffers.append)
    changeable = [bytearray(b.raw()) for b in buffers]
    y = pickle.loads(data, buffers=changeable)
    for b in changeable:
        b[:] = bytes(len(b))
    np.testing.assert_array_equal(y, GRID)


# arrays that span processes


SPANNING: dict[str, Callable[[meshard.Array], object]] = {
    "np.asarray": np.asarray,
    "np.array": np.array,
    "iteration": iter,
    "item": lambda x: x.item(0),
    "tolist": lambda x: x.tolist(),
    "tobytes": lambda x: x.tobytes(),
    "pickling": pickle.dumps,
    "dlpack": np.from_dlpack,
    "device_get": meshard.device_get,
    "a function of NumPy's": unheard_of,
    "bool": lambda x: bool(meshard.device_put(np.ones((1,)), meshard.devices()[-1])),
    "float": lambda x: float(meshard.device_put(1.0, meshard.devices()[-1])),
}


@pytest.mark.parametrize("name", SPANNING)
def test_what_needs_the_whole_is_refused_with_advice(name):
    def body() -> None:
        x = spanning()
        if name in ("bool", "float") and meshard.process_index() == 1:
            assert SPANNING[name](x) == 1  # its own device
            return
        with pytest.raises(NotAddressableError) as caught:
            SPANNING[name](x)
        message = str(caught.value)
        nothing = "is on process 1, and this is process 0, which holds no part of it"
        some = f"process {meshard.process_index()} holds 4 of its 8 pieces"
        assert (nothing if name in ("bool", "float") else some) in message
        assert "meshard.multihost_utils.process_allgather(x)" in message
        assert "x.addressable_shards" in message

    in_two(body)


def test_an_array_that_each_process_holds_wholly_can_be_read_everywhere():
    def body() -> None:
        # Columns are split within each process, so that both hold all of them.
        x = put(GRID, None, "j")
        assert not x.is_fully_addressable
        assert not x.is_fully_replicated
        np.testing.assert_array_equal(np.asarray(x), GRID)
        assert x.item(5) == 5
        assert [r.shape for r in x] == [(4,)] * 8
        assert repr(x) == repr(meshard.numpy.asarray(GRID))

    in_two(body)


def test_local_shards_of_a_spanning_array_can_be_read():
    def body() -> float:
        x = spanning()
        return sum(float(np.asarray(s.data).sum()) for s in x.addressable_shards)

    assert sum(in_two(body)) == GRID.sum()


def test_an_array_of_no_local_device_has_no_pieces_here():
    def body() -> int:
        there = meshard.devices()[-1]
        x = meshard.device_put(GRID, there)
        assert x.is_fully_replicated
        assert x.device == there
        assert [s.data is None for s in x.global_shards] == [meshard.process_index() == 0]
        return len(x.addressable_shards)

    assert in_two(body) == [0, 1]


# elsewhere


@in_worlds
def test_arrays_go_to_devices():
    last = meshard.local_devices()[-1]
    x = mnp.arange(8)
    assert x.to_device(last).device == last
    assert x.to_device(NamedSharding(mesh(), P("i"))).sharding.spec == P("i")
    assert x.astype("f4", device=last).device == last
    assert x.astype("f4", device=last).dtype == np.float32
    with pytest.raises(ArgumentError, match="there are no streams; got stream=3"):
        x.to_device(last, stream=3)
    with pytest.raises((ArgumentError, ShardingError), match="expected a Sharding"):
        x.to_device("cpu")


def test_the_address_of_an_array_with_one_shard_can_be_asked():
    x = meshard.device_put(GRID, meshard.devices()[1])
    assert x.unsafe_buffer_pointer() == np.asarray(x).ctypes.data
    for spec in ((), ("i",)):
        with pytest.raises(ArgumentError, match="the array has 8 shards; ask one of"):
            put(GRID, *spec).unsafe_buffer_pointer()


@in_worlds
def test_the_bytes_on_all_devices_count_replicas():
    assert put(GRID).on_device_size_in_bytes() == 8 * GRID.nbytes
    assert put(GRID, "i").on_device_size_in_bytes() == 2 * GRID.nbytes
    assert put(GRID[:7], "i", uneven="balanced").on_device_size_in_bytes() == 2 * 7 * 4 * 8
    assert mnp.ones(3).on_device_size_in_bytes() == 24


def test_an_array_is_made_in_two_writes():
    x = mnp.ones(3)
    again = meshard.Array(x._type, x._blocks)
    assert again.tolist() == [1, 1, 1]
    assert not hasattr(again, "_note")
    assert here().type_of(x.shape, x.dtype, x.sharding, False) is x._type
