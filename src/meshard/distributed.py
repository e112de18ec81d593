"""Programs of several processes: started by ``mpiexec`` or ``meshard run``, joined at first use.

There is usually nothing to call: the first use of meshard joins the processes.

>>> import meshard
>>> meshard.distributed.initialize()
>>> meshard.process_index(), meshard.process_count()  # in a program that runs alone
(0, 1)
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.mpi.launch import (
    initialize as initialize,
    is_initialized as is_initialized,
    shutdown as shutdown,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
