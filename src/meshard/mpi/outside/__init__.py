"""Processes of a job that MPI has not started: how they come in, and how they are reached."""
