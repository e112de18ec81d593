"""Tools for tests of sharded programs.

`simulate` runs a program in several processes that are threads of this one. `virtual_devices` makes
devices that do not exist, for meshes of any size. The rest are Hypothesis strategies, which draw
meshes, specs, shapes and shardings; Hypothesis is imported when one is first used.
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.runtime.simulated import die as die
from meshard.runtime.simulated import simulate as simulate
from meshard.testing.virtual import virtual_devices as virtual_devices

if _typing.TYPE_CHECKING:  # names that are loaded on first use, for editors
    from meshard.testing.strategies import (
        box_shardings as box_shardings,
    )
    from meshard.testing.strategies import (
        meshes as meshes,
    )
    from meshard.testing.strategies import (
        named_shardings as named_shardings,
    )
    from meshard.testing.strategies import (
        placed_shapes as placed_shapes,
    )
    from meshard.testing.strategies import (
        shapes as shapes,
    )
    from meshard.testing.strategies import (
        specs as specs,
    )
else:
    __all__, __dir__, __getattr__ = _door(
        __name__,
        late=(
            "meshard.testing.strategies:box_shardings",
            "meshard.testing.strategies:meshes",
            "meshard.testing.strategies:named_shardings",
            "meshard.testing.strategies:placed_shapes",
            "meshard.testing.strategies:shapes",
            "meshard.testing.strategies:specs",
        ),
    )
