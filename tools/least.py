"""The least versions that meshard allows, as pip's constraints.

In: pyproject.toml. Out: a line `numpy==2.0` for each requirement of users that says `numpy>=2.0`.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

# Their least versions come as sources only, which need more than pip to build.
UNBUILT = {"mpi4py"}


def constraints(project: Path) -> Iterator[str]:
    """Yield one line for each package whose least version `project` names."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = table["optional-dependencies"].values()
    for requirement in chain(table["dependencies"], *extras):
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
        if found is not None and found[1] not in UNBUILT:
            yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print(*constraints(Path(sys.argv[1])), sep="\n")
