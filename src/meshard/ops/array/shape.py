"""Shapes: operations that regroup, permute, add and broadcast dims.

Regrouping is a rule of factors and a reshape of each block. Where that would leave too much on a
device, the elements are first dealt out anew in C order.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, overload

import numpy as np

from meshard.algebra.arguments import choice_of, shape_of
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Cuts, balanced_cuts
from meshard.algebra.propagate import Placement, propagate
from meshard.algebra.rule import OpRule
from meshard.errors import ArgumentError, DimError, ShapeError
from meshard.ops.array.formulas import repeated_copy
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import same_dtype
from meshard.ops.engine.operand_mesh import OperandMesh
from meshard.ops.row import Bounds, MoveOp, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, ArrayType, Block, ShapeLike
from meshard.runtime.world import RuntimeWorld, here, memoized
from meshard.tuning import LARGE


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Match runs of dims of two shapes that have equal products, the shortest runs first."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = [i] if i < len(old) else [], [j] if j < len(new) else []
        if not a or not b:
            groups.append((list(range(i, len(old))), list(range(j, len(new)))))
            break
        p, q = old[i], new[j]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                p *= old[i]
                a.append(i)
                i += 1
            else:
                q *= new[j]
                b.append(j)
                j += 1
        groups.append((a, b))
    return groups


def _refined(old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Return factor sizes that both lists of dims group without splitting; None if none do."""
    ends = set()
    for dims in (old, new):
        volume = 1
        for n in reversed(dims):
            volume *= n
            ends.add(volume)
    sizes = []
    before = 1
    for end in sorted(ends | {1})[1:]:
        if end % before:
            return None
        sizes.append(end // before)
        before = end
    return sizes[::-1]


def _grouping(dims: Sequence[int], factors: Sequence[str], sizes: dict[str, int]) -> list[str]:
    """Write dims as groups of consecutive factors."""
    text = []
    left = list(factors)
    for n in dims:
        own: list[str] = []
        volume = 1
        while volume < n:
            own.append(left.pop(0))
            volume *= sizes[own[-1]]
        text.append("1" if not own else own[0] if len(own) == 1 else f"({' '.join(own)})")
    return text


def _reshape_rule(operands: Sequence[Operand], params: Params) -> tuple[str, Mapping[str, int]]:
    old, new = operands[0][0], params["shape"]
    if 0 in old:
        left = [f"!a{i}" for i in range(len(old))]
        right = [f"!b{i}" for i in range(len(new))]
        sizes = {f"b{i}": n for i, n in enumerate(new)}
        return f"{' '.join(left)} -> {' '.join(right)}", sizes
    sizes = {}
    left, right = [], []
    for number, (a, b) in enumerate(_groups(old, new)):
        found = _refined([old[i] for i in a], [new[j] for j in b])
        assert found is not None, "reshape is bound for shapes with common factors only"
        names = [f"g{number}f{i}" for i in range(len(found))]
        sizes.update(zip(names, found, strict=True))
        left += _grouping([old[i] for i in a], names, sizes)
        right += _grouping([new[j] for j in b], names, sizes)
    return f"{' '.join(left)} -> {' '.join(right)}", sizes


def _cell_shape(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {"shape": shape}


def _reshape(x: Block, *, shape: tuple[int, ...]) -> Block:
    if x.nbytes >= LARGE and 0 in x.strides:
        return repeated_copy(x).reshape(shape)
    return x.reshape(shape)


def _broadcast_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    old, new = operands[0][0], params["shape"]
    names = [f"d{i}" for i in range(len(new))]
    skipped = len(new) - len(old)
    left = [
        "1" if n == 1 and new[skipped + i] != 1 else names[skipped + i] for i, n in enumerate(old)
    ]
    return f"{' '.join(left)} -> {' '.join(names)}", dict(zip(names, new, strict=True))


def _broadcast(x: Block, *, shape: tuple[int, ...]) -> Block:
    return np.broadcast_to(x, shape)


def _transpose_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    return f"{' '.join(names)} -> {' '.join(names[a] for a in params['axes'])}"


def _transpose(x: Block, *, axes: tuple[int, ...]) -> Block:
    return x.transpose(axes)


def _flat_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    return [(DimMap.identity(math.prod(shapes[0])),)]


register(MoveOp("flat", _flat_maps, flat=True))
register(Op("reshape", _reshape_rule, _reshape, dtypes=same_dtype, local=_cell_shape, style="view"))
register(
    Op(
        "broadcast_to",
        _broadcast_rule,
        _broadcast,
        dtypes=same_dtype,
        local=_cell_shape,
        style="view",
    )
)
register(Op("transpose", _transpose_rule, _transpose, dtypes=same_dtype, style="view"))


@checked
def reshape(
    a: ArrayLike, /, shape: ShapeLike, order: str = "C", *, copy: bool | None = None
) -> Array:
    """Return the array in another shape with the same elements in C order.

    Args:
        a: the array.
        shape: the new shape; one entry may be -1.
        order: ``"C"``; ``"F"`` reads and writes with the first dim the fastest.
        copy: accepted as in NumPy; arrays are immutable and share blocks where they can.

    A split dim that is merged or divided stays split wherever the new shape can say so.

    Raises:
        ShapeError: if the sizes differ.

    >>> import meshard.numpy as mnp
    >>> mnp.reshape(mnp.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    x = as_array(a)
    wanted = list(shape_of(shape, "reshape", inferred=True))
    if choice_of(order, ("C", "F"), "reshape", "order") == "F":
        return transpose(reshape(transpose(x), tuple(reversed(_filled(x, wanted)))))
    new = _filled(x, wanted)
    if new == x.shape:
        return x
    if x.size:
        x = _flat_if_better(x, new)
        middle = _middle(x.shape, new)
        if middle != x.shape:
            x = bind("reshape", x, shape=middle)
    return x if x.shape == new else bind("reshape", x, shape=new)


def _flat_if_better(x: Array, new: tuple[int, ...]) -> Any:
    """Return the array, or its elements in one dim where else a device would get too many.

    A split dim that is merged behind a short one cannot stay split where it is. Then the elements
    are dealt out anew in C order, in whole rows of the new shape if there are enough.
    """
    kind = x.aval
    if kind.layout.piece_count == 1 or len(new) == x.ndim == 1:
        return x
    cuts = _flat_cuts(here(), kind, new)
    return x if cuts is None else bind("flat", x, cuts=cuts)


@memoized(most=1 << 12)
def _flat_cuts(world: RuntimeWorld, kind: ArrayType, new: tuple[int, ...]) -> Cuts | None:
    """Return where to cut the flat array; None where the dims can be regrouped in place."""
    frame = OperandMesh("reshape", [kind])
    placement = frame.placement(kind)
    if placement is None:
        return None
    shards = math.prod(s.shards for s in placement)
    before = most = _longest(placement)
    shape = kind.shape
    for step in (_middle(shape, new), new):
        if step != shape:
            text, sizes = _reshape_rule([(shape, kind.dtype)], {"shape": step})
            rule = OpRule.parse(text).bind([shape], sizes, "reshape")
            found = propagate(rule, [placement], frame.mesh.shape, [kind.nbytes])
            shape, placement = step, found.outputs[0]
            most = max(most, _longest(placement))
    head = next((n for n in new if n > 1), 1)
    rows = head if head >= shards else kind.size
    cuts = tuple([c * (kind.size // rows) for c in balanced_cuts(rows, shards)])
    best = -(-head // shards) * (kind.size // head)
    return cuts if best < most and before < most else None


def _longest(placement: Placement) -> int:
    """Return the elements of the largest piece."""
    return math.prod(max(b - a for a, b in pairwise(s.cuts)) for s in placement)


def _middle(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape on the way in which dims without common factors are merged."""
    middle: list[int] = []
    for old_dims, new_dims in _groups(old, new):
        before = [old[i] for i in old_dims]
        if _refined(before, [new[j] for j in new_dims]) is None:
            middle.append(math.prod(before))
        else:
            middle += before
    return tuple(middle)


def _filled(x: Array, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the new shape with its -1 worked out."""
    known = math.prod(n for n in wanted if n != -1)
    holes = [i for i, n in enumerate(wanted) if n == -1]
    fits = (not holes and known == x.size) or (len(holes) == 1 and known and x.size % known == 0)
    if not fits or any(n < -1 for n in wanted):
        raise ShapeError(
            f"reshape: cannot reshape an array of shape {x.shape} (size {x.size}) into "
            f"{tuple(wanted)}{'' if holes else f' (size {known})'}."
        )
    return tuple(x.size // known if n == -1 else n for n in wanted)


@checked
def ravel(a: ArrayLike, order: str = "C") -> Array:
    """Return the array with one dim.

    >>> import meshard.numpy as mnp
    >>> mnp.ravel(mnp.asarray([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    return reshape(a, (-1,), order=order) if as_array(a).size else reshape(a, (0,), order=order)


@checked
def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Return the array with its dims permuted; no data moves, and each dim stays split as it is.

    Args:
        a: the array.
        axes: the array's dims in the order of the result; by default reversed.

    Raises:
        ArgumentError: if ``axes`` is not a permutation of the dims.
        DimError: if it names a dim that does not exist.

    >>> import meshard, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> x = mnp.transpose(mnp.ones((2, 3, 4), device=split), (1, 0, 2))
    >>> x.shape, x.sharding.spec
    ((3, 2, 4), P(None, 'i'))
    """
    x = as_array(a)
    if axes is None:
        order = tuple(range(x.ndim))[::-1]
    else:
        order = tuple(int(i) % x.ndim if -x.ndim <= i < x.ndim else int(i) for i in axes)
        if sorted(order) != list(range(x.ndim)):
            kind = ArgumentError if set(order) <= set(range(x.ndim)) else DimError
            raise kind(f"transpose: axes {tuple(axes)} is not a permutation of the {x.ndim} dims.")
    found: Array = bind("transpose", x, axes=order)
    before = order_of_dims(x)
    order = order if before is None else tuple([before[d] for d in order])
    if order != tuple(range(x.ndim)):
        _orders[id(found)] = order, weakref.ref(found, partial(_forgotten, id(found)))
    return found


permute_dims = transpose
_orders: dict[int, tuple[tuple[int, ...], weakref.ref[Array]]] = {}
"""By the number of an array that `transpose` has made the order of its dims; while it lives."""


def _forgotten(number: int, gone: weakref.ref[Array]) -> None:
    entry = _orders.get(number)
    if entry is not None and entry[1] is gone:  # the number may be another array's by now
        del _orders[number]


def order_of_dims(x: Array) -> tuple[int, ...] | None:
    """Return the order in which an array has the dims of the one that it is a transpose of.

    This depends on what the program did, unlike the order of a block's elements in memory, which
    also depends on the number of processes. So a kernel may choose its way by it.

    Returns:
        For each dim of the array its number in the other one; None if it is not a transpose.
    """
    entry = _orders.get(id(x))
    return None if entry is None else entry[0]


def matrix_transpose(x: ArrayLike, /) -> Array:
    """Return the array with its last two dims exchanged.

    >>> import meshard.numpy as mnp
    >>> mnp.matrix_transpose(mnp.ones((4, 2, 3))).shape
    (4, 3, 2)
    """
    value = as_array(x)
    if value.ndim < 2:
        raise ShapeError(f"matrix_transpose: needs at least two dims, got shape {value.shape}.")
    return swapaxes(value, -1, -2)


@checked
def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Return the array with two dims exchanged; no data moves.

    >>> import meshard.numpy as mnp
    >>> mnp.swapaxes(mnp.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_array(a)
    (i,), (j,) = (normalised_axes(d, x.ndim, "swapaxes") for d in (axis1, axis2))
    order = list(range(x.ndim))
    order[i], order[j] = order[j], order[i]
    return transpose(x, order)


@checked
def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Return the array with some dims moved to other places; the others keep their order.

    Args:
        a: the array.
        source: the dims to move.
        destination: their places in the result, as many.

    Raises:
        ArgumentError: if a dim does not exist or is named twice, or the numbers of dims differ.

    >>> import meshard.numpy as mnp
    >>> mnp.moveaxis(mnp.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_array(a)
    old, new = (_in_order(dims, x.ndim, "moveaxis") for dims in (source, destination))
    if len(old) != len(new):
        raise ArgumentError(f"moveaxis: {source} and {destination} have different lengths.")
    order = [d for d in range(x.ndim) if d not in old]
    for place, dim in sorted(zip(new, old, strict=True)):
        order.insert(place, dim)
    return transpose(x, order)


def _in_order(dims: Any, ndim: int, what: str) -> list[int]:
    """Return dims as numbers from 0, in the order given."""
    normalised_axes(dims, ndim, what)
    return [int(d) % ndim for d in np.atleast_1d(dims)] if ndim else []


@checked
def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Return the array with dims of size one inserted.

    Args:
        a: the array.
        axis: the places of the new dims in the result.

    Raises:
        ArgumentError: if the result has no such dim, or one is named twice.

    >>> import meshard, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> x = mnp.expand_dims(mnp.ones(4, device=split), 0)
    >>> x.shape, x.sharding.spec
    ((1, 4), P(None, 'i'))
    """
    x = as_array(a)
    count = 1 if isinstance(axis, (int, np.integer)) else len(axis)
    at = normalised_axes(axis, x.ndim + count, "expand_dims")
    shape = list(x.shape)
    for d in at:
        shape.insert(d, 1)
    return reshape(x, tuple(shape))


@checked
def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array without dims of size one.

    Args:
        a: the array.
        axis: the dims to leave out; by default all of size one.

    Raises:
        ShapeError: if a named dim is longer than one.

    >>> import meshard.numpy as mnp
    >>> mnp.squeeze(mnp.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    x = as_array(a)
    if axis is None:
        gone: tuple[int, ...] = tuple(i for i, n in enumerate(x.shape) if n == 1)
    else:
        gone = normalised_axes(axis, x.ndim, "squeeze")
    for d in gone:
        if x.shape[d] != 1:
            raise ShapeError(f"squeeze: dim {d} of {x.shape} has size {x.shape[d]}, not one.")
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def broadcast_to(array: ArrayLike, shape: ShapeLike) -> Array:
    """Return the array repeated along dims of size one to a shape; no memory is used.

    Args:
        array: the array.
        shape: the result's shape; dims that the array does not have come first.

    Raises:
        ShapeError: if it does not broadcast to the shape.

    >>> import meshard, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> mnp.broadcast_to(mnp.ones(4, device=split), (3, 4)).sharding.spec
    P(None, 'i')
    """
    x, wanted = as_array(array), shape_of(shape, "broadcast_to")
    tail = wanted[len(wanted) - x.ndim :] if x.ndim <= len(wanted) else ()
    fits = len(tail) == x.ndim and all(n in (1, m) for n, m in zip(x.shape, tail, strict=True))
    if not fits or any(n < 0 for n in wanted):
        raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {wanted}.")
    return x if x.shape == wanted else bind("broadcast_to", x, shape=wanted)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that several shapes broadcast to.

    >>> import meshard.numpy as mnp
    >>> mnp.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    given = [shape_of(shape, "broadcast_shapes", "a shape") for shape in shapes]
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*given))
    except ValueError:
        listed = ", ".join(map(str, given))
        raise ShapeError(f"broadcast_shapes: the shapes {listed} do not broadcast.") from None


def broadcast_arrays(*args: ArrayLike) -> tuple[Array, ...]:
    """Return the arrays broadcast against each other.

    >>> import meshard.numpy as mnp
    >>> [x.shape for x in mnp.broadcast_arrays(mnp.ones((2, 1)), mnp.ones(3))]
    [(2, 3), (2, 3)]
    """
    arrays = [as_array(a) for a in args]
    shape = broadcast_shapes(*[x.shape for x in arrays])
    return tuple([broadcast_to(x, shape) for x in arrays])


@overload
def atleast_1d(ary: ArrayLike, /) -> Array: ...
@overload
def atleast_1d(*arys: ArrayLike) -> Array | tuple[Array, ...]: ...
def atleast_1d(*arys: ArrayLike) -> Array | tuple[Array, ...]:
    """Return the array with at least one dim; of several arrays a tuple.

    >>> import meshard.numpy as mnp
    >>> mnp.atleast_1d(mnp.asarray(3)).shape
    (1,)
    """
    return each_of(arys, lambda x: reshape(x, (1,)) if x.ndim == 0 else x)


def each_of(arrays: Sequence[Any], function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of an array, or a tuple of that for several."""
    found = tuple([function(as_array(a)) for a in arrays])
    return found[0] if len(found) == 1 else found


@overload
def atleast_2d(ary: ArrayLike, /) -> Array: ...
@overload
def atleast_2d(*arys: ArrayLike) -> Array | tuple[Array, ...]: ...
def atleast_2d(*arys: ArrayLike) -> Array | tuple[Array, ...]:
    """Return the array with at least two dims; of several arrays a tuple.

    >>> import meshard.numpy as mnp
    >>> mnp.atleast_2d(mnp.arange(3)).shape
    (1, 3)
    """
    return each_of(arys, lambda x: x if x.ndim >= 2 else reshape(x, (1, x.size)))
