"""A network that learns to read handwritten digits, data parallel and tensor parallel at once.

    pip install scikit-learn
    python examples/train_mlp.py

Images are split over one mesh axis, hidden units over the other. The code says nothing of it: a
gradient is made of ordinary operations, so the layout of weights and images decides what a step
communicates. `explain` tells it before anything runs: one sum for the hidden units, one for the
gradient of each weight, and the loss. On one device the same code gives the same weights.
"""

import numpy as np

import meshard
from meshard import lax, nn, optim
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

SPECS = {"in": P(None, "model"), "bias": P("model"), "out": P("model")}
OPTIMIZER = optim.adam(optim.cosine_decay_schedule(0.01, 240))


def network(weights, images):
    """Return a score for each digit."""
    return nn.relu(images @ weights["in"] + weights["bias"]) @ weights["out"]


def loss(weights, images, digits):
    """Return the mean cross entropy."""
    return -(nn.one_hot(digits, 10) * nn.log_softmax(network(weights, images))).sum(axis=1).mean()


def step(state, batch):
    """Return weights and optimizer after a batch, and the loss before it."""
    weights, memory = state
    value, gradient = meshard.value_and_grad(loss)(weights, *batch)
    updates, memory = OPTIMIZER.update(gradient, memory, weights)
    return (optim.apply_updates(weights, updates), memory), value


@meshard.jit
def epoch(state, batches):
    """Return the state after a step for each batch, and the losses."""
    return lax.scan(step, state, batches)


def start(mesh, hidden=128):
    """Return the weights on a mesh with the axes data and model, and the optimizer's memory."""
    random = np.random.default_rng(0)
    weights = {
        "in": random.normal(size=(64, hidden)) / 8,
        "bias": np.zeros(hidden),
        "out": random.normal(size=(hidden, 10)) / np.sqrt(hidden),
    }
    weights = meshard.device_put(weights, {k: NamedSharding(mesh, s) for k, s in SPECS.items()})
    return weights, OPTIMIZER.init(weights)


def train(mesh, images, digits, epochs):
    """Return the weights after some epochs of batches of 128, and the mean loss of each epoch."""
    batches = images.reshape(-1, 128, 64), digits.reshape(-1, 128)
    batches = meshard.device_put(batches, NamedSharding(mesh, P(None, "data")))
    state, losses = start(mesh), []
    for _ in range(epochs):
        state, found = epoch(state, batches)
        losses.append(float(found.mean()))
    return state[0], losses


def main(epochs=20):
    """Train on 1536 digits, on 4 x 2 devices and on one; read the other 261."""
    from sklearn.datasets import load_digits

    meshard.config.update("num_devices", 8 // meshard.process_count())
    images, digits = load_digits(return_X_y=True)
    mixed = np.random.default_rng(1).permutation(len(images))
    images, digits = images[mixed] / 16, digits[mixed]
    mesh = meshard.make_mesh((4, 2), ("data", "model"))

    batch = meshard.device_put((images[:128], digits[:128]), NamedSharding(mesh, P("data")))
    print("a step sends along   bytes to a device")
    for told in meshard.explain(step, start(mesh), batch).steps:
        for c in told.communications:
            what = told.purpose or "the loss"
            print(f"{c.kind:12} {c.axes[0]:7} {c.bytes_per_device:8,}  {what}")

    weights, losses = train(mesh, images[:1536], digits[:1536], epochs)
    for number, value in enumerate(losses, 1):
        if number in (1, 2, 5, 10, 20):
            print(f"epoch {number:2}: loss {value:.4f}")
    found = network(weights, images[1536:]).argmax(axis=1)
    print(f"digits read rightly that were never seen: {(found == digits[1536:]).mean():.1%}")
    if meshard.process_count() == 1:
        one = meshard.make_mesh((1, 1), ("data", "model"), devices=meshard.devices()[:1])
        other, _ = train(one, images[:1536], digits[:1536], epochs)
        errors = [abs(np.asarray(weights[k]) - np.asarray(other[k])).max() for k in weights]
        print("weights differ from those of one device by:", max(errors))


if __name__ == "__main__":
    main()
