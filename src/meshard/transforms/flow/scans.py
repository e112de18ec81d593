"""Scans by the names of ``jax.lax``: a function for each position along the first dim of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.array.create import zeros
from meshard.ops.array.join import stack
from meshard.ops.engine.arguments import checked
from meshard.ops.engine.infer import AbstractArray
from meshard.runtime import trees
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array, home
from meshard.runtime.world import here
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid, idle, local_type, widened
from meshard.transforms.flow.carries import Carry, arrays_of, leaf_type, settled
from meshard.transforms.flow.recorded_flow import recorded_scan
from meshard.transforms.tracing.abstract import is_abstract
from meshard.transforms.tracing.tracing import recording

C = TypeVar("C")
Y = TypeVar("Y")


@checked
def scan(
    f: Callable[[Any, Any], tuple[C, Y]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[C, Y]:
    """Call a function for each position along the first dim of some arrays, carrying a value along.

    Args:
        f: from the carry and the arrays at one position to the next carry, of the same structure,
            shapes and dtypes, and a tree of results.
        init: the first carry: a tree of arrays. A Python number in it takes the dtype that ``f``
            gives it.
        xs: a tree of arrays whose first dims have one size; None: ``f`` gets None.
        length: the number of positions, needed where ``xs`` has no arrays.
        reverse: whether to begin with the last position.
        unroll: accepted as in JAX; there is nothing to unroll.

    Returns:
        The last carry, and the results of all positions, stacked along a new first dim.

    Raises:
        ShapeError: if the sizes of the first dims differ, or there are none.
        ArgumentError: if ``f`` does not return a pair, or the carry's types differ.
        TreeError: if tree structures differ.

    >>> import meshard.numpy as mnp
    >>> total, running = scan(lambda c, x: (c + x, c), 0, mnp.arange(4))
    >>> int(total), running.tolist()
    (6, [0, 0, 1, 3])
    """
    if not callable(f):
        raise ArgumentError(f"scan: f must be a function, got {f!r} of type {type(f).__name__}.")
    interpreter = innermost()
    body = interpreter if isinstance(interpreter, Body) else None
    leaves, shape = trees.flatten(xs)
    arrays = [as_array(x) for x in arrays_of(leaves, "scan: the leaves of xs")]
    if body is not None:
        arrays = [body.lift(x) for x in arrays]
    count = _length(arrays, length)
    results: list[Any] = []

    def step(value: Any, x: Any) -> Any:
        pair: Any = f(value, x)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"scan: the body's output must be a pair, got {pair!r}.")
        results.append(pair[1])
        return pair[0]

    carry = Carry.of("scan", init, body)
    if recording() is not None:
        return recorded_scan(
            lambda value, x: (step(value, x), results[-1]),
            carry,
            arrays,
            shape,
            count,
            bool(reverse),
            lambda x: _sample(body, x),
            scan,
        )
    typed = is_abstract() or (body is not None and idle(body))
    if is_abstract() or body is not None or any(carry.weak) or not count:
        sample = trees.unflatten(shape, [_sample(body, x) for x in arrays])
        carry = settled(carry, lambda value: step(value, sample))
    if typed or not count:
        return (carry.abstract() if typed else carry).value, _unrun(body, results[-1], count, typed)
    results.clear()
    for i in range(count - 1, -1, -1) if reverse else range(count):
        x = trees.unflatten(shape, [a[i] for a in arrays])
        carry = carry.after(lambda value, x=x: step(value, x))  # type: ignore[misc]
    if reverse:
        results.reverse()
    return carry.value, _stacked(results)


def _sample(body: Body | None, x: Any) -> Any:
    """Return one position of an array as a value without data."""
    if body is None:
        return _typed(x.shape[1:], x.dtype)
    scope, kind = body.scope, x.kind
    local = local_type(scope, kind.shape[1:], kind.dtype)
    return abstract_grid(body, scope.kind(local, kind.extent, kind.varies))


def _typed(shape: tuple[int, ...], dtype: Any) -> AbstractArray:
    """Return a value without data, on whatever devices it is needed."""
    world = here()
    return AbstractArray(world.type_of(shape, dtype, home(world), False))


def _unrun(body: Body | None, result: Any, count: int, typed: bool) -> Any:
    """Return the results of all positions where none was run: of no positions, or only typed."""
    made: list[Any] = []
    for y in arrays_of(trees.leaves(result), "scan: the results of a position"):
        shape, dtype = leaf_type(y)
        shape = (count, *shape)
        if body is None:
            made.append(_typed(shape, dtype) if typed else zeros(shape, dtype))
            continue
        kind, scope = body.lift(y).kind, body.scope
        if typed:
            local = local_type(scope, shape, dtype)
            made.append(abstract_grid(body, scope.kind(local, kind.extent, kind.varies)))
        else:
            made.append(widened(body.lift(zeros(shape, dtype)), kind.varies))
    return trees.unflatten(trees.structure(result), made)


def _length(arrays: Sequence[Any], length: int | None) -> int:
    """Return the number of positions of a scan."""
    for x in arrays:
        if not x.shape:
            raise ShapeError(f"scan: got a value with no leading dim to scan over: {x!r}.")
    sizes = [x.shape[0] for x in arrays]
    if len(set(sizes)) > 1:
        told = ", ".join([str(n) for n in dict.fromkeys(sizes)])
        raise ShapeError(f"scan: got values with different sizes of the leading dim: {told}.")
    if length is not None:
        count = -1 if isinstance(length, bool) else getattr(length, "__index__", lambda: -1)()
        if count < 0:
            raise ArgumentError(f"scan: length must be a non-negative integer, got {length!r}.")
        if sizes and sizes[0] != count:
            raise ShapeError(
                f"scan: got length {count}, which disagrees with the leading dim's size {sizes[0]}."
            )
        return count
    if not sizes:
        raise ShapeError("scan: got no values to scan over, and length is not given.")
    return int(sizes[0])


def _stacked(results: Sequence[Any]) -> Any:
    """Return trees of results as one tree of arrays with a new first dim."""
    shape = trees.structure(results[0])
    flat = [arrays_of(trees.leaves(r), "scan: the results of a position") for r in results]
    for other in results[1:]:
        if trees.structure(other) != shape:
            raise TreeError(
                f"scan: the results of all positions must have one tree structure, got {shape} "
                f"and {trees.structure(other)}."
            )
    return trees.unflatten(shape, [stack(column) for column in zip(*flat, strict=True)])


@checked
def map(f: Callable[[Any], Y], xs: Any, *, batch_size: int | None = None) -> Y:
    """Call a function for each position along the first dim of some arrays, and stack its results.

    Args:
        f: from the arrays at one position to a tree of results.
        xs: a tree of arrays whose first dims have one size.
        batch_size: accepted as in JAX, where it says how many positions are computed at once.

    >>> import meshard.numpy as mnp
    >>> map(lambda x: 2 * x, mnp.arange(3)).tolist()
    [0, 2, 4]
    """
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]
