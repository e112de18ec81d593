"""Functions of neural networks, which keep the sharding.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import nn
>>> meshard.config.update("num_devices", 8)
>>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("batch",)), meshard.P("batch"))
>>> scores = mnp.zeros((16, 4), device=rows)
>>> p = nn.softmax(scores)
>>> p.sharding.spec, p[0].tolist()
(P('batch',), [0.25, 0.25, 0.25, 0.25])
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.nn.attention import dot_product_attention as dot_product_attention
from meshard.ops.nn.functions import (
    celu as celu,
    elu as elu,
    gelu as gelu,
    glu as glu,
    hard_sigmoid as hard_sigmoid,
    hard_silu as hard_silu,
    hard_swish as hard_swish,
    hard_tanh as hard_tanh,
    identity as identity,
    leaky_relu as leaky_relu,
    log1mexp as log1mexp,
    log_sigmoid as log_sigmoid,
    log_softmax as log_softmax,
    logmeanexp as logmeanexp,
    logsumexp as logsumexp,
    mish as mish,
    one_hot as one_hot,
    relu as relu,
    relu6 as relu6,
    selu as selu,
    sigmoid as sigmoid,
    silu as silu,
    soft_sign as soft_sign,
    softmax as softmax,
    softplus as softplus,
    sparse_plus as sparse_plus,
    sparse_sigmoid as sparse_sigmoid,
    squareplus as squareplus,
    standardize as standardize,
    swish as swish,
    tanh as tanh,
)

if _typing.TYPE_CHECKING:  # editors see only listed names
    from meshard.nn import initializers as initializers
else:
    __all__, __dir__, __getattr__ = _door(__name__, late=("meshard.nn.initializers",))
