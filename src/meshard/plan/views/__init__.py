"""Plans from outside: as text, as pages, as pictures, and as JSON."""
