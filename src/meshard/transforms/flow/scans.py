"""Scans by the names of ``jax.lax``: a function for each position along the first dim of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from meshard.errors import ArgumentError, TreeError
from meshard.ops.array.create import zeros
from meshard.ops.array.join import stack
from meshard.ops.array.shape import broadcast_to
from meshard.ops.checked import checked
from meshard.runtime.doors import innermost
from meshard.runtime.trees import trees
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import idle, widened
from meshard.transforms.flow.carries import Carry, arrays_of, leaf_type, settled
from meshard.transforms.flow.positions import Positions, unplaced_value
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
    >>> from meshard.lax import scan
    >>> total, running = scan(lambda c, x: (c + x, c), 0, mnp.arange(4))
    >>> int(total), running.tolist()
    (6, [0, 0, 1, 3])
    """
    if not callable(f):
        raise ArgumentError(f"scan: f must be a function, got {f!r} of type {type(f).__name__}.")
    interpreter = innermost()
    body = interpreter if isinstance(interpreter, Body) else None
    along = Positions.of(xs, length, reverse, body)
    results: list[Any] = []

    def step(value: Any, x: Any) -> Any:
        pair: Any = f(value, x)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"scan: the body's output must be a pair, got {pair!r}.")
        results.append(pair[1])
        return pair[0]

    carry = Carry.of("scan", init, body)
    if recording() is not None:
        return recorded_scan(lambda value, x: (step(value, x), results[-1]), carry, along, scan)
    typed = is_abstract() or (body is not None and idle(body))
    carry = _with_types(carry, along, step, typed)
    if typed or not along.count:
        last = carry.abstract() if typed else carry
        return last.value, _unrun(body, results[-1], along.count, typed)
    results.clear()
    for i in along.order:
        x = trees.unflatten(along.shape, [a[i] for a in along.arrays])
        carry = carry.after(lambda value, x=x: step(value, x))  # type: ignore[misc]
    return carry.value, _stacked(results[::-1] if along.reverse else results)


def _with_types(
    carry: Carry, along: Positions, step: Callable[[Any, Any], Any], typed: bool
) -> Carry:
    """Return the first carry with the types that it has in every turn, if that is not known."""
    if along.count and carry.body is None and not typed and not any(carry.weak):
        return carry
    sample = trees.unflatten(along.shape, along.samples())
    return settled(carry, lambda value: step(value, sample))


def _unrun(body: Body | None, result: Any, count: int, typed: bool) -> Any:
    """Return the results of all positions where none was run: of no positions, or only typed."""
    made: list[Any] = []
    for y in arrays_of(trees.leaves(result), "scan: the results of a position"):
        shape, dtype = leaf_type(y)
        shape = (count, *shape)
        if body is None:
            made.append(unplaced_value(shape, dtype) if typed else zeros(shape, dtype))
            continue
        y = body.lift(y)
        made.append(
            broadcast_to(y, shape)
            if typed
            else widened(body.lift(zeros(shape, dtype)), y.kind.varies)
        )
    return trees.unflatten(trees.structure(result), made)


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
    >>> from meshard import lax
    >>> lax.map(lambda x: 2 * x, mnp.arange(3)).tolist()
    [0, 2, 4]
    """
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]
