"""`pjit` where JAX has it: `meshard.jit`, by its older name."""

from meshard.compat.parallel_outputs import pjit
from meshard.errors import suggesting as _suggesting

__all__ = ["pjit"]

__getattr__ = _suggesting(__name__, __all__)
