"""Programs: what a traced function does, as a value."""
