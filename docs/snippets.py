"""Pages in, their code run and compared: what the documentation shows is what happens.

A page is Markdown. Its blocks of code are read by their first line:

- ```` ```python ```` is run, in order, in one namespace per page. A ```` ```text ```` that follows
  is what it prints, or the error that it ends with.
- ```` ```shell-session ```` has commands of meshard's, ``$ meshard ...``, each with what it prints.
- ```` ```{drawing} ```` is an expression in the same namespace; its value is an SVG, or has a form
  for notebooks.
- ```` ```py ```` is quoted and not run: code of other libraries.

A comment ``<!-- 2 processes of 4 devices -->`` before a block has it run by simulated processes,
with the names that the page has imported so far; ``<!-- a job of 2 processes of 4 devices -->`` by
real ones, as a script of its own, if mpi4py is there.

What a page shows must be the same in every version of Python: a ``print`` of a value whose text the
standard library writes, such as an OrderedDict, is a fault, and so is an error that meshard did not
raise itself.

``python docs/snippets.py page.md`` checks a page, in a folder that is then removed; ``--write``
puts what was printed into the page, ``--drawings FOLDER`` saves its drawings.
"""

import argparse
import builtins
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType

FENCE = re.compile(
    r"^```(python|text|shell-session|\{drawing\})\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
PROCESSES = re.compile(r"<!-- (a job of )?(\d+) processes of (\d+) devices -->\n$")
# What ledgers and errors call the block that a line is in; lines count from its first one.
SCRIPT = "example.py"
CHECKER = doctest.OutputChecker()
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    """One block of code of a page, and what the page says that it prints."""

    kind: str
    code: str
    line: int
    processes: tuple[int, int] | None = None
    is_job: bool = False
    span: tuple[int, int] = (0, 0)
    promised: re.Match[str] | None = None


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page that are run, in order."""
    blocks: list[Block] = []
    last_end = -1
    for fence in FENCE.finditer(page):
        kind, code = fence.groups()
        if kind == "text":
            follows = blocks and page[last_end : fence.start()].strip() == ""
            if follows and blocks[-1].kind == "python":
                blocks[-1].promised = fence
        else:
            said = PROCESSES.search(page[: fence.start()])
            block = Block(kind.strip("{}"), code, page.count("\n", 0, fence.start()) + 2)
            block.span = fence.span(2)
            if said:
                block.processes, block.is_job = (int(said[2]), int(said[3])), bool(said[1])
            blocks.append(block)
        last_end = fence.end()
    return blocks


def writer_of(kind: type, method: str = "__repr__") -> type:
    """Return the class that defines how values of a class are written."""
    writer = next(base for base in kind.__mro__ if method in vars(base))
    return writer_of(kind) if (method, writer) == ("__str__", object) else writer


def may_change(writer: type) -> bool:
    """Whether another version of Python may write values in another way; object gives addresses."""
    module = writer.__module__.partition(".")[0]
    return writer is object or (module in sys.stdlib_module_names and module != "builtins")


def values_that_may_change(value: object, method: str = "__str__") -> Iterator[type]:
    """Find the classes of a value and of what is in it whose text may change."""
    writer, inside = writer_of(type(value), method), []
    if may_change(writer):
        yield type(value)
    elif writer in (list, tuple, set, frozenset, dict):
        inside = [*value.items()] if isinstance(value, dict) else [*value]
    elif is_dataclass(writer) and writer.__dataclass_params__.repr:
        inside = [getattr(value, field.name) for field in fields(writer) if field.repr]
    for part in inside:
        yield from values_that_may_change(part, "__repr__")


def print_steadily(*values: object, **options: object) -> None:
    """Print what is written alike in every version of Python; refuse anything else."""
    for value in values:
        for kind in values_that_may_change(value):
            raise TypeError(
                f"the text of {kind.__module__}.{kind.__name__} depends on the version of Python; "
                "print something that does not, such as dict(x)"
            )
    builtins.print(*values, **options)


def is_ours(error: Exception) -> bool:
    """Whether meshard raised an error, and not Python or NumPy in other words in each version."""
    from meshard.algebra.attributes import NoAttribute
    from meshard.errors import MeshardError

    return isinstance(error, (MeshardError, NoAttribute))


class Runner:
    """Runs the blocks of one page in one namespace."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "__main__", "print": print_steadily}

    def run(self, block: Block) -> str:
        """Run a block and return what it prints, or the error that it ends with if one is shown."""
        if block.is_job:
            return run_job(block)
        program = compile(block.code, SCRIPT, "exec")
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                if block.processes is None:
                    exec(program, self.names)
                else:
                    self.run_in_processes(program, *block.processes)
        except Exception as error:
            if block.promised is None or not is_ours(error):
                raise
            kind = type(error)
            name = (
                kind.__name__
                if kind.__module__ == "builtins"
                else f"{kind.__module__}.{kind.__name__}"
            )
            printed.write("\n".join(wrapped(f"{name}: {error}")))
        return printed.getvalue().rstrip() + "\n"

    def run_in_processes(self, program: object, processes: int, devices: int) -> None:
        from meshard.testing import simulate

        imported = (ModuleType, FunctionType, type)
        given = ("__name__", "print")
        known = {k: v for k, v in self.names.items() if k in given or isinstance(v, imported)}
        simulate(processes, devices, lambda: exec(program, dict(known)))

    def drawing(self, block: Block) -> str:
        """Return the SVG or HTML of what a block's expression gives."""
        value = eval(compile(block.code.strip(), SCRIPT, "eval"), self.names)
        return value if isinstance(value, str) else value._repr_html_()


def run_session(block: Block) -> str:
    """Run the commands of a block; return them with what they print."""
    told = []
    for command in re.findall(r"^\$ (?:.*\\\n)*.*$", block.code, re.MULTILINE):
        program, *words = shlex.split(command.removeprefix("$ ").replace("\\\n", " "))
        if program != "meshard":
            raise ValueError(f"{command!r} is not a command of meshard's")
        done = subprocess.run(
            [sys.executable, "-m", "meshard", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
        )
        told += [command, *[line.rstrip() for line in done.stdout.splitlines()]]
    return "\n".join(told) + "\n"


def run_job(block: Block) -> str:
    """Run a block in real processes; return what they print, or what is promised without MPI."""
    if find_spec("mpi4py") is None:
        return block.promised[2] if block.promised else ""
    processes, devices = map(str, block.processes or ())
    command = [sys.executable, "-m", "meshard", "run", "-n", processes]
    command += ["--devices-per-process", devices, "--timeout", "60", SCRIPT]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_COMM")}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, SCRIPT).write_text(block.code)
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90
        )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def wrapped(message: str) -> list[str]:
    """Return an error's lines, folded to the width of a page."""
    lines = []
    for line in message.splitlines():
        lines += textwrap.wrap(line, 96, break_long_words=False, break_on_hyphens=False) or [""]
    return lines


def check(page: Path, write: bool = False, drawings: Path | None = None) -> list[str]:
    """Run a page; return what is wrong with it, block by block.

    Args:
        page: the Markdown file.
        write: put what was printed into the page, instead of comparing.
        drawings: a folder for the drawings, ``<page>-<number>.html``.
    """
    text = page.read_text()
    runner, faults, edits, count = Runner(), [], [], 0
    for block in blocks_of(text):
        try:
            if block.kind == "drawing":
                made = runner.drawing(block)
                if not made.startswith(("<svg", "<div")):
                    said = f"this is not a drawing: {made[:60]!r}"
                    faults.append(f"{page.name}:{block.line}: {said}")
                if drawings is not None:
                    path = drawings / f"{page.stem}-{count}.html"
                    if not path.exists() or path.read_text() != made:
                        path.write_text(made)
                count += 1
                continue
            if block.kind == "shell-session":
                printed = run_session(block)
                if not CHECKER.check_output(block.code, printed, OPTIONS):
                    said = f"the page says\n{block.code}and this happens\n{printed}"
                    faults.append(f"{page.name}:{block.line}: {said}")
                    edits.append((block.span, printed))
                continue
            printed = runner.run(block)
        except Exception:
            faults.append(f"{page.name}:{block.line}: this fails\n{traceback.format_exc()}")
            break
        if block.promised is None:
            if printed.strip():
                faults.append(f"{page.name}:{block.line}: this prints, unseen:\n{printed}")
        elif not CHECKER.check_output(block.promised[2], printed, OPTIONS):
            said = block.promised[2]
            faults.append(
                f"{page.name}:{block.line}: the page says\n{said}and this prints\n{printed}"
            )
            edits.append((block.promised.span(2), printed))
    if write:
        for (start, stop), printed in reversed(edits):
            text = text[:start] + printed + text[stop:]
        page.write_text(text)
        faults = [f for f in faults if ": the page says" not in f]
    return faults


def main() -> None:
    """Check the pages that the command line names."""
    parser = argparse.ArgumentParser(description="Run the code of pages of the documentation.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="put what is printed into the page")
    parser.add_argument("--drawings", type=Path, help="save the page's drawings in this folder")
    given = parser.parse_args()
    for name in list(os.environ):  # what is printed must not depend on who prints it
        if name.startswith("MESHARD_") or name in {"FORCE_COLOR", "COLORTERM"}:
            del os.environ[name]
    page, drawings = given.page.resolve(), given.drawings and given.drawings.resolve()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        faults = check(page, given.write, drawings)
    if faults:
        faults.append(f"If the change is meant: python {sys.argv[0]} {given.page} --write")
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
