"""Mapped functions give what JAX's give, and what JAX refuses is refused.

For each function of `tests/vmap_corpus.py`, as it is and jitted. By default a sample is compared,
since JAX compiles each; the profile "thorough" compares all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import meshard
import meshard.lax
import meshard.nn
import meshard.numpy as mnp
from meshard.errors import MeshardError
from tests.vmap_corpus import CASES, REFUSED
from tests.worlds import whole

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SOME = [name for name in CASES if ALL or crc32(name.encode()) % 6 == 0]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TRANSFORMATIONS = """
    checkpoint custom_jvp custom_vjp grad hessian jacfwd jacrev jit jvp linearize value_and_grad vjp
    vmap tree
"""
POSITIONS = "searchsorted digitize top_k histogram"
"""Words in the names of cases whose positions and counts have another dtype here."""
OURS = SimpleNamespace(
    np=mnp,
    lax=meshard.lax,
    nn=meshard.nn,
    asarray=mnp.asarray,
    **{name: getattr(meshard, name) for name in TRANSFORMATIONS.split()},
)


@pytest.fixture(autouse=True)
def of_64_bits() -> Iterator[None]:
    """Let JAX compute in 64 bits."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield


def theirs() -> SimpleNamespace:
    """Return JAX by the same names."""
    jax = pytest.importorskip("jax")
    named = {name: getattr(jax, name) for name in TRANSFORMATIONS.split()}
    np_ = jax.numpy
    return SimpleNamespace(np=np_, lax=jax.lax, nn=jax.nn, asarray=np_.asarray, **named)


@pytest.mark.parametrize("name", SOME)
def test_a_mapped_function_is_that_of_jax(name: str) -> None:
    f = CASES[name]
    expected, tree = meshard.tree.flatten(f(theirs()))
    found, mine = meshard.tree.flatten(f(OURS))
    if name not in ("top_k", "meshgrid"):  # of which JAX returns lists
        assert mine == tree
    near = 1e-6 if any(w in name for w in ("float32", "uint8", "bool", "mixed")) else 1e-9
    for y, x in zip(found, map(np.asarray, expected), strict=True):
        assert y.shape == x.shape
        if not any(w in name for w in POSITIONS.split()):
            assert y.dtype == x.dtype or near > 1e-9
        np.testing.assert_allclose(whole(y), x, near, near, equal_nan=True)


def test_a_compiled_mapped_function_is_the_mapped_function() -> None:
    """With jit around it, which simplifies and fuses, a mapped function is what it is without."""
    for name in CASES if ALL else SOME:
        plain = meshard.tree.leaves(CASES[name](OURS))
        compiled = meshard.tree.leaves(meshard.jit(lambda name=name: CASES[name](OURS))())
        for y, x in zip(compiled, plain, strict=True):
            np.testing.assert_allclose(whole(y), whole(x), 1e-9, 1e-11, equal_nan=True)
            assert (y.shape, y.dtype) == (x.shape, x.dtype), name


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused(name: str) -> None:
    f, words = REFUSED[name]
    with pytest.raises((ValueError, TypeError, NameError)) as theirs_:
        f(theirs())
    with pytest.raises(MeshardError, match=words) as ours:
        f(OURS)
    kinds = [k for k in (NameError, TypeError, ValueError) if isinstance(theirs_.value, k)]
    assert isinstance(ours.value, tuple(kinds)), (type(ours.value), kinds)
    message = str(ours.value)
    assert message.endswith("."), message
    assert len(message) < 900, message


def test_messages_name_arguments() -> None:
    """Sizes that differ are told with the arguments that have them."""
    x = mnp.ones((3, 2))

    def f(first: Any, *, other: Any = 0) -> Any:
        return first

    with pytest.raises(MeshardError) as error:
        meshard.vmap(f)({"a": x, "b": (x, x[:2])}, other=x)
    assert str(error.value) == (
        "vmap got inconsistent sizes for array axes to be mapped: 3 is the size of axis 0 of the "
        "argument first['a'] of shape (3, 2), axis 0 of the argument first['b'][0] of shape (3, 2) "
        "and 1 more; 2 is the size of axis 0 of the argument first['b'][1] of shape (2, 2)."
    )
    with pytest.raises(
        MeshardError, match=r"argument first along axis 2.*is only 2.*None in in_axes"
    ):
        meshard.vmap(f, in_axes=2)(x)
    with pytest.raises(MeshardError, match=r"traced by vmap of 'f'.*all examples.*give it None"):
        _chosen(x[:, 0])
    with pytest.raises(MeshardError, match="the argument first is not an array"):
        meshard.vmap(f)("three")
    with pytest.raises(MeshardError, match="the result 1 is not an array"):
        meshard.vmap(lambda v: (v, "three"))(x)


def _chosen(x: Any) -> Any:
    def f(v: Any) -> Any:
        return v if v > 0 else -v

    return meshard.vmap(f)(x)
