"""The tensors that a command is about, and how they are to be laid out.

In: a file that lists names, shapes and dtypes; specs for names that match patterns. Out: tensors by
name, without their values, and a sharding for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, final

import click
import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.cli.errors import CommandError
from meshard.cli.written.notation import WrittenSpec, check_fits, spec_of, wrong
from meshard.errors import DtypeError
from meshard.runtime.moving.place import dtype_of

_RULE = re.compile(r"(.*?)\s*=\s*((?:P|PartitionSpec)\s*\(.*)", re.DOTALL)
_MOST_DIMS = 64
_LARGEST = (1 << 63) - 1


class Tensor(NamedTuple):
    """One tensor, without its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@final
@dataclass(frozen=True)
class Rule:
    """A spec, and the names that it is for.

    Attributes:
        pattern: a pattern of names, as of files; None for all names that no pattern matches.
        spec: the spec.
    """

    pattern: str | None
    spec: WrittenSpec


def rule_of(text: str) -> Rule:
    """Return the rule that a text such as ``*.q_proj.weight=P('model', None)`` describes.

    Raises:
        BadParameter: if it is not one.

    >>> rule_of("*.bias=P()").pattern
    '*.bias'
    """
    text = text.strip()
    if text.startswith(("P(", "PartitionSpec(")):
        return Rule(None, spec_of(text))
    found = _RULE.fullmatch(text)
    if found is None:
        wrong(text, 0, "write a spec, P('data'), or one for a pattern of names, *.bias=P('data')")
    if not found[1]:
        wrong(text, 0, "the pattern before = is empty; for all names write the spec alone")
    return Rule(found[1], spec_of(found[2]))


def shardings(
    tensors: Mapping[str, Tensor], rules: Sequence[Rule], mesh: Mesh, option: str, *, uneven: bool
) -> dict[str, NamedSharding]:
    """Return for each tensor the sharding that the first rule which matches its name gives it.

    Args:
        tensors: the tensors.
        rules: the rules; one without a pattern is for the names that the others do not match.
        mesh: the mesh.
        option: the option that the rules come from, for messages.
        uneven: whether blocks may differ by one.

    Raises:
        CommandError: if a rule matches no name, a name no rule, or a spec does not fit a tensor.
        BadParameter: if a spec names an axis that the mesh does not have.
    """
    rest = _for_the_rest(rules, option)
    made = {rule: rule.spec.over(mesh, "balanced" if uneven else None) for rule in rules}
    chosen = {name: _first_match(name, rules, rest) for name in tensors}
    used = set(chosen.values())
    for rule in rules:
        if rule.pattern is not None and rule not in used:
            raise CommandError(f"{option}: {_matches_nothing(rule.pattern, tensors)}")
    missing = [name for name, rule in chosen.items() if rule is None]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise CommandError(
            f"{option} says nothing about {missing[0]}{more}; a spec without a pattern is for the "
            f'rest: {option} "P()" leaves them whole on every device'
        )
    found = {name: made[rule] for name, rule in chosen.items() if rule is not None}
    for name, sharding in found.items():
        check_fits(sharding, tensors[name].shape, f"{option}: {name}: ")
    return found


def _for_the_rest(rules: Sequence[Rule], option: str) -> Rule | None:
    """Return the rule without a pattern."""
    found = [rule for rule in rules if rule.pattern is None]
    if len(found) > 1:
        raise click.UsageError(
            f"{option} is given {found[0].spec.text} and {found[1].spec.text}, both for all "
            "names; give one of them a pattern, as in *.bias=P()",
            click.get_current_context(silent=True),
        )
    return found[0] if found else None


def _first_match(name: str, rules: Sequence[Rule], rest: Rule | None) -> Rule | None:
    """Return the first rule whose pattern matches a name, or else the one for the rest."""
    for rule in rules:
        if rule.pattern is not None and fnmatchcase(name, rule.pattern):
            return rule
    return rest


def _matches_nothing(pattern: str, names: Iterable[str]) -> str:
    listed = list(names)
    used = [name for name in listed if fnmatchcase(name, pattern)]
    if used:
        return (
            f"{len(used):,} names match {pattern!r}, but all match a pattern before it, which "
            f"counts; {used[0]} is one of them"
        )
    near = get_close_matches(pattern, listed, 1, 0.3) or listed[:1]
    there = f"; there is {near[0]}, for example" if near else "; there are no names"
    return f"no name matches {pattern!r}{there}"


def selected(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of some patterns, or all without patterns.

    Raises:
        CommandError: if a pattern matches nothing.
    """
    listed = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in listed):
            raise CommandError(_matches_nothing(pattern, listed))
    if not patterns:
        return listed
    return [name for name in listed if any(fnmatchcase(name, p) for p in patterns)]


@final
@dataclass(frozen=True)
class Listing:
    """The tensors of a file, and how they are laid out, if it says so.

    Attributes:
        tensors: the tensors, by name.
        shardings: the sharding of each; empty if it is not known.
    """

    tensors: Mapping[str, Tensor]
    shardings: Mapping[str, Sharding] = field(default_factory=dict)


def listing_of(path: Path, step: int | None = None) -> Listing:
    """Return the tensors of a checkpoint, of files, or of a JSON file that lists them.

    Raises:
        CommandError: if it cannot be read, or does not say what its tensors are.
        CheckpointError: if a file is missing, cut off or malformed.
    """
    if path.suffix == ".json" and not _has_its_files(path):
        return Listing(read_listing(path))
    from meshard.checkpoint import metadata

    structs = metadata(path, step=step).tensors
    tensors = {name: Tensor(x.shape, x.dtype) for name, x in structs.items()}
    laid = {name: x.sharding for name, x in structs.items() if x.sharding is not None}
    return Listing(tensors, laid)


def _has_its_files(path: Path) -> bool:
    """Whether a JSON file is an index beside a file that it names."""
    given = _read_json(path)
    names = given.get("weight_map") if isinstance(given, dict) else None
    if not isinstance(names, dict):
        return False
    return any((path.parent / name).is_file() for name in set(map(str, names.values())))


def read_listing(path: Path) -> dict[str, Tensor]:
    """Return the tensors that a JSON file lists: ``{"name": {"shape": [2, 3], "dtype": "int8"}}``.

    An index of several safetensors files is accepted too, if its metadata lists its tensors.

    Raises:
        CommandError: if it cannot be read, is not such a list, or the index lists no shapes.
    """
    given = _read_json(path)
    if isinstance(given, dict) and isinstance(given.get("weight_map"), dict):
        given = _in_metadata(path, given)
    if not isinstance(given, dict) or not given:
        raise CommandError(
            f'{path} does not list tensors; it should be {{"name": {{"shape": [2, 3], "dtype": '
            '"float32"}, ...}'
        )
    return dict(_tensors(path, given))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes(), object_pairs_hook=_distinct)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not JSON: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r} occurs twice")
    return found


def _in_metadata(path: Path, index: Mapping[str, Any]) -> object:
    """Return what an index says about its tensors beside their files."""
    metadata = index.get("metadata")
    told = metadata.get("tensors") if isinstance(metadata, dict) else None
    if told is None:
        files = sorted({str(name) for name in index["weight_map"].values()})
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise CommandError(
            f"{path} names {len(index['weight_map']):,} tensors but not their shapes, which are in "
            f"the headers of its files: {files[0] if files else 'none'}{more}, of which there is "
            f'not one beside it. Fetch them, or write {{"name": {{"shape": ..., "dtype": ...}}}} '
            "into a JSON file."
        )
    return told


def _tensors(path: Path, given: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, entry in given.items():
        if not isinstance(entry, dict) or not {"shape", "dtype"} <= entry.keys():
            raise CommandError(
                f'{path}: {name!r} should be {{"shape": [...], "dtype": "..."}}, not '
                f"{json.dumps(entry)[:60]}"
            )
        shape, dtype = entry["shape"], entry["dtype"]
        whole = isinstance(shape, list) and all(
            type(size) is int and 0 <= size <= _LARGEST for size in shape
        )
        if not whole or len(shape) > _MOST_DIMS:
            raise CommandError(
                f"{path}: the shape of {name!r} should be a list of at most {_MOST_DIMS} "
                f"non-negative integers, not {json.dumps(shape)[:60]}"
            )
        try:
            if not isinstance(dtype, str):
                raise DtypeError(f"dtype should be a name, not {json.dumps(dtype)[:60]}")
            yield name, Tensor(tuple(shape), dtype_of(dtype, "dtype"))
        except DtypeError as error:
            raise CommandError(f"{path}: {name!r}: {error}") from error
