"""A row of arrays: one program for both libraries, its expected value, and the work by hand."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.claims import BY_HAND, DASK, JAX_EAGER, JAX_JIT, JAX_OWN, MESHARD, NUMPY
from bench.harness import Peer, Row, Work
from bench.libraries import Library, Spec, load
from bench.peers.installed import installed
from bench.verify import Whole, check_layout, check_value, leaves

Program = Callable[..., Any]
LINE = 64


@dataclass(frozen=True)
class ByHand:
    """The work without a library, on buffers that are made once and kept.

    Attributes:
        load: writes the sources again (as the libraries' fresh arrays are written), untimed.
        call: the timed work.
        fetch: the result of `call` as plain NumPy.
    """

    load: Callable[[], None]
    call: Callable[[], Any]
    fetch: Callable[[Any], Whole]


@dataclass(frozen=True, kw_only=True)
class ArrayRow(Row):
    """One line of the table.

    Attributes:
        inputs: makes the operands as NumPy arrays, or lists of them.
        specs: how each operand is placed; None leaves it a NumPy array.
        program: the work, given the library.
        jitted: what JAX jits: None for `program`, or another program maker.
        own: JAX's own best form of the work, where that is another program.
        has_jit: False where the work is not a function of arrays that could be jitted.
        expected: the result from plain NumPy operands.
        layout: how the result must lie; None leaves it to the library.
        by_hand: the expert's work on the same operands; None for none.
        dask: the work as Dask's users write it, given `bench.peers.dask_array`; None for none.
        tolerance: see `bench.verify.check_value`.
        batch: see `bench.harness.Work`.
        settle: see `bench.harness.Work`.
        plain: whether to measure `expected` too, as what users have without a library.
    """

    inputs: Callable[[], tuple[Any, ...]]
    specs: tuple[Spec | None, ...]
    program: Callable[[Library], Program]
    jitted: Callable[[Library], Program] | None = None
    own: Callable[[Library], Program] | None = None
    has_jit: bool = True
    expected: Callable[..., Whole]
    layout: Spec | None = None
    by_hand: Callable[..., ByHand] | None = None
    dask: Callable[[Any], Program] | None = None
    tolerance: float = 0.0
    batch: int = 1
    settle: float = 0.0
    plain: bool = False

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard, JAX eager, JAX jitted and by hand; inputs are made once for all."""
        inputs = functools.cache(self.inputs)
        expected = functools.cache(lambda: self.expected(*inputs()))
        makers: dict[str, Callable[[], Peer]] = {
            MESHARD: lambda: self._placed(load("meshard"), self.program, inputs(), expected),
            JAX_EAGER: lambda: self._placed(load("jax"), self.program, inputs(), expected),
            JAX_JIT: lambda: self._placed(load("jax"), self._jit, inputs(), expected),
        }
        if self.by_hand is not None:
            makers[BY_HAND] = lambda: self._handmade(inputs(), expected)
        if not self.has_jit:
            del makers[JAX_JIT]
        if self.own is not None:
            own = self.own
            makers[JAX_OWN] = lambda: self._placed(load("jax"), own, inputs(), expected)
        if self.plain:
            makers[NUMPY] = lambda: self._plain(inputs(), expected)
        makers.update(self._lazy(inputs, expected))
        return makers

    def _lazy(
        self, inputs: Callable[[], tuple[Any, ...]], expected: Callable[[], Whole]
    ) -> Mapping[str, Callable[[], Peer]]:
        """A maker of Dask, if it is installed and can do this work."""
        if self.dask is None or not installed("dask"):
            return {}
        return {DASK: lambda: self._in_dask(inputs(), expected)}

    def _jit(self, library: Library) -> Program:
        jitted: Program = library.root.jit((self.jitted or self.program)(library))
        return jitted

    def _placed(
        self,
        library: Library,
        program: Callable[[Library], Program],
        inputs: tuple[Any, ...],
        expected: Callable[[], Whole],
    ) -> Work:
        layout = None if self.layout is None else library.sharding(self.layout)
        sources = [
            _rotated(value) if spec is None else _fresh(library, value, spec)
            for value, spec in zip(inputs, self.specs, strict=True)
        ]

        def check(result: Any) -> None:
            if layout is not None:
                check_layout(result, expected(), layout, self.tolerance)
            check_value(result, expected(), self.tolerance)

        def fresh() -> tuple[Any, ...]:
            return tuple(next(source) for source in sources)

        return Work(fresh, library.complete(program(library)), check, self.batch, self.settle)

    def _in_dask(self, inputs: tuple[Any, ...], expected: Callable[[], Whole]) -> Work:
        from bench.peers.dask_array import library

        dask = library()
        assert self.dask is not None
        operands = tuple(
            value if spec is None else dask.put(value, spec)
            for value, spec in zip(inputs, self.specs, strict=True)
        )

        def check(result: Any) -> None:
            check_value([part.compute() for part in leaves(result)], expected(), self.tolerance)

        call = dask.complete(self.dask(dask))
        return Work(lambda: operands, call, check, self.batch, self.settle)

    def _plain(self, inputs: tuple[Any, ...], expected: Callable[[], Whole]) -> Work:
        def check(result: Any) -> None:
            check_value(result, expected(), self.tolerance)

        return Work(lambda: inputs, self.expected, check, self.batch, self.settle)

    def _handmade(self, inputs: tuple[Any, ...], expected: Callable[[], Whole]) -> Work:
        assert self.by_hand is not None
        hand = self.by_hand(*inputs)

        def fresh() -> tuple[Any, ...]:
            hand.load()
            return ()

        def check(result: Any) -> None:
            check_value(hand.fetch(result), expected(), self.tolerance)

        return Work(fresh, hand.call, check, self.batch, self.settle)


def _fresh(library: Library, value: Any, spec: Spec) -> Iterator[Any]:
    """New arrays of the library, without end."""
    sharding = library.sharding(spec)
    while True:
        yield library.put(value, sharding)


def _rotated(value: Any) -> Iterator[Any]:
    """NumPy operands in turn, so that none is still in the processor's cache."""
    return itertools.cycle((_off_the_line(value), _off_the_line(value)))


def _off_the_line(value: Any) -> Any:
    """A copy that starts 16 bytes after a cache line, as large NumPy arrays mostly do.

    JAX takes an array that happens to start on a line without copying it, in no time, and then
    sees what is written to it later; whether one does is luck, so the row leaves none to it.
    """
    room = np.empty(value.nbytes + 2 * LINE, np.uint8)
    start = -room.ctypes.data % LINE + LINE // 4
    copy = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy
