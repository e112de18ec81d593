"""Learning rates that change: functions from the number of steps so far to a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshard.algebra.arguments import function_of
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError
from meshard.ops.array.create import asarray
from meshard.ops.array.elementwise import clip
from meshard.ops.checked import checked
from meshard.runtime.doors import bind

Schedule = Callable[[Any], Any]


@checked
def constant_schedule(value: float) -> Schedule:
    """Return the schedule that is always the same number.

    >>> from meshard import optim
    >>> optim.constant_schedule(0.1)(1000)
    0.1
    """
    return lambda count: value


@checked
def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Return the schedule that goes along a line from one number to another, and stays there.

    Args:
        init_value: where it begins.
        end_value: where it ends.
        transition_steps: how many steps the way takes.
        transition_begin: how many steps come before the way.

    >>> from meshard import optim
    >>> rate = optim.linear_schedule(0.0, 1.0, 4)
    >>> [float(rate(count)) for count in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    _positive(transition_steps, "linear_schedule", "transition_steps")

    @bounded
    def schedule(count: Any) -> Any:
        share = clip((count - transition_begin) / transition_steps, 0, 1)
        return init_value + (end_value - init_value) * share

    return schedule


@checked
def cosine_decay_schedule(
    init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """Return the schedule that falls along half a cosine (Loshchilov and Hutter, 2017).

    Args:
        init_value: where it begins.
        decay_steps: how many steps it falls.
        alpha: the share of the first value at which it ends.
        exponent: a power to which the cosine is raised.

    >>> from meshard import optim
    >>> rate = optim.cosine_decay_schedule(1.0, 4)
    >>> [round(float(rate(count)), 3) for count in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    _positive(decay_steps, "cosine_decay_schedule", "decay_steps")

    @bounded
    def schedule(count: Any) -> Any:
        share = clip(count / decay_steps, 0, 1)
        fallen = 0.5 * (1 + bind("cos", math.pi * share))
        return init_value * ((1 - alpha) * fallen**exponent + alpha)

    return schedule


@checked
def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Return schedules one after the other; each counts from its own first step.

    Args:
        schedules: the schedules.
        boundaries: the steps with which all but the first begin.

    Raises:
        ArgumentError: if there are not as many boundaries as changes.

    >>> from meshard import optim
    >>> rate = optim.join_schedules([optim.constant_schedule(v) for v in (1, 2, 3)], [2, 3])
    >>> [int(rate(count)) for count in range(5)]
    [1, 1, 2, 3, 3]
    """
    for number, given in enumerate(schedules):
        function_of(given, "join_schedules", f"schedule {number}")
    if len(schedules) != len(boundaries) + 1:
        raise ArgumentError(
            f"join_schedules: {len(schedules)} schedules meet at {max(len(schedules) - 1, 0)} "
            f"boundaries, got {len(boundaries)}."
        )

    @bounded
    def schedule(count: Any) -> Any:
        value = schedules[0](count)
        for following, start in zip(schedules[1:], boundaries, strict=True):
            value = bind("where", asarray(count < start), value, following(count - start))
        return value

    return schedule


@checked
def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """Return the schedule that rises along a line and then falls along half a cosine.

    Args:
        init_value: where it begins.
        peak_value: the highest value.
        warmup_steps: how many steps it rises.
        decay_steps: how many steps rise and fall take together.
        end_value: where it ends.
        exponent: a power to which the cosine is raised.

    >>> from meshard import optim
    >>> rate = optim.warmup_cosine_decay_schedule(0.0, 1.0, 2, 6)
    >>> [round(float(rate(count)), 3) for count in range(8)]
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    alpha = 0.0 if peak_value == 0 else end_value / peak_value
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    fall = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([rise, fall], [warmup_steps])


def _positive(steps: int, what: str, name: str) -> None:
    if steps <= 0:
        raise ArgumentError(f"{what}: {name} must be positive, got {steps}.")
