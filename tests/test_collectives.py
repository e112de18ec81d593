"""Collectives on cells: what is shared, what crosses between processes, what the ledger says."""

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard.debug import budget, ledger
from meshard.errors import ArgumentError, BudgetError
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, NamedSharding, P
from meshard.transforms.body.body import COLLECTIVES
from tests.watch import watched
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

LARGE = np.arange(8 * 64 * 64.0).reshape(8 * 64, 64)
ALL = ("i", "j")


def run(body, x=LARGE, ins=None, outs=None, on=None, **options):
    """Return a body's result on each device of a mesh, stacked."""
    on = on or mesh()
    ins = P(ALL) if ins is None else ins
    outs = P(on.axis_names) if outs is None else outs
    return meshard.shard_map(body, mesh=on, in_specs=ins, out_specs=outs, **options)(x)


def blocks(x):
    return {s.device.id: np.asarray(s.data) for s in x.addressable_shards}


# references


@in_worlds
def test_a_sum_is_one_block_for_all_devices():
    total = run(lambda x: lax.psum(x, ALL), outs=P())
    first, *others = blocks(total).values()
    assert all(np.shares_memory(first, b) for b in others)
    np.testing.assert_array_equal(first, LARGE.reshape(8, 64, 64).sum(0))


def test_sums_along_one_axis_are_one_block_per_group():
    def body():
        found = blocks(run(lambda x: lax.psum(x, "i"), outs=P("j")))
        return [[np.shares_memory(found[a], found[b]) for b in range(8)] for a in range(8)]

    shared = alone(body)
    assert shared == [[a % 2 == b % 2 for b in range(8)] for a in range(8)]


@pytest.mark.parametrize("how", ["ppermute", "pshuffle", "pbroadcast", "invariant", "pcast"])
def test_blocks_change_hands_and_nothing_is_copied(how):
    bodies = {
        "ppermute": (lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]), "ij"),
        "pshuffle": (lambda x: lax.pshuffle(x, ALL, [7, 6, 5, 4, 3, 2, 1, 0]), "ij"),
        "pbroadcast": (lambda x: lax.pbroadcast(x, ALL, 5), ""),
        "invariant": (lambda x: lax.pmax(lax.pbroadcast(x, "i", 1), "i"), "j"),
        "pcast": (lambda x: lax.pvary(lax.pbroadcast(x, ALL, 2), ALL), "ij"),
    }
    body, axes = bodies[how]

    def test():
        x = put(LARGE, ALL)
        with watched() as seen:
            y = run(body, x, outs=P(tuple(axes) or None))
        origins = {
            "ppermute": lambda d: (d - 2) % 8,
            "pshuffle": lambda d: 7 - d,
            "pbroadcast": lambda d: 5,
            "invariant": lambda d: 2 + d % 2,
            "pcast": lambda d: 2,
        }
        before, after = blocks(x), blocks(y)
        assert not seen.blocks
        return [np.shares_memory(after[d], before[origins[how](d)]) for d in range(8)]

    assert alone(test) == [True] * 8


@in_worlds
def test_what_is_gathered_is_one_block_in_each_process():
    found = blocks(run(lambda x: lax.all_gather(x, ALL, tiled=True)[None])).values()
    first, *others = found
    assert all(np.shares_memory(first, b) for b in others)


@in_worlds
def test_devices_that_receive_nothing_hold_zeros():
    x = run(lambda x: lax.ppermute(x + 1, ALL, [(3, 0), (0, 7)]), np.arange(8.0))
    assert whole(x).tolist() == [4, 0, 0, 0, 0, 0, 0, 1]
    ints = run(lambda x: lax.ppermute(x, "j", [(1, 0)]), np.arange(8))
    assert whole(ints).tolist() == [1, 0, 3, 0, 5, 0, 7, 0]
    assert ints.dtype == np.int64
    bools = run(lambda x: lax.ppermute(x > 0, ALL, []), np.arange(8))
    assert not whole(bools).any()
    assert bools.dtype == np.bool_


@in_worlds
def test_results_cannot_be_written_to():
    for body in (
        lambda x: lax.psum(x, "i") + 0 * x,
        lambda x: lax.psum(x, ALL) + lax.pvary(x * 0, ()),
        lambda x: lax.ppermute(x, "i", [(0, 1)]),
        lambda x: lax.all_gather(x, "j", tiled=True),
    ):
        for block in blocks(run(body)).values():
            with pytest.raises(ValueError, match="read-only"):
                block[0] = 1


# bytes that cross between processes

B = 64 * 64 * 8
"""Bytes of one device's block."""

COSTS = {
    # name: body, and for 8 processes of 1 device and 2 of 4 the blocks that all of them send
    "all_gather": (lambda x: lax.all_gather(x, ALL, tiled=True), 8 * 7, 2 * 4),
    "all_gather_invariant": (lambda x: lax.all_gather_invariant(x, ALL)[0], 8 * 7, 2 * 4),
    "all_gather i": (lambda x: lax.all_gather(x, "i"), 8 * 3, 2 * 4),
    "all_gather j": (lambda x: lax.all_gather(x, "j"), 8 * 1, 0),
    "all_to_all": (lambda x: lax.all_to_all(x, ALL, 0, 1, tiled=True), 7, 4),
    "all_to_all i": (lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True), 8 * 3 / 4, 8 / 2),
    "all_to_all j": (lambda x: lax.all_to_all(x, "j", 1, 1, tiled=True), 8 / 2, 0),
    "psum_scatter": (lambda x: lax.psum_scatter(x, ALL, tiled=True), 7, 4),
    "psum_scatter i": (lambda x: lax.psum_scatter(x, "i", tiled=True), 8 * 3 / 4, 8 / 2),
    # Shares are summed in the order of the mesh, each on one device, and then sent.
    "psum": (lambda x: lax.psum(x, ALL), 14, 4 + 1),
    "psum j": (lambda x: lax.psum(x, "j"), 8, 0),
    "pmax i": (lambda x: lax.pmax(x, "i"), 8 * 3 / 4 * 2, 8 / 2 + 2),
    "pmin i": (lambda x: lax.pmin(x, "i"), 8 * 3 / 4 * 2, 8 / 2 + 2),
    "ppermute": (lambda x: lax.ppermute(x, ALL, [(k, (k + 1) % 8) for k in range(8)]), 8, 2),
    "ppermute one": (lambda x: lax.ppermute(x, ALL, [(0, 7), (2, 2), (1, 2)][:2]), 1, 1),
    "ppermute j": (lambda x: lax.ppermute(x, "j", [(0, 1), (1, 0)]), 8, 0),
    "pbroadcast": (lambda x: lax.pbroadcast(x, ALL, 3), 7, 1),
    "pbroadcast i": (lambda x: lax.pbroadcast(x, "i", 3), 6, 2),
    "nothing varies": (lambda x: lax.psum(lax.pvary(mnp.ones((64, 64)), ALL), ALL), 0, 0),
    "an index": (lambda x: lax.axis_index(ALL) + x, 0, 0),
    "a sum of a sum": (lambda x: lax.psum(lax.psum(x, "j"), "j"), 8, 0),
}


def test_every_collective_has_a_cost():
    elsewhere = {"ragged_all_to_all"}  # whose values decide it: in test_ragged
    sends_nothing = {"axis_index", "pcast"}
    costed = {name.split()[0] for name in COSTS}
    assert set(COLLECTIVES) - costed - elsewhere - sends_nothing == set(), "give it a cost above"


@pytest.mark.parametrize("name", COSTS)
def test_what_crosses_is_what_is_needed(name):
    body, alone_each, four_each = COSTS[name]

    def program():
        x = put(LARGE, ALL)
        with watched() as seen, ledger() as log:
            run(lambda x: mnp.asarray(body(x))[None], x)
        return seen.sent, log.total_bytes

    # On hosts of their own, since replicas on one host are one memory.
    found = simulate(8, 1, program, deadline=30, hosts=range(8))
    assert sum(sent for sent, _ in found) == alone_each * B
    # With a device to each process the ledger's figures are what really is sent.
    assert {total for _, total in found} == {alone_each * B}
    found = simulate(2, 4, program, deadline=30, hosts=range(2))
    assert sum(sent for sent, _ in found) == four_each * B
    assert {total for _, total in found} == {alone_each * B}


def test_replicas_send_to_their_own():
    """A value that is the same along ``j`` is not sent between the devices along it."""

    def program():
        x = put(LARGE, "i")
        with watched() as seen:
            run(lambda x: lax.ppermute(x, "i", [(0, 1), (1, 0)]), x, P("i"), P("i"))
            run(lambda x: lax.all_gather(x, "j"), x, P("i"), P(ALL))
        return seen.sent

    assert simulate(2, 4, program, deadline=30) == [0, 0]
    assert sum(simulate(4, 2, program, deadline=30)) == 2 * 2 * B


# the ledger


@in_worlds
def test_each_collective_is_one_record():
    x = put(LARGE, ALL)
    groups = [[0, 2], [3, 1]]
    bodies = [
        lambda x: lax.psum(x, "i"),
        lambda x: lax.pmean(x, "i", axis_index_groups=groups),
        lambda x: lax.all_gather(x, "i", axis_index_groups=groups),
        lambda x: lax.psum(x, ("j", "i")),
        lambda x: lax.ppermute(x, "j", [(0, 1)]),
        lambda x: lax.pbroadcast(x, "j", 0),
        lambda x: lax.psum_scatter(x, "j", tiled=True),
        lambda x: lax.all_to_all(x, "j", 0, 0, tiled=True),
    ]
    found = []
    for body in bodies:
        with ledger() as log:
            run(lambda x, body=body: body(x)[None], x, check_vma=False)
        (record,) = log
        assert "test_collectives.py" in record.line
        found.append((record.what, record.kind, record.axes, record.total_bytes / B))
    assert found == [
        ("psum", "all-reduce", ("i",), 8 * 1.5),
        ("psum", "all-reduce", ("i",), 8.0),
        ("all_gather", "all-gather", ("i",), 8.0),
        ("psum", "all-reduce", ("j", "i"), 14.0),
        ("ppermute", "permute", ("j",), 4.0),
        ("pbroadcast", "broadcast", ("j",), 4.0),
        ("psum_scatter", "reduce-scatter", ("j",), 4.0),
        ("all_to_all", "all-to-all", ("j",), 4.0),
    ]


@in_worlds
def test_a_budget_refuses_groups_together():
    """Two groups that would fit one by one: neither is noted, and nothing moves."""
    x = put(LARGE, ALL)
    body = lambda x: lax.all_gather(x, "i", axis_index_groups=[[0, 2], [3, 1]])[None]  # noqa: E731
    with watched() as seen, budget(6 * B) as used, pytest.raises(BudgetError, match="all_gather"):
        run(body, x, check_vma=False)
    assert (seen.sent, used.total_bytes, len(used)) == (0, 0, 0)


@in_worlds
def test_automatic_axes_are_one_record_with_all_bytes():
    """A device holds a part of each cell, and receives that part."""
    x = put(LARGE, "i", "j")
    with ledger() as log:
        run(lambda x: lax.all_gather(x, "i"), x, P("i"), P("i"), axis_names={"i"})
    (record,) = log
    assert (record.kind, record.total_bytes, record.bytes_per_device) == (
        "all-gather",
        8 * 3 * B,
        3 * B,
    )


def test_under_a_condition_only_groups_that_come_are_counted():
    def body():
        x = put(LARGE, ALL)
        with ledger() as log:
            y = run(
                lambda x: lax.cond(
                    lax.axis_index("i") == 1, lambda x: lax.psum(x, "j"), lambda x: x, x
                ),
                x,
            )
        return whole(y), [(r.what, r.total_bytes // B) for r in log if r.what == "psum"]

    found, log = alone(body)
    expected = LARGE.reshape(4, 2, 64, 64).copy()
    expected[1] = expected[1].sum(0)
    np.testing.assert_array_equal(found.reshape(4, 2, 64, 64), expected)
    assert log == [("psum", 2)]


@in_worlds
def test_a_collective_over_the_axis_of_a_condition_is_refused():
    for call in (
        lambda x: lax.psum(x, "i"),
        lambda x: lax.all_gather(x, ALL)[0],
        lambda x: lax.ppermute(x, "i", [(0, 1)]),
        lambda x: lax.ragged_all_to_all(x, x, *[mnp.zeros(8, int)] * 4, axis_name="i"),
    ):
        with pytest.raises(ArgumentError, match=r"a condition which varies over the mesh axis 'i'"):
            run(
                lambda x, call=call: lax.cond(
                    lax.axis_index("i") == 1, lambda x: lax.pvary(call(x), ALL), lambda x: x, x
                )
            )


# bits


def test_sums_are_taken_in_the_order_of_the_mesh():
    x = np.random.default_rng(0).normal(size=(8, 1000)) * 10.0 ** np.arange(-4, 4)[:, None]

    def body(order):
        on = Mesh(np.array(meshard.devices())[order].reshape(4, 2), ALL)
        return whole(run(lambda x: lax.psum(x, ("j", "i")), x, outs=P(), on=on))

    expected = x[0]
    for i in (2, 4, 6, 1, 3, 5, 7):
        expected = expected + x[i]
    for order in (range(8), [3, 1, 0, 2, 7, 6, 4, 5]):
        found = everywhere(lambda order=order: body(list(order)))
        assert found[0].tobytes() == expected.tobytes()


def test_one_device_and_axes_of_size_one():
    def body():
        on = meshard.make_mesh((1, 1), ALL)
        x = meshard.device_put(np.arange(4.0), NamedSharding(on, P(ALL)))
        with watched() as seen, ledger() as log:
            found = [
                run(lambda x, f=f: f(x), x, outs=P(ALL), on=on)
                for f in (
                    lambda x: lax.psum(x, ALL),
                    lambda x: lax.all_gather(x, "i")[0],
                    lambda x: lax.all_to_all(x, "j", 0, 0, tiled=True),
                    lambda x: lax.psum_scatter(x, "j", tiled=True),
                    lambda x: lax.ppermute(x, ALL, [(0, 0)]),
                    lambda x: x + lax.axis_index(ALL),
                )
            ]
        assert not log.records
        assert not seen.sent
        return [np.asarray(f).tolist() for f in found]

    assert alone(body, 1) == [[0, 1, 2, 3]] * 6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_short_floats_are_added_in_float32(dtype):
    """As in all sums; rounding after each device would lose what is small."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(0).normal(size=(8, 300)).astype(kind)
    expected = x.astype(np.float32)[0]
    for row in x[1:]:
        expected = expected + row.astype(np.float32)
    expected = expected.astype(kind)

    def body():
        return [
            whole(run(lambda x: lax.psum(x, ALL), x, outs=P())),
            whole(
                run(
                    lambda x: lax.psum_scatter(x[:, :296], ALL, scatter_dimension=1, tiled=True),
                    x,
                    outs=P(None, ALL),
                )
            ),
            whole(run(lambda x: lax.psum(x[0, 0], ALL), x, outs=P())),
        ]

    total, parts, scalar = everywhere(body)
    assert total[0].tobytes() == expected.tobytes()
    assert parts[0].tobytes() == expected[:296].tobytes()
    assert scalar == expected[0]


def test_on_automatic_axes_all_processes_note_all_parts():
    """Also what operations and moves cause on parts that other processes hold."""

    def body(axis):
        other = "j" if axis == "i" else "i"
        x = put(LARGE, axis, other)
        with ledger() as log:

            def step(x):
                rows = x.sum(1, keepdims=True)
                turned = x.T @ x
                joined = lax.all_to_all(x, axis, 1, 0, tiled=True)
                return turned.sum() + rows.sum() + joined[:3].sum() + mnp.sort(x, 1).max()

            found = run(lambda x: step(x)[None], x, P(axis), P(axis), axis_names={axis})
        return whole(found), [
            (r.what, r.kind, r.axes, r.total_bytes, sorted(r.received.items())) for r in log
        ]

    for axis in ("i", "j"):
        found, log = everywhere(lambda axis=axis: body(axis))
        assert {what for what, *_ in log} >= {"sum", "contract", "all_to_all", "sort"}
        assert all(len(received) == 8 for *_, received in log[:2])
        assert len(found) == (4 if axis == "i" else 2)


def test_on_automatic_axes_a_budget_refuses_everywhere_before_anything_moves():
    def body():
        x = put(LARGE, "i", "j")
        mapped = lambda: run(lambda x: x @ x.T, x, P("i"), P("i"), axis_names={"i"})  # noqa: E731
        with ledger() as log:
            mapped()
        with (
            watched() as seen,
            budget(log.total_bytes - 1) as used,
            pytest.raises(BudgetError, match=r"contract at .*test_collectives"),
        ):
            mapped()
        with budget(log.total_bytes):
            mapped()
        return seen.sent, len(used)

    assert everywhere(body) == (0, 0)
