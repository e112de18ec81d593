"""Reductions of windows by the names of ``jax.lax``.

Convolutions by the names of ``jax.lax``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from meshard.algebra.arguments import shape_of, shown
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array import elementwise
from meshard.ops.array.create import eye
from meshard.ops.array.join import flip
from meshard.ops.array.shape import broadcast_to, reshape, transpose
from meshard.ops.checked import DtypeLike
from meshard.ops.dtypes.laws import as_dtype, common_dtype
from meshard.ops.engine.later import is_traced
from meshard.ops.lax import table
from meshard.ops.lax.reduce import on_leaves, to_reduce
from meshard.ops.lax.table import named
from meshard.ops.windows.kernels import Terms
from meshard.ops.windows.windows import Way, Window, convolution, folded, least_of, reached, reduced
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayLike

Numbers = Any
"""Dimension numbers: three strings, a `ConvDimensionNumbers`, or None."""


class ConvDimensionNumbers(NamedTuple):
    """Which dims of a convolution's operands and result are what.

    Attributes:
        lhs_spec: the dims of ``lhs`` that hold examples and features, then those in space.
        rhs_spec: the dims of ``rhs`` that hold features made and given, then those in space.
        out_spec: the dims of the result that hold examples and features, then those in space.
    """

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


# what arguments stand for


def _order(spec: str, first: str, like: str) -> tuple[int, ...]:
    """Return the dims that two letters name, then the others as they are in another text."""
    space = [c for c in like if c in spec and c not in first]
    return tuple([spec.index(c) for c in (*first, *space)])


@named(
    'lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).lhs_spec',
    "(0, 3, 1, 2)",
    dimension_numbers="what to turn into `ConvDimensionNumbers`.",
)
def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Return which dims of a convolution are what.

    Raises:
        ArgumentError: if the strings do not name the dims of both operands and the result.
        ShapeError: if the operands have different numbers of dims.
    """
    rank = len(lhs_shape)
    if isinstance(dimension_numbers, tuple) and hasattr(dimension_numbers, "lhs_spec"):
        specs = (tuple(map(index, dims)) for dims in dimension_numbers)
        return ConvDimensionNumbers(*specs)
    if rank != len(rhs_shape):
        raise ShapeError(
            f"conv_dimension_numbers: lhs and rhs have {rank} and {len(rhs_shape)} dims; they "
            "must have as many."
        )
    if dimension_numbers is None:
        return ConvDimensionNumbers(*[tuple(range(rank))] * 3)
    if not _are_specs(dimension_numbers, rank):
        raise ArgumentError(
            f"conv_dimension_numbers: {shown(dimension_numbers)} does not name the {rank} dims of "
            "lhs, rhs and the result; give three strings such as ('NHWC', 'HWIO', 'NHWC'), with "
            "the same letters for dims in space, and each letter once."
        )
    lhs, rhs, out = dimension_numbers
    return ConvDimensionNumbers(
        _order(lhs, "NC", rhs), _order(rhs, "OI", rhs), _order(out, "NC", rhs)
    )


def _are_specs(numbers: Any, rank: int) -> bool:
    if not isinstance(numbers, (list, tuple)) or len(numbers) != 3:
        return False
    if not all(isinstance(s, str) and len(s) == len(set(s)) == rank for s in numbers):
        return False
    own = [set(pair) for pair in ("NC", "OI", "NC")]
    space = [set(s) - letters for s, letters in zip(numbers, own, strict=True)]
    named_all = all(letters <= set(s) for s, letters in zip(numbers, own, strict=True))
    return named_all and space[0] == space[1] == space[2]


@named(
    'lax.padtype_to_pads((10,), (3,), (2,), "SAME")',
    "[(0, 1)]",
    padding='``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"``.',
)
def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
) -> list[tuple[int, int]]:
    """Return how many elements a kind of padding adds before and after each dim.

    ``"SAME"`` adds what is needed for one window for each stride, the odd one at the end;
    ``"SAME_LOWER"`` at the beginning.

    Raises:
        ArgumentError: if the kind of padding is unknown, or the arguments differ in length.
    """
    kind = str(getattr(padding, "name", padding)).upper()
    if kind not in ("SAME", "SAME_LOWER", "VALID"):
        raise ArgumentError(
            f"padtype_to_pads: padding is 'SAME', 'SAME_LOWER' or 'VALID', not {shown(padding)}."
        )
    what = "padtype_to_pads"
    sizes = shape_of(in_shape, what, "in_shape")
    windows = shape_of(window_shape, what, "window_shape")
    strides = shape_of(window_strides, what, "window_strides")
    if not len(sizes) == len(windows) == len(strides) or 0 in strides:
        raise ArgumentError(
            f"{what}: in_shape, window_shape and window_strides have one entry for each dim, and "
            f"strides are at least 1; got {sizes}, {windows} and {strides}."
        )
    found = []
    for n, size, stride in zip(sizes, windows, strides, strict=True):
        more = max((-(-n // stride) - 1) * stride + size - n, 0) if kind != "VALID" else 0
        low = more // 2 if kind == "SAME" else more - more // 2
        found.append((low, more - low))
    return found


def pads_of(
    what: str, padding: Any, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Return pairs from a text or from pairs.

    Raises:
        ArgumentError: if there is not one pair for each dim.
    """
    if isinstance(padding, str) or hasattr(padding, "name"):
        return padtype_to_pads(sizes, reach, strides, padding)
    try:
        pairs = [(index(low), index(high)) for low, high in padding]
    except (TypeError, ValueError):
        pairs = []
    if len(pairs) != len(sizes):
        raise ArgumentError(
            f"{what}: padding is 'SAME', 'SAME_LOWER', 'VALID' or a pair (before, after) for each "
            f"of {len(sizes)} dims, not {shown(padding)}."
        )
    return pairs


def numbers_of(what: str, name: str, given: Any, count: int) -> tuple[int, ...]:
    """Return one positive integer for each dim; 1 where None is given.

    Raises:
        ArgumentError: if they are not that many, or not positive.
    """
    if given is None:
        return (1,) * count
    try:
        found = tuple(map(index, given))
    except TypeError:
        found = ()
    if len(found) != count or any(n < 1 for n in found):
        raise ArgumentError(
            f"{what}: {name} are positive integers, one for each of {count} dims, not "
            f"{shown(given)}."
        )
    return found


# convolutions


class _Sizes(NamedTuple):
    """Groups of a convolution, of features or of examples."""

    features: int
    examples: int


def _check_groups(x: Any, w: Any, numbers: ConvDimensionNumbers, groups: _Sizes) -> None:
    batch, given = (x.shape[d] for d in numbers.lhs_spec[:2])
    made, own = (w.shape[d] for d in numbers.rhs_spec[:2])
    features, examples = groups
    if features < 1 or examples < 1 or (features > 1 and examples > 1):
        raise ArgumentError(
            f"conv_general_dilated: feature_group_count {features} and batch_group_count "
            f"{examples} are positive, and one of them is 1."
        )
    if given != own * features:
        raise ShapeError(
            f"conv_general_dilated: lhs of shape {x.shape} has {given} features, rhs of shape "
            f"{w.shape} takes {own} in each of {features} groups; it must take all of them."
        )
    if made % (features * examples) or batch % examples:
        raise ShapeError(
            f"conv_general_dilated: {made} features of rhs and {batch} examples of lhs cannot be "
            f"divided into {features} groups of features and {examples} of examples."
        )


def _canonical(x: Any, w: Any, numbers: ConvDimensionNumbers, groups: _Sizes) -> tuple[Any, Any]:
    """Return the operands with examples first, features where they were, and groups apart."""
    count = max(groups)
    n, c, *space = numbers.lhs_spec
    last = c == x.ndim - 1 and bool(space)
    x = _ordered(x, (n, *space, c) if last else (n, c, *space))
    w = _ordered(w, numbers.rhs_spec)
    if count > 1:
        w = reshape(w, (count, w.shape[0] // count, *w.shape[1:]))
        if groups.examples > 1:
            x = reshape(x, (count, x.shape[0] // count, *x.shape[1:]))
        elif last:
            x = reshape(x, (*x.shape[:-1], count, x.shape[-1] // count))
        else:
            x = reshape(x, (x.shape[0], count, x.shape[1] // count, *x.shape[2:]))
    return x, w


def _terms(count: int, last: bool, groups: _Sizes) -> Terms:
    """Return the dims of the operands in canonical order, and of the result."""
    s, k, t = (" ".join([f"{f}{i}" for i in range(count)]) for f in "skt")
    g = "g" if max(groups) > 1 else ""
    lead, inner = (f"{g} n", "c") if groups.examples > 1 else ("n", f"{g} c")
    x = f"{lead} {s} {inner}" if last else f"{lead} {inner} {s}"
    y = f"n {t} {g} o" if last else f"n {g} o {t}"
    first, second, third = (" ".join(term.split()) for term in (x, f"{g} o c {k}", y))
    return first, second, third


def _ordered(x: Any, order: Sequence[int]) -> Any:
    return x if tuple(order) == tuple(range(x.ndim)) else transpose(x, tuple(order))


@named(
    'lax.conv_general_dilated(mnp.ones((1, 2, 5)), mnp.ones((4, 2, 3)), (1,), "SAME").shape',
    "(1, 4, 5)",
    padding="``'SAME'``, ``'SAME_LOWER'``, ``'VALID'``, or for each dim in space how many zeros "
    "come before and after; negative ones take elements away.",
    dimension_numbers="three strings such as ``('NHWC', 'HWIO', 'NHWC')``, or a "
    "`ConvDimensionNumbers`; by default examples, features, and dims in space.",
)
def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
) -> Array:
    """Return the sums of products of windows with a kernel, which is not turned round.

    Examples that are split stay where they are, and so do features that the kernel makes. Where
    the features are split that are summed over, the devices' sums are added up. A split dim in
    space stays split, and of it only what windows reach beyond the cuts moves.

    Raises:
        ShapeError: if the operands' dims do not fit each other.
        ArgumentError: if strides, dilations, padding or groups are not those of a convolution.
    """
    x, w = as_array(lhs), as_array(rhs)
    what = "conv_general_dilated"
    if x.ndim != w.ndim or x.ndim < 2:
        raise ShapeError(
            f"{what}: lhs and rhs have as many dims, at least two; the shapes are {x.shape} and "
            f"{w.shape}."
        )
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    groups = _Sizes(int(feature_group_count), int(batch_group_count))
    _check_groups(x, w, numbers, groups)
    count = x.ndim - 2
    strides = numbers_of(what, "window_strides", window_strides, count)
    between = numbers_of(what, "lhs_dilation", lhs_dilation, count)
    dilation = numbers_of(what, "rhs_dilation", rhs_dilation, count)
    if max(between, default=1) > 1 and isinstance(padding, str):
        raise ArgumentError(
            f"{what}: padding {padding!r} has no meaning with lhs_dilation {between}; give pairs, "
            "or use conv_transpose."
        )
    sizes = [x.shape[d] for d in numbers.lhs_spec[2:]]
    reach = [reached(w.shape[d], r) for d, r in zip(numbers.rhs_spec[2:], dilation, strict=True)]
    pads = pads_of(what, padding, sizes, reach, strides)
    ways = [Way(*p, *rest) for p, *rest in zip(pads, strides, between, dilation, strict=True)]
    if preferred_element_type is None:
        common_dtype(what, (x.dtype, w.dtype))
    dtype = None if preferred_element_type is None else as_dtype(preferred_element_type)
    return _convolved(x, w, numbers, groups, ways, dtype)


def _convolved(
    x: Any,
    w: Any,
    numbers: ConvDimensionNumbers,
    groups: _Sizes,
    ways: list[Way],
    dtype: Any,
) -> Any:
    c, rank = numbers.lhs_spec[1], x.ndim
    last = c == rank - 1 and rank > 2
    x, w = _canonical(x, w, numbers, groups)
    if rank == 2:  # without dims in space: windows of one element along one that is added
        x, w = reshape(x, (*x.shape, 1)), reshape(w, (*w.shape, 1))
        ways = [Way(0, 0, 1, 1, 1)]
    terms = _terms(len(ways), last, groups)
    found = convolution(x, w, terms, ways, dtype)
    if max(groups) > 1:
        at = found.ndim - 2 if last else 1
        shape = found.shape
        found = reshape(found, (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
    if rank == 2:
        found = reshape(found, found.shape[:-1])
    n, c, *space = numbers.out_spec
    made = (n, *space, c) if last else (n, c, *space)  # where each dim is to be
    return _ordered(found, tuple([made.index(d) for d in range(rank)]))


@named('lax.conv(mnp.ones((1, 2, 5)), mnp.ones((4, 2, 3)), (1,), "VALID").shape', "(1, 4, 3)")
def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
) -> Array:
    """Return `conv_general_dilated` of examples, features and dims in space, in that order.

    Raises:
        ShapeError: if the operands' dims do not fit each other.
        ArgumentError: if strides or padding are not those of a convolution.
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, preferred_element_type=preferred_element_type
    )


@named(
    "lax.conv_with_general_padding(mnp.ones((1, 2, 5)), mnp.ones((4, 2, 3)), (1,), [(1, 1)], "
    "None, None).shape",
    "(1, 4, 5)",
)
def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
) -> Array:
    """Return `conv_general_dilated` of examples, features and dims in space, in that order.

    Raises:
        ShapeError: if the operands' dims do not fit each other.
        ArgumentError: if strides, dilations or padding are not those of a convolution.
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        preferred_element_type=preferred_element_type,
    )


_DEFAULTS = {2: ("NC", "IO"), 3: ("NHC", "HIO"), 4: ("NHWC", "HWIO"), 5: ("NHWDC", "HWDIO")}


def _transposed_pads(reach: int, stride: int, padding: Any) -> tuple[int, int]:
    """Return the padding of a transposed convolution, from that of the one it transposes."""
    kind = str(getattr(padding, "name", padding)).upper()
    if kind == "SAME":
        both = reach + stride - 2
        low = reach - 1 if stride > reach - 1 else -(-both // 2)
    elif kind == "VALID":
        both = reach + stride - 2 + max(reach - stride, 0)
        low = reach - 1
    else:
        low, high = (reach - 1 - index(p) for p in padding)
        both = low + high
    return low, both - low


@named(
    'lax.conv_transpose(mnp.ones((1, 4, 2)), mnp.ones((3, 2, 5)), (2,), "SAME").shape',
    "(1, 8, 5)",
    padding="``'SAME'`` or ``'VALID'``, as of the convolution that this transposes, or for each "
    "dim in space how many zeros come before and after.",
    dimension_numbers="as of `conv_general_dilated`; by default features come last.",
)
def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Return a convolution with fractional strides: zeros between the elements.

    Raises:
        ShapeError: if the operands' dims do not fit each other.
        ArgumentError: if strides, dilations or padding are not those of a convolution.
    """
    x, w = as_array(lhs), as_array(rhs)
    what, count = "conv_transpose", x.ndim - 2
    if dimension_numbers is None:
        if x.ndim not in _DEFAULTS or w.ndim != x.ndim:
            raise ShapeError(
                f"{what}: without dimension_numbers the operands have 2 to 5 dims, and as many; "
                f"the shapes are {x.shape} and {w.shape}."
            )
        given, kernel = _DEFAULTS[x.ndim]
        dimension_numbers = (given, kernel, given)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    dilation = numbers_of(what, "rhs_dilation", rhs_dilation, count)
    steps = numbers_of(what, "strides", strides, count)
    space = numbers.rhs_spec[2:]
    pads = padding
    kind = isinstance(padding, str) and padding.upper() in ("SAME", "VALID")
    if kind or use_consistent_padding:
        reach = [reached(w.shape[d], r) for d, r in zip(space, dilation, strict=True)]
        each = [padding] * count if kind else pads_of(what, padding, reach, reach, steps)
        pads = [_transposed_pads(*given) for given in zip(reach, steps, each, strict=True)]
    if transpose_kernel:
        order = list(range(w.ndim))
        made, own = numbers.rhs_spec[:2]
        order[made], order[own] = own, made
        w = transpose(flip(w, tuple(space)), tuple(order))
    return conv_general_dilated(
        x,
        w,
        (1,) * count,
        pads,
        steps,
        dilation,
        numbers,
        preferred_element_type=preferred_element_type,
    )


@named(
    'lax.conv_general_dilated_patches(mnp.ones((1, 2, 5)), (3,), (1,), "VALID").shape',
    "(1, 6, 3)",
    dimension_numbers="as of `conv_general_dilated`.",
)
def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
) -> Array:
    """Return the windows that `conv_general_dilated` multiplies, as features of the result.

    Raises:
        ShapeError: if the operand's dims do not fit the window.
        ArgumentError: if strides, dilations or padding are not those of a convolution.
    """
    x, size = as_array(lhs), math.prod(filter_shape)
    numbers = conv_dimension_numbers(x.shape, (1, 1, *filter_shape), dimension_numbers)
    features = x.shape[numbers.lhs_spec[1]]
    each = broadcast_to(eye(size, dtype=x.dtype), (features, size, size))
    kernel = reshape(each, (features * size, 1, *filter_shape))
    order = np.argsort(numbers.rhs_spec).tolist()
    return conv_general_dilated(
        x,
        transpose(kernel, tuple(order)),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        features,
        preferred_element_type=preferred_element_type,
    )


_KNOWN = (
    ("add", table.add, elementwise.add),
    ("max", table.max, elementwise.maximum),
    ("min", table.min, elementwise.minimum),
)


@named(
    "lax.reduce_window(mnp.arange(6.0), 0.0, lax.add, (2,), (2,)).tolist()",
    "[1.0, 5.0, 9.0]",
    operand="an array, or a tree of arrays of one shape.",
    init_value="for each array the value to begin with, which is also around it.",
    computation="a function of two trees like ``operand``, elementwise.",
    window_dimensions="the size of a window along each dim.",
    base_dilation="for each dim how far its elements are moved apart, 1 by default.",
    window_dilation="for each dim how far the elements of a window are apart, 1 by default.",
)
def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Return an array, or a tree of arrays, with one element for each window.

    ``lax.add``, ``lax.max`` and ``lax.min`` are done along one dim after another; any other
    operation is applied to one position of all windows after another. A split dim stays split, and
    of it only what windows reach beyond the cuts moves.

    Raises:
        ShapeError: if the windows have not the dims of the arrays, or the shapes of these differ.
        TreeError: if the trees differ.
        ArgumentError: if strides, dilations or padding are not those of windows.
    """
    what = "reduce_window"
    arrays, begin, structure = to_reduce(operand, init_value, what)
    shape = arrays[0].shape
    rank = len(shape)
    if len(window_dimensions) != rank:
        raise ShapeError(
            f"{what}: window_dimensions {tuple(window_dimensions)} for arrays of shape {shape}; "
            "a window has a size for each dim."
        )
    sizes = numbers_of(what, "window_dimensions", window_dimensions, rank)
    strides = numbers_of(what, "window_strides", window_strides, rank)
    between = numbers_of(what, "base_dilation", base_dilation, rank)
    dilation = numbers_of(what, "window_dilation", window_dilation, rank)
    room = [reached(n, b) for n, b in zip(shape, between, strict=True)]
    reach = [reached(n, d) for n, d in zip(sizes, dilation, strict=True)]
    pads = pads_of(what, padding, room, reach, strides)
    work = []
    for d, (pair, *way) in enumerate(zip(pads, sizes, strides, between, dilation, strict=True)):
        size, *rest = way
        window = Window(size, *pair, *rest)
        if window != Window(1, 0, 0, 1, 1, window.dilation):
            work.append((d, window))
    if len(arrays) == 1 and work:
        known = _by_one(arrays[0], init_value, computation, tuple(work))
        if known is not None:
            return trees.unflatten(structure, [known])
    combine = on_leaves(what, computation, structure)
    if not work:
        return trees.unflatten(structure, combine(begin, arrays))
    return trees.unflatten(structure, folded(arrays, begin, tuple(work), combine))


def _by_one(x: Any, init_value: Any, computation: Any, work: Any) -> Any:
    """Return the reduction by a known operation; None if the operation is another one."""
    known = next((how for how, *of in _KNOWN if any(f is computation for f in of)), None)
    if known is None:
        return None
    found, begin = reduced(x, work, known), trees.flatten(init_value)[0][0]
    own = 0 if known == "add" else least_of(x.dtype, known)
    if not is_traced(begin) and np.asarray(begin) == own:
        return found
    return computation(as_array(begin).astype(x.dtype, copy=False), found)
