"""Random numbers in JAX's functional style: a function of a key, on any sharding.

A key is made by `key` (typed) or `PRNGKey` (an ordinary uint32 array), and used once: `split` and
`fold_in` make new keys from it. The numbers depend only on the key, the function, the shape and the
dtype, not on the layout or the number of processes; ``out_sharding=`` draws each piece on its own
devices. Inside ``shard_map`` each device draws a block of its own from its own key.

The numbers are not JAX's. The generator is Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC 2011), counter-based, in NumPy's implementation, which
passes TestU01's BigCrush; every tile of about 64 K elements has a stream of its own, and no two
streams of a key meet. Where arithmetic on its bits ends in logarithms and sines, these are NumPy's
and SciPy's.
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.random.choice import categorical as categorical
from meshard.ops.random.choice import choice as choice
from meshard.ops.random.choice import multinomial as multinomial
from meshard.ops.random.choice import multivariate_normal as multivariate_normal
from meshard.ops.random.choice import orthogonal as orthogonal
from meshard.ops.random.choice import permutation as permutation
from meshard.ops.random.distributions import bernoulli as bernoulli
from meshard.ops.random.distributions import binomial as binomial
from meshard.ops.random.distributions import cauchy as cauchy
from meshard.ops.random.distributions import double_sided_maxwell as double_sided_maxwell
from meshard.ops.random.distributions import geometric as geometric
from meshard.ops.random.distributions import gumbel as gumbel
from meshard.ops.random.distributions import laplace as laplace
from meshard.ops.random.distributions import logistic as logistic
from meshard.ops.random.distributions import lognormal as lognormal
from meshard.ops.random.distributions import maxwell as maxwell
from meshard.ops.random.distributions import pareto as pareto
from meshard.ops.random.distributions import poisson as poisson
from meshard.ops.random.distributions import rademacher as rademacher
from meshard.ops.random.distributions import rayleigh as rayleigh
from meshard.ops.random.distributions import triangular as triangular
from meshard.ops.random.distributions import truncated_normal as truncated_normal
from meshard.ops.random.distributions import wald as wald
from meshard.ops.random.distributions import weibull_min as weibull_min
from meshard.ops.random.gamma import ball as ball
from meshard.ops.random.gamma import beta as beta
from meshard.ops.random.gamma import chisquare as chisquare
from meshard.ops.random.gamma import dirichlet as dirichlet
from meshard.ops.random.gamma import f as f
from meshard.ops.random.gamma import gamma as gamma
from meshard.ops.random.gamma import generalized_normal as generalized_normal
from meshard.ops.random.gamma import loggamma as loggamma
from meshard.ops.random.gamma import t as t
from meshard.ops.random.keys import PRNGKey as PRNGKey
from meshard.ops.random.keys import clone as clone
from meshard.ops.random.keys import fold_in as fold_in
from meshard.ops.random.keys import key as key
from meshard.ops.random.keys import key_data as key_data
from meshard.ops.random.keys import key_dtype as key_dtype
from meshard.ops.random.keys import key_impl as key_impl
from meshard.ops.random.keys import split as split
from meshard.ops.random.keys import wrap_key_data as wrap_key_data
from meshard.ops.random.uniform import bits as bits
from meshard.ops.random.uniform import exponential as exponential
from meshard.ops.random.uniform import normal as normal
from meshard.ops.random.uniform import randint as randint
from meshard.ops.random.uniform import uniform as uniform

# Names that users may look for but that do not exist, and what to use instead.
_NO_STATE = "there is no state: make a key with random.key(seed), and pass it to each function"
_ABSENT = {
    "seed": _NO_STATE,
    "default_rng": _NO_STATE,
    "RandomState": _NO_STATE,
    "rand": "use random.uniform(key, shape)",
    "randn": "use random.normal(key, shape)",
}

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__, advice=_ABSENT)
