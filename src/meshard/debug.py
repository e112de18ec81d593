"""Seeing what happens: how arrays lie on devices, what moves between them, and when."""

from meshard.errors import suggesting as _suggesting
from meshard.plan.draw import drawing_text, visualize_array_sharding, visualize_sharding
from meshard.plan.svg import drawing_svg, sharding_svg
from meshard.runtime.ledger import Ledger, budget, ledger
from meshard.runtime.profile import Profile, profile
from meshard.runtime.trace_file import Event, join_profiles
from meshard.transforms.explanation import ExplainedStep, Explanation
from meshard.transforms.reasons import Notice

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

__getattr__ = _suggesting(__name__, __all__)
