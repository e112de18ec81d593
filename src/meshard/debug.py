"""Inspection: how arrays are laid out on devices, what moves between them, and when."""

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
from meshard.transforms.explain.explanation import (
    ExplainedStep as ExplainedStep,
    Explanation as Explanation,
)
from meshard.transforms.explain.reasons import Notice as Notice

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
