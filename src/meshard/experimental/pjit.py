"""`pjit` where JAX has it: `meshard.jit`, by its older name."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.compat.jit_results import pjit as pjit

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
