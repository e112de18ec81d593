"""The boundary between users' code and the library's: tracebacks end at the user's line.

In: the functions and classes that doors list. Out: the same functions and classes, from which
exceptions leave without the frames of the library. ``MESHARD_TRACEBACK=full`` keeps these frames.

Nothing is wrapped: a function's own code gets one more exception handler, around its whole body.
What raises nothing runs the same instructions as before, and no frame is added to the stack, so
that a property costs what it did; a wrapper would cost 20 to 60 ns of each call. The handler is
what the running Python has compiled for `_template`, moved behind the function's last instruction.
"""

from __future__ import annotations

import contextlib
import dis
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, lru_cache, wraps
from inspect import get_annotations
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import ParamSpec, TypeVar, final

from meshard.errors import MeshardError
from meshard.settings import Setting, one_of

P = ParamSpec("P")
T = TypeVar("T")

TRACEBACK = Setting("traceback", "short", *one_of("short", "full"))

_USERS = ("meshard.examples",)
_BELOW = frozenset(
    (
        *("numpy", "scipy", "ml_dtypes", "opt_einsum", "optree", "threadpoolctl", "rich", "click"),
        *("xxhash", "mpi4py", "zarr", "h5py", "safetensors", "llvmlite", "jax", "jaxlib"),
        *sys.stdlib_module_names,
    )
) - {"__main__"}
"""Packages whose frames are internal where the library has called them."""
_WRONG_CALL = re.compile(r"\(\) (got|takes|missing) ")
_INSIDE = "Raised inside meshard; MESHARD_TRACEBACK=full shows where."


def is_library(module: str) -> bool:
    """Whether a module belongs to the library, by its name; its examples belong to users."""
    return module.partition(".")[0] == "meshard" and not module.startswith(_USERS)


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the library's frames; None if none is left.

    Frames of packages that the library has called go too, but not those that the user has called.
    """
    nodes: list[TracebackType] = []
    inside = cut = False
    while trace is not None:
        belongs = _belongs(trace.tb_frame)
        inside = belongs == "library" or (inside and belongs == "packages")
        if inside:
            cut = True
        else:
            nodes.append(trace)
        trace = trace.tb_next
    if not cut:
        return nodes[0] if nodes else None
    kept: TracebackType | None = None
    for node in reversed(nodes):  # others may hold these: they are not changed
        kept = TracebackType(kept, node.tb_frame, node.tb_lasti, node.tb_lineno)
    return kept


def _belongs(frame: FrameType) -> str:
    """Return whose frame it is: the library's, another package's that it may call, or users'."""
    name = frame.f_globals.get("__name__")
    return _whose(name) if isinstance(name, str) else "users"


@lru_cache(4096)
def _whose(module: str) -> str:
    if is_library(module):
        return "library"
    return "packages" if module.partition(".")[0] in _BELOW else "users"


def shorten(error: BaseException) -> None:
    """Cut the library's frames off an exception and those it is chained to.

    What the library caught and answered with an error of its own is not shown.
    """
    if TRACEBACK.value == "full":
        return
    _explain_fault(error)
    if (
        error.__context__ is None
        and error.__cause__ is None
        and not isinstance(error, BaseExceptionGroup)
    ):
        error.__traceback__ = users_frames(error.__traceback__)
        return
    seen: set[int] = set()
    todo = [error]
    while todo:
        error = todo.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, MeshardError):
            _forget_answered(error)
        error.__traceback__ = users_frames(error.__traceback__)
        follows = error.__cause__
        if follows is None and not error.__suppress_context__:
            follows = error.__context__
        if follows is not None:
            todo.append(follows)
        if isinstance(error, BaseExceptionGroup):
            todo.extend(error.exceptions)


def _forget_answered(error: BaseException) -> None:
    """Let an error follow what the user's code was handling, past what the library has caught.

    What is passed is still its ``__context__``, unless something of the user's comes before that.
    """
    if error.__cause__ is not None:
        if users_frames(error.__cause__.__traceback__) is not None:
            return
        error.__cause__ = None
    elif error.__suppress_context__:
        return
    context, passed = error.__context__, {id(error)}
    while context is not None and users_frames(context.__traceback__) is None:
        passed.add(id(context))
        context = context.__context__
        if id(context) in passed:
            context = None
    error.__suppress_context__ = context is None
    if context is not None:
        error.__context__ = context


def _explain_fault(error: BaseException) -> None:
    """Note on an exception that the library did not mean to raise how to see where it did."""
    trace = error.__traceback__
    if trace is None or isinstance(error, (MeshardError, AttributeError, Warning, StopIteration)):
        return
    if isinstance(error, TypeError) and _WRONG_CALL.search(str(error)):
        return  # a wrapper has passed on what the user has written
    while trace.tb_next is not None:
        trace = trace.tb_next
    told = getattr(error, "__notes__", ())
    ours = _belongs(trace.tb_frame) == "library"
    if ours and isinstance(error, Exception) and _INSIDE not in told:
        error.add_note(_INSIDE)


def _leave() -> None:
    """What the handlers call: shorten the exception that is being raised."""
    error = sys.exception()
    if error is not None:
        shorten(error)


# --- the handler


_PLACEHOLDER = 0.5  # a constant of the template, for which `_leave` is put
_TEMPLATE = f"""
def _template():
    try:
        _template()
    except:
        {_PLACEHOLDER}()
        raise
"""
_UNIT = 2  # bytes of an instruction; tables count in units


@final
class _Handler:
    """The handler that the running Python compiles: its instructions and its clean-up."""

    def __init__(self) -> None:
        found: dict[str, FunctionType] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a number is called
            exec(_TEMPLATE, found)
        code = found["_template"].__code__
        body, cleanup = _entries(code.co_exceptiontable)
        start = body[2]
        self.guarded, self.depth = cleanup[1], cleanup[3]
        self.distance = cleanup[2] - start - self.guarded
        load = bytes([dis.opmap["LOAD_CONST"], code.co_consts.index(_PLACEHOLDER)])
        self.before, _, self.behind = code.co_code[start * _UNIT :].partition(load)
        self.stack = code.co_stacksize
        self._made: dict[int, tuple[bytes, bytes, int]] = {}
        if not self.behind or cleanup[0] != start:
            raise ValueError

    def calling(self, constant: int) -> tuple[bytes, bytes, int]:
        """Return the handler that calls a constant: code, its lines, how many units it guards."""
        if constant not in self._made:
            high, low = divmod(constant, 256)
            load = bytes([dis.opmap["EXTENDED_ARG"], high]) if high else b""
            load += bytes([dis.opmap["LOAD_CONST"], low])
            code = self.before + load + self.behind
            units = len(code) // _UNIT
            lines = bytes(0xF8 | min(8, units - at) - 1 for at in range(0, units, 8))  # no line
            self._made[constant] = code, lines, self.guarded + len(load) // _UNIT - 1
        return self._made[constant]


_Entry = tuple[int, int, int, int]
"""A line of an exception table: start, size and target in units, and depth with its flag."""


def _entries(table: bytes) -> Iterator[_Entry]:
    """Yield the lines of an exception table, which is a list of numbers of 6 bits a byte."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(value)
            value = 0
    it = iter(numbers)
    return zip(it, it, it, it, strict=True)


@cache
def _line(entry: _Entry) -> bytes:
    """Return a line of an exception table; its first byte is marked."""
    line = bytearray()
    for number in entry:
        digits = [number & 0x3F]
        while number := number >> 6:
            digits.append(0x40 | number & 0x3F)
        line += bytes(reversed(digits))
    line[0] |= 0x80
    return bytes(line)


def _with_handler(handler: _Handler, code: CodeType) -> CodeType:
    """Return a function's code with one more handler, of all that no other one handles."""
    body = code.co_code
    end = len(body) // _UNIT
    more, lines, guarded = handler.calling(len(code.co_consts))
    table, at = b"", 0
    for entry in _entries(code.co_exceptiontable) if code.co_exceptiontable else ():
        if entry[0] > at:
            table += _line((at, entry[0] - at, end, 0))
        table += _line(entry)
        at = entry[0] + entry[1]
    if end > at:
        table += _line((at, end - at, end, 0))
    table += _line((end, guarded, end + guarded + handler.distance, handler.depth))
    return code.replace(
        co_code=body + more,
        co_consts=(*code.co_consts, _leave),
        co_exceptiontable=table,
        co_linetable=code.co_linetable + lines,
        co_stacksize=max(code.co_stacksize, handler.stack),
    )


def _handler() -> _Handler | None:
    """Return the handler; None on a Python that compiles in another way."""
    try:
        return _Handler()
    except (AttributeError, LookupError, ValueError):
        return None


_HANDLER = _handler()


# --- what has it

_NAME = re.compile(r"[A-Za-z_]\w*")
_known: set[type] = set()


def bounded(value: T) -> T:
    """Let exceptions leave a function or class without the library's frames; return the same one.

    It is for those that no door lists, and that no annotation of a listed one names.
    """
    bound_all((value,))
    return value


def _bound(function: FunctionType) -> None:
    code = function.__code__
    if _HANDLER and not (code.co_consts and code.co_consts[-1] is _leave):
        function.__code__ = _with_handler(_HANDLER, code)


def bound_all(values: Iterable[object]) -> None:
    """Let exceptions leave functions and classes without the library's frames.

    Of a class all that users may call has that, and so have classes whose values its methods, or
    the functions, return by their annotations.
    """
    todo = list(values)
    seen: set[tuple[str, object]] = set()
    while todo:
        value = todo.pop()
        if isinstance(value, FunctionType):
            if is_library(value.__module__ or ""):
                _bound(value)
                named = value.__module__, value.__annotations__.get("return")
                if named not in seen:
                    seen.add(named)
                    todo.extend(_named(*named))
        elif isinstance(value, type):
            if value not in _known and is_library(value.__module__):
                _known.add(value)
                todo.extend((type(value), *value.__mro__[1:], *_members(value)))
                for annotation in get_annotations(value).values():
                    todo.extend(_named(value.__module__, annotation))
        elif isinstance(value, MethodType):
            todo.append(value.__func__)


def _members(kind: type) -> Iterator[object]:
    """Yield the functions of a class that users may call: operators and what has a public name."""
    for name, value in vars(kind).items():
        if name[0] == "_" and name[-1] != "_":
            continue
        if isinstance(value, property):
            yield from (value.fget, value.fset, value.fdel)
        elif isinstance(value, cached_property):
            yield value.func
        elif isinstance(value, (staticmethod, classmethod)):
            yield value.__func__
        elif isinstance(value, FunctionType):
            yield value


def _named(module: str, annotation: object) -> Iterator[type]:
    """Yield the classes that an annotation names, where its module knows them when it runs."""
    if isinstance(annotation, str) and module in sys.modules:
        found = vars(sys.modules[module])
        for name in _NAME.findall(annotation):
            value = found.get(name)
            if isinstance(value, type):
                yield value


class _Context(contextlib._GeneratorContextManager[T]):
    """A context manager made of a generator, from which exceptions leave without our frames."""

    def __enter__(self) -> T:
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return super().__exit__(kind, error, trace)


def context(function: Callable[P, Iterator[T]]) -> Callable[P, _Context[T]]:
    """Make a context manager of a generator, as `contextlib.contextmanager`, for users."""

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> _Context[T]:
        return _Context(function, args, kwargs)  # type: ignore[arg-type]

    return made


bounded(_Context)
