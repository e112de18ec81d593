"""The settings of this floor: default dtypes, and how processes work together."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import final

from meshard.settings import Setting, one_of, switch

_JOB = re.compile(r"[A-Za-z0-9._-]{1,100}")


@final
@dataclass(frozen=True, slots=True)
class Table:
    """The sizes in bytes that decide how blocks are moved; the same in all processes of a job.

    Attributes:
        packed: boxes smaller than this that go to the same peer are packed into one message.
        slab: the most bytes of one message; larger boxes are cut.
        window: the most bytes in flight between two processes in each direction.
        typed: a strided box whose runs have at least this many bytes is sent as an MPI datatype;
            one with shorter runs is packed.
        pushed: boxes of at least this size are written into the memory of a neighbour on the host.
        replicas: replicas of at least this size share one memory on a host.
        memory: whether the processes of a host reach each other through memory at all.
    """

    packed: int = 1 << 16
    slab: int = 1 << 22
    window: int = 1 << 24
    typed: int = 1 << 6
    pushed: int = 1 << 16
    replicas: int = 1 << 18
    memory: bool = True


def _seconds(given: object) -> float:
    number = float(given) if isinstance(given, (str, int, float)) else math.nan
    if not 0 < number < math.inf or isinstance(given, bool):
        raise ValueError
    return number


def _host(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError
    return given


def _folder(given: object) -> str:
    if not isinstance(given, str) or not given.startswith("/"):
        raise ValueError
    return given


def _table(given: object) -> Table:
    if not isinstance(given, str):
        raise ValueError
    text = given.strip()
    try:
        sizes = json.loads(text if text.startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"table must be a JSON object or a file that holds one; {text!r} is neither: {error}."
        ) from error
    usual: dict[str, object] = {f.name: f.default for f in fields(Table)}
    if not isinstance(sizes, dict) or not sizes.keys() <= usual.keys():
        wrong = sizes if not isinstance(sizes, dict) else sorted(sizes.keys() - usual.keys())
        raise ValueError(f"table must be a JSON object with the names {list(usual)}, not {wrong}.")
    for name, size in sizes.items():
        switch = isinstance(usual[name], bool)
        if isinstance(size, bool) if switch else type(size) is int and size >= 1:
            continue
        law = "true or false" if switch else "a positive integer, a number of bytes"
        raise ValueError(f"{name} in table must be {law}, not {json.dumps(size)}.")
    return Table(**sizes)


DEFAULT_FLOAT: Setting[str] = Setting("default_float", "float64", *one_of("float32", "float64"))
"""The dtype of floats that nothing else decides."""

ON_GATHER: Setting[str] = Setting("on_gather", "allow", *one_of("allow", "warn", "error"))
"""What happens where an array that is spread over several blocks is put together on the host."""

WRITEABLE: Setting[bool] = Setting("writeable", False, *switch())
"""Whether arrays may be written into, outside of every ``with`` statement."""

CHECK: Setting[str] = Setting("check", "hash", *one_of("off", "hash", "full"))
"""How the operations of processes are compared."""

TIMEOUT: Setting[float] = Setting(
    "timeout", 300.0, "a positive, finite number of seconds", _seconds, at_start=True
)
"""How many seconds a process waits for another."""

STOPPED: Setting[str] = Setting("stopped", "wait", *one_of("wait", "fail"), at_start=True)
"""What to do if a process of this host is stopped (SIGSTOP, Ctrl-Z): ``"wait"`` until it
continues or the timeout has passed, or ``"fail"`` at once."""

HOST: Setting[str | None] = Setting("host", None, "a name", _host, at_start=True)
"""This host's name, by which one host can play several; None for its own."""


def _spares(given: object) -> int:
    number = int(given) if isinstance(given, (str, int)) and not isinstance(given, bool) else -1
    if number < 0:
        raise ValueError
    return number


SPARES: Setting[int] = Setting(
    "spares", 0, "a number of processes, not negative", _spares, at_start=True
)
"""How many of the processes of a job wait to join the others, the last ones; that of process 0
applies."""

TABLE: Setting[Table] = Setting(
    "table", Table(), "a JSON object of sizes, or a file that holds one", _table, at_start=True
)
"""The sizes that decide how bytes go between processes; those of process 0 apply."""


def job_of(given: object) -> str:
    """Return the name of a job.

    Raises:
        ValueError: if it is not one.
    """
    if not isinstance(given, str) or not _JOB.fullmatch(given):
        raise ValueError
    return given


JOB_LAW = "a name of at most 100 letters, digits and ._-"
JOB: Setting[str | None] = Setting("job", None, JOB_LAW, job_of, at_start=True)
"""The name under which other processes may join this job while it runs; None if none may. That of
process 0 applies."""

JOIN: Setting[str | None] = Setting("join", None, JOB_LAW, job_of, at_start=True)
"""The name of the running job that this process is to join; None for none."""

RENDEZVOUS: Setting[str | None] = Setting(
    "rendezvous", None, "the absolute path of a folder", _folder, at_start=True
)
"""The folder in which jobs find each other; None for one of this user on this machine."""
