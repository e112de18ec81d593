"""Creation: arrays from values, constants and counting, on any sharding.

With ``device=`` a sharding, each piece is made on its own device; nothing whole is made first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, Literal, Protocol, overload

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import check_order, choice_of, integer_of, shape_of
from meshard.algebra.box import Box
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, MeshardError, ShapeError
from meshard.ops.array.join import stack
from meshard.ops.array.shape import broadcast_arrays, broadcast_to, expand_dims
from meshard.ops.checked import AnyDtypeLike, DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import accumulator, as_dtype, common_dtype, default_float, is_float
from meshard.ops.engine.later import (
    concrete,
    has_devices,
    is_array,
    is_traced,
    make_later,
    when_laid_out,
)
from meshard.ops.row import Dtype
from meshard.runtime.agree import agree
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import (
    as_array,
    as_host,
    as_sharding,
    check_devices_exist,
    home,
    moved_to,
    placed,
)
from meshard.runtime.moving.same_values import check_same_values
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.types import ArrayLike, ArrayType, Block, DeviceLike, ShapeLike
from meshard.runtime.world import here
from meshard.tuning import CACHE_PIECE, COPY_CHUNK, LARGE

Writer = Callable[[Block, tuple[int, ...]], None]
"""Writes a box of an array, given where it begins in the array."""


def _made(
    shape: tuple[int, ...],
    dtype: Dtype,
    device: Any,
    write: Writer | None,
    what: str,
    committed: bool | None = None,
) -> Array:
    """Make an array piece by piece; without a writer, of zeros."""
    world = here()
    sharding = as_sharding(device, what, shape)
    if sharding is not None:
        check_devices_exist(world, sharding, what)
    settled = sharding is not None if committed is None else committed
    kind = world.type_of(shape, dtype, sharding or home(world), settled)

    def fill(kind: ArrayType) -> Array:
        return _written(kind, write, what)

    found: Array = make_later(what, kind, fill, asked=settled)
    return found


def _written(kind: ArrayType, write: Writer | None, what: str) -> Array:
    """Make an array of a type: large pieces are written in parts, on the workers."""
    world = here()
    agree(world, what, (), (kind,))
    new = world.memory.zeros if write is None else world.memory.allocate
    blocks: list[Block | None] = [None] * kind.layout.piece_count
    tasks: list[Callable[[], None]] = []
    total = 0
    for piece in kind.local:
        box = kind.layout.box(piece)
        block = blocks[piece] = new(box.shape, kind.dtype)
        if write is not None:
            total += block.nbytes
            tasks += _parts(write, block, box)
    if total < LARGE:
        for task in tasks:
            task()
    else:
        world.workers.run(tasks)
    return Array(kind, tuple(blocks))


def _parts(write: Writer, block: Block, box: Box) -> list[Callable[[], None]]:
    """Return what writes a block, a few rows at a time if it is large."""
    count = max(1, block.nbytes // COPY_CHUNK) if block.ndim else 1
    if count == 1:
        return [partial(write, block, box.starts)]
    first, *others = box.starts
    cuts = balanced_cuts(block.shape[0], min(count, block.shape[0]))
    return [partial(write, block[a:b], (first + a, *others)) for a, b in pairwise(cuts)]


def _from_nested(value: Any) -> Any:
    """Stack lists that hold arrays, and convert what says how; leave everything else alone."""
    if hasattr(value, "__jax_array__"):
        return value.__jax_array__()
    if isinstance(value, (list, tuple)) and _holds_array(value):
        return stack(
            [_from_nested(v) if isinstance(v, (list, tuple)) else as_array(v) for v in value]
        )
    return value


def _holds_array(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (list, tuple)):
        # No array has more dims than this; a list that contains itself is endlessly deep.
        return depth < _MOST_DIMS and any(_holds_array(v, depth + 1) for v in value)
    return is_array(value)


_MOST_DIMS = 64


@checked
def array(
    object: Any,
    dtype: AnyDtypeLike = None,
    *,
    copy: bool | None = True,
    order: str | None = "K",
    ndmin: int = 0,
    device: DeviceLike = None,
) -> Array:
    """Make an array of numbers, nested lists, or anything that NumPy takes.

    Args:
        object: the value; it is copied, so that later changes to it do not show. A copy of an
            `Array` shares its memory, and outlives its deletion and its donation.
        dtype: the dtype; by default NumPy's, with Python floats in the default float.
        copy: False refuses to copy; None gives an `Array` back as it is where nothing changes.
        order: None, ``"K"``, ``"C"`` or ``"A"``, as in NumPy, where it is about memory.
        ndmin: the least number of dims; dims of size one are put in front.
        device: a Sharding or Device for the result, or ``x.device`` of another array, whose devices
            it goes to if it is not there; None for the default device, uncommitted.

    Raises:
        DtypeError: if the elements are not numbers.
        ArgumentError: if ``copy`` is False and the value is not such an array already, or the
            order is ``"F"``.

    >>> import meshard.numpy as mnp
    >>> mnp.array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    check_order(order, "array")
    if not 0 <= ndmin <= _MOST_DIMS:
        raise ArgumentError(f"array: ndmin must be from 0 to {_MOST_DIMS}, got {ndmin}.")
    value = _from_nested(object)
    wanted = None if dtype is None else as_dtype(dtype)
    if is_array(value):
        result = value if wanted is None else value.astype(wanted, copy=False)
    else:
        host = as_host(value, "array", wanted)
        shape = (1,) * (ndmin - host.ndim) + host.shape
        place = as_sharding(device, "array", shape)
        check_same_values(host, [host], [place], "array")
        if place is not None:  # from here each piece goes to its own device
            return placed(host.reshape(shape), place)
        result = as_array(host)
    if result.ndim < ndmin:
        result = result.reshape((1,) * (ndmin - result.ndim) + result.shape)
    result = moved_to(result, device, "array")
    same = result is object or (
        type(object) is Array and type(result) is Array and result._live() is object._live()
    )
    if copy is False and not same:
        raise ArgumentError(
            f"array: copy=False, but a copy is needed to make {result.aval.str_short()} of a "
            f"{type(object).__name__}. Leave out copy=False."
        )
    return result.copy() if copy and result is object and type(result) is Array else result


@checked
def asarray(
    a: Any,
    dtype: AnyDtypeLike = None,
    *,
    copy: bool | None = None,
    order: str | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make an array; one that is an array already stays where it is. Takes what `array` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.asarray([1.0, 2.0]).dtype
    dtype('float64')
    """
    check_order(order, "asarray")
    return array(a, dtype, copy=copy, device=device)


def copy(a: ArrayLike, order: str | None = "K") -> Array:
    """Return an equal array with the same sharding; an ``order`` is taken as `array` takes it.

    >>> import meshard.numpy as mnp
    >>> x = mnp.arange(3)
    >>> y = mnp.copy(x)
    >>> x.delete()
    >>> y.tolist()  # outlives x
    [0, 1, 2]
    """
    check_order(order, "copy")
    return as_array(a).copy()


@checked
def full(
    shape: ShapeLike,
    fill_value: ArrayLike,
    dtype: AnyDtypeLike = None,
    *,
    order: str | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make an array of one value.

    Args:
        shape: the global shape.
        fill_value: the value, or values that broadcast to the shape.
        dtype: the dtype, by default the value's.
        order: None, ``"K"``, ``"C"`` or ``"A"``, as in NumPy, where it is about memory.
        device: a Sharding or Device for the result; or ``x.device`` of another array, on whose
            devices it is split like that one, as far as its shape allows.

    >>> import meshard.numpy as mnp
    >>> mnp.full((2,), 7).tolist()
    [7, 7]
    """
    check_order(order, "full")
    sizes = shape_of(shape, "full")
    if has_devices(fill_value):
        return _spread(fill_value, sizes, dtype, device)
    value = as_host(fill_value, "full", None if dtype is None else as_dtype(dtype))
    return _full(sizes, value, device, "full")


def _spread(value: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """Return a value that is laid out on devices, or traced, in a shape."""
    return array(broadcast_to(array(value, dtype), shape), device=device)


def _full(
    shape: tuple[int, ...], value: Block, device: Any, what: str, committed: bool | None = None
) -> Array:
    """Make an array of one value, or of values that broadcast to its shape."""
    if not value.ndim:
        constant = partial(_constant, value) if value.any() else None
        return _made(shape, value.dtype, device, constant, what, committed)
    try:
        whole = np.broadcast_to(value, shape)
    except ValueError as error:
        raise ShapeError(
            f"{what}: values of shape {value.shape} do not broadcast to {shape}."
        ) from error
    return _made(shape, value.dtype, device, partial(_box_of, whole), what, committed)


def _constant(value: Block, out: Block, starts: tuple[int, ...]) -> None:
    out[...] = value


def _box_of(whole: Block, out: Block, starts: tuple[int, ...]) -> None:
    out[...] = whole[tuple([slice(a, a + n) for a, n in zip(starts, out.shape, strict=True)])]


class Constant(Protocol):
    """A function that makes an array of one number."""

    def __call__(
        self,
        shape: ShapeLike,
        dtype: AnyDtypeLike = None,
        *,
        order: str | None = None,
        device: DeviceLike = None,
    ) -> Array:
        """Make an array of it."""


def _constant_of(name: str, number: float) -> Constant:
    def function(
        shape: ShapeLike,
        dtype: AnyDtypeLike = None,
        *,
        order: str | None = None,
        device: DeviceLike = None,
    ) -> Array:
        check_order(order, name)
        wanted = default_float() if dtype is None else as_dtype(dtype)
        return _full(shape_of(shape, name), np.asarray(number, wanted), device, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Make an array of {name}, by default in the default float.

    Args:
        shape: the global shape.
        dtype: the dtype.
        order: None, ``"K"``, ``"C"`` or ``"A"``, as in NumPy, where it is about memory.
        device: a Sharding or Device for the result; each piece is made on its own device.

    >>> import meshard.numpy as mnp
    >>> mnp.{name}((2, 3)).shape
    (2, 3)
    """
    way_out = f"The sizes of all dims are one argument, as in {name}((3, 4))."
    return checked(dtype=way_out)(function)


zeros = _constant_of("zeros", 0)
ones = _constant_of("ones", 1)
empty = _constant_of("empty", 0)


@checked
def full_like(
    a: ArrayLike | ShapeDtypeStruct,
    fill_value: ArrayLike,
    dtype: AnyDtypeLike = None,
    *,
    order: str | None = None,
    shape: ShapeLike | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make an array of one value with the shape, dtype and sharding of another.

    Args:
        a: the other array, or a `meshard.ShapeDtypeStruct`.
        fill_value: the value, or values that broadcast to the shape.
        dtype: another dtype.
        order: None, ``"K"``, ``"C"`` or ``"A"``, as in NumPy, where it is about memory.
        shape: another shape. The result is on the same devices, split alike if it has as many
            dims and they can be divided so; otherwise it is whole on each device.
        device: a Sharding or Device for the result instead.

    >>> import meshard.numpy as mnp
    >>> mnp.full_like(mnp.arange(3), 7).tolist()
    [7, 7, 7]
    """
    check_order(order, "full_like")
    x: Any = a if isinstance(a, ShapeDtypeStruct) else as_array(a)
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    sizes = x.shape if shape is None else shape_of(shape, "full_like")
    if isinstance(x, ShapeDtypeStruct):
        return _full_of(x, sizes, fill_value, wanted, device)
    if has_devices(fill_value):
        committed = type(x) is Array and x.committed and sizes == x.shape
        place = x.sharding if device is None and committed else device
        found = _spread(fill_value, sizes, wanted, place)
    else:
        value = as_host(fill_value, "full_like", wanted)
        if device is None and (type(x) is Array or not x.per_device):
            return when_laid_out("full_like", _alike, x, value=value, shape=sizes)
        found = _full(sizes, value, device, "full_like")
    return x._varying(found) if is_traced(x) else found


def _full_of(
    x: ShapeDtypeStruct, sizes: tuple[int, ...], value: Any, dtype: Dtype, device: Any
) -> Array:
    """Make an array of one value with the sharding of an array that need not exist."""
    place = x.sharding if device is None and sizes == x.shape else device
    return full(sizes, value, dtype, device=place)


def _alike(x: Any, *, value: Block, shape: tuple[int, ...]) -> Any:
    """Make an array of one value that is laid out like another."""
    place = x.sharding if shape == x.shape else _place_like(x, shape)
    return _full(shape, value, place, "full_like", x.committed)


def _place_like(x: Any, shape: tuple[int, ...]) -> Sharding:
    """Return a sharding for another shape: on the same devices, and split alike if it can be.

    It can be if it has as many dims, and these divide as the sharding says. Otherwise each device
    holds the whole.
    """
    own: Sharding = x.sharding
    if isinstance(own, SingleDeviceSharding):
        return own
    if not isinstance(own, NamedSharding):
        return NamedSharding(Mesh(list(own.device_order), "device"), PartitionSpec())
    if len(shape) == x.ndim:
        try:
            own.layout(shape)
        except MeshardError:
            pass
        else:
            return own
    return NamedSharding(own.mesh, PartitionSpec())


@checked
def zeros_like(
    a: ArrayLike | ShapeDtypeStruct,
    dtype: AnyDtypeLike = None,
    *,
    order: str | None = None,
    shape: ShapeLike | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make an array of zeros with the shape, dtype and sharding of another.

    >>> import meshard.numpy as mnp
    >>> mnp.zeros_like(mnp.ones(2)).tolist()
    [0.0, 0.0]
    """
    check_order(order, "zeros_like")
    return full_like(a, 0, dtype, shape=shape, device=device)


@checked
def ones_like(
    a: ArrayLike | ShapeDtypeStruct,
    dtype: AnyDtypeLike = None,
    *,
    order: str | None = None,
    shape: ShapeLike | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make an array of ones with the shape, dtype and sharding of another.

    >>> import meshard.numpy as mnp
    >>> mnp.ones_like(mnp.arange(2)).tolist()
    [1, 1]
    """
    check_order(order, "ones_like")
    return full_like(a, 1, dtype, shape=shape, device=device)


@checked
def empty_like(
    a: ArrayLike | ShapeDtypeStruct,
    dtype: AnyDtypeLike = None,
    *,
    order: str | None = None,
    shape: ShapeLike | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make an array of zeros with the shape, dtype and sharding of another.

    >>> import meshard.numpy as mnp
    >>> mnp.empty_like(mnp.ones((2, 3))).shape
    (2, 3)
    """
    check_order(order, "empty_like")
    return full_like(a, 0, dtype, shape=shape, device=device)


@checked
def arange(
    start: ArrayLike,
    stop: ArrayLike | None = None,
    step: ArrayLike | None = None,
    dtype: DtypeLike = None,
    *,
    device: DeviceLike = None,
) -> Array:
    """Make an array that counts from ``start`` to before ``stop``.

    Args:
        start: the first number; given alone, it is ``stop``, and the first number is 0.
        stop: the limit, which is not reached.
        step: the distance between numbers; by default 1.
        dtype: the dtype; by default the one that the numbers are promoted to.
        device: a Sharding or Device for the result; each piece is made on its own device.

    Raises:
        ArgumentError: if the step is zero, or a limit is not a real, finite number.

    >>> import meshard.numpy as mnp
    >>> mnp.arange(2, 8, 2).tolist()
    [2, 4, 6]
    """
    if stop is None:
        start, stop = 0, start
    first, last, by = _limits(start, stop, step)
    wanted = _promoted((first, last, by, np.int64(0))) if dtype is None else as_dtype(dtype)
    if any(as_host(v, "arange").dtype.kind == "f" for v in (first, last, by)):
        size = _float_steps(first, last, by)
    else:  # in Python's integers, which do not overflow
        first, last, by = int(first), int(last), int(by)
        size = max(0, -((first - last) // by))
    if wanted == np.bool_ and size > 2:
        raise ArgumentError(
            f"arange: {size} different bools were requested, but there are only two."
        )
    # As NumPy does: the first two elements are made from the numbers, the others from them.
    work = accumulator(wanted) if is_float(wanted) else wanted
    one, two = np.asarray([first, first + by][: max(size, 1)]).astype(wanted)[[0, -1]].astype(work)

    with np.errstate(over="ignore"):
        apart = one if wanted == np.bool_ else two - one

    def step_on(numbers: Block, first: int) -> None:
        if apart != 1:
            numbers *= apart
        if one != 0:
            numbers += one
        if first < 2:
            numbers[: 2 - first] = [one, two][first : first + numbers.size]

    def write(out: Block, starts: tuple[int, ...]) -> None:
        if wanted == np.bool_:
            out[...] = [one, two][starts[0] : starts[0] + out.size]
            return
        with np.errstate(over="ignore"):  # unsigned ones count down through zero
            _count(out, starts[0], work, step_on)

    return _made((size,), wanted, device, write, "arange")


def _count(out: Block, first: int, work: Dtype, change: Callable[[Block, int], None]) -> None:
    """Write what becomes of the numbers from ``first`` on, a piece that fits the cache at a time.

    Args:
        out: where, an array of one dim.
        first: the number of its first element.
        work: the dtype to compute in.
        change: turns numbers into elements in place, given the first of them.
    """
    for start in range(0, out.size, _AT_ONCE):
        piece = out[start : start + _AT_ONCE]
        numbers = piece if work == out.dtype else np.empty(piece.size, work)
        least, greatest = first + start, first + start + piece.size
        if greatest <= _EXACT.get(work.char, 0):
            np.add(_unit(work)[: piece.size], np.asarray(least).astype(work), out=numbers)
        else:
            numbers[...] = np.arange(least, greatest).astype(work)
        change(numbers, least)
        if numbers is not piece:
            piece[...] = numbers.astype(out.dtype)


_EXACT = {"f": 1 << 24, "d": 1 << 53, **dict.fromkeys("bBhHiIlLqQ", 1 << 63)}
"""By dtype up to where all whole numbers can be added without an error, but for integers' wraps."""


_AT_ONCE = CACHE_PIECE // 2
"""Numbers that are counted before they are turned into elements, while they are in the cache."""


@cache
def _unit(work: Dtype) -> Block:
    """Return the numbers from zero on that are counted at once."""
    numbers: Block = np.arange(_AT_ONCE).astype(work)
    return numbers


def _limits(start: Any, stop: Any, step: Any) -> tuple[Any, Any, Any]:
    """Return the three numbers of `arange`.

    Raises:
        ArgumentError: if one is not a finite real number, or the step is zero.
    """
    first, last, by = (_number(v) for v in (start, stop, 1 if step is None else step))
    given = [as_host(v, "arange").dtype for v in (first, last, by)]
    real = all(np.ndim(v) == 0 for v in (first, last, by)) and all(d.kind in "biuf" for d in given)
    if not real or not all(map(np.isfinite, (first, last, by))):
        raise ArgumentError(
            "arange: start, stop and step must be finite real numbers, got "
            f"{start!r}, {stop!r} and {step!r}."
        )
    if by == 0:
        raise ArgumentError("arange: the step cannot be zero.")
    return first, last, by


def _float_steps(first: Any, last: Any, by: Any) -> int:
    """Return how many numbers `arange` counts where one of its numbers is a float."""
    steps = float((last - first) / by)
    if steps == 0 and last != first:  # there is a way, too short for a float
        return int(math.copysign(1, steps) > 0)
    return max(0, math.ceil(steps))


def _number(value: Any) -> Any:
    """Return a scalar that an array without dims holds; Python's and NumPy's own stay."""
    if is_traced(value):
        way_out = (
            "The result's size depends on the values. Write start + step * mnp.arange(size) "
            "with a size that is known."
        )
        return np.asarray(concrete(value, "arange", way_out))[()]
    if (type(value) is Array or isinstance(value, np.ndarray)) and value.ndim == 0:
        return np.asarray(value)[()]
    return value


def _kinds(values: Sequence[Any]) -> list[Any]:
    """Return what is promoted: the types of Python's numbers, of others the dtypes."""
    numbers = (bool, int, float, complex)
    arrays = [v if is_array(v) or type(v) in numbers else as_host(v, "linspace") for v in values]
    return [type(v) if type(v) in numbers else v.dtype for v in arrays]


def _promoted(values: Sequence[Any]) -> Dtype:
    """Return the dtype of numbers together: wide only if one is, besides Python's own."""
    kinds = _kinds(values)
    found = common_dtype("linspace", kinds)
    wide = (np.dtype(np.float64), np.dtype(np.complex128))
    if found not in wide or any(isinstance(k, np.dtype) and k in wide for k in kinds):
        return found
    return np.result_type(default_float(), np.complex64) if found.kind == "c" else default_float()


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DtypeLike = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Array: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: DtypeLike = None,
    axis: int = 0,
    device: DeviceLike = None,
) -> tuple[Array, Any]: ...
@checked
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DtypeLike = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Any:
    """Make an array of evenly spaced numbers from ``start`` to ``stop``.

    Args:
        start: the first number, or an array of them.
        stop: the last number, or where that would be if ``endpoint`` is False.
        num: how many.
        endpoint: whether ``stop`` is one of them.
        retstep: whether to return the distance between them, too.
        dtype: the dtype; for integers, the numbers are rounded down.
        axis: where the new dim goes, if ``start`` or ``stop`` is an array.
        device: a Sharding or Device for the result; each piece is made on its own device.

    Raises:
        ArgumentError: if ``num`` is not a non-negative integer.

    >>> import meshard.numpy as mnp
    >>> mnp.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    count = integer_of(num, "linspace", "num", least=0)
    if has_devices(start, stop):
        values, step = _line_between(start, stop, count, endpoint, axis)
        line = array(_whole(values, dtype), device=device)
        return (line, step) if retstep else line
    first, last = _number(start), _number(stop)
    low, high = as_host(first, "linspace"), as_host(last, "linspace")
    normalised_axes(axis, max(low.ndim, high.ndim) + 1, "linspace")
    natural = _promoted((first, last, 1.0))
    wanted = as_dtype(dtype) if dtype is not None else natural
    parts = count - 1 if endpoint else count
    if low.ndim or high.ndim or parts <= 0:
        values, step = np.linspace(
            low, high, count, endpoint=endpoint, retstep=True, dtype=wanted, axis=axis
        )
        result = array(values, device=device)
        return (result, step) if retstep else result
    exact = common_dtype("linspace", _kinds((first, last, 1.0)))  # whatever the default float is
    first, last = np.asarray(first, exact)[()], np.asarray(last, exact)[()]
    step = (last - first) / parts

    def step_on(values: Block, at: int) -> None:
        if step != 0:
            values *= step
        else:
            values /= parts
            values *= last - first
        values += first
        if endpoint and at <= parts < at + values.size:
            values[parts - at] = last
        if wanted.kind in "iu":
            np.floor(values, out=values)

    def write(out: Block, starts: tuple[int, ...]) -> None:
        _count(out, starts[0], exact, step_on)

    result = _made((count,), wanted, device, write, "linspace")
    return (result, step) if retstep else result


def _whole(values: Any, dtype: Any) -> Any:
    """Return values in a dtype, rounded down where it is one of integers."""
    if dtype is None:
        return values
    wanted = as_dtype(dtype)
    return (bind("floor", values) if wanted.kind in "iu" else values).astype(wanted, copy=False)


def _line_between(start: Any, stop: Any, count: int, endpoint: bool, axis: int) -> tuple[Any, Any]:
    """Return evenly spaced numbers between ends laid out on devices, and their distance."""
    parts = count - 1 if endpoint else count
    wanted = _promoted((start, stop, 1.0))
    first, last = broadcast_arrays(*[as_array(v).astype(wanted) for v in (start, stop)])
    step = bind("divide", last - first, parts) if parts > 0 else last
    rank = first.ndim + 1
    at = axis % rank
    counted = arange(count).astype(first.dtype).reshape((-1,) + (1,) * (rank - at - 1))
    first, last, wide = (expand_dims(v, at) for v in (first, last, step))
    line = (
        counted * wide + first
        if parts > 0
        else broadcast_to(first, (*first.shape[:at], count, *first.shape[at + 1 :]))
    )
    if parts <= 0:
        return line, np.float64("nan")  # one number, as in NumPy
    return (bind("where", counted == parts, last, line) if endpoint else line), step


def _by_position(
    what: str,
    sizes: tuple[int, int | None],
    dtype: Any,
    device: Any,
    tests: tuple[Callable[[Any, Any], Any], Callable[[int, Block, tuple[int, ...]], None]],
    k: Any,
) -> Any:
    """Return a matrix of the results of a test of j and i + ``k``, and what writes a box of it."""
    shape = shape_of((sizes[0], sizes[0] if sizes[1] is None else sizes[1]), what)
    wanted = default_float() if dtype is None else as_dtype(dtype)
    test, write = tests
    if is_traced(k):
        columns, rows = expand_dims(arange(shape[1]), 0), expand_dims(arange(shape[0]), 1)
        return array(test(columns, rows + k).astype(wanted), device=device)

    return _made(shape, wanted, device, partial(write, int(k)), what)


def _diagonal(k: int, out: Block, starts: tuple[int, ...]) -> None:
    """Write ones where j = i + k, zeros elsewhere."""
    out[...] = 0
    off = starts[0] - starts[1] + k  # in the box, too, the diagonal is where j = i + off
    rows = np.arange(max(0, -off), min(out.shape[0], out.shape[1] - off))
    out[rows, rows + off] = 1


def _below(k: int, out: Block, starts: tuple[int, ...]) -> None:
    """Write ones where j <= i + k, zeros elsewhere."""
    off, width = starts[0] - starts[1] + k, out.shape[1]
    for a in range(0, out.shape[0], _ROWS_BELOW):
        rows = out[a : a + _ROWS_BELOW]
        least = np.arange(rows.shape[0])[:, None] + (a + off)
        # Columns that are below the diagonal in all of these rows, and in none of them.
        inside, outside = np.clip([a + off + 1, a + off + len(rows)], 0, width).tolist()
        rows[:, :inside], rows[:, outside:] = 1, 0
        rows[:, inside:outside] = np.arange(inside, outside) <= least


_ROWS_BELOW = 64
"""Rows of a triangle that are written together: only near the diagonal is anything compared."""


@checked
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DtypeLike = None,
    *,
    order: str | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make a matrix with ones on one diagonal and zeros elsewhere.

    Args:
        N: the number of rows.
        M: the number of columns; by default that of the rows.
        k: the diagonal; 0 is the main one, positive ones are above it.
        dtype: the dtype; by default the default float.
        order: None, ``"K"``, ``"C"`` or ``"A"``, as in NumPy, where it is about memory.
        device: a Sharding or Device for the result; each piece is made on its own device.

    >>> import meshard.numpy as mnp
    >>> mnp.eye(2, 3, k=1, dtype=int).tolist()
    [[0, 1, 0], [0, 0, 1]]
    """
    check_order(order, "eye")
    return _by_position("eye", (N, M), dtype, device, (operator.eq, _diagonal), k)


@checked
def identity(n: int, dtype: DtypeLike = None) -> Array:
    """Make an identity matrix.

    >>> import meshard.numpy as mnp
    >>> mnp.identity(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return eye(n, dtype=dtype)


@checked
def tri(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DtypeLike = None,
    *,
    order: str | None = None,
    device: DeviceLike = None,
) -> Array:
    """Make a matrix with ones at and below a diagonal, zeros elsewhere; takes what `eye` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.tri(2, 3, dtype=int).tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    return _by_position("tri", (N, M), dtype, device, (operator.le, _below), k)


@checked
def meshgrid(
    *xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[Array, ...]:
    """Return the coordinates of a grid, one array for each of its dims.

    Args:
        xi: the coordinates along each dim, as arrays of one dim.
        copy: accepted as in NumPy; the results are arrays of their own.
        sparse: whether the results have size one along all dims but their own.
        indexing: ``"ij"``: the dims come in the order of ``xi``; ``"xy"``: the first two are
            exchanged.

    Raises:
        ArgumentError: if ``indexing`` is neither.

    >>> import meshard.numpy as mnp
    >>> [x.tolist() for x in mnp.meshgrid(mnp.arange(2), mnp.arange(2), indexing="ij")]
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    choice_of(indexing, ("xy", "ij"), "meshgrid", "indexing")
    arrays = [as_array(x).reshape(-1).copy() for x in xi]
    count = len(arrays)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[0], order[1] = 1, 0
    thin = [
        x.reshape((1,) * order[i] + (-1,) + (1,) * (count - order[i] - 1))
        for i, x in enumerate(arrays)
    ]
    return tuple(thin) if sparse else broadcast_arrays(*thin)
