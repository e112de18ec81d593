"""Functions that a trace records whole, to be worked out when more is known.

In: a function of arrays. Out: its result, or a value of the current trace that stands for it. A
function that depends on how operands are laid out is worked out when the program is lowered; one
that depends on values, or makes large arrays from nothing, when it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshard.ops.engine.concrete import is_traced
from meshard.runtime.doors import current
from meshard.runtime.moving.place import resharded
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.tuning import CONSTANT_BYTES


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
