"""Random numbers that do not depend on how an array is laid out."""
