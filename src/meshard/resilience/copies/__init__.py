"""What arrays have lost, where it is still held, and how it comes back."""
