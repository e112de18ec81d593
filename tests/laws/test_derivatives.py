"""Laws of derivatives that hold for every row of the registry.

What is pushed forward and what is pulled back pair to the same number, tangents are what finite
differences say, and layouts and numbers of processes change nothing. Rows are found by calling all
public functions (`tests/sites.py`); a row that none of them reaches, or that has no derivative and
does not say why, fails. By default a sample of the calls of each row is tried, the same in every
run; the profile "thorough" tries all.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import meshard.numpy as mnp
from meshard import jit, jvp, vjp
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.errors import ConcretizationError, DerivativeError, MeshardError
from meshard.ops.derivatives.kinds import FLAT, Partials, Refused
from meshard.ops.derivatives.table import DERIVATIVES
from meshard.ops.row import REGISTRY
from meshard.ops.sparse.halo import Halo
from meshard.testing import simulate
from tests.public_functions import Public, public_functions
from tests.sites import Operation, laid_out, operations
from tests.tangents import (
    DTYPES,
    both_ways,
    check_adjoint,
    check_differences,
    drawn,
    moves,
    moves_type,
)
from tests.worlds import alone, whole

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MOST = 10**6 if ALL else 3
"""How many calls of a row are tried."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SMOOTH = sorted(n for n, d in DERIVATIVES.items() if d is not FLAT and type(d) is not Refused)

POSITIVE = """
    log log2 log10 sqrt lgamma digamma power float_power polygamma igamma igammac zeta
    random_pareto_of random_rayleigh_of random_wald_of random_lognormal_of
    random_double_sided_maxwell_of random_weibull_min_of random_scaled random_chance_score
    random_gumbel_score random_cauchy_of
"""
DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(POSITIVE.split(), (0.2, 0.8)),
    "arccosh": (1.2, 1.9),
}
"""Where the elements of a row's operands are drawn from, if not between -0.8 and 0.8."""


def _spd(x: Any, rng: np.random.Generator) -> Any:
    y = drawn(x, rng)
    n = x.shape[-1]
    return (y @ np.conj(np.swapaxes(y, -1, -2)) + 2 * np.eye(n)).astype(x.dtype)


def _rising(x: Any, rng: np.random.Generator) -> Any:
    return np.sort(drawn(x, rng, -0.8, 0.8))


def _within(low: float, high: float) -> Callable[[Any, np.random.Generator], Any]:
    return lambda x, rng: drawn(x, rng, low, high)


SQUARES = "cholesky inv det slogdet solve eigh eigvalsh"
MAKERS: dict[str, dict[int, Callable[[Any, np.random.Generator], Any]]] = {
    **{name: {0: _spd} for name in SQUARES.split()},
    "interp": {1: _rising},
    "zeta": {0: _within(1.5, 3.0), 1: _within(0.5, 1.5)},
    "betainc": {i: _within(0.2, 0.8) for i in range(3)},
    "random_scaled": {1: _within(0, 0.2), 2: _within(0.3, 0.6)},
    "clip": {1: _within(-0.5, -0.3), 2: _within(0.3, 0.5)},
    "random_triangular_of": {
        0: _within(0.1, 0.9),
        1: _within(0, 0.2),
        2: _within(0.3, 0.6),
        3: _within(0.7, 1),
    },
    "random_truncated_normal_of": {
        0: _within(0.1, 0.9),
        1: _within(-1, -0.2),
        2: _within(0.3, 0.6),
    },
}
"""Operands that must have a form: by row and the operand's number."""

WIDENED = {"fft"}
"""Rows that get no short floats, since functions widen these before."""

STEPS = {"reduce_precision", "random_gamma", "pseudo_inverse"}
"""Rows whose derivative is not that of their steps, as in JAX."""

HERMITIAN = {"cholesky", "eigh", "eigvalsh"}
"""Rows that read one triangle and count as reading both."""


def function_of(site: Operation) -> Callable[..., Any]:
    """Return what a call does to those of its operands that move smoothly."""
    if site.name not in HERMITIAN:
        return site
    return lambda x: site((x + mnp.conj(mnp.matrix_transpose(x))) / 2)


def fixed(site: Operation) -> set[int]:
    """Return the operands on which results do not depend smoothly, such as uniform numbers."""
    derivative: Any = DERIVATIVES[site.name]
    return {i for i, f in enumerate(getattr(derivative, "factors", ())) if f is None}


def sparse() -> list[Operation]:
    """Return the products of a sparse matrix of 3 x 4 elements, of which 5 are stored."""
    halo = Halo(
        mesh=Mesh([Device(0)], ("i",)),
        axes=("i",),
        rows=(0, 3),
        columns=(0, 4),
        entries=(0, 5),
        needed=(0, 3),
        counts=(),
    )
    columns, starts = np.array([0, 2, 1, 0, 2], np.int32), np.array([0, 2, 3, 5], np.int32)
    own = columns, starts, np.array([0, 2, 3]), np.empty(0, np.int64)
    given = (("halo", halo),)
    return [
        Operation("sparse_times", given, (*own, np.ones(5), np.ones(4))),
        Operation("sparse_times", given, (*own, np.ones(5), np.ones((4, 2)))),
        Operation("sparse_times_transposed", given, (*own, np.ones(5), np.ones((3, 2)))),
        Operation("sparse_sampled", given, (*own, np.ones((3, 2)), np.ones((4, 2)))),
    ]


BY_HAND: list[Operation] = [
    *sparse(),
    Operation("again", (("number", 1),), (np.ones((2, 3)),)),
    Operation("checkpoint_name", (("name", "here"),), (np.ones((2, 3)),)),
    Operation("cofactors", (), (np.ones((2, 3, 3)),)),
    Operation("pseudo_inverse", (), (np.ones((2, 4, 3)), np.ones((2, 3, 4)))),
    Operation("random_gamma_slope", (), (np.ones((2, 3)), np.ones((2, 3)))),
    Operation("clip", (), (np.ones((3, 4)), np.ones(()), np.ones(4))),
    Operation("interpolate", (), (np.ones((3, 2)), np.ones((3, 2)), np.ones(2))),
    Operation("flat", (("cuts", None),), (np.ones((2, 3)),)),
    Operation("take_positions", (("dims", ((1, ((2, 0, 2, 1),)),)),), (np.ones((2, 3)),)),
    Operation(
        "dynamic_slice", (("sizes", (2, 2)), ("wrap", (True, False))), (np.ones((4, 3)), -2, 1)
    ),
    Operation(
        "dynamic_update_slice",
        (("wrap", (True, False)),),
        (np.ones((4, 3)), np.ones((2, 2)), -3, 1),
    ),
]
"""Calls of rows that only programs and split arrays use."""


def all_sites() -> dict[str, list[Operation]]:
    """Return all calls of each row."""
    found = operations()
    for operation in BY_HAND:
        found.setdefault(operation.name, []).append(operation)
    return found


@pytest.fixture(scope="module")
def sites() -> dict[str, list[Operation]]:
    return all_sites()


def chosen(found: Sequence[Operation], most: int) -> list[Operation]:
    """Return some calls, the same in every run; those first that have something to move."""
    some = [c for c in found if any(map(moves, c.operands))]
    return sorted(some, key=lambda c: crc32(repr(c.key()).encode()))[:most]


def filled(site: Operation, rng: np.random.Generator, dtype: Any = None) -> list[Any]:
    """Return operands like those of a call, of another dtype perhaps, with drawn values."""
    low, high = DOMAINS.get(site.name, (-0.8, 0.8))
    makers = MAKERS.get(site.name, {})
    found: list[Any] = []
    for i, x in enumerate(site.operands):
        if moves(x):
            like = x if dtype is None else x.astype(dtype)
            x = makers[i](like, rng) if i in makers else drawn(like, rng, low, high)
        found.append(x)
    return found


def seeded(*words: Any) -> np.random.Generator:
    return np.random.default_rng(crc32(repr(words).encode()))


def test_every_row_has_a_derivative_or_says_why_not() -> None:
    assert sorted(REGISTRY.keys() ^ DERIVATIVES.keys()) == []
    for name, derivative in DERIVATIVES.items():
        if isinstance(derivative, Refused):
            assert derivative.why.endswith("."), name
            assert len(derivative.why) > 20, name


def told(error: BaseException) -> str:
    """Return what an error says, and where it comes from."""
    lines = traceback.extract_tb(error.__traceback__)
    at = f"{lines[-1].filename.rsplit('/', 1)[-1]}:{lines[-1].lineno}"
    return f"{type(error).__name__} at {at}: {' '.join(str(error).split())[:300]}"


def faults_at(site: Operation, dtype: Any) -> list[str] | None:
    """Return what is wrong with the derivative of one call; None if it takes no such dtype."""
    if site.name in WIDENED and dtype is not None and dtype.itemsize == 2:
        return None
    rng = seeded(site.key(), str(dtype))
    site = site if dtype is None else site.cast(dtype)
    values = filled(site, rng, dtype)
    try:
        results = [whole(y) for y in function_of(site)(*values)]
    except (MeshardError, np.linalg.LinAlgError, TypeError):
        return None
    if not any(map(moves, results)) or not all(np.isfinite(y).all() for y in results):
        return None
    try:
        found = both_ways(function_of(site), values, rng, fixed=fixed(site))
        check_adjoint(found)
        fine = all(
            x.dtype in (np.dtype("f8"), np.dtype("c16"))
            for x in (*found.values, *results)
            if moves(x)
        )
        complex_ = any(y.dtype.kind == "c" for y in results)
        free = complex_ and site.name in ("svd", "eigh")  # their vectors have free phases
        if fine and site.name not in STEPS and not free:
            check_differences(function_of(site), values, found, fixed=fixed(site))
    except DerivativeError as error:
        return [] if len(str(error)) > 40 else [told(error)]
    except Exception as error:
        return [f"{site} with {dtype}: {told(error)}"]
    return []


@pytest.mark.parametrize("name", SMOOTH)
def test_what_is_pulled_back_pairs_as_what_is_pushed(name: str, sites: Any) -> None:
    calls = chosen(sites.get(name, []), MOST)
    assert calls, f"no public function reaches {name}: add a call to tests/sites.py"
    found = [faults_at(site, dtype) for site in calls for dtype in (None, *DTYPES)]
    assert any(f is not None for f in found)
    assert [fault for faults in found for fault in faults or ()] == []


BROADCAST = [((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((1,), (0, 3)), ((2, 1, 3), (4, 1))]


@pytest.mark.parametrize("name", SMOOTH)
def test_cotangents_of_what_was_broadcast_are_summed(name: str, sites: Any) -> None:
    """Elementwise rows, of operands of all kinds of shapes that fit."""
    rule: Any = getattr(REGISTRY[name], "rule", None)
    if not isinstance(rule, str) or not set(rule) <= set(". ,->") or "," not in rule.split("->")[0]:
        pytest.skip("it is not elementwise, or has one operand")
    site = max(sites[name], key=lambda c: sum(map(moves, c.operands)))
    found = []
    for shapes in BROADCAST:
        operands = [
            np.ones(shapes[i % 2], x.dtype) if moves(x) or np.shape(x) else x
            for i, x in enumerate(site.operands)
        ]
        found.append(faults_at(Operation(name, site.params, tuple(operands)), None))
    assert any(f is not None for f in found)
    assert [fault for faults in found for fault in faults or ()] == []


def everywhere_alike(names: Sequence[str], sites: dict[str, list[Operation]]) -> dict[str, Any]:
    """Return both derivatives of a call of some rows, of operands that lie on all devices."""
    found: dict[str, Any] = {}
    for name in names:
        for number, site in enumerate(chosen(sites[name], MESHED)):
            rng, lay = seeded(name), seeded(name, "lay")
            values = filled(site, rng)
            try:
                both = both_ways(
                    function_of(site), values, rng, lambda x, lay=lay: laid_out(x, lay), fixed(site)
                )
            except MeshardError as error:
                found[f"{name} {number}"] = type(error).__name__
                continue
            found[f"{name} {number}"] = [*both.pushed, *both.pulled]
    return found


MESHED = 10**6 if ALL else 1
PLACED = {"flat", "sparse_times", "sparse_times_transposed", "sparse_sampled"}
HELD = [n for n in SMOOTH if n not in PLACED and (ALL or crc32(n.encode()) % 2)]
"""Rows that are tried on meshes: all but those whose parameters say how their operands lie."""


def test_layouts_and_processes_change_nothing(sites: Any) -> None:
    """On a mesh, unevenly split, as on one device; with the same bits in four processes."""
    found = alone(lambda: everywhere_alike(HELD, sites))
    for name in HELD:
        for number, site in enumerate(chosen(sites[name], MESHED)):
            rng = seeded(name)
            try:
                one = both_ways(function_of(site), filled(site, rng), rng, fixed=fixed(site))
            except MeshardError:
                continue
            split = found[f"{name} {number}"]
            if isinstance(split, str):
                assert split == "ShapeError", (site, split)  # operands of the wrong shapes
                continue
            for a, b in zip([*one.pushed, *one.pulled], split, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-8, atol=1e-11, err_msg=str(site))
    for process in simulate(4, 2, lambda: everywhere_alike(HELD, sites), deadline=120):
        same_bits(process, found)


def same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that two processes found the same."""
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        if isinstance(values, str):
            assert found[key] in (values, "NotAddressableError"), key
        elif found[key] != "NotAddressableError":
            for a, b in zip(found[key], values, strict=True):
                assert a.tobytes() == b.tobytes(), key


JUMPING = {"fmod", "remainder", "divmod", "round"}
"""Rows with jumps, which differences of a derivative may meet."""


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_have_derivatives(name: str, sites: Any) -> None:
    """What is pushed and what is pulled are functions of the operands, to which the laws apply."""
    (site,) = chosen(sites[name], 1)
    rng, stays = seeded(name, "second"), fixed(site)
    values, f = filled(site, rng), function_of(site)
    places = [i for i, x in enumerate(values) if moves(x) and i not in stays]
    results = [y for y in map(whole, f(*values)) if moves(y)]
    if not results or not places or not all(np.isfinite(y).all() for y in results):
        pytest.skip("it has no derivative here")
    tangents = tuple([drawn(values[i], rng) for i in places])
    cotangents = [drawn(y, rng) for y in results]

    def moving(*own: Any) -> list[Any]:
        every = list(values)
        for i, x in zip(places, own, strict=True):
            every[i] = x
        return [y for y in f(*every) if moves_type(y)]

    def pushed(*own: Any) -> list[Any]:
        return list(jvp(moving, own, tangents)[1])

    def pulled(*own: Any) -> list[Any]:
        return list(vjp(moving, *own)[1](cotangents))

    given = [values[i] for i in places]
    for second in (pushed, pulled):
        try:
            found = both_ways(second, given, seeded(name, "third"))
        except DerivativeError:
            continue
        check_adjoint(found)
        if name not in STEPS | JUMPING:
            check_differences(second, given, found)


# whole functions

PUBLIC = [f for f in public_functions() if ALL or crc32(f.name.encode()) % 3 == 0]
OF_GAMMA = "gamma loggamma beta chisquare f t dirichlet generalized_normal ball"
APART = {"lax.stop_gradient", "lax.reduce_precision", *(f"random.{n}" for n in OF_GAMMA.split())}
"""Functions whose derivative is not that of their values, on purpose."""
SYMMETRIC = {"cholesky", "eigh", "eigvalsh", "multivariate_normal"}


def placed(f: Public, x: Any) -> list[Any]:
    """Return arguments where a function is defined."""
    name = f.name.rsplit(".", 1)[-1]
    scale, more = {"acosh": (1, 1), "arccosh": (1, 1)}.get(name, (0.2, 0.1))
    low = np.sort if "interp" in name or "searchsorted" in name else np.asarray
    with np.errstate(all="ignore"):
        fine = all(np.isfinite(whole(y)).all() for y in f.function(*map(mnp.asarray, x)))
    return x if fine else [low(v * scale + more) for v in x]


def wrong(f: Public) -> list[str]:
    """Return what is wrong with the derivative of a public function, eager and jitted."""
    values = placed(f, f.values)
    symmetric = f.name.rsplit(".", 1)[-1] in SYMMETRIC

    def function(*xs: Any) -> list[Any]:
        square = [(x + x.T) / 2 if symmetric and x.ndim == 2 else x for x in xs]
        return [y for y in f.function(*square) if moves_type(y)]

    if not function(*map(mnp.asarray, values)):
        return []
    try:
        found = both_ways(function, values, seeded(f.name))
        check_adjoint(found)
        if f.name not in APART:
            check_differences(function, values, found)
        if crc32(f.name.encode()) % (1 if ALL else 2) == 0:
            jitted = both_ways(jit(function), values, seeded(f.name))
            for a, b in zip(
                found.pushed + found.pulled, jitted.pushed + jitted.pulled, strict=True
            ):
                np.testing.assert_allclose(b, a, rtol=1e-8, atol=1e-11)
    except (DerivativeError, ConcretizationError) as error:
        return [] if len(str(error)) > 40 else [told(error)]
    except Exception as error:
        return [f"{f.name}: {told(error)}"]
    return []


def test_public_functions_have_derivatives_both_ways() -> None:
    assert [fault for f in PUBLIC for fault in wrong(f)] == []


def test_the_laws_can_fail() -> None:
    """A wrong sign, and what was broadcast left unsummed in part, are found."""
    good, rng = DERIVATIVES["sin"], np.random.default_rng(0)
    values = [rng.normal(size=3)]

    def sine(x: Any) -> list[Any]:
        return [mnp.sin(x)]

    DERIVATIVES["sin"] = Partials((lambda y, x: mnp.cos(x) * -1,))
    try:
        found = both_ways(sine, values, rng)
    finally:
        DERIVATIVES["sin"] = good
    check_adjoint(found)
    with pytest.raises(AssertionError, match="differences give"):
        check_differences(sine, values, found)
    found.pulled[0][0] += 0.1
    with pytest.raises(AssertionError, match="but <J"):
        check_adjoint(found)


if __name__ == "__main__":
    SITES = all_sites()
    for row in SMOOTH:
        calls = chosen(SITES.get(row, []), MOST)
        found = [faults_at(site, dtype) for site in calls for dtype in (None, *DTYPES)]
        faults = [f for some in found for f in some or ()]
        print(row, len(calls), sum(f is not None for f in found), len(faults), flush=True)
        for fault in faults[:2]:
            print("   ", fault)
    for each in public_functions():
        for fault in wrong(each):
            print(fault, flush=True)
