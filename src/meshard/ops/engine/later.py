"""Functions that a trace records whole, to be worked out when more is known.

In: a function of arrays. Out: its result, or a value of the current trace that stands for it. A
function that depends on how operands are laid out is worked out when the program is lowered; one
that depends on values, or makes large arrays from nothing, when it runs.

Values of traced operands: asked for where they are indispensable, and refused with advice.

The types of an operation's results, without running it.

Python numbers are weak: they take the dtype of what they meet. A value that stands for one while a
loop is typed counts as its Python type here, and what comes of weak operands alone is weak again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from meshard.algebra.abstract import Sharding
from meshard.errors import ConcretizationError
from meshard.ops.engine.decide import Type, decide, takes_arrays_only
from meshard.ops.engine.eager import EAGER
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import Params, current, interpreting
from meshard.runtime.moving.place import as_array, resharded
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here, memoized
from meshard.tuning import CONSTANT_BYTES


def is_traced(*values: Any) -> bool:
    """Whether any operand is a value inside a transformation."""
    return any(isinstance(v, Traced) for v in values)


def eagerly() -> AbstractContextManager[None]:
    """Run operations on arrays at once, also inside a transformation, to look at their values."""
    return interpreting(EAGER)


def is_array(value: Any) -> bool:
    """Whether an operand is an array already: one that exists, or one inside a transformation."""
    return isinstance(value, (Array, Traced))


def has_devices(*values: Any) -> bool:
    """Whether any operand decides about devices: it is committed, or traced."""
    return any(v.committed if type(v) is Array else isinstance(v, Traced) for v in values)


def concrete(value: Any, what: str, way_out: str) -> Any:
    """Return an operand as an array whose values may be looked at, where it is laid out.

    Args:
        value: any array-like.
        what: the function that needs the values.
        way_out: why it does, and what to write instead, as sentences.

    Raises:
        ConcretizationError: if it is traced and does not stand for one value.
    """
    if not isinstance(value, Traced):
        return as_array(value)
    try:
        return as_array(value._known_array(what))
    except ConcretizationError as error:
        raise ConcretizationError(f"{error} {way_out}") from None


class Advised(ABC):
    """A function that looks at how its operands are laid out only to be quick.

    It gives the same elsewhere, so that it may be followed where layouts are not known.
    """

    @abstractmethod
    def __call__(self, *operands: Any) -> Any:
        """Return one array, or a list of them."""


class OfExamples(ABC):
    """A function that says itself what it is for many examples."""

    @abstractmethod
    def __call__(self, *operands: Any) -> list[Any]:
        """Return a list of arrays."""

    @abstractmethod
    def of_examples(self, flags: Sequence[bool], size: int) -> OfExamples:
        """Return what does the same for each of many examples.

        Args:
            flags: which operands have the dim of examples, in front; the others are the same for
                all.
            size: how many examples there are.
        """


class ByValues(ABC):
    """A function that looks at values, and knows beforehand what it may move."""

    @abstractmethod
    def __call__(self, *operands: Any) -> Any:
        """Return one array, or a list of them."""

    @abstractmethod
    def most(self, kinds: Sequence[ArrayType]) -> Mapping[int, int]:
        """Return by device how many bytes it gets at most, from the types of the operands."""


class OfRow(ABC):
    """What makes an array as a row does whose operands have no values yet."""

    @property
    @abstractmethod
    def row(self) -> tuple[str, Mapping[str, Any]]:
        """The row and its parameters."""

    @abstractmethod
    def __call__(self, kind: ArrayType, *operands: Any) -> Any:
        """Make an array of a type, laid out in any way."""


def when_laid_out(name: str, function: Callable[..., Any], /, *operands: Any, **params: Any) -> Any:
    """Call a function that looks at how its operands are laid out.

    Args:
        name: what listings call it.
        function: from the operands to one array, or a list of them; made of operations only.
        operands: arrays.
        params: whatever else it is called with, by name; no arrays.
    """
    if not is_traced(*operands):
        return function(*operands, **params)
    return current().when_laid_out(name, function, operands, params)


def at_run_time(name: str, function: Callable[..., Any], /, *operands: Any, **params: Any) -> Any:
    """Call a function that looks at values, but whose results' types do not depend on them.

    It must work on operands that have types only, and takes what `when_laid_out` takes.
    """
    if not is_traced(*operands):
        return function(*operands, **params)
    return current().at_run_time(name, function, operands, params)


def make_later(
    name: str,
    kind: ArrayType,
    make: Callable[..., Any],
    *operands: Any,
    asked: bool = False,
    place: Callable[[ArrayType], ArrayType] | None = None,
) -> Any:
    """Return what ``make(kind, *operands)`` makes of a type, piece by piece.

    In a traced function what is large, or has traced operands, is made when the program runs, and
    then where it is needed: a sharding that nobody asked for is the program's to choose.

    Args:
        name: what listings call it.
        kind: the array's type.
        make: from a type like it, laid out in any way, and the operands to the array.
        operands: what it is made of, such as a key.
        asked: whether the sharding was asked for.
        place: from the first operand's type to the array's, where that follows it.
    """
    if kind.nbytes > CONSTANT_BYTES or is_traced(*operands):
        return current().make_later(name, kind, make, operands, asked, place)
    return make(kind, *operands)


def relaid(x: Any, kind: ArrayType, what: str) -> Any:
    """Return an array in the layout of another type of the same shape and dtype."""
    return current().lay_out(x, kind, what) if is_traced(x) else resharded(here(), x, kind, what)


def in_program() -> bool:
    """Whether the code at hand is traced by jit, or evaluated abstractly: its arrays are global."""
    return current().in_program


def layouts_known() -> bool:
    """Whether it is known how traced values are laid out: while a program is lowered."""
    return current().layouts_known


Weak = type[Any] | None
"""The type of Python number that a value stands for; None for one that has a dtype of its own."""


_BY_KIND: dict[str, type[Any]] = {"i": int, "f": float, "c": complex}


class AbstractArray(Traced):
    """An array whose type is known, but not its values.

    Attributes:
        weak: the type of Python number that it stands for, if it does.
    """

    __slots__ = ("weak",)

    def __init__(self, type: ArrayType, weak: Weak = None) -> None:
        self._type = type
        self.weak = weak

    def _concrete(self, what: str) -> Block:
        raise ConcretizationError(
            f"{what}: this {self._type.str_short()} is evaluated abstractly, for its shape and "
            "dtype only, and has no value. Where a branch or a loop depends on values use lax.cond "
            "or lax.while_loop."
        )

    def _placed(self, sharding: Sharding, what: str) -> Any:
        sharding.layout(self.shape)  # refuses what cannot be laid out so
        return AbstractArray(here().type_of(self.shape, self.dtype, sharding, True))

    def __repr__(self) -> str:
        return self._type.str_short()

    __str__ = __repr__


def weak_of(x: Any) -> Weak:
    """Return the type of Python number that an array without data stands for; None for others."""
    return x.weak if isinstance(x, AbstractArray) else None


def number_type(x: Any) -> Weak:
    """Return the type of a Python number whose dtype is still open; a bool's never is."""
    kind = type(x)
    return kind if kind in (int, float, complex) else None


def inferred(
    world: RuntimeWorld,
    name: str,
    operands: Sequence[tuple[Type, Weak]],
    params: Params,
) -> list[tuple[ArrayType, Weak]]:
    """Return the type of each result, and the type of Python number that it stands for.

    Args:
        world: whose decisions are used.
        name: the operation.
        operands: for each its type, or that of the Python number that it is; and the type of the
            Python number that it stands for.
        params: the operation's parameters.

    Raises:
        ArgumentError: if there is no such operation.
    """
    return _inferred(world, name, tuple(operands), params)


@memoized(most=1 << 14)
def _inferred(
    world: RuntimeWorld,
    name: str,
    operands: tuple[tuple[Type, Weak], ...],
    params: Params,
) -> list[tuple[ArrayType, Weak]]:
    types: list[Type] = [t if w is None else w for t, w in operands]
    if takes_arrays_only(name) or not any(isinstance(t, ArrayType) for t in types):
        types = [t for t, _ in operands]
    outputs = decide(world, name, types, params).outputs
    weak = all(w is not None for _, w in operands) and "dtype" not in dict(params)
    return [(t, _BY_KIND.get(t.dtype.kind) if weak and not t.shape else None) for t in outputs]
