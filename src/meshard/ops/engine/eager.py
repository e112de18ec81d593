"""The base interpreter: runs each operation at once, on blocks.

The second time that an operation meets operands of the same types, what to do is looked up.
"""

from __future__ import annotations

from functools import partial
from typing import Any, final

from meshard.errors import ConcretizationError
from meshard.ops.engine.accept import WEAK, accept
from meshard.ops.engine.decide import decide
from meshard.ops.engine.decision import Decision, ExchangeDecision, KernelDecision, MoveDecision
from meshard.ops.engine.run import Runner, fast_path, run_kernel
from meshard.runtime import doors as primitive
from meshard.runtime.agree import token_of
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.memo import Memo
from meshard.runtime.moving.execute import run_part
from meshard.runtime.moving.place import as_array
from meshard.runtime.processes.agreement import Agreement, Token
from meshard.runtime.watching.ledger import wired
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld, here
from meshard.settings import config

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
            found = runner(decide(world, name, key[2:], params))
            token = token_of(world, name, params, tuple(key[2:]))
            if token is not None and world.agreement is not None:
                found = partial(_agreed, world.agreement, token, found)
            _RUNNERS.keep(world, tuple(key), found)
        if world.profiles:
            return _timed(world, name, found, operands)
        return found(world, operands)


EAGER = Eager()


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
    given: list[Any] = []
    for x, move, weak in zip(operands, decision.moves, decision.dtypes.weak, strict=True):
        if type(x) is not Array:
            given.append(x if weak is None else weak.type(x))
        elif move is None:
            given.append(x._live())
        else:
            given.append(run_part(world, move, (x._live(),), x.dtype))
    found = run_kernel(decision, world, given)
    arrays = [Array(t, tuple(b)) for t, b in zip(decision.outputs, found, strict=True)]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
