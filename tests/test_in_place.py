"""Writing into arrays where that is allowed, and the refusals everywhere else."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import P
from meshard.errors import ArgumentError, DtypeError, ShapeError
from tests.indices import advanced, basic

from .worlds import alone, put

GRID = np.arange(32.0).reshape(8, 4)

OPERATORS = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
}
OF_BITS = {
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}


@pytest.fixture(autouse=True)
def forbidden_again() -> Iterator[None]:
    yield
    meshard.config.update("writeable", False)


def assign(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def test_it_is_refused_unless_it_is_asked_for():
    x = put(GRID, "i")
    with pytest.raises(TypeError, match=r"Instead of x\[index\] = y, write x = x.at\[index\]\.set"):
        x[0] = 1
    with mnp.writeable(), mnp.writeable(False), pytest.raises(ArgumentError, match="immutable"):
        x[0] = 1
    meshard.config.update("writeable", True)
    x[0] = 1
    assert x[0].tolist() == [1] * 4
    with mnp.writeable(False), pytest.raises(ArgumentError, match="immutable"):
        x[0] = 2
    meshard.config.update("writeable", False)
    y = x
    y += 1
    assert y is not x
    assert x[0].tolist() == [1] * 4


def test_other_threads_do_not_see_the_statement():
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            assign(mnp.zeros(2), 0, 1)
        except ArgumentError as error:
            caught.append(error)

    with mnp.writeable():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(caught) == 1


@given(st.data())
def test_it_writes_what_numpy_writes(data):
    index = data.draw(basic(GRID.shape) | advanced(GRID.shape))
    try:
        shape = GRID[index].shape
    except IndexError:
        return
    value: Any = -data.draw(st.integers(1, 9))
    if data.draw(st.booleans()):
        value = np.arange(np.prod(shape, dtype=int)).reshape(shape) + 100
    known = assign(GRID.copy(), index, value)

    def body() -> None:
        x = put(GRID, "i", "j")
        before, same, place = x.copy(), x, x.sharding
        with mnp.writeable():
            x[index] = value
        np.testing.assert_array_equal(same, known)
        np.testing.assert_array_equal(before, GRID)
        assert (x.sharding, x.dtype) == (place, GRID.dtype)

    alone(body)


@pytest.mark.parametrize("symbol", [*OPERATORS, *OF_BITS])
def test_operators_change_the_array(symbol):
    change = (OPERATORS | OF_BITS)[symbol]
    value = GRID.astype(int) if symbol in OF_BITS else GRID + 1
    other = np.full(4, 2).astype(value.dtype)

    def body() -> None:
        x = put(value, "i", "j")
        before, place = x.copy(), x.sharding
        with mnp.writeable():
            assert change(x, other) is x
            assert change(change(x, 3), before) is x
        known = change(change(change(value.copy(), other), 3), value)
        np.testing.assert_array_equal(x, known)
        np.testing.assert_array_equal(before, value)
        assert x.sharding == place

    alone(body)


def test_a_matrix_product_changes_it_too():
    x = put(GRID, "i")
    with mnp.writeable():
        y = operator.imatmul(x, np.eye(4) * 2)
    assert y is x
    np.testing.assert_array_equal(x, GRID * 2)


def test_shape_and_dtype_stay():
    x, i = put(GRID, "i"), mnp.arange(4)
    with mnp.writeable():
        with pytest.raises(ShapeError, match=r"the result has shape \(2, 8, 4\).*Write x = x \+ y"):
            x += np.ones((2, 8, 4))
        with pytest.raises(DtypeError, match=r"x /= y: the result has dtype float64.*int64"):
            i /= 2
        i += np.int8(1)
        i[0] = 7.9
        x[1, :2] = [5, 6]
        assert (i.dtype, i.tolist()) == (np.dtype("i8"), [7, 2, 3, 4])
        assert x[1].tolist() == [5, 6, 6, 7]
        f = mnp.zeros(3, "f4")
        f += np.ones(3)
        assert f.dtype == np.float32


IN_TRANSFORMATIONS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda x: meshard.jit(lambda t: assign(t, 0, 1))(x),
    "jit, an array from outside": lambda x: meshard.jit(lambda t: assign(x, 0, t))(1.0),
    "grad": lambda x: meshard.grad(lambda t: assign(t, 0, 1).sum())(x),
    "jvp": lambda x: meshard.jvp(lambda t: assign(t, 0, 1), (x,), (x,)),
    "vmap": lambda x: meshard.vmap(lambda t: assign(t, 0, 1))(x),
    "eval_shape": lambda x: meshard.eval_shape(lambda t: assign(t, 0, 1), x),
    "shard_map": lambda x: meshard.shard_map(
        lambda t: assign(t, 0, 1), mesh=x.sharding.mesh, in_specs=P("i"), out_specs=P("i")
    )(x),
}


@pytest.mark.parametrize("name", IN_TRANSFORMATIONS)
def test_it_is_refused_in_transformations(name):
    def body() -> None:
        x = put(GRID, "i")
        inside = r"cannot be written into while a function is traced"
        with mnp.writeable(), pytest.raises(ArgumentError, match=inside):
            IN_TRANSFORMATIONS[name](x)
        with pytest.raises(ArgumentError, match=r"immutable.*x = x.at\[index\]\.set"):
            IN_TRANSFORMATIONS[name](x)
        np.testing.assert_array_equal(x, GRID)

    alone(body)


def test_operators_make_new_arrays_in_transformations():
    def body() -> None:
        x = put(GRID, "i")

        def total(t: Any) -> Any:
            t += 1
            kept = mnp.zeros(())
            kept += t.sum()
            return kept

        with mnp.writeable():
            assert meshard.jit(total)(x) == GRID.sum() + 32
            np.testing.assert_array_equal(meshard.grad(total)(x), np.ones((8, 4)))
        np.testing.assert_array_equal(x, GRID)

    alone(body)


def test_what_a_jitted_function_captured_stays():
    def body() -> None:
        kept = put(GRID, "i")
        f = meshard.jit(lambda t: t + kept)
        with mnp.writeable():
            np.testing.assert_array_equal(f(0.0), GRID)
            kept[:] = -1
            np.testing.assert_array_equal(f(0.0), GRID)

    alone(body)


COPIES: dict[str, Callable[[Any], Any]] = {
    "array": mnp.array,
    "asarray": lambda x: mnp.asarray(x, copy=True),
    "astype": lambda x: x.astype(x.dtype),
    "astype of the namespace": lambda x: mnp.astype(x, x.dtype),
    "copy": mnp.copy,
    "copy of the method": lambda x: x.copy(),
    "clip": lambda x: mnp.clip(x, None, None),
    "pad": lambda x: mnp.pad(x, 0),
    "flatten": lambda x: x.flatten(),
    "positive": lambda x: +x,
    "nan_to_num": lambda x: mnp.nan_to_num(x.astype(int)),
    "roll": lambda x: mnp.roll(x, 0),
    "concatenate": lambda x: mnp.concatenate([x]),
    "round": lambda x: x.round(),
    "meshgrid": lambda x: mnp.meshgrid(x)[0],
    "device_put": lambda x: meshard.device_put(x, x.sharding),
    "jit": lambda x: meshard.jit(lambda t: t)(x),
    "unpacked": lambda x: next(iter(x.addressable_shards)).data,
}


@pytest.mark.parametrize("name", COPIES)
def test_what_is_a_copy_in_numpy_is_not_changed(name):
    def body() -> None:
        x = put(np.arange(8.0), "i")
        with mnp.writeable():
            y = COPIES[name](x)
            known = np.asarray(y).copy()
            x[:] = -5
            np.testing.assert_array_equal(y, known)
            x = put(np.arange(8.0), "i")
            y = COPIES[name](x)
            y[:] = -5
            np.testing.assert_array_equal(x, np.arange(8.0))

    alone(body)


def test_functions_that_change_an_array_may_do_so() -> None:
    def body() -> None:
        x, square = put(GRID, "i", "j"), put(GRID[:4], "i")
        before = x.copy()
        places = np.array([[2], [0], [1], [3]] * 2)
        with mnp.writeable():
            mnp.put_along_axis(x, places, -1.0, 1)
            mnp.fill_diagonal(square, 9.0)
            mnp.put(square, [1], 7.0)
            mnp.place(square, square > 12, 0.0)
        known, known_square = GRID.copy(), GRID[:4].copy()
        np.put_along_axis(known, places, -1.0, 1)
        np.fill_diagonal(known_square, 9.0)
        np.put(known_square, [1], 7.0)
        np.place(known_square, known_square > 12, 0.0)
        np.testing.assert_array_equal(x, known)
        np.testing.assert_array_equal(square, known_square)
        np.testing.assert_array_equal(before, GRID)
        with pytest.raises(ArgumentError, match="put_along_axis: arrays are immutable"):
            mnp.put_along_axis(x, places, -1.0, 1)

    alone(body)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        *(
            (0, 7),
            (-1, 2.9),
            (slice(1, 20, 3), [1, 2]),
            ([3, 4], 5),
            (slice(None), [[1, 2], [3, 4]]),
        ),
        (GRID.ravel() % 3 == 0, [9, 8]),
    ],
)
def test_flat_writes_into_the_array(index, value):
    def body() -> None:
        wanted, ours = GRID.astype(int), put(GRID.astype(int), "i", "j")
        sharding, wanted.flat[index] = ours.sharding, value
        with mnp.writeable():
            ours.flat[index] = value
            np.testing.assert_array_equal(ours, wanted)
            np.testing.assert_array_equal(ours.flat, wanted.ravel())
        assert ours.sharding == sharding
        with pytest.raises(ArgumentError, match="immutable"):
            ours.flat[index] = value

    alone(body)
