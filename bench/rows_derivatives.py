"""Rows of gradients: a step of training, or an adjoint, in both libraries, beside the way forward.

Each row times the jitted gradient and the jitted function itself, so that the law can be read: a
gradient's ratio to JAX is not worse than that of the function.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.by_hand import Array
from bench.claims import (
    FORWARD,
    JAX_FORWARD,
    JAX_JIT,
    MESHARD,
    UNJITTED,
    AsForward,
    Claim,
)
from bench.harness import Peer, Row, Work
from bench.libraries import Library, Spec, load
from bench.limits import Need
from bench.row import Program
from bench.rows_foundation import FLAT, GRID, normal
from bench.rows_jit import SETTLE
from bench.rows_programs import heat
from bench.verify import check_value

Loss = Callable[[Library], Program]
RATE = np.float32(0.1)
PLATE, STEPS = 1024, 10
BATCH, LENGTH, WIDTH, HEADS, LAYERS, WORDS = 16, 64, 128, 4, 2, 256


@dataclass(frozen=True, kw_only=True)
class GradientRow(Row):
    """One line of the table.

    Attributes:
        inputs: makes the operands.
        specs: how each is placed.
        loss: from a library to a function of the operands that returns a number.
        numbers: the operands with respect to which it is differentiated.
        step: whether these are trained: a step down the gradient is the result.
        tolerance: see `bench.verify.check_value`.
    """

    claims: tuple[Claim, ...] = (AsForward(),)
    inputs: Callable[[], tuple[Any, ...]]
    specs: tuple[Spec, ...]
    loss: Loss
    numbers: tuple[int, ...]
    step: bool = True
    tolerance: float = 1e-3

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of both libraries' gradients, and of the functions themselves."""
        inputs = functools.cache(self.inputs)
        expected = functools.cache(lambda: self._expected(inputs()))

        def maker(name: str, forward: bool, jitted: bool = True) -> Callable[[], Peer]:
            def make() -> Peer:
                library = load(name)
                program = self.loss(library) if forward else self.gradient(library)
                own = library.root.jit(program) if jitted else program
                check = functools.partial(
                    check_value,
                    expected=expected()[0] if forward else expected()[1:],
                    tolerance=self.tolerance,
                )
                given = self.given(library, inputs())
                return Work(lambda: given, library.complete(own), check, settle=SETTLE)

            return make

        return {
            MESHARD: maker("meshard", False),
            JAX_JIT: maker("jax", False),
            FORWARD: maker("meshard", True),
            JAX_FORWARD: maker("jax", True),
            UNJITTED: maker("meshard", False, False),
        }

    def given(self, library: Library, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the operands on the library's mesh."""
        pairs = zip(inputs, self.specs, strict=True)
        return tuple([library.put(x, library.sharding(s)) for x, s in pairs])

    def gradient(self, library: Library) -> Program:
        """Return the function that gives the gradients, or what they make of the operands."""
        slopes = library.root.grad(self.loss(library), self.numbers)

        def program(*operands: Any) -> list[Any]:
            found = slopes(*operands)
            if not self.step:
                return list(found)
            pairs = zip(self.numbers, found, strict=True)
            return [operands[n] - RATE * g for n, g in pairs]

        return program

    def _expected(self, inputs: tuple[Any, ...]) -> list[Array]:
        """What JAX finds: the value, and the gradients."""
        library = load("jax")
        given = self.given(library, inputs)
        value = library.root.jit(self.loss(library))(*given)
        found = library.root.jit(self.gradient(library))(*given)
        return [np.asarray(x) for x in (value, *found)]


def mlp(library: Library) -> Program:
    """Two layers and the mean of squares."""
    xp = library.numpy

    def loss(x: Any, y: Any, w1: Any, b: Any, w2: Any) -> Any:
        return xp.mean((xp.tanh(x @ w1 + b) @ w2 - y) ** 2)

    return loss


def attended(xp: Any, nn: Any, x: Any, w: Any, out: Any, heads: int) -> Any:
    """Attention of each position to those before it."""
    batch, length, width = x.shape
    q, k, v = (
        xp.reshape(x @ w[i], (batch, length, heads, width // heads)).transpose(0, 2, 1, 3)
        for i in range(3)
    )
    scores = q @ k.transpose(0, 1, 3, 2) * np.float32((width // heads) ** -0.5)
    seen = xp.tril(xp.ones((length, length), bool))
    weights = nn.softmax(xp.where(seen, scores, np.float32(-1e9)), axis=-1)
    joined = (weights @ v).transpose(0, 2, 1, 3)
    return xp.reshape(joined, (batch, length, width)) @ out


def attention(library: Library) -> Program:
    """One layer of attention and the mean of squares."""
    import importlib

    xp, nn = library.numpy, importlib.import_module(f"{library.root.__name__}.nn")

    def loss(x: Any, w: Any, out: Any) -> Any:
        return xp.mean(attended(xp, nn, x, w, out, 8) ** 2)

    return loss


def stencil(library: Library) -> Program:
    """Some steps of the heat equation by halo exchange, and the distance from an observation."""
    steps = heat(library, STEPS)

    def loss(plate: Any, seen: Any) -> Any:
        return library.numpy.sum((steps(plate) - seen) ** 2)

    return loss


def transformer(library: Library) -> Program:
    """A small language model and its cross entropy."""
    import importlib

    xp, nn = library.numpy, importlib.import_module(f"{library.root.__name__}.nn")

    def norm(x: Any) -> Any:
        d = x - xp.mean(x, axis=-1, keepdims=True)
        return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + np.float32(1e-5))

    def loss(words: Any, after: Any, table: Any, w: Any, out: Any, up: Any, down: Any) -> Any:
        x = table[words]
        for i in range(LAYERS):
            x = x + attended(xp, nn, norm(x), w[i], out[i], HEADS)
            x = x + nn.gelu(norm(x) @ up[i]) @ down[i]
        told = nn.log_softmax(norm(x) @ table.T, axis=-1)
        return -xp.mean(xp.take_along_axis(told, after[..., None], axis=-1))

    return loss


def _words(seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32)


ROWS: tuple[Row, ...] = (
    GradientRow(
        key="grad-mlp",
        title="grad: a step of two layers 1024x2048x512, data and tensor parallel",
        inputs=lambda: (
            normal(1024, 1024),
            normal(1024, 512, seed=1),
            normal(1024, 2048, seed=2) / 32,
            normal(2048, seed=3),
            normal(2048, 512, seed=4) / 45,
        ),
        specs=(("i",), ("i",), (None, "j"), ("j",), ("j",)),
        loss=mlp,
        numbers=(2, 3, 4),
        need=Need(flops=2 * 1024 * 2048 * (2 * 1024 + 3 * 512)),
    ),
    GradientRow(
        key="grad-attention",
        title="grad: a step of attention, 16 x 256 tokens of 256",
        inputs=lambda: (
            normal(16, 256, 256),
            normal(3, 256, 256, seed=1) / 16,
            normal(256, 256, seed=2) / 16,
        ),
        specs=(("i",), (None, None, "j"), ("j",)),
        loss=attention,
        numbers=(1, 2),
    ),
    GradientRow(
        key="grad-stencil",
        title=f"grad: the adjoint of {STEPS} steps of the heat equation, {PLATE}x{PLATE}",
        inputs=lambda: (normal(PLATE, PLATE), normal(PLATE, PLATE, seed=1)),
        specs=(GRID, GRID),
        loss=stencil,
        numbers=(0,),
        step=False,
        risky=(JAX_JIT, JAX_FORWARD),
    ),
    GradientRow(
        key="grad-transformer",
        title=f"grad: a step of a transformer, {LAYERS} layers, {BATCH} x {LENGTH} words",
        inputs=lambda: (
            _words(0),
            _words(1),
            normal(WORDS, WIDTH) / 11,
            normal(LAYERS, 3, WIDTH, WIDTH, seed=1) / 11,
            normal(LAYERS, WIDTH, WIDTH, seed=2) / 11,
            normal(LAYERS, WIDTH, 4 * WIDTH, seed=3) / 11,
            normal(LAYERS, 4 * WIDTH, WIDTH, seed=4) / 22,
        ),
        specs=(
            ("i",), ("i",), (), (None, None, None, "j"), (None, "j"), (None, None, "j"),
            (None, "j"),
        ),
        loss=transformer,
        numbers=(2, 3, 4, 5, 6),
    ),
    GradientRow(
        key="grad-small",
        title="grad: tanh(x) * x of 64 numbers on 8 shards, summed",
        inputs=lambda: (normal(64),),
        specs=(FLAT,),
        loss=lambda library: lambda x: library.numpy.sum(library.numpy.tanh(x) * x),
        numbers=(0,),
        step=False,
    ),
)  # fmt: skip
