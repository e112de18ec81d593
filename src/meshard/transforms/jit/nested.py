"""Jitted functions that others call: traced once per signature, then copied into their callers.

In: a function, and values of the program that is being written. Out: its results there. The copy
costs no Python of the function's own. A trace that depends on values of the program at hand, which
the function closes over, is kept for as long as that program is written.

Jitted functions that are mapped: one compiled program for all examples.

In: the program of a jitted function that vmap has met, and operands of which some have the new dim.
Out: the results of a program of all examples, which is made once for each program and lowered once
for each layout of what it reads, as jit does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, ModuleType
from typing import Any, final

from meshard.ops.engine.eager import WEAK
from meshard.ops.engine.later import AbstractArray, weak_of
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.callers import is_ours
from meshard.runtime.doors import current, innermost
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.transforms.batching.programs import CALLS, Found, run_batched
from meshard.transforms.body.body import Body
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.mapped_axes import Examples, mapped_axes
from meshard.transforms.derivatives.levels import Level
from meshard.transforms.jit.derived import JittedCall, jitted_call
from meshard.transforms.jit.stages import Programs
from meshard.transforms.program.program import Literal, Program, Var
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.abstract import is_abstract
from meshard.transforms.tracing.recorder import Recorder, Tracer
from meshard.transforms.tracing.tracing import (
    Typed,
    recording,
    recording_around,
    sub_program,
    traced,
    unplaced_type,
)

_MOST_SEEN = 4096
"""How many objects are searched for arrays, and how many items of one, before that ends."""

Flat = Callable[..., tuple[Sequence[Any], Any]]


@final
@dataclass(frozen=True, slots=True)
class Nested:
    """The trace of a function inside another.

    Attributes:
        program: its operations.
        captured: the values that it closes over, arrays or values of the program around it.
        tree: the tree of its results.
        closure: the arrays that the function's variables from around it held.
    """

    program: Program
    captured: tuple[Any, ...]
    tree: Any
    closure: tuple[Any, ...]

    @property
    def lasting(self) -> bool:
        """Whether it holds for other programs too."""
        return not any(isinstance(x, Traced) for x in (*self.captured, *self.closure))

    def serves(self, closure: Sequence[Any], recorder: Recorder | None) -> bool:
        """Whether it is what the function would do now: what it closes over has not changed."""
        return (
            len(closure) == len(self.closure)
            and all(a is b for a, b in zip(closure, self.closure, strict=True))
            and all(
                recorder is not None and recorder.encloses(x.recorder)
                for x in self.captured
                if isinstance(x, Tracer)
            )
        )


def is_traced_here(leaves: Sequence[Any]) -> bool:
    """Whether what becomes of some arguments is written down, or matters for its types alone."""
    if not any(isinstance(x, Traced) for x in leaves):
        return False
    return is_abstract() or (recording() is not None and not current().layouts_known)


def following() -> Level | None:
    """Return the level that follows the code at hand, if its operations run at once."""
    found = innermost()
    return found if isinstance(found, Level) and found.runs else None


def is_followed(f: Callable[..., Any], leaves: Sequence[Any]) -> bool:
    """Whether a function works on values of the code at hand: its arguments, or around it."""
    return any(isinstance(x, Traced) for x in (*leaves, *_closure(f)))


def result_of(
    programs: Programs,
    key: tuple[Hashable, ...],
    name: str,
    f: tuple[Callable[..., Any], Flat],
    leaves: Sequence[Any],
    origins: Sequence[str],
) -> Any:
    """Return a function's results as values of the program that is being written.

    Args:
        programs: what is known of the function.
        key: what its trace depends on besides the arguments.
        name: the function's name.
        f: the function itself, and as one of flat arguments that returns its results flat, with
            their tree.
        leaves: the flat arguments: arrays, values of the program, and Python numbers.
        origins: what each is, for messages.
    """
    key = (*key, *mapped_axes().items())
    recorder, body = recording_around(), innermost()
    inside = body if isinstance(body, Body) else None
    kinds: list[Any] = []
    given: list[Any] = []
    for x in leaves:
        if type(x) in WEAK:
            kinds.append(type(x) if inside is None else (type(x), repr(x)))
        else:
            x = x if inside is None else inside.lift(x)
            kinds.append(_kind(x))
        given.append(x)
    around: Hashable = None
    if inside is not None:  # results vary over the axes of the condition that the code is under
        mask = inside.mask
        around = inside.scope, None if mask is None else (mask.axes, mask.varies)
    found = _known(programs, (*key, tuple(kinds)), around, _closure(f[0]), recorder)
    if found is None:
        found = _traced(name, f[1], given, origins, inside, _closure(f[0]))
        _keep(programs, (*key, tuple(kinds)), around, found, recorder)
    values = (*found.captured, *_variables(given, inside))
    if recorder is None or is_abstract():
        results = _types(found.program, values)
    elif following() is not None or (inside is None and recorder.runs):
        told = [x.removeprefix("the argument ") for x in origins]
        results = jitted_call(found.program, name, told).run(values)
    else:
        results = recorder.copied(found.program, values)
    return trees.unflatten(found.tree, results)


def _known(
    programs: Programs,
    signature: tuple[Hashable, ...],
    around: Hashable,
    closure: tuple[Any, ...],
    recorder: Recorder | None,
) -> Nested | None:
    """Return the trace of a signature, if there is one that holds here."""
    outside = programs.traces.get(signature) if around is None else None
    if outside is not None and not any(isinstance(x, Traced) for x in closure):
        return Nested(outside.program, outside.captured, outside.out_tree, closure)
    here_only = {} if recorder is None else recorder.root.nested.get(programs, {})
    for known in (programs.nested, here_only):
        found: Nested | None = known.get((signature, around))
        if found is not None and found.serves(closure, recorder):
            return found
    return None


def _keep(
    programs: Programs,
    signature: tuple[Hashable, ...],
    around: Hashable,
    made: Nested,
    recorder: Recorder | None,
) -> None:
    """Keep a trace for as long as it can hold."""
    if made.lasting:
        programs.keep(programs.nested, (signature, around), made)
    elif recorder is not None and _told_by(made.closure, made.captured):
        recorder.root.nested.setdefault(programs, {})[signature, around] = made


def _types(program: Program, values: Sequence[Any]) -> list[Any]:
    """Return the results of a program as values of which only the types are known."""
    known = dict(zip((*program.captured, *program.inputs), values, strict=True))
    found: list[Any] = []
    for x in program.outputs:
        if isinstance(x, Literal):
            found.append(x.value)
        elif x in known:
            found.append(known[x])
        else:
            assert isinstance(x.aval, ArrayType)
            found.append(AbstractArray(x.aval, x.weak))
    return found


def _kind(x: Any) -> Hashable:
    """Return what a trace depends on of an argument."""
    if isinstance(x, Grid):
        return x.kind
    weak: Any = weak_of(x)
    return weak or (x.shape, x.dtype)


def _variables(given: Sequence[Any], inside: Body | None) -> list[Any]:
    """Return the arguments that a program reads: in a body numbers are part of it."""
    return [x for x in given if inside is None or type(x) not in WEAK]


def _traced(
    name: str,
    flat: Flat,
    given: Sequence[Any],
    origins: Sequence[str],
    inside: Body | None,
    closure: tuple[Any, ...],
) -> Nested:
    world, trees_found = here(), []
    like: list[Any] = []
    for x in _variables(given, inside):
        if inside is not None:
            like.append(x)
        elif type(x) in WEAK:
            like.append(AbstractArray(unplaced_type(world, as_array(x)), type(x)))
        else:
            like.append(AbstractArray(unplaced_type(world, x), weak_of(x)))

    def called(*values: Any) -> list[Any]:
        own = iter(values)
        every = [x if inside is not None and type(x) in WEAK else next(own) for x in given]
        results, tree = flat(*every)
        trees_found.append(tree)
        return [x if type(x) in WEAK or isinstance(x, Traced) else as_array(x) for x in results]

    program, captured = sub_program(name, called, like, origins=origins)
    return Nested(program, tuple(captured), trees_found[-1], closure)


def _closure(f: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the arrays, and values of programs, that a function can see from around it.

    They are looked for in its variables and its object's, in globals that it names, and in the
    user's own functions and objects among these.
    """
    found: list[Any] = []
    waiting, seen = [f], set[int]()
    while waiting and len(seen) < _MOST_SEEN:
        own = waiting.pop()
        if id(own) in seen:
            continue
        seen.add(id(own))
        for x in trees.leaves(_held(own)):
            if isinstance(x, (Array, Traced)):
                found.append(x)
            elif isinstance(x, partial) or not is_ours(type(x).__module__):
                waiting.append(x)
    return tuple(found)


def _held(own: Any) -> list[Any]:
    """Return what a function, or an object, holds."""
    if isinstance(own, partial):
        return [own.func, own.args, own.keywords]
    if isinstance(own, (type, ModuleType)) or is_ours(getattr(own, "__module__", None) or ""):
        return []
    held: list[Any] = [getattr(own, "__self__", None), getattr(own, "__wrapped__", None)]
    for cell in getattr(own, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it may not be set yet
            held.append(cell.cell_contents)
    code = getattr(own, "__code__", None)
    if isinstance(code, CodeType):
        names = getattr(own, "__globals__", {})
        held += [names[n] for n in code.co_names if n in names]
    else:
        held += getattr(own, "__dict__", {}).values()
    return [x for x in held if not isinstance(x, (list, dict, tuple)) or len(x) < _MOST_SEEN]


def _told_by(closure: Sequence[Any], captured: Sequence[Any]) -> bool:
    """Whether all values of a program that a function captures are in its own variables."""
    held = {id(x) for x in closure}
    return all(type(x) is Array or (isinstance(x, Tracer) and id(x) in held) for x in captured)


def _type(var: Var, has: bool, size: int) -> Typed:
    """Return the type of an operand for all examples."""
    kind: Any = var.aval
    if not has:
        return kind, var.weak
    return here().type_of((int(size), *kind.shape), kind.dtype, kind.sharding, False), None


def _mapped(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    own = (size.axis, size.split) if isinstance(size, Examples) else None
    key = JittedCall, tuple(flags), int(size), own
    known = call.program.made.get(key)
    if known is None:
        known = call.program.made[key] = _of_all(call, flags, size)
    whole, has = known
    return whole.run(operands), list(has)


def _of_all(call: JittedCall, flags: list[bool], size: int) -> tuple[JittedCall, list[bool]]:
    """Return a program for all examples, and which of its results have the dim."""
    constants = list(call.constants)
    every = [*[False] * len(constants), *flags]

    def flat(*values: Any) -> tuple[list[Any], list[bool]]:
        return run_batched(call.program, [*constants, *values], every, size)

    types = [_type(v, has, size) for v, has in zip(call.program.inputs, flags, strict=True)]
    program, captured, has = traced(call.name, flat, types, call.told)
    short, used = simplified(program)
    return JittedCall(short, call.name, call.told, tuple([captured[i] for i in used])), has


CALLS[JittedCall] = _mapped
