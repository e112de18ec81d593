"""Initial weights of neural networks, drawn on the devices that will hold them.

>>> import meshard
>>> from meshard.nn import initializers
>>> meshard.config.update("num_devices", 8)
>>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("d",)), meshard.P("d"))
>>> w = initializers.he_normal()(meshard.random.key(0), (512, 64), out_sharding=rows)
>>> w.sharding.spec, round(w.std().item(), 4)  # sqrt(2 / 512)
(P('d',), 0.0625)
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.nn.initializers import (
    Initializer as Initializer,
    constant as constant,
    delta_orthogonal as delta_orthogonal,
    glorot_normal as glorot_normal,
    glorot_uniform as glorot_uniform,
    he_normal as he_normal,
    he_uniform as he_uniform,
    kaiming_normal as kaiming_normal,
    kaiming_uniform as kaiming_uniform,
    lecun_normal as lecun_normal,
    lecun_uniform as lecun_uniform,
    normal as normal,
    ones as ones,
    orthogonal as orthogonal,
    truncated_normal as truncated_normal,
    uniform as uniform,
    variance_scaling as variance_scaling,
    xavier_normal as xavier_normal,
    xavier_uniform as xavier_uniform,
    zeros as zeros,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
