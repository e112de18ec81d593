"""Resharding trees of DTensors, between any meshes of a job, and the plans for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from meshard.errors import ArgumentError, DeletedArrayError
from meshard.interop.tensors.agreeing import (
    Note,
    Ranks,
    check_group,
    checked_by_all,
    gathered,
    known_ranks,
    note_of,
    same,
)
from meshard.interop.tensors.carrying import Donated, memory_of
from meshard.interop.tensors.convert import dtensor, local_tensor, mapped, reduced
from meshard.interop.tensors.moving import Mover, Passage, Travel
from meshard.interop.tensors.near import Near
from meshard.interop.tensors.placed import Placed
from meshard.interop.tensors.specs import DTensor, distributed, mesh_of, torch
from meshard.interop.tensors.wanted import (
    Entry,
    Everywhere,
    Goal,
    Listing,
    Options,
    Planned,
    dtype_of,
    goals,
    group_ranks,
    kept_plan,
    lines,
    planned,
)
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.topology import Topology
from meshard.plan.hops.hop import Route
from meshard.plan.plan import Plan
from meshard.plan.show.progress import Progress, telling


def reshard(
    tree: Any,
    target: Any,
    *,
    max_bytes: int | None = None,
    donate: bool = False,
    progress: Progress = None,
    dtype: Any = None,
    reduce: bool = False,
    group: Any = None,
    near: bool | None = None,
    map: Any = None,
) -> Any:
    """Move a tree of DTensors to other meshes and placements, all of them together.

    Any layout can become any other: uneven ones, strided ones, on the same ranks, on others, or on
    some of both. meshard plans, `torch.distributed` moves, and no processes of meshard's are
    needed. All ranks of the process group call it together, those of neither mesh too. The bits are
    kept, and elements that a rank holds already are not moved.

    Args:
        tree: a tree of tensors, such as ``module.state_dict()``. A tensor that is not a DTensor
            must be the same on all ranks. Other leaves stay as they are. A rank that holds nothing
            may pass None for the whole tree.
        target: a pair ``(device_mesh, placements)``, a DTensor that is laid out so, a tree of these
            that is a prefix of ``tree``, or a function of a tensor's name and shape that returns
            one. A tensor that is not a DTensor, such as a buffer in the state of another module,
            stands for itself: every rank gets it whole, as a tensor. None, in such a tree or from
            a function, leaves a tensor as it is.
        max_bytes: the most bytes of buffers, half for what leaves a rank and half for what enters
            it; None for messages of at most 8 MiB to and from each other rank.
        donate: give up the memory of the source tensors, each as soon as it has arrived everywhere.
            Memory that holds more than tensors of ``tree`` stays. A tensor that is there already
            becomes the result.
        progress: called with the bytes that this rank has and those that it is to get; True shows a
            bar on rank 0, False none, and None one on a terminal if it takes longer than a second.
        dtype: what floats are cast to, or integers if it is an integer dtype; on the side where
            elements are smaller.
        reduce: take the sum of DTensors that are ``Partial`` first, which PyTorch does; otherwise
            they are refused.
        group: the process group that has all ranks of all meshes; None for the whole job's.
        near: whether tensors go through memory that the ranks share, where they do: if all are on
            one host and all tensors in its memory. False: they are sent nevertheless.
        map: a `meshard.checkpoint.KeyMap` that says which tensors are made of which: they are
            renamed, fused, split or permuted on the way, and each element moves once. Targets are
            then those of the map's names, each a pair or a DTensor. The ranks must be joined, by
            `initialize`; all of them pass the tree, and ``near`` and ``donate`` have no effect.

    Returns:
        The tree of DTensors, without gradients, in new memory. A rank outside of a mesh gets a
        DTensor with an empty local tensor. Tied tensors are moved once and stay tied. With ``map``
        a dict of DTensors by name.

    Raises:
        ArgumentError: if a tensor, a target or ``max_bytes`` is not what is said here, or a mesh
            has ranks that the group does not have.
        ConfigError: if there is no process group, or with ``map`` the ranks have not been joined.
        KeyMapError: if the map does not fit the tree.
        ShapeError: if a local tensor does not have the shape that its placements say.
        ShardingError: if a DTensor is ``Partial``.
        DeletedArrayError: if a tensor's memory was given up.
        TreeError: if the tree of targets is not a prefix of ``tree``.
        AgreementError: on all other ranks if one of them refuses, and on all if their arguments
            differ; it names the ranks.
        AllocationError: on all ranks, if one has no memory for a result.
        ProcessLostError: if a rank fails on the way; it names the rank.

    A refusal comes before anything has moved. After any failure tensors that were not donated are
    as they were.

    >>> import torch.distributed as dist
    >>> from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = init_device_mesh("cpu", (1,))  # torchrun starts more ranks
    >>> x = DTensor.from_local(torch.arange(4.0), mesh, [Shard(0)])
    >>> reshard({"w": x}, (mesh, [Replicate()]), dtype="bfloat16")["w"].to_local()
    tensor([0., 1., 2., 3.], dtype=torch.bfloat16)
    >>> dist.destroy_process_group()
    """
    what = "reshard"
    options = Options(max_bytes, donate, progress, dtype, reduce, group, near, what)
    if map is not None:
        return mapped(tree, target, map, options)
    return Job(lambda: (tree, target), options).run()


def redistribute(
    x: Any,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    dtype: Any = None,
    max_bytes: int | None = None,
    group: Any = None,
) -> Any:
    """Return a DTensor laid out by placements on a mesh, which may be another one.

    It does what `DTensor.redistribute` does, with the same arguments, and more: the mesh may have
    other ranks, the elements may be cast on the way, and memory can be limited. It is not followed
    by autograd. All ranks of the group call it.

    Args:
        x: the DTensor.
        device_mesh: the mesh to be on; None for that of ``x``.
        placements: one for each dim of the mesh; None for replicas.
        dtype: the dtype to have; None for that of ``x``.
        max_bytes: see `reshard`.
        group: see `reshard`.

    Raises:
        ArgumentError: if an argument is not what is said here.
        AgreementError, ShardingError, ShapeError, AllocationError, ProcessLostError: see `reshard`.

    >>> import torch.distributed as dist
    >>> from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = init_device_mesh("cpu", (1,))  # torchrun starts more ranks
    >>> x = DTensor.from_local(torch.arange(4.0), mesh, [Shard(0)])
    >>> redistribute(x, mesh, [Replicate()]).placements
    (Replicate(),)
    >>> dist.destroy_process_group()
    """
    what = "redistribute"

    def ends() -> tuple[Any, Any]:
        if not isinstance(x, DTensor):
            raise ArgumentError(
                f"{what}: expected a DTensor, got a {type(x).__name__}. DTensor.from_local and "
                "distribute_tensor make one; meshard.interop.torch.reshard also takes tensors that "
                "are the same on all ranks."
            )
        mesh = x.device_mesh if device_mesh is None else mesh_of(device_mesh, what)
        replicas = [torch.distributed.tensor.Replicate()] * mesh.mesh.ndim
        return x, (mesh, replicas if placements is None else placements)

    options = Options(max_bytes, False, False, dtype, True, group, None, what)
    return Job(ends, options).run()


def plan(
    tree: Any,
    target: Any,
    *,
    max_bytes: int | None = None,
    donate: bool = False,
    topology: Topology | str | None = None,
    dtype: Any = None,
    reduce: bool = False,
    group: Any = None,
) -> Plan:
    """Return what `reshard` would do, before anything moves; nothing is communicated.

    Args:
        tree: see `reshard`; tensors on the meta device will do.
        target: see `reshard`.
        max_bytes: see `reshard`.
        donate: see `reshard`.
        topology: what links cost, or the name of a preset, as in ``"8-gpu hosts"``. Its devices are
            the ranks.
        dtype: see `reshard`.
        reduce: see `reshard`. What taking the sum moves is not counted.
        group: see `reshard`.

    Returns:
        The plan, whose devices are the ranks: it prints bytes beside their lower bounds, steps and
        memory, and on a topology the time.

    Raises:
        ArgumentError, ShapeError, ShardingError, TreeError: see `reshard`.

    >>> import torch.distributed as dist
    >>> from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = init_device_mesh("cpu", (1,))  # torchrun starts more ranks
    >>> x = DTensor.from_local(torch.arange(4.0), mesh, [Shard(0)])
    >>> plan({"w": x}, (mesh, [Replicate()])).bytes_moved
    0
    >>> dist.destroy_process_group()
    """
    what = "plan"
    options = Options(max_bytes, donate, False, dtype, reduce, group, None, what)
    check_group(what, group)
    listing, _ = options.reader().listed(tree)
    found = goals(listing, target, dtype, group, what)
    return planned(listing.entries, found, options, topology)[0]


@final
class Job:
    """One call of `reshard` on one rank.

    Args:
        ends: returns the tree, and where its tensors go; what it raises, the other ranks learn.
        options: the other arguments.
        landing: what the one tensor's new local tensor is to be; None for one in new memory.
    """

    def __init__(
        self, ends: Callable[[], tuple[Any, Any]], options: Options, landing: Any = None
    ) -> None:
        self._ends, self._options, self._landing = ends, options, landing
        self._target: Any = None
        self._what, self._group = options.what, options.group
        self._listing: Listing | None = None
        self._leaves: list[Any] = []
        self._goals: list[Goal | None] = []
        self._told: list[str] = []
        self._locals: list[Any] = []
        self._plan: Planned = (Plan(()), [])

    def run(self) -> Any:
        """Return the tree, moved."""
        check_group(self._what, self._group)
        known = known_ranks(self._group, self._what)
        with known.call():
            return self._run_with(known)

    def _run_with(self, known: Ranks) -> Any:
        notes = checked_by_all(self._listed, self._group, self._what)
        if any(n.digest is None for n in notes):
            notes = self._informed(notes)
        same(notes, self._told, self._group, self._what)
        return self._moved(notes, known)

    def _listed(self) -> Note:
        """Read the tree, if this rank has one, and return what it tells the others."""
        tree, self._target = self._ends()
        if tree is None:
            return Note()
        self._listing, self._leaves = self._options.reader().listed(tree)
        return self._prepare()

    def _prepare(self) -> Note:
        """Check everything that this rank knows, and return what it tells the others."""
        options, listing = self._options.checked(), self._listing
        assert listing is not None
        self._goals = goals(listing, self._target, options.dtype, self._group, self._what)
        ranks = frozenset(group_ranks(self._group))
        for entry, goal in zip(listing.entries, self._goals, strict=True):
            if goal is not None:
                _check_elements(entry, self._what)
                _check_ranks(entry.before, ranks, f"{self._what}: {entry.name}", "its mesh")
                _check_ranks(goal.after, ranks, f"{self._what}: {entry.name}", "the target's mesh")
        self._locals = [self._local(entry) for entry in listing.entries]
        fixed = [(x, getattr(options, x)) for x in ("max_bytes", "donate", "reduce", "near")]
        self._told = lines(listing, self._goals, fixed)
        note = note_of(self._told, _tied(listing, self._locals))
        key = note.digest, group_ranks(self._group)
        self._plan = kept_plan(key, listing.entries, self._goals, options)
        return note

    def _local(self, entry: Entry) -> Any:
        """Return what this rank holds of a tensor; None if it holds nothing."""
        rank = distributed.get_rank()
        if rank not in entry.before or not self._leaves:
            return None
        x = self._leaves[entry.number]
        if not isinstance(x, DTensor):
            local = x.detach()
        elif entry.partial:
            with torch.no_grad():
                return x.to_local().detach()  # its shape is that of the sum
        else:
            local = local_tensor(x, entry.before, rank, f"{self._what}: {entry.name}")
        if local.numel() and not local.untyped_storage().nbytes():
            raise DeletedArrayError(
                f"{self._what}: the memory of {entry.name} has been given up, as by donate=True; "
                "nothing is left to read."
            )
        if local.is_conj() or local.is_neg():
            local = local.resolve_conj().resolve_neg()
        return local

    def _informed(self, notes: Sequence[Note]) -> list[Note]:
        """Tell ranks without a tree what the others are about to do."""
        ranks = group_ranks(self._group)
        holders = tuple([r for r, n in zip(ranks, notes, strict=True) if n.digest is not None])
        given = [x for x in gathered(self._listing, self._group, self._what) if x is not None]
        own = notes[ranks.index(distributed.get_rank())]
        check = partial(self._prepared_as, given[0] if given else None, holders, own)
        return checked_by_all(check, self._group, self._what)

    def _prepared_as(self, given: Listing | None, holders: tuple[int, ...], own: Note) -> Note:
        """Take what another rank has listed, if this one has nothing."""
        if given is None:
            raise ArgumentError(f"{self._what}: every rank has passed None for the tree.")
        if self._listing is None:
            self._check_absent(given)
        listing = (self._listing or given).held_by(holders)
        if listing is self._listing:
            return own
        self._listing = listing
        return self._prepare()

    def _check_absent(self, listing: Listing) -> None:
        rank = distributed.get_rank()
        for entry in listing.entries:
            if entry.distributed and rank in entry.before:
                raise ArgumentError(
                    f"{self._what}: rank {rank} has passed None for the tree, but is one of the "
                    f"mesh of {entry.name}."
                )

    def _moved(self, notes: Sequence[Note], known: Ranks) -> Any:
        listing, options = self._listing, self._options.checked()
        assert listing is not None
        self._reduce(listing)
        tied = self._tied_to([n.tied for n in notes if n.tied])
        moving = self._moving(listing, tied, options.donate)
        plan, which = self._plan
        if any(a is not b for a, b in zip(moving, self._goals, strict=True)):
            plan, which = planned(listing.entries, moving, options)
        travels = [
            None if goal is None else Travel(entry, goal, local, self._landing)
            for entry, goal, local in zip(listing.entries, moving, self._locals, strict=True)
        ]
        near = known.near if self._is_near(listing) else None
        self._run((plan, which), travels, tied, known, near)
        results = [self._result(n, tied, travels) for n in range(len(listing.entries))]
        return self._rebuilt(listing, results)

    def _tied_to(self, every: Sequence[Sequence[int]]) -> list[int]:
        """Return for each tensor the one that it is moved with: itself, or one it is tied to."""
        found = _together(every, len(self._goals))
        for number, first in enumerate(found):
            if first != number and not _alike(self._goals[number], self._goals[first]):
                found[number] = number
        return found

    def _moving(self, listing: Listing, tied: Sequence[int], donate: bool) -> list[Goal | None]:
        """Return where tensors go, and None for those that are moved with others or not at all."""
        found: list[Goal | None] = []
        for number, (entry, goal) in enumerate(zip(listing.entries, self._goals, strict=True)):
            alone = goal is not None and tied[number] == number
            there = alone and donate and self._stays(entry, goal)
            found.append(goal if alone and not there else None)
        return found

    def _stays(self, entry: Entry, goal: Goal | None) -> bool:
        """Whether a tensor is already as it is to be, on all ranks."""
        assert goal is not None
        same_cuts = entry.before.steps == goal.after.steps
        same_mesh = (entry.before.ranks, entry.before.sizes) == (goal.after.ranks, goal.after.sizes)
        return same_cuts and same_mesh and entry.dtype == goal.dtype and entry.distributed

    def _reduce(self, listing: Listing) -> None:
        """Take the sums that are still to be taken."""
        for number, entry in enumerate(listing.entries):
            if entry.partial and self._goals[number] is not None and self._leaves:
                x = self._leaves[entry.number]
                if distributed.get_rank() in entry.before:
                    whole = reduced(x, True, self._what)
                    rank = distributed.get_rank()
                    self._locals[number] = local_tensor(whole, entry.before, rank, self._what)

    def _is_near(self, listing: Listing) -> bool:
        """Whether tensors go through memory, if the ranks share it: not those of other devices."""
        if self._options.near is False:
            return False
        kinds = {goal.mesh.device_type for goal in self._goals if goal is not None}
        return {*kinds, *[entry.device for entry in listing.entries]} <= {"cpu"}

    def _run(
        self,
        prepared: Planned,
        travels: Sequence[Travel | None],
        tied: Sequence[int],
        known: Ranks,
        near: Near | None,
    ) -> None:
        plan, which = prepared
        passages = []
        for leaf, choice, (number, segment) in zip(plan.leaves, plan.choice_of, which, strict=True):
            travel = travels[number]
            assert travel is not None
            travel.waiting += 1
            route = plan.routes[choice]
            if near is not None:
                route = Route("direct", (leaf.source, leaf.destination))
            passages.append(Passage(travel, number, segment, route))
        mover = Mover(self._group, plan, passages, known, near, self._what)
        donated = self._donated(travels, tied) if plan.donate else None
        numbers = {id(travel): number for number, travel in enumerate(travels)}

        def arrived(travel: Travel) -> None:
            if donated is not None and travel.local is not None:
                donated.arrived(travel.local)
                travel.local = None
                for number, first in enumerate(tied):
                    if first == numbers[id(travel)]:
                        self._locals[number] = None

        rank = distributed.get_rank()
        progress = self._options.progress
        shown = progress if callable(progress) or rank == group_ranks(self._group)[0] else False
        total = sum([_arriving(leaf, rank) for leaf in plan.leaves])
        with telling(shown, "resharding", patient=True) as tell:
            done = _Done(tell, total)
            mover.run(done.told, arrived)

    def _donated(self, travels: Sequence[Travel | None], tied: Sequence[int]) -> Donated:
        """Return what gives up the tensors that move; tied ones go with the first."""
        staying: list[Any] = []
        owners: dict[int, list[Any]] = {}
        for number, (first, x) in enumerate(zip(tied, self._locals, strict=True)):
            if x is None:
                continue
            if travels[first] is None:
                staying.append(x)
            else:
                owners.setdefault(first, []).append(self._owner(number))
        return Donated([(self._locals[n], some) for n, some in owners.items()], staying)

    def _owner(self, number: int) -> Any:
        """Return the tensor of the caller's that holds what this rank has of an entry."""
        assert self._listing is not None
        x = self._leaves[self._listing.entries[number].number]
        return x._local_tensor if isinstance(x, DTensor) else x

    def _result(self, number: int, tied: Sequence[int], travels: Sequence[Travel | None]) -> Any:
        """Return the DTensor of a tensor; None if it stays as it is."""
        goal = self._goals[number]
        if goal is None:
            return None
        travel = travels[tied[number]]
        # Without a way it was donated, and is there already.
        local = self._locals[tied[number]] if travel is None else travel.result
        if local is None:
            local = torch.empty(0, dtype=dtype_of(goal.dtype), device=_device(goal.mesh))
        if isinstance(goal.mesh, Everywhere):
            return local
        assert self._listing is not None
        shape = self._listing.entries[number].shape
        return dtensor(local, goal.mesh, goal.placements, shape)

    def _rebuilt(self, listing: Listing, results: Sequence[Any]) -> Any:
        leaves = list(self._leaves) or [None] * listing.structure.num_leaves
        for entry, result in zip(listing.entries, results, strict=True):
            if result is not None:
                leaves[entry.number] = result
        return listing.structure.unflatten(leaves)


@final
class _Done:
    """Counts the bytes that have arrived."""

    def __init__(self, tell: Callable[[int, int], None] | None, total: int) -> None:
        self._tell, self._total, self._done = tell, total, 0

    def told(self, nbytes: int) -> None:
        """Count some more."""
        self._done += nbytes
        if self._tell is not None:
            self._tell(min(self._done, self._total), self._total)


def _arriving(leaf: PlanLeaf, rank: int) -> int:
    piece = leaf.destination.piece_of.get(rank)
    return 0 if piece is None else leaf.destination.box(piece).volume * leaf.itemsize


def _device(mesh: Any) -> Any:
    return memory_of(mesh.device_type).device


def _alike(a: Goal | None, b: Goal | None) -> bool:
    if a is None or b is None:
        return False
    return (a.after, a.dtype) == (b.after, b.dtype)


def _check_elements(entry: Entry, what: str) -> None:
    """Refuse a tensor without elements.

    Raises:
        ArgumentError: with where they come from.
    """
    if entry.device == "meta":
        raise ArgumentError(
            f"{what}: {entry.name} is on the meta device and has no elements to move. Make it by "
            "module.to_empty(device=...) and load its weights first; meshard.interop.torch.plan "
            "takes it as it is."
        )


def _check_ranks(place: Placed, ranks: frozenset[int], what: str, whose: str) -> None:
    """Refuse a mesh that the process group does not have.

    Raises:
        ArgumentError: naming the rank.
    """
    missing = [r for r in place.ranks if r not in ranks]
    if missing:
        raise ArgumentError(
            f"{what}: rank {missing[0]} of {whose} is not in the process group, which has the "
            f"ranks {sorted(ranks)}. Pass group=, or None for the group of the whole job."
        )


def _tied(listing: Listing, tensors: Sequence[Any]) -> list[int]:
    """Return for each tensor the first of the same memory on this rank; -1 if nothing is here."""
    first: dict[tuple[object, ...], int] = {}
    found = []
    for number, (entry, x) in enumerate(zip(listing.entries, tensors, strict=True)):
        if x is None or not x.numel():
            found.append(-1)
            continue
        key = (x.data_ptr(), tuple(x.stride()), entry.shape, entry.dtype, entry.before)
        found.append(first.setdefault(key, number))
    return found


def _together(every: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return for each tensor the first that is the same one on all ranks that hold it."""
    found = []
    for number in range(count):
        said = {tied[number] for tied in every if tied[number] >= 0}
        found.append(said.pop() if len(said) == 1 else number)
    # Of those that hold one and not the other nothing is known; both are then moved.
    for number, first in enumerate(found):
        if first != number and any((t[number] < 0) != (t[first] < 0) for t in every):
            found[number] = number
    return found
