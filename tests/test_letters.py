"""Letters between processes: what they carry, and what they refuse to be."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import random
import struct
import zlib
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import optree
import pytest

import meshard
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.checkpoint import KeyMap
from meshard.errors import AgreementError, ArgumentError, TransportError
from meshard.runtime.lines.letters import decode, encode, packed, unpacked
from meshard.runtime.processes.identity import Facts

LAYOUT = Layout((4, 6), ((0, 2, 4), (0, 6)), np.array([[[0, 1]], [[2, 3]]]))
FACTS = Facts(1, 2, 2, "host", ("host", 7, "8"), (("127.0.0.1", 9),), 0)
KEPT: list[Any] = [
    *(None, True, 0, -5, 1 << 62, -(1 << 63), 1 << 70, 1.5, float("inf"), 1j, "", "ä\udc80", b"\0"),
    (1, [2, {3: "x", (4,): None}], {5}, frozenset({6}), ()),
    (slice(1, None, 2), range(3)),
    *(np.dtype("bfloat16"), np.dtype(">i4"), np.dtype("M8[ns]"), np.float32(2), np.bool_(True)),
    *(ValueError, AgreementError, meshard.Device(3), Box((0,), (2,)), FACTS, LAYOUT),
    KeyMap().fuse([f"l.{{i}}.{w}" for w in "qkv"], "l.{i}.qkv", ranks=2).rename("m.{*}", "{*}"),
]


class Both(NamedTuple):
    one: Any
    two: Any


@meshard.tree.register_pytree_node_class
class Own:
    def __init__(self, child: Any) -> None:
        self.child = child

    def tree_flatten(self) -> tuple[tuple[Any], str]:
        return (self.child,), "kept"

    @classmethod
    def tree_unflatten(cls, kept: str, children: Any) -> Own:
        return cls(*children)


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_values_arrive_as_they_are(value: Any) -> None:
    for found in (decode(encode(value)), unpacked(packed(value))):
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize("dtype", ["f8", ">i2", "?", "c8", "U3", "S0", ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_arrive_as_they_are(dtype: Any, shape: tuple[int, ...]) -> None:
    value = np.ones(shape, dtype).T
    found = decode(encode([value, value]))
    for one in found:
        assert (one.dtype, one.shape, one.tobytes()) == (value.dtype, value.shape, value.tobytes())
    assert found[0].flags.writeable


def test_the_structures_of_trees_arrive_as_they_are() -> None:
    tree = {"b": [1, Both(2, None)], "a": (3, collections.OrderedDict(z=1, b=2), Own(4))}
    tree["c"] = collections.defaultdict(list, q=1), collections.deque([1], maxlen=3)
    structure = optree.tree_structure(tree)
    found = decode(encode(structure))
    assert found == structure
    assert list(found.unflatten(range(found.num_leaves))) == ["b", "a", "c"]


def test_what_comes_often_is_written_once() -> None:
    once, often = len(encode([LAYOUT])), len(encode([LAYOUT] * 1000))
    assert often < once + 8 * 1000
    found = decode(encode([LAYOUT] * 1000))
    assert all(one is found[0] for one in found)


def test_objects_are_not_sent() -> None:
    for value in (object(), print, Own(1), os, np.array([None]), [{"x": (open,)}]):
        with pytest.raises(ArgumentError, match="cannot be sent to another process"):
            encode(value)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="nested more than"):
        encode(deep)


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/meshard-was-run",)


def _count(n: int) -> bytes:
    return struct.pack("<I", n)


MALFORMED = {
    "pickle": pickle.dumps(Evil()),
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "too many": b"t" + _count((1 << 32) - 1),
    "a long text": b"s" + _count(1 << 31) + b"x",
    "half a number": b"i\0\0",
    "left over": b"NN",
    "deep": (b"t" + _count(1)) * 3000 + b"N",
    "a list as a key": b"d" + _count(1) + b"l" + _count(0) + b"N",
    "another class": b"m" + _count(15) + b"subprocess:Popen" + b"t" + _count(0),
    "a class that is not sent": b"m" + _count(21) + b"meshard.tree:register" + b"t" + _count(0),
    "not an error": b"x" + _count(10) + b"SystemExit",
    "a dtype of objects": b"y" + _count(2) + b"|O",
    "a large array": b"a" + _count(3) + b"<f8" + encode((1 << 40,)) + encode(b""),
    "an odd shape": b"a" + _count(3) + b"<f8" + encode((-1,)) + encode(b""),
    "again of nothing": b"r" + _count(0),
    "facts of less": encode(FACTS)[:30] + b"t" + _count(0),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_malformed_is_refused(data: bytes) -> None:
    for read, given in ((decode, data), (unpacked, data), (unpacked, zlib.compress(data))):
        with pytest.raises(TransportError, match=r"malformed|cut off"):
            read(given)
    assert not os.path.exists("/tmp/meshard-was-run")


def test_what_grows_without_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshard.runtime.lines.letters.MOST_LETTER", 1 << 16)
    with pytest.raises(TransportError, match="decompressed"):
        unpacked(zlib.compress(encode(bytes(1 << 20))))


def test_whatever_arrives_there_is_one_kind_of_error() -> None:
    rng = random.Random(0)
    good = [encode(value) for value in KEPT] + [encode(KEPT)]
    for _ in range(int(os.environ.get("LETTERS_FUZZ", "3000"))):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del data[at:]
                case 2:
                    data[at:at] = rng.randbytes(rng.randint(1, 9))
                case _:
                    data[at : at + 4] = _count(rng.choice([0, 1, 1 << 31, (1 << 32) - 1]))
        with contextlib.suppress(TransportError):
            decode(bytes(data))
