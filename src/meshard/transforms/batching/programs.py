"""Programs run for many examples at once: each operation takes one more dim where it must.

In: a program, and values of which some have a new first dim. Out: its results, and which have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, IndivisibleError
from meshard.ops.array.elementwise import where
from meshard.ops.array.shape import moveaxis
from meshard.ops.derivatives.kinds import is_differentiable
from meshard.ops.engine.later import Advised, OfExamples, OfRow
from meshard.ops.lax.reduce import stop_gradient
from meshard.ops.linalg.decompose import SPLIT
from meshard.ops.reductions.reduce import any as any_
from meshard.runtime.callers import at_line
from meshard.runtime.doors import bind, innermost
from meshard.transforms.batching.named import is_over, over_examples
from meshard.transforms.batching.rows import bound, sorted_along, spread
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid, local_type
from meshard.transforms.body.mapped_axes import Examples, MappedAxis, axis_bound
from meshard.transforms.flow.carries import unplaced_value
from meshard.transforms.flow.control_flow import fori_loop, scan, while_loop
from meshard.transforms.program.calls import (
    AlikeCall,
    Around,
    ArrayCall,
    ConstraintCall,
    ForCall,
    MakeCall,
    NumberCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
    WholeCall,
)
from meshard.transforms.program.program import (
    Eqn,
    Literal,
    Program,
    Var,
    is_of_numbers,
    number_of,
)
from meshard.transforms.tracing.abstract import weak_type
from meshard.transforms.tracing.tracing import sub_program

Flags = Sequence[bool]
Found = tuple[list[Any], list[bool]]


def run_batched(program: Program, values: Sequence[Any], flags: Flags, size: int) -> Found:
    """Run a program.

    Args:
        program: the program.
        values: what it captures, then its arguments.
        flags: which of them have the new dim.
        size: its size.
    """
    known: dict[Var, tuple[Any, bool]] = {
        v: (x, has)
        for v, x, has in zip((*program.captured, *program.inputs), values, flags, strict=True)
    }

    def read(atom: Any) -> tuple[Any, bool]:
        return (atom.value, False) if isinstance(atom, Literal) else known[atom]

    for eqn in program.eqns:
        operands, own = (
            (list(x) for x in zip(*map(read, eqn.inputs), strict=True)) if eqn.inputs else ([], [])
        )
        with at_line(eqn.line, eqn.purpose):
            results, made = _eqn(eqn, operands, own, size)
        for var, result, has in zip(eqn.outputs, results, made, strict=True):
            known[var] = result, has
    found = [read(x) for x in program.outputs]
    return [x for x, _ in found], [has for _, has in found]


def _eqn(eqn: Eqn, operands: list[Any], flags: list[bool], size: int) -> Found:
    if eqn.call is None and is_over(eqn.name, dict(eqn.params), size):
        found, has = over_examples(eqn.name, operands, flags, dict(eqn.params), size)
        return [found], [has]
    if not any(flags) and not _holds_name(eqn, size):
        if eqn.call is not None:
            results = eqn.call.run(operands)
        elif is_of_numbers(eqn, operands):
            results = [number_of(eqn, operands)]
        else:
            found = bind(eqn.name, *operands, **dict(eqn.params))
            results = list(found) if isinstance(found, tuple) else [found]
        return results, [False] * len(results)
    if eqn.call is not None:
        return CALLS[type(eqn.call)](eqn.call, operands, flags, size)
    results = bound(eqn.name, operands, flags, dict(eqn.params), size)
    return results, [True] * len(results)


def run_example(
    name: str, f: Callable[..., Sequence[Any]], values: Sequence[Any], size: int
) -> Found:
    """Write a function of one example down, and run it for all.

    Args:
        name: what messages call it.
        f: the function, from flat values to flat values.
        values: its arguments, which have the new dim in front.
        size: its size, with the name by which the function knows the dim.
    """
    body = innermost()
    like: list[Any] = []
    if isinstance(body, Body):
        values = [body.lift(x) for x in values]
    for x in values:
        if isinstance(body, Body):
            local = local_type(body.scope, x.shape[1:], x.dtype)
            like.append(abstract_grid(body, body.scope.kind(local, x.kind.extent, x.kind.varies)))
        else:
            like.append(unplaced_value(x.shape[1:], x.dtype))
    with axis_bound(size.axis if isinstance(size, Examples) else None):
        program, captured = sub_program(name, f, like, by="vmap")
    flags = [*[False] * len(captured), *[True] * len(values)]
    return run_batched(program, [*captured, *values], flags, size)


def every(values: Sequence[Any], flags: Flags, size: int) -> list[Any]:
    """Return values of which each has the new dim."""
    return [x if has else spread(x, size) for x, has in zip(values, flags, strict=True)]


# calls


def _constraint(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    sharding = call.sharding
    if isinstance(sharding, NamedSharding):
        own: Any = _split(size) or PartitionSpec.UNCONSTRAINED
        spec = PartitionSpec(own, *sharding.spec)
        uneven: Any = sharding.uneven
        uneven = (None, *uneven) if isinstance(uneven, tuple) else uneven
        sharding = NamedSharding(sharding.mesh, spec, uneven=uneven)
        return ConstraintCall(sharding, call.what).run(operands), [True]
    return [operands[0]], [True]


def _alike(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    return [operands[0]], [flags[0]]


def _number(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    return [operands[0].astype(call.dtype)], [True]


def _same(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    return operands, flags


def _made(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    """Make arrays of keys: as the row does it that draws from a key without a value."""
    assert isinstance(call.make, OfRow), call.name
    name, params = call.make.row
    found = bound(name, operands, flags, params, size)
    if call.asked:
        return _constraint(ConstraintCall(call.type_.sharding), found, [True], size)
    return found, [True]


def _whole(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    if _is_advised(call):
        return _followed(call, operands, flags, size)
    if isinstance(call.function, OfExamples):
        of_all = replace(call, function=call.function.of_examples(flags, int(size)))
        results = of_all.run(operands)
        return results, [True] * len(results)
    given = every(operands, flags, size)
    if call.name == "sort" and "dim" not in call.params:  # of one dim
        results = sorted_along(given, call.params["descending"])
    else:
        results = _of_all(call, size).run(given)
    return results, [True] * len(results)


def _is_advised(call: Any) -> bool:
    function = call.function
    return isinstance(function.call.function if isinstance(function, Around) else function, Advised)


def _of_all(call: WholeCall, size: int) -> WholeCall:
    """Return a function of one example as one of all, whose operands all have the dim."""
    if isinstance(call.function, Around):
        return replace(call, function=call.function.of(_of_all(call.function.call, size)))
    params = dict(call.params)
    if "examples" in params:
        params["examples"] += 1
    if "dim" in params:
        params["dim"] += 1
    elif "work" in params:
        params["work"] = tuple([(d + 1, n) for d, n in params["work"]])
    elif call.name == "full_like":
        params["shape"] = (size, *params["shape"])
    elif call.name != "solve_triangular" and call.name not in SPLIT:  # they are of the last dims
        params["axis"] = tuple([d + 1 for d in params["axis"]])
    return replace(call, params=params)


def _followed(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    """Follow a function that may be worked out wherever its operands are."""

    def one(*own: Any) -> list[Any]:
        rest = iter(own)
        given = [next(rest) if has else x for x, has in zip(operands, flags, strict=True)]
        found: list[Any] = call.at_once(given)
        return found

    mapped = [x for x, has in zip(operands, flags, strict=True) if has]
    return run_example(call.name, one, mapped, size)


def flat_of(program: Program, size: int, flags: Flags) -> Callable[..., list[Any]]:
    """Return a program as a function whose results all have the new dim."""

    def run(*values: Any) -> list[Any]:
        found, has = run_batched(program, values, flags, size)
        return every(found, has, size)

    return run


def _scan(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    captured, init, xs = call.split_operands(operands)
    own, _, rows = call.split_operands(flags)
    carry = every(init, call.split_operands(flags)[1], size)
    moved = [moveaxis(x, 0, 1) if has else x for x, has in zip(xs, rows, strict=True)]
    run = flat_of(call.body, size, [*own, *[True] * len(carry), *rows])

    def step(state: Any, x: Any) -> Any:
        found = run(*captured, *state, *x)
        return found[: call.carried], found[call.carried :]

    last, results = scan(step, carry, moved, length=call.length, reverse=call.reverse)
    found = [*last, *[moveaxis(y, 0, 1) for y in results]]
    return found, [True] * len(found)


def _for(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    (lower, upper), captured, init = call.split_operands(operands)
    bounds, own, given = call.split_operands(flags)
    carry = every(init, given, size)
    run = flat_of(call.body, size, [*own, False, *[True] * len(carry)])
    if not any(bounds):
        last = fori_loop(lower, upper, lambda i, state: run(*captured, i, *state), carry)
        return list(last), [True] * len(last)
    first, end = every([lower, upper], bounds, size)
    inner = flat_of(call.body, size, [*own, True, *[True] * len(carry)])

    def turn(state: Any) -> Any:
        i, values = state
        goes_on = i < end
        after = inner(*captured, i, *values)
        return i + 1, [_chosen(goes_on, a, b) for a, b in zip(after, values, strict=True)]

    _, last = while_loop(lambda state: any_(state[0] < end), turn, (first, carry))
    return list(last), [True] * len(last)


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    """Return values where a condition of one dim holds, others elsewhere."""
    shape = (*condition.shape, *[1] * (one.ndim - 1))
    return where(condition.reshape(shape), one, other)


def _while(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    first, second, init = call.split_operands(operands)
    one, two, given = call.split_operands(flags)
    carry = every(init, given, size)
    every_one = [True] * len(carry)
    turn = flat_of(call.body, size, [*two, *every_one])

    def holds(state: Any) -> Any:
        found, has = run_batched(call.cond, [*first, *state], [*one, *every_one], size)
        return found[0], has[0]

    def step(state: Any) -> Any:
        goes_on, has = holds(state)
        after = turn(*second, *state)
        if not has:
            return after
        return [_chosen(goes_on, a, b) for a, b in zip(after, state, strict=True)]

    def test(state: Any) -> Any:
        goes_on, has = holds(state)
        return any_(goes_on) if has else goes_on

    last = while_loop(test, step, carry)
    return list(last), [True] * len(last)


def _switch(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    number, captured, args = call.split_operands(operands)
    chosen, own, given = call.split_operands(flags)
    if chosen:
        return _selected(call, operands, flags, size)
    branches = [
        flat_of(program, size, [*mine, *given])
        for program, mine in zip(call.branches, own, strict=True)
    ]

    def branch(run: Any, values: list[Any]) -> Any:
        return lambda *now: run(*values, *now)

    taken = [branch(run, x) for run, x in zip(branches, captured, strict=True)]
    found = call.choose(number, taken, *args)
    return list(found), [True] * len(found)


def _selected(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    """Run all branches for all examples, and choose between their results."""
    number, captured, args = call.split_operands(operands)
    _, own, given = call.split_operands(flags)
    last = len(call.branches) - 1
    results = []
    for k, program in enumerate(call.branches):
        taken = number <= k if k == 0 else number >= k if k == last else number == k
        values, mine = [*captured[k], *args], [*own[k], *given]
        moves = [has or _can_move(x) for x, has in zip(values, mine, strict=True)]
        wide = [
            every([x], [has], size)[0] if moving else x
            for x, has, moving in zip(values, mine, moves, strict=True)
        ]
        values = [_guarded(taken, x) for x in wide]
        results.append(flat_of(program, size, moves)(*values))
    found = list(results[-1])
    for k, row in reversed(list(enumerate(results[:-1]))):
        found = [_chosen(number <= k, a, b) for a, b in zip(row, found, strict=True)]
    return found, [True] * len(found)


def _guarded(taken: Any, x: Any) -> Any:
    """Return an operand of a branch, through which no derivative of other examples passes.

    What a branch makes of an example that does not take it may be infinite, which zero times
    cannot undo: ``where(x > 0, log(x), x)`` has no gradient at 0, but `cond` has one.
    """
    return _chosen(taken, x, stop_gradient(x)) if _can_move(x) else x


def _can_move(x: Any) -> bool:
    """Whether a value may have a derivative; a Python number stays one."""
    return weak_type(x) is None and is_differentiable(x)


def _split(size: int) -> tuple[str, ...]:
    """Return the mesh axes that the examples are to be split over."""
    return size.split if isinstance(size, Examples) else ()


def _mapped(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    captured, _ = call.split_operands(operands)
    split = _split(size)
    front = split or None
    own = [*[PartitionSpec()] * len(captured), *call.in_specs]
    ins = tuple([PartitionSpec(front, *s) if has else s for s, has in zip(own, flags, strict=True)])
    outs = [PartitionSpec(front, *s) for s in call.out_specs]
    if split:
        size = _share(call, split, size)
    found = call.remapped(ins, outs, flat_of(call.body, size, flags))(*operands)
    return list(found), [True] * len(found)


def _share(call: Any, split: tuple[str, ...], size: int) -> Examples:
    """Return how many of the examples a device has in a body, where they have no name."""
    axis = size.axis if isinstance(size, Examples) else None
    if axis is not None and is_named(call.body, axis):
        raise ArgumentError(
            f"vmap: spmd_axis_name={split} splits the examples over devices in the shard_map at "
            f"hand, so that a collective in it cannot be over axis_name={axis!r}. Name the mesh "
            "axes in the collective, and leave out spmd_axis_name and that dim of the specs."
        )
    count = math.prod([call.mesh.shape[a] for a in split if a in call.mesh.shape])
    if size % count:
        raise IndivisibleError(
            f"vmap: spmd_axis_name={split} splits {int(size)} examples over {count} devices in "
            "shard_map, which is not possible evenly. Map a multiple of that."
        )
    return Examples(size // count)


def _holds_name(eqn: Eqn, size: int) -> bool:
    """Whether a call holds a collective over the dim."""
    axis = size.axis if isinstance(size, Examples) else None
    if axis is None or eqn.call is None:
        return False
    return any(is_named(p, axis) for _, p in eqn.call.programs)


def is_named(program: Program, axis: MappedAxis) -> bool:
    """Whether a collective of a program, or of one that it holds, is over an axis."""
    for eqn in program.eqns:
        params: dict[str, Any] = dict(eqn.params)
        inner = () if eqn.call is None else eqn.call.programs
        if axis in params.get("axes", ()) or any(is_named(p, axis) for _, p in inner):
            return True
    return False


CALLS: dict[type[Any], Callable[[Any, list[Any], list[bool], int], Found]] = {
    AlikeCall: _alike,
    ConstraintCall: _constraint,
    ArrayCall: _number,
    MakeCall: _made,
    NumberCall: _same,
    WholeCall: _whole,
    ScanCall: _scan,
    ForCall: _for,
    WhileCall: _while,
    SwitchCall: _switch,
    ShardMapCall: _mapped,
}
"""How each kind of call takes one more dim."""
