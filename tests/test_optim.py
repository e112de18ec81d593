"""Optimizers: the values of optax, the layouts of the parameters, in every world and under jit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P, optim, tree
from meshard.errors import ArgumentError, TreeError
from tests.lays import fetched
from tests.operands import in_all_worlds
from tests.worlds import alone

RNG = np.random.default_rng(0)
SHAPES = {"w": (6, 4), "layers": [(4,), ()]}
SPECS = {"w": P("x", "y"), "layers": [P("y"), P()]}
IS_SHAPE = {"is_leaf": lambda node: isinstance(node, tuple)}


def numbers(dtype: str = "float64") -> Any:
    def make(shape: tuple[int, ...]) -> np.ndarray:
        imaginary = 1j * RNG.normal(size=shape) if dtype.startswith("complex") else 0
        return np.asarray(RNG.normal(size=shape) + imaginary).astype(dtype)

    return tree.map(make, SHAPES, **IS_SHAPE)


def placed(values: Any) -> Any:
    mesh = meshard.make_mesh((4, 2), ("x", "y"))
    shardings = tree.map(lambda spec: NamedSharding(mesh, spec, uneven="balanced"), SPECS)
    return meshard.device_put(values, shardings)


# Each is made by the same call in optax and here.
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda o: o.sgd(0.1),
    "momentum": lambda o: o.sgd(0.1, momentum=0.9),
    "nesterov": lambda o: o.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda o: o.adam(0.1, eps_root=1e-3),
    "adamw": lambda o: o.adamw(o.linear_schedule(0.1, 0.01, 3, 1), weight_decay=0.1),
    "lion": lambda o: o.lion(o.cosine_decay_schedule(0.1, 4, 0.1, 2.0)),
    "clipped": lambda o: o.chain(o.clip_by_global_norm(1.5), o.clip(0.4), o.scale(-0.1)),
    "long": lambda o: o.clip_by_global_norm(1e6),
    "warm": lambda o: o.chain(
        o.identity(), o.sgd(o.warmup_cosine_decay_schedule(0.0, 0.3, 2, 5, 0.05))
    ),
    "rising": lambda o: o.scale_by_learning_rate(o.constant_schedule(0.2), flip_sign=False),
}


def steps(o: Any, make: Callable[[Any], Any], params: Any, gradients: list[Any]) -> list[Any]:
    """Return parameters and states after each of some steps."""
    optimizer, found = make(o), []
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = o.apply_updates(params, updates)
        found.append((params, state))
    return found


@pytest.fixture
def optax(jax: ModuleType) -> ModuleType:
    return pytest.importorskip("optax")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_those_of_optax(
    jax: ModuleType, optax: ModuleType, name: str, dtype: str
) -> None:
    if dtype == "complex128" and name in ("clipped", "lion"):
        return  # they have no order, and JAX's sign has another meaning
    params, gradients = numbers(dtype), [numbers(dtype) for _ in range(6)]
    with jax.enable_x64(True):
        theirs = steps(
            optax, OPTIMIZERS[name], *jax.tree.map(jax.numpy.asarray, (params, gradients))
        )
        theirs = [jax.tree.leaves(each) for each in theirs]
    ours = [tree.leaves(each) for each in steps(optim, OPTIMIZERS[name], params, gradients)]
    for found, expected in zip(ours, theirs, strict=True):
        assert [np.asarray(x).dtype for x in found] == [x.dtype for x in expected]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_the_same_on_a_mesh_under_jit_and_in_every_world(name: str) -> None:
    params, gradients = numbers(), [numbers() for _ in range(3)]
    plain = steps(optim, OPTIMIZERS[name], params, gradients)[-1]

    def program() -> Any:
        optimizer = OPTIMIZERS[name](optim)

        @meshard.jit
        def step(params: Any, state: Any, gradient: Any) -> Any:
            updates, state = optimizer.update(gradient, state, params)
            return optim.apply_updates(params, updates), state

        own = placed(params)
        state = optimizer.init(own)
        for gradient in gradients:
            own, state = step(own, state, placed(gradient))
        return fetched(tree.leaves((own, state)))

    for found, expected in zip(in_all_worlds(program), tree.leaves(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_states_and_updates_are_laid_out_like_the_parameters() -> None:
    def program() -> None:
        params = placed(numbers())
        optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(0.1))
        step = meshard.jit(optimizer.update)
        with meshard.debug.ledger() as log:
            state = optimizer.init(params)
            assert log.total_bytes == 0
            updates, state = step(placed(numbers()), state, params)
        adam = state[1][0]
        for like in (adam.mu, adam.nu, updates, optim.apply_updates(params, updates)):
            for leaf, param in zip(tree.leaves(like), tree.leaves(params), strict=True):
                assert leaf.sharding.is_equivalent_to(param.sharding, leaf.ndim)
        # The norm sends one number for each split leaf and device; nothing else moves.
        assert 0 < log.total_bytes <= 2 * 2 * 8 * 8 * 2

    alone(program)


def test_a_state_may_be_donated() -> None:
    def program() -> None:
        big = mnp.asarray(np.ones((512, 1024)))
        optimizer = optim.sgd(0.1, momentum=0.9)
        step = meshard.jit(lambda g, state: optimizer.update(g, state)[1], donate_argnums=1)
        state = step(big, optimizer.init(big))
        before = state[0].trace
        state = step(big, state)
        assert before.is_deleted()
        np.testing.assert_allclose(state[0].trace, 1.9)

    alone(program)


def test_states_go_to_checkpoints_and_back(tmp_path: Path) -> None:
    def program() -> None:
        params = placed(numbers())
        optimizer = optim.adam(optim.constant_schedule(0.1))
        _, state = optimizer.update(placed(numbers()), optimizer.init(params), params)
        meshard.checkpoint.save(tmp_path / "state", state)
        again = meshard.checkpoint.load(tmp_path / "state", like=state)
        assert tree.structure(again) == tree.structure(state)
        for a, b in zip(tree.leaves(again), tree.leaves(state), strict=True):
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
            np.testing.assert_array_equal(a, b)

    alone(program)


def test_a_step_is_counted_up_to_the_largest_integer() -> None:
    slower = optim.scale_by_schedule(lambda count: 1.0)
    last = optim.ScaleByScheduleState(mnp.asarray(2**31 - 1, dtype="int32"))
    _, state = slower.update(1.0, last)
    assert int(state.count) == 2**31 - 1


def test_what_cannot_be_meant_is_refused() -> None:
    adamw, w = optim.adamw(0.1), mnp.ones(2)
    with pytest.raises(ArgumentError, match=r"parameters are needed.*update\(gradients, state, p"):
        adamw.update(w, adamw.init(w))
    with pytest.raises(ArgumentError, match=r"state of 3 transformations is a tuple of 3 states"):
        adamw.update(w, adamw.init(w)[:2], w)
    with pytest.raises(ArgumentError, match="transformation 1 must be a GradientTransformation"):
        optim.chain(adamw, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="2 schedules meet at 1 boundaries, got 2"):
        optim.join_schedules([abs, abs], [1, 2])
    with pytest.raises(ArgumentError, match="decay_steps must be positive, got -2"):
        optim.warmup_cosine_decay_schedule(0.0, 1.0, 4, 2)
    with pytest.raises(ArgumentError, match="sgd: learning_rate must be a real number or a func"):
        optim.sgd("fast")  # type: ignore[arg-type]
    with pytest.raises(TreeError, match="prefix"):
        optim.apply_updates({"w": w}, {"v": w})


@pytest.mark.parametrize("make", [meshard.random.key, meshard.random.PRNGKey])
@pytest.mark.parametrize("copied", [False, True])
def test_noise_from_a_key_in_the_state_beside_split_gradients(make, copied):
    """As optax's `add_noise` draws it: laid out as the type of each gradient says."""
    given = meshard.make_mesh((4,), ("i",))
    split = NamedSharding(given, P("i"))
    params = {
        name: meshard.device_put(mnp.arange(8.0).reshape(shape), split)
        for name, shape in (("a", (8,)), ("b", (4, 2)))
    }

    def step(params, key):
        key, own = meshard.random.split(key)
        slopes = meshard.grad(lambda p: mnp.sum(p["a"] ** 2) + mnp.sum(mnp.sin(p["b"])))(params)
        keys = meshard.tree.unflatten(meshard.tree.structure(slopes), meshard.random.split(own, 2))

        def moved(x, g, own):
            place = meshard.typeof(g).sharding
            return x - 0.1 * (g + meshard.random.normal(own, g.shape, g.dtype, out_sharding=place))

        return meshard.tree.map(moved, params, slopes, keys), key

    key = make(0)
    if copied:
        key = meshard.device_put(key, NamedSharding(given, P()))
    wanted, found, once = (params, key), (params, key), meshard.jit(step)
    for _ in range(2):
        wanted, found = step(*wanted), once(*found)
    for name in params:
        assert found[0][name].sharding == split
        np.testing.assert_allclose(np.asarray(found[0][name]), np.asarray(wanted[0][name]))
