"""Saving: what comes back of every kind of tree, saves behind the program, steps, and refusals."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import checkpoint
from meshard.errors import (
    ArgumentError,
    CheckpointError,
    ConcretizationError,
    DeletedArrayError,
    FileInUseError,
    MissingFileError,
    StorageError,
    TreeError,
    UnequalError,
)
from meshard.runtime.world import here
from meshard.sharding import BoxSharding, NamedSharding, P, Sharding
from meshard.testing import die
from meshard.weights.checkpoint import job
from meshard.weights.native import files
from tests.checkpoints import folders, run
from tests.lays import fetched
from tests.worlds import alone, mesh, put

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class State:
    w: Any
    step: int


meshard.tree.register_dataclass(State, ["w", "step"], [])


@pytest.fixture
def folder() -> Iterator[Path]:
    with folders() as path:
        yield path


def back(folder: Path, tree: Any, **kwargs: Any) -> Any:
    checkpoint.save(folder / "a", tree, overwrite=True)
    return checkpoint.load(folder / "a", **kwargs)


def equal(found: Any, expected: Any) -> None:
    """Check that trees have the same containers, keys, values and bits."""
    if isinstance(expected, (meshard.Array, np.ndarray, np.generic)):
        assert isinstance(found, meshard.Array)
        a, b = fetched(found), fetched(expected)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        return
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        if isinstance(expected, collections.OrderedDict):
            assert list(found) == list(expected)
        for key in expected:
            equal(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            equal(a, b)
    elif isinstance(expected, State):
        equal([found.w, found.step], [expected.w, expected.step])
    else:
        assert found == expected or (math.isnan(found) and math.isnan(expected))


A = np.arange(6.0).reshape(2, 3)
TREES: dict[str, Callable[[], Any]] = {
    "nested": lambda: {"a": [A, (A + 1, None)], "e": {}, "l": [], "t": ()},
    "values": lambda: {"n": 3, "s": "hi", "b": True, "f": 2.5, "inf": math.inf, "nan": math.nan},
    "large integer": lambda: {"n": 10**30},
    "integer keys": lambda: {1: A, 2: {30: A + 1}},
    "keys of all kinds": lambda: {None: A, True: A + 1, 2.5: A + 2, "x": A + 3},
    "ordered": lambda: collections.OrderedDict(b=A, a={"x": A + 1}),
    "one array": lambda: A,
    "one number": lambda: 3,
    "None": lambda: None,
    "nothing": dict,
    "no name": lambda: {"": A, "x": A + 1},
    "scalars of NumPy": lambda: {"a": np.float32(3), "b": np.float64(4), "c": np.int8(-5)},
    "typed keys": lambda: {"k": meshard.random.key(3), "s": meshard.random.split(
        meshard.random.key(4), 3)},
    "sizes of 0 and 1": lambda: {"a": np.zeros((0, 3)), "b": np.array(7), "c": np.ones((1, 1))},
    "laid out": lambda: {"a": put(A[:, :2].repeat(4, 0), "i", "j"), "b": put(A, uneven="ceil")},
}  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_comes_back_with_its_containers_keys_and_values(
    tree: str, processes: int, folder: Path
) -> None:
    run(processes, lambda: equal(back(folder, TREES[tree]()), TREES[tree]()))


@pytest.mark.parametrize("name", [
    *("a.b", "a/b", "ü—λ", "a\nb", 'q"q', "__metadata__", "", "..", "{}", "a{}1", "01", "x" * 300),
    *("a[0:1]", "\x00", "w[0:2]", "layers.1.2.3", "~", "con", " "),
])  # fmt: skip
def test_any_name_is_kept(name: str, folder: Path) -> None:
    def body() -> None:
        tree = {name: put(np.arange(8.0), "i"), "w": put(np.ones((8, 2)), "j"), "other": A}
        equal(back(folder, tree), tree)
        assert checkpoint.verify(folder / "a") == []
        assert set(checkpoint.metadata(folder / "a").tensors) == {name, "w", "other"}

    run(2, body)


DTYPES = [
    *("f8", "f4", "f2", "i8", "u8", "i2", "bool", "c8", "c16", "longdouble", ">f4"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3),
    *(ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn),
    *(ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_kept(dtype: Any, folder: Path) -> None:
    value = (np.arange(24) % 3).astype(dtype).reshape(4, 6)

    def body() -> None:
        checkpoint.save(folder, {"w": put(value, "i", uneven="ceil")}, overwrite=True)
        native = value.astype(value.dtype.newbyteorder("="))
        for sharding in (None, NamedSharding(mesh(), P(None, "j"))):
            equal(checkpoint.load(folder, sharding)["w"], native)

    run(2, body)


def test_ten_thousand_leaves(folder: Path) -> None:
    tree = {f"layer.{k}": np.full(3, k) for k in range(10_000)}
    checkpoint.save(folder, tree)
    found = checkpoint.load(folder)
    assert len(found) == 10_000
    assert all((np.asarray(found[name]) == x).all() for name, x in list(tree.items())[::501])
    assert (folder / "manifest.json").stat().st_size < 3_000


def test_one_array_in_two_places_is_stored_once_and_comes_back_as_one(folder: Path) -> None:
    def body() -> None:
        w = put(np.arange(64.0).reshape(8, 8), "i", "j")
        tree = {"head": w, "inner": {"embedding": w}, "equal": w + 0}
        checkpoint.save(folder, tree, overwrite=True)
        found = checkpoint.load(folder, NamedSharding(mesh(), P("j")))
        assert found["head"] is found["inner"]["embedding"]
        assert found["head"] is not found["equal"]
        other = {"head": NamedSharding(mesh(), P("j")), "inner": None, "equal": None}
        found = checkpoint.load(folder, other)
        assert found["head"] is not found["inner"]["embedding"]
        equal(found, tree)
        assert checkpoint.metadata(folder).tied == {"inner.embedding": "head"}
        assert checkpoint.metadata(folder).nbytes == 2 * w.nbytes

    run(1, body)
    run(2, body)


@pytest.mark.parametrize("tree", [
    Pair(A, {"b": A + 1}), State(A, 3), collections.defaultdict(list, a=A), {(1, 2): A},
], ids=["namedtuple", "dataclass", "defaultdict", "tuple as key"])  # fmt: skip
def test_other_containers_need_like(tree: Any, folder: Path) -> None:
    checkpoint.save(folder, tree)
    reads = mock.patch(
        "meshard.weights.catalogue.stored.RawReader.read", side_effect=AssertionError
    )
    with reads, pytest.raises(TreeError, match="cannot make again"):
        checkpoint.load(folder)
    equal(checkpoint.load(folder, like=tree), tree)
    assert len(list(checkpoint.load_iter(folder))) == len(checkpoint.metadata(folder).tensors)


class Halves(Sharding):
    """A user's own sharding: the first device has the first half of the rows."""

    @property
    def device_set(self) -> set[Any]:
        return set(meshard.devices()[:2])

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[Any, tuple[slice, ...]]:
        first, second = meshard.devices()[:2]
        middle = global_shape[0] // 3
        rest = tuple(slice(0, n) for n in global_shape[1:])
        return {
            first: (slice(0, middle), *rest),
            second: (slice(middle, global_shape[0]), *rest),
        }


def test_shardings_without_a_mesh(folder: Path) -> None:
    value = np.arange(42.0).reshape(7, 6)

    def body() -> None:
        devices = meshard.devices()
        boxes = {devices[0]: (slice(0, 5), slice(0, 6)), devices[5]: (slice(3, 7), slice(0, 6))}
        shardings = [BoxSharding((7, 6), boxes), devices[3], Halves()]
        for saved in shardings:
            for wanted in shardings:
                checkpoint.save(folder, {"w": meshard.device_put(value, saved)}, overwrite=True)
                equal(checkpoint.load(folder, wanted)["w"], value)

    run(1, body)
    run(2, body)


# saves behind the program


@pytest.mark.parametrize("processes", [1, 2])
def test_a_save_behind_the_program_keeps_what_the_arrays_were(processes: int, folder: Path) -> None:
    def body() -> None:
        value = np.arange(64.0).reshape(8, 8)
        gone, moved = put(value, "i"), put(value + 1, "j")
        host = np.arange(4.0)
        tree = {"gone": gone, "moved": moved, "host": host}
        handle = checkpoint.save(folder / "a", tree, wait=False)
        gone.delete()
        meshard.reshard(moved, NamedSharding(mesh(), P(None, "i")), donate=True)
        host[:] = -1
        handle.wait()
        assert handle.done
        handle.wait()
        assert repr(handle) == f"SaveHandle({str(folder / 'a')!r}, done)"
        expected = {"gone": value, "moved": value + 1, "host": np.arange(4.0)}
        equal(checkpoint.load(folder / "a"), expected)
        assert checkpoint.verify(folder / "a") == []

    run(processes, body)


@pytest.mark.parametrize("processes", [1, 2])
def test_saves_of_one_run_are_completed_in_order(processes: int, folder: Path) -> None:
    def body() -> None:
        handles = [
            checkpoint.save(folder, {"w": put(np.full(8, k), "i")}, step=k, keep=2, wait=False)
            for k in (1, 2, 3, 4)
        ]
        for handle in handles:
            handle.wait()
        assert checkpoint.steps(folder) == [3, 4]
        for k in (3, 4):
            equal(checkpoint.load(folder, step=k)["w"], np.full(8, k))
        equal(checkpoint.load(folder)["w"], np.full(8, 4))
        same = [
            checkpoint.save(folder / "b", {"w": A + k}, overwrite=True, wait=False)
            for k in range(3)
        ]
        checkpoint.save(folder / "b", {"w": A + 3}, overwrite=True)
        assert all(h.done for h in same)
        equal(checkpoint.load(folder / "b")["w"], A + 3)

    run(processes, body)


def test_the_program_goes_on_while_the_disk_is_slow(folder: Path) -> None:
    goes_on, put_off = threading.Event(), files.NativeWriter.begin

    def slow(writer: files.NativeWriter) -> None:
        assert goes_on.wait(20)
        put_off(writer)

    with mock.patch.object(files.NativeWriter, "begin", slow):
        handle = checkpoint.save(folder, {"w": A}, wait=False)
        assert not handle.done
        assert "running" in repr(handle)
        with pytest.raises(TimeoutError, match=r"takes longer than 0.01 s"):
            handle.wait(timeout=0.01)
        assert float(mnp.sum(mnp.ones(10))) == 10
        goes_on.set()
        handle.wait()
    equal(checkpoint.load(folder)["w"], A)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_error_of_a_save_behind_the_program_is_told_once_by_its_handle(
    processes: int, folder: Path
) -> None:
    def body() -> None:
        full = StorageError("no space left")
        failing = mock.patch.object(files.RawWriter, "write", side_effect=full)
        if meshard.process_index() == meshard.process_count() - 1:
            with failing:
                handle = checkpoint.save(folder / "a", {"w": put(np.ones(8), "i")}, wait=False)
                with pytest.raises(CheckpointError, match="no space left"):
                    handle.wait()
        else:
            handle = checkpoint.save(folder / "a", {"w": put(np.ones(8), "i")}, wait=False)
            with pytest.raises(CheckpointError):
                handle.wait()
        assert "failed" in repr(handle)
        ten_more(folder)

    if processes == 1:
        run(1, body)
        assert not (folder / "a").exists()


@pytest.mark.parametrize("dead", [0, 1])
def test_a_save_behind_the_program_does_not_wait_for_the_dead(dead: int, folder: Path) -> None:
    # The deadline is 300 s, and a test that takes 120 s fails.
    def body() -> None:
        checkpoint.save(folder / "a", {"w": put(np.ones(8), "i")})
        later = {"w": put(np.zeros(8), "i")}
        later["w"].sum()
        if meshard.process_index() == dead:
            die()
        handle = checkpoint.save(folder / "a", later, overwrite=True, wait=False)
        with pytest.raises(CheckpointError, match=rf"process {dead} has died before its part"):
            handle.wait()

    run(2, body)
    assert np.array_equal(checkpoint.load(folder / "a")["w"], np.ones(8))


def test_what_nobody_asked_for_is_told_when_the_program_ends(tmp_path: Path) -> None:
    program = """
        import sys, meshard, numpy as np
        from pathlib import Path
        from meshard import checkpoint
        folder = Path(sys.argv[1])
        checkpoint.save(folder / "good", {"w": np.ones(3)}, wait=False)
        checkpoint.save("/proc/nowhere", {"w": np.ones(3)}, wait=False)
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", lines, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("meshard: the save to /proc/nowhere failed: ")
    equal(checkpoint.load(tmp_path / "good"), {"w": np.ones(3)})


# steps


def test_steps_come_from_the_disk(folder: Path) -> None:
    run_ = folder / "run"
    for step in (5, 10, 100_000_000, 20):
        checkpoint.save(run_, {"w": A + step, "step": step}, step=step)
    assert checkpoint.steps(run_) == [5, 10, 20, 100_000_000]
    assert checkpoint.latest(run_) == 100_000_000
    equal(checkpoint.load(run_), {"w": A + 100_000_000, "step": 100_000_000})
    (run_ / "step-100000000" / "manifest.json").unlink()
    (run_ / "step-00000030").mkdir()
    (run_ / "step-x").mkdir()
    assert checkpoint.latest(run_) == 20
    equal(checkpoint.load(run_), {"w": A + 20, "step": 20})
    equal(checkpoint.load(run_, step=5), {"w": A + 5, "step": 5})
    with pytest.raises(MissingFileError, match=r"no complete step 30; complete are \[5, 10, 20\]"):
        checkpoint.load(run_, step=30)
    checkpoint.save(run_, {"w": A}, step=40, keep=2)
    assert checkpoint.steps(run_) == [20, 40]
    assert (run_ / "latest").read_text() == "step-00000040\n"
    with pytest.raises(FileInUseError, match=r"step-00000040 holds a checkpoint. Give another"):
        checkpoint.save(run_, {"w": A}, step=40)
    checkpoint.save(run_, {"w": A + 1}, step=40, overwrite=True)
    equal(checkpoint.load(run_), {"w": A + 1})
    (folder / "empty").mkdir()
    assert checkpoint.steps(folder / "empty") == []
    assert checkpoint.latest(folder / "empty") is None


@pytest.mark.parametrize("members", ["fewer", "others", "attempt"])
def test_processes_that_were_given_up_replace_nothing(
    members: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the checkpoints of those who went on without them, nor a later step of theirs."""

    monkeypatch.setenv("MESHARD_LAUNCHER", "somewhere:1@2")
    monkeypatch.setenv("MESHARD_RESTART", "1")

    def body() -> None:
        world, tree = here(), {"w": put(np.arange(8.0), "i")}
        saves = [("one", {}), ("run", {"step": 20})]
        world.membership = 2
        for name, step in saves:
            checkpoint.save(folder / name, tree, **step)
        before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
        if members == "fewer":
            world.membership = 1
        mine = job._saver(world)
        if members == "others":
            mine = dataclasses.replace(mine, members="others")
        elif members == "attempt":
            mine = dataclasses.replace(mine, job="another", attempt=0)
        with mock.patch.object(job, "_saver", return_value=mine):
            for name, step in [*saves, ("run", {"step": 10}), ("run", {"step": 30})]:
                with pytest.raises(CheckpointError, match="takes part in its job no more"):
                    checkpoint.save(folder / name, tree, overwrite=True, **step)
        assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before
        world.membership = 3
        checkpoint.save(folder / "one", tree, overwrite=True)

    run(1, body)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("processes", [1, 2])
def test_the_step_just_saved_stays_whatever_steps_there_are(
    processes: int, wait: bool, folder: Path
) -> None:
    for step in (100, 200):
        checkpoint.save(folder, {"w": A}, step=step)

    def body() -> None:
        for step, keep in ((50, 2), (60, 1)):
            checkpoint.save(folder, {"w": A + step}, step=step, keep=keep, wait=wait).wait()
            assert step in checkpoint.steps(folder)
            assert (folder / (folder / "latest").read_text().strip() / "manifest.json").is_file()

    run(processes, body)
    assert checkpoint.steps(folder) == [60, 200]
    equal(checkpoint.load(folder, step=60), {"w": A + 60})


@pytest.mark.parametrize("name", ["w.h5", "w.hdf5", "w.pt", "W.PTH", "w.npz", "w.pkl"])
def test_names_of_files_that_are_not_written_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"meshard does not write\. It writes meshard, safete"):
        checkpoint.save(folder / name, {"w": A})
    assert not (folder / name).exists()
    checkpoint.save(folder / name, {"w": A}, format="meshard")
    equal(checkpoint.load(folder / name), {"w": A})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.no_job
@pytest.mark.filterwarnings("ignore:.*fork:")
def test_a_parent_and_its_child_save_under_names_of_their_own(folder: Path) -> None:
    def body() -> None:
        checkpoint.save(folder / "a", {"w": A})  # the world is there before the fork
        child = os.fork()
        if not child:
            status = 1
            try:
                checkpoint.save(folder / "b", {"w": A + 1})
                checkpoint.save(folder / "a", {"w": A + 1}, overwrite=True)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        names = [next((folder / x).glob("data-*")).name.split("-")[1] for x in ("a", "b")]
        assert names[0] == names[1] != here().job
        for step in range(2):  # over what the child has left
            checkpoint.save(folder / "b", {"w": A + 2 + step}, overwrite=True)
            equal(checkpoint.load(folder / "b"), {"w": A + 2 + step})

    alone(body)


@pytest.mark.parametrize(
    "module", ["meshard.weights.native.files", "meshard.weights.checkpoint.load"]
)
def test_a_load_takes_no_notice_of_a_save_that_replaces_the_checkpoint(
    module: str, folder: Path
) -> None:
    """Another job saves after the manifest was read, or after the files were opened."""
    name = "read_manifest" if module.endswith("files") else "run_load"
    real, left = getattr(importlib.import_module(module), name), [3]

    def replaced(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            checkpoint.save(folder / "a", {"w": A + left[0]}, overwrite=True)
        return real(*args)

    checkpoint.save(folder / "a", {"w": A + 9})
    with mock.patch(f"{module}.{name}", replaced):
        found = checkpoint.load(folder / "a")
    equal(found, {"w": A + (0 if name == "read_manifest" else 9)})


def test_a_folder_whose_first_save_was_killed_says_so(folder: Path) -> None:
    for place in (folder / "run" / "step-00000001", folder / "one"):
        (place / "data-host.1.1-0").mkdir(parents=True)
    for path in (folder / "run", folder / "one"):
        with pytest.raises(
            MissingFileError, match=r"no complete step: the save that made .* kille"
        ):
            checkpoint.load(path)


def test_an_overwritten_checkpoint_leaves_nothing(folder: Path) -> None:
    for k in range(3):
        checkpoint.save(folder / "a", {"w": A + k}, overwrite=True)
        assert len(list((folder / "a").iterdir())) == 2
    equal(checkpoint.load(folder / "a"), {"w": A + 2})


def test_clean_removes_what_no_checkpoint_needs(folder: Path) -> None:
    for step in (1, 2):
        checkpoint.save(folder, {"w": A}, step=step)
    left = [
        folder / "step-00000002" / "data-elsewhere.1.1-0",
        folder / "step-00000003" / "data-elsewhere.1.1-0",
    ]
    for path in left:
        path.mkdir(parents=True)
        (path / "00000.safetensors").write_bytes(b"half")
    partial = folder / ".latest.by-elsewhere.1.1.01234567.partial"
    partial.write_bytes(b"")
    (folder / "notes.txt").write_text("mine")
    assert checkpoint.clean(folder) == []  # of other hosts, which cannot be asked
    expected = [partial, left[0], left[1].parent]
    assert checkpoint.clean(folder, force=True, dry_run=True) == expected
    assert all(path.exists() for path in expected)
    assert checkpoint.clean(folder, force=True) == expected
    assert not any(path.exists() for path in expected)
    assert checkpoint.clean(folder, force=True) == []
    assert checkpoint.steps(folder) == [1, 2]
    assert checkpoint.verify(folder, step=2) == []
    assert (folder / "notes.txt").exists()


# refusals


def ten_more(folder: Path) -> None:
    """Run ten more operations; a save and a load are among them."""
    x = put(np.arange(16.0), "i")
    for _ in range(8):
        x = meshard.reshard(x + 1, NamedSharding(mesh(), P("j")))
    checkpoint.save(folder / "more", {"x": x}, overwrite=True)
    equal(checkpoint.load(folder / "more")["x"], np.arange(16.0) + 8)


def _deleted() -> Any:
    x = put(np.arange(8.0), "i")
    x.delete()
    return {"x": x}


def _endless() -> Any:
    tree: dict[str, Any] = {}
    tree["again"] = tree
    return tree


def _traced(folder: Path) -> None:
    meshard.jit(lambda x: checkpoint.save(folder / "a", {"x": x}) and x)(put(np.ones(8), "i"))


def _save(tree: Any, **kwargs: Any) -> Callable[[Path], Any]:
    def act(folder: Path) -> None:
        checkpoint.save(folder / "a", tree() if callable(tree) else tree, **kwargs)

    return act


def _beside(name: str, *, folder_: bool = False, **kwargs: Any) -> Callable[[Path], Any]:
    def act(folder: Path) -> None:
        if meshard.process_index() == 0:
            (folder / "b").mkdir(exist_ok=True)
            (folder / name).mkdir() if folder_ else (folder / name).touch()
        fetched(mnp.ones(1))
        checkpoint.save(folder / "b", {"w": A}, **kwargs)

    return act


REFUSALS: list[tuple[str, Callable[[Path], Any], type[Exception], str]] = [
    ("deleted", _save(_deleted), DeletedArrayError, "It was deleted by delete"),
    ("endless", _save(_endless), TreeError, "contains itself"),
    ("traced", _traced, ConcretizationError, r"^checkpoint.save needs the value of float64\[8\]"),
    ("object", _save({"a": [object()]}), CheckpointError, r"the leaf 'a.0' is a object; a chec"),
    ("complex", _save({"a": 1j}), CheckpointError, "the leaf 'a' is a complex"),
    ("two leaves", _save({"a.b": A, "a": {"b": A}}), CheckpointError, "two leaves .* name 'a.b'"),
    ("leaf and value", _save({"a.b": 3, "a": {"b": A}}), CheckpointError, "name 'a.b'"),
    ("surrogate", _save({"\ud800": A}), CheckpointError, "UTF-8"),
    ("strings", _save({"s": np.array(["x"])}), TypeError, "not a numeric dtype"),
    ("keep", _save({"w": A}, keep=2), ArgumentError, "keep=2 counts steps, but no step= is given"),
    ("keep 0", _save({"w": A}, step=1, keep=0), ArgumentError, "keep must be an integer of at le"),
    ("step", _save({"w": A}, step=-1), ArgumentError, "step must be a non-negative integer, got"),
    ("format", _save({"w": A}, format="pt"), ArgumentError, "format must be 'meshard', 'safe"),
    ("flag", _save({"w": A}, overwrite="y"), ArgumentError, "overwrite must be True or False"),
    ("max_bytes", _save({"w": A}, max_bytes=0), ArgumentError, "max_bytes must be a positive num"),
    ("shard_bytes", _save({"w": A}, shard_bytes=0), ArgumentError,
     "shard_bytes must be an integer of at least 1, got 0"),
    ("dtype", _save({"w": A}, dtype="x"), TypeError, "dtype must be a dtype, such as 'float32'"),
    ("map", _save({"w": A}, map={"w": "v"}), ArgumentError, "map must be a KeyMap"),
    ("no match", _save({"w": A}, map=checkpoint.KeyMap().rename("v", "u")),
     checkpoint.KeyMapError, "'v' matches nothing. There is 1 tensor, for instance 'w'"),
    ("values", _save({"w": A, "n": 3}, format="safetensors"), CheckpointError,
     "safetensors holds arrays only, but 'n' of the tree is 3"),
    ("c16", _save({"w": A + 0j}, format="safetensors"), CheckpointError, "complex128"),
    ("one", _save({"w": A, "v": A}, format="npy"), CheckpointError,
     "a .npy file holds one array, and the tree has 2"),
    ("file", _beside("b/x"), FileInUseError, "b holds 'x', which does not belong to a checkpoint"),
    ("permission", lambda _: checkpoint.save("/proc/no", {"w": A}), StorageError, "cannot be wri"),
]  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("act", "error", "says"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_a_refused_save_leaves_nothing_and_the_program_goes_on(
    act: Callable[[Path], Any], error: type[Exception], says: str, processes: int, folder: Path
) -> None:
    def body() -> None:
        with pytest.raises(error, match=says):
            act(folder)
        ten_more(folder)

    run(processes, body)
    assert not (folder / "a").exists()


def test_odd_arguments_are_refused_by_name(folder: Path) -> None:
    handle = checkpoint.save(folder / "a", {"w": A})
    for refused, says in (
        (lambda: handle.wait("x"), r"SaveHandle.wait: timeout must be a finite number"),
        (lambda: handle.wait(-1), r"SaveHandle.wait: timeout must be a finite number"),
        (lambda: checkpoint.load(folder / "a", progress="no"), "progress must be a function"),
        (lambda: checkpoint.metadata(folder / "a").table(1.5), "rows must be a non-negative int"),
        (
            lambda: checkpoint.convert(folder / "a", folder / "b.safetensors", shard_bytes="1 GB"),
            "checkpoint.convert: shard_bytes must be an integer of at least 1, got '1 GB'",
        ),
        (lambda: checkpoint.RankFiles("a", {}), "RankFiles: paths must be a list or tuple of"),
        (lambda: checkpoint.RankFiles([3], {}), "RankFiles: paths must be the path of a file"),
        (lambda: checkpoint.RankFiles(["a"], [0]), r"RankFiles: dims must be a Mapping, got \[0\]"),
        (
            lambda: checkpoint.RankFiles(["a"], {"w": "x"}),
            r"RankFiles: dims\['w'\] must be an integer, got 'x'",
        ),
    ):
        with pytest.raises(ArgumentError, match=says):
            refused()
    assert not (folder / "b.safetensors").exists()
    handle.wait(1.5)


def test_a_file_is_not_replaced_by_a_folder(folder: Path) -> None:
    (folder / "b").write_text("mine")
    with pytest.raises(FileInUseError, match="b is a file; a checkpoint is a folder"):
        checkpoint.save(folder / "b", {"w": A}, overwrite=True)
    assert (folder / "b").read_text() == "mine"


def test_values_that_differ_between_processes_are_refused(folder: Path) -> None:
    def body() -> None:
        with pytest.raises(UnequalError):
            checkpoint.save(folder / "a", {"w": A + meshard.process_index()})
        ten_more(folder)

    run(2, body)
    assert not (folder / "a").exists()


def test_another_tree_on_one_process_is_refused_on_all(folder: Path) -> None:
    def body() -> None:
        name = f"w{meshard.process_index()}"
        with pytest.raises(CheckpointError, match="Do all processes save the same tree"):
            checkpoint.save(folder / "a", {name: put(np.ones(8), "i")})
        ten_more(folder)

    run(2, body)
    assert not (folder / "a").exists()


@pytest.mark.parametrize("where", [0, 1])
def test_a_full_disk_on_one_process_is_an_error_on_all(where: int, folder: Path) -> None:
    put_off = files.RawWriter.write

    def write(self: Any, *args: Any) -> None:
        if meshard.process_index() == where:
            raise StorageError("no space left")
        put_off(self, *args)

    def body() -> None:
        checkpoint.save(folder, {"w": put(np.ones(8), "i")}, step=1)
        with pytest.raises(CheckpointError, match="no space left"):
            checkpoint.save(folder, {"w": put(np.ones(8), "i") + 1}, step=2)

    def failing(self: Any, *args: Any) -> None:
        if (folder / "step-00000002").exists():
            write(self, *args)
        else:
            put_off(self, *args)

    with mock.patch.object(files.RawWriter, "write", failing):
        run(2, body)
    assert checkpoint.steps(folder) == [1]
    assert not (folder / "step-00000002").exists()
    run(2, lambda: ten_more(folder))


def test_metadata_starts_no_world(folder: Path) -> None:
    alone(lambda: checkpoint.save(folder, {"w": put(np.ones((8, 2)), "i"), "n": 3}))
    program = (
        "import sys\n"
        "from meshard import checkpoint\n"
        "from meshard.algebra.world import known_world\n"
        "found = checkpoint.metadata(sys.argv[1])\n"
        "assert str(found.tensors['w'].sharding.spec) == \"P('i',)\", found\n"
        "assert found.tree['n'] == 3 and found.tree['w'].shape == (8, 2)\n"
        "assert checkpoint.steps(sys.argv[1]) == []\n"
        "assert known_world() is None\n"
        "print(found)\n"
    )
    line = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "w       float64[8,2]  128 bytes  P('i',) on i: 4, j: 2",
        "n = 3",
        "1 tensor, 128 bytes, in 1 file (meshard)",
    ]
