"""Operations: rows of a table, and the engine that runs them on blocks."""
