"""The example programs in `jit`: the same values as outside, in one process and in several."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import Mesh, NamedSharding, P
from tests.test_examples import load, normal
from tests.worlds import alone, in_worlds, whole


def grid(*names: str, shape: tuple[int, ...] = (2, 4)) -> Mesh:
    return meshard.make_mesh(shape, names)


Case = tuple[Callable[..., Any], tuple[Any, ...]]


def heat(module: ModuleType) -> Case:
    plate = np.abs(normal(16, 24))
    mesh = grid("y", "x")

    def f(plate: Any) -> Any:
        return module.diffuse(module.diffuse(plate, mesh, 3) * 2, mesh, 2)

    return f, (meshard.device_put(plate, NamedSharding(mesh, P("y", "x"))),)


def life(module: ModuleType) -> Case:
    mesh = grid("y", "x")
    board = (normal(8, 16) > 0).astype(np.int64)
    return (lambda b: module.evolve(b, mesh, 4)), (board,)


def kmeans(module: ModuleType) -> Case:
    mesh = grid("data", shape=(8,))
    points, weights = module.padded(normal(53, 5), 8)
    return (lambda p, w, c: module.cluster(p, w, c, mesh, 3)), (points, weights, points[:4])


def ring_attention(module: ModuleType) -> Case:
    mesh = grid("data", "sequence")
    return (lambda q, k, v: module.attention(q, k, v, mesh)), tuple(normal(3, 2, 16, 2, 4))


def fft3d(module: ModuleType) -> Case:
    mesh = grid("a", "b")
    return (lambda x: (y := module.fft3d(x, mesh), module.ifft3d(y, mesh))), (normal(4, 8, 8),)


def pipeline(module: ModuleType) -> Case:
    mesh = grid("stage", "model", shape=(4, 2))
    weights = {"up": normal(4, 6, 8), "down": normal(4, 8, 6, seed=1)}
    return (lambda w, b: module.pipeline(w, b, mesh)), (weights, normal(3, 5, 6))


def regression(module: ModuleType) -> Case:
    mesh = grid("data", shape=(8,))
    start = {"slope": np.zeros(3), "offset": np.zeros(())}
    x = normal(64, 3)
    return (lambda *a: module.fit(*a, mesh, 5, 0.1)), (start, x, x @ np.ones(3))


def collective_matmul(module: ModuleType) -> Case:
    mesh = grid("i", shape=(8,))

    def f(x: Any, w: Any) -> Any:
        bodies = (
            (module.multiply_while_gathering, module.ROWS),
            (module.multiply_while_scattering, module.COLUMNS),
            (module.gather_then_multiply, module.ROWS),
            (module.multiply_then_scatter, module.COLUMNS),
        )
        return [module.product(body, spec, x, w, mesh) for body, spec in bodies]

    return f, (normal(16, 16), normal(16, 16, seed=1))


CASES = (heat, life, kmeans, ring_attention, fft3d, pipeline, regression, collective_matmul)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
@in_worlds
def test_examples_give_the_same_in_jit(case: Callable[[ModuleType], Case]) -> None:
    f, args = case(load(case.__name__))
    jitted = meshard.jit(f)
    expected = meshard.tree.leaves(f(*args))
    for _ in range(2):
        found = meshard.tree.leaves(jitted(*args))
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
            np.testing.assert_allclose(whole(a), whole(b), rtol=1e-12, atol=1e-12)
    assert jitted._cache_size() == 1


# the same steps on whole arrays, whose way jit chooses


def heat_step(plate: Any) -> Any:
    wide = mnp.pad(plate, 1)
    around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    return plate + 0.2 * (around - 4 * plate)


def life_step(board: Any) -> Any:
    shifts = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)]
    count = sum(mnp.roll(board, s, (0, 1)) for s in shifts)
    return ((count == 3) | ((count == 2) & (board == 1))).astype(board.dtype)


@in_worlds
def test_steps_on_whole_arrays_in_loops() -> None:
    mesh = grid("y", "x")
    plate = np.abs(normal(16, 24))
    board = (normal(8, 16) > 0).astype(np.int64)
    for step, value, numpy in (
        (heat_step, plate, load("heat").diffuse_numpy(plate, 4)),
        (life_step, board, load("life").evolve_numpy(board, 4)[0]),
    ):
        run = meshard.jit(lambda x, step=step: lax.fori_loop(0, 4, lambda _, t: step(t), x))
        for spec in P("y", "x"), P("y"), P(None, ("y", "x")):
            found = run(meshard.device_put(value, NamedSharding(mesh, spec)))
            assert found.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
            np.testing.assert_allclose(whole(found), numpy, rtol=1e-12)


def weights_of_a_small_model(width: int, hidden: int, words: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (words, width),
        "embeddings.position_embeddings.weight": (16, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{i}" for i in range(2)):
        for which in "query", "key", "value":
            shapes[f"{layer}.attention.self.{which}.weight"] = (width, width)
        shapes[f"{layer}.attention.output.dense.weight"] = (width, width)
        shapes[f"{layer}.intermediate.dense.weight"] = (hidden, width)
        shapes[f"{layer}.output.dense.weight"] = (width, hidden)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    biases = {n.replace("weight", "bias"): s[:1] for n, s in shapes.items() if "encoder" in n}
    shapes |= biases | {f"{n}.{end}": (width,) for n in norms for end in ("weight", "bias")}
    return {n: random.normal(size=s, scale=0.3).astype(np.float32) for n, s in shapes.items()}


@in_worlds
def test_the_model_of_the_demo_tensor_parallel() -> None:
    module: Any = load("minilm")
    module.LAYERS, module.HEADS = 2, 4
    mesh = grid("data", "model")
    place = functools.partial(NamedSharding, mesh, uneven="balanced")
    weights = weights_of_a_small_model(16, 32, 41)  # 41 words over 4 devices
    params = meshard.device_put(weights, {n: place(module.spec_of(n)) for n in weights})
    ids = np.random.default_rng(1).integers(0, 41, (4, 7))
    mask = (np.arange(7) < np.array([[7], [3], [5], [1]])).astype(np.int64)
    data = meshard.device_put((ids, mask), place(P("data")))
    encode = meshard.jit(module.encode)
    found, expected = encode(params, *data), module.encode(params, *data)
    np.testing.assert_allclose(whole(found), whole(expected), rtol=2e-5, atol=2e-6)
    numpy = SimpleNamespace(**{n: getattr(np, n) for n in ("take", "mean", "sqrt", "where", "sum")})
    numpy.permute_dims = np.transpose
    plain = module.encode(weights, ids, mask, numpy, module.NUMPY_NN)
    np.testing.assert_allclose(whole(found), plain, rtol=2e-4, atol=2e-5)
    assert found.sharding.is_equivalent_to(expected.sharding, 2)


def test_the_model_moves_no_more_in_jit_than_outside() -> None:
    def body() -> None:
        module: Any = load("minilm")
        module.LAYERS, module.HEADS = 2, 4
        mesh = grid("data", "model")
        place = functools.partial(NamedSharding, mesh, uneven="balanced")
        weights = weights_of_a_small_model(16, 32, 40)
        params = meshard.device_put(weights, {n: place(module.spec_of(n)) for n in weights})
        ids, mask = np.ones((4, 8), np.int64), np.ones((4, 8), np.int64)
        data = meshard.device_put((ids, mask), place(P("data")))
        encode = meshard.jit(module.encode)
        encode(params, *data)
        with meshard.debug.ledger() as outside:
            module.encode(params, *data)
        with meshard.debug.ledger() as inside:
            encode(params, *data)
        assert 0 < inside.total_bytes <= outside.total_bytes

    alone(body)
