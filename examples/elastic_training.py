"""Training that outlives its processes, to the last bit.

    meshard run -n 4 --spares 2 examples/elastic_training.py
    mpiexec --with-ft ulfm -n 4 --oversubscribe python examples/elastic_training.py

A model is fitted by full batches. Three times a random process kills itself as by ``kill -9``:
4 become 3, then 2; spares, if there are any, make them 4 again; then one more dies. Parameters and
velocities are spread over the processes, and `elastic.protect` keeps each part in a neighbour's
memory too. A step counts once `guard.refresh` has returned; one that a death interrupts is done
again by those who live. Gradients are made chunk by chunk and added up in one order, so that the
number of processes leaves no trace in the bits. The last line says whether they are those of an
undisturbed run.
"""

import os
import random
import signal

import numpy as np

import meshard as ms
from meshard import elastic

STEPS, KILLS, GROW = 90, (15, 30, 75), 45
SEED = int(os.environ.get("SEED", "0"))
RNG = np.random.default_rng(1)
X = RNG.normal(size=(12, 64, 500))
Y = (X * RNG.normal(size=500)).sum(-1) + RNG.normal(size=(12, 64))


@ms.jit
def gradients(w, x, y):
    error = (x * w).sum(-1) - y
    return (x * error[:, :, None]).sum(1)


def step(state, x, y):
    rows, columns, whole = [
        ms.NamedSharding(x.sharding.mesh, spec, uneven="balanced")
        for spec in (ms.P("data"), ms.P(None, "data"), ms.P())
    ]
    parts = gradients(ms.reshard(state["w"], whole), x, y)  # of each chunk, where it is
    v = 0.9 * state["v"] + ms.reshard(parts, columns).sum(0)
    return {"w": ms.reshard(state["w"] - 1e-5 * v, rows), "v": v, "step": state["step"] + 1}


def placed(mesh):
    rows = ms.NamedSharding(mesh, ms.P("data"), uneven="balanced")
    return rows, *ms.device_put((X, Y), rows)


def begin(mesh):
    rows, x, y = placed(mesh)
    w, v = ms.device_put((np.zeros(500), np.zeros(500)), rows)
    return {"w": w, "v": v, "step": 0}, x, y


def main():
    state, x, y = begin(elastic.mesh("data"))
    guard = elastic.protect(state)
    while guard.tree["step"] < STEPS:
        with elastic.surviving(grow=guard.tree["step"] >= GROW) as block:
            state = guard.tree
            if block.changed:
                rows, x, y = placed(elastic.mesh("data"))
                state = elastic.restore(guard, rows)
                say(f"step {state['step']}: going on with {ms.process_count()} of 4 processes")
            elif state["step"] in KILLS and ms.process_count() > 1:
                living = sorted({d.process_index for d in ms.devices()})
                if random.Random(SEED + state["step"]).choice(living) == ms.process_index():
                    os.kill(os.getpid(), signal.SIGKILL)
            guard.refresh(step(state, x, y))
    final = ms.multihost_utils.process_allgather(guard.tree["w"], tiled=True)
    alone, x, y = begin(ms.Mesh(ms.local_devices()[:1], "data"))
    while alone["step"] < STEPS:
        alone = step(alone, x, y)
    same = np.array_equal(final, np.asarray(alone["w"]))
    say(f"the bits are {'those' if same else 'NOT THOSE'} of an undisturbed run")
    return 0 if same else 1


def say(text):
    if ms.process_index() == min(d.process_index for d in ms.devices()):
        print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
