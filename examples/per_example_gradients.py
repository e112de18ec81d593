"""One gradient for each example, clipped before they are summed, as private training does it.

    pip install scikit-learn
    python examples/per_example_gradients.py

The gradient of a mean says nothing of a single example. `vmap(grad(loss))` gives one gradient each:
as many as there are examples, and split like them. A sum of gradients that are no longer than a
bound says little of any one example; with noise added, that is private training (DP-SGD, Abadi and
others, 2016). The norms also show which examples are odd: here, digits with a wrong label.
"""

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import nn
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def loss(weights, image, digit):
    """Return the cross entropy of one example; shapes are (64,) and ()."""
    scores = nn.log_softmax(image @ weights["slope"] + weights["offset"])
    return -(nn.one_hot(digit, 10, dtype=scores.dtype) * scores).sum()


def clipped(weights, images, digits, bound):
    """Return the mean of gradients that are shortened to a bound, and how long each was."""
    gradients = meshard.vmap(meshard.grad(loss), in_axes=(None, 0, 0))(weights, images, digits)
    squares = [(g * g).reshape(len(g), -1).sum(axis=1) for g in gradients.values()]
    norms = mnp.sqrt(sum(squares))
    shares = mnp.minimum(1, bound / norms) / len(norms)
    return {name: mnp.tensordot(shares, g, 1) for name, g in gradients.items()}, norms


def train(weights, images, digits, steps, noise, bound=1.0, rate=4.0):
    """Return the weights after some steps, and the norms of the gradients at the last one."""
    random, fast = np.random.default_rng(0), meshard.jit(clipped)
    for _ in range(steps):
        mean, norms = fast(weights, images, digits, bound)
        for name, g in mean.items():
            errors = random.normal(size=g.shape) * noise * bound / len(images)
            weights = {**weights, name: weights[name] - rate * (g + errors)}
    return weights, norms


def main(steps=200):
    """Learn to read digits on 8 devices; 16 of 1536 have a wrong label."""
    from sklearn.datasets import load_digits

    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("data",))
    images, digits = load_digits(return_X_y=True)
    images, told, random = images / 16, digits.copy(), np.random.default_rng(0)
    wrong = random.choice(1536, 16, replace=False)
    told[wrong] = (digits[wrong] + random.integers(1, 10, 16)) % 10
    placed = meshard.device_put((images[:1536], told[:1536]), NamedSharding(mesh, P("data")))
    start = {"slope": mnp.zeros((64, 10)), "offset": mnp.zeros(10)}

    one = meshard.vmap(meshard.grad(loss), in_axes=(None, 0, 0))(start, *placed)["slope"]
    print("gradients:", one.shape, "by", one.sharding.spec)
    print("a step sends", meshard.explain(clipped, start, *placed, 1.0).total_bytes, "bytes")
    for noise in (0.0, 1.0):
        weights, norms = train(start, *placed, steps, noise)
        scores = images[1536:] @ weights["slope"] + weights["offset"]
        norms = meshard.multihost_utils.process_allgather(norms, tiled=True)
        found = np.isin(np.argsort(norms)[-16:], wrong).sum()
        read = float((scores.argmax(axis=1) == digits[1536:]).mean())
        print(f"noise {noise}: reads {read:.1%} of the other digits rightly; of the 16 longest")
        print(f"gradients {found} are of wrong labels; the median is {np.median(norms):.2f} long")


if __name__ == "__main__":
    main()
