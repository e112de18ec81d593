"""`Array`: its surface, what it shows, and what NumPy may ask of it."""
