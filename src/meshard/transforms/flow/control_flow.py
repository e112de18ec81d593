"""Control flow by the names of ``jax.lax``: conditions and loops.

Outside of `shard_map` these are Python's own loops and conditions around operations that run at
once. Inside, a condition may differ between devices: the code then runs for those it concerns, and
a loop goes on as long as any of this process's devices has a turn left.

Scans by the names of ``jax.lax``: a function for each position along the first dim of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np

from meshard.algebra.arguments import described, integer_of, shown
from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.array.create import zeros
from meshard.ops.array.elementwise import clip
from meshard.ops.array.join import stack
from meshard.ops.array.shape import broadcast_to
from meshard.ops.checked import checked
from meshard.ops.engine.later import AbstractArray
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayLike
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import alike, common, idle, widened
from meshard.transforms.body.grid import Grid
from meshard.transforms.flow.carries import (
    Carry,
    LoopIndex,
    Positions,
    arrays_of,
    leaf_type,
    outputs_alike,
    settled,
    unplaced_value,
)
from meshard.transforms.flow.recorded_flow import (
    recorded_for,
    recorded_scan,
    recorded_switch,
    recorded_while,
)
from meshard.transforms.flow.running import run_each, run_while
from meshard.transforms.tracing.abstract import abstractly, is_abstract, types_only
from meshard.transforms.tracing.tracing import recording

R = TypeVar("R")
_NOTHING: Any = object()


def _body() -> Body | None:
    interpreter = innermost()
    return interpreter if isinstance(interpreter, Body) else None


# conditions


@overload
def cond(
    pred: ArrayLike,
    true_fun: Callable[..., R],
    false_fun: Callable[..., R],
    *operands: Any,
    operand: Any = _NOTHING,
) -> R: ...
@overload
def cond(pred: ArrayLike, true_fun: Any, false_fun: Any, *operands: Any) -> Any: ...
def cond(
    pred: ArrayLike,
    true_fun: Any,
    false_fun: Any,
    *operands: Any,
    operand: Any = _NOTHING,
) -> Any:
    """Call one of two functions.

    Args:
        pred: a bool or number without dims; not zero is true.
        true_fun: what to call if it is true.
        false_fun: what to call if it is not. Its results must have the same tree structure,
            shapes and dtypes; Python numbers take the dtype of the other's.
        operands: the arguments of both.
        operand: the older way to pass one argument.

    Inside `shard_map` the predicate may differ between devices. Then each function runs for the
    devices that chose it, and a collective in one is refused over axes that the predicate varies
    over.

    Raises:
        ShapeError: if ``pred`` has dims.
        ArgumentError: if the results' types differ.
        TreeError: if the results' tree structures differ.

    >>> from meshard.lax import cond
    >>> int(cond(True, lambda x: x + 1, lambda x: x - 1, 5))
    6
    """
    if not callable(true_fun) and len(operands) == 2 and callable(operands[1]):
        # The oldest form: each function stands behind its own operand.
        (first, on_true), (second, on_false) = (true_fun, false_fun), operands
        return cond(pred, lambda x, y: on_true(x), lambda x, y: on_false(y), first, second)
    if not all(callable(f) for f in (true_fun, false_fun)):
        raise ArgumentError("cond: true_fun and false_fun arguments should be callable.")
    args = _operands("cond", operands, operand)
    pred = _scalar(pred, "cond", "pred")
    index = (pred == 0).astype(np.int64) if isinstance(pred, Traced) else int(not bool(pred))
    return _switched("cond", index, [true_fun, false_fun], args, ["true_fun", "false_fun"])


@checked
def switch(
    index: ArrayLike,
    branches: Sequence[Callable[..., R]],
    *operands: Any,
    operand: Any = _NOTHING,
) -> R:
    """Call one of several functions.

    Args:
        index: the number of the function; below 0 it is the first, beyond the end the last.
        branches: the functions. Their results must agree as those of `cond` must.
        operands: the arguments of all.
        operand: the older way to pass one argument.

    Raises:
        ArgumentError: if there are no functions, ``index`` is not an integer, or types differ.
        TreeError: if the results' tree structures differ.

    >>> from meshard.lax import switch
    >>> int(switch(1, [lambda x: x, lambda x: 2 * x], 5))
    10
    """
    if not branches:
        raise ArgumentError("switch: the sequence of branches is empty.")
    if not all(callable(b) for b in branches):
        raise ArgumentError("switch: branches should be callable.")
    args = _operands("switch", operands, operand)
    number = _scalar(index, "switch", "index")
    dtype = number.dtype if hasattr(number, "dtype") else np.asarray(number).dtype
    if dtype.kind not in "iu":
        raise ArgumentError(f"switch: the index must be an integer, got {number!r} as {dtype}.")
    last = len(branches) - 1
    number = clip(number, 0, last) if isinstance(number, Traced) else min(max(int(number), 0), last)
    names = [f"branch {i}" for i in range(len(branches))]
    return _switched("switch", number, list(branches), args, names)


def _operands(what: str, operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is _NOTHING:
        return operands
    if operands:
        raise ArgumentError(
            f"{what}: pass the operands by position or one as operand=, not both; got "
            f"operand={shown(operand)} besides {len(operands)} by position."
        )
    return (operand,)


def _scalar(x: Any, what: str, name: str) -> Any:
    """Return a predicate, which has no dims."""
    if isinstance(x, (bool, int, float, np.generic)):
        return x
    if isinstance(x, (list, tuple, dict, str)) or x is None:
        raise ArgumentError(f"{what}: {name} must be a scalar, got {described(x)}.")
    value = as_array(x)
    if value.shape:
        raise ShapeError(
            f"{what}: {name} must be a scalar, got {value.aval!r} of shape {value.shape}."
        )
    if value.dtype.kind == "c":
        raise ArgumentError(f"{what}: {name} must be a bool or a real number, got {value.aval!r}.")
    return value


def _switched(
    what: str,
    index: Any,
    branches: list[Callable[..., Any]],
    args: tuple[Any, ...],
    names: list[str],
) -> Any:
    body = _body()
    make = as_array if body is None else body.lift
    # Numbers stay numbers, whose dtype is open; a bool becomes an array, so that ~x is its inverse.
    args = trees.map(lambda x: make(x) if hasattr(x, "dtype") or type(x) is bool else x, args)
    if isinstance(index, Traced) and recording() is not None:

        def typed(replays: list[Callable[..., Any]]) -> Any:
            return _switched(what, index, replays, (), names)

        named = list(zip(names, branches, strict=True))
        return recorded_switch(what, index, named, args, _chosen(what, names), typed)
    if body is None:
        unknown = isinstance(index, AbstractArray)
        taken = 0 if unknown else int(index)
        results = [
            branch(*args) if unknown or i == taken else abstractly(branch, *args)
            for i, branch in enumerate(branches)
        ]
        return outputs_alike(what, names, results)[taken]
    if not isinstance(index, Grid):
        return _uniform(what, body, int(index), branches, args, names)
    if index.kind.varies:
        return _diverging(what, body, index, branches, args, names)
    return _uniform(what, body, common(index), branches, args, names)


def _chosen(what: str, names: list[str]) -> Callable[..., Any]:
    """Return what runs a choice that was recorded."""

    def choose(index: Any, branches: list[Callable[..., Any]], *args: Any) -> Any:
        number = index if isinstance(index, Traced) else int(index)
        return _switched(what, number, branches, args, names)

    return choose


def _uniform(
    what: str,
    body: Body,
    taken: int | None,
    branches: list[Callable[..., Any]],
    args: tuple[Any, ...],
    names: list[str],
) -> Any:
    """Run the branch that all devices take, and only type the others."""
    results = []
    for i, branch in enumerate(branches):
        if i == taken:
            results.append(branch(*args))
        else:
            with types_only(body):
                results.append(branch(*args))
    alike_results = outputs_alike(what, names, results, body.lift)
    flat = [trees.leaves(r) for r in alike_results]
    # The result's type must be the same in a process of which no device runs this.
    joined = [
        alike(
            widened(own, frozenset[str]().union(*(x.kind.varies for x in column))),
            column[0].kind.type.sharding,
        )
        for own, *column in zip(flat[taken or 0], *flat, strict=True)
    ]
    return trees.unflatten(trees.structure(alike_results[0]), joined)


def _diverging(
    what: str,
    body: Body,
    index: Grid,
    branches: list[Callable[..., Any]],
    args: tuple[Any, ...],
    names: list[str],
) -> Any:
    """Run each branch for the devices that chose it, and merge what they computed."""
    results, merge = run_each(body, index, [partial(branch, *args) for branch in branches])
    found = outputs_alike(what, names, results, body.lift)
    flat = [trees.leaves(r) for r in found]
    joined = [merge(column) for column in zip(*flat, strict=True)]
    return trees.unflatten(trees.structure(found[0]), joined)


# loops


@checked
def while_loop(
    cond_fun: Callable[[Any], ArrayLike], body_fun: Callable[[Any], R], init_val: Any
) -> R:
    """Call a function again and again as long as a condition holds.

    Args:
        cond_fun: from the carry to a bool without dims.
        body_fun: from the carry to the next one, of the same structure, shapes and dtypes.
        init_val: the first carry: a tree of arrays. A Python number in it takes the dtype that
            ``body_fun`` gives it.

    Returns:
        The carry for which the condition does not hold.

    Inside `shard_map` devices may need different numbers of turns; each stops when it is done.

    Raises:
        ArgumentError: if the condition is not a bool, or the carry's types differ.
        TreeError: if the carry's tree structures differ.

    >>> from meshard.lax import while_loop
    >>> int(while_loop(lambda x: x < 100, lambda x: 2 * x, 3))
    192
    """
    _check_callable("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    body = _body()
    return _while(Carry.of("while_loop", init_val, body), cond_fun, body_fun)


def _while_lists(cond_fun: Any, body_fun: Any, init: Any) -> Any:
    """Run a loop that was recorded, whose carry is a list."""
    return _while(Carry.of("while_loop", list(init), _body()), cond_fun, body_fun)


def _while(carry: Carry, cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any]) -> Any:
    body = carry.body
    if recording() is not None:
        return recorded_while(
            carry, lambda value: _condition(cond_fun(value)), body_fun, _while_lists
        )
    if body is None:
        return _while_outside(carry, cond_fun, body_fun)

    def predicate(value: Any) -> Grid:
        return body.lift(_condition(cond_fun(value)))

    carry = settled(carry, body_fun, predicate)
    found = run_while(
        body,
        lambda leaves: predicate(carry.replaced(leaves).value),
        lambda leaves: carry.replaced(leaves).after(body_fun).leaves,
        carry.leaves,
    )
    return carry.replaced(found).value


def _while_outside(
    carry: Carry, cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any]
) -> Any:
    def predicate(value: Any) -> Any:
        return _condition(cond_fun(value))

    if is_abstract():
        return settled(carry, body_fun, predicate).abstract().value
    if any(carry.weak):
        carry = settled(carry, body_fun, predicate)
    elif not predicate(carry.value):
        settled(carry, body_fun, predicate)  # what is wrong with it is said all the same
    while predicate(carry.value):
        carry = carry.after(body_fun)
    return carry.value


def _check_callable(what: str, **functions: Any) -> None:
    for name, f in functions.items():
        if not callable(f):
            raise ArgumentError(
                f"{what}: {name} must be a function, got {f!r} of type {type(f).__name__}."
            )


def _condition(value: Any) -> Any:
    """Return what a loop's condition gave, a bool without dims."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if not hasattr(value, "dtype") or value.dtype != np.bool_ or value.shape:
        told = value.aval if isinstance(value, Array) else value
        raise ArgumentError(f"while_loop: cond_fun must return a boolean scalar, but got {told!r}.")
    return value


def _bound(x: Any, name: str) -> Any:
    """Return a bound of a loop: a Python int, or a value that differs between devices.

    Raises:
        ArgumentError: if it is not an integer without dims.
    """
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return integer_of(x, "fori_loop", name)
    value = as_array(x)
    if value.shape or value.dtype.kind not in "iu":
        raise ArgumentError(
            f"fori_loop: {name} must be an integer without dims, got {value.aval!r}."
        )
    if isinstance(value, Grid) and not value.kind.varies:
        one = common(value)
        return value if one is None else one
    return value if isinstance(value, Traced) else int(value)


def _first(lower: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return the first integer of a loop as an array that can count up to an end of a dtype."""
    if isinstance(lower, int):
        return as_array(np.asarray(lower, dtype or np.int64))
    wide = lower.dtype if dtype is None else np.result_type(lower.dtype, dtype)
    return lower.astype(wide if wide.kind in "iu" else np.int64)


@checked
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[Any, Any], R],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> R:
    """Call a function for each integer from ``lower`` to before ``upper``.

    Args:
        lower: the first integer.
        upper: the end. Inside `shard_map` both may differ between devices.
        body_fun: from the integer (a `LoopIndex`, which with arrays is a Python number) and the
            carry to the next carry, of the same structure, shapes and dtypes.
        init_val: the first carry: a tree of arrays. A Python number in it takes the dtype that
            ``body_fun`` gives it.
        unroll: accepted as in JAX; there is nothing to unroll.

    Returns:
        The last carry.

    Raises:
        ArgumentError: if a bound is not an integer, or the carry's types differ.
        TreeError: if the carry's tree structures differ.

    >>> from meshard.lax import fori_loop
    >>> int(fori_loop(0, 5, lambda i, total: total + i, 0))
    10
    """
    _check_callable("fori_loop", body_fun=body_fun)
    first, end = _bound(lower, "lower"), _bound(upper, "upper")
    body = _body()
    if recording() is not None and not isinstance(first, Grid) and not isinstance(end, Grid):
        carry = Carry.of("fori_loop", init_val, body)
        return recorded_for(first, end, carry, body_fun, fori_loop)
    if not (isinstance(first, int) and isinstance(end, int)):

        def step(state: Any) -> Any:
            return state[0] + 1, body_fun(state[0], state[1])

        start = _first(first, None if isinstance(end, int) else end.dtype)
        carry = Carry.of("fori_loop", (start, init_val), body, counted=True)
        return _while(carry, lambda state: state[0] < end, step)[1]
    carry = Carry.of("fori_loop", init_val, body)
    if body is not None or is_abstract() or any(carry.weak) or first >= end:
        carry = settled(carry, lambda value: body_fun(LoopIndex(first), value))
    if is_abstract() or (body is not None and idle(body)):
        return carry.abstract().value
    for i in range(first, end):
        carry = carry.after(lambda value, i=i: body_fun(LoopIndex(i), value))  # type: ignore[misc]
    return carry.value


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
