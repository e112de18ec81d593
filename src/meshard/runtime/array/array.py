"""`Array`: one logical N-D array, spread over devices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import check_order, described, integer_of, is_text, shown
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.algebra.where import Where
from meshard.errors import (
    ArgumentError,
    ConfigError,
    DeletedArrayError,
    DtypeError,
    IndexingError,
    NotAddressableError,
)
from meshard.plan.show.pictured import Drawn, Pictured
from meshard.runtime.agree import missing_boxes
from meshard.runtime.array.at import InPlace
from meshard.runtime.array.fetch import element_place, gathered, leave, picked
from meshard.runtime.array.methods import ArrayMethods
from meshard.runtime.array.numpy_protocol import spans_processes
from meshard.runtime.array.partitioned import Partitioned, partitioned
from meshard.runtime.array.show import (
    array_parts,
    array_repr,
    array_str,
    array_svg,
    array_title,
)
from meshard.runtime.callers import user_line
from meshard.runtime.memory.memory import exported
from meshard.runtime.types import ArrayType, Block, Blocks, DTypeLike, any_dtype_of
from meshard.runtime.world import here

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

_SAYS_READ_ONLY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy's DLPack form says that memory is read-only."""


@final
@dataclass(frozen=True, eq=False)
class Shard(Pictured):
    """One device's piece of an array.

    Attributes:
        device: the device.
        index: the tuple of slices that it holds of the global array.
        replica_id: its number among the devices that hold the same index, from 0.
        data: the piece as an array on that device; None where another process holds it.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((4, 2), ("x", "y")), meshard.P("x"))
    >>> third = meshard.device_put(np.arange(8), rows).addressable_shards[3]
    >>> third.device, third.index, third.replica_id, third.data.tolist()
    (CpuDevice(id=3), (slice(2, 4, None),), 1, [2, 3])
    """

    device: Device
    index: Index
    replica_id: int
    # None is the exception, in a program of several processes: for type checkers it is an array.
    data: Array = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, "
            f"data={self.data})"
        )

    def _title(self) -> str:
        spans = ", ".join(map(_span, self.index))
        return f"Shard [{spans}] on {self.device}, replica {self.replica_id}"

    def _parts(self) -> Iterator[Markup]:
        from meshard.plan.show.page import element

        data: Any = self.data
        if data is None:
            yield element("p", f"process {self.device.process_index} holds it")
        else:
            yield from data._parts()


def _span(one: slice) -> str:
    """Return a slice as it is written."""
    return ":" if one == slice(None) else f"{one.start}:{one.stop}"


class _OneArrayType(type):
    """Makes values inside a transformation instances of `Array`, for users' ``isinstance``."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, ArrayMethods)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, ArrayMethods)


@final
class Array(InPlace, ArrayMethods, Drawn, metaclass=_OneArrayType):
    """One logical N-D array, spread over devices, programmed as if it were one.

    Arrays come from `device_put`, ``make_array_from_callback``, the functions of
    ``meshard.numpy`` and from operations on other arrays; they are immutable. Replicas within one
    process share one block. ``isinstance(x, Array)`` holds for what stands for an array inside
    `jit` and `shard_map` too.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
    >>> tiles = meshard.NamedSharding(mesh, meshard.P("x", "y"))
    >>> x = meshard.device_put(np.arange(32.0).reshape(8, 4), tiles)
    >>> x.shape, x.sharding.spec, x.addressable_data(0).shape
    ((8, 4), P('x', 'y'), (2, 2))
    >>> y = x.at[0].set(1.0)  # x[0] = 1.0 is refused: arrays never change
    >>> float(x[0, 3]), float(y[0, 3]), (x + y).sharding.spec
    (3.0, 1.0, P('x', 'y'))
    """

    __slots__ = ("__weakref__", "_blocks", "_born", "_note", "_type")
    _blocks: Blocks | None

    def __init__(self, type: ArrayType, blocks: Blocks) -> None:
        self._type = type
        self._blocks = blocks
        self._born = type.owner.turn

    # what it is

    @property
    def device(self) -> Device | Sharding:
        """Where it is: its device, or for an array on several what stands for its sharding.

        It is equal to the sharding, and has its attributes. Unlike a sharding it fits any shape:
        ``device=y.device`` puts an array on y's devices, split like y as far as its shape allows.
        The devices of two arrays are equal if both are on the same devices, however they are split.

        >>> import meshard, meshard.numpy as mnp
        >>> meshard.config.update("num_devices", 8)
        >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
        >>> x = mnp.ones((8, 6), device=meshard.NamedSharding(mesh, meshard.P("x", "y")))
        >>> scale = mnp.ones(8, device=x.device)
        >>> scale.sharding.spec, scale.device == x.device, mnp.zeros((), device=x.device).shape
        (P('x',), True, ())
        """
        sharding = self._type.sharding
        order = sharding.device_order
        if len(order) == 1:
            return order[0]
        found: Any = Where(sharding)
        return found

    def devices(self) -> set[Device]:
        """Return the devices, as a set."""
        return set(self._type.sharding.device_set)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self._type.layout.replicated

    @property
    def missing(self) -> tuple[Box, ...]:
        """The boxes that are lost: no device holds them whose process takes part.

        It is the same on all processes, and empty unless a process has died. What is missing comes
        back from copies or a checkpoint, by `meshard.elastic.restore`.
        """
        return missing_boxes(here(), self._type)

    @property
    def is_complete(self) -> bool:
        """Whether every element is on a device whose process takes part."""
        return not missing_boxes(here(), self._type)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        return self._type.addressable

    # its pieces

    def _live(self) -> Blocks:
        if self._blocks is None:
            raise DeletedArrayError(
                f"Array has been deleted with shape={self._type.str_short()}. {self._note}"
            )
        return self._blocks

    def _rebind(self, found: Array) -> None:
        self._type, self._blocks, self._born = found._type, found._live(), found._born

    @property
    def addressable_shards(self) -> list[Shard]:
        """The shards of this process's devices, in the sharding's device order."""
        me = here().process_index
        return [s for s in self._shards() if s.device.process_index == me]

    @property
    def global_shards(self) -> list[Shard]:
        """The shards of all devices; ``data`` is None where another process holds it."""
        return list(self._shards())

    def _shards(self) -> Iterator[Shard]:
        kind, blocks, world = self._type, self._live(), here()
        layout = kind.layout
        indices = kind.sharding.devices_indices_map(kind.shape)
        replica: dict[Box, int] = {}
        for device in kind.sharding.device_order:
            piece = layout.piece_of[device.id]
            box = layout.box(piece)
            number = replica.get(box, 0)
            replica[box] = number + 1
            data: Any = None
            if device.process_index == world.process_index:
                block = blocks[piece]
                assert block is not None
                alone = SingleDeviceSharding(device)
                own = world.type_of(block.shape, kind.dtype, alone, kind.committed)
                data = Array(own, (block,))
            index = indices[device]
            assert index is not None
            yield Shard(device, index, number, data)

    def addressable_data(self, index: int) -> Array:
        """Return the data of one of this process's shards, as an array on its device."""
        shards = self.addressable_shards
        number = integer_of(index, "addressable_data", "index")
        if not -len(shards) <= number < len(shards):
            raise IndexingError(
                f"addressable_data: index {number} is out of range: this process holds "
                f"{len(shards)} shards."
            )
        data = shards[number].data
        assert isinstance(data, Array)
        return data

    # its life

    def is_deleted(self) -> bool:
        """Return whether the array was deleted or donated."""
        return self._blocks is None

    def delete(self) -> None:
        """Free the data now; any later use raises `DeletedArrayError`."""
        self._discard("deleted by delete()")

    def _discard(self, how: str) -> None:
        """Free the blocks; ``how`` goes into the message of any later use."""
        if self._blocks is not None:
            self._note = f"It was {how} at {user_line()}."
            self._blocks = None

    def block_until_ready(self) -> Array:
        """Return the array; its data is complete as soon as it exists."""
        self._live()
        return self

    def is_ready(self) -> bool:
        """Return True: the data is complete as soon as the array exists."""
        self._live()
        return True

    def copy_to_host_async(self) -> None:
        """Do nothing: the data is on the host."""
        self._live()

    def copy(self, order: str | None = "C") -> Array:
        """Return an equal array with the same sharding, which outlives this one's deletion."""
        check_order(order, "copy")
        return Array(self._type, self._live())

    def __reduce__(self) -> tuple[Callable[[Block], Array], tuple[Block]]:
        self._held("pickling")
        return _unpickled, (to_numpy(self, "pickling"),)

    # to NumPy and Python

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Block:
        fresh = self._type.layout.piece_count > 1
        wanted = np.dtype(dtype) if dtype is not None else self.dtype
        if copy is False and (fresh or wanted != self.dtype):
            why = (
                f"is spread over {self._type.layout.piece_count} blocks"
                if fresh
                else f"holds {self.dtype}, not {wanted}"
            )
            raise ArgumentError(
                f"This array {self._type.str_short()} {why}, and cannot become a NumPy array "
                "without a copy; leave out copy=False."
            )
        value = _read(self, "np.asarray") if fresh else to_numpy(self, "np.asarray")
        if wanted != value.dtype:
            return value.astype(wanted)
        return value.copy() if copy and not fresh else value

    def to_numpy(self, dtype: DTypeLike = None, copy: bool = False) -> Block:
        """Return the whole array as a NumPy array, as ``np.asarray(x, dtype)`` does.

        An array that is spread over several blocks is put together: the result is the caller's to
        write into. Of one block it is a read-only view, unless a copy is asked for.

        Args:
            dtype: another dtype.
            copy: whether the result must be the caller's own.

        Raises:
            NotAddressableError: if other processes hold parts of it.
            DtypeError: if the dtype is not one.

        >>> import meshard.numpy as mnp
        >>> mnp.arange(3).to_numpy("f4")
        array([0., 1., 2.], dtype=float32)
        """
        wanted = None if dtype is None else any_dtype_of(dtype, "Array.to_numpy")
        return self.__array__(wanted, copy=True if copy else None)

    @property
    def __partitioned__(self) -> Partitioned:
        """How the array is cut and who holds which part, as the protocol of this name has it.

        Raises:
            ShardingError: if its shards are not a grid.
        """
        return partitioned(self)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the whole array as a DLPack capsule, in which libraries exchange arrays.

        It is a copy, unless ``copy=False`` asks for the memory itself, which is then marked as
        read-only. Not every library respects that mark, so the caller must not write there.

        Raises:
            BufferError: if ``copy`` is False where a copy is needed.
        """
        fresh = self._type.layout.piece_count > 1
        says_so = max_version is not None and max_version >= (1, 0) and _SAYS_READ_ONLY
        if copy is False and (fresh or not says_so):
            why = (
                f"is spread over {self._type.layout.piece_count} blocks"
                if fresh
                else "is immutable, which only DLPack 1.0 and NumPy 2.1 or later can express"
            )
            raise BufferError(
                f"This array {self._type.str_short()} {why}, and can be given through DLPack "
                "only as a copy; leave out copy=False."
            )
        what = "__dlpack__"
        value = to_numpy(self, what) if copy is False else _to_keep(_read(self, what), fresh)
        if not _SAYS_READ_ONLY:
            return value.__dlpack__(stream=stream)
        return value.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self, *args: Any) -> Any:
        """Return one element as a Python scalar.

        Args:
            args: nothing, for an array of size one; the index into the flattened array; or
                an index for each dim.
        """
        blocks = self._held("item")
        place = element_place(self.shape, args)
        return picked(self._type, blocks, [(i,) for i in place]).item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python scalars."""
        return _read(self, "tolist()").tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """Return the elements' bytes, in C order by default."""
        if order is not None and not (isinstance(order, str) and order in _ORDERS):
            raise ArgumentError(
                f"tobytes: order must be 'C', 'F', 'A' or 'K', got {described(order)}."
            )
        return _read(self, "tobytes()").tobytes(order)  # type: ignore[arg-type]

    def unsafe_buffer_pointer(self) -> int:
        """Return the address of the data of an array with one shard.

        Do not write there, since arrays are immutable, and keep the array alive while reading:
        nothing checks either.

        Raises:
            ArgumentError: if it has several shards.
        """
        (block, *more), count = self._live(), self._type.sharding.num_devices
        if more or block is None or count > 1:
            raise ArgumentError(
                f"unsafe_buffer_pointer: the array has {count} shards; ask one of "
                "x.addressable_shards for its data."
            )
        return int(block.ctypes.data)

    def on_device_size_in_bytes(self) -> int:
        """Return the bytes that all devices hold, counting each replica."""
        layout, size = self._type.layout, self.itemsize
        return sum(box.volume * len(layout.holders(i)) * size for i, box in enumerate(layout.boxes))

    def _held(self, what: str) -> Blocks:
        blocks = self._live()
        if not self._type.complete:
            raise NotAddressableError(f"{what}: {spans_processes(self._type)}")
        return blocks

    def _scalar(self, kind: str) -> Any:
        if self.ndim:
            raise ArgumentError(
                f"Only arrays without dims can become a Python {kind}; the shape is {self.shape}."
            )
        return _read(self, f"{kind}()")[()]

    def __bool__(self) -> bool:
        if self.size != 1:
            advice = "x.any() or x.all()" if self.size else "x.size > 0"
            raise ArgumentError(
                f"The truth value of an array with {self.size or 'no'} elements is ambiguous: its "
                f"shape is {self.shape}. Use {advice}."
            )
        return bool(_read(self, "bool()").reshape(())[()])

    def _real(self, kind: str) -> Any:
        if self.dtype.kind == "c":
            raise DtypeError(
                f"{kind}(): a number of dtype {self.dtype} is complex. Take x.real, x.imag or "
                "abs(x) first, or complex(x)."
            )
        return self._scalar(kind)

    def __int__(self) -> int:
        return int(self._real("int"))

    def __float__(self) -> float:
        return float(self._real("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise ArgumentError(f"Only integer arrays can be an index; the dtype is {self.dtype}.")
        return int(self._scalar("index"))

    def __format__(self, spec: str) -> str:
        if self._blocks is None or not self._type.complete or (self.ndim and not spec):
            return str(self)
        value = _read(self, "format()")
        return format(value if self.ndim else value[()], spec)

    def __str__(self) -> str:
        return array_str(self._type, self._blocks)

    def __repr__(self) -> str:
        return array_repr(self._type, self._blocks)

    def _title(self) -> str:
        return array_title(self._type)

    def _svg(self) -> Markup:
        return array_svg(self._type)

    def _parts(self) -> Iterator[Markup]:
        note = self._note if self._blocks is None else ""
        return array_parts(self._type, self._blocks, note)


_ORDERS = ("C", "F", "A", "K")


def to_numpy(x: Array, what: str) -> Block:
    """Return the whole array as a read-only NumPy array; a view if there is one block.

    Such a view cannot be made writeable: it would change an immutable array. ``what`` is who asks,
    for the ledger and messages.

    Raises:
        NotAddressableError: if other processes hold parts of it.
    """
    value = _read(x, what)
    if x._type.layout.replicated:
        return exported(value)
    value.flags.writeable = False
    return value


def _read(x: Array, what: str) -> Block:
    """Return the whole array: its only block, or a copy put together from the pieces."""
    kind, blocks = x._type, x._live()
    if not kind.complete:
        raise NotAddressableError(spans_processes(kind))
    if not kind.layout.replicated:
        leave(kind, what)
        return gathered(here(), kind, blocks)
    block = blocks[0]
    assert block is not None
    return here().memory.to_host(block)


def _to_keep(value: Block, fresh: bool) -> Block:
    """Return a value that the caller may write into: itself, if nothing else refers to it."""
    if not fresh:
        return value.copy()
    value.flags.writeable = True
    return value


def _unpickled(value: Block) -> Array:
    world = here()
    alone = SingleDeviceSharding(world.local_devices[0])
    # Nothing else may refer to the block; with a pickle's own buffer it would be a view.
    block = world.memory.allocate(value.shape, value.dtype)
    world.memory.from_host(block, value)
    return Array(world.type_of(value.shape, value.dtype, alone, False), (block,))


def live_arrays(platform: str | None = None) -> list[Array]:
    """Return the arrays of this process that have not been deleted.

    Raises:
        ConfigError: if ``platform`` is not ``"cpu"``.

    >>> import meshard, meshard.numpy as mnp
    >>> x = mnp.ones(3)
    >>> any(y is x for y in meshard.live_arrays())
    True
    >>> x.delete()
    >>> any(y is x for y in meshard.live_arrays())
    False
    """
    if platform is not None and not is_text(platform, "cpu"):
        raise ConfigError(f"live_arrays: there is no platform {shown(platform)}; use 'cpu'.")
    mark = here().mark
    return [
        x
        for x in gc.get_objects()
        # Another thread may be making one: it has no blocks yet.
        if type(x) is Array and getattr(x, "_blocks", None) is not None and x._type.owner is mark
    ]
