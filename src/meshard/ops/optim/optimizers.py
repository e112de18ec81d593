"""Optimizers by their names: transformations in the usual chains."""

from __future__ import annotations

from meshard.ops.checked import checked
from meshard.ops.optim.transformations import (
    GradientTransformation,
    ScalarOrSchedule,
    add_decayed_weights,
    chain,
    identity,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    trace,
)


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
