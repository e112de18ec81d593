"""Derivatives of rows: one column of the registry."""
