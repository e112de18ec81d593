"""Seeing what happens: how arrays lie on devices, what moves between them, and when."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.plan.show.draw import drawing_text, visualize_array_sharding, visualize_sharding
from meshard.plan.show.svg import drawing_svg, sharding_svg
from meshard.runtime.watching.ledger import Ledger, budget, ledger
from meshard.runtime.watching.profile import Profile, profile
from meshard.runtime.watching.trace_file import Event, join_profiles
from meshard.transforms.explain.explanation import ExplainedStep, Explanation
from meshard.transforms.explain.reasons import Notice

__all__ = [
    "Event",
    "ExplainedStep",
    "Explanation",
    "Ledger",
    "Notice",
    "Profile",
    "budget",
    "drawing_svg",
    "drawing_text",
    "join_profiles",
    "ledger",
    "profile",
    "sharding_svg",
    "visualize_array_sharding",
    "visualize_sharding",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
