"""Newton's method for a logistic regression, without a matrix of second derivatives.

    pip install scikit-learn
    python examples/newton_cg.py

Newton's step solves H s = g. Conjugate gradients need only products of H with vectors: derivatives
of the gradient along vectors, `jvp(grad(loss))`. As features are split, so are gradients and steps;
what is sent are sums, of a number for each sample and of scalar products.
"""

import numpy as np
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def loss(weights, x, y, penalty=1e-3):
    """Return the mean logistic loss of labels that are 1 or -1, and a penalty."""
    return nn.softplus(-y * (x @ weights)).mean() + penalty / 2 * (weights @ weights)


def solved(product, g, steps):
    """Return what a symmetric product leads to `g`, nearly: conjugate gradients."""

    def step(_, state):
        s, residual, direction, square = state
        image = product(direction)
        length = square / (direction @ image)
        s, residual = s + length * direction, residual - length * image
        new = residual @ residual
        return s, residual, residual + new / square * direction, new

    return lax.fori_loop(0, steps, step, (mnp.zeros_like(g), g, g, g @ g))[0]


def newton(weights, x, y):
    """Return the weights after a step of Newton's, and the loss and the slope's norm before it."""
    value, g = meshard.value_and_grad(loss)(weights, x, y)

    def product(v):
        return meshard.jvp(lambda w: meshard.grad(loss)(w, x, y), (weights,), (v,))[1]

    return weights - solved(product, g, 20), value, mnp.sqrt(g @ g)


def problem():
    """Return 30 standardized features of 569 tumours, and 1 for each benign one, else -1."""
    x, benign = load_breast_cancer(return_X_y=True)
    return (x - x.mean(axis=0)) / x.std(axis=0), 2.0 * benign - 1


def main():
    """Tell benign tumours from malignant ones on 8 devices; compare with SciPy."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("feature",))
    x, y = problem()
    placed = meshard.device_put(x, NamedSharding(mesh, P(None, "feature"), uneven="balanced"))
    weights, fast = mnp.zeros(30), meshard.jit(newton)
    print("features split as", placed.sharding.spec)
    for number in range(10):
        weights, value, norm = fast(weights, placed, y)
        print(f"step {number}: loss {float(value):.8f}, norm of its gradient {float(norm):.1e}")

    def plain(w):  # what SciPy asks for: the loss and its gradient, on one device
        return [np.asarray(v) for v in meshard.value_and_grad(loss)(w, x, y)]

    exact = minimize(plain, np.zeros(30), jac=True, method="BFGS", options={"gtol": 1e-11})
    ours = meshard.multihost_utils.process_allgather(weights, tiled=True)
    apart = np.abs(ours - exact.x).max()
    print(f"after {exact.nit} steps of SciPy's BFGS the weights are {apart:.0e} apart")


if __name__ == "__main__":
    main()
