"""Programs as text, without programs, and all programs forgotten."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshard.algebra.arguments import flag_of, function_of
from meshard.algebra.boundary import bounded, context
from meshard.errors import ArgumentError
from meshard.runtime.doors import beneath
from meshard.runtime.world import here
from meshard.transforms.jit.jit import DISABLED, jit


def disable_jit(disable: bool = True) -> contextlib.AbstractContextManager[None]:
    """Run jitted functions as they are written, operation by operation, in a ``with`` statement.

    Python then sees values, so that a debugger and ``print`` show them.

    Args:
        disable: False makes programs again, within another ``with disable_jit():``.

    Raises:
        ArgumentError: if ``disable`` is neither True nor False.

    >>> import meshard
    >>> @meshard.jit
    ... def f(x):
    ...     if x.sum() > 0:  # refused when it is traced
    ...         return x
    ...     return -x
    >>> with meshard.disable_jit():
    ...     f(meshard.numpy.asarray([-1.0, -2.0])).tolist()
    [1.0, 2.0]
    """
    return _disabled(flag_of(disable, "disable_jit", "disable"))


@contextlib.contextmanager
def _disabled(disable: bool) -> Iterator[None]:
    token = DISABLED.set(disable)
    try:
        yield
    finally:
        DISABLED.reset(token)


@context
def ensure_compile_time_eval() -> Iterator[None]:
    """Compute with constants at once while a function is traced, in a ``with`` statement.

    What is computed so has values, and may decide what is traced. Values that depend on the
    arguments cannot take part.

    >>> import meshard, meshard.numpy as mnp
    >>> @meshard.jit
    ... def f(x):
    ...     with meshard.ensure_compile_time_eval():
    ...         few = mnp.sqrt(mnp.asarray(9.0)) < 4
    ...     return x + 1 if few else x
    >>> f(1.0).item()
    2.0
    """
    with beneath(()):
        yield


def clear_caches() -> None:
    """Forget the programs of all jitted functions.

    >>> import meshard
    >>> f = meshard.jit(lambda x: x + 1)
    >>> _ = f(1)
    >>> meshard.clear_caches()
    """
    for jitted in list(here().programs):
        jitted.clear_cache()


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """Return a function that returns the program of another one, to be printed.

    Args:
        fun: the function.
        static_argnums: positions of arguments that are part of the program.
        axis_env: not taken: map the function with `vmap` or `shard_map` instead.
        return_shape: whether to return the shapes and dtypes of the results, too.

    Returns:
        A function of arrays, or of `meshard.ShapeDtypeStruct`, that returns the program as
        ``meshard.jit(fun).trace`` does.

    Raises:
        ArgumentError: if ``fun`` is not a function, or ``axis_env`` is given.

    >>> import meshard, meshard.numpy as mnp
    >>> print(meshard.make_jaxpr(lambda x: mnp.sin(x) * 2)(1.0))  # doctest: +ELLIPSIS
    <lambda>(a: float):...
    """
    function_of(fun, "make_jaxpr", "fun")
    if axis_env is not None:
        raise ArgumentError(
            "make_jaxpr: axis_env is not taken. Map the function over a named axis with "
            "meshard.vmap(axis_name=...) or meshard.shard_map, and print that."
        )
    shapes = flag_of(return_shape, "make_jaxpr", "return_shape")
    jitted = jit(fun, static_argnums=static_argnums)

    @bounded
    def listed(*args: Any, **kwargs: Any) -> Any:
        traced = jitted.trace(*args, **kwargs)
        return (traced, traced.out_info) if shapes else traced

    return listed
