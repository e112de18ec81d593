"""ragged_all_to_all against a model in NumPy, which follows the text of JAX's documentation.

JAX itself has no form of it for CPUs.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard.debug import budget, ledger
from meshard.errors import ArgumentError, BudgetError, DtypeError, ShapeError
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, P
from tests.watch import watched
from tests.worlds import alone, everywhere, in_worlds, mesh, whole


def model(operand, output, offsets, sizes, landing, groups):
    """Return what each member of each group ends with; all arguments are by position."""
    result = [np.array(o) for o in output]
    for group in groups:
        n = len(group)
        for receiver, r in enumerate(group):
            for s in group:
                each = len(offsets[s]) // n
                for i in range(receiver * each, (receiver + 1) * each):
                    rows = operand[s][offsets[s][i] : offsets[s][i] + sizes[s][i]]
                    result[r][landing[s][i] : landing[s][i] + sizes[s][i]] = rows
    return result


def expected_sizes(sizes, groups):
    """Return what each position receives, all_to_all of what is sent."""
    found = [None] * len(sizes)
    for group in groups:
        each = len(sizes[0]) // len(group)
        for receiver, r in enumerate(group):
            found[r] = np.concatenate(
                [sizes[s][receiver * each : (receiver + 1) * each] for s in group]
            )
    return np.array(found)


def random_case(seed, n, each, rows=(12, 110), tail=(3,), groups=None, overlap=False):
    """Return operand, output and lists for n positions."""
    random = np.random.default_rng(seed)
    groups = groups or [list(range(n))]
    members = len(groups[0])
    k = members * each
    sizes = random.integers(0, 4, (n, k))
    offsets = np.array([[random.integers(0, rows[0] - s + 1) for s in row] for row in sizes])
    landing = np.zeros((n, k), int)
    for group in groups:
        for receiver, _ in enumerate(group):
            at = int(random.integers(0, 2))
            for s in group:
                for i in range(receiver * each, (receiver + 1) * each):
                    if overlap:
                        at = int(random.integers(0, rows[1] - sizes[s][i] + 1))
                    landing[s][i] = at
                    at += int(sizes[s][i]) + int(random.integers(0, 2))
    operand = random.integers(0, 100, (n, rows[0], *tail)).astype(float)
    output = -random.integers(1, 100, (n, max(rows[1], 1), *tail)).astype(float)
    return operand, output, offsets, sizes, landing, groups


def run(case, axes, on=None, spec=None, index_groups=None, dtype=np.int32, **options):
    """Return what each device ends with, stacked."""
    operand, output, offsets, sizes, landing, groups = case
    spec = P(axes) if spec is None else spec
    lists = [x.astype(dtype) for x in (offsets, sizes, landing, expected_sizes(sizes, groups))]

    def body(x, y, one, two, three, four):
        return lax.ragged_all_to_all(
            x[0],
            y[0],
            one[0],
            two[0],
            three[0],
            four[0],
            axis_name=axes,
            axis_index_groups=index_groups,
        )[None]

    mapped = meshard.shard_map(body, mesh=on or mesh(), in_specs=spec, out_specs=spec, **options)
    return mapped(operand, output, *lists)


def check(case, *args, **options):
    expected = np.array(model(*case))
    found = everywhere(lambda: whole(run(case, *args, **options)))
    np.testing.assert_array_equal(found, expected)


def test_the_example_of_the_documentation():
    def body():
        on = meshard.make_mesh((2,), ("i",))
        return whole(
            meshard.shard_map(
                lambda *x: lax.ragged_all_to_all(*x, axis_name="i"),
                mesh=on,
                in_specs=P("i"),
                out_specs=P("i"),
            )(
                np.array([1, 2, 2, 3, 4, 0]),
                np.zeros(8, int),
                np.array([0, 1, 0, 1]),
                np.array([1, 2, 1, 1]),
                np.array([0, 0, 1, 2]),
                np.array([1, 1, 2, 1]),
            )
        )

    assert alone(body).tolist() == [1, 3, 0, 0, 2, 2, 4, 0]
    for found in simulate(2, 1, body, deadline=30):
        assert found.tolist() == [1, 3, 0, 0, 2, 2, 4, 0]


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]), st.booleans())
def test_random_parts_over_two_axes(seed, each, overlap):
    check(random_case(seed, 8, each, overlap=overlap), ("i", "j"))
    check(random_case(seed, 8, each, tail=(), overlap=overlap), ("j", "i"))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("tail", [(), (2, 3), (0,)])
def test_rows_of_any_shape_and_lists_of_any_integers(tail, dtype):
    check(random_case(1, 8, 2, tail=tail), ("i", "j"), dtype=dtype)


def test_groups():
    groups = [[0, 5, 2, 7], [6, 1, 4, 3]]
    check(random_case(3, 8, 2, groups=groups), ("i", "j"), index_groups=groups)
    single = [[i] for i in range(8)]
    check(random_case(3, 8, 2, groups=single), ("i", "j"), index_groups=single)


@pytest.mark.parametrize("axis", ["i", "j"])
@pytest.mark.parametrize("other", ["varies", "replicas", "automatic"])
def test_along_one_axis_of_two(axis, other):
    """Each group along the other axis by itself; or replicas, or one array that is split there."""
    n, rest = (4, "j") if axis == "i" else (2, "i")
    case = random_case(4, n, 2, tail=(4,))
    expected = np.array(model(*case))

    def body():
        operand, output, offsets, sizes, landing, groups = case
        lists = np.stack([offsets, sizes, landing, expected_sizes(sizes, groups)], 1)
        split = P(axis, None, rest if other == "varies" else None)
        if other == "automatic":
            operand = meshard.device_put(
                operand, meshard.NamedSharding(mesh(), P(axis, None, rest))
            )

        def send(x, y, z):
            return lax.ragged_all_to_all(x[0], y[0], *z[0], axis_name=axis)[None]

        return whole(
            meshard.shard_map(
                send,
                mesh=mesh(),
                in_specs=(split, split, P(axis)),
                out_specs=split,
                axis_names={axis} if other == "automatic" else frozenset(),
            )(operand, output, lists)
        )

    np.testing.assert_array_equal(everywhere(body), expected)


def test_the_same_lists_on_all_devices():
    """Lists, rows and output that do not vary: each position sends the same."""

    def body():
        def send(x, y):
            k = mnp.arange(4)
            i = lax.axis_index("i")
            out = lax.ragged_all_to_all(
                x, y, k * 0, k * 0 + 1, mnp.full_like(k, i), k * 0 + 1, axis_name="i"
            )
            assert meshard.typeof(out).vma == {"i"}
            return out

        mapped = meshard.shard_map(send, mesh=mesh(), in_specs=P(), out_specs=P("i"))
        return whole(mapped(np.arange(3.0) + 5, np.zeros(4)))

    assert everywhere(body).tolist() == [5.0] * 16


def test_under_a_condition_of_the_other_axis():
    """Only the groups that it holds for exchange; the others keep what they have."""
    case = random_case(5, 4, 1, tail=())
    expected = np.array(model(*case))

    def body():
        operand, output, offsets, sizes, landing, groups = case
        lists = np.stack([offsets, sizes, landing, expected_sizes(sizes, groups)], 1)

        def send(x, y, z):
            return lax.cond(
                lax.axis_index("j") == 1,
                lambda: lax.ragged_all_to_all(x[0], y[0], *z[0], axis_name="i"),
                lambda: lax.pvary(y[0], "j"),
            )[None, None]

        mapped = meshard.shard_map(send, mesh=mesh(), in_specs=P("i"), out_specs=P("j", "i"))
        with ledger() as log:
            mapped(operand, output, lists)
        found = [(r.what, r.kind) for r in log]
        # A process none of whose devices takes the branch knows of no exchange in it.
        taken = set(meshard.local_devices()) & set(mesh().devices[:, 1])
        assert found == (EXCHANGED if taken else [])
        return whole(mapped(operand, output, lists))

    found = everywhere(body)
    np.testing.assert_array_equal(found[0], case[1])
    np.testing.assert_array_equal(found[1], expected)


EXCHANGED = [("ragged_all_to_all", "all-gather"), ("ragged_all_to_all", "all-to-all")]


# bytes


def test_only_rows_that_others_want_cross():
    case = random_case(6, 8, 2, rows=(1000, 4000), tail=(5,))
    sizes = case[3]

    def body():
        with watched() as seen:
            found = run(case, ("i", "j"))
        return whole(found), seen.sent

    for devices in (1, 4):
        sent = sum(s for _, s in simulate(8 // devices, devices, body, deadline=30))
        crossing = sum(
            int(sizes[a][b * 2 : b * 2 + 2].sum())
            for a in range(8)
            for b in range(8)
            if a // devices != b // devices
        )
        processes = 8 // devices
        lists = 4 * 16 * 8 * 8 * (processes - 1)  # each process learns the lists of the others
        assert sent == crossing * 5 * 8 + lists


@in_worlds
def test_the_ledger_counts_rows():
    case = random_case(7, 8, 1, tail=(5,))
    sizes = case[3]
    with ledger() as log:
        run(case, ("i", "j"))
    gather, rows = log
    assert (gather.kind, gather.total_bytes) == ("all-gather", 8 * 7 * 4 * 8 * 8)
    assert (rows.what, rows.kind, rows.axes, rows.array) == (
        "ragged_all_to_all",
        "all-to-all",
        ("i", "j"),
        "float64[110,5]",
    )
    ids = [d.id for d in mesh().flat_devices]
    expected = {ids[r]: int(sum(sizes[s][r] for s in range(8) if s != r)) * 40 for r in range(8)}
    assert {k: v for k, v in rows.received.items() if v} == {k: v for k, v in expected.items() if v}


@in_worlds
def test_a_budget_refuses_before_rows_move():
    case = random_case(7, 8, 1, tail=(5,))
    with (
        watched() as seen,
        pytest.raises(BudgetError, match=r"ragged_all_to_all at .*test_ragged"),
        budget("15 KB"),
    ):
        run(case, ("i", "j"))
    assert seen.sent <= 4 * 8 * 8 * 8 * meshard.process_count()
    run(case, ("i", "j"))


def test_a_part_that_is_a_whole_block_is_handed_over():
    def body():
        def send(x):
            k = mnp.arange(8)
            to = (lax.axis_index("i") + 1) % 8
            one = (k == to) * 4
            got = (k == (lax.axis_index("i") - 1) % 8) * 4
            return lax.ragged_all_to_all(x, 0 * x, 0 * k, one, 0 * k, got, axis_name="i")

        on = meshard.make_mesh((8,), ("i",))
        x = meshard.device_put(np.arange(32.0), meshard.NamedSharding(on, P("i")))
        y = meshard.shard_map(send, mesh=on, in_specs=P("i"), out_specs=P("i"))(x)
        np.testing.assert_array_equal(whole(y), np.roll(np.arange(32.0), 4))
        return [
            np.shares_memory(y.addressable_data(i), x.addressable_data((i - 1) % 8))
            for i in range(8)
        ]

    assert alone(body) == [True] * 8


# refusals


def send(*, rows=4, into=8, offsets=0, sizes=1, landing=0, got=1, k=4, dtype=np.int64, **options):
    def body():
        def send(x):
            lists = [
                mnp.asarray(np.full(k, v), dtype=dtype) if np.ndim(v) == 0 else mnp.asarray(v)
                for v in (offsets, sizes, landing, got)
            ]
            return lax.ragged_all_to_all(
                x,
                options.get("output", mnp.zeros((into, 2))),
                *lists,
                axis_name="i",
                axis_index_groups=options.get("groups"),
            )

        return meshard.shard_map(send, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))(
            np.ones((4 * rows, 2))
        )

    return body


REFUSALS = [
    (
        {"got": 2},
        ArgumentError,
        r"along 'i': position 0 sends position 0 1 rows \(send_sizes\[0\]\), but that one expects "
        r"2 \(recv_sizes\[0\]\)",
    ),
    (
        {"sizes": -1, "got": -1},
        ArgumentError,
        r"-1 rows \(send_sizes\[0\]\); a size must be at least 0",
    ),
    (
        {"offsets": 4},
        ShapeError,
        r"1 rows, and input_offsets\[0\] is 4: rows 4 to 5 of operand, which has 4",
    ),
    ({"landing": -1}, ShapeError, r"output_offsets\[0\] is -1: rows -1 to 0 of output.*has 8"),
    ({"k": 6}, ShapeError, r"a multiple of the axis size 4, but their shapes .* recv_sizes \(6,\)"),
    ({"sizes": np.ones(8, int)}, ShapeError, r"send_sizes \(8,\)"),
    ({"k": 0}, ShapeError, "a multiple of the axis size 4"),
    ({"dtype": float}, DtypeError, "input_offsets must be integers, not float64"),
    ({"output": np.zeros((8, 2), np.float32)}, DtypeError, "operand is float64 and output float32"),
    ({"output": np.zeros((8, 3))}, ShapeError, r"rows of one shape.*\(4, 2\) and \(8, 3\)"),
    ({"groups": [[0, 1], [2]]}, ArgumentError, "must cover all indices exactly once"),
    ({"groups": [[0, 1, 3], [2]]}, ArgumentError, "must all have one size"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSALS)
@in_worlds
def test_what_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        send(**change)()
    send()()  # and nothing is left behind


def test_meshes_whose_devices_are_mixed():
    case = random_case(9, 8, 1)
    expected = np.array(model(*case))

    def body():
        on = Mesh(np.array(meshard.devices())[[3, 1, 0, 2, 7, 6, 4, 5]].reshape(4, 2), ("i", "j"))
        return whole(run(case, ("i", "j"), on=on))

    np.testing.assert_array_equal(everywhere(body), expected)


@pytest.mark.parametrize("has", [(0, 0, None), (0, None, 0), (None, 0, 0), (None, None, 0)])
def test_many_examples(has):
    """`vmap`, once and twice, against a loop over the examples; so are the derivatives."""
    groups = [[0, 5, 2, 7], [6, 1, 4, 3]]
    cases = [random_case(seed, 8, 2, rows=(12, 60), groups=groups) for seed in range(6)]
    lists = [np.stack([*c[2:5], expected_sizes(c[3], groups)], 1) for c in cases]
    many = [np.stack(x) for x in ([c[0] for c in cases], [c[1] for c in cases], lists)]
    given = [x if own == 0 else x[0] for x, own in zip(many, has, strict=True)]

    def on_devices(f):
        """Return a function of arrays whose last dims are `f`'s, behind the positions."""

        def mapped(*xs):
            specs = [P(*[None] * (np.ndim(x) - 3), ("i", "j")) for x in xs]
            out = P(*[None] * (max(np.ndim(x) - 3 for x in xs)), ("i", "j"))
            return meshard.shard_map(f, mesh=mesh(), in_specs=tuple(specs), out_specs=out)(*xs)

        return mapped

    def one(x, y, table):
        found = lax.ragged_all_to_all(
            x[0] ** 2, y[0] ** 2, *table[0], axis_name=("i", "j"), axis_index_groups=groups
        )
        return found[None]

    once = meshard.vmap(one, has)
    twice = meshard.vmap(once, has)

    def loop(*xs):
        rows = [[x[i] if own == 0 else x for x, own in zip(xs, has, strict=True)] for i in range(6)]
        return mnp.stack([on_devices(one)(*row) for row in rows])

    def slopes(f, *xs):
        return meshard.grad(lambda x, y: mnp.sum(f(x, y, xs[2]) * mnp.sin(x.sum())), (0, 1))(
            *map(mnp.asarray, xs[:2])
        )

    wanted = whole(loop(*given))
    np.testing.assert_array_equal(everywhere(lambda: whole(on_devices(once)(*given))), wanted)
    pairs = [
        x.reshape(2, 3, *x.shape[1:]) if own == 0 else x for x, own in zip(given, has, strict=True)
    ]
    found = whole(on_devices(twice)(*pairs))
    np.testing.assert_array_equal(found, wanted.reshape(2, 3, *wanted.shape[1:]))
    expected = slopes(loop, *given)
    for x, y in zip(slopes(on_devices(once), *given), expected, strict=True):
        np.testing.assert_allclose(whole(x), whole(y), rtol=1e-12)


def test_no_example_reaches_into_the_rows_of_another():
    def body(x, at, size):
        def one(x, at):
            zeros = 0 * at
            return lax.ragged_all_to_all(x, x, at, size, zeros, size, axis_name="i")

        return meshard.vmap(one)(x, at)

    f = meshard.shard_map(
        body, mesh=mesh((1,), ("i",)), in_specs=(P(), P(), P()), out_specs=P(), check_vma=False
    )
    x = np.arange(8).reshape(2, 4)
    assert whole(f(x, np.array([[0], [2]]), np.array([2]))).tolist() == [[0, 1, 2, 3], [6, 7, 6, 7]]
    with pytest.raises(ShapeError, match="rows 3 to 5 of operand, which has 4"):
        f(x, np.array([[3], [2]]), np.array([2]))
