"""Recording: a loader written for NumPy becomes a key map, if it only moves elements.

In: a function from arrays by name to arrays by name, and the shapes and dtypes of its sources.
Out: a key map of one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from meshard.algebra.arguments import function_of, shown
from meshard.errors import KeyMapError, did_you_mean
from meshard.weights.makers import functions as functions
from meshard.weights.makers.abstract import AbstractArray, as_form
from meshard.weights.makers.recorded import Recorded
from meshard.weights.maps.form import source_form
from meshard.weights.maps.keymap import KeyMap, Sources, known_sources

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
