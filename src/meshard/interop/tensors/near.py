"""Boxes read from the memory of other processes on this host, without any message.

Linux lets a process read the memory of another of the same user, if no security module forbids it
(``process_vm_readv``). So a receiver copies each box from the tensor where it is to its place: one
copy, no buffers, and nothing for the sender to do. Ranks try it once, on a value that they know.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.interop.tensors.loading import torch
from meshard.runtime.memory.slabs import slabs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_RUNS = 1024
"""Runs of memory that one call takes, at either end."""
_SHORT = 256
"""Bytes of runs that are read with what is between them: a run costs as much as hundreds."""
_WIDEST = 8
"""How many times as much may be read so."""
_SLAB = 1 << 20
"""Bytes that are read at a time where they go through a buffer."""
_CALL = 1 << 28
"""Bytes that are read at a time otherwise; the kernel reads less than 2 GiB in one call."""


Whereabouts = tuple[int, tuple[int, ...]]
"""Where a tensor of this process is: its address, and the bytes between elements of each dim."""


def whereabouts(x: Any) -> Whereabouts | None:
    """Return where a tensor is; None if it is not in the host's memory."""
    if x.device.type != "cpu":
        return None
    size = x.element_size()
    return int(x.data_ptr()), tuple([s * size for s in x.stride()])


@final
@dataclass(frozen=True)
class Calling:
    """What a process tells others so that they can try whether they can read its memory.

    Attributes:
        host: the name of the running kernel and of the numbers of processes in it.
        process: its number.
        address: where the value is that they should find.
        value: the value.
    """

    host: str
    process: int
    address: int
    value: bytes


_SECRET = np.frombuffer(secrets.token_bytes(16), np.uint8)


def calling() -> Calling:
    """Return what this process tells others."""
    host = ""
    if sys.platform == "linux":
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = f"{boot.read_text().strip() if boot.exists() else ''} {_namespace()}"
    return Calling(host, os.getpid(), int(_SECRET.ctypes.data), _SECRET.tobytes())


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return secrets.token_hex(8)  # numbers of processes mean nothing to others


def is_readable(other: Calling) -> bool:
    """Return whether this process can read another's memory."""
    mine = calling()
    if not mine.host or mine.host != other.host or _readv() is None:
        return False
    found = np.zeros(16, np.uint8)
    try:
        _read(other.process, np.array([[found.ctypes.data, 16]]), np.array([[other.address, 16]]))
    except OSError:
        return False
    return found.tobytes() == other.value


def is_gone(other: Calling) -> bool:
    """Return whether another process of this host has ended; False if it is elsewhere."""
    if not other.host or other.host != calling().host:
        return False
    try:
        state = Path(f"/proc/{other.process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


@cache
def _readv() -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if function is not None:
        word = ctypes.c_ulong
        function.argtypes = [ctypes.c_int, ctypes.c_void_p, word, ctypes.c_void_p, word, word]
        function.restype = ctypes.c_ssize_t
    return function


def _read(process: int, here: NDArray[Any], there: NDArray[Any]) -> None:
    """Read runs of another process, each an address and a length, into runs of this one.

    Raises:
        OSError: if the process has gone, or does not have the memory.
    """
    here, there = (np.ascontiguousarray(runs, np.uint64) for runs in (here, there))
    wanted = int(here[:, 1].sum())
    got = _readv()(process, here.ctypes.data, len(here), there.ctypes.data, len(there), 0)
    if got == wanted:
        return
    code = ctypes.get_errno() if got < 0 else 0
    raise OSError(code, os.strerror(code) if code else f"{got} of {wanted} bytes could be read")


def read_box(
    process: int, origin: Whereabouts, starts: Sequence[int], target: Any, dtype: Any
) -> None:
    """Fill a tensor with a box of another process's tensor.

    Args:
        process: the process.
        origin: where its tensor is.
        starts: where the box begins in it.
        target: the tensor to fill, of the box's shape.
        dtype: the dtype of the other tensor.

    Raises:
        OSError: if the process has gone.
    """
    address, strides = origin
    address += sum([a * s for a, s in zip(starts, strides, strict=True)])
    shape, size = tuple(target.shape), dtype.itemsize
    run, wide = _run(shape, strides, size), _extent(shape, strides, size)
    if run < _SHORT and wide <= _WIDEST * target.numel() * size and run < wide:
        _read_wide(process, address, strides, target, dtype)
    elif target.dtype == dtype:
        for slab, offset in _slabs(target, strides, _CALL):
            _read_runs(process, address + offset, strides, slab, run)
    else:
        for slab, offset in _slabs(target, strides, _SLAB):
            part = torch.empty(tuple(slab.shape), dtype=dtype)
            _read_runs(process, address + offset, strides, part, run)
            slab.copy_(part)


def _run(shape: Sequence[int], strides: Sequence[int], size: int) -> int:
    """Return the bytes of a box that follow each other."""
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if stride != size:
            break
        size *= n
    return size


def _extent(shape: Sequence[int], strides: Sequence[int], size: int) -> int:
    """Return the bytes from the first element of a box to its last."""
    return sum([(n - 1) * s for n, s in zip(shape, strides, strict=True)]) + size


def _offsets(shape: Sequence[int], strides: Sequence[int], run: int, size: int) -> NDArray[Any]:
    """Return where the runs of a box begin, in C order."""
    offsets = np.zeros(1, np.int64)
    rest = run // size  # elements of a run, which the last dims make up
    for n, stride in reversed(list(zip(shape, strides, strict=True))):
        inside = min(rest, n) if rest > 1 else 1
        rest = max(1, rest // inside)
        steps = np.arange(0, n, inside, dtype=np.int64) * stride
        offsets = (steps[:, None] + offsets[None, :]).reshape(-1)
    return offsets


def _read_runs(process: int, address: int, strides: Sequence[int], target: Any, run: int) -> None:
    """Read run by run, each to its place."""
    shape, size = tuple(target.shape), target.element_size()
    own = tuple([s * size for s in target.stride()])
    run = min(run, _run(shape, own, size))
    there = _offsets(shape, strides, run, size) + address
    here = _offsets(shape, own, run, size) + target.data_ptr()
    for first in range(0, len(there), _MOST_RUNS):
        some = slice(first, first + _MOST_RUNS)
        _read(process, _joined(here[some], run), _joined(there[some], run))


def _joined(starts: NDArray[Any], run: int) -> NDArray[Any]:
    """Return runs of one length as addresses and lengths, those joined that follow each other."""
    new = np.flatnonzero(np.diff(starts, prepend=starts[0] - run - 1) != run)
    counts = np.diff(new, append=len(starts))
    return np.stack([starts[new], counts * run], axis=1)


def _slabs(target: Any, strides: Sequence[int], most: int) -> list[tuple[Any, int]]:
    """Return a tensor in slabs, and where each begins in the other process's tensor."""
    found = []
    slab: Any
    for slab in slabs(target, most):
        at = slab.storage_offset() - target.storage_offset()
        offset = 0
        order = sorted(range(target.ndim), key=lambda d: -target.stride(d))
        for dim in order:
            if target.shape[dim] > 1 and target.stride(dim):
                place, at = divmod(at, target.stride(dim))
                offset += place * strides[dim]
        found.append((slab, offset))
    return found


def _read_wide(process: int, address: int, strides: Sequence[int], target: Any, dtype: Any) -> None:
    """Read slabs of a box with what is between its runs, and take the box out of them."""
    size = dtype.itemsize
    for slab, offset in _slabs(target, strides, _SLAB):
        extent = _extent(tuple(slab.shape), strides, size)
        room = torch.empty(extent // size, dtype=dtype)
        span = np.array([[room.data_ptr(), extent]]), np.array([[address + offset, extent]])
        _read(process, *span)
        slab.copy_(room.as_strided(slab.shape, [s // size for s in strides]))
