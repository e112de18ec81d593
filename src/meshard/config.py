"""Settings of this process: ``meshard.config.update(name, value)``.

==================  ==========================  =================================================
name                environment                 meaning
==================  ==========================  =================================================
``num_devices``     ``MESHARD_NUM_DEVICES``     devices of this process, before first use; by
                                                default one per core that the process may use
``default_float``   ``MESHARD_DEFAULT_FLOAT``   ``"float64"`` (default) or ``"float32"``: the
                                                dtype of floats that nothing else decides
``default_device``  ``MESHARD_DEFAULT_DEVICE``  the device of this process that new arrays lie
                                                on; ``"cpu"`` or None (default): the first one
==================  ==========================  =================================================
"""

from meshard.algebra.world import config as _config

update = _config.update
read = _config.read

__all__ = ["read", "update"]
