"""Products of arrays, and linear algebra."""
