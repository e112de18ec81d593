"""Direct exchanges between two layouts: who sends which cells to whom, in shares that balance."""
