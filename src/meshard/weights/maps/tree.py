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
from meshard.weights.maps.form import Form
from meshard.weights.maps.pattern import Pattern

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
    """

    form: Form
    position: int
    how: tuple[str, ...] = ()
    named_by: str = ""


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
    """

    nodes: dict[str, Node]
    touched: set[str] = field(default_factory=set)
    taken: dict[str, str] = field(default_factory=dict)

    def new_stage(self) -> None:
        """Let all tensors count as sources of the next stage."""
        self.touched.clear()
        self.taken.clear()
        fresh: dict[int, Node] = {}
        for name, node in self.nodes.items():
            if node.named_by:
                fresh.setdefault(id(node), replace(node, named_by=""))
                self.nodes[name] = fresh[id(node)]

    def tied_to(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names that share a tensor with some of the given ones but are not among them.

        Each with the given name that it shares the tensor with.
        """
        given = set(names)
        own = {id(self.nodes[n]): n for n in given}
        if self.ties == 0:
            return {}
        return {n: own[id(v)] for n, v in self.nodes.items() if id(v) in own and n not in given}

    @property
    def ties(self) -> int:
        """How many names are another name of a tensor."""
        return len(self.nodes) - len({id(n) for n in self.nodes.values()})

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
                del self.nodes[name]
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
            self.nodes.update(dict.fromkeys(shared, new))
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
        except KeyMapError as error:
            shapes = ", ".join([f"{n!r} of shape {s}" for n, s, _ in before])
            kind = "tensors" if len(before) > 1 else "tensor"
            raise KeyMapError(f"{rule}: {kind} {shapes}: {error}.") from None
        told = rule.partition(": ")[2].partition(" ")[0]
        how = (*dict.fromkeys([h for n in nodes for h in n.how]), told)
        position = min([n.position for n in nodes], default=0)
        return before, [Node(f, position, how, rule) for f in new]

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
        self.nodes[name] = node
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
        return (
            f" There are {len(self.nodes):,} tensors, for instance {close[0]!r}. {{name}} matches "
            "one part without dots, {i} digits, {*} any text."
        )
