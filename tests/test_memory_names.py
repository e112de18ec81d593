"""What is asked of an array's memory, as NumPy's arrays are asked: flags, views, orders."""

from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError, ShapeError
from tests.lays import fetched, same
from tests.worlds import alone, everywhere, put, whole

VALUE = np.random.default_rng(0).normal(size=(6, 4))


@pytest.mark.parametrize("dtype", ["f8", "i8", "i4", "f4", "u1", "c16", "c8"])
def test_views_are_numpy_s(dtype: str) -> None:
    def body() -> Any:
        x = put(VALUE, "i", "j", uneven="balanced")
        return [whole(x.view(dtype)), whole(meshard.jit(lambda v: v.view(dtype))(x))]

    for found in everywhere(body):
        same(found, VALUE.view(dtype))


def test_views_of_bools_are_bytes() -> None:
    value = VALUE > 0

    def body() -> Any:
        x = put(value, "i", uneven="balanced")
        return whole(x.view("u1")), whole(x.view("u1").view(bool)), whole(x.view())

    found = everywhere(body)
    same(found, (value.view("u1"), value, value))


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (0, 4)])
def test_flags_are_those_of_what_numpy_makes_of_it(shape: tuple[int, ...]) -> None:
    found = alone(lambda: mnp.zeros(shape).flags)
    expected = np.zeros(shape).flags
    for name in ("c_contiguous", "f_contiguous", "aligned", "owndata", "writebackifcopy"):
        assert getattr(found, name) == getattr(expected, name), name
        assert found[name.upper()] == expected[name.upper()]
    assert (found.writeable, found["W"], found["C"]) == (False, False, True)
    assert repr(found).splitlines()[3] == "  WRITEABLE : False"
    assert found == alone(lambda: mnp.ones(shape).flags)


def test_flags_of_traced_values() -> None:
    seen = []
    alone(lambda: meshard.jit(lambda x: seen.append(x.flags.writeable) or x)(mnp.ones(3)))
    assert seen == [False]


ORDERED: dict[str, Any] = {
    "array": lambda order: mnp.array([[1]], order=order),
    "asarray": lambda order: mnp.asarray([[1]], order=order),
    "copy": lambda order: mnp.copy(mnp.ones((1, 1), int), order=order),
    "x.copy": lambda order: mnp.ones((1, 1), int).copy(order),
    "zeros": lambda order: mnp.zeros((1, 1), int, order=order) + 1,
    "ones": lambda order: mnp.ones((1, 1), int, order=order),
    "empty": lambda order: mnp.empty((1, 1), int, order=order) * 0 + 1,
    "full": lambda order: mnp.full((1, 1), 1, order=order),
    "eye": lambda order: mnp.eye(1, dtype=int, order=order),
    "zeros_like": lambda order: mnp.zeros_like(mnp.ones((1, 1), int), order=order) + 1,
    "ones_like": lambda order: mnp.ones_like(mnp.ones((1, 1), int), order=order),
    "empty_like": lambda order: mnp.empty_like(mnp.ones((1, 1), int), order=order) * 0 + 1,
    "full_like": lambda order: mnp.full_like(mnp.ones((1, 1), int), 1, order=order),
}


@pytest.mark.parametrize("name", ORDERED)
def test_orders_that_every_array_has_are_taken(name: str) -> None:
    def body() -> None:
        for order in (None, "C", "K", "A"):
            assert ORDERED[name](order).tolist() == [[1]]
        with pytest.raises(ArgumentError, match=r"order='F' asks for .* np\.asfortranarray"):
            ORDERED[name]("F")
        with pytest.raises(ArgumentError, match="order must be 'C', 'A', 'K' or 'F', got 'q'"):
            ORDERED[name]("q")

    alone(body)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda x: x[:, :3].view("c16"),
            ShapeError,
            r"view: elements of shape \(6, 3\) of float64",
        ),
        (lambda x: mnp.ones(()).view("f4"), ShapeError, r"view: elements of shape \(\) of float64"),
        (lambda x: setattr(x.flags, "writeable", True), ArgumentError, "flags.writeable cannot be"),
        (lambda x: x.flags["Q"], KeyError, "'Q' is not one of NumPy's"),
        (lambda x: x.flags.writable, AttributeError, "writable"),
        (lambda x: mnp.i0(x + 1j), DtypeError, "i0: takes real numbers, not complex128"),
    ],
)
def test_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        alone(lambda: call(mnp.asarray(VALUE)))


A, B = np.array([5, 1, 3, 3, 9, 1]), np.array([3, 7, 1, 1, 8])


@pytest.mark.parametrize("size", [None, 1, 4])
def test_places_of_what_is_in_both(size: int | None, jax: Any) -> None:
    def body() -> Any:
        x, y = put(A, "i", uneven="balanced"), put(B, "j", uneven="balanced")
        return fetched(mnp.intersect1d(x, y, return_indices=True, size=size))

    expected = jax.numpy.intersect1d(A, B, return_indices=True, size=size)
    for a, b in zip(everywhere(body), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_of_nothing_nothing_is_in_both() -> None:
    found = alone(lambda: fetched(mnp.intersect1d(A, B[:0], return_indices=True)))
    assert [v.shape for v in found] == [(0,)] * 3
