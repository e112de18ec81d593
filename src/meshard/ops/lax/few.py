"""Names of ``jax.lax`` that stand alone: transforms, random bits, platforms, likenesses.

Values that arguments of ``jax.lax`` are chosen from: precisions, algorithms, transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum, auto
from typing import Any, NamedTuple

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops import fft as transforms
from meshard.ops.array import create
from meshard.ops.array.shape import broadcast_to, reshape
from meshard.ops.checked import DtypeLike
from meshard.ops.dtypes.laws import as_dtype, is_float
from meshard.ops.lax.table import named
from meshard.ops.random.keys import fold_in, key_data, split, wrap_key_data
from meshard.ops.random.uniform import bits
from meshard.ops.reductions.partition import top_k
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, DeviceLike, ShapeLike


class Precision(Enum):
    """How precise products are; they are computed in full precision in any case."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


class DotAlgorithm(NamedTuple):
    """How a machine may compute products; accepted where JAX accepts it, and computed in full.

    Attributes:
        lhs_precision_type: the dtype that the first operand is rounded to.
        rhs_precision_type: the dtype that the second operand is rounded to.
        accumulation_type: the dtype that products are added up in.
        lhs_component_count: into how many parts the first operand is divided.
        rhs_component_count: into how many parts the second operand is divided.
        num_primitive_operations: how many products there are of these parts.
        allow_imprecise_accumulation: whether sums may lose digits.
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class DotAlgorithmPreset(Enum):
    """Names of algorithms for products; accepted where JAX accepts them, and computed in full."""

    DEFAULT = auto()
    ANY_F8_ANY_F8_F32 = auto()
    ANY_F8_ANY_F8_F32_FAST_ACCUM = auto()
    ANY_F8_ANY_F8_ANY = auto()
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = auto()
    F16_F16_F16 = auto()
    F16_F16_F32 = auto()
    BF16_BF16_BF16 = auto()
    BF16_BF16_F32 = auto()
    BF16_BF16_F32_X3 = auto()
    BF16_BF16_F32_X6 = auto()
    BF16_BF16_F32_X9 = auto()
    TF32_TF32_F32 = auto()
    TF32_TF32_F32_X3 = auto()
    F32_F32_F32 = auto()
    F64_F64_F64 = auto()


class FftType(IntEnum):
    """Which transform `fft` does."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


class RandomAlgorithm(IntEnum):
    """Names of generators; the one that there is is Philox."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


@named(
    'lax.empty((2,), "float32").shape',
    "(2,)",
    dtype="the dtype.",
    out_sharding="a Sharding or Device to place the result on.",
)
def empty(shape: ShapeLike, dtype: DtypeLike, *, out_sharding: DeviceLike = None) -> Array:
    """Make an array whose elements nobody has set; they are zeros here."""
    return create.zeros(shape, dtype, device=out_sharding)


@named(
    "lax.broadcast_like(mnp.arange(2), mnp.ones((3, 2))).shape",
    "(3, 2)",
    arr="the array.",
    like_arr="the other.",
)
def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """Return the array repeated to the shape of another one.

    Raises:
        ShapeError: if it cannot be.
    """
    return broadcast_to(arr, as_array(like_arr).shape)


@named("lax.broadcast_to_rank(mnp.ones(3), 2).shape", "(1, 3)", rank="the number of dims.")
def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """Return the array with dims of size one in front, so that it has this many.

    Raises:
        ShapeError: if it has more.
    """
    value = as_array(x)
    if value.ndim > rank:
        raise ShapeError(
            f"broadcast_to_rank: an array of shape {value.shape} has {value.ndim} dims, which is "
            f"more than {rank}."
        )
    return reshape(value, (*(1,) * (rank - value.ndim), *value.shape))


_TRANSFORMS = {
    FftType.FFT: transforms.fftn,
    FftType.IFFT: transforms.ifftn,
    FftType.RFFT: transforms.rfftn,
    FftType.IRFFT: transforms.irfftn,
}


@named(
    'lax.fft(mnp.ones(4), "FFT", (4,)).real.tolist()',
    "[4.0, 0.0, 0.0, 0.0]",
    fft_type="a `FftType` or its name.",
    fft_lengths="the sizes of the last dims, which are transformed; of IRFFT those of the result.",
)
def fft(x: ArrayLike, fft_type: Any, fft_lengths: Sequence[int]) -> Array:
    """Return the discrete Fourier transform of the last dims.

    Raises:
        ArgumentError: if the transform is unknown.
        ShapeError: if the dims have other sizes.
        DtypeError: if RFFT is asked for of complex numbers.
    """
    name = str(getattr(fft_type, "name", fft_type)).upper()
    if name not in FftType.__members__:
        raise ArgumentError(
            f"fft: fft_type is one of {', '.join(FftType.__members__)}, not {shown(fft_type)}."
        )
    kind, value, count = FftType[name], as_array(x), len(fft_lengths)
    own = list(value.shape[value.ndim - count :]) if count <= value.ndim else []
    wanted = list(fft_lengths)
    if kind is FftType.IRFFT and wanted:
        wanted[-1] = wanted[-1] // 2 + 1
    if own != wanted:
        raise ShapeError(
            f"fft: {name} of the sizes {tuple(fft_lengths)} takes arrays whose last dims are "
            f"{tuple(wanted)}; the shape is {value.shape}."
        )
    if not count:
        return value
    if kind is FftType.RFFT and value.dtype.kind == "c":
        raise DtypeError(f"fft: RFFT takes real numbers, not {value.dtype}.")
    axes = tuple(range(value.ndim - count, value.ndim))
    return _TRANSFORMS[kind](value, tuple(fft_lengths), axes)


_NEAREST = {
    "k": "how many.",
    "reduction_dimension": "the dim.",
    "recall_target": "accepted as in JAX; all are found.",
    "reduction_input_size_override": "accepted as in JAX.",
    "aggregate_to_topk": "accepted as in JAX; there are k of them in any case.",
}


@named(
    "[v.tolist() for v in lax.approx_max_k(mnp.asarray([3.0, 9.0, 5.0]), 2)]",
    "[[9.0, 5.0], [1, 2]]",
    **_NEAREST,
)
def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """Return the k greatest elements along a dim, the greatest first, and their positions.

    Raises:
        ArgumentError: if the dim has fewer than ``k`` elements.
        DtypeError: if the elements are not floats.
    """
    x = _floats("approx_max_k", operand)
    return top_k(x, k, axis=reduction_dimension)


@named(
    "[v.tolist() for v in lax.approx_min_k(mnp.asarray([3.0, 9.0, 5.0]), 2)]",
    "[[3.0, 5.0], [0, 2]]",
    **_NEAREST,
)
def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Array, Array]:
    """Return the k least elements along a dim, the least first, and their positions.

    Raises:
        ArgumentError: if the dim has fewer than ``k`` elements.
        DtypeError: if the elements are not floats.
    """
    x = _floats("approx_min_k", operand)
    found, places = top_k(bind("negative", x), k, axis=reduction_dimension)
    return bind("negative", found), places


def _floats(what: str, operand: Any) -> Any:
    x = as_array(operand)
    if not is_float(x.dtype):
        raise DtypeError(f"{what}: takes floats; the dtype is {x.dtype}.")
    return x


@named(
    "[v.shape for v in lax.rng_bit_generator(mnp.arange(4, dtype='uint32'), (3,))]",
    "[(4,), (3,)]",
    key="the state: four uint32 or two uint64, of which all count.",
    shape="the shape of the bits.",
    dtype="their dtype, unsigned integers.",
    algorithm="a `RandomAlgorithm` or its number; the generator is Philox in any case, with the "
    "streams of ``meshard.random``, so that bits are not XLA's.",
)
def rng_bit_generator(
    key: ArrayLike, shape: ShapeLike, dtype: DtypeLike = np.uint32, algorithm: Any = 0
) -> tuple[Array, Array]:
    """Return the next state of a random generator, and random bits.

    Raises:
        ShapeError: if the state has another shape.
        DtypeError: if it has another dtype.
        ArgumentError: if the algorithm is unknown.
    """
    what, state = "rng_bit_generator", as_array(key)
    number = getattr(algorithm, "value", algorithm)
    if number not in [a.value for a in RandomAlgorithm]:
        raise ArgumentError(f"{what}: there is no RandomAlgorithm {shown(algorithm)}.")
    if state.dtype not in (np.dtype(np.uint32), np.dtype(np.uint64)):
        raise DtypeError(f"{what}: key is uint32 or uint64, not {state.dtype}.")
    if state.shape != (16 // state.dtype.itemsize,):
        raise ShapeError(
            f"{what}: key is four uint32 or two uint64; it is {state.dtype} of shape {state.shape}."
        )
    words = bind("bitcast", state, dtype=_WORD) if state.dtype != _WORD else state
    words = reshape(words, (2, 2))
    first = fold_in(wrap_key_data(words[0]), bind("bitcast", words[1], dtype=_LONG))
    found = bits(first, shape, as_dtype(dtype))
    after = reshape(key_data(split(first, 2)), (4,))
    return (
        after if state.dtype == _WORD else bind("bitcast", reshape(after, (2, 2)), dtype=_LONG)
    ), found


_WORD, _LONG = np.dtype(np.uint32), np.dtype(np.uint64)


@named(
    "lax.platform_dependent(mnp.ones(2), cpu=mnp.sin, default=mnp.cos).round(2).tolist()",
    "[0.84, 0.84]",
    args="what the function is called with.",
    default="the function for all other platforms.",
)
def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """Return what the function for the platform returns, which is ``cpu`` here.

    Functions are given by the names of platforms, as in ``cpu=f``.

    Raises:
        ArgumentError: if there is no function for it.
    """
    chosen = per_platform.get("cpu", default)
    if not callable(chosen):
        raise ArgumentError(
            f"platform_dependent: the platform is 'cpu'; there are functions for "
            f"{sorted(per_platform)}. Pass cpu= or default=."
        )
    return chosen(*args)
