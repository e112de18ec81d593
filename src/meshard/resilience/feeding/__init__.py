"""Versions of trees that one job publishes and others subscribe to."""
