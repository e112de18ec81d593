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
)
from meshard.ops.nn.functions import (
    elu as elu,
)
from meshard.ops.nn.functions import (
    gelu as gelu,
)
from meshard.ops.nn.functions import (
    glu as glu,
)
from meshard.ops.nn.functions import (
    hard_sigmoid as hard_sigmoid,
)
from meshard.ops.nn.functions import (
    hard_silu as hard_silu,
)
from meshard.ops.nn.functions import (
    hard_swish as hard_swish,
)
from meshard.ops.nn.functions import (
    hard_tanh as hard_tanh,
)
from meshard.ops.nn.functions import (
    identity as identity,
)
from meshard.ops.nn.functions import (
    leaky_relu as leaky_relu,
)
from meshard.ops.nn.functions import (
    log1mexp as log1mexp,
)
from meshard.ops.nn.functions import (
    log_sigmoid as log_sigmoid,
)
from meshard.ops.nn.functions import (
    log_softmax as log_softmax,
)
from meshard.ops.nn.functions import (
    logmeanexp as logmeanexp,
)
from meshard.ops.nn.functions import (
    logsumexp as logsumexp,
)
from meshard.ops.nn.functions import (
    mish as mish,
)
from meshard.ops.nn.functions import (
    one_hot as one_hot,
)
from meshard.ops.nn.functions import (
    relu as relu,
)
from meshard.ops.nn.functions import (
    relu6 as relu6,
)
from meshard.ops.nn.functions import (
    selu as selu,
)
from meshard.ops.nn.functions import (
    sigmoid as sigmoid,
)
from meshard.ops.nn.functions import (
    silu as silu,
)
from meshard.ops.nn.functions import (
    soft_sign as soft_sign,
)
from meshard.ops.nn.functions import (
    softmax as softmax,
)
from meshard.ops.nn.functions import (
    softplus as softplus,
)
from meshard.ops.nn.functions import (
    sparse_plus as sparse_plus,
)
from meshard.ops.nn.functions import (
    sparse_sigmoid as sparse_sigmoid,
)
from meshard.ops.nn.functions import (
    squareplus as squareplus,
)
from meshard.ops.nn.functions import (
    standardize as standardize,
)
from meshard.ops.nn.functions import (
    swish as swish,
)
from meshard.ops.nn.functions import (
    tanh as tanh,
)

if _typing.TYPE_CHECKING:  # editors see only listed names
    from meshard.nn import initializers as initializers
else:
    __all__, __dir__, __getattr__ = _door(__name__, late=("meshard.nn.initializers",))
