"""Derivatives of functions: operations are followed, with tangents or for the way back."""
