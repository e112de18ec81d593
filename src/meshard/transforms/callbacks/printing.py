"""What a program prints while it runs, and other Python functions that it calls.

In: a format or a function, and arrays. Out: nothing, or what the function returns.
"""

from __future__ import annotations

import builtins
import functools
import logging
import pdb
import string
import sys
from collections.abc import Callable
from typing import Any

from meshard.algebra.arguments import choice_of, flag_of, function_of, instance_of
from meshard.errors import ArgumentError
from meshard.ops.engine.later import when_laid_out
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array, as_sharding
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees import trees
from meshard.transforms.callbacks.callback import DEBUG, IO, PURE, callback_of
from meshard.transforms.tracing.abstract import is_abstract

_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")


def print(
    fmt: str,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> None:
    """Print values when a program runs, also from within `jit`, loops and `shard_map`.

    Args:
        fmt: a format as ``str.format`` takes it: ``"x is {}"``, ``"{loss:.3f}"``.
        *args: what its positions stand for: arrays, trees of them, or anything else.
        ordered: accepted as in JAX; programs print in the order in which they are written anyway.
        partitioned: whether to print each shard of the arrays by itself, on its own process.
            Otherwise the first process prints whole arrays.
        skip_format_check: whether not to check that the format fits before the program runs.
        **kwargs: what its names stand for.

    In a `shard_map` body each device prints its own values. Under `vmap` each example is printed.

    Raises:
        ArgumentError: if the format asks for what is not given, or something is given that it does
            not ask for.

    >>> import meshard
    >>> @meshard.jit
    ... def step(x):
    ...     meshard.debug.print("x is {x}, and its sum {:.1f}", x.sum(), x=x)
    ...     return 2 * x
    >>> _ = step(meshard.numpy.arange(3.0))
    x is [0. 1. 2.], and its sum 3.0
    """
    what = "debug.print"
    instance_of(fmt, str, what, "fmt", advice='It is a format, such as "x is {}".')
    if not flag_of(skip_format_check, what, "skip_format_check"):
        _check_format(fmt, args, kwargs, what)
    _called(functools.partial(_print, fmt), args, kwargs, partitioned, ordered, what)


def _print(fmt: str, *args: Any, **kwargs: Any) -> None:
    builtins.print(fmt.format(*args, **kwargs))


def log(
    fmt: str,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> None:
    """Write values to the log ``meshard`` of the module `logging` when a program runs.

    The arguments are those of `print`; the level is INFO.

    Raises:
        ArgumentError: if the format asks for what is not given, or something is given that it does
            not ask for.

    >>> import logging, meshard, sys
    >>> logger = logging.getLogger("meshard")
    >>> handler = logging.StreamHandler(sys.stdout)
    >>> logger.addHandler(handler)
    >>> logger.setLevel(logging.INFO)
    >>> meshard.jit(lambda x: meshard.debug.log("loss {:.2f}", x))(0.25)
    loss 0.25
    >>> logger.removeHandler(handler)
    """
    what = "debug.log"
    instance_of(fmt, str, what, "fmt", advice='It is a format, such as "x is {}".')
    if not flag_of(skip_format_check, what, "skip_format_check"):
        _check_format(fmt, args, kwargs, what)
    _called(functools.partial(_log, fmt), args, kwargs, partitioned, ordered, what)


def _log(fmt: str, *args: Any, **kwargs: Any) -> None:
    logging.getLogger("meshard").info("%s", fmt.format(*args, **kwargs))


class _Asking(string.Formatter):
    """Notes what a format asks for."""

    def __init__(self) -> None:
        self.used: set[int | str] = set()

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        self.used.add(key)
        return super().get_value(key, args, kwargs)

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        first = field_name.split(".")[0].split("[")[0]
        self.get_value(int(first) if first.isdigit() else first, args, kwargs)
        return "", first

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""


def _check_format(fmt: str, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
    """Refuse a format that does not fit what is given."""
    asking = _Asking()
    try:
        asking.vformat(fmt, args, kwargs)
    except (IndexError, KeyError, ValueError) as error:
        raise ArgumentError(
            f"{what}: the format {fmt!r} does not fit the {len(args)} positional and "
            f"{len(kwargs)} named values that are given: {error}. A brace that is to be printed "
            "is written twice."
        ) from error
    unused = [i for i in range(len(args)) if i not in asking.used]
    unused_names = [k for k in kwargs if k not in asking.used]
    if unused or unused_names:
        named = ", ".join(map(repr, [*unused, *unused_names]))
        raise ArgumentError(
            f"{what}: the format {fmt!r} does not ask for the values {named} that are given. "
            "Values are put where {} or {name} stands; do not use an f-string, which has none."
        )


def callback(
    callback: Callable[..., Any],
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: Any,
) -> None:
    """Call a Python function with values when a program runs; what it returns is ignored.

    It is called even where nothing depends on it, and by the first process only.

    Args:
        callback: the function. Arrays come to it as NumPy arrays.
        *args: what it is called with: arrays, trees of them, or anything else.
        ordered: accepted as in JAX; callbacks run in the order in which they are written anyway.
        partitioned: whether it is called for each shard of the arrays, on the shard's own process.
        **kwargs: what it is called with by name.

    Raises:
        ArgumentError: if ``callback`` is not a function.

    >>> import meshard
    >>> seen = []
    >>> @meshard.jit
    ... def step(x):
    ...     meshard.debug.callback(lambda value: seen.append(float(value)), x.sum())
    ...     return 2 * x
    >>> _ = step(meshard.numpy.ones(4))
    >>> seen
    [4.0]
    """
    what = "debug.callback"
    _called(function_of(callback, what, "callback"), args, kwargs, partitioned, ordered, what)


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    partitioned: bool,
    ordered: bool,
    what: str,
) -> None:
    flag_of(ordered, what, "ordered")
    made, operands = callback_of(DEBUG, function, args, kwargs)
    made.of(partitioned=flag_of(partitioned, what, "partitioned")).called(operands)


def breakpoint(
    *, backend: str | None = None, num_frames: int | None = None, ordered: bool = False, **_: Any
) -> None:
    """Stop in Python's debugger when a program comes to this line.

    Args:
        backend: accepted as in JAX; the debugger is that of ``sys.breakpointhook``.
        num_frames: accepted as in JAX.
        ordered: accepted as in JAX.

    >>> import meshard, sys
    >>> before, sys.breakpointhook = sys.breakpointhook, lambda: print("stopped")
    >>> _ = meshard.jit(lambda x: (meshard.debug.breakpoint(), x)[1])(1)
    stopped
    >>> sys.breakpointhook = before
    """
    _called(_stop, (), {}, False, ordered, "debug.breakpoint")


def _stop() -> None:
    if sys.breakpointhook is sys.__breakpointhook__:
        pdb.Pdb().set_trace()
    else:
        sys.breakpointhook()


def inspect_array_sharding(value: Any, *, callback: Callable[[Any], None]) -> None:
    """Call a function with an array's sharding, once it is known.

    Within `jit` that is when the program is fitted to its arguments' layouts.

    Args:
        value: an array, or a tree of arrays.
        callback: a function of a sharding; it is called for each array.

    Raises:
        ArgumentError: if ``callback`` is not a function.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("i",)), meshard.P("i"))
    >>> @meshard.jit
    ... def doubled(x):
    ...     y = 2 * x
    ...     meshard.debug.inspect_array_sharding(y, callback=lambda s: print(s.spec))
    ...     return y
    >>> _ = doubled(meshard.numpy.ones(8, device=rows))
    P('i',)
    """
    function_of(callback, "debug.inspect_array_sharding", "callback")
    for x in trees.leaves(value):
        when_laid_out("inspect_array_sharding", _Seen(callback), as_array(x))


class _Seen:
    """A function of an array that tells its sharding."""

    effect = True

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def __call__(self, x: Any) -> list[Any]:
        if not is_abstract():
            self._callback(x.sharding)
        return []


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call a Python function that has no effects with values when a program runs.

    It is called as often as it is convenient, or not at all where nobody needs its results. Each
    process calls it with whole arrays; in a `shard_map` body it is called for each device.

    Args:
        callback: the function. Arrays come to it as NumPy arrays, and it returns such.
        result_shape_dtypes: the shapes and dtypes of what it returns: an array, a
            `meshard.ShapeDtypeStruct`, or a tree of these.
        *args: what it is called with: arrays, trees of them, or anything else.
        sharding: how the results are laid out.
        vmap_method: how `vmap` calls it: ``"sequential"`` for each example, ``"broadcast_all"``
            once with all examples of all arguments, or ``"expand_dims"`` once, with one example of
            the arguments that are the same for all.
        **kwargs: what it is called with by name.

    Returns:
        Arrays of these shapes and dtypes.

    Raises:
        ArgumentError: if ``callback`` is not a function, or ``vmap_method`` is another; under
            `vmap` if it is not given.
        TreeError: if the function returns another tree.
        ShapeError: if it returns arrays of other shapes or dtypes.
        DerivativeError: if it is differentiated: meshard does not see what it does.

    >>> import meshard, meshard.numpy as mnp, numpy as np
    >>> def bessel(x):  # something that meshard does not have
    ...     return np.i0(x)
    >>> f = meshard.jit(lambda x: meshard.pure_callback(bessel, x, x))
    >>> round(float(f(mnp.asarray(1.0))), 6)
    1.266066
    """
    what = PURE
    return _returned(what, callback, result_shape_dtypes, args, kwargs, sharding, vmap_method)


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a Python function that has effects with values when a program runs.

    It is called once for each run of the program, by the first process, and the others get its
    results; in a `shard_map` body it is called for each device.

    Args:
        callback: the function. Arrays come to it as NumPy arrays, and it returns such.
        result_shape_dtypes: the shapes and dtypes of what it returns: an array, a
            `meshard.ShapeDtypeStruct`, or a tree of these; None if it returns nothing.
        *args: what it is called with: arrays, trees of them, or anything else.
        sharding: how the results are laid out.
        ordered: accepted as in JAX; callbacks run in the order in which they are written anyway.
        **kwargs: what it is called with by name.

    Returns:
        Arrays of these shapes and dtypes.

    Raises:
        ArgumentError: if ``callback`` is not a function.
        TreeError: if the function returns another tree.
        ShapeError: if it returns arrays of other shapes or dtypes.

    >>> import meshard, meshard.numpy as mnp, numpy as np
    >>> from meshard.experimental import io_callback
    >>> source = iter([3, 4])
    >>> like = meshard.ShapeDtypeStruct((), "int64")
    >>> f = meshard.jit(lambda: io_callback(lambda: np.int64(next(source)), like))
    >>> f().item(), f().item()
    (3, 4)
    """
    flag_of(ordered, IO, "ordered")
    return _returned(IO, callback, result_shape_dtypes, args, kwargs, sharding, "sequential")


def _returned(
    what: str,
    callback: Callable[..., Any],
    like: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *chosen: Any,
) -> Any:
    """Return what a callback returns."""
    function_of(callback, what, "callback")
    sharding, method = chosen
    if method is not None:
        choice_of(method, _METHODS, what, "vmap_method")
    leaves, structure = trees.flatten(like)
    types = [_type(x, what) for x in leaves]
    made, operands = callback_of(what, callback, args, kwargs)
    made = made.of(
        results=structure, types=types, sharding=as_sharding(sharding, what), method=method
    )
    return trees.unflatten(structure, made.called(operands))


def _type(x: Any, what: str) -> ShapeDtypeStruct:
    if isinstance(x, Array):
        return ShapeDtypeStruct(x.shape, x.dtype)
    try:
        return ShapeDtypeStruct(x.shape, x.dtype)
    except AttributeError as error:
        raise ArgumentError(
            f"{what}: result_shape_dtypes holds {x!r}, which has no shape and dtype. Give a "
            "meshard.ShapeDtypeStruct, or an array like the result."
        ) from error
