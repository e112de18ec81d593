"""Functions whose derivatives users write: `custom_jvp` and `custom_vjp`.

`custom_gradient` and `closure_convert`: functions that were made while others ran.

In: a function that uses values of the code around it. Out: one that takes them as arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.arguments import described, flag_of, function_of, names_of
from meshard.algebra.boundary import bounded
from meshard.errors import (
    ArgumentError,
    DerivativeError,
    DtypeError,
    ShapeError,
    TreeError,
    did_you_mean,
)
from meshard.ops.array.create import zeros_like
from meshard.ops.derivatives.elementwise import is_complex
from meshard.ops.derivatives.kinds import Values, total
from meshard.ops.engine.eager import WEAK
from meshard.ops.lax.reduce import stop_gradient
from meshard.runtime.array.traced import Traced
from meshard.runtime.callers import at_own_lines
from meshard.runtime.trees import trees
from meshard.runtime.trees.nodes import register_pytree_node
from meshard.transforms.derivatives.arguments import (
    float0_like,
    is_float0,
    name_of,
    numbers_of,
    strong,
    type_text,
    value_of,
)
from meshard.transforms.derivatives.kept import BothAtOnce, kept_call
from meshard.transforms.derivatives.levels import differentiable
from meshard.transforms.derivatives.reverse import first_nonlinear, recorded
from meshard.transforms.program.program import Program, evaluate
from meshard.transforms.tracing.tracing import sub_program


@final
@dataclass(slots=True)
class _Args:
    """The arguments of one call: those that are values, flat, and the others.

    Attributes:
        name: the function's name.
        fixed: by their positions the arguments that are not differentiated.
        count: how many arguments there are.
        leaves: the leaves of the others.
        tree: their tree.
        out_tree: the tree of the results.
        out_zeros: for each result that is not differentiable the cotangent that it has.
    """

    name: str
    fixed: dict[int, Any]
    count: int
    leaves: list[Any]
    tree: Any
    out_tree: Any = None
    out_zeros: Sequence[Any] = ()

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...], places: Collection[int]) -> _Args:
        """Take arguments apart."""
        fixed = {n: x for n, x in enumerate(args) if n in places}
        moving = tuple([x for n, x in enumerate(args) if n not in places])
        leaves, tree = trees.flatten(moving)
        values = [value_of(x, f"{name}: an argument") for x in leaves]
        return cls(name, fixed, len(args), values, tree)

    def moving(self, values: Values) -> tuple[Any, ...]:
        """Return the arguments that are differentiated, made of leaves."""
        found: tuple[Any, ...] = trees.unflatten(self.tree, list(values))
        return found

    def every(self, values: Values) -> tuple[Any, ...]:
        """Return all arguments by position."""
        rest = iter(self.moving(values))
        return tuple([self.fixed[n] if n in self.fixed else next(rest) for n in range(self.count)])

    def flattened(self, found: Any, what: str) -> list[Any]:
        """Return the leaves of a result, whose tree is kept."""
        leaves, self.out_tree = trees.flatten(found)
        results = [strong(value_of(x, f"{what}: a result")) for x in leaves]
        self.out_zeros = [None if differentiable(y) else float0_like(y) for y in results]
        return results

    def cotangents(self, found: Values) -> Any:
        """Return the cotangents of the results as a tree of arrays."""
        pairs = zip(found, self.out_zeros, strict=True)
        return trees.unflatten(self.out_tree, [g if zero is None else zero for g, zero in pairs])


class _Custom:
    """What both kinds share: a function that can be called as before."""

    def __init__(self, fun: Callable[..., Any], nondiff: Any, names: Any, what: str) -> None:
        self._f = function_of(fun, what, "fun")
        functools.update_wrapper(self, fun)
        self._name = name_of(fun)
        empty = isinstance(nondiff, (tuple, list)) and not nondiff
        self._numbers = () if empty else numbers_of(nondiff, what)
        self._signature = _signature(fun)
        self._numbers += tuple(
            [self._place(n, what) for n in names_of(names, what, "nondiff_argnames")]
        )

    def _place(self, name: str, what: str) -> int:
        """Return the position of an argument."""
        known = list(self._signature.parameters) if self._signature else []
        if name not in known:
            raise ArgumentError(
                f"{what}: nondiff_argnames names {name!r}, but {self._name} has no such argument"
                f"{did_you_mean(name, known)}; its arguments are {', '.join(known) or 'unknown'}."
            )
        return known.index(name)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults included.

        Raises:
            ArgumentError: if one is by name only.
        """
        if self._signature is None:
            rest = kwargs
        else:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ArgumentError(
                    f"{self._name} has a derivative of its own, so that its arguments are put in "
                    f"order before it is called: {error}. It takes {self._signature}."
                ) from None
            bound.apply_defaults()
            args, rest = bound.args, bound.kwargs
        if rest:
            raise ArgumentError(
                f"{self._name}: arguments by name only, such as {next(iter(rest))!r}, cannot be "
                "passed to a function with a derivative of its own, whose rules take arguments by "
                "position. Let it take them by position."
            )
        return args

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self.__call__, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        raise NotImplementedError

    def _fix(self, number: int, x: Any) -> Any:
        """Return an argument that is not differentiated."""
        return stop_gradient(x)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], rule: Any) -> Any:
        every = self._positional(args, kwargs)
        places = {n % len(every) for n in self._numbers if -len(every) <= n < len(every)}
        every = tuple([self._fix(n, x) if n in places else x for n, x in enumerate(every)])
        own = _Args.of(self._name, every, places)

        def flat(*values: Any) -> list[Any]:
            return own.flattened(self._f(*own.every(values)), self._name)

        found = kept_call(self._name, flat, functools.partial(rule, self, own), own.leaves, True)
        return trees.unflatten(own.out_tree, found)


def _signature(f: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(f)
    except (ValueError, TypeError):
        return None


class custom_jvp(_Custom):
    """A function with a derivative of its own: how its tangents follow from its arguments'.

    Args:
        fun: the function.
        nondiff_argnums: arguments that are not differentiated; the rule gets them first.
        nondiff_argnames: the same by name.

    Source: the semantics are those of ``jax.custom_jvp``.

    >>> import meshard, meshard.numpy as mnp
    >>> @meshard.custom_jvp
    ... def f(x):
    ...     return mnp.sin(x)
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     return f(*primals), 2.0 * tangents[0]
    >>> float(meshard.grad(f)(1.0))
    2.0
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames, "custom_jvp")
        self._jvp: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Say how tangents follow.

        Args:
            jvp: from the arguments that are not differentiated, a tuple of the others and a tuple
                of their tangents to a pair of the results and their tangents.
            symbolic_zeros: accepted as in JAX; zeros are always arrays.
        """
        flag_of(symbolic_zeros, "defjvp", "symbolic_zeros")
        self._jvp = function_of(jvp, "defjvp", "jvp")
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Say how tangents follow, argument by argument.

        Args:
            jvps: for each argument a function of its tangent, the result and the arguments that
                returns the result's tangent; None for zero.
        """

        def jvp(primals: Any, tangents: Any) -> Any:
            if len(primals) != len(jvps):
                raise ArgumentError(
                    f"{self._name}: defjvps got {len(jvps)} rules, but it was called with "
                    f"{len(primals)} arguments. Pass a rule, or None, for each argument."
                )
            found = self(*primals)
            parts = [
                f(t, found, *primals) for f, t in zip(jvps, tangents, strict=True) if f is not None
            ]
            return found, total(parts) if parts else trees.map(zeros_like, found)

        self.defjvp(jvp)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._call(args, kwargs, _Forward)


@final
class _Forward(BothAtOnce):
    """The derivative of a function with a rule for tangents."""

    def __init__(self, owner: custom_jvp, args: _Args, call: Any) -> None:
        self.owner, self.args, self.call = owner, args, call

    def forth(self, values: Values, tangents: Values) -> tuple[list[Any], list[Any]]:
        """Return what the user's rule gives: results and their tangents."""
        own, name = self.args, self.owner._name
        if self.owner._jvp is None:
            raise DerivativeError(
                f"{name} is a custom_jvp function without a rule for tangents. Give it one with "
                f"@{name}.defjvp."
            )
        count = self.call.captures
        given = list(values)[count:]
        moves = [
            float0_like(x) if not differentiable(x) else zeros_like(x) if t is None else t
            for x, t in zip(given, list(tangents)[count:], strict=True)
        ]
        fixed = [own.fixed[n] for n in sorted(own.fixed)]
        found = self.owner._jvp(*fixed, own.moving(given), trees.unflatten(own.tree, moves))
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise TreeError(
                f"the rule for tangents of {name} must return a pair, of the results and their "
                f"tangents; it returned {described(found)}."
            )
        results = own.flattened(found[0], name)
        leaves, tree = trees.flatten(found[1])
        if tree != own.out_tree:
            raise TreeError(
                f"the rule for tangents of {name} must return tangents of the results' tree "
                f"{own.out_tree}, but they have {tree}."
            )
        return results, [
            _fits(t, y, name, "tangents") for t, y in zip(leaves, results, strict=True)
        ]

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        return self.forth(values, tangents)[1]

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results."""
        return self.forth(values, [None] * len(values))[0], ()

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Transpose the rule for tangents."""
        places = [i for i, x in enumerate(values) if differentiable(x)]

        def forward(*tangents: Any) -> list[Any]:
            given: list[Any] = [None] * len(values)
            for i, t in zip(places, tangents, strict=True):
                given[i] = t
            return self.push(values, given)

        zeros = [zeros_like(values[i]) for i in places]
        run = recorded(self.owner._name, forward, zeros, linear=True)
        wrong = first_nonlinear(run.tape)
        if wrong is not None:
            raise DerivativeError(
                f"the rule for tangents of {self.owner._name} must be linear in them, but {wrong} "
                "is not, so that there is no way back through it."
            )
        found = run.pull(cotangents)
        result: list[Any] = [None] * len(values)
        for i, g in zip(places, found, strict=True):
            result[i] = g
        return result


def _fits(t: Any, y: Any, name: str, what: str) -> Any:
    """Return a tangent or cotangent that a rule gave, checked against its value."""
    if t is None or is_float0(t):
        return None
    value = value_of(t, f"{name}: one of its {what}")
    if not differentiable(y):
        return None
    made = strong(value)
    if type(value) in WEAK and not (is_complex(value) and not is_complex(y)):
        made = made.astype(y.dtype)
    if made.shape != y.shape:
        raise ShapeError(
            f"the rule of {name} returned {what} of type {type_text(made)} for a value of type "
            f"{type_text(y)}, so the shapes do not match."
        )
    if made.dtype != y.dtype:
        raise DtypeError(
            f"the rule of {name} returned {what} of type {type_text(made)} for a value of type "
            f"{type_text(y)}, so the dtypes do not match."
        )
    return made


@final
@dataclass(frozen=True, slots=True)
class CustomVJPPrimal:
    """An argument as a rule with ``symbolic_zeros`` gets it.

    Attributes:
        value: the argument.
        perturbed: whether it may change.
    """

    value: Any
    perturbed: bool = True


class custom_vjp(_Custom):
    """A function with a derivative of its own: how cotangents are pulled back through it.

    Args:
        fun: the function.
        nondiff_argnums: arguments that are not differentiated.
        nondiff_argnames: the same by name.

    Source: the semantics are those of ``jax.custom_vjp``.

    >>> import meshard, meshard.numpy as mnp
    >>> @meshard.custom_vjp
    ... def f(x):
    ...     return mnp.sin(x)
    >>> f.defvjp(lambda x: (mnp.sin(x), x), lambda x, g: (2.0 * g,))
    >>> float(meshard.grad(f)(1.0))
    2.0
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames, "custom_vjp")
        self._fwd: Callable[..., Any] | None = None
        self._bwd: Callable[..., Any] | None = None
        self._symbolic = False

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Say how cotangents are pulled back.

        Args:
            fwd: from the arguments of the function to a pair of its results and a tree that is kept
                for the way back.
            bwd: from the arguments that are not differentiated, what was kept and the cotangents of
                the results to a tuple of the cotangents of the arguments; None for zero.
            symbolic_zeros: whether ``fwd`` gets each array as an object with the attributes
                ``value`` and ``perturbed``, as in JAX. The latter is always True, and cotangents
                that are zero are arrays.
            optimize_remat: accepted as in JAX: what ``fwd`` does is simplified in any case.
        """
        self._fwd = function_of(fwd, "defvjp", "fwd")
        self._bwd = function_of(bwd, "defvjp", "bwd")
        self._symbolic = flag_of(symbolic_zeros, "defvjp", "symbolic_zeros")
        flag_of(optimize_remat, "defvjp", "optimize_remat")

    def _told(self, values: Values) -> Values:
        """Return arguments as ``fwd`` gets them."""
        return [CustomVJPPrimal(x) for x in values] if self._symbolic else values

    def _fix(self, number: int, x: Any) -> Any:
        if any(isinstance(leaf, Traced) for leaf in trees.leaves(x)):
            raise ArgumentError(
                f"{self._name}: argument {number} is in nondiff_argnums, but its value is one that "
                "is traced or followed. Only Python values and arrays of the code outside can be "
                "passed there; let the function take it as an argument like others, and return "
                "None for its cotangent."
            )
        return x

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._call(args, kwargs, _Backward)


@final
class _Backward:
    """The derivative of a function with rules for the way back."""

    def __init__(self, owner: custom_vjp, args: _Args, call: Any) -> None:
        self.owner, self.args, self.call = owner, args, call

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Refuse: the rule is one for the way back."""
        raise DerivativeError(
            f"{self.owner._name} is a custom_vjp function, whose rule is for the way back only: "
            "jvp, jacfwd and hessian cannot use it. Write a custom_jvp function, which serves both."
        )

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results, and what the user keeps."""
        own, name = self.args, self.owner._name
        if self.owner._fwd is None:
            raise DerivativeError(
                f"{name} is a custom_vjp function without rules. Give it some with "
                f"{name}.defvjp(fwd, bwd)."
            )
        given = list(values)[self.call.captures :]
        found = self.owner._fwd(*own.every(self.owner._told(given)))
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise TreeError(
                f"the rule fwd of {name} must return a pair, of the results and what is kept for "
                f"the way back; it returned {described(found)}."
            )
        return own.flattened(found[0], name), found[1]

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Return what the user's rule gives."""
        own, name = self.args, self.owner._name
        count = self.call.captures
        given = list(values)[count:]
        fixed = [own.fixed[n] for n in sorted(own.fixed)]
        assert self.owner._bwd is not None
        with at_own_lines():
            found = self.owner._bwd(*fixed, kept, own.cotangents(cotangents))
        moving = own.moving(given)
        if not isinstance(found, (tuple, list)) or len(found) != len(moving):
            raise TreeError(
                f"the rule bwd of {name} must return a tuple of the cotangents of its "
                f"{len(moving)} arguments; it returned {described(found)}."
            )
        result: list[Any] = [None] * count
        for g, x in zip(found, moving, strict=True):
            leaves, tree = trees.flatten_with_none(x)
            if g is None:
                result += [None] * len(leaves)
                continue
            own_leaves, own_tree = trees.flatten_with_none(g)
            if own_tree != tree:
                raise TreeError(
                    f"the rule bwd of {name} returned a cotangent of the tree {own_tree} for an "
                    f"argument of the tree {tree}."
                )
            result += [
                _fits(a, strong(b), name, "cotangents")
                for a, b in zip(own_leaves, leaves, strict=True)
            ]
        return result


@final
@dataclass(frozen=True, eq=False)
class _Converted:
    """A function as a program, without the values that it captures.

    Attributes:
        program: the program; it captures all that the function does not take.
        in_tree: the tree of its arguments.
        out_tree: the tree of its results.
        name: the function's name.
    """

    program: Program
    in_tree: Any
    out_tree: Any
    name: str

    def __call__(self, captured: Sequence[Any], args: tuple[Any, ...]) -> Any:
        leaves, tree = trees.flatten(args)
        if tree != self.in_tree:
            raise TreeError(
                f"{self.name} was made for arguments of the tree {self.in_tree}, but was called "
                f"with {tree}."
            )
        values = [strong(value_of(x, f"{self.name}: an argument")) for x in leaves]
        found = evaluate(self.program, captured, values)
        return trees.unflatten(self.out_tree, [strong(y) for y in found])


def _converted(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[_Converted, list[Any]]:
    """Return a function without the values that it captures, and these."""
    leaves, tree = trees.flatten(args)
    name = name_of(f)
    given = [strong(value_of(x, f"{name}: an argument")) for x in leaves]
    kept: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        found, structure = trees.flatten(f(*trees.unflatten(tree, list(values))))
        kept[:] = [structure]
        return [strong(value_of(y, f"a result of {name!r}")) for y in found]

    program, captured = sub_program(name, flat, given)
    return _Converted(program, tree, kept[0], name), captured


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function that takes what another captures as arguments, and these.

    A function with a derivative of its own cannot use values that are differentiated unless it
    takes them as arguments; this makes them some for a function that it gets.

    Args:
        fun: the function, which is traced.
        example_args: arguments of the types that it will be called with.

    Returns:
        A function of the arguments of ``fun`` and then of what it captured, and a list of that: the
        floats that are traced or followed.

    Raises:
        ArgumentError: if ``fun`` is not a function. The function that is returned raises
            `TreeError` for arguments of another structure.

    Source: the semantics are those of ``jax.closure_convert``.

    >>> import meshard, meshard.numpy as mnp
    >>> def slope(y):
    ...     f, captured = meshard.closure_convert(lambda x: x * y, 1.0)
    ...     return f(2.0, *captured)
    >>> float(meshard.grad(slope)(3.0))
    2.0
    """
    f = function_of(fun, "closure_convert", "fun")
    converted, captured = _converted(f, example_args)
    moves = [isinstance(x, Traced) and differentiable(x) for x in captured]
    count = len(example_args)

    @functools.wraps(fun)
    @bounded
    def function(*args: Any) -> Any:
        rest = iter(args[count:])
        every = [next(rest) if moved else x for x, moved in zip(captured, moves, strict=True)]
        return converted(every, args[:count])

    return function, [x for x, moved in zip(captured, moves, strict=True) if moved]


@final
@dataclass(frozen=True)
class _Kept:
    """What a rule of `custom_gradient` keeps: a node of trees."""

    captured: list[Any]
    rule: _Converted


register_pytree_node(
    _Kept, lambda kept: (kept.captured, kept.rule), lambda rule, own: _Kept(list(own), rule)
)


def custom_gradient(fun: Callable[..., Any]) -> custom_vjp:
    """Return a function with a derivative that it returns beside its result.

    Args:
        fun: a function that returns a pair: the results, and a function from their cotangents to
            those of the arguments, a tuple; of one argument it may be the cotangent itself.

    Returns:
        A function that returns the results alone.

    Raises:
        ArgumentError: if ``fun`` is not a function. The function that is returned raises
            `TreeError` if it does not return a pair.

    Source: the semantics are those of ``jax.custom_gradient``.

    >>> import meshard, meshard.numpy as mnp
    >>> @meshard.custom_gradient
    ... def half(x):
    ...     return x, lambda g: g / 2
    >>> float(meshard.grad(half)(3.0))
    0.5
    """
    f = function_of(fun, "custom_gradient", "fun")

    def pair(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Callable[..., Any]]:
        found = f(*args, **kwargs)
        if not isinstance(found, (tuple, list)) or len(found) != 2 or not callable(found[1]):
            raise TreeError(
                f"{name_of(f)} is a custom_gradient function, which must return a pair of its "
                "results and a function from their cotangents to those of its arguments; it "
                f"returned {described(found)}."
            )
        return found[0], found[1]

    @custom_vjp
    @functools.wraps(fun)
    def function(*args: Any, **kwargs: Any) -> Any:
        return pair(args, kwargs)[0]

    def forth(*args: Any, **kwargs: Any) -> tuple[Any, _Kept]:
        results, rule = pair(args, kwargs)
        converted, captured = _converted(rule, (results,))
        return results, _Kept(captured, converted)

    def back(kept: _Kept, cotangents: Any) -> Any:
        found = kept.rule(kept.captured, (cotangents,))
        return found if isinstance(found, (tuple, list)) else (found,)

    function.defvjp(forth, back)
    return function
