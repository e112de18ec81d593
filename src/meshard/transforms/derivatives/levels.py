"""Levels: interpreters that follow a function while it runs, to differentiate it.

In: operations on values of which some depend on the inputs. Out: what they return, computed a level
below: at once, or as part of a program that is being traced there. So levels nest, in one another
and in all other transformations, and code sees the values that there are.

Outside of `shard_map` bodies such a value is a `Dual`, which wraps one of the level below. Inside,
where values belong to their body, it is a grid that the level knows by identity.
"""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from meshard.errors import ConcretizationError
from meshard.ops.derivatives.kinds import Site, is_differentiable
from meshard.ops.engine.eager import EAGER, WEAK
from meshard.ops.engine.later import weak_of
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.callers import user_line
from meshard.runtime.doors import Params, beneath, bind, current, interpreters, interpreting
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayType, Block
from meshard.transforms.body.body import Body
from meshard.transforms.body.grid import Grid
from meshard.transforms.program.calls import ConstraintCall, WholeCall
from meshard.transforms.program.program import Call, Program, evaluate
from meshard.transforms.tracing.recorder import Recorder, Tracer
from meshard.transforms.tracing.tracing import Following, Tracing, recording_around


@final
class Dual(Tracer):
    """A value of a level, outside of `shard_map` bodies.

    Attributes:
        value: what it is a level below: an array, a value without data, or a Python number.
        tangent: how it changes with the inputs, where tangents are pushed forward.
    """

    __slots__ = ("tangent", "value")

    def __init__(self, recorder: LevelRecorder, value: Any, tangent: Any = None) -> None:
        weak = type(value) if type(value) in WEAK else weak_of(value)
        kind: ArrayType = as_array(value)._type
        super().__init__(recorder, kind, weak, "a value that is differentiated")
        self.value = value
        self.tangent = tangent

    def _concrete(self, what: str) -> Block:
        self._check_followed()
        if isinstance(self.value, Traced):
            return self.value._concrete(what)
        return np.asarray(self.value)

    def _known_array(self, what: str) -> Any:
        self._check_followed()
        return self.value._known_array(what) if isinstance(self.value, Traced) else self.value

    def _check_followed(self) -> None:
        assert isinstance(self.recorder, LevelRecorder)
        if self.recorder.closed or self.recorder.level not in interpreters():
            raise ConcretizationError(self._stray())

    def _lost(self, what: str) -> ConcretizationError:
        return ConcretizationError(
            f"{what} takes the value out of {self.recorder.root.name}, which follows "
            f"{self._told()} to differentiate it, so that what becomes of it there would have no "
            f"derivative. It is asked for at {user_line()}. Use the functions of meshard.numpy, "
            "or meshard.lax.stop_gradient(x) where no derivative is wanted."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Block:
        raise self._lost("A NumPy function")

    def __float__(self) -> float:
        raise self._lost("float()")

    def __complex__(self) -> complex:
        raise self._lost("complex()")

    def tolist(self) -> Any:
        """Refuse: the numbers would be constants."""
        raise self._lost("tolist()")

    @property
    def sharding(self) -> Any:
        """How the value below is laid out."""
        return self.value.sharding

    def _stray(self) -> str:
        if not self.recorder.closed:
            return (
                f"{self._told()} is a value that {self.recorder.root.name} follows, and a function "
                f"with a derivative of its own uses it at {user_line()} without taking it as an "
                "argument, so that what becomes of it there would have no derivative. Pass it as "
                "an argument, or meshard.lax.stop_gradient(x) where none is wanted."
            )
        return (
            f"{self._told()} is a value that {self.recorder.root.name} followed, and that has "
            f"ended: it was kept, as in a global, an attribute or a list from outside. It is used "
            f"at {user_line()}. Return it from the function instead."
        )

    def __repr__(self) -> str:
        return f"Dual<{self._told()}>({self.value!r})" if self._known() else super().__repr__()

    __str__ = __repr__

    def _known(self) -> bool:
        return isinstance(self.value, Dual) or not isinstance(self.value, Traced)


class LevelRecorder(Recorder):
    """What code that writes operations down finds at a level: they are run and followed instead."""

    follows = True

    def __init__(self, level: Level, name: str, parent: Recorder | None) -> None:
        super().__init__(name, parent)
        self._level = weakref.ref(level)  # which has this: what it holds goes with it, at once

    @property
    def level(self) -> Level:
        """The level, while it follows."""
        found = self._level()
        assert found is not None
        return found

    @property
    def runs(self) -> bool:
        """Whether the operations below run on arrays."""
        return self.level.runs

    def result(
        self,
        name: str,
        params: Params,
        operands: Sequence[Any],
        types: Sequence[Any],
        call: Call | None = None,
    ) -> list[Any]:
        """Run a call below, and return its results."""
        assert call is not None
        return self.level.called(call, operands)

    def copied(self, program: Program, operands: Sequence[Any]) -> list[Any]:
        """Run a program, and return its results."""
        first = len(program.captured)
        return evaluate(program, operands[:first], operands[first:])

    def placed(self, x: Any, sharding: Any, what: str) -> Any:
        """Return a value laid out as a sharding says."""
        return self.level.called(ConstraintCall(sharding, what), [x])[0]

    def write(
        self,
        name: str,
        params: Params,
        operands: Sequence[Any],
        results: Sequence[Any],
        call: Call | None = None,
    ) -> None:
        """Follow an operation of a body that has run."""
        if self.parent is not None:
            self.parent.write(name, params, operands, results, call)
        self.level.followed(name, params, operands, results, call)

    def made(self, call: Call, operands: Sequence[Any], results: list[Any]) -> list[Any]:
        """Run a call in a body, and follow it."""
        return self.level.called(call, operands)

    def lifted(self, value: Grid, outer: Any) -> None:
        """Know a value that stands for another, as where it counts as varying over more axes."""
        super().lifted(value, outer)
        self.level.alias(value, outer)

    def alias(self, fresh: Grid, old: Grid) -> None:
        """Say that a value of a body is another one under a second identity."""
        self.level.alias(fresh, old)
        if self.parent is not None:
            self.parent.alias(fresh, old)


class Level(Following, ABC):
    """The base of levels: runs each operation below, and hands it to `follow`.

    Args:
        name: what messages call the function.

    Attributes:
        recorder: what stands for this level where code writes operations down.
        below: the interpreters beneath.
        linear: whether it follows a linear function of tangents, to transpose it.
    """

    linear = False

    def __init__(self, name: str) -> None:
        self.below = interpreters()
        around = recording_around() if self.body is None else self.body.recorder
        self.recorder = LevelRecorder(self, name, around)

    @property
    def body(self) -> Body | None:
        """The body of a `shard_map` that this is in."""
        found = self.below[-1] if self.below else None
        while isinstance(found, Level):  # a level in a body is no interpreter of its own
            found = found.below[-1] if found.below else None
        return found if isinstance(found, Body) else None

    @property
    def runs(self) -> bool:
        """Whether the operations below run on arrays: at once, or for all examples of vmap."""
        if self.body is not None:
            return False
        under = self.below[-1] if self.below else EAGER
        if isinstance(under, Tracing):
            return under.recorder.runs
        return under is EAGER or (isinstance(under, Level) and under.runs)

    @property
    def axis_sizes(self) -> Mapping[str, int]:  # type: ignore[override]
        """Those of the level below."""
        return self.below[-1].axis_sizes if self.below else {}

    @property
    def in_program(self) -> bool:  # type: ignore[override]
        """Whether the level below is traced."""
        return self.below[-1].in_program if self.below else False

    @property
    def layouts_known(self) -> bool:  # type: ignore[override]
        """Whether the level below knows layouts: where code runs, it does."""
        return self.below[-1].layouts_known if self.below else True

    # what a subclass decides

    @abstractmethod
    def follow(self, site: Site, call: Call | None, handles: Sequence[Any]) -> list[Any]:
        """Follow an operation that has run.

        Args:
            site: what ran, a level below.
            call: the call, if it is one.
            handles: the operands as this level knows them.

        Returns:
            The results as this level knows them: those without a derivative as they are below.
        """

    @abstractmethod
    def knows(self, handle: Any) -> bool:
        """Whether a value of this level depends on its inputs."""

    @abstractmethod
    def alias(self, fresh: Grid, old: Grid) -> None:
        """Know a value of a body under a second identity."""

    @abstractmethod
    def run_call(
        self, call: Call, values: Sequence[Any], handles: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """Run a call below; return its results and what is kept for the derivative.

        Args:
            call: the call.
            values: its operands.
            handles: the operands as this level knows them.
        """

    # values

    def entered(self, value: Any) -> Any:
        """Return a value of the level below as one of this level."""
        if self.body is None:
            return Dual(self.recorder, value)
        grid = self.body.lift(value)
        fresh = Grid(self.body, grid.kind, grid.pending or grid.cells)
        around: Recorder | None = self.recorder.parent
        if around is not None:
            around.alias(fresh, grid)
        return fresh

    def left(self, handle: Any) -> Any:
        """Return a value of this level as it is below."""
        return handle.value if self._owns(handle) else handle

    def _owns(self, x: Any) -> bool:
        return type(x) is Dual and x.recorder is self.recorder

    # operations outside of bodies

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Run one operation below, and return its result or a tuple of results."""
        with beneath(self.below):
            found = bind(name, *[self.left(x) for x in operands], **dict(params))
        if not any(map(self.knows, operands)):
            return found
        made = results = list(found) if isinstance(found, tuple) else [found]
        values = [self.left(x) for x in operands]
        if all(type(x) in WEAK for x in values) and "dtype" not in dict(params):
            results = [_number(y) for y in made]
        with beneath(self.below):
            site = Site(name, dict(params), values, results, _bound_again(name, params))
            handles = self.follow(site, None, operands)
        handles = [y if type(h) in WEAK else h for h, y in zip(handles, made, strict=True)]
        return handles[0] if len(handles) == 1 else tuple(handles)

    def called(self, call: Call, operands: Sequence[Any]) -> list[Any]:
        """Run a call below, and return its results."""
        values = [self.left(x) for x in operands]
        with self.outside():
            if not any(map(self.knows, operands)):
                return call.run(values)
            results, kept = self.run_call(call, values, operands)
            site = Site(call.name, {"kept": kept}, values, results, lambda *given: call.run(given))
            return self.follow(site, call, operands)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Let the operations within be those of the level below."""
        if self.body is None:
            with beneath(self.below):
                yield
            return
        body, own = self.body, self.body.recorder
        body.recorder = self.recorder.parent
        try:
            yield
        finally:
            body.recorder = own

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Follow the operations within."""
        try:
            if self.body is None:
                with interpreting(self):
                    yield
                return
            body, before = self.body, self.body.recorder
            body.recorder = self.recorder
            try:
                yield
            finally:
                body.recorder = before
        finally:
            self.recorder.close()

    # in bodies

    def followed(
        self,
        name: str,
        params: Params,
        operands: Sequence[Any],
        results: Sequence[Any],
        call: Call | None,
    ) -> None:
        """Follow an operation of a body that has run; its results are known by identity."""
        if not any(map(self.knows, operands)):
            return
        with self.outside():
            if call is None:
                again = _bound_again(name, params)
                site = Site(name, dict(params), operands, results, again)
            else:
                site = Site(name, {"kept": None}, operands, results, lambda *v: call.run(v))
            self.follow(site, call, operands)

    # what is put off

    def when_laid_out(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Call a function that depends on the layouts of its operands."""
        return self._late(name, function, operands, params, False)

    def at_run_time(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Call a function that depends on values."""
        return self._late(name, function, operands, params, True)

    def _late(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
        values: bool,
    ) -> Any:
        given = [as_array(self.left(x)) for x in operands]
        with beneath(self.below):
            below = current()
            call = below.at_run_time if values else below.when_laid_out
            found = call(name, function, given, params)
        many = isinstance(found, (list, tuple))
        if not any(map(self.knows, operands)):
            return found
        results = list(found) if many else [found]
        whole = WholeCall(name, function, params, many, values)
        with beneath(self.below):
            site = Site(name, params, given, results, lambda *v: whole.run(v))
            handles = self.follow(site, whole, operands)
        return handles if many else handles[0]

    def make_later(
        self,
        name: str,
        type_: ArrayType,
        make: Callable[..., Any],
        operands: Sequence[Any],
        asked: bool,
        place: Callable[[ArrayType], ArrayType] | None,
    ) -> Any:
        """Make an array of keys and the like, below; it has no derivative."""
        given = [self.left(x) for x in operands]
        with beneath(self.below):
            return current().make_later(name, type_, make, given, asked, place)

    def lay_out(self, x: Any, type_: ArrayType, what: str) -> Any:
        """Return a value laid out like a type."""
        return self.called(ConstraintCall(type_.sharding, what), [x])[0]


def _bound_again(name: str, params: Params) -> Callable[..., list[Any]]:
    """Return what does the same operation to other operands."""

    def again(*values: Any) -> list[Any]:
        made = bind(name, *values, **dict(params))
        return list(made) if isinstance(made, tuple) else [made]

    return again


def _number(y: Any) -> Any:
    """Return what an operation made of Python numbers alone as one, whose dtype is open still."""
    return y.item() if type(y) is Array and not y.shape and y.dtype.kind in "ifc" else y


def differentiable(x: Any) -> bool:
    """Whether derivatives with respect to a value make sense: it is a float or complex array."""
    if type(x) in WEAK:
        return type(x) in (float, complex)
    return isinstance(x, (Array, Traced)) and is_differentiable(x)
