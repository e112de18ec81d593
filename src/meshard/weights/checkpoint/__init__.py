"""Checkpoints: saving and loading trees, steps, what is left of a save that was killed."""
