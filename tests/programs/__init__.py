"""Random programs and the same programs in NumPy, for the laws that compare the two."""
