"""The door up: `bind` names an operation, and an interpreter decides what happens.

The floors below do not know the operations. The floor above installs the base interpreter, which
runs an operation at once, and the functions behind `Array`'s methods; transformations push
interpreters of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, final

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, MeshardError, OutOfRangeError
from meshard.runtime.types import ArrayType

Params = tuple[tuple[str, Hashable], ...]


class Interpreter:
    """What decides the fate of an operation.

    The defaults are those of code that runs: a function is called at once. Interpreters that record
    operations, or know only types, override them.

    Attributes:
        axis_sizes: the mesh axes that named-axis operations may use here.
        in_program: whether the code is traced by jit or evaluated abstractly, so that values
            without data stand for global arrays.
        layouts_known: whether the types of values without data say how they are laid out.
    """

    axis_sizes: Mapping[str, int] = MappingProxyType({})
    in_program: bool = False
    layouts_known: bool = False

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Run, record or map one operation."""
        raise NotImplementedError

    def when_laid_out(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Call a function that depends on the layouts of its operands, once these are known.

        Args:
            name: its name in listings.
            function: from the operands to one array, or a list of them; made of operations only.
            operands: arrays.
            params: its keyword arguments, which are not arrays.
        """
        return function(*operands, **params)

    def at_run_time(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Any],
        params: Mapping[str, Any],
    ) -> Any:
        """Call a function that depends on values, once there are any.

        The function must work on operands without data too: the types of its results do not depend
        on values. The arguments are those of `when_laid_out`.
        """
        return function(*operands, **params)

    def make_later(
        self,
        name: str,
        type_: ArrayType,
        make: Callable[..., Any],
        operands: Sequence[Any],
        asked: bool,
        place: Callable[[ArrayType], ArrayType] | None,
    ) -> Any:
        """Make a large array piece by piece, once its layout is known.

        Args:
            name: its name in listings.
            type_: the array's type.
            make: makes the array from its type, in any layout, and the operands.
            operands: what it is made from, such as a key.
            asked: whether the sharding was asked for.
            place: returns the array's type for the first operand's, where it follows from that.
        """
        return make(type_, *operands)

    def narrowed(self, x: Any, axes: tuple[str, ...]) -> Any:
        """Return the sum of a value over mesh axes over which it varies, in a body."""
        raise NotImplementedError

    def lay_out(self, x: Any, type_: ArrayType, what: str) -> Any:
        """Return a value without data in the layout of another type of its shape and dtype."""
        return x._placed(type_.sharding, what)


class _Doors:
    """What the floor above has installed, once, at import."""

    def __init__(self) -> None:
        self.base: Interpreter | None = None
        self.functions: dict[str, Callable[..., Any]] = {}
        self.namespace: str | None = None


_DOORS = _Doors()
_stack: ContextVar[tuple[Interpreter, ...]] = ContextVar("meshard_interpreters", default=())


def install(base: Interpreter, functions: dict[str, Callable[..., Any]]) -> None:
    """Install the base interpreter and the functions behind `Array`'s methods."""
    _DOORS.base = base
    _DOORS.functions.update(functions)


def install_namespace(name: str) -> None:
    """Name the door that ``__array_namespace__`` of the Array API standard returns."""
    _DOORS.namespace = name


def namespace() -> ModuleType:
    """Return the module that holds the functions on arrays; it is loaded on first use."""
    assert _DOORS.namespace is not None
    return import_module(_DOORS.namespace)


def bind(name: str, /, *operands: Any, **params: Hashable) -> Any:
    """Hand an operation to the innermost interpreter."""
    stack = _stack.get()
    interpreter = stack[-1] if stack else _DOORS.base
    if interpreter is None:
        raise MeshardError(f"{name}: no operations are installed; import meshard.")
    try:
        return interpreter.run(name, operands, tuple(params.items()))
    except OverflowError as error:
        raise too_large(name, error, operands) from None


def too_large(what: str, error: OverflowError, operands: Sequence[Any] = ()) -> MeshardError:
    """Return the error for a Python integer that an operand's dtype cannot hold.

    Args:
        what: the operation.
        error: what NumPy raised.
        operands: numbers and arrays, where they are known.
    """
    if isinstance(error, MeshardError):
        return error
    numbers = [shown(x) for x in operands if isinstance(x, int)]
    dtypes = dict.fromkeys(str(x.dtype) for x in operands if hasattr(x, "dtype"))
    return OutOfRangeError(
        f"{what}: the integer {' or '.join(numbers) or 'given'} does not fit into the dtype of the "
        f"other operand{', ' if dtypes else ''}{', '.join(dtypes)}. Convert that one with astype "
        "first."
    )


def innermost() -> Interpreter | None:
    """Return the innermost interpreter that a transformation has pushed; None outside of all."""
    stack = _stack.get()
    return stack[-1] if stack else None


def current() -> Interpreter:
    """Return the interpreter at hand: the innermost one, or the base outside of all."""
    stack = _stack.get()
    found = stack[-1] if stack else _DOORS.base
    assert found is not None
    return found


def interpreters() -> tuple[Interpreter, ...]:
    """Return the interpreters that transformations have pushed, the outermost first."""
    return _stack.get()


def function(name: str) -> Callable[..., Any]:
    """Return an installed function.

    Raises:
        ArgumentError: if there is no function of that name.
    """
    found = _DOORS.functions.get(name)
    if found is None:
        raise ArgumentError(f"{name}: this version of meshard has no such operation.")
    return found


def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call one of the installed functions, for a method of `Array`.

    Raises:
        ArgumentError: if there is no such function.
    """
    return function(name)(*args, **kwargs)


@final
class interpreting:
    """Make an interpreter the innermost one within a ``with`` statement."""

    __slots__ = ("_interpreter", "_token")

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def __enter__(self) -> None:
        self._token = _stack.set((*_stack.get(), self._interpreter))

    def __exit__(self, *_: object) -> None:
        _stack.reset(self._token)


@final
class beneath:
    """Let only some of the interpreters be at hand within a ``with`` statement."""

    __slots__ = ("_stack", "_token")

    def __init__(self, stack: tuple[Interpreter, ...]) -> None:
        self._stack = stack

    def __enter__(self) -> None:
        self._token = _stack.set(self._stack)

    def __exit__(self, *_: object) -> None:
        _stack.reset(self._token)
