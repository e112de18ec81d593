"""`explain`: what it says before a program runs is what a ledger sees when it does."""

from __future__ import annotations

import json
import math
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.debug import ledger
from meshard.errors import ArgumentError, ConcretizationError
from meshard.plan.figures.topology import Level, Topology, topology
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices
from tests.worlds import alone, everywhere, in_processes, in_worlds, mesh, put, whole

V = np.arange(64.0).reshape(8, 8)


def lay(*spec: Any, uneven: Any = None) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec), uneven=uneven)


BOTH = P("i", "j")


def over(body: Any, inward: Any = BOTH, outward: Any = BOTH, **options: Any) -> Any:
    return meshard.shard_map(body, mesh=mesh(), in_specs=inward, out_specs=outward, **options)


# programs: name -> function, arguments' specs, options of jit


def chain(x, y):
    return mnp.tanh(x * 2 + 1) @ y


def block(x, y):
    scores = meshard.nn.softmax(x @ y / 8, axis=-1)
    return x + mnp.tanh(scores @ y) @ y


def collectives(x):
    y = lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)
    z = lax.all_gather(y, "i", axis=1, tiled=True)
    w = lax.all_to_all(z, "j", 0, 1, tiled=True)
    w = lax.all_to_all(w, "j", 1, 0, tiled=True)
    w = lax.ppermute(w, "i", [(0, 1), (1, 2), (2, 0)])
    return lax.pmax(w, ("i", "j")) + lax.axis_index("i") + x


def looping(x):
    def turn(i, c):
        return c * 2 + lax.psum(c, "i") / 4

    x = lax.fori_loop(0, 3, turn, x)
    carry, rows = lax.scan(lambda c, row: (c + lax.pmean(row, "j"), c), x[0], x)
    return rows + carry


def choosing(x):
    total = lax.psum(x.sum(), ("i", "j"))
    ring = [(i, (i + 1) % 4) for i in range(4)]
    return lax.cond(total > 0, lambda v: lax.ppermute(v, "i", ring), lambda v: v * 1.0, x)


def automatic(x):
    return lax.psum(mnp.sort(x, axis=1), "i") + x @ x.T @ x


PROGRAMS: dict[str, tuple[Any, tuple[tuple[Any, ...], ...], dict[str, Any]]] = {
    "nothing moves": (lambda x: x * 2 + x.T.T, (("i", "j"),), {}),
    "chain": (chain, (("i",), (None, "j")), {}),
    "block": (block, (("i",), ("j",)), {}),
    "sums": (lambda x: (x.sum(), x.sum(0), x.mean(1), x.max()), (("i", "j"),), {}),
    "disagree": (lambda x, y: mnp.tanh(x + y) @ y, (("i",), (None, "i")), {}),
    "sort": (lambda x: mnp.sort(x, axis=0) + 1, (("i",),), {}),
    "whole": (lambda x: mnp.linalg.inv(x + 9 * mnp.eye(8)), (("i", "j"),), {}),
    "moves": (lambda x: mnp.roll(x, 3, axis=0)[::2] + x[1::2], (("i",),), {}),
    "reshape": (lambda x, y: (x.reshape(-1), y.reshape(-1), y.T), (("i",), (None, "i")), {}),
    "loop": (
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: mnp.tanh(c @ y), x),
        (("i",), (None, "i")),
        {},
    ),
    "carry": (
        lambda x, y: lax.fori_loop(0, 3, lambda i, c: c @ y, x),
        ((None, "i"), (None, "j")),
        {},
    ),
    "scan": (
        lambda x, y: lax.scan(lambda c, r: (c + r, c * 2), y[0], x),
        (("i",), (None, "i")),
        {},
    ),
    "collectives": (lambda x: over(collectives)(x) * 2, (("i",),), {}),
    "loops in a body": (lambda x: over(looping)(x), (("i", "j"),), {}),
    "choice in a body": (lambda x: over(choosing)(x), (("i", "j"),), {}),
    "captured": (lambda x, y: over(lambda v: v + y.sum())(x), ((None, "j"), ("i",)), {}),
    "automatic axes": (
        lambda x: over(automatic, P("i"), P("i"), axis_names={"i"})(x),
        (("i", "j"),),
        {},
    ),
    "nested": (
        lambda x: over(
            lambda v: (
                meshard.shard_map(
                    lambda w: lax.psum(w, "j") + w, in_specs=P(None, "j"), out_specs=P(None, "j")
                )(v)
                + lax.psum(v, "i")
            ),
            P("i"),
            P("i"),
            axis_names={"i"},
        )(x),
        (("i", "j"),),
        {},
    ),
    "groups": (
        lambda x: over(
            lambda v: (
                lax.psum(v, "i", axis_index_groups=[[0, 1], [2, 3]])
                + lax.all_gather(v, "i", axis_index_groups=[[0, 1], [2, 3]]).sum(0)
            )
        )(x),
        (("i", "j"),),
        {},
    ),
    "transform": (lambda x: mnp.fft.fft2(x).real, (("i", "j"),), {}),
    "running sums": (lambda x: mnp.cumsum(x, axis=0), (("i",),), {}),
    "products": (lambda x, y: mnp.einsum("ij,jk,kl->il", x, y, x), (("i",), ("j",)), {}),
    "rows by number": (lambda x: x[mnp.asarray([3, 1, 2])], (("i",),), {}),
    "changing places": (
        lambda x, y: lax.fori_loop(0, 2, lambda k, s: (s[1], s[0]), (x, y)),
        (("i",), (None, "j")),
        {},
    ),
    "constraint": (
        lambda x: lax.with_sharding_constraint(x * 2, lay(None, "j")) + 1,
        (("i",),),
        {},
    ),
}
# The specs here are made in the test's world.
ASKED = {
    "results": ({"out_shardings": ()}, (("i",),)),
    "results by columns": ({"out_shardings": (None, ("j", "i"))}, (("i", "j"),)),
}


def programs():
    for name, (f, specs, options) in PROGRAMS.items():
        yield name, meshard.jit(f, **options), [put(V / 64, *s) for s in specs]
    for name, (options, specs) in ASKED.items():
        lies = {k: lay(*v) for k, v in options.items()}
        yield name, meshard.jit(lambda x: x * 2, **lies), [put(V / 64, *s) for s in specs]


def by_kind(steps: Any) -> Counter:
    found: Counter = Counter()
    for s in steps:
        for c in s.communications:
            if c.total_bytes and s.counted:
                found[s.line, c.kind, c.axes] += s.counted * c.total_bytes
    return found


def records(log: Any) -> Counter:
    found: Counter = Counter()
    for r in log:
        found[r.line, r.kind, r.axes] += r.total_bytes
    return found


@in_worlds
def test_its_bytes_are_those_of_the_run():
    for name, f, args in programs():
        found = meshard.explain(f, *args)
        f(*args)
        with ledger() as log:
            f(*args)
        told = (found.total_bytes, found.bytes_per_device)
        if not found.exact:  # positions decide
            assert 0 < log.total_bytes <= found.total_bytes, f"{name}\n{found}\n{log}"
            continue
        assert told == (log.total_bytes, log.bytes_per_device), f"{name}\n{found}\n{log}"
        assert {d: n for d, n in found.received.items() if n} == {
            d: n for d, n in log.received.items() if n
        }, name


OPERATIONS = [
    lambda x, y: x @ y,
    lambda x, y: x + y.T,
    lambda x, y: mnp.sort(x, axis=0) - y,
    lambda x, y: x * y.sum(axis=1, keepdims=True),
    lambda x, y: mnp.concatenate([x, y])[::2],
    lambda x, y: x.reshape(4, 2, 8).transpose(1, 0, 2).reshape(8, 8) + y,
    lambda x, y: mnp.roll(x, 3, axis=1) + mnp.flip(y, 0),
    lambda x, y: mnp.where(x > y, x, y.max()),
    lambda x, y: mnp.cumsum(x, axis=1) + y[:1],
    lambda x, y: lax.fori_loop(0, 2, lambda i, c: mnp.tanh(c @ y), x),
    lambda x, y: lax.scan(lambda c, r: (c + r, r * 2), y[0], x)[1],
    lambda x, y: over(lambda v, w: v + lax.pmean(w, "i"), (BOTH, BOTH))(x, y),
    lambda x, y: over(lambda v, w: lax.all_gather(w, "j", axis=1, tiled=True) + v, (P("i"), BOTH))(
        x, y
    )[:, ::2],
    lambda x, y: lax.with_sharding_constraint(x / 2, lay("j", "i")) + y,
]


SPECS = ((), ("i",), (None, "i"), ("i", "j"), ("j", "i"), (("i", "j"),))


def random_program(rng: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return a function of two matrices, and how these are laid out."""
    numbers = rng.integers(len(OPERATIONS), size=5)

    def program(x, y):
        for number in numbers:
            x, y = mnp.tanh(OPERATIONS[number](x, y)), x
        return x, y

    return program, [SPECS[k] for k in rng.integers(len(SPECS), size=2)]


def tells_what_moves(f: Any, args: Any) -> Any:
    """Check that bytes are explained as they are counted; return what the function returns."""
    jitted = meshard.jit(f)
    found = meshard.explain(jitted, *args)
    jitted(*args)
    with ledger() as log:
        result = jitted(*args)
    if not found.exact:  # values decide which rows move
        assert log.total_bytes <= found.total_bytes
        assert all(n <= found.received[d] for d, n in log.received.items())
        return result
    assert found.total_bytes == log.total_bytes, f"{found}\n{log}"
    received = {d: n for d, n in log.received.items() if n}
    assert {d: n for d, n in found.received.items() if n} == received, f"{found}\n{log}"
    return result


@pytest.mark.parametrize("seed", range(12))
def test_its_bytes_are_those_of_any_program(seed):
    def body():
        rng = np.random.default_rng(seed)
        program, specs = random_program(rng)
        tells_what_moves(program, [put(rng.standard_normal((8, 8)), *s) for s in specs])

    alone(body)


@pytest.mark.parametrize("seed", range(6))
def test_its_bytes_are_those_of_any_gradient(seed):
    """Of uneven arrays too; all processes are told the same, and find the same bits."""

    def body():
        rng = np.random.default_rng(100 + seed)
        program, specs = random_program(rng)
        uneven = "balanced" if seed % 2 else None
        size = 8 if uneven is None else 6
        if uneven:  # bodies and reshapes of the list are for dims of eight
            return uneven_gradient(rng, specs, size)
        args = [put(rng.standard_normal((size, size)), *s) for s in specs]
        slope = meshard.grad(lambda x, y: sum(mnp.sum(v) for v in program(x, y)), argnums=(0, 1))
        found = tells_what_moves(slope, args)
        assert [g.sharding for g in found] == [x.sharding for x in args]
        return [whole(g) for g in found]

    in_processes(body, (4,))


def uneven_gradient(rng: Any, specs: Any, size: int) -> Any:
    args = [put(rng.standard_normal((size, size)), *s, uneven="balanced") for s in specs]

    def f(x, y):
        return mnp.sum(mnp.tanh(x @ y) * x + mnp.roll(y, 1, 0)[::-1] + mnp.cumsum(x, 1).T)

    found = tells_what_moves(meshard.grad(f, argnums=(0, 1)), args)
    assert [g.sharding for g in found] == [x.sharding for x in args]
    return [whole(g) for g in found]


def test_line_by_line_and_kind_by_kind():
    def body():
        for name, f, args in programs():
            if name == "scan":  # the ledger sees each position by itself
                continue
            found = meshard.explain(f, *args)
            f(*args)
            with ledger() as log:
                f(*args)
            if not found.exact:
                continue
            assert by_kind(found.steps) == records(log), f"{name}\n{found}\n{log}"
            assert found.by_line() == log.by_line()

    alone(body)


def test_warnings_stand_where_the_ledger_shows_an_all_gather():
    def body():
        seen = 0
        for name, f, args in programs():
            found = meshard.explain(f, *args)
            f(*args)
            with ledger() as log:
                f(*args)
            own = {s.number for s in found.steps if s.after and not s.after[0].startswith("{")}
            gathers = {
                s.number for s in found.steps for c in s.communications if c.kind == "all-gather"
            }
            whole = {w.step for w in found.warnings if w.whole}
            assert gathers & own <= whole, f"{name}\n{found}"
            lines = {r.line for r in log if r.kind == "all-gather" and r.what != "all_gather"}
            assert lines <= {w.line for w in found.warnings if w.whole}, f"{name}\n{found}\n{log}"
            if not log.total_bytes:
                assert not found.warnings
            seen += len(lines)
        assert seen >= 4

    alone(body)


def test_every_process_is_told_the_same():
    def body():
        return [meshard.explain(f, *args).to_json() for _, f, args in programs()]

    everywhere(body)


# reasons


def warning(f, *args, **options):
    found = meshard.explain(meshard.jit(f, **options), *args)
    assert len(found.warnings) == 1, found
    return found.warnings[0]


def test_reasons_name_the_dim_the_axis_and_the_operand():
    def body():
        rows, columns = put(V, "i"), put(V, None, "i")
        whole = warning(lambda x: mnp.linalg.inv(x + 9 * mnp.eye(8)), rows)
        assert (whole.dim, whole.axes, whole.whole, whole.asked) == (0, ("i",), True, False)
        assert "inv needs that dim whole" in str(whole)
        assert "test_explain.py:" in str(whole)
        other = warning(lambda x: mnp.sort(x, axis=0), rows)
        assert (other.operand, other.dim, other.whole) == ("x", 0, False)
        assert str(other).startswith(
            "dim 0 of x, split over 'i', is split otherwise: sort needs that dim whole"
        )
        clash = warning(lambda x, y: x + y, rows, columns)
        assert clash.operand in ("x", "y")
        assert "operands of add disagree: dim " in clash.reason
        assert "is split over 'i'" in clash.reason
        asked = warning(lambda x: x * 2, rows, out_shardings=lay())
        assert asked.asked
        assert asked.operand.startswith("the result of multiply at test_explain.py:")
        assert "asked for by out_shardings, P()" in str(asked)
        constrained = warning(lambda x: lax.with_sharding_constraint(x, lay(None, "j")), rows)
        assert constrained.asked
        assert "asked for by with_sharding_constraint, P(None, 'j')" in str(constrained)
        specs = warning(lambda x: over(lambda v: v, P(), P())(x), rows)
        assert specs.asked
        assert "asked for by in_specs, P(), of shard_map" in str(specs)
        used = warning(lambda x, y: over(lambda v: v + y.sum())(x), put(V, "i", "j"), rows)
        assert (used.operand, used.dim) == ("y", 0)
        assert "captured value" in used.reason
        scanned = warning(lambda x: lax.scan(lambda c, r: (c + r, r), np.zeros(8), x)[0], rows)
        assert "scan takes one position after another" in scanned.reason
        looped = warning(
            lambda x, y: lax.fori_loop(0, 2, lambda i, c: mnp.tanh(c @ y), x), rows, columns
        )
        assert looped.operand == "y"
        assert "operands of contract disagree" in looped.reason

    alone(body)


def test_what_is_asked_for_is_obtained():
    specs = [(), ("i",), ("j",), (None, "i"), ("i", "j"), (("j", "i"),), (None, ("i", "j"))]

    def body():
        for before in specs[1:4]:
            x = put(V, *before)
            for after in specs:
                wanted = lay(*after)
                f = meshard.jit(lambda v: mnp.sort(v, axis=1) * 2, out_shardings=wanted)
                g = meshard.jit(lambda v: lax.with_sharding_constraint(v.T * 2, wanted))  # noqa: B023
                for run in f, g:
                    assert run(x).sharding == wanted
                    (result,) = run.lower(x).explain().steps[-1].after
                    assert result == repr(wanted.spec).replace(",)", ")")

    alone(body)


def test_nothing_is_said_of_what_stays():
    def body():
        x, y = put(V, "i", "j"), put(V, None, "j")
        for f in (lambda x, y: mnp.tanh(x) * y, lambda x, y: (x.T, y.sum(0)), lambda x, y: x.sum()):
            assert not meshard.explain(f, x, y).warnings

    alone(body)


# figures


def test_times_are_those_of_the_topology():
    def body():
        x = put(V, "i")
        slow = Topology("slow", (Level("all", latency=0.5, bandwidth=128.0),))
        found = meshard.explain(meshard.jit(lambda v: v * 2, out_shardings=lay()), x, topology=slow)
        # A hop: 384 bytes into each of 8 devices, in messages of half a second.
        assert found.topology == "slow"
        assert found.seconds == sum(s.counted * s.seconds for s in found.steps) > 384 / 128
        turns = meshard.explain(
            lambda v: lax.fori_loop(0, 7, lambda i, c: c + c.sum(), v), x, topology=slow
        )
        (sum_,) = [s for s in turns.steps if s.communications]
        # An all-reduce of 8 bytes over 4 devices: 12 bytes in 6 messages, seven times.
        assert sum_.seconds == pytest.approx(12 / 128 + 6 * 0.5)
        assert turns.seconds == pytest.approx(7 * sum_.seconds)
        fast = meshard.explain(lambda v: v.sum(), x, topology="8-gpu hosts")
        assert 0 < fast.seconds < 1e-3
        assert fast.topology == topology("8-gpu hosts").name

    alone(body)


def test_a_program_for_devices_that_are_not_here():
    grid = Mesh(np.array(virtual_devices(64)).reshape(16, 4), ("data", "model"))

    def struct(shape, *spec):
        return meshard.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(grid, P(*spec)))

    def layer(x, w, v):
        return mnp.tanh(x @ w) @ v

    found = meshard.explain(
        layer,
        struct((256, 512), "data"),
        struct((512, 1024), None, "model"),
        struct((1024, 512), "model"),
        topology="two racks",
    )
    nbytes = 256 * 512 * 4 // 16
    assert found.total_bytes == 64 * 2 * 3 * nbytes // 4
    assert [c.kind for s in found.steps for c in s.communications] == ["all-reduce"]
    assert found.devices == tuple(range(64))


def test_what_values_decide_is_counted_once_and_said():
    def body():
        x = put(V, "i")
        found = meshard.explain(
            lambda v: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + c.sum(), v), x
        )
        assert not found.exact
        assert {s.turns for s in found.steps} == {1, None}
        assert found.total_bytes == 2 * 96
        assert "values decide" in str(found)
        choice = meshard.explain(
            lambda v: lax.cond(v[0, 0] > 0, lambda w: w.sum(0), lambda w: w[0] * 2.0, v), x
        )
        counted = {(s.part, s.counted) for s in choice.steps if s.depth}
        assert ("true_fun", 1) in counted or ("false_fun", 1) in counted
        assert {c for p, c in counted} == {0, 1}

    alone(body)


def test_what_values_decide_is_at_most_so_much():
    def body():
        for size in 3000, 4096, 100_000:
            values = np.random.default_rng(size).standard_normal(size)
            for f in (mnp.sort, mnp.argsort):
                x = put(values, "i")
                found = meshard.explain(f, x)
                run = meshard.jit(f)
                run(x)
                with ledger() as log:
                    run(x)
                assert not found.exact
                assert 0 < log.total_bytes <= found.total_bytes
                assert log.bytes_per_device <= found.bytes_per_device
                assert f"<= {found.total_bytes:,}" in str(found)

    alone(body)


def ragged(x):
    ones, me = np.ones(4, int), lax.axis_index("i")
    return lax.ragged_all_to_all(
        x, x * 0, 0 * ones, (me % 2) * ones, 0 * ones, mnp.arange(4) % 2, axis_name="i"
    )


def halves(x):
    """Only some devices take part in the sum."""
    return lax.cond(
        lax.axis_index("i") > 1, lambda v: lax.psum(v, "j"), lambda v: lax.pmax(v, "j") * 2, x
    )


def until(x):
    return lax.while_loop(lambda v: lax.pmax(v.sum(), ("i", "j")) < 9, lambda v: v * 2 + 1, x)


def test_in_bodies_too_what_values_decide_is_said():
    def body():
        x = put(V / 64, "i", "j")
        for f, bounded in ((ragged, True), (halves, True), (until, False)):
            mapped = over(f, *(P("i"),) * 2) if f is ragged else over(f)
            found = meshard.explain(mapped, x)
            run = meshard.jit(mapped)
            run(x)
            with ledger() as log:
                run(x)
            assert not found.exact, found
            assert not bounded or log.total_bytes <= found.total_bytes, f"{found}\n{log}"
            assert any(s.turns is None or not s.exact for s in found.steps if s.communications)
            assert ("<= " in str(found)) == bounded

    alone(body)


def test_memory_is_that_of_the_device_that_has_most():
    def body():
        x = put(np.zeros((1024, 1024)), "i", "j")
        shard = 1024 * 1024
        found = meshard.explain(meshard.jit(lambda v: v * 2, out_shardings=lay()), x)
        assert found.argument_bytes == shard
        # The argument, its double, and the double as a whole.
        assert found.peak_bytes == shard + shard + 8 * shard
        inner = meshard.explain(lambda v: over(lambda w: mnp.sin(lax.all_gather(w, "j")))(v)[0], x)
        assert inner.peak_bytes >= shard + 2 * 2 * shard
        assert max(s.live_bytes for s in inner.steps) == inner.peak_bytes

    alone(body)


# reading it


class Tags(HTMLParser):
    """Checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter = Counter()

    def handle_starttag(self, tag, attrs):
        self.seen[tag] += 1
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_table_the_json_and_the_page_agree(tmp_path):
    def body():
        for name, f, args in programs():
            found = meshard.explain(f, *args)
            value = json.loads(found.to_json())
            assert value["total_bytes"] == found.total_bytes
            assert value["total_bytes"] == sum(
                s["counted"] * s["total_bytes"] for s in value["steps"]
            )
            assert [w["text"] for w in value["warnings"]] == list(map(str, found.warnings))
            assert len(value["steps"]) == len(found.steps)
            text = str(found)
            most = "" if all(s.exact for s in found.steps) else "<= "
            assert f"bytes moved                {most}{found.total_bytes:,}" in text, name
            assert max(map(len, text.split("\n"))) <= 120, text
            assert text.count("\nwarning: ") + text.count("\nnote: ") == len(found.warnings)
            path = tmp_path / "page.html"
            page = found.to_html(path)
            assert path.read_text(encoding="utf-8") == page
            assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
            tags = Tags()
            tags.feed(page)
            assert not tags.open
            assert tags.seen["tr"] == len(found.steps) + 1 + 4
            assert tags.seen["li"] == len(found.warnings)
            assert (tags.seen["svg"] == 1) == bool(found.total_bytes), name

    alone(body)


def test_it_prints_so():
    def body():
        def f(x, w):
            return mnp.sort(mnp.tanh(x @ w), axis=0)

        return str(meshard.explain(f, put(V, "i"), put(V)))

    text = alone(body).split("\n")
    assert text[0] == "f: 5 steps on 8 devices"
    assert text[1].split("  ")[0] == "line"
    names = [line.split()[2] for line in text[2:7]]
    assert names == ["contract", "tanh", "sort", "reshard", "sort"]
    assert "P(i) -> P(-, i)    all-to-all i          96    768" in text[5]
    assert text[8].startswith("bytes moved                768")
    told = "warning: dim 0 of the result of tanh at test_explain.py:"
    assert any(line.startswith(told) for line in text[12:])


def test_stages_and_methods_explain_too():
    def body():
        x = put(V, "i")

        class Model:
            scale = 2.0

            @meshard.jit
            def __call__(self, v):
                return v.sum() * 2

            @staticmethod
            def plain(v, *, by):
                return (v * by).sum()

        lowered = meshard.jit(lambda v: v.sum()).lower(x)
        assert lowered.explain().total_bytes == lowered.compile().explain("two racks").total_bytes
        assert meshard.explain(Model.plain, x, by=3).total_bytes == 96
        assert repr(lowered.explain()) == "Explanation('<lambda>', 1 steps, 96 bytes, 0 warnings)"
        assert meshard.explain(lambda: 3).total_bytes == 0

    alone(body)


def test_what_cannot_be_explained_is_refused():
    def body():
        x = put(V, "i")
        with pytest.raises(ArgumentError, match="f must be a function, got 3"):
            meshard.explain(3, x)
        with pytest.raises(ArgumentError, match="There is no topology named 'moon'"):
            meshard.explain(mnp.sin, x, topology="moon")
        with pytest.raises(ArgumentError, match="explain: topology must be a Topology or the name"):
            meshard.explain(mnp.sin, x, topology=3)
        small = Topology("small", (Level("host", latency=0.0, bandwidth=1.0, size=2),))
        with pytest.raises(ArgumentError, match="Device 2 has no place in topology 'small'"):
            meshard.explain(lambda v: v.sum(), x, topology=small)
        with pytest.raises(ConcretizationError, match=r"test_explain\.py"):
            meshard.explain(lambda v: v if v.sum() > 0 else -v, x)

    alone(body)


# costs


def test_costs_are_those_counted_by_hand():
    def body():
        x, y = put(V, "i"), put(V)
        batch = put(np.ones((4, 8, 16)), "i"), put(np.ones((4, 16, 2)))

        def flops(f, *args):
            return meshard.jit(f).lower(*args).cost_analysis()["flops"]

        assert flops(lambda a, b: a @ b, x, y) == 2 * 8**3
        assert flops(lambda a, b: a @ b, *batch) == 2 * 4 * 8 * 16 * 2
        assert flops(lambda a: mnp.tanh(a * 2), x) == 2 * 64
        assert flops(lambda a, b: lax.fori_loop(0, 5, lambda i, c: c @ b, a), x, y) == 5 * 1024
        # In a body each device multiplies its own 2 x 8 with 8 x 8; along j they do the same.
        body_of = over(lambda a, b: a @ b, (P("i"), P()), P("i"))
        assert flops(body_of, x, y) == 4 * 2 * 2 * 8 * 8
        loop = over(lambda a, b: lax.fori_loop(0, 3, lambda i, c: c @ b, a), (P("i"), P()), P("i"))
        assert flops(loop, x, y) == 3 * 4 * 2 * 2 * 8 * 8
        cost = meshard.jit(lambda a, b: a @ b + a).lower(x, y).cost_analysis()
        assert cost["bytes accessed"] == 6 * 512
        cost = meshard.jit(over(lambda v: lax.psum(v, "i"), P("i"), P())).lower(x).cost_analysis()
        assert cost["bytes communicated"] == 8 * 2 * 3 * 128 // 4

    alone(body)


def test_memory_analysis_sees_bodies_and_loops():
    def body():
        x = put(np.zeros((64, 64)), "i")
        shard = 64 * 64 * 8 // 4

        def memory(f):
            return meshard.jit(f).lower(x).compile().memory_analysis()

        plain = memory(lambda v: mnp.sort(mnp.sort(v, axis=0), axis=1))
        assert plain.argument_size_in_bytes == plain.output_size_in_bytes == shard
        assert plain.temp_size_in_bytes >= 2 * shard  # moved, and sorted there
        mapped = memory(over(lambda v: mnp.tile(v, (4, 1))[:16] * 1.0, P("i"), P("i")))
        assert mapped.temp_size_in_bytes >= 4 * shard
        loop = memory(lambda v: lax.fori_loop(0, 3, lambda i, c: mnp.sort(c, axis=1) + 1, v))
        assert loop.temp_size_in_bytes >= shard
        same = memory(lambda v: v)
        assert same.alias_size_in_bytes == math.prod((64, 64)) * 2
        assert same.peak_memory_in_bytes == shard

    alone(body)


def test_huge_arrays_are_counted_exactly():
    """Bytes beyond 63 bits in all: those of a small array, times the factor."""
    devices = np.array(virtual_devices(8), object)
    mesh = Mesh(devices.reshape(4, 2), ("x", "y"))
    scale = 1 << 52

    largest = []

    def figures(n):
        x = meshard.ShapeDtypeStruct((n, n), "float64", sharding=NamedSharding(mesh, P("x", "y")))
        for f in (lambda a: a + 1, lambda a: a.T + a, lambda a: mnp.sort(a, axis=0)):
            found = meshard.explain(f, x)
            yield found.total_bytes, found.bytes_per_device, found.peak_bytes, found.argument_bytes
            assert "-" not in str(found.total_bytes)
            largest.append(found.total_bytes)

    small, large = figures(8), figures(8 << 26)
    for few, many in zip(small, large, strict=True):
        assert many == tuple(n * scale for n in few)
    assert max(largest) > 1 << 60
