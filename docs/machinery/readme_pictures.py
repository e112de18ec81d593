"""The pictures of README.md: a reshard and an explanation, for light and for dark pages.

In: nothing. Out: ``readme-*.svg`` in ``docs/_static``. Run as a script.
"""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import meshard
from meshard import NamedSharding, P

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "docs" / "_static"
THEMES = ("light", "dark")


def reshard() -> Any:
    """Return the plan that turns tiles of rows into tiles of columns."""
    mesh = meshard.make_mesh((4, 2), ("x", "y"))
    before = NamedSharding(mesh, P("x", "y"))
    matrix = meshard.ShapeDtypeStruct((16, 16), "float32", sharding=before)
    return meshard.plan_reshard(matrix, NamedSharding(mesh, P("y", "x")))


def explanation() -> Any:
    """Return the explanation that README.md prints: what its own code calls ``explanation``."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme"}
    with redirect_stdout(StringIO()):
        for block in code:
            if "explanation" not in names:
                exec(compile(block, "example.py", "exec"), names)
    return names["explanation"]


def main() -> None:
    """Write all pictures."""
    meshard.config.update("num_devices", 8)
    for name, shown in (("readme", reshard()), ("readme-explain", explanation())):
        for theme in THEMES:
            path = STATIC / f"{name}-{theme}.svg"
            path.write_text(shown.to_svg(theme=theme))
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
