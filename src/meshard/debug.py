"""Seeing what happens: drawings of how arrays lie on devices."""

from meshard.plan.draw import drawing_text, visualize_array_sharding, visualize_sharding
from meshard.plan.svg import drawing_svg, sharding_svg

__all__ = [
    "drawing_svg",
    "drawing_text",
    "sharding_svg",
    "visualize_array_sharding",
    "visualize_sharding",
]
