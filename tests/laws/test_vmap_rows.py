"""A mapped function runs each operation once, however many examples there are.

For every public function with arrays among its arguments, whatever their dtype: keys, integers and
bools too. The results are those of a loop, bit for bit where the kernel does the same to each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P, lax, random
from meshard.errors import ConcretizationError
from meshard.ops.engine.decide import row_of
from meshard.ops.engine.each import TOGETHER, each_row
from meshard.ops.engine.eager import EAGER
from meshard.ops.row import REGISTRY, MoveOp
from meshard.runtime.trees import trees
from meshard.transforms.batching.rows import ROWS
from meshard.transforms.batching.vmap import vmap
from tests.odd_array_calls import cases
from tests.worlds import everywhere, mesh, whole

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def operations(f: Callable[..., Any], *args: Any) -> int:
    """Return how many operations a call runs."""
    count = 0
    kind = type(EAGER)
    before = kind.run

    def counted(self: Any, *rest: Any) -> Any:
        nonlocal count
        count += 1
        return before(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "run", counted)
        f(*args)
    return count


def functions() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Yield public functions of arrays: by name, as functions of these alone, with arguments."""
    for case in cases():
        if case.in_mesh or not (ALL or crc32(case.name.encode()) % 4 == 1):
            continue
        leaves, tree = trees.flatten({n: make() for n, make in case.given.items()})
        every = [i for i, x in enumerate(leaves) if isinstance(x, meshard.Array)]
        for places in [every] if len(every) < 2 else [every, *[[i] for i in every]]:

            def function(
                *own: Any,
                places: Any = places,
                leaves: Any = leaves,
                tree: Any = tree,
                case: Any = case,
            ) -> list[Any]:
                given = list(leaves)
                for i, x in zip(places, own, strict=True):
                    given[i] = x
                found = case._call(trees.unflatten(tree, given))
                return [y for y in trees.leaves(found) if hasattr(y, "dtype")]

            if places:
                yield f"{case.name} over {places}", function, [leaves[i] for i in places]


def test_each_operation_runs_once() -> None:
    wrong = []
    for name, f, given in functions():
        try:
            few, many = ([mnp.stack([x] * n) for x in given] for n in (2, 5))
            counts = [operations(vmap(f), *xs) for xs in (few, many)]
            if counts[0] != counts[1]:
                wrong.append(f"{name}: {counts[0]} operations for 2 examples, {counts[1]} for 5")
            found, one = vmap(f)(*few), f(*given)
            none = vmap(f)(*[x[:0] for x in few])
            for size, results in ((2, found), (0, none)):
                for y, x in zip(results, one, strict=True):
                    if (y.shape, y.dtype) != ((size, *x.shape), x.dtype):
                        wrong.append(f"{name}: {y.aval} of {x.aval}")
        except ConcretizationError:
            continue
    assert wrong == []


def test_every_row_takes_a_dim() -> None:
    """A row that moves elements has a rule of its own; of all others many examples make a row."""

    for name, row in REGISTRY.items():
        if isinstance(row, MoveOp):
            assert name in ROWS, f"{name} moves elements: say in batching/rows how it takes a dim"
        else:
            assert name in ROWS or each_row(f"{name}_each") is row_of(f"{name}_each")
    assert set(REGISTRY) >= set(TOGETHER)


KEYS = random.split(random.key(3), 4)
DRAWS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda k: random.normal(k, (3, 2)),
    "float32": lambda k: random.normal(k, (3,), dtype=np.float32),
    "complex": lambda k: random.normal(k, (3,), dtype=np.complex128),
    "uniform": lambda k: random.uniform(k, (5,), minval=-1, maxval=2),
    "bits": lambda k: random.bits(k, (3,)),
    "randint": lambda k: random.randint(k, (3,), 0, 10),
    "split": lambda k: random.key_data(random.split(k, 3)),
    "split twice": lambda k: random.normal(random.split(random.split(k)[1])[0]),
    "fold_in": lambda k: random.key_data(random.fold_in(k, 7)),
    "permutation": lambda k: random.permutation(k, 6),
    "categorical": lambda k: random.categorical(k, mnp.arange(4.0), shape=(3,)),
    "choice": lambda k: random.choice(k, 5, (3,), replace=False),
    "weighted choice": lambda k: random.choice(k, 5, (3,), p=mnp.ones(5) / 5),
    "gamma": lambda k: random.gamma(k, 2.5, (3,)),
    "beta": lambda k: random.beta(k, 2.0, 3.0, (3,)),
    "poisson": lambda k: random.poisson(k, 3.0, (3,)),
    "multivariate": lambda k: random.multivariate_normal(k, mnp.zeros(2), mnp.eye(2)),
    "plain": lambda k: random.normal(random.key_data(k), (3,)),
    "seeded": lambda k: random.key_data(random.key(random.randint(k, (), 0, 99))),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_key_for_each_example(name: str) -> None:
    """The numbers have the bits of a loop over the keys."""
    f = DRAWS[name]
    expected = np.stack([whole(f(k)) for k in KEYS])
    for mapped in (vmap(f), meshard.jit(vmap(f)), vmap(meshard.jit(f))):
        np.testing.assert_array_equal(whole(mapped(KEYS)), expected, strict=True)
    twice = vmap(vmap(f))(mnp.stack([KEYS, KEYS]))
    np.testing.assert_array_equal(whole(twice), np.stack([expected, expected]), strict=True)


PARAMETERS: dict[str, Callable[[Any, Any], Any]] = {
    "gamma": lambda k, a: random.gamma(k, a, (3,)),
    "uniform": lambda k, a: random.uniform(k, (3,), minval=-a, maxval=a),
    "pareto": lambda k, a: random.pareto(k, a, (3,)),
    "truncated": lambda k, a: random.truncated_normal(k, -a, a, (3,)),
    "randint": lambda k, a: random.randint(k, (3,), 0, a.astype(int) + 9),
    "fold_in": lambda k, a: random.key_data(random.fold_in(k, a.astype(int))),
    "categorical": lambda k, a: random.categorical(k, a * mnp.arange(4.0)),
    "dirichlet": lambda k, a: random.dirichlet(k, mnp.stack([a, a + 1])),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_keys_and_parameters_of_examples(name: str) -> None:
    f, a = PARAMETERS[name], mnp.asarray([0.5, 1.5, 2.5, 3.5])
    for axes in ((0, 0), (0, None), (None, 0)):
        rows = [
            (KEYS[0] if axes[0] is None else KEYS[i], a[0] if axes[1] is None else a[i])
            for i in range(4)
        ]
        expected = np.stack([whole(f(*row)) for row in rows])
        args = [x if d == 0 else x[0] for x, d in zip((KEYS, a), axes, strict=True)]
        for mapped in (vmap(f, in_axes=axes), meshard.jit(vmap(f, in_axes=axes))):
            np.testing.assert_array_equal(whole(mapped(*args)), expected, strict=True)


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "gather": lambda a, i: a[i],
    "one element": lambda a, i: a[i[0]] * a,
    "scatter": lambda a, i: a.at[i].add(a[:3]),
    "set": lambda a, i: a.at[i].set(2.0),
    "slice": lambda a, i: lax.dynamic_slice(a, (i[0],), (2,)),
    "index": lambda a, i: lax.dynamic_index_in_dim(a, i[1], keepdims=False),
    "update": lambda a, i: lax.dynamic_update_slice(a, a[:2] * 2, (i[0],)),
    "interp": lambda a, i: mnp.interp(a, mnp.sort(a), a),
    "along": lambda a, i: mnp.take_along_axis(a, i, 0),
}
FLAT: dict[str, Callable[[Any, Any], Any]] = {
    "searchsorted": lambda a, i: mnp.searchsorted(mnp.sort(a), a),
    "bincount": lambda a, i: mnp.bincount(i, length=5),
    "histogram": lambda a, i: mnp.histogram(a, 4)[0],
    "isin": lambda a, i: mnp.isin(a, a[i]),
    "nonzero": lambda a, i: mnp.nonzero(a > 0, size=3, fill_value=-1)[0],
    "unique": lambda a, i: mnp.unique(i, size=3, fill_value=9),
    "quantile": lambda a, i: mnp.quantile(a, i / 5),
}


def placed() -> tuple[Any, Any]:
    rng, on = np.random.default_rng(0), NamedSharding(mesh(), P("i"))
    x, i = rng.normal(size=(8, 5)), rng.integers(0, 5, (8, 3))
    return meshard.device_put(x, on), meshard.device_put(i, on)


@pytest.mark.parametrize("name", [*PLACES, *FLAT])
def test_places_of_examples_stay_split(name: str) -> None:
    """What looks at places that differ between examples does so where the examples are."""
    f, (x, i) = {**PLACES, **FLAT}[name], placed()
    expected = np.stack(
        [whole(f(mnp.asarray(a), mnp.asarray(b))) for a, b in zip(whole(x), whole(i), strict=True)]
    )
    for mapped in (vmap(f), meshard.jit(vmap(f))):
        with meshard.debug.ledger() as log:
            found = mapped(x, i)
        np.testing.assert_array_equal(whole(found), expected, strict=True)
        assert found.sharding.spec[:1] == ("i",)
        assert log.total_bytes == 0, log


@pytest.mark.parametrize("name", PLACES)
def test_gradients_of_examples_with_places(name: str) -> None:
    f, (x, i) = PLACES[name], placed()

    def one(a: Any, b: Any) -> Any:
        return mnp.sum(mnp.sin(f(a, b)))

    rows = [(mnp.asarray(a), mnp.asarray(b)) for a, b in zip(whole(x), whole(i), strict=True)]
    expected = np.stack([whole(meshard.grad(one)(*row)) for row in rows])
    every = meshard.grad(lambda a: mnp.sum(vmap(one)(a, i)))
    for found in (every(x), meshard.jit(every)(x), vmap(meshard.grad(one))(x, i)):
        np.testing.assert_allclose(whole(found), expected, 1e-12, 1e-14)
        assert found.sharding.spec[:1] == ("i",)
    moved = meshard.jvp(lambda a: vmap(f)(a, i), (x,), (mnp.ones_like(x),))[1]
    tangents = [meshard.jvp(lambda a, b=b: f(a, b), (a,), (mnp.ones_like(a),))[1] for a, b in rows]
    np.testing.assert_allclose(whole(moved), np.stack([whole(t) for t in tangents]), 1e-12, 1e-14)
    second = meshard.hessian(lambda a: mnp.sum(vmap(one)(a, i)))(x)
    assert second.shape == (8, 5, 8, 5)


@pytest.mark.parametrize("size", [0, 1])
def test_no_and_one_example(size: int) -> None:
    x, i = (mnp.asarray(whole(v)[:size]) for v in placed())
    for name, f in {**PLACES, **FLAT}.items():
        one = f(mnp.zeros(5), mnp.zeros(3, int))
        found = vmap(f)(x, i)
        assert (found.shape, found.dtype) == ((size, *one.shape), one.dtype), name
    assert vmap(DRAWS["normal"])(KEYS[:size]).shape == (size, 3, 2)


def test_places_in_bodies() -> None:
    x, i = placed()
    for name, f in {**PLACES, **FLAT}.items():
        mapped = meshard.shard_map(vmap(f), mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
        np.testing.assert_array_equal(whole(mapped(x, i)), whole(vmap(f)(x, i)), err_msg=name)


@pytest.mark.parametrize("name", ["gather", "scatter", "slice", "searchsorted", "bincount"])
def test_examples_of_several_processes(name: str) -> None:
    """Mapped in one process and in two: the same bits, and nothing moves."""
    f = {**PLACES, **FLAT}[name]

    def body() -> Any:
        x, i = placed()
        keys = meshard.device_put(random.split(random.key(0), 8), NamedSharding(mesh(), P("i")))
        with meshard.debug.ledger() as log:
            found = [vmap(f)(x, i), meshard.jit(vmap(f))(x, i), vmap(DRAWS["normal"])(keys)]
        assert log.total_bytes == 0
        total = vmap(lambda v: v - lax.pmean(v, "b"), axis_name="b")(x)
        return [whole(y) for y in (*found, total)]

    one, jitted, _, centred = everywhere(body)
    np.testing.assert_array_equal(one, jitted)
    np.testing.assert_allclose(centred.mean(0), np.zeros(5), atol=1e-12)
