"""Policies: which values of a `remat` function are kept, and names for values that they choose by.

In: an operation's name, the types of its operands and its parameters. Out: whether its results are
kept for the way back. All others are computed again there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshard.algebra.arguments import function_of, is_text, text_of
from meshard.errors import ArgumentError
from meshard.ops.engine.concrete import is_traced
from meshard.runtime.doors import bind
from meshard.runtime.trees import trees

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
