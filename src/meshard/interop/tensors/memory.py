"""Where tensors are made, and what must be waited for before their bytes are read.

On CPUs there is nothing to wait for. On other devices copies and messages are put on the current
stream, on which PyTorch orders them; only what the host reads is waited for. That side is written
against PyTorch's documentation and has not been run on such a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

from meshard.interop.tensors.loading import distributed, torch
from meshard.runtime.memory.pages import HUGE, on_huge_pages


class Memory(Protocol):
    """Makes tensors on one device."""

    device: Any

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor whose elements are not set."""

    def ready(self) -> None:
        """Wait until the host can read what was written."""


@final
class HostMemory:
    """The host's memory."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor whose elements are not set."""
        found = torch.empty(tuple(shape), dtype=dtype)
        if found.nbytes > HUGE:
            on_huge_pages(found.data_ptr(), found.nbytes)
        return found

    def ready(self) -> None:
        """Do nothing: what was written can be read."""


@final
class StreamMemory:
    """The memory of a device with streams."""

    def __init__(self, kind: str) -> None:
        module = torch.get_device_module(kind)
        self.device = torch.device(kind, module.current_device())
        self._stream = module.current_stream

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor whose elements are not set."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def ready(self) -> None:
        """Wait for the current stream."""
        self._stream().synchronize()


def memory_of(kind: str) -> Memory:
    """Return the memory of devices of a kind, such as ``"cpu"``."""
    return HostMemory() if kind == "cpu" else StreamMemory(kind)


def wire_kind(group: Any, kinds: Sequence[str]) -> str:
    """Return on which kind of device messages start and end: the tensors', if the backend can."""
    others = [kind for kind in kinds if kind != "cpu"]
    config = str(distributed.get_backend_config(group))
    return others[0] if others and f"{others[0]}:nccl" in config else "cpu"
