"""meshard and JAX behind one face: meshard has JAX's names, so one program serves both."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

AXES = {"i": 4, "j": 2}
Spec = tuple[str | tuple[str, ...] | None, ...]


@dataclass(frozen=True, eq=False)
class Library:
    """One of the two libraries, with a mesh of 4 x 2 devices named i and j."""

    root: ModuleType
    numpy: ModuleType
    placing: ModuleType
    mesh: Any

    def sharding(self, spec: Spec) -> Any:
        """The NamedSharding of `spec` on the mesh."""
        return self.placing.NamedSharding(self.mesh, self.placing.PartitionSpec(*spec))

    def put(self, tree: Any, sharding: Any) -> Any:
        """Fresh arrays from NumPy arrays, complete when this returns."""
        return self.root.block_until_ready(self.root.device_put(tree, sharding))

    def complete(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """`program`, waiting for its result; one array is waited for by its cheaper method."""

        def run(*operands: Any) -> Any:
            result = program(*operands)
            if isinstance(result, list):
                return self.root.block_until_ready(result)
            return result.block_until_ready()

        return run


@functools.cache
def load(name: str) -> Library:
    """Import `meshard` or `jax` and make its mesh.

    Raises:
        ImportError: the library, or one of its modules that the rows need, is not there.
        RuntimeError: it has fewer than 8 devices.
    """
    root = importlib.import_module(name)
    placing = importlib.import_module(f"{name}.sharding")
    sizes = tuple(AXES.values())
    devices = np.array(root.devices())
    if devices.size < np.prod(sizes):
        raise RuntimeError(f"{name} has {devices.size} devices, the rows need {np.prod(sizes)}")
    # Mesh, not make_mesh: the axes of JAX's make_mesh are Explicit, which refuses some rows.
    mesh = placing.Mesh(devices[: np.prod(sizes)].reshape(sizes), tuple(AXES))
    return Library(root, importlib.import_module(f"{name}.numpy"), placing, mesh)
