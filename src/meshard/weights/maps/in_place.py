"""Rules that change tensors in place: their dims, dtype and order of elements; names stay.

In: a pattern and numbers. Out: what each tensor becomes, and the rule that changes it back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshard.algebra.arguments import shown
from meshard.errors import KeyMapError
from meshard.weights.maps import fields, moves
from meshard.weights.maps.fields import dtype_named, is_lossless, parse
from meshard.weights.maps.form import Form
from meshard.weights.maps.rules import Rule, exact_or
from meshard.weights.maps.tree import Change, Make, Tree


@dataclass(frozen=True)
class InPlace(Rule):
    """A rule that changes tensors and keeps their names.

    Attributes:
        source: the pattern of their names, or several.
    """

    source: str | tuple[str, ...] = fields.one_or_more()

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Change what matches."""
        found = [
            name
            for pattern in self.patterns
            for name, _ in tree.matches(label, parse(pattern), optional=self.optional)
        ]
        return tree.perform_in_place(label, found, self.make())

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of their names."""
        return (self.source,) if isinstance(self.source, str) else self.source

    def make(self) -> Make:
        """Return what is done to each tensor."""
        return lambda forms: [self.changed(forms[0])]

    def changed(self, form: Form) -> Form:
        """Return a tensor as the rule changes it."""
        raise NotImplementedError

    def undone(self, change: Change) -> dict[str, Any] | None:
        """Return the parameters of the rule that undoes a change; None if nothing has changed."""
        raise NotImplementedError

    @property
    def opposite(self) -> type[InPlace]:
        """The class of the rule that undoes this one."""
        return type(self)

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return a rule for all tensors that are changed back alike."""
        alike: dict[tuple[tuple[str, Any], ...], list[Change]] = {}
        for change in changes:
            how = self.undone(change)
            if how is not None:
                alike.setdefault(tuple(how.items()), []).append(change)
        made: list[Rule] = []
        for undone, group in alike.items():
            names = exact_or(self.patterns, group, after)
            made.append(self.opposite(names[0] if len(names) == 1 else names, **dict(undone)))
        return made


@dataclass(frozen=True)
class Transpose(InPlace):
    """Puts the dims of tensors in another order."""

    key = "transpose"
    perm: tuple[int, ...] | None = fields.integers()

    def changed(self, form: Form) -> Form:
        """Return the dims in the new order; reversed if none is given."""
        perm = self.perm if self.perm is not None else tuple(reversed(range(form.ndim)))
        return form.transposed([moves.dim_of(form, d) for d in perm])

    def undone(self, change: Change) -> dict[str, Any]:
        """Return the opposite order."""
        if self.perm is None:
            return {}
        ndim = len(self.perm)
        perm = [d % ndim for d in self.perm]
        return {"perm": tuple([perm.index(d) for d in range(ndim)])}


@dataclass(frozen=True)
class Cast(InPlace):
    """Casts tensors to another dtype."""

    key = "cast"
    dtype: str = fields.dtype_of_numbers()

    def changed(self, form: Form) -> Form:
        """Return the tensor in the dtype."""
        return form.cast(dtype_named(self.dtype))

    def undone(self, change: Change) -> dict[str, Any] | None:
        """Return the old dtype, if the new one holds all its values."""
        name, shape, old = change.before[0]
        new = dtype_named(self.dtype)
        if old == new:
            return None
        if not is_lossless(old, new):
            raise KeyMapError(
                f"it casts {name!r} from {old} to {new}, which does not hold all values of {old}: "
                f"{math.prod(shape):,} elements are rounded"
            )
        return {"dtype": old.name}


@dataclass(frozen=True)
class Reshape(InPlace):
    """Gives tensors another shape; the elements keep their order."""

    key = "reshape"
    shape: tuple[int, ...] | None = fields.integers(-1)

    def check(self) -> None:
        """Refuse a rule without a shape."""
        if self.shape is None:
            raise KeyMapError("reshape: give the shape; one of its sizes may be -1.")

    def changed(self, form: Form) -> Form:
        """Return the tensor in the shape."""
        return form.reshaped(self.shape or ())

    def undone(self, change: Change) -> dict[str, Any]:
        """Return the old shape."""
        return {"shape": change.before[0][1]}


@dataclass(frozen=True)
class Rope(InPlace):
    """Puts the rows of each head in the order that another rotary embedding expects.

    A rotary embedding turns pairs of rows. They are neighbours in "interleaved" order, and half a
    head apart in "half" order.
    """

    key = "rope"
    heads: int = fields.integer(0)
    to: str = fields.word("half")
    dim: int = fields.integer(0)
    rows: tuple[int, ...] | None = fields.integers(0)

    def check(self) -> None:
        """Refuse a rule that does not say how many heads there are, or in which order."""
        if self.heads < 1:
            raise KeyMapError(
                "rope: give heads, the number of heads in the whole tensor; the order of rows is "
                "that of each head, so that it cannot be guessed from the shape."
            )
        if self.rows is not None and len(self.rows) != 2:
            raise KeyMapError("rope: rows is two numbers, from which row of a head to which.")
        if self.to not in ("half", "interleaved"):
            raise KeyMapError(f"rope: to is 'half' or 'interleaved'; found {shown(self.to)}.")

    @property
    def new_names(self) -> str:
        """None: names stay."""
        return ""

    @property
    def details(self) -> dict[str, Any]:
        """The order of the result, and the numbers."""
        return {"to": self.to, **super().details}

    def changed(self, form: Form) -> Form:
        """Return the rows in the other order."""
        rows = None if self.rows is None else (self.rows[0], self.rows[1])
        return moves.rope(form, self.dim, self.heads, self.to, rows)

    def undone(self, change: Change) -> dict[str, Any]:
        """Return the opposite order."""
        to = "interleaved" if self.to == "half" else "half"
        return {"heads": self.heads, "to": to, "dim": self.dim, "rows": self.rows}


@dataclass(frozen=True)
class Pad(InPlace):
    """Adds elements of one value at a dim's end, up to a size or a multiple of a number."""

    key = "pad"
    dim: int = fields.integer(0)
    size: int | None = fields.integer(None, 0)
    multiple: int | None = fields.integer(None, 1)
    value: float = fields.real(0.0)

    def check(self) -> None:
        """Refuse a rule that does not say how far to pad."""
        if (self.size is None) == (self.multiple is None):
            raise KeyMapError("pad: give either the size or a number that divides it, multiple.")

    def changed(self, form: Form) -> Form:
        """Return the padded tensor."""
        old = form.shape[moves.dim_of(form, self.dim)]
        size = self.size
        if size is None:
            size = -(-old // (self.multiple or 1)) * (self.multiple or 1)
        return moves.pad(form, self.dim, size, self.value)

    @property
    def opposite(self) -> type[InPlace]:
        """The rule that takes the elements away."""
        return Slice

    def undone(self, change: Change) -> dict[str, Any] | None:
        """Return the old size."""
        old, new = change.before[0][1], change.after[0][1]
        return None if old == new else {"dim": self.dim, "start": 0, "stop": old[self.dim]}


@dataclass(frozen=True)
class Slice(InPlace):
    """Keeps some elements along a dim: those from a start to a stop."""

    key = "slice"
    dim: int = fields.integer(0)
    start: int = fields.integer(0, 0)
    stop: int | None = fields.integer(None, 0)

    def changed(self, form: Form) -> Form:
        """Return the elements."""
        stop = form.shape[moves.dim_of(form, self.dim)] if self.stop is None else self.stop
        return moves.slice_(form, self.dim, self.start, stop)

    def undone(self, change: Change) -> dict[str, Any] | None:
        """Return nothing if nothing is lost."""
        (name, old, _), (_, new, _) = change.before[0], change.after[0]
        if old == new:
            return None
        raise KeyMapError(
            f"it keeps {self.start} to {self.start + new[self.dim]} along dim {self.dim} of "
            f"{name!r}, of size {old[self.dim]}: {math.prod(old) - math.prod(new):,} elements are "
            "lost"
        )


@dataclass(frozen=True)
class Repeat(InPlace):
    """Copies each group along a dim several times: key and value heads, so that ranks have one."""

    key = "repeat"
    times: int = fields.integer(1, 1)
    groups: int = fields.integer(1, 1)
    dim: int = fields.integer(0)

    def changed(self, form: Form) -> Form:
        """Return the copies."""
        return moves.repeat(form, self.dim, self.times, self.groups)

    @property
    def opposite(self) -> type[InPlace]:
        """The rule that keeps the first copy."""
        return FirstCopy

    def undone(self, change: Change) -> dict[str, Any]:
        """Return the same numbers."""
        return {"times": self.times, "groups": self.groups, "dim": self.dim}


@dataclass(frozen=True)
class FirstCopy(InPlace):
    """Keeps the first of several copies of each group along a dim."""

    key = "first_copy"
    times: int = fields.integer(1, 1)
    groups: int = fields.integer(1, 1)
    dim: int = fields.integer(0)

    def changed(self, form: Form) -> Form:
        """Return the first copies."""
        return moves.first_copy(form, self.dim, self.times, self.groups)

    def undone(self, change: Change) -> dict[str, Any] | None:
        """Return nothing if nothing is lost."""
        name, shape, _ = change.before[0]
        if self.times == 1:
            return None
        raise KeyMapError(
            f"it keeps one of {self.times} copies in {name!r}, and copies need not be equal: "
            f"{math.prod(shape) - math.prod(change.after[0][1]):,} elements are lost"
        )
