"""`jit`: functions that are traced once, lowered onto shardings, and then run without Python.

In: a function, and where its arguments and results are to lie. Out: a function that finds for each
call the program that was made for such arguments, and runs it.

`explain`: what a function does and moves, before it runs.

In: a function and its arguments, or their types. Out: an `Explanation`.

Programs as text, without programs, and all programs forgotten.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    TypeVar,
    final,
    overload,
)

import numpy as np

from meshard.algebra.arguments import flag_of, function_of, refusal
from meshard.algebra.boundary import bounded, context
from meshard.algebra.mesh import ambient_mesh
from meshard.algebra.world import current
from meshard.errors import ArgumentError
from meshard.ops.engine.eager import EAGER
from meshard.plan.figures.topology import Topology
from meshard.plan.show.pictured import Pictured
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced as TracedValue
from meshard.runtime.doors import beneath, innermost
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import chosen_device, home
from meshard.runtime.moving.structs import ShapeDtypeStruct, typeof
from meshard.runtime.trees import trees
from meshard.runtime.world import RuntimeWorld, here
from meshard.settings import config
from meshard.transforms.constraint import with_sharding_constraint
from meshard.transforms.explain.explanation import Explanation
from meshard.transforms.jit.nested import following, is_followed, is_traced_here, result_of
from meshard.transforms.jit.stages import ChooseWrapper, Lowered, ProgramEntry, Programs, Traced
from meshard.transforms.tracing.abstract import eval_shape as eval_shape_of
from meshard.transforms.tracing.arguments import Arguments, JitOptions
from meshard.transforms.tracing.signature import (
    ArrayHolder,
    Called,
    Trace,
    accepted,
    results_of,
    said_sharding,
    trace_of,
)

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

_NUMBERS = (int, float, complex)


DISABLED: ContextVar[bool] = ContextVar("meshard_disable_jit", default=False)
"""Whether jitted functions run as they are written."""


def _nothing() -> None:
    """Say that there are no programs yet."""


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


@overload
def jit(
    f: Callable[P, R],
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Jitted[P, R]: ...
@overload
def jit(
    f: None = None,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    f: Callable[..., Any] | None = None,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Any:
    """Return a function that traces ``f`` once for each kind of arguments, and then runs the trace.

    The first call with given shapes, dtypes and trees runs ``f`` on values without data, and
    records its operations. The recorded program is simplified and fitted to how the arguments
    are laid out: it is decided once how each operation runs, and elementwise operations between
    communications run as one. Later calls go straight to the kernels.

    Args:
        f: a function of trees of arrays. Without it a decorator is returned.
        in_shardings: how the arguments must be laid out, by position: a sharding; a `P` where a
            mesh is set; None for any layout; or a tree of these that is a prefix of the tuple of
            arguments. Arguments that are not committed are placed accordingly.
        out_shardings: the same for the results; None for the layout that the computation gives.
        static_argnums: positions of arguments that are not arrays, and part of the program; they
            must be hashable, and each value has a program of its own.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose memory is given up to the results; they are
            deleted by the call.
        donate_argnames: names of such arguments.
        keep_unused: whether arguments that the function does not use are looked at, such as for
            having been deleted.
        inline: accepted as in JAX; inside another jit a function is always part of that program.

    Returns:
        The function, with ``lower``, ``trace``, ``eval_shape`` and ``clear_cache``.

    Raises:
        ArgumentError: if ``f`` is not a function, or a name or position is none of its arguments.
            The function that is returned raises

            * `ConcretizationError` where Python looks at a value, as ``if x > 0:`` does;
            * `ShardingError` if an argument is committed to another sharding than ``in_shardings``;
            * `IndivisibleError` if a dim does not divide into its shards;
            * `IncompatibleDevicesError` if arguments are committed to different devices;
            * `ArgumentError` if a static argument is not hashable, or another no array.

    Source: the semantics are those of ``jax.jit``, which is ``pjit``.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("i",)), meshard.P("i"))
    >>> @meshard.jit
    ... def step(x):
    ...     print("traced with", x)
    ...     return mnp.tanh(x * 2 + 1)
    >>> x = mnp.zeros((8, 2), device=rows)
    >>> y = step(x)
    traced with Traced<float64[8,2]>
    >>> step(y).sharding.spec  # the same kind of arguments: not traced again
    P('i',)
    """
    options = JitOptions(
        in_shardings=tuple(in_shardings) if type(in_shardings) is list else in_shardings,
        out_shardings=out_shardings,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        keep_unused=flag_of(keep_unused, "jit", "keep_unused"),
    )
    if f is None:
        return functools.partial(Jitted, options=options)
    return Jitted(f, options)


pjit = jit


@bounded
@final
class Jitted(Pictured, Generic[P, R]):
    """What `jit` returns."""

    def __init__(self, f: Callable[P, R], options: JitOptions | None = None) -> None:
        if not callable(f):
            raise ArgumentError(refusal("jit", "f", "a function", f))
        functools.update_wrapper(self, f)
        self._f = f
        self._name = getattr(f, "__name__", None) or type(f).__name__
        self._what = f"jit of {self._name!r}"
        self._options = options or JitOptions()
        self._arguments = Arguments(f, self._what, self._options)
        self._choose_wrapper: ChooseWrapper = lambda: None
        self._plain = not self._arguments.any_static
        # What was made for the world of the last call; a world is not kept by functions.
        self._known: Callable[[], Programs | None] = _nothing

    def wrap_results(self, choose: ChooseWrapper) -> Jitted[P, R]:
        """Say what callers get for results, which are Arrays by default; return this function.

        A floor above that has another kind of array says so here, before the first call.

        Args:
            choose: asked for each program that is lowered what makes of each of its results the
                value that callers get; None: nothing. Inside another transformation, where results
                are values of that one, it is not asked.
        """
        self._choose_wrapper = choose
        return self

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Jitted[P, R]: ...
    # What mypy cannot see, as behind functools.partial(jit, ...), may be called with anything.
    @overload
    def __get__(
        self: Jitted[P, Never], instance: object, owner: type | None = None
    ) -> Callable[..., Any]: ...
    @overload
    def __get__(
        self: Jitted[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<jit of {self._f!r}>"

    def _title(self) -> str:
        from meshard.transforms.jit.stage_page import signature_text

        return f"jit of {signature_text(self._f, self._name)}"

    def _parts(self) -> Iterator[Markup]:
        from meshard.transforms.jit.stage_page import jitted_parts

        known = here().programs.get(self)
        entries = [] if known is None else list(known.entries.values())
        return jitted_parts([(e.trace, e.given, e.executable) for e in entries])

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the program for such arguments, which is made if there is none yet."""
        if DISABLED.get():
            return self._f(*args, **kwargs)
        interpreter = innermost()
        if interpreter is not None and interpreter is not EAGER:
            return self._inside(args, kwargs)
        known = self._known()
        if kwargs or known is None or known.world is not current():
            return self._called(args, kwargs, None)
        # What a signature holds besides the tree, which the number of these arguments says: each
        # of them is an array or a number, or there is no such key.
        key: list[Any] = [ambient_mesh(), chosen_device(), config.epoch]
        for x in args:
            key.append(x._type if type(x) is Array else type(x))
        plain = tuple(key)
        entry = known.plain.get(plain)
        if entry is None:
            return self._called(args, kwargs, plain)
        direct, world = entry.direct, known.world
        if direct is None or world.ledgers:
            return entry(world, list(args))
        try:
            found: Any = direct.run(world, args)
        except OverflowError as error:
            raise direct.told(error) from None
        except Exception as error:
            direct.told(error)
            raise
        tree: Any = entry.out_tree
        made: R = found if tree is None else tree.unflatten(found)
        return made

    def _called(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], plain: tuple[Any, ...] | None
    ) -> Any:
        """Run the program for arguments of any kind, which is made if there is none yet.

        Args:
            args: the positional arguments.
            kwargs: the others.
            plain: the key of these arguments if each of them is an array or a number; else None.
        """
        world = here()
        rest: tuple[Any, ...] = args
        named: dict[str, Any] = kwargs
        statics = None
        if not self._plain:
            rest, named, statics = self._arguments.without_statics(args, kwargs)
        given: Any = (rest, named)
        leaves, tree = trees.flatten(given)
        key: list[Any] = [tree, statics, ambient_mesh(), config.epoch, home(world)]
        as_given = len(leaves) == len(args)
        for number, x in enumerate(leaves):
            kind: Any = type(x)
            if kind is Array:
                key.append(x._type)
            elif kind in _NUMBERS:
                key.append(kind)
            else:
                as_given = False
                x = leaves[number] = accepted(self._arguments, statics, tree, number, x, self._what)
                key.append(x._type)
        programs = self._programs(world)
        signature = tuple(key)
        entry = programs.entries.get(signature)
        if entry is None:
            kinds = key[5:]
            entry = programs.entry(
                signature,
                lambda: ProgramEntry(
                    world,
                    self._trace(world, rest, named, statics, tree, kinds),
                    kinds,
                    self._choose_wrapper(),
                ),
            )
        if plain is not None and as_given and all(map(operator.is_, leaves, args)):
            programs.keep(programs.plain, plain, entry)
        return entry(world, leaves)

    def _programs(self, world: RuntimeWorld) -> Programs:
        """Return what was made for a world, which calls find at once from now on."""
        programs = world.programs.get(self)
        if programs is None:
            programs = world.programs.setdefault(self, Programs(world))
        if self._plain:
            self._known = weakref.ref(programs)
        return programs

    def _trace(
        self,
        world: RuntimeWorld,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        statics: Any,
        tree: Any,
        kinds: Sequence[Any],
    ) -> Trace:
        avals = tuple([k if isinstance(k, type) else (k.shape, k.dtype) for k in kinds])
        key = tree, statics, ambient_mesh(), config.epoch, home(world), avals
        known: Programs = world.programs.setdefault(self, Programs(world))
        return known.trace(
            key,
            lambda: trace_of(
                world,
                self._f,
                self._name,
                self._arguments,
                self._options,
                Called(args, kwargs, statics, kinds),
            ),
        )

    def _inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Be part of the function at hand, which is being transformed."""
        rest, named, statics = self._arguments.without_statics(args, kwargs)
        level = following()
        if level is not None and not is_followed(self._f, trees.leaves((rest, named))):
            with beneath(level.below):
                return self(*args, **kwargs)
        ins, outs = self._options.in_shardings, self._options.out_shardings
        if ins is not None:
            rest = self._constrained(rest, ins, "in_shardings")
        leaves, tree = trees.flatten((rest, named))
        if any(isinstance(x, ArrayHolder) for x in leaves):
            leaves = [x.to_array() if isinstance(x, ArrayHolder) else x for x in leaves]
            rest, named = trees.unflatten(tree, leaves)
        if level is not None or is_traced_here(leaves):
            found = self._copied(leaves, tree, statics)
        else:
            every, names = self._arguments.with_statics(rest, named, statics)
            found = self._f(*every, **names)
        return found if outs is None else self._constrained(found, outs, "out_shardings")

    def _copied(self, leaves: list[Any], tree: Any, statics: Any) -> Any:
        """Return the results as values of the program at hand, tracing at most once."""
        world, arguments, what = here(), self._arguments, self._what
        for number, x in enumerate(leaves):
            if type(x) not in _NUMBERS and not isinstance(x, (Array, TracedValue)):
                leaves[number] = accepted(arguments, statics, tree, number, x, what)

        def flat(*values: Any) -> Any:
            own, named = trees.unflatten(tree, values)
            every, names = arguments.with_statics(own, named, statics)
            return results_of(what, self._f(*every, **names))

        told = [f"the argument {arguments.told(path, statics)}" for path in tree.paths()]
        key = tree, statics, ambient_mesh(), config.epoch, home(world)
        programs = world.programs.setdefault(self, Programs(world))
        return result_of(programs, key, self._name, (self._f, flat), leaves, told)

    def _constrained(self, tree: Any, shardings: Any, name: str) -> Any:
        """Return a tree of values that lie as a tree of shardings says."""
        what = f"{self._what}: {name}"
        every = prefix_leaves(shardings, tree, self._what, name)
        leaves, structure = trees.flatten_with_none(tree)
        placed: list[Any] = []
        for x, given in zip(leaves, every, strict=True):
            target = None if x is None else said_sharding(given, what)
            if target is not None:
                target.layout(np.shape(x))  # a constraint would take uneven shards
                x = with_sharding_constraint(x, target)
            placed.append(x)
        return trees.unflatten(structure, placed)

    # ahead of time

    def trace(self, /, *args: Any, **kwargs: Any) -> Traced:
        """Return the program for arguments, arrays or `ShapeDtypeStruct`, without running it."""
        world = here()
        rest, named, statics = self._arguments.without_statics(args, kwargs)
        leaves, tree = trees.flatten((rest, named))
        kinds: list[Any] = []
        for number, x in enumerate(leaves):
            if type(x) in _NUMBERS:
                kinds.append(type(x))
            elif isinstance(x, ShapeDtypeStruct):
                kinds.append(typeof(x))
            else:
                made = accepted(self._arguments, statics, tree, number, x, self._what)
                kinds.append(made._type)
        trace = self._trace(world, rest, named, statics, tree, kinds)
        return Traced(world, trace, kinds, self._choose_wrapper)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Return the program for such arguments, lowered onto how they lie."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes and dtypes of the results, without computing them."""
        rest, named, statics = self._arguments.without_statics(args, kwargs)

        def f(*a: Any, **k: Any) -> Any:
            every, names = self._arguments.with_statics(a, k, statics)
            return self._f(*every, **names)

        return eval_shape_of(f, *rest, **named)

    def clear_cache(self) -> None:
        """Forget all programs."""
        self._known = _nothing
        here().programs.pop(self, None)

    def _cache_size(self) -> int:
        programs = here().programs.get(self)
        return 0 if programs is None else len(programs.entries)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # As functions are: by name, where their module has the jitted function under it; else by
        # what it is made of, which cloudpickle can write. It writes what is in __main__ so, too.
        name: str = getattr(self, "__qualname__", self._name)
        module = getattr(self, "__module__", None)
        found: Any = sys.modules.get(module) if module else None
        for part in name.split("."):
            found = getattr(found, part, None)
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if found is self and not (module == "__main__" and caller.startswith("cloudpickle")):
            return name
        return Jitted, (self._f, self._options)


def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    topology: Topology | str | None = None,
    **kwargs: Any,
) -> Explanation:
    """Return what a function does step by step, what it moves between devices, and why.

    The function is traced and lowered as `jit` does it; nothing runs and nothing moves. For each
    step the table tells the line, the local shape, how values are laid out before and after, the
    collective with its axes, the bytes, the time on a topology, and the memory in use. There is a
    warning wherever something that was split over an axis becomes whole along it.

    Args:
        f: a function, jitted or not.
        args: its arguments: arrays, values, or `ShapeDtypeStruct` with shardings.
        topology: where the devices are, or its name, as in ``"8-gpu hosts"``: times are estimated
            on it. None for one process.
        kwargs: its arguments by name.

    Returns:
        The explanation. Printed it is a table; it has ``steps``, ``total_bytes``, ``warnings`` and
        other figures as attributes, and ``to_html`` draws it.

    Raises:
        ArgumentError: if ``f`` is not a function, or there is no such topology, or a device has no
            place in it. What `jit` refuses is refused here too.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("i",)), meshard.P("i"))
    >>> x = meshard.ShapeDtypeStruct((1024, 64), "float32", sharding=rows)
    >>> found = meshard.explain(lambda x: mnp.tanh(x).sum(axis=0), x)
    >>> for step in found.steps:
    ...     print(step.name, step.total_bytes)
    tanh 0
    sum 3584
    >>> found.total_bytes, found.peak_bytes > 0
    (3584, True)
    """
    if isinstance(f, types.MethodType) and isinstance(f.__func__, Jitted):
        return f.__func__.lower(f.__self__, *args, **kwargs).explain(topology)
    jitted = f if isinstance(f, Jitted) else Jitted(f)
    return jitted.lower(*args, **kwargs).explain(topology)


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
