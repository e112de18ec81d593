"""Operations with the names of ``jax.lax``, on arrays that are spread over devices.

JAX's functions require operands of one dtype and mostly of one shape; these promote dtypes and
broadcast as NumPy does. Results are laid out as their operands are. Collectives such as `psum`
run in the bodies of `shard_map`; control flow such as `scan` runs anywhere.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import P, lax
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4,), ("i",))
>>> def centred(tile):
...     return tile - lax.pmean(tile, "i")
>>> f = meshard.shard_map(centred, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
>>> f(mnp.asarray([1.0, 2.0, 3.0, 6.0])).tolist()
[-2.0, -1.0, 0.0, 3.0]
>>> lax.fori_loop(0, 3, lambda i, x: x * 2, mnp.asarray(1.0)).item()
8.0
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.array.dynamic import (
    dynamic_index_in_dim as dynamic_index_in_dim,
    dynamic_slice as dynamic_slice,
    dynamic_slice_in_dim as dynamic_slice_in_dim,
    dynamic_update_index_in_dim as dynamic_update_index_in_dim,
    dynamic_update_slice as dynamic_update_slice,
    dynamic_update_slice_in_dim as dynamic_update_slice_in_dim,
)
from meshard.ops.array.shape import broadcast_shapes as broadcast_shapes
from meshard.ops.lax.windows import (
    ConvDimensionNumbers as ConvDimensionNumbers,
    conv as conv,
    conv_dimension_numbers as conv_dimension_numbers,
    conv_general_dilated as conv_general_dilated,
    conv_general_dilated_patches as conv_general_dilated_patches,
    conv_transpose as conv_transpose,
    conv_with_general_padding as conv_with_general_padding,
    padtype_to_pads as padtype_to_pads,
)
from meshard.ops.lax.elementwise import (
    RoundingMethod as RoundingMethod,
    bitcast_convert_type as bitcast_convert_type,
    clamp as clamp,
    convert_element_type as convert_element_type,
    integer_pow as integer_pow,
    reduce_precision as reduce_precision,
    round as round,
    rsqrt as rsqrt,
    select as select,
    select_n as select_n,
)
from meshard.ops.lax.few import (
    approx_max_k as approx_max_k,
    approx_min_k as approx_min_k,
    broadcast_like as broadcast_like,
    broadcast_to_rank as broadcast_to_rank,
    empty as empty,
    fft as fft,
    platform_dependent as platform_dependent,
    rng_bit_generator as rng_bit_generator,
)
from meshard.ops.lax.few import (
    DotAlgorithm as DotAlgorithm,
    DotAlgorithmPreset as DotAlgorithmPreset,
    FftType as FftType,
    Precision as Precision,
    RandomAlgorithm as RandomAlgorithm,
)
from meshard.ops.lax.lookups import (
    GatherDimensionNumbers as GatherDimensionNumbers,
    GatherScatterMode as GatherScatterMode,
    ScatterDimensionNumbers as ScatterDimensionNumbers,
    gather as gather,
    scatter as scatter,
    scatter_add as scatter_add,
    scatter_apply as scatter_apply,
    scatter_max as scatter_max,
    scatter_min as scatter_min,
    scatter_mul as scatter_mul,
    scatter_sub as scatter_sub,
)
from meshard.ops.lax.ragged import ragged_dot as ragged_dot
from meshard.ops.lax.reduce import (
    argmax as argmax,
    argmin as argmin,
    associative_scan as associative_scan,
    batch_matmul as batch_matmul,
    cumlogsumexp as cumlogsumexp,
    cummax as cummax,
    cummin as cummin,
    cumprod as cumprod,
    cumsum as cumsum,
    dot as dot,
    dot_general as dot_general,
    optimization_barrier as optimization_barrier,
    reduce as reduce,
    reduce_and as reduce_and,
    reduce_max as reduce_max,
    reduce_min as reduce_min,
    reduce_or as reduce_or,
    reduce_prod as reduce_prod,
    reduce_sum as reduce_sum,
    reduce_xor as reduce_xor,
    sort as sort,
    sort_key_val as sort_key_val,
    stop_gradient as stop_gradient,
    top_k as top_k,
)
from meshard.ops.lax.shape import (
    broadcast as broadcast,
    broadcast_in_dim as broadcast_in_dim,
    broadcasted_iota as broadcasted_iota,
    collapse as collapse,
    concatenate as concatenate,
    expand_dims as expand_dims,
    full as full,
    full_like as full_like,
    index_in_dim as index_in_dim,
    index_take as index_take,
    iota as iota,
    pad as pad,
    reshape as reshape,
    rev as rev,
    slice as slice,
    slice_in_dim as slice_in_dim,
    split as split,
    squeeze as squeeze,
    stack as stack,
    tile as tile,
    transpose as transpose,
    unstack as unstack,
)
from meshard.ops.lax.special import (
    bessel_i0e as bessel_i0e,
    bessel_i1e as bessel_i1e,
    betainc as betainc,
    igamma as igamma,
    igammac as igammac,
    polygamma as polygamma,
    random_gamma_grad as random_gamma_grad,
    zeta as zeta,
)
from meshard.ops.lax.table import (
    abs as abs,
    acos as acos,
    acosh as acosh,
    add as add,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    bitwise_and as bitwise_and,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    cbrt as cbrt,
    ceil as ceil,
    clz as clz,
    complex as complex,
    conj as conj,
    cos as cos,
    cosh as cosh,
    digamma as digamma,
    div as div,
    eq as eq,
    erf as erf,
    erf_inv as erf_inv,
    erfc as erfc,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    floor as floor,
    ge as ge,
    gt as gt,
    imag as imag,
    is_finite as is_finite,
    le as le,
    lgamma as lgamma,
    log as log,
    log1p as log1p,
    logistic as logistic,
    lt as lt,
    max as max,
    min as min,
    mul as mul,
    ne as ne,
    neg as neg,
    nextafter as nextafter,
    population_count as population_count,
    pow as pow,
    real as real,
    reciprocal as reciprocal,
    rem as rem,
    shift_left as shift_left,
    shift_right_arithmetic as shift_right_arithmetic,
    shift_right_logical as shift_right_logical,
    sign as sign,
    sin as sin,
    sinh as sinh,
    sqrt as sqrt,
    square as square,
    sub as sub,
    tan as tan,
    tanh as tanh,
)
from meshard.ops.lax.windows import reduce_window as reduce_window
from meshard.transforms.collectives.halo import halo as halo, halo_add as halo_add
from meshard.transforms.collectives.named_axes import (
    all_gather as all_gather,
    all_gather_invariant as all_gather_invariant,
    all_to_all as all_to_all,
    axis_index as axis_index,
    axis_size as axis_size,
    pbroadcast as pbroadcast,
    pcast as pcast,
    pmax as pmax,
    pmean as pmean,
    pmin as pmin,
    ppermute as ppermute,
    pshuffle as pshuffle,
    psum as psum,
    psum_scatter as psum_scatter,
    pswapaxes as pswapaxes,
    pvary as pvary,
)
from meshard.transforms.collectives.ragged import ragged_all_to_all as ragged_all_to_all
from meshard.transforms.constraint import with_sharding_constraint as with_sharding_constraint
from meshard.transforms.custom.solving import (
    custom_linear_solve as custom_linear_solve,
    custom_root as custom_root,
)
from meshard.transforms.flow.control_flow import (
    cond as cond,
    fori_loop as fori_loop,
    switch as switch,
    while_loop as while_loop,
)
from meshard.transforms.flow.control_flow import (
    map as map,
    scan as scan,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
