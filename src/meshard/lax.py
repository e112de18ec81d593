"""Operations by the names of ``jax.lax``, on arrays that are spread over devices.

JAX's own demand operands of one dtype and mostly of one shape; these promote dtypes and broadcast
as NumPy does. Results are laid out as computation follows sharding.
"""

from meshard.ops.dynamic import (
    dynamic_index_in_dim,
    dynamic_slice,
    dynamic_slice_in_dim,
    dynamic_update_index_in_dim,
    dynamic_update_slice,
    dynamic_update_slice_in_dim,
)
from meshard.ops.lax_elementwise import BINARY as _BINARY
from meshard.ops.lax_elementwise import UNARY as _UNARY
from meshard.ops.lax_elementwise import (
    RoundingMethod,
    bitcast_convert_type,
    clamp,
    convert_element_type,
    integer_pow,
    reduce_precision,
    round,
    rsqrt,
    select,
    select_n,
)
from meshard.ops.lax_fold import (
    associative_scan,
    reduce,
)
from meshard.ops.lax_reduce import (
    argmax,
    argmin,
    batch_matmul,
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    dot,
    dot_general,
    optimization_barrier,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
    reduce_xor,
    sort,
    sort_key_val,
    stop_gradient,
    top_k,
)
from meshard.ops.lax_shape import (
    broadcast,
    broadcast_in_dim,
    broadcasted_iota,
    collapse,
    concatenate,
    expand_dims,
    full,
    full_like,
    index_in_dim,
    index_take,
    iota,
    pad,
    reshape,
    rev,
    slice,
    slice_in_dim,
    split,
    squeeze,
    stack,
    tile,
    transpose,
    unstack,
)
from meshard.ops.shape import broadcast_shapes
from meshard.transforms.control_flow import cond, fori_loop, map, scan, switch, while_loop
from meshard.transforms.named_axes import (
    all_gather,
    all_gather_invariant,
    all_to_all,
    axis_index,
    axis_size,
    pbroadcast,
    pcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    pshuffle,
    psum,
    psum_scatter,
    pswapaxes,
    pvary,
)

abs = _UNARY["abs"]
acos = _UNARY["acos"]
acosh = _UNARY["acosh"]
asin = _UNARY["asin"]
asinh = _UNARY["asinh"]
atan = _UNARY["atan"]
atanh = _UNARY["atanh"]
bitwise_not = _UNARY["bitwise_not"]
cbrt = _UNARY["cbrt"]
ceil = _UNARY["ceil"]
clz = _UNARY["clz"]
conj = _UNARY["conj"]
cos = _UNARY["cos"]
cosh = _UNARY["cosh"]
digamma = _UNARY["digamma"]
erf = _UNARY["erf"]
erf_inv = _UNARY["erf_inv"]
erfc = _UNARY["erfc"]
exp = _UNARY["exp"]
exp2 = _UNARY["exp2"]
expm1 = _UNARY["expm1"]
floor = _UNARY["floor"]
imag = _UNARY["imag"]
is_finite = _UNARY["is_finite"]
lgamma = _UNARY["lgamma"]
log = _UNARY["log"]
log1p = _UNARY["log1p"]
logistic = _UNARY["logistic"]
neg = _UNARY["neg"]
population_count = _UNARY["population_count"]
real = _UNARY["real"]
reciprocal = _UNARY["reciprocal"]
sign = _UNARY["sign"]
sin = _UNARY["sin"]
sinh = _UNARY["sinh"]
sqrt = _UNARY["sqrt"]
square = _UNARY["square"]
tan = _UNARY["tan"]
tanh = _UNARY["tanh"]

add = _BINARY["add"]
atan2 = _BINARY["atan2"]
bitwise_and = _BINARY["bitwise_and"]
bitwise_or = _BINARY["bitwise_or"]
bitwise_xor = _BINARY["bitwise_xor"]
complex = _BINARY["complex"]
div = _BINARY["div"]
eq = _BINARY["eq"]
ge = _BINARY["ge"]
gt = _BINARY["gt"]
le = _BINARY["le"]
lt = _BINARY["lt"]
max = _BINARY["max"]
min = _BINARY["min"]
mul = _BINARY["mul"]
ne = _BINARY["ne"]
nextafter = _BINARY["nextafter"]
pow = _BINARY["pow"]
rem = _BINARY["rem"]
shift_left = _BINARY["shift_left"]
shift_right_arithmetic = _BINARY["shift_right_arithmetic"]
shift_right_logical = _BINARY["shift_right_logical"]
sub = _BINARY["sub"]

# fmt: off
__all__ = [
    "RoundingMethod", "abs", "acos", "acosh", "add", "all_gather", "all_gather_invariant",
    "all_to_all", "argmax", "argmin", "asin", "asinh", "associative_scan", "atan", "atan2", "atanh",
    "axis_index", "axis_size", "batch_matmul", "bitcast_convert_type", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "broadcast", "broadcast_in_dim", "broadcast_shapes",
    "broadcasted_iota", "cbrt", "ceil", "clamp", "clz", "collapse", "complex", "concatenate",
    "cond", "conj", "convert_element_type", "cos", "cosh", "cumlogsumexp", "cummax", "cummin",
    "cumprod", "cumsum", "digamma", "div", "dot", "dot_general", "dynamic_index_in_dim",
    "dynamic_slice", "dynamic_slice_in_dim", "dynamic_update_index_in_dim", "dynamic_update_slice",
    "dynamic_update_slice_in_dim", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expand_dims",
    "expm1", "floor", "fori_loop", "full", "full_like", "ge", "gt", "imag", "index_in_dim",
    "index_take", "integer_pow", "iota", "is_finite", "le", "lgamma", "log", "log1p", "logistic",
    "lt", "map", "max", "min", "mul", "ne", "neg", "nextafter", "optimization_barrier", "pad",
    "pbroadcast", "pcast", "pmax", "pmean", "pmin", "population_count", "pow", "ppermute",
    "pshuffle", "psum", "psum_scatter", "pswapaxes", "pvary", "real", "reciprocal", "reduce",
    "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision", "reduce_prod",
    "reduce_sum", "reduce_xor", "rem", "reshape", "rev", "round", "rsqrt", "scan", "select",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "slice", "slice_in_dim", "sort", "sort_key_val", "split", "sqrt", "square", "squeeze",
    "stack", "stop_gradient", "sub", "switch", "tan", "tanh", "tile", "top_k", "transpose",
    "unstack", "while_loop",
]
# fmt: on
