"""Values that arguments of ``jax.lax`` are chosen from: precisions, algorithms, transforms."""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Any, NamedTuple


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
