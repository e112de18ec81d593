"""What a plan costs: bytes, bounds, memory, messages, and seconds on a topology."""
