"""How processes are joined, compared, and watched while they wait."""
