"""The version of meshard, defined only here, and where it is on the web."""

__version__ = "0.1.0"

DOCS = "https://meshard.readthedocs.io/en/latest"
"""The address under which the pages are, such as ``errors.html``."""
REPOSITORY = "https://github.com/meshard/meshard"
"""The address of the source."""
