"""The version of meshard and where its documentation is, defined only here."""

__version__ = "0.1.0"

DOCS = "https://meshard.readthedocs.io/en/latest"
"""The address under which the pages are, such as ``errors.html``."""
