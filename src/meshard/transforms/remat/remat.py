"""`remat`: values that are computed again on the way back instead of being kept.

Policies: which values of a `remat` function are kept, and names for values that they choose by.

In: an operation's name, the types of its operands and its parameters. Out: whether its results are
kept for the way back. All others are computed again there.

Functions of which some values are kept for the way back, as a policy says.

In: a function's program, and a policy. Out: its derivative. The way back is itself a program, made
once for each call: it reads the arguments, what is kept and the cotangents, and computes again only
what it needs besides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final, overload

from meshard.algebra.arguments import flag_of, function_of, integer_of, is_text, text_of
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import FLAT, Derivative, Site, Values
from meshard.ops.engine.later import is_traced
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.trees import trees
from meshard.transforms.derivatives.arguments import name_of, strong, value_of
from meshard.transforms.derivatives.calls import CallRule
from meshard.transforms.derivatives.kept import Again, OfProgram, kept_call
from meshard.transforms.derivatives.levels import LevelRecorder, differentiable
from meshard.transforms.derivatives.reverse import cotangents_of, followed_again
from meshard.transforms.derivatives.rules import CALLS, derivative_of
from meshard.transforms.program.calls import KeptCall
from meshard.transforms.program.program import Call, Eqn, Literal, Program, Var, evaluate
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.tracing import recording, sub_program

T = TypeVar("T")
Policy = Callable[..., bool | None]

NAME = "checkpoint_name"
"""The row of values that have a name."""


def checkpoint_name(x: T, name: str) -> T:
    """Return a tree as it is, under a name by which a policy of `remat` may choose it.

    Args:
        x: a tree of arrays.
        name: the name.

    Raises:
        ArgumentError: if ``name`` is not a string.

    Source: the semantics are those of ``jax.ad_checkpoint.checkpoint_name``.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard.ad_checkpoint import checkpoint_name
    >>> policy = meshard.checkpoint_policies.save_only_these_names("sine")
    >>> layer = lambda x: mnp.exp(checkpoint_name(mnp.sin(x), "sine"))
    >>> float(meshard.grad(meshard.remat(layer, policy=policy))(0.0))
    1.0
    """
    text_of(name, "checkpoint_name", "name")
    return trees.map(lambda leaf: bind(NAME, leaf, name=name) if is_traced(leaf) else leaf, x)


def everything_saveable(prim: str, *operands: Any, **params: Any) -> bool:
    """Keep all values: nothing is computed again.

    Args:
        prim: the operation's name.
        operands: the types of its operands.
        params: its parameters.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.everything_saveable("sin")
    True
    """
    return True


def nothing_saveable(prim: str, *operands: Any, **params: Any) -> bool:
    """Keep no value: all are computed again, as `remat` does without a policy.

    Args:
        prim: the operation's name.
        operands: the types of its operands.
        params: its parameters.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.nothing_saveable("sin")
    False
    """
    return False


def dots_saveable(prim: str, *operands: Any, **params: Any) -> bool:
    """Keep the results of matrix products and ``einsum``, which take longest to compute again.

    Args:
        prim: the operation's name.
        operands: the types of its operands.
        params: its parameters.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.dots_saveable("contract", rule="i k, k j -> i j")
    True
    """
    return is_text(prim, "contract")


checkpoint_dots = dots_saveable


def dots_with_no_batch_dims_saveable(prim: str, *operands: Any, **params: Any) -> bool:
    """Keep the results of products without batch dims, as those with weights are.

    Args:
        prim: the operation's name.
        operands: the types of its operands.
        params: its parameters.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.dots_with_no_batch_dims_saveable(
    ...     "contract", rule="b i k, b k j -> b i j"
    ... )
    False
    """
    if not is_text(prim, "contract"):
        return False
    given, result = params["rule"].split("->")
    left, right = given.split(",")
    return not set(left.split()) & set(right.split()) & set(result.split())


checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def _names_of(names: tuple[Any, ...], what: str) -> frozenset[str]:
    return frozenset([text_of(name, what, "names_which_can_be_saved") for name in names])


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Return a policy that keeps the values with these names.

    Args:
        names_which_can_be_saved: names that `checkpoint_name` gives.

    Raises:
        ArgumentError: if a name is not a string.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.save_only_these_names("a")("checkpoint_name", name="a")
    True
    """
    names = _names_of(names_which_can_be_saved, "save_only_these_names")
    return lambda prim, *_, **params: prim == NAME and params["name"] in names


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Return a policy that keeps the values with names, but not with these.

    Args:
        names_not_to_save: names that `checkpoint_name` gives.

    Raises:
        ArgumentError: if a name is not a string.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.save_any_names_but_these("a")("checkpoint_name", name="b")
    True
    """
    names = _names_of(names_not_to_save, "save_any_names_but_these")
    return lambda prim, *_, **params: prim == NAME and params["name"] not in names


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Return a policy that keeps all values but those with these names.

    What a named value is computed from is kept too, unless it has such a name itself.

    Args:
        names_not_to_save: names that `checkpoint_name` gives.

    Raises:
        ArgumentError: if a name is not a string.

    >>> from meshard import checkpoint_policies
    >>> checkpoint_policies.save_anything_except_these_names("a")("sin")
    True
    """
    names = _names_of(names_not_to_save, "save_anything_except_these_names")
    return lambda prim, *_, **params: prim != NAME or params["name"] not in names


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Return a policy that keeps what one of two policies keeps.

    Args:
        policy_1: the first.
        policy_2: the second.

    Raises:
        ArgumentError: if one of them is not a function.

    >>> from meshard import checkpoint_policies as policies
    >>> named = policies.save_only_these_names("a")
    >>> policies.save_from_both_policies(named, policies.dots_saveable)("sin")
    False
    """
    first = function_of(policy_1, "save_from_both_policies", "policy_1")
    second = function_of(policy_2, "save_from_both_policies", "policy_2")

    def policy(prim: str, *operands: Any, **params: Any) -> bool:
        return any(f(prim, *operands, **params) for f in (first, second))

    return policy


def keeps(policy: Policy, name: str, operands: Any, params: dict[str, Any]) -> bool:
    """Ask a policy whether the results of an operation are kept.

    Raises:
        ArgumentError: if it answers neither yes nor no.
    """
    found: object = policy(name, *operands, **params)
    if found is None or isinstance(found, bool):
        return bool(found)
    raise ArgumentError(
        f"remat: the policy must return True or False, whether the results of {name} are kept; it "
        f"returned {found!r}. Names make policies: a function of meshard.checkpoint_policies that "
        "takes names is called with them first."
    )


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """An operation whose results are at hand. Operands: its own, then its results.

    Attributes:
        eqn: the operation.
    """

    eqn: Eqn
    name = "known"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The operation."""
        return (("of", self.eqn.name),)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the results; where operations are followed, as those of the operation."""
        recorder = recording()
        if isinstance(recorder, LevelRecorder):
            return recorder.level.called(self, operands)
        return list(operands[len(self.eqn.inputs) :])

    def site(self, operands: Values) -> Site:
        """Return the operation as one that has run."""
        count, eqn = len(self.eqn.inputs), self.eqn
        params = dict(eqn.params) if eqn.call is None else {"kept": None}
        return Site(eqn.name, params, operands[:count], operands[count:], self.again)

    def again(self, *values: Any) -> list[Any]:
        """Do the operation to other operands."""
        if self.eqn.call is not None:
            return self.eqn.call.run(values)
        found = bind(self.eqn.name, *values, **dict(self.eqn.params))
        return list(found) if isinstance(found, tuple) else [found]


@final
@dataclass(frozen=True, slots=True)
class _KnownDerivative(Derivative):
    call: _Known
    inner: Derivative

    def _rest(self) -> list[None]:
        return [None] * len(self.call.eqn.outputs)

    def push(self, site: Site, tangents: Values) -> list[Any]:
        own = self.call.site(site.operands)
        return self.inner.push(own, tangents[: len(own.operands)])

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        own = self.call.site(site.operands)
        own = replace(own, names=site.names[: len(own.operands)])
        found = cotangents_of(self.inner, own, cotangents, wanted[: len(own.operands)])
        return [*found, *self._rest()]


@final
class _KnownRule(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, _Known)
        inner = derivative_of(call.site([None] * len(call.eqn.inputs)), call.eqn.call)
        return FLAT if inner is FLAT else _KnownDerivative(call, inner)


CALLS[_Known] = _KnownRule()


def saved_eqns(program: Program, policy: Policy) -> list[Eqn]:
    """Return the operations of a program whose results a policy keeps."""
    found = []
    for eqn in program.eqns:
        operands = [type(x.value) if isinstance(x, Literal) else x.aval for x in eqn.inputs]
        if keeps(policy, eqn.name, operands, dict(eqn.params)):
            found.append(eqn)
    return found


def _with_known(program: Program, saved: Sequence[Eqn]) -> Program:
    """Return a program with more arguments: the results of some operations."""
    given: list[Var] = []
    eqns: list[Eqn] = []
    for eqn in program.eqns:
        if any(eqn is one for one in saved):
            own = tuple([Var(v.aval, v.weak) for v in eqn.outputs])
            given += own
            eqn = replace(eqn, params=(), inputs=(*eqn.inputs, *own), call=_Known(eqn))
        eqns.append(eqn)
    return Program(
        program.captured, (*program.inputs, *given), tuple(eqns), program.outputs, program.name
    )


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """The way back of one call.

    Attributes:
        program: from arguments, what is kept and cotangents to the arguments' cotangents.
        captured: the constants that it reads.
        kept: which of the values that the policy keeps it reads.
        moved: which arguments have a cotangent.
    """

    program: Program
    captured: list[Any]
    kept: list[int]
    moved: list[bool]


@final
class Saving:
    """Makes the derivative of calls of one function of which a policy keeps some values."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._plans: dict[int, tuple[Program, _Plan]] = {}

    def __call__(self, call: KeptCall) -> _Saved:
        """Return the derivative of a call."""
        return _Saved(self, call)

    def known(self, call: KeptCall) -> _Plan:
        """Return the way back of a call that has begun."""
        return self._plans[id(call.program)][1]

    def plan(self, call: KeptCall, values: Values, results: Values, known: Values) -> _Plan:
        """Return the way back of a call; of one that is known the same."""
        if id(call.program) not in self._plans:
            made = self._planned(call, values, results, known)
            self._plans[id(call.program)] = call.program, made
        return self.known(call)

    def _planned(self, call: KeptCall, values: Values, results: Values, known: Values) -> _Plan:
        first, second = len(values), len(values) + len(known)
        back = _WayBack(call, self.policy, first, second)
        cotangents = [y for y in results if differentiable(y)]
        whole, captured = sub_program(
            call.name, back, list(map(strong, [*values, *known, *cotangents]))
        )
        short, constants = simplified(whole)
        read = {x for e in short.eqns for x in e.inputs} | set(short.outputs)
        kept = [i for i, v in enumerate(short.inputs[first:second]) if v in read]
        own = [short.inputs[first + i] for i in kept]
        inputs = (*short.inputs[:first], *own, *short.inputs[second:])
        last = Program(short.captured, inputs, short.eqns, short.outputs, short.name)
        return _Plan(last, [captured[i] for i in constants], kept, back.moved)


@final
class _WayBack:
    """From arguments, what is kept and cotangents to cotangents of some arguments.

    Args:
        call: the call.
        policy: what is kept of it.
        first: where what is kept begins among the arguments.
        second: where the cotangents begin.

    Attributes:
        moved: which arguments have a cotangent; known when it has run.
    """

    def __init__(self, call: KeptCall, policy: Policy, first: int, second: int) -> None:
        self._name, self._first, self._second = call.name, first, second
        self._program = _with_known(call.program, saved_eqns(call.program, policy))
        self.moved: list[bool] = []

    def __call__(self, *given: Any) -> list[Any]:
        number, first = next(_recorder().numbers), self._first
        fresh = [
            o.again(x, number=number) if isinstance(x, Traced) and differentiable(x) else x
            for x in given[: self._second]
        ]
        count = len(self._program.captured)

        def flat(*own: Any) -> list[Any]:
            return evaluate(self._program, own[:count], [*own[count:], *fresh[first:]])

        made, pull = followed_again(self._name, flat, fresh[:first])
        rest = iter(given[self._second :])
        found = pull([next(rest) if differentiable(y) else None for y in made])
        self.moved = [g is not None for g in found]
        return [g for g in found if g is not None]


def _recorder() -> Any:
    found = recording()
    assert found is not None
    return found


@final
@dataclass(frozen=True, slots=True)
class _Saved(OfProgram):
    """The derivative of a function of which a policy keeps some values."""

    saving: Saving
    call: KeptCall

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        return Again(self.call).push(values, tangents)

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results, and what is kept."""
        program = self.call.program
        saved = [v for e in saved_eqns(program, self.saving.policy) for v in e.outputs]
        count = len(program.captured)
        longer = replace(program, outputs=(*program.outputs, *saved))
        found = evaluate(longer, values[:count], values[count:])
        results, known = found[: len(program.outputs)], found[len(program.outputs) :]
        plan = self.saving.plan(self.call, values, results, known)
        return results, tuple([known[i] for i in plan.kept])

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Go the way back with what is kept."""
        plan = self.saving.known(self.call)
        own = [g for g in cotangents if g is not None]
        found = iter(evaluate(plan.program, plan.captured, [*values, *kept, *own]))
        return [next(found) if moved else None for moved in plan.moved]


F = TypeVar("F", bound=Callable[..., Any])


@overload
def remat(
    fun: F,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
) -> F: ...
@overload
def remat(
    fun: None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[[F], F]: ...
def remat(
    fun: Any = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Any:
    """Return a function whose inner values are computed again for its gradient, not kept.

    A gradient needs the values that the function computed. With this it keeps the arguments only,
    and runs the function a second time when it comes back to it: more time, less memory.

    Args:
        fun: the function; without it a decorator is returned.
        prevent_cse: accepted as in JAX: what is computed again is never taken for what was computed
            before.
        policy: which values are kept all the same: a function of `checkpoint_policies`, or one of
            an operation's name, the types of its operands and its parameters that returns whether
            its results are kept. None: nothing is kept.
        static_argnums: the arguments that are not arrays.

    Raises:
        ArgumentError: if an argument is of another kind, or the policy returns something else.

    Source: the semantics are those of ``jax.checkpoint``.

    >>> import meshard, meshard.numpy as mnp
    >>> layer = meshard.remat(lambda x: mnp.sin(mnp.sin(x)))
    >>> round(float(meshard.grad(layer)(1.0)), 4)
    0.36
    """
    flag_of(prevent_cse, "remat", "prevent_cse")
    if policy is not None:
        policy = function_of(policy, "remat", "policy", " Without one nothing is kept.")
    listed = static_argnums if isinstance(static_argnums, (tuple, list)) else (static_argnums,)
    statics = {integer_of(n, "remat", "static_argnums") for n in listed}
    if fun is None:
        return functools.partial(remat, policy=policy, static_argnums=static_argnums)
    f = function_of(fun, "remat", "fun")

    @functools.wraps(fun)
    @bounded
    def function(*args: Any, **kwargs: Any) -> Any:
        for n in statics:
            if not -len(args) <= n < len(args):
                raise ArgumentError(
                    f"remat of {name_of(f)!r}: static_argnums names argument {n}, but only "
                    f"{len(args)} were passed by position."
                )
        fixed = {n % len(args) for n in statics}
        moving = tuple([x for n, x in enumerate(args) if n not in fixed])
        leaves, tree = trees.flatten((moving, kwargs))
        name = name_of(f)
        values = [value_of(x, f"remat of {name!r}: an argument") for x in leaves]
        kept: list[Any] = []

        def flat(*own: Any) -> list[Any]:
            given, named = trees.unflatten(tree, list(own))
            rest = iter(given)
            every = [x if n in fixed else next(rest) for n, x in enumerate(args)]
            found, structure = trees.flatten(f(*every, **named))
            kept.append(structure)
            return [value_of(x, f"a result of {name!r}") for x in found]

        found = kept_call(
            f"remat of {name}", flat, Again if policy is None else Saving(policy), values
        )
        return trees.unflatten(kept[-1], found)

    return function
