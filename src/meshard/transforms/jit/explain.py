"""`explain`: what a function does and moves, before it runs.

In: a function and its arguments, or their types. Out: an `Explanation`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from meshard.plan.figures.topology import Topology
from meshard.transforms.explain.explanation import Explanation
from meshard.transforms.jit.jit import Jitted


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
