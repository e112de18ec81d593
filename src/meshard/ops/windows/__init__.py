"""Windows that slide along dims: convolutions, reductions, tiles with their edges."""
