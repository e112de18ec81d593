"""Conditions, loops and scans."""
