"""Places: how each tensor is to be laid out, of what the caller says.

In: a tree of shardings, or a function, and the tensors. Out: shardings by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshard.errors import TreeError, did_you_mean
from meshard.resilience.feeding.offer import some
from meshard.runtime.moving.place import as_sharding, is_function
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.weights.checkpoint.prefixes import Name, by_prefix
from meshard.weights.checkpoint.sources import Made
from meshard.weights.native.structure import rebuilt

Build = Callable[[Mapping[str, Any]], Any]


def plain_build(structure: Any, what: str) -> Build:
    """Return what makes a tree of leaves by name, as its structure says."""

    def build(leaves: Mapping[str, Any]) -> Any:
        find: Callable[[str], Any] = leaves.__getitem__
        return rebuilt(structure, find, sorted(leaves), what)

    return build


def places_of(given: Any, made: Made, structure: Any, build: Build, what: str) -> Any:
    """Return the sharding of each tensor; None where none is given.

    Args:
        given: a prefix of the tree, or a function of a name and a ShapeDtypeStruct.
        made: the tensors.
        structure: the tree as JSON.
        build: makes the tree of leaves by name.
        what: the function that was called, for messages.

    Raises:
        TreeError: if the shardings are those of another tree.
    """
    names = [*made.recipes, *made.tied]
    if is_function(given):
        structs = {n: made.recipes[made.tied.get(n, n)] for n in names}
        found = {n: given(n, ShapeDtypeStruct(r.shape, r.dtype)) for n, r in structs.items()}
    else:
        if isinstance(given, Mapping) and structure == {"flat": True}:
            _check_names(given, names, what)
        found = by_prefix(given, build({n: Name(n) for n in names}), what)
    return {n: as_sharding(found.get(n), f"{what}: tensor {n!r}") for n in made.recipes}


def _check_names(given: Mapping[Any, Any], names: list[str], what: str) -> None:
    """Refuse shardings by name that are not those of the tensors."""
    unknown = [n for n in given if n not in names]
    missing = [n for n in names if n not in given]
    if unknown or missing:
        told = f"a sharding for {some(unknown)}, which is not in the tree that is published"
        if not unknown:
            told = f"no sharding for {some(missing)}"
        meant = did_you_mean(unknown[0], names) if unknown else ""
        raise TreeError(f"{what}: shardings has {told}. The tensors are {some(names)}.{meant}")
