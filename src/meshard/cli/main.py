"""The `meshard` command: one group, whose commands are imported when they are used.

In: the arguments. Out: an exit code, and for what went wrong a sentence on stderr. The list of
commands and their help in one line are here, so that neither `--help` nor a wrong name imports any.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import final

import click
from click.shell_completion import CompletionItem, shell_complete

from meshard._version import __version__
from meshard.cli.errors import EXIT_CODES, FAILED, INTERRUPTED, WRONG_USAGE
from meshard.errors import MeshardError, visible

NAME = "meshard"
COMPLETE = f"_{NAME.upper()}_COMPLETE"  # as click calls it
# Each command's name, and its help in one line. The module of that name in meshard/cli/commands
# has its `command`.
COMMANDS = {
    "bench": "run the benchmarks of the repository",
    "checkpoint": "list the steps of a run, remove what killed saves have left",
    "completion": "print a script that completes commands, options and files",
    "demo": "run a real sentence encoder on 8 virtual devices",
    "doctor": "look at what meshard runs on, and say what to fix",
    "example": "list the examples, print, run or copy one",
    "explain": "say what a function of a file does and moves, before it runs",
    "inspect": "list the tensors of a checkpoint or of another file",
    "plan": "say what a reshard moves, and what it costs, without data",
    "reshard": "write files in another layout or format, under other names",
    "run": "run a program in several processes, joined by MPI",
    "show": "draw how an array is laid out over devices",
    "simulate": "run a script in several simulated processes",
    "verify": "check files against their checksums",
}

_HELP = """\
One logical array over a mesh of devices: look at layouts, plans and checkpoints,
and run programs in several processes.

\b
For example:
  meshard doctor
  meshard show 8x8 "P('x', 'y')" --mesh x=4,y=2
  meshard example heat --run
  meshard run -n 4 train.py

`meshard COMMAND --help` explains a command.
"""


class Narrow(click.Command):
    """A command whose help fits the terminal, examples included, and whose errors know it."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command is for, with the lines of examples broken where they must be."""
        parts = inspect.cleandoc(self.help or "").split("\n\n")
        width = formatter.width - 2
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join([_fitted(part, width) for part in parts]))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; an error tells which command they are for."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


def _fitted(paragraph: str, width: int) -> str:
    """Return a paragraph whose lines are kept as they are, if it is one, in lines of a width."""
    first, *lines = paragraph.split("\n")
    if first != "\b" or all(len(line) <= width for line in lines):
        return paragraph
    found, text = [first], re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    for line in re.sub(r"(?<=\S)\n {5,}", " ", text).split("\n"):  # lists have hanging indents
        command, _, comment = line.partition("  # ")
        if len(line) > width and command.strip().startswith(NAME):
            indent = line[: len(line) - len(line.lstrip())]
            found += [f"{indent}# {comment.strip()}"] * bool(comment)
            found += _broken(command.strip(), indent, width)
        else:
            hanging = re.match(r"\s*(\d+ +)?", line)
            rest = " " * (hanging.end() if hanging else 0)
            found += textwrap.wrap(line, width, subsequent_indent=rest) or [""]
    return "\n".join(found)


def _broken(command: str, indent: str, width: int) -> list[str]:
    """Return a command in lines that a shell reads as one, broken before options if possible."""
    parts: list[str] = []
    for word in re.findall(r'(?:"[^"]*"|\S)+', command):
        if parts and not word.startswith("-") and len(parts[-1]) + len(word) < width - 8:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines = [f"{indent}{parts[0]}"]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(f"{indent}    {part}")
    return lines


class Group(Narrow, click.Group):
    """A group of commands that says which one was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names; refuse one that does not exist."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = get_close_matches(args[0], known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f" (choose from {', '.join(known)})"
            raise click.UsageError(f"invalid choice: {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)


@final
class _Commands(Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(f"meshard.cli.commands.{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=told) for name, told in COMMANDS.items()]
        names = [item for item in found if item.value.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


@click.command(
    NAME,
    cls=_Commands,
    invoke_without_command=True,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
@click.pass_context
def group(context: click.Context) -> None:
    """Print the help if no command is named."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `meshard` command.

    Args:
        argv: The arguments after the command's name; None means those of `sys.argv`.

    Returns:
        The exit code: 0 if all went well, 1 if the subcommand failed and said why on stderr, 3 if
        a check found damage, 130 if it was interrupted.

    Raises:
        SystemExit: The arguments are wrong (code 2), or help or the version was asked for.
    """
    if instruction := os.environ.get(COMPLETE):
        raise SystemExit(shell_complete(group, {}, NAME, COMPLETE, instruction))
    context = None
    try:
        with group.make_context(NAME, list(sys.argv[1:] if argv is None else argv)) as context:
            code = group.invoke(context)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code or 0
    except click.exceptions.Exit as exit:
        raise SystemExit(exit.exit_code) from None
    except click.UsageError as error:
        _tell_usage(error)
        raise SystemExit(WRONG_USAGE) from None
    except BrokenPipeError:  # who reads the output, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (MeshardError, OSError) as error:
        path = context.meta.get(NAME, NAME) if context is not None else NAME
        print(f"{path}: {error}", file=sys.stderr, flush=True)
        _end_job()
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _tell_usage(error: click.UsageError) -> None:
    """Print what is wrong with the arguments, before how they are written."""
    path = error.ctx.command_path if error.ctx is not None else NAME
    lines = [f"{path}: {_reason(error)}"]
    if error.ctx is not None:
        lines += [error.ctx.get_usage(), f"`{path} --help` explains it."]
    print("\n".join([visible(line, lines=True) for line in lines]), file=sys.stderr, flush=True)


def _reason(error: click.UsageError) -> str:
    """Return what is wrong with the arguments, as one sentence."""
    param = error.param if isinstance(error, click.BadParameter) else None
    name = "" if param is None else param.human_readable_name
    if isinstance(param, click.Option):
        name = "/".join(param.opts)
    if isinstance(error, click.NoSuchOption):
        near = [repr(n) for n in error.possibilities or ()]
        return f"No such option {error.option_name!r}" + did_you_mean(near)
    if isinstance(error, click.MissingParameter) and name:
        return f"the following arguments are required: {name}"
    if isinstance(error, click.BadParameter):
        return f"argument {name}: {error.message}" if name else error.message
    return error.format_message()


def did_you_mean(near: Sequence[str]) -> str:
    """Return the end of a message: what was probably meant, if anything was."""
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _end_job() -> None:
    """End the other processes of a job, which would wait for this one."""
    from meshard.mpi.launch import end_job

    end_job()
