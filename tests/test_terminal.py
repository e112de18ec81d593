"""What streams show: colours, columns, characters."""

from __future__ import annotations

import ast
import fcntl
import io
import os
import struct
import sys
import termios
from pathlib import Path

import pytest

import meshard
from meshard.plan.show import terminal
from meshard.plan.show.terminal import ASCII, has_colors, printable

DRAWN = (
    "raster.py",
    "text.py",
    "svg.py",
    "page.py",
    "run_pictures.py",
    "terminal.py",
    "progress.py",
)
"""How the names of files of drawings end, which know their stream, and of pages."""
FOR_PAGES = ("svg", "html", "title", "parts", "markup", "drawing", "figure")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("variables", "on_terminal", "elsewhere"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"CLICOLOR": "0"}, False, False),
        ({"CLICOLOR_FORCE": "0"}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TTY_COMPATIBLE": "0"}, False, False),
    ],
)
def test_colours_are_as_the_environment_says(monkeypatch, variables, on_terminal, elsewhere):
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_colors(Terminal()) == on_terminal
    assert has_colors(io.StringIO()) == elsewhere


def test_closed_streams_and_none_have_no_colours():
    closed = io.StringIO()
    closed.close()
    assert not has_colors(closed)
    assert not has_colors(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8", "no-such", None])
def test_what_is_printable_can_be_encoded(encoding):
    text = "".join(map(chr, ASCII)) + "é日\U0001f600"
    shown = printable(text, encoding)
    assert "?" not in shown
    shown.encode("ascii" if encoding == "no-such" else encoding or "utf-8")
    if encoding == "utf-8":
        assert shown == text


def test_texts_are_ascii_where_nobody_knows_the_stream():
    folder = Path(meshard.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name.endswith(DRAWN):
            continue
        source = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(source), source.split("\n")
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        told = [
            node.value
            for inner in ast.walk(tree)
            for node in (inner.body if isinstance(inner, documented) else [])
            if isinstance(node, ast.Expr)
        ]
        told += [
            node
            for inner in ast.walk(tree)
            if isinstance(inner, ast.FunctionDef) and any(w in inner.name for w in FOR_PAGES)
            for node in ast.walk(inner)
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
                written = lines[node.lineno - 1 : node.end_lineno]
                assert "".join(written).isascii(), f"{path}:{node.lineno}: {node.value!r}"


def test_a_stream_that_claims_to_be_a_terminal_has_no_width(monkeypatch):
    mine, theirs = os.openpty()

    class Notebook(Terminal):
        def fileno(self):
            return theirs

    monkeypatch.delenv("COLUMNS")
    assert terminal.is_terminal(Notebook())
    assert terminal.columns(Notebook()) is None
    own = os.fdopen(theirs, "w")
    assert terminal.columns(own) is None
    monkeypatch.setattr(sys, "__stdout__", own)
    assert terminal.columns(own) == 80  # it has no size
    fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
    assert terminal.columns(own) == 60
    own.close()
    os.close(mine)
