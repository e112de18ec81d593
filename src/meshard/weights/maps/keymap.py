"""Key maps: which tensors become which, as a list of rules.

In: rules, from Python or TOML, and names, shapes and dtypes of whole tensors. Out: a recipe for
each new tensor, which restricts to any cut; the map that undoes a map.

Tables of rules: TOML's texts to rules, and back.

In: a TOML text, or tables as Python's dicts. Out: rules with their lines; a text that gives the
same rules.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import (
    count_of,
    instance_of,
    is_text,
    items_of,
    refusal,
    shown,
    text_of,
)
from meshard.errors import KeyMapError, did_you_mean
from meshard.plan.show.pictured import Printed
from meshard.plan.show.report import Table
from meshard.plan.show.terminal import columns
from meshard.runtime.lines.letters import sent, sent_as
from meshard.runtime.types import dtype_name
from meshard.weights.maps import in_place, rules, scales
from meshard.weights.maps.fields import dtype_named, exactly
from meshard.weights.maps.form import source_form
from meshard.weights.maps.recipe import Recipe
from meshard.weights.maps.rules import Rule
from meshard.weights.maps.tree import Change, Node, Tree

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


_ROWS = 200


class Shaped(Protocol):
    """What is known of a tensor: arrays, ShapeDtypeStructs, tensors in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""

    @property
    def dtype(self) -> Any:
        """The dtype."""


Source = Shaped | tuple[Sequence[int], Any]
Sources = Mapping[str, Source]


@sent
@final
@dataclass(frozen=True, slots=True)
class Stage:
    """Rules that are applied to the same tensors, and what becomes of those that none matches."""

    rules: tuple[Rule, ...] = ()
    rest: str = "refuse"


@final
@dataclass(frozen=True)
class Mapped:
    """What a map makes of given tensors.

    Attributes:
        recipes: how each tensor is made, by name.
        tied: names that are other names of tensors, and those tensors' names.
        sources: the shape and dtype of each source.
        how: what was done to each tensor, in words.
        scales: for tensors that have block scales, their name and the sizes of a block.
    """

    recipes: Mapping[str, Recipe]
    tied: Mapping[str, str]
    sources: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    how: Mapping[str, str] = field(repr=False, compare=False)
    scales: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def table(self, most: int | None = None) -> Table:
        """Return the tensors as a table: name, shape, dtype, what they are made of, and how."""
        if most is not None:
            most = count_of(most, "Mapped.table", "most")
        listed = list(self.recipes.items())[:most]
        rows = [
            (
                name,
                str(list(r.shape)),
                dtype_name(r.dtype),
                _made_of(r.sources),
                self.how[name] or "as it is",
            )
            for name, r in listed
        ]
        rows += [
            (name, "", "", other, "tied")
            for name, other in self.tied.items()
            if other in dict(listed)
        ]
        left = len(self.recipes) - len(listed)
        notes = [f"... and {left:,} more"] if left else []
        return Table(
            ("tensor", "shape", "dtype", "made of", "how"), rows, "~<<~~", notes, spare=("shape",)
        )

    def check_shardings(
        self, shardings: Mapping[str, Sharding]
    ) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return where block scales are to be cut, if tensors are laid out in some ways.

        Args:
            shardings: how tensors are to be laid out, by name; others are left out.

        Returns:
            The cut points of each dim, by the name of the scales.

        Raises:
            KeyMapError: if a tensor is cut within a block, which has one scale.
        """
        return scales.check_cuts(self.recipes, self.scales, shardings)

    def __str__(self) -> str:
        return self.table(_ROWS).text(columns())


def _made_of(sources: Sequence[str]) -> str:
    if len(sources) > 4:
        return f"{sources[0]} ... {sources[-1]} ({len(sources)})"
    return rules.several(sources) if sources else ""


@final
@dataclass(frozen=True, init=False)
class KeyMap(Printed):
    """Which tensors become which: a list of rules, applied to whole tensors before any cut.

    Args:
        rules: rules in order, each as a value or as a table like those of TOML.
        rest: what becomes of tensors that no rule matches: "refuse", "keep" or "drop".

    Raises:
        KeyMapError: if a rule or a pattern cannot be read.

    Rules are applied in order, each to what those before it have made, and each must match
    something. In patterns ``{i}`` stands for digits (so do ``{j}``, ``{k}``, ``{l}`` and
    ``{e}``), ``{name}`` for one part of a name without dots, ``{*}`` and ``{name*}``
    for any text.

    >>> from meshard.checkpoint import KeyMap
    >>> layer = "model.layers.{i}.self_attn."
    >>> map = KeyMap().fuse(
    ...     [f"{layer}{w}_proj.weight" for w in "qkv"],
    ...     "layers.{i}.qkv",
    ...     ranks=2,
    ... )
    >>> print(map)
       rule  from                                                          to              how
    1  fuse  model.layers.{i}.self_attn.(q_proj + k_proj + v_proj).weight  layers.{i}.qkv  ranks 2
    rest: refuse
    """

    stages: tuple[Stage, ...]

    def __init__(
        self, rules: Iterable[Rule | Mapping[str, Any]] = (), *, rest: str = "refuse"
    ) -> None:
        given = _listed(rules, "KeyMap", "rules", "rules")
        checked = tuple([r if isinstance(r, Rule) else rule_from_table(r) for r in given])
        object.__setattr__(self, "stages", (Stage(checked, rest_of(rest)),))

    @classmethod
    def _of(cls, stages: Sequence[Stage]) -> KeyMap:
        made = cls()
        object.__setattr__(made, "stages", tuple(stages))
        return made

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, of all stages."""
        return tuple([r for s in self.stages for r in s.rules])

    def add(self, rule: Rule) -> KeyMap:
        """Return the map with one more rule at its end."""
        *first, last = self.stages
        return KeyMap._of([*first, replace(last, rules=(*last.rules, rule))])

    def rename(self, source: str, to: str, *, optional: bool = False) -> KeyMap:
        """Give tensors other names.

        >>> print(KeyMap().rename("model.{*}", "{*}").apply({"model.w": ((2,), "f4")}))
        tensor  shape  dtype    made of  how
        w       [2]    float32  model.w  as it is
        """
        return self.add(rules.Rename(source, to, optional=optional))

    def keep(self, source: str, *, optional: bool = False) -> KeyMap:
        """Keep tensors as they are, so that ``rest`` does not refuse them."""
        return self.add(rules.Keep(source, optional=optional))

    def drop(self, source: str, *, optional: bool = False) -> KeyMap:
        """Leave tensors out. A map that drops has no inverse, unless another name stays."""
        return self.add(rules.Drop(source, optional=optional))

    def fuse(
        self, sources: Sequence[str], to: str, *, dim: int = 0, ranks: int = 1, groups: int = 1
    ) -> KeyMap:
        """Join several tensors along a dim: ``q``, ``k`` and ``v``, or ``gate`` and ``up``.

        Args:
            sources: a pattern for each; those whose places are filled alike belong together.
            to: the pattern of the result's name.
            dim: the dim.
            ranks: rank ``r`` has the ``r``-th equal part of each tensor, one after the other.
            groups: the same for groups of heads, as Megatron and GPT-NeoX lay them out.

        Tensors of which one is missing are refused: nothing is fused in part.

        >>> w = {"0.gate": ((8, 2), "f4"), "0.up": ((8, 2), "f4")}
        >>> map = KeyMap().fuse(["{i}.gate", "{i}.up"], "{i}.both", ranks=2)
        >>> map.apply(w).recipes["0.both"].shape
        (16, 2)
        """
        listed = _listed(sources, "KeyMap.fuse", "sources", "patterns")
        return self.add(rules.Fuse(listed, to, dim=dim, ranks=ranks, groups=groups))

    def split(
        self, source: str, to: Sequence[str], *, sizes: Sequence[int] | None = None, **how: Any
    ) -> KeyMap:
        """Split a tensor along a dim into several: the opposite of `fuse`.

        Args:
            source: the pattern of the tensor.
            to: a pattern for each part.
            sizes: the parts' sizes along the dim.
            how: ``dim``, ``ranks`` and ``groups`` as in `fuse`; ``ratio``, the parts' relative
                sizes, instead of ``sizes``; equal parts if neither is given.

        >>> map = KeyMap().split("{i}.qkv", ["{i}.q", "{i}.k", "{i}.v"], ratio=(4, 1, 1), groups=2)
        >>> [r.shape for r in map.apply({"0.qkv": ((12, 5), "f4")}).recipes.values()]
        [(8, 5), (2, 5), (2, 5)]
        """
        parts = _listed(to, "KeyMap.split", "to", "patterns")
        return self.add(rule_from_table({"split": source, "to": parts, "sizes": sizes, **how}))

    def stack(self, source: str, to: str, *, dim: int = 0) -> KeyMap:
        """Stack numbered tensors along a new dim: experts.

        >>> w = {f"experts.{e}.w1": ((4, 2), "f4") for e in range(8)}
        >>> print(KeyMap().stack("experts.{e}.w1", "w1").apply(w))
        tensor  shape      dtype    made of                            how
        w1      [8, 4, 2]  float32  experts.0.w1 ... experts.7.w1 (8)  stack
        """
        return self.add(rules.Stack(source, to, dim=dim))

    def unstack(self, source: str, to: str, *, dim: int = 0) -> KeyMap:
        """Split tensors along a dim into numbered tensors without that dim.

        >>> list(KeyMap().unstack("w1", "experts.{e}.w1").apply({"w1": ((2, 4), "f4")}).recipes)
        ['experts.0.w1', 'experts.1.w1']
        """
        return self.add(rules.Unstack(source, to, dim=dim))

    def transpose(self, source: str, perm: Sequence[int] | None = None) -> KeyMap:
        """Put the dims in another order; by default reverse them."""
        listed = None if perm is None else _listed(perm, "KeyMap.transpose", "perm", "dims")
        return self.add(in_place.Transpose(source, listed))

    def reshape(self, source: str, shape: Sequence[int]) -> KeyMap:
        """Give tensors another shape; one size may be -1."""
        return self.add(
            in_place.Reshape(source, _listed(shape, "KeyMap.reshape", "shape", "sizes"))
        )

    def rope(
        self,
        source: str,
        heads: int,
        to: str = "half",
        *,
        dim: int = 0,
        rows: tuple[int, int] | None = None,
    ) -> KeyMap:
        """Put the rows of each head in the order that another rotary embedding expects.

        Args:
            source: the pattern of projections to queries or keys, and of their biases.
            heads: how many heads the whole tensor has.
            to: "half" (Hugging Face: pairs are half a head apart) or "interleaved" (Meta's
                files: pairs are neighbours), the order of the result.
            dim: the dim of the rows.
            rows: which rows of each head are rotary, from one to another; all if not given.

        >>> map = KeyMap().rope("{i}.{name}", 4, "interleaved")
        >>> print(map.inverse({"0.q": ((32, 8), "f4")}).rules[0])
        rope {i}.{name}, to half, heads 4
        """
        return self.add(in_place.Rope(source, heads, to, dim, rows))

    def pad(
        self,
        source: str,
        *,
        dim: int = 0,
        size: int | None = None,
        multiple: int | None = None,
        value: float = 0.0,
    ) -> KeyMap:
        """Add elements of one value at a dim's end: a vocabulary, to a multiple.

        >>> map = KeyMap().pad("embed", multiple=8)
        >>> map.apply({"embed": ((30522, 384), "f4")}).recipes["embed"].shape
        (30528, 384)
        >>> print(map.inverse({"embed": ((30522, 384), "f4")}).rules[0])
        slice embed, stop 30522
        """
        return self.add(in_place.Pad(source, dim, size, multiple, value))

    def slice(
        self, source: str, *, dim: int = 0, start: int = 0, stop: int | None = None
    ) -> KeyMap:
        """Keep some elements along a dim: the opposite of `pad`."""
        return self.add(in_place.Slice(source, dim, start, stop))

    def repeat(self, source: str, times: int, *, groups: int = 1, dim: int = 0) -> KeyMap:
        """Copy each group along a dim several times: each key and value head, one for each rank.

        >>> map = KeyMap().repeat("k", 4, groups=2)  # two heads, for eight ranks
        >>> map.apply({"k": ((2 * 64, 512), "f4")}).recipes["k"].shape
        (512, 512)
        """
        return self.add(in_place.Repeat(source, times, groups, dim))

    def first_copy(self, source: str, times: int, *, groups: int = 1, dim: int = 0) -> KeyMap:
        """Keep the first of several copies of each group: the opposite of `repeat`."""
        return self.add(in_place.FirstCopy(source, times, groups, dim))

    def tie(self, source: str, to: str) -> KeyMap:
        """Give tensors another name: two names, one tensor.

        >>> KeyMap().tie("embed", "lm_head").apply({"embed": ((6, 2), "f4")}).tied
        {'lm_head': 'embed'}
        """
        return self.add(rules.Tie(source, to))

    def untie(self, source: str) -> KeyMap:
        """Make other names of tensors into tensors of their own: the opposite of `tie`."""
        return self.add(rules.Untie(source))

    def scales(
        self,
        source: str,
        by: str,
        block: Sequence[int],
        *,
        to: tuple[str, str] | None = None,
    ) -> KeyMap:
        """Say that tensors are block scales of others, and follow them.

        Whatever later rules do to a tensor is done to its scales, in units of blocks; what takes
        blocks apart is refused. Scales keep their names beside their tensors'.

        Args:
            source: the pattern of tensors that have scales.
            by: the pattern of the scales.
            block: how many elements share a scale, along each dim of the tensors.
            to: the patterns of both names as they are at last, if they are other ones.

        >>> w = {"w": ((256, 384), "float8_e4m3fn"), "w_scale": ((2, 3), "f4")}
        >>> map = KeyMap().scales("{name}", "{name}_scale", (128, 128)).transpose("w")
        >>> print(map.apply(w))
        tensor   shape       dtype          made of  how
        w        [384, 256]  float8_e4m3fn  w        transpose
        w_scale  [3, 2]      float32        w_scale  transpose, scales
        """
        listed = _listed(block, "KeyMap.scales", "block", "sizes")
        return self.add(scales.Scales(source, by, listed, to))

    def cast(self, source: str, dtype: Any) -> KeyMap:
        """Cast tensors to another dtype, once and from their own.

        A tensor that a cast has rounded is not cast again, which would round it twice.
        """
        name = dtype if isinstance(dtype, str) else dtype_named(dtype).name
        return self.add(in_place.Cast(source, name))

    def then(self, other: KeyMap) -> KeyMap:
        """Return the map that applies this one, and another one to what it makes.

        Raises:
            KeyMapError: if the other one is not a map.

        >>> names = KeyMap().rename("model.{*}", "{*}").then(KeyMap().rename("{name}.w", "{name}"))
        >>> list(names.apply({"model.q.w": ((2,), "f4")}).recipes)
        ['q']
        """
        instance_of(other, KeyMap, "KeyMap.then", "other", error=KeyMapError)
        return KeyMap._of([*self.stages, *other.stages])

    def apply(self, sources: Sources, *, tied: Mapping[str, str] | None = None) -> Mapped:
        """Return how each new tensor is made.

        Args:
            sources: shapes and dtypes by name: pairs, or anything with a shape and a dtype.
            tied: names that are other names of sources.

        Raises:
            KeyMapError: if a rule matches nothing, a tensor is matched by no rule or by several, or
                sizes do not fit; with the rule, the tensor, what was expected and found.
        """
        tree, known = _tree(sources, {} if tied is None else tied)
        for number, stage in enumerate(self.stages, 1):
            _run(stage, tree, self._prefix(number))
        return _mapped(tree, known)

    def preview(self, sources: Sources, *, tied: Mapping[str, str] | None = None) -> str:
        """Return a table of what `apply` makes: name, shape, dtype, made of, how."""
        return str(self.apply(sources, tied=tied))

    def inverse(self, sources: Sources, *, tied: Mapping[str, str] | None = None) -> KeyMap:
        """Return the map that turns what this one makes back into its sources.

        It is checked on the given shapes, element by element, before it is returned.

        Raises:
            KeyMapError: if elements are lost: dropped, cut off, or rounded by a cast; with the rule
                and the tensor.

        >>> print(KeyMap().transpose("w", (1, 2, 0)).inverse({"w": ((2, 3, 4), "f4")}).rules[0])
        transpose w, perm 2 0 1
        """
        tree, known = _tree(sources, {} if tied is None else tied)
        ties = _ties(tree)
        undone = []
        for number, stage in enumerate(self.stages, 1):
            undone.append(_undo(stage, tree, self._prefix(number)))
        stages = []
        try:
            for stage in reversed(undone):
                stages.append(_run(stage, tree, "of the inverse, ", covering=True))
        except KeyMapError as error:
            raise KeyMapError(f"The map cannot be inverted: {error}") from None
        _check_same(tree, known, ties)
        return KeyMap._of(stages)

    def to_toml(self) -> str:
        """Return the map as TOML text; `from_toml` gives an equal map.

        >>> print(KeyMap(rest="keep").cast("{*}.weight", "bfloat16").to_toml())
        rest = "keep"
        <BLANKLINE>
        [[rule]]
        cast = "{*}.weight"
        dtype = "bfloat16"
        <BLANKLINE>
        """
        return toml_text([(s.rules, s.rest) for s in self.stages])

    @classmethod
    def from_toml(cls, text: str) -> KeyMap:
        """Return a map from TOML text.

        Raises:
            KeyMapError: if it cannot be read; the message names the line.
        """
        return cls._of([Stage(tuple(r), rest) for r, rest in rules_from_toml(text)])

    def _prefix(self, stage: int) -> str:
        return f"stage {stage}, " if len(self.stages) > 1 else ""

    def __str__(self) -> str:
        rows = []
        for number, stage in enumerate(self.stages, 1):
            if len(self.stages) > 1:
                rows.append(("", f"stage {number}", "", "", f"rest {stage.rest}"))
            for k, rule in enumerate(stage.rules, 1):
                rows.append((str(k), *rule.cells))
        notes = [f"rest: {self.stages[0].rest}"] if len(self.stages) == 1 else []
        return Table(("", "rule", "from", "to", "how"), rows, "><~~~", notes).text(columns())

    def __repr__(self) -> str:
        return f"<KeyMap of {len(self.rules)} rules>"


def _listed(given: object, what: str, name: str, of: str) -> tuple[Any, ...]:
    return items_of(given, what, name, of, ordered=True, error=KeyMapError)


def known_sources(
    sources: Sources, what: str = "KeyMap"
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the shapes and dtypes of sources.

    Raises:
        KeyMapError: if they are something else.
    """
    _check_dict(sources, what, "sources", "shapes and dtypes")
    return {name: _known_source(name, s) for name, s in sources.items()}


def _known_source(name: str, source: Source) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(name, str):
        raise KeyMapError(f"KeyMap: sources have names; found {shown(name)}.")
    try:
        shape, dtype = source if isinstance(source, tuple) else (source.shape, source.dtype)
        sizes = tuple([operator.index(n) for n in shape])
        if any(n < 0 for n in sizes):
            raise ValueError(f"{sizes} is not a shape")
        return sizes, dtype_named(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise KeyMapError(
            f"KeyMap: source {shown(name)} is a shape and a dtype, or has them; found "
            f"{shown(source)}."
        ) from error


def _tree(
    sources: Sources, tied: Mapping[str, str]
) -> tuple[Tree, dict[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
    known = known_sources(sources)
    _check_dict(tied, "KeyMap", "tied", "names")
    nodes = {
        name: Node(source_form(name, shape, dtype), k)
        for k, (name, (shape, dtype)) in enumerate(known.items())
    }
    for other, name in tied.items():
        text_of(other, "KeyMap", "a name in tied", KeyMapError)
        text_of(name, "KeyMap", f"tied[{other!r:.80}]", KeyMapError)
        if name not in known or other in known:
            why = "is not a source" if name not in known else f"and {other!r} are both sources"
            raise KeyMapError(f"KeyMap: {other!r} is tied to {name!r}, but {name!r} {why}.")
        nodes[other] = nodes[name]
    tree = Tree()
    for name, node in nodes.items():
        tree.put(name, node)
    return tree, known


def _check_dict(given: object, what: str, name: str, of: str) -> None:
    if not isinstance(given, Mapping):
        raise KeyMapError(refusal(what, name, f"a dict of {of} by name", given))


def _label(rule: Rule, number: int, prefix: str) -> str:
    line = f" (line {rule.line})" if rule.line is not None else ""
    return f"{prefix}rule {number}{line}: {rule}"


def _run(stage: Stage, tree: Tree, prefix: str, *, covering: bool = False) -> Stage:
    """Apply a stage; return it, with rules that keep what no other one matches if it is asked."""
    tree.new_stage()
    for number, rule in enumerate(stage.rules, 1):
        rule.apply(tree, _label(rule, number, prefix))
    left = _left(stage, tree, refuse=not covering)
    tree.end_stage()
    if not covering or stage.rest != "refuse":
        return stage
    return replace(stage, rules=(*stage.rules, *[rules.Keep(exactly(n)) for n in left]))


def _left(stage: Stage, tree: Tree, *, refuse: bool = True) -> list[str]:
    """Return the names that no rule has matched; drop them, or refuse them, as the stage says."""
    left = [n for n in tree.nodes if n not in tree.touched]
    if left and stage.rest == "refuse" and refuse:
        some = ", ".join(map(repr, left[:3]))
        raise KeyMapError(
            f"KeyMap: no rule matches {len(left):,} of the tensors: {some}"
            f"{', ...' if len(left) > 3 else ''}. Add rules for them, or say what becomes of them: "
            'rest="keep" or rest="drop".'
        )
    if stage.rest == "drop":
        for name in left:
            tree.remove(name)
    return left


def _undo(stage: Stage, tree: Tree, prefix: str) -> Stage:
    """Apply a stage, and return the one that undoes it."""
    tree.new_stage()
    undone: list[Rule] = []
    for number, rule in enumerate(stage.rules, 1):
        label = _label(rule, number, prefix)
        changes: list[Change] = rule.apply(tree, label)
        try:
            undone[:0] = rule.inverse(changes, tree.nodes)
        except KeyMapError as error:
            raise KeyMapError(f"The map cannot be inverted: {label}: {error}.") from None
    left = _left(stage, tree)
    if stage.rest == "drop" and left:
        raise KeyMapError(
            f"The map cannot be inverted: rest='drop' drops {left[0]!r} and "
            f"{len(left) - 1:,} other tensors, whose elements are lost."
        )
    undone[:0] = scales.scales_after(tree)
    tree.end_stage()
    return Stage(tuple(undone), "keep" if stage.rest == "keep" else "refuse")


def _ties(tree: Tree) -> set[frozenset[str]]:
    groups: dict[int, list[str]] = {}
    for name, node in tree.nodes.items():
        groups.setdefault(id(node), []).append(name)
    return {frozenset(g) for g in groups.values()}


def _check_same(
    tree: Tree,
    known: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
    ties: set[frozenset[str]],
) -> None:
    """Check that a tree is what it was made of."""
    for name, (shape, dtype) in known.items():
        node = tree.nodes.get(name)
        recipe = node.form.recipe() if node is not None else None
        if recipe is None:
            raise KeyMapError(f"The map cannot be inverted: {name!r} is not made again.")
        if (recipe.shape, recipe.dtype) != (shape, dtype):
            raise KeyMapError(
                f"The map cannot be inverted: {name!r} of shape {shape} and dtype {dtype} comes "
                f"back as {recipe.shape} of {recipe.dtype}, in other blocks."
            )
        if math.prod(shape) and not (recipe.is_identity and recipe.sources == (name,)):
            raise KeyMapError(
                f"The map cannot be inverted: the elements of {name!r} do not come back to their "
                "places."
            )
    if _ties(tree) != ties:
        raise KeyMapError("The map cannot be inverted: names that are tied do not stay tied.")


def _mapped(tree: Tree, known: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> Mapped:
    recipes: dict[str, Recipe] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    how = {}
    for name, node in sorted(tree.nodes.items(), key=lambda item: item[1].position):
        if id(node) in first:
            tied[name] = first[id(node)]
            continue
        first[id(node)] = name
        try:
            recipe = node.form.recipe()
            part = recipe.is_identity and known[recipe.sources[0]][0] != recipe.shape
            recipes[name] = replace(recipe, of_part=True) if part else recipe
        except KeyMapError as error:
            raise KeyMapError(f"KeyMap: tensor {name!r}: {error}.") from None
        how[name] = ", ".join(node.how)
    return Mapped(recipes, tied, known, how, tree.scaled)


sent_as(KeyMap, lambda x: (x.stages,), lambda stages: KeyMap._of(stages))
