"""Small cells: a number becomes an operand once, and many blocks are reduced as one stack."""

import warnings
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.algebra.world import entered
from meshard.ops.engine import reduction, run
from meshard.ops.engine.reduction import combined
from meshard.ops.engine.run import _number_operand
from meshard.runtime.world import alone, here
from meshard.sharding import NamedSharding, P
from meshard.tuning import STACKED_CELLS

UFUNCS = [
    f for f in vars(np).values() if isinstance(f, np.ufunc) and (f.nin, f.signature) == (2, None)
]
NUMBERS: list[Any] = [
    *(0, 1, -1, 3, -7, 255, 256, 300, -129, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, True),
    *(0.0, -0.0, 1.5, 2.0, 1e300, -1e-320, float("nan"), float("inf"), 1j),
]


def told(f: np.ufunc, *operands: Any) -> Any:
    """Return the bits that a function gives, or its error."""
    try:
        found = f(*operands)
    except (TypeError, OverflowError, ValueError) as error:
        return type(error), str(error)
    found = found if isinstance(found, tuple) else (found,)
    return [(b.dtype, b.tobytes()) for b in found]


@pytest.mark.parametrize("dtype", "?bBhHiIlLefdFD")
def test_a_number_as_an_operand_gives_the_same_bits(dtype: str) -> None:
    x = np.array([0, 1, 2, 3, 100]).astype(dtype)
    alone = meshard.numpy.asarray(x)._type
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for f in UFUNCS:
            for n in NUMBERS:
                right, left = (_number_operand(f, t) for t in ((alone, None), (None, alone)))
                assert told(f, x, right(n)) == told(f, x, n), (f, n)
                assert told(f, left(n), x) == told(f, n, x), (f, n)


SHAPES = [(1,), (2,), (9,), (129,), (1000,), (5, 1), (1, 5), (3, 4), (2, 60), (60, 2), (4, 5, 6)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8", "uint16"])
@np.errstate(all="ignore")
def test_a_stack_of_parts_is_joined_as_the_parts_are(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(len(shape) + sum(shape))
    for count in (STACKED_CELLS, STACKED_CELLS + 3, 100):
        scale = 10.0 ** rng.integers(-3, 4, (count, *shape))
        parts = list((rng.standard_normal((count, *shape)) * scale).astype(dtype))
        for ufunc in (np.add, np.multiply, np.maximum):
            expected = parts[0]
            for part in parts[1:]:
                expected = ufunc(expected, part)
            (found,) = combined(here(), ufunc, [(p,) for p in parts])
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "bool"])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "mean"])
@np.errstate(all="ignore")
def test_many_tiny_cells_are_reduced_to_the_bits_of_one_after_the_other(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    whole = (rng.standard_normal((STACKED_CELLS * 3, 7, 5)) * 3).astype(dtype)
    reduce, found = getattr(mnp, name), []
    for least in (STACKED_CELLS, 1 << 30):
        for module in (run, reduction):
            monkeypatch.setattr(module, "STACKED_CELLS", least)
        with entered(alone(STACKED_CELLS)):
            mesh = meshard.make_mesh((STACKED_CELLS,), ("i",))
            x = meshard.device_put(whole, NamedSharding(mesh, P("i")))
            results = [
                np.asarray(reduce(x, axis=axis, keepdims=keepdims))
                for axis in (None, 0, 1, (1, 2), (0, 2))
                for keepdims in (False, True)
            ]
        found.append([(r.dtype, r.shape, r.tobytes()) for r in results])
    assert found[0] == found[1]


@pytest.mark.parametrize("spec", [P("i"), P("i", "j"), P(("j", "i"), None), P(None, ("i", "j"))])
@pytest.mark.parametrize("shape", [(16, 16), (64, 32), (16, 16, 3), (32, 16, 0)], ids=str)
def test_many_small_pieces_are_those_of_the_value(spec: P, shape: tuple[int, ...]) -> None:
    value = np.arange(float(np.prod(shape))).reshape(shape)
    with entered(alone(16)):
        sharding = NamedSharding(meshard.make_mesh((8, 2), ("i", "j")), spec)
        for given in (value, np.asfortranarray(value), value[::-1, ::-1]):
            x = meshard.device_put(given, sharding)
            for shard in x.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), given[shard.index])
            assert np.asarray(x).tobytes() == given.tobytes()
            assert not np.shares_memory(np.asarray(x), given)


def test_pieces_of_several_shapes_are_not_seen_at_once() -> None:
    mesh = meshard.make_mesh((1,), ("i",))
    assert NamedSharding(mesh, P("i")).layout((3,)).by_piece(np.zeros(3)) is not None
    with entered(alone(16)):
        uneven = NamedSharding(meshard.make_mesh((16,), ("i",)), P("i"), uneven="balanced")
        assert uneven.layout((17,)).by_piece(np.zeros(17)) is None
        x = meshard.device_put(np.arange(17), uneven)
        assert np.asarray(x).tolist() == list(range(17))
