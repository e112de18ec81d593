"""Windows that slide along dims: convolutions, reductions of windows, what they need of neighbours."""
