"""Thresholds: the sizes at which one way of doing something becomes better than another.

Each says what it is compared with and which benchmark chose it. None changes a result.
"""

LARGE = 1 << 20
"""Bytes from which work is handed to the workers instead of done where it is asked for."""
