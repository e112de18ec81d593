"""PyTorch, imported once for all modules of the room, with a hint where it is missing."""

from __future__ import annotations

try:
    import torch as torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import DeviceMesh as DeviceMesh
    from torch.distributed.device_mesh import _mesh_resources as mesh_resources
    from torch.distributed.tensor import DTensor as DTensor
    from torch.distributed.tensor import placement_types as placement_types
except ImportError as error:
    raise ImportError(
        f"meshard.interop.torch needs PyTorch, which cannot be imported here ({error}). Install it "
        "with pip install 'meshard[torch]'; meshard itself never needs it."
    ) from error

__all__ = ["DTensor", "DeviceMesh", "distributed", "mesh_resources", "placement_types", "torch"]
