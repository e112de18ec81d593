"""The trace of a jitted function: its program, and how arguments and results are laid out.

In: the function, and the types of its arguments. Out: a `Trace`, from which programs are lowered
for every layout of such arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.sharding import NamedSharding
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    IndivisibleError,
    MeshardError,
    ShardingError,
    SpecError,
    TreeError,
)
from meshard.ops.engine.eager import WEAK
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced as TracedValue
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import as_array, as_sharding, check_devices_exist, home
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.program.program import Kind, Program, Var
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.arguments import Arguments, JitOptions, Statics
from meshard.transforms.tracing.tracing import Typed, traced, unplaced_type


@final
@dataclass(frozen=True, slots=True)
class Trace:
    """A traced function.

    Attributes:
        name: the function's name.
        what: how messages call it.
        program: its operations.
        captured: the arrays that it closes over.
        in_tree: the tree of ``(args, kwargs)`` without static arguments.
        out_tree: the tree of the results.
        told: what messages call each argument.
        in_shardings: for each argument the sharding that it must have, if one is given.
        out_shardings: for each result the same.
        donated: for each argument whether it is given up; empty if none is.
        used: the numbers of the arguments that matter: those that the program reads, or all.
    """

    name: str
    what: str
    program: Program
    captured: tuple[Array, ...]
    in_tree: Any
    out_tree: Any
    told: tuple[str, ...]
    in_shardings: tuple[Sharding | None, ...]
    out_shardings: tuple[Sharding | None, ...]
    donated: tuple[bool, ...]
    used: frozenset[int]


class ArrayHolder(ABC):
    """A value that is not an `Array` and holds one: what jit takes as an argument besides arrays.

    Kinds of arrays of the floors above derive from it.
    """

    __slots__ = ()

    @abstractmethod
    def to_array(self) -> Array:
        """Return the array that it holds."""


def array_of(x: Any, dtype: Any = None) -> Array:
    """Return a value as an array."""
    found: Array = x.to_array() if isinstance(x, ArrayHolder) else as_array(x, dtype)
    return found


def accepted(
    arguments: Arguments, statics: Statics | None, tree: Any, number: int, x: Any, what: str
) -> Array:
    """Return an argument as an array.

    Raises:
        ArgumentError: if it is not one.
        ConcretizationError: if it is a value of a transformation that has ended.
    """
    if isinstance(x, TracedValue):
        raise ConcretizationError(f"{what}: {x._stray()}")
    if isinstance(x, ArrayHolder):
        return x.to_array()
    try:
        found: Array = as_array(x)
        return found
    except (MeshardError, TypeError, ValueError) as error:
        paths = tree.paths()
        name = arguments.told(paths[number], statics)
        raise ArgumentError(
            f"{what}: argument {name} is {_brief(x)} of type {type(x).__name__}, which is "
            "neither an array nor a number. If it is to be part of the program, name it in "
            "static_argnums or static_argnames."
        ) from error


def _brief(x: object) -> str:
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "..."


@final
@dataclass(frozen=True, slots=True)
class Called:
    """What a jitted function is called with.

    Attributes:
        args: the arguments by position, without the static ones.
        kwargs: those by name, likewise.
        statics: the static ones; None if there are none.
        kinds: what each leaf is.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    statics: Statics | None
    kinds: Sequence[Kind]


def trace_of(
    world: RuntimeWorld,
    f: Callable[..., Any],
    name: str,
    arguments: Arguments,
    options: JitOptions,
    called: Called,
) -> Trace:
    """Trace a function for arguments of some types.

    Args:
        world: whose devices are used.
        f: the function.
        name: what messages call it.
        arguments: which of its arguments are static, and which are given up.
        options: what `jit` was told.
        called: what it is called with.

    Raises:
        ArgumentError: if a result is not an array or a number, or keywords meet ``in_shardings``.
        TreeError: if a tree of shardings is not a prefix.
        ShardingError: if a spec is bare where no mesh is set.
    """
    what, statics = f"jit of {name!r}", called.statics
    tree: Any = trees.structure((called.args, called.kwargs))
    told = tuple([arguments.told(path, statics) for path in tree.paths()])
    wanted = _wanted_inputs(
        what, options.in_shardings, called.args, called.kwargs, len(called.kinds)
    )
    types: list[Typed] = []
    for kind in called.kinds:
        if isinstance(kind, ArrayType):
            types.append((world.type_of(kind.shape, kind.dtype, home(world), False), None))
        else:
            types.append((unplaced_type(world, as_array(kind(0))), kind))

    def flat(*leaves: Any) -> tuple[list[Any], Any]:
        own, named = trees.unflatten(tree, leaves)
        every, names = arguments.with_statics(own, named, statics)
        result = f(*every, **names)
        found, structure = results_of(what, result)
        return found, (structure, _wanted(what, "out_shardings", options.out_shardings, result))

    origins = [f"the argument {t}" for t in told]
    program, captured, (out_tree, out) = traced(name, flat, types, origins)
    program, kept = simplified(program)
    return Trace(
        name,
        what,
        program,
        tuple([captured[i] for i in kept]),
        tree,
        out_tree,
        told,
        wanted,
        out,
        arguments.donated(called.args, called.kwargs, statics),
        frozenset(range(len(called.kinds))) if options.keep_unused else read_arguments(program),
    )


def results_of(what: str, result: Any) -> tuple[list[Any], Any]:
    """Return the leaves of what a function returned, and their tree.

    Raises:
        ArgumentError: if one is not an array, nor a number.
    """
    found, structure = trees.flatten(result)
    for path, x in zip(structure.paths(), found, strict=True):
        if type(x) in WEAK or isinstance(x, (Array, TracedValue)):
            continue
        try:
            as_array(x)
        except (MeshardError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"{what}: the result{''.join(f'[{k!r}]' for k in path)} is {_brief(x)} of type "
                f"{type(x).__name__}, which is not an array or a number. A jitted function "
                "returns trees of arrays; None is an empty tree."
            ) from error
    return found, structure


def read_arguments(program: Program) -> frozenset[int]:
    """Return the numbers of the arguments that a program reads or returns."""
    atoms = {x for eqn in program.eqns for x in eqn.inputs if isinstance(x, Var)}
    atoms |= {x for x in program.outputs if isinstance(x, Var)}
    return frozenset([i for i, x in enumerate(program.inputs) if x in atoms])


def _wanted_inputs(
    what: str, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> tuple[Sharding | None, ...]:
    if given is None:
        return (None,) * count
    if kwargs:
        raise ArgumentError(
            f"{what}: in_shardings go by position, and the keyword argument "
            f"{next(iter(kwargs))!r} has none; jit does not support keyword arguments where "
            "in_shardings is given. Pass it by position."
        )
    if type(given) is tuple and len(given) != len(args):
        raise TreeError(
            f"{what}: in_shardings must be a tree prefix of the tuple of positional arguments: it "
            f"is a tuple of length {len(given)}, but there are {len(args)} arguments. Give one "
            "sharding for all, or one for each."
        )
    return _wanted(what, "in_shardings", given, args)


def _wanted(what: str, name: str, given: Any, tree: Any) -> tuple[Sharding | None, ...]:
    """Return for each leaf of a tree the sharding that is wanted."""
    if given is None:
        return (None,) * len(trees.leaves(tree))
    every = prefix_leaves(given, tree, what, name)
    with_none, _ = trees.flatten_with_none(tree)
    chosen = [s for s, x in zip(every, with_none, strict=True) if x is not None]
    return tuple([said_sharding(s, f"{what}: {name}") for s in chosen])


def said_sharding(given: Any, what: str) -> Sharding | None:
    """Return a sharding of ``in_shardings`` or ``out_shardings``; None where nothing is said.

    Raises:
        SpecError: if it leaves a dim unconstrained.
    """
    found = as_sharding(given, what)
    if isinstance(found, NamedSharding) and found.spec.unconstrained:
        raise SpecError(
            f"{what}: {found!r} leaves dim {found.spec.unconstrained[0]} unconstrained, which only "
            "with_sharding_constraint can do. Give None to leave the whole array as it comes, or "
            "constrain it inside the function."
        )
    return found


def placed_kind(
    world: RuntimeWorld, what: str, told: str, type_: ArrayType, sharding: Sharding, inward: bool
) -> ArrayType:
    """Return the type of an argument or result that is laid out as it must be.

    Raises:
        IndivisibleError: if a dim does not divide.
        ShardingError: if an argument is committed to another sharding, or a device does not exist.
    """
    check_devices_exist(world, sharding, f"{what}: {told}")
    _check_divides(what, told, type_, sharding, inward)
    if inward and type_.committed:
        same = type_.sharding.is_equivalent_to(sharding, type_.ndim)
        if not same:
            raise ShardingError(
                f"{what}: argument {told}, {type_.str_short()}, is committed to "
                f"{type_.sharding!r}, which does not match its in_shardings, {sharding!r}. Move it "
                "first with meshard.device_put(x, sharding), or leave out in_shardings to use it "
                "where it is."
            )
        return type_
    return world.type_of(type_.shape, type_.dtype, sharding, True)


def _check_divides(
    what: str, told: str, type_: ArrayType, sharding: Sharding, inward: bool
) -> None:
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > type_.ndim:
        one = "argument" if inward else "the"
        raise SpecError(
            f"{what}: {one} {told}, {type_.str_short()}, was given the sharding {sharding!r}, "
            f"which is only valid for arrays of rank at least {len(sharding.spec)}, but its rank "
            f"is {type_.ndim}. Remove entries from the spec"
            + ("; that of a scalar is P()." if not type_.ndim else ".")
        )
    if not isinstance(sharding, NamedSharding) or sharding.uneven is not None:
        sharding.layout(type_.shape)
        return
    if len(sharding.spec) <= type_.ndim:
        for dim, axes in enumerate(sharding.spec.axes(type_.ndim)):
            count = 1
            for axis in axes:
                count *= sharding.mesh.shape[axis]
            size = type_.shape[dim]
            if size % count:
                one = "One of the arguments" if inward else "One of the results"
                more = (
                    " Arguments of jit are global arrays, not the local part of each process: "
                    "make one from local data with meshard.make_array_from_process_local_data."
                    if inward
                    else ""
                )
                raise IndivisibleError(
                    f"{what}: {one}, {told} of type {type_.str_short()}, was "
                    f"given the sharding {sharding!r}, which implies that the global size of its "
                    f"dimension {dim} should be divisible by {count}, but it is equal to {size} "
                    f"(full shape: {type_.shape}). Pad the dim by {-size % count}, or ask for "
                    f"uneven shards with NamedSharding(mesh, spec, uneven='balanced').{more}"
                )
    sharding.layout(type_.shape)
