"""Residuals: what a function keeps between its run and the way back, told before it runs.

In: a function and its arguments, or their types. Out: a value that prints: for each array that is
kept what it is, its type, its bytes on a device, and the line that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import function_of
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import is_differentiable
from meshard.plan.captions import whole_text
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Summarized, Summary
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees import trees
from meshard.runtime.types import dtype_name
from meshard.transforms.derivatives.arguments import name_of, strong, told_leaf, value_of
from meshard.transforms.derivatives.reverse import followed
from meshard.transforms.jit.jit import Jitted
from meshard.transforms.program.program import Atom, Program, Var, evaluate, layout_text
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.tracing import Typed, traced, typed

_BACK = "the way back begins"


@final
@dataclass(frozen=True)
class Residual:
    """One array that is kept.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        sharding: how it is laid out.
        origin: what it is: an argument, a constant, or the result of an operation.
        line: where the operation is, as ``file:line``; empty for arguments.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Sharding
    origin: str
    line: str

    @property
    def nbytes(self) -> int:
        """Its bytes, each element counted once."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def bytes_per_device(self) -> int:
        """Its bytes on the device that has most of it."""
        return int(np.prod(self.sharding.shard_shape(self.shape))) * self.dtype.itemsize


@final
@dataclass(frozen=True)
class SavedResiduals(Summarized):
    """What a function keeps for the way back; prints as a table.

    Attributes:
        name: the function's name.
        residuals: the arrays that are kept: arguments first, then in the order in which they are
            computed.
    """

    name: str
    residuals: tuple[Residual, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all, each element counted once."""
        return sum(r.nbytes for r in self.residuals)

    @property
    def bytes_per_device(self) -> int:
        """The bytes of all on a device, where each is counted on the device that has most of it."""
        return sum(r.bytes_per_device for r in self.residuals)

    def __len__(self) -> int:
        return len(self.residuals)

    def __iter__(self) -> Iterator[Residual]:
        return iter(self.residuals)

    def _summary(self) -> Summary:
        count = len(self.residuals)
        title = (
            f"{self.name} keeps {count} {'array' if count == 1 else 'arrays'} for the way back, "
            f"{whole_text(self.bytes_per_device)} on a device"
        )
        rows = [
            (
                f"{dtype_name(r.dtype)}[{','.join(map(str, r.shape))}]",
                f"{r.bytes_per_device:,}",
                layout_text(r),
                r.origin,
                r.line,
            )
            for r in self.residuals
        ]
        head = ("kept", "bytes on a device", "sharding", "what it is", "line")
        table = Table(head, rows, "<><<<", spare=("sharding",))
        return Summary(title, tables=[table] if rows else [])


def saved_residuals(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> SavedResiduals:
    """Return what a function keeps for the way back of its gradient, which it does not run.

    Args:
        f: a function of trees of arrays.
        args: its arguments: arrays, values, or `ShapeDtypeStruct` with shardings.
        kwargs: the same, by name.

    Returns:
        The arrays that are kept, arguments included. Printed it is a table.

    Raises:
        ArgumentError: if ``f`` is not a function.
        DerivativeError: if an operation has no derivative.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import ad_checkpoint
    >>> found = ad_checkpoint.saved_residuals(lambda x: mnp.sin(mnp.sin(x)), mnp.ones(3))
    >>> [r.origin for r in found], found.bytes_per_device
    (["argument 0 ('x')", 'sin'], 48)
    """
    f, name = function_of(f, "saved_residuals", "f"), name_of(f)
    leaves, tree = trees.flatten((args, kwargs))
    count = len(trees.leaves(args))
    told = [told_leaf(f, args, range(len(args)), i) for i in range(count)]
    told += [f"argument {path[0]!r}" for path, _ in trees.leaves_with_plain_path(kwargs)]
    given = [
        x if isinstance(x, ShapeDtypeStruct) else value_of(x, f"saved_residuals: {t}")
        for x, t in zip(leaves, told, strict=True)
    ]

    def flat(*values: Any) -> list[Any]:
        own, named = trees.unflatten(tree, list(values))
        found = trees.leaves(f(*own, **named))
        return [strong(value_of(y, f"a result of {name!r}")) for y in found]

    program, constants, mark = _both_ways(name, flat, [typed(x) for x in given], told)
    kept = _crossing(program, mark, len(given))
    short = Program(program.captured, program.inputs[: len(given)], program.eqns[:mark], kept, name)
    lowered = Jitted(lambda *xs: evaluate(short, constants, xs)).lower(*given)
    shardings = trees.leaves(lowered.compile().output_shardings)
    where = {v: (e.name, e.line) for e in short.eqns for v in e.outputs}
    where |= {v: (t, "") for v, t in zip(short.inputs, told, strict=True)}
    return SavedResiduals(
        name,
        tuple(
            [
                Residual(v.aval.shape, v.aval.dtype, s, *where.get(v, ("a constant", "")))
                for v, s in zip(kept, shardings, strict=True)
            ]
        ),
    )


def print_saved_residuals(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Print what a function keeps for the way back of its gradient; see `saved_residuals`.

    Args:
        f: a function of trees of arrays.
        args: its arguments: arrays, values, or `ShapeDtypeStruct` with shardings.
        kwargs: the same, by name.

    Raises:
        ArgumentError: if ``f`` is not a function.
        DerivativeError: if an operation has no derivative.

    Source: the name is that of ``jax.ad_checkpoint.print_saved_residuals``.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import ad_checkpoint
    >>> def square(x):
    ...     return x * x
    >>> ad_checkpoint.print_saved_residuals(square, mnp.ones(3))  # doctest: +ELLIPSIS
    square keeps 1 array for the way back, 24 bytes on a device
    ...
    """
    print(saved_residuals(f, *args, **kwargs))


def _both_ways(
    name: str, f: Callable[..., list[Any]], types: Sequence[Typed], told: Sequence[str]
) -> tuple[Program, list[Any], int]:
    """Return a function and its way back as one program of arguments and cotangents.

    Returns:
        The program, its constants, and the number of the operation with which the way back begins.
    """
    forward, constants, _ = traced(name, lambda *own: (f(*own), None), types, told)
    count, ends = len(types), [_is_moving(x) for x in forward.outputs]

    def both(*values: Any) -> tuple[list[Any], None]:
        _, back = followed(name, lambda *own: evaluate(forward, constants, own), values[:count])
        rest = iter([o.checkpoint_name(g, name=_BACK) for g in values[count:]])
        found = back([next(rest) if moves else None for moves in ends])
        return [g for g in found if g is not None], None

    outputs: list[Any] = list(forward.outputs)
    slopes = [(x.aval, None) for x, moves in zip(outputs, ends, strict=True) if moves]
    origins = [*told, *[f"cotangent {i}" for i in range(len(slopes))]]
    whole, captured, _ = traced(name, both, [*types, *slopes], origins)
    short, kept = simplified(whole)
    begins = (i for i, e in enumerate(short.eqns) if ("name", _BACK) in e.params)
    return short, [captured[i] for i in kept], next(begins, len(short.eqns))


def _is_moving(x: Atom) -> bool:
    return isinstance(x, Var) and is_differentiable(x.aval)


def _crossing(program: Program, mark: int, count: int) -> tuple[Var, ...]:
    """Return the values that operations from one on read, and that are there before it."""
    read = {x for e in program.eqns[mark:] for x in e.inputs}
    before = [*program.inputs[:count], *program.captured]
    before += [v for e in program.eqns[:mark] for v in e.outputs]
    return tuple([v for v in before if v in read and v.weak is None])
