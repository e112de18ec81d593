"""What is measured between processes: the same work by meshard and by hand with mpi4py.

Runs in every process of a job of 4. By hand the buffers are made once and kept, and datatypes too.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

import meshard
from bench.ranks_jobs import LEAF, LEAVES, SIDE
from meshard import lax
from meshard.sharding import Mesh, NamedSharding, P

Call = Callable[[], Any]
WORLD = MPI.COMM_WORLD
ME, COUNT = WORLD.Get_rank(), WORLD.Get_size()
FLOAT = MPI.FLOAT


@dataclass(frozen=True)
class Task:
    """One peer's work.

    Attributes:
        call: the work, timed.
        found: what this process holds of the result, and what it should be.
        batch: how often the work is done in one call.
    """

    call: Call
    found: Callable[[Any], tuple[Any, Any]]
    batch: int = 1


def value(rows: int = SIDE, columns: int = SIDE) -> np.ndarray:
    """An array whose elements are all different; each process makes what it needs of it."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


@functools.cache
def mesh(shape: tuple[int, ...] = (COUNT,)) -> Mesh:
    return meshard.make_mesh(shape, ("i", "j")[: len(shape)])


def placed(whole: np.ndarray, sharding: NamedSharding) -> Any:
    return meshard.make_array_from_callback(whole.shape, sharding, lambda i: whole[i].copy())


def local(x: Any) -> np.ndarray:
    return np.asarray(x.addressable_shards[0].data)


def resharded(before: NamedSharding, after: NamedSharding, whole: np.ndarray) -> Task:
    x = placed(whole, before)
    index = after.devices_indices_map(whole.shape)[meshard.local_devices()[0]]
    return Task(lambda: meshard.reshard(x, after), lambda y: (local(y), whole[index]))


def columns() -> Mapping[str, Callable[[], Task]]:
    """Rows become columns."""
    part = SIDE // COUNT
    whole = value()

    def ours() -> Task:
        return resharded(spread("i"), spread(None, "i"), whole)

    def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mine = whole[ME * part : (ME + 1) * part].copy()
        return mine, np.zeros((SIDE, part), np.float32), whole[:, ME * part : (ME + 1) * part]

    def typed() -> Task:
        mine, target, expected = operands()
        out = [box([part, SIDE], [part, part], [0, i * part]) for i in range(COUNT)]
        back = [box([SIDE, part], [part, part], [i * part, 0]) for i in range(COUNT)]
        ones = ([1] * COUNT, [0] * COUNT)
        return Task(
            lambda: WORLD.Alltoallw([mine, ones, out], [target, ones, back]),
            lambda _: (target, expected),
        )

    def packed() -> Task:
        mine, target, expected = operands()
        buffer = np.empty((COUNT, part, part), np.float32)
        sizes = [part * part] * COUNT

        def call() -> None:
            np.copyto(buffer, mine.reshape(part, COUNT, part).transpose(1, 0, 2))
            WORLD.Alltoallv([buffer, sizes], [target, sizes])

        return Task(call, lambda _: (target, expected))

    return {"meshard": ours, "mpi datatypes": typed, "mpi packed": packed}


def spread(*spec: Any, shape: tuple[int, ...] = (COUNT,)) -> NamedSharding:
    return NamedSharding(mesh(shape), P(*spec))


def box(shape: list[int], sizes: list[int], start: list[int]) -> Any:
    return FLOAT.Create_subarray(shape, sizes, start).Commit()


def replicated() -> Mapping[str, Callable[[], Task]]:
    """Rows are brought to all."""
    part = SIDE // COUNT
    whole = value()

    def ours() -> Task:
        return resharded(spread("i"), spread(), whole)

    def gathered() -> Task:
        mine, target = whole[ME * part : (ME + 1) * part].copy(), np.zeros_like(whole)
        return Task(lambda: WORLD.Allgather(mine, target), lambda _: (target, whole))

    return {"meshard": ours, "mpi allgather": gathered}


def half_replicated() -> Mapping[str, Callable[[], Task]]:
    """Tiles on 2 x 2 become rows that are replicated along the other axis."""
    half = SIDE // 2
    whole = value()
    row, column = divmod(ME, 2)
    expected = whole[row * half : (row + 1) * half]

    def ours() -> Task:
        before = spread("i", "j", shape=(2, 2))
        return resharded(before, spread("i", shape=(2, 2)), whole)

    def gathered() -> Task:
        line = WORLD.Split(row, column)
        mine = expected[:, column * half : (column + 1) * half].copy()
        buffer = np.empty((2, half, half), np.float32)
        target = np.zeros_like(expected)

        def call() -> None:
            line.Allgather(mine, buffer)
            np.copyto(target.reshape(half, 2, half), buffer.transpose(1, 0, 2))

        return Task(call, lambda _: (target, expected))

    return {"meshard": ours, "mpi allgather": gathered}


def tiles() -> Mapping[str, Callable[[], Task]]:
    """Rows become tiles on 2 x 2."""
    part, half = SIDE // COUNT, SIDE // 2
    whole = value()
    row, column = divmod(ME, 2)
    expected = whole[row * half : (row + 1) * half, column * half : (column + 1) * half]

    def ours() -> Task:
        return resharded(spread(("i", "j"), shape=(2, 2)), spread("i", "j", shape=(2, 2)), whole)

    def typed() -> Task:
        mine, target = whole[ME * part : (ME + 1) * part].copy(), np.zeros((half, half), np.float32)
        out, back = [], []
        there, here = [0] * COUNT, [0] * COUNT
        for other in range(COUNT):
            o_row, o_column = divmod(other, 2)
            goes, comes = o_row == ME // 2, row == other // 2
            there[other], here[other] = int(goes), int(comes)
            out.append(box([part, SIDE], [part, half], [0, o_column * half]))
            back.append(box([half, half], [part, half], [(other % 2) * part, 0]))
        zeros = [0] * COUNT
        return Task(
            lambda: WORLD.Alltoallw([mine, (there, zeros), out], [target, (here, zeros), back]),
            lambda _: (target, expected),
        )

    return {"meshard": ours, "mpi datatypes": typed}


def shifted() -> Mapping[str, Callable[[], Task]]:
    """Every process's block goes to the next one."""
    part = SIDE // COUNT
    whole = value()
    other = (ME - 1) % COUNT
    expected = whole[other * part : (other + 1) * part]

    def ours() -> Task:
        order = np.roll(mesh().devices, 1)
        return resharded(spread("i"), NamedSharding(Mesh(order, ("i",)), P("i")), whole)

    def sent() -> Task:
        mine, target = whole[ME * part : (ME + 1) * part].copy(), np.zeros((part, SIDE), np.float32)
        after = (ME + 1) % COUNT
        return Task(
            lambda: WORLD.Sendrecv(mine, after, 0, target, other, 0), lambda _: (target, expected)
        )

    return {"meshard": ours, "mpi sendrecv": sent}


def tree(move: Callable[..., Any] = meshard.reshard) -> Mapping[str, Callable[[], Task]]:
    """200 arrays of 64 KB: rows become columns, all of them together."""
    part = LEAF // COUNT
    wholes = [value(LEAF, LEAF) + i for i in range(LEAVES)]

    def ours() -> Task:
        leaves = [placed(w, spread("i")) for w in wholes]
        target = spread(None, "i")
        return Task(
            lambda: move(leaves, target),
            lambda found: (
                [local(y) for y in found],
                [w[:, ME * part : (ME + 1) * part] for w in wholes],
            ),
        )

    def packed() -> Task:
        mine = [w[ME * part : (ME + 1) * part].copy() for w in wholes]
        targets = [np.zeros((LEAF, part), np.float32) for _ in wholes]
        out = np.empty((COUNT, LEAVES, part, part), np.float32)
        back = np.empty_like(out)

        def call() -> list[np.ndarray]:
            for i, x in enumerate(mine):
                out[:, i] = x.reshape(part, COUNT, part).transpose(1, 0, 2)
            WORLD.Alltoall(out, back)
            for i, y in enumerate(targets):
                y.reshape(COUNT, part, part)[...] = back[:, i]
            return targets

        return Task(call, lambda y: (y, [w[:, ME * part : (ME + 1) * part] for w in wholes]))

    return {"meshard": ours, "mpi packed": packed}


def summed() -> Mapping[str, Callable[[], Task]]:
    """Every process has 64 MB; all get the sum."""
    whole = value() / np.float32(SIDE)
    expected = sum(whole * np.float32(p + 1) for p in range(COUNT))

    def ours() -> Task:
        x = meshard.make_array_from_callback(
            (COUNT * SIDE, SIDE), spread("i"), lambda i: whole * np.float32(ME + 1)
        )
        body = functools.partial(lax.psum, axis_name="i")
        total = meshard.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=P())
        return Task(lambda: total(x), lambda y: (local(y), expected))

    def reduced() -> Task:
        mine, target = whole * np.float32(ME + 1), np.zeros_like(whole)
        return Task(lambda: WORLD.Allreduce(mine, target), lambda _: (target, expected))

    return {"meshard": ours, "mpi allreduce": reduced}


def small_sums() -> Mapping[str, Callable[[], Task]]:
    """A sum of four numbers of each process, again and again."""
    often = 200
    start = np.arange(4.0 * COUNT)

    def expected() -> np.ndarray:
        x = start.reshape(COUNT, 4)
        for _ in range(often):
            x = x + x.sum(axis=0) * 0.125
        return x[ME]

    def ours() -> Task:
        x = placed(start, spread("i"))

        def body(x: Any) -> Any:
            for _ in range(often):
                x = x + lax.psum(x, "i") * 0.125
            return x

        loop = meshard.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
        return Task(lambda: loop(x), lambda y: (local(y), expected()), often)

    def reduced() -> Task:
        total = np.zeros(4)

        def call() -> np.ndarray:
            x = start.reshape(COUNT, 4)[ME].copy()
            for _ in range(often):
                WORLD.Allreduce(x, total)
                x = x + total * 0.125
            return x

        return Task(call, lambda x: (x, expected()), often)

    return {"meshard": ours, "mpi allreduce": reduced}


def small_shifts() -> Mapping[str, Callable[[], Task]]:
    """1 KB of each process goes to the next one, again and again."""
    often = 200
    start = np.arange(128.0 * COUNT)

    def expected() -> np.ndarray:
        return start.reshape(COUNT, 128)[(ME - often) % COUNT]

    def ours() -> Task:
        x = placed(start, spread("i"))
        pairs = [(p, (p + 1) % COUNT) for p in range(COUNT)]

        def body(x: Any) -> Any:
            return lax.fori_loop(0, often, lambda _, x: lax.ppermute(x, "i", pairs), x)

        run = meshard.jit(meshard.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=P("i")))
        return Task(lambda: run(x), lambda y: (local(y), expected()), often)

    def sent() -> Task:
        after, before = (ME + 1) % COUNT, (ME - 1) % COUNT

        def call() -> np.ndarray:
            x, y = start.reshape(COUNT, 128)[ME].copy(), np.empty(128)
            for _ in range(often):
                WORLD.Sendrecv(x, after, 0, y, before, 0)
                x, y = y, x
            return x

        return Task(call, lambda x: (x, expected()), often)

    return {"meshard": ours, "mpi sendrecv": sent}


def gradients() -> Mapping[str, Callable[[], Task]]:
    """Conjugate gradients on a grid whose rows are split: halos, and two sums a step."""
    side, steps = 128, 448
    rows = side // COUNT
    whole = np.random.default_rng(0).standard_normal((side, side))
    mine = slice(ME * rows, (ME + 1) * rows)

    def padded(p: Any, above: Any, below: Any) -> Any:
        grid = meshard.numpy.concatenate([above, p, below])
        return meshard.numpy.pad(grid, ((0, 0), (1, 1)))

    def laplace(p: Any, grid: Any) -> Any:
        return 4 * p - grid[:-2, 1:-1] - grid[2:, 1:-1] - grid[1:-1, :-2] - grid[1:-1, 2:]

    def ours() -> Task:
        x = placed(whole, spread("i"))
        down = [(p, p + 1) for p in range(COUNT - 1)]
        up = [(p + 1, p) for p in range(COUNT - 1)]

        def step(_: Any, state: Any) -> Any:
            x, r, p, old = state
            above, below = lax.ppermute(p[-1:], "i", down), lax.ppermute(p[:1], "i", up)
            q = laplace(p, padded(p, above, below))
            a = old / lax.psum((p * q).sum(), "i")
            x, r = x + a * p, r - a * q
            new = lax.psum((r * r).sum(), "i")
            return x, r, r + (new / old) * p, new

        def solved(b: Any) -> Any:
            start = meshard.numpy.zeros_like(b), b, b, lax.psum((b * b).sum(), "i")
            return lax.fori_loop(0, steps, step, start)[0]

        run = meshard.jit(meshard.shard_map(solved, mesh=mesh(), in_specs=P("i"), out_specs=P("i")))
        expected = by_hand()
        return Task(lambda: run(x), lambda y: (local(y), expected))

    def by_hand() -> np.ndarray:
        above = ME - 1 if ME else MPI.PROC_NULL
        below = ME + 1 if ME < COUNT - 1 else MPI.PROC_NULL
        grid, part, total = np.zeros((rows + 2, side + 2)), np.zeros(1), np.zeros(1)
        row = np.zeros((2, side))

        def summed(x: np.ndarray) -> float:
            part[0] = x.sum()
            WORLD.Allreduce(part, total)
            return float(total[0])

        r = whole[mine].copy()
        p, x = r.copy(), np.zeros_like(r)
        old = summed(r * r)
        for _ in range(steps):
            WORLD.Sendrecv(p[-1], below, 0, row[0], above, 0)
            WORLD.Sendrecv(p[0], above, 0, row[1], below, 0)
            grid[1:-1, 1:-1], grid[0, 1:-1], grid[-1, 1:-1] = p, row[0], row[1]
            q = laplace(p, grid)
            a = old / summed(p * q)
            x += a * p
            r -= a * q
            new = summed(r * r)
            p = r + (new / old) * p
            old = new
        return x

    def written() -> Task:
        expected = by_hand()
        return Task(by_hand, lambda y: (y, expected))

    return {"meshard": ours, "mpi allreduce": written}


def small_ops() -> Mapping[str, Callable[[], Task]]:
    """An addition of small arrays that lie alike, so that nothing is sent."""
    often = 500
    start = np.arange(8.0 * COUNT)

    def added(sharding: NamedSharding | None) -> Task:
        x = placed(start, sharding) if sharding is not None else meshard.numpy.asarray(start[:8])
        at = slice(ME * 8, ME * 8 + 8) if sharding is not None else slice(0, 8)

        def call() -> Any:
            y = x
            for _ in range(often):
                y = x + y
            return y

        return Task(call, lambda y: (local(y), start[at] * (often + 1)), often)

    return {"meshard": lambda: added(spread("i")), "one process": lambda: added(None)}


ROWS = {
    "columns": columns,
    "replicated": replicated,
    "half": half_replicated,
    "tiles": tiles,
    "shifted": shifted,
    "tree": tree,
    "tree-put": functools.partial(tree, meshard.device_put),
    "summed": summed,
    "small-sums": small_sums,
    "small-shifts": small_shifts,
    "gradients": gradients,
    "small-ops": small_ops,
}
