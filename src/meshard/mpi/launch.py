"""Joining a job: the world of a process that was started by mpiexec.

Importing this neither needs nor starts MPI. The first use of meshard in a process that mpiexec has
started does: it makes a world whose devices are those of all processes.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from types import TracebackType
from typing import Any

from meshard.algebra.arguments import shown
from meshard.algebra.world import Device, World, config, current, install_world_factory, known_world
from meshard.errors import ConfigError
from meshard.runtime.lookout import Lookout
from meshard.runtime.workers import Workers
from meshard.runtime.world import RuntimeWorld, alone

__all__ = ["end_job", "initialize", "is_initialized", "job_size", "shutdown"]

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
_LOCAL = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_HEARD = 0.2
"""Seconds before a job is aborted: mpiexec may drop what was written but has not reached it."""


def job_size() -> int | None:
    """Return how many processes mpiexec has started; None if it has not started this one."""
    return _first_number(_SIZES)


def _first_number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def _made() -> World:
    """Return the world of this process: the job's if there is one."""
    size = job_size()
    if size is None:
        return alone()
    devices = config.num_devices_given or 1
    if size == 1:
        return alone(devices)
    return _joined(size, devices)


def _host() -> str:
    """Return this host's name, or ``MESHARD_HOST``, by which one host can play several."""
    return os.environ.get("MESHARD_HOST") or socket.gethostname()


def _joined(size: int, devices: int) -> RuntimeWorld:
    mpi = _imported(size)
    from .segments import open_segments
    from .table import read_table
    from .transport import MpiTransport
    from .watch import say_goodbye, speak_when_ended, whereabouts

    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    communicator = mpi.COMM_WORLD
    if communicator.Get_size() != size:
        raise ConfigError(
            f"mpiexec says that it started {size} processes, but MPI joins "
            f"{communicator.Get_size()}: mpiexec and mpi4py belong to different MPI libraries. Use "
            "the mpiexec that is installed beside mpi4py (`meshard run` finds it)."
        )
    transport = MpiTransport(communicator, float(os.environ.get("MESHARD_TIMEOUT") or 300))
    everybody = range(size)
    table = read_table() if transport.index == 0 else None
    mine = devices, _host(), table, whereabouts()
    told: list[Any] = transport.all_gather(mine, everybody)
    transport.settle(told[0][2])
    transport.letters.know([place for *_, place in told])
    owners = [p for p, (count, *_) in enumerate(told) for _ in range(count)]
    names = list(dict.fromkeys(name for _, name, *_ in told))
    hosts = [names.index(name) for _, name, *_ in told]
    world = RuntimeWorld(
        transport.index, size, [Device(i, p) for i, p in enumerate(owners)], transport, hosts
    )
    if transport.table.memory:
        transport.reach(
            *open_segments(
                world.pages,
                hosts,
                transport.index,
                transport.table,
                lambda value: transport.all_gather(value, everybody),
                transport.lookout.agreement.stamp,
            )
        )
    neighbours = _first_number(_LOCAL) or size
    world.workers = Workers(max(1, world.workers.threads // neighbours))
    _abort_on_errors(mpi, transport.lookout)
    say_goodbye(transport.lookout, transport.letters)
    speak_when_ended(transport.lookout)
    return world


def _imported(size: int) -> Any:
    """Return mpi4py's MPI, which starts only after it is known to fit the mpiexec.

    Raises:
        ConfigError: if mpi4py is missing, or its MPI is not the one of Open MPI's mpiexec.
    """
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            f"This process is one of {size} that mpiexec started, but mpi4py is not installed, "
            'which joins them. Install it with pip install "meshard[mpi]", or start the program '
            "without mpiexec."
        ) from error
    library = MPI.Get_library_version()
    started = os.environ.get("OMPI_VERSION", "")
    # Another MPI ends the process when it starts, without a word of what to do.
    if started and not library.startswith("Open MPI") and "pmix" not in library.lower():
        raise ConfigError(
            f"The mpiexec of Open MPI {started} has started this process, but mpi4py is linked to "
            f"{' '.join(library.split()[:3])}: they are different MPI libraries. Use the mpiexec "
            "that is installed beside mpi4py (`meshard run` finds it)."
        )
    return MPI


def _abort_on_errors(mpi: Any, lookout: Lookout) -> None:
    """End the whole job when this process fails, since the others would wait for it."""
    from .watch import speak_before_abort

    before = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        before(kind, error, trace)
        _say_failed(mpi)
        speak_before_abort(lookout, error)
        time.sleep(_HEARD)
        mpi.COMM_WORLD.Abort(1)

    sys.excepthook = report


def _say_failed(mpi: Any) -> None:
    rank = mpi.COMM_WORLD.Get_rank()
    print(f"meshard: process {rank} has failed; the job is ended.", file=sys.stderr, flush=True)
    sys.stdout.flush()


def end_job() -> None:
    """End all processes of the job, which would wait for this one; without others do nothing."""
    world = known_world()
    if world is not None and world.process_count > 1:
        from mpi4py import MPI

        _say_failed(MPI)
        MPI.COMM_WORLD.Abort(1)


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Any = None,
    **more: Any,
) -> None:
    """Join the processes that mpiexec has started; without it nothing happens.

    It is implied by the first use of meshard.

    Args:
        coordinator_address: accepted as in JAX; mpiexec has arranged it.
        num_processes: if given, it must be the number that mpiexec has started.
        process_id: if given, it must be this process's number.
        local_device_ids: accepted as in JAX; ``MESHARD_NUM_DEVICES`` says how many there are.
        more: further arguments of JAX's function, which mean nothing here.

    Raises:
        ConfigError: if the job is another than the arguments say.
    """
    world = current()
    for name, given, found in (
        ("num_processes", num_processes, world.process_count),
        ("process_id", process_id, world.process_index),
    ):
        told: object = given
        if told is not None and not (isinstance(told, int) and told == found):
            raise ConfigError(
                f"distributed.initialize: {name}={shown(told)}, but it is {found}. Processes are "
                "started by mpiexec, as in `meshard run -n 4 script.py`."
            )


def is_initialized() -> bool:
    """Return whether this process has joined others, or is known to be alone."""
    return known_world() is not None


def shutdown() -> None:
    """Wait until all processes have come here; MPI itself ends with the process."""
    world = known_world()
    if isinstance(world, RuntimeWorld) and world.process_count > 1:
        world.transport.barrier(range(world.process_count))


install_world_factory(_made, lambda: job_size() or 1)
