"""Arguments are what their annotations say, or are refused with the function and the argument."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.algebra.arguments import described
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DtypeError,
    OutOfRangeError,
    ShapeError,
)
from meshard.ops.checked import DtypeLike, checked


@checked(size="Give one number.")
def example(
    x: Any,
    axis: int | Sequence[int] | None = None,
    size: int = 1,
    *,
    keepdims: bool = False,
    factor: float = 1.0,
    mode: str | None = None,
    pair: tuple[int, int] = (0, 1),
    pairs: Sequence[tuple[int, int]] = (),
    dtype: DtypeLike = None,
    f: Callable[..., Any] = print,
) -> dict[str, Any]:
    """Return what the function sees."""
    return {k: v for k, v in locals().items() if k != "x"}


@pytest.mark.parametrize(
    ("name", "given", "seen"),
    [
        ("axis", np.int8(2), 2),
        ("axis", [0, np.array(1)], (0, 1)),
        ("axis", range(2), (0, 1)),
        ("axis", None, None),
        ("size", mnp.asarray(3), 3),
        ("keepdims", np.True_, True),
        ("keepdims", 1, True),
        ("factor", 2, 2),
        ("mode", "x", "x"),
        ("pair", [1, 0], (1, 0)),
        ("pairs", np.array([[0, 1], [1, 0]]), ((0, 1), (1, 0))),
        ("dtype", "int8", np.dtype("int8")),
        ("f", len, len),
    ],
)
def test_what_is_allowed_arrives_as_plain_python(name: str, given: Any, seen: Any) -> None:
    assert example(0, **{name: given})[name] == seen


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("name", "given", "kind", "message"),
    [
        (
            "axis",
            1.5,
            ArgumentError,
            "an integer, a sequence of integers or None, got 1.5 of type float.",
        ),
        ("axis", LOOP, ArgumentError, "got [[...]] of type list."),
        ("axis", True, ArgumentError, "got True of type bool."),
        ("axis", "x", ArgumentError, "got 'x' of type str."),
        ("axis", {0}, ArgumentError, "got {0} of type set."),
        ("size", mnp.ones((2, 3)), ArgumentError, "got an array float64[2,3]. Give one number."),
        ("size", 10**30, OutOfRangeError, "must fit into 64 bits"),
        ("axis", [10**30], OutOfRangeError, "must fit into 64 bits"),
        ("keepdims", "x", ArgumentError, "keepdims must be True or False, got 'x' of type str."),
        ("keepdims", 2, ArgumentError, "got 2 of type int."),
        ("factor", 1j, ArgumentError, "factor must be a real number, got 1j of type complex."),
        ("factor", "1", ArgumentError, "factor must be a real number, got '1' of type str."),
        ("factor", 10**400, OutOfRangeError, "factor must fit into a float"),
        (
            "mode",
            3,
            ArgumentError,
            "mode must be a string or None, got 3 of type int.",
        ),
        (
            "pair",
            (0, 1, 2),
            ArgumentError,
            "pair must be a pair of integers, got (0, 1, 2) of type tuple.",
        ),
        (
            "pairs",
            {0: 1},
            ArgumentError,
            "a sequence of pairs of integers, got {0: 1} of type dict.",
        ),
        ("dtype", "f12", DtypeError, "dtype: 'f12' is not a dtype."),
        ("dtype", mnp.ones(2), DtypeError, "an array float64[2] is not a dtype."),
        ("f", 3, ArgumentError, "f must be a function, got 3 of type int."),
    ],
)
def test_what_is_refused_names_the_argument(
    name: str, given: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        example(0, **{name: given})
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"example: {name}")
    assert message in str(caught.value)
    if name == "size":
        with pytest.raises(kind):
            example(0, None, given)


def test_values_of_a_transformation_are_left_to_the_function() -> None:
    def f(k: Any) -> Any:
        assert example(0, size=k)["size"] is k
        with pytest.raises(ConcretizationError):
            example(0, keepdims=k)
        return k

    meshard.jit(f)(3)


def test_integers_that_do_not_fit_are_overflows_as_in_numpy() -> None:
    x = mnp.arange(3)
    for call in (
        lambda: x + 10**30,
        lambda: meshard.jit(lambda a: a + 10**30)(x),
        lambda: mnp.asarray(10**30),
        lambda: mnp.full(2, 300, "int8"),
        lambda: mnp.sum(x, axis=10**30),
    ):
        with pytest.raises(OverflowError) as caught:
            call()
        assert type(caught.value) is OutOfRangeError


def test_arrays_of_more_bytes_than_can_be_counted_are_refused() -> None:
    for shape in ((2**40, 2**40), (2**62,)):
        with pytest.raises(ShapeError, match=r"an array has fewer than 2\*\*63"):
            mnp.zeros(shape)


def test_advice_on_common_mistakes() -> None:
    x = mnp.ones((2, 2))
    with pytest.raises(ArgumentError, match=r"one argument, a sequence: concatenate\(\[a, b\]\)"):
        mnp.concatenate(x, x)
    with pytest.raises(DtypeError, match=r"zeros: dtype: 4 is not .* one argument, as in zeros"):
        mnp.zeros(3, 4)
    with pytest.raises(
        ArgumentError, match=r"ppermute: perm .* got \{0: 1\} of type dict\. .* as a list"
    ):
        meshard.lax.ppermute(x, "x", {0: 1})


def test_annotations_are_read_alike_whether_they_are_texts_or_types() -> None:
    def written(axis: int | Sequence[int] | None = None, flag: bool = False) -> None: ...

    evaluated = FunctionType(written.__code__, globals(), "written", written.__defaults__)
    evaluated.__annotations__ = typing.get_type_hints(written)
    for function in map(checked, (written, evaluated)):
        for given in ({"axis": "x"}, {"flag": 2}):
            with pytest.raises(
                ArgumentError, match=r"written: \w+ must be .*, got ('x'|2) of type"
            ):
                function(**given)


def test_any_value_can_be_described() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    deep: list[Any] = []
    for _ in range(20_000):  # since Python 3.14 it can be printed
        deep = [deep]
    assert len(described(deep)) <= 80
    assert described(Broken()) == "a Broken that cannot be printed"
    assert described(np.ones((2, 3))) == "a NumPy array of shape (2, 3) and dtype float64"
    assert described(None) == "None"
    assert len(described("x" * 1000)) <= 80
