"""Processes joined by MPI; the only folder that imports mpi4py."""
