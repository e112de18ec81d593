"""Sharding rules of operations, as text in einsum-like factors.

A rule such as ``"i k, k j -> i j"`` names, for every dim of every operand and result, the
*factors* it is made of. From the rule and the operands' shardings everything else is derived: which
operand must move, how the result lies, and over which axes a contracted factor is reduced.

Notation: operands are separated by commas, dims by spaces. A dim is a factor's name; ``1``, a dim
of size one; ``(a b)``, a dim that merges factors, the first the slowest; ``!k``, a factor that must
be whole on each device, as a sort or an FFT needs. ``...`` stands for the leading dims, aligned at
the right, which broadcast as in NumPy: a dim of size one meets a longer one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from meshard.errors import RuleError, ShapeError

Dim = tuple[str, ...]
Term = tuple[Dim, ...]


_TOKEN = re.compile(r"\s*(->|\.\.\.|,|\(|\)|!?[A-Za-z_]\w*|1)")
_ELLIPSIS: Dim = ("...",)


def _caret(text: str, at: int, why: str) -> RuleError:
    return RuleError(f"The rule cannot be read: {why}\n  {text}\n  {' ' * at}^")


@final
@dataclass(frozen=True, slots=True)
class OpRule:
    """A parsed rule; prints back as it was typed.

    Raises:
        RuleError: from `parse`, with a caret under the character at fault.

    >>> rule = OpRule.parse("i k, k j -> i j")
    >>> rule.inputs
    ((('i',), ('k',)), (('k',), ('j',)))
    >>> print(rule, rule.bind([(2, 3), (3, 5)]).sizes)
    i k, k j -> i j {'i': 2, 'k': 3, 'j': 5}
    """

    text: str
    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    whole: frozenset[str]

    @staticmethod
    def parse(text: str) -> OpRule:
        """Read a rule; the same text gives the same object."""
        return _parse(text)

    def __str__(self) -> str:
        return self.text

    def bind(
        self,
        shapes: Sequence[tuple[int, ...]],
        sizes: Mapping[str, int] | None = None,
        op: str = "rule",
    ) -> BoundRule:
        """Apply the rule to operand shapes.

        Args:
            shapes: one shape per operand.
            sizes: sizes of factors that no plain dim of an operand shows.
            op: the operation's name, for messages.

        Raises:
            ShapeError: if the shapes do not fit the rule or each other.
            RuleError: if a factor's size is not known.
        """
        if len(shapes) != len(self.inputs):
            raise ShapeError(f"{op}: takes {len(self.inputs)} operands, got {len(shapes)}.")
        spread = 0
        for term, shape in zip(self.inputs, shapes, strict=True):
            loose = _ELLIPSIS in term
            rank = len(term) - loose
            if len(shape) < rank or (len(shape) > rank and not loose):
                least = "at least " if loose else ""
                raise ShapeError(
                    f"{op}: an operand of rank {least}{rank} is needed, got shape {shape}."
                )
            spread = max(spread, loose * (len(shape) - rank))
        known = dict(sizes or {})
        inputs = [
            _spread(term, len(shape), spread)
            for term, shape in zip(self.inputs, shapes, strict=True)
        ]
        for term, shape in zip(inputs, shapes, strict=True):
            for dim, size in zip(term, shape, strict=True):
                if len(dim) == 1 and known.get(dim[0], 1) == 1:
                    known[dim[0]] = size
        unknown = {f: 0 for t in (*inputs, *self.outputs) for d in t for f in d if f not in known}
        unknown.pop("...", None)
        if unknown:
            raise RuleError(
                f"{op}: the shapes do not tell the size of {', '.join(map(repr, unknown))} in the "
                f"rule {self.text!r}. Give it in sizes=."
            )
        for number, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
            for place, (dim, size) in enumerate(zip(term, shape, strict=True)):
                want = math.prod(known[f] for f in dim)
                if size != want and not (size == 1 and len(dim) == 1):
                    raise ShapeError(
                        f"{op}: got incompatible shapes {', '.join(map(str, shapes))}: dim "
                        f"{place} of operand {number} is {size}, where the others have {want}."
                    )
        return BoundRule(
            tuple(
                tuple(
                    () if size == 1 and (len(dim) != 1 or known[dim[0]] != 1) else dim
                    for dim, size in zip(term, shape, strict=True)
                )
                for term, shape in zip(inputs, shapes, strict=True)
            ),
            tuple(_spread(term, len(term) - 1 + spread, spread) for term in self.outputs),
            known,
            self.whole,
        )


def _spread(term: Term, ndim: int, spread: int) -> Term:
    """Replace the ellipsis of a term, if it has one, by the factors that fill ``ndim`` dims."""
    if _ELLIPSIS not in term:
        return term
    at = term.index(_ELLIPSIS)
    filled = tuple((f"_{i}",) for i in range(spread - (ndim - len(term) + 1), spread))
    return term[:at] + filled + term[at + 1 :]


@final
@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule applied to shapes: each dim's factors, and each factor's size.

    A dim of size one that broadcasts against a longer one has no factors.
    """

    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    sizes: Mapping[str, int]
    whole: frozenset[str]

    def output_shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of one result."""
        return tuple([math.prod(self.sizes[f] for f in dim) for dim in self.outputs[number]])


@lru_cache(maxsize=4096)
def _parse(text: str) -> OpRule:
    sides: list[list[list[Dim]]] = [[[]]]
    group: list[str] | None = None
    whole: set[str] = set()
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise _caret(text, start, f"{text[start]!r} cannot begin the name of a factor.")
        token, start, at = match[1], match.start(1), match.end()
        term = sides[-1][-1]
        if group is not None and token in ("->", ",", "(", "...", "1"):
            raise _caret(text, start, f"{token!r} is not allowed inside parentheses.")
        if token == "->":
            if len(sides) == 2:
                raise _caret(text, start, "there is a second arrow.")
            sides.append([[]])
        elif token == ",":
            sides[-1].append([])
        elif token == "...":
            if _ELLIPSIS in term:
                raise _caret(text, start, "an operand has a second '...'.")
            term.append(_ELLIPSIS)
        elif token == "(":
            group = []
        elif token == ")":
            if group is None:
                raise _caret(text, start, "this parenthesis was never opened.")
            term.append(tuple(group))
            group = None
        elif token == "1":
            term.append(())
        else:
            name = token.lstrip("!")
            if any(name in dim for dim in term) or name in (group or ()):
                raise _caret(text, start, f"{name!r} appears twice in one operand.")
            if token[0] == "!":
                whole.add(name)
            if group is None:
                term.append((name,))
            else:
                group.append(name)
    if group is not None:
        raise _caret(text, end, "a parenthesis is not closed.")
    if len(sides) != 2:
        raise _caret(text, end, "there is no arrow '->'.")
    inputs, outputs = (tuple(tuple(term) for term in side) for side in sides)
    return OpRule(text, inputs, outputs, frozenset(whole))
