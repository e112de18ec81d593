"""`remat`: values that are computed again on the way back instead of being kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import meshard.transforms.derivatives.calls  # noqa: F401  (it fills the table of calls)
from meshard.algebra.arguments import flag_of, function_of, integer_of
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError
from meshard.runtime.trees import trees
from meshard.transforms.derivatives.arguments import name_of, value_of
from meshard.transforms.derivatives.kept import Again, kept_call
from meshard.transforms.remat.policies import Policy
from meshard.transforms.remat.saving import Saving

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
