"""Meshes, specs and shardings say what JAX's say, on random ones of up to eight devices."""

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshard.algebra.abstract import Sharding
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh, make_mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import P
from meshard.algebra.world import World, entered
from meshard.errors import ShardingError
from meshard.testing.strategies import meshes, named_shardings, placed_shapes, shapes, specs

DEVICES = [Device(i) for i in range(8)]
NDIMS = st.integers(0, 3)
# JAX is a fixture of the session, so examples may share it.
many = settings(
    max_examples=max(300, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# JAX refuses by exceptions of its own, IndexError and AttributeError too.
JAX_REFUSES = (Exception,)
WE_REFUSE = (ValueError, TypeError)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One process that owns all devices, as in JAX's."""
    with entered(World(0, 1, DEVICES)):
        yield


def jax_devices(jax: ModuleType, mesh: Mesh) -> np.ndarray:
    return np.array(jax.devices(), object)[mesh.device_ids]


def jax_mesh(jax: ModuleType, mesh: Mesh):
    return jax.sharding.Mesh(jax_devices(jax, mesh), mesh.axis_names)


def jax_spec(jax: ModuleType, spec: P):
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    return jax.sharding.PartitionSpec(*[free if e is P.UNCONSTRAINED else e for e in spec])


def jax_sharding(jax: ModuleType, sharding: Sharding):
    if isinstance(sharding, SingleDeviceSharding):
        return jax.sharding.SingleDeviceSharding(
            jax.devices()[sharding.device.id], memory_kind=sharding.memory_kind
        )
    assert isinstance(sharding, NamedSharding)
    return jax.sharding.NamedSharding(
        jax_mesh(jax, sharding.mesh),
        jax_spec(jax, sharding.spec),
        memory_kind=sharding.memory_kind,
    )


def by_id(indices) -> list[tuple[int, tuple[slice, ...]]]:
    return [(device.id, index) for device, index in indices.items()]


@many
@given(meshes(DEVICES))
def test_meshes_say_the_same(jax, mesh):
    theirs = jax_mesh(jax, mesh)
    assert mesh.shape == theirs.shape
    assert mesh.axis_names == theirs.axis_names
    assert mesh.axis_sizes == theirs.axis_sizes
    assert mesh.shape_tuple == theirs.shape_tuple
    assert (mesh.size, mesh.empty) == (theirs.size, theirs.empty)
    assert mesh.device_ids.tolist() == theirs.device_ids.tolist()
    assert [d.id for d in mesh.local_devices] == [d.id for d in theirs.local_devices]
    assert mesh.is_multi_process == theirs.is_multi_process
    assert mesh.local_mesh is mesh


@many
@given(placed_shapes(devices=DEVICES))
def test_indices_and_shapes_are_the_same(jax, placed):
    ours, shape = placed
    theirs = jax_sharding(jax, ours)
    assert by_id(ours.devices_indices_map(shape)) == by_id(theirs.devices_indices_map(shape))
    assert by_id(ours.addressable_devices_indices_map(shape)) == by_id(
        theirs.addressable_devices_indices_map(shape)
    )
    assert ours.shard_shape(shape) == theirs.shard_shape(shape)
    assert ours.is_fully_replicated == theirs.is_fully_replicated
    assert ours.is_fully_addressable == theirs.is_fully_addressable
    assert ours.num_devices == theirs.num_devices
    assert ours.replicated_axes == theirs.replicated_axes
    assert ours.memory_kind == theirs.memory_kind
    for mine, yours in (
        (ours.device_set, theirs.device_set),
        (ours.addressable_devices, theirs.addressable_devices),
    ):
        assert {d.id for d in mine} == {d.id for d in yours}


@many
@given(st.data(), st.lists(st.integers(0, 4), max_size=3).map(tuple))
def test_a_single_device_is_the_same(jax, data, shape):
    ours = SingleDeviceSharding(data.draw(st.sampled_from(DEVICES)))
    theirs = jax_sharding(jax, ours)
    assert by_id(ours.devices_indices_map(shape)) == by_id(theirs.devices_indices_map(shape))
    assert ours.shard_shape(shape) == theirs.shard_shape(shape)
    assert ours.is_fully_replicated == theirs.is_fully_replicated
    assert repr(ours) == repr(theirs)


@settings(many, max_examples=100)
@given(placed_shapes(min_size=1, devices=DEVICES))
def test_replicas_are_numbered_the_same(jax, placed):
    ours, shape = placed
    values = np.zeros(shape, np.int8)
    array = jax.make_array_from_callback(shape, jax_sharding(jax, ours), values.__getitem__)
    layout = ours.layout(shape)
    for shard in array.global_shards:
        piece = layout.piece_of[shard.device.id]
        assert layout.box(piece).shape == shard.data.shape
        assert layout.holders(piece)[shard.replica_id] == shard.device.id


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Sharding, Sharding, int]:
    """Two shardings on the same few devices, so that they are often equivalent."""
    few = DEVICES[: draw(st.sampled_from([1, 2, 4, 4, 8]))]
    ndim = draw(NDIMS)
    mesh = draw(meshes(few))

    def one() -> Sharding:
        kind = draw(st.sampled_from(["same mesh", "same mesh", "other mesh", "device"]))
        if kind == "device":
            return SingleDeviceSharding(draw(st.sampled_from(few)))
        if kind == "other mesh":
            return draw(named_shardings(ndim, devices=few))
        return draw(named_shardings(ndim, mesh))

    first, second = one(), one()
    if draw(st.integers(0, 9)) == 0:
        first = first.with_memory_kind("pinned_host")
    return first, second, ndim


@settings(many, max_examples=600)
@given(pairs())
def test_equivalence_is_the_same(jax, pair):
    one, two, ndim = pair
    theirs = jax_sharding(jax, one).is_equivalent_to(jax_sharding(jax, two), ndim)
    assert one.is_equivalent_to(two, ndim) == theirs
    assert (one == two) == (jax_sharding(jax, one) == jax_sharding(jax, two))


ENTRIES = st.one_of(
    st.none(),
    st.sampled_from(["x", "y"]),
    st.lists(st.sampled_from(["x", "y", "z"]), max_size=3).map(tuple),
    st.lists(st.sampled_from(["x", "y"]), max_size=2),
)


@many
@given(st.lists(ENTRIES, max_size=4), st.lists(ENTRIES, max_size=4), ENTRIES)
def test_specs_print_compare_and_count_the_same(jax, one, two, entry):
    theirs = jax.sharding.PartitionSpec
    ours_one, ours_two = P(*one), P(*two)
    theirs_one, theirs_two = theirs(*one), theirs(*two)
    assert repr(ours_one) == repr(theirs_one)
    assert tuple(ours_one) == tuple(theirs_one)
    assert ours_one.partitions == theirs_one.partitions
    assert len(ours_one) == len(theirs_one)
    assert (ours_one == ours_two) == (theirs_one == theirs_two)
    assert ours_one != ours_two or hash(ours_one) == hash(ours_two)
    assert (ours_one == tuple(one)) == (theirs_one == tuple(one))
    assert repr(ours_one + ours_two) == repr(theirs_one + theirs_two)
    assert repr(ours_one + tuple(two)) == repr(theirs_one + tuple(two))
    assert repr(tuple(two) + ours_one) == repr(tuple(two) + theirs_one)
    assert ours_one.count(entry) == theirs_one.count(entry)
    if ours_one.count(entry):
        assert ours_one.index(entry) == theirs_one.index(entry)
    for part in (slice(1, 3), slice(None, None, -1)):
        assert ours_one[part] == theirs_one[part]


def refuses(errors: tuple[type[Exception], ...], call: Callable[[], object]) -> bool:
    try:
        call()
    except errors:
        return True
    return False


@many
@given(st.data(), NDIMS)
def test_what_jax_refuses_we_refuse(jax, data, ndim):
    """Unknown and repeated axes, dims that do not divide, specs that are too long."""
    mesh = data.draw(meshes(DEVICES, max_axes=2))
    names = st.sampled_from(["x", "y", "q"])
    entry = st.one_of(st.none(), names, st.tuples(names, names))
    careless = st.lists(entry, max_size=3).map(lambda entries: P(*entries))
    spec = data.draw(st.one_of(careless, specs(mesh, ndim)))
    shape = data.draw(shapes((2,) * ndim, divides=False))

    def theirs() -> None:
        sharding = jax.sharding.NamedSharding(jax_mesh(jax, mesh), jax_spec(jax, spec))
        sharding.devices_indices_map(shape)

    def ours() -> None:
        NamedSharding(mesh, spec).devices_indices_map(shape)

    they_refuse = refuses(JAX_REFUSES, theirs)
    # JAX lets a spec of None be longer than the rank here, and refuses it in device_put.
    assert refuses(WE_REFUSE, ours) == (they_refuse or len(spec) > ndim)


BAD_SPECS = [("x", ("y", ("z",))), ((("x",), "y"),)]
BAD_MESHES = [
    (("x", "y"), {}),
    ((), {}),
    ((None,), {}),
    (("x",), {"axis_types": "two"}),
    (("x",), {"axis_types": ("Auto",)}),
]


@pytest.mark.parametrize("entries", BAD_SPECS)
def test_specs_that_jax_refuses_we_refuse(jax, entries):
    assert refuses(JAX_REFUSES, lambda: jax.sharding.PartitionSpec(*entries))
    assert refuses(WE_REFUSE, lambda: P(*entries))


@pytest.mark.parametrize(("names", "options"), BAD_MESHES)
def test_meshes_that_jax_refuses_we_refuse(jax, names, options):
    from meshard.algebra.mesh import AxisType

    def types(kind) -> dict[str, object]:
        two = options.get("axis_types") == "two"
        return {"axis_types": (kind.Auto,) * 2} if two else options

    theirs = np.array(jax.devices())
    assert refuses(
        JAX_REFUSES, lambda: jax.sharding.Mesh(theirs, names, **types(jax.sharding.AxisType))
    )
    assert refuses(WE_REFUSE, lambda: Mesh(DEVICES, names, **types(AxisType)))


@pytest.mark.parametrize(
    ("sizes", "names"),
    [((16,), ("x",)), ((0,), ("x",)), ((-1,), ("x",)), ((2,), ("x", "y")), (8, ("x",))],
)
def test_shapes_of_meshes_that_jax_refuses_we_refuse(jax, sizes, names):
    assert refuses(JAX_REFUSES, lambda: jax.make_mesh(sizes, names))
    assert refuses(WE_REFUSE, lambda: make_mesh(sizes, names, devices=DEVICES))


@many
@given(meshes(DEVICES))
def test_make_mesh_takes_the_same_devices(jax, mesh):
    theirs = jax.make_mesh(mesh.axis_sizes, mesh.axis_names)
    ours = make_mesh(mesh.axis_sizes, mesh.axis_names, devices=DEVICES)
    assert ours.device_ids.tolist() == theirs.device_ids.tolist()


def test_memory_kinds_that_jax_refuses_we_refuse(jax):
    theirs = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ours = SingleDeviceSharding(DEVICES[0])
    for kind in ("device", "pinned_host", "unpinned_host"):
        assert ours.with_memory_kind(kind).memory_kind == theirs.with_memory_kind(kind).memory_kind
    assert refuses(JAX_REFUSES, lambda: theirs.with_memory_kind("tape"))
    assert refuses(WE_REFUSE, lambda: ours.with_memory_kind("tape"))


def test_here_we_are_stricter(jax):
    """JAX makes such meshes, and answers wrongly or with an assertion later."""
    theirs = np.array(jax.devices())
    assert jax.sharding.Mesh(theirs.reshape(4, 2), ("x", "x")).axis_names == ("x", "x")
    with pytest.raises(ShardingError, match="the axis name 'x' appears twice"):
        Mesh(np.array(DEVICES).reshape(4, 2), ("x", "x"))
    assert jax.sharding.Mesh(theirs[[0, 0]], "x").size == 2
    with pytest.raises(ShardingError, match="appears twice among the devices"):
        Mesh([DEVICES[0], DEVICES[0]], "x")
