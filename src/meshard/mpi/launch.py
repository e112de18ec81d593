"""Joining a job: the world of a process that was started by mpiexec.

Importing this does not need or start MPI. The first use of meshard does, in a process that mpiexec
has started: it makes a world whose devices are those of all processes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from meshard.algebra.arguments import integer_of, number_of, shown, text_of
from meshard.algebra.device import Device
from meshard.algebra.world import (
    NUM_DEVICES,
    World,
    check_default_device,
    current,
    entered,
    install_world_factory,
    known_world,
    num_devices,
)
from meshard.errors import ConfigError
from meshard.runtime.agree import meet
from meshard.runtime.memory.pages import Pages
from meshard.runtime.memory.workers import Workers
from meshard.runtime.processes import identity
from meshard.runtime.processes.identity import job_name, siblings, whereabouts
from meshard.runtime.settings import HOST, JOB, JOIN, SPARES, TABLE, TIMEOUT, Table
from meshard.runtime.world import RuntimeWorld, alone

if TYPE_CHECKING:
    from meshard.mpi.transport import JobTransport

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
_LOCAL = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_SLOT = ("PMIX_NAMESPACE", "PMIX_RANK", "PMI_JOBID", "PMI_PORT", "PMI_FD", "PMI_RANK")
"""Variables in which a launcher says which process of which job it has started."""
_RANK = "MESHARD_RANK"
"""Variable that marks a process of a job, for processes that it starts itself."""

_OFTEN, _ALL_STARTED = 0.2, 5.0
"""Seconds between two looks at the others while MPI starts, and until all of them have begun."""
_DIED_EARLY = (
    "meshard.errors.ProcessLostError: {} processes were started on this host, of which only {} "
    "live, and MPI waits for all of them: one has ended before the job began. Before that there is "
    "nothing to recover.\n"
)
_END = signal.SIGUSR2
_BTL = "OMPI_MCA_btl"
"""Variable that selects Open MPI's transports; mpiexec's ``--mca btl`` sets it, too."""
_OWN_PARAMETERS = Path("~/.openmpi/mca-params.conf")
"""Where a user of Open MPI selects them for all jobs."""


def job_size() -> int | None:
    """Return how many processes mpiexec has started; None if it has not started this one.

    A process that a process of a job starts inherits its environment, but runs alone.
    """
    size = _first_number(_SIZES)
    if size is None:
        return None
    slot, pid = _slot(), os.environ.get(_RANK, "").rpartition(" ")[::2]
    return None if pid[0] == slot and pid[1] != str(os.getpid()) else size


def _slot() -> str:
    return "/".join(os.environ.get(name, "") for name in _SLOT)


def _claim() -> None:
    """Mark this as the process that mpiexec started, for processes that it starts itself."""
    if job_size() is not None:
        os.environ[_RANK] = f"{_slot()} {os.getpid()}"


def _first_number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def _made() -> World:
    """Return the world of this process: that of the job if there is one."""
    size = job_size()
    for setting in (JOB, JOIN):  # processes that this one starts run alone
        os.environ.pop(setting.variable, None)
    if _meeting:
        return _met(*_meeting[-1])
    if JOIN.value is not None:
        return _from_outside(JOIN.value, size, NUM_DEVICES.value or 1)
    if size is None or size == 1:
        devices = num_devices() if size is None else NUM_DEVICES.value or 1
        return alone(devices) if JOB.value is None else _opened(JOB.value, devices)
    devices = NUM_DEVICES.value or 1
    mpi = _imported(size)
    ours = not mpi.Is_initialized()
    # Others may wait for this process for ever once it has gone: `meshard run` learns of it.
    keeper = identity.KeeperLine(identity.STARTS)
    if ours:
        with _without_one_sided(), _watching_the_start():
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
    communicator = mpi.COMM_WORLD
    if communicator.Get_size() != size:
        raise ConfigError(
            f"mpiexec says that it started {size} processes, but MPI joins "
            f"{communicator.Get_size()}: mpiexec and mpi4py belong to different MPI libraries. Use "
            "the mpiexec that is installed beside mpi4py (`meshard run` finds it)."
        )
    try:
        return _joined(mpi, devices, keeper, ours)
    except BaseException:  # the others wait for this process
        traceback.print_exc()
        _abort(mpi)


@contextlib.contextmanager
def _watching_the_start() -> Iterator[None]:
    """End this process if one of this host dies before MPI has started, which waits for it forever.

    Where a death ends the job, the launcher does this. Else a child looks on: MPI holds the
    interpreter while it waits, so that neither a thread nor an error could end the wait.
    """
    from meshard.mpi.ending import TOLERANT

    wanted = _first_number(_LOCAL)
    if wanted is None or os.environ.get(TOLERANT) != "1" or siblings(os.getppid()) is None:
        yield
        return
    parent = os.getppid()
    reading, writing = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.close(writing)
        _watch_the_start(reading, wanted, os.getppid(), parent)
    os.close(reading)
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    # The system's own way of ending: Python's handlers would wait for MPI, and a signal that kills
    # would count as a death that others may outlive.
    before = libc.signal(_END, ctypes.cast(libc._exit, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(_END, before)
        os.close(writing)
        os.waitpid(watcher, 0)


def _watch_the_start(reading: int, wanted: int, watched: int, parent: int) -> NoReturn:
    """Kill a process that waits in vain, unless it says that the wait is over."""
    begun, seen = time.monotonic(), 0
    try:
        while not select.select([reading], [], [], _OFTEN)[0]:
            living = siblings(parent)
            if living is None:  # who has started all of them ends them
                continue
            seen = max(seen, living)
            late = time.monotonic() - begun > _ALL_STARTED
            if living < wanted and (late or seen >= wanted):
                os.write(2, _DIED_EARLY.format(wanted, living).encode())
                os.kill(watched, _END)
                break
    finally:
        os._exit(0)


@contextlib.contextmanager
def _without_one_sided() -> Iterator[None]:
    """Let Open MPI start without its one-sided transport over libfabric, which meshard never uses.

    It looks for networks for a second, of the eleven tenths that a start takes. Messages between
    hosts over libfabric go by another component. What somebody chose by the variable or in a file
    stays.
    """
    chosen = _BTL in os.environ
    with contextlib.suppress(OSError, RuntimeError):  # no such file, or no home
        chosen = chosen or "btl" in _OWN_PARAMETERS.expanduser().read_text(errors="replace")
    if chosen:
        yield
        return
    os.environ[_BTL] = "^ofi"
    try:
        yield
    finally:
        del os.environ[_BTL]  # processes that are started from here are none of MPI's


def _joined(mpi: Any, devices: int, keeper: identity.KeeperLine, ours: bool) -> RuntimeWorld:
    """Join the others.

    Args:
        mpi: mpi4py's MPI, which has been started.
        devices: how many devices this process has.
        keeper: the line to the `meshard run` that has started the job.
        ours: whether MPI was started here, and so is to be ended here.
    """
    from meshard.mpi.joining import open_job
    from meshard.mpi.messages import Communicator
    from meshard.mpi.neighbours import open_neighbours
    from meshard.mpi.outside.channel import OpenChannel
    from meshard.mpi.transport import JobTransport
    from meshard.mpi.watch import MpiSideChannel

    keeper.say(identity.JOINED)
    library, side = Communicator(mpi.COMM_WORLD), MpiSideChannel(mpi.COMM_WORLD, keeper)
    size, index = library.size, mpi.COMM_WORLD.Get_rank()
    channel = OpenChannel(index, size, side)
    transport = JobTransport(index, channel, TIMEOUT.value, library)
    everybody = range(size)
    host = HOST.value or socket.gethostname()
    mine = devices, host, asdict(TABLE.value), SPARES.value, whereabouts()
    facts: list[Any] = transport.all_gather(mine, everybody)
    *_, sizes, spares, first = facts[0]
    table = Table(**sizes)
    if spares >= size:
        raise ConfigError(
            f"spares (MESHARD_SPARES) is {spares}, but there are {size} processes: at least one "
            "does not wait."
        )
    transport.settle(table)
    side.know([place for *_, place in facts])
    side.hold(lambda value: transport.all_gather(value, everybody))
    owners = [p for p, (count, *_) in enumerate(facts) for _ in range(count)]
    names = list(dict.fromkeys(name for _, name, *_ in facts))
    hosts = [names.index(name) for _, name, *_ in facts]
    known = [Device(i, p) for i, p in enumerate(owners)]
    world = RuntimeWorld(transport.index, size, known, transport, hosts, spares)
    world.job = job_name(first)
    if transport.table.memory:
        assert isinstance(world.memory, Pages)  # which others can be let into
        transport.reach(
            *open_neighbours(
                world.memory,
                hosts,
                transport.index,
                transport.table,
                lambda value: transport.all_gather(value, everybody),
                transport.watchdog,
            )
        )
    with entered(world):
        check_default_device()
    neighbours = _first_number(_LOCAL) or size
    world.workers = Workers(max(1, world.workers.threads // neighbours))
    open_job(world, transport)
    _watch(mpi, transport, ours)
    return world


def _from_outside(name: str, size: int | None, devices: int) -> RuntimeWorld:
    """Return the world of a process that was started by hand to join a job.

    Raises:
        ConfigError: if mpiexec has started it, or the job does not take it.
    """
    if size is not None:
        raise ConfigError(
            f"This process was started by mpiexec, and {JOIN.variable} says that it joins the job "
            f"{name!r}: it can belong to one job only. Start it without mpiexec, as in `meshard "
            f"run -n 1 --join {name} script.py`."
        )
    from meshard.mpi.joining import newcomer

    return _begun(*newcomer(name, devices))


def _opened(name: str, devices: int) -> RuntimeWorld:
    """Return the world of a job that begins with one process, and that others may join."""
    from meshard.mpi.joining import opened

    return _begun(*opened(name, devices))


def _met(
    index: int, count: int, gather: Callable[[Any], list[Any]], key: bytes | None
) -> RuntimeWorld:
    """Return the world of a process that has met others, without MPI."""
    from meshard.mpi.meeting import met

    world = _begun(*met(index, count, NUM_DEVICES.value or 1, gather, key))
    here = sum(host == world.hosts[index] for host in world.hosts)
    world.workers = Workers(max(1, world.workers.threads // here))
    return world


_meeting: list[tuple[int, int, Callable[[Any], list[Any]], bytes | None]] = []
"""Where this process meets others; nothing if a launcher has arranged it, or it runs alone."""


def join(
    index: int, count: int, gather: Callable[[Any], list[Any]], key: bytes | None = None
) -> None:
    """Make one job of processes that can gather what each of them says.

    All of them call this, before their first use of meshard.

    Args:
        index: the number of this process.
        count: how many there are.
        gather: from what this process says, which letters can hold, to the list of what all say.
        key: what only processes of the job know; by default the secret that is set, if one is.

    Raises:
        ConfigError: if this process belongs to a job already, or the processes do not fit together.
    """
    check_joinable()
    from meshard.mpi.outside.coordinator import key_that_is_set

    _meeting.append((index, count, gather, key or key_that_is_set()))
    try:
        current()
    finally:
        _meeting.clear()


def is_settled() -> bool:
    """Whether this process has a world, or is to get that of a job which has been started."""
    return known_world() is not None or job_size() is not None or JOIN.value is not None


def check_joinable() -> None:
    """Refuse to join others if it is settled who this process works with, or its secret is unfit.

    Raises:
        ConfigError: saying what is in the way.
    """
    if is_settled():
        raise ConfigError(
            "This process cannot join others now: it has used meshard already, or belongs to a job "
            "that mpiexec or `meshard run` has started. Join them before anything else."
        )
    from meshard.mpi.outside.coordinator import key_that_is_set

    key_that_is_set()


def _begun(world: RuntimeWorld, transport: JobTransport) -> RuntimeWorld:
    """Return the world of a process that needs no MPI, once its end is taken care of."""
    with entered(world):
        check_default_device()
    _watch(None, transport, ours=False)
    return world


def _watch(mpi: Any, transport: JobTransport, ours: bool) -> None:
    """Install the handlers for the end of this process, in any way.

    Args:
        mpi: mpi4py's MPI; None if this process does without.
        transport: how it reaches the others.
        ours: whether MPI was started here, and so is to be ended here.
    """
    from meshard.mpi.ending import (
        ProcessExit,
        end_on_error,
        end_when_dismissed,
        speak_when_ended,
        wait_for_none,
    )

    def abort() -> NoReturn:
        transport.channel.close()
        if mpi is None or transport.watchdog.any_died():
            # Where MPI lets the others live, its way to end them all was seen to wait for the dead.
            _flush()
            os._exit(1)
        _abort(mpi)

    ending = ProcessExit(transport.watchdog, transport.channel, abort)
    end_on_error(ending)
    speak_when_ended(transport.watchdog)
    end_when_dismissed(transport.index, launched=mpi is not None)

    def finish() -> None:
        if ending.is_copy:
            return
        transport.channel.keeper.say(identity.ENDED)
        transport.channel.close()
        if mpi is None:
            ending.is_orderly()
        elif mpi.Is_finalized():
            return
        elif not ending.is_orderly():
            wait_for_none(mpi)
        elif ours:
            mpi.Finalize()

    _at_end.append(finish)


_at_end: list[Callable[[], None]] = []


@atexit.register  # at import, so that it runs after the functions that programs register
def _end() -> None:
    while _at_end:
        _at_end.pop()()


def _abort(mpi: Any) -> NoReturn:
    """End all processes of the job."""
    from meshard.mpi.ending import tell_launcher

    _flush()
    tell_launcher()
    mpi.COMM_WORLD.Abort(1)
    os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _imported(size: int) -> Any:
    """Return mpi4py's MPI, which starts only after it is known to fit the mpiexec.

    Raises:
        ConfigError: if mpi4py is missing, or its MPI is not the one of Open MPI's mpiexec.
    """
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            f"This process is one of {size} that mpiexec started, but mpi4py, which joins them, "
            'is not installed. Install it with pip install "meshard[mpi]", or start the program '
            "without mpiexec."
        ) from error
    library = MPI.Get_library_version()
    started = os.environ.get("OMPI_VERSION", "")
    # Another MPI ends the process when it starts, without saying what to do.
    if started and not library.startswith("Open MPI") and "pmix" not in library.lower():
        raise ConfigError(
            f"The mpiexec of Open MPI {started} has started this process, but mpi4py is linked to "
            f"{' '.join(library.split()[:3])}: they are different MPI libraries. Use the mpiexec "
            "that is installed beside mpi4py (`meshard run` finds it)."
        )
    return MPI


def end_job() -> None:
    """End all processes of the job, which would wait for this one; do nothing without a job."""
    world = known_world()
    if world is not None and world.process_count > 1:
        from mpi4py import MPI

        from meshard.mpi.ending import say_failed

        say_failed(world.process_index)
        _abort(MPI)


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Any = None,
    *,
    initialization_timeout: float = 300.0,
    secret: str | None = None,
    **more: Any,
) -> None:
    """Join the processes of the job.

    Processes that mpiexec or ``meshard run`` has started are joined by the first use of meshard
    anyway, and this only checks that the arguments fit. Others meet at an address, without MPI:
    each calls this before anything else.

    Args:
        coordinator_address: host and port at which process 0 listens while they meet, such as
            ``"localhost:1234"``.
        num_processes: how many processes there are.
        process_id: the number of this process, from 0.
        local_device_ids: accepted as in JAX; ``MESHARD_NUM_DEVICES`` says how many there are.
        initialization_timeout: seconds in which all must have come to the address.
        secret: what only the processes of this job know, of at least 16 characters;
            it is not sent. By default ``MESHARD_SECRET`` in the environment, else the file
            ``~/.config/meshard/secret`` (mode 0600). Without any of them, only processes of one
            user on one host can meet, at an address such as ``localhost``.
        more: further arguments of JAX's function, which are ignored.

    Raises:
        ConfigError: if the arguments do not match the job, if some are missing, if the processes do
            not all come in time or do not know the same secret, if one is needed, or if this
            process has used meshard before.

    >>> import meshard
    >>> meshard.distributed.initialize()
    >>> meshard.process_count()  # in a program that was started alone
    1
    """
    patience = number_of(initialization_timeout, "distributed.initialize", "initialization_timeout")
    if secret is not None:
        text_of(secret, "distributed.initialize", "secret", ConfigError)
    alone = job_size() is None and known_world() is None and JOIN.value is None
    if coordinator_address is not None and alone:
        _meet(coordinator_address, num_processes, process_id, float(patience), secret)
    world = current()
    for name, given, found in (
        ("num_processes", num_processes, world.process_count),
        ("process_id", process_id, world.process_index),
    ):
        told: object = given
        if told is not None and not (isinstance(told, int) and told == found):
            raise ConfigError(
                f"distributed.initialize: {name}={shown(told)}, but it is {found}. Processes are "
                "started by mpiexec, as in `meshard run -n 4 script.py`; or give each of them "
                "coordinator_address, num_processes and process_id, before anything else."
            )


def _meet(
    address: object, count: object, index: object, patience: float, secret: str | None
) -> None:
    """Meet the others at an address."""
    from meshard.mpi.outside.coordinator import Coordinator

    what = "distributed.initialize"
    where = text_of(address, what, "coordinator_address", ConfigError)
    for name, given in (("num_processes", count), ("process_id", index)):
        if given is None:
            raise ConfigError(
                f"{what}: coordinator_address={where!r} is given, but {name} is not. Give all "
                "three, or start the processes with `meshard run`, and give none."
            )
    processes = integer_of(count, what, "num_processes", least=1, error=ConfigError)
    number = integer_of(index, what, "process_id", least=0, error=ConfigError)
    if number >= processes:
        raise ConfigError(
            f"{what}: process_id={number}, but there are {processes} processes; their numbers are "
            f"0 to {processes - 1}."
        )
    if processes == 1:
        return
    coordinator = Coordinator(where, processes, number, patience, secret)
    try:
        join(number, processes, coordinator.gather, coordinator.key)
    finally:
        coordinator.close()


def is_initialized() -> bool:
    """Return whether this process has joined others, or is known to be the only one.

    >>> import meshard
    >>> count = meshard.device_count()  # any use joins the processes
    >>> meshard.distributed.is_initialized()
    True
    """
    return known_world() is not None


def shutdown() -> None:
    """Wait until all processes have called this; MPI itself ends with the process.

    >>> import meshard
    >>> meshard.distributed.shutdown()  # in a program that runs alone, nothing to wait for
    """
    world = known_world()
    if isinstance(world, RuntimeWorld) and world.process_count > 1:
        everybody = world.processes
        meet(world, everybody, "`shutdown`")
        world.transport.barrier(everybody)


_claim()
install_world_factory(_made, lambda: job_size() or 1)
