"""Making a job of meshard's of the ranks of a job of PyTorch's."""

from __future__ import annotations

from typing import Any

from meshard.algebra.world import known_world
from meshard.errors import ConfigError
from meshard.interop.tensors.agreeing import check_group, gathered
from meshard.interop.tensors.loading import distributed
from meshard.interop.tensors.wanted import group_ranks
from meshard.mpi.launch import join


def initialize(group: Any = None) -> None:
    """Join the processes of a job of PyTorch's, so that arrays span them; MPI is not needed.

    All ranks call it, after ``init_process_group`` and before their first use of meshard. Each rank
    is the process of its number. `to_meshard` and `from_meshard` need this; `reshard` does not.

    Args:
        group: a process group of all ranks, over which they meet; None for the job's own.

    Raises:
        ArgumentError: if ``group`` is not a process group, or does not have this rank.
        ConfigError: if there is no process group, it does not have all ranks, or meshard has been
            used already, unless these are its processes.

    >>> initialize()
    Traceback (most recent call last):
        ...
    meshard.errors.ConfigError: initialize: there is no process group. Call torch.distributed...
    """
    what = "initialize"
    check_group(what, group)
    rank, count = distributed.get_rank(), distributed.get_world_size()
    if group_ranks(group) != tuple(range(count)):
        raise ConfigError(
            f"{what}: the group has the ranks {list(group_ranks(group))}, but the job has {count}. "
            "Pass a group of all ranks, or None."
        )
    world = known_world()
    if world is not None and (world.process_index, len(world.processes)) == (rank, count):
        return
    if world is not None or count > 1:
        join(rank, count, lambda value: gathered(value, group, what))
