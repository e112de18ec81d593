"""Programs of several processes: started by ``mpiexec`` or ``meshard run``, joined at first use."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.mpi.launch import initialize, is_initialized, shutdown

__all__ = ["initialize", "is_initialized", "shutdown"]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
