"""Between what each process has and what all have together: `meshard.multihost_utils`."""
