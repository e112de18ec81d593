"""Results are laid out on the devices of the operands: every public function, in both worlds.

Each function of the public modules and each method of arrays is called with operands that span
all devices. Whatever calls succeed must give arrays that are committed to all of these devices,
and in two processes the same types and bits as in one; there a call may be refused only because it
would have to bring a whole array together.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, nn, random
from meshard.errors import NotAddressableError
from meshard.sharding import NamedSharding, P
from meshard.testing import simulate
from tests.test_api import collectives
from tests.worlds import alone, mesh, put

MODULES = {
    "numpy": mnp,
    "linalg": mnp.linalg,
    "fft": mnp.fft,
    "lax": lax,
    "nn": nn,
    "random": random,
    "Array": meshard.Array,
}

MADE_OF_NUMBERS = (
    "numpy.arange numpy.diag_indices numpy.empty numpy.eye numpy.fromfunction numpy.identity "
    "numpy.indices numpy.mask_indices numpy.ones numpy.tri numpy.tril_indices numpy.triu_indices "
    "numpy.zeros "
    "fft.fftfreq fft.rfftfreq lax.broadcasted_iota lax.iota random.PRNGKey random.key "
    "random.key_dtype numpy.from_dlpack numpy.broadcast_shapes lax.broadcast_shapes "
    "lax.conv_dimension_numbers lax.padtype_to_pads lax.empty "
    "numpy.full lax.full numpy.isdtype numpy.promote_types numpy.vectorize numpy.kaiser "
    "numpy.bartlett numpy.blackman numpy.hamming numpy.hanning numpy.diag_indices_from "
    "numpy.tril_indices_from numpy.triu_indices_from numpy.writeable"
)
"""Functions of shapes, dtypes and numbers, which do not say where the result lies.

Only the value that `full` repeats says it: that is a case of its own.
"""

OF_ONE_DEVICE = "Array.addressable_data Array.delete Array.unsafe_buffer_pointer Array.device"
"""Methods that are about one shard, or end the array's life."""

A_RESULT_PER_OPERAND = {
    *("numpy.meshgrid", "numpy.broadcast_arrays"),
    *("numpy.atleast_1d", "numpy.atleast_2d", "numpy.atleast_3d"),
}


def _operands() -> dict[str, Any]:
    matrix = np.random.default_rng(0).normal(size=(4, 4)) + 4 * np.eye(4)
    everywhere = NamedSharding(mesh(), P())
    return {
        "m": put(matrix, "i"),
        "h": put(matrix @ matrix.T, "j"),
        "c": put(matrix + 1j, None, "i"),
        "v": put(np.linspace(0.1, 0.9, 5), "i", uneven="balanced"),
        "i": put(np.array([3, 0, 2, 1, 3]), "i", uneven="balanced"),
        "w": put(np.arange(16).reshape(4, 4) % 4, "i"),
        "b": put(np.array([True, False, True, True, False]), "i", uneven="balanced"),
        "s": meshard.device_put(0.5, everywhere),
        "n": meshard.device_put(2, everywhere),
        "k": meshard.device_put(random.key(0), everywhere),
    }


TEXTS = (
    "m; c; v; i; b; s; k; w; m m; v v; i i; b b; m m m; v v v; b v v; v i; k v; k s s; "
    "k n s; s s 3; m 0; i 2; m 0 1; m (1,0); w w 0; m (4,4); v float32; k (3,)"
)


def _calls(has: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    literals = {"0": 0, "1": 1, "2": 2, "3": 3, "float32": "float32"}
    tuples = {"(1,0)": (1, 0), "(4,4)": (4, 4), "(3,)": (3,)}
    every = {**literals, **tuples, **has}
    return [(text, [every[w] for w in text.split()]) for text in TEXTS.split("; ")]


MOST = 4
"""How many calls of a function that succeed in one process are tried in two."""

SPECIAL: dict[str, Callable[..., Any]] = {
    "numpy.cross": lambda m, **_: mnp.cross(m[:, :3], m[:, 1:]),
    "linalg.cross": lambda m, **_: mnp.linalg.cross(m[:, :3], m[:, 1:]),
    "numpy.dsplit": lambda m, **_: mnp.dsplit(m[None], 2),
    "numpy.full": lambda s, **_: mnp.full((2, 3), s),
    "numpy.histogram": lambda v, s, i, **_: [
        mnp.histogram(v, 3, (0, s)),
        mnp.histogram(v, mnp.sort(i), weights=v),
        mnp.histogram(mnp.zeros(3), mnp.unique(i), density=True),
        mnp.histogram(mnp.zeros(3), 2, (0, s)),
        mnp.histogram_bin_edges(mnp.zeros(3), 2, (0, s)),
    ],
    "numpy.apply_along_axis": lambda m, **_: mnp.apply_along_axis(lambda v: v * 2, 0, m),
    "numpy.apply_over_axes": lambda m, **_: mnp.apply_over_axes(mnp.sum, m, (0, 1)),
    "numpy.block": lambda m, **_: mnp.block([[m, m], [m, m]]),
    "numpy.fill_diagonal": lambda m, **_: mnp.fill_diagonal(m, 1, inplace=False),
    "numpy.place": lambda m, **_: mnp.place(m, m > 1, [1, 2], inplace=False),
    "numpy.put": lambda m, i, **_: mnp.put(m, i, 1.5, inplace=False),
    "numpy.put_along_axis": lambda m, w, **_: mnp.put_along_axis(m, w, 1.5, 0, inplace=False),
    "numpy.insert": lambda m, v, **_: [mnp.insert(m, 1, 2, 0), mnp.insert(v, [1, 2], v[:2])],
    "numpy.packbits": lambda b, **_: mnp.packbits(b),
    "numpy.unpackbits": lambda i, **_: mnp.unpackbits(i.astype("uint8")),
    "numpy.piecewise": lambda v, b, **_: mnp.piecewise(v, [b], [lambda x: -x]),
    "numpy.polyfit": lambda v, **_: mnp.polyfit(v, v, 1),
    "numpy.ravel_multi_index": lambda i, **_: mnp.ravel_multi_index((i, i), (4, 4)),
    "numpy.histogramdd": lambda m, **_: mnp.histogramdd(m[:, :2], 2, ((0, 1), (0, 1))),
    "linalg.tensorsolve": lambda m, v, **_: mnp.linalg.tensorsolve(m, v[:4]),
    "linalg.tensorinv": lambda m, **_: mnp.linalg.tensorinv(m, 1),
    "Array.choose": lambda w, v, **_: (w % 2).choose([v[:4], v[1:]]),
    "Array.compress": lambda m, b, **_: m.compress(b[:4], 0),
    "Array.partition": lambda m, **_: m.partition(1),
    "Array.argpartition": lambda m, **_: m.argpartition(1),
    "Array.flat": lambda m, **_: m.flat,
    "numpy.array_equal": lambda v, m, **_: [mnp.array_equal(v, m), mnp.array_equal(m, [1])],
    "numpy.unravel_index": lambda w, **_: mnp.unravel_index(w, (2, 2)),
    "numpy.repeat": lambda v, i, **_: mnp.repeat(v, i),
    "numpy.select": lambda b, v, **_: mnp.select([b, ~b], [v, -v], 0),
    "numpy.nonzero": lambda c, w, **_: [mnp.nonzero(c), mnp.nonzero(w, size=3)],
    "Array.nonzero": lambda c, **_: c.nonzero(),
    "Array.at": lambda w, b, v, **_: [w.at[1:3].add(1), v.at[b].set(0), w[w > 1], v[b], w.T, w.mT],
    "Array.to_device": lambda m, **_: m.to_device(NamedSharding(mesh(), P("j"))),
    "linalg.multi_dot": lambda m, **_: mnp.linalg.multi_dot([m, m, m]),
    "lax.associative_scan": lambda m, **_: lax.associative_scan(lambda x, y: x + y, m),
    "lax.map": lambda m, **_: lax.map(lambda x: x + 1, m),
    "lax.pad": lambda m, s, **_: lax.pad(m, s, ((1, 0, 1), (0, -1, 0))),
    "lax.split": lambda m, **_: lax.split(m, (1, 3)),
    "lax.argmax": lambda m, **_: lax.argmax(m, 0, np.int32),
    "lax.argmin": lambda m, **_: lax.argmin(m, 1, np.int32),
    "lax.broadcast_in_dim": lambda v, **_: lax.broadcast_in_dim(v, (2, 5), (1,)),
    "lax.cond": lambda m, **_: lax.cond(m[0, 0] > 0, lambda x: x, lambda x: -x, m),
    "lax.switch": lambda n, m, **_: lax.switch(n, [lambda x: x, lambda x: -x], m),
    "lax.approx_max_k": lambda m, **_: lax.approx_max_k(m, 2),
    "lax.approx_min_k": lambda m, **_: lax.approx_min_k(m, 2),
    "lax.broadcast_to_rank": lambda m, **_: lax.broadcast_to_rank(m, 3),
    "lax.conv": lambda m, **_: lax.conv(m[None], m[:, :, None], (1,), "SAME"),
    "lax.conv_general_dilated": lambda m, **_: lax.conv_general_dilated(
        m[None], m[:, :, None], (1,), "VALID"
    ),
    "lax.conv_general_dilated_patches": lambda m, **_: lax.conv_general_dilated_patches(
        m[None], (2,), (1,), "SAME"
    ),
    "lax.conv_transpose": lambda m, **_: lax.conv_transpose(m[None], m[None], (2,), "SAME"),
    "lax.conv_with_general_padding": lambda m, **_: lax.conv_with_general_padding(
        m[None], m[:, :, None], (1,), [(1, 1)], None, None
    ),
    "lax.fft": lambda c, **_: lax.fft(c, "FFT", (4,)),
    "lax.gather": lambda m, i, **_: lax.gather(
        m, i[:, None], lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 4)
    ),
    "lax.platform_dependent": lambda m, **_: lax.platform_dependent(m, cpu=lambda x: -x),
    "lax.ragged_dot": lambda m, **_: lax.ragged_dot(m, m[None], np.array([3])),
    "lax.reduce_window": lambda m, **_: lax.reduce_window(m, 0.0, lax.add, (2, 1)),
    "lax.rng_bit_generator": lambda w, **_: lax.rng_bit_generator(w[0].astype("uint32"), (3,)),
    "lax.scatter_apply": lambda m, i, **_: lax.scatter_apply(
        m, i[:, None], mnp.sin, lax.ScatterDimensionNumbers((1,), (0,), (0,)), update_shape=(5, 4)
    ),
    **{
        f"lax.{name}": lambda m, i, name=name, **_: getattr(lax, name)(
            m, i[:4, None], m, lax.ScatterDimensionNumbers((1,), (0,), (0,))
        )
        for name in (
            *("scatter", "scatter_add", "scatter_sub"),
            *("scatter_mul", "scatter_min", "scatter_max"),
        )
    },
    "lax.dot_general": lambda m, **_: lax.dot_general(m, m, (((1,), (0,)), ((), ()))),
    "lax.dynamic_slice": lambda m, n, **_: lax.dynamic_slice(m, (n, 0), (1, 2)),
    "lax.dynamic_update_slice": lambda m, n, **_: lax.dynamic_update_slice(m, m[:1], (n, 0)),
    "lax.dynamic_update_index_in_dim": lambda m, n, **_: lax.dynamic_update_index_in_dim(
        m, m[0], n, 0
    ),
    "lax.dynamic_update_slice_in_dim": lambda m, n, **_: lax.dynamic_update_slice_in_dim(
        m, m[:1], n, 0
    ),
    "lax.fori_loop": lambda m, **_: lax.fori_loop(0, 2, lambda i, x: x + i, m),
    "lax.while_loop": lambda m, **_: lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x + 1, m),
    "lax.scan": lambda m, v, **_: lax.scan(lambda c, x: (c + x, c), v[:4], m),
    "lax.custom_root": lambda s, **_: lax.custom_root(
        lambda x: x * x - 2, s, lambda f, x: x, lambda g, y: y / g(1.0)
    ),
    "lax.custom_linear_solve": lambda h, v, **_: lax.custom_linear_solve(
        lambda x: h @ x, v[:4], lambda mv, b: mnp.linalg.solve(h, b), symmetric=True
    ),
    "lax.full": lambda s, **_: lax.full((3,), s),
    "lax.index_take": lambda m, i, **_: lax.index_take(m, (i,), (0,)),
    "lax.reduce": lambda v, **_: lax.reduce(v, 0.0, lax.add, (0,)),
    "lax.reduce_and": lambda b, **_: lax.reduce_and(b, (0,)),
    "lax.reduce_or": lambda b, **_: lax.reduce_or(b, (0,)),
    "lax.reduce_xor": lambda i, **_: lax.reduce_xor(i, (0,)),
    "lax.reduce_precision": lambda v, **_: lax.reduce_precision(v, 5, 10),
    "lax.slice": lambda m, **_: lax.slice(m, (1, 0), (3, 2)),
    "lax.squeeze": lambda m, **_: lax.squeeze(m[:1], (0,)),
    "lax.with_sharding_constraint": lambda m, **_: lax.with_sharding_constraint(
        m, NamedSharding(mesh(), P("j"))
    ),
    "random.ball": lambda k, **_: random.ball(k, 3),
    "random.fold_in": lambda k, n, **_: random.fold_in(k, n),
    "random.generalized_normal": lambda k, s, **_: random.generalized_normal(k, s, (2,)),
    "random.orthogonal": lambda k, **_: random.orthogonal(k, 3),
    "random.randint": lambda k, n, **_: random.randint(k, (3,), 0, n),
    "random.multinomial": lambda k, v, **_: random.multinomial(k, 5.0, v / v.sum()),
    "random.multivariate_normal": lambda k, v, h, **_: random.multivariate_normal(k, v[:4], h),
    "random.triangular": lambda k, s, **_: random.triangular(k, 0.0, s, 1.0),
    "random.wrap_key_data": lambda k, **_: random.wrap_key_data(random.key_data(k)),
    "jit": lambda m, v, **_: meshard.jit(lambda x, y: (x, y, x + 1, 2.0, mnp.zeros(3), y[0]))(m, v),
}


def _arrays(found: Any) -> Iterator[meshard.Array]:
    if isinstance(found, meshard.Array):
        yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from _arrays(value)
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from _arrays(value)


def _names() -> dict[str, Callable[..., Any]]:
    found = {}
    apart = {*MADE_OF_NUMBERS.split(), *OF_ONE_DEVICE.split()}
    apart |= {f"lax.{name}" for name in collectives()}  # they run in bodies only
    for module, members in MODULES.items():
        names = getattr(members, "__all__", None) or [n for n in dir(members) if n[0] != "_"]
        names = [n for n in names if hasattr(members, n)]  # not those that only say what to use
        for name in names:
            member, whole_name = getattr(members, name), f"{module}.{name}"
            if not callable(member) or isinstance(member, type) or name.startswith("save_"):
                continue
            if whole_name not in apart:
                found[whole_name] = member
    return found


def _told(x: meshard.Array) -> tuple[Any, dict[int, int]]:
    """Return the type of an array, and a checksum of each piece that this process holds."""
    order, sharding = [d.id for d in x.sharding.device_order], x.sharding
    how = (sharding.spec, sharding.uneven) if isinstance(sharding, NamedSharding) else None
    sums = {i: zlib.crc32(b.tobytes()) for i, b in enumerate(x._live()) if b is not None}
    return (x.committed, order, how, x.shape, x.dtype), sums


def _results(chosen: frozenset[tuple[str, str]] | None = None) -> dict[tuple[str, str], Any]:
    """Return for each call, or each chosen one, its results, or how it was refused."""
    has, found = _operands(), {}

    def called(name: str, text: str, call: Callable[[], Any]) -> None:
        if chosen is not None and (name, text) not in chosen:
            return
        with np.errstate(all="ignore"):
            try:
                result = call()
            except Exception as error:
                found[name, text] = error
                return
        found[name, text] = [_told(x) for x in _arrays(result)]

    for name, case in SPECIAL.items():
        called(name, "special", lambda case=case: case(**has))
    for name, function in _names().items():
        for text, operands in _calls(has):
            if name.endswith(".searchsorted") and text == "i i":  # it is not sorted
                continue
            if name in A_RESULT_PER_OPERAND and not set(text) <= set("mvcib "):
                continue
            called(name, text, lambda f=function, o=operands: f(*o))
    return found


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], Any]:
    return alone(_results)


def test_every_function_is_called(results: dict[tuple[str, str], Any]) -> None:
    ran = {name for (name, _), found in results.items() if not isinstance(found, Exception)}
    assert sorted(_names().keys() - ran) == []
    refused = {name: f for (name, t), f in results.items() if t == "special" and name not in ran}
    assert refused == {}


def test_results_are_committed_to_the_devices_of_the_operands(
    results: dict[tuple[str, str], Any],
) -> None:
    elsewhere = []
    for call, found in results.items():
        for (committed, order, *_), _ in [] if isinstance(found, Exception) else found:
            if not committed or sorted(order) != list(range(8)):
                elsewhere.append((*call, committed, order))
    assert elsewhere == []


def test_two_processes_give_what_one_gives(results: dict[tuple[str, str], Any]) -> None:
    times: Counter[str] = Counter()
    chosen = set()
    for (name, text), alike in results.items():
        if not isinstance(alike, Exception) and times[name] < MOST:
            times[name] += 1
            chosen.add((name, text))
    for process in simulate(2, 4, partial(_results, frozenset(chosen)), deadline=120):
        others = {}
        for call, found in process.items():
            alike = results[call]
            if isinstance(found, NotAddressableError):
                continue
            if isinstance(found, Exception) or not _agree(found, alike):
                others[call] = found, alike
        assert others == {}


def _agree(found: Any, alike: Any) -> bool:
    """Whether results of one process are those of the other world, as far as it holds them."""
    return len(found) == len(alike) and all(
        own == other and sums.items() <= every.items()
        for (own, sums), (other, every) in zip(found, alike, strict=True)
    )
