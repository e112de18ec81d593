"""A small transformer that learns the Zen of Python by heart, trained in one layout, then another.

    python examples/nano_transformer.py

It is trained like a large one. At first each weight, and what the optimizer remembers of it, is
split over all devices (FSDP): weights are gathered where they are used, gradients are scattered
as they are summed. Then the whole state is saved, and moved to another layout, in which heads and
hidden units are split over one mesh axis (tensor parallelism) and sequences over the other. The
plan of that move is printed before it runs. Training goes on there, and at the end the model
recites. The function that is trained is the same throughout: layouts belong to arrays.
"""

import contextlib
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import checkpoint, nn, optim, print0
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.tree_util import keystr

CONTEXT, WIDTH, HEADS, LAYERS, SEQUENCES = 64, 64, 4, 2, 32

# The text


def zen():
    """Return the Zen of Python, which is a module that prints itself when it is imported."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return "".join(this.d.get(letter, letter) for letter in this.s)


TEXT = zen()
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(letter) for letter in TEXT], dtype=np.int32)


def batches(count, seed):
    """Yield batches of sequences, each with one letter more than the model sees."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        starts = random.integers(0, len(CODES) - CONTEXT, SEQUENCES)
        yield CODES[starts[:, None] + np.arange(CONTEXT + 1)]


# The model


def start():
    """Return the weights of an untrained model, as NumPy arrays."""
    random = np.random.default_rng(0)

    def normal(*shape, inputs):
        return (random.normal(size=shape) / np.sqrt(inputs)).astype(np.float32)

    def block():
        return {
            "norms": np.ones((2, WIDTH), np.float32),
            "qkv": normal(WIDTH, 3, HEADS, WIDTH // HEADS, inputs=WIDTH),
            "mix": normal(HEADS, WIDTH // HEADS, WIDTH, inputs=WIDTH * LAYERS),
            "up": normal(WIDTH, 4 * WIDTH, inputs=WIDTH),
            "down": normal(4 * WIDTH, WIDTH, inputs=4 * WIDTH * LAYERS),
        }

    return {
        "letters": normal(len(LETTERS), WIDTH, inputs=1),
        "places": normal(CONTEXT, WIDTH, inputs=1),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": np.ones(WIDTH, np.float32),
        "out": normal(WIDTH, len(LETTERS), inputs=WIDTH),
    }


def normed(x, scale):
    """Return vectors of mean square one, times a scale (RMSNorm)."""
    return x * scale / mnp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


@meshard.remat
def block(weights, x):
    """Return sequences after attention and an MLP; on the way back this is computed again."""
    query, key, value = mnp.einsum(
        "btw,wnhs->nbths", normed(x, weights["norms"][0]), weights["qkv"]
    )
    seen = nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + mnp.einsum("bths,hsw->btw", seen, weights["mix"])
    return x + nn.gelu(normed(x, weights["norms"][1]) @ weights["up"]) @ weights["down"]


def model(weights, codes):
    """Return a score for each letter that may follow each of `codes`: (sequences, positions)."""
    x = weights["letters"][codes] + weights["places"]
    for each in weights["blocks"]:
        x = block(each, x)
    return normed(x, weights["norm"]) @ weights["out"]


def loss(weights, batch):
    """Return the mean cross entropy of the next letters."""
    scores = nn.log_softmax(model(weights, batch[:, :-1]))
    return -(nn.one_hot(batch[:, 1:], len(LETTERS), dtype=scores.dtype) * scores).sum(-1).mean()


# Training

OPTIMIZER = optim.chain(
    optim.clip_by_global_norm(1.0),
    optim.adamw(optim.warmup_cosine_decay_schedule(0.0, 2e-2, 20, 200, 1e-3)),
)


def step(state, batch):
    """Return the state after a batch, and the loss before it."""
    value, gradient = meshard.value_and_grad(loss)(state["weights"], batch)
    updates, memory = OPTIMIZER.update(gradient, state["memory"], state["weights"])
    return {"weights": optim.apply_updates(state["weights"], updates), "memory": memory}, value


def train(state, sharding, count, seed):
    """Return the state after some batches, and print the loss now and then."""
    fast = meshard.jit(step, donate_argnums=0)
    for number, batch in enumerate(batches(count, seed)):
        state, value = fast(state, meshard.device_put(batch, sharding))
        if number % 40 == 0 or number == count - 1:
            print0(f"  batch {number:3}: loss {float(value):.3f}")
    return state


# Layouts. Both take a whole state: what the optimizer remembers of a weight has its name.


def fully_sharded(state, mesh):
    """Return a sharding for each array: its longest dim that divides is split over all axes."""

    def spread(x):
        dims = [d for d in range(x.ndim) if x.shape[d] % mesh.size == 0]
        longest = max(dims, key=lambda d: x.shape[d], default=None)
        return NamedSharding(
            mesh, P(*[mesh.axis_names if d == longest else None for d in range(x.ndim)])
        )

    return meshard.tree.map(spread, state)


def tensor_parallel(state, mesh):
    """Return a sharding for each array: heads and hidden units over the axis model."""
    split = {
        "qkv": P(None, None, "model"),
        "mix": P("model"),
        "up": P(None, "model"),
        "down": P("model"),
    }
    return meshard.tree.map_with_path(
        lambda path, x: NamedSharding(mesh, split.get(keystr(path[-1:], simple=True), P())), state
    )


# Reciting


def recite(weights, text, count):
    """Return a text with letters added, each the likeliest one."""

    @meshard.jit
    def scores(weights, codes, last):
        return model(weights, codes[None])[0, last]

    for _ in range(count):
        seen = [LETTERS.index(letter) for letter in text[-CONTEXT:]]
        codes = np.zeros(CONTEXT, np.int32)
        codes[: len(seen)] = seen
        text += LETTERS[int(scores(weights, codes, len(seen) - 1).argmax())]
    return text


def held(state):
    """Return how many bytes of a state a device holds."""
    return sum(x.addressable_shards[0].data.nbytes for x in meshard.tree.leaves(state))


def main(first=120, second=80):
    """Train some batches fully sharded, more of them tensor-parallel, and recite."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((4, 2), ("data", "model"))

    weights = start()
    weights = meshard.device_put(weights, fully_sharded(weights, mesh))
    state = {"weights": weights, "memory": OPTIMIZER.init(weights)}
    print0(f"fully sharded: a device holds {held(state):,} bytes")
    state = train(state, NamedSharding(mesh, P(("data", "model"))), first, seed=1)

    number = meshard.multihost_utils.broadcast_one_to_all(np.random.default_rng().integers(1 << 30))
    path = Path(tempfile.gettempdir(), f"zen-{number}")  # the same for all processes
    checkpoint.save(path, state)
    target = tensor_parallel(state, mesh)
    print0(meshard.plan_reshard(state, target))
    state = meshard.reshard(state, target, donate=True)

    print0(f"tensor-parallel: a device holds {held(state):,} bytes")
    state = train(state, NamedSharding(mesh, P("data")), second, seed=2)
    recited = recite(state["weights"], "Beautiful", 100)
    print0(f"{recited}\nas the Zen has it: {recited in TEXT}")

    saved = checkpoint.load(path, like=state)["weights"]
    changes = meshard.tree.map(lambda a, b: abs(a - b).max(), state["weights"], saved)
    print0(f"largest change of a weight since then: {float(max(meshard.tree.leaves(changes))):.2f}")
    meshard.multihost_utils.sync_global_devices("loaded")
    shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
