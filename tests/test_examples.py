"""The example programs: right against plain NumPy, the same in every world, and as in JAX."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import meshard
from tests.lays import fetched
from tests.operands import in_all_worlds
from tests.printed import PRINTS, SHORT, TRAINING, assert_trained
from tests.ranks.test_restarts import fault_tolerant
from tests.worlds import alone

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str, library: str = "meshard") -> ModuleType:
    """Run an example's source as a module; for another library with the import lines changed."""
    path = EXAMPLES / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    if library != "meshard":
        source = re.sub(r"^import meshard$", f"import {library} as meshard", source, flags=re.M)
        source = re.sub(r"^(import|from) meshard\b", rf"\1 {library}", source, flags=re.M)
    module = ModuleType(name)
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# Programs: given an example's module and a function that makes a mesh, run it, return what the
# example gives. Answers: what plain NumPy gives.

Program = Callable[[ModuleType, Callable[..., Any]], Any]
PROGRAMS: dict[str, Program] = {}
ANSWERS: dict[str, Callable[[ModuleType], Any]] = {}


def program(name: str) -> Callable[[Program], Program]:
    def keep(function: Program) -> Program:
        PROGRAMS[name] = function
        return function

    return keep


def answer(name: str) -> Callable[[Callable[[ModuleType], Any]], Any]:
    def keep(function: Callable[[ModuleType], Any]) -> Any:
        ANSWERS[name] = function
        return function

    return keep


PLATE = np.abs(normal(24, 16))


@program("heat")
def heat(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    shapes = ((2, 4), (4, 2), (8, 1))
    return [example.diffuse(PLATE, mesh(shape, ("y", "x")), 25) for shape in shapes]


@answer("heat")
def heat_numpy(example: ModuleType) -> Any:
    return [example.diffuse_numpy(PLATE, 25)] * 3


BOARD = np.random.default_rng(3).integers(0, 2, (16, 24)).astype(np.int32)


@program("life")
def life(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    shapes = ((2, 4), (4, 2), (1, 8))
    return [example.evolve(BOARD, mesh(shape, ("y", "x")), 30) for shape in shapes]


@answer("life")
def life_numpy(example: ModuleType) -> Any:
    return [example.evolve_numpy(BOARD, 30)] * 3


@program("collective_matmul")
def collective_matmul(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    x, w, ring = normal(24, 32), normal(32, 5, seed=1), mesh((8,), ("i",))
    return [
        example.product(body, spec, x, w, ring)
        for body, spec in [
            (example.gather_then_multiply, example.ROWS),
            (example.multiply_while_gathering, example.ROWS),
            (example.multiply_then_scatter, example.COLUMNS),
            (example.multiply_while_scattering, example.COLUMNS),
        ]
    ]


@answer("collective_matmul")
def collective_matmul_numpy(example: ModuleType) -> Any:
    return [normal(24, 32) @ normal(32, 5, seed=1)] * 4


@functools.cache
def digits() -> np.ndarray:
    return load_digits().data


@program("kmeans")
def kmeans(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    points, weights = example.padded(digits(), 8)
    return example.cluster(points, weights, digits()[:10], mesh((8,), ("data",)), 12)


@answer("kmeans")
def kmeans_numpy(example: ModuleType) -> Any:
    points, centres = digits(), digits()[:10]

    def nearest() -> np.ndarray:
        return ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)

    for _ in range(12):
        group = nearest()
        centres = np.array([points[group == g].mean(axis=0) for g in range(10)])
    # Points of zeros fill the last device; they are near some centre, too.
    points = np.vstack([points, np.zeros((-len(points) % 8, 64))])
    return centres, nearest()


CUBE = normal(8, 16, 24) + 1j * normal(8, 16, 24, seed=1)


@program("fft3d")
def fft3d(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    found = []
    for shape in ((2, 4), (4, 2), (8, 1)):
        grid = mesh(shape, ("a", "b"))
        found += [example.fft3d(CUBE, grid), example.ifft3d(CUBE, grid)]
    return found


@answer("fft3d")
def fft3d_numpy(example: ModuleType) -> Any:
    return [np.fft.fftn(CUBE), np.fft.ifftn(CUBE)] * 3


SEQUENCES = normal(3, 4, 32, 2, 6)  # query, key, value; batch, positions, heads, width


@program("ring_attention")
def ring_attention(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    axes = ("data", "sequence")
    far = SEQUENCES * np.array([40.0, 40.0, 1.0])[:, None, None, None, None]
    return [
        example.attention(*SEQUENCES, mesh((2, 4), axes)),
        example.attention(*SEQUENCES, mesh((4, 2), axes)),
        example.attention(*SEQUENCES, mesh((1, 8), axes)),
        example.attention(*far, mesh((2, 4), axes)),  # exp overflows unless the softmax is safe
    ]


@answer("ring_attention")
def ring_attention_numpy(example: ModuleType) -> Any:
    def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(6)
        scores = np.where(np.tri(32, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("bhqk,bkhd->bqhd", weights, value)

    near = attention(*SEQUENCES)
    return [near, near, near, attention(40 * SEQUENCES[0], 40 * SEQUENCES[1], SEQUENCES[2])]


LAYERS = {"up": normal(4, 8, 16), "down": normal(4, 16, 8, seed=1) / 4}


@program("pipeline")
def pipeline(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    grid = mesh((4, 2), ("stage", "model"))
    batches = normal(6, 3, 8, seed=2)
    return [example.pipeline(LAYERS, batches[:count], grid) for count in (6, 1, 4)]


@answer("pipeline")
def pipeline_numpy(example: ModuleType) -> Any:
    found = example.pipeline_numpy(LAYERS, normal(6, 3, 8, seed=2))
    return [found, found[:1], found[:4]]


def table() -> tuple[Any, np.ndarray, np.ndarray]:
    x = normal(64, 3)
    y = x @ np.array([2.0, -1.0, 0.5]) + 4.0 + 0.1 * normal(64, seed=1)
    return {"slope": np.zeros(3), "offset": np.zeros(())}, x, y


@program("regression")
def regression(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    params, losses = example.fit(*table(), mesh((8,), ("data",)), 40, 0.2)
    return params["slope"], params["offset"], losses


@answer("regression")
def regression_numpy(example: ModuleType) -> Any:
    params, losses = example.fit_numpy(*table(), 40, 0.2)
    exact = np.linalg.lstsq(np.column_stack([table()[1], np.ones(64)]), table()[2])[0]
    np.testing.assert_allclose(params["slope"], exact[:3], rtol=1e-4)
    return params["slope"], params["offset"], losses


@program("summa")
def summa(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    a, b, axes = normal(24, 32), normal(32, 16, seed=1), ("layer", "y", "x")
    shapes = ((2, 2, 2), (1, 2, 4), (1, 1, 8), (4, 1, 2))
    return [example.product(a + n, b + n, mesh(s, axes)) for n, s in enumerate(shapes)]


@answer("summa")
def summa_numpy(example: ModuleType) -> Any:
    return [(normal(24, 32) + n) @ (normal(32, 16, seed=1) + n) for n in range(4)]


@program("conjugate_gradients")
def conjugate_gradients(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    found, count = example.solve(normal(16, 12), mesh((8,), ("rows",)), 1e-13)
    return found, count > 10


@answer("conjugate_gradients")
def conjugate_gradients_numpy(example: ModuleType) -> Any:
    def along(size: int) -> np.ndarray:
        return 2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)

    operator = np.kron(along(16), np.eye(12)) + np.kron(np.eye(16), along(12))
    return np.linalg.solve(operator, normal(16, 12).ravel()).reshape(16, 12), np.True_


@program("block_sort")
def block_sort(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    return [example.block_sort(x, mesh((8,), ("i",))) for x in (normal(64), -np.arange(40))]


@answer("block_sort")
def block_sort_numpy(example: ModuleType) -> Any:
    return [np.sort(normal(64)), np.sort(-np.arange(40))]


WORDS = np.random.default_rng(5).integers(0, 64, (8, 3))


@program("embedding")
def embedding(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    shapes = ((2, 4), (1, 8), (8, 1))
    return [example.embed(normal(64, 5), WORDS, mesh(s, ("data", "rows"))) for s in shapes]


@answer("embedding")
def embedding_numpy(example: ModuleType) -> Any:
    return [normal(64, 5)[WORDS]] * 3


@program("experts")
def experts(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    return example.mixture(*example.values(64, 6, 10), 8, mesh((8,), ("expert",)))


@answer("experts")
def experts_numpy(example: ModuleType) -> Any:
    return example.mixture_numpy(*example.values(64, 6, 10))


@program("nbody")
def nbody(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    return example.simulate(*example.bodies(24), mesh((8,), ("i",)), 4)


@answer("nbody")
def nbody_numpy(example: ModuleType) -> Any:
    places, speeds, masses = example.bodies(24)
    for _ in range(4):
        speeds = speeds + example.STEP * example.pull(places, places, masses)
        places = places + example.STEP * speeds
    return places, speeds


SENSORS = np.random.default_rng(6).integers(0, 2, (8, 16)).astype(float)


@program("inverse_heat")
def inverse_heat(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    return example.recover(np.abs(normal(8, 16)), SENSORS, mesh((2, 4), ("y", "x")), 2)


@answer("inverse_heat")
def inverse_heat_numpy(example: ModuleType) -> Any:
    def later(plate: np.ndarray) -> np.ndarray:  # its own transpose
        for _ in range(50):
            wide = np.pad(plate, 1)
            around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
            plate = plate + 0.2 * (around - 4 * plate)
        return plate

    measured = np.abs(normal(8, 16))
    source, before, misfits = np.zeros((8, 16)), np.zeros((8, 16)), []
    for _ in range(2):
        ahead = source + 0.9 * (source - before)
        errors = SENSORS * (later(ahead) - measured)
        misfits.append((errors**2).sum() / 2)
        source, before = np.maximum(ahead - later(errors), 0), source
    return source, np.array(misfits)


def softmax_problem() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    weights = {"slope": normal(64, 10) / 8, "offset": normal(10, seed=1)}
    return weights, digits()[:32] / 16, np.arange(32) % 10


def splitter(example: ModuleType, mesh: Any) -> Callable[[Any], Any]:
    """Return what splits arrays by their first dim, in the library that the example has loaded."""
    rows = example.NamedSharding(mesh, example.P(mesh.axis_names))
    return lambda tree: example.meshard.device_put(tree, rows)


@program("per_example_gradients")
def per_example_gradients(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    weights, images, told = softmax_problem()
    split = splitter(example, mesh((8,), ("data",)))
    mean, norms = example.clipped(weights, *split((images, told)), 3.7)
    return mean["slope"], mean["offset"], norms


@answer("per_example_gradients")
def per_example_gradients_numpy(example: ModuleType) -> Any:
    weights, images, told = softmax_problem()
    scores = images @ weights["slope"] + weights["offset"]
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    offsets = chances - np.eye(10)[told]
    slopes = images[:, :, None] * offsets[:, None, :]
    norms = np.sqrt((slopes**2).sum(axis=(1, 2)) + (offsets**2).sum(axis=1))
    shares = np.minimum(1, 3.7 / norms) / 32
    assert 0 < (norms > 3.7).sum() < 32
    return np.tensordot(shares, slopes, 1), shares @ offsets, norms


TUMOURS = normal(40, 16), np.sign(normal(40, seed=1))


@program("newton_cg")
def newton_cg(example: ModuleType, mesh: Callable[..., Any]) -> Any:
    split = splitter(example, mesh((8,), ("feature",)))
    x, y = TUMOURS
    return example.newton(split(normal(16, seed=2) / 9), split(x.T).T, y)


@answer("newton_cg")
def newton_cg_numpy(example: ModuleType) -> Any:
    (x, y), w = TUMOURS, normal(16, seed=2) / 9
    chances = 1 / (1 + np.exp(y * (x @ w)))
    slope = 1e-3 * w - x.T @ (y * chances) / 40
    bend = 1e-3 * np.eye(16) + (x.T * (chances * (1 - chances))) @ x / 40
    value = np.logaddexp(0, -y * (x @ w)).mean() + 5e-4 * w @ w
    return w - np.linalg.solve(bend, slope), value, np.linalg.norm(slope)


# the tests


def close(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            close(a, b)
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def run_in_meshard(name: str) -> Any:
    """Run a program in the current world."""
    return fetched(PROGRAMS[name](load(name), meshard.make_mesh))


@contextlib.contextmanager
def run_in_jax(jax: ModuleType, name: str) -> Iterator[Any]:
    def mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
        auto = (jax.sharding.AxisType.Auto,) * len(shape)
        return jax.make_mesh(shape, names, axis_types=auto)

    example = load(name, "jax")
    with jax.enable_x64(True):
        yield jax.jit(lambda: PROGRAMS[name](example, mesh))()


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_give_what_numpy_gives_in_1_to_8_processes(name: str) -> None:
    close(in_all_worlds(lambda: run_in_meshard(name)), ANSWERS[name](load(name)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_give_what_jax_gives(jax: ModuleType, name: str) -> None:
    with run_in_jax(jax, name) as found:
        close(alone(lambda: run_in_meshard(name)), jax.device_get(found))


# tests/test_site.py runs all of them in one process.
def test_an_example_runs_by_itself(tmp_path: Path) -> None:
    path = EXAMPLES / "heat.py"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    result = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        encoding="utf-8",
        env={**environment, "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert PRINTS["heat"] in result.stdout


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_examples_run_in_four_processes(tmp_path: Path) -> None:
    (tmp_path / "all.py").write_text(
        "import runpy\n"
        f"short = {SHORT}\n"
        f"for name in {list(PROGRAMS)}:\n"
        "    own = '__main__' if name not in short else name\n"
        f"    program = runpy.run_path({str(EXAMPLES)!r} + f'/{{name}}.py', run_name=own)\n"
        "    program['main'](*short[name]) if name in short else None\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    result = subprocess.run(
        [sys.executable, "-m", "meshard", "run", "-n", "4", "--timeout", "90", "all.py"],
        capture_output=True,
        encoding="utf-8",
        env={**environment, "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for text in PRINTS.values():
        assert result.stdout.count(text) == 4
    errors = re.findall(r"(?:differs.* by:?|there and back:) ([-+.\de]+)$", result.stdout, re.M)
    assert len(errors) == 4 * 16
    assert max(map(float, errors)) < 1e-9


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("name", TRAINING)
def test_longer_programs_train_in_two_processes_of_two_devices(name: str, tmp_path: Path) -> None:
    steps, _ = TRAINING[name]
    (tmp_path / "some.py").write_text(
        f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport {name}\n{name}.main(*{steps})\n"
    )
    job = ["-m", "meshard", "run", "-n", "2", "--devices-per-process", "2", "--timeout", "90"]
    result = subprocess.run(
        [sys.executable, *job, "some.py"],
        capture_output=True,
        encoding="utf-8",
        env={k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")},
        cwd=tmp_path,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert_trained(name, result.stdout)


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.skipif(not fault_tolerant(), reason="this MPI has no fault tolerance")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("count", [1, 4])
def test_training_outlives_its_processes(count: int, tmp_path: Path) -> None:
    job = [] if count == 1 else ["-m", "meshard", "run", "-n", "4", "--spares", "2"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    result = subprocess.run(
        [sys.executable, *job, EXAMPLES / "elastic_training.py"],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=tmp_path,
        timeout=140,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    told = [line for line in result.stdout.splitlines() if line]
    assert told[-1] == "the bits are those of an undisturbed run"
    if count > 1:
        going_on = [f"going on with {n} of 4 processes" for n in (3, 2, 4, 3)]
        assert told[:2] == [f"step 15: {going_on[0]}", f"step 30: {going_on[1]}"]
        assert told[-3].endswith(going_on[2])  # spares may join one after the other
        assert told[-2] == f"step 75: {going_on[3]}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_are_short_and_say_how_to_run(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 80
    assert f"    python examples/{name}.py\n" in (load(name).__doc__ or "")
    assert f"`{name}.py`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_every_example_is_tested() -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    others = {
        "minilm",
        "weight_sync",
        "train_mlp",
        "nano_transformer",
        "digits_pipeline",
        "sparse_poisson",
    }  # by tests of their own, such as tests/test_demo.py
    shown = {"principal_components", "tensor_parallel", "train_to_serve", "checkpoint"}
    shown |= {"monte_carlo", "mandelbrot"}  # by tests/test_site.py, as all are
    assert files == {*PROGRAMS, *others, *shown, "elastic_training"}
    assert set(ANSWERS) == set(PRINTS) == set(PROGRAMS)
