"""Going on without processes that have died, with ones that join, and feeding other jobs.

Here one of three processes dies, and the others go on with what the tree was:

>>> import meshard, meshard.numpy as mnp
>>> from meshard import NamedSharding, P, elastic
>>> from meshard.testing import die, simulate
>>> def program():
...     def rows():
...         return NamedSharding(elastic.mesh("i"), P("i"), uneven="balanced")
...
...     guard = elastic.protect({"w": mnp.arange(6.0, device=rows()), "step": 0})
...     while guard.tree["step"] < 2:
...         with elastic.surviving() as block:
...             state = elastic.restore(guard, rows()) if block.changed else guard.tree
...             if state["step"] == 1 and meshard.process_index() == 2:
...                 die()
...             guard.refresh({"w": state["w"] + 1, "step": state["step"] + 1})
...     return float(guard.tree["w"].sum()), meshard.process_count()
>>> simulate(3, 1, program)
[(27.0, 2), (27.0, 2), None]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.errors import DataLoss as DataLoss, ProcessLostError as ProcessLostError
from meshard.resilience.copies.losses import (
    LossSimulation as LossSimulation,
    simulate_loss as simulate_loss,
)
from meshard.resilience.copies.protect import (
    Protected as Protected,
    plan_protect as plan_protect,
    protect as protect,
)
from meshard.resilience.copies.placement import ProtectPlan as ProtectPlan
from meshard.resilience.copies.restore import plan_restore as plan_restore, restore as restore
from meshard.resilience.copies.restore_plan import RestorePlan as RestorePlan
from meshard.resilience.feeding.feed import Feed as Feed, subscribe as subscribe
from meshard.resilience.feeding.planning import PublishPlan as PublishPlan
from meshard.resilience.feeding.planning import plan_publish as plan_publish
from meshard.resilience.feeding.regions import FeedPlan as FeedPlan
from meshard.resilience.feeding.publisher import Publisher as Publisher, publish as publish
from meshard.resilience.joining.mesh import mesh as mesh
from meshard.resilience.joining.recover import Recovery as Recovery, recover as recover
from meshard.resilience.joining.recover import (
    Block as Block,
    grow as grow,
    surviving as surviving,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
