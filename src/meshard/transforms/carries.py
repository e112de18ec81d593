"""What control flow demands of values: carries that keep their types, branches that agree.

Python numbers are weak: in a carry they take the dtype that the first turn gives them, and as a
result of a branch that of the other branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from meshard.errors import ArgumentError, TreeError
from meshard.runtime import trees
from meshard.runtime.place import as_array

from .body import Body
from .branches import widened

__all__ = ["Carry", "leaf_type", "outputs_alike"]

_WEAK = (bool, int, float, complex)


def leaf_type(x: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an array or number."""
    if type(x) in _WEAK:
        return (), as_array(x).dtype
    return x.shape, x.dtype


def _short(x: Any) -> str:
    shape, dtype = leaf_type(x)
    return f"{dtype.name}[{','.join(map(str, shape))}]"


def _path(path: Sequence[Any]) -> str:
    return "".join(f"[{k!r}]" for k in path)


@final
@dataclass(frozen=True)
class Carry:
    """A tree of arrays that a loop hands from turn to turn.

    Attributes:
        what: the loop.
        body: the shard_map body that it runs in, or None.
        shape: the tree's structure.
        leaves: the arrays.
        weak: for each whether it came as a Python number, and has not been through a turn.
    """

    what: str
    body: Body | None
    shape: Any
    leaves: list[Any]
    weak: tuple[bool, ...]

    @classmethod
    def of(cls, what: str, value: Any, body: Body | None) -> Carry:
        """Return the first carry."""
        found, shape = trees.flatten(value)
        weak = tuple([type(x) in _WEAK for x in found])
        make = as_array if body is None else body.lift
        return cls(what, body, shape, [make(x) for x in found], weak)

    @property
    def value(self) -> Any:
        """The tree."""
        return trees.unflatten(self.shape, self.leaves)

    def replaced(self, leaves: list[Any]) -> Carry:
        """Return a carry with other arrays."""
        return replace(self, leaves=leaves)

    def cast(self, dtypes: Sequence[np.dtype[Any]]) -> Carry:
        """Return the carry with its arrays converted."""
        leaves = [
            x if x.dtype == d else x.astype(d) for x, d in zip(self.leaves, dtypes, strict=True)
        ]
        return replace(self, leaves=leaves)

    def after(self, step: Callable[[Any], Any]) -> Carry:
        """Return the carry after a turn.

        Raises:
            TreeError: if it has another structure.
            ArgumentError: if a shape or dtype is another.
        """
        result = step(self.value)
        found, shape = trees.flatten(result)
        if shape != self.shape:
            raise TreeError(
                f"{self.what}: body function carry input and carry output must have the same "
                f"pytree structure, but they differ: the input is {self.shape}, the output is "
                f"{shape}. Revise the function so that it returns what it is given."
            )
        again = list(self.leaves)
        for i, (old, new) in enumerate(zip(self.leaves, found, strict=True)):
            if type(new) in _WEAK and np.result_type(old.dtype, new) == old.dtype and not old.shape:
                found[i] = as_array(new).astype(old.dtype)
            elif self.weak[i] and old.shape == leaf_type(new)[0]:
                wide = np.result_type(old.dtype, leaf_type(new)[1])
                again[i] = old.astype(wide) if wide != old.dtype else old
        if any(a is not b for a, b in zip(again, self.leaves, strict=True)):
            return replace(self, leaves=again).after(step)
        for number, (old, new) in enumerate(zip(self.leaves, found, strict=True)):
            if leaf_type(new) != (old.shape, old.dtype):
                self._refuse(number, old, new)
        leaves: list[Any] = [as_array(x) for x in found]
        if self.body is not None:  # the type must not depend on the number of turns
            leaves = [
                widened(self.body.lift(new), old.kind.varies)
                for old, new in zip(self.leaves, leaves, strict=True)
            ]
        return replace(self, leaves=leaves, weak=(False,) * len(found))

    def _refuse(self, number: int, old: Any, new: Any) -> None:
        path = _path(trees.leaves_with_path(self.value)[number][0])
        part = "dtypes" if old.shape == leaf_type(new)[0] else "shapes"
        raise ArgumentError(
            f"{self.what}: body function carry input and carry output must have equal types, but "
            f"they differ: the input carry{path} has type {_short(old)}, but the output carry"
            f"{path} has type {_short(new)}, so the {part} do not match. Revise the function so "
            "that the output has the type of the input, for example with astype."
        )


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
    columns = [
        _column(what, names, column, make)
        for column in zip(*[leaves for leaves, _ in flat], strict=True)
    ]
    return [trees.unflatten(shape, [column[i] for column in columns]) for i in range(len(results))]


def _column(
    what: str, names: Sequence[str], column: Sequence[Any], make: Callable[[Any], Any]
) -> list[Any]:
    """Return one leaf of all branches as arrays; Python numbers take the others' dtype."""
    strong = [x.dtype for x in column if type(x) not in _WEAK]
    weak = [x for x in column if type(x) in _WEAK]
    if not weak:
        made = [make(x) for x in column]
    else:
        dtype = np.result_type(*strong, *weak) if strong else np.result_type(*map(as_array, weak))
        made = [make(as_array(x).astype(dtype) if type(x) in _WEAK else x) for x in column]
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
