"""Adds this floor's operations to the tables of the floors below."""
