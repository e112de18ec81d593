"""Rows between 4 processes: reshards, sums and small operations, beside mpi4py by hand and others.

Each row is run in a job that is started once: meshard and mpi4py under mpiexec, JAX with gloo in
processes of its own. What is measured is the slowest process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.asked import JobError
from bench.claims import (
    ARRAYS,
    BY_HAND,
    HEAT,
    JAX_JIT,
    MESHARD,
    NUMPY,
    ONE_PROCESS,
    TORCH,
    UNJITTED,
    Claim,
    Faster,
)
from bench.harness import Peer, Row
from bench.limits import Need
from bench.peers.installed import installed
from bench.ranks_jobs import CG_ITERATIONS, CG_SIDE, WORK, RanksPeer, job
from bench.rows_programs import PLATE, STEPS
from meshard.errors import MeshardError

LARGE = 64 << 20
JAX_ROWS = ("columns", "replicated", "half", "tiles", "tree", "summed", "allreduce", "tiny")
TORCH_ROWS = ("columns", "replicated", "half", "tiles", "tree", "summed", "allreduce", "tiny")
HEAT_ROWS = ("columns", "replicated", "tree", "summed", "allreduce", "tiny")


@dataclass(frozen=True, kw_only=True)
class RanksRow(Row):
    """One line of the table.

    Attributes:
        work: the row's name in `bench.ranks_work`.
        names: the peers of `bench.ranks_work`, and what the table calls them.
    """

    work: str
    names: Mapping[str, str]

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard, of mpi4py by hand, and of the libraries that can do the work."""
        makers: dict[str, Callable[[], Peer]] = {
            name: partial(self._of, WORK, peer) for peer, name in self.names.items()
        }
        if self.work in JAX_ROWS and installed("jax"):
            makers[JAX_JIT] = partial(self._of, "bench.ranks_jax", "jax", own=True)
        if self.work in TORCH_ROWS and installed("torch"):
            makers[TORCH] = partial(self._of, "bench.peers.torch_work", "torch")
        if self.work in HEAT_ROWS and installed("heat"):
            makers[HEAT] = partial(self._of, "bench.peers.heat_work", "heat")
        return makers

    def _of(self, module: str, peer: str, own: bool = False) -> Peer:
        return RanksPeer(job(module, own), self.work, peer)


def row(
    work: str, title: str, *claims: Claim, need: Need, hand: str = "", names: Sequence[str] = ()
) -> RanksRow:
    """A row whose work by hand is the peer of that name; others keep their names."""
    called = {"meshard": MESHARD, **{name: name for name in names}}
    if hand:
        called[hand] = BY_HAND
    return RanksRow(
        key=f"ranks-{work}",
        title=f"{title}",
        claims=claims,
        work=work,
        names=called,
        need=need,
    )


MOVED = Need(bytes=2 * LARGE)
"""All of 64 MB is read and written."""
ROWS: tuple[Row, ...] = (
    row(
        "columns",
        "64 MB, rows to columns",
        Faster(1, BY_HAND),
        Faster(1, "mpi packed"),
        Faster(3),
        need=MOVED,
        hand="mpi datatypes",
        names=["mpi packed"],
    ),
    row(
        "tiles",
        "64 MB, rows to 2x2 tiles",
        Faster(1, BY_HAND),
        Faster(3),
        need=MOVED,
        hand="mpi datatypes",
    ),
    row(
        "shifted",
        "64 MB, to the next process",
        Faster(1, BY_HAND),
        need=MOVED,
        hand="mpi sendrecv",
    ),
    row(
        "replicated",
        "64 MB, rows to everywhere",
        Faster(2, BY_HAND),
        Faster(3),
        need=MOVED,
        hand="mpi allgather",
    ),
    row(
        "half",
        "64 MB, tiles to rows on pairs",
        Faster(2, BY_HAND),
        Faster(3),
        need=MOVED,
        hand="mpi allgather",
    ),
    row(
        "tree",
        "200 arrays of 64 KB, rows to columns",
        Faster(0.5, BY_HAND),
        Faster(3),
        need=Need(bytes=2 * 200 * (64 << 10)),
        hand="mpi packed",
    ),
    row(
        "summed",
        "sum of 64 MB each, to everywhere",
        Faster(0.9, BY_HAND),
        need=Need(bytes=5 * LARGE),
        hand="mpi allreduce",
    ),
    row(
        "small-sums",
        "sum of 4 numbers each, in a loop",
        Faster(1 / 3, BY_HAND),
        need=Need(rounds=1),
        hand="mpi allreduce",
    ),
    row(
        "small-ops",
        "x + y, nothing is sent (one process: an array of one process)",
        Faster(0.9, ONE_PROCESS),
        need=Need(calls=1),
        names=[ONE_PROCESS],
    ),
    row(
        "tiny",
        "v * 2 of 8 numbers each, nothing is sent",
        need=Need(calls=1),
        names=[NUMPY],
    ),
    *(
        row(
            work,
            f"{name} of 1 KB, jitted",
            Faster(1 / 2.5, BY_HAND),
            need=Need(rounds=1),
            hand="mpi by hand",
            names=[UNJITTED],
        )
        for work, name in (
            ("allreduce", "psum"),
            ("permute", "ppermute"),
            ("alltoall", "all_to_all"),
        )
    ),
    row(
        "cg",
        f"conjugate gradients {CG_SIDE}x{CG_SIDE}, {CG_ITERATIONS} iterations",
        Faster(0.58, BY_HAND),
        need=Need(rounds=3 * CG_ITERATIONS),
        hand="mpi by hand",
        names=[UNJITTED, ARRAYS],
    ),
    row(
        "heat",
        f"heat equation {PLATE}x{PLATE}, {STEPS} steps",
        Faster(1, BY_HAND),
        need=Need(bytes=2 * STEPS * 4 * PLATE**2),
        hand="mpi by hand",
    ),
)


def message_seconds() -> float | None:
    """Seconds of the smallest message, the best of some; None without MPI."""
    try:
        peer = RanksPeer(job(), "ping", "mpi by hand")
        peer.warm_up()
        return min(peer.sample() for _ in range(5))
    except (JobError, OSError, ImportError, MeshardError):
        return None
