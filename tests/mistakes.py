"""The newcomer's mistakes: what people write who come from NumPy or JAX, as short scripts.

`python -m tests.mistakes` runs each and prints what its author sees; with words after it,
those that have these words in their name. `tests/test_mistakes.py` holds what must be in it.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SET_UP = """
import numpy as np
import meshard
import meshard.numpy as mnp
from meshard import lax, nn, random
from meshard.sharding import BoxSharding, Mesh, NamedSharding, PartitionSpec as P

mesh = meshard.make_mesh((4, 2), ("data", "model"))
rows = NamedSharding(mesh, P("data"))
x = meshard.device_put(np.arange(8.0), rows)
m = meshard.device_put(np.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("data", "model")))
def over(f, in_specs=P("data"), out_specs=P("data"), **options):
    return meshard.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
"""
"""What each script begins with; its lines are not counted."""


@dataclass(frozen=True)
class Mistake:
    """One mistake: a script, and what its author is told.

    Attributes:
        name: what was done, in a few words.
        script: the lines.
        kind: the name of the error's class.
        words: what the message must say.
    """

    name: str
    script: str
    kind: str
    words: tuple[str, ...]

    @property
    def file(self) -> str:
        """The script's file, as tracebacks name it."""
        return f"{self.name.replace(' ', '_').replace('/', '_')}.py"

    def run(self) -> BaseException | None:
        """Run the script in the folder at hand; return what it raises."""
        source = textwrap.dedent(self.script).strip() + "\n"
        linecache.cache[self.file] = (len(source), None, source.splitlines(True), self.file)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(SET_UP, names)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, self.file, "exec"), names)
        except Exception as error:
            trace = error.__traceback__
            return error.with_traceback(trace.tb_next if trace else None)
        return None


MISTAKES: list[Mistake] = []


def mistake(name: str, script: str, kind: str, *words: str) -> None:
    """Add a mistake to the list."""
    assert name not in {known.name for known in MISTAKES}, name
    MISTAKES.append(Mistake(name, script, kind, words))


# --- devices and meshes

mistake(
    "a mesh of more devices than there are",
    'meshard.make_mesh((16, 16), ("data", "model"))',
    "ArgumentError",
    "needs 256 devices",
    "MESHARD_NUM_DEVICES=256",
)
mistake(
    "num_devices after first use",
    'meshard.config.update("num_devices", 16)',
    "ConfigError",
    "after the devices had been made",
    "MESHARD_NUM_DEVICES=16",
)
mistake(
    "a mesh of a list of numbers",
    'Mesh([0, 1, 2, 3], ("data",))',
    "ShardingError",
    "meshard.devices()",
)
mistake(
    "a mesh with too few names",
    'Mesh(np.array(meshard.devices()).reshape(4, 2), ("data",))',
    "ShardingError",
    "axis_names",
)
mistake(
    "a mesh with one name twice",
    'meshard.make_mesh((4, 2), ("data", "data"))',
    "ShardingError",
    "'data'",
)
mistake(
    "make_mesh with the names first",
    'meshard.make_mesh(("data", "model"), (4, 2))',
    "ArgumentError",
    "the sizes come first",
)
mistake(
    "make_mesh without names",
    "meshard.make_mesh((4, 2))",
    "TypeError",
    "axis_names",
)
mistake(
    "asking for GPUs",
    'meshard.devices("gpu")',
    "ConfigError",
    "'gpu'",
    "use 'cpu'",
)
mistake(
    "an axis of the mesh misspelt",
    'mesh.shape["modle"]',
    "KeyError",
    "modle",
)

# --- specs and shardings

mistake(
    "an axis misspelt in a spec",
    'NamedSharding(mesh, P("data", "modle"))',
    "SpecError",
    "'modle'",
    "Did you mean 'model'?",
)
mistake(
    "an axis used twice in a spec",
    'NamedSharding(mesh, P("data", "data"))',
    "SpecError",
    "'data'",
    "at most one dim",
)
mistake(
    "a spec longer than the rank",
    'meshard.device_put(np.ones(8), NamedSharding(mesh, P("data", "model")))',
    "SpecError",
    "rank at least 2",
    "Remove entries",
)
mistake(
    "mesh and spec swapped",
    'NamedSharding(P("data"), mesh)',
    "ShardingError",
    "swapped",
    "NamedSharding(mesh, P('data',))",
)
mistake(
    "a tuple for a spec",
    'NamedSharding(mesh, ("data", None))',
    "ShardingError",
    "Write P('data', None).",
)
mistake(
    "a string for a spec",
    'NamedSharding(mesh, "data")',
    "ShardingError",
    "Write P('data').",
)
mistake(
    "a number in a spec",
    "P(0)",
    "SpecError",
    "axis name",
)
mistake(
    "a size that does not divide",
    "meshard.device_put(np.ones(10), rows)",
    "IndivisibleError",
    "divisible by 4",
    "uneven='balanced'",
)
mistake(
    "a dim smaller than its axis",
    "meshard.device_put(np.ones(3), rows)",
    "IndivisibleError",
    "Pad the dim to 4",
)
mistake(
    "uneven misspelt",
    'NamedSharding(mesh, P("data"), uneven="balancd")',
    "ShardingError",
    "Did you mean 'balanced'?",
)
mistake(
    "changing a sharding",
    'rows.spec = P("model")',
    "AttributeError",
    "cannot be set",
)
mistake(
    "boxes that leave a gap",
    """
    d = meshard.devices()
    BoxSharding((8,), {d[0]: (slice(0, 3),), d[1]: (slice(4, 8),)})
    """,
    "CoverageError",
    "[3:4]",
)

# --- placing

mistake(
    "device_put with a bare spec and no mesh",
    'meshard.device_put(np.ones(8), P("data"))',
    "ShardingError",
    "needs a mesh",
    "NamedSharding(mesh, P('data',))",
)
mistake(
    "device_put with a mesh",
    "meshard.device_put(np.ones(8), mesh)",
    "ArgumentError",
    "NamedSharding(mesh, P('data'))",
)
mistake(
    "device_put on the name of a device",
    'meshard.device_put(np.ones(8), "cpu:0")',
    "ArgumentError",
    "meshard.devices()",
)
mistake(
    "device_put with the arguments swapped",
    "meshard.device_put(rows, np.ones(8))",
    "ArgumentError",
    "device_put(x, sharding)",
)
mistake(
    "device_put of strings",
    'meshard.device_put(np.array(["a", "b"]), rows)',
    "DtypeError",
    "dtype",
)
mistake(
    "device_put of objects",
    "mnp.array([1, None])",
    "DtypeError",
    "nested lists of numbers",
)
mistake(
    "a ragged list as an array",
    "mnp.array([[1, 2], [3]])",
    "ShapeError",
    "array",
)
mistake(
    "a callback that returns the whole array",
    """
    whole = np.ones(8)
    meshard.make_array_from_callback((8,), rows, lambda index: whole)
    """,
    "ShardingError",
    "expected shard shape (2,)",
    "(8,)",
)
mistake(
    "a callback that fails",
    """
    def read(index):
        return {}["no such file"]
    meshard.make_array_from_callback((8,), rows, read)
    """,
    "KeyError",
    "no such file",
)
mistake(
    "single pieces in another number",
    """
    pieces = [meshard.device_put(np.ones(2), d) for d in meshard.devices()[:4]]
    meshard.make_array_from_single_device_arrays((8,), rows, pieces)
    """,
    "ShardingError",
    "8",
)
mistake(
    "arrays on different devices",
    """
    a = meshard.device_put(np.ones(4), meshard.devices()[0])
    b = meshard.device_put(np.ones(4), meshard.devices()[1])
    a + b
    """,
    "IncompatibleDevicesError",
    "committed to devices [0]",
    "meshard.device_put(x, sharding)",
)
mistake(
    "use after donation",
    """
    y = meshard.reshard(x, NamedSharding(mesh, P()), donate=True)
    x.sum()
    """,
    "DeletedArrayError",
    "was donated to reshard at use_after_donation.py:1",
)
mistake(
    "use after delete",
    """
    x.delete()
    x.sum()
    """,
    "DeletedArrayError",
    "delete() at use_after_delete.py:1",
)

# --- NumPy's habits

mistake("writing into an array", "x[0] = 1.0", "ArgumentError", "immutable", "x.at[index].set(y)")
mistake("out= of a function", "mnp.add(x, x, out=x)", "TypeError", "out")
mistake(
    "shapes that do not broadcast",
    "mnp.ones((2, 3)) + mnp.ones(4)",
    "ShapeError",
    "incompatible shapes",
)
mistake(
    "a product of shapes that do not fit",
    "mnp.ones((2, 3)) @ mnp.ones((2, 3))",
    "ShapeError",
    "(2, 3)",
)
mistake("reshape to another size", "x.reshape(3, 3)", "ShapeError", "(3, 3)", "8")
mistake("an axis beyond the rank", "mnp.sum(x, axis=1)", "DimError", "axis 1 is out of bounds")
mistake("a float as an axis", "mnp.sum(m, axis=1.0)", "ArgumentError", "axis", "integer")
mistake("a float as a size", "mnp.zeros(8 / 2)", "ShapeError", "Divide integers by //")
mistake("sizes as two arguments", "mnp.zeros(3, 4)", "DtypeError", "zeros((3, 4))")
mistake("a dtype misspelt", 'mnp.zeros(3, "flaot32")', "DtypeError", "Did you mean 'float32'?")
mistake(
    "a dtype of another library",
    'mnp.zeros(3, dtype="torch.float32")',
    "DtypeError",
    "torch.float32",
)
mistake("an index beyond the end", "x[9]", "IndexingError", "out of bounds", "8")
mistake("more indices than dims", "x[0, 0]", "IndexingError", "dim")
mistake("a float as an index", "x[1.0]", "IndexingError", "1.0")
mistake("a string as an index", 'x["a"]', "IndexingError", "'a'")
mistake(
    "the truth of an array",
    "if x > 0:\n    pass",
    "ArgumentError",
    "8 elements is ambiguous",
    "x.any()",
)
mistake("float of an array", "float(x)", "ArgumentError", "8")
mistake("and between arrays", "(x > 0) and (x < 3)", "ArgumentError", "ambiguous")
mistake("an array as a key", "{x: 1}", "ArgumentError", "unhashable", "id(x)")
mistake("an array plus a list", "x + [1, 2, 3]", "ArgumentError", "meshard.numpy.asarray")
mistake("x.numpy()", "x.numpy()", "AttributeError", "np.asarray(x)")
mistake("x.append", "x.append(3)", "AttributeError", "meshard.numpy.append(x, values)")
mistake(
    "a function that NumPy has and meshard has not",
    "mnp.nditer(x)",
    "AttributeError",
    "NumPy has numpy.nditer",
)
mistake(
    "a function misspelt",
    "mnp.concatanate([x, x])",
    "AttributeError",
    "Did you mean 'concatenate'",
)
mistake("concatenate without a list", "mnp.concatenate(x, x)", "ArgumentError", "concatenate")
mistake("concatenate of different ranks", "mnp.concatenate([x, m])", "ShapeError", "concatenate")
mistake("stack of different shapes", "mnp.stack([x, x[:4]])", "ShapeError", "stack")
mistake(
    "an integer that does not fit", 'mnp.zeros(3, "int8") + 300', "OutOfRangeError", "300", "int8"
)
mistake("bits of floats", "x & 1", "DtypeError", "float64")
mistake("max of nothing", "mnp.max(mnp.zeros(0))", "ShapeError", "the max of no elements")
mistake("a singular matrix", "mnp.linalg.inv(mnp.zeros((2, 2)))", "LinAlgError", "singular")
mistake(
    "einsum with a letter that is nowhere",
    'mnp.einsum("ij->ik", m)',
    "ShapeError",
    "'k' did not appear",
)
mistake("einsum of another rank", 'mnp.einsum("ijk->i", m)', "ShapeError", "3 letters for 2 dims")
mistake(
    "a mode misspelt", 'mnp.pad(x, 1, mode="reflekt")', "ArgumentError", "Did you mean 'reflect'?"
)
mistake("squeeze of a dim of size 8", "mnp.squeeze(x, axis=0)", "ShapeError", "not one")
mistake("split into parts that are not equal", "mnp.split(x, 3)", "ShapeError", "array_split")
mistake("where with one argument more", "mnp.where(x > 0, 1)", "ArgumentError", "give both x and y")
mistake("arange without end", "mnp.arange()", "TypeError", "arange")

# --- random

mistake("random.normal without a key", "random.normal((3,))", "DtypeError", "random.key(seed)")
mistake("NumPy's seed", "random.seed(0)", "AttributeError", "random.key(seed)")
mistake("a seed that is a float", "random.key(0.5)", "DtypeError", "a seed must be an integer")
mistake("a number as a key", "random.normal(0, (3,))", "DtypeError", "random.key(seed)")
mistake("keys added", "random.key(0) + 1", "DtypeError", "key")

# --- jit

mistake(
    "if on a traced value",
    """
    @meshard.jit
    def f(x):
        if x.sum() > 0:
            return x
        return -x
    f(x)
    """,
    "ConcretizationError",
    "jit of 'f'",
    "lax.cond",
    "if_on_a_traced_value.py:3",
)
mistake(
    "while on a traced value",
    """
    @meshard.jit
    def f(x):
        while x > 1:
            x = x / 2
        return x
    f(8.0)
    """,
    "ConcretizationError",
    "lax.while_loop",
)
mistake(
    "range of a traced value",
    "meshard.jit(lambda n: [0 for i in range(n)])(3)",
    "ConcretizationError",
    "static_argnums",
)
mistake(
    "float of a traced value",
    "meshard.jit(lambda x: float(x.sum()))(x)",
    "ConcretizationError",
    "float()",
)
mistake(
    "NumPy on a traced value",
    "meshard.jit(lambda x: np.asarray(x).sum())(x)",
    "ConcretizationError",
    "NumPy",
)
mistake(
    "a shape from a traced value",
    "meshard.jit(lambda n: mnp.zeros(n))(3)",
    "ConcretizationError",
    "static_argnums",
)
mistake(
    "a mask as an index in jit",
    "meshard.jit(lambda x: x[x > 3])(x)",
    "ConcretizationError",
    "meshard.numpy.where",
)
mistake(
    "a traced value that has escaped",
    """
    kept = []
    meshard.jit(lambda x: kept.append(x))(x)
    kept[0] + 1
    """,
    "ConcretizationError",
    "jit",
)
mistake(
    "a static argument that is a list",
    "meshard.jit(lambda x, n: x, static_argnums=1)(x, [1, 2])",
    "ArgumentError",
    "hash",
)
mistake(
    "a static argument that does not exist",
    'meshard.jit(lambda x, flag: x, static_argnames="flagg")(x, flag=1)',
    "ArgumentError",
    "Did you mean 'flag'?",
)
mistake(
    "a string to a jitted function",
    'meshard.jit(lambda x: x)("a")',
    "ArgumentError",
    "static_argnums",
)
mistake("jit of a value", "meshard.jit(x)", "ArgumentError", "function")
mistake("a result that is a string", 'meshard.jit(lambda x: "done")(x)', "ArgumentError", "'done'")
mistake(
    "in_shardings of another number",
    "meshard.jit(lambda x, y: x + y, in_shardings=(rows,))(x, x)",
    "TreeError",
    "in_shardings",
)
mistake(
    "an argument committed elsewhere than in_shardings",
    'meshard.jit(lambda x: x, in_shardings=(NamedSharding(mesh, P("model")),))(x)',
    "ShardingError",
    "in_shardings",
)
mistake("a gradient of an array", "meshard.grad(lambda x: x)(x)", "ShapeError", "one number")
mistake("a gradient of integers", "meshard.grad(lambda x: x * 2.0)(3)", "DtypeError", "floats")
mistake(
    "a gradient by NumPy",
    "meshard.grad(lambda x: np.asarray(x).sum())(x)",
    "ConcretizationError",
    "no derivative",
)
mistake("vmap of different sizes", "meshard.vmap(mnp.add)(x, x[:1])", "ShapeError", "sizes")
mistake("vmap of a number", "meshard.vmap(mnp.sin)(1.0)", "ShapeError", "rank")
mistake("pmap", "meshard.pmap(lambda x: x)", "AttributeError", "shard_map")

# --- shard_map

mistake(
    "a collective outside of shard_map",
    'lax.psum(x, "data")',
    "AxisNameError",
    "outside of shard_map",
)
mistake(
    "axis_index outside of shard_map",
    'lax.axis_index("data")',
    "AxisNameError",
    "outside of shard_map",
)
mistake(
    "an axis misspelt in a collective",
    'over(lambda t: lax.psum(t, "dta"))(x)',
    "AxisNameError",
    "Did you mean 'data'?",
)
mistake(
    "an axis misspelt in in_specs",
    'over(lambda t: t, in_specs=P("dat"))(x)',
    "SpecError",
    "Did you mean 'data'?",
)
mistake(
    "shard_map of a size that does not divide",
    "over(lambda t: t)(mnp.ones(6))",
    "IndivisibleError",
    "Pad the dim by 2",
)
mistake(
    "out_specs that claim replication",
    "over(lambda t: t, out_specs=P())(x)",
    "ReplicationError",
    "lax.psum",
)
mistake("out_specs of a scalar", "over(lambda t: t.sum())(x)", "SpecError", "rank 0", "x[None]")
mistake(
    "out_specs of another number",
    "over(lambda t: t, out_specs=(P(), P()))(x)",
    "TreeError",
    "out_specs",
)
mistake(
    "in_specs of another number",
    'over(lambda a, b: a, in_specs=(P("data"),))(x, x)',
    "TreeError",
    "in_specs",
)
mistake(
    "in_specs longer than the rank",
    'over(lambda t: t, in_specs=P("data", "model"))(x)',
    "SpecError",
    "in_specs",
)
mistake(
    "shard_map without a mesh",
    'meshard.shard_map(lambda t: t, in_specs=P("data"), out_specs=P("data"))(x)',
    "ShardingError",
    "Pass mesh=",
)
mistake(
    "shard_map without specs",
    "meshard.shard_map(lambda t: t, mesh=mesh)",
    "ArgumentError",
    "out_specs is missing",
)
mistake(
    "if in a body",
    "over(lambda t: t if t.sum() > 0 else -t)(x)",
    "ConcretizationError",
    "each device has its own",
)
mistake(
    "ppermute with a source twice",
    'over(lambda t: lax.ppermute(t, "data", [(0, 1), (0, 2)]))(x)',
    "ArgumentError",
    "unique",
)
mistake(
    "ppermute beyond the axis",
    'over(lambda t: lax.ppermute(t, "data", [(0, 4)]))(x)',
    "IndexingError",
    "position 4",
)
mistake(
    "a body that thinks it has the whole",
    "over(lambda t: t.reshape(8))(x)",
    "ShapeError",
    "(2,)",
)
mistake(
    "all_to_all of a dim that does not divide",
    'over(lambda t: lax.all_to_all(t, "data", 0, 0, tiled=True))(x)',
    "ShapeError",
    "divisible",
)
mistake(
    "a body that closes over a sharded array",
    "over(lambda t: t + x)(x)",
    "ShapeError",
    "(2,), (8,)",
)

# --- control flow

mistake(
    "cond with branches of different shapes",
    "lax.cond(True, lambda x: x, lambda x: x[:2], x)",
    "ArgumentError",
    "float64[2]",
)
mistake(
    "a carry that changes its shape",
    "lax.scan(lambda c, v: (c[:1], v), x, x)",
    "ArgumentError",
    "carry",
)
mistake(
    "a scan whose body returns one value",
    "lax.scan(lambda c, v: c + v, 0.0, x)",
    "ArgumentError",
    "scan",
)
mistake(
    "fori_loop with the body first",
    "lax.fori_loop(lambda i, c: c, 0, 3, x)",
    "ArgumentError",
    "fori_loop",
)
mistake(
    "while_loop whose condition is an array",
    "lax.while_loop(lambda c: c > 0, lambda c: c - 1, x)",
    "ArgumentError",
    "while_loop",
)

# --- resharding, plans, budgets

mistake("reshard to a bare spec", 'meshard.reshard(x, P("model"))', "ShardingError", "needs a mesh")
mistake(
    "a tree of shardings with a key misspelt",
    'meshard.reshard({"weight": x}, {"wieght": rows})',
    "TreeError",
    "'wieght'",
    "'weight'",
)
mistake("reshard of a list of numbers", "meshard.reshard([1, 2], rows)", "SpecError", "rank 0")
mistake(
    "a topology misspelt",
    'meshard.resharding.topology("8-gpu host")',
    "ArgumentError",
    "Did you mean '8-gpu hosts'?",
)
mistake(
    "a plan on a topology that does not exist",
    'meshard.plan_reshard(x, rows).simulate("infiniband")',
    "ArgumentError",
    "8-gpu hosts",
)
mistake(
    "max_bytes as a float", "meshard.reshard(x, rows, max_bytes=1.5)", "ArgumentError", "max_bytes"
)
mistake(
    "beyond the budget", "with meshard.debug.budget(0):\n    x.sum()", "BudgetError", "all-reduce"
)
mistake(
    "a budget of words", 'with meshard.debug.budget("a few"):\n    pass', "ArgumentError", "10 MB"
)

# --- checkpoints

mistake(
    "a checkpoint that is not there",
    'meshard.checkpoint.load("model.ckpt")',
    "MissingFileError",
    "model.ckpt",
)
mistake(
    "saving over a checkpoint",
    'meshard.checkpoint.save("run", {"w": x})\nmeshard.checkpoint.save("run", {"w": x})',
    "FileInUseError",
    "overwrite=True",
)
mistake(
    "loading a name that is not in it",
    """
    meshard.checkpoint.save("weights", {"weight": x})
    meshard.checkpoint.load("weights", like={"wieght": x})
    """,
    "CheckpointError",
    "Did you mean 'weight'?",
)
mistake(
    "loading another shape",
    """
    meshard.checkpoint.save("shapes", {"w": x})
    meshard.checkpoint.load("shapes", like={"w": m})
    """,
    "CheckpointError",
    "(8, 8)",
)
mistake(
    "loading a pickle",
    """
    import pathlib, pickle
    pathlib.Path("model.pt").write_bytes(pickle.dumps({"w": 1}))
    meshard.checkpoint.load("model.pt")
    """,
    "CheckpointError",
    "pickle",
)
mistake(
    "saving a function",
    'meshard.checkpoint.save("s", {"w": lambda: 0})',
    "CheckpointError",
    "'w' is a function",
)
mistake(
    "a template misspelt",
    'meshard.checkpoint.template("lama")',
    "KeyMapError",
    "Did you mean 'llama'?",
)

# --- settings, and what is elsewhere

mistake(
    "a setting misspelt",
    'meshard.config.update("num_device", 8)',
    "ConfigError",
    "Did you mean 'num_devices'?",
)
mistake(
    "a value of a setting misspelt",
    'meshard.config.update("default_float", "float23")',
    "ArgumentError",
    "Did you mean 'float32'",
)
mistake(
    "x64 of JAX", 'meshard.config.update("jax_enable_x64", True)', "ConfigError", "settings are"
)
mistake("a module misspelt", "meshard.ramdom", "AttributeError", "Did you mean 'random'?")
mistake("tree_map", "meshard.tree_map(lambda v: v, {})", "AttributeError", "meshard.tree.map")
mistake(
    "trees of different keys",
    'meshard.tree.map(lambda a, b: a + b, {"w": 1}, {"v": 2})',
    "TreeError",
    "'w'",
)
mistake("an option misspelt", "mnp.sum(x, axes=0)", "TypeError", "axes")
mistake(
    "a tree with a list for a tuple", "meshard.tree.map(max, (1, 2), [1, 2])", "TreeError", "tuple"
)
mistake(
    "donating the same array twice",
    "meshard.jit(lambda a, b: a + b, donate_argnums=(0, 1))(x, x)",
    "ArgumentError",
    "donate",
)
mistake("a plan to a spec", 'meshard.plan_reshard(x, P("model"))', "ShardingError", "needs a mesh")
mistake(
    "reading settings that are not there",
    'meshard.config.read("devices")',
    "ConfigError",
    "num_devices",
)
mistake("at without set", "x.at[0] = 1.0", "ArgumentError", "x.at[index].set(y)")
mistake(
    "at of an option misspelt",
    "x.at[0].set(1.0, unique_indice=True)",
    "ArgumentError",
    "Did you mean 'unique_indices'?",
)
mistake(
    "a sharding for one of two arrays",
    'meshard.reshard({"w": x, "b": x}, {"w": rows})',
    "TreeError",
    "'b'",
)
mistake(
    "memory of a GPU",
    'NamedSharding(mesh, P(), memory_kind="devcie")',
    "ArgumentError",
    "Did you mean 'device'?",
)
mistake(
    "with_sharding_constraint of an axis misspelt",
    'lax.with_sharding_constraint(x, NamedSharding(mesh, P("modell")))',
    "SpecError",
    "Did you mean 'model'?",
)
mistake("an operand of another library", "x + {1, 2}", "ArgumentError", "a set")

# --- several processes, simulated: each program is what `mpiexec` would run

_MAKE = """
from meshard.testing import simulate
def program():
    shards = NamedSharding(meshard.make_mesh((4,), ("data",)), P("data"))
    x = meshard.make_array_from_callback((8,), shards, lambda index: np.ones(2))
"""


def mistake_of_processes(name: str, lines: str, kind: str, *words: str) -> None:
    """Add a mistake that two processes make, of what they do with an array that they share."""
    script = f"{_MAKE}{textwrap.indent(textwrap.dedent(lines), '    ')}\nsimulate(2, 2, program)\n"
    mistake(name, script, kind, *words)


mistake_of_processes(
    "one process alone computes",
    """
    if meshard.process_index() == 0:
        print(x.sum())
    x.max()
    """,
    "AgreementError",
    "process 0 ran `sum`",
    "process 1 ran `max`",
    "one_process_alone_computes.py:7",
)
mistake_of_processes(
    "reading what another process holds",
    "np.asarray(x)",
    "NotAddressableError",
    "process_allgather",
)
mistake_of_processes(
    "other values on each process",
    "meshard.device_put(np.full(8, meshard.process_index()), shards)",
    "UnequalError",
    "make_array_from_process_local_data",
    "broadcast_one_to_all",
)
mistake_of_processes(
    "a failure of one process",
    """
    if meshard.process_index() == 0:
        {}["no such key"]
    x.sum()
    """,
    "KeyError",
    "no such key",
)
mistake_of_processes(
    "a device of another process",
    "meshard.device_put(np.ones(3), meshard.devices()[0]).tolist()",
    "NotAddressableError",
    "is on process 0",
)


def printed(found: BaseException) -> str:
    """Return what the interpreter prints for an error that nobody catches."""
    return "".join(traceback.format_exception(found)).rstrip()


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Run scripts in a folder of their own, and without NumPy's warnings."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def main(words: list[str]) -> None:
    """Print each mistake with the message that it gets."""
    chosen = [found for found in MISTAKES if all(word in found.name for word in words)]
    with elsewhere():
        for number, found in enumerate(chosen, 1):
            error = found.run()
            print(f"--- {number}. {found.name}\n")
            print("nothing was raised" if error is None else printed(error), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
