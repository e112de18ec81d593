"""How arrays are laid out on devices, what moves between them, and when.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import debug
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
>>> x = mnp.ones((8, 4), device=meshard.NamedSharding(mesh, meshard.P("x", "y")))
>>> debug.visualize_array_sharding(x)
float64[8,4]  P('x', 'y') over Mesh('x': 4, 'y': 2)  8 blocks of [2,2]
  0       2       4
0 ┌───────┬───────┐
  │ CPU 0 │ CPU 1 │
2 ├───────┼───────┤
  │ CPU 2 │ CPU 3 │
4 ├───────┼───────┤
  │ CPU 4 │ CPU 5 │
6 ├───────┼───────┤
  │ CPU 6 │ CPU 7 │
8 └───────┴───────┘
>>> with debug.ledger() as log:
...     total = x.sum(axis=0)
>>> log.total_bytes
192
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.plan.show.text import (
    drawing_text as drawing_text,
    visualize_array_sharding as visualize_array_sharding,
    visualize_sharding as visualize_sharding,
)
from meshard.plan.show.layout_svg import (
    drawing_svg as drawing_svg,
    sharding_svg as sharding_svg,
)
from meshard.runtime.watching.ledger import (
    Ledger as Ledger,
    budget as budget,
    ledger as ledger,
)
from meshard.runtime.watching.profile import (
    Profile as Profile,
    profile as profile,
)
from meshard.runtime.watching.timer import (
    Timer as Timer,
    print0 as print0,
    timer as timer,
)
from meshard.runtime.watching.trace_file import (
    Event as Event,
    join_profiles as join_profiles,
)
from meshard.transforms.callbacks.printing import (
    breakpoint as breakpoint,
    callback as callback,
    inspect_array_sharding as inspect_array_sharding,
    log as log,
    print as print,
)
from meshard.transforms.explain.explanation import (
    ExplainedStep as ExplainedStep,
    Explanation as Explanation,
)
from meshard.transforms.explain.reasons import Notice as Notice

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
