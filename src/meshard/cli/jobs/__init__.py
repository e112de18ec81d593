"""The jobs of `meshard run`: how they start, what is known of their processes, how they end."""
