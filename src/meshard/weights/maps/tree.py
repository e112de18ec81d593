"""Trees in the making: the tensors that rules change, by name.

In: names, shapes and dtypes of whole tensors, and what one rule does to some of them. Out: the
tree after it; ambiguities are refused with the names.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from meshard.errors import KeyMapError
from meshard.weights.maps.blocks import Scale, followed
from meshard.weights.maps.fields import Pattern, parse
from meshard.weights.maps.form import Form

Make = Callable[[Sequence[Form]], Sequence[Form]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A tensor of the tree; names that share one node are tied.

    Attributes:
        form: what it is made of.
        position: where it stands in the order of the result.
        how: what was done to it.
        named_by: the rule that has given it its name, in this stage.
        scale: its block scales.
    """

    form: Form
    position: int
    how: tuple[str, ...] = ()
    named_by: str = ""
    scale: Scale | None = None


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What a rule does with some tensors.

    Attributes:
        sources: the names of the tensors that it takes.
        targets: the names of the tensors that it makes.
        make: from forms to forms; None to pass them on as they are.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    make: Make | None = None


@final
@dataclass(frozen=True, slots=True)
class Change:
    """What a rule has done: tensors before and after it, as name, shape and dtype."""

    before: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
    after: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
    shared: str = ""


@final
@dataclass
class Tree:
    """Tensors by name, while rules change them.

    Attributes:
        nodes: the tensors.
        touched: the names that a rule of this stage has matched or made.
        taken: the names that are gone, and the rule that has taken each.
        scaled: the tensors that had block scales when the last stage ended: their name, and the
            sizes of a block.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    taken: dict[str, str] = field(default_factory=dict)
    scaled: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    _holders: dict[int, dict[str, None]] = field(default_factory=dict)

    def new_stage(self) -> None:
        """Let all tensors count as sources of the next stage."""
        self.touched.clear()
        self.taken.clear()
        fresh: dict[int, Node] = {}
        for name, node in list(self.nodes.items()):
            if node.named_by:
                fresh.setdefault(id(node), replace(node, named_by=""))
                self.put(name, fresh[id(node)])

    def put(self, name: str, node: Node) -> None:
        """Let a name be that of a tensor."""
        if name in self.nodes:
            self._release(name)
        self.nodes[name] = node
        self._holders.setdefault(id(node), {})[name] = None

    def remove(self, name: str) -> None:
        """Take a name away."""
        self._release(name)
        del self.nodes[name]

    def _release(self, name: str) -> None:
        key = id(self.nodes[name])
        del self._holders[key][name]
        if not self._holders[key]:
            del self._holders[key]

    def tied_to(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names that share a tensor with some of the given ones but are not among them.

        Each with the given name that it shares the tensor with.
        """
        given = set(names)
        return {
            other: name
            for name in given
            for other in self._holders[id(self.nodes[name])]
            if other not in given
        }

    def perform(self, rule: str, works: Sequence[Work]) -> list[Change]:
        """Do what a rule does, all at once.

        Raises:
            KeyMapError: if a tensor is taken twice, two get one name, or a tensor cannot be made.
        """
        self._check_taken(rule, [n for w in works for n in w.sources])
        self._check_ties(rule, [n for w in works if w.make and w.targets for n in w.sources])
        passed: dict[int, Node] = {}
        made = [self._made(rule, work, passed) for work in works]
        for work in works:
            for name in work.sources:
                self.remove(name)
                self.taken[name] = rule
        changes = []
        for work, (before, nodes) in zip(works, made, strict=True):
            after = []
            for name, node in zip(work.targets, nodes, strict=True):
                self._insert(rule, name, node, work.sources)
                after.append((name, node.form.shape, node.form.dtype))
            changes.append(Change(before, tuple(after)))
        return changes

    def perform_in_place(self, rule: str, names: Sequence[str], make: Make) -> list[Change]:
        """Change tensors that keep their names; tied names change together."""
        self._check_ties(rule, names)
        self._check_taken(rule, names)
        tied: dict[int, list[str]] = {}
        for name in names:
            tied.setdefault(id(self.nodes[name]), []).append(name)
        changes = []
        for shared in tied.values():
            old = self.nodes[shared[0]]
            _, (new,) = self._made(rule, Work((shared[0],), (shared[0],), make), {})
            new = replace(new, named_by=old.named_by)
            for name in shared:
                self.put(name, new)
            self.touched.update(shared)
            before, after = (
                tuple([(n, form.shape, form.dtype) for n in shared])
                for form in (old.form, new.form)
            )
            changes.append(Change(before, after))
        return changes

    def _check_taken(self, rule: str, names: Sequence[str]) -> None:
        if len(set(names)) < len(names):
            twice = next(n for n, count in Counter(names).items() if count > 1)
            raise KeyMapError(f"{rule}: tensor {twice!r} is matched twice by this rule.")

    def _check_ties(self, rule: str, names: Sequence[str]) -> None:
        others = self.tied_to(names)
        if others:
            other, name = next(iter(others.items()))
            raise KeyMapError(
                f"{rule}: tensor {name!r} is tied to {other!r}, which the rule does not match, and "
                f"one tensor cannot be changed under one name only. Match both, or untie {other!r} "
                "before."
            )

    def _made(
        self, rule: str, work: Work, passed: dict[int, Node]
    ) -> tuple[tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...], list[Node]]:
        nodes = [self.nodes[n] for n in work.sources]
        forms = [n.form for n in nodes]
        before = tuple([(n, f.shape, f.dtype) for n, f in zip(work.sources, forms, strict=True)])
        if work.make is None:
            for node in nodes:
                passed.setdefault(id(node), replace(node, named_by=rule))
            return before, [passed[id(n)] for n in nodes]
        try:
            new = work.make(forms)
            scales = _scales(work, nodes, len(new))
        except KeyMapError as error:
            shapes = ", ".join([f"{n!r} of shape {s}" for n, s, _ in before[:4]])
            shapes += ", ..." if len(before) > 4 else ""
            kind = "tensors" if len(before) > 1 else "tensor"
            raise KeyMapError(f"{rule}: {kind} {shapes}: {error}.") from None
        told = rule.partition(": ")[2].partition(" ")[0]
        how = (*dict.fromkeys([h for n in nodes for h in n.how]), told)
        position = min([n.position for n in nodes], default=0)
        return before, [
            Node(f, position, how, rule, scale) for f, scale in zip(new, scales, strict=True)
        ]

    def _insert(self, rule: str, name: str, node: Node, sources: Sequence[str]) -> None:
        there = self.nodes.get(name)
        if there is not None:
            by = f" by {there.named_by}" if there.named_by else ""
            old = "is there already" if not by else f"was made{by}"
            raise KeyMapError(
                f"{rule}: two tensors get the name {name!r}: one made of "
                f"{', '.join(map(repr, sources))}, and one that {old}. Each name is one tensor's; "
                "rename or drop the other one before."
            )
        self.put(name, node)
        self.touched.add(name)

    def matches(
        self, rule: str, pattern: Pattern, *, optional: bool
    ) -> list[tuple[str, dict[str, str]]]:
        """Return the names that a rule's pattern matches.

        Raises:
            KeyMapError: if it matches nothing and must.
        """
        found = list(pattern.matches(self.nodes))
        if not found and not optional:
            raise KeyMapError(f"{rule}: {pattern.text!r} matches nothing.{self._hint(pattern)}")
        return found

    def _hint(self, pattern: Pattern) -> str:
        gone = next(pattern.matches(self.taken), None)
        if gone is not None:
            return (
                f" It would match {gone[0]!r}, which is taken by {self.taken[gone[0]]}: rules are "
                "applied in order, each to what those before have made."
            )
        some = list(itertools.islice(self.nodes, 2000))
        close = difflib.get_close_matches(pattern.text, some, n=1, cutoff=0.3) or some[:1]
        if not close:
            return " There are no tensors."
        count = len(self.nodes)
        there = "There is 1 tensor" if count == 1 else f"There are {count:,} tensors"
        return (
            f" {there}, for instance {close[0]!r}. {{name}} matches "
            "one part without dots, {i} digits, {*} any text."
        )

    def end_stage(self) -> None:
        """Make tensors of the scales that belong to others, at the end of a stage."""
        found: dict[int, Node] = {}
        self.scaled.clear()
        for name, node in list(self.nodes.items()):
            if node.scale is None:
                continue
            other = scale_name(name, node.scale)
            scales = found.setdefault(
                id(node), Node(node.scale.form, node.position, (*node.how, "scales"))
            )
            self.scaled[name] = (other, node.scale.block)
            self._insert(f"scales {node.scale.names[0]}", other, scales, (name,))
        parted: dict[int, Node] = {}
        for name, node in list(self.nodes.items()):
            if node.scale is not None:
                parted.setdefault(id(node), replace(node, scale=None))
                self.put(name, parted[id(node)])


def scale_name(name: str, scale: Scale) -> str:
    """Return the name of a tensor's scales.

    Raises:
        KeyMapError: if the patterns of names do not say.
    """
    own, other = scale.names
    filling = parse(own).match(name)
    if filling is not None:
        return parse(other).expand(filling)
    if other.startswith(own):
        return name + other[len(own) :]
    raise KeyMapError(
        f"scales {own}: tensor {name!r} has block scales, but nothing says what they are called. "
        f"Give to=[pattern of {name!r}, pattern of its scales]."
    )


def _scales(work: Work, nodes: Sequence[Node], count: int) -> Sequence[Scale | None]:
    """Return the scales of what is made of tensors with scales."""
    scales = [n.scale for n in nodes if n.scale is not None]
    if not scales or work.make is None or not work.targets:
        return [None] * count
    if len(scales) < len(nodes):
        bare = next(name for name, n in zip(work.sources, nodes, strict=True) if n.scale is None)
        raise KeyMapError(f"{bare!r} has no block scales, and what it is joined with has some")
    return followed(work.make, [n.form for n in nodes], scales)
