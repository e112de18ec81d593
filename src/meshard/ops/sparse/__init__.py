"""Sparse matrices whose rows are split over devices, and their products."""
