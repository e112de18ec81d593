"""`Array`: one logical N-D array, spread over devices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.box import Index
from meshard.algebra.sharding import Sharding, SingleDeviceSharding
from meshard.algebra.world import Device
from meshard.errors import ArgumentError, DeletedArrayError, NotAddressableError

from .execute import LARGE
from .methods import ArrayMethods
from .types import ArrayType, Block, Blocks
from .world import RuntimeWorld, here

__all__ = ["Array", "Shard", "live_arrays", "to_numpy"]


@final
@dataclass(frozen=True)
class Shard:
    """One device's piece of an array.

    Attributes:
        device: the device.
        index: the tuple of slices that it holds of the global array.
        replica_id: its number among the devices that hold the same index, from 0.
        data: the piece as an array on that device; None where another process holds it.
    """

    device: Device
    index: Index
    replica_id: int
    data: Any = None


@final
class Array(ArrayMethods):
    """One logical N-D array, spread over devices, programmed as if it were one.

    Arrays come from `device_put`, ``make_array_from_callback``, the functions of
    ``meshard.numpy`` and from operations on other arrays; they are immutable. Replicas within one
    process share one block.
    """

    __slots__ = ("__weakref__", "_blocks", "_note", "_type")
    _blocks: Blocks | None

    def __init__(self, type: ArrayType, blocks: Blocks) -> None:
        self._type = type
        self._blocks = blocks

    # what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self._type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return self._type.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self._type.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._type.size

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, replicas not counted."""
        return self._type.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._type.dtype.itemsize

    @property
    def sharding(self) -> Sharding:
        """How the array lies on devices."""
        return self._type.sharding

    @property
    def committed(self) -> bool:
        """Whether it was placed by the user, so that operations must follow it."""
        return self._type.committed

    @property
    def aval(self) -> ArrayType:
        """All that is known of the array but its data."""
        return self._type

    @property
    def weak_type(self) -> bool:
        """Always False: only Python scalars are weak."""
        return False

    @property
    def device(self) -> Device | Sharding:
        """The device of an array that lives on one; the sharding of another."""
        order = self._type.sharding.device_order
        return order[0] if len(order) == 1 else self._type.sharding

    def devices(self) -> set[Device]:
        """Return the devices, as a set."""
        return set(self._type.sharding.device_set)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self._type.sharding.is_fully_replicated

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
        replica: dict[int, int] = {}
        for device in kind.sharding.device_order:
            piece = layout.piece_of[device.id]
            number = replica.get(piece, 0)
            replica[piece] = number + 1
            data = None
            if device.process_index == world.process_index:
                block = blocks[piece]
                assert block is not None
                alone = SingleDeviceSharding(device)
                data = Array(world.type_of(block.shape, kind.dtype, alone, True), (block,))
            index = indices[device]
            assert index is not None
            yield Shard(device, index, number, data)

    def addressable_data(self, index: int) -> Array:
        """Return the data of one of this process's shards, as an array on its device."""
        shards = self.addressable_shards
        if not -len(shards) <= index < len(shards):
            raise IndexError(f"addressable_data({index}): this process holds {len(shards)} shards.")
        data = shards[index].data
        assert isinstance(data, Array)
        return data

    # its life

    def is_deleted(self) -> bool:
        """Return whether the array was deleted or donated."""
        return self._blocks is None

    def delete(self) -> None:
        """Let go of the data now; any later use says so."""
        self._discard("It was deleted by delete().")

    def _discard(self, note: str) -> None:
        if self._blocks is not None:
            self._blocks = None
            self._note = note

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

    def copy(self) -> Array:
        """Return an equal array with the same sharding, which outlives this one's deletion."""
        return Array(self._type, self._live())

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.copy()

    def __reduce__(self) -> tuple[Callable[[Block], Array], tuple[Block]]:
        return _unpickled, (np.array(to_numpy(self)),)

    # to NumPy and Python

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Block:
        value = to_numpy(self)
        fresh = len(self._live()) > 1
        wanted = np.dtype(dtype) if dtype is not None else value.dtype
        if copy is False and (fresh or wanted != value.dtype):
            raise ValueError(
                f"An array spread over {len(self._live())} blocks cannot become one NumPy array "
                "without a copy; leave out copy=False."
            )
        if wanted != value.dtype:
            return value.astype(wanted)
        return value.copy() if copy and not fresh else value

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        value = self.__array__()
        if len(self._live()) > 1 and copy is False:
            raise BufferError("An array spread over several blocks has no DLPack form but a copy.")
        if copy or max_version is None or max_version < (1, 0):
            return value.copy().__dlpack__()
        return value.__dlpack__(max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self, *args: int) -> Any:
        """Return one element as a Python scalar."""
        return to_numpy(self).item(*args)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python scalars."""
        return to_numpy(self).tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """Return the elements' bytes, in C order by default."""
        return to_numpy(self).tobytes(order)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dims")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def _scalar(self, kind: str) -> Any:
        if self.size != 1 or (kind != "bool" and self.ndim):
            if kind == "bool":
                raise ValueError(
                    "The truth value of an array with other than one element is ambiguous. "
                    f"Use x.any() or x.all(); the shape is {self.shape}."
                )
            raise TypeError(
                f"Only arrays without dims can become a Python {kind}; the shape is {self.shape}."
            )
        return to_numpy(self).reshape(())[()]

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"Only integer arrays can be an index; the dtype is {self.dtype}.")
        return int(self._scalar("index"))

    def __format__(self, spec: str) -> str:
        return format(to_numpy(self)[()] if not self.shape else self, spec) if spec else str(self)

    def __str__(self) -> str:
        return str(to_numpy(self)) if self._readable() else repr(self)

    def _readable(self) -> bool:
        return self._blocks is not None and (self.is_fully_addressable or self.is_fully_replicated)

    def __repr__(self) -> str:
        kind = self._type
        if self._blocks is None:
            return f"Array(shape={kind.shape}, dtype={kind.dtype.name}, deleted)"
        if not self._readable():
            return self._local_repr()
        if not kind.size:
            return f"Array([], shape={kind.shape}, dtype={kind.dtype.name})"
        width = int(np.get_printoptions()["linewidth"])
        text = np.array2string(
            to_numpy(self), prefix="Array(", suffix=",", separator=", ", max_line_width=width
        )
        dtype = f"dtype={kind.dtype.name})"
        last = len(text) - (text.rfind("\n") + 1) + (0 if "\n" in text else len("Array("))
        gap = "\n" + " " * len("Array(") if last + len(dtype) + 2 > width else " "
        return f"Array({text},{gap}{dtype}"

    def _local_repr(self) -> str:
        """Show what this process holds, labelled as such, without communication."""
        kind = self._type
        lines = [f"Array(shape={kind.shape}, dtype={kind.dtype.name}, sharding={kind.sharding!r})"]
        for piece in kind.local:
            block = self._live()[piece]
            ids = ", ".join(map(str, kind.layout.holders(piece)))
            text = np.array2string(np.asarray(block), prefix="  ", threshold=20)
            lines.append(f"  {kind.layout.box(piece)} on devices {ids}:\n  {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from meshard.plan.svg import sharding_svg

        kind = self._type
        return sharding_svg(kind.shape, kind.sharding, dtype=kind.dtype.name)


def to_numpy(x: Array) -> Block:
    """Return the whole array as a read-only NumPy array; of one block it is a view.

    Raises:
        NotAddressableError: if other processes hold parts of it.
    """
    kind, blocks = x._type, x._live()
    if kind.layout.replicated and blocks[0] is not None:
        value = blocks[0].view()
    elif not kind.addressable:
        raise NotAddressableError(
            f"This array {kind.str_short()} spans processes: process "
            f"{here().process_index} holds {len(kind.local)} of its {len(blocks)} pieces, and "
            "cannot show the whole. Fetch it on every process with "
            "meshard.multihost_utils.process_allgather(x), or look at x.addressable_shards."
        )
    else:
        value = gathered(here(), kind, blocks)
    value.flags.writeable = False
    return value


def gathered(world: RuntimeWorld, kind: ArrayType, blocks: Blocks) -> Block:
    """Copy all pieces into one fresh NumPy array."""
    value = world.pages.empty(kind.shape, kind.dtype)
    tasks = []
    for piece, block in enumerate(blocks):
        assert block is not None
        tasks.append(partial(np.copyto, value[kind.layout.box(piece).slices], block))
    if value.nbytes >= LARGE:
        world.workers.run(tasks)
    else:
        for task in tasks:
            task()
    return value


def _unpickled(value: Block) -> Array:
    world = here()
    alone = SingleDeviceSharding(world.local_devices[0])
    return Array(world.type_of(value.shape, value.dtype, alone, False), (value,))


def live_arrays(platform: str | None = None) -> list[Array]:
    """Return the arrays of this process that have not been deleted."""
    if platform not in (None, "cpu"):
        raise ArgumentError(f"live_arrays: there is no platform {platform!r}; it is 'cpu'.")
    me = here().process_index
    return [
        x
        for x in gc.get_objects()
        if type(x) is Array and x._blocks is not None and _held_by(x, me)
    ]


def _held_by(x: Array, process: int) -> bool:
    order: Sequence[Device] = x._type.sharding.device_order
    return any(d.process_index == process for d in order)
