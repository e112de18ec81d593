"""Layouts, plans and records as tables, drawings and pages."""
