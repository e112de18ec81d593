"""How tensors are made of others: regions of elements, and maps of names that print and invert."""
