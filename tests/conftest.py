"""Settings of every test run; the environment is set before anything of ours or JAX's loads."""

import os
from types import ModuleType

os.environ["MESHARD_NUM_DEVICES"] = "8"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import pytest
from hypothesis import settings

# No deadline: the first example pays for imports and caches, and CI machines stall.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def jax() -> ModuleType:
    """JAX on 8 CPU devices, to compare with; the test skips where JAX has no wheel."""
    return pytest.importorskip(
        "jax", reason="no JAX wheel for this Python: what compares with JAX is skipped"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "jax" in getattr(item, "fixturenames", ()):
            item.add_marker("oracle")
