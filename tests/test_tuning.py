"""Thresholds: each says what it is, is used, and names rows of the benchmarks that there are."""

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

import meshard.tuning
from bench.rows import ROWS

TEXT = Path(meshard.tuning.__file__).read_text(encoding="utf-8")
BODY = ast.parse(TEXT).body[1:]
NAMES = [
    name.id
    for node in BODY
    if isinstance(node, ast.Assign)
    for target in node.targets
    for name in ast.walk(target)
    if isinstance(name, ast.Name)
]
DOCS = [
    node.value.value
    for node in BODY
    if isinstance(node, ast.Expr)
    and isinstance(node.value, ast.Constant)
    and isinstance(node.value.value, str)
]


def test_every_threshold_has_its_reason():
    kinds = [type(node) for node in BODY]
    assert kinds == [ast.Assign, ast.Expr] * (len(kinds) // 2)
    assert all(doc.split("\n")[0].endswith((".", ":")) for doc in DOCS)


def test_every_threshold_is_used():
    root = Path(meshard.tuning.__file__).parent
    used = "".join(
        path.read_text(encoding="utf-8") for path in root.rglob("*.py") if path.name != "tuning.py"
    )
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", used)] == []


def test_rows_that_reasons_name_are_there():
    named = [row for doc in DOCS for row in re.findall(r"``([^`]+)``", doc)]
    assert len(named) > 10
    keys = [row.key for row in ROWS]
    assert [n for n in named if not any(fnmatchcase(key, n) for key in keys)] == []
