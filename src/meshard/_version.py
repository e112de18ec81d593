"""The version of meshard, said here and nowhere else."""

__version__ = "0.1.0"
