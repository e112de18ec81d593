"""What the command's exit codes mean, and the errors that end it with one of them."""

from __future__ import annotations

from meshard.errors import MeshardError

DONE, FAILED, WRONG_USAGE, DAMAGED, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = {
    DONE: "done",
    FAILED: "refused or failed; a sentence on stderr says why",
    WRONG_USAGE: "wrong usage: an unknown command, option or value",
    DAMAGED: "a check found damage",
    INTERRUPTED: "interrupted by Ctrl-C",
}


class CommandError(MeshardError):
    """A subcommand failed; the command prints the message and exits with code 1."""
