"""Adds this floor's operations to the tables of the floors below."""

import meshard.transforms.collectives.ragged
import meshard.transforms.collectives.rows  # noqa: F401  (both add collectives)
