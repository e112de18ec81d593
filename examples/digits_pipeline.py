"""A scikit-learn pipeline on its handwritten digits, the images split over 8 devices.

    pip install scikit-learn
    python examples/digits_pipeline.py

scikit-learn is not changed: it asks arrays for their namespace, and writes into arrays of its own,
which `writeable` allows. The images stay where they are; what moves is in the ledger.
"""

import os

os.environ["SCIPY_ARRAY_API"] = "1"  # before SciPy is imported

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard.debug import ledger
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def pipeline():
    """Return what scales the pixels, keeps 20 components, and fits one score for each digit."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    components = PCA(20, svd_solver="covariance_eigh")
    return make_pipeline(MinMaxScaler(), components, Ridge(solver="svd"))


def digits_of(images, labels, model):
    """Fit the model to images and their labels, as 0 and 1 for each digit; return its answers."""
    import sklearn

    with sklearn.config_context(array_api_dispatch=True), mnp.writeable():
        scores = model.fit(images, labels).predict(images)
    return scores.argmax(axis=1)


def main():
    """Fit the pipeline to sharded images; print how many are right, and what moved."""
    from sklearn.datasets import load_digits

    meshard.config.update("num_devices", 8 // meshard.process_count())
    images, digits = load_digits(return_X_y=True)
    mesh = meshard.make_mesh((8,), ("data",))
    rows = NamedSharding(mesh, P("data"), uneven="balanced")
    x, labels = meshard.device_put((images, np.eye(10)[digits]), rows)
    with ledger() as log:
        found = digits_of(x, labels, pipeline())
    right = mnp.mean(found == meshard.device_put(digits, rows))
    print(
        "images on each device:", x.sharding.shard_shape(x.shape), "answers:", found.sharding.spec
    )
    print(f"right: {float(right):.1%}")
    print(f"moved: {log.total_bytes / x.nbytes:.1f} times the images; to the host: {log.to_host}")
    if meshard.process_index() == 0:
        print(log)


if __name__ == "__main__":
    main()
