"""How many calls an operation makes the second time, and how many public functions return `Any`.

In: the meshard that PYTHONPATH names; `bench/house.py` runs this file in an interpreter of its own.
Out: one line of JSON, a list of tables. Calls are counted by `sys.setprofile` in the thread that
calls; a thread of the pool is not seen, and the operands are small enough to need none.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

OPERATIONS_IN_BODY = 20
DOORS = (
    *("numpy", "numpy.linalg", "numpy.fft", "lax", "random", "nn", "sharding", "resharding"),
    *("debug", "tree", "config", "gda", "distributed", "multihost_utils", "experimental"),
)


class Counted:
    """Counts the calls of one run; a profiler for `sys.setprofile`."""

    def __init__(self) -> None:
        self.python = self.c = 0
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.python += 1
            name = frame.f_globals.get("__name__", "")
            if name.partition(".")[0] == "meshard":
                self.modules.add(name)
        elif event == "c_call":
            self.c += 1


def second_call(work: Callable[[], object]) -> tuple[int, int, int]:
    """Python calls, C calls and modules of meshard of the second run."""
    work()
    counted = Counted()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    # The lambda of the case is none of meshard's calls, nor is switching the profiler off.
    return counted.python - 1, counted.c - 1, len(counted.modules)


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """The operations that are counted, by title."""
    mesh = meshard.make_mesh((8,), ("i",))
    rows, columns = (NamedSharding(mesh, spec) for spec in (P("i"), P(None, "i")))
    host = np.arange(64.0).reshape(8, 8)
    x, y = meshard.device_put(host, rows), meshard.device_put(host, rows)

    def mapped(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return meshard.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"))

    def many(cell: Any) -> Any:
        for _ in range(OPERATIONS_IN_BODY // 5):
            cell = mnp.tanh(cell * 2.0 + 1.0)
            cell = cell - lax.psum(cell, "i")
        return cell

    summed = mapped(lambda cell: cell + lax.psum(cell, "i"))
    compiled = meshard.jit(lambda a, b: mnp.tanh(a @ b) + 1.0)
    jitted, long = meshard.jit(summed), meshard.jit(mapped(many))
    yield "x + y", lambda: x + y
    yield "device_put", lambda: meshard.device_put(host, rows)
    yield "reshard", lambda: meshard.reshard(x, columns)
    yield "shard_map(psum)", lambda: summed(x)
    yield "jit(f)", lambda: compiled(x, y)
    yield "jit(shard_map(psum))", lambda: jitted(x)
    yield f"jit(shard_map of {OPERATIONS_IN_BODY} operations)", lambda: long(x)


def doors() -> Iterator[ModuleType]:
    """The modules that users import from, as far as this tree has them."""
    yield meshard
    for door in DOORS:
        try:
            yield import_module(f"meshard.{door}")
        except ModuleNotFoundError:
            continue


def is_any(annotation: object) -> bool:
    """Whether an annotation, or a part of its union, is a bare `Any`."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return any(
        part.strip() in ("Any", "typing.Any") for part in re.sub(r"\[.*\]", "", text).split("|")
    )


def signatures(module: ModuleType) -> tuple[int, int, int]:
    """The functions of a door, those that return `Any`, and those that take it."""
    found = returns = takes = 0
    for name in module.__all__:
        function = getattr(module, name)
        if not inspect.isroutine(function):
            continue
        signature = inspect.signature(function)
        found += 1
        returns += is_any(signature.return_annotation)
        takes += any(is_any(p.annotation) for p in signature.parameters.values())
    return found, returns, takes


def main() -> None:
    """Print the tables."""
    calls = {title: second_call(work) for title, work in cases()}
    kinds = {module.__name__: signatures(module) for module in doors()}
    kinds = {name: counts for name, counts in kinds.items() if counts[0]}
    kinds["in all"] = tuple(map(sum, zip(*kinds.values(), strict=True)))
    tables = [
        ("Calls of the second time", ("Python", "C", "modules"), calls),
        ("Any in public signatures", ("functions", "return Any", "take Any"), kinds),
    ]
    print(json.dumps([dict(zip(("title", "headings", "rows"), t, strict=True)) for t in tables]))


if __name__ == "__main__":
    main()
