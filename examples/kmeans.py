"""k-means on scikit-learn's handwritten digits, the images split over 8 devices.

    pip install scikit-learn
    python examples/kmeans.py

Each device finds the nearest centre of its own images; what the centres need from all devices is
two sums: of the images near each centre and of how many they are. 1797 images do not divide by 8:
`padded` adds images of weight zero.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.sharding import PartitionSpec as P


def padded(points, parts):
    """Return points and their weights, with zeros added to a multiple of `parts`."""
    missing = -len(points) % parts
    weights = np.pad(np.ones(len(points)), (0, missing))
    return np.pad(points, ((0, missing), (0, 0))), weights


def nearest(points, centres):
    """Return the number of the centre that is nearest to each point."""
    # The square of the point itself is the same for all centres.
    return mnp.argmin((centres**2).sum(axis=1) - points @ (2 * centres.T), axis=1)


def cluster(points, weights, centres, mesh, iterations):
    """Return the centres and each point's centre after some iterations of Lloyd's algorithm.

    `mesh` has one axis, data; shapes are (points, features), (points,) and (centres, features).
    """

    @functools.partial(
        meshard.shard_map,
        mesh=mesh,
        in_specs=(P("data"), P("data"), P()),
        out_specs=(P(), P("data")),
    )
    def run(points, weights, centres):
        def iteration(_, centres):
            member = nn.one_hot(nearest(points, centres), len(centres)) * weights[:, None]
            total, count = lax.psum((member.T @ points, member.sum(axis=0)), "data")
            return total / mnp.maximum(count, 1)[:, None]

        centres = lax.fori_loop(0, iterations, iteration, centres)
        return centres, nearest(points, centres)

    return run(points, weights, centres)


def main():
    """Find ten groups of digits; print how often a digit is the commonest one of its group."""
    from sklearn.datasets import load_digits

    meshard.config.update("num_devices", 8 // meshard.process_count())
    images, digits = load_digits(return_X_y=True)
    points, weights = padded(images, 8)
    mesh = meshard.make_mesh((8,), ("data",))
    centres, group = cluster(points, weights, images[:10], mesh, 20)
    group = meshard.multihost_utils.process_allgather(group, tiled=True)[: len(images)]
    counts = np.array([np.bincount(digits[group == g], minlength=10) for g in range(10)])
    print("images on each device:", (len(points) // 8, points.shape[1]))
    print("commonest digit of each group:", counts.argmax(axis=1))
    print(f"images of their group's digit: {counts.max(axis=1).sum() / len(images):.1%}")
    middle = np.asarray(centres)[0].reshape(8, 8)
    print("the first centre:")
    print("\n".join("".join(" .:*#"[int(v / 16 * 4.99)] * 2 for v in row) for row in middle))


if __name__ == "__main__":
    main()
