"""The environment: read once, when all floors have registered their settings.

`meshard.config` imports this before anything can start MPI, so that a wrong variable ends a process
before another waits for it.
"""

from __future__ import annotations

import os

import meshard.algebra.world
import meshard.compat.settings
import meshard.ops.fused.compilers
import meshard.runtime.settings  # noqa: F401  (these modules register settings)
from meshard.algebra.boundary import bounded
from meshard.settings import config as config
from meshard.settings import set_from

bounded(set_from)(os.environ)
