"""Sharding rules of operations, as text in einsum-like factors.

A rule such as ``"i k, k j -> i j"`` names, for every dim of every operand and result, the
*factors* it is made of. From the rule and the operands' shardings everything else is derived: which
operand must move, how the result is laid out, and over which axes a contracted factor is reduced.

Notation: operands are separated by commas, dims by spaces. A dim is a factor's name; ``1``, a dim
of size one; ``(a b)``, a dim that merges factors, the first the slowest; ``!k``, a factor that must
be whole on each device, as a sort or an FFT needs. ``...`` stands for the leading dims, aligned at
the right, which broadcast as in NumPy: a dim of size one meets a longer one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
        return _bound(self.text, tuple(shapes), tuple((sizes or {}).items()), op)

    def _bind(
        self, shapes: Sequence[tuple[int, ...]], sizes: Sequence[tuple[str, int]], op: str
    ) -> BoundRule:
        spread = self._leading_dims(shapes, op)
        inputs = [
            _spread(term, len(shape), spread)
            for term, shape in zip(self.inputs, shapes, strict=True)
        ]
        known = dict(sizes)
        for term, shape in zip(inputs, shapes, strict=True):
            for dim, size in zip(term, shape, strict=True):
                # A plain dim shows its factor's size. One of size one may broadcast, so that any
                # longer one counts more.
                if len(dim) == 1 and known.get(dim[0], 1) == 1:
                    known[dim[0]] = size
        self._check_known(inputs, known, op)
        _check_sizes(inputs, shapes, known, op)
        return BoundRule(
            tuple(
                tuple(
                    () if size == 1 and _broadcasts(dim, known) else dim
                    for dim, size in zip(term, shape, strict=True)
                )
                for term, shape in zip(inputs, shapes, strict=True)
            ),
            tuple(_spread(term, len(term) - 1 + spread, spread) for term in self.outputs),
            known,
            self.whole,
        )

    def _leading_dims(self, shapes: Sequence[tuple[int, ...]], op: str) -> int:
        """Return how many dims the ellipsis stands for, at most, once the ranks are checked."""
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
        return spread

    def _check_known(self, inputs: Sequence[Term], known: Mapping[str, int], op: str) -> None:
        """Refuse factors whose size neither a plain dim nor the caller gives."""
        unknown = {f: 0 for t in (*inputs, *self.outputs) for d in t for f in d if f not in known}
        unknown.pop("...", None)
        if unknown:
            raise RuleError(
                f"{op}: the shapes do not give the size of {', '.join(map(repr, unknown))} in the "
                f"rule {self.text!r}. Give it in sizes=."
            )


def _broadcasts(dim: Dim, known: Mapping[str, int]) -> bool:
    """Whether a dim of size one has no factors, because it meets a longer one or merges several.

    A single factor of size one keeps its name: an operation may ask for its bounds.
    """
    return len(dim) != 1 or known[dim[0]] != 1


def _check_sizes(
    inputs: Sequence[Term],
    shapes: Sequence[tuple[int, ...]],
    known: Mapping[str, int],
    op: str,
) -> None:
    """Refuse dims whose size is not that of their factors, unless they broadcast."""
    for number, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for place, (dim, size) in enumerate(zip(term, shape, strict=True)):
            wanted = math.prod(known[f] for f in dim)
            if size != wanted and not (size == 1 and len(dim) == 1):
                raise ShapeError(
                    f"{op}: got incompatible shapes {', '.join(map(str, shapes))}: dim "
                    f"{place} of operand {number} is {size}, where the others have {wanted}."
                )


def _spread(term: Term, ndim: int, spread: int) -> Term:
    """Replace the ellipsis of a term, if it has one, by the factors that fill ``ndim`` dims."""
    if _ELLIPSIS not in term:
        return term
    at = term.index(_ELLIPSIS)
    filled = tuple((f"_{i}",) for i in range(spread - (ndim - len(term) + 1), spread))
    return term[:at] + filled + term[at + 1 :]


@final
@dataclass(frozen=True, slots=True, eq=False)  # those that are kept are known by identity
class BoundRule:
    """A rule applied to shapes: each dim's factors, and each factor's size.

    A dim of size one that broadcasts against a longer one has no factors.
    """

    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    sizes: Mapping[str, int]
    whole: frozenset[str]

    @property
    def kept(self) -> frozenset[str]:
        """The factors that a result has; the others are contracted."""
        return frozenset([f for term in self.outputs for dim in term for f in dim])

    def output_shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of one result."""
        return tuple([math.prod(self.sizes[f] for f in dim) for dim in self.outputs[number]])


@lru_cache(maxsize=4096)
def _parse(text: str) -> OpRule:
    reader = _Reader(text)
    for token, at in _tokens(text):
        reader.take(token, at)
    return reader.rule()


@lru_cache(maxsize=4096)
def _bound(
    text: str, shapes: tuple[tuple[int, ...], ...], sizes: tuple[tuple[str, int], ...], op: str
) -> BoundRule:
    """Apply a rule; operations meet the same shapes again and again."""
    return _parse(text)._bind(shapes, sizes, op)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a rule, and where each begins."""
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise _caret(text, start, f"{text[start]!r} cannot begin the name of a factor.")
        yield match[1], match.start(1)
        at = match.end()


@final
class _Reader:
    """A rule as far as its tokens are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sides: list[list[list[Dim]]] = [[[]]]
        self._group: list[str] | None = None  # the factors since the parenthesis that is open
        self._whole: set[str] = set()

    def take(self, token: str, at: int) -> None:
        """Read one more token, which begins at a place of the text."""
        if self._group is not None:
            self._take_inside(self._group, token, at)
            return
        term = self._sides[-1][-1]
        match token:
            case "->":
                if len(self._sides) == 2:
                    raise _caret(self._text, at, "there is a second arrow.")
                self._sides.append([[]])
            case ",":
                self._sides[-1].append([])
            case "...":
                if _ELLIPSIS in term:
                    raise _caret(self._text, at, "an operand has a second '...'.")
                term.append(_ELLIPSIS)
            case "(":
                self._group = []
            case ")":
                raise _caret(self._text, at, "this parenthesis was never opened.")
            case "1":
                term.append(())
            case _:
                term.append((self._factor(token, at),))

    def _take_inside(self, group: list[str], token: str, at: int) -> None:
        """Read a token inside parentheses: a factor, or the end of the group."""
        if token == ")":
            self._sides[-1][-1].append(tuple(group))
            self._group = None
        elif token in ("->", ",", "(", "...", "1"):
            raise _caret(self._text, at, f"{token!r} is not allowed inside parentheses.")
        else:
            group.append(self._factor(token, at))

    def _factor(self, token: str, at: int) -> str:
        """Return the name of a factor, which an operand has once."""
        name = token.lstrip("!")
        if any(name in dim for dim in (*self._sides[-1][-1], self._group or ())):
            raise _caret(self._text, at, f"{name!r} appears twice in one operand.")
        if token[0] == "!":
            self._whole.add(name)
        return name

    def rule(self) -> OpRule:
        """Return the rule, whose text has ended."""
        end = len(self._text.rstrip())
        if self._group is not None:
            raise _caret(self._text, end, "a parenthesis is not closed.")
        if len(self._sides) != 2:
            raise _caret(self._text, end, "there is no arrow '->'.")
        inputs, outputs = (tuple(map(tuple, side)) for side in self._sides)
        return OpRule(self._text, inputs, outputs, frozenset(self._whole))
