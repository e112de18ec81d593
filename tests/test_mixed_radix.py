import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.layout import layout_of_boxes
from meshard.plan.hops.hop import Hop
from meshard.plan.routes.mixed_radix import (
    MixedRadix,
    closed_form_moved,
    mixed_radix_of,
    prime_factors,
)
from tests.lays import calm
from tests.routes import laid


@st.composite
def digits(draw, sizes, shape):
    """Draw a map of digits of so many sizes."""
    dims = [[] for _ in shape]
    for place in draw(st.permutations(range(len(sizes)))):
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim >= 0:
            dims[dim].append(place)
    return MixedRadix(shape, sizes, tuple(map(tuple, dims)))


def layout_of(form, ids):
    return laid(form.shape, form.grid, form.tensor(ids))


@st.composite
def pairs(draw, primes):
    """Draw two maps of the same digits, and the devices by number."""
    sizes = tuple(draw(st.lists(st.sampled_from(primes), max_size=5)))
    count = int(np.prod(sizes, dtype=np.int64))
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.lists(st.sampled_from([count, 6 * count]), min_size=rank, max_size=rank)))
    ids = np.array(draw(st.permutations(range(3, 3 + count))))
    return draw(digits(sizes, shape)), draw(digits(sizes, shape)), ids


@calm
@given(pairs((2,)))
def test_the_closed_form_is_what_a_hop_counts(pair):
    before, after, ids = pair
    source, destination = layout_of(before, ids), layout_of(after, ids)
    moved = Hop(source, destination).moved
    assert closed_form_moved(before, after) == moved
    forms = mixed_radix_of([source, destination])
    assert closed_form_moved(*forms) == moved


@calm
@given(pairs((2, 3, 5)))
def test_digits_are_found_where_there_are_any(pair):
    before, after, ids = pair
    layouts = [layout_of(before, ids), layout_of(after, ids)]
    forms = mixed_radix_of(layouts)
    if forms is None:  # 6 = 2 x 3 here and 3 x 2 there
        assert len(set(before.sizes)) > 1
        return
    moved = Hop(*layouts).moved
    assert closed_form_moved(*forms) == moved
    if before.dims and all(
        a == b
        for mine, yours in zip(before.dims, after.dims, strict=True)
        for a, b in zip(
            [before.sizes[p] for p in mine], [before.sizes[p] for p in yours], strict=False
        )
    ):
        assert closed_form_moved(before, after) == moved
    numbered = layouts[0].tensor.reshape(-1)
    for form, layout in zip(forms, layouts, strict=True):
        assert all(prime_factors(n) == [n] for n in form.sizes)
        assert (form.grid, form.replicas) == (layout.grid, layout.replicas)
        found = form.tensor(numbered)
        assert (np.sort(found, axis=-1) == np.sort(layout.tensor, axis=-1)).all()


def test_digits_by_hand():
    rows, columns = laid((6, 6), (6, 1), range(6)), laid((6, 6), (1, 3), range(6))
    forms = mixed_radix_of([rows, columns])
    assert [f.dims for f in forms] == [((0, 1), ()), ((), (0,))]
    assert forms[0].sizes == (3, 2)
    (alone,) = mixed_radix_of([laid((), (), [7, 8])])
    assert (alone.sizes, alone.dims, alone.grid, alone.replicas) == ((2,), (), (), 2)


def test_there_are_none_where_layouts_do_not_agree():
    row = laid((6,), (6,), range(6))
    square = laid((6, 6), (3, 2), range(6))
    for other in (
        laid((6,), (6,), [5, 4, 3, 2, 1, 0]),  # no transposed numbers
        laid((6,), (6,), [0, 1, 3, 2, 4, 5]),
        laid((6,), (6,), [0, 1, 2, 3, 5, 4]),
        laid((6,), (3,), range(3)),  # other devices
        laid((6,), (6,), range(1, 7)),
        laid((6,), (6,), [0, 1, 2, 3, 5, 9]),
        laid((6,), (6,), [0, 1, 2, 3, 4, -1]),
        layout_of_boxes((6,), [(0, Box((0,), (4,))), (1, Box((3,), (6,)))]),
    ):
        assert mixed_radix_of([row, other]) is None
    assert mixed_radix_of([square, laid((6, 6), (2, 3), range(6))]) is None
    assert mixed_radix_of([laid((0,), (1,), [0])]) is None
    six = laid((6,), (2,), range(6)), laid((6,), (3,), range(6))
    assert mixed_radix_of(six) is None  # one dim cannot begin with 2 and with 3
    far = laid((6,), (6,), 1000 * np.arange(6)), laid((6,), (1,), 1000 * np.arange(6))
    assert closed_form_moved(*mixed_radix_of(far)) == 30
    gap = laid((6,), (1,), [0, 1000, 2000, 3000, 4001, 5000])
    assert mixed_radix_of([far[0], gap]) is None


def test_131072_devices():
    n = 1 << 17
    source = laid((2 * n, 2 * n), (512, 256), range(n))
    turned = np.arange(n).reshape(512, 256).T
    destination = laid((2 * n, 2 * n), (256, 512), turned)
    forms = mixed_radix_of([source, destination])
    begin = time.perf_counter()
    for _ in range(10):
        moved = closed_form_moved(*forms)
    assert time.perf_counter() - begin < 0.1
    assert moved == Hop(source, destination).moved
    rows, columns = laid((262144,) * 2, (n, 1), range(n)), laid((262144,) * 2, (1, n), range(n))
    assert closed_form_moved(*mixed_radix_of([rows, columns])) == 68718952448
    same = laid((262144,) * 2, (512, 256), range(n)), laid((262144,) * 2, (256, 512), turned)
    assert closed_form_moved(*mixed_radix_of(same)) == Hop(*same).moved
