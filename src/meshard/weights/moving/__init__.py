"""Resharding with casts and key maps, all at once or leaf by leaf."""
