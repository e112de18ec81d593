"""shard_map and collectives do what JAX's do: the same local values, and the same varying axes.

Each test hands JAX many small programs as one, since compiling is what costs there. Every value of
a program comes out stacked over all devices, so that each device's own is compared; and with it the
axes over which its type says that it varies. meshard runs in both worlds.
"""

import functools
import math
from collections.abc import Callable, Sequence
from itertools import permutations
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import meshard
import meshard.lax
import meshard.numpy
from meshard.sharding import Mesh, NamedSharding, P
from tests.worlds import everywhere

# Each example compiles; to shrink one takes minutes.
few = settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Shape = tuple[int, ...]
Axes = tuple[str, ...]


class Ours:
    """meshard, by the names that the programs use."""

    def __init__(self) -> None:
        self.lax, self.np, self.P, self.tree = meshard.lax, meshard.numpy, P, meshard.tree
        self.shard_map = meshard.shard_map
        self.NamedSharding, self.device_put = NamedSharding, meshard.device_put

    def varies(self, x: Any) -> list[str]:
        return sorted(meshard.typeof(x).vma)

    def mesh(self, sizes: Shape, names: Axes, order: Sequence[int] | None = None) -> Mesh:
        devices = np.array(meshard.devices(), object)[: math.prod(sizes)]
        return Mesh((devices if order is None else devices[list(order)]).reshape(sizes), names)


class Theirs:
    """JAX, likewise."""

    def __init__(self, jax: ModuleType) -> None:
        import jax.numpy
        from jax._src.lax.parallel import all_gather_invariant

        # The one name that the documentation of JAX lists and its module does not have.
        names = {**vars(jax.lax), "all_gather_invariant": all_gather_invariant}
        names["all_to_all"], names["psum_scatter"] = self._all_to_all, self._psum_scatter
        names["pvary"] = self._pvary
        self.lax = SimpleNamespace(**names)
        self.np, self.P, self.tree = jax.numpy, jax.P, jax.tree
        self.shard_map = jax.shard_map
        self.NamedSharding, self.device_put = jax.sharding.NamedSharding, jax.device_put
        self._jax = jax

    def _all_to_all(self, x: Any, axes: Any, split: int, concat: int, **options: Any) -> Any:
        # The compiler aborts the process on a dim that is counted from the end.
        return self._jax.lax.all_to_all(x, axes, split % x.ndim, concat % x.ndim, **options)

    def _psum_scatter(
        self, x: Any, axes: Any, *, scatter_dimension: int = 0, **options: Any
    ) -> Any:
        dim = scatter_dimension % x.ndim  # likewise
        return self._jax.lax.psum_scatter(x, axes, scatter_dimension=dim, **options)

    def _pvary(self, x: Any, axes: Any) -> Any:
        axes = (axes,) if isinstance(axes, str) else axes
        wanted = tuple(a for a in axes if a not in self.varies(x))
        return self._jax.lax.pcast(x, wanted, to="varying") if wanted else x

    def varies(self, x: Any) -> list[str]:
        kind = self._jax.typeof(x)  # JAX has changed where it says this
        return sorted(kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying)

    def mesh(self, sizes: Shape, names: Axes, order: Sequence[int] | None = None) -> Any:
        devices = np.array(self._jax.devices(), object)[: math.prod(sizes)]
        devices = devices if order is None else devices[list(order)]
        return self._jax.sharding.Mesh(devices.reshape(sizes), names)


def whole(x: Any) -> np.ndarray:
    """Return an array's value, also in a process that holds none of it."""
    everyone = Mesh(meshard.devices(), "all")
    return np.array(meshard.device_put(x, NamedSharding(everyone, P())))


Program = Callable[..., Any]
Where = tuple[Shape, Axes, tuple[int, ...] | None]


def stacked(
    side: Any,
    where: Where,
    programs: Sequence[Program],
    args: Sequence[Any],
    in_specs: Sequence[Any],
    manual: Axes,
    **options: Any,
) -> tuple[Any, list[list[str]]]:
    """Return what programs give on each device, and the axes over which their values vary."""
    mesh = side.mesh(*where)
    varies: list[list[str]] = []

    def body(*values: Any) -> Any:
        found = [program(side, *values) for program in programs]
        leaves = side.tree.leaves(found)
        varies[:] = [side.varies(x) for x in map(side.np.asarray, leaves)]
        return [side.np.asarray(x)[None] for x in leaves]

    mapped = side.shard_map(
        body, mesh=mesh, in_specs=tuple(in_specs), out_specs=side.P(manual), **options
    )
    return mapped, varies


def same_as_jax(
    jax: ModuleType,
    where: Where,
    programs: Sequence[Program],
    args: Sequence[Any],
    in_specs: Sequence[Sequence[Any]],
    *,
    exact: bool = True,
    manual: Axes | None = None,
    lies: Sequence[Any] | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Check that each program gives on each device what it gives in JAX.

    Only some axes may be manual, and the argument may lie by a spec of its own.
    """
    axes = where[1] if manual is None else manual
    if manual is not None:
        options["axis_names"] = set(manual)
    with jax.enable_x64(True):
        theirs = Theirs(jax)
        specs = [theirs.P(*s) for s in in_specs]
        mapped, expected_varies = stacked(theirs, where, programs, args, specs, axes, **options)
        expected = [np.asarray(x) for x in jax.jit(mapped)(*args)]

    def ours() -> Any:
        specs = [P(*s) for s in in_specs]
        side = Ours()
        mapped, varies = stacked(side, where, programs, args, specs, axes, **options)
        given = args
        if lies is not None:
            given = [meshard.device_put(args[0], NamedSharding(side.mesh(*where), P(*lies)))]
        return [whole(x) for x in mapped(*given)], [list(v) for v in varies]

    found, varies = everywhere(ours)
    assert len(found) == len(expected)
    for number, (mine, yours) in enumerate(zip(found, expected, strict=True)):
        assert mine.shape == yours.shape, number
        assert mine.dtype == yours.dtype, number
        close = {"rtol": 0} if exact else {"rtol": 1e-12, "atol": 1e-9}
        np.testing.assert_allclose(mine, yours, **close, err_msg=str(number))
        if options.get("check_vma", True):
            assert varies[number] == expected_varies[number], number
    return found


def values(shape: Shape, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    """Return small whole numbers: sums of them are exact in every dtype."""
    found = np.random.default_rng(seed).integers(-3, 4, shape)
    if np.dtype(dtype).kind == "u":
        found = abs(found)
    if np.dtype(dtype).kind == "c":
        return (found + 1j * found[::-1]).astype(dtype) if shape else np.asarray(found, dtype)
    return (found > 0) if np.dtype(dtype) == bool else np.asarray(found).astype(dtype)


WHERES: list[Where] = [
    ((8,), ("i",), None),
    ((8,), ("i",), (3, 1, 0, 2, 7, 6, 4, 5)),
    ((4, 2), ("i", "j"), None),
    ((4, 2), ("i", "j"), (3, 1, 0, 2, 7, 6, 4, 5)),
    ((2, 4), ("j", "i"), (7, 6, 5, 4, 3, 2, 1, 0)),
    ((2, 2, 2), ("i", "j", "k"), (5, 1, 4, 2, 7, 6, 0, 3)),
    ((4, 1, 2), ("i", "j", "k"), None),
    ((1,), ("i",), None),
]
wheres = pytest.mark.parametrize("where", WHERES, ids=lambda w: "x".join(map(str, w[0])))


def sets(names: Axes) -> list[Axes]:
    """Return single axes, and some tuples of them in every order."""
    found = [(a,) for a in names]
    if len(names) == 2:
        found += permutations(names)
    if len(names) == 3:
        found += [names[:2], names[:0:-1], (names[2], names[0], names[1])]
    return found


def name(axes: Axes) -> Any:
    return axes[0] if len(axes) == 1 else axes


def size(where: Where, axes: Sequence[str]) -> int:
    return math.prod(where[0][where[1].index(a)] for a in axes)


def reductions(where: Where) -> list[Program]:
    found: list[Program] = []
    for axes in sets(where[1]):
        a = name(axes)
        found += [
            lambda m, x, a=a: m.lax.psum(x, a),
            lambda m, x, a=a: m.lax.pmean(x, a),
            lambda m, x, a=a: m.lax.pmax(x, a),
            lambda m, x, a=a: m.lax.pmin(x, a),
            lambda m, x, a=a: m.lax.psum(m.lax.axis_index(a), a),
            lambda m, x, a=a: m.lax.axis_index(a) * m.lax.axis_size(a),
        ]
    return found


def gathers(where: Where, ndim: int) -> list[Program]:
    found: list[Program] = []
    for axes in sets(where[1]):
        a = name(axes)
        for dim in range(ndim + 1):
            found += [
                lambda m, x, a=a, d=dim: m.lax.all_gather(x, a, axis=d),
                lambda m, x, a=a, d=dim: m.lax.all_gather_invariant(x, a, axis=d),
            ]
        for dim in range(ndim):
            found += [
                lambda m, x, a=a, d=dim: m.lax.all_gather(x, a, axis=d, tiled=True),
                lambda m, x, a=a, d=dim: m.lax.all_gather_invariant(x, a, axis=d, tiled=True),
                lambda m, x, a=a, d=dim: m.lax.all_gather(x, a, axis=d - ndim, tiled=True),
            ]
        found.append(lambda m, x, a=a: m.lax.all_gather(x, a, axis=-1))
    return found


@wheres
@pytest.mark.parametrize("local", [(), (2, 0, 1)], ids=str)
def test_reductions_and_indices(jax, where, local):
    """Over one axis and over two, in both orders, of values that vary over all axes."""
    x = values((*where[0], *local))
    programs = [
        lambda m, x, p=p: p(m, x.reshape(local)) for p in (*reductions(where), lambda m, x: x)
    ]
    same_as_jax(jax, where, programs, [x], [where[1]])


@pytest.mark.parametrize("where", WHERES[1:2] + WHERES[3:], ids=lambda w: str(w[0]))
def test_gathers(jax, where):
    local = (2, 1, 3) if where[2] is None else (2, 3)
    x = values((*where[0], *local))
    programs = [lambda m, x, p=p: p(m, x.reshape(local)) for p in gathers(where, len(local))]
    programs += [lambda m, x, p=p: p(m, x.ravel()[0]) for p in gathers(where, 0)]
    same_as_jax(jax, where, programs, [x], [where[1]])


@pytest.mark.parametrize("where", [WHERES[1], WHERES[3], WHERES[6]], ids=lambda w: str(w[0]))
def test_scatters_and_exchanges(jax, where):
    """Each dim of a cell has the size of some product of axes, or a multiple of it."""
    for axes in sets(where[1]):
        n, a = size(where, axes), name(axes)
        local = (n, 2 * n, 3)
        programs: list[Program] = []
        for d in (0, -3):
            programs.append(lambda m, x, a=a, d=d: m.lax.psum_scatter(x, a, scatter_dimension=d))
            programs += [
                lambda m, x, a=a, d=d, c=c: m.lax.all_to_all(x, a, d, c) for c in range(3) if d == 0
            ]
            if d == 0:
                programs.append(lambda m, x, a=a, d=d: m.lax.pswapaxes(x, a, d))
        for d in (0, 1, -2):
            programs.append(
                lambda m, x, a=a, d=d: m.lax.psum_scatter(x, a, scatter_dimension=d, tiled=True)
            )
            programs += [
                lambda m, x, a=a, d=d, c=c: m.lax.all_to_all(x, a, d, c, tiled=True)
                for c in ((0, -1) if d else (0, 1))
            ]
        x = values((*where[0], *local))
        own = [lambda m, x, p=p, s=local: p(m, x.reshape(s)) for p in programs]
        same_as_jax(jax, where, own, [x], [where[1]])


@wheres
def test_permutations(jax, where):
    programs: list[Program] = []
    random = np.random.default_rng(1)
    for axes in sets(where[1]):
        if list(axes) != sorted(axes, key=where[1].index):
            continue  # JAX sorts the devices there, and so ignores the order of the axes
        n, a = size(where, axes), name(axes)
        shift = [(i, (i + 1) % n) for i in range(n)]
        some = [(int(s), int(d)) for s, d in random.permuted([range(n)] * 2, axis=1).T]
        programs += [
            lambda m, x, a=a, p=shift: m.lax.ppermute(x, a, p),
            lambda m, x, a=a, p=some[: n // 2]: m.lax.ppermute(x, a, p),
            lambda m, x, a=a: m.lax.ppermute(x, a, []),
            lambda m, x, a=a, p=shift[:-1]: m.lax.ppermute(x, a, perm=p),
        ]
        if len(axes) == 1:
            order = [int(i) for i in random.permutation(n)]
            programs.append(lambda m, x, a=a, p=order: m.lax.pshuffle(x, a, p))
    local = (2, 3)
    own = [lambda m, x, p=p: p(m, x.reshape(local)) for p in programs]
    same_as_jax(jax, where, own, [values((*where[0], *local))], [where[1]])


GROUPS = [[0, 2], [3, 1], [5, 4], [7, 6]]
UNEVEN = [[0, 5, 6], [1], [2, 3, 4, 7]]


@pytest.mark.parametrize("where", [WHERES[0], WHERES[1], WHERES[2]], ids=str)
def test_groups_within_an_axis(jax, where):
    """JAX takes groups without the check of varying axes only."""
    (n, *_), (a, *_), _ = where
    groups = GROUPS if n == 8 else GROUPS[:2]
    uneven = UNEVEN if n == 8 else [[3, 0, 2], [1]]
    single = [[i] for i in range(n)]
    local = (2, 4)
    programs: list[Program] = [
        lambda m, x, g=g, f=f: getattr(m.lax, f)(x, a, axis_index_groups=g)
        for f in ("psum", "pmax", "pmin")
        for g in (groups, uneven, single, [list(range(n))])
    ]
    for g in (groups, single):
        k = len(g[0])
        programs += [
            lambda m, x, g=g: m.lax.pmean(x, a, axis_index_groups=g),
            lambda m, x, g=g: m.lax.all_gather(x, a, axis=1, axis_index_groups=g),
            lambda m, x, g=g: m.lax.all_gather(x, a, axis=1, tiled=True, axis_index_groups=g),
            lambda m, x, g=g, k=k: m.lax.psum_scatter(
                x[:k], a, scatter_dimension=0, axis_index_groups=g
            ),
            lambda m, x, g=g: m.lax.psum_scatter(
                x, a, scatter_dimension=1, axis_index_groups=g, tiled=True
            ),
            lambda m, x, g=g, k=k: m.lax.all_to_all(x[:k], a, 0, 1, axis_index_groups=g),
            lambda m, x, g=g: m.lax.all_to_all(x, a, 1, 0, axis_index_groups=g, tiled=True),
            lambda m, x, g=g, k=k: m.lax.pswapaxes(x[:k], a, 0, axis_index_groups=g),
        ]
    x = values((*where[0], *local))
    own = [lambda m, x, p=p: p(m, x.reshape(local)) for p in programs]
    same_as_jax(jax, where, own, [x], [where[1]], check_vma=False)


DTYPES = [
    *("float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool", "complex64"),
    *("complex128", "float16", "bfloat16"),
]


def test_dtypes(jax):
    """All collectives on all dtypes; a bool has no order and a complex neither."""
    where = WHERES[3]
    local = (4, 2)
    programs: list[Program] = []
    args = []
    for number, dtype in enumerate(DTYPES):
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        args.append(values((*where[0], *local), dtype, number))
        ops: list[Program] = [
            # JAX counts bools in 32 bits, NumPy in 64.
            lambda m, x: m.lax.psum(x, ("i", "j")).astype(np.int32 if x.dtype == bool else x.dtype),
            lambda m, x: m.lax.all_gather(x, "j"),
            lambda m, x: m.lax.all_to_all(x, "i", 0, 1),
            lambda m, x: m.lax.ppermute(x, "i", [(0, 1), (2, 0)]),
        ]
        if dtype.kind not in "biu":  # the mean of integers has NumPy's dtype
            ops.append(lambda m, x: m.lax.pmean(x, "i"))
        if dtype.kind != "b":
            ops += [
                lambda m, x: m.lax.psum_scatter(x, "i"),
                lambda m, x: m.lax.psum_scatter(x, "j", scatter_dimension=1, tiled=True),
            ]
        if dtype.kind != "c":
            ops += [lambda m, x: m.lax.pmax(x, "i"), lambda m, x: m.lax.pmin(x, ("j", "i"))]
        programs += [lambda m, *all, p=p, n=number: p(m, all[n].reshape(local)) for p in ops]
    same_as_jax(jax, where, programs, args, [("i", "j")] * len(args))


def test_values_that_do_not_vary(jax):
    """What is the same along an axis counts once for each device along it."""
    where = WHERES[2]
    row = values((4, 6), seed=3)
    programs: list[Program] = []
    for a in ("i", "j", ("i", "j"), ("j", "i")):
        programs += [
            lambda m, x, c, w, a=a: m.lax.psum(m.lax.pcast(w, a, to="varying"), a),
            lambda m, x, c, w, a=a: m.lax.psum(m.lax.pvary(x, a), a),
            lambda m, x, c, w, a=a: m.lax.psum(m.lax.pvary(x * 2 + c.sum(), a), a),
            lambda m, x, c, w, a=a: m.lax.pmean(m.lax.pvary(x, a), a),
            lambda m, x, c, w, a=a: m.lax.pmax(m.lax.pvary(c, a), a),
            lambda m, x, c, w, a=a: m.lax.all_gather(m.lax.pvary(x, a), a),
            lambda m, x, c, w, a=a: m.lax.all_gather(x, a, tiled=True),
            lambda m, x, c, w, a=a: m.lax.psum(x if len(a) == 1 else w, a),
            lambda m, x, c, w, a=a: m.lax.pmean(c if len(a) == 1 else w, a),
            lambda m, x, c, w, a=a: m.lax.pmin(w, a),
            lambda m, x, c, w, a=a: m.lax.psum_scatter(
                w.ravel()[: 8 if len(a) > 1 else m.lax.axis_size(a)], a, scatter_dimension=0
            ),
            lambda m, x, c, w, a=a: m.lax.all_to_all(w.reshape(8, 3), a, 0, 1, tiled=True),
            lambda m, x, c, w, a=a: m.lax.ppermute(w, a, [(0, 1)]) if len(a) == 1 else w,
            lambda m, x, c, w, a=a: m.lax.psum(1, a) + m.lax.psum(2.5, a),
            lambda m, x, c, w, a=a: m.lax.pmean(3, a),
            lambda m, x, c, w, a=a: m.lax.pmin(c, a),
        ]
    args = [row, np.arange(8.0), values((4, 6), seed=4)]
    same_as_jax(jax, where, programs, args, [("i",), ("j",), ()])


def test_trees_and_operations_vary_as_in_jax(jax):
    where = WHERES[2]
    x, y = values((4, 6), seed=3), values((6, 4), seed=4)
    programs: list[Program] = [
        lambda m, x, y: m.lax.psum({"a": x, "b": (y, [x + 1])}, "i"),
        lambda m, x, y: m.lax.pmean((x + y.sum(), y * x.sum()), ("i", "j")),
        lambda m, x, y: m.lax.pmax((x, y), ("j", "i")),
        lambda m, x, y: m.lax.all_gather([x, y], "j"),
        lambda m, x, y: m.lax.ppermute((x, (y,)), "i", [(0, 3)]),
        lambda m, x, y: x @ m.np.ones((6, 2)) + y.sum(),
        lambda m, x, y: m.np.zeros(3) + 1,
        lambda m, x, y: (m.np.zeros_like(x), m.np.full_like(y, 2, shape=(3,)), m.np.ones_like(3)),
        lambda m, x, y: m.np.where(m.lax.axis_index("i") == 2, x.sum(), y.max()),
        lambda m, x, y: m.np.concatenate([x.ravel(), y.ravel()]),
        lambda m, x, y: x.T.reshape(-1)[::-1],
        lambda m, x, y: m.lax.axis_index(("j", "i")) + m.lax.axis_index("i"),
        lambda m, x, y: m.lax.psum(x * m.lax.axis_index("j"), "j"),
        lambda m, x, y: m.lax.psum(m.lax.psum(x, "i") * m.lax.axis_index("j"), "j"),
        lambda m, x, y: m.np.sort(y, axis=0),
        lambda m, x, y: (x > 0).any() | (y > 0).all(),
        lambda m, x, y: m.lax.pvary(m.lax.psum(x, "i"), ("i", "j")) + 0,
        lambda m, x, y: m.np.arange(4) * m.lax.axis_size("i"),
    ]
    same_as_jax(jax, where, programs, [x, y], [("i",), (None, "j")])


# specs, placements, closures, axes that stay automatic, nesting


def whole_as_in_jax(jax: ModuleType, *programs: Callable[[Any], Any], exact: bool = True) -> None:
    """Check that whole programs, shard_map and all, return the same arrays."""
    with jax.enable_x64(True):
        theirs = Theirs(jax)

        run = jax.jit(lambda: [theirs.tree.leaves(program(theirs)) for program in programs])
        expected = [[np.asarray(x) for x in found] for found in run()]

    def ours() -> Any:
        side = Ours()
        return [[whole(x) for x in side.tree.leaves(program(side))] for program in programs]

    for number, (mine, yours) in enumerate(zip(everywhere(ours), expected, strict=True)):
        for a, b in zip(mine, yours, strict=True):
            assert a.shape == b.shape, number
            assert a.dtype == b.dtype, number
            np.testing.assert_allclose(a, b, 0 if exact else 1e-12, err_msg=str(number))


X = values((8, 8, 4), seed=7)
SPECS = [
    *((("i",),), ((("i", "j"),),), ((("j", "i"),),), ((None, "j"),), (("j", "i"),), ((),)),
    *(((None, ("j", "i")),), (("i", None, "j"),), ((None, None, "j"),), (("j", None, "i"),)),
]


@pytest.mark.parametrize("where", [WHERES[2], WHERES[3], WHERES[5], WHERES[6]], ids=str)
def test_specs_in_and_out(jax, where):
    """What goes in and out by specs that differ is told apart by each device's position."""

    def program(m, spec_in, spec_out):
        names = [a for e in spec_in if e for a in ((e,) if isinstance(e, str) else e)]

        def body(x):
            return x + 1000 * m.lax.axis_index(tuple(names)) if names else x * 2

        missing = [a for a in names if a not in np.ravel([*map(str, spec_out)]).tolist()]
        out = (*spec_out, *[None] * (2 - len(spec_out)), tuple(missing) or None)
        if len(out) > 3 or any(a in str(spec_out) for a in missing):
            out = spec_in
        return m.shard_map(body, mesh=m.mesh(*where), in_specs=m.P(*spec_in), out_specs=m.P(*out))(
            X
        )

    programs = [
        functools.partial(program, spec_in=i, spec_out=o) for (i,) in SPECS for (o,) in SPECS[:5]
    ]
    whole_as_in_jax(jax, *programs)


def test_however_arguments_lie(jax):
    """Placed elsewhere, in another mesh, on one device, from the host, numbers and lists."""
    mesh, other = WHERES[2], WHERES[3]

    def run(m, x):
        return m.shard_map(
            lambda x: x.sum(0, keepdims=True) + m.lax.axis_index("i"),
            mesh=m.mesh(*mesh),
            in_specs=m.P("i", None, "j"),
            out_specs=m.P("i", None, "j"),
        )(x)

    def placed(m, where, *spec):
        if isinstance(m, Theirs):
            return X  # JAX refuses the same devices in another order, and is slow to place
        return m.device_put(X, m.NamedSharding(m.mesh(*where), m.P(*spec)))

    def run_scalar(m, x):
        return m.shard_map(
            lambda x, y: (x * 2, y + x),
            mesh=m.mesh(*mesh),
            in_specs=(m.P(), m.P("j")),
            out_specs=(m.P(), m.P("j")),
        )(x, np.arange(4.0))

    whole_as_in_jax(
        jax,
        *(
            functools.partial(lambda m, w, s: run(m, placed(m, w, *s)), w=w, s=s)
            for w in (mesh, other, WHERES[4])
            for s in ((), ("i",), (("j", "i"),), (None, "j", "i"), ("i", None, "j"))
        ),
        lambda m: run(m, X),
        lambda m: run(m, m.np.asarray(X) * 2),
        lambda m: run_scalar(m, 3.0),
        lambda m: run_scalar(m, np.float64(2)),
        lambda m: run_scalar(m, m.np.float64(2)),
    )


def test_closures(jax):
    """A body may use arrays from outside, however they lie: each device sees all of them."""
    mesh = WHERES[2]

    def program(m, make):
        outside = make(m)
        return m.shard_map(
            lambda x: (x @ outside[:4] + outside.sum(), m.lax.psum(x.sum() * outside, ("i", "j"))),
            mesh=m.mesh(*mesh),
            in_specs=m.P("i", "j"),
            out_specs=(m.P("i", "j"), m.P()),
        )(np.arange(64.0).reshape(8, 8))

    weights = values((8, 4), seed=9)
    whole_as_in_jax(
        jax,
        lambda m: program(m, lambda m: weights),
        lambda m: program(m, lambda m: m.np.asarray(weights)),
        lambda m: program(m, lambda m: m.np.asarray(weights) * 2 + 1),
        lambda m: program(
            m, lambda m: m.device_put(weights, m.NamedSharding(m.mesh(*mesh), m.P("i", "j")))
        ),
        lambda m: program(
            m,
            lambda m: m.device_put(weights, m.NamedSharding(m.mesh(*mesh), m.P(("j", "i")))),
        ),
        lambda m: program(
            m, lambda m: m.device_put(weights, m.NamedSharding(m.mesh(*mesh), m.P()))
        ),
    )


def partly(m: Any, body: Callable[..., Any], ins: Any, outs: Any, manual: set[str], where: Where):
    return m.shard_map(body, mesh=m.mesh(*where), in_specs=ins, out_specs=outs, axis_names=manual)


def test_some_axes_stay_automatic(jax):
    """Along the others operations are global: the local shape is that of all their devices."""
    where, x = WHERES[2], values((8, 6), seed=1)
    w = values((6, 4), seed=2)

    def run(m, body, spec=("i",), out=("i",), manual="i", put=(None, "j"), data=x):
        a = m.device_put(data, m.NamedSharding(m.mesh(*where), m.P(*put)))
        return partly(m, functools.partial(body, m), m.P(*spec), m.P(*out), {manual}, where)(a)

    bodies: list[Callable[..., Any]] = [
        lambda m, x: x * 2 + m.lax.axis_index("i"),
        lambda m, x: x @ w,
        lambda m, x: (x @ w) @ w.T + x,
        lambda m, x: x.sum(1, keepdims=True) + m.np.zeros((2, 1)),
        lambda m, x: x.sum(0, keepdims=True) + m.np.arange(6.0),
        lambda m, x: x.T.reshape(4, 3),
        lambda m, x: x.reshape(3, 4).T.reshape(-1),
        lambda m, x: m.np.concatenate([x, x * m.lax.axis_index("i"), m.np.ones((2, 6))], axis=0),
        lambda m, x: x[:, ::-1][:, 1:4],
        lambda m, x: m.lax.psum(x, "i")[None] + m.lax.axis_index("i"),
        lambda m, x: m.lax.pmax(x * m.lax.axis_index("i"), "i") + x,
        lambda m, x: m.lax.all_gather(x, "i", axis=1),
        lambda m, x: m.lax.all_gather(x, "i", tiled=True, axis=1),
        lambda m, x: m.lax.all_gather(x, "i", tiled=True, axis=0),
        lambda m, x: m.lax.ppermute(x, "i", [(0, 2), (1, 3), (3, 0)]),
        lambda m, x: m.lax.all_to_all(m.np.tile(x, (2, 2)), "i", 0, 1),
        lambda m, x: m.lax.all_to_all(m.np.tile(x, (2, 2)), "i", 1, 0, tiled=True),
        lambda m, x: m.lax.psum_scatter(m.np.tile(x, (2, 2)), "i", scatter_dimension=0),
        lambda m, x: m.lax.psum_scatter(m.np.tile(x, (2, 2)), "i", scatter_dimension=1, tiled=True),
        lambda m, x: m.lax.pmean(x, "i")[None].repeat(2, 0) * m.np.full_like(x, 3),
        lambda m, x: m.np.sort(x, 1) + m.np.cumsum(x, 1),
        lambda m, x: m.np.where(m.lax.axis_index("i") % 2 == 0, x, -x),
    ]
    programs = [
        functools.partial(run, body=b, put=p) for b in bodies for p in ((None, "j"), (("j", "i"),))
    ]
    programs += [
        functools.partial(run, body=lambda m, x: m.lax.psum(x, "i"), out=()),
        functools.partial(
            run,
            body=lambda m, x: x * m.lax.axis_index("j"),
            manual="j",
            spec=(None, "j"),
            out=(None, "j"),
            put=("i",),
        ),
        functools.partial(
            run, body=lambda m, x: m.lax.psum(x, "j"), manual="j", spec=("j",), out=(), put=("i",)
        ),
    ]
    whole_as_in_jax(jax, *programs)


def test_nested(jax):
    where, x = WHERES[2], values((8, 6), seed=1)

    def program(m, inner_spec, inner_out, put, first="i"):
        second = "j" if first == "i" else "i"

        def inner(y, z):
            both = m.lax.axis_index(("i", "j")) + m.lax.axis_index(("j", "i"))
            return y * both + m.lax.psum(y, second) + z

        def outer(x):
            mapped = m.shard_map(
                inner, in_specs=(inner_spec(m), m.P()), out_specs=inner_out(m), axis_names={second}
            )
            y = x * 2 + m.lax.axis_index(first)
            z = mapped(y, m.lax.psum(x.sum(), first))
            return z + m.lax.pmax(z, first)

        mesh = m.mesh(*where)
        a = m.device_put(x, m.NamedSharding(mesh, m.P(*put)))
        return m.shard_map(
            outer, mesh=mesh, in_specs=m.P(first), out_specs=m.P(first), axis_names={first}
        )(a)

    whole_as_in_jax(
        jax,
        *(
            functools.partial(
                program,
                inner_spec=lambda m, s=s: m.P(*s),
                inner_out=lambda m, s=s: m.P(*s),
                put=p,
                first=f,
            )
            for f, s in (("i", (None, "j")), ("i", ("j",)), ("j", ("i",)))
            for p in ((), ("i", "j"), ("j",), (("j", "i"),))
        ),
    )


def test_forms_of_the_call(jax):
    """Positional, a decorator, a method, a mesh from context, specs for trees and by prefix."""
    where = WHERES[2]
    data = {"w": values((8, 4)), "b": (np.arange(4.0), values((4,), seed=2))}

    def positional(m):
        mesh = m.mesh(*where)
        return m.shard_map(lambda x: x + 1, mesh=mesh, in_specs=m.P("i"), out_specs=m.P("i"))(
            np.arange(4.0)
        )

    def decorator(m):
        @functools.partial(
            m.shard_map, mesh=m.mesh(*where), in_specs=(m.P("i"), m.P()), out_specs=m.P("i")
        )
        def f(x, y):
            return x @ y

        return f(values((8, 4)), values((4, 2)))

    def method(m):
        class Model:
            scale = 3.0

            @functools.partial(
                m.shard_map, mesh=m.mesh(*where), in_specs=(None, m.P("i")), out_specs=m.P("i")
            )
            def unbound(self, x):
                return x

            def step(self, x):
                return m.lax.psum(x * self.scale, "i")

        model = Model()
        return m.shard_map(model.step, mesh=m.mesh(*where), in_specs=m.P("i"), out_specs=m.P())(
            np.arange(8.0)
        )

    def prefix(m):
        return m.shard_map(
            lambda t, s: {"out": t, "sum": m.lax.psum(t["b"][0].sum() * s, "i")},
            mesh=m.mesh(*where),
            in_specs=({"w": m.P("i", "j"), "b": m.P("i")}, m.P()),
            out_specs={"out": {"w": m.P("i", "j"), "b": (m.P("i"), m.P("i"))}, "sum": m.P()},
        )(data, 2.0)

    def single(m):
        return m.shard_map(
            lambda t: (t["w"] * 2, t["b"][0]),
            mesh=m.mesh(*where),
            in_specs=m.P("i"),
            out_specs=m.P("i"),
        )(data)

    def no_arguments(m):
        return m.shard_map(
            lambda: m.lax.axis_index(("j", "i"))[None] * 1.0,
            mesh=m.mesh(*where),
            in_specs=(),
            out_specs=m.P(("i", "j")),
        )()

    def with_none(m):
        return m.shard_map(
            lambda x, y: (x, None, {}),
            mesh=m.mesh(*where),
            in_specs=(m.P("i"), None),
            out_specs=(m.P("i"), None, m.P()),
        )(np.arange(4.0), None)

    def unchecked(m):
        return m.shard_map(
            lambda x: m.lax.all_gather(x, "i", tiled=True),
            mesh=m.mesh(*where),
            in_specs=m.P("i"),
            out_specs=m.P(),
            check_vma=False,
        )(np.arange(8.0))

    def inferred(m):
        x = m.device_put(np.arange(8.0), m.NamedSharding(m.mesh(*where), m.P("i")))
        return m.shard_map(
            lambda x: x[::-1], mesh=m.mesh(*where), in_specs=m.P("i"), out_specs=m.P("i")
        )(x)

    whole_as_in_jax(
        jax,
        positional,
        decorator,
        method,
        prefix,
        single,
        no_arguments,
        with_none,
        unchecked,
        inferred,
    )


# random chains


@st.composite
def chains(
    draw: st.DrawFn, automatic: bool = False
) -> tuple[Where, Shape, list[list[tuple[Any, ...]]], Axes]:
    """Return a mesh, a local shape, programs of a few steps each, and the axes they run along."""
    sizes = draw(
        st.sampled_from(
            [(4, 2), (3, 2), (2, 3), (1, 4), (2, 2, 2), (2, 1, 3), (1, 1)]
            + [(8,), (3,), (5,)] * (not automatic)
        )
    )
    count = math.prod(sizes)
    order = tuple(draw(st.permutations(range(count))))
    names = tuple(draw(st.permutations("ijk"))[: len(sizes)])
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4)))
    where = (sizes, names, order)
    manual = names
    if automatic:
        some = draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
        manual = tuple(a for a in names if a in some)
    programs = []
    for _ in range(6):
        now, steps = shape, []
        for _ in range(draw(st.integers(1, 4))):
            step, now = draw(steps_from(where, manual, now))
            steps.append(step)
        programs.append(steps)
    return where, shape, programs, manual


@st.composite
def steps_from(
    draw: st.DrawFn, where: Where, manual: Axes, shape: Shape
) -> tuple[tuple[Any, ...], Shape]:
    """Return one step that a local shape allows, and the shape after it."""
    axes = tuple(draw(st.permutations(manual)))[: draw(st.integers(1, len(manual)))]
    n, a, ndim = size(where, axes), name(axes), len(shape)
    dim = draw(st.integers(0, max(ndim - 1, 0)))
    other = draw(st.integers(0, max(ndim - 1, 0)))
    choices: list[tuple[tuple[Any, ...], Shape]] = [
        (("psum", a), shape),
        (("pmax", a), shape),
        (("pmean", a), shape),
        (("index", a), shape),
        (("transpose",), shape[::-1]),
        (("flat",), (math.prod(shape),)),
    ]
    if math.prod(shape) * n <= 5000:
        choices.append((("all_gather", a, dim, False), (*shape[:dim], n, *shape[dim:])))
        choices.append((("all_gather_invariant", a, dim, False), (*shape[:dim], n, *shape[dim:])))
    if len(axes) == 1:
        pairs = draw(st.permutations(range(n))), draw(st.permutations(range(n)))
        some = [*zip(*pairs, strict=True)][: draw(st.integers(0, n))]
        choices.append((("ppermute", a, some), shape))
    if ndim:
        gathered = (*shape[:dim], n * shape[dim], *shape[dim + 1 :])
        if math.prod(gathered) <= 5000:
            choices.append((("all_gather", a, dim, True), gathered))
        choices.append((("sum", dim), (*shape[:dim], *shape[dim + 1 :])))
        if shape[dim] % n == 0:
            less = (*shape[:dim], shape[dim] // n, *shape[dim + 1 :])
            choices.append((("psum_scatter", a, dim, True), less))
            moved = [*less]
            moved[other] *= n
            choices.append((("all_to_all", a, dim, other, True), tuple(moved)))
        if shape[dim] == n:
            rest = (*shape[:dim], *shape[dim + 1 :])
            choices.append((("psum_scatter", a, dim, False), rest))
            choices.append(
                (("all_to_all", a, dim, other, False), (*rest[:other], n, *rest[other:]))
            )
    return draw(st.sampled_from(choices))


def follow(m: Any, x: Any, steps: Sequence[tuple[Any, ...]]) -> Any:
    """Run a chain; sums go over what varies, as JAX demands."""
    for what, *rest in steps:
        if what in ("psum", "pmean", "psum_scatter"):
            x = m.lax.pvary(x, rest[0])
        if what in ("psum", "pmax", "pmean"):
            x = getattr(m.lax, what)(x, rest[0])
        elif what == "index":
            x = x * 2 + m.lax.axis_index(rest[0])
        elif what == "transpose":
            x = x.T
        elif what == "flat":
            x = x.reshape(-1)
        elif what == "sum":
            x = x.sum(rest[0])
        elif what.startswith("all_gather"):
            x = getattr(m.lax, what)(x, rest[0], axis=rest[1], tiled=rest[2])
        elif what == "ppermute":
            x = m.lax.ppermute(x, rest[0], rest[1])
        elif what == "psum_scatter":
            x = m.lax.psum_scatter(x, rest[0], scatter_dimension=rest[1], tiled=rest[2])
        else:
            x = m.lax.all_to_all(x, rest[0], rest[1], rest[2], tiled=rest[3])
    return x


@few
@given(chains())
def test_chains_of_collectives(jax, chain):
    where, shape, programs, _ = chain
    x = values((*where[0], *shape))
    own = [lambda m, x, s=s: follow(m, x.reshape(shape), s) for s in programs]
    same_as_jax(jax, where, own, [x], [where[1]], exact=False)


@few
@given(chains(automatic=True), st.data())
def test_chains_where_axes_stay_automatic(jax, chain, data):
    """The same, with values that are split along the other axes as well."""
    where, shape, programs, manual = chain
    x = values((*(size(where, (a,)) for a in manual), *shape))
    spec: list[Any] = [*manual]
    free = [a for a in where[1] if a not in manual]
    for n in shape:
        fits = [a for a in free if n % size(where, (a,)) == 0]
        spec.append(data.draw(st.sampled_from([None, *fits])))
        free = [a for a in free if a != spec[-1]]
    own = [lambda m, x, s=s: follow(m, x.reshape(shape), s) for s in programs]
    same_as_jax(jax, where, own, [x], [manual], exact=False, manual=manual, lies=spec)
