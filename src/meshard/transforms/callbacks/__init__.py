"""Python functions that programs call while they run."""
