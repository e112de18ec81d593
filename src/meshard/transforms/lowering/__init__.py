"""From programs to executables: steps over arrays of known types."""
