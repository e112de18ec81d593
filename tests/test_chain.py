"""Chains of elementwise operations, run in pieces, give the bits of one operation at a time."""

import numpy as np
import pytest

from meshard.ops.fused.chain import Chain, ChainStep, Work, laid_out, run_chain
from meshard.runtime.world import here
from tests.worlds import alone

F4, F8, BOOL = np.dtype("f4"), np.dtype("f8"), np.dtype(bool)


@pytest.mark.parametrize("shape", [(1,), (7,), (300_000,), (613, 411), (5, 90_000), (0, 3), (3, 0)])
def test_a_chain_gives_what_its_steps_give(shape: tuple[int, ...]) -> None:
    """(x * 2 + y) > x, with the sum wanted too, a broadcast row and a scalar."""
    chain = Chain(
        (
            ChainStep(np.multiply, (0, 2), 3),
            ChainStep(np.add, (3, 1), 4),
            ChainStep(np.greater, (4, 0), 5),
        ),
        (True, len(shape) == 1, False),
        ((shape[1:], F8),),
        ((shape[1:], F8), (shape[1:], BOOL)),
        shape[0],
    )
    rng = np.random.default_rng(0)
    cells = [(rng.standard_normal(shape), rng.standard_normal(shape[-1:]), 2.0) for _ in range(3)]

    def body() -> None:
        found = run_chain(here(), chain, cells)
        for (x, row, two), (total, larger) in zip(cells, found, strict=True):
            expected = x * two + row
            assert total.tobytes() == expected.tobytes()
            assert larger.tobytes() == (expected > x).tobytes()

    alone(body)


def test_a_temporary_may_be_overwritten_by_what_reads_it() -> None:
    chain = Chain(
        (
            ChainStep(np.add, (0, 0), 1),
            ChainStep(np.sqrt, (1,), 1),
            ChainStep(np.negative, (1,), 2),
        ),
        (True,),
        (((500,), F4),),
        (((500,), F4),),
        1000,
    )
    x = np.random.default_rng(1).random((1000, 500), dtype=np.float32)

    def body() -> None:
        ((found,),) = run_chain(here(), chain, [(x,)])
        assert found.tobytes() == (-np.sqrt(x + x)).tobytes()

    alone(body)


def test_reductions_behind_the_rows_run_in_the_same_pieces() -> None:
    """exp(x - max(x)) / sum(...) over the last dim, laid out from its operations."""

    def top(x: np.ndarray) -> np.ndarray:
        return x.max(axis=1, keepdims=True)

    def total(x: np.ndarray) -> np.ndarray:
        return x.sum(axis=1, keepdims=True)

    wide, narrow = ((300,), F8), ((1,), F8)
    work = [
        Work(top, (0,), narrow, False),
        Work(np.subtract, (0, 1), wide),
        Work(np.exp, (2,), wide),
        Work(total, (3,), narrow, False),
        Work(np.divide, (3, 4), wide),
    ]
    chain = laid_out(work, [True], [0, 4], 2000)
    assert len(chain.temporaries) == 2
    x = np.random.default_rng(2).standard_normal((2000, 300))

    def body() -> None:
        ((highest, found),) = run_chain(here(), chain, [(x,)])
        e = np.exp(x - top(x))
        assert highest.tobytes() == top(x).tobytes()
        assert found.tobytes() == (e / total(e)).tobytes()

    alone(body)


def test_an_error_in_a_step_is_raised_and_leaves_the_workers_alive() -> None:
    def fails(x: np.ndarray, out: np.ndarray) -> None:
        raise FloatingPointError("no")

    chain = Chain((ChainStep(fails, (0,), 1),), (True,), (), (((500,), F4),), 4000)
    x = np.ones((4000, 500), np.float32)

    def body() -> None:
        with pytest.raises(FloatingPointError):
            run_chain(here(), chain, [(x,), (x,)])
        good = Chain((ChainStep(np.negative, (0,), 1),), (True,), (), (((500,), F4),), 4000)
        assert run_chain(here(), good, [(x,)])[0][0][0, 0] == -1

    alone(body)
