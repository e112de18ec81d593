"""`reshard` with casts and key maps: the bits of NumPy, and no byte more than has to cross."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard import checkpoint
from meshard.algebra.box import Box
from meshard.debug import ledger
from meshard.errors import (
    ArgumentError,
    DeletedArrayError,
    KeyMapError,
    ShardingError,
    TreeError,
)
from meshard.resharding import reshard_iter
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P, Sharding, SingleDeviceSharding
from tests.checkpoints import DEVICES, Seen, run, watched_transport
from tests.lays import Lay, calm, fetched, lays, numbered, same, shapes
from tests.test_weights_keymap import trial
from tests.worlds import mesh, put

KeyMap = checkpoint.KeyMap
MAPS = 300


def applied(seed: int) -> tuple[KeyMap, dict[str, np.ndarray], Any, dict[str, np.ndarray]]:
    """Return a random map that fits some values, those, what it makes, and that by NumPy."""
    while True:
        map_, values, expected = trial(seed)
        try:
            return map_, values, map_.apply(values), expected
        except KeyMapError:
            seed += 100_000


def lacked(
    values: Mapping[str, np.ndarray], mapped: Any, given: Any, wanted: Any
) -> tuple[int, int]:
    """Return the bytes that are lacked: for each block and region each element of a source once.

    The second number is more where a block begins or ends within what is repeated: the region is
    then in several parts, which have elements in common.
    """
    labels, at = {}, 0
    for name, x in values.items():
        labels[name] = np.arange(at, at + x.size).reshape(x.shape)
        at += x.size
    has: dict[int, set[int]] = {}
    for name, x in values.items():
        for device, box in given[name].devices_indices_map(x.shape).items():
            has.setdefault(device.process_index, set()).update(labels[name][box].flat)
    once = in_parts = 0
    for name, recipe in mapped.recipes.items():
        boxes = wanted[name].devices_indices_map(recipe.shape).items()
        needs = {(d.process_index, str(box)): (d.process_index, box) for d, box in boxes}
        for term, (process, box) in product(recipe.terms, needs.values()):
            parts = list(term.within_target(Box.from_index(box, recipe.shape)))
            source = labels[term.source]
            found = [set(p.source_view(source, (0,) * source.ndim).flat) for p in parts]
            there = has.get(process, set())
            size = min(values[term.source].dtype.itemsize, recipe.dtype.itemsize)
            once += len(set().union(*found) - there) * size
            in_parts += sum(len(f - there) for f in found) * size
    return once, in_parts


def shardings(drawn: Mapping[str, Lay], values: Mapping[str, Any]) -> dict[str, Any]:
    first = meshard.devices()[0]
    placed = {n: lay.sharding(values[n].shape) or first for n, lay in drawn.items()}
    return {n: s if isinstance(s, Sharding) else SingleDeviceSharding(s) for n, s in placed.items()}


@settings(calm, max_examples=60)
@given(st.data(), st.integers(0, MAPS), st.sampled_from([*DEVICES, 8]), st.booleans())
def test_a_mapped_move_is_numpys_and_crosses_once(
    data: st.DataObject, seed: int, processes: int, bounded: bool
) -> None:
    map_, values, mapped, expected = applied(seed)
    before = {n: data.draw(lays(x.shape)) for n, x in values.items()}
    after = {n: data.draw(lays(x.shape)) for n, x in expected.items()}
    most = 512 if bounded else None

    def body() -> tuple[int, int, tuple[int, int]]:
        seen = Seen()
        given, wanted = shardings(before, values), shardings(after, expected)
        tree = {n: meshard.device_put(x, given[n]) for n, x in values.items()}
        with watched_transport(seen), ledger() as log:
            found = meshard.reshard(tree, wanted, map=map_, max_bytes=most)
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            assert found[name].sharding == wanted[name]
            same(fetched(found[name]), x)
        for name, x in values.items():
            same(fetched(tree[name]), x)
        return sum(seen.sent.values()), log.total_bytes, lacked(values, mapped, given, wanted)

    told = run(processes, body)
    (noted,) = {noted for _, noted, _ in told}
    ((once, in_parts),) = {bounds for *_, bounds in told}
    sent = sum(sent for sent, *_ in told)
    assert once <= sent <= in_parts
    assert noted == sent if processes == 8 else noted >= sent


def cast(value: np.ndarray, dtype: Any) -> np.ndarray:
    return value.astype(dtype) if value.dtype.kind == "f" else value


@settings(calm, max_examples=30)
@given(st.data(), st.sampled_from([*DEVICES, 8]), st.sampled_from(["f4", "f8", "bfloat16"]))
def test_a_cast_on_the_way_is_numpys_and_crosses_in_the_smaller_dtype(
    data: st.DataObject, processes: int, dtype: str
) -> None:
    to = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    kinds = data.draw(st.lists(st.sampled_from(["f8", "f4", "f2", "i4"]), min_size=1, max_size=3))
    values = {f"w{k}": numbered(data.draw(shapes(most=6)), kind) for k, kind in enumerate(kinds)}
    before = {n: data.draw(lays(x.shape)) for n, x in values.items()}
    after = {n: data.draw(lays(x.shape)) for n, x in values.items()}

    def body() -> tuple[int, int]:
        given, wanted = shardings(before, values), shardings(after, values)
        tree = {n: meshard.device_put(x, given[n]) for n, x in values.items()}
        with ledger() as log:
            found = meshard.reshard(tree, wanted, dtype=to)
        less = {n: cast(x, to) if to.itemsize < x.itemsize else x for n, x in values.items()}
        small = {n: meshard.device_put(x, given[n]) for n, x in less.items()}
        with ledger() as smaller:
            meshard.reshard(small, wanted)
        assert [x.sharding for x in found.values()] == list(wanted.values())
        for (name, x), (streamed, y) in zip(
            found.items(), reshard_iter(tree, wanted, dtype=to, max_bytes=1000), strict=True
        ):
            assert (streamed, y.sharding) == (name, x.sharding)
            same(fetched(x), cast(values[name], to))
            same(fetched(y), cast(values[name], to))
        return log.total_bytes, smaller.total_bytes

    for noted, least_ in run(processes, body):
        assert noted == least_


A = np.arange(48.0).reshape(8, 6)


@pytest.mark.parametrize("processes", [1, 2])
def test_donated_sources_are_deleted_at_the_end_and_others_are_not(processes: int) -> None:
    def body() -> None:
        rows, columns = (NamedSharding(mesh(), P(*spec)) for spec in (("i",), (None, "j")))
        turn = KeyMap().transpose("a").keep("b")
        for donate in (False, True):
            tree = {"a": meshard.device_put(A, rows), "b": meshard.device_put(A, columns)}
            found = meshard.reshard(tree, columns, map=turn, donate=donate)
            same(fetched(found["a"]), A.T)
            assert [x.is_deleted() for x in tree.values()] == [donate, donate]
            tree = {"a": meshard.device_put(A, rows), "b": meshard.device_put(A, columns)}
            list(reshard_iter(tree, columns, donate=donate))
            assert tree["a"].is_deleted() == donate

    run(processes, body)


@pytest.mark.parametrize("processes", [1, 2])
def test_tied_results_are_one_array(processes: int) -> None:
    def body() -> None:
        x = put(A, "i")
        found = meshard.reshard({"a": x}, NamedSharding(mesh(), P("j")), map=KeyMap().tie("a", "b"))
        assert found["a"] is found["b"]
        found = meshard.reshard({"a": x, "b": x}, NamedSharding(mesh(), P("j")), dtype="f4")
        assert found["a"] is found["b"]
        assert found["a"].dtype == np.float32

    run(processes, body)


def test_no_more_than_max_bytes_is_on_its_way() -> None:
    value = np.arange(1 << 12, dtype="f8").reshape(64, 64)
    most = 4096

    def body() -> int:
        rows = NamedSharding(mesh(), P("i"))
        tree = {"a": meshard.device_put(value, rows)}
        largest = 0
        transport = here().transport
        exchange = transport.exchange

        def watching(sends: Any, receives: Any) -> None:
            nonlocal largest
            blocks = [b for _, some in [*sends, *receives] for b in some]
            largest = max(largest, sum(b.nbytes for b in blocks))
            exchange(sends, receives)

        transport.exchange = watching
        found = meshard.reshard(tree, rows, map=KeyMap().transpose("a"), max_bytes=most)
        del transport.exchange
        same(fetched(found["a"]), value.T)
        return largest

    assert 0 < max(run(4, body)) <= most


@pytest.mark.parametrize("most", [None, 4096, 256])
def test_what_is_repeated_crosses_once_however_little_may_be_on_its_way(most: int | None) -> None:
    def body() -> tuple[int, int, list[tuple[int, int]]]:
        seen, steps = Seen(), list[tuple[int, int]]()
        tree = {"a": put(A, "i")}
        wide = KeyMap().repeat("a", times=50, dim=0).pad("a", dim=1, size=10)
        with watched_transport(seen), ledger() as log:
            found = meshard.reshard(
                tree,
                NamedSharding(mesh(), P(None, "j")),
                map=wide,
                max_bytes=most,
                progress=lambda *step: steps.append(step),
            )
        same(fetched(found["a"]), np.pad(np.tile(A, (50, 1)), ((0, 0), (0, 4))))
        return sum(seen.sent.values()), log.total_bytes, steps

    told = run(8, body)
    # Each device lacks six of eight rows, of five columns or of one, whatever is repeated.
    assert sum(sent for sent, *_ in told) == told[0][1] == 4 * 6 * 6 * 8
    for *_, steps in told:
        assert steps[-1] == (400 * 5 * 8, 400 * 5 * 8)


def test_reshard_iter_lets_go_of_what_it_has_yielded() -> None:
    def body() -> None:
        tree = {f"w{k}": put(np.full(1000, float(k)), "i") for k in range(20)}
        stream = reshard_iter(tree, NamedSharding(mesh(), P("j")), donate=True, max_bytes=17_000)
        names = sorted(tree)
        tree.clear()
        for number, (name, _) in enumerate(stream):
            assert name == names[number]
            assert len(meshard.live_arrays()) <= 23 - number

    run(1, body)


def test_a_leaf_of_numpy_is_cast_too() -> None:
    def body() -> None:
        found = meshard.reshard({"a": np.array([1e300, 1.0])}, meshard.devices()[0], dtype="f4")
        same(fetched(found["a"]), np.array([np.inf, 1.0], "f4"))

    run(1, body)


REFUSALS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("map", {"map": 3}, ArgumentError, "reshard: map must be a KeyMap, got 3"),
    ("no match", {"map": KeyMap().rename("v", "u")}, KeyMapError, "'v' matches nothing"),
    ("two become one", {"map": KeyMap().rename("{x}", "z")}, KeyMapError, "z"),
    ("no sharding", {"map": KeyMap().keep("{x}"), "sharding": None}, ArgumentError,
     "with a map each array needs a sharding; 'a' has none"),
    ("prefix", {"map": KeyMap().keep("{x}"), "sharding": {"c": None}}, TreeError, "prefix"),
    ("size", {"map": KeyMap().keep("{x}"), "sharding": "five"}, ShardingError, "divisible by 4"),
    ("dtype", {"dtype": "x"}, TypeError, "reshard: dtype must be a dtype"),
    ("number", {"dtype": "f4", "tree": {"a": 3}}, ArgumentError, "dtype= casts arrays, but a leaf"),
    ("max_bytes", {"map": KeyMap().keep("{x}"), "max_bytes": 0}, ArgumentError, "max_bytes must"),
    ("deleted", {"map": KeyMap().keep("{x}"), "tree": "deleted"}, DeletedArrayError, "delete"),
]  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("kwargs", "error", "says"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_a_refusal_comes_before_anything_has_moved(
    kwargs: dict[str, Any], error: type[Exception], says: str, processes: int
) -> None:
    def body() -> None:
        given = dict(kwargs)
        tree: Any = given.pop("tree", {"a": put(A, "i"), "b": put(A[:5], None, "j")})
        sharding = given.pop("sharding", NamedSharding(mesh(), P()))
        if tree == "deleted":
            tree = {"a": put(A, "i")}
            tree["a"].delete()
        if sharding == "five":
            sharding = NamedSharding(mesh(), P("i"))
        with ledger() as log, pytest.raises(error, match=says):
            meshard.reshard(tree, sharding, **given)
        assert log.total_bytes == 0
        for _ in range(10):
            x = meshard.reshard(put(A, "i"), NamedSharding(mesh(), P("j")))
        same(fetched(x), A)

    run(processes, body)
