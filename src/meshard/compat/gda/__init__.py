"""The global device array, which JAX had before Array: the class, its shards, and jit's results."""
