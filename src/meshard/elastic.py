"""Going on without processes that have died, with ones that join, and feeding other jobs."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.errors import DataLoss as DataLoss
from meshard.errors import ProcessLostError as ProcessLostError
from meshard.resilience.copies.protect import (
    Protected as Protected,
)
from meshard.resilience.copies.protect import (
    plan_protect as plan_protect,
)
from meshard.resilience.copies.protect import (
    protect as protect,
)
from meshard.resilience.copies.protect_plan import ProtectPlan as ProtectPlan
from meshard.resilience.copies.restore import (
    plan_restore as plan_restore,
)
from meshard.resilience.copies.restore import (
    restore as restore,
)
from meshard.resilience.copies.restore_plan import RestorePlan as RestorePlan
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
