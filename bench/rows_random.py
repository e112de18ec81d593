"""Rows of random numbers: made on a 4 x 2 mesh, each device its own piece, in float32."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import by_hand
from bench.claims import BY_HAND, DASK, JAX_EAGER, JAX_JIT, MESHARD, Faster, Within
from bench.harness import Peer, Row, Work
from bench.libraries import Library, Spec, load
from bench.limits import Need
from bench.peers.installed import installed
from bench.verify import WrongResult

SIDE = 4096
GRID: Spec = ("i", "j")
Fill = Callable[[np.random.Generator, by_hand.Array], object]
Draw = Callable[[Library, Any], Any]
"""From the library and a key to an array that nobody placed."""


def _moments(result: Any, mean: float, deviation: float) -> None:
    """Refuse numbers whose mean or standard deviation is not the distribution's.

    Raises:
        WrongResult: one of them is further off than ten standard errors.
    """
    values = np.asarray(result, np.float64)
    allowed = 10 * deviation / np.sqrt(values.size)
    for name, found, wanted in (
        ("mean", values.mean(), mean),
        ("standard deviation", values.std(), deviation),
    ):
        if not abs(found - wanted) <= allowed:
            raise WrongResult(f"the {name} is {found:.5f}, expected {wanted:.5f}")


@dataclass(frozen=True, kw_only=True)
class RandomRow(Row):
    """One distribution: libraries have numbers of their own, so that moments are compared.

    Attributes:
        shape: the array's shape.
        draw: the function of `random`, by name.
        fill: NumPy's function for the same, into a buffer.
        mean: the distribution's.
        deviation: the distribution's standard deviation.
        spec: how the result lies; None leaves it where the library puts it.
        batch: see `bench.harness.Work`.
    """

    shape: tuple[int, ...]
    draw: str
    fill: Fill
    mean: float
    deviation: float
    spec: Spec | None = GRID
    batch: int = 1

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard, JAX eager and jitted, and of NumPy's generators by hand."""
        return {
            MESHARD: self._meshard,
            JAX_EAGER: functools.partial(self._jax, jitted=False),
            JAX_JIT: functools.partial(self._jax, jitted=True),
            BY_HAND: self._handmade,
            **({DASK: self._dask} if installed("dask") and self.spec is not None else {}),
        }

    def _check(self, result: Any) -> None:
        _moments(result, self.mean, self.deviation)

    def _work(self, library: Library, call: Callable[[Any], Any]) -> Work:
        random = library.root.random
        keys = iter(range(1 << 40))

        def fresh() -> tuple[Any, ...]:
            return (library.root.block_until_ready(random.key(next(keys))),)

        def check(result: Any) -> None:
            if self.spec is not None and not result.sharding.is_equivalent_to(
                library.sharding(self.spec), result.ndim
            ):
                raise WrongResult(f"the result lies as {result.sharding}")
            self._check(result)

        return Work(fresh, library.complete(call), check, self.batch)

    def _meshard(self) -> Work:
        library = load("meshard")
        draw = getattr(library.root.random, self.draw)
        place = None if self.spec is None else library.sharding(self.spec)
        return self._work(library, lambda key: draw(key, self.shape, "float32", out_sharding=place))

    def _jax(self, jitted: bool) -> Work:
        library = load("jax")
        draw = getattr(library.root.random, self.draw)
        place = None if self.spec is None else library.sharding(self.spec)

        def call(key: Any) -> Any:
            return draw(key, self.shape, "float32")

        if jitted:
            return self._work(library, library.root.jit(call, out_shardings=place))
        if place is None:
            return self._work(library, call)
        put = library.root.device_put
        return self._work(library, lambda key: put(call(key), place))

    def _dask(self) -> Work:
        from bench.peers.dask_array import library

        dask = library()
        chunks = dask.chunks(self.shape, self.spec or ())

        def draw() -> Any:
            generator = dask.numpy.random.default_rng(0)
            return getattr(generator, self.draw)(size=self.shape, chunks=chunks).astype(np.float32)

        def check(result: Any) -> None:
            self._check(result.compute())

        return Work(lambda: (), dask.complete(draw), check, self.batch)

    def _handmade(self) -> Work:
        parts = (4, 2) if self.spec is not None else (1,)
        blocks = by_hand.Blocks(self.shape, parts)
        seeds = iter(range(1 << 40))

        def fresh() -> tuple[Any, ...]:
            return (np.random.SeedSequence(next(seeds)).spawn(len(blocks.buffers)),)

        def fill(task: tuple[Any, by_hand.Array]) -> None:
            seed, buffer = task
            self.fill(np.random.Generator(np.random.Philox(seed)), buffer)

        def call(seeds: Sequence[Any]) -> Any:
            by_hand.each(fill, list(zip(seeds, blocks.buffers, strict=True)))
            return blocks

        return Work(fresh, call, lambda made: self._check(made.whole()), self.batch)


def _normal(generator: np.random.Generator, out: by_hand.Array) -> object:
    return generator.standard_normal(out=out, dtype=np.float32)


def _uniform(generator: np.random.Generator, out: by_hand.Array) -> object:
    return generator.random(out=out, dtype=np.float32)


ROWS: tuple[Row, ...] = (
    RandomRow(
        key="random-normal",
        title="random.normal 4096x4096 P(i,j)",
        claims=[Faster(1.3)],
        shape=(SIDE, SIDE),
        draw="normal",
        fill=_normal,
        mean=0.0,
        deviation=1.0,
        need=Need(bytes=4 * SIDE**2),
        memory=True,
    ),
    RandomRow(
        key="random-uniform",
        title="random.uniform 4096x4096 P(i,j)",
        claims=[Faster(1)],
        shape=(SIDE, SIDE),
        draw="uniform",
        fill=_uniform,
        mean=0.5,
        deviation=12**-0.5,
        need=Need(bytes=4 * SIDE**2),
        memory=True,
    ),
    RandomRow(
        key="random-small",
        title="random.normal of 8 elements",
        claims=[Within(60e-6)],
        shape=(8,),
        draw="normal",
        fill=_normal,
        mean=0.0,
        deviation=1.0,
        spec=None,
        batch=20,
        need=Need(calls=1),
    ),
)
