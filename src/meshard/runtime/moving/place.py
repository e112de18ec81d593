"""Placement: from host values and other layouts to arrays.

In: a NumPy value, a callback, or an array; a sharding. Out: an `Array` whose blocks this process's
devices share. Nothing here gathers: each piece is filled from the boxes that overlap it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from types import NoneType
from typing import Any

import ml_dtypes
import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import described, is_text, shown
from meshard.algebra.device import Device
from meshard.algebra.mesh import AbstractMesh, Mesh, ambient_mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding, Unplaced
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.where import Where
from meshard.algebra.world import process_default_device
from meshard.errors import (
    ArgumentError,
    DtypeError,
    IndivisibleError,
    MeshardError,
    OutOfRangeError,
    ShapeError,
    ShardingError,
)
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Move, Wire, move_wire
from meshard.runtime.agree import agree
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.memory.ownership import handed_over
from meshard.runtime.moving.execute import RoutedMove, route_between, run_part, run_routes
from meshard.runtime.moving.readers import FileSource, file_source, reader_of
from meshard.runtime.settings import DEFAULT_FLOAT
from meshard.runtime.types import KEY, ArrayType, Block, Blocks, any_dtype_of
from meshard.runtime.watching.ledger import wired
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld, here, memoized
from meshard.tuning import COPY_CHUNK, LARGE, MOST_SHARDINGS, STACKED_CELLS

_default_device: ContextVar[Device | None] = ContextVar("meshard_default_device", default=None)
GLOBAL = (
    "In a program of several processes values are global arrays, not the local part of each: make "
    "one from local data with meshard.make_array_from_process_local_data."
)
"""What is said where a host-local array may have been passed as a global one."""


def default_device(device: Device | str | None) -> AbstractContextManager[None]:
    """Make new arrays on ``device`` within a ``with`` statement.

    Outside of such statements, ``meshard.config.update("default_device", device)`` sets it for
    good; without that, new arrays are made on this process's first device.

    Args:
        device: a device of this process; ``"cpu"`` for the first one; None for the default outside
            of every ``with`` statement.

    Raises:
        ArgumentError: if it is not a device of this process.

    >>> import meshard
    >>> with meshard.default_device(meshard.local_devices()[-1]):
    ...     x = meshard.numpy.zeros(3)
    >>> x.device == meshard.local_devices()[-1]
    True
    """
    local = here().local_devices
    chosen = local[0] if is_text(device, "cpu") else device
    if chosen is not None and (not isinstance(chosen, Device) or chosen not in local):
        raise ArgumentError(
            f"default_device: {shown(device)} is not a device of this process, which has "
            f"{local[0]!r} to {local[-1]!r}; 'cpu' means the first."
        )
    return _new_arrays_on(chosen)


@contextlib.contextmanager
def _new_arrays_on(device: Device | None) -> Iterator[None]:
    token = _default_device.set(device)
    try:
        yield
    finally:
        _default_device.reset(token)


def chosen_device() -> Device | None:
    """Return the device that a ``with default_device(...)`` around the code says, or None."""
    return _default_device.get()


def home(world: RuntimeWorld) -> SingleDeviceSharding:
    """Return the sharding of new arrays that were not placed."""
    device = _default_device.get() or process_default_device()
    if device is None or device not in world.local_devices:
        device = world.local_devices[0]
    known = world.homes
    if device not in known:
        known[device] = SingleDeviceSharding(device)
    return known[device]


def checked_dtype(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return the dtype in native byte order if arrays can have it.

    Raises:
        DtypeError: if it is a dtype of objects, strings, dates or records.
    """
    small = dtype.type.__module__.startswith(ml_dtypes.__name__)
    if dtype.kind not in "biufc" and not small and dtype != KEY:
        raise DtypeError(
            f"{what}: dtype {dtype} is not a numeric dtype: arrays hold bool, integers, floats, "
            "complex numbers and the small floats of ml_dtypes."
        )
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def dtype_of(given: Any, what: str, name: str = "dtype") -> np.dtype[Any]:
    """Return the dtype that is meant, if arrays can have it.

    Raises:
        DtypeError: if it is not a dtype, or not a numeric one.
    """
    return checked_dtype(any_dtype_of(given, what, name), what)


def as_host(x: Any, what: str = "array", dtype: Any = None) -> Block:
    """Return any array-like as a NumPy array of a dtype that arrays can have.

    Python floats, alone or in lists, take the default float.

    Raises:
        DtypeError: if its elements are not numbers.
        ShapeError: if nested lists differ in length.
    """
    typed = isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__")
    value = _as_numpy(x, what, dtype)
    plain = not typed and dtype is None
    if plain and value.dtype.kind in "fc" and DEFAULT_FLOAT.value == "float32":
        value = value.astype(np.float32 if value.dtype.kind == "f" else np.complex64)
    if value.dtype == object:
        if value.size and all(isinstance(v, int) for v in value.flat):
            raise OutOfRangeError(
                f"{what}: {shown(x)} does not fit into integers of 64 bits; write floats."
            )
        raise DtypeError(
            f"{what}: expected an array, a number or nested lists of numbers, got {described(x)}."
        )
    wanted = checked_dtype(value.dtype, what)
    return value if wanted == value.dtype and value.dtype.isnative else value.astype(wanted)


def _as_numpy(x: Any, what: str, dtype: Any) -> Block:
    """Return any array-like as NumPy converts it, or refuse it."""
    try:
        if hasattr(type(x), "__array__") and (reader := reader_of(type(x))) is not None:
            x = reader(x, what)
        return np.asarray(x._concrete(what) if isinstance(x, Traced) else x, dtype)
    except MeshardError:
        raise
    except OverflowError as error:
        raise OutOfRangeError(
            f"{what}: {described(x)} cannot become an array of {dtype or 'integers'}: {error}."
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        refusal = ShapeError if "inhomogeneous" in str(error) else DtypeError
        raise refusal(f"{what}: {described(x)} cannot become an array: {error}") from error


def as_array(x: Any, dtype: Any = None, *, fresh: bool = False) -> Any:
    """Return an array-like as an array on the default device, uncommitted.

    Values of a transformation are left as they are.

    ``fresh`` means that nothing else refers to the value, so that its memory may become the block.
    """
    if type(x) is Array and (dtype is None or x.dtype == dtype):
        return x
    if isinstance(x, Traced):
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)
    if hasattr(x, "__jax_array__"):
        return as_array(x.__jax_array__(), dtype)
    world = here()
    value = as_host(x, "array", dtype)
    if not fresh:
        value = _copied(world, value)
    return Array(world.type_of(value.shape, value.dtype, home(world), False), (value,))


def filling(x: Any, dtype: Any, what: str) -> Any:
    """Return an array-like that goes into an array of a dtype; arrays are cast to it.

    Raises:
        OutOfRangeError: if a Python integer does not fit into the dtype.
        DtypeError: if a Python number cannot be one of the dtype, such as NaN among integers.
    """
    if hasattr(x, "dtype"):
        return as_array(x).astype(dtype, copy=False)
    return as_array(as_host(x, what, dtype), fresh=True)


def _copied(world: RuntimeWorld, value: Block) -> Block:
    target = world.memory.allocate(value.shape, value.dtype)
    _run_copies(world, [(target, value)])
    return target


def _run_copies(world: RuntimeWorld, copies: list[tuple[Block, Block]]) -> None:
    """Copy each second array into the first; large ones in parts, on the workers."""
    bring = world.memory.from_host
    if sum(t.nbytes for t, _ in copies) < LARGE:
        for target, value in copies:
            bring(target, value)
        return
    tasks = []
    for target, value in copies:
        rows = target.shape[0] if target.ndim else 1
        parts = min(rows, max(1, target.nbytes // COPY_CHUNK))
        for i in range(parts):
            if parts == 1:
                tasks.append(partial(bring, target, value))
            else:
                rows_i = slice(rows * i // parts, rows * (i + 1) // parts)
                tasks.append(partial(bring, target[rows_i], value[rows_i]))
    world.workers.run(tasks)


def as_sharding(given: Any, what: str, shape: tuple[int, ...] | None = None) -> Sharding | None:
    """Return the sharding that a placement argument means; None for None.

    Args:
        given: the argument.
        what: the function, for messages.
        shape: the shape of the array, where ``x.device`` of another array may be given: the
            sharding is then one that fits the shape. Otherwise it is the other array's.

    Raises:
        ArgumentError: if it is not a device, sharding or spec.
        ShardingError: if it is a spec and no mesh is set.
    """
    if type(given) is Where:
        return given.exact if shape is None else given.fitting(shape)
    if isinstance(given, NamedSharding) and isinstance(given.mesh, AbstractMesh):
        return given.on_mesh(given.mesh.concrete(what))
    if isinstance(given, (Sharding, NoneType)):
        return None if type(given) is Unplaced else given
    if isinstance(given, Device):
        return SingleDeviceSharding(given)
    if isinstance(given, PartitionSpec):
        mesh = ambient_mesh()
        if mesh is None:
            raise ShardingError(
                f"{what}: the bare spec {given} needs a mesh, and none is set. Write "
                f"NamedSharding(mesh, {given}), or call it within `with mesh:`."
            )
        return NamedSharding(mesh, given)
    way = ""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 31:
        way = f" A device by its number is meshard.devices()[{given}]."
    if isinstance(given, str):
        way = " A device is one of meshard.devices(), such as meshard.devices()[0]."
    if isinstance(given, Mesh):
        way = f" A mesh needs a spec as well: NamedSharding(mesh, P({given.axis_names[0]!r}))."
    raise ArgumentError(
        f"{what}: expected a Sharding, a Device, a spec or None, got {described(given)}.{way}"
    )


def is_function(given: Any) -> bool:
    """Whether a placement argument is a function that chooses shardings.

    Meshes and shardings may be callable too: with a mesh one can decorate a function.
    """
    return callable(given) and not isinstance(given, (Sharding, Mesh))


def check_devices_exist(world: RuntimeWorld, sharding: Sharding, what: str) -> None:
    """Refuse a sharding with devices that no process has."""
    if sharding in world.known_shardings:
        return
    missing = [d for d in sharding.device_order if d not in world.device_set]
    gone = [d for d in missing if d in world.everything]
    if gone:
        owner = gone[0].process_index
        raise ShardingError(
            f"{what}: {gone[0]!r} of {sharding!r} belongs to process {owner}, which does not take "
            f"part; there are {len(world.devices)} devices. meshard.elastic.mesh makes a mesh of "
            "these."
        )
    if missing:
        raise ShardingError(
            f"{what}: {missing[0]!r} of {sharding!r} does not exist here; there are "
            f"{len(world.devices)} devices. A plan can be made for devices that do not exist, an "
            "array cannot."
        )
    if len(world.known_shardings) > MOST_SHARDINGS:
        world.known_shardings.clear()
    world.known_shardings.add(sharding)


def placed(
    x: Any, sharding: Sharding | None, *, donate: bool = False, what: str = "device_put"
) -> Array:
    """Return a value or array committed to ``sharding``; None leaves it as it is.

    Raises:
        ShardingError: if the shape cannot be laid out so, or a device does not exist.
        DeletedArrayError: if the array was deleted.
        BudgetError: if an array's move exceeds a budget; ``what`` is its name in the message.
        ConcretizationError: if it is inside a transformation.
    """
    if sharding is None or isinstance(x, Traced):
        found: Array = as_array(x) if sharding is None else x._placed(sharding, what)
        return found
    world = here()
    check_devices_exist(world, sharding, what)
    if world.profiles:
        with timed(world, what, "move") as ran_on:
            ran_on([sharding])
            return _placed(world, x, sharding, donate, what)
    return _placed(world, x, sharding, donate, what)


def moved_to(x: Any, device: Any, what: str) -> Any:
    """Return an array placed as ``device=`` says.

    If that is ``x.device`` of another array, an array that is on these devices stays as it is, and
    so does a value in a transformation, which decides where it is.
    """
    if device is None:
        return x
    if type(device) is Where:
        there = type(x) is Array and x.committed and Where(x.sharding) == device
        if there or isinstance(x, Traced):
            return x
    return placed(x, as_sharding(device, what, x.shape), what=what)


def _placed(world: RuntimeWorld, x: Any, sharding: Sharding, donate: bool, what: str) -> Array:
    # Every process has its own copy of an uncommitted array, so nothing is sent. A
    # committed one is where it is, also for the processes that hold none of it.
    if type(x) is Array and (x.committed or not spans(world, sharding)):
        type_ = world.type_of(x.shape, x.dtype, sharding, True)
        result = resharded(world, x, type_, what)
        if donate:
            x._discard("donated to device_put")
        return result
    # A memory map in this machine's byte order is copied like any value in memory.
    mapped = isinstance(x, np.ndarray) and x.dtype.isnative
    value = (None if mapped else file_source(x)) or as_host(x, what)
    dtype = checked_dtype(value.dtype, what)
    try:
        type_ = world.type_of(value.shape, dtype, sharding, True)
    except IndivisibleError as error:
        if not spans(world, sharding):
            raise
        raise IndivisibleError(f"{what}: {error} {GLOBAL}") from error
    agree(world, what, (), (type_,))
    if isinstance(value, FileSource):
        return Array(type_, _read_blocks(world, type_, value))
    blocks = _many_blocks(world, type_, value) or _blocks(world, type_, value)
    if donate and type(x) is Array:
        x._discard("donated to device_put")
    return Array(type_, blocks)


def _blocks(world: RuntimeWorld, type_: ArrayType, value: Block) -> Blocks:
    """Return the pieces of a value that this process holds, copied one by one."""
    blocks: list[Block | None] = [None] * type_.layout.piece_count
    copies = []
    for piece in type_.local:
        box = type_.layout.box(piece)
        block = world.memory.allocate(box.shape, type_.dtype)
        copies.append((block, value[box.slices]))
        blocks[piece] = block
    _run_copies(world, copies)
    return tuple(blocks)


def _read_blocks(world: RuntimeWorld, type_: ArrayType, file: FileSource) -> Blocks:
    """Return the pieces of an array in a file that this process holds; nothing else is read."""
    blocks: list[Block | None] = [None] * type_.layout.piece_count
    for piece in type_.local:
        box = type_.layout.box(piece)
        block = blocks[piece] = world.memory.allocate(box.shape, type_.dtype)
        file.read(box, block)
    return tuple(blocks)


def _many_blocks(world: RuntimeWorld, type_: ArrayType, value: Block) -> Blocks | None:
    """Return many small pieces of a value, copied at once into one buffer; None where it has few.

    All of the buffer lives as long as one piece of it does.
    """
    count = type_.layout.piece_count
    if count < STACKED_CELLS or not type_.complete or not 0 < value.nbytes < LARGE:
        return None
    view = type_.layout.by_piece(value)
    if view is None:
        return None
    stack = world.memory.allocate((count, *view.shape[value.ndim :]), type_.dtype)
    world.memory.from_host(stack.reshape(view.shape), view)
    return tuple(stack)


def spans(world: RuntimeWorld, sharding: Sharding) -> bool:
    """Whether a sharding has devices of other processes."""
    me = world.process_index
    return any(d.process_index != me for d in sharding.device_order)


def resharded(world: RuntimeWorld, x: Array, type_: ArrayType, what: str = "device_put") -> Array:
    """Return an array in the layout of another type of the same shape and dtype.

    Raises:
        BudgetError: if this exceeds a budget; ``what`` is its name in the message.
    """
    source, blocks = x._type, x._live()
    agree(world, what, (), (source, type_))
    if source.layout == type_.layout:
        return Array(type_, blocks)
    if world.ledgers:
        wired(world, what, wires_between(world, source, type_))
    route = route_between(world, source, type_)
    if route is not None:
        (blocks,) = run_routes(world, [RoutedMove(route, blocks, type_)])
        return Array(type_, blocks)
    part = part_between(world, source, type_)
    return Array(type_, run_part(world, part, (blocks,), type_.dtype))


Alive = frozenset[int] | None
"""The ids of the devices that still hold their part of an array; None for all."""


@memoized(most=1 << 13)
def part_between(world: RuntimeWorld, source: ArrayType, type_: ArrayType) -> Part:
    """Return what this process does to bring an array of one type into the layout of another."""
    return part_from(world, source, type_, None)


def part_from(world: RuntimeWorld, source: ArrayType, type_: ArrayType, alive: Alive) -> Part:
    """Return the same, where only some devices still hold their part of the array."""
    processes = world.process_map(type_.sharding)
    if processes is not None:
        processes = {**processes, **(world.process_map(source.sharding) or {})}
    sources, me = [Source(source.layout, alive=alive)], world.process_index
    return assemble(type_.layout, sources, processes, me, world.sharing)


@memoized(most=1 << 13)
def wires_between(
    world: RuntimeWorld, source: ArrayType, type_: ArrayType
) -> tuple[()] | tuple[Wire]:
    """Return the communications that bring an array into another type's layout: one or none."""
    if source.unplaced or source.layout == type_.layout:
        return ()
    return wires_from(source, type_, None)


def wires_from(source: ArrayType, type_: ArrayType, alive: Alive) -> tuple[Wire]:
    """Return the same for other layouts, where only some devices still hold their part."""
    from_ = (source.sharding,), type_.layout, (Source(source.layout, alive=alive),)
    move = Move(type_.sharding, *from_, type_.dtype.itemsize)
    return (move_wire(source.str_short(), move),)


def filled(world: RuntimeWorld, type_: ArrayType, values: Callable[[int], Any], what: str) -> Array:
    """Agree to make an array, and return it; see `made_of`."""
    agree(world, what, (), (type_,))
    return made_of(world, type_, values, what)


def made_of(
    world: RuntimeWorld, type_: ArrayType, values: Callable[[int], Any], what: str
) -> Array:
    """Return an array whose local pieces are those that ``values(piece)`` returns.

    The processes have agreed to make it.

    Raises:
        ShardingError: if a value has another shape or dtype than its piece; the index is named.
    """
    blocks: list[Block | None] = [None] * type_.layout.piece_count
    copies = []
    for piece in type_.local:
        value = values(piece)
        box = type_.layout.box(piece)
        if value.shape != box.shape:
            raise ShardingError(
                f"{what}: expected shard shape {box.shape} for index {box}, but got "
                f"{value.shape}. The array is {type_.str_short()} with sharding {type_.sharding!r}."
            )
        if value.dtype != type_.dtype:
            raise ShardingError(
                f"{what}: expected dtype {type_.dtype} for index {box}, but got {value.dtype}. "
                "All pieces of an array have one dtype; pass dtype= to convert them."
            )
        if not handed_over(value):
            block = world.memory.allocate(box.shape, type_.dtype)
            copies.append((block, value))
            value = block
        blocks[piece] = value
    _run_copies(world, copies)
    return Array(type_, tuple(blocks))
