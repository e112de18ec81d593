"""Adds this floor's operations to the tables of the floors below."""

from . import collectives, ragged

__all__ = ["collectives", "ragged"]
