"""The ledger and the budget: what programs move, on all devices, before they move it."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.debug import budget, ledger
from meshard.errors import ArgumentError, BudgetError
from meshard.ops.array import samplesort
from meshard.ops.reductions import sort
from meshard.plan.move.wires import all_reduced
from meshard.plan.plan import Plan
from meshard.resharding import reshard
from meshard.runtime.moving.plan_reshard import plan_reshard
from meshard.runtime.simulated import simulate
from meshard.runtime.watching.ledger import communicated
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from tests.lays import calm, lays, numbered, on_meshes, shapes
from tests.watch import watched
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

GOLDEN = Path(__file__).parent / "golden"
V = np.arange(64.0).reshape(8, 8)


def seen(log):
    """Return what can be compared of a ledger's records."""
    return [(r.what, r.kind, r.axes, r.array, r.total_bytes, r.bytes_per_device) for r in log]


def lay(*spec):
    return NamedSharding(mesh(), P(*spec))


# exact bytes


@in_worlds
def test_a_sum_is_an_all_reduce_over_its_axes():
    x = put(V, "i", "j")
    with ledger() as log:
        x.sum()
        x.sum(0)
        x.sum(1)
    assert seen(log) == [
        ("sum", "all-reduce", ("i", "j"), "float64[]", 8 * 14, 14),
        ("sum", "all-reduce", ("i",), "float64[8]", 8 * 48, 2 * 3 * 32 // 4),
        ("sum", "all-reduce", ("j",), "float64[8]", 8 * 16, 2 * 1 * 16 // 2),
    ]
    assert (log.total_bytes, log.bytes_per_device) == (8 * 78, 78)
    assert log.received == dict.fromkeys(range(8), 78)


@in_worlds
def test_a_product_over_a_split_dim_is_an_all_reduce():
    a, b = put(V, None, "j"), put(V, "j")
    with ledger() as log:
        a @ b
    assert seen(log) == [("contract", "all-reduce", ("j",), "float64[8,8]", 8 * 512, 512)]


@in_worlds
def test_an_operand_that_lies_elsewhere_moves_first():
    a, b = put(V, "i"), put(V, None, "i")
    with ledger() as log:
        a + b
    assert seen(log) == [("add", "all-to-all", ("i",), "float64[8,8]", 8 * 96, 96)]


@in_worlds
def test_what_lies_together_moves_nothing():
    x = put(V, "i", "j")
    with ledger() as log:
        (x + x * 2).T.astype(np.float32)
        put(V, "i") + mnp.ones((8, 8))  # what every process can make is on every device
        x + 1
    assert (len(log), log.total_bytes, log.bytes_per_device, list(log)) == (0, 0, 0, [])


@in_worlds
def test_a_reshard_moves_what_devices_lack():
    x = put(V, "i", "j")
    with ledger() as log:
        y = meshard.device_put(x, lay("j", "i"))
        meshard.device_put(y, lay("j"))
        meshard.device_put(y, y.sharding)
        reshard(x, lay())
    assert seen(log) == [
        ("device_put", "all-to-all", ("i", "j"), "float64[8,8]", 48 * 8, 64),
        ("device_put", "all-gather", ("i",), "float64[8,8]", 8 * 3 * 64, 192),
        ("reshard", "all-gather", ("i", "j"), "float64[8,8]", 8 * 448, 448),
    ]
    assert log.records[0].received == {0: 32, 1: 64, 2: 32, 3: 64, 4: 64, 5: 32, 6: 64, 7: 32}


@in_worlds
def test_a_halo_crosses_at_the_edges():
    x = put(np.arange(16.0), "i")
    with ledger() as log:
        found = x[1:] - x[:-1]
    # One element at each of three edges, to both devices of the axis that does not split.
    assert (log.total_bytes, {r.axes for r in log}) == (3 * 2 * 8, {("i",)})
    assert np.array_equal(whole(found), np.ones(15))


@in_worlds
def test_a_concatenation_deals_rows_out_anew():
    x = put(np.arange(8.0), "i")
    with ledger() as log:
        mnp.concatenate([x, x])
    assert seen(log) == [
        ("concatenate", "move", ("i",), "float64[16]", 2 * (2 + 4 + 4 + 2) * 8, 32)
    ]


@pytest.fixture
def spread(monkeypatch):
    """Sort small arrays as if they were large."""
    for module in (sort, samplesort):
        monkeypatch.setattr(module, "GATHERED_SORT", -1)


@in_worlds
def test_a_sort_moves_each_element_about_once(spread):
    x = put(np.arange(16)[::-1], "i")
    with pytest.MonkeyPatch.context() as patch, ledger() as log:
        patch.setattr("meshard.ops.reductions.sort.GATHERED_SORT", 0)  # each device would sort all
        found = mnp.sort(x)
    assert np.array_equal(whole(found), np.arange(16))
    (own,) = [r for r in log if r.what == "sort"]  # the parts are exact, so none is given on
    assert seen([own]) == [("sort", "move", ("i",), "int64[16]", 2 * 16 * 8, 32)]
    assert {r.what for r in log} == {"read", "sort", "sort_counts"}


@in_worlds
def test_a_small_array_is_sorted_by_each_device():
    x = put(np.arange(16)[::-1], "i")
    with ledger() as log:
        found = mnp.sort(x)
    assert np.array_equal(whole(found), np.arange(16))
    assert seen(log) == [("sort", "all-gather", ("i",), "int64[16]", 8 * 12 * 8, 12 * 8)]


@in_worlds
def test_values_of_the_host_do_not_cross():
    with ledger() as log:
        put(V, "i", "j")
        meshard.device_put(mnp.asarray(V), lay("i"))
        meshard.device_put(put(V), lay("i", "j"))
    assert len(log) == 0


def test_every_process_notes_the_same_as_one_alone():
    def program():
        x, y = put(V, "i", "j"), put(np.arange(24) % 7, ("i", "j"))
        with ledger() as log:
            x @ x + x.T
            mnp.sort(y), mnp.argsort(y), mnp.unique(y), mnp.nonzero(y), mnp.cumsum(y)
            x.mean(), x.argmax(1), x[2:5], x.at[1:3].set(0), x.reshape(4, 16), mnp.flip(x)
            mnp.histogram(x), mnp.linalg.qr(x), x.ravel(), mnp.pad(x, 2), mnp.roll(x, 3, 1)
        text = str(log)
        assert text == str(log)
        return [log.to_json(), text, len(log)]

    assert everywhere(program)[2] > 15


# laws


@settings(calm, max_examples=60)
@given(st.data(), shapes())
def test_a_reshard_is_noted_as_its_plan_says(data, shape):
    before, after = data.draw(lays(shape)), data.draw(lays(shape))

    def program():
        x, target = before.put(numbered(shape)), after.sharding(shape)
        if not x.committed or target is None:
            return
        plan = plan_reshard(x, target)
        with ledger() as log:
            reshard(x, target)
        assert log.total_bytes == plan.bytes_moved == plan.lower_bound_bytes
        # It goes directly, and what receives nothing is not noted.
        straight = Plan.direct(plan.leaves).received
        assert {d: n for d, n in log.received.items() if n} == {
            d: n for d, n in straight.items() if n
        }
        assert str(log).count("\n") == (2 if plan.bytes_moved else 0)

    alone(program)


@settings(calm, max_examples=25)
@given(st.data(), shapes(min_dims=1))
def test_processes_of_one_device_send_what_is_noted(data, shape):
    before, after = data.draw(on_meshes(shape, full=True)), data.draw(on_meshes(shape, full=True))

    def program():
        x = before.put(numbered(shape))
        with ledger() as log, watched() as transport:
            meshard.device_put(x, after.sharding(shape))
        return log.total_bytes, transport.sent

    found = simulate(8, 1, program, deadline=30)
    assert {total for total, _ in found} == {sum(sent for _, sent in found)}


# the log


@in_worlds
def test_ledgers_nest_and_end():
    x = put(V, "i", "j")
    with ledger() as outer:
        x.sum()
        with ledger() as inner:
            x.sum(0)
        x.sum(1)
    x.sum()
    assert (len(outer), len(inner)) == (3, 1)
    assert here().ledgers == ()


@in_worlds
def test_an_exception_leaves_no_ledger_open():
    x = put(V, "i")
    with pytest.raises(AssertionError), ledger() as log, budget("1 GB"):
        assert float(x.sum()) < 0
    assert here().ledgers == ()
    assert len(log) == 1


@in_worlds
def test_records_name_the_users_line():
    x = put(V, "i", "j")
    with ledger() as log:
        line = sys._getframe().f_lineno
        x.sum()
        for _ in range(3):
            x.sum(0)
    first, after = f"{__file__}:{line + 1}", f"{__file__}:{line + 3}"
    assert [r.line for r in log] == [first, after, after, after]
    assert list(log.by_line().items()) == [(after, 3 * 384), (first, 112)]


@in_worlds
def test_a_log_is_json():
    x = put(V, "i", "j")
    with ledger() as log:
        x.sum(0)
    value = json.loads(log.to_json())
    (record,) = value["records"]
    assert record.pop("line").startswith(__file__)
    every = {str(d): 48 for d in range(8)}
    assert value == {
        "total_bytes": 384,
        "bytes_per_device": 48,
        "received": every,
        "records": [
            {
                "what": "sum",
                "purpose": "",
                "kind": "all-reduce",
                "axes": ["i"],
                "array": "float64[8]",
                "total_bytes": 384,
                "bytes_per_device": 48,
                "received": every,
            }
        ],
    }
    assert repr(log) == "Ledger(1 communications, 384 bytes)"


PROGRAM = """\
import meshard.numpy as jnp
from meshard.debug import ledger

def step(x):
    inner = (x[:-2] + x[2:]) / 2
    return jnp.concatenate([x[:1], inner, x[-1:]])

with ledger() as log:
    for _ in range(10):
        x = step(x)
    error = jnp.abs(x @ x.T - x).max()
"""


def test_the_table_is_the_golden_one():
    def program():
        names = {"__name__": "heat", "x": put(V, "i", "j")}
        exec(compile(PROGRAM, "/home/ann/heat.py", "exec"), names)
        return f"{names['log']}\n"

    text, path = everywhere(program), GOLDEN / "ledger.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert all(len(row) <= 100 for row in text.splitlines())


def test_an_empty_log_says_so():
    with ledger() as log:
        pass
    assert str(log) == "no communication"


# what others report


@in_worlds
def test_others_report_what_they_move():
    asked = []

    def received():
        asked.append(1)
        return all_reduced(np.arange(8).reshape(2, 4), 64)

    with ledger() as log:
        communicated(here(), "all-reduce", ["j"], received, "psum", array="float64[8]")
        communicated(here(), "permute", ("i",), {0: 5, 1: 0}, "ppermute")
        communicated(here(), "permute", ("i",), {0: 0}, "ppermute")
    assert seen(log) == [
        ("psum", "all-reduce", ("j",), "float64[8]", 8 * 96, 96),
        ("ppermute", "permute", ("i",), "", 5, 5),
    ]
    assert asked == [1]


# budgets


@in_worlds
def test_a_budget_refuses_before_anything_moves():
    x = put(V, "i", "j")
    with watched() as transport, budget("600 B") as used:
        x.sum(0)
        sent = transport.sent
        with pytest.raises(BudgetError) as caught:
            x @ x
        with pytest.raises(BudgetError):
            meshard.device_put(x, lay(), donate=True)
        assert transport.sent == sent
        x.sum()
    assert (used.total_bytes, len(used)) == (384 + 112, 2)
    assert not x.is_deleted()
    assert np.array_equal(whole(x), V)
    assert isinstance(caught.value, RuntimeError)


REFUSED = """\
with budget("1.25 KB"):
    y = x.sum(1)
    for _ in range(2):
        y = x.sum(0)
    z = x.T + x
"""


def test_a_refusal_names_the_limit_what_comes_and_what_was():
    def program():
        names = {"__name__": "train", "x": put(V, "i", "j"), "budget": budget}
        with pytest.raises(BudgetError) as caught:
            exec(compile(REFUSED, "/home/ann/train.py", "exec"), names)
        return str(caught.value)

    assert everywhere(program).splitlines() == [
        "budget: the limit is 1,250 bytes over all devices, of which 896 are used, and add at "
        "/home/ann/train.py:5 would move 384 more (all-to-all of float64[8,8] along 'i', 'j'). It "
        "was refused before anything moved. Lay the operands out so that less moves, or raise the "
        "limit; meshard.debug.ledger() shows every communication. The lines that moved most:",
        "line        operations        count  total",
        "train.py:4  sum (all-reduce)      2    768",
        "train.py:2  sum (all-reduce)      1    128",
    ]


@in_worlds
def test_a_budget_may_hold_for_each_device():
    x = put(V, "i", "j")
    with budget(per_device=60):
        x.sum(0)
        with pytest.raises(BudgetError) as caught:
            x.sum()
    assert str(caught.value).startswith(
        "budget: the limit is 60 bytes on each device, of which 48 are used, and sum at "
    )
    assert " would move 14 more to device 0 (all-reduce of float64[] along 'i', 'j')." in str(
        caught.value
    )


@in_worlds
def test_nested_budgets_all_hold():
    x = put(V, "i", "j")
    with budget(500) as outer, ledger() as log:
        with budget(400):
            x.sum(0)
        with budget("1 MB") as inner, pytest.raises(BudgetError, match="limit is 500 bytes"):
            x.sum(0)
        with budget(100), pytest.raises(BudgetError, match=r"limit is 100 bytes.*, of which 0"):
            x.sum()
    assert (outer.total_bytes, inner.total_bytes, log.total_bytes) == (384, 0, 384)


@in_worlds
def test_a_plan_is_refused_as_a_whole():
    a, b = put(V, "i", "j"), put(V, "i", "j")
    with ledger() as log:
        a @ b
    first = next(iter(log)).total_bytes
    assert len(log) == 2
    with budget(first) as used, pytest.raises(BudgetError, match="all-reduce"):
        a @ b
    assert len(used) == 0


@in_worlds
def test_a_budget_of_nothing_lets_local_work_pass():
    x = put(V, "i", "j")
    with budget(0):
        x + x
        with pytest.raises(BudgetError, match="Nothing had moved before"):
            x.sum()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (7, 7),
        ("7", 7),
        ("7 B", 7),
        ("2kB", 2000),
        ("1.5 MB", 1_500_000),
        ("3 gb", 3 * 10**9),
        ("64 KiB", 65536),
        ("0.5 GiB", 2**29),
        ("1 TiB", 2**40),
    ],
)
def test_sizes_are_read(text, size):
    def program():
        with budget(per_device=text):
            communicated(here(), "permute", (), {0: size}, "send")
            with pytest.raises(BudgetError, match=f"limit is {size:,} bytes"):
                communicated(here(), "permute", (), {0: 1}, "send")

    alone(program)


@pytest.mark.parametrize("given_size", [-1, 1.5, True, "10 apples", "MB", "-3 MB", ["1"]])
def test_sizes_that_mean_nothing_are_refused(given_size):
    with pytest.raises(ArgumentError, match="limit must be a number of bytes") as caught:
        budget(given_size).__enter__()
    assert repr(given_size) in str(caught.value)
    with pytest.raises(ArgumentError, match="per_device must be a number of bytes"):
        budget(per_device=given_size).__enter__()


def test_a_budget_needs_a_limit():
    with pytest.raises(ArgumentError, match="no limit is given"):
        budget().__enter__()


@in_worlds
def test_budgets_decorate_functions():
    @budget("1 kB")
    def step(x):
        return x.sum(0)

    x = put(V, "i", "j")
    for _ in range(5):
        step(x)  # each call has a budget of its own
