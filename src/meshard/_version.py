"""The version of meshard, defined only here."""

__version__ = "0.1.0"
