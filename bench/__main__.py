"""Set the environment of a benchmark run, then run the command."""

import os
import sys

DEVICES = 8
FORCE_DEVICES = "--xla_force_host_platform_device_count"


def set_environment() -> None:
    """Ask both libraries for 8 CPU devices; must run before either is imported."""
    os.environ["MESHARD_NUM_DEVICES"] = str(DEVICES)
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if not f.startswith(FORCE_DEVICES)]
    os.environ["XLA_FLAGS"] = " ".join([*flags, f"{FORCE_DEVICES}={DEVICES}"])
    os.environ["JAX_PLATFORMS"] = "cpu"


if __name__ == "__main__":
    set_environment()
    from bench.cli import main

    sys.exit(main())
