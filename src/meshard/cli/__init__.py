"""The `meshard` command: `main` reads the arguments, each subcommand has a module."""

from meshard.cli.main import main as main
