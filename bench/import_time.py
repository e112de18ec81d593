"""The row that times importing: wall clock of the import in fresh interpreters."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.claims import IMPORT_NUMPY, JAX_EAGER, MESHARD
from bench.harness import Peer, Row

PROBE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


@dataclass(frozen=True)
class Import:
    """Imports one module in a new interpreter, started in this one's directory and path."""

    module: str

    def warm_up(self) -> None:
        """Import once, so that bytecode is written and files are in memory."""
        self.sample()

    def sample(self) -> float:
        """Seconds of the import itself, without the start of the interpreter.

        Raises:
            ImportError: the import failed.
        """
        # Bytecode is kept, as it is wherever a package is installed.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        told = subprocess.run(
            [sys.executable, "-c", PROBE.format(self.module)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode != 0:
            last = (told.stderr.strip().splitlines() or ["no message"])[-1]
            raise ImportError(f"import {self.module} failed: {last}")
        return float(told.stdout.split()[-1])


@dataclass(frozen=True, kw_only=True)
class ImportRow(Row):
    """`import meshard` beside `import jax`, and beside `import numpy`, which it contains."""

    key: str = "import"
    title: str = "import"

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Importers of the three modules."""
        modules = {MESHARD: "meshard", JAX_EAGER: "jax", IMPORT_NUMPY: "numpy"}
        return {peer: functools.partial(Import, module) for peer, module in modules.items()}
