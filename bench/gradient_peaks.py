"""The memory that a gradient takes beyond its operands, in meshard and in JAX.

`python -m bench.gradient_peaks [KEY ...]` prints for rows of `rows_derivatives` the peak of the
first call of a compiled gradient, by the kernel's count (`bench.kernel_memory`), each in a process
of its own; and that of the gradient that is not jitted.
"""

from __future__ import annotations

import subprocess
import sys

from bench.asked import MARK
from bench.figures import digits
from bench.kernel_memory import Meter
from bench.libraries import load
from bench.rows_derivatives import ROWS, GradientRow

PATIENCE = 300
WAYS = ("jitted", "of jitted", "plain")


def measure(key: str, name: str, way: str) -> int:
    """Return the bytes that one call takes beyond what was there, in this process."""
    row = next(r for r in ROWS if r.key == key)
    assert isinstance(row, GradientRow)
    library = load(name)
    given = row.given(library, row.inputs())
    loss = row.loss(library)
    if way == "of jitted":
        loss = library.root.jit(loss)
    slopes = library.root.grad(loss, row.numbers)
    call = library.root.jit(slopes).lower(*given).compile() if way == "jitted" else slopes
    if way != "jitted":  # what is made of a first call is not what it takes
        small = [library.root.block_until_ready(x) for x in call(*given)]
        del small
    with Meter() as meter:
        before = meter.now()
        meter.reset()
        library.root.block_until_ready(call(*given))
        return meter.most() - before


def main(keys: list[str]) -> None:
    """Print a line for each row, way and library."""
    for row in ROWS:
        if keys and row.key not in keys:
            continue
        for way in WAYS:
            found = {}
            for name in ("meshard", "jax"):
                told = subprocess.run(
                    [sys.executable, "-m", "bench.gradient_peaks", "--", row.key, name, way],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=PATIENCE,
                )
                _, mark, text = told.stdout.rpartition(MARK)
                found[name] = int(text) if mark else None
                if not mark:
                    print(told.stderr.strip().splitlines()[-1:])
            sizes = {
                n: "-" if b is None else f"{digits(b / (1 << 20))} MiB" for n, b in found.items()
            }
            print(f"{row.key:18} {way:10} meshard {sizes['meshard']:>10}  jax {sizes['jax']:>10}")


if __name__ == "__main__":
    from bench.__main__ import set_environment

    set_environment()
    if sys.argv[1:2] == ["--"]:
        print(f"{MARK}{measure(*sys.argv[2:5])}")
    else:
        main(sys.argv[1:])
