"""shard_map: what a body sees, what is refused, and what stays when it raises."""

import functools
import gc
import io
import re
import threading
from contextlib import redirect_stdout

import numpy as np
import pytest

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard.debug import budget, ledger
from meshard.errors import (
    ArgumentError,
    AxisNameError,
    BudgetError,
    ConcretizationError,
    DeletedArrayError,
    IndivisibleError,
    ReplicationError,
    ShardingError,
    SpecError,
    TreeError,
)
from meshard.runtime.doors import innermost
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from tests.watch import watched
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

V = np.arange(64.0).reshape(8, 8)


ROWS, TILES = P("i"), P("i", "j")


def over(body, ins=TILES, outs=TILES, **options):
    """Return a body mapped over the 4 x 2 mesh."""
    return meshard.shard_map(body, mesh=mesh(), in_specs=ins, out_specs=outs, **options)


# what a body sees


@in_worlds
def test_a_body_runs_once_and_prints_the_local_shape():
    seen = []

    def body(x):
        seen.append((x.shape, x.dtype, x.ndim, x.size, len(x), str(x.aval)))
        return x

    out = over(body)(V)
    assert seen == [((2, 4), np.float64, 2, 8, 2, "float64[2,4]{V:(i,j)}")]
    assert out.sharding == NamedSharding(mesh(), P("i", "j"))
    np.testing.assert_array_equal(whole(out), V)


def test_printing_shows_shape_axes_and_the_values_of_each_device():
    def body():
        text = io.StringIO()
        with redirect_stdout(text):
            meshard.shard_map(
                lambda x: (
                    (print(x), print(x.shape), print(f"{x.sum()}"), print(lax.psum(x, "i"))) and x
                ),
                mesh=meshard.make_mesh((2,), ("i",)),
                in_specs=P("i"),
                out_specs=P("i"),
            )(np.arange(4))
        return text.getvalue()

    assert alone(body) == (
        "int64[2]{V:i}\nat (i) = (0):\n  [0 1]\nat (i) = (1):\n  [2 3]\n"
        "(2,)\n"
        "int64[]{V:i}\nat (i) = (0):\n  1\nat (i) = (1):\n  5\n"
        "int64[2]\n  [2 4]\n"
    )


@in_worlds
def test_results_may_be_numbers_and_host_arrays():
    def body(x):
        return 3, np.arange(4), 2.5, True, None, {"a": mnp.ones(2)}

    three, host, half, true, none, tree = over(body, outs=P())(V)
    assert (int(three), whole(host).tolist(), float(half), bool(true), none) == (
        3,
        [0, 1, 2, 3],
        2.5,
        True,
        None,
    )
    assert whole(tree["a"]).tolist() == [1, 1]
    assert all(x.sharding.spec == P() for x in (three, host, half))
    doubled = over(lambda x: np.arange(4), outs=P(("i", "j")))(V)
    assert whole(doubled).tolist() == [0, 1, 2, 3] * 8


@in_worlds
def test_arguments_lie_anywhere():
    expected = V.reshape(4, 2, 2, 4).sum((1, 3))
    body = over(lambda x: x.sum()[None, None])
    for x in (
        V,
        V.tolist() and mnp.asarray(V),
        put(V),
        put(V, ("j", "i")),
        put(V, None, ("i", "j")),
        put(V, "i", uneven=((0, 1, 5, 6, 8), None)),
        meshard.device_put(V, meshard.devices()[3]),
        meshard.device_put(V, NamedSharding(meshard.make_mesh((8,), ("z",)), P("z"))),
    ):
        np.testing.assert_array_equal(whole(body(x)), expected)


@in_worlds
def test_what_is_unchanged_is_handed_through():
    x, y = put(V, "i", "j"), put(V, "i", None)
    with watched() as seen, ledger() as log:
        same = over(lambda x: x)(x)
        rows = over(lambda x: x, P("i", None), P("i"))(y)
    assert seen.sent == 0
    assert not seen.blocks
    assert not log.records
    for a, b in zip(x.addressable_shards, same.addressable_shards, strict=True):
        assert np.shares_memory(np.asarray(a.data), np.asarray(b.data))
    np.testing.assert_array_equal(whole(rows), V)


@in_worlds
def test_typed_keys_and_closures_in_a_body():
    key = meshard.random.key(0)
    bias = put(np.arange(8.0), "j")

    def body(x):
        own = meshard.random.fold_in(key, lax.axis_index("i"))
        return x + meshard.random.normal(own, x.shape) + bias[:4]

    found = whole(over(body)(V))
    one, two = found[:2, :4] - V[:2, :4], found[:2, 4:] - V[:2, 4:]
    np.testing.assert_allclose(one, two)
    assert not np.allclose(one, found[2:4, :4] - V[2:4, :4])


@in_worlds
def test_the_mesh_may_come_from_context():
    step = meshard.shard_map(lambda x: lax.psum(x, "j"), in_specs=P("j"), out_specs=P())
    with mesh():
        assert whole(step(np.arange(4.0))).tolist() == [2, 4]
    with meshard.set_mesh(mesh((2, 4), ("j", "i"))):
        assert whole(step(np.arange(4.0))).tolist() == [2, 4]
    with pytest.raises(ShardingError, match="no mesh is given and none is set"):
        step(np.arange(4.0))


@in_worlds
def test_a_shard_map_may_be_a_method():
    class Model:
        scale = 3.0

        @functools.partial(
            meshard.shard_map, mesh=mesh(), in_specs=P("i"), out_specs=P("i"), check_vma=True
        )
        def twice(self):
            """Double it."""
            return self * 2

        def step(self, x):
            return x * self.scale

        mapped = over(lambda self, x: x + 1, (None, P("i")), P("i"))

    assert Model.twice.__name__ == "twice"
    assert Model.twice.__doc__ == "Double it."
    assert whole(Model.twice(np.arange(4.0))).tolist() == [0, 2, 4, 6]
    assert whole(over(Model().step, P("i"), P("i"))(np.ones(4))).tolist() == [3] * 4


@in_worlds
def test_specs_are_inferred_from_arguments():
    x = put(V, "i", None)
    found = meshard.shard_map(lambda x: x[:1], mesh=mesh(), out_specs=P("i"))(x)
    np.testing.assert_array_equal(whole(found), V[::2])


@in_worlds
def test_none_in_in_specs_leaves_what_is_below_whole():
    def body(x, tree):
        assert (x.shape, tree["b"][0].shape, tree["c"]) == ((2, 8), V.shape, None)
        return x + tree["b"][0].sum()

    tree = {"b": [V, 1.0], "c": None}
    for specs in ((P("i"), None), (P("i"), {"b": None, "c": None}), (P("i"), {"b": [None, P()]})):
        given = tree if "c" in (specs[1] or "c") else {"b": tree["b"]}
        found = over(lambda x, t: body(x, {"c": None} | t), specs, P("i"))(V, given)
        np.testing.assert_array_equal(whole(found), V + V.sum())
    np.testing.assert_array_equal(whole(over(lambda x: x[:2], None, P())(V)), V[:2])
    with pytest.raises(TreeError, match=r"out_specs must be a prefix.*got array"):
        over(lambda x: x, P("i"), None)(V)


@in_worlds
def test_older_names_of_options():
    x = over(lambda x: lax.all_gather(x, "i", tiled=True), P("i"), P(), check_rep=False)(V)
    np.testing.assert_array_equal(whole(x), V)
    found = over(lambda x: x.sum(0, keepdims=True), P("i"), P("i"), auto={"j"})(V)
    np.testing.assert_array_equal(whole(found), V.reshape(4, 2, 8).sum(1))


# replication that is claimed and not checked: the first device's value


@pytest.mark.halves
@in_worlds
def test_unchecked_the_first_device_speaks():
    found = over(lambda x: x, P("i"), P(), check_vma=False)(np.arange(8.0))
    assert found.addressable_data(0).tolist() in ([0, 1], [4, 5])  # or this process's first


# refusals


def takes(*, ins=ROWS, outs=ROWS, args=(V,), body=lambda *x: x[0], **options):
    return lambda: over(body, ins, outs, **options)(*args)


REFUSALS = {
    "no such axis in": (
        takes(ins=P("q")),
        SpecError,
        "in_specs refers to 'q' in .*which is not one of the axes that it runs along: 'i', 'j' of",
    ),
    "no such axis out": (takes(outs=P("q")), SpecError, "out_specs refers to 'q'"),
    "an automatic axis": (
        takes(ins=P("j"), axis_names={"i"}),
        SpecError,
        "in_specs refers to 'j'.*the axes that it runs along: 'i' of",
    ),
    "an axis twice": (takes(ins=P("i", "i")), SpecError, "'i' is repeated in .*of in_specs"),
    "an axis twice out": (takes(outs=P(("i", "i"))), SpecError, "'i' is repeated"),
    "too long in": (
        takes(ins=P("i", None, None)),
        SpecError,
        r"in_specs is .* of length 3 for args\[0\].* of shape \(8, 8\), which has rank 2 "
        r"\(and 2 < 3\)",
    ),
    "a scalar": (takes(args=(3.0,)), SpecError, r"For a value without dims the spec is P\(\)"),
    "too long out": (
        takes(outs=P("i", None, None)),
        SpecError,
        r"out_specs is .* of length 3 for the result, float64\[2,8\]\{V:i\}, which has rank 2",
    ),
    "indivisible": (
        takes(args=(np.ones((6, 2)),)),
        IndivisibleError,
        r"args\[0\].* of shape \(6, 2\) has in_specs P.*'i'.*, which splits dim 0 of size 6 over "
        r"the mesh axis 'i' of size 4, but 4 does not evenly divide 6.*Pad the dim by 2",
    ),
    "indivisible over two": (
        takes(ins=P(None, ("j", "i")), args=(np.ones((8, 12)),)),
        IndivisibleError,
        r"dim 1 of size 12 over the mesh axis \('j', 'i'\) of size 8.*Pad the dim by 4",
    ),
    "indivisible in a tree": (
        takes(ins=(P(), {"a": P("i")}), args=(V, {"a": [V, np.ones(3)]}), body=lambda x, y: x),
        IndivisibleError,
        r"args\[1\]\['a'\]\[1\]",
    ),
    "uneven": (
        lambda: over(lambda x: x, P("i"), P("i"))(np.ones(6)),
        IndivisibleError,
        "dim 0 of size 6 over the mesh axis 'i' of size 4",
    ),
    "replication": (
        takes(outs=P()),
        ReplicationError,
        r"out_specs is P.* for the result, which claims that it is the same on all devices along "
        r"the mesh axis 'i', but it varies over 'i': it is float64\[2,8\]\{V:i\}. Name 'i' in the "
        r"spec.*lax.psum, pmean, pmax or all_gather_invariant over 'i'.*check_vma=False",
    ),
    "replication over two": (
        takes(ins=P("i", "j"), outs=P()),
        ReplicationError,
        "the mesh axis 'i', 'j', but it varies over 'i', 'j'",
    ),
    "replication in a tree": (
        takes(body=lambda x: {"a": (lax.psum(x, "i"), x)}, outs=P()),
        ReplicationError,
        r"for the result\['a'\]\[1\]",
    ),
    "gathered replication": (
        takes(body=lambda x: lax.all_gather(x, "i"), outs=P()),
        ReplicationError,
        "varies over 'i'",
    ),
    "too many arguments": (
        takes(ins=(P("i"),), args=(V, V)),
        TreeError,
        "in_specs has 1 entries, but 2 arguments are passed",
    ),
    "too few arguments": (
        takes(ins=(P("i"), P("i"))),
        TreeError,
        "in_specs has 2 entries, but 1 arguments are passed",
    ),
    "a wrong tree in": (
        takes(ins=({"a": P("i")},), args=({"b": V},)),
        TreeError,
        r"in_specs must be a prefix of the tuple of arguments.*'b': array",
    ),
    "a wrong tree out": (
        takes(outs=(P("i"), P("i"))),
        TreeError,
        "out_specs must be a prefix of the result of the body",
    ),
    "keywords": (
        lambda: over(lambda x: x, P("i"), P("i"))(x=V),
        ArgumentError,
        "arguments must be passed by position.*got the keyword argument 'x'",
    ),
    "a spec that is none": (
        takes(ins="i"),
        ArgumentError,
        "in_specs holds 'i' of type str; each leaf is a PartitionSpec",
    ),
    "a free dim": (takes(ins=P(P.UNCONSTRAINED)), SpecError, "none may be left free"),
    "no axis": (
        takes(axis_names={"q"}),
        SpecError,
        "axis_names holds 'q', which is not an axis of",
    ),
    "a string of axes": (
        takes(axis_names="i"),
        ArgumentError,
        "a set of axis names, not the string 'i'; write {'i'}",
    ),
    "both ways": (takes(axis_names={"i"}, auto={"j"}), ArgumentError, "not both"),
    "no out_specs": (
        lambda: meshard.shard_map(lambda x: x, mesh=mesh(), in_specs=P()),
        ArgumentError,
        "out_specs is missing",
    ),
    "no mesh": (
        lambda: meshard.shard_map(lambda x: x, in_specs=P(), out_specs=P())(V),
        ShardingError,
        "no mesh is given and none is set. Pass mesh=, or call it within `with mesh:`",
    ),
    "a mesh of another kind": (
        lambda: meshard.shard_map(lambda x: x, mesh="i", in_specs=P(), out_specs=P()),
        ArgumentError,
        "mesh must be a Mesh, got 'i' of type str",
    ),
    "no function": (
        lambda: meshard.shard_map(3, mesh=mesh(), in_specs=P(), out_specs=P()),
        ArgumentError,
        "f must be a function, got 3",
    ),
    "unbound": (
        takes(body=lambda x: lax.psum(x, "q")),
        AxisNameError,
        "psum: unbound axis name: 'q'; the axes bound here are 'i', 'j'",
    ),
    "bound by nobody": (
        takes(body=lambda x: lax.psum(x, "j"), axis_names={"i"}),
        AxisNameError,
        "unbound axis name: 'j'; the axes bound here are 'i'",
    ),
    "a nested mesh": (
        takes(
            body=lambda x: meshard.shard_map(
                lambda y: y, mesh=mesh((8,), ("j",)), in_specs=P(), out_specs=P()
            )(x),
            axis_names={"i"},
        ),
        ShardingError,
        "must be the one around it",
    ),
    "a nested axis": (
        takes(
            body=lambda x: meshard.shard_map(
                lambda y: y, in_specs=P(), out_specs=P(), axis_names={"i"}
            )(x)
        ),
        ShardingError,
        "the axis 'i' is already manual",
    ),
    "all axes nested": (
        takes(body=lambda x: meshard.shard_map(lambda y: y, in_specs=P(), out_specs=P())(x)),
        ShardingError,
        "is already manual",
    ),
    "a value from nowhere": (
        takes(body=lambda x: "text"),
        TypeError,
        "the result is 'text', which is not an array",
    ),
    "a value from nowhere in a tree": (
        takes(body=lambda x: {"a": [x, object()]}),
        TypeError,
        r"the result\['a'\]\[1\] is <object",
    ),
    "if": (
        takes(body=lambda x: x if x.sum() > 0 else -x),
        ConcretizationError,
        r"A Python if.*needs one value, but this bool\[\] inside shard_map varies over the mesh "
        r"axes 'i': each device has its own.*lax.cond.*lax.psum",
    ),
    "int": (takes(body=lambda x: int(x[0, 0])), ConcretizationError, r"int\(\) needs one value"),
    "float": (takes(body=lambda x: float(x[0, 0])), ConcretizationError, r"float\(\) needs"),
    "range": (
        takes(body=lambda x: [x for _ in range(lax.axis_index("i"))]),
        ConcretizationError,
        "A Python integer, as for range",
    ),
    "numpy": (
        takes(body=lambda x: np.asarray(x)),
        ConcretizationError,
        "A NumPy function needs one value",
    ),
    "item": (takes(body=lambda x: x[0, 0].item()), ConcretizationError, r"item\(\) needs"),
    "tolist": (takes(body=lambda x: x.tolist()), ConcretizationError, r"tolist\(\) needs"),
    "format": (takes(body=lambda x: f"{x[0, 0]:.2f}"), ConcretizationError, "A format such as"),
}


@pytest.mark.parametrize("case", REFUSALS)
@in_worlds
def test_what_is_refused(case):
    call, error, message = REFUSALS[case]
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        call()
    assert innermost() is None
    np.testing.assert_array_equal(whole(over(lambda x: x + 1)(V)), V + 1)


@in_worlds
def test_outside_no_axis_is_bound():
    for call in (
        lambda: lax.psum(1.0, "i"),
        lambda: lax.axis_index("i"),
        lambda: lax.axis_size("i"),
        lambda: lax.ppermute(V, "i", [(0, 1)]),
        lambda: lax.ragged_all_to_all(V, V, V, V, V, V, axis_name="i"),
    ):
        with pytest.raises(AxisNameError, match="unbound axis name: 'i'; no axis is bound here"):
            call()
    with mesh(), pytest.raises(NameError, match="outside of shard_map"):
        lax.psum(1.0, "i")


@in_worlds
def test_what_is_one_value_may_be_looked_at():
    def body(x):
        total = lax.psum(x.sum(), ("i", "j"))
        assert total > 0
        assert float(total) == V.sum()
        assert np.asarray(lax.psum(x, ("i", "j"))).shape == (2, 4)
        assert [int(i) for i in mnp.arange(3)] == [0, 1, 2]
        return total + int(lax.pmax(lax.axis_index("i"), "i"))

    assert float(over(body, outs=P())(V)) == V.sum() + 3


@in_worlds
def test_a_value_that_leaves_its_body_is_of_no_use():
    kept = []
    over(lambda x: (kept.append(x), kept.append(lax.psum(x, ("i", "j")))) and x)(V)
    varying, one = kept
    for use in (
        lambda: varying + 1,
        lambda: mnp.sin(varying),
        lambda: over(lambda x: x + varying)(V),
        lambda: over(lambda x: x + one)(V),
        lambda: over(lambda x: varying)(V),
        lambda: over(lambda x: x)(varying),
        lambda: meshard.device_put(varying, NamedSharding(mesh(), P())),
        lambda: np.asarray(varying),
        lambda: bool(varying[0, 0]),
    ):
        with pytest.raises(
            (ConcretizationError, ArgumentError), match=r"shard_map|inside a transf"
        ):
            use()
    np.testing.assert_array_equal(whole(over(lambda x: x + 1)(V)), V + 1)


@in_worlds
def test_deleted_arguments_are_named():
    x = put(V, "i", "j")
    x.delete()
    with pytest.raises(DeletedArrayError):
        over(lambda x: x)(x)


# a body that raises


def living():
    """Return the number of arrays; 0 where another thread, looking too, may hold some of them."""
    gc.collect()
    return len(meshard.live_arrays()) if here().process_count == 1 else 0


@in_worlds
def test_a_body_that_raises_leaves_nothing_behind():
    x = put(np.ones((1024, 1024)), "i", "j")  # large enough for the workers
    whole(over(lambda x: lax.psum(x * 2, "i"), outs=P(None, "j"))(x))
    threads, alive = threading.active_count(), living()

    class Broken(Exception):
        pass

    def body(x):
        y = lax.psum(x * 2, "i") + lax.all_gather(x, "j")
        meshard.shard_map
        raise Broken(str(y.shape))

    def raising(x):
        raise Broken(str((x + 1).shape))

    def nested(x):
        return meshard.shard_map(raising, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})(x)

    for call in (
        over(body),
        over(nested, P("i"), P("i"), axis_names={"i"}),
        over(lambda x: lax.cond(lax.axis_index("i") == 0, raising, lambda x: x, x)),
    ):
        with pytest.raises(Broken):
            call(x)
        assert innermost() is None
    with pytest.raises(AxisNameError):
        lax.axis_size("i")
    with pytest.raises(ShardingError, match="no mesh"):
        meshard.shard_map(lambda x: x, in_specs=P(), out_specs=P())(V)
    assert threading.active_count() == threads
    assert living() == alive
    np.testing.assert_array_equal(whole(over(lambda x: x + 1)(V)), V + 1)
    assert not here().ledgers


@in_worlds
def test_functions_that_are_mapped_once_are_let_go():
    """A loop that maps a new function in each round keeps neither functions nor what they hold."""
    before = living()
    for step in range(4):
        weight = put(V * step, "i")
        over(lambda x, weight=weight: x + weight.sum())(V)
    del weight
    assert living() == before


# the ledger


@in_worlds
def test_a_budget_refuses_a_collective_before_anything_moves():
    x = put(np.ones((256, 256)), "i", "j")
    step = over(lambda x: lax.psum(x, "i"), outs=P(None, "j"))
    with (
        watched() as seen,
        budget("1 KB") as used,
        pytest.raises(BudgetError, match=r"psum at .*test_shard_map.*all-reduce.*'i'"),
    ):
        step(x)
    assert seen.sent == 0
    assert used.total_bytes == 0
    assert innermost() is None
    assert whole(step(x))[0, 0] == 4


@in_worlds
def test_resharding_on_the_way_in_is_in_the_ledger():
    x = put(V, None, "i")
    with ledger() as log:
        over(lambda x: x, P("i"), P("i"))(x)
    assert [(r.kind, r.axes, r.total_bytes) for r in log] == [("all-to-all", ("i",), 8 * 96)]


def test_processes_that_hold_no_device_of_the_mesh():
    def body():
        on = meshard.make_mesh((2,), ("i",))
        mapped = meshard.shard_map(
            lambda x: (lax.psum(x, "i"), x * lax.axis_index("i")),
            mesh=on,
            in_specs=P("i"),
            out_specs=(P(), P("i")),
        )
        _, own = mapped(np.arange(4.0))
        return [(s.device.id, np.asarray(s.data).tolist()) for s in own.addressable_shards]

    found = simulate(4, 1, body, deadline=30)
    assert found == [[(0, [0, 0])], [(1, [2, 3])], [], []]


def test_results_are_the_same_bits_however_many_processes():
    values = np.random.default_rng(0).normal(size=(64, 64))

    def body():
        def step(x):
            y = lax.psum(x @ x.T, "j")
            z = lax.psum_scatter(y * lax.axis_index("j"), "i", scatter_dimension=1, tiled=True)
            return lax.pmean(mnp.tanh(z), ("j", "i"))

        return whole(over(step, outs=P())(values))

    expected = everywhere(body)
    for count in (4, 8):
        for found in simulate(count, 8 // count, body, deadline=30):
            assert found.tobytes() == expected.tobytes()
