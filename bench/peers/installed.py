"""Which peers take part: those that are installed; the others are named."""

import functools
import importlib.metadata
import importlib.util

PACKAGES = {
    "jax": "jax",
    "dask": "dask",
    "torch": "torch",
    "heat": "heat",
    "mpi4py": "mpi4py",
}
"""The package that each peer is imported as, and is called in the registry."""


@functools.cache
def installed(package: str) -> bool:
    """Whether a package can be found; it is not imported."""
    return importlib.util.find_spec(package) is not None


def version(package: str) -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def told() -> str:
    """For example `jax 0.10.2, mpi4py 4.1.2; absent: dask, torch, heat`."""
    here = [f"{name} {version(name)}" for name, package in PACKAGES.items() if installed(package)]
    absent = [name for name, package in PACKAGES.items() if not installed(package)]
    return ", ".join(here or ["none"]) + (f"; absent: {', '.join(absent)}" if absent else "")
