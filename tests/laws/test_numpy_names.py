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
