"""Optimizers, with optax's names and protocol, whose states are laid out like the parameters.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import optim
>>> target = mnp.asarray([1.0, -2.0])
>>> optimizer = optim.sgd(0.1, momentum=0.5)
>>> x = mnp.zeros(2)
>>> state = optimizer.init(x)
>>> for _ in range(40):
...     slope = meshard.grad(lambda x: mnp.sum((x - target) ** 2))(x)
...     updates, state = optimizer.update(slope, state, x)
...     x = optim.apply_updates(x, updates)
>>> mnp.round(x, 4).tolist()
[1.0, -2.0]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.optim.optimizers import (
    adam as adam,
    adamw as adamw,
    lion as lion,
    sgd as sgd,
)
from meshard.ops.optim.schedules import (
    constant_schedule as constant_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    join_schedules as join_schedules,
    linear_schedule as linear_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
)
from meshard.ops.optim.optimizers import (
    EmptyState as EmptyState,
    GradientTransformation as GradientTransformation,
    ScaleByAdamState as ScaleByAdamState,
    ScaleByLionState as ScaleByLionState,
    ScaleByScheduleState as ScaleByScheduleState,
    TraceState as TraceState,
    add_decayed_weights as add_decayed_weights,
    apply_updates as apply_updates,
    chain as chain,
    clip as clip,
    clip_by_global_norm as clip_by_global_norm,
    global_norm as global_norm,
    identity as identity,
    scale as scale,
    scale_by_adam as scale_by_adam,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_lion as scale_by_lion,
    scale_by_schedule as scale_by_schedule,
    trace as trace,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
