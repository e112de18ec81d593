"""A mixture of experts: each token travels to the device of its expert, and back.

    python examples/experts.py

A router chooses an expert for each token. Every device puts its tokens into one box for each
expert, of a fixed number of places; an `all_to_all` delivers the boxes, each device applies its
expert, and a second `all_to_all` brings the results home. Tokens that find their box full stay as
they were.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.sharding import PartitionSpec as P


def boxes(tokens, router, places):
    """Return which place of which box each token takes, `(tokens, experts, places)`, of 0 and 1."""
    chosen = nn.one_hot(mnp.argmax(tokens @ router, axis=1), router.shape[1])
    place = ((mnp.cumsum(chosen, axis=0) - 1) * chosen).sum(axis=1)
    # A place behind the last one is no place.
    return chosen[:, :, None] * nn.one_hot(place.astype(int), places)[:, None]


def route(tokens, router, up, down, places):
    """Return the tokens of one device after their experts; the device holds one of these."""
    taken = boxes(tokens, router, places)
    sent = mnp.einsum("tep,td->epd", taken, tokens)
    arrived = lax.all_to_all(sent, "expert", split_axis=0, concat_axis=0, tiled=True)
    done = nn.relu(arrived @ up[0]) @ down[0]
    back = lax.all_to_all(done, "expert", split_axis=0, concat_axis=0, tiled=True)
    return tokens + mnp.einsum("tep,epd->td", taken, back)


def mixture(tokens, router, up, down, places, mesh):
    """Return all tokens after their experts; `mesh` has the axis expert."""
    split = P("expert")
    run = functools.partial(
        meshard.shard_map, mesh=mesh, in_specs=(split, P(), split, split), out_specs=split
    )
    return run(functools.partial(route, places=places))(tokens, router, up, down)


def mixture_numpy(tokens, router, up, down):
    """Compute the same where every box is large enough."""
    chosen = (tokens @ router).argmax(axis=1)
    hidden = np.maximum(np.einsum("td,tdh->th", tokens, up[chosen]), 0)
    return tokens + np.einsum("th,thd->td", hidden, down[chosen])


def values(tokens=128, width=16, hidden=32):
    """Return tokens, a router and the weights of 8 experts."""
    random = np.random.default_rng(0)
    shapes = (tokens, width), (width, 8), (8, width, hidden), (8, hidden, width)
    return [random.normal(size=shape) / 4 for shape in shapes]


def main():
    """Send 128 tokens through 8 experts, with boxes that are large enough and too small."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("expert",))
    expected = mixture_numpy(*values())
    for places in 16, 2:
        found = mixture(*values(), places, mesh)
        found = meshard.multihost_utils.process_allgather(found, tiled=True)
        served = np.isclose(found, expected).all(axis=1)
        print(f"{places} places in a box: {served.mean():.0%} of the tokens reach their expert")
        print("  differs from NumPy by:", np.abs(found - expected)[served].max())


if __name__ == "__main__":
    main()
