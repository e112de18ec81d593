"""Linear regression by gradient descent, the rows of the data split over 8 devices.

    python examples/regression.py

Data parallelism in its smallest form: every device has all weights and some rows, works out the
gradient of its own rows by hand, and a `psum` adds the gradients up. As all devices then take the
same step, the weights stay the same everywhere: `out_specs=P()` says so, and is checked.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def gradients(params, x, y):
    """Return the sum of squared errors of some rows, and its gradient by hand."""
    errors = x @ params["slope"] + params["offset"] - y
    return (errors**2).sum(), {"slope": 2 * errors @ x, "offset": 2 * errors.sum()}


def fit(params, x, y, mesh, steps, rate):
    """Return the fitted parameters, and the mean squared error before each step.

    `mesh` has one axis, data; shapes are (rows, features) and (rows,).
    """

    @functools.partial(
        meshard.shard_map, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P())
    )
    def run(params, x, y):
        rows = lax.psum(len(x), "data")

        def step(params, _):
            loss, slopes = lax.psum(gradients(params, x, y), "data")
            params = {name: params[name] - rate / rows * slopes[name] for name in params}
            return params, loss / rows

        return lax.scan(step, params, None, length=steps)

    return run(params, x, y)


def fit_numpy(params, x, y, steps, rate):
    """Compute the same on the whole data."""
    losses = []
    for _ in range(steps):
        loss, slopes = gradients(params, x, y)
        params = {name: params[name] - rate / len(x) * slopes[name] for name in params}
        losses.append(loss / len(x))
    return params, np.array(losses)


def main():
    """Find the weights that made noisy data; compare with the exact solution."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("data",))
    random = np.random.default_rng(0)
    x, true = random.normal(size=(8000, 3)), np.array([2.0, -1.0, 0.5])
    y = x @ true + 4.0 + 0.1 * random.normal(size=8000)
    placed = meshard.device_put((x, y), NamedSharding(mesh, P("data")))
    start = {"slope": mnp.zeros(3), "offset": mnp.zeros(())}
    params, losses = fit(start, *placed, mesh, 50, 0.2)
    exact = np.linalg.lstsq(np.column_stack([x, np.ones(8000)]), y)[0]
    print("rows on each device:", placed[0].addressable_shards[0].data.shape)
    print("mean squared error:", np.round(np.asarray(losses)[[0, 5, 10, 49]], 4))
    print("slope:", np.round(params["slope"], 4), "offset:", round(float(params["offset"]), 4))
    print("exact solution:", np.round(exact, 4))


if __name__ == "__main__":
    main()
