"""What control flow demands of values: carries that keep their types, branches that agree.

Python numbers are weak: in a carry they take the dtype that a turn gives them, and as a result of a
branch that of the other branches, as long as it is of their kind.

The positions that a scan goes along.

In: a tree of arrays, and a length. Out: the number of positions, and the tree at one of them.

`LoopIndex`: the integer that `fori_loop` hands to its body.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from meshard.errors import ArgumentError, MeshardError, ShapeError, TreeError
from meshard.ops.dtypes.laws import is_float
from meshard.ops.engine.eager import WEAK
from meshard.ops.engine.later import AbstractArray, Weak
from meshard.runtime.moving.place import as_array, home
from meshard.runtime.trees import trees
from meshard.runtime.world import here
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid, local_type, widened
from meshard.transforms.body.grid import Grid
from meshard.transforms.tracing.abstract import types_only, weak_type


def _compared(name: str) -> Callable[[int, Any], Any]:
    plain = getattr(int, name)

    def compare(self: int, other: Any) -> Any:
        found = plain(self, other)
        return found if found is NotImplemented else np.bool_(found)

    return compare


def _calculated(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def calculate(self: int, *others: Any) -> Any:
        found = plain(self, *others)
        return LoopIndex(found) if type(found) is int else found

    return calculate


@final
class LoopIndex(int):
    """A Python int that also answers as an array without dims does.

    With arrays it is a Python number, which takes their dtype. A comparison gives NumPy's bool, so
    that ``~(i == 0)`` is what it says; of Python's own bools that would be a number.

    >>> i = LoopIndex(3)
    >>> i + 1, ~(i == 3), i.dtype
    (4, np.False_, dtype('int64'))
    """

    __slots__ = ()

    dtype = np.dtype(np.int64)
    shape: tuple[int, ...] = ()
    ndim = 0
    size = 1
    __hash__ = int.__hash__

    def astype(self, dtype: Any) -> Any:
        """Return the number as an array of a dtype."""
        return as_array(int(self)).astype(dtype)

    def item(self) -> int:
        """Return the number."""
        return int(self)

    __eq__ = _compared("__eq__")
    __ne__ = _compared("__ne__")
    __lt__ = _compared("__lt__")
    __le__ = _compared("__le__")
    __gt__ = _compared("__gt__")
    __ge__ = _compared("__ge__")
    __add__ = _calculated("__add__")
    __radd__ = _calculated("__radd__")
    __sub__ = _calculated("__sub__")
    __rsub__ = _calculated("__rsub__")
    __mul__ = _calculated("__mul__")
    __rmul__ = _calculated("__rmul__")
    __floordiv__ = _calculated("__floordiv__")
    __rfloordiv__ = _calculated("__rfloordiv__")
    __mod__ = _calculated("__mod__")
    __rmod__ = _calculated("__rmod__")
    __pow__ = _calculated("__pow__")
    __and__ = _calculated("__and__")
    __or__ = _calculated("__or__")
    __xor__ = _calculated("__xor__")
    __lshift__ = _calculated("__lshift__")
    __rshift__ = _calculated("__rshift__")
    __neg__ = _calculated("__neg__")
    __abs__ = _calculated("__abs__")
    __invert__ = _calculated("__invert__")

    def __repr__(self) -> str:
        return int.__repr__(self)

    def __index__(self) -> int:
        return operator.index(int(self))


_NUMBERS: tuple[type[Any], ...] = (int, float, complex)
"""The types of Python numbers whose dtype is open, the narrowest first."""


def leaf_type(x: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an array or number."""
    if type(x) in WEAK:
        return (), as_array(x).dtype
    return x.shape, x.dtype


def arrays_of(leaves: Sequence[Any], told: str) -> list[Any]:
    """Return leaves of a tree, each an array, a value of a transformation or a Python number.

    Raises:
        ArgumentError: if one is none of these; ``told`` is how the message calls them.
    """
    found = []
    for x in leaves:
        try:
            x = int(x) if type(x) is LoopIndex else x
            found.append(x if type(x) in WEAK else as_array(x))
        except MeshardError as error:
            raise ArgumentError(
                f"{told} must be arrays or numbers, but one is {x!r} of type {type(x).__name__}."
            ) from error
    return found


def _short(x: Any) -> str:
    shape, dtype = leaf_type(x)
    return f"{dtype.name}[{','.join(map(str, shape))}]"


def _takes(x: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a value is a Python number, or stands for one, that can have a dtype."""
    weak = weak_type(x)
    return weak is not None and _number(dtype) is weak


def _number(dtype: np.dtype[Any]) -> Weak:
    """Return the type of Python number that goes with a dtype."""
    if is_float(dtype):
        return float
    return {"i": int, "u": int, "c": complex}.get(dtype.kind)


@final
@dataclass(frozen=True)
class Carry:
    """A tree of arrays that a loop hands from turn to turn.

    Attributes:
        what: the loop.
        body: the shard_map body that it runs in, or None.
        shape: the tree's structure.
        leaves: the arrays.
        weak: for each the type of Python number that it came as; None once it is settled.
        counted: whether a counter of ours stands before the user's tree.
        laid: for each the type of a cell after a turn, where axes stay automatic and it is known.
    """

    what: str
    body: Body | None
    shape: Any
    leaves: list[Any]
    weak: tuple[Weak, ...]
    counted: bool = False
    laid: tuple[Any, ...] = ()

    @classmethod
    def of(cls, what: str, value: Any, body: Body | None, counted: bool = False) -> Carry:
        """Return the first carry.

        Raises:
            ArgumentError: if a leaf is neither an array nor a number.
        """
        found, shape = trees.flatten(value)
        found = arrays_of(found, f"{what}: the leaves of the initial carry")
        make = as_array if body is None else body.lift
        weak = tuple(map(weak_type, found))
        return cls(what, body, shape, [make(x) for x in found], weak, counted)

    @property
    def value(self) -> Any:
        """The tree."""
        return trees.unflatten(self.shape, self.leaves)

    def replaced(self, leaves: Sequence[Any]) -> Carry:
        """Return a carry with other arrays."""
        return replace(self, leaves=list(leaves))

    def abstract(self) -> Carry:
        """Return a carry of the same types without data."""
        if self.body is None:
            abstract = [
                AbstractArray(x._type, w) for x, w in zip(self.leaves, self.weak, strict=True)
            ]
            return replace(self, leaves=abstract)
        scope = self.body.scope
        kinds = [
            scope.kind(t, x.kind.extent, x.kind.varies, w)
            for x, w, t in zip(self.leaves, self.weak, self._cell_types, strict=True)
        ]
        return replace(self, leaves=[abstract_grid(self.body, k) for k in kinds])

    @property
    def _cell_types(self) -> list[Any]:
        """The type of each array's cells in later turns, as far as it is known."""
        now = [x.kind.type for x in self.leaves]
        then = self.laid or now
        return [t if t.dtype == own.dtype else own for t, own in zip(then, now, strict=True)]

    def after(self, step: Callable[[Any], Any]) -> Carry:
        """Return the carry after a turn.

        Raises:
            TreeError: if it has another structure.
            ArgumentError: if a shape or dtype is another.
        """
        found = self._checked(self._leaves_after(step))
        if self.body is not None:  # the type must not depend on the number of turns
            found = [
                widened(self.body.lift(new), old.kind.varies)
                for old, new in zip(self.leaves, found, strict=True)
            ]
        return replace(self, leaves=found)

    def _leaves_after(self, step: Callable[[Any], Any]) -> list[Any]:
        found, shape = trees.flatten(step(self.value))
        if shape != self.shape:
            before, after = self.shape, shape
            if self.counted:
                before, after = before.children()[1], after.children()[1]
            raise TreeError(
                f"{self.what}: body function carry input and carry output must have the same "
                f"pytree structure, but they differ: the input is {before}, the output is "
                f"{after}. Revise the function so that it returns what it is given."
            )
        return arrays_of(found, f"{self.what}: what the body function returns as the carry")

    def _checked(self, found: Sequence[Any]) -> list[Any]:
        """Return a turn's results as arrays of the carry's types, or refuse."""
        leaves = []
        for number, (old, new) in enumerate(zip(self.leaves, found, strict=True)):
            made = as_array(new)
            if made.shape == old.shape and made.dtype != old.dtype and _takes(new, old.dtype):
                made = made.astype(old.dtype)
            if (made.shape, made.dtype) != (old.shape, old.dtype):
                self._refuse(number, old, made)
            leaves.append(made)
        return leaves

    def _refuse(self, number: int, old: Any, new: Any) -> None:
        keys = trees.leaves_with_plain_path(self.value)[number][0]
        path = "".join(f"[{k!r}]" for k in keys[int(self.counted) :])
        part = "dtypes" if old.shape == new.shape else "shapes"
        raise ArgumentError(
            f"{self.what}: body function carry input and carry output must have equal types, but "
            f"they differ: the input carry{path} has type {_short(old)}, but the output carry"
            f"{path} has type {_short(new)}, so the {part} do not match. Revise the function so "
            "that the output has the type of the input, for example with astype."
        )

    def typed(self, found: Sequence[Any], by: frozenset[str]) -> Carry:
        """Return the carry with the dtypes and varying axes that a turn, not run, gives it.

        Args:
            found: what the turn gave.
            by: the axes over which the loop's condition varies.
        """
        leaves, weak = [], []
        for x, kind, new in zip(self.leaves, self.weak, found, strict=True):
            dtype = x.dtype
            if kind is not None and leaf_type(new)[0] == ():
                dtype, kind = _settled_dtype(kind, dtype, new)
            made = x if dtype == x.dtype else x.astype(dtype)
            if self.body is not None:
                made = widened(made, self.body.lift(new).kind.varies | by)
            leaves.append(made)
            weak.append(kind)
        return replace(self, leaves=leaves, weak=tuple(weak))


def _settled_dtype(kind: type[Any], dtype: np.dtype[Any], new: Any) -> tuple[np.dtype[Any], Weak]:
    """Return the dtype that a Python number in a carry takes, and whether it is open still."""
    other, weak = leaf_type(new)[1], weak_type(new)
    # The kind of the number is kept, or widened: a float does not become an integer.
    order = _NUMBERS.index(kind)
    if weak is not None:
        return (other, weak) if _NUMBERS.index(weak) > order else (dtype, kind)
    return (other, None) if _number(other) in _NUMBERS[order:] else (dtype, kind)


def settled(
    carry: Carry,
    step: Callable[[Any], Any],
    predicate: Callable[[Any], Any] | None = None,
) -> Carry:
    """Return the first carry with the types that it has in every turn.

    The types of a loop's result must not depend on how many turns it takes. So turns are gone
    through without values until nothing changes: numbers take dtypes, and in a shard_map body a
    value that comes to vary over an axis varies from the beginning.

    Args:
        carry: the first carry.
        step: from the tree to the next one.
        predicate: from the tree to the condition, in the body as a grid.

    Raises:
        TreeError: if a turn gives another structure.
        ArgumentError: if a turn gives another shape or dtype.
    """
    body = carry.body
    while True:
        abstract = carry.abstract()
        by = frozenset[str]()
        if predicate is not None:
            with types_only(body):
                kind = predicate(abstract.value)
            by = kind.kind.varies if type(kind) is Grid else by
        with types_only(body, by):
            found = abstract._leaves_after(step)
        now = carry.typed(found, by)
        if all(
            (x.dtype, v) == (y.dtype, w) and (body is None or x.kind.varies == y.kind.varies)
            for x, v, y, w in zip(carry.leaves, carry.weak, now.leaves, now.weak, strict=True)
        ):
            with types_only(body, by):
                abstract._checked(found)
                auto = body is not None and body.scope.auto
                laid = tuple([body.lift(x).kind.type for x in found]) if body and auto else ()
            return replace(carry, weak=(None,) * len(carry.leaves), laid=laid)
        carry = now


def outputs_alike(
    what: str,
    names: Sequence[str],
    results: Sequence[Any],
    make: Callable[[Any], Any] = as_array,
) -> list[Any]:
    """Return the results of branches as trees of arrays whose types agree.

    Raises:
        TreeError: if their structures differ.
        ArgumentError: if a shape or dtype differs.
    """
    flat = [trees.flatten(r) for r in results]
    shape = flat[0][1]
    for name, (_, other) in zip(names, flat, strict=True):
        if other != shape:
            raise TreeError(
                f"{what}: branch outputs must have the same pytree structure, but they differ: "
                f"that of {names[0]} is {shape}, that of {name} is {other}."
            )
    rows = [
        arrays_of(leaves, f"{what}: what {name} returns")
        for name, (leaves, _) in zip(names, flat, strict=True)
    ]
    columns = [_column(what, names, column, make) for column in zip(*rows, strict=True)]
    return [trees.unflatten(shape, [column[i] for column in columns]) for i in range(len(results))]


def _column(
    what: str, names: Sequence[str], column: Sequence[Any], make: Callable[[Any], Any]
) -> list[Any]:
    """Return one leaf of all branches as arrays; Python numbers take the others' dtype."""
    dtype = next((x.dtype for x in column if type(x) not in WEAK and weak_type(x) is None), None)
    made = []
    for x in column:
        array = make(x)
        if dtype is not None and array.dtype != dtype and _takes(x, dtype):
            array = array.astype(dtype)
        made.append(array)
    for name, x in zip(names, made, strict=True):
        if leaf_type(x) != leaf_type(made[0]):
            part = "dtypes" if x.shape == made[0].shape else "shapes"
            raise ArgumentError(
                f"{what}: branches must have equal output types, but they differ: the output of "
                f"{names[0]} has type {_short(made[0])}, but the corresponding output of {name} "
                f"has type {_short(x)}, so the {part} do not match. Revise them so that all output "
                "types match."
            )
    return made


@final
@dataclass(frozen=True, slots=True)
class Positions:
    """The positions along the first dim of some arrays.

    Attributes:
        arrays: the arrays, in a body its values.
        shape: their tree.
        count: the number of positions.
        reverse: whether the last comes first.
        body: the shard_map body that the scan is in, or None.
    """

    arrays: list[Any]
    shape: Any
    count: int
    reverse: bool
    body: Body | None

    @classmethod
    def of(cls, xs: Any, length: int | None, reverse: Any, body: Body | None) -> Positions:
        """Return the positions of a tree of arrays.

        Raises:
            ArgumentError: if a leaf is not an array, or the length not an integer.
            ShapeError: if sizes of first dims differ, or there are none.
        """
        leaves, shape = trees.flatten(xs)
        arrays = [as_array(x) for x in arrays_of(leaves, "scan: the leaves of xs")]
        if body is not None:
            arrays = [body.lift(x) for x in arrays]
        return cls(arrays, shape, _length(arrays, length), bool(reverse), body)

    @property
    def order(self) -> range:
        """The positions as the scan takes them."""
        every = range(self.count)
        return every[::-1] if self.reverse else every

    def samples(self) -> list[Any]:
        """Return one position of each array as a value without data."""
        body = self.body
        if body is None:
            return [unplaced_value(x.shape[1:], x.dtype) for x in self.arrays]
        kinds = [
            body.scope.kind(
                local_type(body.scope, x.shape[1:], x.dtype), x.kind.extent, x.kind.varies
            )
            for x in self.arrays
        ]
        return [abstract_grid(body, k) for k in kinds]


def unplaced_value(shape: tuple[int, ...], dtype: Any) -> AbstractArray:
    """Return a value without data, on whatever devices it is needed."""
    world = here()
    return AbstractArray(world.type_of(shape, dtype, home(world), False))


def _length(arrays: Sequence[Any], length: int | None) -> int:
    """Return the number of positions of a scan."""
    for x in arrays:
        if not x.shape:
            raise ShapeError(f"scan: got a value with no leading dim to scan over: {x!r}.")
    sizes = [x.shape[0] for x in arrays]
    if len(set(sizes)) > 1:
        told = ", ".join([str(n) for n in dict.fromkeys(sizes)])
        raise ShapeError(f"scan: got values with different sizes of the leading dim: {told}.")
    if length is not None:
        count = -1 if isinstance(length, bool) else getattr(length, "__index__", lambda: -1)()
        if count < 0:
            raise ArgumentError(f"scan: length must be a non-negative integer, got {length!r}.")
        if sizes and sizes[0] != count:
            raise ShapeError(
                f"scan: got length {count}, which disagrees with the leading dim's size {sizes[0]}."
            )
        return count
    if not sizes:
        raise ShapeError("scan: got no values to scan over, and length is not given.")
    return int(sizes[0])
