"""The small pictures of the home page, each made by what it shows."""

from __future__ import annotations

import meshard
import meshard.numpy as mnp
from machinery import gallery_pictures, programs
from machinery.charts import bars
from meshard import debug
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P


def bytes_moved(a: meshard.Array) -> str:
    """Return the bytes that a product moves, for three layouts of its second operand."""
    mesh, amounts = a.sharding.mesh, {}
    for spec in (P("y"), P("x"), P(None, "x")):
        w = meshard.ShapeDtypeStruct((16, 64), a.dtype, sharding=NamedSharding(mesh, spec))
        amounts[f"a @ w, w by {spec}"] = meshard.explain(mnp.matmul, a, w).total_bytes
    return bars(amounts, "Bytes that a product moves, by the layout of an operand", "bytes")


def flow(mesh: Mesh) -> str:
    """Return a move from one layout to another: before, what flows, after."""
    x = meshard.device_put(mnp.ones((32, 32)), NamedSharding(mesh, P("x", "y")))
    return meshard.plan_reshard(x, NamedSharding(mesh, P("y", "x"))).to_svg()


def loaded(mesh: Mesh) -> str:
    """Return how a checkpoint may be loaded."""
    return debug.sharding_svg((16, 16), NamedSharding(mesh, P(None, ("x", "y"))))


def result(name: str) -> str:
    """Return the picture of a program of the gallery."""
    return getattr(gallery_pictures, name)(programs.load(name))
