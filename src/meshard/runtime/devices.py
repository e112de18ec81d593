"""The devices and processes of the current world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshard.algebra.arguments import integer_of, is_text, shape_of, shown
from meshard.algebra.device import Device, devices_of
from meshard.algebra.world import count_processes, current
from meshard.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _platform(backend: str | None, what: str) -> None:
    if backend is not None and not is_text(backend, "cpu"):
        raise ConfigError(
            f"{what}: there is no backend {shown(backend)}; use 'cpu'. "
            "meshard computes on the CPUs' cores."
        )


def devices(backend: str | None = None) -> list[Device]:
    """Return all devices of all processes, grouped by process.

    They are made at the first use, as many as the setting ``num_devices`` says, and stay.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> meshard.devices()[:2]
    [CpuDevice(id=0), CpuDevice(id=1)]
    """
    _platform(backend, "devices")
    return list(current().devices)


def local_devices(process_index: int | None = None, backend: str | None = None) -> list[Device]:
    """Return the devices of one process, this one by default.

    Raises:
        ArgumentError: if there is no such process.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> meshard.local_devices() == meshard.devices()  # in a program of one process
    True
    """
    _platform(backend, "local_devices")
    world = current()
    if process_index is None:
        return list(world.local_devices)
    number = integer_of(process_index, "local_devices", "process_index")
    if not 0 <= number < world.process_count:
        raise ArgumentError(
            f"local_devices: there is no process {number}; the numbers of processes are 0 to "
            f"{world.process_count - 1}."
        )
    return [d for d in world.devices if d.process_index == number]


def device_count(backend: str | None = None) -> int:
    """Return the number of devices of all processes.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> meshard.device_count()
    8
    """
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """Return the number of this process's devices.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> meshard.local_device_count()
    8
    """
    return len(local_devices(backend=backend))


def process_index(backend: str | None = None) -> int:
    """Return this process's number, from 0; numbers are those of MPI's ranks.

    >>> import meshard
    >>> from meshard.testing import simulate
    >>> simulate(3, 1, meshard.process_index)
    [0, 1, 2]
    """
    _platform(backend, "process_index")
    return current().process_index


def process_count(backend: str | None = None) -> int:
    """Return the number of processes.

    It may be asked before ``num_devices`` is set, as in
    ``config.update("num_devices", 8 // process_count())``.

    >>> import meshard
    >>> from meshard.testing import simulate
    >>> simulate(2, 4, lambda: (meshard.process_count(), meshard.device_count()))
    [(2, 8), (2, 8)]
    """
    _platform(backend, "process_count")
    return count_processes()


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Device] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> NDArray[np.object_]:
    """Arrange devices as an array of a shape, for `Mesh`.

    Args:
        mesh_shape: the shape; its product is the number of devices.
        devices: the devices, in this order. By default those of all processes, grouped by process
            and by host, so that the last dims of the shape stay within a process or a host.
        contiguous_submeshes: accepted as in JAX; here neighbours always are contiguous.
        allow_split_physical_axes: accepted as in JAX; there are no physical axes to split.

    Raises:
        ArgumentError: if there are more or fewer devices than the shape holds.

    >>> import meshard
    >>> from meshard.experimental.mesh_utils import create_device_mesh
    >>> create_device_mesh((1, 1), meshard.devices()[:1]).shape
    (1, 1)
    """
    what = "create_device_mesh"
    shape = shape_of(mesh_shape, what, "mesh_shape")
    have = current().devices_by_host if devices is None else devices_of(devices, what)
    if math.prod(shape) != len(have):
        raise ArgumentError(
            f"create_device_mesh: the number of devices {len(have)} must equal the product of "
            f"mesh_shape {shape}, which is {math.prod(shape)}."
        )
    grid = np.empty(len(have), object)
    grid[:] = have
    return grid.reshape(shape)


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Device] | None = None,
    *,
    process_is_granule: bool = True,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> NDArray[np.object_]:
    """Arrange devices so that each dim has a slow part, between processes, and a fast one.

    Args:
        mesh_shape: the shape within each process.
        dcn_mesh_shape: the shape that the processes form, of the same rank.
        devices: the devices; all of all processes by default.
        process_is_granule: accepted as in JAX; the granule is always the process.
        should_sort_granules_by_key: accepted as in JAX; processes are sorted by index.
        allow_split_physical_axes: accepted as in JAX; there are no physical axes to split.

    Returns:
        The array, whose shape is the two shapes multiplied dim by dim.

    Raises:
        ArgumentError: if the ranks differ, or the numbers of processes or devices do not fit.

    >>> import numpy as np, meshard
    >>> from meshard.experimental.mesh_utils import create_hybrid_device_mesh
    >>> from meshard.testing import virtual_devices
    >>> devices = virtual_devices(8, devices_per_process=4)  # two processes
    >>> grid = create_hybrid_device_mesh((2, 2), (2, 1), devices)
    >>> meshard.Mesh(grid, ("data", "model")), grid.shape
    (Mesh('data': 4, 'model': 2), (4, 2))
    """
    what = "create_hybrid_device_mesh"
    inner = shape_of(mesh_shape, what, "mesh_shape")
    outer = shape_of(dcn_mesh_shape, what, "dcn_mesh_shape")
    have = current().devices if devices is None else devices_of(devices, what)
    if len(inner) != len(outer):
        raise ArgumentError(
            f"create_hybrid_device_mesh: mesh_shape {inner} and dcn_mesh_shape {outer} must have "
            "the same rank."
        )
    granules: dict[int, list[Device]] = {}
    for device in have:
        granules.setdefault(device.process_index, []).append(device)
    if math.prod(outer) != len(granules):
        raise ArgumentError(
            f"create_hybrid_device_mesh: dcn_mesh_shape {outer} holds {math.prod(outer)} "
            f"processes, but the devices belong to {len(granules)}."
        )
    blocks = np.empty(len(granules), object)
    blocks[:] = [create_device_mesh(inner, granules[p]) for p in sorted(granules)]
    whole: NDArray[np.object_] = np.block(blocks.reshape(outer).tolist())
    return whole


def process_indices(backend: str | None = None) -> list[int]:
    """Return the numbers of all processes.

    >>> import meshard
    >>> from meshard.testing import simulate
    >>> simulate(2, 4, meshard.process_indices)
    [[0, 1], [0, 1]]
    """
    _platform(backend, "process_indices")
    return sorted({d.process_index for d in devices()})


def default_backend() -> str:
    """Return the platform of the devices: ``"cpu"``.

    >>> import meshard
    >>> meshard.default_backend()
    'cpu'
    """
    return "cpu"
