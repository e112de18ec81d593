"""Makes a notebook that shows every form for notebooks, runs it, and exports it light and dark.

To look at what changes in forms do: ``python tests/gallery_of_forms.py FOLDER`` writes forms.ipynb,
light.html and dark.html. It needs nbclient, nbconvert and ipykernel, and is no test.
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

CELLS = """
import numpy as np
import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding, P
mesh = meshard.make_mesh((4, 2), ("data", "model"))
mesh
---
def put(value, *spec):
    return meshard.device_put(value, NamedSharding(mesh, P(*spec)))
x = put(np.arange(512.0 * 256).reshape(512, 256), "data", "model")
x
---
NamedSharding(mesh, P(None, "data"))
---
mnp.asarray(2.5)
---
put(np.arange(8), "data")
---
put(np.zeros((8, 4, 6, 5, 2), "f4"), "data", None, "model")
---
meshard.device_put(np.arange(10), NamedSharding(mesh, P("data"), uneven="balanced"))
---
put(np.zeros((0, 4)), "data")
---
meshard.random.split(meshard.random.key(0), 16)
---
gone = put(np.ones((4, 4)), "data")
gone.delete()
gone
---
x.addressable_shards[3]
---
big = meshard.make_mesh((16, 32), ("hosts", "chips"),
                        devices=[meshard.Device(i, i // 32) for i in range(512)])
big
---
meshard.ShapeDtypeStruct((1 << 16, 1 << 14), "bfloat16",
                         sharding=NamedSharding(big, P("hosts", "chips")))
---
@meshard.jit
def model(x, w):
    h = mnp.tanh(x @ w)
    return mnp.sort(h, axis=0), (h * h).sum()

w = put(np.ones((256, 64)), None, "model")
with meshard.debug.ledger() as log, meshard.debug.profile() as seen:
    model(x, w)
    total = x.sum()
    total.block_until_ready()
log
---
seen
---
model
---
model.trace(x, w)
---
model.lower(x, w)
---
meshard.explain(model, x, w, topology="8-gpu hosts")
---
meshard.plan_reshard(x, NamedSharding(mesh, P("model", "data")))
---
def broken(x):
    if x.sum() > 0:
        return x

meshard.jit(broken)(x)
---
gone + 1
"""


def made(folder: Path) -> None:
    """Write the notebook and its pages."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    os.environ["MESHARD_NUM_DEVICES"] = "8"
    cells = [textwrap.dedent(cell).strip() for cell in CELLS.split("---\n")]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    NotebookClient(notebook, timeout=120, allow_errors=True).execute()
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / "forms.ipynb")
    for theme in ("light", "dark"):
        text, _ = HTMLExporter(theme=theme).from_notebook_node(notebook)
        (folder / f"{theme}.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    made(Path(sys.argv[1]))
