"""Fourier transforms: right however arrays lie, no device holds more than its share."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError
from meshard.sharding import P
from tests.lays import fetched, lays, shapes
from tests.watch import watched
from tests.worlds import everywhere, in_worlds, put, whole

fft = mnp.fft
ONE_DIM = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TWO_DIMS = ("fft2", "ifft2", "rfft2", "irfft2")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")
REAL = ("rfft", "ihfft", "rfft2", "rfftn")
NORMS = (None, "backward", "ortho", "forward")


def samples(name: str, shape: Any, dtype: Any = None) -> np.ndarray:
    """Numbers for a transform: complex, unless it takes real ones."""
    value = np.random.default_rng(0).normal(size=(2, *shape))
    x = value[0] if name in REAL else value[0] + 1j * value[1]
    return x if dtype is None else x.astype(dtype)


def close(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    tolerance = 1e-12 if found.dtype in (np.float64, np.complex128) else 1e-5
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", ONE_DIM)
@settings(max_examples=25)
@given(data=st.data())
def test_one_dim_however_it_lies(name: str, data: st.DataObject) -> None:
    shape = data.draw(shapes(1, 3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    lengths = st.one_of(st.none(), st.integers(1, 12))
    n = data.draw(lengths)
    if n is None and (shape[axis] == 0 or (name in ("irfft", "hfft") and shape[axis] == 1)):
        n = 3
    norm = data.draw(st.sampled_from(NORMS))
    lay, value = data.draw(lays(shape)), samples(name, shape)
    found = everywhere(lambda: fetched(getattr(fft, name)(lay.put(value), n, axis, norm)))
    close(found, getattr(np.fft, name)(value, n, axis, norm))


@pytest.mark.parametrize("name", SEVERAL)
@settings(max_examples=25)
@given(data=st.data())
def test_several_dims_however_they_lie(name: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(2, 7), min_size=1, max_size=4).map(tuple))
    dims = list(range(-len(shape), len(shape)))
    different = st.lists(st.sampled_from(dims), min_size=1, unique_by=lambda d: d % len(shape))
    axes = data.draw(st.one_of(st.none(), different))
    count = len(shape) if axes is None else len(axes)
    sizes = st.lists(st.sampled_from([-1, 2, 5, 8]), min_size=count, max_size=count)
    s = data.draw(st.one_of(st.none(), sizes)) if axes else None
    norm = data.draw(st.sampled_from(NORMS))
    lay, value = data.draw(lays(shape)), samples(name, shape)
    found = everywhere(lambda: fetched(getattr(fft, name)(lay.put(value), s, axes, norm)))
    expected_s = s
    if s is not None and name == "irfftn" and s[-1] == -1:  # NumPy takes it literally
        expected_s = [*s[:-1], 2 * (shape[axes[-1]] - 1)]
    close(found, getattr(np.fft, name)(value, expected_s, axes, norm))


@pytest.mark.parametrize("name", TWO_DIMS)
@in_worlds
def test_two_dims(name: str) -> None:
    value = samples(name, (4, 6, 8))
    x = put(value, "i", None, "j")
    close(whole(getattr(fft, name)(x)), getattr(np.fft, name)(value))
    found = getattr(fft, name)(x, np.array([3, 4]), [0, 1], "ortho")
    close(whole(found), getattr(np.fft, name)(value, (3, 4), (0, 1), "ortho"))


@in_worlds
def test_other_dims_stay_split() -> None:
    value = samples("fft", (8, 6, 4))
    for x, axis in ((put(value, ("i", "j")), 2), (put(value, "i", None, "j"), 1)):
        with watched() as seen:
            found = fft.fft(x, axis=axis)
        assert found.sharding.spec == x.sharding.spec
        assert seen.sent == 0
        assert not seen.blocks
        close(whole(found), np.fft.fft(value, axis=axis))


@in_worlds
def test_a_cube_is_transformed_by_pencils() -> None:
    value = samples("fftn", (8, 16, 12))
    x = put(value, None, "i", "j")
    with watched() as seen:
        found = fft.fftn(x)
    # The whole dim first; then each split dim takes the place of the one before it.
    assert found.sharding.spec == P("i", "j")
    assert seen.largest <= value.size // 8
    assert len(seen.blocks) <= 2 * len(found.addressable_shards)
    close(whole(found), np.fft.fftn(value))
    x = put(value[0], None, ("i", "j"), uneven="balanced")
    with watched() as seen:
        found = fft.fft2(x)
    assert found.sharding.spec == P(("i", "j"))
    assert seen.largest <= value[0].size // 8
    close(whole(found), np.fft.fft2(value[0]))


@in_worlds
def test_what_is_cut_off_does_not_move() -> None:
    value = samples("fft", (4096, 8))
    x = put(value, "i")
    with watched() as seen:
        found = fft.fft(x, 16, 0)
    assert seen.sent + sum(seen.blocks) * 16 < value.nbytes // 16
    close(whole(found), np.fft.fft(value, 16, 0))


@in_worlds
def test_dtypes() -> None:
    for given_dtype, wide in [
        *[(d, False) for d in ("f2", "f4", "c8", ml_dtypes.bfloat16)],
        *[(d, True) for d in ("f8", "c16", "i4", "u1", "?")],
    ]:
        x = put(np.ones((4, 4)).astype(given_dtype), "i")
        assert fft.fft(x).dtype == fft.ifftn(x).dtype == (np.complex128 if wide else np.complex64)
        assert fft.irfft(x).dtype == fft.hfft(x).dtype == (np.float64 if wide else np.float32)
        assert fft.fftn(x, axes=()).dtype == (np.complex128 if wide else np.complex64)
        if x.dtype.kind != "c":
            assert fft.rfftn(x).dtype == (np.complex128 if wide else np.complex64)
    value = samples("fft", (8, 5), "c8")
    close(whole(fft.fft(put(value, "i"))), np.fft.fft(value))


def test_the_default_float_is_obeyed() -> None:
    before = meshard.config.read("default_float")
    meshard.config.update("default_float", "float32")
    try:
        assert fft.fft(mnp.arange(4)).dtype == np.complex64
        assert fft.fftfreq(4).dtype == np.float32
    finally:
        meshard.config.update("default_float", before)


@in_worlds
def test_nothing_to_transform() -> None:
    assert fft.fft(put(np.zeros((8, 0)), "i")).shape == (8, 0)
    assert fft.rfft(put(np.zeros((8, 0)), "i")).shape == (8, 1)
    assert whole(fft.rfft(put(np.zeros((8, 0)), "i"), 4)).tolist() == [[0j] * 3] * 8
    assert fft.irfft(put(np.ones((8, 1)), "i")).shape == (8, 0)
    assert fft.fft(put(np.zeros((0, 3)))).shape == (0, 3)
    assert fft.irfft(put(np.zeros((0, 3), "f4"))).dtype == np.float32


@pytest.mark.parametrize("n", [1, 4, 5, 16])
@in_worlds
def test_frequencies(n: int) -> None:
    for d in (1.0, 0.1, np.float32(2), 3):
        close(whole(fft.fftfreq(n, d)), np.fft.fftfreq(n, float(d)))
        close(whole(fft.rfftfreq(n, d=d)), np.fft.rfftfreq(n, float(d)))
    assert fft.fftfreq(n, dtype="float32").dtype == np.float32
    place = put(np.zeros(16), ("i", "j")).sharding
    if n == 16:
        found = fft.fftfreq(n, device=place)
        assert found.sharding == place
        close(whole(found), np.fft.fftfreq(n))


@in_worlds
def test_shifts() -> None:
    value = np.arange(7 * 8).reshape(7, 8)
    x = put(value, None, "i")
    for axes in (None, 0, (0, 1), -1):
        assert whole(fft.fftshift(x, axes)).tolist() == np.fft.fftshift(value, axes).tolist()
        assert whole(fft.ifftshift(x, axes)).tolist() == np.fft.ifftshift(value, axes).tolist()
        assert whole(fft.ifftshift(fft.fftshift(x, axes), axes)).tolist() == value.tolist()


def test_dtypes_and_shapes_are_those_of_jax(jax: Any) -> None:
    with jax.enable_x64(True):
        for name in (*ONE_DIM, *TWO_DIMS, *SEVERAL):
            for dtype in ("f4", "f8") if name in REAL else ("f4", "f8", "c8", "c16", "f2"):
                value = samples(name, (4, 6))
                value = (value.real if dtype[0] == "f" else value).astype(dtype)
                found, expected = (getattr(m, name)(value) for m in (fft, jax.numpy.fft))
                close(np.asarray(found), np.asarray(expected))
        assert {n for n in dir(jax.numpy.fft) if not n.startswith("_")} <= set(dir(fft))


@in_worlds
def test_refusals() -> None:
    x, z = put(np.ones((8, 6)), "i"), put(np.ones((8, 6), complex), "i")
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: fft.fft(x, 0),
            ArgumentError,
            "fft: the number of samples must be a positive integer, not 0",
        ),
        (lambda: fft.fft(x, 2.0), ArgumentError, r"fft: n must be an integer or None, got 2\.0"),
        (lambda: fft.irfft(x, axis=2), ArgumentError, "irfft: axis 2 is out of bounds .* 2 dims"),
        (
            lambda: fft.fft(x, axis=(0, 1)),
            ArgumentError,
            r"fft: axis must be an integer, got \(0, 1\)",
        ),
        (
            lambda: fft.hfft(x, norm="no"),
            ArgumentError,
            "hfft: norm must be 'backward', .* got 'no'",
        ),
        (lambda: fft.rfft(z), DtypeError, "rfft: takes real samples, got complex128. Use fft, or"),
        (lambda: fft.ihfft(z), DtypeError, "ihfft: takes real samples, got complex128. Use ifft"),
        (lambda: fft.rfft2(z), DtypeError, "rfft2: takes real samples, got complex128. Use fft2"),
        (
            lambda: fft.fftn(x, 4),
            ArgumentError,
            "fftn: s must be a sequence of integers or None, got 4",
        ),
        (lambda: fft.fftn(x, (4, 4, 4)), ArgumentError, r"fftn: s=\(4, 4, 4\) is longer .* 2 dims"),
        (lambda: fft.fftn(x, (4,), (0, 1)), ArgumentError, "fftn: s has 1 numbers .* for 2 axes"),
        (lambda: fft.fftn(x, axes=(0, -2)), ArgumentError, r"fftn: axis \(0, -2\) names a dim tw"),
        (
            lambda: fft.fftn(x, (0, 4)),
            ArgumentError,
            "fftn: the number of samples must be .* not 0",
        ),
        (lambda: fft.rfftn(x, axes=()), ArgumentError, "rfftn: the last axis is the real one"),
        (lambda: fft.fft2(x, axes=(0,)), ArgumentError, r"fft2: takes two axes, got \(0,\); fftn"),
        (lambda: fft.fftfreq(0), ArgumentError, "fftfreq: the number of samples .* not 0"),
        (lambda: fft.fftfreq(4, 0), ArgumentError, "fftfreq: d, the distance .* not 0"),
        (
            lambda: fft.rfftfreq(4, dtype=int),
            DtypeError,
            "rfftfreq: the dtype of frequencies must be .* not int64",
        ),
        (lambda: fft.fftshift(x, 3), ArgumentError, "fftshift: axis 3 is out of bounds"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
