"""The version of meshard, defined only here, and where it is on the web."""

__version__ = "0.1.0"

DOCS = "https://meshard.readthedocs.io/en/latest"
REPOSITORY = "https://github.com/meshard/meshard"
