"""Planning: what a movement will do, as a value."""
