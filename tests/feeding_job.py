"""One side of a feed, as a program: `python -m tests.feeding_job publish|take FOLDER ...`.

A version's elements are all its number, so that half of one is seen. What happens is told on
standard output, a line at a time.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import meshard
from meshard import elastic
from meshard.checkpoint import KeyMap
from meshard.errors import TransportError
from meshard.sharding import Mesh, NamedSharding, P

QKV = KeyMap(rest="keep").fuse(["{n}.q", "{n}.k", "{n}.v"], "{n}.qkv")
SHAPE = (480, 96)
NAMES = [f"l.{n}" for n in "qkvo"]


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, (meshard.process_index(), *words))) + "\n")
    sys.stdout.flush()


def whole_mesh() -> Mesh:
    return Mesh(np.array(meshard.devices()), ("i",))


def tree(version: int, rows: int) -> dict[str, meshard.Array]:
    place = NamedSharding(whole_mesh(), P("i"), uneven="balanced")

    def value(index: tuple[slice, ...]) -> object:
        shape = [len(range(*s.indices(n))) for s, n in zip(index, (rows, SHAPE[1]), strict=True)]
        return np.full(shape, version % 250, np.float32)

    return {n: meshard.make_array_from_callback((rows, SHAPE[1]), place, value) for n in NAMES}


def publish(first: int, last: int, rows: int, *, wait: bool) -> None:
    """Publish versions; without waiting, for ever."""
    with elastic.publish("p", tree(first, rows), version=first, delta=False) as publisher:
        tell("version", first)
        if wait:
            publisher.wait(timeout=60)
        for version in range(first + 1, last + 1):
            publisher.publish(tree(version, rows))
            tell("version", version)
            if wait:
                publisher.wait(timeout=60)
            else:
                time.sleep(0.002)
        tell("given", publisher.bytes_given)


def seen(tree: object) -> set[float]:
    """The distinct elements of what this process has of a tree."""
    found: set[float] = set()
    for array in tree.values():  # type: ignore[attr-defined]
        for shard in array.addressable_shards:
            found |= set(np.unique(np.asarray(shard.data).astype(np.float32)).tolist())
    return found


def take(last: int, seconds: int = 60) -> None:
    """Take versions until one; say so if none comes for some seconds."""
    place = NamedSharding(whole_mesh(), P(None, "i"), uneven="balanced")
    with elastic.subscribe("p", place, map=QKV, dtype="bfloat16", timeout=60) as feed:
        while True:
            with feed.lease() as found:
                values = seen(found)
            assert len(values) == 1, values
            assert (feed.received.nbytes, feed.plan.nbytes) == (feed.plan.nbytes,) * 2
            tell("served", feed.version, feed.received.nbytes)
            if feed.version >= last:
                return
            try:
                feed.wait(timeout=seconds)
            except TransportError as error:
                tell("failed", error)


if __name__ == "__main__":
    role, *numbers = sys.argv[1:]
    given = list(map(int, numbers))
    if role == "take":
        take(*given)
    else:
        publish(*given, wait=role == "publish")
