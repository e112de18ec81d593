"""What gradients keep for the way back, and names for values that policies of `remat` choose by.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import ad_checkpoint
>>> layer = lambda x: mnp.exp(ad_checkpoint.checkpoint_name(mnp.sin(x), "sine"))
>>> policy = meshard.checkpoint_policies.save_only_these_names("sine")
>>> found = ad_checkpoint.saved_residuals(meshard.remat(layer, policy=policy), mnp.ones(3))
>>> [r.origin for r in found]
["argument 0 ('x')", 'checkpoint_name']
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.transforms.remat.remat import checkpoint_name as checkpoint_name
from meshard.transforms.remat.remat import remat as remat
from meshard.transforms.remat.residuals import (
    Residual as Residual,
)
from meshard.transforms.remat.residuals import (
    SavedResiduals as SavedResiduals,
)
from meshard.transforms.remat.residuals import (
    print_saved_residuals as print_saved_residuals,
)
from meshard.transforms.remat.residuals import (
    saved_residuals as saved_residuals,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
