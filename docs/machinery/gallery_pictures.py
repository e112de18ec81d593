"""The picture of each program of the gallery: a drawing of a layout, or of what it has computed.

In: the module of a program, which has run on eight devices. Out: an SVG, and for some what
`explain` says, as HTML. Functions have the names of the programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import numpy as np

import meshard
from machinery.charts import bars, curves, heat_map, scatter
from meshard import debug
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.testing import virtual_devices

Picture = Callable[[ModuleType], str]


def mesh(*names: str, shape: tuple[int, ...] = (8,)) -> Mesh:
    """Return a mesh of the eight devices."""
    return meshard.make_mesh(shape, names)


def drawn(shape: tuple[int, ...], mesh: Mesh, spec: P) -> str:
    """Return the drawing of a layout."""
    return debug.sharding_svg(shape, NamedSharding(mesh, spec))


def tiles(rows: int, columns: int, size: tuple[int, int]) -> tuple[range, range]:
    """Return where an array is cut into tiles."""
    return tuple(
        range(length // parts, length, length // parts)
        for length, parts in zip(size, (rows, columns), strict=True)
    )


# Linear algebra


def summa(program: ModuleType) -> str:
    a, amounts = np.ones((256, 256)), {}
    for name, shape in {
        "1D, 1 x 8": (1, 1, 8),
        "2D, 2 x 4": (1, 2, 4),
        "2.5D, 2 x 2 x 2": (2, 2, 2),
    }.items():
        with debug.ledger() as log:
            program.product(a, a, mesh("layer", "y", "x", shape=shape))
        amounts[name] = log.bytes_per_device
    return bars(amounts, "The bytes that a device receives in each arrangement", "bytes per device")


def collective_matmul(program: ModuleType) -> str:
    return drawn((24, 32), mesh("i"), program.COLUMNS)


def conjugate_gradients(program: ModuleType) -> str:
    charges = np.zeros((32, 32))
    charges[10, 10], charges[22, 20] = 1.0, -1.0
    found = np.asarray(program.solve(charges, mesh("rows"), 1e-8)[0])
    cuts = tiles(8, 1, found.shape)
    return heat_map(np.arcsinh(8 * found), "The potential of two charges", cuts=cuts)


def sparse_poisson(program: ModuleType) -> str:
    charges = np.zeros((32, 32))
    charges[10, 10], charges[22, 20] = 1.0, -1.0
    _, _, potential, log = program.solve(charges, NamedSharding(mesh("rows"), P("rows")))
    received = [r.received for r in log.records if r.what == "sparse_times"][-1]
    amounts = {
        "entries that rows need": max(received.values()),
        "the whole vector": potential.nbytes * 7 // 8,
    }
    return bars(amounts, "The bytes that a device receives in a product", "bytes per device")


def newton_cg(program: ModuleType) -> str:
    (x, y), norms = program.problem(), []
    split = NamedSharding(mesh("feature"), P(None, "feature"), uneven="balanced")
    weights, placed = np.zeros(30), meshard.device_put(x, split)
    for _ in range(10):
        weights, _, norm = meshard.jit(program.newton)(weights, placed, y)
        norms.append(np.log10(float(norm)))
    return curves([np.array(norms)], "The gradient's norm at each step, by its digits", marks=True)


def principal_components(program: ModuleType) -> str:
    x, _ = program.samples(400)
    basis, _ = program.components(x, program.start(), 30)
    groups = np.arange(400) // 50
    return scatter(np.asarray(x @ np.asarray(basis))[:, :2], groups, "Samples along two components")


def fft3d(program: ModuleType) -> str:
    return drawn((8, 16, 24), mesh("a", "b", shape=(2, 4)), program.ALONG_2)


# Stencils and particles


def heat(program: ModuleType) -> str:
    plate = np.zeros((64, 64))
    plate[24:40, 24:40] = 100.0
    found = np.asarray(program.diffuse(plate, mesh("y", "x", shape=(2, 4)), 100))
    return heat_map(found, "A hot square on a plate of 2 x 4 tiles", cuts=tiles(2, 4, (64, 64)))


def inverse_heat(program: ModuleType) -> str:
    plates = np.zeros((2, 24, 24))
    (true, mask), grid = plates, mesh("y", "x", shape=(2, 4))
    true[4:8, 4:9], true[14:18, 15:20], mask[::2, ::2] = 100.0, 60.0, 1.0
    end = program.later(meshard.device_put(true, NamedSharding(grid, P("y", "x"))), grid)
    found, _ = meshard.jit(program.recover, static_argnums=(2, 3))(end, mask, grid, 30)
    shown = np.hstack([p / p.max() for p in (true, np.asarray(end), np.asarray(found))])
    told = "A source, the temperatures fifty steps later, and the source found from them"
    return heat_map(shown, told, cuts=((), (24, 48)))


def life(program: ModuleType) -> str:
    board = np.random.default_rng(3).integers(0, 2, (32, 48)).astype(np.int32)
    found, _ = program.evolve(board, mesh("y", "x", shape=(2, 4)), 60)
    cuts = tiles(2, 4, found.shape)
    return heat_map(np.asarray(found).astype(float), "The board after 60 generations", cuts=cuts)


def nbody(program: ModuleType) -> str:
    places, _ = program.simulate(*program.bodies(), mesh("i"), 50)
    return scatter(np.asarray(places), np.arange(len(places)) // 16, "Bodies, coloured by device")


def mandelbrot(program: ModuleType) -> str:
    plane = NamedSharding(mesh("y"), P("y"), uneven="balanced")
    found = program.steps_to_escape(meshard.device_put(program.points(), plane))
    ends = np.cumsum([shard.data.shape[0] for shard in found.addressable_shards])
    told = "The Mandelbrot set on eight devices, in seven or eight rows each"
    return heat_map(np.log1p(np.asarray(found)), told, cuts=(ends[:-1], ()))


# Learning


def regression(program: ModuleType) -> str:
    random = np.random.default_rng(0)
    x = random.normal(size=(800, 3))
    start = {"slope": np.zeros(3), "offset": np.zeros(())}
    y = x @ np.array([2.0, -1.0, 0.5]) + 4
    _, losses = program.fit(start, x, y, mesh("data"), 20, 0.2)
    return curves([np.asarray(losses)], "The mean squared error of each step", marks=True)


def kmeans(program: ModuleType) -> str:
    from sklearn.datasets import load_digits

    images = load_digits().data
    points, weights = program.padded(images, 8)
    centres, _ = program.cluster(points, weights, images[:10], mesh("data"), 12)
    grid = np.asarray(centres).reshape(2, 5, 8, 8).transpose(0, 2, 1, 3).reshape(16, 40)
    return heat_map(grid, "The ten centres, as images", cuts=tiles(2, 5, grid.shape))


def train_mlp(program: ModuleType) -> str:
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    grid, losses = mesh("data", "model", shape=(4, 2)), []
    batches = images[:1536].reshape(12, 128, 64) / 16, digits[:1536].reshape(12, 128)
    batches = meshard.device_put(batches, NamedSharding(grid, P(None, "data")))
    state = program.start(grid)
    for _ in range(8):
        state, found = program.epoch(state, batches)
        losses.append(np.asarray(found))
    return curves([np.concatenate(losses)], "The loss of each batch, in eight epochs")


def per_example_gradients(program: ModuleType) -> str:
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    rows = NamedSharding(mesh("data"), P("data"))
    placed = meshard.device_put((images[:512] / 16, digits[:512]), rows)
    weights = {"slope": np.zeros((64, 10)), "offset": np.zeros(10)}
    weights, norms = program.train(weights, *placed, 40, 0.0)
    points = np.stack([np.arange(512), np.log10(np.asarray(norms))], axis=1)
    return scatter(points, np.arange(512) // 64, "How long each example's gradient is, by device")


def digits_pipeline(program: ModuleType) -> str:
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    rows = NamedSharding(mesh("data"), P("data"), uneven="balanced")
    model = program.pipeline()
    program.digits_of(*meshard.device_put((images, np.eye(10)[digits]), rows), model)
    components = model.steps[1][1].components_[:10].to_numpy()
    grid = components.reshape(2, 5, 8, 8).transpose(0, 2, 1, 3).reshape(16, 40)
    return heat_map(grid, "The first ten components, as images", cuts=tiles(2, 5, grid.shape))


def elastic_training(program: ModuleType) -> str:
    import pictures

    from meshard import elastic

    def rows(devices: list[meshard.Device]) -> NamedSharding:
        return NamedSharding(Mesh(np.array(devices), ("data",)), P("data"), uneven="balanced")

    six = rows(virtual_devices(6, 1))
    weights = {"w": meshard.ShapeDtypeStruct((24, 8), "float32", sharding=six)}
    found = elastic.simulate_loss(weights, rows, [1, 2], copies=1)
    return pictures.sources_svg(found)


# Models


def tensor_parallel(program: ModuleType) -> str:
    return drawn((64, 256), mesh("data", "model", shape=(2, 4)), program.SPECS["up"])


def nano_transformer(program: ModuleType) -> str:
    grid = mesh("data", "model", shape=(4, 2))
    weights = program.start()
    amounts = {
        name: program.held(meshard.device_put(weights, layout(weights, grid)))
        for name, layout in {
            "fully sharded": program.fully_sharded,
            "tensor-parallel": program.tensor_parallel,
            "on one device": lambda weights, grid: meshard.devices()[0],
        }.items()
    }
    return bars(amounts, "The bytes of the weights that a device holds", "bytes")


def ring_attention(program: ModuleType) -> str:
    steps = np.array([[float(q - k) if k <= q else np.nan for k in range(8)] for q in range(8)])
    told = "In which step the queries of a device (down) meet the keys of another (right)"
    return heat_map(steps, told, tell=lambda i, j: f"{i - j}" if j <= i else "")


def pipeline(program: ModuleType) -> str:
    batch = np.array(
        [[float(t - s) if 0 <= t - s < 6 else np.nan for t in range(9)] for s in range(4)]
    )
    told = "Which microbatch a stage (down) has at each step (right)"
    return heat_map(batch, told, tell=lambda i, j: f"{j - i + 1}" if 0 <= j - i < 6 else "")


def embedding(program: ModuleType) -> str:
    return drawn((4096, 32), mesh("data", "rows", shape=(2, 4)), P("rows"))


def experts(program: ModuleType) -> str:
    tokens, router, _, _ = program.values()
    chosen = (tokens @ router).argmax(axis=1).reshape(8, 16)
    counts = np.array([np.bincount(row, minlength=8) for row in chosen]).astype(float)
    told = "How many tokens of each device (down) go to each expert (right)"
    return heat_map(counts, told, tell=lambda i, j: f"{counts[i, j]:.0f}")


def minilm(program: ModuleType) -> str:
    spec = program.spec_of("encoder.layer.0.attention.self.query.weight")
    return drawn((384, 384), mesh("data", "model", shape=(2, 4)), spec)


# Data and randomness


def block_sort(program: ModuleType) -> str:
    x = np.random.default_rng(0).permutation(64).astype(float)
    rounds, ring = [x, np.sort(x.reshape(8, 8), axis=1).ravel()], mesh("i")
    for step in range(8):
        body = functools.partial(program.exchange, even=step % 2 == 0)
        run = meshard.shard_map(body, mesh=ring, in_specs=P("i"), out_specs=P("i"))
        rounds.append(np.asarray(run(rounds[-1])))
    told = "The numbers of eight devices (right), round by round (down)"
    cuts = range(1, 10), range(8, 64, 8)
    return heat_map(np.stack(rounds), told, cuts=cuts, stretched=True)


def monte_carlo(program: ModuleType) -> str:
    found = program.paths(24, NamedSharding(mesh("path"), P("path")))
    return curves(list(np.asarray(found)), "24 paths of a share's price")


# Weights on the move


def train_to_serve(program: ModuleType) -> str:
    grid = mesh("data", "model", shape=(2, 4))
    plan = meshard.plan_reshard(program.trained(grid), program.serving(grid))
    return plan.to_svg()


def checkpoint(program: ModuleType) -> str:
    grid = mesh("x", "y", shape=(4, 2))
    return drawn((512, 1024), grid, program.LOADED["up"])


def weight_sync(program: ModuleType) -> str:
    return program.plan(1).to_svg()


GROUPS: dict[str, tuple[Picture, ...]] = {
    "Linear algebra": (
        *(summa, collective_matmul, conjugate_gradients, newton_cg, principal_components),
        *(sparse_poisson, fft3d),
    ),
    "Stencils, particles, fractals": (heat, inverse_heat, life, nbody, mandelbrot),
    "Learning": (
        *(regression, kmeans, digits_pipeline, train_mlp, per_example_gradients),
        elastic_training,
    ),
    "Models": (
        *(nano_transformer, tensor_parallel, ring_attention, pipeline, experts, embedding),
        minilm,
    ),
    "Data and chance": (block_sort, monte_carlo),
    "Weights on the move": (train_to_serve, checkpoint, weight_sync),
}


def explained(name: str, program: ModuleType) -> str:
    """Return what `explain` says of a program's main function, as HTML; empty for most."""
    if name == "tensor_parallel":
        grid = mesh("data", "model", shape=(2, 4))
        return meshard.explain(
            program.layer, *program.placed(*program.values(), grid)
        )._repr_html_()
    if name == "per_example_gradients":
        rows = NamedSharding(mesh("data"), P("data"))
        data = meshard.device_put((np.ones((512, 64)), np.ones(512, int)), rows)
        weights = {"slope": np.zeros((64, 10)), "offset": np.zeros(10)}
        return meshard.explain(program.clipped, weights, *data, 1.0)._repr_html_()
    if name == "train_mlp":
        grid = mesh("data", "model", shape=(4, 2))
        batch = np.ones((128, 64)), np.ones(128, int)
        batch = meshard.device_put(batch, NamedSharding(grid, P("data")))
        return meshard.explain(program.step, program.start(grid), batch)._repr_html_()
    if name == "principal_components":
        rows = NamedSharding(mesh("data"), P("data"))
        x = meshard.device_put(program.samples()[0], rows)
        return meshard.explain(program.components, x, program.start(), 50)._repr_html_()
    return ""
