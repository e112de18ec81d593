"""Contractions against NumPy, in both worlds; the laws over all shardings are in tests/laws."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError, IncompatibleDevicesError, ShapeError
from meshard.ops.array import shape
from meshard.ops.linalg import contract
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P
from tests.lays import fetched, same
from tests.operands import in_all_worlds, numbers, unsigned
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

BF16 = np.dtype(ml_dtypes.bfloat16)
F8 = np.dtype(ml_dtypes.float8_e5m2)
MATRIX = [(), ("i",), (None, "i"), ("i", "j"), ("j", "i"), (("i", "j"),), (None, ("j", "i"))]


def check(body: Any, expected: Any) -> None:
    """Check that a list of results is the same in both worlds and the one expected."""
    same(
        [unsigned(f) for f in everywhere(lambda: fetched(body()))], [unsigned(e) for e in expected]
    )


@pytest.mark.parametrize("dtype", ["?", "i1", "i8", "f4", "f8", "F", "D"])
def test_matrices_however_they_are_split(dtype):
    x, y = numbers((8, 6), dtype, 0), numbers((6, 10), dtype, 1)

    def body() -> Any:
        return [
            put(x, *left, uneven="balanced") @ put(y, *right, uneven="ceil")
            for left, right in itertools.product(MATRIX, MATRIX)
        ]

    check(body, [x @ y] * len(MATRIX) ** 2)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((6,), (6,)),
        ((6,), (6, 4)),
        ((4, 6), (6,)),
        ((2, 4, 6), (6,)),
        ((6,), (2, 6, 4)),
        ((2, 4, 6), (6, 4)),
        ((4, 6), (2, 6, 4)),
        ((2, 4, 6), (2, 6, 4)),
        ((2, 1, 4, 6), (3, 6, 4)),
        ((1, 4, 6), (3, 6, 4)),
        ((3, 4, 6), (1, 6, 4)),
        ((4, 0), (0, 3)),
        ((0, 4), (4, 3)),
        ((1, 6), (6, 1)),
        ((0, 4, 6), (1, 6, 2)),
    ],
)
def test_matmul_broadcasts(left, right):
    x, y = numbers(left, "f8", 0), numbers(right, "f8", 1)
    specs = [["i", "j"], [None, "i", "j"], ["j", None, "i"], [None, None, ("i", "j")]]

    def body() -> Any:
        found = []
        for a, b in itertools.product(specs, specs):
            one = put(x, *a[: x.ndim], uneven="balanced")
            found.append(mnp.matmul(one, put(y, *b[: y.ndim], uneven="balanced")))
        return found

    check(body, [np.matmul(x, y)] * 16)


def test_the_sum_goes_over_a_split_dim():
    # Split on one operand, on both alike, on both over different axes, and unevenly.
    x, y = numbers((4, 16), "f8", 0), numbers((16, 4), "f8", 1)
    cuts = ((0, 0, 7, 7, 16),)

    def body() -> Any:
        found = []
        for a, b in [("i", None), (None, "i"), ("i", "i"), ("i", "j"), (("i", "j"), "j")]:
            left, right = put(x, None, a), put(y, b)
            found.append(left @ right)
            assert found[-1].is_fully_replicated
        left, right = put(x, None, "i", uneven=(None, *cuts)), put(y, "i", uneven=cuts)
        return [*found, left @ right]

    check(body, [x @ y] * 6)


@pytest.mark.parametrize("dtype", ["f2", BF16, F8])
def test_short_floats_are_summed_in_float32(dtype):
    x, y = np.ones((2, 4096), dtype), np.full((4096, 2), 0.5, dtype)
    x[:, ::2] = 0.25

    def body() -> Any:
        found = []
        for a, b in [((), ()), ((None, "i"), ("i",)), (("j",), (None, "j"))]:
            left, right = put(x, *a), put(y, *b)
            products = [left @ right, mnp.einsum("ik,kj->ij", left, right), mnp.vdot(left, right.T)]
            assert all(p.dtype == dtype for p in products)
            found += [p.astype("f4") for p in products]
            wide = mnp.matmul(left, right, preferred_element_type="f4")
            assert wide.dtype == np.float32
            found.append(wide)
        return found

    exact = x.astype("f4") @ y.astype("f4")
    short = exact.astype(dtype).astype("f4")
    both = np.float32(2 * exact[0, 0]).astype(dtype).astype("f4")
    check(body, [short, short, both, exact] * 3)


def test_integers_wrap_and_bools_are_logical():
    a, b = np.full((2, 4), 100, "i1"), np.full((4, 2), 3, "i1")
    p = np.array([[True, False], [False, False]])

    def body() -> Any:
        left, right, logic = put(a, None, "i"), put(b, "i"), put(p, "j")
        found = [left @ right, mnp.dot(left, right), mnp.einsum("ij,jk->ik", left, right)]
        found += [mnp.matmul(left, right, preferred_element_type="i4"), logic @ logic]
        return [*found, mnp.einsum("ij->", logic), mnp.einsum("ij->j", left)]

    wide = a.astype("i4") @ b.astype("i4")
    check(body, [a @ b, a @ b, a @ b, wide, p @ p, np.True_, a.sum(0, dtype="i1")])


def test_mixed_dtypes_are_promoted():
    pairs = [("i1", "u1"), ("i4", "f4"), ("?", "i8"), ("f4", "F"), ("f2", "f4"), (BF16, "f4")]
    cases = [(numbers((4, 4), a, 0), numbers((4, 4), b, 1)) for a, b in pairs]

    def body() -> Any:
        return [put(x, "i") @ put(y, None, "j") for x, y in cases]

    check(body, [np.matmul(x, y).astype(np.result_type(x, y)) for x, y in cases])


def test_the_other_products():
    x, y, z = numbers((3, 4, 2), "D", 0), numbers((4, 2, 5), "D", 1), numbers((3, 4, 2), "D", 2)
    v, w = numbers((8,), "D", 3), numbers((8,), "D", 4)

    def body() -> Any:
        a, b, c = put(x, None, "i", "j"), put(y, "i"), put(z, None, None, "j")
        p, q = put(v, "i"), put(w, ("j", "i"))
        found = [mnp.tensordot(a, b), mnp.tensordot(a, c, ([0, 2], [0, 2])), mnp.tensordot(p, q, 0)]
        found += [mnp.tensordot(a, b, ((1, -1), (0, 1))), mnp.tensordot(a, c, (1, -2))]
        found += [mnp.tensordot(a, b, np.int64(2)), mnp.tensordot(a, c, 2 * [[0, 1, 2]])]
        found += [mnp.dot(p, q), mnp.dot(a, put(y, "j")[0]), mnp.dot(p, 2.0), p.dot(q)]
        found += [mnp.inner(a, c), mnp.inner(p, q), mnp.inner(p, 3), mnp.outer(p, a[:, 0])]
        found += [mnp.vdot(p, q), mnp.vdot(a, c), mnp.vecdot(a, c), mnp.vecdot(p, q)]
        return [*found, mnp.vecdot(a, c[:1], axis=-2), mnp.vecdot(a, c[0], axis=-1)]

    expected = [np.tensordot(x, y), np.tensordot(x, z, ([0, 2], [0, 2])), np.tensordot(v, w, 0)]
    expected += [np.tensordot(x, y, ((1, -1), (0, 1))), np.tensordot(x, z, (1, -2))]
    expected += [np.tensordot(x, y), np.tensordot(x, z, 2 * [[0, 1, 2]])]
    expected += [np.dot(v, w), np.dot(x, y[0]), np.dot(v, 2.0), np.dot(v, w)]
    expected += [np.inner(x, z), np.inner(v, w), np.inner(v, 3), np.outer(v, x[:, 0])]
    expected += [np.vdot(v, w), np.vdot(x, z), np.vecdot(x, z), np.vecdot(v, w)]
    check(body, [*expected, np.vecdot(x, z[:1], axis=-2), np.vecdot(x, z[0], axis=-1)])


def test_vecdot_keeps_the_dtype():
    x, p = np.full((2, 4), 50, "i1"), np.array([[True, False], [False, False]])

    def body() -> Any:
        a, b = put(x, None, "i"), put(p, "j", None)
        return [mnp.vecdot(a, a), mnp.vecdot(b, b), mnp.vecdot(a, a, preferred_element_type="i4")]

    check(body, [np.vecdot(x, x), np.vecdot(p, p), np.full(2, 10000, "i4")])


# operands of all kinds


@in_worlds
def test_arrays_from_elsewhere():
    x, y = numbers((4, 6), "f8", 0), numbers((6, 4), "f8", 1)
    a = put(x, "i")
    for found in (a @ y, mnp.matmul(x, put(y)), mnp.einsum("ij,jk->ik", x, put(y, None, "j"))):
        same(unsigned(whole(found)), unsigned(x @ y))
    assert (a @ y).sharding == NamedSharding(mesh(), P("i"))
    same(unsigned(whole(y @ a)), unsigned(y @ x))
    same(whole(mnp.dot([1, 2], [3, 4])), np.dot([1, 2], [3, 4]))
    assert not mnp.matmul(x, y).committed
    wide = meshard.make_mesh((2, 4), ("a", "b"))
    b = put(y, "a", "b", on=wide)
    same(unsigned(whole(a @ b)), unsigned(x @ y))


@in_worlds
def test_transposed_and_sliced_operands():
    x = numbers((12, 10), "f8", 0)
    a = put(x, "i", "j")
    same(unsigned(whole(a.T @ a)), unsigned(x.T @ x))
    same(unsigned(whole(a @ a.T)), unsigned(x @ x.T))
    same(unsigned(whole(a[::2].T @ a[1::2])), unsigned(x[::2].T @ x[1::2]))
    same(unsigned(whole(a[:, 1:3] @ a[:, 5:7].T)), unsigned(x[:, 1:3] @ x[:, 5:7].T))


# where results lie


@in_worlds
@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        (("i",), (None, "j"), ("i", "j")),
        (("i", "j"), (), ("i",)),
        ((), ("i", "j"), (None, "j")),
        ((None, "i"), ("i",), ()),
        (("i", "j"), ("j",), ("i",)),
        ((("i", "j"),), (), (("i", "j"),)),
        (("i",), ("i",), ("i",)),
        (("i",), (None, "i"), ("i",)),
    ],
)
def test_products_lie_as_their_operands_do(left, right, out):
    a, b = put(np.ones((8, 8)), *left), put(np.ones((8, 8)), *right)
    expected = NamedSharding(mesh(), P(*out))
    assert (a @ b).sharding == expected
    assert mnp.einsum("ij,jk->ik", a, b).sharding == expected
    assert mnp.dot(a, b).sharding == expected
    assert (a @ b).committed


def test_products_lie_as_in_jax(jax):
    grid = np.array(jax.devices()).reshape(4, 2)
    theirs = jax.sharding.Mesh(grid, ("i", "j"))
    specs = [
        (("i", None), (None, "j")),
        (("i", "j"), (None, None)),
        ((None, "i"), ("i", None)),
        (("i", None), (None, None)),
        ((None, None), (None, ("i", "j"))),
    ]

    def there(spec: Any) -> Any:
        place = jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*spec))
        return jax.device_put(np.ones((8, 8), "f4"), place)

    def body() -> Any:
        products = [put(np.ones((8, 8)), *a) @ put(np.ones((8, 8)), *b) for a, b in specs]
        return [
            {d.id: str(i) for d, i in p.sharding.devices_indices_map((8, 8)).items()}
            for p in products
        ]

    for mine, (a, b) in zip(alone(body), specs, strict=True):
        other = (there(a) @ there(b)).sharding.devices_indices_map((8, 8))
        assert mine == {d.id: str(i) for d, i in other.items()}


@in_worlds
def test_batches_stay_where_they_are():
    a, b = put(np.ones((8, 4, 6)), "i", "j"), put(np.ones((8, 6, 4)), "i", None, "j")
    assert (a @ b).sharding.spec in (P("i", "j"), P("i", None, "j"))
    assert mnp.vecdot(a, a).sharding == NamedSharding(mesh(), P("i", "j"))
    thin = put(np.ones((1, 6, 4)))
    assert (a @ thin).sharding == NamedSharding(mesh(), P("i", "j"))
    assert mnp.outer(put(np.ones(8), "i"), put(np.ones(4), "j")).sharding.spec == P("i", "j")


@in_worlds
def test_replicas_are_computed_once():
    y = put(np.ones((8, 8)), "j") @ put(np.ones((8, 8)))
    halves = {s.index[0].start for s in y.addressable_shards}
    assert len([b for b in y._live() if b is not None]) == len(halves)
    assert len(halves) == min(2, len(meshard.local_devices()))


# between processes


def test_bits_do_not_depend_on_the_number_of_processes():
    rng = np.random.default_rng(0)
    x, y, v = rng.normal(size=(512, 301)), rng.normal(size=(301, 256)), rng.normal(size=1 << 17)

    def body() -> Any:
        a, b, c = put(x, "i"), put(y, None, "j"), put(v, ("i", "j"))
        split = put(y, "j", uneven="balanced")
        found = [a @ b, a @ split, a @ y[:, 0], mnp.vdot(c, c), put(x) @ put(y)]
        found += [mnp.einsum("ik,kj,ij->j", a, b, a @ b), put(x.astype("f4"), "i") @ b]
        return fetched(found)

    found = in_all_worlds(body)
    np.testing.assert_allclose(found[0], x @ y)
    np.testing.assert_allclose(found[3], v @ v)


@pytest.mark.parametrize("dtype", ["f4", "f8", "F"])
def test_memory_order_does_not_show(dtype):
    # Blocks are views of other memory in one process, and were received in another.
    rng = np.random.default_rng(0)
    x, v = (rng.normal(size=s).astype(dtype) for s in [(64, 256), (64,)])

    def body() -> Any:
        turned = Mesh(np.array(meshard.devices())[::-1].reshape(4, 2), ("i", "j"))
        a = meshard.device_put(put(x, "i").T, NamedSharding(turned, P(None, "i")))
        b = meshard.device_put(put(x)[:, 3:131], NamedSharding(turned, P("i")))
        found = [a @ v, v @ a.T, a @ x[:, :1], mnp.vecdot(a, a), mnp.vdot(a, a), a.sum(0), a.sum()]
        return fetched([*found, a @ b, b.T @ b, mnp.einsum("ij,kj->", a, a), b @ b[0], a.mean(1)])

    found = in_all_worlds(body)
    np.testing.assert_allclose(found[0], x.T @ v, rtol=1e-3, atol=1e-4)


def test_a_mesh_of_some_devices_only():
    x, y = numbers((8, 512), "f8", 0), numbers((512, 64), "f8", 1)

    def body() -> Any:
        some = Mesh(meshard.devices()[1:7], "i")
        a = put(x, None, "i", on=some, uneven="balanced")
        return fetched([a @ put(y, "i", on=some, uneven="balanced"), a @ y, mnp.vdot(a, a)])

    expected = [x @ y, x @ y, np.vdot(x, x)]
    same([unsigned(f) for f in in_all_worlds(body)], [unsigned(e) for e in expected])


def test_only_what_is_missing_travels():
    x, w = np.ones((64, 256)), np.ones((256, 32))

    def sent_by(compute: Any) -> int:
        transport, sent = here().transport, []
        exchange = transport.exchange

        def recorded(sends: Any, receives: Any) -> None:
            sent.extend(b.nbytes for _, blocks in sends for b in blocks)
            exchange(sends, receives)

        transport.exchange = recorded  # type: ignore[method-assign]
        try:
            compute()
        finally:
            del transport.exchange
        return sum(sent)

    def body() -> Any:
        rows, columns = put(x, "i"), put(x, None, "i")
        whole_w, split_w, right = put(w), put(w, "i"), put(w, None, "j")
        return [
            sent_by(lambda: rows @ whole_w),
            sent_by(lambda: rows @ right),
            sent_by(lambda: columns @ split_w),
            sent_by(lambda: columns @ whole_w),
        ]

    for together, apart, reduced, cut in simulate(2, 4, body):
        assert together == apart == 0
        assert 0 < reduced == cut <= 2 * 64 * 32 * 8  # two partial results, not the operands


# refusals


@in_worlds
def test_dims_that_do_not_contract():
    a, v = put(np.ones((4, 6)), "i"), put(np.ones(5))
    message = r"matmul: contracting dims .* the last of \(4, 6\) is 6 and that of \(4, 6\) is 4"
    with pytest.raises(ShapeError, match=message):
        a @ a
    with pytest.raises(ShapeError, match=r"the last of \(4, 6\) is 6 and that of \(5,\) is 5"):
        a @ v
    with pytest.raises(ShapeError, match=r"dot: contracting dims .* and dim 0 of \(4, 6\) is 4"):
        mnp.dot(a, a)
    with pytest.raises(ShapeError, match=r"inner: .* of \(4, 6\) is 6 and that of \(5,\) is 5"):
        mnp.inner(a, v)
    with pytest.raises(ShapeError, match=r"vecdot: .* of \(4, 6\) is 6 and that of \(1,\) is 1"):
        mnp.vecdot(a, np.ones(1))
    with pytest.raises(ShapeError, match=r"vdot: .* that of \(24,\) is 24"):
        mnp.vdot(a, v)
    with pytest.raises(ShapeError, match=r"tensordot: dim 1 of \(4, 6\) is 6, and dim 0 of "):
        mnp.tensordot(a, a, 1)
    with pytest.raises(ValueError, match="contracting dims"):
        np.ones((2, 3)) @ a


@in_worlds
def test_leading_dims_that_do_not_broadcast():
    a, b = put(np.ones((2, 4, 6))), put(np.ones((3, 6, 4)))
    message = r"matmul: the leading dims \(2,\) of \(2, 4, 6\) and \(3,\) of \(3, 6, 4\)"
    with pytest.raises(ShapeError, match=message):
        a @ b
    with pytest.raises(ShapeError, match=r"vecdot: the leading dims \(2, 4\) .* do not broadcast"):
        mnp.vecdot(a, put(np.ones((3, 4, 6))))


@in_worlds
def test_operands_without_dims():
    a = put(np.ones((4, 6)), "i")
    with pytest.raises(
        ShapeError, match=r"matmul: operands need at least one dim, got \(4, 6\) and \(\)"
    ):
        mnp.matmul(a, np.float64(2))
    with pytest.raises(ValueError, match="matmul: operands need at least one dim"):
        a @ 2.0
    with pytest.raises(ShapeError, match="vecdot: operands need at least one dim"):
        mnp.vecdot(1.0, a)


@in_worlds
@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (3, r"axes=3 must be from 0 to the number of dims that both operands"),
        (-1, r"axes=-1 must be from 0"),
        (([0], [0, 1]), r"do not pair up: 1 dims of the first operand go with 2 of the second"),
        (([5], [0]), r"tensordot: axis 5 is out of bounds for an array with 2 dims"),
        (([0, 0], [0, 1]), r"tensordot: axis \[0, 0\] names a dim twice"),
        (
            ([0, 1],),
            r"tensordot: axes must be a number of dims or two lists of dims, got \(\[0, 1\],\)",
        ),
        ("ab", "tensordot: axes must be a number of dims or two lists of dims, got 'ab'"),
        (1.0, r"tensordot: axes must be a number of dims or two lists of dims, got 1\.0"),
        (None, "tensordot: axes must be a number of dims or two lists of dims, got None"),
    ],
)
def test_axes_of_tensordot(axes, message):
    a = put(np.ones((4, 4)), "i")
    with pytest.raises(ArgumentError, match=message):
        mnp.tensordot(a, a, axes)


@in_worlds
def test_dtypes_without_a_common_one():
    a, b = put(np.ones((2, 2), BF16)), meshard.random.split(meshard.random.key(0), (2, 2))
    for name, call in [
        ("matmul", lambda: a @ b),
        ("einsum", lambda: mnp.einsum("ij,jk", a, b)),
        ("tensordot", lambda: mnp.tensordot(a, b)),
        ("vdot", lambda: mnp.vdot(a, b)),
    ]:
        with pytest.raises(
            DtypeError, match=rf"{name}: the dtypes bfloat16, key<.* have no common dtype"
        ):
            call()
    assert mnp.matmul(a, a, preferred_element_type="f4").dtype == np.float32
    with pytest.raises(DtypeError, match="'f12' is not a dtype"):
        mnp.matmul(a, a, preferred_element_type="f12")


@in_worlds
def test_no_arrays():
    a = put(np.ones(2))
    for bad in ("ab", None, object(), {1: 2}):
        with pytest.raises(DtypeError):
            mnp.matmul(a, bad)
        with pytest.raises(TypeError):
            a @ bad


@in_worlds
def test_incompatible_devices():
    a = meshard.device_put(np.ones((4, 4)), meshard.devices()[1])
    with pytest.raises(IncompatibleDevicesError, match=r"matmul: .* Operand 0, float64\[4,4\], is"):
        a @ put(np.ones((4, 4)), "i")


def test_a_product_with_a_transpose_reads_the_array_where_it_is(monkeypatch):
    read, steady = [], contract._steady
    monkeypatch.setattr(
        contract, "_steady", lambda x, thin: read.append((x, steady(x, thin))) or read[-1][1]
    )
    value = numbers((16, 24), "f4", 0)
    x, v = put(value, "i"), mnp.ones(16, np.float32)
    products = [
        lambda x, v: x.T @ v,
        lambda x, v: v @ mnp.swapaxes(x.T, 0, 1),
        lambda x, v: mnp.einsum("ij,i->j", x, v),
    ]
    for product in (*products, *map(meshard.jit, products)):
        assert np.allclose(product(x, v), value.sum(axis=0))
        assert all(found is x for x, found in read)
    assert len(read) >= 8 * len(products)


def test_transposes_are_known_as_long_as_they_live():
    x = mnp.ones((2, 3, 4))
    turned = mnp.transpose(x, (2, 0, 1))
    assert shape.order_of_dims(turned) == (2, 0, 1)
    assert shape.order_of_dims(x) is None
    known = len(shape._orders)
    del turned
    assert len(shape._orders) == known - 1


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_products_of_transposes(first, second):
    a, b = numbers((3, 3, 3), "f4", 0), numbers((3, 3, 3), "f4", 1)
    x, y = mnp.transpose(mnp.asarray(a), first), mnp.transpose(mnp.asarray(b), second)
    a, b = a.transpose(first), b.transpose(second)
    assert np.array_equal(x @ y, a @ b)
    axes = ([0, 2], [1, 0])
    assert np.array_equal(mnp.tensordot(x, y, axes=axes), np.tensordot(a, b, axes))
