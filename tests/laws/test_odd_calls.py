"""Every public call that is not an array function, with odd values for each of its arguments.

The calls are enumerated from the public surface. Each has valid arguments, found by the name of the
parameter (`BY_NAME`) or given for the call (`SPECIAL`), with which it succeeds; then each argument
in turn is replaced by odd values. The call may succeed, or raise one of meshard's errors, after
which nothing has changed: the arrays given hold their values, and other operations give right
results. What has been made of odd values is looked at as well: its repr, its properties, `==`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import itertools
import operator
import shutil
import threading
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.strategies import SearchStrategy
from scipy.sparse import csr_array, eye_array

import meshard
import meshard.numpy as mnp
from meshard import elastic
from meshard.errors import ShapeError
from meshard.runtime.settings import RENDEZVOUS
from meshard.runtime.world import here
from meshard.settings import SETTINGS
from meshard.sharding import (
    BoxSharding,
    Mesh,
    NamedSharding,
    P,
    Sharding,
    SingleDeviceSharding,
)
from meshard.testing import simulate, virtual_devices
from tests.odd_values import ODD, complaint
from tests.test_api import public_names
from tests.worlds import alone

# Doors whose functions are array functions; they have a law of their own.
ARRAY_DOORS = ("meshard.numpy.", "meshard.lax.", "meshard.nn.", "meshard.random.")

# Public names that nobody calls.
NOT_CALLED = {
    "meshard.Array": "arrays are made by functions",
    "meshard.scipy.sparse.SparseRows": "its class methods make it",
    "meshard.ad_checkpoint.Residual": "a record: saved_residuals returns them",
    "meshard.ad_checkpoint.SavedResiduals": "a record: saved_residuals returns it",
    "meshard.float0": "a dtype",
    "meshard.dtypes.extended": "a class of dtypes",
    "meshard.dtypes.prng_key": "a class of dtypes",
    "meshard.Shard": "a record: arrays hand them out",
    "meshard.__version__": "a text",
    "meshard.typing.ArrayLike": "a type for annotations",
    "meshard.typing.DTypeLike": "a type for annotations",
    "meshard.debug.Event": "a record: a profile holds them",
    "meshard.debug.ExplainedStep": "a record: an explanation holds them",
    "meshard.debug.Explanation": "a record: explain returns it",
    "meshard.debug.Ledger": "a record: ledger() and budget() make it",
    "meshard.debug.Notice": "a record: an explanation holds them",
    "meshard.debug.Profile": "a record: profile() makes it",
    "meshard.debug.Timer": "timer makes it",
    "meshard.checkpoint.CheckpointError": "an error",
    "meshard.checkpoint.Conversion": "a record: convert returns it",
    "meshard.checkpoint.CorruptFileError": "an error",
    "meshard.checkpoint.Damage": "a record: verify returns it",
    "meshard.checkpoint.FileInUseError": "an error",
    "meshard.checkpoint.KeyMap.add": "what the other methods call",
    "meshard.checkpoint.KeyMapError": "an error",
    "meshard.checkpoint.LoadPlan": "a record: plan_load returns it",
    "meshard.checkpoint.Mapped": "a record: KeyMap.apply returns it",
    "meshard.checkpoint.Metadata": "a record: metadata returns it",
    "meshard.checkpoint.MissingFileError": "an error",
    "meshard.checkpoint.SaveHandle": "save returns it",
    "meshard.checkpoint.SavePlan": "a record: plan_save returns it",
    "meshard.checkpoint.StorageError": "an error",
    "meshard.debug.breakpoint": "it stops in a debugger, and takes nothing that counts",
    "meshard.elastic.Block": "a record: a block of surviving begins with it",
    "meshard.elastic.Feed": "subscribe makes it",
    "meshard.elastic.FeedPlan": "a record: a feed's plan is one",
    "meshard.elastic.FeedPlan.slabs": "what feeds call",
    "meshard.elastic.LossSimulation": "a record: simulate_loss returns it",
    "meshard.elastic.ProcessLostError": "an error",
    "meshard.elastic.ProtectPlan": "a record: plan_protect returns it",
    "meshard.elastic.Protected": "protect makes it",
    "meshard.elastic.Protected.follow": "what restore calls",
    "meshard.elastic.Protected.settle": "what recover calls",
    "meshard.elastic.PublishPlan": "a record: plan_publish returns it",
    "meshard.elastic.Publisher": "publish makes it",
    "meshard.elastic.Recovery": "a record: recover returns it",
    "meshard.elastic.RestorePlan": "a record: plan_restore returns it",
    "meshard.optim.EmptyState": "a record: a transformation's init makes it",
    "meshard.optim.GradientTransformation": "a record, of functions of the user's",
    "meshard.optim.ScaleByAdamState": "a record: a transformation's init makes it",
    "meshard.optim.ScaleByLionState": "a record: a transformation's init makes it",
    "meshard.optim.ScaleByScheduleState": "a record: a transformation's init makes it",
    "meshard.optim.TraceState": "a record: a transformation's init makes it",
    "meshard.resharding.Bounds": "a record: bounds_of returns it",
    "meshard.resharding.Plan": "plan_reshard makes it",
    "meshard.resharding.Plan.direct": "plan_reshard makes it",
    "meshard.resharding.PlanCache.find": "what planners call",
    "meshard.resharding.Simulation": "a record: a plan's simulate returns it",
    "meshard.testing.die": "it ends a simulated process, and takes nothing",
    "meshard.resharding.DataLoss": "an error",
    "meshard.resharding.NoIntermediateShardingError": "an error",
    "meshard.resharding.NoIntermediateShardingNeededError": "an error",
    "meshard.resharding.PlanError": "an error",
    "meshard.sharding.AxisType": "an enumeration",
    "meshard.sharding.AbstractMesh.concrete": "what placing and mapping call",
    "meshard.nn.initializers.Initializer": "a protocol",
    "meshard.tree_util.KeyEntry": "a type for annotations",
    "meshard.tree_util.KeyPath": "a type for annotations",
    "meshard.tree_util.PyTreeDef": "a structure: tree_structure makes it",
    "meshard.sharding.Sharding": "abstract; a subclass of the user's stands for it",
    "meshard.sharding.Sharding.devices_indices_map": "the user writes it",
}

# zarr starts these with the first array that it opens, and keeps them.
ZARRS_THREADS = ("zarr_io", "asyncio_")
# What files and paths may answer.
OS_ERRORS = {"path", "paths"}
# The files that valid arguments name, and odd values that are good names of files.
FILES = {
    "written",
    "written.npy",
    "saved",
    "run",
    "array.npy",
    "arrays",
    "ranks",
    "x.npy",
    "no such name.npy",
    "names",
    "profile.json",
    "topology.toml",
    "x",
    "no such name",
}

SEARCH = settings(
    max_examples=1,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Halves(Sharding):
    """A user's own sharding: the first dim in two halves."""

    @property
    def device_set(self) -> set[meshard.Device]:
        return set(meshard.devices()[:2])

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[meshard.Device, Any]:
        first, second = meshard.devices()[:2]
        if not global_shape:
            raise ShapeError("there are no halves of an array without dims")
        half = global_shape[0] // 2
        return {first: (slice(0, half),), second: (slice(half, global_shape[0]),)}


def mesh() -> Mesh:
    return meshard.make_mesh((4, 2), ("x", "y"))


def rows() -> NamedSharding:
    return NamedSharding(mesh(), P("x"))


def columns() -> NamedSharding:
    return NamedSharding(mesh(), P(None, "y"))


def values() -> Any:
    return np.arange(32.0).reshape(8, 4)


def square() -> meshard.Array:
    return mnp.eye(3)


def array() -> meshard.Array:
    found: meshard.Array = meshard.device_put(values(), rows())
    return found


def buffers() -> list[meshard.Array]:
    return [meshard.device_put(np.ones((2, 4)), d) for d in mesh().local_devices]


def global_device_array() -> meshard.gda.GlobalDeviceArray:
    return meshard.gda.GlobalDeviceArray((8, 4), mesh(), P("x"), buffers())


def new_class() -> type:
    """Return a class that nothing knows yet."""

    class Pair:
        def tree_flatten(self) -> Any:
            return (), None

        @classmethod
        def tree_unflatten(cls, kept: Any, children: Any) -> Pair:
            return cls()

    return Pair


def new_dataclass() -> type:
    return dataclasses.make_dataclass("Pair", ["x", "y"])


def topology() -> meshard.resharding.Topology:
    return meshard.resharding.topology("8-gpu hosts")


def plan() -> meshard.resharding.Plan:
    return meshard.plan_reshard(array(), columns())


def profile() -> meshard.debug.Profile:
    with meshard.debug.profile() as found:
        mnp.sum(array())
    return found


def ledger() -> meshard.debug.Ledger:
    with meshard.debug.ledger() as found:
        mnp.sum(array())
    return found


def tree() -> dict[str, Any]:
    return {"w": array(), "b": meshard.device_put(np.ones(4), meshard.devices()[0]), "epoch": 3}


def saved() -> Path:
    """Return a checkpoint that was saved in this test's folder."""
    path = Path("saved")
    if not path.exists():
        meshard.checkpoint.save(path, tree())
    return path


def run_of_steps() -> Path:
    """Return the folder of a run of two steps."""
    path = Path("run")
    if not path.exists():
        for step in (1, 2):
            meshard.checkpoint.save(path, tree(), step=step)
    return path


def file_of_array() -> Path:
    path = Path("array.npy")
    if not path.exists():
        np.save(path, values())
    return path


def key_map() -> meshard.checkpoint.KeyMap:
    return meshard.checkpoint.KeyMap(rest="keep").rename("{i}.w", "new.{i}.w")


def pattern() -> str:
    return "{name}"


def all_new() -> meshard.checkpoint.KeyMap:
    return meshard.checkpoint.KeyMap().rename("{name}", "new.{name}")


def saved_arrays() -> Path:
    """Return a checkpoint of arrays alone, and remove what was converted of it before."""
    shutil.rmtree("written", ignore_errors=True)
    path = Path("arrays")
    if not path.exists():
        meshard.checkpoint.save(path, {"w": array()})
    return path


def files_of_ranks() -> meshard.checkpoint.RankFiles:
    paths = [Path(f"ranks/{k}.safetensors") for k in range(2)]
    for path in paths:
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            meshard.checkpoint.save(path, {"w": array()})
    return meshard.checkpoint.RankFiles(paths, {"w": 0})


def shapes() -> dict[str, Any]:
    return {"0.w": ((8, 4), "float32"), "1.w": ((8, 4), "float32")}


def loads() -> dict[str, Callable[[], Any]]:
    """Return valid arguments of the functions that load."""
    return {
        "path": saved,
        "shardings": lambda: meshard.devices()[0],
        "like": tree,
        "dtype": lambda: "float64",
        "max_bytes": lambda: 1 << 20,
    }


# What has been opened for one call, and is closed after it.
OPEN: list[Any] = []
NUMBERS = itertools.count()


def opened(found: Any) -> Any:
    OPEN.append(found)
    return found


def close_all() -> None:
    while OPEN:
        OPEN.pop().close()


def publisher() -> elastic.Publisher:
    found: elastic.Publisher = opened(elastic.publish(f"published {next(NUMBERS)}", tree()))
    return found


def feed() -> elastic.Feed:
    """Return a feed of which there is a newer version."""
    source = publisher()
    found: elastic.Feed = opened(elastic.subscribe(source.name, timeout=5.0))
    source.publish(tree())
    return found


def protected() -> elastic.Protected:
    found: elastic.Protected = opened(elastic.protect(tree()))
    return found


def structs(devices: list[meshard.Device] | None = None) -> dict[str, Any]:
    """Return a tree of an array that is laid out on devices that do not exist."""
    return {"w": meshard.ShapeDtypeStruct((8, 4), "float32", sharding=whole_rows(devices))}


def whole_rows(devices: list[meshard.Device] | None = None) -> NamedSharding:
    found = virtual_devices(4, 1)[:2] if devices is None else devices
    return NamedSharding(Mesh(np.array(found), ("x",)), P("x"), uneven="balanced")


def other_rows() -> NamedSharding:
    """Return a sharding on devices of another job than that of `structs`."""
    return whole_rows(virtual_devices(4, 1)[2:])


def explanation() -> meshard.debug.Explanation:
    return meshard.explain(lambda x: mnp.sum(x), array())


def residuals() -> meshard.ad_checkpoint.SavedResiduals:
    return meshard.ad_checkpoint.saved_residuals(lambda x: x * x, array())


# Valid arguments, by the names of parameters. What has none is left out: its default is valid.
BY_NAME: dict[str, Callable[[], Any]] = {
    "a": lambda: [0],
    "arr": array,
    "arrays": array,
    "axis_names": lambda: ("x", "y"),
    "axis_shapes": lambda: (4, 2),
    "b": lambda: [1],
    "bandwidth": lambda: 1e9,
    "boundaries": list,
    "boxes": lambda: {d: (slice(i, i + 1),) for i, d in enumerate(meshard.devices())},
    "cls": new_class,
    "count": lambda: 8,
    "data_callback": lambda: lambda index: values()[index],
    "dcn_mesh_shape": lambda: (1, 1),
    "decay": lambda: 0.5,
    "decay_steps": lambda: 4,
    "destination": lambda: columns().layout((8, 4)),
    "device": lambda: meshard.devices()[1],
    "device_buffers": buffers,
    "devices_per_process": lambda: 2,
    "dtype": lambda: "float32",
    "end_value": lambda: 0.01,
    "entry": lambda: "x",
    "f": lambda: lambda x: x + 1,
    "flatten_func": lambda: lambda x: ((), None),
    "full_tree": lambda: {"x": [1, 2]},
    "function": lambda: lambda a, b: a + b,
    "global_inputs": array,
    "global_mesh": mesh,
    "global_shape": lambda: (8, 4),
    "id": lambda: 3,
    "ids": lambda: [0, 9],
    "in_sharding": rows,
    "in_tree": lambda: {"x": 7},
    "index": lambda: 1,
    "init_value": lambda: 0.1,
    "inner": lambda: meshard.tree.structure({"x": 0}),
    "itemsize": lambda: 8,
    "kind": lambda: "device",
    "latency": lambda: 1e-6,
    "layout": lambda: rows().layout((8, 4)),
    "learning_rate": lambda: 0.1,
    "leaves": lambda: [1, 2],
    "level": lambda: 1,
    "levels": lambda: topology().levels,
    "limit": lambda: 16,
    "local_data": values,
    "local_inputs": values,
    "local_shape": lambda: (8, 4),
    "max_delta": lambda: 1.0,
    "max_norm": lambda: 1.0,
    "mesh": mesh,
    "mesh_axes": lambda: P("x"),
    "mesh_axis": lambda: "x",
    "mesh_shape": lambda: (4, 2),
    "ndim": lambda: 2,
    "nodetype": new_class,
    "other": columns,
    "out_sharding": columns,
    "outer": lambda: meshard.tree.structure([0, 0]),
    "params": array,
    "path": lambda: Path("written"),
    "peak_value": lambda: 0.2,
    "prefix_tree": lambda: {"x": 1},
    "process": lambda: 0,
    "processes": lambda: 2,
    "program": lambda: lambda: 1,
    "pspecs": lambda: P("x"),
    "schedules": lambda: [meshard.optim.constant_schedule(0.1)],
    "shape": lambda: (8, 4),
    "sharding": rows,
    "shards": lambda: (2, 2),
    "source": lambda: rows().layout((8, 4)),
    "spec": lambda: P("x"),
    "step_size": lambda: 0.5,
    "step_size_fn": lambda: lambda count: 0.5,
    "topology": topology,
    "transition_steps": lambda: 4,
    "tree": lambda: {"x": [1, 2]},
    "treedef": lambda: meshard.tree.structure([0, 0]),
    "unflatten_func": lambda: lambda kept, children: new_class()(),
    "updates": array,
    "value": lambda: 0.1,
    "warmup_steps": lambda: 2,
    "x": array,
}
# name of the call -> its own arguments.
SPECIAL: dict[str, dict[str, Callable[[], Any]]] = {
    "meshard.optim.chain": {"*args": lambda: meshard.optim.scale(0.5)},
    "meshard.Mesh": {"devices": lambda: np.array(meshard.devices()).reshape(4, 2)},
    "meshard.P": {"*entries": lambda: "x"},
    "meshard.ShapeDtypeStruct.update": {
        "shape": lambda: (8, 4),
        "dtype": lambda: "float32",
        "sharding": rows,
    },
    "meshard.checkpoint.KeyMap": {"rules": lambda: [{"drop": "x"}], "rest": lambda: "keep"},
    "meshard.checkpoint.KeyMap.apply": {"sources": shapes, "tied": lambda: {"2.w": "0.w"}},
    "meshard.checkpoint.KeyMap.cast": {"source": pattern},
    "meshard.checkpoint.KeyMap.drop": {"source": pattern},
    "meshard.checkpoint.KeyMap.first_copy": {"source": pattern, "times": lambda: 2},
    "meshard.checkpoint.KeyMap.from_toml": {"text": lambda: key_map().to_toml()},
    "meshard.checkpoint.KeyMap.fuse": {
        "sources": lambda: ["{i}.a", "{i}.b"],
        "to": lambda: "{i}.both",
    },
    "meshard.checkpoint.KeyMap.inverse": {"sources": shapes, "tied": lambda: {"2.w": "0.w"}},
    "meshard.checkpoint.KeyMap.keep": {"source": pattern},
    "meshard.checkpoint.KeyMap.pad": {"source": pattern, "multiple": lambda: 8},
    "meshard.checkpoint.KeyMap.preview": {"sources": shapes, "tied": lambda: {"2.w": "0.w"}},
    "meshard.checkpoint.KeyMap.rename": {"source": pattern, "to": lambda: "new.{name}"},
    "meshard.checkpoint.KeyMap.repeat": {"source": pattern, "times": lambda: 2},
    "meshard.checkpoint.KeyMap.reshape": {"source": pattern},
    "meshard.checkpoint.KeyMap.rope": {"source": pattern, "heads": lambda: 2},
    "meshard.checkpoint.KeyMap.scales": {
        "source": pattern,
        "by": lambda: "{name}_scale",
        "block": lambda: (2, 2),
    },
    "meshard.checkpoint.KeyMap.slice": {"source": pattern, "stop": lambda: 2},
    "meshard.checkpoint.KeyMap.split": {
        "source": pattern,
        "to": lambda: ["{name}.a", "{name}.b"],
        "sizes": lambda: [2, 2],
    },
    "meshard.checkpoint.KeyMap.stack": {"source": lambda: "{e}.w", "to": lambda: "w"},
    "meshard.checkpoint.KeyMap.then": {"other": lambda: key_map()},
    "meshard.checkpoint.KeyMap.tie": {"source": pattern, "to": lambda: "new.{name}"},
    "meshard.checkpoint.KeyMap.transpose": {"source": pattern, "perm": lambda: (1, 0)},
    "meshard.checkpoint.KeyMap.unstack": {"source": lambda: "w", "to": lambda: "{e}.w"},
    "meshard.checkpoint.KeyMap.untie": {"source": pattern},
    "meshard.checkpoint.Mapped.check_shardings": {"shardings": lambda: {"new.0.w": rows()}},
    "meshard.checkpoint.RankFiles": {
        "paths": lambda: files_of_ranks().paths,
        "dims": lambda: {"w": 0},
    },
    "meshard.checkpoint.clean": {"path": run_of_steps},
    "meshard.checkpoint.convert": {
        "source": saved,
        "target": lambda: Path("written"),
        "dtype": lambda: "float32",
        "overwrite": lambda: True,
    },
    "meshard.checkpoint.latest": {"path": run_of_steps},
    "meshard.checkpoint.load": loads(),
    "meshard.checkpoint.load_iter": loads(),
    "meshard.checkpoint.metadata": {"path": saved},
    "meshard.checkpoint.plan_load": loads(),
    "meshard.checkpoint.plan_save": {"tree": tree},
    "meshard.checkpoint.record": {
        "loader": lambda: lambda w: {"w": w["0.w"].T},
        "sources": shapes,
    },
    "meshard.checkpoint.save": {
        "path": lambda: Path("written"),
        "tree": tree,
        "overwrite": lambda: True,
    },
    "meshard.checkpoint.steps": {"path": run_of_steps},
    "meshard.checkpoint.template": {"model": lambda: "llama", "heads": lambda: 4},
    "meshard.checkpoint.verify": {"path": saved},
    "meshard.load": {"path": file_of_array, "sharding": rows},
    "meshard.save": {"path": lambda: Path("written"), "x": array},
    "meshard.config.read": {"name": lambda: "num_devices"},
    "meshard.config.update": {"name": lambda: "default_float", "value": lambda: "float64"},
    "meshard.debug.budget": {"limit": lambda: "1 GB"},
    "meshard.debug.join_profiles": {"paths": lambda: [profile().save("profile.json")]},
    "meshard.device_put": {"x": array},
    "meshard.elastic.Feed.update": {"timeout": lambda: 5.0},
    "meshard.elastic.Feed.wait": {"version": lambda: 2, "timeout": lambda: 0.2},
    "meshard.elastic.Protected.refresh": {"tree": tree},
    "meshard.elastic.Publisher.publish": {"tree": tree, "version": lambda: 7},
    "meshard.elastic.Publisher.wait": {"readers": lambda: 0, "timeout": lambda: 0.05},
    "meshard.elastic.mesh": {
        "axes": lambda: {"x": 2, "y": None, "z": None},
        "prefer": lambda: {"y": 2},
    },
    "meshard.elastic.plan_protect": {"tree": tree},
    "meshard.elastic.plan_publish": {
        "tree": structs,
        "shardings": other_rows,
        "topology": lambda: "8-gpu hosts",
    },
    "meshard.elastic.plan_restore": {"tree": structs, "shardings": other_rows},
    "meshard.elastic.protect": {"tree": tree},
    "meshard.elastic.publish": {"name": lambda: f"published {next(NUMBERS)}", "tree": tree},
    "meshard.elastic.restore": {
        "tree": tree,
        "shardings": lambda: meshard.devices()[0],
        "checkpoint": saved,
    },
    "meshard.elastic.simulate_loss": {
        "tree": structs,
        "place": lambda: whole_rows,
        "deaths": lambda: 1,
        "copies": lambda: 1,
        "topology": lambda: None,
    },
    "meshard.elastic.subscribe": {
        "name": lambda: publisher().name,
        "shardings": lambda: meshard.devices()[0],
        "timeout": lambda: 0.3,
    },
    "meshard.eval_shape": {"*args": array},
    "meshard.explain": {"*args": array},
    "meshard.experimental.mesh_utils.create_hybrid_device_mesh": {
        "devices": lambda: meshard.devices(),
    },
    "meshard.gda.GlobalDeviceArray.from_batched_callback": {
        "data_callback": lambda: lambda indices: [np.ones((2, 4)) for _ in indices],
    },
    "meshard.gda.GlobalDeviceArray.from_batched_callback_with_devices": {
        "data_callback": lambda: (
            lambda groups: [
                meshard.device_put(np.ones((2, 4)), d) for _, group in groups for d in group
            ]
        ),
    },
    "meshard.ad_checkpoint.checkpoint_name": {"name": lambda: "here"},
    "meshard.ad_checkpoint.print_saved_residuals": {"f": lambda: plus_one, "*args": array},
    "meshard.ad_checkpoint.saved_residuals": {"f": lambda: plus_one, "*args": array},
    **{
        f"meshard.checkpoint_policies.{name}": {"prim": lambda: "sin"}
        for name in vars(meshard.checkpoint_policies)
        if name.startswith(("checkpoint_dots", "dots_", "everything_", "nothing_"))
    },
    "meshard.checkpoint_policies.save_from_both_policies": {
        "policy_1": lambda: meshard.checkpoint_policies.dots_saveable,
        "policy_2": lambda: meshard.checkpoint_policies.dots_saveable,
    },
    "meshard.closure_convert": {"fun": lambda: plus_one, "*example_args": array},
    "meshard.custom_gradient": {"fun": lambda: with_its_gradient},
    "meshard.lax.custom_linear_solve": {
        "matvec": lambda: times_two,
        "b": array,
        "solve": lambda: halved,
        "transpose_solve": lambda: halved,
    },
    "meshard.lax.custom_root": {
        "f": lambda: plus_one,
        "initial_guess": array,
        "solve": lambda: lambda f, x: x - f(x),
        "tangent_solve": lambda: lambda g, y: y,
    },
    "meshard.custom_jvp": {"fun": lambda: plus_one},
    "meshard.custom_jvp.defjvp": {"jvp": lambda: pushed},
    "meshard.custom_jvp.defjvps": {"*jvps": lambda: times_two},
    "meshard.custom_vjp": {"fun": lambda: plus_one},
    "meshard.custom_vjp.defvjp": {"fwd": lambda: forwards, "bwd": lambda: backwards},
    "meshard.grad": {"fun": lambda: summed},
    "meshard.hessian": {"fun": lambda: summed},
    **{
        f"meshard.scipy.sparse.linalg.{name}": {
            "A": lambda: halved_alone,
            "b": array,
            "x0": array,
            "M": lambda: halved_alone,
        }
        for name in ("bicgstab", "cg", "gmres")
    },
    "meshard.scipy.sparse.SparseRows.from_scipy": {
        "matrix": lambda: eye_array(8),
        "column_sharding": rows,
    },
    "meshard.scipy.sparse.SparseRows.from_callback": {
        "shape": lambda: (8, 8),
        "callback": lambda: lambda rows: csr_array((rows.stop - rows.start, 8)),
        "column_sharding": rows,
    },
    "meshard.scipy.sparse.SparseRows.with_data": {"data": lambda: mnp.ones(8)},
    "meshard.jacfwd": {"fun": lambda: plus_one},
    "meshard.jacobian": {"fun": lambda: plus_one},
    "meshard.jacrev": {"fun": lambda: plus_one},
    "meshard.make_jaxpr": {"fun": lambda: plus_one},
    "meshard.named_call": {"fun": lambda: plus_one},
    "meshard.named_scope": {"name": lambda: "here"},
    "meshard.pure_callback": {
        "callback": lambda: plus_one,
        "result_shape_dtypes": array,
        "*args": array,
    },
    "meshard.experimental.io_callback": {
        "callback": lambda: plus_one,
        "result_shape_dtypes": array,
        "*args": array,
    },
    "meshard.debug.callback": {"callback": lambda: plus_one, "*args": array},
    "meshard.debug.inspect_array_sharding": {"value": array, "callback": lambda: str},
    "meshard.debug.log": {"fmt": lambda: "plain"},
    "meshard.debug.print": {"fmt": lambda: "plain"},
    "meshard.dtypes.finfo": {"type": lambda: "float32"},
    "meshard.dtypes.iinfo": {"type": lambda: "int8"},
    "meshard.dtypes.issubdtype": {"arg1": lambda: "int8", "arg2": lambda: np.integer},
    "meshard.dtypes.result_type": {"*arrays_and_dtypes": lambda: "int8"},
    "meshard.flatten_util.ravel_pytree": {"pytree": lambda: {"x": [1, 2]}},
    "meshard.jit": {"f": lambda: lambda x: x + 1},
    "meshard.jvp": {
        "fun": lambda: plus_one,
        "primals": lambda: [array()],
        "tangents": lambda: [array()],
    },
    "meshard.linear_transpose": {"fun": lambda: times_two, "*primals": array},
    "meshard.linearize": {"fun": lambda: plus_one, "*primals": array},
    "meshard.array_api.is_meshard_namespace": {"xp": lambda: np},
    "meshard.numpy.vectorize": {"pyfunc": lambda: plus_one},
    "meshard.remat": {"fun": lambda: plus_one},
    "meshard.value_and_grad": {"fun": lambda: summed},
    "meshard.vjp": {"fun": lambda: plus_one, "*primals": array},
    "meshard.vmap": {"fun": lambda: plus_one},
    "meshard.plan_reshard": {"sharding": columns},
    "meshard.reshard": {"sharding": columns},
    "meshard.make_array_from_single_device_arrays": {"arrays": buffers},
    "meshard.multihost_utils.sync_global_devices": {"name": lambda: "here"},
    "meshard.resharding.Level": {"name": lambda: "host"},
    "meshard.resharding.Plan.from_json": {"text": lambda: plan().to_json()},
    "meshard.resharding.Topology": {"name": lambda: "mine"},
    "meshard.resharding.Topology.from_toml": {"text": lambda: topology().to_toml()},
    "meshard.resharding.Topology.level": {},
    "meshard.resharding.Topology.load": {"path": lambda: written(topology().to_toml())},
    "meshard.resharding.reshard_iter": {"sharding": columns},
    "meshard.resharding.best_device_order": {"sharding": columns},
    "meshard.resharding.concatenate_by_mesh_axis": {
        "arrays": lambda: meshard.resharding.split_by_mesh_axis(array(), "x"),
    },
    "meshard.resharding.find_intermediate_sharding": {
        "out_sharding": lambda: NamedSharding(mesh(), P()),
    },
    "meshard.resharding.topology": {"name": lambda: "8-gpu hosts"},
    "meshard.shard_map": {
        "f": lambda: lambda x: x + 1,
        "mesh": mesh,
        "in_specs": lambda: P("x"),
        "out_specs": lambda: P("x"),
        "axis_names": lambda: {"x", "y"},
    },
    "meshard.sharding.BoxSharding": {"global_shape": lambda: (8,)},
    "meshard.sharding.BoxSharding.addressable_devices_indices_map": {"global_shape": lambda: (8,)},
    "meshard.sharding.BoxSharding.devices_indices_map": {"global_shape": lambda: (8,)},
    "meshard.sharding.BoxSharding.layout": {"shape": lambda: (8,)},
    "meshard.sharding.BoxSharding.shard_shape": {"global_shape": lambda: (8,)},
    "meshard.sharding.Sharding.devices_indices_map": {"global_shape": lambda: (8,)},
    "meshard.sharding.Sharding.layout": {"shape": lambda: (8,)},
    "meshard.sharding.Sharding.shard_shape": {"global_shape": lambda: (8,)},
    "meshard.testing.simulate": {"devices_per_process": lambda: 1, "deadline": lambda: 5.0},
    "meshard.tree_util.DictKey": {"key": lambda: "w"},
    "meshard.tree_util.FlattenedIndexKey": {"key": lambda: 0},
    "meshard.tree_util.GetAttrKey": {"name": lambda: "w"},
    "meshard.tree_util.Partial": {"func": lambda: plus_one},
    "meshard.tree_util.SequenceKey": {"idx": lambda: 0},
    "meshard.tree_util.all_leaves": {"iterable": lambda: [1, 2]},
    "meshard.tree_util.is_tree_node": {"typ": lambda: dict},
    "meshard.tree_util.keystr": {"keys": lambda: (meshard.tree_util.DictKey("w"),)},
    "meshard.tree_util.register_pytree_with_keys": {
        "nodetype": lambda: type("New", (), {}),
        "flatten_with_keys": lambda: plus_one,
        "unflatten_func": lambda: times_two,
    },
    "meshard.tree_util.register_pytree_with_keys_class": {
        "cls": lambda: type(
            "New", (), {"tree_flatten_with_keys": plus_one, "tree_unflatten": plus_one}
        ),
    },
    "meshard.tree_util.register_static": {"cls": lambda: type("New", (), {})},
    "meshard.tree_util.tree_reduce_associative": {"operation": lambda: operator.add},
    "meshard.tree_util.treedef_tuple": {"treedefs": lambda: [meshard.tree.structure(1)]},
    "meshard.scipy.linalg.cho_factor": {"a": square},
    "meshard.scipy.linalg.cho_solve": {
        "c_and_lower": lambda: (square(), True),
        "b": lambda: np.ones(3),
    },
    "meshard.scipy.linalg.cholesky": {"a": square},
    "meshard.scipy.linalg.solve_triangular": {"a": square, "b": lambda: np.ones(3)},
    "meshard.sharding.AbstractMesh": {"axis_sizes": lambda: (4, 2)},
    "meshard.sharding.use_abstract_mesh": {"mesh": lambda: mesh().abstract_mesh},
    "meshard.tree.reduce_associative": {"operation": lambda: operator.add},
    "meshard.tree.map": {"f": lambda: lambda *x: x, "*rest": lambda: {"x": [3, 4]}},
    "meshard.tree.map_with_path": {"f": lambda: lambda *x: x, "*rest": lambda: {"x": [3, 4]}},
    "meshard.tree.register_dataclass": {"nodetype": new_dataclass},
    "meshard.tree.transpose": {"tree": lambda: [{"x": 1}, {"x": 2}]},
}

# An instance of each class, of which the methods, properties and operators are tried.
INSTANCES: dict[str, Callable[[], Any]] = {
    "meshard.scipy.sparse.SparseRows": lambda: sparse_rows(),
    "meshard.ad_checkpoint.Residual": lambda: residuals().residuals[0],
    "meshard.ad_checkpoint.SavedResiduals": lambda: residuals(),
    "meshard.custom_jvp": lambda: meshard.custom_jvp(plus_one),
    "meshard.custom_vjp": lambda: meshard.custom_vjp(plus_one),
    "meshard.Device": lambda: meshard.devices()[0],
    "meshard.Mesh": mesh,
    "meshard.sharding.AbstractMesh": lambda: mesh().abstract_mesh,
    "meshard.NamedSharding": rows,
    "meshard.P": lambda: P("x", None),
    "meshard.ShapeDtypeStruct": lambda: meshard.ShapeDtypeStruct((8, 4), "float32"),
    "meshard.Shard": lambda: array().addressable_shards[0],
    "meshard.checkpoint.Conversion": lambda: meshard.checkpoint.convert(
        saved_arrays(), "converted", dry_run=True
    ),
    "meshard.checkpoint.KeyMap": key_map,
    "meshard.checkpoint.LoadPlan": lambda: meshard.checkpoint.plan_load(saved()),
    "meshard.checkpoint.Mapped": lambda: key_map().apply(shapes()),
    "meshard.checkpoint.RankFiles": lambda: files_of_ranks(),
    "meshard.checkpoint.Metadata": lambda: meshard.checkpoint.metadata(saved()),
    "meshard.checkpoint.SaveHandle": lambda: meshard.checkpoint.save(
        "written", tree(), overwrite=True
    ),
    "meshard.checkpoint.SavePlan": lambda: meshard.checkpoint.plan_save(tree()),
    "meshard.debug.Event": lambda: profile().events[0],
    "meshard.debug.ExplainedStep": lambda: explanation().steps[0],
    "meshard.debug.Explanation": explanation,
    "meshard.debug.Ledger": ledger,
    "meshard.debug.Notice": lambda: meshard.debug.Notice(
        0, "here", "x", 0, ("x",), True, False, "why", "what", 8
    ),
    "meshard.debug.Profile": profile,
    "meshard.debug.Timer": meshard.debug.timer,
    "meshard.elastic.Block": lambda: elastic.surviving().__enter__(),
    "meshard.elastic.Feed": feed,
    "meshard.elastic.FeedPlan": lambda: feed().plan,
    "meshard.elastic.LossSimulation": lambda: elastic.simulate_loss(structs(), whole_rows, 1),
    "meshard.elastic.ProtectPlan": lambda: elastic.plan_protect(tree()),
    "meshard.elastic.Protected": protected,
    "meshard.elastic.PublishPlan": lambda: elastic.plan_publish(
        structs(), other_rows(), topology="8-gpu hosts"
    ),
    "meshard.elastic.Publisher": publisher,
    "meshard.elastic.Recovery": elastic.recover,
    "meshard.elastic.RestorePlan": lambda: elastic.plan_restore(structs(), other_rows()),
    "meshard.gda.GlobalDeviceArray": global_device_array,
    "meshard.resharding.Bounds": lambda: meshard.resharding.bounds_of(
        rows().layout((8, 4)), columns().layout((8, 4))
    ),
    "meshard.resharding.Level": lambda: topology().levels[0],
    "meshard.resharding.Plan": plan,
    "meshard.resharding.PlanCache": meshard.resharding.PlanCache,
    "meshard.resharding.Simulation": lambda: plan().simulate(topology()),
    "meshard.resharding.Topology": topology,
    "meshard.sharding.BoxSharding": lambda: BoxSharding((8,), BY_NAME["boxes"]()),
    "meshard.sharding.Sharding": Halves,
    "meshard.sharding.SingleDeviceSharding": lambda: SingleDeviceSharding(meshard.devices()[0]),
}

# What is done with the result of a call, where that is more than to look at it.
AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "meshard.elastic.protect": lambda found: look_at(opened(found)),
    "meshard.custom_gradient": lambda found: found(array()),
    "meshard.custom_jvp": lambda found: found(array()),
    "meshard.custom_vjp": lambda found: found(array()),
    "meshard.grad": lambda found: found(array()),
    "meshard.hessian": lambda found: found(array()),
    "meshard.jacfwd": lambda found: found(array()),
    "meshard.jacobian": lambda found: found(array()),
    "meshard.jacrev": lambda found: found(array()),
    "meshard.make_jaxpr": lambda found: str(found(array())),
    "meshard.named_call": lambda found: found(array()),
    "meshard.jit": lambda found: found(array()),
    "meshard.value_and_grad": lambda found: found(array()),
    "meshard.vmap": lambda found: found(array()),
    "meshard.shard_map": lambda found: found(array()),
    "meshard.tree.register_pytree_node": lambda _: None,
    **dict.fromkeys(
        (
            f"meshard.optim.{name}"
            for name in (
                *("adam", "adamw", "add_decayed_weights", "chain", "clip", "clip_by_global_norm"),
                *("lion", "scale", "scale_by_adam", "scale_by_learning_rate", "scale_by_lion"),
                *("scale_by_schedule", "sgd", "trace"),
            )
        ),
        lambda found: quiet(lambda: found.update(array(), found.init(array()), array())),
    ),
    **dict.fromkeys(
        (
            f"meshard.optim.{name}_schedule"
            for name in ("constant", "cosine_decay", "linear", "warmup_cosine_decay")
        ),
        lambda found: quiet(lambda: found(mnp.asarray(3))),
    ),
    "meshard.optim.join_schedules": lambda found: quiet(lambda: found(mnp.asarray(3))),
}


def quiet(function: Callable[[], Any]) -> Any:
    """Run a function that may divide by zero, as odd rates ask it to."""
    with np.errstate(all="ignore"):
        return function()


def written(text: str) -> Path:
    path = Path("topology.toml")
    path.write_text(text, encoding="utf-8")
    return path


@dataclasses.dataclass(frozen=True)
class Call:
    """A public function, constructor or method."""

    name: str
    run: Callable[..., Any]
    parameters: tuple[str, ...]
    positional: frozenset[str]
    needed: frozenset[str]

    def arguments(self) -> dict[str, Any]:
        """Return valid arguments: those that are needed, and those of `SPECIAL`."""
        own = SPECIAL.get(self.name, {})
        found: dict[str, Any] = {}
        for name in self.parameters:
            if name in own:
                found[name] = own[name]()
            elif name in self.needed:
                assert name in BY_NAME, (
                    f"{self.name} needs an argument {name!r}: give a valid value for it in BY_NAME,"
                    " or in SPECIAL"
                )
                found[name] = BY_NAME[name]()
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        """Run it with arguments, and look at what it returns."""
        placed = []
        named = dict(arguments)
        for name in self.parameters:
            if name in self.positional and name in named:
                placed.append(named.pop(name))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as after:
            after.callback(close_all)
            found = self.run(*placed, **named)
            if self.name in AFTERWARDS:
                found = AFTERWARDS[self.name](found)
            look_at(found)
        return found


def look_at(found: Any) -> None:
    """Ask of a result what anybody may ask of it."""
    if isinstance(found, SearchStrategy):
        find(found, lambda _: True, settings=SEARCH)
        return
    if isinstance(found, AbstractContextManager) and not isinstance(found, (Mesh, Path)):
        with found as inner:
            if inner is found:
                look_at_properties(found)
            return
    if isinstance(found, types.GeneratorType):
        list(found)
        return
    look_at_properties(found)


def look_at_properties(found: Any) -> None:
    repr(found)
    if type(found).__module__.startswith("meshard") and not isinstance(found, meshard.Array):
        for name, _ in properties(type(found)):
            getattr(found, name)


def public_calls() -> Iterator[Call]:
    """Each public call once, under the first of its names."""
    seen: set[int] = set()
    for name, value in public_names():
        own = str(getattr(value, "__module__", "")).startswith(("meshard", "hypothesis"))
        if name.startswith(ARRAY_DOORS) or inspect.ismodule(value) or id(value) in seen:
            continue
        seen.add(id(value))
        if not (callable(value) and own):
            assert name in NOT_CALLED, f"{name} is neither called nor listed in NOT_CALLED"
            continue
        if name not in NOT_CALLED:
            yield call(name, value)
        if inspect.isclass(value) and value is not meshard.Array:
            for method, owner in methods(value):
                if f"{name}.{method}" not in NOT_CALLED and not issubclass(value, Exception):
                    yield from instance_calls(name, method, owner)


def call(name: str, function: Any, skip: int = 0) -> Call:
    found = list(inspect.signature(function).parameters.values())[skip:]
    own = tuple(SPECIAL.get(name, {}))
    names: list[str] = []
    positional: set[str] = set()
    needed: set[str] = set()
    for p in found:
        if p.kind == p.VAR_KEYWORD:
            continue
        told = f"*{p.name}" if p.kind == p.VAR_POSITIONAL else p.name
        names.append(told)
        if p.kind == p.VAR_POSITIONAL:
            positional |= {*names}  # what stands before the others must be given by position
        elif p.kind == p.POSITIONAL_ONLY:
            positional.add(told)
        if p.default is p.empty and p.kind != p.VAR_POSITIONAL:
            needed.add(told)
    names += [n for n in own if n not in names]
    return Call(name, function, tuple(names), frozenset(positional), frozenset(needed))


def methods(kind: type) -> list[tuple[str, Any]]:
    found = []
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        method = callable(value) or isinstance(value, (classmethod, staticmethod))
        own = value is not vars(tuple).get(name)  # a named tuple's count and index are Python's
        if own and method and not name.startswith("_") and not inspect.isclass(value):
            found.append((name, value))
    return found


def properties(kind: type) -> list[tuple[str, Any]]:
    found = [(name, inspect.getattr_static(kind, name)) for name in dir(kind) if name[0] != "_"]
    return [(name, v) for name, v in found if isinstance(v, (property, cached_property))]


def instance_calls(name: str, method: str, value: Any) -> Iterator[Call]:
    if isinstance(value, (classmethod, staticmethod)):
        owner = dict(public_names())[name]
        yield call(f"{name}.{method}", getattr(owner, method))
        return
    assert name in INSTANCES, f"{name} has methods; give an instance of it in INSTANCES"
    plain = call(f"{name}.{method}", value, skip=1)

    def run(*args: Any, **kwargs: Any) -> Any:
        return getattr(INSTANCES[name](), method)(*args, **kwargs)

    yield dataclasses.replace(plain, run=run)


def plus_one(x: Any) -> Any:
    return x + 1


def times_two(x: Any, *more: Any) -> Any:
    return 2 * x


def sparse_rows() -> Any:
    return meshard.scipy.sparse.SparseRows.from_scipy(eye_array(8), rows())


def halved_alone(x: Any) -> Any:
    return meshard.tree.map(lambda leaf: leaf / 2, x)


def halved(f: Any, b: Any) -> Any:
    return b / 2


def with_its_gradient(x: Any) -> Any:
    return x + 1, lambda g: g


def summed(x: Any) -> Any:
    return (x * x).sum()


def pushed(primals: Any, tangents: Any) -> Any:
    return primals[0] + 1, tangents[0]


def forwards(x: Any) -> Any:
    return x + 1, None


def backwards(kept: Any, g: Any) -> Any:
    return (g,)


def mapped() -> Any:
    return meshard.shard_map(plus_one, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))


def save_in(format_: str, x: Any) -> Any:
    return meshard.checkpoint.save("written", {"w": x}, format=format_, overwrite=True)


def among_two(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that two simulated processes call with the same argument."""
    return lambda x: simulate(2, 1, lambda: repr(function(x)), deadline=5.0)


def rows_of_tree() -> dict[str, Any]:
    return {"w": rows(), "b": meshard.devices()[0]}


# What the results of public functions do, leaves of trees, and operators.
MORE: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "jit(f)(x)": (lambda x: meshard.jit(plus_one)(x), array),
    "jit(f, static_argnums=0)(x)": (
        lambda x: meshard.jit(lambda x: 1, static_argnums=0)(x),
        lambda: 3,
    ),
    "jit(f).lower(x)": (lambda x: meshard.jit(plus_one).lower(x), array),
    "jit(f).lower(a).compile()(x)": (
        lambda x: meshard.jit(plus_one).lower(array()).compile()(x),
        array,
    ),
    "jit(f).trace(x)": (lambda x: meshard.jit(plus_one).trace(x), array),
    "jit(f).eval_shape(x)": (lambda x: meshard.jit(plus_one).eval_shape(x), array),
    "shard_map(f)(x)": (lambda x: mapped()(x), array),
    "jit(shard_map(f))(x)": (lambda x: meshard.jit(mapped())(x), array),
    "jit(f)() of a result": (lambda x: meshard.jit(lambda: x)(), array),
    "shard_map(f)() of a result": (
        lambda x: meshard.shard_map(lambda _: x, mesh=mesh(), in_specs=P(), out_specs=P())(1.0),
        lambda: 2.0,
    ),
    "checkpoint.save of a leaf": (lambda x: save_in("meshard", x), array),
    "checkpoint.save as npy": (lambda x: save_in("npy", x), array),
    "checkpoint.save as safetensors": (lambda x: save_in("safetensors", x), array),
    "checkpoint.save as safetensors-ranks": (lambda x: save_in("safetensors-ranks", x), array),
    "checkpoint.save as zarr": (lambda x: save_in("zarr", x), array),
    "checkpoint.save in the background": (
        lambda x: meshard.checkpoint.save("written", {"w": x}, overwrite=True, wait=False).wait(),
        array,
    ),
    "checkpoint.save by a map": (
        lambda x: meshard.checkpoint.save("written", {"0.w": x}, overwrite=True, map=key_map()),
        array,
    ),
    "checkpoint.plan_save of a leaf": (lambda x: meshard.checkpoint.plan_save([x]), array),
    "checkpoint.load like a leaf": (
        lambda x: meshard.checkpoint.load(saved(), like={"w": x}),
        array,
    ),
    "checkpoint.load by a map": (
        lambda x: meshard.checkpoint.load(saved(), x, map=all_new()),
        lambda: {"new.w": rows(), "new.b": meshard.devices()[0]},
    ),
    "checkpoint.load with a function's shardings": (
        lambda x: meshard.checkpoint.load(saved(), lambda name, struct: x),
        lambda: meshard.devices()[0],
    ),
    "checkpoint.load_iter of shardings": (
        lambda x: list(meshard.checkpoint.load_iter(saved(), {"w": x, "b": None, "epoch": None})),
        rows,
    ),
    "checkpoint.convert by a function": (
        lambda x: meshard.checkpoint.convert(
            saved_arrays(), "written", lambda name, struct: x, format="safetensors-ranks"
        ),
        rows,
    ),
    "checkpoint.load of a rank's file": (
        lambda x: meshard.checkpoint.load(
            meshard.checkpoint.RankFiles([files_of_ranks().paths[0], x], {"w": 0})
        ),
        lambda: files_of_ranks().paths[1],
    ),
    "checkpoint.load of ranks' files": (
        lambda x: meshard.checkpoint.load(meshard.checkpoint.RankFiles(x, {"w": 0})),
        lambda: files_of_ranks().paths,
    ),
    "checkpoint.load of ranks' dims": (
        lambda x: meshard.checkpoint.load(meshard.checkpoint.RankFiles(files_of_ranks().paths, x)),
        lambda: {"w": 0},
    ),
    "checkpoint.load of a rank's dim": (
        lambda x: meshard.checkpoint.load(
            meshard.checkpoint.RankFiles(files_of_ranks().paths, {"w": x})
        ),
        lambda: None,
    ),
    "checkpoint.record of a loader's tensor": (
        lambda x: meshard.checkpoint.record(lambda w: {"w": x}, shapes()),
        lambda: np.zeros((2, 2)),
    ),
    "checkpoint.record of a loader's index": (
        lambda x: meshard.checkpoint.record(lambda w: {"w": w["0.w"][x]}, shapes()),
        lambda: 1,
    ),
    "checkpoint.record of a loader's shape": (
        lambda x: meshard.checkpoint.record(lambda w: {"w": w["0.w"].reshape(x)}, shapes()),
        lambda: (4, 8),
    ),
    "checkpoint.template by ranks": (
        lambda x: meshard.checkpoint.template("llama", heads=4, ranks=x),
        lambda: 2,
    ),
    "checkpoint.template by rope": (
        lambda x: meshard.checkpoint.template("deepseek-v3", scales=False, rope=x),
        lambda: "half",
    ),
    "checkpoint.template by scales": (
        lambda x: meshard.checkpoint.template("deepseek-v3", scales=x),
        lambda: True,
    ),
    "checkpoint.template by a prefix": (
        lambda x: meshard.checkpoint.template("bert", prefix=x),
        lambda: "bert.",
    ),
    "KeyMap of a rule": (lambda x: meshard.checkpoint.KeyMap([x]), lambda: {"drop": "x"}),
    "KeyMap of a rule's value": (
        lambda x: meshard.checkpoint.KeyMap([{"drop": x}]),
        lambda: "x",
    ),
    "KeyMap.apply to a source": (lambda x: key_map().apply({"0.w": x}), array),
    "KeyMap.apply to a shape": (
        lambda x: key_map().apply({"0.w": (x, "float32")}),
        lambda: (8, 4),
    ),
    "KeyMap.apply to a dtype": (lambda x: key_map().apply({"0.w": ((8,), x)}), lambda: "f4"),
    "KeyMap.apply to a tie": (
        lambda x: key_map().apply(shapes(), tied={"2.w": x}),
        lambda: "0.w",
    ),
    "reshard by a map": (lambda x: meshard.reshard({"0.w": x}, rows(), map=key_map()), array),
    "reshard to shardings by a map": (
        lambda x: meshard.reshard({"0.w": array()}, x, map=key_map()),
        lambda: {"new.0.w": rows()},
    ),
    "reshard to a function's shardings by a map": (
        lambda x: meshard.reshard({"0.w": array()}, lambda name, struct: x, map=key_map()),
        rows,
    ),
    "reshard with a cast": (
        lambda x: meshard.reshard({"w": x}, meshard.devices()[0], dtype="float32"),
        array,
    ),
    "reshard_iter with a cast": (
        lambda x: list(meshard.resharding.reshard_iter([x], meshard.devices()[0], dtype="float32")),
        array,
    ),
    "elastic.grow among two": (among_two(elastic.grow), lambda: 0),
    "elastic.plan_publish to a function's shardings": (
        lambda x: elastic.plan_publish(structs(), lambda name, struct: x, topology="one process"),
        other_rows,
    ),
    "elastic.plan_publish of a leaf": (
        lambda x: elastic.plan_publish({"w": x}, other_rows(), topology="one process"),
        lambda: structs()["w"],
    ),
    "elastic.protect of a leaf": (
        lambda x: opened(elastic.protect({"w": array(), "x": x})),
        array,
    ),
    "elastic.protect among two": (
        among_two(lambda x: elastic.protect({"w": mnp.ones(4), "x": 3}, x)),
        lambda: 1,
    ),
    "elastic.publish of a leaf": (
        lambda x: opened(elastic.publish(f"published {next(NUMBERS)}", {"w": array(), "x": x})),
        array,
    ),
    "elastic.recover among two": (among_two(elastic.recover), lambda: 5.0),
    "elastic.restore of a leaf": (
        lambda x: elastic.restore({"x": x}, meshard.devices()[0]),
        array,
    ),
    "elastic.restore to a leaf": (lambda x: elastic.restore({"x": array()}, {"x": x}), rows),
    "elastic.restore of what is protected": (
        lambda x: elastic.restore(protected(), x),
        rows_of_tree,
    ),
    "elastic.simulate_loss to what a function returns": (
        lambda x: elastic.simulate_loss(structs(), lambda devices: x, [1]),
        lambda: whole_rows(virtual_devices(4, 1)[:1]),
    ),
    "elastic.simulate_loss of some": (
        lambda x: elastic.simulate_loss(structs(), whole_rows, [x]),
        lambda: 1,
    ),
    "elastic.subscribe to a leaf": (
        lambda x: opened(elastic.subscribe(publisher().name, {"w": x, "b": None}, timeout=5.0)),
        rows,
    ),
    "elastic.subscribe with a function's shardings": (
        lambda x: opened(elastic.subscribe(publisher().name, lambda name, struct: x, timeout=5.0)),
        lambda: meshard.devices()[0],
    ),
    "elastic.mesh of a size": (lambda x: elastic.mesh({"x": x, "y": None}), lambda: 2),
    "elastic.mesh with a wish": (lambda x: elastic.mesh(("x", "y"), {"x": x}), lambda: 2),
    "P[i]": (lambda i: P("x", None)[i], lambda: 1),
    "P + entries": (lambda other: P("x") + other, lambda: ("y",)),
    "entries + P": (lambda other: other + P("x"), lambda: ("y",)),
    "x in P": (lambda entry: entry in P("x"), lambda: "x"),
}

CALLS = {c.name: c for c in public_calls()} | {
    name: Call(name, run, ("value",), frozenset({"value"}), frozenset())
    for name, (run, _) in MORE.items()
}
SPECIAL |= {name: {"value": value} for name, (_, value) in MORE.items()}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test where files do no harm, and leave the settings as they were."""
    monkeypatch.chdir(tmp_path)
    before = {s: s.value for s in SETTINGS.values()}
    RENDEZVOUS.value = str(tmp_path / "names")
    yield
    close_all()
    for setting, value in before.items():
        setting.value = value


def arrays_in(arguments: dict[str, Any]) -> list[tuple[str, meshard.Array, Any]]:
    """Return each array among the leaves of arguments, with its values."""
    found = []
    for name, value in arguments.items():
        for leaf in value if isinstance(value, list) else [value]:
            if isinstance(leaf, meshard.Array):
                found.append((name, leaf, np.asarray(leaf).copy()))
    return found


def ten_operations() -> None:
    """Run ten operations of several kinds, and check what they give."""
    x = values()
    a = meshard.device_put(x, rows())
    moved = meshard.reshard(a, columns())
    parts = meshard.resharding.split_by_mesh_axis(a, "x", 2)
    joined = meshard.resharding.concatenate_by_mesh_axis(parts, "x")
    doubled = meshard.jit(lambda v: 2 * v)(a)
    local = meshard.shard_map(lambda v: v - 1, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))
    for found, expected in (
        (a, x),
        (moved, x),
        (joined, x),
        (doubled, 2 * x),
        (local(a), x - 1),
        (mnp.sum(moved, axis=0), x.sum(0)),
        (a @ a.T, x @ x.T),
        (mnp.concatenate([a, moved]), np.concatenate([x, x])),
        (a[2:5], x[2:5]),
        (mnp.sort(-a, axis=1), np.sort(-x, axis=1)),
    ):
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_valid_arguments(name: str) -> None:
    alone(lambda: CALLS[name](CALLS[name].arguments()))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_an_odd_value_succeeds_or_is_refused_by_name(name: str) -> None:
    threads = set(threading.enumerate())
    wrong = alone(lambda: complaints(CALLS[name]))
    new = set(threading.enumerate()) - threads
    wrong += [f"a thread was left: {t}" for t in new if not t.name.startswith(ZARRS_THREADS)]
    wrong += [f"a file was left: {p}" for p in Path.cwd().iterdir() if p.name not in FILES]
    wrong += [f"a name was left: {p}" for p in Path(RENDEZVOUS.value or "").glob("=*")]
    assert not wrong, f"{len(wrong)} odd calls of {name}:\n" + "\n".join(wrong)


ALWAYS = ("None", "nan", "10**30", "-1", "'x'", "{}", "object()", "list of itself", "Array")
THOROUGH = settings().max_examples > 1000


def chosen(argument: str) -> list[tuple[str, Callable[[], Any]]]:
    """Return the odd values that an argument is given: some always, of the others a third.

    Which third depends on the argument, so that each value meets many functions. With Hypothesis's
    profile "thorough" they are all.
    """
    return [
        (odd, make)
        for odd, make in ODD.items()
        if THOROUGH or odd in ALWAYS or zlib.crc32(f"{argument} {odd}".encode()) % 3 == 0
    ]


def complaints(tried: Call) -> list[str]:
    """Return what is wrong with the odd calls of one public call."""
    wrong: list[str] = []
    for parameter in tried.parameters:
        allowed = (OSError,) if parameter in OS_ERRORS else ()
        for odd, make in chosen(f"{tried.name} {parameter}"):
            arguments = tried.arguments()
            before = arrays_in({k: v for k, v in arguments.items() if k != parameter})
            refused: list[bool] = []
            arguments[parameter] = make()

            def run(arguments: dict[str, Any] = arguments, refused: list[bool] = refused) -> None:
                refused.append(True)
                tried(arguments)
                refused.clear()

            found = complaint(run, allowed)
            if found is not None:
                wrong.append(f"{parameter}={odd}: {found}")
            elif refused:
                wrong += [
                    f"{parameter}={odd}: the array given as {k} is not what it was"
                    for k, x, value in before
                    if x.is_deleted() or not np.array_equal(np.asarray(x), value)
                ]
    wrong += [f"something protected was left: {name}" for name in here().protected]
    ten_operations()
    return wrong


# Odd values that decide themselves what `==` with them means.
REFUSES_EQUALITY = {"meshard.gda.GlobalDeviceArray"}  # and says what to write
COMPARES = {"Array", "Array of no dims", "Array that was deleted"}


@pytest.mark.parametrize("name", [name for name in INSTANCES if name not in REFUSES_EQUALITY])
def test_anything_may_be_compared_with_a_value_of_meshard(name: str) -> None:
    def body() -> None:
        value = INSTANCES[name]()
        for odd, make in ODD.items():
            if odd in COMPARES:
                continue
            other = make()
            for equal in (value == other, other == value):
                assert equal is not True or type(other) is type(value), f"{name} == {odd}"
            assert (value != other) is not False or type(other) is type(value), f"{name} != {odd}"
        assert value == value
        with contextlib.suppress(TypeError):  # some are records that can change
            assert hash(value) == hash(value)

    alone(body)
