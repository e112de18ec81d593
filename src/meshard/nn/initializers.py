"""Initial weights of neural networks, drawn on the devices that will hold them.

>>> import meshard
>>> from meshard.nn import initializers
>>> meshard.config.update("num_devices", 8)
>>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("d",)), meshard.P("d"))
>>> w = initializers.he_normal()(meshard.random.key(0), (512, 64), out_sharding=rows)
>>> w.sharding.spec, round(w.std().item(), 3)  # sqrt(2 / 512) is 0.0625
(P('d',), 0.063)
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.made.initializers import (
    Initializer as Initializer,
)
from meshard.ops.made.initializers import (
    constant as constant,
)
from meshard.ops.made.initializers import (
    delta_orthogonal as delta_orthogonal,
)
from meshard.ops.made.initializers import (
    glorot_normal as glorot_normal,
)
from meshard.ops.made.initializers import (
    glorot_uniform as glorot_uniform,
)
from meshard.ops.made.initializers import (
    he_normal as he_normal,
)
from meshard.ops.made.initializers import (
    he_uniform as he_uniform,
)
from meshard.ops.made.initializers import (
    kaiming_normal as kaiming_normal,
)
from meshard.ops.made.initializers import (
    kaiming_uniform as kaiming_uniform,
)
from meshard.ops.made.initializers import (
    lecun_normal as lecun_normal,
)
from meshard.ops.made.initializers import (
    lecun_uniform as lecun_uniform,
)
from meshard.ops.made.initializers import (
    normal as normal,
)
from meshard.ops.made.initializers import (
    ones as ones,
)
from meshard.ops.made.initializers import (
    orthogonal as orthogonal,
)
from meshard.ops.made.initializers import (
    truncated_normal as truncated_normal,
)
from meshard.ops.made.initializers import (
    uniform as uniform,
)
from meshard.ops.made.initializers import (
    variance_scaling as variance_scaling,
)
from meshard.ops.made.initializers import (
    xavier_normal as xavier_normal,
)
from meshard.ops.made.initializers import (
    xavier_uniform as xavier_uniform,
)
from meshard.ops.made.initializers import (
    zeros as zeros,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
