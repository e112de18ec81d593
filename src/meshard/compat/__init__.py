"""Compatibility: names and rules of other systems, kept as those systems have them."""
