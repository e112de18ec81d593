"""Tables of rules: TOML's texts to rules, and back.

In: a TOML text, or tables as Python's dicts. Out: rules with their lines; a text that gives the
same rules.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshard.algebra.arguments import is_text, shown
from meshard.errors import KeyMapError, did_you_mean
from meshard.weights.maps import in_place, rules, scales
from meshard.weights.maps.rules import Rule

RULES: Mapping[str, type[Rule]] = {
    kind.key: kind
    for kind in (
        *(rules.Rename, rules.Keep, rules.Drop, rules.Fuse, rules.Split, rules.Stack),
        *(rules.Unstack, rules.Tie, rules.Untie, scales.Scales),
        *(in_place.Transpose, in_place.Reshape, in_place.Rope, in_place.Pad, in_place.Slice),
        *(in_place.Repeat, in_place.FirstCopy, in_place.Cast),
    )
}
RESTS = ("refuse", "keep", "drop")
_MAX_TEXT = 2**26
_MAX_STAGES = 256


def rest_of(rest: object) -> str:
    """Return what becomes of tensors that no rule matches."""
    if not is_text(rest, *RESTS):
        raise KeyMapError(
            f"KeyMap: rest is 'refuse', 'keep' or 'drop', what becomes of tensors that no rule "
            f"matches; found {shown(rest)}."
        )
    return str(rest)


def rule_from_table(table: object, line: int | None = None) -> Rule:
    """Return a rule from a table: its kind with the pattern, and its other parameters.

    >>> str(rule_from_table({"cast": "layers.{*}", "dtype": "bfloat16"}))
    'cast layers.{*}, dtype bfloat16'
    """
    where = f" (line {line})" if line is not None else ""
    if not isinstance(table, Mapping) or not all(isinstance(k, str) for k in table):
        raise KeyMapError(f"A rule{where} is a table such as {{rename = 'a', to = 'b'}}.")
    kind = _kind(table, where)
    values = _parameters(kind, table, where)
    first = values.pop(kind.key)
    try:
        return _made(kind, first, values | {"line": line})
    except KeyMapError as error:
        raise KeyMapError(f"Rule{where}: {error}" if where else str(error)) from None


def _parameters(kind: type[Rule], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of a table, lists as tuples; refuse unknown and missing ones."""
    known = {f.name: f for f in dataclasses.fields(kind) if f.name not in ("source", "line")}
    unknown = [k for k in table if k not in known and k != kind.key]
    if unknown:
        raise KeyMapError(
            f"{kind.key}{where}: {unknown[0][:80]!r} is not one of its parameters "
            f"{', '.join(known)}.{did_you_mean(unknown[0], known)}"
        )
    lacking = [n for n, f in known.items() if n not in table and f.default is dataclasses.MISSING]
    if lacking:
        raise KeyMapError(f"{kind.key}{where}: {lacking[0]} is missing.")
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


def _made(kind: Callable[..., Rule], first: object, values: Mapping[str, Any]) -> Rule:
    return kind(first, **values)


def _kind(table: Mapping[str, object], where: str) -> type[Rule]:
    """Return the kind of rule that a table is."""
    kinds = [key for key in table if key in RULES]
    if len(kinds) == 1:
        return RULES[kinds[0]]
    hint = next(filter(None, (did_you_mean(k, RULES) for k in table)), "") if not kinds else ""
    found = " and ".join(kinds) or ", ".join(table)[:80]
    raise KeyMapError(
        f"A rule{where} names one thing to do: {', '.join(RULES)}; found {found}.{hint}"
    )


def rules_from_toml(text: str) -> list[tuple[list[Rule], str]]:
    """Return the stages of a TOML text: rules, and what becomes of the rest.

    Raises:
        KeyMapError: if it is not TOML, or a table is not a rule; the message names the line.
    """
    read = _read(text)
    stages = read.pop("stage", None)
    header = "rule" if stages is None else "stage.rule"
    if stages is None:
        stages = [read]
    elif read:
        raise KeyMapError(
            f"A map has [[stage]] tables alone, or none; found {next(iter(read))[:80]!r} beside."
        )
    if not isinstance(stages, list) or len(stages) > _MAX_STAGES:
        raise KeyMapError(f"stage is at most {_MAX_STAGES} tables: write [[stage]].")
    heads = re.compile(rf"\s*\[\[\s*{re.escape(header)}\s*\]\]")
    lines = [n for n, row in enumerate(text.splitlines(), 1) if heads.match(row)]
    listed = [_tables(stage) for stage in stages]
    count = sum([len(tables) for tables, _ in listed])
    numbers = iter(lines if len(lines) == count else [None] * count)
    return [
        ([rule_from_table(t, next(numbers)) for t in tables], rest_of(rest))
        for tables, rest in listed
    ]


def _read(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise KeyMapError(f"A map is a TOML text of at most {_MAX_TEXT:,} characters.")
    try:
        return tomllib.loads(text)
    except (RecursionError, ValueError, OverflowError) as error:
        raise KeyMapError(f"A map cannot be read as TOML: {error}.") from None


def _tables(stage: object) -> tuple[list[object], object]:
    """Return the tables of rules of a stage, and what becomes of the rest."""
    tables = stage.get("rule", []) if isinstance(stage, dict) else None
    if not isinstance(stage, dict) or not isinstance(tables, list) or set(stage) - {"rule", "rest"}:
        raise KeyMapError("A map has [[rule]] tables and rest, and nothing else.")
    return tables, stage.get("rest", "refuse")


def toml_text(stages: Sequence[tuple[Iterable[Rule], str]]) -> str:
    """Return the text that gives the same stages."""
    lines = []
    several = len(stages) != 1
    for listed, rest in stages:
        lines += ["[[stage]]"] if several else []
        lines += [f"rest = {_value(rest)}", ""]
        for rule in listed:
            lines.append("[[stage.rule]]" if several else "[[rule]]")
            lines += [f"{key} = {_value(value)}" for key, value in rule.table.items()]
            lines.append("")
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)
