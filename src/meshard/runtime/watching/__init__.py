"""What a running program is seen to do: what it moves, and when."""
