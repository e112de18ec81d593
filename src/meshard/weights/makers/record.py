"""Recording: a loader written for NumPy becomes a key map, if it only moves elements.

In: a function from arrays by name to arrays by name, and the shapes and dtypes of its sources.
Out: a key map of one rule.

Recorded rules: tensors whose recipes are known outright, and the recipes that undo them.

In: recipes over sources of known shapes. Out: a rule like any other, and its inverse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import function_of, shown
from meshard.algebra.box import Box
from meshard.errors import KeyMapError, did_you_mean
from meshard.weights.makers import functions as functions
from meshard.weights.makers.abstract import AbstractArray, as_form
from meshard.weights.maps.fields import exactly, is_lossless
from meshard.weights.maps.form import Form, check_count, composed, source_form
from meshard.weights.maps.keymap import KeyMap, Sources, known_sources
from meshard.weights.maps.recipe import Recipe, Stride, Term
from meshard.weights.maps.rules import Drop, Rule, several
from meshard.weights.maps.tree import Change, Tree, Work

Known = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
_MOST = 4096


@final
@dataclass(frozen=True)
class Recorded(Rule):
    """Makes tensors by recipes.

    Attributes:
        recipes: each tensor's recipe.
        known: the name, shape and dtype of each source that they use.
        tied: names that are other names of tensors.
        came_from: what has made them, in words.
    """

    key = "recorded"
    recipes: tuple[tuple[str, Recipe], ...]
    known: Known
    tied: tuple[tuple[str, str], ...] = ()
    came_from: str = "a loader"

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Make the tensors."""
        for name, shape, dtype in self.known:
            node = tree.nodes.get(name)
            if node is None:
                raise KeyMapError(f"{label}: source {name!r} is not there.")
            if (node.form.shape, node.form.dtype) != (shape, dtype):
                raise KeyMapError(
                    f"{label}: source {name!r} was of shape {shape} and dtype {dtype} when it "
                    f"was recorded; found {node.form.shape} of {node.form.dtype}. Record it again."
                )
        sources = tuple([name for name, _, _ in self.known])
        targets = tuple([name for name, _ in self.recipes])
        changes = tree.perform(label, [Work(sources, targets, self._make)])
        for other, name in self.tied:
            if other in tree.nodes:
                raise KeyMapError(f"{label}: two tensors get the name {other!r}.")
            tree.put(other, tree.nodes[name])
            tree.touched.add(other)
        return changes

    def _make(self, forms: Sequence[Form]) -> list[Form]:
        known = {name: f for (name, _, _), f in zip(self.known, forms, strict=True)}
        return [composed(recipe, known) for _, recipe in self.recipes]

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return the rule that makes the sources again."""
        made = tuple([(name, r.shape, r.dtype) for name, r in self.recipes])
        drops: list[Rule] = [Drop(exactly(other)) for other, _ in self.tied]
        return [*drops, Recorded(_inverted(self.recipes, self.known), made, (), "its inverse")]

    @property
    def table(self) -> dict[str, Any]:
        """There is none: regions are not written as rules."""
        raise KeyMapError(
            "KeyMap.to_toml: a recorded map is made of regions, not of rules, and has no TOML "
            "form. Keep the loader and record it again, or write rules."
        )

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """What tables show."""
        names = [n for n, _, _ in self.known]
        count = sum([len(r.terms) for _, r in self.recipes])
        how = f"{count} regions, recorded from {self.came_from}"
        return self.key, _brief(names), _brief([n for n, _ in self.recipes]), how

    def __str__(self) -> str:
        return f"{self.key} {self.cells[1]} -> {self.cells[2]}"


def _brief(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{names[0]} ... {names[-1]} ({len(names)})"
    return several(names) if names else ""


def _inverted(
    recipes: Sequence[tuple[str, Recipe]], known: Known
) -> tuple[tuple[str, Recipe], ...]:
    """Return how sources are made of what recipes make of them.

    Raises:
        KeyMapError: if some of their elements are nowhere, or are rounded.
    """
    parts: dict[str, list[Term]] = {name: [] for name, _, _ in known}
    dtypes = {name: dtype for name, _, dtype in known}
    for name, recipe in recipes:
        for term in recipe.terms:
            old = dtypes[term.source]
            if not is_lossless(old, recipe.dtype):
                raise KeyMapError(
                    f"{name!r} has elements of {term.source!r}, which are rounded from {old} to "
                    f"{recipe.dtype}"
                )
            parts[term.source].append(_turned(name, term))
    made = []
    for name, shape, dtype in known:
        terms = tuple(_disjoint(name, parts[name]))
        lost = math.prod(shape) - sum([t.volume for t in terms])
        if lost:
            raise KeyMapError(f"{lost:,} of the {math.prod(shape):,} elements of {name!r} are lost")
        made.append((name, Recipe(shape, dtype, terms)))
    return tuple(made)


def _turned(name: str, term: Term) -> Term:
    """Return the term that fills its source from its target; copies are taken from the first."""
    strides = [
        Stride(s.size, s.target, s.target_step, s.source, s.source_step)
        for s in term.strides
        if s.source is not None
    ]
    strides.sort(key=lambda s: (s.target, -s.target_step))
    return Term(name, tuple(strides), term.target_start, term.source_start)


def _disjoint(name: str, terms: Sequence[Term]) -> Iterator[Term]:
    """Yield terms that fill each element once: of several copies, the first."""
    kept: list[Term] = []
    if len(terms) > _MOST:
        raise KeyMapError(f"{name!r} is in more than {_MOST:,} regions, too many to compare")
    for term in terms:
        left = [term]
        for other in kept:
            left = [p for t in left for p in _without(name, t, other)]
            check_count(len(left))
        yield from left
        kept += left


def _without(name: str, term: Term, other: Term) -> Iterator[Term]:
    """Yield the parts of a term that another one does not fill."""
    a, b = term.target_box, other.target_box
    if not a.intersect(b).volume:
        yield term
        return
    ours, theirs = _positions(term), _positions(other)
    common = [np.isin(x, y, assume_unique=True) for x, y in zip(ours, theirs, strict=True)]
    if not all(c.any() for c in common):
        yield term
    elif not all(c.all() for c in common):
        if b.volume != other.volume:
            raise KeyMapError(f"{name!r} is copied in strided regions that overlap in part")
        rest = a
        for dim, (start, stop) in enumerate(zip(b.starts, b.stops, strict=True)):
            for lo, hi in ((rest.starts[dim], start), (stop, rest.stops[dim])):
                if lo < hi:
                    yield from term.within_target(_limited(rest, dim, lo, hi))
            rest = _limited(rest, dim, max(start, rest.starts[dim]), min(stop, rest.stops[dim]))


def _limited(box: Box, dim: int, lo: int, hi: int) -> Box:
    starts, stops = list(box.starts), list(box.stops)
    starts[dim], stops[dim] = lo, hi
    return Box(tuple(starts), tuple(stops))


def _positions(term: Term) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the indices that a term fills along each dim."""
    found = []
    for dim, start in enumerate(term.target_start):
        along = [s for s in term.strides if s.target == dim]
        offsets = [range(0, s.size * s.target_step, s.target_step) for s in along]
        found.append(start + np.array([sum(o) for o in itertools.product(*offsets)], np.int64))
    return found


Loader = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@final
class _Weights(Mapping[str, AbstractArray]):
    """The sources that a loader reads, and those that it has read."""

    def __init__(self, sources: Sources) -> None:
        self.known = known_sources(sources, "record")
        self._arrays: dict[str, AbstractArray] = {}

    def __getitem__(self, name: str) -> AbstractArray:
        if name not in self.known:
            some = ", ".join(map(repr, list(self.known)[:3]))
            raise KeyMapError(
                f"record: the loader reads {name!r}, but the sources are {some}, ...."
                f"{did_you_mean(name, self.known)}"
            )
        if name not in self._arrays:
            self._arrays[name] = AbstractArray(source_form(name, *self.known[name]))
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, name: object) -> bool:
        return name in self.known


def record(loader: Loader, sources: Sources) -> KeyMap:
    """Return a loader written for NumPy as a key map.

    The loader is run once, on arrays without values. It may slice, index, reshape, transpose, join,
    stack, split, repeat, pad, roll, flip and cast; it may not compute.

    Args:
        loader: a function from a mapping of arrays by name to a mapping of arrays by name.
        sources: shapes and dtypes by name: pairs, or anything with a shape and a dtype.

    Returns:
        A map that prints, is applied and inverted as others are. Sources that the loader does not
        use are dropped.

    Raises:
        KeyMapError: if the loader is not pure movement: it computes, or depends on values; the
            message names its line.

    >>> import numpy as np
    >>> from meshard.checkpoint import record
    >>> def loader(w):
    ...     return {"qkv": np.concatenate([w["q"], w["k"], w["v"]]).T}
    >>> map = record(loader, {n: ((4, 8), "f4") for n in "qkv"})
    >>> print(map.apply({n: ((4, 8), "f4") for n in "qkv"}))
    tensor  shape    dtype    made of    how
    qkv     [8, 12]  float32  q + k + v  recorded
    """
    function_of(loader, "record", "loader")
    weights = _Weights(sources)
    result: object = loader(weights)
    if not isinstance(result, Mapping):
        raise KeyMapError(
            "record: a loader returns a mapping of arrays by name; found a "
            f"{type(result).__name__}."
        )
    recipes, tied = {}, []
    first: dict[int, str] = {}
    for name, array in result.items():
        if not isinstance(name, str) or not hasattr(array, "shape"):
            raise KeyMapError(
                f"record: a loader returns arrays by name; found a {type(array).__name__} as "
                f"{shown(name)}."
            )
        if id(array) in first:
            tied.append((name, first[id(array)]))
            continue
        first[id(array)] = name
        try:
            recipes[name] = as_form(array).recipe()
        except KeyMapError as error:
            raise KeyMapError(f"record: tensor {name!r}: {error}") from None
    used = dict.fromkeys([s for r in recipes.values() for s in r.sources])
    known = tuple([(n, *weights.known[n]) for n in weights.known if n in used])
    name = getattr(loader, "__name__", "a loader")
    rule = Recorded(tuple(recipes.items()), known, tuple(tied), name)
    return KeyMap([rule], rest="drop")
