"""Optimizers: what is done with gradients before they are added to parameters."""
