"""Arrays look, print, answer and refuse as JAX's do, on random shardings of up to eight devices."""

import operator
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing.strategies import placed_shapes

# JAX is a fixture of the session, so examples may share it.
many = settings(
    max_examples=max(120, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "float32", "complex64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


@st.composite
def values(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """An array of one of JAX's dtypes; floats with large, small, integral and no values."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    noise = np.random.default_rng(draw(st.integers(0, 99)))
    if dtype.kind in "iu":
        return noise.integers(0, draw(st.sampled_from([3, 120])), shape).astype(dtype)
    if dtype.kind == "b":
        return noise.integers(0, 2, shape).astype(dtype)
    base = noise.normal(size=shape) * draw(st.sampled_from([1.0, 1e-6, 300.0]))
    if draw(st.booleans()):
        base = np.rint(base)
    if draw(st.booleans()) and base.size:
        base.reshape(-1)[noise.integers(base.size)] = draw(st.sampled_from([np.nan, -0.0]))
    return (base + 1j * base).astype(dtype) if dtype.kind == "c" else base.astype(dtype)


@st.composite
def both(draw: st.DrawFn, max_ndim: int = 3) -> tuple[np.ndarray, NamedSharding]:
    sharding, shape = draw(placed_shapes(max_ndim, devices=meshard.devices()))
    return draw(values(shape)), sharding


def jax_sharding(jax: ModuleType, sharding: NamedSharding) -> Any:
    devices = np.array(jax.devices(), object)[sharding.mesh.device_ids]
    mesh = jax.sharding.Mesh(devices, sharding.mesh.axis_names)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*sharding.spec))


def pair(jax: ModuleType, case: tuple[np.ndarray, NamedSharding]) -> tuple[Any, Any]:
    value, sharding = case
    return meshard.device_put(value, sharding), jax.device_put(value, jax_sharding(jax, sharding))


def split_pair(jax: ModuleType) -> tuple[Any, Any]:
    """The numbers from 0 to 7 over the first axis of a 4 x 2 mesh."""
    mesh = Mesh(np.array(meshard.devices()).reshape(4, 2), ("i", "j"))
    return pair(jax, (np.arange(8, dtype=np.int32), NamedSharding(mesh, P("i"))))


@many
@given(both())
def test_attributes_are_the_same(jax, case):
    ours, theirs = pair(jax, case)
    for name in (
        *("shape", "ndim", "size", "nbytes", "itemsize", "dtype", "committed", "weak_type"),
        *("is_fully_replicated", "is_fully_addressable"),
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.T.shape == theirs.T.shape
    assert {d.id for d in ours.devices()} == {d.id for d in theirs.devices()}
    assert str(ours.sharding.spec) == str(theirs.sharding.spec)
    if ours.sharding.num_devices == 1:
        assert ours.device.id == theirs.device.id
    else:
        assert ours.device == ours.sharding
    assert ours.is_deleted() is theirs.is_deleted() is False
    if ours.ndim:
        assert len(ours) == len(theirs)
    assert str(ours.aval) == str(theirs.aval)


@many
@given(both())
def test_shards_are_the_same(jax, case):
    ours, theirs = pair(jax, case)
    for mine, yours in (
        (ours.addressable_shards, theirs.addressable_shards),
        (ours.global_shards, theirs.global_shards),
    ):
        assert [(s.device.id, s.index, s.replica_id) for s in mine] == [
            (s.device.id, s.index, s.replica_id) for s in yours
        ]
        for a, b in zip(mine, yours, strict=True):
            assert a.data.shape == b.data.shape
            assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes()
            assert {d.id for d in a.data.devices()} == {d.id for d in b.data.devices()}
            assert repr(a) == repr(b)
    for i in range(-len(mine), len(mine)):
        assert ours.addressable_data(i).tobytes() == theirs.addressable_data(i).tobytes()


@many
@given(
    both(),
    st.sampled_from([20, 40, 75, 200]),
    st.sampled_from([0, 5, 1000]),
    st.integers(1, 3),
    st.integers(2, 9),
)
def test_texts_are_the_same(jax, case, linewidth, threshold, edgeitems, precision):
    ours, theirs = pair(jax, case)
    options = np.printoptions(
        linewidth=linewidth, threshold=threshold, edgeitems=edgeitems, precision=precision
    )
    with options:
        assert repr(ours) == repr(theirs)
        assert str(ours) == str(theirs)
        assert f"{ours}" == f"{theirs}"
        assert f"{ours:}" == f"{theirs:}"


@many
@given(both(), st.data())
def test_values_in_python_are_the_same(jax, case, data):
    ours, theirs = pair(jax, case)
    assert ours.tobytes() == theirs.tobytes()
    assert pickle.loads(pickle.dumps(ours)).tobytes() == theirs.tobytes()
    assert str(ours.tolist()) == str(theirs.tolist())
    if ours.size:
        flat = data.draw(st.integers(-ours.size, ours.size - 1))
        place = np.unravel_index(flat % ours.size, ours.shape)
        for args in [(flat,), tuple(map(int, place)), (tuple(map(int, place)),)]:
            if args == ((),):
                continue
            mine, yours = ours.item(*args), theirs.item(*args)
            assert (type(mine), str(mine)) == (type(yours), str(yours))


@pytest.mark.parametrize("dtype", [np.dtype(d).name for d in DTYPES])
@pytest.mark.parametrize("shape", [(), (1,), (8,), (40,), (8, 3), (2, 3, 4), (0,), (8, 0), (1200,)])
def test_single_device_texts_are_the_same(jax, dtype, shape):
    value = (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape).astype(dtype)
    ours, theirs = mnp.asarray(value), jax.numpy.asarray(value)
    for width in (12, 30, 75):
        with np.printoptions(linewidth=width):
            assert repr(ours) == repr(theirs)
            assert str(ours) == str(theirs)


def test_a_long_repr_shows_the_edges_as_numpy_does(jax):
    value = np.arange(48000, dtype=np.int32).reshape(40, 30, 40)
    mesh = Mesh(np.array(meshard.devices()).reshape(4, 2), ("i", "j"))
    ours, theirs = pair(jax, (value, NamedSharding(mesh, P("i", "j"))))
    assert repr(ours) == repr(theirs)
    assert str(ours) == str(theirs) == str(value)


Case = Callable[[Any, Any], object]  # the array, and its library's numpy


# What both refuse, by a builtin class that both derive from.
REFUSALS: dict[str, tuple[type[Exception], Case]] = {
    "hash": (TypeError, lambda x, np_: hash(x)),
    "set item": (TypeError, lambda x, np_: operator.setitem(x, 0, 1)),
    "bool": (ValueError, lambda x, np_: bool(x)),
    "bool of none": (ValueError, lambda x, np_: bool(x[:0])),
    "int": (TypeError, lambda x, np_: int(x)),
    "int of one": (TypeError, lambda x, np_: int(x[:1])),
    "float": (TypeError, lambda x, np_: float(x)),
    "complex": (TypeError, lambda x, np_: complex(x)),
    "index": (TypeError, lambda x, np_: range(9)[x]),
    "float index": (TypeError, lambda x, np_: range(9)[np_.asarray(1.0)]),
    "len": (TypeError, lambda x, np_: len(x[0])),
    "iteration": (TypeError, lambda x, np_: list(x[0])),
    "format": (TypeError, lambda x, np_: format(x, "d")),
    "item": (ValueError, lambda x, np_: x.item()),
    "item out of bounds": (IndexError, lambda x, np_: x.item(8)),
    "item below bounds": (IndexError, lambda x, np_: x.item(-9)),
    "item of a float": (TypeError, lambda x, np_: x.item(1.5)),
    "item of too many": (ValueError, lambda x, np_: x.item(1, 2)),
    "shard": (IndexError, lambda x, np_: x.addressable_data(9)),
    "a list": (TypeError, lambda x, np_: x == [1] * 8),
    "not a tuple": (TypeError, lambda x, np_: x != (1,) * 8),
    "plus a list": (TypeError, lambda x, np_: x + [1] * 8),
    "a list plus": (TypeError, lambda x, np_: [1] * 8 + x),
    "a scalar times a list": (TypeError, lambda x, np_: x[1] * [1]),
    "plus a text": (TypeError, lambda x, np_: x + "a"),
    "plus None": (TypeError, lambda x, np_: x + None),
    "less than None": (TypeError, lambda x, np_: x < None),
    "None in": (TypeError, lambda x, np_: None in x),
    "a text in": (TypeError, lambda x, np_: "a" in x),
    "mT": (ValueError, lambda x, np_: x.mT),
    "namespace": (ValueError, lambda x, np_: x.__array_namespace__(api_version="1999.12")),
    "in a list": (ValueError, lambda x, np_: x in [x + 1]),
    "no copy": (ValueError, lambda x, np_: np.asarray(x, dtype="float32", copy=False)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_of_the_same_builtin_class(jax, name):
    builtin, refused = REFUSALS[name]
    ours, theirs = split_pair(jax)
    with pytest.raises(builtin):
        refused(theirs, jax.numpy)
    with pytest.raises(builtin):
        refused(ours, mnp)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        np.asarray,
        lambda x: x.addressable_shards,
        lambda x: x.global_shards,
        lambda x: x.addressable_data(0),
        lambda x: x.block_until_ready(),
        lambda x: x[0],
        lambda x: x.item(0),
        lambda x: x.tolist(),
        lambda x: x.copy(),
        list,
    ],
)
def test_a_deleted_array_refuses_the_same_uses(jax, use):
    for x in (jax.numpy.arange(8), mnp.arange(8)):
        x.delete()
        assert x.is_deleted()
        x.delete()
        with pytest.raises(RuntimeError, match="deleted"):
            use(x)
        assert (x.shape, x.ndim, x.size) == ((8,), 1, 8)


PLAIN: dict[str, Callable[[Any, Any], object]] = {
    "== None": lambda x, np_: x == None,  # noqa: E711
    "!= None": lambda x, np_: x != None,  # noqa: E711
    "== text": lambda x, np_: x == "a",
    "== object": lambda x, np_: x == object(),
    "!= object": lambda x, np_: x != object(),
    "in": lambda x, np_: 3 in x,
    "not in": lambda x, np_: 30 in x,
    "in a list": lambda x, np_: x in [1, x][1:],
    "index": lambda x, np_: range(9)[x[4]],
    "format": lambda x, np_: f"{x[3]:05d}|{x:}|{x[3] / 2:.2f}",
    "bool of one": lambda x, np_: bool(x[1:2]),
    "float": lambda x, np_: float(x[3]),
    "complex": lambda x, np_: complex(x[3]),
    "round": lambda x, np_: round(x[3] / 2).item(),
    "round to a digit": lambda x, np_: (round(x / 4, 1) * 10).astype(int).tolist(),
    "reversed": lambda x, np_: [int(v) for v in reversed(x)],
    "iteration": lambda x, np_: [int(v) for v in x],
    "dlpack device": lambda x, np_: tuple(map(int, np_.arange(3).__dlpack_device__())),
    "plus": lambda x, np_: (np.ones(8, np.float32) + x).tolist(),
    "namespace": lambda x, np_: x.__array_namespace__() is np_,
    "copied": lambda x, np_: (x.copy().sharding == x.sharding, x.copy().committed),
    "sum by NumPy": lambda x, np_: type(np.sum(x)) is type(x),
    "scalar by NumPy": lambda x, np_: type(np.float32(2) + x) is type(x),
    "devices": lambda x, np_: sorted(d.id for d in x.devices()),
    "read-only": lambda x, np_: np.array(x).flags.writeable,
    "transposed": lambda x, np_: x.reshape(2, 4).transpose(1, 0).tolist(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_answers_are_the_same(jax, name):
    ours, theirs = split_pair(jax)
    assert PLAIN[name](ours, mnp) == PLAIN[name](theirs, jax.numpy)
