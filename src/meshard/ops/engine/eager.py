"""The base interpreter: runs each operation at once, on blocks.

The second time that an operation meets operands of the same types, what to do is looked up.

What operands are accepted: arrays, values inside transformations, and Python's numbers.

In: whatever a caller handed to an operation. Out: numbers unchanged, and everything else as arrays
or as values of the current interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import described
from meshard.errors import ArgumentError, ConcretizationError, DtypeError
from meshard.ops.engine.decide import decide, row_of
from meshard.ops.engine.decision import (
    Decision,
    ExchangeDecision,
    KernelDecision,
    MoveDecision,
    cheapest,
)
from meshard.ops.engine.run import Runner, fast_path, run_kernel, run_sum
from meshard.ops.row import MoveOp
from meshard.runtime import doors as primitive
from meshard.runtime.agree import token_of
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.execute import run_part
from meshard.runtime.moving.place import as_array
from meshard.runtime.processes.agreement import Agreement, Token
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.watching.ledger import wired
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import Memo, RuntimeWorld, here, memoized
from meshard.settings import config

WEAK = (bool, int, float, complex)
"""Python's numbers, which take the dtype of what they meet."""


def _converts(x: Any) -> bool:
    """Return whether an object says how it becomes an array, to NumPy or to JAX."""
    return hasattr(x, "__array__") or hasattr(x, "__jax_array__")


def accept(name: str, operands: Sequence[Any], lift: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return operands in the form that an interpreter takes: numbers, and its own values.

    At least one of them is a value: where all are numbers the first becomes one.

    Args:
        name: the operation, for messages.
        operands: the operands.
        lift: makes an Array, or a value of some transformation, a value of the interpreter's own.

    Raises:
        DtypeError: if an operand is neither a number nor like an array.
    """
    values: list[Any] = []
    some = False
    for i, x in enumerate(operands):
        if type(x) in WEAK:
            values.append(x)
            continue
        if type(x) is not Array and not isinstance(x, Traced):
            if isinstance(x, int):  # a Python number of a kind of its own
                values.append(int(x))
                continue
            if not isinstance(x, (np.ndarray, np.generic)) and not _converts(x):
                raise DtypeError(
                    f"{name}: operand {i} must be an array or a number, got {described(x)}. Make "
                    "an array with meshard.numpy.asarray(...)."
                )
            x = as_array(x)
        some = True
        values.append(lift(x))
    if values and not some:
        values[0] = lift(as_array(values[0]))
    return tuple(values)


_RUNNERS: Memo[tuple[Any, ...], Runner] = Memo("runners", 1 << 15)
_NUMBER = _RUNNERS.number


@final
class Eager(primitive.Interpreter):
    """Runs operations at once; the decisions live in the world."""

    def run(self, name: str, operands: tuple[Any, ...], params: primitive.Params) -> Any:
        """Run one operation and return its result, or a tuple of results."""
        world = here()
        key: list[Any] = [name, params]
        for x in operands:
            kind = type(x)
            if kind is Array:
                key.append(x._type)
            elif kind in WEAK:
                key.append(kind)
            else:
                return self.run(name, accept(name, operands, _own), params)
        if world.epoch != config.epoch:
            world.forget()
        found = world.tables[_NUMBER].get(tuple(key))  # `Memo.table`, without a call
        if found is None:
            if not any(type(x) is Array for x in operands):
                return self.run(name, accept(name, operands, _own), params)
            types = tuple(key[2:])
            found = runner(decide(world, name, types, params))
            found = _entering(world, name, params, types, found)
            _RUNNERS.keep(world, tuple(key), found)
        if world.profiles:
            return _timed(world, name, found, operands)
        return found(world, operands)


EAGER = Eager()


@final
class Preferring(primitive.Interpreter):
    """Runs operations at once, laid out with a view to where their results go.

    An operation that moves something, and whose result has a type's shape, runs in the way that
    moves least, its result's way to that type's layout included. So a sum of which each device
    needs a part is scattered.

    Args:
        like: the type.
    """

    def __init__(self, like: ArrayType) -> None:
        self._like = like

    def run(self, name: str, operands: tuple[Any, ...], params: primitive.Params) -> Any:
        """Run one operation and return its result, or a tuple of results."""
        types = tuple([x._type if type(x) is Array else type(x) for x in operands])
        if not all(isinstance(t, ArrayType) or t in WEAK for t in types):
            return EAGER.run(name, operands, params)
        world = here()
        found = _preferring(world, self._like, name, params, types)
        if found is None:
            return EAGER.run(name, operands, params)
        return _timed(world, name, found, operands) if world.profiles else found(world, operands)


@memoized(1 << 12)
def _preferring(
    world: RuntimeWorld,
    like: ArrayType,
    name: str,
    params: primitive.Params,
    types: tuple[ArrayType | type[Any], ...],
) -> Runner | None:
    """Return what runs an operation; None for what the base interpreter does."""
    arrays = [i for i, t in enumerate(types) if isinstance(t, ArrayType)]
    if not arrays or isinstance(row_of(name), MoveOp):
        return None
    way = partial(_way, world, name, types, params)
    plain = way((), None)
    if (
        not isinstance(plain, KernelDecision)
        or not plain.wires
        or [t.shape for t in plain.outputs] != [like.shape]
    ):
        return None
    found = cheapest(world, way, (like.sharding,), arrays)
    return None if found is plain else _entering(world, name, params, types, runner(found))


@memoized(1 << 12)
def _way(
    world: RuntimeWorld,
    name: str,
    types: tuple[ArrayType | type[Any], ...],
    params: primitive.Params,
    preferred: tuple[Sharding | None, ...],
    leading: int | None,
) -> Decision:
    return decide(world, name, types, params, preferred=preferred, leading=leading)


def _entering(
    world: RuntimeWorld,
    name: str,
    params: primitive.Params,
    types: tuple[ArrayType | type[Any], ...],
    run: Runner,
) -> Runner:
    """Return what runs an operation, on arrays that span processes as a step of all of them."""
    token = token_of(world, name, params, types)
    if token is None or world.agreement is None:
        return run
    return partial(_agreed, world.agreement, token, run)


def _timed(world: RuntimeWorld, name: str, run: Runner, operands: tuple[Any, ...]) -> Any:
    """Run an operation while a profile is open."""
    with timed(world, name, "operation") as ran_on:
        result = run(world, operands)
        ran_on([x.sharding for x in (result if isinstance(result, tuple) else (result,))])
    return result


def _agreed(
    agreement: Agreement,
    token: Token,
    runner: Runner,
    world: RuntimeWorld,
    operands: tuple[Any, ...],
) -> Any:
    """Run an operation on arrays that span processes, which all of them must run."""
    agreement.enter(token)
    return runner(world, operands)


def _own(x: Any) -> Any:
    """Return an array; a value of a transformation that has ended is refused."""
    if isinstance(x, Traced):
        raise ConcretizationError(x._stray())
    return x


def runner(decision: Decision) -> Runner:
    """Return what runs a decision on arrays: from them to the result, or a tuple of results."""
    if isinstance(decision, MoveDecision):
        return partial(_run_move, decision)
    if isinstance(decision, ExchangeDecision):
        return partial(_run_exchange, decision)
    if decision.agree:
        return partial(_run_kernel, decision)
    fast = fast_path(decision, partial(Array, decision.outputs[0]))
    return fast or partial(_run_kernel, decision)


def _run_move(decision: MoveDecision, world: RuntimeWorld, operands: tuple[Array, ...]) -> Array:
    (output,) = decision.outputs
    blocks = [x._live() for x in operands]
    if world.ledgers:
        wired(world, decision.row.name, decision.wires)
    return Array(output, run_part(world, decision.part, blocks, output.dtype, 0))


def _run_exchange(
    decision: ExchangeDecision, world: RuntimeWorld, operands: tuple[Array, ...]
) -> Array:
    if world.ledgers and decision.moved:
        wired(world, decision.row.name, decision.moved)
    given = []
    for x, move in zip(map(as_array, operands), decision.moves, strict=True):
        given.append(x._live() if move is None else run_part(world, move, (x._live(),), x.dtype))
    return Array(decision.outputs[0], decision.exchange.run(world, given))


def _run_kernel(decision: KernelDecision, world: RuntimeWorld, operands: tuple[Any, ...]) -> Any:
    if world.ledgers and decision.wires:
        wired(world, decision.row.name, decision.wires)
    given = _given(decision, world, operands)
    found = (_run_together if decision.agree else run_kernel)(decision, world, given)
    arrays = [Array(t, tuple(b)) for t, b in zip(decision.outputs, found, strict=True)]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _run_together(
    decision: KernelDecision, world: RuntimeWorld, given: Sequence[Any]
) -> list[list[Block | None]]:
    """Run a kernel that may refuse values: where one process does, all of them raise.

    Raises:
        ArgumentError: if the kernel refuses the values of some process.
    """
    found: list[list[Block | None]] = []
    refused = None
    try:
        found = run_kernel(decision, world, given)
    except ValueError as error:
        refused = str(error)
    told = world.transport.all_gather(refused, decision.agree)
    for process, text in zip(decision.agree, told, strict=True):
        if text is not None:
            raise ArgumentError(f"{decision.row.name}: {text} Process {process} has such values.")
    return found


def _given(decision: KernelDecision, world: RuntimeWorld, operands: Sequence[Any]) -> list[Any]:
    """Return the blocks that a kernel reads, or numbers."""
    given: list[Any] = []
    for x, move, weak in zip(operands, decision.moves, decision.dtypes.weak, strict=True):
        if type(x) is not Array:
            given.append(x if weak is None else weak.type(x))
        elif move is None:
            given.append(x._live())
        else:
            given.append(run_part(world, move, (x._live(),), x.dtype))
    return given


def sum_runner(decisions: Sequence[KernelDecision], name: str) -> Runner:
    """Return what runs the sum of several operations that leave partial sums.

    Args:
        decisions: what the operations do: their cells and results are the same.
        name: how ledgers call it.
    """
    counts = [len(d.operands) for d in decisions]

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Array:
        if world.ledgers:
            wired(world, name, decisions[0].wires)
        rest = iter(operands)
        own = [tuple(islice(rest, n)) for n in counts]
        given = [_given(d, world, x) for d, x in zip(decisions, own, strict=True)]
        return Array(decisions[0].outputs[0], tuple(run_sum(decisions, world, given)))

    return run
