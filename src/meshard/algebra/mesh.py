"""Meshes: N-D arrangements of devices with named axes."""

from __future__ import annotations

import contextlib
import enum
import math
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.arguments import count_of, items_of, names_of, refusal, shape_of, shown
from meshard.algebra.boundary import bounded
from meshard.algebra.device import Device, devices_of
from meshard.algebra.frozen import Frozen
from meshard.algebra.pictured import HasDrawing
from meshard.algebra.world import current
from meshard.errors import ArgumentError, ShapeError, ShardingError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class AxisType(enum.Enum):
    """How an axis takes part in sharding; accepted as in JAX; only ``Auto`` has an effect."""

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


_ambient: ContextVar[Mesh | None] = ContextVar("meshard_mesh", default=None)
# What `with mesh:` goes back to; kept by context and not by mesh, since threads share meshes.
_outer: ContextVar[tuple[Mesh | None, ...]] = ContextVar("meshard_outer_meshes", default=())


def _axis_types(
    names: tuple[str, ...], given: AxisType | Sequence[AxisType] | None
) -> tuple[AxisType, ...]:
    given = AxisType.Auto if given is None else given
    if isinstance(given, AxisType):
        return (given,) * len(names)
    types: list[AxisType] = []
    for kind in items_of(given, "Mesh", "axis_types", "AxisType"):
        if not isinstance(kind, AxisType):
            raise ArgumentError(f"Mesh: axis_types holds {shown(kind)}, which is not an AxisType.")
        types.append(kind)
    if len(types) != len(names):
        raise ArgumentError(
            f"Mesh: axis_types has {len(types)} entries, but there are {len(names)} axes {names}. "
            "Give one per axis, or none."
        )
    return tuple(types)


def _grid(devices: object) -> np.ndarray[Any, np.dtype[Any]]:
    """Return devices as an array."""
    try:
        return np.array(devices, dtype=object)
    except Exception as error:  # what NumPy cannot make an array of, it says in many ways
        allowed = "an array or nested lists of devices"
        raise ShardingError(refusal("Mesh", "devices", allowed, devices)) from error


class Mesh(Frozen, HasDrawing, contextlib.ContextDecorator):
    """An N-D arrangement of devices with named axes.

    Args:
        devices: an array or nested sequence of `Device`, each once; its rank is the number of axes.
        axis_names: one name per axis; a single string names a single axis.
        axis_types: one per axis, or one for all; only ``AxisType.Auto`` has an effect.

    A mesh is also a context manager: within ``with mesh:`` it is the ambient mesh, which bare
    specs refer to.

    Raises:
        ShardingError: if the names do not match the rank, are not strings, or repeat; if something
            else than a device is among the devices, or one is there twice.
        ArgumentError: if ``axis_types`` holds another kind of value, or not one per axis.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.Mesh(np.asarray(meshard.devices()).reshape(4, 2), ("x", "y"))
    >>> mesh
    Mesh('x': 4, 'y': 2)
    >>> mesh.shape["x"], mesh.size, mesh.devices[0, 1]
    (4, 8, CpuDevice(id=1))
    """

    devices: np.ndarray[tuple[int, ...], np.dtype[Any]]
    axis_names: tuple[str, ...]
    axis_types: tuple[AxisType, ...]
    axis_sizes: tuple[int, ...]
    _sizes: OrderedDict[str, int]
    flat_devices: tuple[Device, ...]
    device_ids: NDArray[np.int64]
    _hash: int

    def __init__(
        self,
        devices: object,
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> None:
        names = names_of(axis_names, "Mesh", "axis_names", error=ShardingError)
        grid = _grid(devices)
        if not names and not grid.size:
            grid = grid.reshape(0)  # the empty mesh
        elif grid.ndim != len(names):
            raise ShardingError(
                f"Mesh: devices has {grid.ndim} dims {grid.shape}, but axis_names {names} names "
                f"{len(names)} axes. Give one name per dim, or reshape the devices."
            )
        for name in names:
            if names.count(name) > 1:
                raise ShardingError(f"Mesh: the axis name {name!r} appears twice in {names}.")
        flat = tuple(grid.flat)
        for device in flat:
            if not isinstance(device, Device):
                raise ShardingError(
                    f"Mesh: devices holds {shown(device)} of type {type(device).__name__}, which "
                    "is not a Device. Give an array of meshard.devices()."
                )
        # Layouts know devices by their ids, so two devices of one id would be taken for one.
        if len({d.id for d in flat}) != len(flat):
            ids = [d.id for d in flat]
            twice = next(d for d in flat if ids.count(d.id) > 1)
            raise ShardingError(f"Mesh: {twice!r} appears twice among the devices.")
        grid.flags.writeable = False
        numbers = np.array([d.id for d in flat], np.int64).reshape(grid.shape)
        numbers.flags.writeable = False
        vars(self).update(
            devices=grid,
            axis_names=names,
            axis_types=_axis_types(names, axis_types),
            axis_sizes=grid.shape if names else (),
            _sizes=OrderedDict(zip(names, grid.shape, strict=bool(names))),
            flat_devices=flat,
            device_ids=numbers,
            _hash=hash((names, grid.shape, flat)),
        )

    @property
    def shape(self) -> OrderedDict[str, int]:
        """The size of each axis, by its name; a dict of the caller's own."""
        return self._sizes.copy()

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.flat_devices)

    @property
    def empty(self) -> bool:
        """Whether the mesh has no devices."""
        return not self.flat_devices

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        """The pairs of axis name and size."""
        return tuple(self._sizes.items())

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The axes of the mesh, without its devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types)

    @property
    def local_devices(self) -> list[Device]:
        """This process's devices, in mesh order."""
        me = current().process_index
        return [d for d in self.flat_devices if d.process_index == me]

    @property
    def is_multi_process(self) -> bool:
        """Whether the devices belong to more than one process."""
        return len(self.processes) > 1

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The indices of the processes that own the devices, ascending."""
        return tuple(sorted({d.process_index for d in self.flat_devices}))

    @property
    def local_mesh(self) -> Mesh:
        """The part of the mesh on this process's devices.

        Raises:
            ShardingError: if those devices do not form a contiguous block of the mesh.
        """
        return self.part_of(current().process_index)

    def part_of(self, process: int) -> Mesh:
        """Return the part of the mesh on one process's devices.

        Raises:
            ShardingError: if those devices do not form a contiguous block of the mesh.
        """
        process = count_of(process, "Mesh.part_of", "process")
        if self.empty:
            return self
        local = np.array([d.process_index == process for d in self.flat_devices], bool)
        local = local.reshape(self.axis_sizes)
        if local.all():
            return self
        if not local.any():
            raise ShardingError(f"Mesh.local_mesh: {self!r} has no devices of process {process}.")
        hull = tuple(slice(where.min(), where.max() + 1) for where in np.nonzero(local))
        if not local[hull].all():
            raise ShardingError(
                f"Mesh.local_mesh: the {int(local.sum())} devices of process {process} do not form "
                f"a contiguous block of {self!r}: the least block around them has "
                f"{local[hull].size}."
            )
        return Mesh(self.devices[hull], self.axis_names, self.axis_types)

    def __enter__(self) -> Mesh:
        _outer.set((*_outer.get(), _ambient.get()))
        _ambient.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        *outer, before = _outer.get()
        _outer.set(tuple(outer))
        _ambient.set(before)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mesh):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.axis_names == other.axis_names
            and self.axis_sizes == other.axis_sizes
            and self.flat_devices == other.flat_devices
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return "Mesh(" + ", ".join(f"{a!r}: {n}" for a, n in self._sizes.items()) + ")"

    def __reduce__(self) -> tuple[object, ...]:
        return Mesh, (self.devices, self.axis_names, self.axis_types)


_ABSTRACT = "abstract"


@final
class AbstractMesh(Mesh):
    """The names and sizes of a mesh's axes, without devices.

    A sharding over it tells the shapes of shards. Where arrays are placed, constrained or mapped,
    it stands for the mesh that is set (``with mesh:`` or `set_mesh`), or, in `shard_map`, for that
    of the arguments; which must have the same axes.

    Args:
        axis_sizes: the size of each axis.
        axis_names: one name per axis.
        axis_types: one per axis, or one for all; only ``AxisType.Auto`` has an effect.

    Raises:
        ArgumentError: if there is not one name per axis.
        ShapeError: if the sizes are not non-negative integers.

    >>> from meshard.sharding import AbstractMesh, NamedSharding, P
    >>> mesh = AbstractMesh((1024, 16), ("data", "model"))
    >>> NamedSharding(mesh, P("data", "model")).shard_shape((8192, 4096))
    (8, 256)
    """

    def __init__(
        self,
        axis_sizes: Sequence[int],
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> None:
        sizes = shape_of(axis_sizes, "AbstractMesh", "axis_sizes")
        names = names_of(axis_names, "AbstractMesh", "axis_names", error=ShardingError)
        if len(sizes) != len(names):
            raise ArgumentError(
                f"AbstractMesh: there are {len(sizes)} sizes {sizes} and {len(names)} names "
                f"{names}. Give one name per axis."
            )
        count = math.prod(sizes)
        devices = np.empty(count, object)
        devices[:] = [Device(i, 0, _ABSTRACT, _ABSTRACT) for i in range(count)]
        super().__init__(devices.reshape(sizes) if names else (), names, axis_types)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    def concrete(self, what: str, *others: Mesh | None) -> Mesh:
        """Return the mesh that this stands for: the first of some that has the same axes.

        Raises:
            ShardingError: if none has.
        """
        for mesh in (ambient_mesh(), *others):
            if mesh is None or isinstance(mesh, AbstractMesh):
                continue
            if mesh.shape_tuple == self.shape_tuple:
                return mesh
        raise ShardingError(
            f"{what}: {self!r} has no devices, and no mesh with its axes is set. Set one with "
            "`with mesh:` or meshard.set_mesh(mesh), or give a Mesh."
        )

    def __repr__(self) -> str:
        axes = "".join(f"{a!r}: {n}, " for a, n in self._sizes.items())
        return f"AbstractMesh({axes}axis_types={self.axis_types!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return AbstractMesh, (self.axis_sizes, self.axis_names, self.axis_types)


def get_mesh() -> Mesh:
    """Return the mesh that is set by ``with mesh:`` or `set_mesh`; an empty one if none is.

    >>> import meshard
    >>> from meshard.sharding import get_mesh
    >>> meshard.config.update("num_devices", 8)
    >>> with meshard.make_mesh((4, 2), ("x", "y")):
    ...     get_mesh()
    Mesh('x': 4, 'y': 2)
    >>> get_mesh().empty
    True
    """
    found = ambient_mesh()
    return Mesh((), ()) if found is None or isinstance(found, AbstractMesh) else found


def get_abstract_mesh() -> AbstractMesh:
    """Return the axes of the mesh that is set; none if no mesh is.

    >>> import meshard
    >>> from meshard.sharding import get_abstract_mesh
    >>> meshard.config.update("num_devices", 8)
    >>> with meshard.make_mesh((4, 2), ("x", "y")):
    ...     get_abstract_mesh().shape_tuple
    (('x', 4), ('y', 2))
    """
    found = ambient_mesh()
    return AbstractMesh((), ()) if found is None else found.abstract_mesh


def use_abstract_mesh(mesh: AbstractMesh) -> contextlib.AbstractContextManager[Mesh | None]:
    """Make the axes of a mesh known within a ``with`` statement, without devices.

    Raises:
        ArgumentError: if ``mesh`` is not an `AbstractMesh`.

    >>> from meshard.sharding import AbstractMesh, get_abstract_mesh, use_abstract_mesh
    >>> with use_abstract_mesh(AbstractMesh((4,), ("x",))):
    ...     get_abstract_mesh().size
    4
    """
    if not isinstance(mesh, AbstractMesh):
        raise ArgumentError(refusal("use_abstract_mesh", "mesh", "an AbstractMesh", mesh))
    found: contextlib.AbstractContextManager[Mesh | None] = entered_mesh(mesh)
    return found


def ambient_mesh() -> Mesh | None:
    """Return the mesh set by ``with mesh:`` or `set_mesh`, or None."""
    return _ambient.get()


@bounded
@final
class entered_mesh:
    """Make ``mesh`` the ambient mesh within a ``with`` statement."""

    __slots__ = ("_mesh", "_token")

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh = mesh

    def __enter__(self) -> Mesh | None:
        self._token = _ambient.set(self._mesh)
        return self._mesh

    def __exit__(self, *_: object) -> None:
        _ambient.reset(self._token)


@bounded
@final
class _SetMesh:
    """What `set_mesh` returns: leaving it as a context manager restores the mesh before."""

    def __init__(self, mesh: Mesh) -> None:
        self._before = _ambient.get()
        self._mesh = mesh
        _ambient.set(mesh)

    def __enter__(self) -> Mesh:
        return self._mesh

    def __exit__(self, *_: object) -> None:
        _ambient.set(self._before)


def set_mesh(mesh: Mesh) -> _SetMesh:
    """Make ``mesh`` the ambient mesh from here on, or within a ``with`` statement.

    Raises:
        ArgumentError: if ``mesh`` is not a `Mesh`.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> with meshard.set_mesh(meshard.make_mesh((4, 2), ("x", "y"))):
    ...     x = meshard.device_put(np.ones((8, 4)), meshard.P("x"))  # a bare spec
    >>> x.sharding.spec, x.sharding.mesh
    (P('x',), Mesh('x': 4, 'y': 2))
    """
    if not isinstance(mesh, Mesh):
        raise ArgumentError(refusal("set_mesh", "mesh", "a Mesh", mesh))
    return _SetMesh(mesh)


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """Make a mesh of the given axis sizes over the first devices.

    Args:
        axis_shapes: the size of each axis.
        axis_names: one name per axis.
        axis_types: accepted as in JAX; only Auto has an effect.
        devices: the devices to use, in this order. By default all devices of all processes, those
            of one process together and the processes of one host together, so that neighbours
            along the last axes are on one host.

    Raises:
        ArgumentError: if there are fewer devices than the mesh needs, or the lengths differ.
        ShapeError: if the sizes are not integers of at least 1.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
    >>> mesh, mesh.devices[1].tolist()
    (Mesh('x': 4, 'y': 2), [CpuDevice(id=2), CpuDevice(id=3)])
    """
    what = "make_mesh"
    if isinstance(axis_shapes, int):
        raise ArgumentError(
            f"{what}: axis_shapes is {axis_shapes!r}; give a tuple, with one size per axis, such "
            f"as ({axis_shapes},)."
        )
    if isinstance(axis_shapes, (tuple, list)) and any(isinstance(n, str) for n in axis_shapes):
        raise ArgumentError(
            f"{what}: axis_shapes {axis_shapes!r} holds names; the sizes come first, and then the "
            f"names: make_mesh({shown(axis_names)}, {shown(axis_shapes)})."
        )
    sizes = shape_of(axis_shapes, what, "axis_shapes")
    names = names_of(axis_names, what, "axis_names")
    if len(sizes) != len(names):
        raise ArgumentError(
            f"{what}: axis_shapes {sizes} has {len(sizes)} entries, axis_names {names} has "
            f"{len(names)}; give one name per size."
        )
    have = current().devices_by_host if devices is None else devices_of(devices, what)
    if any(n < 1 for n in sizes):
        raise ShapeError(f"{what}: axis_shapes {sizes} must be integers of at least 1.")
    need = math.prod(sizes)
    if need > len(have):
        each = -(-need // max(1, len({d.process_index for d in have})))  # of every process
        raise ArgumentError(
            f"make_mesh: axis_shapes {sizes} needs {need} devices, but there are {len(have)}. "
            f"More virtual devices: MESHARD_NUM_DEVICES={each}, or "
            f"meshard.config.update('num_devices', {each}) before first use."
        )
    grid = np.empty(need, object)
    grid[:] = have[:need]
    return Mesh(grid.reshape(sizes), names, axis_types)
