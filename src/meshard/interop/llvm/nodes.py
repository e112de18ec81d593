"""Values of a program that is to be compiled: what each is made of, without saying how or when.

In: shapes and dtypes. Out: expressions, each a value by identity. A `Map` is computed element by
element, a `View` only says where elements are read, a `Call` is one of NumPy's own inner loops, a
`Fold` and a `Place` reduce dims.

NumPy's own inner loops, by their addresses: what compiled code calls where bits must be NumPy's.

In: a ufunc and dtypes. Out: the address of the C function that NumPy itself would run on contiguous
elements of these dtypes, and of its data. They are read from the ufunc as NumPy's public header
``ufuncobject.h`` lays it out; what is found there is compared with what the ufunc says of itself.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

import numpy as np

from meshard.algebra.dimmap import DimMap


class _Ufunc(ctypes.Structure):
    """The first fields of ``PyUFuncObject``."""

    _fields_ = (
        ("head", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_char)),
    )


@final
@dataclass(frozen=True, slots=True)
class Loop:
    """An inner loop.

    Attributes:
        name: the ufunc and its dtypes, as ``"exp f->f"``.
        function: the address of the loop.
        data: the address of what it is given as its last argument.
    """

    name: str
    function: int
    data: int


@cache
def loop_of(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...]) -> Loop | None:
    """Return a ufunc's loop for operands and results of exactly these dtypes.

    Returns:
        The loop; None if there is none, or if the ufunc is not what the header says.
    """
    chars = [d.char for d in dtypes]
    text = f"{''.join(chars[: ufunc.nin])}->{''.join(chars[ufunc.nin :])}"
    if text not in ufunc.types or not _as_in_header(ufunc):
        return None
    number = ufunc.types.index(text)
    inside = _Ufunc.from_address(id(ufunc))
    function = inside.functions[number]
    data = inside.data[number] if inside.data else None
    return Loop(f"{ufunc.__name__} {text}", function, data or 0) if function else None


@cache
def _as_in_header(ufunc: np.ufunc) -> bool:
    """Whether a ufunc's memory says what its attributes say."""
    if np.ufunc.__basicsize__ < ctypes.sizeof(_Ufunc):
        return False
    inside = _Ufunc.from_address(id(ufunc))
    counts = (inside.nin, inside.nout, inside.nargs, inside.ntypes)
    if counts != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return False
    numbers = [ord(inside.types[i]) for i in range(ufunc.ntypes * ufunc.nargs)]
    own = [np.dtype(c).num for text in ufunc.types for c in text.replace("->", "")]
    return numbers == own and inside.name == ufunc.__name__.encode()


Dtype = np.dtype[Any]
Shape = tuple[int, ...]


class Unsupported(Exception):
    """A program has something in it that is left to NumPy; the text says what."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A block that the program reads.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        number: its place among the inputs.
        strides: the elements between neighbours of each dim; None if it is in C order.
    """

    shape: Shape
    dtype: Dtype
    number: int
    strides: Shape | None = None


@final
@dataclass(frozen=True, eq=False, slots=True)
class Number:
    """A scalar that is known when the program runs: an input, or a constant that a loop reads.

    Attributes:
        dtype: its dtype.
        number: its place among the inputs; None for a constant.
        value: the constant.
    """

    dtype: Dtype
    number: int | None
    value: Any = None
    shape: Shape = ()


@final
@dataclass(frozen=True, eq=False, slots=True)
class Map:
    """An elementwise operation. Operands broadcast.

    Attributes:
        shape: the result's shape.
        dtype: the result's dtype.
        name: the operation, which `templates` knows for the operands' dtype.
        args: the operands, all of one dtype, but for the condition of ``where`` and for ``cast``.
    """

    shape: Shape
    dtype: Dtype
    name: str
    args: tuple[Node, ...]


@final
@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """An elementwise operation that NumPy's own inner loop computes, on contiguous elements.

    Attributes:
        shape: the result's shape.
        dtype: the result's dtype.
        loop: NumPy's loop.
        args: the operands: of the result's shape, or scalars.
    """

    shape: Shape
    dtype: Dtype
    loop: Loop
    args: tuple[Node, ...]


Source = tuple[int | None, DimMap | int]
"""How a dim of a view's operand is read: by a dim of the result and a map, or at one position."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Elements of other values, in other places; zero where no operand is read.

    Attributes:
        shape: the result's shape.
        dtype: the dtype of all.
        parts: for each operand it and, for each of its dims, how it is read.
    """

    shape: Shape
    dtype: Dtype
    parts: tuple[tuple[Node, tuple[Source, ...]], ...]


@final
@dataclass(frozen=True, eq=False, slots=True)
class Regrouped:
    """The elements of a value in C order, in another shape."""

    shape: Shape
    dtype: Dtype
    arg: Node


@final
@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """A reduction of the last dims by NumPy's own loop, or of the first one, row by row.

    Attributes:
        shape: the result's shape, without the dims that are reduced.
        dtype: the dtype of both.
        name: the ufunc.
        loop: NumPy's loop.
        arg: what is reduced.
        rows: whether the first dim is reduced, else those behind the result's.
    """

    shape: Shape
    dtype: Dtype
    name: str
    loop: Loop
    arg: Node
    rows: bool


@final
@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """The position of the first least or greatest element along the last dim.

    Attributes:
        shape: the result's shape, without the last dim.
        dtype: int64.
        least: whether the least element is looked for.
        arg: where.
    """

    shape: Shape
    dtype: Dtype
    least: bool
    arg: Node


Node = Leaf | Number | Map | Call | View | Regrouped | Fold | Place

_DTYPES = frozenset(map(np.dtype, "?bhilqBHILQfd"))


def checked_dtype(dtype: Dtype) -> Dtype:
    """Return a dtype that can be compiled, in native byte order.

    Raises:
        Unsupported: for others.
    """
    if dtype not in _DTYPES:
        raise Unsupported(f"{dtype} is computed by NumPy")
    return dtype


def is_compiled_dtype(dtype: Dtype) -> bool:
    """Whether values of a dtype can be compiled."""
    return dtype in _DTYPES


def operands_of(node: Node) -> tuple[Node, ...]:
    """Return what a value is made of."""
    if isinstance(node, (Map, Call)):
        return node.args
    if isinstance(node, View):
        return tuple([x for x, _ in node.parts])
    if isinstance(node, (Fold, Place, Regrouped)):
        return (node.arg,)
    return ()


def in_order(outputs: Sequence[Node]) -> list[Node]:
    """Return all values that some are made of, each after its operands."""
    order: dict[int, Node] = {}
    stack: list[tuple[Node, bool]] = [(x, False) for x in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if id(node) in order:
            continue
        if ready:
            order[id(node)] = node
            continue
        stack.append((node, True))
        stack += [(x, False) for x in operands_of(node)]
    return list(order.values())


def broadcast(node: Node, shape: Shape) -> Node:
    """Return a value in a shape that it broadcasts to."""
    if node.shape == shape:
        return node
    skipped = len(shape) - len(node.shape)
    dims = tuple(
        [
            (None, 0) if n == 1 and shape[skipped + d] != 1 else (skipped + d, DimMap.identity(n))
            for d, n in enumerate(node.shape)
        ]
    )
    return View(shape, node.dtype, ((node, dims),))


def permuted(node: Node, axes: Sequence[int]) -> Node:
    """Return a value with its dims in another order; what was permuted before is seen through."""
    shape = tuple([node.shape[a] for a in axes])
    if isinstance(node, View) and len(node.parts) == 1 and _only_permutes(node.parts[0][1]):
        ((base, dims),) = node.parts
        order = [d for d, _ in dims if d is not None]
        if len(order) == len(dims) == len(axes):
            back = tuple([order.index(a) for a in axes])
            return base if back == tuple(range(len(axes))) else permuted(base, back)
    dims = tuple([(axes.index(d), DimMap.identity(n)) for d, n in enumerate(node.shape)])
    return View(shape, node.dtype, ((node, dims),))


def reshaped(node: Node, shape: Shape) -> Node:
    """Return a value in another shape with the same elements in C order."""
    if node.shape == shape:
        return node
    kept = [n for n in node.shape if n != 1]
    if kept == [n for n in shape if n != 1]:
        places = iter([d for d, n in enumerate(shape) if n != 1])
        dims: tuple[Source, ...] = tuple(
            [(None, 0) if n == 1 else (next(places), DimMap.identity(n)) for n in node.shape]
        )
        return View(shape, node.dtype, ((node, dims),))
    return Regrouped(shape, node.dtype, side_by_side(node))


def size_of(node: Node) -> int:
    """Return the number of a value's elements."""
    return math.prod(node.shape)


def side_by_side(node: Node) -> Node:
    """Return a value whose elements can be stored in C order, if they are not yet."""
    return copied(node) if isinstance(node, Leaf) and node.strides is not None else node


def copied(node: Node) -> Node:
    """Return a value with the same elements."""
    dims: tuple[Source, ...] = tuple([(d, DimMap.identity(n)) for d, n in enumerate(node.shape)])
    return View(node.shape, node.dtype, ((node, dims),))


def seen_through(node: Node) -> tuple[Node, tuple[int, ...]]:
    """Return the value of which one shows the same elements, and how its dims are permuted.

    The rest is a reshape of dims of one element, or of elements in C order.
    """
    if isinstance(node, Regrouped) and not isinstance(node.arg, Leaf):
        return node.arg, tuple(range(len(node.arg.shape)))
    if isinstance(node, View) and len(node.parts) == 1:
        ((base, dims),) = node.parts
        if not isinstance(base, Leaf) and size_of(base) == size_of(node) and _only_permutes(dims):
            moved = [k for k, (d, _) in enumerate(dims) if d is not None]
            unit = [k for k, (d, _) in enumerate(dims) if d is None]
            return base, (*sorted(moved, key=lambda k: dims[k][0] or 0), *unit)
    return node, tuple(range(len(node.shape)))


def _only_permutes(dims: Sequence[Source]) -> bool:
    """Whether a view of all elements of a value only gives its dims another order."""
    read = [d for d, _ in dims if d is not None]
    return len(set(read)) == len(read) and all(
        isinstance(how, int) or d is None or how.is_identity for d, how in dims
    )


def is_all_elementwise(outputs: Sequence[Node]) -> bool:
    """Whether all values have one shape, or none, and are computed position by position."""
    shape = outputs[0].shape
    return all(
        isinstance(x, Number)
        or (x.shape == shape and isinstance(x, (Map, Call)))
        or (x.shape == shape and isinstance(x, Leaf) and x.strides is None)
        for x in in_order(outputs)
    )


def flattened(outputs: Sequence[Node]) -> list[Node]:
    """Return values that are all elementwise as values of one dim."""
    made: dict[int, Node] = {}
    for x in in_order(outputs):
        own = made[id(x)] = x
        if isinstance(x, (Map, Call)):
            own = replace(x, args=tuple([made[id(y)] for y in x.args]))
        made[id(x)] = own if isinstance(own, Number) else replace(own, shape=(size_of(x),))
    return [made[id(x)] for x in outputs]
