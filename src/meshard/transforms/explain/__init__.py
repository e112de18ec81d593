"""What a lowered program does and moves, told before it runs."""
