"""Gradients of functions that users write, of arguments that lie on a mesh.

They are those of arguments on one device, with and without jit; each lies as its argument does; and
four processes give the bits of one. By default a sample of `tests/corpus.py` is tried; the profile
"thorough" tries all.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import meshard
import meshard.lax
import meshard.nn
import meshard.numpy as mnp
from meshard.errors import NotAddressableError
from meshard.testing import simulate
from tests.corpus import ENTRIES, Entry
from tests.sites import laid_out
from tests.worlds import alone, whole

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SOME = [e for e in ENTRIES if ALL or crc32(e.name.encode()) % 3 == 1]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODULES = SimpleNamespace(
    **{name: getattr(meshard, name) for name in meshard.__all__ if name != "numpy"}, np=mnp
)


def split(entry: Entry, seed: int) -> list[Any]:
    """Return the arguments laid out in some way on the 4 x 2 mesh."""
    rng = np.random.default_rng(seed)
    return [x if isinstance(x, float) else laid_out(x, rng) for x in entry.args]


def gradients(entry: Entry, args: Any, jitted: bool) -> list[Any]:
    """Return the value and all gradients."""
    f = meshard.value_and_grad(lambda *xs: entry.function(MODULES, *xs), tuple(range(len(args))))
    with np.errstate(all="ignore"):
        value, slopes = (meshard.jit(f) if jitted else f)(*args)
    return [value, *slopes]


@pytest.mark.parametrize("entry", SOME, ids=lambda e: e.name)
def test_layouts_change_nothing(entry: Entry) -> None:
    expected = [whole(x) for x in gradients(entry, entry.args, False)]
    for seed, jitted in ((0, False), (1, True)):
        args = split(entry, seed)
        value, *slopes = gradients(entry, args, jitted)
        for a, b in zip([value, *slopes], expected, strict=True):
            a, near = whole(a), entry.tolerance * 10
            assert a.dtype == b.dtype
            np.testing.assert_allclose(_wide(a), _wide(b), rtol=near, atol=near)
        for x, g in zip(args, slopes, strict=True):
            assert isinstance(x, float) or g.aval.layout == x.aval.layout


def _wide(x: Any) -> Any:
    return x if x.dtype.kind == "c" else x.astype(np.float64)


def _found() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, entry in enumerate(SOME if ALL else SOME[::3]):
        for jitted in (False, True) if ALL else (number % 2 == 0,):
            try:
                made = gradients(entry, split(entry, 2), jitted)
                found[f"{entry.name} {jitted}"] = [whole(x) for x in made]
            except NotAddressableError:
                found[f"{entry.name} {jitted}"] = None
    return found


def test_four_processes_give_the_same_bits() -> None:
    expected = alone(_found)
    for process in simulate(4, 2, _found, deadline=200):
        assert [name for name, values in process.items() if values is None] == []
        for name, values in process.items():
            for a, b in zip(values, expected[name], strict=True):
                assert a.tobytes() == b.tobytes(), name


def test_what_is_not_kept_is_computed_again() -> None:
    """The simplifier must not take what `remat` computes again for what was computed before."""

    def inner(x):
        return mnp.sin(mnp.exp(x))

    for f, count in (inner, 1), (meshard.remat(inner), 2):
        both = meshard.jit(meshard.value_and_grad(lambda x, f=f: f(x).sum()))
        text = both.lower(mnp.ones(3)).as_text()
        assert text.count("= exp ") == count, text
