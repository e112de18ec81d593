"""`ShapeDtypeStruct` and `typeof`."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.algebra.arguments import shape_of
from meshard.errors import ArgumentError, DtypeError, ShapeError, ShardingError
from meshard.sharding import NamedSharding, P, SingleDeviceSharding
from meshard.testing.virtual import virtual_devices

from .worlds import in_worlds, mesh, put

Struct = meshard.ShapeDtypeStruct


def test_a_struct_says_what_an_array_would():
    x = Struct((2, 3), "float32")
    assert (x.shape, x.dtype, x.sharding) == ((2, 3), np.dtype("f4"), None)
    assert (x.ndim, x.size, x.nbytes, len(x), x.weak_type) == (2, 6, 24, 2, False)
    assert repr(x) == "ShapeDtypeStruct(shape=(2, 3), dtype=float32)"
    assert Struct([np.int64(2)], int).shape == (2,)
    assert Struct((), ml_dtypes.bfloat16).nbytes == 2
    with pytest.raises(TypeError, match="len: an array without dims has no length"):
        len(Struct((), int))


def test_a_struct_may_carry_a_sharding_even_of_devices_that_do_not_exist():
    sharding = NamedSharding(mesh(), P("i"))
    x = Struct((8,), "f4", sharding=sharding)
    assert x.sharding is sharding
    assert repr(x) == f"ShapeDtypeStruct(shape=(8,), dtype=float32, sharding={sharding!r})"
    device = virtual_devices(1)[0]
    assert Struct((8,), "f4", sharding=device).sharding == SingleDeviceSharding(device)
    with mesh():
        assert Struct((8,), "f4", sharding=P("i")).sharding == sharding


def test_structs_are_equal_by_value():
    sharding = NamedSharding(mesh(), P("i"))
    x = Struct((8,), "f4", sharding=sharding)
    for same in (
        Struct((8,), np.float32, sharding=NamedSharding(mesh(), P("i"))),
        copy.copy(x),
        copy.deepcopy(x),
        pickle.loads(pickle.dumps(x)),
        x.update(),
    ):
        assert same == x
        assert hash(same) == hash(x)
    for other in (Struct((8,), "f4"), x.update(dtype="f8"), x.update(shape=(16,)), 3, None):
        assert other != x


def test_an_update_changes_what_it_names():
    x = Struct((8,), "f4", sharding=meshard.devices()[0])
    assert x.update(shape=(4, 2)) == Struct((4, 2), "f4", sharding=meshard.devices()[0])
    assert x.update(sharding=None, dtype=bool) == Struct((8,), bool)
    with pytest.raises(TypeError, match="nonsense"):
        x.update(nonsense=3)


def test_a_struct_cannot_be_changed():
    x = Struct((8,), "f4")
    with pytest.raises(RuntimeError, match=r"immutable; .* write x\.update\(shape=\.\.\.\)"):
        x.shape = (4,)
    with pytest.raises(RuntimeError, match="immutable"):
        x.anything = 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((2,), None), ArgumentError, "a dtype is needed, got None"),
        (((2,), str), DtypeError, "not a numeric dtype"),
        (((2,), "nonsense"), DtypeError, "must be a dtype, .* got 'nonsense'"),
        (((-1,), "f4"), ShapeError, r"\(-1,\) is not a shape"),
        (
            (None, "f4"),
            ShapeError,
            "None is not a shape: sizes must be non-negative integers",
        ),
        (((1.5,), "f4"), ShapeError, "is not a shape"),
    ],
)
def test_wrong_structs_are_refused(arguments, error, message):
    with pytest.raises(error, match=f"ShapeDtypeStruct: .*{message}"):
        Struct(*arguments)


def test_a_sharding_that_is_none_is_refused():
    with pytest.raises(ArgumentError, match="expected a Sharding, a Device"):
        Struct((2,), "f4", sharding=3)
    with pytest.raises(ShardingError, match="mesh"):
        Struct((2,), "f4", sharding=P("i"))


@in_worlds
def test_the_struct_of_an_array_has_its_sharding_if_it_is_committed():
    x = put(np.ones((8, 4)), "i")
    assert Struct.like(x) == Struct((8, 4), "f8", sharding=x.sharding)
    assert Struct.like(mnp.ones(3)) == Struct((3,), "f8")
    assert Struct.like(2) == Struct((), int)


@in_worlds
def test_types_say_all_but_the_data():
    x = put(np.ones((8, 4), "f4"), "i")
    assert meshard.typeof(x) is x.aval
    assert str(meshard.typeof(x)) == "float32[8,4]"
    assert str(meshard.typeof(np.ones(3))) == "float64[3]"
    assert str(meshard.typeof(3)) == "int64[]"
    assert str(meshard.typeof(True)) == "bool[]"
    # Types are interned: of a struct it is that of the array.
    assert meshard.typeof(Struct((8, 4), "f4", sharding=x.sharding)) is x.aval
    assert meshard.typeof(Struct((3,), "f8")) is mnp.ones(3).aval


@pytest.mark.parametrize("value", ["a", [1, 2], None, {"x": 1}, object()])
def test_what_is_no_array_has_no_type(value):
    with pytest.raises(DtypeError, match=f"typeof: .* of type {type(value).__name__} is not an ar"):
        meshard.typeof(value)


def test_shapes_are_made_of_whole_numbers():
    assert shape_of((np.int32(2), True, 0), "f") == (2, 1, 0)
    assert shape_of(5, "f") == (5,)
    assert shape_of(range(2), "f") == (0, 1)
    assert all(type(n) is int for n in shape_of(np.array([2, 3]), "f"))
    for wrong in ("ab", (2, -1), (2.0,), None, 2.5, -1, [[1]]):
        with pytest.raises(
            ShapeError,
            match=r"f: .* is not a shape: sizes must be non-negative",
        ):
            shape_of(wrong, "f")
