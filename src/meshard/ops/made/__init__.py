"""Functions of NumPy that are made of other operations, and have no rows of their own."""
