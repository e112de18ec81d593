"""`meshard completion`: the scripts that complete the command in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from meshard.cli.arguments import Command
from meshard.cli.main import COMPLETE, NAME, group

_HELP = """\
Print a script that completes commands, options, files and names in a shell.

\b
For this session:
  source <(meshard completion bash)
For all, in the file that the shell reads when it starts:
  echo 'source <(meshard completion bash)' >> ~/.bashrc
  echo 'source <(meshard completion zsh)' >> ~/.zshrc
  meshard completion fish > ~/.config/fish/completions/meshard.fish
"""


@click.command("completion", cls=Command, help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script of a shell."""
    maker = get_completion_class(shell)
    assert maker is not None, "click completes these three"
    click.echo(maker(group, {}, NAME, COMPLETE).source())
