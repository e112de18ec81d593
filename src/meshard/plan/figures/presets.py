"""Topologies by name, of common machines."""

from __future__ import annotations

from meshard.algebra.arguments import is_text, shown
from meshard.errors import ArgumentError, did_you_mean
from meshard.plan.figures.topology import Level, Topology

_PRESETS = (
    Topology("one process", (Level("process", latency=0.6e-6, bandwidth=10e9),)),
    Topology(
        "8-gpu hosts",
        (
            Level("host", latency=2e-6, bandwidth=450e9, size=8),
            Level("cluster", latency=5e-6, bandwidth=400e9),
        ),
    ),
    Topology(
        "8-gpu hosts, one nic",
        (
            Level("host", latency=2e-6, bandwidth=450e9, size=8),
            Level("cluster", latency=5e-6, bandwidth=50e9),
        ),
    ),
    Topology(
        "tpu torus",
        (
            Level("cube", latency=1e-6, bandwidth=300e9, size=64, capacity=6.4e12),
            Level("pod", latency=3e-6, bandwidth=4.8e12, size=64, capacity=96e12),
            Level("data centre", latency=20e-6, bandwidth=25.6e12),
        ),
    ),
    Topology(
        "two racks",
        (
            Level("host", latency=2e-6, bandwidth=450e9, size=8),
            Level("rack", latency=5e-6, bandwidth=50e9, size=4),
            Level("row", latency=10e-6, bandwidth=50e9, size=2),
        ),
    ),
)


def presets() -> tuple[str, ...]:
    """Return the names that `topology` accepts.

    >>> from meshard.resharding import presets
    >>> presets()[0]
    'one process'
    """
    return tuple([preset.name for preset in _PRESETS])


def topology(name: str) -> Topology:
    """Return a topology by its name.

    - ``"one process"``: virtual devices that share a memory. 10 GB/s is what one thread copies on
      the machine that meshard is developed on, 0.6 microseconds what one box costs there.
    - ``"8-gpu hosts"``: an NVIDIA DGX H100 or similar. NVLink gives each GPU 900 GB/s, half of it
      in each direction; eight ConnectX-7 adapters of 400 Gb/s give a host 400 GB/s in each
      direction (DGX H100 User Guide). The host's port is modelled as one, although a single GPU
      has only its own adapter's 50 GB/s.
    - ``"8-gpu hosts, one nic"``: the same hosts with one adapter of 400 Gb/s each.
    - ``"tpu torus"``: Google's TPU v4, *approximated*: a torus is not a tree. A chip has six links
      of 50 GB/s in each direction; cubes of 4 x 4 x 4 chips have 16 links on each face; 64 cubes
      make a pod (Jouppi et al., "TPU v4: an optically reconfigurable supercomputer", ISCA 2023).
      Capacities stand for the torus: a cube's links divided by the 3 hops of an average way
      (64 x 6 x 50 GB/s / 3), and a pod's four times its bisection of 24 TB/s (Cloud TPU
      documentation), since a quarter of uniform traffic crosses that in each direction. Between
      pods 25 GB/s for each host of four chips are assumed. The times are wrong by a factor for
      traffic between neighbours, for which a torus is faster, and for long thin shapes.
    - ``"two racks"``: two racks of four hosts of eight devices, where a rack's uplink is no wider
      than one host's. It is invented, to show the effect of slow uplinks.

    Latencies are of the usual order of magnitude; only that of one process was measured.

    Raises:
        ArgumentError: if there is no such topology.

    >>> from meshard.resharding import topology
    >>> [level.name for level in topology("two racks").levels]
    ['host', 'rack', 'row']
    """
    for preset in _PRESETS:
        if is_text(name, preset.name):
            return preset
    raise ArgumentError(
        f"There is no topology named {shown(name)}.{did_you_mean(name, presets())} Those with "
        f"names are {', '.join(map(repr, presets()))}; Topology.load reads others from a file."
    )


def as_topology(given: Topology | str, what: str, hint: str = "") -> Topology:
    """Return a topology, which may be given by its name.

    Args:
        given: a topology, or the name of one.
        what: the function that takes it, for messages.
        hint: what to add to the message.

    Raises:
        ArgumentError: if it is neither, or there is no topology of that name.

    >>> as_topology("one process", "explain").levels[0].name
    'process'
    """
    if isinstance(given, str):
        return topology(given)
    if not isinstance(given, Topology):
        raise ArgumentError(
            f"{what}: topology must be a Topology or the name of one "
            f"({', '.join(map(repr, presets()))}), not {shown(given)}.{hint}"
        )
    return given
