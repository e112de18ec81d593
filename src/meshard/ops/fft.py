"""Fourier transforms: ``meshard.numpy.fft``.

A transform needs its dim whole on a device: where the dim is split, its axes move to other dims
that are long enough, as a pencil transpose does, and where there are none every device gets the
whole dim. Transforms of several dims go dim by dim, first those that are whole already, so that no
device holds more than its share. Integers are taken as the default float, floats shorter than 32
bits as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError, DtypeError
from meshard.ops.array.create import arange
from meshard.ops.array.elementwise import conjugate, where
from meshard.ops.array.join import roll
from meshard.ops.checked import DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import (
    accumulator,
    as_dtype,
    default_float,
    is_float,
    is_whole,
    operand_dtype,
)
from meshard.ops.engine.later import when_laid_out
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike, Block, DeviceLike


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    dim, n = params["dim"], params["n"]
    before = [f"!{name}" if i == dim else name for i, name in enumerate(names)]
    after = ["frequency" if i == dim else name for i, name in enumerate(names)]
    size = n // 2 + 1 if params["how"] == "rfft" else n
    return f"{' '.join(before)} -> {' '.join(after)}", {"frequency": size}


def _dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    dtype = operand_dtype(operands[0])
    double = dtype.itemsize == (16 if dtype.kind == "c" else 8)
    if params["how"] == "irfft":
        return (np.dtype(np.float64 if double else np.float32),)
    return (np.dtype(np.complex128 if double else np.complex64),)


def _transform(x: Block, *, how: str, dim: int, n: int, norm: str) -> Block:
    """Transform one dim, cut or filled with zeros to `n` samples first."""
    if not x.size or not n:
        size = n // 2 + 1 if how == "rfft" else n
        (dtype,) = _dtype([(x.shape, x.dtype)], {"how": how})
        return np.zeros((*x.shape[:dim], size, *x.shape[dim + 1 :]), dtype)
    import scipy.fft

    found: Block = getattr(scipy.fft, how)(x, n, dim, norm)
    return found


register(Op("fft", _rule, _transform, dtypes=_dtype, sums=True))

_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _norm(name: str, norm: str | None) -> str:
    found = "backward" if norm is None else norm
    return choice_of(found, ("backward", "ortho", "forward"), name, "norm")


def _samples(name: str, x: Any, real: bool = False) -> Any:
    """Return what to transform: float32, float64 or a complex one.

    Raises:
        DtypeError: if ``real`` and the array is complex.
    """
    value = as_array(x)
    if real and value.dtype.kind == "c":
        raise DtypeError(
            f"{name}: takes real samples, got {value.dtype.name}. Use "
            f"{name.replace('ihfft', 'ifft').replace('rfft', 'fft')}, or take .real first."
        )
    wanted = default_float() if is_whole(value.dtype) else accumulator(value.dtype)
    return value.astype(wanted, copy=False)


def _length(name: str, n: Any) -> int:
    """Return a number of samples.

    Raises:
        ArgumentError: if it is not a positive integer.
    """
    if not hasattr(n, "__index__") or n.__index__() < 1:
        raise ArgumentError(f"{name}: the number of samples must be a positive integer, not {n!r}.")
    return int(n.__index__())


def _along(name: str, x: Any, how: str, n: int | None, dim: int, norm: str) -> Any:
    """Transform one dim; ``n`` is None for as many samples as there are."""
    size = x.shape[dim]
    if n is None:
        n = max(0, 2 * (size - 1)) if how == "irfft" else size
    needed = n // 2 + 1 if how == "irfft" else n
    if needed < size:  # what is cut off need not move
        x = x[(*(slice(None),) * dim, slice(0, needed))]
    return bind("fft", x, how=how, dim=dim, n=n, norm=norm)


def _one(name: str, a: Any, how: str, n: Any, axis: Any, norm: str) -> Any:
    """Transform one dim; ``how`` is scipy's name of the transform."""
    x = _samples(name, a, how == "rfft")
    if not hasattr(axis, "__index__"):
        raise ArgumentError(
            f"{name}: axis must be one integer, not {axis!r}; fftn and the like take several axes."
        )
    (dim,) = normalised_axes(axis, x.ndim, name)
    return _along(name, x, how, None if n is None else _length(name, n), dim, norm)


def _dims(name: str, ndim: int, s: Any, axes: Any) -> list[tuple[int, int | None]]:
    """Return the dims to transform in the order given, each with its number of samples.

    Raises:
        ArgumentError: if a dim does not exist or is named twice, or the lengths do not fit.
    """
    if s is not None and np.ndim(s) == 0:
        raise ArgumentError(f"{name}: s must give one number of samples per dim, got {s!r}.")
    lengths = None if s is None else list(s)
    if axes is not None:
        given = [axes] if np.ndim(axes) == 0 else list(axes)
        normalised_axes(tuple(given), ndim, name)
        dims = [normalised_axes(a, ndim, name)[0] for a in given]
    elif lengths is None:
        dims = list(range(ndim))
    else:
        if len(lengths) > ndim:
            raise ArgumentError(f"{name}: s={s} is longer than the array, of {ndim} dims.")
        dims = list(range(ndim - len(lengths), ndim))
    if lengths is None:
        return [(d, None) for d in dims]
    if len(lengths) != len(dims):
        raise ArgumentError(
            f"{name}: s has {len(lengths)} numbers of samples for {len(dims)} axes."
        )
    # -1 is NumPy's way to say: as many as there are.
    return [(d, None if n == -1 else _length(name, n)) for d, n in zip(dims, lengths, strict=True)]


def _each(
    x: Any, *, name: str, how: str, work: Sequence[tuple[int, int | None]], scale: str
) -> Any:
    """Transform dims one after another, first those that are whole on each device."""
    place = x.sharding
    parts = place.shards(x.ndim) if isinstance(place, NamedSharding) else (1,) * x.ndim
    for dim, n in sorted(work, key=lambda one: parts[one[0]] > 1):
        x = _along(name, x, how, n, dim, scale)
    return x


def _many(name: str, a: Any, s: Any, axes: Any, norm: str | None) -> Any:
    """Transform several dims, each dim by itself, for a function such as ``fftn`` or ``irfft2``.

    A real transform takes the last dim named first, and its inverse takes it last. The order of the
    others is free, and those that are whole on each device go first.
    """
    how, two = name[:-1], name[-1] == "2"
    x = _samples(name, a, how == "rfft")
    scale = _norm(name, norm)
    work = _dims(name, x.ndim, s, axes)
    if two and len(work) != 2:
        raise ArgumentError(f"{name}: takes two axes, got {axes}; {how}n takes any number.")
    ends: list[tuple[int, int | None]] = []
    if how in ("rfft", "irfft"):
        if not work:
            raise ArgumentError(f"{name}: the last axis is the real one; name at least one.")
        ends.append(work.pop())
    if how == "rfft":
        ((dim, n),) = ends
        x = _along(name, x, "rfft", n, dim, scale)
    complex_way = "ifft" if how in ("ifft", "irfft") else "fft"
    if len(work) > 1:
        x = when_laid_out(name, _each, x, name=name, how=complex_way, work=tuple(work), scale=scale)
    else:
        x = _each(x, name=name, how=complex_way, work=work, scale=scale)
    if how == "irfft":
        ((dim, n),) = ends
        return _along(name, x, "irfft", n, dim, scale)
    if x.dtype.kind != "c":  # no dim was named
        return x.astype(np.result_type(x.dtype, np.complex64))
    return x


@checked
def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the discrete Fourier transform along a dim, which is made whole on each device.

    Args:
        a: the samples, real or complex.
        n: how many samples to take: the dim is cut, or filled with zeros; by default all.
        axis: the dim.
        norm: which way is divided by ``n``: ``"backward"`` (None means this), ``"forward"``, or
            ``"ortho"``, both by its square root.

    Returns:
        A complex array; complex64 of float32 and shorter floats.

    Raises:
        ArgumentError: if ``n``, ``axis`` or ``norm`` is not one of these.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.fft(mnp.asarray([1.0, 0.0, 0.0])).real.tolist()
    [1.0, 1.0, 1.0]
    """
    return _one("fft", a, "fft", n, axis, _norm("fft", norm))


@checked
def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the inverse of `fft`, whose arguments it takes.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.ifft(mnp.asarray([1.0, 1.0])).real.tolist()
    [1.0, 0.0]
    """
    return _one("ifft", a, "ifft", n, axis, _norm("ifft", norm))


@checked
def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the first half of the transform of real samples, ``n // 2 + 1`` numbers.

    Takes the arguments of `fft`.

    Raises:
        DtypeError: if the samples are complex.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.rfft(mnp.ones(4)).real.tolist()
    [4.0, 0.0, 0.0]
    """
    return _one("rfft", a, "rfft", n, axis, _norm("rfft", norm))


@checked
def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the inverse of `rfft`, real samples.

    Args:
        a: the half of a transform.
        n: how many samples to return, by default ``2 * (m - 1)`` for a dim of ``m``.
        axis: the dim.
        norm: as for `fft`.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.irfft(mnp.asarray([4.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return _one("irfft", a, "irfft", n, axis, _norm("irfft", norm))


@checked
def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the real transform of samples whose second half mirrors the first.

    Args:
        a: the half of the samples; the other half is its conjugate.
        n: how many numbers to return, by default ``2 * (m - 1)`` for a dim of ``m``.
        axis: the dim.
        norm: as for `fft`.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.hfft(mnp.asarray([1.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    scale = _SWAPPED[_norm("hfft", norm)]
    x = as_array(a)
    return _one("hfft", conjugate(x) if x.dtype.kind == "c" else x, "irfft", n, axis, scale)


@checked
def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the inverse of `hfft`: of real numbers one half of the samples, ``n // 2 + 1``.

    Takes the arguments of `fft`.

    Raises:
        DtypeError: if the numbers are complex.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.ihfft(mnp.ones(4)).real.tolist()
    [1.0, 0.0, 0.0]
    """
    scale = _SWAPPED[_norm("ihfft", norm)]
    return conjugate(_one("ihfft", a, "rfft", n, axis, scale))


@checked
def fftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Return the discrete Fourier transform along several dims.

    Each dim is made whole by itself, and its axes move to other dims, so that the result of split
    dims is laid out differently from the samples. Dims that are whole go first, and move nothing.

    Args:
        a: the samples, real or complex.
        s: how many samples to take along each of the axes; -1 for all; by default all.
        axes: the dims, each at most once; by default the last ``len(s)``, or all.
        norm: as for `fft`.

    Raises:
        ArgumentError: if an axis does not exist or is named twice, or ``s`` does not fit the axes.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.fftn(mnp.ones((2, 2))).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _many("fftn", a, s, axes, norm)


@checked
def ifftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Return the inverse of `fftn`, whose arguments it takes."""
    return _many("ifftn", a, s, axes, norm)


@checked
def rfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Return the transform of real samples along several dims; of the last one named only a half.

    Takes the arguments of `fftn`.

    Raises:
        DtypeError: if the samples are complex.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.rfftn(mnp.ones((2, 4))).shape
    (2, 3)
    """
    return _many("rfftn", a, s, axes, norm)


@checked
def irfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Return the inverse of `rfftn`, real samples; ``s`` says how many to return along each dim.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.irfftn(mnp.fft.rfftn(mnp.ones((2, 4)))).shape
    (2, 4)
    """
    return _many("irfftn", a, s, axes, norm)


@checked
def fft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Return the discrete Fourier transform along two dims, by default the last; see `fftn`."""
    return _many("fft2", a, s, axes, norm)


@checked
def ifft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Return the inverse of `fft2`."""
    return _many("ifft2", a, s, axes, norm)


@checked
def rfft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Return the transform of real samples along two dims, of the last a half; see `rfftn`."""
    return _many("rfft2", a, s, axes, norm)


@checked
def irfft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Return the inverse of `rfft2`."""
    return _many("irfft2", a, s, axes, norm)


def _grid(name: str, n: Any, d: Any, dtype: Any) -> tuple[int, float, Dtype]:
    """Return the number of samples, the distance of frequencies, and their dtype."""
    count = _length(name, n)
    wanted = default_float() if dtype is None else as_dtype(dtype)
    if not is_float(wanted) and wanted.kind != "c":
        raise DtypeError(f"{name}: the dtype of frequencies must be a float, not {wanted.name}.")
    distance = as_host(d, name)
    if distance.ndim or distance.dtype.kind not in "iuf" or not distance:
        raise ArgumentError(
            f"{name}: d, the distance between samples, must be a number other than 0, not {d!r}."
        )
    return count, 1.0 / (count * float(distance)), wanted


@checked
def fftfreq(n: int, d: float = 1.0, *, dtype: DtypeLike = None, device: DeviceLike = None) -> Array:
    """Return the frequencies of `fft`: zero, the positive ones, then the negative ones.

    Args:
        n: the number of samples.
        d: the distance between samples; frequencies are cycles per its unit.
        dtype: the dtype, by default the default float.
        device: a Sharding or Device for the result.

    Raises:
        ArgumentError: if ``n`` is not a positive integer, or ``d`` not a number other than zero.
        DtypeError: if the dtype is not a float.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.fftfreq(4, 0.5).tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    count, step, wanted = _grid("fftfreq", n, d, dtype)
    k = arange(count, device=device)
    return where(k < (count + 1) // 2, k, k - count).astype(wanted) * step


@checked
def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DtypeLike = None, device: DeviceLike = None
) -> Array:
    """Return the ``n // 2 + 1`` frequencies of `rfft`, none negative; see `fftfreq`.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    count, step, wanted = _grid("rfftfreq", n, d, dtype)
    return arange(count // 2 + 1, dtype=wanted, device=device) * step


@checked
def fftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Return the array with frequency zero moved to the middle of dims, by default all.

    >>> import meshard.numpy as mnp
    >>> mnp.fft.fftshift(mnp.arange(4)).tolist()
    [2, 3, 0, 1]
    """
    value = as_array(x)
    dims = normalised_axes(axes, value.ndim, "fftshift")
    return roll(value, tuple(value.shape[d] // 2 for d in dims), dims)


@checked
def ifftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of `fftshift`; the two differ for odd sizes."""
    value = as_array(x)
    dims = normalised_axes(axes, value.ndim, "ifftshift")
    return roll(value, tuple(-(value.shape[d] // 2) for d in dims), dims)
