"""Values that are computed again on the way back: which are kept, and by what."""
