"""`meshard.interop.jax`: JAX's own arrays, moved and passed on; values are compared bit by bit."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
from meshard import errors
from meshard.algebra.world import entered
from meshard.runtime.processes.transport import LocalTransport
from meshard.runtime.world import RuntimeWorld
from tests.worlds import in_worlds

jax: Any = pytest.importorskip("jax", reason="no JAX wheel for this Python")
interop: Any = pytest.importorskip("meshard.interop.jax")

pytestmark = pytest.mark.oracle
P = jax.sharding.PartitionSpec
AUTO = jax.sharding.AxisType.Auto


def mesh(ids: Any = range(8), shape: Any = (4, 2), names: Any = ("i", "j")) -> Any:
    known = {d.id: d for d in jax.devices("cpu")}
    devices = np.array([known[i] for i in ids], object).reshape(shape)
    return jax.sharding.Mesh(devices, names)


def named(spec: Any, on: Any = None, **more: Any) -> Any:
    return jax.sharding.NamedSharding(mesh() if on is None else on, spec, **more)


def alone(number: int) -> Any:
    return jax.sharding.SingleDeviceSharding(jax.devices("cpu")[number])


def gspmd(spec: Any, ndim: int) -> Any:
    from jax._src.sharding_impls import GSPMDSharding

    return GSPMDSharding(tuple(jax.devices("cpu")), named(spec)._to_xla_hlo_sharding(ndim))


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Arbitrary bits where the dtype has no unused ones, so NaNs with payloads too."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(math.prod(shape) + 1)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        return rng.integers(0, 7, shape).astype(dtype)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype).reshape(shape)


def check(result: Any, expected: Any, sharding: Any) -> None:
    assert result.sharding == sharding
    assert result.committed
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    indices = sharding.devices_indices_map(expected.shape)
    shards = result.addressable_shards
    assert [s.device for s in shards] == list(indices)
    for shard in shards:
        assert shard.data.sharding.memory_kind == sharding.memory_kind
        assert bits(shard.data) == expected[indices[shard.device]].tobytes()


# shardings

NAMED = [
    (P(), range(8)),
    (P("i", "j"), range(8)),
    (P("j", "i"), [3, 1, 0, 2, 7, 6, 4, 5]),
    (P(("i", "j")), [7, 6, 5, 4, 3, 2, 1, 0]),
    (P(None, ("j", "i"), None), range(8)),
    (P("i", None), range(8)),
]


@pytest.mark.parametrize(("spec", "ids"), NAMED)
@pytest.mark.parametrize("kind", [None, "pinned_host", "unpinned_host"])
def test_named_shardings_lay_out_alike_and_come_back(spec: Any, ids: Any, kind: Any) -> None:
    theirs = named(spec, mesh(ids), memory_kind=kind)
    ours = interop.to_meshard(theirs)
    assert isinstance(ours, meshard.NamedSharding)
    assert tuple(ours.spec) == tuple(spec)
    assert ours.memory_kind == theirs.memory_kind
    assert interop.to_jax(ours) == theirs
    shape = (16, 8, 3)
    mine = ours.devices_indices_map(shape)
    for device, index in theirs.devices_indices_map(shape).items():
        found = next(i for d, i in mine.items() if d.id == device.id)
        assert [s.indices(n) for s, n in zip(found, shape, strict=True)] == [
            s.indices(n) for s, n in zip(index, shape, strict=True)
        ]


def test_axis_types_are_carried() -> None:
    explicit = jax.make_mesh((4, 2), ("i", "j"))
    theirs = jax.sharding.NamedSharding(explicit, P("i"))
    ours = interop.to_meshard(theirs)
    assert {t.name for t in ours.mesh.axis_types} == {t.name for t in explicit.axis_types}
    assert interop.to_jax(ours) == theirs


def test_single_devices() -> None:
    ours = interop.to_meshard(alone(5))
    assert ours.device_order[0].id == 5
    assert interop.to_jax(ours) == alone(5)
    pinned = alone(5).with_memory_kind("pinned_host")
    assert interop.to_jax(interop.to_meshard(pinned)) == pinned


def test_other_shardings_become_boxes_and_boxes_an_even_grid() -> None:
    theirs = gspmd(P("j", "i"), 2)
    ours = interop.to_meshard(theirs, (4, 8))
    assert isinstance(ours, meshard.sharding.BoxSharding)
    back = interop.to_jax(ours)
    assert back.spec == P("dim0", "dim1")
    assert back.devices_indices_map((4, 8)) == theirs.devices_indices_map((4, 8))
    with pytest.raises(errors.ArgumentError, match=r"depends on the shape\. Pass shape="):
        interop.to_meshard(theirs)
    with pytest.raises(errors.IndivisibleError, match=r"does not lay out the shape \(3, 8\)"):
        interop.to_meshard(theirs, (3, 8))


def test_devices_that_meshard_lacks_are_virtual() -> None:
    with entered(RuntimeWorld(0, 1, [meshard.Device(0)], LocalTransport())):
        ours = interop.to_meshard(named(P("i")))
        assert [d.platform for d in ours.device_order] == ["cpu", *["virtual"] * 7]
        x = jax.device_put(values((8,)), named(P("i")))
        with pytest.raises(errors.ShardingError, match="MESHARD_NUM_DEVICES=8"):
            interop.from_jax(x)


def test_uneven_shardings_have_no_jax_form_unless_they_divide() -> None:
    ours = meshard.NamedSharding(
        meshard.Mesh(np.array(meshard.devices()), ("x",)), meshard.P("x"), uneven="balanced"
    )
    with pytest.raises(errors.ArgumentError, match="Pass shape="):
        interop.to_jax(ours)
    assert interop.to_jax(ours, (16,)).shard_shape((16,)) == (2,)
    with pytest.raises(errors.ShardingError, match=r"these have \(1,\), \(2,\)"):
        interop.to_jax(ours, (10,))
    devices = meshard.devices()
    halves = meshard.sharding.BoxSharding(
        (4, 4),
        {
            devices[0]: (slice(0, 2), slice(0, 4)),
            devices[1]: (slice(1, 3), slice(0, 4)),
            devices[2]: (slice(2, 4), slice(0, 4)),
        },
    )
    with pytest.raises(errors.ShardingError, match="these boxes do not"):
        interop.to_jax(halves)


def test_refused_shardings() -> None:
    with pytest.raises(errors.ArgumentError, match="expected a JAX sharding, got 3"):
        interop.to_meshard(3)
    with pytest.raises(errors.ArgumentError, match="expected a meshard sharding"):
        interop.to_jax(named(P()))
    abstract = jax.sharding.AbstractMesh((2,), ("i",))
    with pytest.raises(errors.ShardingError, match="AbstractMesh, which has no devices"):
        interop.to_meshard(jax.sharding.NamedSharding(abstract, P("i")))
    partial = jax.sharding.NamedSharding(jax.make_mesh((4, 2), ("i", "j")), P("i", unreduced={"j"}))
    with pytest.raises(errors.ShardingError, match="unreduced over j"):
        interop.to_meshard(partial)
    free = interop.to_meshard(named(P(P.UNCONSTRAINED)))
    with pytest.raises(errors.SpecError, match="unconstrained"):
        free.layout((8,))
    far = meshard.sharding.SingleDeviceSharding(meshard.Device(77))
    with pytest.raises(errors.ShardingError, match="no JAX device of id 77; JAX has the ids 0, 1"):
        interop.to_jax(far)


# reshard

TARGETS = [
    lambda: named(P("j", "i")),
    lambda: named(P(None, ("i", "j"))),
    lambda: named(P()),
    lambda: named(P("i", "j"), mesh([6, 1, 4, 3, 2, 5, 0, 7])),
    lambda: named(P("t"), mesh([4, 5, 6, 7], (4,), ("t",))),
    lambda: named(P(None, "t"), mesh([2, 9 % 8], (2,), ("t",))),
    lambda: named(P("a", "c"), mesh(range(8), (2, 2, 2), ("a", "b", "c"))),
    lambda: named(P("j"), memory_kind="pinned_host"),
    lambda: alone(3),
    lambda: gspmd(P("j", "i"), 2),
]
SOURCES = [
    lambda: named(P("i", "j")),
    lambda: named(P("i")),
    lambda: named(P()),
    lambda: named(P(None, "t"), mesh([1, 0, 3, 2], (4,), ("t",))),
    lambda: alone(2),
    lambda: gspmd(P("i"), 2),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_reshard_is_bitwise(source: Any, target: Any) -> None:
    value = values((16, 8))
    x = jax.device_put(value, source())
    check(interop.reshard(x, target()), value, target())
    assert bits(x) == value.tobytes()


def test_large_arrays() -> None:
    value = values((2048, 1024))
    x = jax.device_put(value, named(P("i", "j")))
    for target in (named(P("j", "i")), named(P(), mesh([5], (1,), ("x",))), named(P("j"))):
        check(interop.reshard(x, target), value, target)


DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint32", "int32", "float16", "float32", "complex64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: Any) -> None:
    value = values((16, 8), dtype)
    x = jax.device_put(value, named(P("i", "j")))
    check(interop.reshard(x, named(P("j", "i"))), value, named(P("j", "i")))
    ours = interop.from_jax(x)
    assert ours.dtype == value.dtype
    assert bits(ours) == value.tobytes()
    check(interop.as_jax(ours), value, x.sharding)


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_64_bits_stay_where_the_array_has_them(dtype: str) -> None:
    value = values((16, 8), dtype)
    with jax.enable_x64(True):
        x = jax.device_put(value, named(P("i", "j")))
    check(interop.reshard(x, named(P("j", "i"))), value, named(P("j", "i")))
    ours = interop.from_jax(x)
    assert bits(ours) == value.tobytes()
    with pytest.raises(errors.DtypeError, match="jax_enable_x64"):
        interop.as_jax(ours)
    with jax.enable_x64(True):
        check(interop.as_jax(ours), value, x.sharding)


def test_dtypes_that_jax_lacks() -> None:
    x = meshard.device_put(np.zeros(3, np.longdouble))
    with pytest.raises(errors.DtypeError, match="long double, which JAX does not have"):
        interop.as_jax(x)


@pytest.mark.parametrize(
    ("shape", "source", "target"),
    [
        ((), P(), P()),
        ((0,), P("i"), P()),
        ((0, 8), P("i", "j"), P("j", "i")),
        ((8, 0, 2), P("i"), P(None, "i", "j")),
        ((1,), P(), P(None)),
    ],
)
def test_ranks_and_sizes_at_the_edge(shape: Any, source: Any, target: Any) -> None:
    value = values(shape)
    x = jax.device_put(value, named(source))
    check(interop.reshard(x, named(target)), value, named(target))
    check(interop.reshard(x, alone(1)), value, alone(1))
    check(interop.as_jax(interop.from_jax(x)), value, named(source))


def test_typed_keys_move_and_go_on_as_keys() -> None:
    keys = jax.random.split(jax.random.key(3), (8, 4))
    x = jax.device_put(keys, named(P("i", "j")))
    y = interop.reshard(x, named(P("j", "i")))
    assert y.dtype == keys.dtype
    assert y.sharding == named(P("j", "i"))
    np.testing.assert_array_equal(jax.random.key_data(y), jax.random.key_data(keys))
    for shard in y.addressable_shards:
        found = jax.random.key_data(shard.data)
        np.testing.assert_array_equal(found, jax.random.key_data(keys)[shard.index])
    one = interop.reshard(jax.random.key(1), alone(4))
    assert jax.random.uniform(one) == jax.random.uniform(jax.random.key(1))
    with pytest.raises(errors.DtypeError, match=r"jax.random.key_data\(x\)"):
        interop.from_jax(x)
    with pytest.raises(errors.DtypeError, match=r"meshard.random.key_data\(x\)"):
        interop.as_jax(meshard.random.key(0))


def test_weak_types_stay_weak() -> None:
    x = jax.numpy.sin(1.0)
    assert x.weak_type
    y = interop.reshard(x, named(P()))
    assert y.weak_type
    assert (y + jax.device_put(np.ones((), ml_dtypes.bfloat16), named(P()))).dtype == "bfloat16"


def test_trees_move_jointly_by_a_prefix() -> None:
    value = values((16, 8))
    x = jax.device_put(value, named(P("i", "j")))
    tree = {"a": [x, x], "b": (x, None), "c": x}
    moved = interop.reshard(tree, {"a": named(P("j")), "b": jax.devices("cpu")[2], "c": None})
    check(moved["a"][0], value, named(P("j")))
    check(moved["a"][1], value, named(P("j")))
    check(moved["b"][0], value, alone(2))
    assert moved["b"][1] is None
    assert moved["c"] is x
    with pytest.raises(errors.TreeError, match="must be a prefix of the tree of arrays"):
        interop.reshard(tree, {"a": named(P())})


def test_results_are_usable_by_jax() -> None:
    value = np.arange(128, dtype=np.int32).reshape(16, 8)
    y = interop.reshard(jax.device_put(value, named(P("i"))), named(P("j", "i")))
    np.testing.assert_array_equal(jax.jit(lambda v: v * 2 + v.sum())(y), value * 2 + value.sum())


# memory


def pointers(x: Any) -> set[int]:
    return {s.data.unsafe_buffer_pointer() for s in x.addressable_shards}


def test_whole_shards_are_shared_and_replicas_are_one_buffer() -> None:
    x = jax.device_put(values((1024, 64)), named(P("i", "j")))
    same_pieces = interop.reshard(x, named(P("i", "j"), mesh(range(7, -1, -1))))
    assert pointers(same_pieces) == pointers(x)
    assert len(pointers(interop.reshard(x, named(P())))) == 1
    whole = jax.device_put(values((1024, 64)), named(P()))
    sliced = interop.reshard(whole, named(P("i")))
    first = whole.addressable_shards[0].data.unsafe_buffer_pointer()
    assert pointers(sliced) == {first + k * 256 * 64 * 4 for k in range(4)}


def test_a_small_part_of_a_shard_does_not_keep_it_alive() -> None:
    x = jax.device_put(values((1024, 64)), named(P("t"), mesh([0, 1], (2,), ("t",))))
    part = interop.reshard(jax.device_put(values((4096,)), alone(0)), named(P("i")))
    assert len(pointers(part)) == 4
    assert interop.reshard(x, x.sharding) is x


def test_sharing_memory_is_never_seen() -> None:
    value = values((1024, 64), np.int32)
    twice = jax.jit(lambda v: v + 1, donate_argnums=0)
    there = named(P("i", "j"), mesh(range(7, -1, -1)))
    for donated in ("source", "result"):
        x = jax.jit(lambda v: v * 1)(jax.device_put(value, named(P("i", "j"))))
        y = interop.reshard(x, there)
        assert pointers(x) == pointers(y)
        gone, kept = (x, y) if donated == "source" else (y, x)
        jax.block_until_ready(twice(gone))
        assert bits(kept) == value.tobytes()
    x = jax.jit(lambda v: v * 1)(jax.device_put(value, named(P("i", "j"))))
    y, ours = interop.reshard(x, there), interop.from_jax(x)
    x.delete()
    del x
    jax.block_until_ready([twice(jax.device_put(value, named(P("i", "j")))) for _ in range(20)])
    assert bits(y) == value.tobytes()
    assert bits(ours) == value.tobytes()


def test_donation_deletes_when_all_have_moved() -> None:
    value = values((1024, 64))
    x, other = (jax.device_put(value, named(P("i", "j"))) for _ in range(2))
    kept = jax.device_put(value, named(P("j", "i")))
    moved = interop.reshard([x, x, other, kept], named(P("j", "i")), donate=True)
    assert x.is_deleted()
    assert other.is_deleted()
    assert moved[3] is kept
    assert not kept.is_deleted()
    for y in moved:
        check(y, value, named(P("j", "i")))
    with pytest.raises(errors.DeletedArrayError, match="has been deleted or donated"):
        interop.reshard(x, named(P()))
    with pytest.raises(errors.DeletedArrayError, match="from_jax: the JAX array"):
        interop.from_jax(x)


def test_failures_leave_the_source_intact() -> None:
    value = values((16, 8))
    x = jax.device_put(value, named(P("i", "j")))
    odd = jax.device_put(values((6, 8)), named(P(None, "j")))
    with pytest.raises(errors.IndivisibleError, match="should be divisible by 4"):
        interop.reshard([x, odd], named(P("i")), donate=True)
    with pytest.raises(errors.SpecError, match="only valid for arrays of rank at least 3"):
        interop.reshard(x, named(P("i", "j", None)), donate=True)
    with pytest.raises(errors.IndivisibleError, match="does not lay out the shape"):
        interop.reshard(odd, gspmd(P("i"), 2), donate=True)
    with pytest.raises(errors.BudgetError), meshard.debug.budget(10):
        interop.reshard([x, odd], named(P()), donate=True)
    assert bits(x) == value.tobytes()
    assert not odd.is_deleted()


def test_wrong_kinds() -> None:
    x = jax.device_put(values((16, 8)), named(P("i", "j")))
    with pytest.raises(errors.ArgumentError, match="expected JAX arrays, got a ndarray"):
        interop.reshard(np.zeros(3), named(P()))
    with pytest.raises(errors.ArgumentError, match=r"got a Array\. .*interop\.jax\.as_jax"):
        interop.reshard(meshard.numpy.zeros(3), named(P()))
    with pytest.raises(errors.ArgumentError, match="give JAX shardings or devices"):
        interop.reshard(x, interop.to_meshard(named(P())))
    with pytest.raises(errors.ArgumentError, match="expected JAX arrays, got a list"):
        interop.from_jax([x])
    with pytest.raises(errors.ArgumentError, match="expected a meshard Array, got a ArrayImpl"):
        interop.as_jax(x)
    with pytest.raises(errors.ConcretizationError, match="inside a transformation of JAX"):
        jax.jit(lambda v: interop.reshard(v, named(P())))(x)
    with pytest.raises(errors.ConcretizationError, match="from_jax"):
        jax.jit(lambda v: interop.from_jax(v).shape[0])(x)


class Accelerator:
    """Stands for a device of another platform; there may be none here."""

    platform = "gpu"

    def __str__(self) -> str:
        return "cuda:0"


def test_other_platforms_are_refused() -> None:
    from meshard.interop.jax_buffers import BufferRoute

    class There:
        is_fully_addressable = True
        device_set = (Accelerator(),)

    with pytest.raises(errors.ShardingError, match=r"cuda:0 is not a CPU device\. Use"):
        BufferRoute("reshard: float32[4]", (4,), There(), alone(0))


# plans and ledgers


def test_plans() -> None:
    x = jax.device_put(values((8, 8)), named(P("i", "j")))
    plan = interop.plan_reshard({"w": x}, named(P("j", "i")))
    assert plan.leaves[0].name == "w"
    assert (plan.bytes_moved, plan.lower_bound_bytes) == (48 * 4, 48 * 4)
    shape = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=named(P("i", "j")))
    assert interop.plan_reshard(shape, named(P("i", "j"))).bytes_moved == 0
    with pytest.raises(errors.ArgumentError, match="w is a ShapeDtypeStruct that carries no"):
        interop.plan_reshard({"w": jax.ShapeDtypeStruct((8, 8), np.float32)}, named(P()))
    assert interop.plan_reshard({"w": x, "n": None}, None).bytes_moved == 0


def test_the_ledger_notes_what_moves() -> None:
    x = jax.device_put(values((8, 8)), named(P("i", "j")))
    with meshard.debug.ledger() as log:
        interop.reshard(x, named(P("j", "i")))
        interop.reshard(jax.device_put(jax.random.key(0), alone(0)), alone(1))
    assert log.total_bytes == 48 * 4 + 8
    assert "jax reshard" in str(log)


# arrays


@pytest.mark.parametrize("source", SOURCES)
def test_arrays_pass_to_meshard_and_back(source: Any) -> None:
    value = values((16, 8))
    x = jax.device_put(value, source())
    ours = interop.from_jax(x)
    assert bits(ours) == value.tobytes()
    assert ours.committed
    assert [s.device.id for s in ours.addressable_shards] == [
        s.device.id for s in x.addressable_shards
    ]
    back = interop.as_jax(ours)
    assert back.sharding.is_equivalent_to(x.sharding, 2)
    assert bits(back) == value.tobytes()
    np.testing.assert_array_equal(ours == ours.T.T, value == value)


def test_large_blocks_pass_without_a_copy() -> None:
    x = jax.device_put(values((2048, 512)), named(P("i", "j")))
    ours = interop.from_jax(x)
    assert {s.data.unsafe_buffer_pointer() for s in ours.addressable_shards} == pointers(x)
    moved = meshard.device_put(ours, interop.to_meshard(named(P("j", "i"))))
    back = interop.as_jax(moved)
    assert pointers(back) == {s.data.unsafe_buffer_pointer() for s in moved.addressable_shards}
    check(back, np.asarray(x), named(P("j", "i")))


def test_donating_either_side_leaves_the_other() -> None:
    value = values((2048, 512))
    ours = meshard.device_put(value, interop.to_meshard(named(P("i", "j"))))
    theirs = interop.as_jax(ours)
    assert pointers(theirs) == {s.data.unsafe_buffer_pointer() for s in ours.addressable_shards}
    moved = meshard.reshard(ours, interop.to_meshard(named(P("j", "i"))), donate=True)
    assert ours.is_deleted()
    assert bits(theirs) == value.tobytes()
    back = interop.from_jax(theirs)
    interop.reshard(theirs, named(P()), donate=True)
    assert theirs.is_deleted()
    assert bits(back) == value.tobytes()
    again = meshard.reshard(back, interop.to_meshard(named(P("j"))), donate=True)
    assert bits(again) == bits(moved) == value.tobytes()


def test_uncommitted_arrays_stay_so() -> None:
    assert not interop.from_jax(jax.numpy.arange(3)).committed


def test_arrays_that_have_no_form_on_the_other_side() -> None:
    ours = meshard.device_put(
        np.arange(10, dtype=np.int32),
        meshard.NamedSharding(
            meshard.Mesh(np.array(meshard.devices()), ("x",)), meshard.P("x"), uneven="balanced"
        ),
    )
    with pytest.raises(errors.ShardingError, match="Reshard to an even NamedSharding first"):
        interop.as_jax(ours)
    ours.delete()
    with pytest.raises(errors.DeletedArrayError):
        interop.as_jax(ours)


def test_in_two_processes_each_takes_its_own_part() -> None:
    value = values((16, 8))

    def body() -> None:
        x = jax.device_put(value, named(P("i", "j")))
        ours = interop.from_jax(x)
        for shard in ours.addressable_shards:
            assert bits(shard.data) == value[shard.index].tobytes()
        everywhere = meshard.device_put(ours, interop.to_meshard(named(P())))
        check(interop.as_jax(everywhere), value, named(P()))
        if meshard.process_count() > 1:
            with pytest.raises(errors.NotAddressableError, match="of the 8 pieces"):
                interop.as_jax(ours)

    in_worlds(body)


ELSEWHERE = """
    import sys
    import jax, numpy as np
    from meshard import errors
    from meshard.interop import jax as interop
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
    P = jax.sharding.PartitionSpec
    there = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("x",)), P("x"))
    x = jax.make_array_from_callback((4,), there, lambda i: np.arange(4, dtype=np.int32)[i])
    here = jax.numpy.arange(4)
    for call in (
        lambda: interop.reshard(x, jax.local_devices()[0]),
        lambda: interop.reshard(here, there),
        lambda: interop.from_jax(x),
    ):
        try:
            call()
        except errors.NotAddressableError as error:
            print("refused:", error)
    plan = interop.plan_reshard(x, there)
    print("planned", plan.bytes_moved)
"""


def test_arrays_of_several_jax_processes_are_refused() -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(ELSEWHERE), address, str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    for process in running:
        told, _ = process.communicate(timeout=100)
        assert told.count("refused:") == 3, told
        assert "of which this process has 2" in told
        assert "planned 0" in told


# without JAX


def test_without_jax_the_import_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['jax'] = None\n"
        "import meshard\n"
        "try: import meshard.interop.jax\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'meshard[jax]'" in done.stdout, done.stderr


def test_public_names_are_documented() -> None:
    for name in interop.__all__:
        assert getattr(interop, name).__doc__
