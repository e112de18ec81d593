"""Tracing: running a function on values without data, to write down what it does.

In: a function, and the types of its arguments. Out: a `Program` and the values that it captures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from meshard.ops.engine.eager import EAGER, WEAK
from meshard.ops.engine.later import AbstractArray, Weak, inferred, number_type, weak_of
from meshard.runtime.array.array import Array
from meshard.runtime.array.at import writing
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import Interpreter, Params, innermost, interpreters, interpreting
from meshard.runtime.moving.place import as_array, home
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld, here
from meshard.transforms.body.body import COLLECTIVES, Body
from meshard.transforms.body.grid import Grid
from meshard.transforms.program.calls import MakeCall, WholeCall
from meshard.transforms.program.program import Kind, Program
from meshard.transforms.program.simplify import without_unneeded
from meshard.transforms.tracing.abstract import types_only, written_type
from meshard.transforms.tracing.recorder import Recorder, Tracer

Typed = tuple[ArrayType, Weak]


@final
class Tracing(Interpreter):
    """The interpreter of a function that is being traced, outside of `shard_map` bodies.

    Operations on arrays that exist already are run at once: their results are constants.
    """

    in_program = True

    def __init__(self, recorder: Recorder, layouts_known: bool = False) -> None:
        self.recorder = recorder
        self.layouts_known = layouts_known

    def _kind(self, world: RuntimeWorld, x: Any) -> ArrayType:
        kind: ArrayType = x._type
        return kind if self.layouts_known else unplaced_type(world, x)

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Write one operation down and return its result without data, or a tuple of results."""
        if name in COLLECTIVES:
            return self._collective(name, operands, params)
        if not any(isinstance(x, Traced) for x in operands):
            with interpreting(EAGER):
                return EAGER.run(name, operands, params)
        world = here()
        values: list[Any] = []
        types: list[tuple[ArrayType | type, Weak]] = []
        for x in operands:
            if type(x) in WEAK:
                types.append((type(x), number_type(x)))
            elif isinstance(x, int):  # a Python number of a kind of its own
                x = int(x)
                types.append((int, int))
            else:
                x = as_array(x)
                types.append((self._kind(world, x), weak_of(x)))
            values.append(x)
        if not any(isinstance(t, ArrayType) for t, _ in types):
            values[0] = as_array(values[0])
            types[0] = self._kind(world, values[0]), types[0][1]
        found = inferred(world, name, types, params)
        results = self.recorder.result(name, params, values, found)
        return results[0] if len(results) == 1 else tuple(results)

    def _collective(self, name: str, operands: Sequence[Any], params: Params) -> Any:
        """Write a collective over axes that `vmap` has bound down."""
        given = [as_array(x) for x in operands]
        return self.recorder.result(
            name, params, given, [(written_type(name, given, params), None)]
        )[0]

    def when_laid_out(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Write a function down that is followed when its operands' layouts are known."""
        if self.layouts_known:
            return function(*operands, **params)
        return self._whole(name, function, operands, params, False)

    def make_later(
        self,
        name: str,
        type_: ArrayType,
        make: Callable[..., Any],
        operands: Sequence[Any],
        asked: bool,
        place: Callable[[ArrayType], ArrayType] | None,
    ) -> Any:
        """Write down that an array is made when the program runs."""
        given = [as_array(x) for x in operands]
        call = MakeCall(name, type_, make, asked, place)
        world = here()
        found = type_ if self.layouts_known else unplaced_type(world, type_)
        return self.recorder.result(name, (), given, [(found, None)], call)[0]

    def at_run_time(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Write a function down that is called with arrays when the program runs."""
        return self._whole(name, function, operands, params, True)

    def _whole(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
        values: bool,
    ) -> Any:
        world = here()
        given = [as_array(x) for x in operands]
        with types_only(None):
            like = function(*[AbstractArray(self._kind(world, x)) for x in given], **params)
        several = isinstance(like, (list, tuple))
        types = [(self._kind(world, x), None) for x in (like if several else [like])]
        call = WholeCall(name, function, params, several, values)
        results = self.recorder.result(name, (), given, types, call)
        return results if several else results[0]


def unplaced_type(world: RuntimeWorld, x: Any) -> ArrayType:
    """Return the type of an array as it is while a program is traced: on no devices yet."""
    return world.type_of(x.shape, x.dtype, home(world), False)


def typed(x: Any) -> Typed:
    """Return the type of a value while a program is traced, and the Python number that it is."""
    if type(x) in WEAK:
        return unplaced_type(here(), as_array(x)), number_type(x)
    return unplaced_type(here(), x), weak_of(x)


def abstract_value(world: RuntimeWorld, kind: Kind) -> AbstractArray:
    """Return a value without data of a type, or that stands for a Python number of one."""
    if isinstance(kind, ArrayType):
        return AbstractArray(kind)
    return AbstractArray(unplaced_type(world, as_array(kind(0))), kind)


class Following(Interpreter):
    """An interpreter that has a recorder, but runs what is written down.

    Attributes:
        recorder: what stands for it where code writes operations down.
    """

    recorder: Any


_RECORDING = (Tracing, Body, Following)


def tracing() -> Tracing | None:
    """Return the interpreter at hand if it traces; None otherwise."""
    found = innermost()
    return found if isinstance(found, Tracing) else None


def recording() -> Recorder | None:
    """Return the recorder of the operations at hand; None if they run, or only types matter."""
    found = innermost()
    return found.recorder if isinstance(found, _RECORDING) else None


def recording_around() -> Recorder | None:
    """Return the recorder of the operations at hand, or of the code around; None if there is none.

    Code that is evaluated for its types alone may be inside code that is written down.
    """
    for interpreter in reversed(interpreters()):
        if isinstance(interpreter, _RECORDING) and interpreter.recorder is not None:
            found: Recorder = interpreter.recorder
            return found
    return None


@contextlib.contextmanager
def _written(recorder: Recorder, varies: frozenset[str]) -> Iterator[None]:
    """Write down the operations within; in a body, those of devices that a condition chose."""
    body = innermost()
    if not isinstance(body, Body):
        with interpreting(Tracing(recorder)):
            yield
        return
    with types_only(body, varies):
        body.recorder = recorder
        yield


def sub_program(
    name: str,
    f: Callable[..., Sequence[Any]],
    like: Sequence[Any],
    varies: frozenset[str] = frozenset(),
    origins: Sequence[str] = (),
    by: str = "jit",
) -> tuple[Program, list[Any]]:
    """Return a part of the function at hand as a program of its own, and what it captures.

    Operations that no result needs are left out.

    Args:
        name: what the part is called.
        f: from values to the values that it returns.
        like: values without data, of the types of its arguments.
        varies: in a body the axes over which a condition varies that decides whether it runs.
        origins: what messages call each argument.
        by: what messages call the transformation that writes it down.
    """
    recorder = Recorder(name, recording_around(), by)
    given = []
    for number, x in enumerate(like):
        if isinstance(x, Grid):
            value: Any = Grid(x.body, x.kind, (None,) * len(x.cells))
            recorder.input(value)
        else:
            origin = origins[number] if origins else f"operand {number}"
            value = recorder.argument(*typed(x), origin)
        given.append(value)
    try:
        with _written(recorder, varies):
            program, captured = recorder.finish(f(*given))
    finally:
        recorder.close()
    needed, kept = without_unneeded(program)
    return needed, [captured[i] for i in kept]


def traced(
    name: str,
    f: Callable[..., tuple[Sequence[Any], Any]],
    types: Sequence[Typed],
    origins: Sequence[str],
    placed: bool = False,
) -> tuple[Program, list[Any], Any]:
    """Trace a function.

    Args:
        name: what it is called.
        f: from the flat arguments to its flat results, and whatever else is to be kept.
        types: the arguments' types.
        origins: what each argument is, for messages.
        placed: whether the types say how the arguments are laid out.

    Returns:
        The program, the arrays that it captures, and what else the function returned.
    """
    recorder = Recorder(name)
    given = [recorder.argument(t, w, o) for (t, w), o in zip(types, origins, strict=True)]
    try:
        with interpreting(Tracing(recorder, placed)):
            results, rest = f(*given)
            results = [
                x if type(x) in WEAK or isinstance(x, Tracer) else as_array(x) for x in results
            ]
        program, captured = recorder.finish(results)
    finally:
        recorder.close()
    assert all(type(x) is Array for x in captured), captured
    if writing():  # constants stay what they are
        captured = [x.copy() for x in captured]
    return program, captured, rest
