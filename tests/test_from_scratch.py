"""The text that tells the whole idea runs, fits its length, and needs only NumPy."""

import ast
import subprocess
import sys
from pathlib import Path

TEXT = Path(__file__).parents[1] / "docs" / "from_scratch.py"


def test_everything_that_it_says_of_itself_holds() -> None:
    subprocess.run([sys.executable, str(TEXT)], check=True, timeout=60)


def test_it_is_short_enough_to_be_read() -> None:
    assert len(TEXT.read_text().splitlines()) <= 800


def test_it_builds_on_numpy_alone() -> None:
    """Meshard appears in the last part only, where the two are compared."""
    tree = ast.parse(TEXT.read_text())
    modules = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    outside = {name for name in modules if name.split(".")[0] not in sys.stdlib_module_names}
    assert outside == {"numpy"}
    later = [n for n in ast.walk(tree) if isinstance(n, ast.Import) and n not in tree.body]
    assert [a.name for n in later for a in n.names] == ["meshard"]
