"""Transformations: interpreters of operations, pushed on top of the one that runs them at once."""
