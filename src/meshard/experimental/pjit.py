"""`pjit` where JAX has it: `meshard.jit`, by its older name."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.compat.gda.jit_results import pjit

__all__ = ["pjit"]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
