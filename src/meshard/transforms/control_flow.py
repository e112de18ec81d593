"""Control flow by the names of ``jax.lax``: loops, conditions, scans.

Outside of `shard_map` these are Python's own loops and conditions around operations that run at
once. Inside, a condition may differ between devices: then the code runs for those it concerns, and
a loop goes on as long as any of this process's devices has a turn left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.create import full, zeros
from meshard.ops.elementwise import clip
from meshard.ops.move import stack
from meshard.runtime import trees
from meshard.runtime.place import as_array
from meshard.runtime.primitive import innermost
from meshard.runtime.traced import Traced

from .abstract import abstractly
from .body import Body
from .branches import choices, empty_mask, ghost, merged, narrowed, widened
from .carries import Carry, leaf_type, outputs_alike
from .grid import Grid

__all__ = ["cond", "fori_loop", "map", "scan", "switch", "while_loop"]

_NOTHING = object()


def _body() -> Body | None:
    interpreter = innermost()
    return interpreter if isinstance(interpreter, Body) else None


# conditions


def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
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

    >>> int(cond(True, lambda x: x + 1, lambda x: x - 1, 5))
    6
    """
    if not all(callable(f) for f in (true_fun, false_fun)):
        raise ArgumentError("cond: true_fun and false_fun arguments should be callable.")
    args = operands if operand is _NOTHING else (operand,)
    pred = _scalar(pred, "cond", "pred")
    index = (pred == 0).astype(np.int64) if isinstance(pred, Traced) else int(not bool(pred))
    return _switched("cond", index, [true_fun, false_fun], args, ["true_fun", "false_fun"])


def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
    operand: Any = _NOTHING,
) -> Any:
    """Call one of several functions.

    Args:
        index: the number of the function; below 0 it is the first, beyond the end the last.
        branches: the functions. Their results must agree as those of `cond` must.
        operands: the arguments of all.
        operand: the older way to pass one argument.

    Raises:
        ArgumentError: if there are no functions, ``index`` is no integer, or types differ.
        TreeError: if the results' tree structures differ.

    >>> int(switch(1, [lambda x: x, lambda x: 2 * x], 5))
    10
    """
    if not branches:
        raise ArgumentError("switch: the sequence of branches is empty.")
    if not all(callable(b) for b in branches):
        raise ArgumentError("switch: branches should be callable.")
    args = operands if operand is _NOTHING else (operand,)
    number = _scalar(index, "switch", "index")
    dtype = number.dtype if hasattr(number, "dtype") else np.asarray(number).dtype
    if dtype.kind not in "iu":
        raise ArgumentError(f"switch: the index must be an integer, got {number!r} as {dtype}.")
    last = len(branches) - 1
    inside = clip if isinstance(number, Traced) else _inside
    number = inside(number, 0, last)
    names = [f"branch {i}" for i in range(len(branches))]
    return _switched("switch", number, list(branches), args, names)


def _inside(x: Any, low: int, high: int) -> int:
    return min(max(int(x), low), high)


def _scalar(x: Any, what: str, name: str) -> Any:
    """Return a predicate, which has no dims."""
    if isinstance(x, (bool, int, float, np.generic)):
        return x
    if isinstance(x, (list, tuple, dict, str)) or x is None:
        raise ArgumentError(
            f"{what}: {name} must be a scalar, got {x!r} of type {type(x).__name__}."
        )
    value = as_array(x)
    if value.shape:
        raise ShapeError(
            f"{what}: {name} must be a scalar, got {value.aval!r} of shape {value.shape}."
        )
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
    args = trees.map(lambda x: make(x) if hasattr(x, "dtype") else x, args)
    if body is None:
        taken = int(index)
        results = [
            branch(*args) if i == taken else abstractly(branch, *args)
            for i, branch in enumerate(branches)
        ]
        return outputs_alike(what, names, results)[taken]
    if isinstance(index, Grid) and index.kind.varies:
        return _diverging(what, body, index, branches, args, names)
    # The same everywhere: one branch is computed, the others only typed.
    taken = int(index) if not isinstance(index, Grid) or index.cells[0] is not None else -1
    results = []
    for i, branch in enumerate(branches):
        if i == taken:
            results.append(branch(*args))
        else:
            with body.under(empty_mask(body)):
                results.append(branch(*args))
    return _unified(what, body, names, results, max(taken, 0))


def _unified(what: str, body: Body, names: list[str], results: list[Any], taken: int) -> Any:
    """Return one branch's results, varying over all axes that any branch's do."""
    alike = outputs_alike(what, names, results, body.lift)
    flat = [trees.leaves(r) for r in alike]
    joined = [
        widened(own, frozenset().union(*(x.kind.varies for x in column)))
        for own, *column in zip(flat[taken], *flat, strict=True)
    ]
    return trees.unflatten(trees.structure(alike[0]), joined)


def _diverging(
    what: str,
    body: Body,
    index: Grid,
    branches: list[Callable[..., Any]],
    args: tuple[Any, ...],
    names: list[str],
) -> Any:
    """Run each branch for the devices that chose it, and merge what they computed."""
    chosen = choices(body, index)
    results = []
    for i, branch in enumerate(branches):
        with body.under(narrowed(body, index, chosen == i)):
            results.append(branch(*args))
    alike = outputs_alike(what, names, results, body.lift)
    flat = [trees.leaves(r) for r in alike]
    axes = index.kind.extent
    joined = [merged(body, column, chosen, index.kind, axes) for column in zip(*flat, strict=True)]
    return trees.unflatten(trees.structure(alike[0]), joined)


# loops


def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any
) -> Any:
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
        ArgumentError: if the condition is no bool, or the carry's types differ.
        TreeError: if the carry's tree structures differ.

    >>> int(while_loop(lambda x: x < 100, lambda x: 2 * x, 3))
    192
    """
    body = _body()
    carry = Carry.of("while_loop", init_val, body)
    if body is None:
        turns = 0
        while bool(_condition(cond_fun(carry.value))):
            carry = carry.after(body_fun)
            turns += 1
        if not turns:
            abstractly(carry.after, body_fun)
        return carry.value

    def predicate(value: Any) -> Grid:
        return body.lift(_condition(cond_fun(value)))

    carry = _settled(body, carry, body_fun, predicate)
    mask = body.mask
    while True:
        with body.under(mask):
            pred = predicate(carry.value)
        flags = choices(body, pred) > 0
        if not pred.kind.varies and mask is body.mask:
            if not flags.any():
                return carry.value
            carry = carry.after(body_fun)
            continue
        with body.under(mask):
            mask = narrowed(body, pred, flags)
        if not (mask.grid & body.scope.here).any():
            return carry.value
        with body.under(mask):
            found = carry.after(body_fun)
        chosen = np.where(mask.grid, 0, 1)
        carry = carry.replaced(
            [
                merged(body, (new, old), chosen, pred.kind, mask.axes)
                for new, old in zip(found.leaves, carry.leaves, strict=True)
            ]
        )


def _condition(value: Any) -> Any:
    """Return what a loop's condition gave, a bool without dims."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if not hasattr(value, "dtype") or value.dtype != np.bool_ or value.shape:
        told = value.aval if hasattr(value, "aval") else value
        raise ArgumentError(f"while_loop: cond_fun must return a boolean scalar, but got {told!r}.")
    return value


def _settled(
    body: Body,
    carry: Carry,
    step: Callable[[Any], Any],
    predicate: Callable[[Any], Grid] | None = None,
) -> Carry:
    """Return the carry, varying over all axes over which it comes to vary in later turns.

    The type of a loop's result must not depend on how many turns it takes, so that the turns are
    first gone through without values until nothing changes.
    """
    every = frozenset(body.scope.manual)
    while any(x.kind.varies != every for x in carry.leaves):
        with body.under(empty_mask(body)):
            ghosts = carry.replaced([ghost(body, x.kind) for x in carry.leaves])
            by = predicate(ghosts.value).kind.varies if predicate else frozenset[str]()
            after = ghosts.after(step)
        now = [
            x.kind.varies | y.kind.varies | by
            for x, y in zip(carry.leaves, after.leaves, strict=True)
        ]
        carry = carry.cast([y.dtype for y in after.leaves])
        if all(v == x.kind.varies for v, x in zip(now, carry.leaves, strict=True)):
            return carry
        carry = carry.replaced([widened(x, v) for x, v in zip(carry.leaves, now, strict=True)])
    return carry


def _bound(x: Any, name: str) -> Any:
    """Return a bound of a loop: a Python int, or a value that differs between devices.

    Raises:
        ArgumentError: if it is no integer without dims.
    """
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return int(x)
    value = as_array(x)
    if value.shape or value.dtype.kind not in "iu":
        raise ArgumentError(
            f"fori_loop: {name} must be an integer without dims, got {value.aval!r}."
        )
    varying = isinstance(value, Grid) and (value.kind.varies or value.cells[0] is None)
    return value if varying else int(value)


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """Call a function for each integer from ``lower`` up to, and without, ``upper``.

    Args:
        lower: the first integer.
        upper: the end. Inside `shard_map` both may differ between devices.
        body_fun: from the integer and the carry to the next carry, of the same structure, shapes
            and dtypes.
        init_val: the first carry: a tree of arrays. A Python number in it takes the dtype that
            ``body_fun`` gives it.
        unroll: accepted as in JAX; there is nothing to unroll.

    Returns:
        The last carry.

    Raises:
        ArgumentError: if a bound is no integer, or the carry's types differ.
        TreeError: if the carry's tree structures differ.

    >>> int(fori_loop(0, 5, lambda i, total: total + i, 0))
    10
    """
    first, end = _bound(lower, "lower"), _bound(upper, "upper")
    body = _body()
    if not (isinstance(first, int) and isinstance(end, int)):

        def step(state: Any) -> Any:
            return state[0] + 1, body_fun(state[0], state[1])

        start = as_array(first) if isinstance(first, int) else first
        if not isinstance(end, int) and end.dtype != start.dtype:
            start = start.astype(np.result_type(start.dtype, end.dtype))
        found = while_loop(lambda state: state[0] < end, step, (start, init_val))
        return found[1]
    carry = Carry.of("fori_loop", init_val, body)
    if body is not None:
        carry = _settled(body, carry, lambda value: body_fun(first, value))
    for i in range(first, end):
        carry = carry.after(lambda value, i=i: body_fun(i, value))  # type: ignore[misc]
    if first >= end and body is None:
        abstractly(carry.after, lambda value: body_fun(first, value))
    return carry.value


# scans


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:
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
    body = _body()
    leaves, shape = trees.flatten(xs)
    arrays = [as_array(x) for x in leaves]
    count = _length(arrays, length)
    carry = Carry.of("scan", init, body)
    results: list[Any] = []

    def at(i: int) -> Any:
        return trees.unflatten(shape, [x[i] for x in arrays])

    def step(value: Any, x: Any) -> Any:
        pair = f(value, x)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"scan: the body's output must be a pair, got {pair!r}.")
        results.append(pair[1])
        return pair[0]

    def typed() -> None:
        """Go through one turn without values."""
        sample = [full(x.shape[1:], 0, x.dtype) if not count else x[0] for x in arrays]
        carry.after(lambda value: step(value, trees.unflatten(shape, sample)))

    if not count:
        if body is None:
            abstractly(typed)
        else:
            with body.under(empty_mask(body)):
                typed()
        empty = [zeros((0, *leaf_type(y)[0]), leaf_type(y)[1]) for y in trees.leaves(results[0])]
        return carry.value, trees.unflatten(trees.structure(results[0]), empty)
    if body is not None:
        carry = _settled(body, carry, lambda value: step(value, at(0)))
        results.clear()
    for i in range(count - 1, -1, -1) if reverse else range(count):
        carry = carry.after(lambda value, i=i: step(value, at(i)))  # type: ignore[misc]
    if len(results) > count:  # the first turn was done again with another dtype
        del results[: len(results) - count]
    if reverse:
        results.reverse()
    return carry.value, _stacked(results)


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
        count = length.__index__()
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
    flat = [trees.leaves(r) for r in results]
    for other in results[1:]:
        if trees.structure(other) != shape:
            raise TreeError(
                f"scan: the results of all positions must have one tree structure, got {shape} "
                f"and {trees.structure(other)}."
            )
    return trees.unflatten(shape, [stack(column) for column in zip(*flat, strict=True)])


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
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
