"""Rules: what a key map says about some tensors, as values that print, and go to TOML and back.

In: patterns and numbers, from Python or TOML. Out: what each rule does to the tensors that it
matches, and the rules that undo it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from meshard.errors import KeyMapError
from meshard.runtime.lines.letters import sent
from meshard.weights.maps import fields, moves
from meshard.weights.maps.fields import exactly, parse, same_places
from meshard.weights.maps.form import Form, check_count
from meshard.weights.maps.tree import Change, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """One line of a key map.

    Attributes:
        optional: whether it may match nothing.
        line: its line in a TOML text.
    """

    key: ClassVar[str]
    optional: bool = field(default=False, metadata={"check": fields.flag})
    line: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if "check" in each.metadata:
                where = f"{self.key}: {self.key if each.name == 'source' else each.name}"
                checked = each.metadata["check"](getattr(self, each.name), where)
                object.__setattr__(self, each.name, checked)
        self.check()

    @abstractmethod
    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Change a tree, and say what was changed."""

    def check(self) -> None:  # noqa: B027 - most rules have nothing to check
        """Refuse numbers that contradict each other."""

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return the rules that undo some changes.

        Args:
            changes: what the rule has done.
            after: the names of all tensors after it.

        Raises:
            KeyMapError: if elements are lost, with their tensor.
        """
        raise KeyMapError("it cannot be undone")

    @property
    def new_names(self) -> str | tuple[str, ...]:
        """The patterns of the names that it gives; empty if names stay."""
        return getattr(self, "to", None) or ""

    @property
    def details(self) -> dict[str, Any]:
        """What it says besides names, without what is left to defaults."""
        named = ("source", "line", *(["to"] if self.new_names else []))
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in named and getattr(self, f.name) != f.default
        }

    @property
    def table(self) -> dict[str, Any]:
        """The rule as a table of TOML."""
        to = {"to": self.new_names} if self.new_names else {}
        return {self.key: getattr(self, "source", ""), **to, **self.details}

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """What tables show: its kind, names before and after, and the rest."""
        source, how = getattr(self, "source", ""), ", ".join(_shown_details(self.details))
        return self.key, _shown_names(source), _shown_names(self.new_names), how

    def __str__(self) -> str:
        key, source, to, how = self.cells
        return ", ".join([t for t in (f"{key} {source}{f' -> {to}' if to else ''}", how) if t])


def several(names: Sequence[str]) -> str:
    """Return names as one text that says what they have in common once.

    >>> several(("layers.0.q.weight", "layers.0.k.weight", "layers.0.v.weight"))
    'layers.0.(q + k + v).weight'
    """
    parts = [n.split(".") for n in names]
    first, least = parts[0], min(map(len, parts)) - 1
    head = next((k for k in range(least) if any(p[k] != first[k] for p in parts)), least)
    tail = next(
        (k for k in range(least - head) if any(p[-1 - k] != first[-1 - k] for p in parts)),
        least - head,
    )
    if len(names) == 1 or not head + tail:
        return " + ".join(names)
    inner = [".".join(p[head : len(p) - tail]) for p in parts]
    ends = [".".join(first[:head]), ".".join(first[len(first) - tail :])]
    return ".".join([e for e in (ends[0], f"({' + '.join(inner)})", ends[1]) if e])


def _shown_names(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else several(names)


def _shown_details(details: Mapping[str, Any]) -> Iterator[str]:
    for name, value in details.items():
        if value is True:
            yield name
        elif isinstance(value, tuple):
            yield f"{name} {' '.join(map(str, value))}"
        else:
            yield f"{name} {value}"


def exact_or(
    patterns: Sequence[str], changes: Sequence[Change], after: Mapping[str, object]
) -> tuple[str, ...]:
    """Return patterns if they match what was made and nothing else, or each name."""
    made = [name for c in changes for name, _, _ in c.after]
    if {n for p in patterns for n, _ in parse(p).matches(after)} == set(made):
        return tuple(patterns)
    return tuple([exactly(n) for n in made])


def same(values: Iterable[object]) -> bool:
    """Return whether there is one value, however often."""
    return len(set(values)) == 1


@sent
@dataclass(frozen=True)
class Rename(Rule):
    """Gives tensors other names."""

    key = "rename"
    source: str = fields.one_pattern()
    to: str = fields.one_pattern()

    def check(self) -> None:
        """Refuse a new name with places that the old one does not have."""
        _check_places(self, [self.source], [self.to])

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Rename what matches."""
        source, to = parse(self.source), parse(self.to)
        found = tree.matches(label, source, optional=self.optional)
        works = []
        for name, filling in found:
            by = tree.nodes[name].named_by
            new = to.expand(filling)
            if by.partition(": ")[2].startswith("rename"):
                back = f"; {new!r} is the name it had: a cycle" if new in tree.taken else ""
                raise KeyMapError(
                    f"{label}: tensor {name!r} is matched twice: {by} has given it this name{back}."
                    " Write one rename, or two maps: first.then(second)."
                )
            works.append(Work((name,), (new,)))
        return tree.perform(label, works)

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return the opposite rename, or one for each name if the new names tell less."""
        old, new = parse(self.source), parse(self.to)
        if same_places([old, new]) and exact_or([self.to], changes, after) == (self.to,):
            return [Rename(self.to, self.source)]
        return [Rename(exactly(c.after[0][0]), exactly(c.before[0][0])) for c in changes]


@sent
@dataclass(frozen=True)
class Keep(Rule):
    """Keeps tensors as they are: what says that no rule is missing."""

    key = "keep"
    source: str = fields.one_pattern()

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Count what matches as matched."""
        found = tree.matches(label, parse(self.source), optional=self.optional)
        tree.touched.update([n for n, _ in found])
        return []

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return the same rule."""
        return [dataclasses.replace(self, optional=True)]


@sent
@dataclass(frozen=True)
class Drop(Rule):
    """Leaves tensors out."""

    key = "drop"
    source: str = fields.one_pattern()

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Remove what matches."""
        found = tree.matches(label, parse(self.source), optional=self.optional)
        names = [n for n, _ in found]
        tied = {n: other for other, n in tree.tied_to(names).items()}
        changes = tree.perform(label, [Work((n,), (), lambda _: ()) for n in names])
        return [dataclasses.replace(c, shared=tied.get(c.before[0][0], "")) for c in changes]

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what ties names again that were another name of a tensor."""
        for c in changes:
            ((name, shape, _),) = c.before
            if not c.shared:
                raise KeyMapError(f"it drops {name!r}: {math.prod(shape):,} elements are lost")
        return [Tie(exactly(c.before[0][0]), exactly(c.shared)) for c in changes]


@dataclass(frozen=True, kw_only=True)
class Joining(Rule):
    """What rules that join and that part tensors along a dim have in common.

    Attributes:
        dim: the dim along which they are joined.
        ranks: so many ranks each have a part of every tensor: rank by rank, all parts of a rank.
        groups: the same, for groups of heads.
    """

    dim: int = fields.integer(0)
    ranks: int = fields.integer(1, 1)
    groups: int = fields.integer(1, 1)

    def check(self) -> None:
        """Refuse groups of two kinds."""
        if self.ranks > 1 and self.groups > 1:
            raise KeyMapError(
                f"{self.key}: tensors are interleaved by ranks or by groups; found "
                f"ranks={self.ranks} and groups={self.groups}. Where groups are whole on each "
                "rank, give groups alone: each rank's rows are together then as well."
            )

    @property
    def interleaved(self) -> dict[str, Any]:
        """How both directions are laid out."""
        return {"dim": self.dim, "ranks": self.ranks, "groups": self.groups}


@sent
@dataclass(frozen=True)
class Fuse(Joining):
    """Joins several tensors along a dim."""

    key = "fuse"
    source: tuple[str, ...] = fields.patterns()
    to: str = fields.one_pattern()

    def check(self) -> None:
        """Refuse names that do not tell which tensors belong together."""
        super().check()
        check_same_places(self, self.source)
        _check_places(self, [self.source[0]], [self.to])

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Join what belongs together."""
        groups = self.groups * self.ranks
        found = _families(tree, label, self.source, optional=self.optional)
        to = parse(self.to)
        return tree.perform(
            label,
            [
                Work(names, (to.expand(dict(f)),), lambda x: [moves.fuse(x, self.dim, groups)])
                for f, names in found.items()
            ],
        )

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what splits them again."""
        sizes = [tuple([shape[self.dim] for _, shape, _ in c.before]) for c in changes]
        both = same_places([parse(self.to), parse(self.source[0])])
        if changes and both and same(sizes) and exact_or([self.to], changes, after) == (self.to,):
            return [Split(self.to, self.source, sizes=sizes[0], **self.interleaved)]
        return [
            Split(
                exactly(c.after[0][0]),
                tuple([exactly(n) for n, _, _ in c.before]),
                sizes=s,
                **self.interleaved,
            )
            for c, s in zip(changes, sizes, strict=True)
        ]


@sent
@dataclass(frozen=True)
class Split(Joining):
    """Parts a tensor along a dim into several."""

    key = "split"
    source: str = fields.one_pattern()
    to: tuple[str, ...] = fields.patterns()
    sizes: tuple[int, ...] | None = fields.integers(0)
    ratio: tuple[int, ...] | None = fields.integers(1)

    def check(self) -> None:
        """Refuse names and sizes that do not say what the parts are."""
        super().check()
        check_same_places(self, self.to)
        _check_places(self, [self.source], self.to)
        for given in (self.sizes, self.ratio):
            if given is not None and len(given) != len(self.to):
                raise KeyMapError(
                    f"split: there are {len(self.to)} names and {len(given)} sizes; give one each."
                )
        if self.sizes is not None and self.ratio is not None:
            raise KeyMapError("split: give sizes or a ratio, not both.")

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Part what matches."""
        targets = [parse(t) for t in self.to]
        found = tree.matches(label, parse(self.source), optional=self.optional)
        works = [
            Work((name,), tuple([t.expand(filling) for t in targets]), self._parts)
            for name, filling in found
        ]
        return tree.perform(label, works)

    def _parts(self, forms: Sequence[Form]) -> list[Form]:
        (form,) = forms
        sizes = self.sizes
        if sizes is None:
            ratio = self.ratio or (1,) * len(self.to)
            size = form.shape[moves.dim_of(form, self.dim)]
            if size % sum(ratio):
                raise KeyMapError(
                    f"dim {self.dim}, of size {size}, does not divide in the ratio "
                    f"{' : '.join(map(str, ratio))}"
                )
            sizes = tuple([size // sum(ratio) * r for r in ratio])
        return moves.split(form, sizes, self.dim, self.groups * self.ranks)

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what joins them again."""
        both = same_places([parse(self.source), parse(self.to[0])])
        made = {name for c in changes for name, _, _ in c.after}
        if both and {n for t in self.to for n, _ in parse(t).matches(after)} == made:
            return [Fuse(self.to, self.source, **self.interleaved)] if changes else []
        return [
            Fuse(
                tuple([exactly(n) for n, _, _ in c.after]),
                exactly(c.before[0][0]),
                **self.interleaved,
            )
            for c in changes
        ]


@sent
@dataclass(frozen=True)
class Stack(Rule):
    """Stacks numbered tensors along a new dim."""

    key = "stack"
    source: str = fields.one_pattern()
    to: str = fields.one_pattern()
    dim: int = fields.integer(0)

    def check(self) -> None:
        """Refuse names without a number."""
        _check_number(self, self.source, self.to)

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Stack what matches, in the order of the numbers."""
        index = _number_place(self.source, self.to)
        to = parse(self.to)
        stacks: dict[str, dict[int, str]] = {}
        for name, filling in tree.matches(label, parse(self.source), optional=self.optional):
            numbers = stacks.setdefault(to.expand(filling), {})
            number = int(filling[index]) if filling[index].isdecimal() else -1
            if number < 0 or number in numbers:
                what = f"is number {number} twice" if number >= 0 else "has no number"
                raise KeyMapError(f"{label}: {name!r} {what} where {{{index}}} is.")
            numbers[number] = name
        for target, numbers in stacks.items():
            missing = next((k for k in range(len(numbers)) if k not in numbers), None)
            if missing is not None:
                raise KeyMapError(
                    f"{label}: {target!r} is stacked of numbers 0 to {max(numbers)}, but number "
                    f"{missing} is missing; found {len(numbers)}, for instance "
                    f"{next(iter(numbers.values()))!r}."
                )
        return tree.perform(
            label,
            [
                Work(
                    tuple([numbers[k] for k in range(len(numbers))]),
                    (target,),
                    lambda x: [moves.stack(x, self.dim)],
                )
                for target, numbers in stacks.items()
            ],
        )

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what unstacks them again."""
        plain = all(
            parse(self.source).match(name) is not None and _number_text(self, name) == str(k)
            for c in changes
            for k, (name, _, _) in enumerate(c.before)
        )
        if plain and exact_or([self.to], changes, after) == (self.to,):
            return [Unstack(self.to, self.source, dim=self.dim)]
        rules: list[Rule] = []
        for c in changes:
            target = exactly(c.after[0][0])
            rules.append(Unstack(target, f"{target}.{{e}}", dim=self.dim))
            rules += [
                Rename(f"{target}.{k}", exactly(name)) for k, (name, _, _) in enumerate(c.before)
            ]
        return rules


@sent
@dataclass(frozen=True)
class Unstack(Rule):
    """Parts a tensor along a dim into numbered tensors without it."""

    key = "unstack"
    source: str = fields.one_pattern()
    to: str = fields.one_pattern()
    dim: int = fields.integer(0)

    def check(self) -> None:
        """Refuse names without a number."""
        _check_number(self, self.to, self.source)

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Part what matches."""
        index = _number_place(self.to, self.source)
        to = parse(self.to)
        works = []
        for name, filling in tree.matches(label, parse(self.source), optional=self.optional):
            form = tree.nodes[name].form
            try:
                count = form.shape[moves.dim_of(form, self.dim)]
                check_count(count)
            except KeyMapError as error:
                raise KeyMapError(f"{label}: tensor {name!r}: {error}.") from None
            names = [to.expand({**filling, index: str(k)}) for k in range(count)]
            works.append(Work((name,), tuple(names), lambda x: moves.unstack(x[0], self.dim)))
        return tree.perform(label, works)

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what stacks them again."""
        if any(not c.after for c in changes):
            raise KeyMapError("it makes nothing of a dim of size 0, whose shape is lost")
        if exact_or([self.to], changes, after) == (self.to,):
            return [Stack(self.to, self.source, dim=self.dim)]
        index = _number_place(self.to, self.source)
        return [
            Stack(_fixed(self.to, c.after[0][0], index), exactly(c.before[0][0]), dim=self.dim)
            for c in changes
        ]


def _number_place(longer: str, shorter: str) -> str:
    (index,) = set(parse(longer).holes) - set(parse(shorter).holes)
    return index


def _number_text(rule: Stack, name: str) -> str:
    filling = parse(rule.source).match(name) or {}
    return filling[_number_place(rule.source, rule.to)]


def _fixed(pattern: str, name: str, index: str) -> str:
    """Return a pattern with all places but one filled as in a name."""
    parsed = parse(pattern)
    filling = parsed.match(name) or {}
    parts = [exactly(p) for p in parsed.parts]
    parts[1::2] = [f"{{{h}}}" if h == index else exactly(filling[h]) for h in parsed.holes]
    return "".join(parts)


def _check_number(rule: Rule, longer: str, shorter: str) -> None:
    more = set(parse(longer).holes) - set(parse(shorter).holes)
    less = set(parse(shorter).holes) - set(parse(longer).holes)
    if len(more) != 1 or less:
        raise KeyMapError(
            f"{rule.key}: {longer!r} must have the places of {shorter!r} and one more, the number; "
            f"it has {len(more)} more and {len(less)} less."
        )


def _check_places(rule: Rule, sources: Sequence[str], targets: Sequence[str]) -> None:
    known = {h for s in sources for h in parse(s).holes}
    for target in targets:
        unknown = [h for h in parse(target).holes if h not in known]
        if unknown:
            raise KeyMapError(
                f"{rule.key}: {target!r} has the place {{{unknown[0]}}}, which "
                f"{' + '.join(sources)!r} does not have, so that nothing fills it."
            )


def check_same_places(rule: Rule, patterns: Sequence[str]) -> None:
    """Refuse patterns that do not tell which tensors belong together."""
    if not same_places([parse(p) for p in patterns]):
        raise KeyMapError(
            f"{rule.key}: the patterns {', '.join(map(repr, patterns))} must have the same places: "
            "they tell which tensors belong together."
        )


def _families(
    tree: Tree, label: str, patterns: Sequence[str], *, optional: bool
) -> dict[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the tensors that belong together, by what fills the places of their names."""
    found: list[dict[tuple[tuple[str, str], ...], str]] = []
    for pattern in patterns:
        names = tree.matches(label, parse(pattern), optional=optional)
        found.append({tuple(sorted(f.items())): n for n, f in names})
    every = dict.fromkeys([f for names in found for f in names])
    families = {}
    for filling in every:
        lacking = [
            parse(p) for p, names in zip(patterns, found, strict=True) if filling not in names
        ]
        if lacking:
            there = next(names[filling] for names in found if filling in names)
            raise KeyMapError(
                f"{label}: {there!r} is there, but {lacking[0].expand(dict(filling))!r}, which "
                "belongs to it, is not; tensors are joined only if all are there."
            )
        families[filling] = tuple([names[filling] for names in found])
    return families


@sent
@dataclass(frozen=True)
class Tie(Rule):
    """Gives tensors another name: two names, one tensor."""

    key = "tie"
    source: str = fields.one_pattern()
    to: str = fields.one_pattern()

    def check(self) -> None:
        """Refuse a name with places that the tensor's does not have."""
        _check_places(self, [self.source], [self.to])

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Add the names."""
        to = parse(self.to)
        changes = []
        for name, filling in tree.matches(label, parse(self.source), optional=self.optional):
            other, node = to.expand(filling), tree.nodes[name]
            there = tree.nodes.get(other)
            if there is not None and there is not node:
                raise KeyMapError(
                    f"{label}: {other!r} is another tensor, so that it cannot become a name of "
                    f"{name!r}. Drop {other!r} before, if it has the same values."
                )
            tree.touched.update((name, other))
            if there is None:
                tree.put(other, node)
                form = node.form
                known = (form.shape, form.dtype)
                changes.append(Change(((name, *known),), ((other, *known),)))
        return changes

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what removes the names again."""
        return [Drop(n) for n in exact_or([self.to], changes, after)] if changes else []


@sent
@dataclass(frozen=True)
class Untie(Rule):
    """Makes tensors of their own of what are other names of tensors."""

    key = "untie"
    source: str = fields.one_pattern()

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Copy what the names share."""
        changes = []
        for name, _ in tree.matches(label, parse(self.source), optional=self.optional):
            others = tree.tied_to([name])
            if not others:
                raise KeyMapError(f"{label}: tensor {name!r} is not tied to another name.")
            node = tree.nodes[name]
            tree.put(name, dataclasses.replace(node, named_by=label))
            tree.touched.add(name)
            known = ((name, node.form.shape, node.form.dtype),)
            changes.append(Change(known, known, shared=next(iter(others))))
        return changes

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return what ties them again."""
        rules: list[Rule] = []
        for c in changes:
            name = exactly(c.before[0][0])
            rules += [Drop(name), Tie(exactly(c.shared), name)]
        return rules
