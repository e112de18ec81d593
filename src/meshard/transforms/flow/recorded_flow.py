"""Control flow in a function that is being traced: its parts become programs of their own.

In: the functions of a loop or condition and its first values. Out: values without data, and one
call written down. The user's functions are called for the recording; where types must be found
first, they are called without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from meshard.ops.engine.eager import WEAK
from meshard.ops.engine.later import AbstractArray
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid, local_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.flow.carries import Carry, Positions, arrays_of, outputs_alike, settled
from meshard.transforms.program.calls import ArrayCall, ForCall, ScanCall, SwitchCall, WhileCall
from meshard.transforms.program.program import Atom, Call, Program, Var, evaluate
from meshard.transforms.tracing.abstract import types_only
from meshard.transforms.tracing.recorder import Recorder
from meshard.transforms.tracing.tracing import recording, sub_program, unplaced_type


def strong(x: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """Return a value as an array of the trace at hand: a Python number becomes one."""
    recorder = recording()
    assert recorder is not None
    wanted = dtype or (as_array(x).dtype if type(x) in WEAK else x.dtype)
    if isinstance(x, Grid):
        if x.kind.weak is None:
            return x if x.dtype == wanted else x.astype(wanted)
        body = innermost()
        assert isinstance(body, Body)
        local = local_type(body.scope, (), wanted)
        made = abstract_grid(body, body.scope.kind(local, x.kind.extent, x.kind.varies))
        return recorder.made(ArrayCall(wanted), [x], [made])[0]
    if isinstance(x, AbstractArray) and x.weak is not None:
        kind = here().type_of((), wanted, x._type.sharding, False)
        return recorder.result(ArrayCall.name, (), [x], [(kind, None)], ArrayCall(wanted))[0]
    found = as_array(x)
    return found if found.dtype == wanted else found.astype(wanted)


def _lifted(x: Any) -> Any:
    body = innermost()
    return body.lift(x) if isinstance(body, Body) else x


def _written(
    recorder: Recorder, call: Call, operands: Sequence[Any], like: Sequence[Any]
) -> list[Any]:
    """Write a call down whose results are of the types of some values."""
    body = innermost()
    if isinstance(body, Body):
        return recorder.made(call, operands, [abstract_grid(body, x.kind) for x in like])
    types: list[tuple[ArrayType, None]] = [(unplaced_type(here(), x), None) for x in like]
    return list(recorder.result(call.name, (), operands, types, call))


def _strong_carry(carry: Carry) -> Carry:
    """Return a settled carry without numbers."""
    return carry.replaced([strong(_lifted(x)) for x in carry.leaves])


def _turn(carry: Carry, step: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    """Return a function from leaves to the leaves after a turn."""

    def turn(*leaves: Any) -> list[Any]:
        found = carry.replaced(list(leaves)).after(step).leaves
        return [strong(_lifted(x)) for x in found]

    return turn


def recorded_while(
    carry: Carry,
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    loop: Callable[..., Any],
) -> Any:
    """Write a while loop down and return its last carry.

    Args:
        carry: the first carry.
        cond_fun: from the carry's tree to the condition, checked.
        body_fun: from the carry's tree to the next.
        loop: what runs such a loop.
    """
    recorder = recording()
    assert recorder is not None
    carry = _strong_carry(settled(carry, body_fun, lambda v: _lifted(cond_fun(v))))
    cond, first = sub_program(
        "cond",
        lambda *leaves: [_lifted(cond_fun(carry.replaced(list(leaves)).value))],
        carry.leaves,
    )
    varies = frozenset[str]()
    (chosen,) = cond.outputs
    if carry.body is not None and isinstance(chosen, Var):
        varies = chosen.aval.vma
    body, second = sub_program("body", _turn(carry, body_fun), carry.leaves, varies)
    call = WhileCall(loop, cond, body)
    found = _written(recorder, call, [*first, *second, *carry.leaves], carry.leaves)
    return carry.replaced(found).value


def recorded_for(
    lower: Any,
    upper: Any,
    carry: Carry,
    body_fun: Callable[[Any, Any], Any],
    loop: Callable[..., Any],
) -> Any:
    """Write a counted loop down and return its last carry; its integer is a Python number."""
    recorder = recording()
    assert recorder is not None
    number = _number(carry.body)
    carry = _strong_carry(settled(carry, lambda value: body_fun(number, value)))
    body, captured = sub_program(
        "body",
        lambda i, *leaves: _turn(carry, lambda value: body_fun(i, value))(*leaves),
        [number, *carry.leaves],
    )
    call = ForCall(loop, body)
    found = _written(recorder, call, [lower, upper, *captured, *carry.leaves], carry.leaves)
    return carry.replaced(found).value


def _number(body: Body | None) -> Any:
    """Return an integer without value, which is a Python number."""
    dtype = np.dtype(np.int64)
    if body is not None:
        scope = body.scope
        return abstract_grid(body, scope.kind(local_type(scope, (), dtype), (), frozenset(), int))
    return AbstractArray(unplaced_type(here(), np.zeros((), dtype)), int)


def recorded_scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    carry: Carry,
    along: Positions,
    loop: Callable[..., Any],
) -> tuple[Any, Any]:
    """Write a scan down and return its last carry and its stacked results.

    Args:
        f: from the carry's tree and that of one position to the next carry and the results.
        carry: the first carry.
        along: the positions.
        loop: what runs a scan.
    """
    recorder = recording()
    assert recorder is not None
    samples = along.samples()
    carry = _strong_carry(
        settled(carry, lambda value: f(value, trees.unflatten(along.shape, samples))[0])
    )
    kept: list[Any] = []

    def turn(*leaves: Any) -> list[Any]:
        own, x = leaves[: len(carry.leaves)], leaves[len(carry.leaves) :]
        results: list[Any] = []

        def step(value: Any) -> Any:
            pair = f(value, trees.unflatten(along.shape, x))
            results.append(pair[1])
            return pair[0]

        after = _turn(carry, step)(*own)
        found, structure = trees.flatten(results[-1])
        kept.append(structure)
        rows = arrays_of(found, "scan: the results of a position")
        return [*after, *[strong(_lifted(y)) for y in rows]]

    body, captured = sub_program("body", turn, [*carry.leaves, *samples])
    call = ScanCall(loop, body, len(carry.leaves), along.count, along.reverse)
    like = [
        *carry.leaves,
        *[_stacked(v, along.count, carry.body) for v in body.outputs[len(carry.leaves) :]],
    ]
    operands = [*captured, *carry.leaves, *along.arrays]
    found = _written(recorder, call, operands, like)
    results = trees.unflatten(kept[-1], found[len(carry.leaves) :])
    return carry.replaced(found[: len(carry.leaves)]).value, results


def _stacked(atom: Any, count: int, body: Body | None) -> Any:
    """Return a value without data of the type of a position's results, stacked."""
    aval = atom.aval
    shape = (count, *aval.shape)
    if body is not None:
        local = local_type(body.scope, shape, aval.dtype)
        return abstract_grid(body, body.scope.kind(local, aval.extent, aval.varies))
    world = here()
    return AbstractArray(world.type_of(shape, aval.dtype, aval.sharding, False))


def _is_array(atom: Atom, dtype: np.dtype[Any]) -> bool:
    """Whether an atom is an array of a dtype, not a number."""
    return isinstance(atom, Var) and atom.weak is None and atom.aval.dtype == dtype


@final
class _Choice:
    """A choice that is written down: its branches, on flat arguments.

    Args:
        what: the function that was called.
        names: what messages call the branches.
        args: what each branch is called with.
    """

    def __init__(self, what: str, names: Sequence[str], args: tuple[Any, ...]) -> None:
        self.what, self.names = what, names
        self.leaves, self.shape = trees.flatten(args)
        # What is not an array is the same in all branches, and numbers stay numbers.
        self.places = [
            i for i, x in enumerate(self.leaves) if isinstance(_lifted(x), (AbstractArray, Grid))
        ]
        self.given = [_lifted(self.leaves[i]) for i in self.places]
        self.structures: list[Any] = []

    def flat(self, branch: Callable[..., Any]) -> Callable[..., list[Any]]:
        """Return a branch as a function from leaves to leaves; its tree is kept."""

        def call(*values: Any) -> list[Any]:
            own = list(self.leaves)
            for place, value in zip(self.places, values, strict=True):
                own[place] = value
            found, structure = trees.flatten(branch(*trees.unflatten(self.shape, own)))
            self.structures.append(structure)
            results = arrays_of(found, f"{self.what}: a result")
            return [x if type(x) in WEAK else _lifted(x) for x in results]

        return call

    def replay(self, number: int, part: Branch) -> Callable[..., Any]:
        """Return a branch that was written down as a function from leaves to its tree."""
        program, captured = part

        def call(*values: Any) -> Any:
            return trees.unflatten(self.structures[number], evaluate(program, captured, values))

        return call

    def typed(
        self, parts: Sequence[Branch], typed: Callable[[list[Callable[..., Any]]], Any]
    ) -> tuple[list[Any], Any]:
        """Return values of the types of the results, without data, and their tree."""
        replays = [self.replay(i, part) for i, part in enumerate(parts)]
        body = innermost()
        with types_only(body if isinstance(body, Body) else None):
            if isinstance(body, Body):
                like = typed([lambda *_, r=r: r(*self.given) for r in replays])
            else:
                like = outputs_alike(self.what, self.names, [r(*self.given) for r in replays])[0]
        leaves, structure = trees.flatten(like)
        return leaves, structure


Branch = tuple[Program, list[Any]]
"""A branch as a program, and what it captures."""


def recorded_switch(
    what: str,
    index: Any,
    branches: Sequence[tuple[str, Callable[..., Any]]],
    args: tuple[Any, ...],
    choose: Callable[..., Any],
    typed: Callable[[list[Callable[..., Any]]], Any],
) -> Any:
    """Write a choice down and return its result.

    Args:
        what: the function that was called.
        index: the number of the branch, without value.
        branches: the functions, each with what messages call it.
        args: what each is called with.
        choose: what runs such a choice on flat arguments.
        typed: runs the choice for its types alone, in a body.
    """
    recorder = recording()
    assert recorder is not None
    choice = _Choice(what, [name for name, _ in branches], args)
    varies = index.kind.varies if isinstance(index, Grid) else frozenset[str]()
    given = choice.given
    parts = [sub_program(n, choice.flat(b), given, varies) for n, b in branches]
    wanted, structure = choice.typed(parts, typed)
    dtypes = [x.dtype for x in wanted]
    parts = [
        part if _gives(part[0], dtypes) else sub_program(n, _as_dtypes(part, dtypes), given, varies)
        for (n, _), part in zip(branches, parts, strict=True)
    ]
    call = SwitchCall(choose, tuple([program for program, _ in parts]), what)
    operands = [index, *[x for _, captured in parts for x in captured], *given]
    return trees.unflatten(structure, _written(recorder, call, operands, wanted))


def _gives(program: Program, dtypes: Sequence[np.dtype[Any]]) -> bool:
    """Whether a program's results are arrays of some dtypes."""
    return all(
        isinstance(x, Var) and x.weak is None and x.aval.dtype == dtype
        for x, dtype in zip(program.outputs, dtypes, strict=True)
    )


def _as_dtypes(part: Branch, dtypes: Sequence[np.dtype[Any]]) -> Callable[..., list[Any]]:
    """Return a branch as a function whose results are arrays of some dtypes."""
    program, captured = part

    def convert(*values: Any) -> list[Any]:
        found = evaluate(program, captured, values)
        return [strong(_lifted(x), dtype) for x, dtype in zip(found, dtypes, strict=True)]

    return convert
