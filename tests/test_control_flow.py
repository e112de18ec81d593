"""Control flow outside of shard_map: what JAX gives and refuses."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.sharding import NamedSharding, P
from tests.lays import Lay, fetched
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

x = np.arange(4, dtype=np.float32)
square = np.arange(12.0).reshape(3, 4)


def collatz(lax: Any, np: Any, n: int) -> Any:
    return lax.while_loop(
        lambda s: s[0] != 1,
        lambda s: (lax.cond(s[0] % 2 == 0, lambda v: v // 2, lambda v: 3 * v + 1, s[0]), s[1] + 1),
        (n, 0),
    )


def bubble(lax: Any, np: Any) -> Any:
    def inner(j: Any, a: Any) -> Any:
        return lax.cond(
            a[j] > a[j + 1],
            lambda v: v.at[j].set(v[j + 1]).at[j + 1].set(v[j]),
            lambda v: v,
            a,
        )

    given = np.asarray([5, 2, 9, 1, 7])
    return lax.fori_loop(0, 4, lambda i, a: lax.fori_loop(0, 4, inner, a), given)


def fibonacci(lax: Any, np: Any) -> Any:
    return lax.scan(lambda c, _: ((c[1], c[0] + c[1]), c[0]), (0, 1), None, length=10)


def outer_value(lax: Any, np: Any) -> Any:
    a = np.asarray(square)
    return lax.fori_loop(0, 3, lambda i, c: c + a[i] * a[i, 1], np.zeros(4))


# Each gets lax and numpy, of JAX or ours; without arguments it is one case.
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "cond": lambda lax, np: [lax.cond(p, lambda: 1, lambda: 2) for p in (True, False, 0, 3, 0.5)],
    "cond of an array": lambda lax, np: lax.cond(
        np.asarray(x)[2] > 1, lambda a, b: a - b, lambda a, b: a + b, x, 1.0
    ),
    "cond on a tree": lambda lax, np: lax.cond(
        False, lambda t: t, lambda t: {"a": t["b"], "b": t["a"]}, {"a": x, "b": x + 1}
    ),
    "cond with operand": lambda lax, np: lax.cond(True, lambda o: 1, lambda o: 2, operand=None),
    "cond in its oldest form": lambda lax, np: lax.cond(
        np.asarray(False), x, lambda v: v, x + 1, lambda v: v * 2
    ),
    "None in a result": lambda lax, np: lax.cond(
        True, lambda v: (v, None), lambda v: (v * 2, None), x
    ),
    "not of a bool": lambda lax, np: lax.cond(True, lambda b: ~b, lambda b: b, False),
    "switch": lambda lax, np: [
        lax.switch(np.int32(i), [lambda v: v, lambda v: v + 1, lambda v: v * 9], x)
        for i in (-7, 0, 1, 2, 3, 99)
    ],
    "switch by a small integer": lambda lax, np: lax.switch(np.uint8(250), [lambda: 1, lambda: 2]),
    "switch of one": lambda lax, np: lax.switch(3, [lambda v: v * 2], x),
    "while": lambda lax, np: collatz(lax, np, 27),
    "while, no turn": lambda lax, np: lax.while_loop(lambda c: c[0] < 0, lambda c: c, (1, x)),
    "while with NumPy values": lambda lax, np: lax.while_loop(
        lambda c: c["n"] < 3, lambda c: {"n": c["n"] + 1, "v": c["v"] * 2}, {"n": x[0], "v": x}
    ),
    "fori": lambda lax, np: lax.fori_loop(2, 6, lambda i, c: c * i + 1, x),
    "fori, bounds the wrong way": lambda lax, np: lax.fori_loop(5, 2, lambda i, c: c + 1, x),
    "fori with array bounds": lambda lax, np: lax.fori_loop(
        np.int32(1), np.asarray(4, np.int32), lambda i, c: c + i, x
    ),
    "fori, the carry is the counter": lambda lax, np: lax.fori_loop(0, 4, lambda i, c: i, 0),
    "fori, sort": bubble,
    "fori, values from around": outer_value,
    "fori, negative": lambda lax, np: lax.fori_loop(-3, -1, lambda i, c: c + i, 0),
    "fori, unroll": lambda lax, np: lax.fori_loop(0, 3, lambda i, c: c + i, 0, unroll=2),
    # Python numbers take the dtype that a turn gives them
    "weak float": lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c + x[1], 0.0),
    "weak float, no turn": lambda lax, np: lax.fori_loop(0, 0, lambda i, c: c + x[1], 0.0),
    "weak int": lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c + np.int8(2), 0),
    "weak int to float": lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c + 0.5, 0),
    "weak int to complex": lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c * 1j + 1, 0),
    "weak swap": lambda lax, np: lax.fori_loop(0, 3, lambda i, c: (c[1], c[0]), (0, x[1])),
    "weak in while": lambda lax, np: lax.while_loop(
        lambda c: c < 0, lambda c: c + np.float32(1), 0
    ),
    "weak, through a function": lambda lax, np: lax.fori_loop(
        0, 3, lambda i, c: np.where(c > 1, c * x[2], c + x[1]), 0.0
    ),
    "weak, nested": lambda lax, np: lax.fori_loop(
        0, 2, lambda i, c: lax.fori_loop(0, 2, lambda j, d: d + x[1], c), 0.0
    ),
    "a strong float stays": lambda lax, np: lax.fori_loop(
        0, 4, lambda i, c: c + x[1], np.float64(0)
    ),
    "the counter is weak": lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c * i, x[1]),
    # scans
    "scan": lambda lax, np: lax.scan(lambda c, v: (c + v, c * v), np.zeros(4), square),
    "scan in reverse": lambda lax, np: lax.scan(
        lambda c, v: (c + v, {"s": c, "v": v}), 0.0, x, reverse=True
    ),
    "scan without arrays": fibonacci,
    "scan over a tree": lambda lax, np: lax.scan(
        lambda c, v: (c + v["a"] * v["b"][0][0], None), 0.0, {"a": x, "b": (x[:, None],)}
    ),
    "scan over a list": lambda lax, np: lax.scan(
        lambda c, v: [c + v[0] - v[1], (v[1], 1)], 0, [np.arange(3), np.arange(3) * 2]
    ),
    "scan of nothing": lambda lax, np: lax.scan(
        lambda c, v: (c + v.sum(), (v * c, v[:2, None], 1.5, c > 0)), 0, square[:0]
    ),
    "scan of nothing, weak": lambda lax, np: lax.scan(lambda c, v: (c + v, c * 2), 0.0, x[:0]),
    "scan of length 0": lambda lax, np: lax.scan(lambda c, v: (c, x), 0, None, length=0),
    "scan, rows of none": lambda lax, np: lax.scan(
        lambda c, v: (c + v.sum(), v), 0.0, np.zeros((3, 0))
    ),
    "scan of scans": lambda lax, np: lax.scan(
        lambda c, row: lax.scan(lambda d, v: (d + v, d), c, row), 0.0, square
    ),
    "scan, length given too": lambda lax, np: lax.scan(
        lambda c, v: (c + v, None), 0.0, x, length=4, unroll=2
    ),
    "map": lambda lax, np: lax.map(lambda v: (v * 2, 1, {"big": v > 1}), x),
    "map over a tree": lambda lax, np: lax.map(lambda t: t[0] @ t[1], (square, square + 1)),
    "map of nothing": lambda lax, np: lax.map(lambda v: (v * 2, v[None]), x[:0]),
    "map in batches": lambda lax, np: lax.map(lambda v: v * 2, np.arange(5), batch_size=2),
    "map of branches": lambda lax, np: lax.map(
        lambda i: lax.switch(i, [lambda: 10, lambda: 20]), np.arange(4)
    ),
}


def leaves(tree: Any) -> list[Any]:
    return [(np.asarray(v), np.asarray(v).dtype) for v in meshard.tree.leaves(tree)]


def test_what_jax_gives(jax: Any) -> None:
    with jax.enable_x64(True):
        expected = {
            name: (jax.tree.structure(found).num_leaves, leaves(found))
            for name, program in PROGRAMS.items()
            for found in [program(jax.lax, jax.numpy)]
        }
    for name, program in PROGRAMS.items():
        found = alone(lambda program=program: leaves(program(lax, mnp)))
        count, values = expected[name]
        assert len(found) == count, name
        for (own, dtype), (other, wanted) in zip(found, values, strict=True):
            np.testing.assert_array_equal(own, other, err_msg=name)
            assert dtype == wanted, (name, dtype, wanted)


def body_of_one(c: Any, v: Any) -> Any:
    return c


DIFFER = "must have equal output types, but they differ: the output of "
REFUSALS: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "pred a list": (
        lambda lax, np: lax.cond([True], lambda: 1, lambda: 2),
        ArgumentError,
        "cond: pred must be a scalar, got [True].",
    ),
    "pred None": (
        lambda lax, np: lax.cond(None, lambda: 1, lambda: 2),
        ArgumentError,
        "cond: pred must be a scalar, got None.",
    ),
    "pred text": (
        lambda lax, np: lax.cond("yes", lambda: 1, lambda: 2),
        ArgumentError,
        "cond: pred must be a scalar, got 'yes'.",
    ),
    "pred with dims": (
        lambda lax, np: lax.cond(np.ones(1), lambda: 1, lambda: 2),
        ShapeError,
        "cond: pred must be a scalar, got float64[1] of shape (1,).",
    ),
    "pred complex": (
        lambda lax, np: lax.cond(np.asarray(1j), lambda: 1, lambda: 2),
        ArgumentError,
        "cond: pred must be a bool or a real number, got complex128[].",
    ),
    "cond of no functions": (
        lambda lax, np: lax.cond(True, 1, 2),
        ArgumentError,
        "cond: true_fun and false_fun arguments should be callable.",
    ),
    "operand twice": (
        lambda lax, np: lax.cond(True, lambda a: a, lambda a: a, 1, operand=2),
        ArgumentError,
        "cond: pass the operands by position or one as operand=, not both; got operand=2 besides "
        "1 by position.",
    ),
    "tree": (
        lambda lax, np: lax.cond(True, lambda: (1, 2), lambda: [1, 2]),
        TreeError,
        "cond: branch outputs must have the same pytree structure, but they differ: that of "
        "true_fun is PyTreeSpec((*, *)), that of false_fun is PyTreeSpec([*, *]).",
    ),
    "tree with None": (
        lambda lax, np: lax.switch(1, [lambda: (1, None), lambda: (1, 2)]),
        TreeError,
        "that of branch 0 is PyTreeSpec((*, None)), that of branch 1 is PyTreeSpec((*, *)).",
    ),
    "shapes": (
        lambda lax, np: lax.cond(True, lambda: x, lambda: x[:1]),
        ArgumentError,
        f"cond: branches {DIFFER}true_fun has type float32[4], but the corresponding output of "
        "false_fun has type float32[1], so the shapes do not match.",
    ),
    "dtypes": (
        lambda lax, np: lax.switch(0, [lambda: x, lambda: x, lambda: np.asarray(x, int)]),
        ArgumentError,
        f"switch: branches {DIFFER}branch 0 has type float32[4], but the corresponding output of "
        "branch 2 has type int64[4], so the dtypes do not match.",
    ),
    "numbers of two kinds": (
        lambda lax, np: lax.cond(True, lambda: 1, lambda: 2.0),
        ArgumentError,
        f"{DIFFER}true_fun has type int64[], but the corresponding output of false_fun has type "
        "float64[]",
    ),
    "a bool is not weak": (
        lambda lax, np: lax.cond(True, lambda: True, lambda: np.int32(1)),
        ArgumentError,
        f"{DIFFER}true_fun has type bool[], but the corresponding output of false_fun has type "
        "int32[]",
    ),
    "text from a branch": (
        lambda lax, np: lax.cond(True, lambda: 1, lambda: "b"),
        ArgumentError,
        "cond: what false_fun returns must be arrays or numbers, but one is 'b' of type str.",
    ),
    "index a float": (
        lambda lax, np: lax.switch(1.0, [lambda: 1, lambda: 2]),
        ArgumentError,
        "switch: the index must be an integer, got 1.0 as float64.",
    ),
    "index a bool": (
        lambda lax, np: lax.switch(True, [lambda: 1, lambda: 2]),
        ArgumentError,
        "switch: the index must be an integer, got True as bool.",
    ),
    "index with dims": (
        lambda lax, np: lax.switch(np.ones(1, int), [lambda: 1, lambda: 2]),
        ShapeError,
        "switch: index must be a scalar, got int64[1] of shape (1,).",
    ),
    "no branches": (
        lambda lax, np: lax.switch(0, []),
        ArgumentError,
        "switch: the sequence of branches is empty.",
    ),
    "branches that are none": (
        lambda lax, np: lax.switch(0, [1, 2]),
        ArgumentError,
        "switch: branches must be a sequence of functions, got [1, 2] of type list.",
    ),
    "while on a number": (
        lambda lax, np: lax.while_loop(lambda c: c, lambda c: c, 1),
        ArgumentError,
        "while_loop: cond_fun must return a boolean scalar, but got int64[].",
    ),
    "while on many": (
        lambda lax, np: lax.while_loop(lambda c: c > 1, lambda c: c, x),
        ArgumentError,
        "while_loop: cond_fun must return a boolean scalar, but got bool[4].",
    ),
    "while on a tuple": (
        lambda lax, np: lax.while_loop(lambda c: (c > 1,), lambda c: c, 1),
        ArgumentError,
        "while_loop: cond_fun must return a boolean scalar, but got (bool[],).",
    ),
    "while of no function": (
        lambda lax, np: lax.while_loop(1, lambda c: c, 1),
        ArgumentError,
        "while_loop: cond_fun must be a function, got 1 of type int.",
    ),
    "carry tree": (
        lambda lax, np: lax.while_loop(lambda c: c[0] < 5, lambda c: c[0], (1, 2)),
        TreeError,
        "while_loop: body function carry input and carry output must have the same pytree "
        "structure, but they differ: the input is PyTreeSpec((*, *)), the output is PyTreeSpec(*).",
    ),
    "carry tree, no turn": (
        lambda lax, np: lax.while_loop(lambda c: c[0] < 0, lambda c: c[0], (1, 2)),
        TreeError,
        "must have the same pytree structure",
    ),
    "carry dtype": (
        lambda lax, np: lax.fori_loop(0, 3, lambda i, c: {"a": c["a"] * 2.5}, {"a": np.int32(1)}),
        ArgumentError,
        "fori_loop: body function carry input and carry output must have equal types, but they "
        "differ: the input carry['a'] has type int32[], but the output carry['a'] has type "
        "float64[], so the dtypes do not match.",
    ),
    "carry shape, no turn": (
        lambda lax, np: lax.while_loop(lambda c: c.sum() < 0, lambda c: c[:2], np.asarray(x)),
        ArgumentError,
        "the input carry has type float32[4], but the output carry has type float32[2], so the "
        "shapes do not match.",
    ),
    "carry becomes a bool": (
        lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c > 1, 0),
        ArgumentError,
        "the input carry has type int64[], but the output carry has type bool[]",
    ),
    "carry was a bool": (
        lambda lax, np: lax.fori_loop(0, 4, lambda i, c: c + 1, True),
        ArgumentError,
        "the input carry has type bool[], but the output carry has type int64[]",
    ),
    "a float does not become an integer": (
        lambda lax, np: lax.fori_loop(0, 4, lambda i, c: np.int32(1), 0.5),
        ArgumentError,
        "the input carry has type float64[], but the output carry has type int32[]",
    ),
    "a carry's array does not become a number": (
        lambda lax, np: lax.fori_loop(0, 4, lambda i, c: 1, x[0]),
        ArgumentError,
        "the input carry has type float32[], but the output carry has type int64[]",
    ),
    "text in a carry": (
        lambda lax, np: lax.fori_loop(0, 1, lambda i, c: c, "a"),
        ArgumentError,
        "fori_loop: the leaves of the initial carry must be arrays or numbers, but one is 'a' of "
        "type str.",
    ),
    "text from a turn": (
        lambda lax, np: lax.fori_loop(0, 1, lambda i, c: "a", x),
        ArgumentError,
        "fori_loop: what the body function returns as the carry must be arrays or numbers, but "
        "one is 'a' of type str.",
    ),
    "bound a float": (
        lambda lax, np: lax.fori_loop(0, 3.0, lambda i, c: c, 1),
        ArgumentError,
        "fori_loop: upper must be an integer without dims, got float64[].",
    ),
    "bound with dims": (
        lambda lax, np: lax.fori_loop(np.ones(2, int), 3, lambda i, c: c, 1),
        ArgumentError,
        "fori_loop: lower must be an integer without dims, got int64[2].",
    ),
    "fori of no function": (
        lambda lax, np: lax.fori_loop(0, 2, 3, 1),
        ArgumentError,
        "fori_loop: body_fun must be a function, got 3 of type int.",
    ),
    "no pair": (
        lambda lax, np: lax.scan(body_of_one, 1, x),
        ArgumentError,
        "scan: the body's output must be a pair, got int64[].",
    ),
    "sizes": (
        lambda lax, np: lax.scan(lambda c, v: (c, c), 1, (x, x[:2])),
        ShapeError,
        "scan: got values with different sizes of the leading dim: 4, 2.",
    ),
    "no dim to scan": (
        lambda lax, np: lax.scan(lambda c, v: (c, c), 1, 3),
        ShapeError,
        "scan: got a value with no leading dim to scan over",
    ),
    "no length": (
        lambda lax, np: lax.scan(lambda c, v: (c, c), 1, None),
        ShapeError,
        "scan: got no values to scan over, and length is not given.",
    ),
    "another length": (
        lambda lax, np: lax.scan(lambda c, v: (c, c), 1, x, length=3),
        ShapeError,
        "scan: got length 3, which disagrees with the leading dim's size 4.",
    ),
    "scan of no function": (
        lambda lax, np: lax.scan(3, 0.0, x),
        ArgumentError,
        "scan: f must be a function, got 3 of type int.",
    ),
    "text from a position": (
        lambda lax, np: lax.scan(lambda c, v: (c, "a"), 0.0, x),
        ArgumentError,
        "scan: the results of a position must be arrays or numbers, but one is 'a' of type str.",
    ),
    "scan, carry dtype": (
        lambda lax, np: lax.scan(lambda c, v: (c + v, c), np.int32(0), x),
        ArgumentError,
        "scan: body function carry input and carry output must have equal types",
    ),
    "map of a list of numbers": (
        lambda lax, np: lax.map(lambda v: v * 2, [1, 2, 3]),
        ShapeError,
        "scan: got a value with no leading dim to scan over",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_jax_refuses(name: str, jax: Any) -> None:
    program, kind, message = REFUSALS[name]
    with jax.enable_x64(True), pytest.raises((TypeError, ValueError), match=r"\w"):
        program(jax.lax, jax.numpy)
    with pytest.raises(kind, match=re.escape(message)):
        alone(lambda: program(lax, mnp))


@pytest.mark.parametrize("length", [3.0, -1, True])
def test_length_is_a_whole_number(length: Any) -> None:
    told = rf"scan: length must be .*integer.*, got {length}"
    with pytest.raises(ArgumentError, match=told):
        alone(lambda: lax.scan(lambda c, v: (c, None), 1, None, length=length))


def test_results_of_all_positions_have_one_tree() -> None:
    results = iter([1, (1,), 1])
    with pytest.raises(TreeError, match=r"scan: the results of all positions must have one tree"):
        alone(lambda: lax.scan(lambda c, v: (c, next(results)), mnp.zeros(()), x[:2]))


# arrays that are spread over devices


@in_worlds
def test_a_carry_keeps_its_sharding() -> None:
    value = np.arange(16.0).reshape(8, 2)
    a = put(value, "i")
    assert lax.fori_loop(0, 3, lambda i, c: mnp.tanh(c), a).sharding == a.sharding
    found = lax.while_loop(lambda c: c.sum() < 1e4, lambda c: c * 2, a)
    assert found.sharding == a.sharding
    np.testing.assert_array_equal(whole(found), value * 2.0**7)
    last, sums = lax.scan(lambda c, v: (c + v, c.sum()), a, np.arange(3.0))
    assert last.sharding == a.sharding
    np.testing.assert_array_equal(whole(last), value + 3)
    np.testing.assert_array_equal(whole(sums), [value.sum() + 16 * n for n in (0, 0, 1)])
    assert lax.cond(a[3, 1] > 6, lambda v: v * 2, lambda v: v, a).sharding == a.sharding


def test_a_scan_over_sharded_arrays() -> None:
    value = np.arange(48.0).reshape(8, 6)

    def scanned(*spec: Any) -> Any:
        given = put(value, *spec)
        last, rows = lax.scan(lambda c, v: (c + v, c * v), mnp.zeros(6), given)
        return [whole(v) for v in (last, rows, lax.map(lambda v: v.sum(), given))]

    sums = np.cumsum(np.vstack([np.zeros(6), value]), axis=0)
    for spec in [(), ("i",), (None, "j"), ("i", "j"), (("i", "j"),)]:
        last, rows, mapped = everywhere(lambda spec=spec: scanned(*spec))
        np.testing.assert_array_equal(last, value.sum(axis=0))
        np.testing.assert_array_equal(rows, sums[:-1] * value)
        np.testing.assert_array_equal(mapped, value.sum(axis=1))


@in_worlds
def test_rows_of_a_sharded_array_stay_sharded() -> None:
    given = put(np.arange(48.0).reshape(8, 6), None, "j")
    seen = []

    def step(c: Any, v: Any) -> Any:
        seen.append(v.sharding.is_equivalent_to(NamedSharding(mesh(), P("j")), 1))
        return c, v * 2

    _, rows = lax.scan(step, mnp.zeros(()), given)
    assert all(seen)
    assert rows.sharding.is_equivalent_to(given.sharding, 2)


def test_rows_of_an_array_in_boxes() -> None:
    """Where its pieces are not those of its rows, as many as they are."""
    x = np.arange(28.0).reshape(4, 7, 1)
    boxes = [(slice(0, 4), slice(0, 7), slice(0, n)) for n in (0, 1)]
    lay = Lay(boxes=((2, boxes[0]), (7, boxes[1])))
    expected = np.add.accumulate(x)

    def body() -> Any:
        def run(x: Any) -> Any:
            return lax.scan(lambda c, row: (c + row, c + row), mnp.zeros((7, 1)), x)

        put = lay.put(x)
        return fetched([run(put), meshard.jit(run)(put)])

    for last, every in everywhere(body):
        np.testing.assert_array_equal(last, expected[-1])
        np.testing.assert_array_equal(every, expected)


def test_one_branch_is_run() -> None:
    ran = []

    def branch(n: int) -> Callable[[Any], Any]:
        def run(v: Any) -> Any:
            ran.append((n, type(v) is meshard.Array))
            return v + n

        return run

    def body() -> None:
        lax.switch(1, [branch(0), branch(1), branch(2)], mnp.ones(2))

    alone(body)
    assert sorted(ran) == [(0, False), (1, True), (2, False)]


def test_a_branch_not_taken_may_hold_anything() -> None:
    """It is typed and not run: loops and conditions on unknown values, and programs on a mesh."""

    def other(v: Any) -> Any:
        v = lax.while_loop(
            lambda c: c.sum() < 3, lambda c: lax.cond(c[0] > 1, lambda u: u, lambda u: -u, c), v
        )
        v = lax.fori_loop(0, v.sum().astype(int), lambda i, c: c + i, v)
        v = lax.switch(v[0].astype(int), [lambda u: u, lambda u: u + 1], v)
        on_mesh = meshard.shard_map(
            lambda u: lax.psum(u, "i") + v.sum(),
            mesh=mesh(),
            in_specs=P("i"),
            out_specs=P(),
        )
        return mnp.tile(on_mesh(v), 4) + lax.scan(lambda c, y: (c + y, y), 0.0, v)[0]

    def body() -> Any:
        return [whole(lax.cond(p, other, lambda v: v, x.astype(float))) for p in (False, True)]

    untaken, taken = everywhere(body)
    np.testing.assert_array_equal(untaken, x)
    assert taken.shape == (4,)


def test_an_error_in_a_branch_leaves_nothing_behind() -> None:
    def fails(v: Any) -> Any:
        raise KeyError("mine")

    def body() -> Any:
        for p in (True, False):
            with pytest.raises(KeyError, match="mine"):
                lax.cond(p, fails, lambda v: v, x)
        with pytest.raises(KeyError, match="mine"):
            lax.fori_loop(0, 0, lambda i, c: fails(c), 0.0)
        return (mnp.ones(2) + 1).tolist()

    assert alone(body) == [2.0, 2.0]


def test_bounds_of_two_dtypes() -> None:
    def run() -> Any:
        start, end = mnp.asarray(np.int64(1)), mnp.asarray(np.uint64(4))
        counted = lax.fori_loop(start, end, lambda i, c: c + i, 0)
        typed = meshard.eval_shape(
            lambda a, b: lax.fori_loop(a, b, lambda i, c: i, 0), np.int64(1), np.uint64(4)
        )
        return int(counted), typed.dtype.name

    assert alone(run) == (6, "int64")


def test_settings_of_the_default_float() -> None:
    def body() -> Any:
        meshard.config.update("default_float", "float32")
        try:
            found = lax.fori_loop(0, 2, lambda i, c: c + x[1], 0.0)
            return found.dtype.name, lax.fori_loop(0, 2, lambda i, c: c + 0.5, 0).dtype.name
        finally:
            meshard.config.update("default_float", "float64")

    assert alone(body) == ("float32", "float32")
