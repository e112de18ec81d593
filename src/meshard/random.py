"""Random numbers in JAX's functional style: a function of a key, on any sharding.

A key is made by `key` (typed) or `PRNGKey` (an ordinary uint32 array), and used once: `split` and
`fold_in` make new ones of it. The numbers depend on the key, the function, the shape and the dtype
alone, never on the layout or the number of processes; ``out_sharding=`` draws each piece where it
lies. Inside ``shard_map`` each device draws a block of its own from its own key.

The numbers are not JAX's. The generator is Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC 2011), counter-based, in NumPy's implementation, which
passes TestU01's BigCrush; every tile of about 64 K elements has a stream of its own, and no two
streams of a key meet. Where arithmetic on its bits ends in logarithms and sines, these are NumPy's
and SciPy's.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.ops.random.basic import bits, exponential, normal
from meshard.ops.random.choice import categorical, choice, permutation
from meshard.ops.random.continuous import (
    cauchy,
    double_sided_maxwell,
    gumbel,
    laplace,
    logistic,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    triangular,
    truncated_normal,
    uniform,
    wald,
    weibull_min,
)
from meshard.ops.random.gamma import (
    ball,
    beta,
    chisquare,
    dirichlet,
    f,
    gamma,
    generalized_normal,
    loggamma,
    t,
)
from meshard.ops.random.integers import (
    bernoulli,
    binomial,
    geometric,
    multinomial,
    poisson,
    rademacher,
    randint,
)
from meshard.ops.random.keys import (
    PRNGKey,
    clone,
    fold_in,
    key,
    key_data,
    key_dtype,
    key_impl,
    split,
    wrap_key_data,
)
from meshard.ops.random.matrices import multivariate_normal, orthogonal

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
