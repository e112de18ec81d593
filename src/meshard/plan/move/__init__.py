"""What one process does to build its pieces of a layout, and what crosses between devices."""
