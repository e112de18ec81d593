"""What NumPy's functions give, in dtype, shape and value: of uneven arrays on a mesh, and jitted.

The calls are those of `tests.numpy_expressions`, with arrays of dtypes that are drawn. None of the
functions may bring an array together: of arrays that are large enough no device receives more
than a few times its share.
"""

from __future__ import annotations

import os
import warnings
import zlib
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.sharding import NamedSharding, P
from tests.numpy_expressions import EXPRESSIONS, drawn, evaluated
from tests.worlds import alone, mesh, whole

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
DRAWINGS = 20 if THOROUGH else int(os.environ.get("DRAWINGS", 1))
CALLS = [(name, call) for name, calls in EXPRESSIONS.items() for call in calls]


def placed(value: np.ndarray, number: int) -> Any:
    """Return an array on the mesh, split in one of several ways."""
    specs = [("i", "j"), (None, "i"), ("j", None), (("i", "j"),)]
    spec = specs[number % len(specs)][: value.ndim]
    return meshard.device_put(value, NamedSharding(mesh(), P(*spec), uneven="balanced"))


def leaves(found: Any) -> list[Any]:
    """Return the arrays of a result, whatever lists and tuples they are in."""
    if isinstance(found, (list, tuple)):
        return [x for part in found for x in leaves(part)]
    return [found]


def quietly(call: Any) -> list[Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return leaves(call())


def eps_of(arrays: Any) -> float:
    kinds = [a.dtype for a in arrays if np.asarray(a).dtype.kind in "fc"]
    return max((float(np.finfo(k).eps) for k in kinds), default=float(np.finfo(float).eps))


def differs(found: Any, wanted: Any, eps: float) -> str:
    """Return in which way a value is not NumPy's; an empty string if it is."""
    wanted = np.asarray(wanted)
    value = whole(found) if isinstance(found, meshard.Array) else np.asarray(found)
    if value.shape != wanted.shape:
        return f"shape {value.shape} instead of {wanted.shape}"
    if value.dtype != wanted.dtype:
        return f"dtype {value.dtype} instead of {wanted.dtype}"
    if wanted.dtype.kind not in "fc":
        return "" if np.array_equal(value, wanted) else f"{value.tolist()}, not {wanted.tolist()}"
    own = max(eps, float(np.finfo(wanted.dtype).eps))
    size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    close = np.isclose(value, wanted, rtol=2e3 * own, atol=2e2 * own * size, equal_nan=True)
    return "" if close.all() else f"{value.tolist()}, not {wanted.tolist()}"


def numbers(name: str, call: str, drawing: int) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Draw the arrays that a call uses, and return them with what NumPy gives."""
    rng = np.random.default_rng([zlib.crc32(call.encode()), drawing])
    arrays = drawn(rng)
    return arrays, quietly(lambda: evaluated(call, np, arrays))


def used(call: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = compile(call.removeprefix("!"), "", "eval").co_names
    return {n: v for n, v in arrays.items() if n in names}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_results_are_numpys(name: str) -> None:
    def body() -> list[str]:
        wrong = []
        for call in EXPRESSIONS[name]:
            for drawing in range(DRAWINGS):
                arrays, wanted = numbers(name, call, drawing)
                mine = used(call, arrays)
                eps = eps_of(mine.values())
                ours = {n: placed(v, drawing + i) for i, (n, v) in enumerate(mine.items())}

                def run(ours: Any, call: str = call) -> Any:
                    return evaluated(call, mnp, ours)

                ways = {"eager": run, **({} if call[0] == "!" else {"jit": meshard.jit(run)})}
                for way, function in ways.items():
                    found = quietly(lambda function=function, ours=ours: function(ours))
                    kinds = {n: v.dtype.name for n, v in mine.items()}
                    if len(found) != len(wanted):
                        wrong.append(f"{way} {call} {kinds}: {len(found)} results")
                    wrong += [
                        f"{way} {call} {kinds}: {why}"
                        for f, w in zip(found, wanted, strict=False)
                        if (why := differs(f, w, eps))
                    ]
        return wrong

    wrong = alone(body)
    assert not wrong, "\n".join(wrong)


# what moves

LARGE = 211, 149
"""Rows and columns of arrays of which a share is far more than what is known beforehand."""
MORE = {
    "nanmedian quantile percentile median nanquantile": "elements between samples are few, of more",
    "cov corrcoef": "each device has a sum of products of all rows, which are added up",
    "histogram": "rules ask for quartiles, or try a hundred numbers of bins",
    "linalg.pinv": "each matrix is made whole",
    "union1d": "short arrays are sorted by all devices",
    "lexsort": "each of many keys is sorted; short ones by all devices",
    "add": "what is no reduction is combined by halves, or one after another",
    "convolve correlate": "the shorter of two short arrays is made whole",
    "tril_indices_from triu_indices_from": "an index with arrays, which is another function",
    "put_along_axis": "an update by arrays of positions, which is another function",
}
"""Functions with a call of which a device receives more, and why."""


def received(call: str) -> tuple[float, float]:
    """Return the bytes that one device receives at most, and its share of what there is."""
    arrays = drawn(np.random.default_rng(zlib.crc32(call.encode())), *LARGE)
    mine = used(call, arrays)
    ours = {n: placed(v, 0 if v.ndim > 1 else 3) for n, v in mine.items()}
    with meshard.debug.ledger() as log:
        found = quietly(lambda: evaluated(call, mnp, ours))
    made = sum(x.nbytes for x in found if isinstance(x, meshard.Array))
    share = (sum(x.nbytes for x in ours.values()) + made) / 8
    return max(log.received.values(), default=0), share


def gathers(call: str) -> bool:
    """Whether a device receives much more than its share, or a few thousand bytes."""
    most, share = received(call)
    return most > 2 * share + 2000


@pytest.mark.no_job
def test_nothing_is_brought_together() -> None:
    def body() -> set[str]:
        return {name for name, call in CALLS if gathers(call)}

    excused = {name for names in MORE for name in names.split()}
    assert alone(body) <= excused


@pytest.mark.no_job
def test_what_is_brought_together_is_noticed() -> None:
    assert alone(lambda: gathers("xp.sort(a, 0)")) is False
    assert alone(lambda: gathers("xp.linalg.det(f[: f.shape[1]])")) is True
