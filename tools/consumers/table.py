"""What scikit-learn and SciPy do with sharded arrays: `python -m tools.consumers.table`.

Each call of ``sklearn.txt`` and ``scipy.txt``, a name and an expression, is run on NumPy's arrays,
and on the same ones split over a 4 x 2 mesh with uneven rows, within `meshard.numpy.writeable`. A
row says whether the results agree, how the result is laid out, the bytes that the ledger counted
as a multiple of the arrays', and the bytes that were put together on the host. Nothing of either
library is changed.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("SCIPY_ARRAY_API", "1")
os.environ.setdefault("MESHARD_NUM_DEVICES", "8")
os.environ.setdefault("JOBLIB_MULTIPROCESSING", "0")

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import array_api
from meshard.debug import ledger
from tools.consumers.data import ROWS, problem

Names = dict[str, Any]


def of_sklearn() -> Names:
    """Return the modules that the expressions of scikit-learn name."""
    from sklearn import (
        cluster,
        config_context,
        decomposition,
        discriminant_analysis,
        ensemble,
        kernel_approximation,
        linear_model,
        metrics,
        mixture,
        model_selection,
        naive_bayes,
        neighbors,
        pipeline,
        preprocessing,
        set_config,
        utils,
    )

    set_config(array_api_dispatch=True)

    def off(call: Callable[[], Any]) -> Any:
        with config_context(array_api_dispatch=False):
            return call()

    return {
        "pre": preprocessing,
        "dec": decomposition,
        "lin": linear_model,
        "lda": discriminant_analysis,
        "nb": naive_bayes,
        "mix": mixture,
        "ka": kernel_approximation,
        "pipe": pipeline,
        "ms": model_selection,
        "ut": utils,
        "met": metrics,
        "pw": metrics.pairwise,
        "clu": cluster,
        "nei": neighbors,
        "ens": ensemble,
        "off": off,
    }


def of_scipy() -> Names:
    """Return the modules that the expressions of SciPy name."""
    from scipy import (
        cluster,
        differentiate,
        fft,
        integrate,
        interpolate,
        linalg,
        ndimage,
        optimize,
        signal,
        spatial,
        special,
        stats,
    )
    from scipy.optimize import elementwise

    return {
        "st": stats,
        "sp": special,
        "vq": cluster.vq,
        "hier": cluster.hierarchy,
        "sig": signal,
        "fft": fft,
        "integ": integrate,
        "dif": differentiate,
        "opt": optimize,
        "oe": elementwise,
        "ndi": ndimage,
        "spa": spatial,
        "ip": interpolate,
        "la": linalg,
    }


def split(value: np.ndarray[Any, Any]) -> meshard.Array:
    """Return an array split over the mesh: rows over x, columns over y, unevenly."""
    mesh = meshard.make_mesh((4, 2), ("x", "y"))
    spec = meshard.P("x", "y") if value.ndim > 1 else meshard.P("x")
    return meshard.device_put(value, meshard.NamedSharding(mesh, spec, uneven="balanced"))


def calls(what: str) -> list[tuple[str, str]]:
    """Return names and expressions: the first 31 characters of a line, and the others."""
    lines = (Path(__file__).parent / f"{what}.txt").read_text().splitlines()
    return [(line[:31].strip(), line[31:]) for line in lines]


def leaves(found: Any) -> list[Any]:
    """Return the arrays of a result."""
    if isinstance(found, (tuple, list)):
        return [leaf for part in found for leaf in leaves(part)]
    return [found]


def laid_out(found: Any) -> str:
    """Return how the first array of a result is laid out."""
    first = leaves(found)[0]
    if not isinstance(first, meshard.Array):
        return type(first).__name__
    if not first.shape:
        return "scalar"
    sharding = first.sharding
    return str(getattr(sharding, "spec", "one device"))


def agrees(found: Any, known: Any) -> bool:
    """Whether two results hold the same values."""
    mine, theirs = leaves(found), leaves(known)
    return len(mine) == len(theirs) and all(
        np.shape(a) == np.shape(b)
        and np.allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-8, equal_nan=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def row(expression: str, names: Names, data: dict[str, Any]) -> SimpleNamespace:
    """Run one call on both kinds of arrays."""
    own = {
        "np": np,
        "ROWS": ROWS,
        "rng": lambda: np.random.default_rng(0),
    }
    used = [v for k, v in data.items() if re.search(rf"\b{k}\b", expression)]
    told = SimpleNamespace(ok=False, why="", layout="", moved=0, host=0)
    told.size = sum(v.nbytes for v in used)
    known = eval(expression, {**names, **own, **data, "asx": np.asarray})
    placed = {k: split(v) for k, v in data.items()}
    where = placed["X"].device
    asx = {"asx": lambda v: mnp.asarray(v, device=where)}
    with ledger() as log:
        try:
            with mnp.writeable():
                found = eval(expression, {**names, **own, **placed, **asx})
        except Exception as error:
            told.why = f"{type(error).__name__}: {error}".splitlines()[0]
            return told
        told.moved, told.host = log.total_bytes, sum(r.nbytes for r in log.to_host)
    told.ok, told.layout = agrees(found, known), laid_out(found)
    told.why = (
        "" if told.ok else f"{leaves(found)[0]!r} for {leaves(known)[0]!r}".replace("\n", "")[:300]
    )
    return told


def shown(name: str, told: SimpleNamespace, markdown: bool) -> str:
    """Return a line of the table."""
    ratio = f"{told.moved / told.size:.2f}" if told.ok and told.size else "-"
    if markdown:
        cells = (name, "yes" if told.ok else "no", told.layout or "-", ratio, f"{told.host:,}")
        return f"| {' | '.join(cells)} |"
    mark = "ok" if told.ok else "NO"
    return f"{mark} {name:31s} {told.layout:18s} {ratio:>7s} {told.host:>8,} {told.why[:200]}"


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["sklearn", "scipy"])
    parser.add_argument("-k", default="", help="only calls whose line has this")
    parser.add_argument("--markdown", action="store_true", help="print a table for a page")
    parser.add_argument("--register", action="store_true", help="call array_api.register() before")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    data = problem()
    for what in asked.what:
        names = {"sklearn": of_sklearn, "scipy": of_scipy}[what]()
        if asked.register:
            print(*array_api.register(), sep="\n")
        right = count = 0
        if asked.markdown:
            print(f"| {what} | right | result | moved | to the host |\n|-|-|-|-:|-:|")
        for name, expression in calls(what):
            if asked.k in name + expression:
                told = row(expression, names, data)
                right, count = right + told.ok, count + 1
                print(shown(name, told, asked.markdown), flush=True)
        print(f"\n{what}: {right} of {count} right", flush=True)


if __name__ == "__main__":
    main()
