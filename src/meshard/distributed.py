"""Programs of several processes: started by ``mpiexec`` or ``meshard run``, joined at first use."""

from meshard.errors import suggesting as _suggesting
from meshard.mpi.launch import initialize, is_initialized, shutdown

__all__ = ["initialize", "is_initialized", "shutdown"]

__getattr__ = _suggesting(__name__, __all__)
