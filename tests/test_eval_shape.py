"""eval_shape: the types of results, without computing them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, random
from meshard.errors import ConcretizationError, DtypeError, MeshardError, ShapeError
from meshard.ops.row import REGISTRY, Op
from meshard.sharding import P
from tests.worlds import alone, everywhere, in_worlds, mesh, put

Struct = meshard.ShapeDtypeStruct


def types(tree: Any) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    return [(x.shape, x.dtype) for x in meshard.tree.leaves(tree)]


def test_structs_arrays_numbers_and_trees() -> None:
    def run() -> str:
        found = meshard.eval_shape(
            lambda t, n, *, k: {"a": t["x"] @ t["y"] + k, "n": (n, None, 7), "s": t["x"].sum() * n},
            {"x": Struct((2, 3), "float32"), "y": np.ones((3, 4), np.float32)},
            3,
            k=put(np.ones(4, np.float32), "i"),
        )
        assert found["n"][1] is None
        return str(found)

    assert everywhere(run) == (
        "{'a': ShapeDtypeStruct(shape=(2, 4), dtype=float32), "
        "'n': (ShapeDtypeStruct(shape=(), dtype=int64), None, "
        "ShapeDtypeStruct(shape=(), dtype=int64)), "
        "'s': ShapeDtypeStruct(shape=(), dtype=float32)}"
    )


@in_worlds
def test_no_kernel_runs_and_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(np.ones((8, 8)), "i", "j")
    y = put(np.ones((8, 8)), None, ("i", "j"))
    with meshard.debug.ledger() as log:
        found = meshard.eval_shape(lambda a, b: mnp.sort((a @ b).sum(axis=0) + y[0]), x, y)
    assert (found.shape, found.dtype) == ((8,), np.float64)
    assert log.total_bytes == 0
    giant = Struct((1 << 20, 1 << 20), "float64")
    assert meshard.eval_shape(lambda a: a @ a.T + 1, giant).shape == giant.shape


def test_numbers_are_weak() -> None:
    def run() -> list[str]:
        x = Struct((3,), "float32")
        return [
            meshard.eval_shape(f, x, 2.0).dtype.name
            for f in (lambda a, n: a * n, lambda a, n: n * 2, lambda a, n: a + mnp.asarray(n))
        ]

    assert alone(run)[:2] == ["float32", "float64"]


def test_control_flow() -> None:
    def program(x: Any, n: Any) -> Any:
        return {
            "cond": lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v, x),
            "switch": lax.switch(n, [lambda: x, lambda: x + 1]),
            "while": lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, x)),
            "fori": lax.fori_loop(0, n, lambda i, c: c + i, 0),
            "weak": lax.fori_loop(0, 3, lambda i, c: c + x[0], 0.0),
            "scan": lax.scan(lambda c, y: (c + y, (c, y > 0)), 0.0, x),
            "long": lax.scan(lambda c, _: (c + 1, c), 0, None, length=10**9),
            "map": lax.map(lambda y: mnp.ones(3) * y, x),
            "nested": lax.map(
                lambda y: lax.while_loop(
                    lambda c: c < y, lambda c: lax.cond(c > 1, lambda d: d + 1, lambda d: d, c), y
                ),
                x,
            ),
        }

    def run() -> list[Any]:
        found = []
        for x in (Struct((8,), "float32"), put(np.ones(8, np.float32), "i")):
            found.append(types(meshard.eval_shape(program, x, np.int64(3))))
        return found

    f4, i8 = np.dtype(np.float32), np.dtype(np.int64)
    expected = [
        ((8,), f4),
        ((), i8),
        ((), i8),
        ((10**9,), i8),
        ((8, 3), np.dtype(np.float64)),
        ((8,), f4),
        ((), f4),
        ((8,), f4),
        ((8,), np.dtype(bool)),
        ((8,), f4),
        ((), f4),
        ((), i8),
        ((8,), f4),
    ]
    assert everywhere(run) == [expected, expected]


def test_shard_map() -> None:
    def run() -> list[Any]:
        closed = put(np.ones((8, 8)), "i", "j")

        def body(v: Any) -> Any:
            with pytest.raises(ConcretizationError):
                bool(v.sum() > 0)
            w = lax.cond(lax.axis_index("i") > 0, lambda u: u, lambda u: u * 2, v)
            return lax.all_gather(w, "i", tiled=True) @ closed, lax.psum(w.sum(), ("i",))

        whole = meshard.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=(P("i", None), P()))
        part = meshard.shard_map(
            body, mesh=mesh(), in_specs=P("i"), out_specs=(P("i"), P()), axis_names={"i"}
        )
        args = [Struct((8, 8), "float32"), put(np.ones((8, 8)), "j", "i")]
        return [types(meshard.eval_shape(f, a)) for f in (whole, part) for a in args]

    f4, f8 = np.dtype(np.float32), np.dtype(np.float64)
    single, double = [((32, 8), f8), ((), f4)], [((32, 8), f8), ((), f8)]
    assert everywhere(run) == [single, double, single, double]


@pytest.mark.parametrize(
    "look",
    [
        lambda x: int(x.sum()),
        lambda x: 1 if x[0] > 0 else 2,
        lambda x: np.asarray(x),
        lambda x: x.tolist(),
        lambda x: mnp.ones(3)[: x[0].astype(int)],
        lambda x: x[x > 0],
        lambda x: range(x[0].astype(int)),
        mnp.unique,
        mnp.nonzero,
    ],
)
def test_looking_at_values_is_refused(look: Callable[[Any], Any]) -> None:
    with pytest.raises(ConcretizationError, match=r"float64\[4\]|float64\[\]|int64\[\]|bool\["):
        alone(lambda: meshard.eval_shape(look, Struct((4,), "float64")))


def test_refusals() -> None:
    with pytest.raises(DtypeError, match=re.escape("'a' of type str is not an array")):
        alone(lambda: meshard.eval_shape(lambda x: x, "a"))
    with pytest.raises(ShapeError, match="matmul"):
        alone(lambda: meshard.eval_shape(mnp.matmul, Struct((2, 3), float), Struct((4, 5), float)))


def test_the_message_offers_control_flow() -> None:
    with pytest.raises(ConcretizationError, match=r"evaluated abstractly.*use lax\.cond or lax\.w"):
        alone(lambda: meshard.eval_shape(lambda x: bool(x), Struct((), "float64")))


# all of meshard.numpy

NOT_ARRAYS = {"finfo", "from_dlpack", "iinfo", "promote_types", "result_type"}
VALUES = {
    # their results' shapes depend on values
    *("argwhere", "bincount", "choose", "compress", "delete", "extract", "flatnonzero"),
    *("intersect1d", "mask_indices", "resize", "roots", "trim_zeros"),
    *("nonzero", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all", "unique_counts"),
    *("unique_inverse", "unique_values", "where"),
    # they take numbers where these tests pass arrays
    *("argpartition", "array_split", "broadcast_shapes", "empty", "geomspace", "hsplit"),
    *("indices", "ones", "partition", "repeat", "roll", "split", "tile", "zeros"),
}
TRIMMED = {"poly", "polydiv", "polymul"}
"""Of known values these trim zeros, or tell that imaginary parts are zero."""


def test_the_whole_of_numpy() -> None:
    """The types are those of the results, or values are looked at by a function that must."""

    def run() -> list[str]:
        square = put(np.arange(16.0).reshape(4, 4) / 17 + np.eye(4), "i", "j")
        vector, whole = put(np.arange(8.0) / 9, "i"), put(np.arange(8) % 3, "i")
        wrong, count = [], 0
        for name in mnp.__all__:
            f = getattr(mnp, name)
            if not callable(f) or isinstance(f, type) or name in NOT_ARRAYS:
                continue
            for args in [(vector,), (square,), (whole,), (vector, whole), (square, square)]:
                try:
                    with np.errstate(all="ignore"):
                        real = types(meshard.tree.map(mnp.asarray, f(*args)))
                except Exception:  # not a function of these
                    continue
                count += 1
                try:
                    found = types(meshard.eval_shape(f, *args))
                except MeshardError as error:
                    if name not in VALUES:
                        wrong.append(f"{name}: {error}")
                    continue
                if found != real and name not in TRIMMED:
                    wrong.append(f"{name}: {found} instead of {real}")
        assert count > 300
        return wrong

    assert alone(run) == []


@pytest.mark.parametrize("rank", [1, 2])
def test_what_jax_says(rank: int, jax: Any) -> None:
    """Shapes agree with jax.eval_shape; dtypes are NumPy's, and may not."""
    shape = (4,) * rank

    def ours() -> dict[str, Any]:
        found = {}
        for name in mnp.__all__:
            f = getattr(mnp, name)
            if not callable(f) or isinstance(f, type) or name in NOT_ARRAYS:
                continue
            for count in (1, 2):
                try:
                    tree = meshard.eval_shape(f, *[Struct(shape, "float64")] * count)
                    found[f"{name} of {count}"] = [s for s, _ in types(tree)]
                except Exception:  # not a function of these
                    continue
        return found

    found = alone(ours)

    def theirs(x: Any) -> dict[str, Any]:  # all in one: JAX dies of many that are refused
        results = {}
        for told in found:
            name, count = told.split(" of ")
            try:
                tree = getattr(jax.numpy, name)(*[x] * int(count))
                results[told] = [jax.numpy.asarray(y) for y in jax.tree.leaves(tree)]
            except Exception:  # JAX takes less
                continue
        return results

    with jax.enable_x64(True):
        expected = jax.eval_shape(theirs, jax.ShapeDtypeStruct(shape, np.float64))
    assert len(expected) > 120
    for told, tree in expected.items():
        assert found[told] == [x.shape for x in tree], told


def test_keys() -> None:
    def draw(key: Any) -> Any:
        key, sub = random.split(key)
        return lax.scan(
            lambda k, _: (random.split(k)[0], random.normal(k)), key, None, length=4
        ), sub

    found = alone(lambda: str(meshard.eval_shape(draw, random.key(0))))
    assert found == (
        "((ShapeDtypeStruct(shape=(), dtype=key<philox>), "
        "ShapeDtypeStruct(shape=(4,), dtype=float64)), "
        "ShapeDtypeStruct(shape=(), dtype=key<philox>))"
    )


def test_rows_that_take_numbers_first() -> None:
    """A number as the only operand, or the first one, is an array where one is needed."""
    assert isinstance(REGISTRY["add"], Op)

    def run() -> list[Any]:
        return types(
            [
                meshard.eval_shape(lambda: mnp.sin(2)),
                meshard.eval_shape(lambda: mnp.add(1, 2.5)),
                meshard.eval_shape(lambda n: 1 / n, 2),
                meshard.eval_shape(lambda: mnp.arange(5)),
            ]
        )

    f8 = np.dtype(np.float64)
    assert alone(run) == [((), f8), ((), f8), ((), f8), ((5,), np.dtype(np.int64))]
