"""A mapped function gives what a Python loop over the examples gives, stacked.

For every public array function, whatever dims number the examples; mapped twice, jitted, and with
examples split over devices, which stay where they are. By default a sample of the functions is
tried, the same in every run; the profile "thorough" tries all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, ConcretizationError, ShapeError
from meshard.sharding import NamedSharding, P
from meshard.transforms.batching.vmap import vmap
from tests.public_functions import Public, public_functions
from tests.worlds import mesh, whole

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
PUBLIC = [f for f in public_functions() if ALL or crc32(f.name.encode()) % 3 == 1]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZE = 3
TRIMMED = {"numpy.polydiv"}
"""Functions that leave out leading zeros where values are known, as a loop knows them."""
DEPENDS = "unique set union1d intersect1d nonzero argwhere trim_zeros"
"""Words in the names of functions whose results' shapes depend on values."""


def examples(f: Public) -> list[list[Any]]:
    """Return the arguments of each example."""
    return [[x * (1 + 0.02 * k) + 0.01 * k for x in f.values] for k in range(SIZE)]


def looped(f: Public, given: Sequence[Sequence[Any]], out_axes: int = 0) -> list[Any]:
    """Return what a loop over the examples gives."""
    rows = [[whole(y) for y in f.function(*map(mnp.asarray, own))] for own in given]
    return [np.stack(column, out_axes) for column in zip(*rows, strict=True)]


def close(found: Sequence[Any], expected: Sequence[Any], what: str) -> list[str]:
    """Return in what results differ."""
    wrong = []
    for a, b in zip(map(whole, found), expected, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            wrong.append(f"{what}: {a.dtype}{a.shape}, a loop gives {b.dtype}{b.shape}")
        elif not np.allclose(a.astype(b.dtype), b, 1e-9, 1e-11, equal_nan=True):
            wrong.append(f"{what}: {a}, a loop gives {b}")
    return wrong


def faults(f: Public) -> list[str]:
    """Return what is wrong with a mapped function."""
    given = examples(f)
    try:
        expected = looped(f, given)
        if not expected:
            return []
        stacked = [np.stack(column) for column in zip(*given, strict=True)]
        arrays = [mnp.asarray(x) for x in stacked]
        wrong = close(vmap(f.function)(*arrays), expected, f.name)
        if ALL or crc32(f.name.encode()) % 2:
            wrong += close(meshard.jit(vmap(f.function))(*arrays), expected, f"jit of {f.name}")
        return wrong + around(f, stacked, given)
    except ConcretizationError:
        return [] if any(w in f.name for w in DEPENDS.split()) else [f"{f.name} needs values"]
    except Exception as error:
        return [f"{f.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"]


def around(f: Public, stacked: list[Any], given: list[list[Any]]) -> list[str]:
    """Return what is wrong where dims differ: shared arguments, last dims, and two dims at once."""
    rng = np.random.default_rng(crc32(f.name.encode()))
    chosen: list[Any] = [rng.choice([0, -1, None]) for _ in stacked]
    chosen[rng.integers(len(chosen))] = -1
    own = [
        [x if a is not None else first for x, a, first in zip(row, chosen, given[0], strict=True)]
        for row in given
    ]
    arrays = [
        mnp.asarray(first if a is None else np.moveaxis(x, 0, a))
        for x, a, first in zip(stacked, chosen, given[0], strict=True)
    ]
    mapped = vmap(f.function, in_axes=tuple(chosen), out_axes=-1)(*arrays)
    wrong = close(mapped, looped(f, own, -1), f"{f.name} over {chosen}")
    if ALL or crc32(f.name.encode()) % 5 == 0:
        twice = vmap(vmap(f.function))(*[mnp.asarray(np.stack([x, x])) for x in stacked])
        rows = [np.stack([y, y]) for y in looped(f, given)]
        wrong += close(twice, rows, f"{f.name} mapped twice")
    return wrong


def test_a_mapped_function_is_a_loop() -> None:
    with np.errstate(all="ignore"):
        own = [f for f in PUBLIC if f.name not in TRIMMED]
        assert [fault for f in own for fault in faults(f)] == []


def test_examples_stay_where_they_are() -> None:
    """Elementwise functions, products, reductions and sorts keep the dim of examples split."""
    on = mesh()
    x = meshard.device_put(
        np.random.default_rng(0).normal(size=(8, 4, 4)), NamedSharding(on, P("i"))
    )
    functions = [
        mnp.sin, lambda y: y @ y, mnp.sum, lambda y: mnp.sort(y, 0), mnp.linalg.inv,
        lambda y: mnp.cumsum(y, 1), lambda y: y[::2, 1], lambda y: mnp.concatenate([y, y]),
        lambda y: y.reshape(2, 8), lambda y: mnp.roll(y, 1, 0), mnp.argmax, lambda y: y.T,
        lambda y: y[np.array([0, 0, 3])], lambda y: y.at[0].add(1.0), mnp.linalg.qr,
        lambda y: mnp.fft.fft(y).real, lambda y: mnp.einsum("ii->i", y), mnp.linalg.norm,
        lambda y: lax.scan(lambda c, r: (c + r, c * r), y[0], y)[1], meshard.nn.softmax,
    ]  # fmt: skip
    for number, f in enumerate(functions):
        for mapped in (vmap(f), meshard.jit(vmap(f))):
            for y in meshard.tree.leaves(mapped(x)):
                assert y.sharding.spec[:1] == ("i",), (number, y.sharding)


def test_sizes_of_none_and_one() -> None:
    for size, f in itertools.product(
        (0, 1), (mnp.sum, mnp.sin, mnp.linalg.det, mnp.sort, mnp.argmin)
    ):
        x = np.random.default_rng(0).normal(size=(size, 3, 3))
        found = whole(vmap(f)(mnp.asarray(x)))
        one = whole(f(mnp.asarray(np.eye(3))))
        assert (found.shape, found.dtype) == ((size, *one.shape), one.dtype)
        if size:
            np.testing.assert_allclose(found[0], whole(f(mnp.asarray(x[0]))))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: vmap(mnp.sin, in_axes="x")(x), ArgumentError, "in_axes"),
        (lambda x: vmap(mnp.sin, in_axes=1.5)(x), ArgumentError, "in_axes"),
        (lambda x: vmap(mnp.sin, in_axes=(0, 0))(x), ArgumentError, "2 entries"),
        (lambda x: vmap(mnp.sin, in_axes=5)(x), ShapeError, "axis 5"),
        (lambda x: vmap(mnp.sin, in_axes=None)(x), ArgumentError, "at least one"),
        (lambda x: vmap(mnp.sin, out_axes=7)(x), ShapeError, "out_axes is 7"),
        (lambda x: vmap(mnp.sin, out_axes=None)(x), ShapeError, "out_axes is None"),
        (lambda x: vmap(mnp.add)(x, x[:2]), ShapeError, "inconsistent sizes"),
        (lambda x: vmap(lambda y: y if y[0] > 0 else -y)(x), ConcretizationError, "if"),
        (lambda x: vmap(mnp.sin)(), ArgumentError, "at least one"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(mnp.ones((3, 2)))


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        for each in public_functions():
            for fault in faults(each):
                print(fault, flush=True)
