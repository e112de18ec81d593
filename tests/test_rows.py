"""Rows that positions name: the bits are NumPy's, the layout is that of the positions, and just
the rows that a device lacks move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.debug import ledger
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, everywhere, in_processes, mesh, put, whole

UFUNCS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "multiply": np.multiply,
}
Case = dict[str, Any]


def laid(value: np.ndarray, spec: tuple[Any, ...], uneven: Any = "balanced") -> Any:
    return meshard.device_put(value, NamedSharding(mesh(), P(*spec), uneven=uneven))


@st.composite
def specs(draw: st.DrawFn, ndim: int) -> tuple[Any, ...]:
    """Draw a spec that uses each axis at most once."""
    free = ["i", "j"]
    found: list[Any] = []
    for _ in range(ndim):
        axes = draw(st.lists(st.sampled_from(free), unique=True, max_size=2)) if free else []
        free = [a for a in free if a not in axes]
        found.append(tuple(axes) if axes else None)
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 11), min_size=ndim, max_size=ndim)))
    dims = draw(st.lists(st.sampled_from(range(ndim)), unique=True, min_size=1))
    common = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    index: list[Any] = [slice(None)] * ndim
    for d in dims:
        narrow = tuple(1 if draw(st.booleans()) else n for n in common)
        index[d] = rng.integers(-shape[d], shape[d], size=narrow if d != dims[0] else common)
    return {
        "x": (rng.normal(size=shape) * 8).astype(draw(st.sampled_from(["f4", "f8", "i2"]))),
        "spec": draw(specs(ndim)),
        "index": index,
        "places": None if draw(st.booleans()) else draw(specs(len(common))),
        "values": draw(st.sampled_from([None, (), ("i",), ("j",), (("j", "i"),)])),
        "how": draw(st.sampled_from(["set", *UFUNCS])),
        "uneven": draw(st.sampled_from(["balanced", "ceil"])),
    }


def index_of(case: Case) -> tuple[Any, ...]:
    spec = case["places"]
    if spec is None:
        return tuple(case["index"])
    return tuple(e if isinstance(e, slice) else laid(e, spec) for e in case["index"])


def traced_index(case: Case, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index whose positions are those given."""
    left = iter(given)
    return tuple(e if isinstance(e, slice) else next(left) for e in case["index"])


def lacking(x: Any, wanted: np.ndarray, y: Any) -> dict[int, int]:
    """Return the bytes that each device needs for its part of a result, and does not have.

    Args:
        x: the array.
        wanted: for each element of the result the number of the element of the array.
        y: the result.
    """
    numbers = np.arange(x.size).reshape(x.shape)
    has = {d.id: numbers[i] for d, i in x.sharding.devices_indices_map(x.shape).items()}
    needs = {d.id: wanted[i] for d, i in y.sharding.devices_indices_map(y.shape).items()}
    found = {d: len(np.setdiff1d(n, has[d])) * x.dtype.itemsize for d, n in needs.items()}
    return {d: n for d, n in found.items() if n}


@settings(max_examples=50, deadline=None)
@given(cases())
def test_rows_that_are_looked_up(case: Case) -> None:
    numbers = np.arange(case["x"].size).reshape(case["x"].shape)[tuple(case["index"])]

    def body() -> Any:
        x = laid(case["x"], case["spec"], case["uneven"])
        index = index_of(case)
        with ledger() as log:
            y = x[index]
        moved = [r for r in log if r.kind == "all-to-all" and r.array == x.aval.str_short()]
        if moved and all(r.what in ("gather", "min", "max") for r in log):
            rows = {d: n for d, n in moved[0].received.items() if n}
            assert rows == lacking(x, numbers, y)
        lookup = meshard.jit(lambda x, *p: x[traced_index(case, p)])
        z = lookup(x, *[e for e in index if not isinstance(e, slice)])
        return whole(y), whole(z), log.received, str(y.sharding.spec)

    found, jitted, *_ = in_processes(body, (2, 4))
    expected = case["x"][tuple(case["index"])]
    assert found.shape == jitted.shape == expected.shape
    assert found.tobytes() == jitted.tobytes() == expected.tobytes()


@settings(max_examples=50, deadline=None)
@given(cases())
def test_rows_that_are_changed(case: Case) -> None:
    expected, index = case["x"].copy(), tuple(case["index"])
    shape = () if case["values"] is None else expected[index].shape
    values = (np.random.default_rng(5).normal(size=shape) * 8).astype(expected.dtype)
    if case["how"] == "set":
        expected[index] = values
    else:
        UFUNCS[case["how"]].at(expected, index, values)

    def body() -> Any:
        x = laid(case["x"], case["spec"], case["uneven"])
        given = laid(values, case["values"]) if values.ndim else values
        places = index_of(case)

        def change(x: Any, v: Any, *p: Any) -> Any:
            return getattr(x.at[traced_index(case, p)], case["how"])(v)

        with ledger() as log:
            y = getattr(x.at[places], case["how"])(given)
        z = meshard.jit(change)(x, given, *[e for e in places if not isinstance(e, slice)])
        assert y.sharding == x.sharding
        return whole(y), whole(z), log.received

    found, jitted, _ = in_processes(body, (2, 4))
    assert found.tobytes() == expected.tobytes()
    assert jitted.tobytes() == expected.tobytes()


@st.composite
def lines(draw: st.DrawFn) -> Case:
    ndim = draw(st.integers(1, 3))
    shape = draw(st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim))
    dim = draw(st.integers(0, ndim - 1))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    narrow = [1 if draw(st.integers(0, 4)) == 0 else n for n in shape]
    narrow[dim] = draw(st.integers(0, 12))
    if draw(st.integers(0, 4)) == 0:
        other = draw(st.integers(0, ndim - 1))
        shape[other] = shape[other] if other == dim else 1
    return {
        "x": rng.normal(size=shape),
        "dim": dim,
        "places": rng.integers(-shape[dim] - 2, shape[dim] + 2, size=narrow),
        "spec": draw(specs(ndim)),
        "of_places": draw(st.none() | specs(ndim)),
        "mode": draw(st.sampled_from([None, "clip", "fill"])),
    }


@settings(max_examples=50, deadline=None)
@given(lines())
def test_elements_along_a_dim(case: Case) -> None:
    dim, x, places = case["dim"], case["x"], case["places"]
    size = x.shape[dim]
    if case["mode"] is None:
        places = places.clip(-size, size - 1)
    counted = np.where(places < 0, places + size, places)
    shape = [
        n if d == dim else max(n, m)
        for d, (n, m) in enumerate(zip(places.shape, x.shape, strict=True))
    ]
    own = np.broadcast_to(counted, shape)
    source = np.broadcast_to(x, [size if d == dim else n for d, n in enumerate(shape)])
    expected = np.take_along_axis(source, own.clip(0, size - 1), dim)
    if case["mode"] == "fill":
        expected = np.where((own < 0) | (own >= size), np.nan, expected)

    def body() -> Any:
        spec = case["of_places"]
        given = places if spec is None else laid(places, spec)
        along = lambda x, p: mnp.take_along_axis(x, p, dim, mode=case["mode"])  # noqa: E731
        with ledger() as log:
            y = along(laid(x, case["spec"]), given)
        z = meshard.jit(along)(laid(x, case["spec"]), given)
        return whole(y), whole(z), log.received

    found, jitted, _ = in_processes(body, (2, 4))
    assert found.tobytes() == expected.tobytes()
    assert jitted.tobytes() == expected.tobytes()


X = np.random.default_rng(1).normal(size=(21, 6))
TOKENS = np.random.default_rng(2).integers(0, 21, size=(8, 5))


@pytest.mark.parametrize("spec", [("i",), ("j",), (("i", "j"),), (None, "j"), ("j", "i")])
def test_a_gradient_of_rows_is_laid_out_like_the_array(spec: tuple[Any, ...]) -> None:
    weights = np.random.default_rng(3).normal(size=(8, 5, 6))
    expected = np.zeros_like(X)
    np.add.at(expected, TOKENS, weights)

    def body() -> Any:
        table, tokens = laid(X, spec), put(TOKENS, "i")
        loss = meshard.grad(lambda t, w: (t[tokens] * w).sum())
        jitted = meshard.jit(meshard.grad(lambda t, k, w: (t[k] * w).sum()))
        with ledger() as log:
            one = loss(table, weights)
        two = jitted(table, tokens, weights)
        assert one.sharding == two.sharding == table.sharding
        if spec[0] is not None:
            assert not [
                r for r in log if r.kind == "all-gather" and r.array.startswith("float64[21")
            ]
        return whole(one), whole(two)

    for found in in_processes(body, (2, 4)):
        assert found.tobytes() == expected.tobytes()


def test_a_permutation_moves_what_is_elsewhere() -> None:
    perm = np.random.default_rng(4).permutation(64)
    values = np.arange(64 * 5.0).reshape(64, 5)

    def body() -> Any:
        x = put(values, ("i", "j"))
        found = []
        for places in (perm, put(perm, ("i", "j")), put(perm)):
            with ledger() as log:
                y = x[places]
            assert y.sharding == x.sharding
            rows = sum(r.total_bytes for r in log if r.array == "float64[64,5]")
            asked = sum(r.total_bytes for r in log if r.array == "int64[64]" and r.what == "gather")
            away = int((perm // 8 != np.arange(64) // 8).sum())
            assert rows == 40 * away
            found.append((whole(y), rows, asked))
        return found

    for y, *_ in everywhere(body):
        assert y.tobytes() == values[perm].tobytes()


def test_nobody_asks_where_all_know_the_positions() -> None:
    def body() -> Any:
        x = laid(X, ("i",))
        with ledger() as log:
            _ = x[TOKENS.ravel()], x.at[TOKENS.ravel()].add(1.0)
        assert {r.array for r in log} == {"float64[21,6]"}
        return log.received

    everywhere(body)


def test_rows_of_which_none_is_elsewhere_do_not_move() -> None:
    def body() -> None:
        x = put(X[:16], ("i", "j"))
        near = put(np.arange(16) ^ 1, ("i", "j"))
        with ledger() as log:
            y = x[near]
            z = x.at[near].set(y)
        assert {r.what for r in log} <= {"min", "max"}
        assert whole(z).tobytes() == X[:16].tobytes()

    alone(body)


def test_positions_outside() -> None:
    places = np.array([-30, -21, 0, 20, 21, 40, 3, 3])

    def body() -> Any:
        x, given = laid(X, ("i",)), put(places, "j")
        kept = x.at[given].set(7.0, mode="drop")
        clipped = x.at[given].add(1.0, mode="clip")
        filled = x.at[given].get(mode="fill", fill_value=-1.0)
        return whole(kept), whole(clipped), whole(filled), whole(mnp.take(x, given, 0, mode="wrap"))

    kept, clipped, filled, wrapped = everywhere(body)
    counted = np.where(places < 0, places + 21, places)
    inside = (counted >= 0) & (counted < 21)
    expected = X.copy()
    expected[counted[inside]] = 7.0
    assert kept.tobytes() == expected.tobytes()
    expected = X.copy()
    np.add.at(expected, counted.clip(0, 20), 1.0)
    assert clipped.tobytes() == expected.tobytes()
    assert filled.tobytes() == np.where(inside[:, None], X[counted.clip(0, 20)], -1.0).tobytes()
    assert wrapped.tobytes() == np.take(X, places, 0, mode="wrap").tobytes()


def test_large_rows_in_one_process() -> None:
    """Beyond the sizes up to which pieces are put side by side, and onto the workers."""
    rng = np.random.default_rng(6)
    x, some = rng.normal(size=(9000, 40)), rng.integers(0, 9000, size=4000)
    many = rng.integers(0, 9000, size=40_000)

    def body() -> None:
        rows, columns = put(x, ("i", "j")), put(x, None, "i")
        for places in (some, many, np.sort(some)):
            for index in (places, put(places, "i")):
                assert whole(rows[index]).tobytes() == x[places].tobytes()
                assert whole(rows.T[:, index]).tobytes() == x.T[:, places].tobytes()
        pairs = rng.integers(0, 40, size=(9000, 30))
        found = mnp.take_along_axis(columns, put(pairs, "j"), 1)
        assert whole(found).tobytes() == np.take_along_axis(x, pairs, 1).tobytes()
        expected = x.copy()
        np.add.at(expected, many, x[many])
        assert whole(rows.at[put(many, "j")].add(x[many])).tobytes() == expected.tobytes()

    alone(body)


@st.composite
def searches(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    size = draw(st.integers(1, 30))
    dtype = draw(st.sampled_from(["f8", "f4", "i4"]))
    values = rng.integers(-3, 12, size=draw(st.lists(st.integers(0, 9), min_size=1, max_size=2)))
    ordered = np.sort(rng.integers(0, 9, size=size)).astype(dtype)
    if dtype != "i4" and draw(st.booleans()):
        values = np.where(values == 3, np.nan, values)
        ordered[-1] = np.nan
    return {
        "ordered": ordered,
        "spec": draw(specs(1)),
        "values": values.astype(draw(st.sampled_from(["f8", dtype])) if dtype != "i4" else "i8"),
        "of_values": draw(specs(values.ndim)),
        "side": draw(st.sampled_from(["left", "right"])),
    }


@settings(max_examples=50, deadline=None)
@given(searches())
def test_values_go_to_where_they_belong(case: Case) -> None:
    def body() -> Any:
        x, values = laid(case["ordered"], case["spec"]), laid(case["values"], case["of_values"])
        search = lambda a, v: mnp.searchsorted(a, v, case["side"])  # noqa: E731
        with ledger() as log:
            found = search(x, values)
        jitted = meshard.jit(search)(x, values)
        if any(case["spec"]) and any(case["of_values"]):
            assert found.sharding == values.sharding
        return whole(found), whole(jitted), log.received

    found, jitted, _ = in_processes(body, (2, 4))
    expected = np.searchsorted(case["ordered"], case["values"], case["side"])
    assert found.tobytes() == jitted.tobytes() == expected.tobytes()
