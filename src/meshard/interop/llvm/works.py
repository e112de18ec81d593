"""Operations on a compiler's values: the rows of the library as expressions.

In: a row's name, its parameters and the dtype of its result. Out: a function from values, or Python
numbers, to a value. Elementwise rows are compiled where there is a template, and else NumPy's own
loop; moves, broadcasts and transpositions say where elements are read; reductions follow NumPy's
order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from meshard.interop.llvm.nodes import (
    Call,
    Dtype,
    Fold,
    Map,
    Node,
    Number,
    Place,
    Shape,
    Unsupported,
    View,
    broadcast,
    checked_dtype,
    is_compiled_dtype,
    loop_of,
    permuted,
    reshaped,
    side_by_side,
)
from meshard.interop.llvm.templates import FAST, has_template
from meshard.ops.array.formulas import FORMULAS, logistic_formula
from meshard.ops.engine.decide import find_row
from meshard.ops.fused.compilers import JIT_MATH, Work
from meshard.ops.row import MoveOp, Op, Params

_FOLDS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
_SPECIAL = {
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erfinv",
    "lgamma": "gammaln",
    "digamma": "psi",
}
"""Rows that are functions of scipy.special."""
_MOST_PIECES = 16
"""Segments of a move's map beyond which it is left to NumPy: each is a loop nest of its own."""


def work_of(name: str, params: Params, dtype: Dtype) -> Work | None:
    """Return an operation as a function of values; None if it is left to NumPy.

    Args:
        name: the row.
        params: its parameters.
        dtype: the dtype of its result.
    """
    row = find_row(name)
    if row is None or not is_compiled_dtype(dtype):
        return None
    if isinstance(row, MoveOp):
        return None if row.onto is not None or row.flat else partial(_moved, row, params)
    if name in _FOLDS:
        return _fold(name, params, dtype)
    make = _MADE.get(name)
    if make is not None:
        return make(params, dtype)
    if params or not (isinstance(row.kernel, np.ufunc) or name in _SPECIAL):
        return None
    return partial(_elementwise, name, row, dtype)


# elementwise


class _Operations:
    """Elementwise operations of values by NumPy's names, as formulas ask for them."""

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name == "where":
            return _picked
        if name in ("two_to", "exponent", "fraction"):
            return lambda x: Map(x.shape, x.dtype, name, (x,))
        return lambda *args: applied(name, getattr(np, name), args)


def _elementwise(name: str, row: Op, dtype: Dtype, *args: Any) -> Node:
    if name in FORMULAS and getattr(args[0], "dtype", None) == np.float32:
        wide = cast(number(args[0], np.dtype(np.float32)), np.dtype(np.float64))
        return cast(FORMULAS[name](_Operations(), wide), dtype)
    ufunc = row.kernel if isinstance(row.kernel, np.ufunc) else _special(name)
    return cast(applied(name, ufunc, args), dtype)


def _special(name: str) -> np.ufunc:
    import scipy.special

    found: np.ufunc = getattr(scipy.special, _SPECIAL[name])
    return found


def applied(name: str, ufunc: np.ufunc, args: tuple[Any, ...]) -> Node:
    """Return a ufunc of values and Python numbers, computed in the dtypes that NumPy chooses."""
    try:
        chosen = ufunc.resolve_dtypes((*map(_asked, args), None))
    except TypeError as error:
        raise Unsupported(f"{name}: {error}") from error
    if len(chosen) != len(args) + 1:
        raise Unsupported(f"{name} has several results")
    for dtype in chosen:
        checked_dtype(dtype)
    given = [cast(number(x, d), d) for x, d in zip(args, chosen, strict=False)]
    fast = FAST.get((name, chosen[0].char)) if JIT_MATH.value == "fast" else None
    if fast is not None:
        found: Node = fast(_Operations(), *given)
        return found
    shape = np.broadcast_shapes(*[x.shape for x in given])
    result = chosen[-1]
    if len(set(chosen[:-1])) == 1 and has_template(name, chosen[0]):
        return Map(shape, result, name, tuple(given))
    # NumPy's loop for powers of integers raises an error where an exponent is negative.
    loop = None if name == "power" and result.kind != "f" else loop_of(ufunc, chosen)
    if loop is None:
        raise Unsupported(f"{name} of {', '.join(map(str, chosen[:-1]))} is computed by NumPy")
    return Call(shape, result, loop, tuple([_spread(x, shape) for x in given]))


def _spread(x: Node, shape: Shape) -> Node:
    return x if isinstance(x, Number) else broadcast(side_by_side(x), shape)


def _asked(x: Any) -> Any:
    """Return an operand's dtype, or a number's type, as ``resolve_dtypes`` asks for them."""
    if isinstance(x, Weak):
        return x.type
    dtype = getattr(x, "dtype", None)
    if dtype is not None:
        return dtype
    if type(x) is bool:
        return np.dtype(bool)
    if type(x) in (int, float):
        return type(x)
    raise Unsupported(f"numbers of type {type(x).__name__} are computed by NumPy")


class Weak:
    """A Python number that is known when the program runs.

    Attributes:
        type: int or float.
        number: its place among the inputs.
    """

    __slots__ = ("number", "type")

    def __init__(self, kind: type, number: int) -> None:
        self.type = kind
        self.number = number


def number(x: Any, dtype: Dtype) -> Node:
    """Return an operand as a value: a Python number in a dtype, a value as it is."""
    if isinstance(x, Weak):
        return Number(checked_dtype(dtype), x.number)
    if isinstance(x, (bool, int, float, np.generic)):
        if isinstance(x, np.generic):
            dtype = x.dtype
        try:
            value = np.array(x, checked_dtype(dtype))[()]
        except OverflowError as error:
            raise Unsupported(str(error)) from error
        return Number(dtype, None, value)
    found: Node = x
    return found


def cast(x: Node, dtype: Dtype) -> Node:
    """Return a value in another dtype."""
    if x.dtype == dtype:
        return x
    checked_dtype(dtype)
    if x.dtype.kind == "f" and dtype.kind == "u" and dtype.itemsize == 8:
        raise Unsupported("floats are made uint64 by NumPy")
    if isinstance(x, Number) and x.number is None:
        return Number(dtype, None, x.value.astype(dtype))
    return Map(x.shape, dtype, "cast", (x,))


def _picked(condition: Any, one: Any, other: Any) -> Node:
    """Return one of two values, of which one at least says the dtype."""
    dtype = next(x.dtype for x in (one, other) if hasattr(x, "dtype"))
    return _where({}, dtype)(condition, one, other)  # type: ignore[no-any-return]


def _where(params: Params, dtype: Dtype) -> Work:
    def work(condition: Any, one: Any, other: Any) -> Node:
        found = cast(number(condition, np.dtype(bool)), np.dtype(bool))
        picked = [cast(number(x, dtype), dtype) for x in (one, other)]
        shape = np.broadcast_shapes(found.shape, *[x.shape for x in picked])
        return Map(shape, dtype, "where", (found, *picked))

    return work


def _logistic(params: Params, dtype: Dtype) -> Work | None:
    """Return the formula of the row's kernel, step by step."""
    if dtype.kind != "f":
        return None

    def work(x: Any) -> Node:
        if getattr(x, "dtype", None) != dtype:
            raise Unsupported("logistic of other dtypes is computed by NumPy")
        found: Node = logistic_formula(_Operations(), x)
        return found

    return work


# places


def _moved(row: MoveOp, params: Params, *args: Any) -> Node:
    nodes = [_array(x) for x in args]
    maps = row.maps([x.shape for x in nodes], params)
    if sum(len(m.segments) for own in maps for m in own) > _MOST_PIECES * max(1, len(maps[0])):
        raise Unsupported(f"{row.name} has many pieces")
    shape = tuple([m.size for m in maps[0]])
    parts = tuple([(x, tuple(enumerate(own))) for x, own in zip(nodes, maps, strict=True)])
    found = View(shape, nodes[0].dtype, parts)
    dropped = params.get("dropped", ())
    if not dropped:
        return found
    return reshaped(found, tuple([n for d, n in enumerate(shape) if d not in dropped]))


def _array(x: Any) -> Any:
    if isinstance(x, (Weak, bool, int, float, np.generic)):
        raise Unsupported("a number is used as an array")
    return x


def _transposed(params: Params, dtype: Dtype) -> Work:
    return lambda x: permuted(_array(x), params["axes"])


def _reshaped(params: Params, dtype: Dtype) -> Work:
    return lambda x: reshaped(_array(x), params["shape"])


def _broadcast(params: Params, dtype: Dtype) -> Work:
    return lambda x: broadcast(_array(x), params["shape"])


def _cast(params: Params, dtype: Dtype) -> Work:
    return lambda x: cast(_array(x), dtype)


# reductions


def _fold(name: str, params: Params, dtype: Dtype) -> Work | None:
    if set(params) - {"axis", "keepdims", "dtype"}:
        return None
    axes, keep, ufunc = params["axis"], params.get("keepdims", False), _FOLDS[name]

    def work(x: Any) -> Node:
        x = _array(x)
        if x.dtype.kind == "f" and dtype.kind == "f" and x.dtype != dtype:
            raise Unsupported(f"{name} accumulates in another dtype")
        return folded(name, ufunc, cast(x, dtype), axes, keep)

    return work


def folded(name: str, ufunc: np.ufunc, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    """Return a reduction over the last dims, or over the first."""
    if not axes:
        return x
    loop = loop_of(ufunc, (x.dtype,) * 3)
    if loop is None or 0 in x.shape:
        raise Unsupported(f"{name} of {x.dtype} is computed by NumPy")
    kept = {d: n for d, n in enumerate(x.shape) if d not in axes}
    rows = any(d > min(axes) and n > 1 for d, n in kept.items())
    if rows and (axes != (0,) or not has_template(ufunc.__name__, x.dtype)):
        raise Unsupported(f"{name} over these dims is computed by NumPy")
    found = Fold(tuple(kept.values()), x.dtype, ufunc.__name__, loop, side_by_side(x), rows)
    shape = tuple([1 if d in axes else n for d, n in enumerate(x.shape)])
    return reshaped(found, shape) if keep else found


def _place(least: bool, params: Params, dtype: Dtype) -> Work | None:
    axes, keep = params["axis"], params.get("keepdims", False)
    if any(params.get("starts", ())):
        return None

    def work(x: Any) -> Node:
        x = _array(x)
        if axes != (len(x.shape) - 1,) or not x.shape[-1]:
            raise Unsupported("positions over other dims than the last are found by NumPy")
        found = Place(x.shape[:-1], np.dtype(np.int64), least, x)
        return reshaped(found, (*found.shape, 1)) if keep else found

    return work


_MADE: dict[str, Callable[[Params, Dtype], Work | None]] = {
    "argmax": partial(_place, False),
    "argmin": partial(_place, True),
    "astype": _cast,
    "broadcast_to": _broadcast,
    "logistic": _logistic,
    "reshape": _reshaped,
    "transpose": _transposed,
    "where": _where,
}
"""What makes the work of operations with parameters or formulas, from these and the dtype."""
