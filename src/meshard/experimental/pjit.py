"""`pjit` where JAX has it: `meshard.jit`, by its older name."""

from meshard.compat.parallel_outputs import pjit

__all__ = ["pjit"]
