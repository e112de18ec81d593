"""The examples that are installed: in the wheel, or those of the repository."""

from __future__ import annotations

import ast
from pathlib import Path

import meshard
from meshard.cli.errors import CommandError


def folder() -> Path:
    """Return the folder with the examples.

    Raises:
        CommandError: if there is none.
    """
    package = Path(meshard.__file__).parent
    places = [place / "examples" for place in (package, package.parents[1])]
    found = next((place for place in places if (place / "minilm.py").is_file()), None)
    if found is None:
        raise CommandError(f"the examples are missing; looked for {places[0]} and {places[1]}")
    return found


def all_examples() -> dict[str, Path]:
    """Return the path of each example, by name.

    Raises:
        CommandError: if there are none.
    """
    return {path.stem: path for path in sorted(folder().glob("*.py"))}


def about(path: Path) -> str:
    """Return the first line of an example's docstring."""
    told = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return told.partition("\n")[0].rstrip(".")
