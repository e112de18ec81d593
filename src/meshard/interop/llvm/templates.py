"""Elementwise operations as instructions of LLVM, with NumPy's results to the last bit.

In: an operation, the dtype of its operands, and their registers. Out: the register of the result.
What is not here is left to NumPy's own loops: transcendental functions, integer division.
No instruction has a fast-math flag, so that LLVM neither contracts nor reorders.

Transcendental functions as polynomials, for ``jit_math = "fast"``: within 2 ulp, without NumPy.

In: a namespace of elementwise operations, and a value of float32 or float64. Out: formulas that
compile into the loops around them, where NumPy's own loops would need the values side by side. The
polynomials are those of Moshier's Cephes Mathematical Library 2.8 (expf.c, exp.c, logf.c, tanhf.c,
tanh.c). `two_to`, `exponent` and `fraction` are operations on the bits of floats (`templates`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.ops.array.formulas import polynomial

Dtype = np.dtype[Any]
Emit = Callable[[str], str]
"""Writes an instruction and returns the register that it sets."""
Template = Callable[[Emit, Dtype, Sequence[str]], str]


def register_type(dtype: Dtype) -> str:
    """Return the type that a value of a dtype has in a register."""
    if dtype.kind == "b":
        return "i1"
    if dtype.kind == "f":
        return "float" if dtype.itemsize == 4 else "double"
    return f"i{8 * dtype.itemsize}"


def memory_type(dtype: Dtype) -> str:
    """Return the type that a value of a dtype has in memory."""
    return "i8" if dtype.kind == "b" else register_type(dtype)


def constant(value: Any, dtype: Dtype) -> str:
    """Return a number as LLVM writes it: floats by their bits."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind == "f":
        (bits,) = struct.unpack("<Q", struct.pack("<d", float(value)))
        return f"0x{bits:016X}"
    return str(int(value))


def has_template(name: str, dtype: Dtype) -> bool:
    """Whether an operation on operands of a dtype is compiled, and not NumPy's loop."""
    return name in TABLES[dtype.kind]


def emitted(name: str, emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    """Write an operation on operands of a dtype, and return the register of its result."""
    return TABLES[dtype.kind][name](emit, dtype, args)


def _plain(code: str) -> Template:
    return lambda emit, dtype, args: emit(f"{code} {register_type(dtype)} {', '.join(args)}")


def _intrinsic(name: str) -> Template:
    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        kind = register_type(dtype)
        given = ", ".join([f"{kind} {x}" for x in args])
        return emit(f"call {kind} @llvm.{name}.f{8 * dtype.itemsize}({given})")

    return template


def _same(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return args[0]


def _square(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return _plain("fmul" if dtype.kind == "f" else "mul")(emit, dtype, [args[0], args[0]])


def _picked(emit: Emit, dtype: Dtype, condition: str, one: str, other: str) -> str:
    kind = register_type(dtype)
    return emit(f"select i1 {condition}, {kind} {one}, {kind} {other}")


def _float_extreme(compare: str, either: bool) -> Template:
    """Return a maximum or minimum; of equal operands it is the second, as NumPy's loops have it.

    Args:
        compare: the comparison that picks the first operand.
        either: whether it is NaN where either operand is, else only where both are.
    """

    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        a, b = args
        kind = register_type(dtype)
        best = _picked(emit, dtype, emit(f"fcmp {compare} {kind} {a}, {b}"), a, b)
        tested, taken = (a, a) if either else (b, a)
        missing = emit(f"fcmp uno {kind} {tested}, {tested}")
        return _picked(emit, dtype, missing, taken, best)

    return template


def _whole_extreme(name: str) -> Template:
    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        kind = register_type(dtype)
        sign = "s" if dtype.kind == "i" else "u"
        return emit(f"call {kind} @llvm.{sign}{name}.{kind}({kind} {args[0]}, {kind} {args[1]})")

    return template


def _float_sign(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    (x,) = args
    kind = register_type(dtype)
    zero, one, less = (constant(v, dtype) for v in (0.0, 1.0, -1.0))
    found = _picked(emit, dtype, emit(f"fcmp oeq {kind} {x}, {zero}"), zero, x)
    found = _picked(emit, dtype, emit(f"fcmp olt {kind} {x}, {zero}"), less, found)
    return _picked(emit, dtype, emit(f"fcmp ogt {kind} {x}, {zero}"), one, found)


def _whole_sign(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    (x,) = args
    kind = register_type(dtype)
    signed = dtype.kind == "i"
    above = emit(f"icmp {'sgt' if signed else 'ne'} {kind} {x}, 0")
    found = emit(f"zext i1 {above} to {kind}")
    return _picked(emit, dtype, emit(f"icmp slt {kind} {x}, 0"), "-1", found) if signed else found


def _whole_absolute(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    (x,) = args
    if dtype.kind == "u":
        return x
    kind = register_type(dtype)
    turned = emit(f"sub {kind} 0, {x}")
    return _picked(emit, dtype, emit(f"icmp slt {kind} {x}, 0"), turned, x)


def _negative(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return emit(f"sub {register_type(dtype)} 0, {args[0]}")


def _reciprocal(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return emit(f"fdiv {register_type(dtype)} {constant(1.0, dtype)}, {args[0]}")


def _magnitude_test(compare: str) -> Template:
    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        size = _intrinsic("fabs")(emit, dtype, args)
        return emit(f"fcmp {compare} {register_type(dtype)} {size}, {constant(np.inf, dtype)}")

    return template


def _missing(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return emit(f"fcmp uno {register_type(dtype)} {args[0]}, {args[0]}")


def _signbit(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    whole = f"i{8 * dtype.itemsize}"
    bits = emit(f"bitcast {register_type(dtype)} {args[0]} to {whole}")
    return emit(f"icmp slt {whole} {bits}, 0")


def truth(emit: Emit, dtype: Dtype, x: str) -> str:
    """Return whether a value is not zero."""
    if dtype.kind == "b":
        return x
    if dtype.kind == "f":
        return emit(f"fcmp une {register_type(dtype)} {x}, {constant(0.0, dtype)}")
    return emit(f"icmp ne {register_type(dtype)} {x}, 0")


def _logical(code: str) -> Template:
    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        one, other = (truth(emit, dtype, x) for x in args)
        return emit(f"{code} i1 {one}, {other}")

    return template


def _logical_not(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return emit(f"xor i1 {truth(emit, dtype, args[0])}, true")


def _all_ones(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    return emit(f"xor {register_type(dtype)} {args[0]}, -1")


def _shift(left: bool) -> Template:
    """Return a shift; by as many bits as there are, or more, NumPy shifts everything out."""

    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        x, count = args
        kind, bits = register_type(dtype), 8 * dtype.itemsize
        inside = emit(f"icmp ult {kind} {count}, {bits}")
        safe = _picked(emit, dtype, inside, count, "0")
        if left:
            return _picked(emit, dtype, inside, emit(f"shl {kind} {x}, {safe}"), "0")
        code = "ashr" if dtype.kind == "i" else "lshr"
        rest = emit(f"ashr {kind} {x}, {bits - 1}") if dtype.kind == "i" else "0"
        return _picked(emit, dtype, inside, emit(f"{code} {kind} {x}, {safe}"), rest)

    return template


def _two_to(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    """Return 2 to the power of a whole number, which must be that of a normal float."""
    kind, whole, digits, bias = _float_format(dtype)
    known = emit(f"fcmp ord {kind} {args[0]}, {args[0]}")
    safe = emit(f"select i1 {known}, {kind} {args[0]}, {kind} {constant(0.0, dtype)}")
    n = emit(f"fptosi {kind} {safe} to {whole}")
    bits = emit(f"shl {whole} {emit(f'add {whole} {n}, {bias}')}, {digits}")
    return emit(f"bitcast {whole} {bits} to {kind}")


def _exponent(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    """Return the exponent of a positive normal float, for a fraction in [1/2, 1)."""
    kind, whole, digits, bias = _float_format(dtype)
    bits = emit(f"lshr {whole} {emit(f'bitcast {kind} {args[0]} to {whole}')}, {digits}")
    return emit(f"sitofp {whole} {emit(f'sub {whole} {bits}, {bias - 1}')} to {kind}")


def _fraction(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
    """Return the fraction in [1/2, 1) of a positive normal float."""
    kind, whole, digits, bias = _float_format(dtype)
    bits = emit(f"bitcast {kind} {args[0]} to {whole}")
    bits = emit(f"and {whole} {bits}, {(1 << digits) - 1}")
    bits = emit(f"or {whole} {bits}, {(bias - 1) << digits}")
    return emit(f"bitcast {whole} {bits} to {kind}")


def _float_format(dtype: Dtype) -> tuple[str, str, int, int]:
    """Return a float's type, that of its bits, its digits, and the bias of its exponent."""
    single = dtype.itemsize == 4
    return (
        register_type(dtype),
        f"i{8 * dtype.itemsize}",
        23 if single else 52,
        (127 if single else 1023),
    )


def _compare(name: str) -> Template:
    floating, signed, unsigned = _COMPARISONS[name]

    def template(emit: Emit, dtype: Dtype, args: Sequence[str]) -> str:
        code = f"fcmp {floating}" if dtype.kind == "f" else "icmp "
        if dtype.kind != "f":
            code += signed if dtype.kind == "i" else unsigned
        return emit(f"{code} {register_type(dtype)} {args[0]}, {args[1]}")

    return template


_COMPARISONS = {
    "equal": ("oeq", "eq", "eq"),
    "not_equal": ("une", "ne", "ne"),
    "less": ("olt", "slt", "ult"),
    "less_equal": ("ole", "sle", "ule"),
    "greater": ("ogt", "sgt", "ugt"),
    "greater_equal": ("oge", "sge", "uge"),
}
_LOGIC: dict[str, Template] = {
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": _logical_not,
    "positive": _same,
    "conjugate": _same,
    **{name: _compare(name) for name in _COMPARISONS},
}
FLOATS: dict[str, Template] = {
    **_LOGIC,
    "absolute": _intrinsic("fabs"),
    "add": _plain("fadd"),
    "ceil": _intrinsic("ceil"),
    "copysign": _intrinsic("copysign"),
    "divide": _plain("fdiv"),
    "exponent": _exponent,
    "floor": _intrinsic("floor"),
    "fmax": _float_extreme("ogt", False),
    "fmin": _float_extreme("olt", False),
    "fraction": _fraction,
    "isfinite": _magnitude_test("olt"),
    "isinf": _magnitude_test("oeq"),
    "isnan": _missing,
    "maximum": _float_extreme("ogt", True),
    "minimum": _float_extreme("olt", True),
    "multiply": _plain("fmul"),
    "negative": _plain("fneg"),
    "reciprocal": _reciprocal,
    "rint": _intrinsic("rint"),
    "sign": _float_sign,
    "signbit": _signbit,
    "sqrt": _intrinsic("sqrt"),
    "square": _square,
    "subtract": _plain("fsub"),
    "trunc": _intrinsic("trunc"),
    "two_to": _two_to,
}
_WHOLE: dict[str, Template] = {
    **_LOGIC,
    "absolute": _whole_absolute,
    "add": _plain("add"),
    "bitwise_and": _plain("and"),
    "bitwise_or": _plain("or"),
    "bitwise_xor": _plain("xor"),
    "invert": _all_ones,
    "left_shift": _shift(True),
    "maximum": _whole_extreme("max"),
    "minimum": _whole_extreme("min"),
    "multiply": _plain("mul"),
    "negative": _negative,
    "right_shift": _shift(False),
    "sign": _whole_sign,
    "square": _square,
    "subtract": _plain("sub"),
}
_BOOLS: dict[str, Template] = {
    **_LOGIC,
    "absolute": _same,
    "add": _plain("or"),
    "bitwise_and": _plain("and"),
    "bitwise_or": _plain("or"),
    "bitwise_xor": _plain("xor"),
    "invert": _logical_not,
    "maximum": _plain("or"),
    "minimum": _plain("and"),
    "multiply": _plain("and"),
}
TABLES = {"f": FLOATS, "i": _WHOLE, "u": _WHOLE, "b": _BOOLS}
"""For each kind of dtype its templates, by the names of the rows."""


def converted(emit: Emit, source: Dtype, target: Dtype, x: str) -> str:
    """Write what makes a value of one dtype a value of another, as C does."""
    a, b = register_type(source), register_type(target)
    if source == target or (a == b and source.kind != "f"):
        return x
    if target.kind == "b":
        return truth(emit, source, x)
    if source.kind == "f" and target.kind != "f":
        return _truncated(emit, a, target, x)
    if source.kind == "f":
        code = "fpext" if target.itemsize == 8 else "fptrunc"
    elif target.kind == "f":
        code = "sitofp" if source.kind == "i" else "uitofp"
    elif source.kind == "b" or target.itemsize > source.itemsize:
        code = "sext" if source.kind == "i" else "zext"
    else:
        code = "trunc"
    return emit(f"{code} {a} {x} to {b}")


def _truncated(emit: Emit, kind: str, target: Dtype, x: str) -> str:
    """Write what makes a float an integer.

    Beyond the target's range C leaves open what comes out, and on common processors it is what the
    longer integer's last bits say.
    """
    own = register_type(target)
    wide = "i32" if target.kind == "i" and target.itemsize <= 4 else "i64"
    found = emit(f"fptosi {kind} {x} to {wide}")
    return found if wide == own else emit(f"trunc {wide} {found} to {own}")


_LOG2E = 1.4426950408889634
_EXP = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)
_EXP_P = (1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1)
_EXP_Q = (
    *(3.00198505138664455042e-6, 2.52448340349684104192e-3),
    *(2.27265548208155028766e-1, 2.00000000000000000009e0),
)
_PARTS = {4: (0.693359375, -2.12194440e-4), 8: (6.93145751953125e-1, 1.42860682030941723212e-6)}
"""The logarithm of 2 in two parts, of which the first has few digits."""
_RANGE = {4: (-104.5, 89.0), 8: (-746.0, 710.0)}
"""Where the exponential is neither zero nor infinite, and a little more."""
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_TANH = (
    *(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2),
    *(1.33314422036e-1, -3.33332819422e-1),
)
_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)


def exp(ops: Any, x: Any) -> Any:
    """Return e to the power of x: a power of two times that of a remainder below log(2) / 2."""
    size = x.dtype.itemsize
    low, high = _RANGE[size]
    x = ops.where(ops.less(x, low), low, ops.where(ops.greater(x, high), high, x))
    n = ops.floor(ops.add(ops.multiply(x, _LOG2E), 0.5))
    first, second = _PARTS[size]
    r = ops.subtract(ops.subtract(x, ops.multiply(n, first)), ops.multiply(n, second))
    square = ops.multiply(r, r)
    if size == 4:
        found = ops.multiply(polynomial(ops, _EXP, r), square)
        found = ops.add(ops.add(found, r), 1.0)
    else:
        top = ops.multiply(r, polynomial(ops, _EXP_P, square))
        rest = ops.divide(top, ops.subtract(polynomial(ops, _EXP_Q, square), top))
        found = ops.add(ops.multiply(rest, 2.0), 1.0)
    # In two steps, since neither of them must leave the range of exponents.
    half = ops.floor(ops.multiply(n, 0.5))
    found = ops.multiply(found, ops.two_to(half))
    return ops.multiply(found, ops.two_to(ops.subtract(n, half)))


def log(ops: Any, x: Any) -> Any:
    """Return the natural logarithm of a float32."""
    tiny = ops.less(x, float(np.finfo(np.float32).tiny))
    scaled = ops.where(tiny, ops.multiply(x, 8388608.0), x)
    n = ops.exponent(scaled)
    n = ops.where(tiny, ops.subtract(n, 23.0), n)
    m = ops.fraction(scaled)  # in [1/2, 1)
    below = ops.less(m, 0.70710678118654752440)
    n = ops.where(below, ops.subtract(n, 1.0), n)
    m = ops.subtract(ops.where(below, ops.add(m, m), m), 1.0)
    square = ops.multiply(m, m)
    y = ops.multiply(ops.multiply(polynomial(ops, _LOG, m), m), square)
    first, second = _PARTS[4]
    y = ops.add(y, ops.multiply(n, second))
    y = ops.subtract(y, ops.multiply(square, 0.5))
    found = ops.add(ops.add(m, y), ops.multiply(n, first))
    found = ops.where(ops.equal(x, np.inf), np.inf, found)
    found = ops.where(ops.equal(x, 0.0), -np.inf, found)
    return ops.where(ops.less(x, 0.0), np.nan, ops.where(ops.isnan(x), x, found))


def tanh(ops: Any, x: Any) -> Any:
    """Return the hyperbolic tangent."""
    size = ops.absolute(x)
    ease = exp(ops, ops.multiply(size, -2.0))
    far = ops.divide(ops.subtract(1.0, ease), ops.add(ease, 1.0))
    square = ops.multiply(x, x)
    if x.dtype.itemsize == 4:
        near = ops.multiply(polynomial(ops, _TANH, square), square)
    else:
        under = polynomial(ops, _TANH_Q, square)
        near = ops.multiply(ops.divide(polynomial(ops, _TANH_P, square), under), square)
    near = ops.add(ops.multiply(near, x), x)
    return ops.where(ops.less(size, 0.625), near, ops.copysign(far, x))


FAST: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("exp", "f"): exp,
    ("exp", "d"): exp,
    ("log", "f"): log,
    ("tanh", "f"): tanh,
    ("tanh", "d"): tanh,
}
"""By the ufunc and the dtype's character."""
