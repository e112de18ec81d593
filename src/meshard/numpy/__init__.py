"""NumPy's functions on arrays that are spread over devices.

Names, arguments and numerics are NumPy's and the Array API standard's. Each operation runs where
the data is, and its result is laid out as its operands are. ``device=`` of the functions that
make arrays takes a sharding.

>>> import meshard, meshard.numpy as mnp
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
>>> x = mnp.arange(32.0, device=meshard.NamedSharding(mesh, meshard.P("x"))).reshape(8, 4)
>>> y = mnp.tanh(x) + 1
>>> y.sharding.spec, mnp.sum(y, axis=1).sharding.spec, mnp.linalg.norm(x).item() > 0
(P('x',), P('x',), True)
"""

import typing as _typing

import numpy as _numpy

from meshard.algebra.attributes import door as _door
from meshard.ops.array import info as _info
from meshard.ops.array.create import (
    arange as arange,
    array as array,
    asarray as asarray,
    copy as copy,
    empty as empty,
    empty_like as empty_like,
    eye as eye,
    full as full,
    full_like as full_like,
    identity as identity,
    linspace as linspace,
    meshgrid as meshgrid,
    ones as ones,
    ones_like as ones_like,
    tri as tri,
    zeros as zeros,
    zeros_like as zeros_like,
)
from meshard.ops.array.diagonals import (
    diag as diag,
    tril as tril,
    triu as triu,
)
from meshard.ops.array.elementwise import (
    absolute as absolute,
    add as add,
    arccos as arccos,
    arccosh as arccosh,
    arcsin as arcsin,
    arcsinh as arcsinh,
    arctan as arctan,
    arctan2 as arctan2,
    arctanh as arctanh,
    astype as astype,
    bitwise_and as bitwise_and,
    bitwise_count as bitwise_count,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    cbrt as cbrt,
    ceil as ceil,
    clip as clip,
    conjugate as conjugate,
    copysign as copysign,
    cos as cos,
    cosh as cosh,
    deg2rad as deg2rad,
    divide as divide,
    divmod as divmod,
    equal as equal,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    float_power as float_power,
    floor as floor,
    floor_divide as floor_divide,
    fmax as fmax,
    fmin as fmin,
    fmod as fmod,
    frexp as frexp,
    gcd as gcd,
    greater as greater,
    greater_equal as greater_equal,
    heaviside as heaviside,
    hypot as hypot,
    imag as imag,
    invert as invert,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    lcm as lcm,
    ldexp as ldexp,
    left_shift as left_shift,
    less as less,
    less_equal as less_equal,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    logaddexp as logaddexp,
    logaddexp2 as logaddexp2,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    maximum as maximum,
    minimum as minimum,
    modf as modf,
    multiply as multiply,
    negative as negative,
    nextafter as nextafter,
    not_equal as not_equal,
    positive as positive,
    power as power,
    rad2deg as rad2deg,
    real as real,
    reciprocal as reciprocal,
    remainder as remainder,
    right_shift as right_shift,
    rint as rint,
    round as round,
    sign as sign,
    signbit as signbit,
    sin as sin,
    sinh as sinh,
    spacing as spacing,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    tan as tan,
    tanh as tanh,
    trunc as trunc,
    where as where,
)
from meshard.ops.array.info import (
    can_cast as can_cast,
    finfo as finfo,
    iinfo as iinfo,
    isdtype as isdtype,
    promote_types as promote_types,
    result_type as result_type,
)
from meshard.ops.array.join import (
    concat as concat,
    concatenate as concatenate,
    flip as flip,
    hstack as hstack,
    roll as roll,
    split as split,
    stack as stack,
    tile as tile,
    unstack as unstack,
    vstack as vstack,
)
from meshard.ops.array.nonzero import nonzero as nonzero
from meshard.ops.array.patterns import (
    append as append,
    array_split as array_split,
    atleast_3d as atleast_3d,
    column_stack as column_stack,
    diag_indices as diag_indices,
    diagflat as diagflat,
    dsplit as dsplit,
    dstack as dstack,
    fliplr as fliplr,
    flipud as flipud,
    from_dlpack as from_dlpack,
    fromfunction as fromfunction,
    geomspace as geomspace,
    hsplit as hsplit,
    indices as indices,
    logspace as logspace,
    ndim as ndim,
    rot90 as rot90,
    shape as shape,
    size as size,
    tril_indices as tril_indices,
    triu_indices as triu_indices,
    unravel_index as unravel_index,
    vander as vander,
    vsplit as vsplit,
)
from meshard.ops.array.shape import (
    atleast_1d as atleast_1d,
    atleast_2d as atleast_2d,
    broadcast_arrays as broadcast_arrays,
    broadcast_shapes as broadcast_shapes,
    broadcast_to as broadcast_to,
    expand_dims as expand_dims,
    matrix_transpose as matrix_transpose,
    moveaxis as moveaxis,
    permute_dims as permute_dims,
    ravel as ravel,
    reshape as reshape,
    squeeze as squeeze,
    swapaxes as swapaxes,
    transpose as transpose,
)
from meshard.ops.array.take import (
    take as take,
    take_along_axis as take_along_axis,
)
from meshard.ops.dtypes.laws import issubdtype as issubdtype
from meshard.ops.linalg.contract import (
    dot as dot,
    inner as inner,
    matmul as matmul,
    outer as outer,
    tensordot as tensordot,
    vdot as vdot,
    vecdot as vecdot,
)
from meshard.ops.linalg.products import (
    corrcoef as corrcoef,
    cov as cov,
)
from meshard.ops.linalg.products import einsum as einsum
from meshard.ops.linalg.norms import (
    cross as cross,
    diagonal as diagonal,
    trace as trace,
)
from meshard.ops.linalg.products import (
    matvec as matvec,
    vecmat as vecmat,
)
from meshard.ops.made import ufuncs as _ufuncs  # noqa: F401  (which gives add its reduce)
from meshard.ops.made.casts import (
    bfloat16 as bfloat16,
    bool as bool,
    bool_ as bool_,
    byte as byte,
    cdouble as cdouble,
    complex128 as complex128,
    complex64 as complex64,
    csingle as csingle,
    double as double,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    float8_e4m3b11fnuz as float8_e4m3b11fnuz,
    float8_e4m3fn as float8_e4m3fn,
    float8_e4m3fnuz as float8_e4m3fnuz,
    float8_e5m2 as float8_e5m2,
    float8_e5m2fnuz as float8_e5m2fnuz,
    half as half,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    int2 as int2,
    int4 as int4,
    int8 as int8,
    uint2 as uint2,
    uint4 as uint4,
    float8_e3m4 as float8_e3m4,
    float8_e4m3 as float8_e4m3,
    float8_e8m0fnu as float8_e8m0fnu,
    float4_e2m1fn as float4_e2m1fn,
    int_ as int_,
    intc as intc,
    intp as intp,
    long as long,
    longlong as longlong,
    short as short,
    single as single,
    ubyte as ubyte,
    uint as uint,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
    uint8 as uint8,
    uintc as uintc,
    uintp as uintp,
    ulong as ulong,
    ulonglong as ulonglong,
    ushort as ushort,
)
from meshard.ops.made.choices import (
    apply_over_axes as apply_over_axes,
    fabs as fabs,
    fill_diagonal as fill_diagonal,
    fix as fix,
    packbits as packbits,
    piecewise as piecewise,
    place as place,
    put as put,
    put_along_axis as put_along_axis,
    real_if_close as real_if_close,
    unpackbits as unpackbits,
)
from meshard.ops.made.counts import (
    histogram2d as histogram2d,
    histogramdd as histogramdd,
    lexsort as lexsort,
    sort_complex as sort_complex,
)
from meshard.ops.made.editing import (
    block as block,
    delete as delete,
    insert as insert,
    resize as resize,
    rollaxis as rollaxis,
    trim_zeros as trim_zeros,
)
from meshard.ops.made.grids import (
    c_ as c_,
    diag_indices_from as diag_indices_from,
    ix_ as ix_,
    mask_indices as mask_indices,
    mgrid as mgrid,
    ogrid as ogrid,
    r_ as r_,
    ravel_multi_index as ravel_multi_index,
    tril_indices_from as tril_indices_from,
    triu_indices_from as triu_indices_from,
)
from meshard.ops.made.pads import pad as pad
from meshard.ops.made.polynomials import (
    poly as poly,
    polyadd as polyadd,
    polyder as polyder,
    polydiv as polydiv,
    polyfit as polyfit,
    polyint as polyint,
    polymul as polymul,
    polysub as polysub,
    roots as roots,
)
from meshard.ops.made.repeats import repeat as repeat
from meshard.ops.made.signals import (
    bartlett as bartlett,
    blackman as blackman,
    convolve as convolve,
    correlate as correlate,
    gradient as gradient,
    hamming as hamming,
    hanning as hanning,
    i0 as i0,
    kaiser as kaiser,
    sinc as sinc,
    unwrap as unwrap,
)
from meshard.ops.reductions.composed import (
    allclose as allclose,
    angle as angle,
    array_equal as array_equal,
    array_equiv as array_equiv,
    choose as choose,
    interp as interp,
    isclose as isclose,
    iscomplex as iscomplex,
    iscomplexobj as iscomplexobj,
    isneginf as isneginf,
    isposinf as isposinf,
    isreal as isreal,
    isrealobj as isrealobj,
    kron as kron,
    nan_to_num as nan_to_num,
    polyval as polyval,
    select as select,
)
from meshard.ops.reductions.histogram import (
    bincount as bincount,
    histogram as histogram,
    histogram_bin_edges as histogram_bin_edges,
)
from meshard.ops.reductions.moments import (
    average as average,
    mean as mean,
    std as std,
    var as var,
)
from meshard.ops.reductions.partition import (
    argpartition as argpartition,
    partition as partition,
)
from meshard.ops.reductions.quantiles import (
    median as median,
    nanmedian as nanmedian,
    nanpercentile as nanpercentile,
    nanquantile as nanquantile,
    percentile as percentile,
    quantile as quantile,
)
from meshard.ops.reductions.reduce import (
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    count_nonzero as count_nonzero,
    max as max,
    min as min,
    prod as prod,
    ptp as ptp,
    sum as sum,
)
from meshard.ops.reductions.scan import (
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    diff as diff,
    ediff1d as ediff1d,
    nancumprod as nancumprod,
    nancumsum as nancumsum,
    trapezoid as trapezoid,
)
from meshard.ops.reductions.sets import (
    argwhere as argwhere,
    compress as compress,
    extract as extract,
    flatnonzero as flatnonzero,
    intersect1d as intersect1d,
    isin as isin,
    setdiff1d as setdiff1d,
    setxor1d as setxor1d,
    union1d as union1d,
    unique as unique,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from meshard.ops.reductions.sort import (
    argsort as argsort,
    digitize as digitize,
    searchsorted as searchsorted,
    sort as sort,
)
from meshard.ops.reductions.statistics import (
    nanargmax as nanargmax,
    nanargmin as nanargmin,
    nanmax as nanmax,
    nanmean as nanmean,
    nanmin as nanmin,
    nanprod as nanprod,
    nanstd as nanstd,
    nansum as nansum,
    nanvar as nanvar,
)
from meshard.runtime.array.array import Array as _Array
from meshard.runtime.array.at import writeable as writeable

abs = absolute
acos = arccos
amax = max
amin = min
around = round
asanyarray = asarray
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

generic = _numpy.generic
number = _numpy.number
integer = _numpy.integer
signedinteger = _numpy.signedinteger
unsignedinteger = _numpy.unsignedinteger
inexact = _numpy.inexact
floating = _numpy.floating
complexfloating = _numpy.complexfloating
dtype = _numpy.dtype
ndarray = _Array
newaxis = None
s_ = _numpy.s_
index_exp = _numpy.index_exp
errstate = _numpy.errstate
__array_api_version__ = "2025.12"
__array_namespace_info__ = _info.namespace_info
pi = _numpy.pi
e = _numpy.e
inf = _numpy.inf
nan = _numpy.nan
euler_gamma = _numpy.euler_gamma

if _typing.TYPE_CHECKING:
    from meshard.numpy import fft as fft, linalg as linalg
    from meshard.transforms.batching.vectorize import apply_along_axis as apply_along_axis
    from meshard.transforms.batching.vectorize import vectorize as vectorize
else:
    __all__, __dir__, __getattr__ = _door(
        __name__,
        late=(
            "meshard.numpy.fft",
            "meshard.numpy.linalg",
            "meshard.transforms.batching.vectorize:apply_along_axis",
            "meshard.transforms.batching.vectorize:vectorize",
        ),
        reference="numpy",
    )
