"""NumPy's functions on arrays that are spread over devices.

Names, arguments and numerics are NumPy's and the Array API standard's; results are laid out as
computation follows sharding. ``device=`` of the creation functions takes a sharding.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

import ml_dtypes as _ml_dtypes
import numpy as _numpy

from meshard.algebra.attributes import absent as _absent
from meshard.numpy import fft, linalg
from meshard.ops.array import info as _info
from meshard.ops.array.create import (
    arange,
    array,
    asarray,
    copy,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    identity,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tri,
    zeros,
    zeros_like,
)
from meshard.ops.array.diagonals import (
    diag,
    tril,
    triu,
)
from meshard.ops.array.elementwise import (
    absolute,
    add,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    astype,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cbrt,
    ceil,
    clip,
    conjugate,
    copysign,
    cos,
    cosh,
    deg2rad,
    divide,
    divmod,
    equal,
    exp,
    exp2,
    expm1,
    float_power,
    floor,
    floor_divide,
    fmax,
    fmin,
    fmod,
    frexp,
    gcd,
    greater,
    greater_equal,
    heaviside,
    hypot,
    imag,
    invert,
    isfinite,
    isinf,
    isnan,
    lcm,
    left_shift,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logaddexp2,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    modf,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    power,
    rad2deg,
    real,
    reciprocal,
    remainder,
    right_shift,
    rint,
    round,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from meshard.ops.array.info import (
    can_cast,
    finfo,
    iinfo,
    isdtype,
    promote_types,
    result_type,
)
from meshard.ops.array.join import (
    concat,
    concatenate,
    flip,
    hstack,
    pad,
    repeat,
    roll,
    split,
    stack,
    tile,
    unstack,
    vstack,
)
from meshard.ops.array.nonzero import (
    nonzero,
)
from meshard.ops.array.patterns import (
    append,
    array_split,
    atleast_3d,
    column_stack,
    diag_indices,
    diagflat,
    dsplit,
    dstack,
    fliplr,
    flipud,
    from_dlpack,
    fromfunction,
    geomspace,
    hsplit,
    indices,
    logspace,
    ndim,
    rot90,
    shape,
    size,
    tril_indices,
    triu_indices,
    unravel_index,
    vander,
    vsplit,
)
from meshard.ops.array.shape import (
    atleast_1d,
    atleast_2d,
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    permute_dims,
    ravel,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from meshard.ops.array.take import take, take_along_axis
from meshard.ops.linalg.contract import (
    dot,
    inner,
    matmul,
    outer,
    tensordot,
    vdot,
    vecdot,
)
from meshard.ops.linalg.covariance import corrcoef, cov
from meshard.ops.linalg.einsum import einsum
from meshard.ops.linalg.norms import (
    cross,
    diagonal,
    trace,
)
from meshard.ops.reductions.composed import (
    allclose,
    angle,
    array_equal,
    array_equiv,
    choose,
    interp,
    isclose,
    iscomplex,
    iscomplexobj,
    isneginf,
    isposinf,
    isreal,
    isrealobj,
    kron,
    nan_to_num,
    polyval,
    select,
)
from meshard.ops.reductions.histogram import (
    bincount,
    histogram,
    histogram_bin_edges,
)
from meshard.ops.reductions.moments import (
    average,
    mean,
    std,
    var,
)
from meshard.ops.reductions.reduce import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    max,
    min,
    prod,
    ptp,
    sum,
)
from meshard.ops.reductions.scan import (
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    diff,
    ediff1d,
    nancumprod,
    nancumsum,
    trapezoid,
)
from meshard.ops.reductions.sets import (
    argwhere,
    compress,
    extract,
    flatnonzero,
    intersect1d,
    isin,
    setdiff1d,
    setxor1d,
    union1d,
    unique,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from meshard.ops.reductions.sort import (
    argpartition,
    argsort,
    digitize,
    partition,
    searchsorted,
    sort,
)
from meshard.ops.reductions.statistics import (
    median,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
    percentile,
    quantile,
)
from meshard.runtime.array.array import Array as ndarray
from meshard.runtime.doors import install_namespace as _install_namespace

abs = absolute
acos = arccos
acosh = arccosh
asin = arcsin
asinh = arcsinh
atan = arctan
atan2 = arctan2
atanh = arctanh
bitwise_invert = invert
bitwise_left_shift = left_shift
bitwise_not = invert
bitwise_right_shift = right_shift
conj = conjugate
degrees = rad2deg
mod = remainder
pow = power
radians = deg2rad
true_divide = divide

bool_ = _numpy.bool_
int8 = _numpy.int8
int16 = _numpy.int16
int32 = _numpy.int32
int64 = _numpy.int64
uint8 = _numpy.uint8
uint16 = _numpy.uint16
uint32 = _numpy.uint32
uint64 = _numpy.uint64
float16 = _numpy.float16
float32 = _numpy.float32
float64 = _numpy.float64
complex64 = _numpy.complex64
complex128 = _numpy.complex128
bfloat16 = _ml_dtypes.bfloat16
float8_e4m3fn = _ml_dtypes.float8_e4m3fn
float8_e5m2 = _ml_dtypes.float8_e5m2
float8_e4m3b11fnuz = _ml_dtypes.float8_e4m3b11fnuz
float8_e4m3fnuz = _ml_dtypes.float8_e4m3fnuz
float8_e5m2fnuz = _ml_dtypes.float8_e5m2fnuz
bool = _numpy.bool_
dtype = _numpy.dtype
issubdtype = _numpy.issubdtype
newaxis = None
__array_api_version__ = "2024.12"
__array_namespace_info__ = _info.namespace_info
pi = _numpy.pi
e = _numpy.e
inf = _numpy.inf
nan = _numpy.nan
euler_gamma = _numpy.euler_gamma

# fmt: off
__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "angle", "any", "append",
    "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax",
    "argmin", "argpartition", "argsort", "argwhere", "array", "array_equal", "array_equiv",
    "array_split", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "atleast_1d",
    "atleast_2d", "atleast_3d", "average", "bfloat16", "bincount", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "bool_", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "can_cast", "cbrt", "ceil",
    "choose", "clip", "column_stack", "complex64", "complex128", "compress", "concat",
    "concatenate", "conj", "conjugate", "copy", "copysign", "corrcoef", "cos", "cosh",
    "count_nonzero", "cov", "cross", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum",
    "deg2rad", "degrees", "diag", "diag_indices", "diagflat", "diagonal", "diff", "digitize",
    "divide", "divmod", "dot", "dsplit", "dstack", "dtype", "e", "ediff1d", "einsum", "empty",
    "empty_like", "equal", "euler_gamma", "exp", "exp2", "expand_dims", "expm1", "extract", "eye",
    "fft", "finfo", "flatnonzero", "flip", "fliplr", "flipud", "float8_e4m3b11fnuz",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float16", "float32",
    "float64", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp",
    "from_dlpack", "fromfunction", "full", "full_like", "gcd", "geomspace", "greater",
    "greater_equal", "heaviside", "histogram", "histogram_bin_edges", "hsplit", "hstack", "hypot",
    "identity", "iinfo", "imag", "indices", "inf", "inner", "int8", "int16", "int32", "int64",
    "interp", "intersect1d", "invert", "isclose", "iscomplex", "iscomplexobj", "isdtype",
    "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isrealobj",
    "issubdtype", "kron", "lcm", "left_shift", "less", "less_equal", "linalg", "linspace", "log",
    "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logspace", "matmul", "matrix_transpose", "max", "maximum", "mean", "median",
    "meshgrid", "min", "minimum", "mod", "modf", "moveaxis", "multiply", "nan", "nan_to_num",
    "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum",
    "nanvar", "ndarray", "ndim", "negative", "newaxis", "nextafter", "nonzero", "not_equal", "ones",
    "ones_like", "outer", "pad", "partition", "percentile", "permute_dims", "pi", "polyval",
    "positive", "pow", "power", "prod", "promote_types", "ptp", "quantile", "rad2deg", "radians",
    "ravel", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "right_shift",
    "rint", "roll", "rot90", "round", "searchsorted", "select", "setdiff1d", "setxor1d", "shape",
    "sign", "signbit", "sin", "sinh", "size", "sort", "split", "sqrt", "square", "squeeze", "stack",
    "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh", "tensordot",
    "tile", "trace", "transpose", "trapezoid", "tri", "tril", "tril_indices", "triu",
    "triu_indices", "true_divide", "trunc", "uint8", "uint16", "uint32", "uint64", "union1d",
    "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unravel_index",
    "unstack", "vander", "var", "vdot", "vecdot", "vsplit", "vstack", "where", "zeros",
    "zeros_like",
]
# fmt: on

_install_namespace(__name__)

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__, reference="numpy")
