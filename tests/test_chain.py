"""Chains of elementwise operations, run in pieces, give the bits of one operation at a time."""

import numpy as np
import pytest

from meshard.ops.chain import Chain, Step, run_chain
from meshard.runtime.world import here
from tests.worlds import alone

F4, F8, BOOL = np.dtype("f4"), np.dtype("f8"), np.dtype(bool)


@pytest.mark.parametrize("shape", [(1,), (7,), (300_000,), (613, 411), (5, 90_000), (0, 3), (3, 0)])
def test_a_chain_gives_what_its_steps_give(shape: tuple[int, ...]) -> None:
    """(x * 2 + y) > x, with the sum wanted too, a broadcast row and a scalar."""
    chain = Chain(
        (
            Step(np.multiply, (0, 2), 3),
            Step(np.add, (3, 1), 4),
            Step(np.greater, (4, 0), 5),
        ),
        3,
        (F8,),
        (F8, BOOL),
        shape,
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
        (Step(np.add, (0, 0), 1), Step(np.sqrt, (1,), 1), Step(np.negative, (1,), 2)),
        1,
        (F4,),
        (F4,),
        (1000, 500),
    )
    x = np.random.default_rng(1).random((1000, 500), dtype=np.float32)

    def body() -> None:
        ((found,),) = run_chain(here(), chain, [(x,)])
        assert found.tobytes() == (-np.sqrt(x + x)).tobytes()

    alone(body)


def test_an_error_in_a_step_is_raised_and_leaves_the_workers_alive() -> None:
    def fails(x: np.ndarray, out: np.ndarray) -> None:
        raise FloatingPointError("no")

    chain = Chain((Step(fails, (0,), 1),), 1, (), (F4,), (4000, 500))
    x = np.ones((4000, 500), np.float32)

    def body() -> None:
        with pytest.raises(FloatingPointError):
            run_chain(here(), chain, [(x,), (x,)])
        good = Chain((Step(np.negative, (0,), 1),), 1, (), (F4,), x.shape)
        assert run_chain(here(), good, [(x,)])[0][0][0, 0] == -1

    alone(body)
