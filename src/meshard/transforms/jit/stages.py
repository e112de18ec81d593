"""The stages of a jitted function: traced, lowered, compiled; and the entry that a call runs.

In: a `Trace`, and how the arguments lie. Out: programs to read, to cost, and to call.

The programs of one jitted function in one world: kept by signature, up to a number.

In: signatures. Out: what was made for them before. The oldest are forgotten when there are too
many, as for a function that is called with a new shape each time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, final

import optree

from meshard.algebra.abstract import Sharding
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, ConcretizationError, ShardingError, TreeError
from meshard.ops.engine.eager import EAGER, WEAK
from meshard.plan.captions import count_text
from meshard.plan.figures.topology import Topology
from meshard.plan.show.pictured import Drawn, Pictured
from meshard.runtime.agree import agreed
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced as TracedValue
from meshard.runtime.doors import interpreting
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld, here
from meshard.transforms.explain.costs import MemoryAnalysis, costs, memory
from meshard.transforms.explain.explaining import explained
from meshard.transforms.explain.explanation import Explanation
from meshard.transforms.jit.devices import (
    account_of_program,
    captured_beside,
    check_devices,
    replicated,
)
from meshard.transforms.lowering.executable import Direct, Executable
from meshard.transforms.lowering.lower import lower
from meshard.transforms.program.program import Atom, Kind, Literal, listing
from meshard.transforms.tracing.signature import Trace, array_of, placed_kind, read_arguments
from meshard.transforms.tracing.tracing import unplaced_type
from meshard.tuning import MOST_PROGRAMS

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

ResultWrapper = Callable[[Array], Any]
"""Makes of one result of a jitted function what its caller gets."""

ChooseWrapper = Callable[[], ResultWrapper | None]
"""Says, each time that a program is lowered, what wraps its results; None where nothing does."""


@final
class ProgramEntry:
    """What a jitted function does for arguments of some types.

    Args:
        world: this process's world.
        trace: the traced function.
        kinds: the arguments' types, or Python's types of numbers.
        wrapper: what wraps each result; None if callers get Arrays.
        like: for each result its type, where it is to have one; by default as the trace says.

    Attributes:
        executable: the program.
        given: how each argument is laid out when the program reads it.
        out_tree: the tree of the results; None where there is one result and no tree.
        direct: the shortest way from arguments to the result, taken while no ledger is open; None
            if there is more to do than to run the steps.
    """

    def __init__(
        self,
        world: RuntimeWorld,
        trace: Trace,
        kinds: Sequence[Kind],
        wrapper: ResultWrapper | None,
        like: Sequence[ArrayType | None] | None = None,
    ) -> None:
        self.trace = trace
        self.given: list[Kind] = []
        place = check_devices(trace, kinds)
        self.captured = captured_beside(trace.captured, place)
        self._wrapper = wrapper
        self._moves: list[tuple[int, Sharding]] = []
        for number, (kind, told, wanted) in enumerate(
            zip(kinds, trace.told, trace.in_shardings, strict=True)
        ):
            found = kind
            if wanted is not None:
                array = (
                    kind if isinstance(kind, ArrayType) else unplaced_type(world, as_array(kind(0)))
                )
                found = placed_kind(world, trace.what, told, array, wanted, True)
                if found is not kind:
                    self._moves.append((number, wanted))
            self.given.append(found)
        # A number that was placed is an array for the program.
        captured = [x._type for x in self.captured]
        self._donated = [i for i, d in enumerate(trace.donated) if d]
        first = len(captured)
        self.executable: Executable = lower(
            world,
            trace.program,
            [*captured, *self.given],
            _asked(world, trace) if like is None else like,
            [first + i for i in self._donated if isinstance(self.given[i], ArrayType)],
            None if place is None else replicated(place),
        )
        passed = set(range(first + len(kinds)))
        self._looked_at = (
            sorted(trace.used) if len(trace.used) > len(read_arguments(trace.program)) else []
        )
        self._shared: tuple[tuple[int, ...], str] | None = None
        self._renewed = _renewed(self.executable, passed)
        self.out_tree = _no_leaf(trace.out_tree)
        self.direct: Direct | None = self._direct(world)

    def _direct(self, world: RuntimeWorld) -> Direct | None:
        """Return the shortest way from the arguments to the result, where nothing else is to do."""
        more = self._moves or self._looked_at or self._donated or self._renewed or self._wrapper
        if more or self.captured or world.agreement is not None:
            return None
        if not all(isinstance(k, ArrayType) for k in self.executable.outputs):
            return None
        return self.executable.direct(self.out_tree is None)

    def __call__(self, world: RuntimeWorld, leaves: list[Any]) -> Any:
        """Return the results as a tree."""
        found = self.flat(world, leaves)
        return found[0] if self.out_tree is None else self.out_tree.unflatten(found)

    def flat(self, world: RuntimeWorld, leaves: list[Any]) -> list[Any]:
        """Return the results."""
        for number, sharding in self._moves:
            leaves[number] = placed(leaves[number], sharding, what=self.trace.what)
        for number in self._looked_at:
            if type(leaves[number]) is Array:
                leaves[number]._live()
        donated = self._given_up(leaves) if self._donated else ()
        if world.agreement is not None:
            if self._shared is None:
                self._shared = account_of_program(self.executable, self.trace.program)
            members, told = self._shared
            agreed(world, members, told, f"`{self.trace.what}`")
        found = self.executable.run(world, [*self.captured, *leaves])
        for number in self._renewed:
            x = found[number]
            if type(x) is Array:  # a result is an array of its own
                found[number] = Array(x._type, x._live())
        for number, x in enumerate(found):
            if type(x) is not Array:
                found[number] = as_array(x)
        if self._wrapper is not None:
            found = list(map(self._wrapper, found))
        for x in donated:
            x._discard(f"donated to {self.trace.what}")
        return found

    def _given_up(self, leaves: Sequence[Any]) -> list[Array]:
        arrays = [leaves[i] for i in self._donated if type(leaves[i]) is Array]
        times = Counter(map(id, (*leaves, *self.captured)))
        for x in arrays:
            x._live()
            if times[id(x)] > 1:
                raise ArgumentError(
                    f"{self.trace.what}: an array {x._type.str_short()} is donated and passed "
                    "twice, or read by the function besides; its memory can be given up only "
                    "once. Pass a copy of it, or do not donate it."
                )
        return arrays


def _asked(world: RuntimeWorld, trace: Trace) -> list[Sharding | None]:
    """Return how the results are to be laid out, which is checked."""
    for number, wanted in enumerate(trace.out_shardings):
        if wanted is not None:
            path = trace.out_tree.paths()[number]
            told = f"result{''.join(f'[{k!r}]' for k in path)}"
            aval = _type_of(trace.program.outputs[number])
            placed_kind(world, trace.what, told, aval, wanted, False)
    return list(trace.out_shardings)


def _no_leaf(tree: optree.PyTreeSpec) -> optree.PyTreeSpec | None:
    """Return a tree; None for one that is a leaf."""
    return None if tree.is_leaf() else tree


def _renewed(executable: Executable, passed: set[int]) -> list[int]:
    """Return the numbers of results that may be another's object: each is an array of its own.

    Such are what is passed through, also by a loop without turns or a branch, and what is returned
    twice: if one of the two was deleted, or given up, so would the other be.
    """
    calls = {
        slot
        for step in executable.steps
        for slot in step.writes
        if any(eqn.call is not None for eqn in step.eqns)
    }
    results = executable.results
    return [i for i, s in enumerate(results) if s in passed or s in calls or s in results[:i]]


@bounded
@final
@dataclass(frozen=True, slots=True)
class ArgInfo:
    """What is known of an argument: shape, dtype, and whether it is given up."""

    shape: tuple[int, ...]
    dtype: Any
    donated: bool


class _Stage(Pictured):
    def __init__(self, world: RuntimeWorld, trace: Trace, kinds: Sequence[Kind]) -> None:
        self._world = world
        self._trace = trace
        self._kinds = list(kinds)

    def _aval(self, kind: Kind) -> ArrayType:
        if isinstance(kind, ArrayType):
            return kind
        return unplaced_type(self._world, as_array(kind(0)))

    @property
    def in_tree(self) -> Any:
        """The tree of ``(args, kwargs)``, static arguments left out."""
        return self._trace.in_tree

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self._trace.out_tree

    @property
    def args_info(self) -> Any:
        """For each argument its shape and dtype, and whether it is donated."""
        donated = self._trace.donated or (False,) * len(self._kinds)
        infos = [
            ArgInfo(k.shape, k.dtype, d)
            for k, d in zip(map(self._aval, self._kinds), donated, strict=True)
        ]
        return trees.unflatten(self._trace.in_tree, infos)

    @property
    def in_avals(self) -> Any:
        """For each argument its type."""
        return trees.unflatten(self._trace.in_tree, list(map(self._aval, self._kinds)))

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the leaves that are given up."""
        return tuple([i for i, d in enumerate(self._trace.donated) if d])

    @property
    def out_info(self) -> Any:
        """For each result its shape and dtype."""
        found = []
        for atom in self._trace.program.outputs:
            aval = _type_of(atom)
            found.append(ShapeDtypeStruct(aval.shape, aval.dtype))
        return trees.unflatten(self._trace.out_tree, found)

    @property
    def fun_name(self) -> str:
        """The function's name."""
        return self._trace.name


@bounded
@final
class Traced(_Stage):
    """A function as a program that knows nothing yet of where its arguments lie."""

    def __init__(
        self,
        world: RuntimeWorld,
        trace: Trace,
        kinds: Sequence[Kind],
        choose_wrapper: ChooseWrapper,
    ) -> None:
        super().__init__(world, trace, kinds)
        self._choose_wrapper = choose_wrapper

    @property
    def program(self) -> Any:
        """The program; printed it is a listing."""
        return self._trace.program

    def __str__(self) -> str:
        return listing(self._trace.program)

    def _title(self) -> str:
        steps = count_text(len(self._trace.program.eqns), "operation")
        return f"{self.fun_name}, traced: {steps}"

    def _parts(self) -> Iterator[Markup]:
        from meshard.transforms.jit.stage_page import traced_parts

        return traced_parts(self._trace, self._kinds, str(self))

    def lower(self) -> Lowered:
        """Return the program lowered onto how the arguments lie.

        Raises:
            IndivisibleError: if a dim does not divide into the shards that are asked for.
            IncompatibleDevicesError: if arguments are committed to different devices.
        """
        entry = ProgramEntry(self._world, self._trace, self._kinds, self._choose_wrapper())
        return Lowered(self._world, self._trace, self._kinds, entry)


class _Placed(_Stage, Drawn):
    def __init__(
        self, world: RuntimeWorld, trace: Trace, kinds: Sequence[Kind], entry: ProgramEntry
    ) -> None:
        super().__init__(world, trace, kinds)
        self._entry = entry

    @property
    def executable(self) -> Executable:
        """The steps that run."""
        return self._entry.executable

    def __str__(self) -> str:
        return self.as_text()

    def as_text(self) -> str:
        """Return what runs as a listing, with how each value is laid out and what moves."""
        trace = self._trace
        called = dict(zip(trace.program.inputs, trace.told, strict=True))
        return listing(replace(self.executable.listed(), called=called))

    def cost_analysis(self) -> dict[str, float]:
        """Return estimates: ``"flops"``, ``"bytes accessed"``, ``"bytes communicated"``.

        They count all devices together; a loop whose number of turns is not known counts as one.
        """
        return costs(self.executable)

    def explain(self, topology: Topology | str | None = None) -> Explanation:
        """Return what the program does step by step, what it moves, and why.

        Args:
            topology: where the devices are, or its name, as in ``"8-gpu hosts"``: times are
                estimated on it. None for one process.

        Raises:
            ArgumentError: if there is no such topology, or a device has no place in it.
        """
        return explained(self._world, self._trace, self._kinds, self.executable, topology)

    _stage = "lowered"

    def _title(self) -> str:
        count = count_text(len(self.executable.steps), "step")
        return f"{self.fun_name}, {self._stage}: {count}"

    def _svg(self) -> Markup:
        return self.explain()._svg()

    def _parts(self) -> Iterator[Markup]:
        from meshard.plan.show.page import folded, preformatted
        from meshard.transforms.jit.stage_page import placed_parts

        kinds = (self._entry.given, self.executable.returns)
        yield from placed_parts(self._trace, *kinds, self.cost_analysis())
        yield from self.explain()._parts()
        yield folded("as text", preformatted(self.as_text()))


@bounded
@final
class Lowered(_Placed):
    """A program on arrays that lie in a certain way: to read, to cost, and to compile."""

    def compile(self) -> Compiled:
        """Return the program as a function of such arguments."""
        return Compiled(self._world, self._trace, self._kinds, self._entry)


@bounded
@final
class Compiled(_Placed):
    """A program as a function of arguments of the types that it was lowered for."""

    _stage = "compiled"

    @property
    def input_shardings(self) -> tuple[Any, Mapping[str, Any]]:
        """For each argument its sharding, as ``(args, kwargs)``."""
        found = [self._aval(k).sharding for k in self._entry.given]
        args, kwargs = trees.unflatten(self._trace.in_tree, found)
        return args, kwargs

    @property
    def output_shardings(self) -> Any:
        """For each result its sharding."""
        found = [self._aval(k).sharding for k in self.executable.returns]
        return trees.unflatten(self._trace.out_tree, found)

    def memory_analysis(self) -> MemoryAnalysis:
        """Return the bytes of arguments, results and temporaries on the device that has most."""
        return memory(self.executable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            TreeError: if the arguments have another tree than it was lowered for.
            ArgumentError: if one has another shape or dtype.
            ShardingError: if one that is committed is laid out otherwise.
            ConcretizationError: if one is a value inside a transformation.
        """
        trace = self._trace
        leaves, tree = trees.flatten((args, kwargs))
        if tree != trace.in_tree:
            raise TreeError(
                f"{trace.what}: the program was compiled for the arguments {trace.in_tree}, and is "
                f"called with {tree}. Static arguments are part of it, and are left out."
            )
        made: list[Any] = []
        for told, kind, x in zip(trace.told, self._entry.given, leaves, strict=True):
            made.append(self._checked(told, kind, x))
        # Inside a transformation too it is this program on arrays, and no part of what is traced.
        with interpreting(EAGER):
            return self._entry(here(), made)

    def _checked(self, told: str, kind: Kind, x: Any) -> Any:
        if isinstance(x, TracedValue):
            raise ConcretizationError(
                f"{self._trace.what}: a compiled program runs on arrays, and argument {told} is "
                f"{x._type.str_short()} inside a transformation, such as jit or shard_map, where "
                "it has no data of its own. Call the jitted function itself there, and it becomes "
                "part of that program."
            )
        if not isinstance(kind, ArrayType):
            if type(x) is kind:
                return x
            wrong = x.dtype if hasattr(x, "dtype") else type(x).__name__
            raise ArgumentError(
                f"{self._trace.what}: argument {told} was compiled as a Python {kind.__name__} "
                f"and is called with {wrong}."
            )
        found = array_of(x, kind.dtype if type(x) in WEAK else None)
        own = found._type
        if (own.shape, own.dtype) != (kind.shape, kind.dtype):
            raise ArgumentError(
                f"{self._trace.what}: argument types differ from those that it was compiled for: "
                f"argument {told} compiled with {kind.str_short()} and called with "
                f"{own.str_short()}. Call the jitted function itself, which makes a program for "
                "each."
            )
        if own is kind:
            return found
        if own.committed and not own.sharding.is_equivalent_to(kind.sharding, kind.ndim):
            raise ShardingError(
                f"{self._trace.what}: it was compiled for input shardings that disagree with those "
                f"of the arguments: argument {told}, {own.str_short()}, has {own.sharding!r}, "
                f"but {kind.sharding!r} is required. Move it with meshard.device_put first."
            )
        if own.committed or kind.committed:
            return placed(found, kind.sharding)
        return found


def _type_of(atom: Atom) -> Any:
    """Return the type of what a program outside of bodies returns; a number is an array there."""
    return as_array(atom.value)._type if isinstance(atom, Literal) else atom.aval


Made = TypeVar("Made")


@final
class Programs:
    """What was traced and lowered.

    Attributes:
        world: the world in which it was.
        entries: for each signature and layout of arguments what a call runs.
        traces: for each signature without it, the trace.
        nested: for each signature inside other functions, the trace.
        plain: the entries of signatures that were met with a flat list of arrays and numbers: by
            the types of these, and what else a signature holds.
    """

    __slots__ = ("__weakref__", "_making", "entries", "nested", "plain", "traces", "world")

    def __init__(self, world: RuntimeWorld) -> None:
        self.world = world
        self.entries: dict[Any, ProgramEntry] = {}
        self.traces: dict[Any, Trace] = {}
        self.nested: dict[Any, Any] = {}
        self.plain: dict[tuple[Any, ...], ProgramEntry] = {}
        # Two threads that call a function for the first time trace it once. A function that calls
        # itself with arrays gets here again.
        self._making = threading.RLock()

    def entry(self, key: Hashable, make: Callable[[], ProgramEntry]) -> ProgramEntry:
        """Return what a call of this signature runs, made now if it is not known yet."""
        return self._kept(self.entries, key, make)

    def trace(self, key: Hashable, make: Callable[[], Trace]) -> Trace:
        """Return the trace of this signature, made now if it is not known yet."""
        return self._kept(self.traces, key, make)

    def _kept(self, known: dict[Any, Made], key: Hashable, make: Callable[[], Made]) -> Made:
        with self._making:
            found = known.get(key)
            if found is None:
                found = make()
                self.keep(known, key, found)
            return found

    def keep(self, known: dict[Any, Made], key: Hashable, made: Made) -> None:
        """Keep what was made of a signature, and forget the oldest where there are too many."""
        with self._making:
            while len(known) >= MOST_PROGRAMS:
                del known[next(iter(known))]
            known[key] = made
