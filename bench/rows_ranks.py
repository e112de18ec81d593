"""Rows between 4 processes: reshards, sums and small operations, beside mpi4py by hand and others.

Each row is run in a job that is started once: meshard and mpi4py under mpiexec, JAX with gloo in
processes of its own. What is measured is the slowest process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.claims import BY_HAND, JAX_JIT, MESHARD, NUMPY, Claim, Faster
from bench.harness import Peer, Row
from bench.ranks_jobs import PEERS, RanksPeer, mpi_job, own_job

JAX_ROWS = ("columns", "replicated", "half", "tiles", "tree", "summed")


@dataclass(frozen=True, kw_only=True)
class RanksRow:
    """One line of the table.

    Attributes:
        key: a short name without spaces.
        title: what is measured, for people.
        claims: what meshard promises here.
        work: the row's name in `bench.ranks_work`.
        names: what the table calls the peers of `bench.ranks_work`.
    """

    key: str
    title: str
    claims: Sequence[Claim]
    work: str
    names: Mapping[str, str]

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard, of mpi4py by hand, and of JAX where it can do the work."""
        makers: dict[str, Callable[[], Peer]] = {
            self.names.get(peer, peer): partial(self._ours, peer) for peer in PEERS[self.work]
        }
        if self.work in JAX_ROWS:
            makers[JAX_JIT] = self._jax
        return makers

    def _ours(self, peer: str) -> Peer:
        return RanksPeer(mpi_job(), self.work, peer)

    def _jax(self) -> Peer:
        return RanksPeer(own_job("bench.ranks_jax"), self.work, "jax")


def row(work: str, title: str, *claims: Claim, hand: str, **names: str) -> RanksRow:
    """A row whose work by hand is the peer of that name."""
    return RanksRow(
        key=f"ranks-{work}",
        title=title,
        claims=claims,
        work=work,
        names={hand: BY_HAND, "meshard": MESHARD, **names},
    )


ROWS: tuple[Row, ...] = (
    row(
        "columns",
        "4 processes: 64 MB, rows to columns",
        Faster(1, BY_HAND),
        Faster(1, "mpi packed"),
        Faster(3),
        hand="mpi datatypes",
    ),
    row(
        "tiles",
        "4 processes: 64 MB, rows to 2x2 tiles",
        Faster(1, BY_HAND),
        Faster(3),
        hand="mpi datatypes",
    ),
    row(
        "shifted",
        "4 processes: 64 MB, to the next process",
        Faster(1, BY_HAND),
        hand="mpi sendrecv",
    ),
    row(
        "replicated",
        "4 processes: 64 MB, rows to everywhere",
        Faster(2, BY_HAND),
        Faster(3),
        hand="mpi allgather",
    ),
    row(
        "half",
        "4 processes: 64 MB, tiles to rows on pairs",
        Faster(2, BY_HAND),
        Faster(3),
        hand="mpi allgather",
    ),
    row(
        "tree",
        "4 processes: 200 arrays of 64 KB, rows to columns",
        Faster(0.5, BY_HAND),
        Faster(3),
        hand="mpi packed",
    ),
    row(
        "tree-put",
        "4 processes: 200 arrays of 64 KB by device_put",
        Faster(0.5, BY_HAND),
        hand="mpi packed",
    ),
    row(
        "summed",
        "4 processes: sum of 64 MB each, to everywhere",
        Faster(0.9, BY_HAND),
        hand="mpi allreduce",
    ),
    row(
        "small-sums",
        "4 processes: sum of 4 numbers each, in a loop",
        Faster(1 / 3, BY_HAND),
        hand="mpi allreduce",
    ),
    row(
        "small-shifts",
        "4 processes: 1 KB each to the next, in a jitted loop",
        Faster(1 / 3, BY_HAND),
        hand="mpi sendrecv",
    ),
    row(
        "gradients",
        "4 processes: conjugate gradients, 128x128, 448 steps",
        Faster(1 / 3, BY_HAND),
        hand="mpi allreduce",
    ),
    row(
        "small-ops",
        "4 processes: x + y, nothing is sent (numpy: an array of one process)",
        Faster(0.9, NUMPY),
        hand="",
        **{"one process": NUMPY},
    ),
)
