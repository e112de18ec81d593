"""Cases of functions that work element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.programs.draw import ALL, Draw, dtype_named, letter_of
from tests.programs.table import Call, case

FLOATS = "fhs"


def first_dtype(operands: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The dtype of the first operand."""
    return operands[0].dtype


def _one(d: Draw, kinds: str, domain: str = "any") -> Call:
    return (d.array(kinds, domain=domain),), {}


@case(
    "numpy: isnan isinf isfinite logical_not conjugate conj positive negative"
    " square copy real imag isreal iscomplex iscomplexobj isrealobj"
    " lax: real imag neg square conj is_finite stop_gradient optimization_barrier"
    " nn: identity"
)
def anything(d: Draw, name: str) -> Call:
    kinds = {"positive": "infhsc", "negative": "infhsc", "neg": "infhsc", "conj": "infhsc"}
    return _one(d, {"square": "infhsc", "is_finite": "fhsc"}.get(name, kinds.get(name, ALL)))


@case(
    "numpy: floor ceil trunc rint signbit isneginf isposinf nan_to_num reciprocal frexp modf"
    " spacing"
    " lax: floor ceil reciprocal round"
)
def of_floats(d: Draw, name: str) -> Call:
    kinds = {"floor": "ifhs", "ceil": "ifhs", "trunc": "ifhs", "isneginf": "ifh", "isposinf": "ifh"}
    kinds |= {"frexp": "f", "modf": "f", "spacing": "f", "nan_to_num": "bifc", "reciprocal": "fhsc"}
    return _one(d, kinds.get(name, FLOATS))


@case("numpy: absolute abs sign angle lax: abs sign", ulps=4)
def signs(d: Draw, name: str) -> Call:
    kinds = {"angle": "ifc", "sign": "infhsc"}
    return _one(d, kinds.get(name, ALL))


@case(
    "numpy: invert bitwise_not bitwise_invert bitwise_count lax: bitwise_not population_count clz"
)
def bits(d: Draw, name: str) -> Call:
    return _one(d, "i" if "count" in name or name == "clz" else "bi")


@case(
    "numpy: exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan arcsin arccos arctan sinh"
    " cosh tanh arcsinh arccosh arctanh acos acosh asin asinh atan atanh deg2rad rad2deg degrees"
    " radians lax: exp exp2 expm1 log log1p sqrt rsqrt cbrt sin cos tan asin acos atan sinh cosh"
    " tanh asinh acosh atanh nn: tanh",
    ulps=8,
)
def transcendental(d: Draw, name: str) -> Call:
    real = {"cbrt", "deg2rad", "rad2deg", "degrees", "radians"}
    if d.chance(0.2) and name not in real:
        return _one(d, "c", "unit")
    domain = "unit" if name in ("arctanh", "atanh", "tan") else "any"
    return _one(d, "bi" + FLOATS if name not in ("atanh", "arctanh") else FLOATS, domain)


@case("lax: erf erfc erf_inv lgamma digamma logistic", ulps=40)
def special(d: Draw, name: str) -> Call:
    return _one(d, "fhs", "unit" if name == "erf_inv" else "finite")


@case("numpy: round")
def rounded(d: Draw, name: str) -> Call:
    x = d.array("ifc")
    return (x,), {"decimals": d.integer(0, 2) if letter_of(d.value(x)) != "i" else 0}


@case("lax: reduce_precision")
def precision(d: Draw, name: str) -> Call:
    exponents, mantissa = d.one_of([(5, 10), (8, 7), (4, 3), (5, 2)])
    kwargs = {"exponent_bits": exponents, "mantissa_bits": mantissa}
    return (d.array("fh"),), kwargs


@case("lax: integer_pow", ulps=8)
def integer_power(d: Draw, name: str) -> Call:
    return (d.array("ifh", domain="small"), d.integer(0, 3)), {}


@case("lax: bitcast_convert_type")
def bitcast(d: Draw, name: str) -> Call:
    x = d.array("if")
    size = d.value(x).dtype.itemsize
    kinds = {1: ["uint8", "int8"], 2: ["int16", "float16", "uint8", "bfloat16"]}
    kinds |= {4: ["uint32", "float32", "int16"], 8: ["int64", "float64", "uint8", "float32"]}
    return (x, d.one_of(kinds[size])), {}


@case("numpy: astype lax: convert_element_type")
def converted(d: Draw, name: str) -> Call:
    x = d.array(ALL, domain="small")
    real = ["bool", "int8", "int64", "uint4", "float16", "float32", "bfloat16", "float8_e5m2"]
    complex_ = ["complex64", "complex128"]
    wanted = d.one_of(complex_ if letter_of(d.value(x)) == "c" else [*real, *complex_])
    if wanted.startswith("uint"):
        x = d.array("uif"[1:], domain="positive")
    return (x, dtype_named(wanted)), {}


def pair(d: Draw, kinds: str, domain: str = "any", scalars: bool = True) -> list[Any]:
    """Draw two operands that broadcast, of dtypes that may differ; one may be a Python number."""
    first = d.array(kinds, domain=domain)
    shape = d.value(first).shape
    letter = letter_of(d.value(first))
    if scalars and d.chance(0.2):
        number = {"b": True, "i": d.integer(0, 3), "n": 1}.get(letter, d.one_of([1, 2.5, -0.5]))
        operands = [first, 1.5 - 2j if letter == "c" and d.chance(0.5) else number]
    else:
        mixed = d.chance(0.4)
        second_kinds = kinds if mixed else letter
        own = None if mixed or d.chance(0.3) else d.value(first).dtype
        second = d.array(
            second_kinds,
            shape=d.like(shape),
            domain=domain,
            ok=lambda x: own is None or x.dtype == own,
        )
        operands = [first, second]
    return operands[::-1] if d.chance(0.5) else operands


@case(
    "numpy: add subtract multiply maximum minimum equal not_equal less less_equal"
    " greater greater_equal logical_and logical_or logical_xor"
    " lax: add sub mul max min eq ne lt le gt ge"
)
def binary(d: Draw, name: str) -> Call:
    kinds = {
        "subtract": "infhsc",
        "sub": "infhsc",
        "add": ALL,
        "multiply": "binfhs",
        "mul": "binfhs",
    }
    return tuple(pair(d, kinds.get(name, ALL))), {}


@case("numpy: divide true_divide lax: div", ulps=2)
def quotients(d: Draw, name: str) -> Call:
    if name == "div":
        whole = d.chance(0.4)
        return tuple(pair(d, "i" if whole else FLOATS, "any", scalars=False)), {}
    return tuple(pair(d, "bifhs" if d.chance(0.8) else "c", "finite")), {}


@case(
    "numpy: floor_divide remainder mod fmod divmod fmax fmin copysign nextafter heaviside"
    " lax: rem nextafter"
)
def of_reals(d: Draw, name: str) -> Call:
    kinds = {"copysign": "f", "nextafter": "f", "heaviside": "f", "fmax": "bifhc", "fmin": "bifhc"}
    return tuple(pair(d, kinds.get(name, "ifh"))), {}


@case(
    "numpy: power pow float_power arctan2 atan2 hypot logaddexp logaddexp2 lax: pow atan2", ulps=8
)
def powers(d: Draw, name: str) -> Call:
    domain = "positive" if "pow" in name else "any"
    kinds = "f" if name in ("float_power", "lax.pow", "logaddexp2") else "fh"
    return tuple(pair(d, kinds, domain)), {}


@case("numpy: ldexp")
def scaled(d: Draw, name: str) -> Call:
    x = d.array("f", domain="finite")
    return (x, d.given(np.asarray(d.rng.integers(-3, 4, d.value(x).shape)))), {}


@case("numpy: gcd lcm")
def divisors(d: Draw, name: str) -> Call:
    return tuple(pair(d, "i", "small")), {}


@case("numpy: bitwise_and bitwise_or bitwise_xor lax: bitwise_and bitwise_or bitwise_xor")
def bitwise(d: Draw, name: str) -> Call:
    first = d.array("bi")
    second = d.array(letter_of(d.value(first)), shape=d.like(d.value(first).shape))
    return (first, second), {}


@case(
    "numpy: left_shift right_shift bitwise_left_shift bitwise_right_shift"
    " lax: shift_left shift_right_arithmetic shift_right_logical"
)
def shifts(d: Draw, name: str) -> Call:
    x = d.array("i")
    own = d.value(x).dtype
    amount = np.asarray(d.rng.integers(0, 3, d.like(d.value(x).shape))).astype(own)
    return (x, d.given(amount)), {}


@case("lax: complex")
def complexes(d: Draw, name: str) -> Call:
    x = d.array("f")
    same = d.array("f", shape=d.value(x).shape, ok=lambda y: y.dtype == d.value(x).dtype)
    return (x, same) if d.value(same).dtype.itemsize > 2 else (x, x), {}


@case("numpy: where lax: select")
def choices(d: Draw, name: str) -> Call:
    shape = d.shape()
    like = d.like if name == "where" else tuple
    condition = d.array("b", shape=like(shape))
    x = d.array(shape=like(shape))
    own = d.value(x).dtype
    kinds = ALL if name == "where" else letter_of(d.value(x))
    y = d.array(kinds, shape=like(shape), ok=lambda v: name == "where" or v.dtype == own)
    return (condition, x, y), {}


@case("lax: select_n")
def cases(d: Draw, name: str) -> Call:
    count = d.integer(2, 4)
    first = d.array("bifc")
    shape, dtype = d.value(first).shape, d.value(first).dtype
    which = d.given(np.asarray(d.rng.integers(0, count, shape if d.chance(0.7) else ())))
    rest = [d.array(shape=shape, kinds=letter_of(d.value(first)), ok=lambda v: v.dtype == dtype)]
    return (which, first, *(rest * (count - 1))), {}


@case("numpy: clip lax: clamp")
def limits(d: Draw, name: str) -> Call:
    x = d.array("ifh")
    shape, dtype = d.value(x).shape, d.value(x).dtype
    low, high = (
        d.array(letter_of(d.value(x)), shape=shape, ok=lambda v: v.dtype == dtype)
        if d.chance(0.4)
        else n
        for n in (d.integer(0, 1), d.integer(2, 3))
    )
    return ((low, x, high) if name == "clamp" else (x, low, high)), {}


@case("numpy: isclose")
def near(d: Draw, name: str) -> Call:
    return tuple(pair(d, "bifc", scalars=False)), {"equal_nan": d.chance(0.5)}


@case("numpy: allclose array_equal array_equiv")
def whole_answers(d: Draw, name: str) -> Call:
    x = d.array("bifc")
    alike = d.chance(0.5)
    y = x if alike else d.array("bifc", shape=d.value(x).shape)
    return (x, y), ({} if name == "array_equiv" else {"equal_nan": d.chance(0.5)})


@case(
    "nn: celu elu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu"
    " log_sigmoid mish relu relu6 selu sigmoid silu soft_sign softplus sparse_plus"
    " sparse_sigmoid swish log1mexp",
    ulps=16,
    wide=True,
    law=first_dtype,
)
def activations(d: Draw, name: str) -> Call:
    x = d.array("fh", domain="positive" if name == "log1mexp" else "tame")
    kwargs: dict[str, Any] = {}
    if name in ("celu", "elu") and d.chance(0.5):
        kwargs = {"alpha": 0.5}
    return (x,), kwargs


# The last bit of its argument changes many of a small erfc.
@case("nn: gelu", ulps=128, wide=True, law=first_dtype)
def gelu(d: Draw, name: str) -> Call:
    return (d.array("fh", domain="tame"),), {"approximate": d.chance(0.5)}


@case("nn: squareplus", ulps=16, wide=True, sums=True, law=first_dtype)
def cancelling(d: Draw, name: str) -> Call:
    return (d.array("fh", domain="tame"),), {}
