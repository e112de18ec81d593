"""A job without MPI: processes that can gather what each says make a world together.

In: the number of a process, how many there are, a way to gather, and what only they know. Out: the
world of this process, which reaches the others by lines, and by memory where they share a host.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from meshard.errors import ConfigError
from meshard.mpi.neighbours import open_neighbours
from meshard.mpi.outside.channel import OpenChannel, Porter, builds
from meshard.mpi.transport import JobTransport
from meshard.runtime.lines.connecting import ANYWHERE, LOOPBACK, new_token, own_network
from meshard.runtime.memory.pages import Pages
from meshard.runtime.processes.identity import Facts, devices_of, job_name, united, whereabouts
from meshard.runtime.settings import HOST, JOB, SPARES, TABLE, TIMEOUT, Table
from meshard.runtime.world import RuntimeWorld

Gather = Callable[[Any], list[Any]]
"""What all processes say, in order; it is called by all of them together."""


def met(
    index: int, count: int, devices: int, gather: Gather, key: bytes | None
) -> tuple[RuntimeWorld, JobTransport]:
    """Return the world of a process that has met others.

    Args:
        index: its number.
        count: how many there are.
        devices: how many devices it has.
        gather: returns what each says; it takes what letters can hold.
        key: what only processes of the job know; None if those that gather are trusted.

    Raises:
        ConfigError: if the processes' versions or secrets differ, or too many are to wait as
            spares.
    """
    host = HOST.value or socket.gethostname()
    mine = {
        "devices": devices,
        "host": host,
        "place": whereabouts(),
        "builds": builds(),
        "table": asdict(TABLE.value),
        "spares": SPARES.value,
        "name": JOB.value,
        "nonce": new_token(),
        "keyed": key is not None,
        "network": own_network(),
    }
    told = gather(mine)
    first = told[0]
    _check(told)
    table, spares = Table(**first["table"]), first["spares"]
    # The token is not sent: each derives it.
    nonces = b"".join([each["nonce"] for each in told])
    token = hmac.digest(key or b"", b"token" + nonces, "sha256")
    _check_keys(gather(hmac.digest(key or b"", b"same" + nonces, "sha256")))
    near = first["name"] is None and all(t["network"] == first["network"] for t in told)
    porter = Porter(token, LOOPBACK if near else ANYWHERE)
    addresses = gather(porter.addresses)
    known = united(_facts(told, addresses))
    channel = OpenChannel(index, 0, None)
    transport = JobTransport(index, channel, TIMEOUT.value, table=table, members=range(count))
    names = list(dict.fromkeys(each["host"] for each in told))
    hosts = [names.index(each["host"]) for each in told]
    world = RuntimeWorld(index, count, devices_of(known), transport, hosts, spares)
    world.job, world.known = job_name(tuple(first["place"])), known
    channel.open(first["name"] or "", porter, transport.far, table, world.job)
    channel.admit(known.values())
    channel.learn(known, world.processes)
    if table.memory:
        assert isinstance(world.memory, Pages)  # which others can be let into
        everybody = range(count)
        transport.reach(
            *open_neighbours(
                world.memory,
                hosts,
                index,
                table,
                lambda value: transport.all_gather(value, everybody),
                transport.watchdog,
            )
        )
    return world, transport


def _facts(told: list[Any], addresses: list[Any]) -> list[Facts]:
    """Return what each process has said of itself."""
    found: list[Facts] = []
    for index, (each, own) in enumerate(zip(told, addresses, strict=True)):
        before = sum(t["devices"] for t in told[:index])
        seat = sum(t["host"] == each["host"] for t in told[:index])
        place, ways = tuple(each["place"]), tuple([(str(h), int(p)) for h, p in own])
        found.append(Facts(index, before, each["devices"], each["host"], place, ways, seat))
    return found


def _check(told: list[Any]) -> None:
    """Refuse processes that cannot work together.

    Raises:
        ConfigError: on all of them alike.
    """
    for index, each in enumerate(told):
        for what, version in told[0]["builds"].items():
            if each["builds"][what] != version:
                raise ConfigError(
                    f"distributed.initialize: process 0 has {what} {version}, but process {index} "
                    f"has {what} {each['builds'][what]}. Processes of one job need the same."
                )
    for index, each in enumerate(told):
        if each["keyed"] != told[0]["keyed"]:
            lacking = index if told[0]["keyed"] else 0
            raise ConfigError(
                f"distributed.initialize: process {lacking} has no secret, but process "
                f"{index - lacking} has one (MESHARD_SECRET, or a file). Give all the same."
            )
    spares = told[0]["spares"]
    if spares >= len(told):
        raise ConfigError(
            f"spares (MESHARD_SPARES) is {spares}, but there are {len(told)} processes: at least "
            "one does not wait."
        )


def _check_keys(proofs: list[bytes]) -> None:
    """Refuse processes that know different secrets, which could not reach each other later.

    Raises:
        ConfigError: on all of them alike, naming one.
    """
    for index, proof in enumerate(proofs):
        if not hmac.compare_digest(proof, proofs[0]):
            raise ConfigError(
                f"distributed.initialize: process 0 and process {index} have different secrets "
                "(MESHARD_SECRET, or a file). Give all the same."
            )
