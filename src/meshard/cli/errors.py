"""The error of a subcommand that fails for a reason that its user should read."""

from __future__ import annotations

from meshard.errors import MeshardError


class CommandError(MeshardError):
    """A subcommand failed; the command prints the message and exits with code 1."""
