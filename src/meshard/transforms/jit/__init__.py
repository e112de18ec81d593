"""`jit`: functions that are traced once, lowered once per types, and then run."""
