"""Questions about dtypes, with JAX's names.

>>> import meshard, meshard.numpy as mnp
>>> mnp.issubdtype(meshard.random.key(0).dtype, meshard.dtypes.prng_key)
True
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.array.info import finfo as finfo
from meshard.ops.array.info import iinfo as iinfo
from meshard.ops.array.info import result_type as result_type
from meshard.ops.dtypes.laws import (
    canonicalize_dtype as canonicalize_dtype,
)
from meshard.ops.dtypes.laws import (
    extended as extended,
)
from meshard.ops.dtypes.laws import (
    issubdtype as issubdtype,
)
from meshard.ops.dtypes.laws import (
    prng_key as prng_key,
)
from meshard.ops.made.casts import bfloat16 as bfloat16
from meshard.transforms.derivatives.arguments import float0 as float0

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
