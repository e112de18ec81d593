"""Moving trees: all arrays of a tree go to their layouts, each distinct one once.

In: leaves, and for each where it is to be. Out: the leaves, moved. The arrays go batch by batch in
the order of the `schedule`; a donated source is freed with its batch. No array is lost on the way:
an exception carries the tree as it is then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.errors import AllocationError, DataLoss
from meshard.plan.figures.footprint import check_window
from meshard.plan.figures.schedule import batches, is_gradual
from meshard.plan.hops.cells import loss_text
from meshard.plan.hops.hop import Route
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Wire
from meshard.plan.show.progress import Progress, telling
from meshard.runtime.agree import agree, agreed, alive_part, lost_boxes
from meshard.runtime.array.array import Array
from meshard.runtime.memory.ownership import give_back_owned
from meshard.runtime.moving.donate import Gradual, run_gradually
from meshard.runtime.moving.execute import (
    ArrayMove,
    RoutedMove,
    route_between,
    run_moves,
    run_routes,
)
from meshard.runtime.moving.place import (
    check_devices_exist,
    part_between,
    part_from,
    placed,
    spans,
    wires_between,
    wires_from,
)
from meshard.runtime.processes.agreement import described
from meshard.runtime.types import ArrayType, Blocks
from meshard.runtime.watching.ledger import wired
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld, here
from meshard.tuning import KEPT_IDLE


@final
class Tree:
    """The leaves that move, where they go, and how they become a tree again.

    Args:
        leaves: the leaves.
        targets: the sharding that each leaf is to have; None leaves it where it is.
        structure: the structure of the tree; None for a list.
        routes: the route that a plan has chosen for each leaf; None without a plan.
        alive: the ids of the devices that still hold their data; by default those of the processes
            that take part.

    Attributes:
        leaves: the leaves.
        targets: where they go.
        alive: the devices that still hold their data, as given.
        routes: their routes; None for one that no plan has chosen.
    """

    def __init__(
        self,
        leaves: Sequence[Any],
        targets: Sequence[Sharding | None],
        structure: Any = None,
        routes: Sequence[Route] | None = None,
        alive: frozenset[int] | None = None,
    ) -> None:
        self.leaves = leaves
        self.targets = targets
        self.routes: Sequence[Route | None] = routes or [None] * len(leaves)
        self.alive = alive
        self._structure = structure

    @cached_property
    def names(self) -> list[str]:
        """The name of each leaf, computed when a message needs it."""
        if self._structure is None:
            return [f"array {i}" for i in range(len(self.leaves))]
        return leaf_names(self._structure.accessors())

    def rebuilt(self, leaves: Sequence[Any]) -> Any:
        """Return the tree with other leaves."""
        return list(leaves) if self._structure is None else self._structure.unflatten(leaves)


def leaf_names(accessors: Sequence[Any]) -> list[str]:
    """Return the names of the leaves of a tree, by the path to each."""
    return [".".join(map(str, accessor.path)) or "x" for accessor in accessors]


@final
@dataclass(slots=True)
class _Way:
    """One array's way to one layout.

    Attributes:
        array: the array.
        type_: what it becomes.
        part: what this process does.
        route: the layouts that it goes through; None for the direct way.
        leaves: the numbers of the leaves that it is the result of.
        last: whether it is the last way of the array, after which a donated one is given up.
    """

    array: Array
    type_: ArrayType
    part: Part
    route: Route | None
    leaves: list[int]
    last: bool = True

    @property
    def source(self) -> Layout:
        """The layout before."""
        return self.array._type.layout

    @property
    def destination(self) -> Layout:
        """The layout after."""
        return self.type_.layout

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.type_.dtype.itemsize

    @property
    def gradual(self) -> bool:
        """Whether the source goes step by step, if it is donated."""
        hops = 1 if self.route is None else len(self.route.layouts) - 1
        return self.last and is_gradual(self.source, self.itemsize, donate=True, hops=hops)

    @property
    def local_bytes(self) -> int:
        """Bytes of the result that this process will hold."""
        layout = self.destination
        return sum(layout.box(i).volume for i in self.type_.local) * self.itemsize


def moved(
    tree: Tree,
    donate: bool,
    max_bytes: int | None,
    progress: Progress = False,
    what: str = "reshard",
) -> list[Any]:
    """Return the leaves of a tree, each moved to its target, by its route where one is given.

    Args:
        tree: the leaves, and where they go.
        donate: whether the sources are given up.
        max_bytes: the most bytes in flight from and to this process at once.
        progress: see `reshard`.
        what: the function that was called, for messages.
    """
    world = here()
    move = _Mover(world, tree, donate, max_bytes, what)
    if not world.profiles:
        return move.run(progress)
    with timed(world, what, "move") as ran_on:
        ran_on([t for t in tree.targets if t is not None])
        return move.run(progress)


def moved_together(
    leaves: Sequence[tuple[Array, Sharding | None]], donate: bool, what: str
) -> list[Any]:
    """Return arrays, which are given up or not, each moved to its target."""
    tree = Tree([x for x, _ in leaves], [t for _, t in leaves])
    return moved(tree, donate, None, what=what)


@final
class _Teller:
    """Reports the progress of a move, and keeps what is raised meanwhile until it has ended."""

    def __init__(self, tell: Callable[[int, int], None] | None, total: int) -> None:
        self._tell = tell
        self._total = total
        self._done = 0
        self.failure: BaseException | None = None

    @property
    def wanted(self) -> bool:
        """Whether progress is reported."""
        return self._tell is not None

    def told(self, nbytes: int) -> None:
        """Report that some more bytes have arrived."""
        self._done += nbytes
        if self._tell is None or self.failure is not None:
            return
        try:
            self._tell(min(self._done, self._total), self._total)
        except BaseException as error:  # raised when nothing is half done
            self.failure = error

    def postponed(self, error: BaseException) -> None:
        """Keep an error that came while something was half done."""
        if self.failure is None:
            self.failure = error


@final
class _Mover:
    """One move of a tree: what has arrived, and what is still where it was."""

    def __init__(
        self, world: RuntimeWorld, tree: Tree, donate: bool, max_bytes: int | None, what: str
    ) -> None:
        self._world = world
        self._tree = tree
        self._donate = donate
        self._what = what
        self._max_bytes = max_bytes
        self._results: list[Any] = [None] * len(tree.leaves)
        self._arrived: set[int] = set()
        self._lost: list[str] = []
        self._staying: dict[tuple[ArrayType, ArrayType], bool] = {}
        self._living: dict[ArrayType, frozenset[int] | None] = {}

    def run(self, progress: Progress) -> list[Any]:
        world, leaves = self._world, self._tree.leaves
        types = self._types()
        every: list[ArrayType] = []
        for leaf, type_ in zip(leaves, types, strict=True):
            if type_ is not None:
                leaf._live()
                every += (leaf._type, type_)
        self._place(types)
        self._agree(every)
        self._check_alive(types)
        ways = self._ways(types)
        self._announce(ways)
        with telling(progress, "resharding", world=world) as tell:
            teller = _Teller(tell, sum([w.local_bytes for w in ways]) if tell else 0)
            try:
                self._move(ways, teller)
            except BaseException as error:
                self._hand_back(error)
                raise
        if self._donate:
            self._give_up([x for x in leaves if type(x) is Array])
            world.memory.trim()
        if teller.failure is not None:
            self._hand_back(teller.failure)
            raise teller.failure
        return self._results

    def _types(self) -> list[ArrayType | None]:
        """Return what each leaf becomes; None for one that is placed."""
        found: list[ArrayType | None] = []
        known: dict[Any, ArrayType | None] = {}  # the leaves of a tree are often alike
        for leaf, target in zip(self._tree.leaves, self._tree.targets, strict=True):
            if target is None or type(leaf) is not Array:
                found.append(None)
                continue
            key = leaf._type, id(target)
            if key not in known:
                known[key] = _type_of(self._world, leaf._type, target, self._what)
            found.append(known[key])
        return found

    def _alive(self, type_: ArrayType) -> frozenset[int] | None:
        """Return the devices that still hold their part of an array; None if all of them do."""
        if type_ not in self._living:
            self._living[type_] = alive_part(self._world, type_, self._tree.alive)
        return self._living[type_]

    def _agree(self, types: Sequence[ArrayType]) -> None:
        """Enter the step of this move; those that are gone do not take part in it."""
        world, what = self._world, self._what
        if all(self._alive(t) is None for t in types):
            agree(world, what, (("max_bytes", self._max_bytes),), tuple(types))
            return
        devices = [d for t in types if not t.unplaced for d in t.sharding.device_order]
        members = {d.process_index for d in devices} & {*world.processes}
        living = [sorted(ids) for ids in map(self._alive, types) if ids is not None]
        told = [described(t, exact=True) for t in types]
        agreed(world, sorted(members), (what, self._max_bytes, str(told), str(living)), f"`{what}`")

    def _check_alive(self, types: Sequence[ArrayType | None]) -> None:
        """Refuse arrays of which nobody holds some part, before anything moves.

        Raises:
            DataLoss: with the boxes.
        """
        lost = {}
        for number, (leaf, type_) in enumerate(zip(self._tree.leaves, types, strict=True)):
            alive = None if type_ is None else self._alive(leaf._type)
            boxes = () if alive is None else lost_boxes(leaf._type.layout, alive)
            if boxes:
                lost[number] = loss_text(leaf.shape, boxes), boxes
        if lost:
            names = self._tree.names
            told = " ".join([f"{names[n]}: {text}" for n, (text, _) in list(lost.items())[:8]])
            raise DataLoss(
                f"{self._what}: {told} Nothing has moved. meshard.elastic.restore also takes boxes "
                "from copies kept on purpose, and from a checkpoint.",
                [box for _, boxes in lost.values() for box in boxes],
                {names[n]: boxes for n, (_, boxes) in lost.items()},
            )

    def _stays(self, type_: ArrayType, result: ArrayType) -> bool:
        """Whether an array of one type is already where another type is."""
        known = self._staying.get((type_, result))
        if known is None:
            same = type_.layout == result.layout and self._alive(type_) is None
            known = self._staying[type_, result] = same
        return known

    def _announce(self, ways: Sequence[_Way]) -> None:
        """Refuse what the window or a budget does not allow, before anything has moved."""
        world = self._world
        if self._max_bytes is not None:
            for way in ways:
                text, size = way.array._type.str_short(), way.itemsize
                check_window(self._max_bytes, len(world.processes), size, text, self._what)
        if world.ledgers:
            pairs = [(w.array._type, w.type_) for w in ways]
            wired(world, self._what, [w for pair in pairs for w in self._wires(*pair)])

    def _wires(self, source: ArrayType, type_: ArrayType) -> tuple[Wire, ...]:
        alive = self._alive(source)
        if alive is None:
            return wires_between(self._world, source, type_)
        return wires_from(source, type_, alive)

    def _part(self, source: ArrayType, type_: ArrayType) -> Part:
        alive = self._alive(source)
        if alive is None:
            return part_between(self._world, source, type_)
        return part_from(self._world, source, type_, alive)

    def _place(self, types: Sequence[ArrayType | None]) -> None:
        """Settle the leaves that do not move: those that are placed, and those already there."""
        known: dict[tuple[int, Any], Any] = {}
        targets = self._tree.targets
        for number, leaf in enumerate(self._tree.leaves):
            type_ = types[number]
            if leaf is None:
                continue
            if type_ is not None and not self._stays(leaf._type, type_):
                continue
            key = id(leaf), targets[number]
            if key not in known:
                if type_ is None:
                    known[key] = placed(leaf, targets[number], what=self._what)
                else:
                    known[key] = Array(type_, leaf._live())
            self._results[number] = known[key]

    def _ways(self, types: Sequence[ArrayType | None]) -> list[_Way]:
        """Return each distinct way of an array to a layout, once."""
        routes = self._tree.routes
        # The window, and memory that is given back on the way, are those of the direct way.
        free = not self._donate and self._max_bytes is None
        found: dict[tuple[int, ArrayType], _Way] = {}
        parts: dict[tuple[ArrayType, ArrayType], Part] = {}
        for number, (leaf, type_) in enumerate(zip(self._tree.leaves, types, strict=True)):
            if type_ is None or self._stays(leaf._type, type_):
                continue
            way = found.get((id(leaf), type_))
            if way is None:
                part = parts.get((leaf._type, type_))
                if part is None:
                    part = self._part(leaf._type, type_)
                    parts[leaf._type, type_] = part
                route = routes[number]
                if route is None and free and self._alive(leaf._type) is None:
                    route = route_between(self._world, leaf._type, type_)
                way = found[id(leaf), type_] = _Way(leaf, type_, part, route, [])
            way.leaves.append(number)
        return list(found.values())

    def _move(self, ways: Sequence[_Way], teller: _Teller) -> None:
        world, donate = self._world, self._donate
        order = batches(ways, donate=donate)
        if donate:
            self._mark_last(ways, order)
            world.memory.trim(KEPT_IDLE)
        for numbers in order:
            batch = [ways[i] for i in numbers]
            self._move_batch(batch, teller)
            if donate:
                self._give_up([way.array for way in batch if way.last])
                world.memory.trim(KEPT_IDLE)
            # Other processes take part in the rest, and would wait for this one.
            if teller.failure is not None and world.process_count == 1:
                raise teller.failure

    def _mark_last(self, ways: Sequence[_Way], order: Sequence[Sequence[int]]) -> None:
        """Find the last way of each array; an array that stays in the tree has none."""
        staying = {id(x) for i, x in enumerate(self._tree.leaves) if self._results[i] is not None}
        seen = set(staying)
        for i in [i for numbers in reversed(order) for i in reversed(numbers)]:
            ways[i].last = id(ways[i].array) not in seen
            seen.add(id(ways[i].array))

    def _move_batch(self, batch: Sequence[_Way], teller: _Teller) -> None:
        together: list[_Way] = []
        routed: list[RoutedMove] = []
        detours: list[_Way] = []
        for way in batch:
            route = way.route
            if route is not None and len(route.layouts) > 2 and self._world.process_count > 1:
                routed.append(RoutedMove(route, way.array._live(), way.type_))
                detours.append(way)
            elif self._donate and way.gradual:
                self._settle(way, self._gradually(way, teller))
            else:
                together.append(way)
        self._move_directly(together, teller)
        if self._max_bytes is None:
            found = run_routes(self._world, routed)
        else:
            found = [run_routes(self._world, [move], self._max_bytes)[0] for move in routed]
        for way, blocks in zip(detours, found, strict=True):
            self._settle(way, blocks)
            if teller.wanted:
                teller.told(way.local_bytes)

    def _move_directly(self, together: Sequence[_Way], teller: _Teller) -> None:
        if not together:
            return
        moves = [ArrayMove(w.part, w.array._live(), w.type_.dtype) for w in together]
        try:
            told = teller.told if teller.wanted else None
            found = run_moves(self._world, moves, self._max_bytes, told)
        except AllocationError as error:
            raise self._without_memory(together, error) from error
        for way, blocks in zip(together, found, strict=True):
            self._settle(way, blocks)

    def _gradually(self, way: _Way, teller: _Teller) -> Blocks:
        """Move an array whose source is given back on the way."""
        try:
            move = Gradual(self._world, way.part, way.array, way.type_, self._max_bytes)
        except AllocationError as error:  # nothing has begun
            raise self._without_memory([way], error) from error
        try:
            return run_gradually(move, teller.told, teller.postponed)
        except BaseException:
            self._lost += [self._tree.names[i] for i in way.leaves]
            way.array._discard(f"lost when {self._what} failed")
            raise

    def _settle(self, way: _Way, blocks: Blocks) -> None:
        array = Array(way.type_, blocks)
        for number in way.leaves:
            self._results[number] = array
            self._arrived.add(number)

    def _give_up(self, arrays: Sequence[Array]) -> None:
        kept = {id(r) for r in self._results}
        for array in arrays:
            if id(array) not in kept:
                give_back_owned(array)
                array._discard(f"donated to {self._what}")

    def _without_memory(self, ways: Sequence[_Way], error: AllocationError) -> AllocationError:
        """Return the error that says for which arrays there is no memory."""
        names = ", ".join([self._tree.names[i] for way in ways for i in way.leaves])
        total = sum(way.local_bytes for way in ways)
        return AllocationError(
            f"{self._what}: {names} could not be moved: that takes {total:,} bytes. {error} "
            "Move fewer arrays at once, give up the sources (donate=True), or use more processes."
        )

    def _hand_back(self, error: BaseException) -> None:
        """Attach the present tree to an error, if sources were given up."""
        leaves = self._tree.leaves
        gone = [i for i in sorted(self._arrived) if leaves[i].is_deleted()]
        if not gone and not self._lost:
            return
        now = [self._results[i] if i in self._arrived else leaf for i, leaf in enumerate(leaves)]
        error.partial = self._tree.rebuilt(now)  # type: ignore[attr-defined]
        names = self._tree.names
        told = f"{_listed([names[i] for i in gone])} had arrived, and the donated source was freed"
        waiting = [n for i, n in enumerate(names) if i not in self._arrived and n not in self._lost]
        where = f"; {_listed(waiting)} is as it was" if waiting else ""
        lost = f"; {_listed(self._lost)} was on its way and is lost" if self._lost else ""
        error.add_note(
            f"{self._what}: of {len(leaves)} leaves {told if gone else 'none had arrived'}"
            f"{where}{lost}. The attribute `partial` of this exception is the tree as it is now."
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _type_of(
    world: RuntimeWorld, type_: ArrayType, target: Sharding, what: str
) -> ArrayType | None:
    """Return what arrays of a type that move become; None for those that are placed."""
    check_devices_exist(world, target, what)
    if not type_.committed and spans(world, target):
        return None
    return world.type_of(type_.shape, type_.dtype, target, True)
