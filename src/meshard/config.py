"""Settings of this process: ``meshard.config.update(name, value)``.

=================================  =============================================================
name                               meaning
=================================  =============================================================
``num_devices``                    devices of this process, before first use; by default one per
                                   core that the process may use
``default_float``                  ``"float64"`` (default) or ``"float32"``: the dtype of floats
                                   that nothing else decides
``default_device``                 the device of this process on which new arrays are placed, or
                                   its name, such as ``"cpu:3"``; ``"cpu"`` or None (default):
                                   the first one
``jit_compiler``                   what runs the operations that jit fuses, on large blocks:
                                   ``"numpy"``; ``"llvm"``, which needs the extra ``fast`` and
                                   gives NumPy's bits; ``"xla"``, which needs JAX; ``"auto"``
                                   (default): ``"llvm"`` if it is installed
``jit_math``                       ``"exact"`` (default): what is compiled has NumPy's bits;
                                   ``"fast"``: LLVM computes exp, log, tanh and what is made of
                                   them by polynomials of its own, within 2 units in the last place
``cache_dir``                      the absolute path of the folder in which compiled programs are
                                   kept; None (default): a folder of the user's cache
``check``                          how it is checked that processes run the same operations on
                                   arrays that span them: ``"hash"`` (default): where they
                                   communicate; ``"full"``: at each operation; ``"off"``
``traceback``                      ``"short"`` (default): the traceback of an error ends at your own
                                   line; ``"full"``: it shows the frames inside meshard too
``on_gather``                      what happens where an array that is spread over several blocks is
                                   put together on the host, as by ``np.asarray``, ``tolist`` and
                                   pickling, or a split matrix on every device, as by
                                   ``linalg.eigh``: ``"allow"`` (default), ``"warn"`` or
                                   ``"error"``; open ledgers list it
``writeable``                      whether ``x[i] = v`` and ``x += y`` change arrays, as within
                                   `meshard.numpy.writeable`; False by default
``parallel_functions_output_gda``  whether jit returns a `GlobalDeviceArray` for each array;
                                   False by default
=================================  =============================================================

The environment sets them when meshard is imported: ``MESHARD_NUM_DEVICES``,
``MESHARD_DEFAULT_FLOAT``, ``MESHARD_DEFAULT_DEVICE``, ``MESHARD_JIT_COMPILER``,
``MESHARD_JIT_MATH``, ``MESHARD_CACHE_DIR``, ``MESHARD_CHECK``, ``MESHARD_TRACEBACK``,
``MESHARD_ON_GATHER``, ``MESHARD_WRITEABLE``, ``MESHARD_PARALLEL_FUNCTIONS_OUTPUT_GDA``. Only the
environment sets ``MESHARD_TIMEOUT``,
``MESHARD_STOPPED``, ``MESHARD_HOST``, ``MESHARD_TABLE`` and ``MESHARD_SPARES``, which are about
jobs of several processes, ``MESHARD_JOB``, the name under which others may join this one,
``MESHARD_JOIN``, the job that this process joins, and ``MESHARD_RENDEZVOUS``, the folder in which
jobs find each other. A variable with a similar name is refused.

``meshard.config.default_float`` reads a setting, and ``meshard.config.default_float = "float32"``
sets it, as `update` does; a name that is not a setting's is refused.
"""

import sys as _sys
import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.environment import config as _config
from meshard.settings import SettingsModule as _SettingsModule

update = _config.update
read = _config.read

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)

_sys.modules[__name__].__class__ = _SettingsModule
