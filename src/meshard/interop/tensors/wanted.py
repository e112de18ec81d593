"""Trees of DTensors and where they are to go, described so that all ranks can compare them.

In: a tree on this rank, and targets. Out: a `Listing`, which does not depend on the rank: for each
tensor its name, shape and dtype, and how it is laid out before and after.

Plans of moves between meshes, on layouts whose devices are the ranks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

from meshard.algebra.arguments import flag_of, shown
from meshard.errors import ArgumentError, ShardingError, TreeError
from meshard.interop.tensors.bits import torch_dtype
from meshard.interop.tensors.placed import Placed, Segment, segments
from meshard.interop.tensors.specs import (
    DeviceMesh,
    DTensor,
    distributed,
    is_partial,
    placed,
    placed_of,
    torch,
    without_sums,
)
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.footprint import check_window, checked_window
from meshard.plan.figures.topology import Topology
from meshard.plan.plan import Plan
from meshard.plan.planner import PlanCache, PlanOptions, make_plan
from meshard.plan.show.progress import checked_progress
from meshard.runtime.lines.letters import sent
from meshard.runtime.moving.moved import leaf_names
from meshard.runtime.trees.trees import children_of, flatten_with_accessors
from meshard.runtime.trees.trees import leaves as leaves_of

Target = Any
"""A pair of mesh and placements, a tensor that is laid out so, or None."""


@final
@dataclass(frozen=True)
class Everywhere:
    """What takes the place of a mesh for a tensor that is not a DTensor: every rank has it whole.

    Attributes:
        device_type: the kind of device that it is on.
    """

    device_type: str


@sent
@final
@dataclass(frozen=True)
class Entry:
    """One tensor of a tree, as all ranks see it.

    Attributes:
        number: which leaf of the tree it is.
        name: its name.
        path: its path, as Python writes it.
        shape: its shape.
        dtype: PyTorch's name of its dtype.
        before: how it is laid out.
        partial: whether a sum has to be taken first.
        distributed: whether it is a DTensor, and not the same tensor on every rank.
        device: the kind of device that it is on.
    """

    number: int
    name: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    before: Placed
    partial: bool = False
    distributed: bool = True
    device: str = "cpu"

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize  # type: ignore[no-any-return]


@final
@dataclass(frozen=True)
class Goal:
    """Where one tensor goes.

    Attributes:
        after: how it is to be laid out.
        dtype: the dtype that it is to have.
        mesh: PyTorch's mesh, of this process; `Everywhere` if the result is no DTensor.
        placements: its placements.
    """

    after: Placed
    dtype: str
    mesh: Any
    placements: tuple[Any, ...]


@sent
@final
@dataclass(frozen=True)
class Listing:
    """The tensors of a tree, and its structure."""

    structure: Any
    entries: tuple[Entry, ...]

    def held_by(self, ranks: tuple[int, ...]) -> Listing:
        """Return it for a job in which only some ranks have the tree, and so the plain tensors."""
        if all(entry.distributed for entry in self.entries):
            return self
        found = [
            entry if entry.distributed else replace(entry, before=_whole(entry.shape, ranks))
            for entry in self.entries
        ]
        return Listing(self.structure, tuple(found))


def check_leaf(x: Any, what: str) -> None:
    """Refuse what has tensors in it that no tree shows.

    Raises:
        ArgumentError: with what to pass instead.
    """
    if isinstance(x, (torch.nn.Module, torch.optim.Optimizer)):
        raise ArgumentError(
            f"{what}: a {type(x).__name__} is not a tree of tensors. Pass its state_dict()."
        )
    if isinstance(x, Iterator):
        raise ArgumentError(
            f"{what}: a {type(x).__name__} is not a tree of tensors. Pass a dict of them, as "
            "module.state_dict() returns it, or a list."
        )


def dtype_of(name: str) -> Any:
    """Return PyTorch's dtype of a name."""
    return getattr(torch, name)


def dtype_name(dtype: Any) -> str:
    """Return the name of PyTorch's dtype."""
    return str(dtype).removeprefix("torch.")


@final
@dataclass(frozen=True)
class Reader:
    """How tensors are read.

    Attributes:
        group: the process group.
        reduce: whether sums that are still to be taken are meant.
        what: the function that was called, for messages.
    """

    group: Any
    reduce: bool
    what: str

    def listed(self, tree: Any) -> tuple[Listing, list[Any]]:
        """Return the description of a tree, and its leaves.

        Raises:
            ArgumentError: if a tensor is sparse or quantized, or a leaf is a module.
            ShardingError: if a DTensor is ``Partial``, and it is not to be reduced.
        """
        accessors, leaves, structure = flatten_with_accessors(tree)
        for leaf in leaves:
            check_leaf(leaf, self.what)
        names = leaf_names(accessors)
        entries = [
            self._entry(number, names[number], accessor.codify(""), leaf)
            for number, (accessor, leaf) in enumerate(zip(accessors, leaves, strict=True))
            if isinstance(leaf, torch.Tensor)
        ]
        return Listing(structure, tuple(entries)), leaves

    def _entry(self, number: int, name: str, path: str, x: Any) -> Entry:
        what = f"{self.what}: {name}" if path else self.what
        if x.is_quantized or x.is_nested or x.layout is not torch.strided:
            raise ArgumentError(
                f"{what}: the tensor is sparse, nested or quantized ({x.layout}, {x.dtype}), and "
                "only dense tensors move. Pass x.to_dense(), x.to_padded_tensor(0), or "
                "x.int_repr() and its scales."
            )
        shape, dtype, device = tuple(x.shape), dtype_name(x.dtype), x.device.type
        if not isinstance(x, DTensor):
            before = _whole(shape, group_ranks(self.group))
            return Entry(number, name, path, shape, dtype, before, False, False, device)
        partial = is_partial(x)
        if partial and self.reduce:
            whole = without_sums(x.placements)
            before = placed(shape, x.device_mesh, whole, what, ranks=group_ranks(self.group))
        else:
            before = placed_of(x, what, group_ranks(self.group))
        return Entry(number, name, path, shape, dtype, before, partial, True, device)


def _whole(shape: tuple[int, ...], ranks: tuple[int, ...]) -> Placed:
    """Return how a tensor is laid out that each of some ranks has whole."""
    return Placed(shape, ranks, (len(ranks),), ("ranks",), tuple([()] * len(shape)), "tensor")


def group_ranks(group: Any) -> tuple[int, ...]:
    """Return the global ranks of a process group, by default of the whole job's."""
    if group is None:
        return tuple(range(distributed.get_world_size()))
    return tuple(distributed.get_process_group_ranks(group))


# where they go


def goals(listing: Listing, target: Any, dtype: Any, group: Any, what: str) -> list[Goal | None]:
    """Return where each tensor goes; None for one that stays as it is.

    Raises:
        ArgumentError: if a target is not one.
        TreeError: if the tree of targets is not a prefix of the tree.
        ShapeError: if a dim that is to be cut does not exist.
        ShardingError: if a target is ``Partial``.
    """
    wanted = None if dtype is None else torch_dtype(dtype, what)
    every = _targets(listing, target, what)
    found: list[Goal | None] = []
    for entry in listing.entries:
        given = every(entry)
        if given is None:
            if wanted is not None and _cast(entry.dtype, wanted) != entry.dtype:
                raise ArgumentError(
                    f"{what}: {entry.name} is to be cast to {wanted} but has no target. Give it "
                    "its own mesh and placements, or a dtype that it has already."
                )
            found.append(None)
            continue
        if isinstance(given, torch.Tensor) and not isinstance(given, DTensor):
            kind = entry.device if given.device.type == "meta" else given.device.type
            whole = _whole(entry.shape, group_ranks(group))
            found.append(Goal(whole, _cast(entry.dtype, wanted), Everywhere(kind), ()))
            continue
        mesh, placements = _pair(given, entry, what)
        text = f"{what}: {entry.name}" if entry.path else what
        for dim, placement in enumerate(placements):
            if isinstance(placement, torch.distributed.tensor.Partial):
                raise ShardingError(
                    f"{text}: by the target's {placement} on mesh dim {dim} each rank would hold a "
                    "part of a sum. Give Replicate() or Shard(dim) there."
                )
        after = placed(entry.shape, mesh, placements, text, ranks=group_ranks(group))
        found.append(Goal(after, _cast(entry.dtype, wanted), mesh, tuple(placements)))
    return found


def _cast(dtype: str, wanted: Any) -> str:
    """Return the dtype that a tensor is cast to; floats stay floats, and integers integers."""
    own = dtype_of(dtype)
    if wanted is None or kind_of(own) != kind_of(wanted):
        return dtype
    return dtype_name(wanted)


def kind_of(dtype: Any) -> str:
    """Return what kind of numbers a dtype has; elements are cast within one kind."""
    if dtype is torch.bool:
        return "bool"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def is_pair(x: Any) -> bool:
    """Whether a value is a mesh and placements."""
    return isinstance(x, (tuple, list)) and len(x) == 2 and isinstance(x[0], DeviceMesh)


def _is_target(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or is_pair(x)


def _targets(listing: Listing, target: Any, what: str) -> Callable[[Entry], Target]:
    """Return what says for each tensor where it goes."""
    if target is None:
        raise ArgumentError(
            f"{what}: target is None. Give a pair (device_mesh, placements), a tree of such pairs, "
            "or a function of a name and a tensor's shape that returns one."
        )
    if _is_target(target):
        return lambda entry: target
    check_leaf(target, what)
    if callable(target):
        return lambda entry: target(entry.name, torch.Size(entry.shape))
    tree = listing.structure.unflatten(range(listing.structure.num_leaves))
    found: dict[int, Target] = {}
    _spread(target, tree, "", found, what)
    return lambda entry: found[entry.number]


def _spread(target: Any, tree: Any, path: str, found: dict[int, Target], what: str) -> None:
    """Find for each leaf of a tree, which is its number, the target above it.

    Dicts match by key, in whatever order: that of a module's state is not that of a literal.

    Raises:
        TreeError: if the targets are not a prefix of the tree.
    """
    if isinstance(tree, int):
        found[tree] = target
        return
    if target is None or _is_target(target):
        for leaf in leaves_of(tree):
            found[leaf] = target
        return
    mine, theirs = children_of(target), children_of(tree)
    keys = [None if x is None else {key for key, _ in x} for x in (mine, theirs)]
    if mine is None or theirs is None or keys[0] != keys[1]:
        if not path:
            raise TreeError(
                f"{what}: target is {_told(target, mine)}, and the tree of tensors is "
                f"{_told(tree, theirs)}. Give a pair (device_mesh, placements) for all tensors, a "
                "tree of pairs that is a prefix of the tree of tensors, or a function of a name "
                "and a shape that returns a pair."
            )
        raise TreeError(
            f"{what}: the tree of targets must be a prefix of the tree of tensors, but at {path} "
            f"it has {_told(target, mine)}, where the tree of tensors has {_told(tree, theirs)}."
        )
    below = dict(theirs)
    for key, child in mine:
        _spread(child, below[key], f"{path}.{key}" if path else str(key), found, what)


def _told(node: Any, children: Any) -> str:
    if children is None:
        return "a tensor" if isinstance(node, int) else f"a {type(node).__name__}"
    keys = [str(key) for key, _ in children]
    if not keys:
        return f"an empty {type(node).__name__}"
    more = ", ..." if len(keys) > 6 else ""
    return f"a {type(node).__name__} with the keys {', '.join(keys[:6])}{more}"


def _pair(given: Any, entry: Entry, what: str) -> tuple[Any, Sequence[Any]]:
    if isinstance(given, DTensor):
        return given.device_mesh, given.placements
    if not _is_target(given):
        raise ArgumentError(
            f"{what}: the target of {entry.name} is {shown(given)} of type {type(given).__name__}; "
            "give a pair (device_mesh, placements), such as (mesh, [Shard(0)]), a DTensor that is "
            "laid out so, a tensor to have it whole on every rank, or None."
        )
    mesh, placements = given
    if not isinstance(placements, (tuple, list)):
        placements = [placements]
    return mesh, placements


# what is compared


def lines(
    listing: Listing, found: Sequence[Goal | None], options: Sequence[tuple[str, object]]
) -> list[str]:
    """Return what all ranks must agree on, a line for each tensor; see `shortened`."""
    told = ["options " + ", ".join([f"{name}={value}" for name, value in options])]
    for entry, goal in zip(listing.entries, found, strict=True):
        after = "" if goal is None else f" -> {laid(goal.after)} {goal.dtype}"
        told.append(
            f"{entry.name}: {entry.dtype}{list(entry.shape)} {entry.device} "
            f"{laid(entry.before)}{after}"
        )
    return told


@lru_cache(maxsize=1 << 12)
def laid(place: Placed) -> str:
    """Return how a tensor is laid out as it is told; see `shortened`."""
    return f"{place.text}{_FINE}{place.steps}{_FINE} on ranks {place.ranks} as {place.sizes}"


_FINE = "\v"
"""Between two of these is what readers need only if nothing else differs."""


def shortened(told: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    """Return the first lines that differ, as they are shown; None if none does."""
    pairs = [(a, b) for a, b in zip(told, other, strict=False) if a != b]
    if not pairs:
        return None
    short = [_FINE.join(line.split(_FINE)[::2]).replace(_FINE, "") for line in pairs[0]]
    if short[0] == short[1]:
        short = [line.replace(_FINE, " ").replace("  ", " ") for line in pairs[0]]
    return short[0], short[1]


def digest(told: Sequence[str]) -> bytes:
    """Return a short value that differs if the lines do."""
    return hashlib.blake2b("\n".join(told).encode(), digest_size=16).digest()


Planned = tuple[Plan, list[tuple[int, Segment]]]
"""A plan, and for each of its leaves which tensor it is, and which box of it."""

_PLANS = PlanCache()
_KNOWN: dict[Hashable, Planned] = {}
"""Plans of whole trees, by what ranks compare."""
_MOST = 64


@final
@dataclass(frozen=True)
class Options:
    """The arguments of `reshard` besides the tree and its target."""

    max_bytes: Any
    donate: Any
    progress: Any
    dtype: Any
    reduce: Any
    group: Any
    near: Any
    what: str

    def reader(self) -> Reader:
        """Return how tensors are read."""
        return Reader(self.group, flag_of(self.reduce, self.what, "reduce"), self.what)

    def checked(self) -> Options:
        """Return them, checked."""
        what = self.what
        return Options(
            checked_window(self.max_bytes, what),
            flag_of(self.donate, what, "donate"),
            checked_progress(self.progress, what),
            self.dtype,
            flag_of(self.reduce, what, "reduce"),
            self.group,
            None if self.near is None else flag_of(self.near, what, "near"),
            what,
        )


def planned(
    entries: Sequence[Entry],
    found: Sequence[Goal | None],
    options: Options,
    topology: Topology | str | None = None,
) -> Planned:
    """Return the plan, and for each of its leaves which tensor it is, and which box of it."""
    options = options.checked()
    leaves, passages = [], []
    for number, (entry, goal) in enumerate(zip(entries, found, strict=True)):
        if goal is None:
            continue
        before, after = dtype_of(entry.dtype), dtype_of(goal.dtype)
        wire = after if after.itemsize < before.itemsize else before
        every = segments(entry.before, goal.after)
        for segment in every:
            box = f"[{segment.box}]" if len(every) > 1 else ""
            leaf = PlanLeaf(
                entry.name + box,
                segment.before,
                segment.after,
                wire.itemsize,
                dtype_name(wire),
                entry.before.text,
                goal.after.text,
                path=f"{entry.path}{box}",
            )
            leaves.append(leaf)
            passages.append((number, segment))
    limits = PlanOptions(max_bytes=options.max_bytes, donate=options.donate, topology=topology)
    count = len(group_ranks(options.group))
    for leaf in leaves:
        if leaf.source != leaf.destination:
            check_window(limits.max_bytes, count, leaf.itemsize, leaf.name, options.what)
    return make_plan(leaves, limits, cache=_PLANS), passages


def kept_plan(
    key: Hashable, entries: Sequence[Entry], found: Sequence[Goal | None], options: Options
) -> Planned:
    """Return the plan of a tree, which is made once for each key."""
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        _KNOWN[key] = planned(entries, found, options)
    return _KNOWN[key]
