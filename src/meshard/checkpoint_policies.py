"""Policies of `remat`: which values of a function are kept for the way back.

All others are computed again there, which takes time and saves memory.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import checkpoint_policies
>>> layer = lambda w, x: mnp.sin(mnp.sin(x @ w))
>>> light = meshard.remat(layer, policy=checkpoint_policies.dots_saveable)
>>> w, x = mnp.eye(3), mnp.zeros(3)
>>> meshard.grad(lambda x: light(w, x).sum())(x).tolist()
[1.0, 1.0, 1.0]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.transforms.remat.remat import (
    checkpoint_dots as checkpoint_dots,
)
from meshard.transforms.remat.remat import (
    checkpoint_dots_with_no_batch_dims as checkpoint_dots_with_no_batch_dims,
)
from meshard.transforms.remat.remat import (
    dots_saveable as dots_saveable,
)
from meshard.transforms.remat.remat import (
    dots_with_no_batch_dims_saveable as dots_with_no_batch_dims_saveable,
)
from meshard.transforms.remat.remat import (
    everything_saveable as everything_saveable,
)
from meshard.transforms.remat.remat import (
    nothing_saveable as nothing_saveable,
)
from meshard.transforms.remat.remat import (
    save_any_names_but_these as save_any_names_but_these,
)
from meshard.transforms.remat.remat import (
    save_anything_except_these_names as save_anything_except_these_names,
)
from meshard.transforms.remat.remat import (
    save_from_both_policies as save_from_both_policies,
)
from meshard.transforms.remat.remat import (
    save_only_these_names as save_only_these_names,
)

_OFFLOAD = "there is one memory for all values; choose those that are kept with "

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(
        __name__,
        advice={
            "offload_dot_with_no_batch_dims": _OFFLOAD + "dots_with_no_batch_dims_saveable",
            "save_and_offload_only_these_names": _OFFLOAD + "save_only_these_names",
        },
    )
