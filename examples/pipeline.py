"""A pipeline of 4 stages, each on 2 devices, fed with microbatches.

    python examples/pipeline.py

The stage axis of the mesh holds one layer each; within a stage the layer's hidden units are split
over the model axis and joined by a `psum`. At each tick every stage computes one microbatch and
hands it to the next stage by `ppermute`. While the pipeline fills and drains some stages have
nothing to do: `cond` skips them, although their neighbours compute and communicate.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

SPECS = {"up": P("stage", None, "model"), "down": P("stage", "model", None)}


def layer(weights, x):
    """Return a residual layer's result; hidden units of this device only, summed over model."""
    return x + lax.psum(mnp.tanh(x @ weights["up"][0]) @ weights["down"][0], "model")


def run_stages(weights, batches):
    """The body: `batches` are all microbatches; of the weights one layer is here."""
    stage, stages = lax.axis_index("stage"), lax.axis_size("stage")
    count = len(batches)
    onward = [(i, i + 1) for i in range(stages - 1)]

    def tick(arrived, now):
        time, fresh = now
        x = mnp.where(stage == 0, fresh, arrived)
        busy = (stage <= time) & (time < stage + count)
        x = lax.cond(busy, lambda x: layer(weights, x), lambda x: x, x)
        return lax.ppermute(x, "stage", onward), x

    drain = mnp.zeros((stages - 1, *batches.shape[1:]), batches.dtype)
    times, feed = mnp.arange(count + stages - 1), mnp.concatenate([batches, drain])
    nothing = lax.pcast(mnp.zeros_like(batches[0]), "stage", to="varying")
    _, left = lax.scan(tick, nothing, (times, feed))
    # Every stage has its results; those of the last one count.
    return lax.psum(mnp.where(stage == stages - 1, left[stages - 1 :], 0), "stage")


def pipeline(weights, batches, mesh):
    """Return all microbatches after all layers; `mesh` has the axes stage and model."""
    run = functools.partial(meshard.shard_map, mesh=mesh, in_specs=(SPECS, P()), out_specs=P())
    return run(run_stages)(weights, batches)


def pipeline_numpy(weights, batches):
    """Compute the same, layer after layer."""
    for up, down in zip(weights["up"], weights["down"], strict=True):
        batches = batches + np.tanh(batches @ up) @ down
    return batches


def main():
    """Send 6 microbatches of 16 rows through 4 layers on 4 x 2 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((4, 2), ("stage", "model"))
    random = np.random.default_rng(0)
    weights = {"up": random.normal(size=(4, 32, 64)), "down": random.normal(size=(4, 64, 32)) / 8}
    batches = random.normal(size=(6, 16, 32))
    placed = meshard.device_put(weights, {k: NamedSharding(mesh, s) for k, s in SPECS.items()})
    found = pipeline(placed, batches, mesh)
    for name, w in placed.items():
        print(f"{name}: {w.shape}, of which a device holds {w.addressable_shards[0].data.shape}")
    print("differs from plain NumPy by:", mnp.abs(found - pipeline_numpy(weights, batches)).max())


if __name__ == "__main__":
    main()
