"""Optimizers by their names: transformations in the usual chains.

Gradients and a state in, updates and the next state out: the protocol of optax.

Everything is array code on trees, so that states and updates are laid out like the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meshard.algebra.arguments import instance_of
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError
from meshard.ops.array.create import asarray, zeros, zeros_like
from meshard.ops.array.elementwise import clip as clip_
from meshard.ops.checked import checked, number
from meshard.ops.reductions.reduce import sum as sum_
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.trees import trees

ScalarOrSchedule = float | Callable[[Any], Any]
"""A number, or a function from the number of steps so far to a number."""
MOST_STEPS = 2**31 - 1


class GradientTransformation(NamedTuple):
    """Two functions that turn gradients into updates, as in optax.

    Args:
        init: from the parameters to the first state, a tree of arrays.
        update: from gradients, the state and the parameters to updates and the next state.

    >>> from meshard import optim
    >>> halved = optim.GradientTransformation(lambda p: (), lambda g, state, p=None: (g / 2, state))
    >>> optim.chain(halved, optim.scale(-1.0)).update(8.0, ((), optim.EmptyState()))
    (-4.0, ((), EmptyState()))
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing.

    >>> from meshard import optim
    >>> optim.sgd(0.1).init({"w": 1.0})
    (EmptyState(), EmptyState())
    """


class TraceState(NamedTuple):
    """The state of `trace`: the running sum."""

    trace: Any


class ScaleByAdamState(NamedTuple):
    """The state of `scale_by_adam`: steps, and running means of gradients and of their squares."""

    count: Array  # type: ignore[assignment]  # hides tuple.count, as in optax
    mu: Any
    nu: Any


class ScaleByLionState(NamedTuple):
    """The state of `scale_by_lion`: steps, and the running mean of gradients."""

    count: Array  # type: ignore[assignment]  # hides tuple.count, as in optax
    mu: Any


class ScaleByScheduleState(NamedTuple):
    """The state of `scale_by_schedule`: how many steps have been made."""

    count: Array  # type: ignore[assignment]  # hides tuple.count, as in optax


def _made(init: Callable[[Any], Any], update: Callable[..., Any]) -> GradientTransformation:
    """Return a transformation whose errors end at the user's line."""
    return GradientTransformation(bounded(init), bounded(update))


def chain(*args: GradientTransformation) -> GradientTransformation:
    """Return transformations one after the other as one; its state is the tuple of theirs.

    Raises:
        ArgumentError: if something else is given.

    >>> from meshard import optim
    >>> both = optim.chain(optim.clip(1.0), optim.scale(-0.1))
    >>> both.update({"w": 5.0}, both.init({"w": 0.0}))[0]
    {'w': Array(-0.1, dtype=float64)}
    """
    for position, given in enumerate(args):
        instance_of(given, GradientTransformation, "chain", f"transformation {position}")

    def init(params: Any) -> Any:
        return tuple(each.init(params) for each in args)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        _is_state_of(state, args)
        states = []
        for each, own in zip(args, state, strict=True):
            updates, own = each.update(updates, own, params)
            states.append(own)
        return updates, tuple(states)

    return _made(init, update)


def _is_state_of(state: Any, chained: tuple[GradientTransformation, ...]) -> None:
    if not isinstance(state, tuple) or len(state) != len(chained):
        raise ArgumentError(
            f"chain: the state of {len(chained)} transformations is a tuple of {len(chained)} "
            f"states, got {type(state).__name__}{f' of {len(state)}' * hasattr(state, '__len__')}. "
            "init(params) returns the first one, update(gradients, state) the next."
        )


def stateless(function: Callable[[Any, Any], Any]) -> GradientTransformation:
    """Return a transformation that needs no state, of a function of updates and parameters."""
    return _made(
        lambda params: EmptyState(),
        lambda updates, state, params=None: (function(updates, params), state),
    )


def identity() -> GradientTransformation:
    """Return the transformation that changes nothing.

    >>> from meshard import optim
    >>> optim.identity().update({"w": 2.0}, optim.EmptyState())
    ({'w': 2.0}, EmptyState())
    """
    return stateless(lambda updates, params: updates)


@checked
def scale(step_size: float) -> GradientTransformation:
    """Return the transformation that multiplies updates by a number.

    >>> from meshard import optim
    >>> optim.scale(-0.5).update({"w": 2.0}, optim.EmptyState())[0]
    {'w': -1.0}
    """
    return stateless(lambda updates, params: trees.map(lambda g: step_size * g, updates))


@checked
def scale_by_schedule(step_size_fn: Callable[[Any], Any]) -> GradientTransformation:
    """Return the transformation that multiplies updates by a function of the number of steps.

    Args:
        step_size_fn: from the number of steps so far, an array of one integer, to a number.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> slower = optim.scale_by_schedule(lambda count: 1 / (1 + count))
    >>> state = slower.init(None)
    >>> for _ in range(3):
    ...     update, state = slower.update(mnp.asarray(6.0), state)
    >>> float(update)
    2.0
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        size = number(step_size_fn(state.count), "scale_by_schedule", "what step_size_fn returns")
        updates = trees.map(lambda g: asarray(size, dtype=asarray(g).dtype) * g, updates)
        return updates, ScaleByScheduleState(_next(state.count))

    return _made(lambda params: ScaleByScheduleState(_first()), update)


@checked
def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule, *, flip_sign: bool = True
) -> GradientTransformation:
    """Return the transformation that multiplies updates by a rate, and by -1 so that they descend.

    Args:
        learning_rate: a number, or a function of the number of steps so far.
        flip_sign: whether to multiply by -1.

    >>> from meshard import optim
    >>> optim.scale_by_learning_rate(0.5).update({"w": 2.0}, optim.EmptyState())[0]
    {'w': -1.0}
    """
    sign_ = -1 if flip_sign else 1
    if callable(learning_rate):

        def rate(count: Any) -> Any:
            given = learning_rate(count)
            return sign_ * number(given, "scale_by_learning_rate", "what learning_rate returns")

        return scale_by_schedule(rate)
    return scale(sign_ * learning_rate)


@checked
def trace(decay: float, nesterov: bool = False) -> GradientTransformation:
    """Return the transformation that sums gradients up, older ones with less weight: momentum.

    Args:
        decay: what the sum is multiplied by at each step.
        nesterov: whether to look one step ahead (Nesterov, 1983).

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> momentum = optim.trace(0.5)
    >>> state = momentum.init(mnp.zeros(()))
    >>> for _ in range(2):
    ...     update, state = momentum.update(mnp.asarray(2.0), state)
    >>> float(update)
    3.0
    """

    def add(updates: Any, state: Any) -> Any:
        return trees.map(lambda g, t: g + decay * t, updates, state)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        summed = add(updates, state.trace)
        return add(updates, summed) if nesterov else summed, TraceState(summed)

    return _made(lambda params: TraceState(_zeros(params)), update)


@checked
def scale_by_adam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, eps_root: float = 0.0
) -> GradientTransformation:
    """Return the transformation that divides mean gradients by the root of their mean squares.

    Args:
        b1: how much of the mean of gradients stays in each step.
        b2: the same for their squares.
        eps: what is added to the root, so that nothing is divided by zero.
        eps_root: what is added below the root.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> adam = optim.scale_by_adam()
    >>> update, state = adam.update(mnp.asarray([3.0, -0.1]), adam.init(mnp.zeros(2)))
    >>> mnp.round(update, 3).tolist(), int(state.count)
    ([1.0, -1.0], 1)
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        mu = trees.map(lambda g, m: _mean(g, m, b1), updates, state.mu)
        nu = trees.map(lambda g, n: _mean(_square(g), n, b2), updates, state.nu)
        count = _next(state.count)
        short, long = 1 - b1**count, 1 - b2**count

        def scaled(m: Any, n: Any) -> Any:
            root = bind("sqrt", n / long.astype(n.dtype) + eps_root) + eps
            return m / short.astype(m.dtype) / root

        return trees.map(scaled, mu, nu), ScaleByAdamState(count, mu, nu)

    def init(params: Any) -> Any:
        return ScaleByAdamState(_first(), _zeros(params), _zeros(params))

    return _made(init, update)


@checked
def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> GradientTransformation:
    """Return the transformation to the signs of mean gradients (Lion, Chen and others, 2023).

    Args:
        b1: how much of the mean counts beside the gradient.
        b2: how much of the mean stays in each step.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> lion = optim.scale_by_lion()
    >>> lion.update(mnp.asarray([3.0, -0.1]), lion.init(mnp.zeros(2)))[0].tolist()
    [1.0, -1.0]
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        signs = trees.map(lambda g, m: bind("sign", _mean(g, m, b1)), updates, state.mu)
        mu = trees.map(lambda g, m: _mean(g, m, b2), updates, state.mu)
        return signs, ScaleByLionState(_next(state.count), mu)

    return _made(lambda params: ScaleByLionState(_first(), _zeros(params)), update)


@checked
def add_decayed_weights(weight_decay: float = 0.0) -> GradientTransformation:
    """Return the transformation that adds a share of each parameter to its update.

    >>> from meshard import optim
    >>> optim.add_decayed_weights(0.1).update(1.0, optim.EmptyState(), params=20.0)[0]
    3.0
    """

    def decayed(updates: Any, params: Any) -> Any:
        if params is None:
            raise ArgumentError(
                "add_decayed_weights: the parameters are needed, got None. Pass them to update: "
                "update(gradients, state, params)."
            )
        return trees.map(lambda g, p: g + weight_decay * p, updates, params)

    return stateless(decayed)


@checked
def clip(max_delta: float) -> GradientTransformation:
    """Return the transformation that limits each element to ``-max_delta`` to ``max_delta``.

    >>> from meshard import optim
    >>> optim.clip(1.0).update([3.0, -5.0], optim.EmptyState())[0]
    [Array(1., dtype=float64), Array(-1., dtype=float64)]
    """
    return stateless(
        lambda updates, params: trees.map(lambda g: clip_(g, -max_delta, max_delta), updates)
    )


@checked
def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Return the transformation that shortens updates whose norm, over all leaves, is larger.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> optim.clip_by_global_norm(1.0).update(mnp.asarray([3.0, 4.0]), optim.EmptyState())[0]
    Array([0.6, 0.8], dtype=float64)
    """

    def clipped(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        return trees.map(
            lambda g: bind("where", norm < max_norm, g, g / norm.astype(g.dtype) * max_norm),
            updates,
        )

    return stateless(clipped)


def global_norm(tree: Any) -> Array:
    """Return the root of the sum of the squares of all elements of a tree.

    Each leaf is summed where it is; what is sent is one number for each.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> float(optim.global_norm({"w": mnp.asarray([2.0, 3.0]), "b": mnp.asarray(6.0)}))
    7.0
    """
    return bind("sqrt", sum((sum_(_square(x)) for x in trees.leaves(tree)), start=zeros(())))


def apply_updates(params: Any, updates: Any) -> Any:
    """Return parameters with updates added; dtypes and shardings stay those of the parameters.

    Raises:
        TreeError: if the two trees are not alike.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> optim.apply_updates({"w": mnp.ones(2, "float32")}, {"w": mnp.asarray([0.5, -1.0])})
    {'w': Array([1.5, 0. ], dtype=float32)}
    """

    def added(p: Any, u: Any) -> Any:
        p = asarray(p)
        return (p + asarray(u)).astype(p.dtype)

    return trees.map(added, params, updates)


def _first() -> Array:
    return zeros((), "int32")


def _next(count: Any) -> Array:
    """Return the number of steps after one more; it stays at the largest."""
    return bind("minimum", count, MOST_STEPS - 1) + 1


def _zeros(params: Any) -> Any:
    return trees.map(zeros_like, params)


def _mean(new: Any, mean: Any, stays: float) -> Any:
    """Return a running mean one step later."""
    return (1 - stays) * new + stays * mean


def _square(x: Any) -> Any:
    x = asarray(x)
    return bind("square", bind("absolute", x) if x.dtype.kind == "c" else x)


@checked
def sgd(
    learning_rate: ScalarOrSchedule, momentum: float | None = None, nesterov: bool = False
) -> GradientTransformation:
    """Return gradient descent, with momentum if it is given.

    Args:
        learning_rate: a number, or a function of the number of steps so far.
        momentum: how much of the last step is made again.
        nesterov: whether to look one step ahead (Nesterov, 1983).

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import optim
    >>> x, descend = mnp.asarray([4.0, -2.0]), optim.sgd(0.25)
    >>> updates, state = descend.update(meshard.grad(lambda x: mnp.sum(x**2))(x), descend.init(x))
    >>> optim.apply_updates(x, updates).tolist()
    [2.0, -1.0]
    """
    summed = identity() if momentum is None else trace(momentum, nesterov)
    return chain(summed, scale_by_learning_rate(learning_rate))


@checked
def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
) -> GradientTransformation:
    """Return Adam (Kingma and Ba, 2015).

    Its state is two arrays for each parameter, which are laid out as the parameter is.

    Args:
        learning_rate: a number, or a function of the number of steps so far.
        b1: how much of the mean of gradients stays in each step.
        b2: the same for their squares.
        eps: what is added to the root, so that nothing is divided by zero.
        eps_root: what is added below the root.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import optim
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("data",)), meshard.P("data"))
    >>> state = optim.adam(0.1).init({"w": mnp.ones((8, 2), device=rows)})
    >>> state[0].mu["w"].sharding.spec
    P('data',)
    """
    return chain(scale_by_adam(b1, b2, eps, eps_root), scale_by_learning_rate(learning_rate))


@checked
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: float = 1e-4,
) -> GradientTransformation:
    """Return Adam with weights that decay by themselves (Loshchilov and Hutter, 2019).

    Args:
        learning_rate: a number, or a function of the number of steps so far.
        b1: how much of the mean of gradients stays in each step.
        b2: the same for their squares.
        eps: what is added to the root, so that nothing is divided by zero.
        eps_root: what is added below the root.
        weight_decay: the share of each weight that is subtracted, times the rate.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> x, shrink = mnp.asarray([4.0]), optim.adamw(1.0, weight_decay=0.25)
    >>> shrink.update(mnp.zeros(1), shrink.init(x), x)[0].tolist()
    [-1.0]
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(learning_rate),
    )


@checked
def lion(
    learning_rate: ScalarOrSchedule, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 1e-3
) -> GradientTransformation:
    """Return Lion (Chen and others, 2023), whose state is half as large as Adam's.

    Args:
        learning_rate: a number, or a function of the number of steps so far.
        b1: how much of the mean counts beside the gradient.
        b2: how much of the mean stays in each step.
        weight_decay: the share of each weight that is subtracted, times the rate.

    >>> import meshard.numpy as mnp
    >>> from meshard import optim
    >>> x, descend = mnp.asarray([4.0, 4.0]), optim.lion(0.5, weight_decay=0.0)
    >>> descend.update(mnp.asarray([0.1, -7.0]), descend.init(x), x)[0].tolist()
    [-0.5, 0.5]
    """
    return chain(
        scale_by_lion(b1, b2),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(learning_rate),
    )
