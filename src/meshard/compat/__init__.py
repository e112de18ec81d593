"""Compatibility: names and rules of systems that programs come from, kept as those have them."""
