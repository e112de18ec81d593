"""Loading: every tree comes back bit for bit, whatever the layouts and numbers of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard import checkpoint
from meshard.errors import (
    ArgumentError,
    CheckpointError,
    IndivisibleError,
    KeyMapError,
    MissingFileError,
    ShardingError,
    TreeError,
)
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices
from meshard.weights.checkpoint import job
from meshard.weights.native import manifest
from meshard.weights.transfer import reading
from tests.checkpoints import DEVICES, folders, run, watched, watched_transport
from tests.lays import Lay, calm, fetched, lays, numbered, same, shapes
from tests.worlds import mesh, put

DTYPES = [
    *("f8", "f4", "f2", "i8", "i4", "u2", "u1", "bool", "c8", "c16"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
]
PROCESSES = st.sampled_from(list(DEVICES))
Leaf = tuple[np.ndarray, Lay, Lay]
KeyMap = checkpoint.KeyMap


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    """Draw a value, the layout in which it is saved, and the one in which it is wanted."""
    shape = draw(shapes(most=7))
    value = numbered(shape, draw(st.sampled_from(DTYPES)))
    return value, draw(lays(shape)), draw(lays(shape))


TREES = st.lists(leaves(), min_size=1, max_size=4)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folders() as path:
        yield path


def wanted(trees: list[Leaf]) -> dict[str, Any]:
    return {f"w.{k}": lay.sharding(v.shape) for k, (v, _, lay) in enumerate(trees)}


def save(path: Path, trees: list[Leaf], **kwargs: Any) -> None:
    tree = {f"w.{k}": lay.put(v) for k, (v, lay, _) in enumerate(trees)}
    checkpoint.save(path, tree, **kwargs)


def small(stack: ExitStack) -> None:
    """Make all sizes small, at which a load or save goes another way."""
    pieces = partial(manifest.Manifest, piece_bytes=24)
    stack.enter_context(mock.patch.object(reading, "_RUN", 1))
    stack.enter_context(mock.patch.object(manifest, "_SHARED", 17))
    stack.enter_context(mock.patch.object(job, "Manifest", pieces))


@settings(calm, max_examples=60)
@given(TREES, PROCESSES, PROCESSES, st.booleans(), st.sampled_from([None, 64, 1000]))
def test_a_tree_comes_back_in_any_layout_bit_for_bit(
    trees: list[Leaf], savers: int, loaders: int, sizes: bool, most: int | None
) -> None:
    def load() -> None:
        asked = wanted(trees)
        me = meshard.process_index()
        with watched_transport(seen):
            plan = checkpoint.plan_load(path, asked, max_bytes=most)
            assert not seen.sent[me]
            found = checkpoint.load(path, asked, max_bytes=most)
            assert seen.objects[me] == 0
            read.append((me, seen.read[me], seen.sent[me]))
            again = dict(checkpoint.load_iter(path, asked, max_bytes=most))
        assert found.keys() == again.keys() == asked.keys()
        for value, (name, sharding) in zip([v for v, *_ in trees], asked.items(), strict=True):
            x = found[name]
            if sharding is not None:
                assert x.committed
                assert x.sharding == meshard.device_put(value, sharding).sharding
            assert again[name].sharding == x.sharding
            same(fetched(x), value)
            same(fetched(again[name]), value)
        plans.append(plan)

    with folders() as path, watched() as seen, ExitStack() as stack:
        if sizes:
            small(stack)
        plans: list[checkpoint.LoadPlan] = []
        read: list[tuple[int, int, int]] = []
        run(savers, lambda: save(path, trees, max_bytes=most))
        run(loaders, load)
        assert len({p.digest for p in plans}) == 1
        assert [n for _, n, _ in sorted(read)] == list(plans[0].reading.bytes_read)
        assert plans[0].bytes_read == sum(v.nbytes for v, *_ in trees)
        assert sum(seen.read.values()) == 2 * plans[0].bytes_read
        assert sum(n for *_, n in read) == plans[0].bytes_moved
        assert plans[0].bytes_moved >= plans[0].lower_bound_bytes


@settings(calm, max_examples=25)
@given(TREES, PROCESSES, st.sampled_from(["f4", ml_dtypes.bfloat16, "f8", "i2", "i8"]))
def test_a_cast_is_the_one_of_numpy(trees: list[Leaf], loaders: int, dtype: Any) -> None:
    to = np.dtype(dtype)

    def cast(value: np.ndarray) -> np.ndarray:
        kinds = [("f", np.floating), ("i", np.integer)]
        name = value.dtype.name
        kind = next((k for k, of in kinds if np.issubdtype(value.dtype, of)), None)
        if kind is None and value.dtype not in ("bool", "c8", "c16"):
            kind = "i" if "int" in name else "f"
        return value.astype(to) if kind == ("i" if to.kind == "i" else "f") else value

    def body() -> None:
        asked = wanted(trees)
        found = checkpoint.load(path, asked, dtype=dtype)
        for (value, *_), x in zip(trees, found.values(), strict=True):
            same(fetched(x), cast(value))
        kept = checkpoint.load(path / "cast", asked)
        for a, b in zip(kept.values(), found.values(), strict=True):
            same(fetched(a), fetched(b))

    with folders() as path:
        run(2, lambda: save(path, trees))
        run(loaders, lambda: save(path / "cast", trees, dtype=dtype))
        run(loaders, body)


A = np.arange(48.0).reshape(8, 6)


def saved(folder: Path) -> dict[str, Any]:
    tree = {"a": {"w": put(A, "i"), "b": put(A[0], "j")}, "c": [put(A + 1), 3]}
    checkpoint.save(folder / "a", tree)
    return tree


def specs(tree: Any) -> list[Any]:
    return [str(x.sharding.spec) for x in meshard.tree.leaves(tree) if hasattr(x, "sharding")]


@pytest.mark.parametrize("processes", [1, 2])
def test_shardings_are_a_prefix_a_function_or_those_of_like(processes: int, folder: Path) -> None:
    def body() -> None:
        tree = saved(folder)
        path = folder / "a"
        rows, whole_ = NamedSharding(mesh(), P("j")), NamedSharding(mesh(), P())
        assert specs(checkpoint.load(path, rows)) == ["P('j',)"] * 3
        assert specs(checkpoint.load(path, {"a": rows, "c": whole_})) == ["P('j',)"] * 2 + ["P()"]
        assert specs(checkpoint.load(path, {"a": {"w": whole_, "b": rows}, "c": whole_})) == [
            "P('j',)",
            "P()",
            "P()",
        ]
        with mesh():
            assert specs(checkpoint.load(path, P("j"))) == ["P('j',)"] * 3

        def by_name(name: str, struct: meshard.ShapeDtypeStruct) -> Any:
            asked[name] = struct.shape, str(struct.dtype), struct.sharding
            return rows if name == "a.w" else whole_

        asked: dict[str, Any] = {}
        assert specs(checkpoint.load(path, by_name)) == ["P()", "P('j',)", "P()"]
        assert asked == {
            "a.w": ((8, 6), "float64", None),
            "a.b": ((6,), "float64", None),
            "c.0": ((8, 6), "float64", None),
        }
        assert specs(checkpoint.load(path, like=tree)) == specs(tree)
        part = {"a": {"w": meshard.ShapeDtypeStruct((8, 6), np.float64, sharding=rows)}}
        found = checkpoint.load(path, like=part)
        assert specs(found) == ["P('j',)"]
        same(fetched(found["a"]["w"]), A)
        assert specs(checkpoint.load(path, whole_, like=part)) == ["P()"]
        assert checkpoint.load(path, like={"c": [part["a"]["w"], 0]})["c"][1] == 3
        assert checkpoint.load(path, like={}) == {}
        everywhere = 1 if meshard.process_count() == 1 else 8
        assert checkpoint.load(path)["a"]["w"].sharding.num_devices == everywhere
        assert checkpoint.load(path, lambda name, struct: None)["c"][1] == 3

    run(processes, body)


def test_tensors_are_read_only_if_like_has_them(folder: Path) -> None:
    def body() -> None:
        saved(folder)
        with watched() as seen:
            checkpoint.load(folder / "a", like={"a": {"b": meshard.ShapeDtypeStruct((6,), "f8")}})
        assert sum(seen.read.values()) == 48

    run(1, body)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_map_is_applied_before_the_cut(processes: int, folder: Path) -> None:
    q, k, v = (np.arange(48.0).reshape(8, 6) + 100 * n for n in range(3))
    qkv = np.concatenate([part for r in range(2) for part in (
        q[4 * r : 4 * r + 4], k[4 * r : 4 * r + 4], v[4 * r : 4 * r + 4])])  # fmt: skip
    fuse = KeyMap().fuse(["q", "k", "v"], "qkv", ranks=2)

    def body() -> None:
        tree = {"q": put(q, "i"), "k": put(k, None, "j"), "v": put(v)}
        for name, kwargs in (("plain", {}), ("mapped", {"map": fuse})):
            checkpoint.save(folder / name, tree, **kwargs)
        for uneven in ("ceil", ((0, 1, 2, 19, 24), None)):
            rows = NamedSharding(mesh(), P("i"), uneven=uneven)
            first = checkpoint.load(folder / "plain", rows, map=fuse)
            second = checkpoint.load(folder / "mapped", {"qkv": rows})
            third = meshard.reshard(tree, rows, map=fuse)
            for found in (first, second, third):
                assert list(found) == ["qkv"]
                assert found["qkv"].sharding == rows
                same(fetched(found["qkv"]), qkv)
            back = checkpoint.load(folder / "mapped", columns, map=fuse.inverse(tree))
            for name, value in zip("qkv", (q, k, v), strict=True):
                same(fetched(back[name]), value)

    def columns(name: str, struct: Any) -> Any:
        return NamedSharding(mesh(), P(None, "j"))

    run(processes, body)


def test_a_plan_for_devices_that_do_not_exist(folder: Path) -> None:
    checkpoint.save(folder, {"w": np.zeros((1 << 10, 1 << 8), "f4")})
    devices = Mesh(np.asarray(virtual_devices(64, 4)), "x")
    plan = checkpoint.plan_load(folder, NamedSharding(devices, P()))
    assert plan.bytes_read == 1 << 20
    assert plan.reading.processes == 16
    assert plan.bytes_moved == plan.lower_bound_bytes == 15 << 20
    assert plan.largest_reader_bytes == 1 << 16
    text = str(plan).splitlines()
    assert text[0].endswith("(meshard) by 16 processes")
    assert text[2:5] == [
        "read     1.0 MiB       each stored byte once",
        "largest  65,536 bytes  by one process at most, 1.00 x the mean",
        "moved    15.0 MiB      between processes, 1.00 x the least possible",
    ]


def test_the_newest_step_or_the_one_asked_for(folder: Path) -> None:
    for step in (1, 2):
        checkpoint.save(folder, {"w": A + step}, step=step)
    same(fetched(checkpoint.load(folder)["w"]), A + 2)
    same(fetched(checkpoint.load(folder, step=1)["w"]), A + 1)
    same(fetched(checkpoint.load(folder / "step-00000001")["w"]), A + 1)
    assert checkpoint.plan_load(folder, step=1).path.endswith("step-00000001")
    assert [x.shape for _, x in checkpoint.load_iter(folder, step=1)] == [(8, 6)]
    assert checkpoint.metadata(folder, step=1).tensors["w"].shape == (8, 6)


def test_load_iter_lets_go_of_what_it_has_yielded(folder: Path) -> None:
    def body() -> None:
        checkpoint.save(folder, {f"w{k}": np.full(1000, k) for k in range(20)})
        counts = []
        for name, x in checkpoint.load_iter(folder, max_bytes=17_000):
            assert (np.asarray(x) == int(name[1:])).all()
            counts.append(len(meshard.live_arrays()))
        assert len(counts) == 20
        assert max(counts) <= 3

    run(1, body)


struct = meshard.ShapeDtypeStruct
MESH = meshard.Mesh([meshard.Device(0)], ("x",))
REFUSALS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("shape", {"like": {"a": {"w": struct((8, 7), "f8")}}}, CheckpointError,
     r"'a.w' has shape \(8, 6\) in .*/a, but like= expects \(8, 7\)"),
    ("dtype of like", {"like": {"a": {"w": struct((8, 6), "f4")}}}, CheckpointError,
     r"'a.w' has dtype float64 in .*/a, but like= expects float32. Pass dtype= to cast it"),
    ("missing", {"like": {"x": struct((8,), "f4"), "y": 3}}, CheckpointError,
     r"/a does not hold 'x', and 1 others, which like= asks for. It holds 3 arrays, such as 'a.b'"),
    ("value", {"like": {"a": {"w": 3}}}, CheckpointError, "is an array in .* expects the value 3"),
    ("array", {"like": {"c": [struct((8, 6), "f8"), A]}}, CheckpointError,
     "'c.1' is the value 3 in .*/a, but like= expects an array"),
    ("prefix", {"shardings": {"a": None}}, TreeError, "must be a prefix of the tree of values"),
    ("not a sharding", {"shardings": "i"}, ArgumentError, "tensor 'a.w': expected a Sharding"),
    ("a spec", {"shardings": P("i")}, ShardingError, "needs a mesh, and none is set"),
    ("a mesh", {"shardings": MESH}, ArgumentError, "'a.w': .* A mesh needs a spec as well"),
    ("function", {"shardings": lambda name, struct: 3}, ArgumentError, "'.*': expected a Sh"),
    ("step", {"step": 3}, MissingFileError, r"/a has no complete step 3; complete are \[\]"),
    ("bad step", {"step": "3"}, ArgumentError, "step must be a non-negative integer"),
    ("dtype", {"dtype": "x"}, TypeError, "dtype must be a dtype"),
    ("max_bytes", {"max_bytes": "1GB"}, ArgumentError, "max_bytes must be a positive number of by"),
    ("map", {"map": [1]}, ArgumentError, r"map must be a KeyMap, got \[1\]"),
    ("no match", {"map": KeyMap().rename("v", "u")}, KeyMapError, "'v' matches nothing"),
    ("rest", {"map": KeyMap().rename("a.w", "u")}, KeyMapError, "rest="),
]  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("kwargs", "error", "says"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
@pytest.mark.parametrize("name", ["load", "plan_load", "load_iter"])
def test_a_refusal_says_what_was_asked_and_found(
    kwargs: dict[str, Any],
    error: type[Exception],
    says: str,
    name: str,
    processes: int,
    folder: Path,
) -> None:
    function: Callable[..., Any] = getattr(checkpoint, name)

    def body() -> None:
        tree = saved(folder)
        with watched() as seen, pytest.raises(error, match=says):
            function(folder / "a", **kwargs)
        assert not seen.read
        for _ in range(8):
            tree = meshard.reshard(tree, NamedSharding(mesh(), P()))
        same(fetched(checkpoint.load(folder / "a")["a"]["w"]), A)

    run(processes, body)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_too_large_for_a_dtype_becomes_infinite(processes: int, folder: Path) -> None:
    value = np.array([1e300, -1e300, 2.0, np.nan] * 4)
    expected = np.array([np.inf, -np.inf, 2.0, np.nan] * 4, "f4")

    def body() -> None:
        x, columns = {"w": put(value, "i")}, NamedSharding(mesh(), P("j"))
        checkpoint.save(folder / "whole", x)
        checkpoint.save(folder / "cast", x, dtype="f4")
        checkpoint.convert(folder / "whole", folder / "converted", dtype="f4")
        keep = KeyMap().keep("w")
        for found in (
            checkpoint.load(folder / "whole", columns, dtype="f4"),
            checkpoint.load(folder / "cast"),
            checkpoint.load(folder / "converted"),
            meshard.reshard(x, columns, dtype="f4"),
            meshard.reshard(x, columns, dtype="f4", map=keep),
        ):
            same(fetched(found["w"]), expected)

    run(processes, body)


def test_what_cannot_be_cut_is_named(folder: Path) -> None:
    def body() -> None:
        checkpoint.save(folder, {"w": A, "five": np.arange(5)})
        rows = NamedSharding(mesh(), P("i"))
        with pytest.raises(IndivisibleError, match=r"tensor 'five': .*divisible by 4, but .* 5"):
            checkpoint.load(folder, rows)
        checkpoint.load(folder, NamedSharding(mesh(), P("i"), uneven="ceil"))

    run(1, body)


def test_what_is_not_there(folder: Path) -> None:
    (folder / "empty").mkdir()
    for path, says in [
        ("nothing", "nothing: it cannot be read: there is no such file"),
        ("empty", "empty: the folder is empty"),
    ]:
        for function in (checkpoint.load, checkpoint.metadata, checkpoint.plan_load):
            with pytest.raises(MissingFileError, match=says):
                function(folder / path)
    for function in (checkpoint.steps, checkpoint.latest, checkpoint.clean):
        with pytest.raises(MissingFileError, match=r"nothing (does not exist|is not a folder)"):
            function(folder / "nothing")
