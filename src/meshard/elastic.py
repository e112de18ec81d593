"""Going on without processes that have died, with ones that join, and feeding other jobs."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.errors import ProcessLostError as ProcessLostError
from meshard.resilience.feeding.feed import Feed as Feed
from meshard.resilience.feeding.feed import subscribe as subscribe
from meshard.resilience.feeding.publisher import Publisher as Publisher
from meshard.resilience.feeding.publisher import publish as publish
from meshard.resilience.joining.mesh import mesh as mesh
from meshard.resilience.joining.recover import Recovery as Recovery
from meshard.resilience.joining.recover import recover as recover
from meshard.resilience.joining.surviving import (
    Block as Block,
)
from meshard.resilience.joining.surviving import (
    grow as grow,
)
from meshard.resilience.joining.surviving import (
    surviving as surviving,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
