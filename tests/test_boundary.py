"""Tracebacks end at the user's line, wherever the error was raised."""

from __future__ import annotations

import asyncio
import code
import contextlib
import inspect
import io
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.algebra import boundary
from meshard.algebra.boundary import bounded, users_frames
from meshard.errors import ArgumentError, ConcretizationError, MeshardError, ShapeError
from meshard.sharding import NamedSharding, P
from meshard.testing import simulate
from tests.test_api import public_names
from tests.tracebacks import ROOT, internal_frames


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary.TRACEBACK, "value", "short")


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


def lines(error: BaseException) -> list[str]:
    """Return the names of the functions in a traceback, without `raised`."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


def library(source: str) -> Any:
    """Return the names that a source defines, which seem to belong to the library."""
    module = types.ModuleType("meshard.made_by_a_test")
    exec(textwrap.dedent(source), module.__dict__)
    return types.SimpleNamespace(
        **{k: bounded(v) for k, v in vars(module).items() if k[:1] != "_" and callable(v)}
    )


# --- what users see


def mesh() -> Any:
    return meshard.make_mesh((4, 2), ("x", "y"))


def condition(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def body(x: Any) -> Any:
    return x.reshape(7)


def divided(*_: object) -> Any:
    return 1 // 0


def over_x(f: Callable[..., Any]) -> Any:
    return meshard.shard_map(f, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))


def budgeted() -> None:
    with meshard.debug.budget(-1):
        pass


def in_user_block() -> None:
    with meshard.debug.ledger(), mesh():
        divided()


CALLS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "function": (lambda: mnp.concatenate([]), ["<lambda>"]),
    "operator": (lambda: mnp.ones(3) + mnp.ones(4), ["<lambda>"]),
    "method": (lambda: mnp.ones(3).reshape(5), ["<lambda>"]),
    "index": (lambda: mnp.ones(3)[8], ["<lambda>"]),
    "iteration": (lambda: list(mnp.ones(())), ["<lambda>"]),
    "missing attribute": (lambda: mnp.ones(3).numpy(), ["<lambda>"]),
    "missing name": (lambda: mnp.concat_, ["<lambda>"]),
    "late name": (lambda: meshard.shardmap, ["<lambda>"]),
    "constructor": (lambda: NamedSharding(mesh(), P("z")), ["<lambda>"]),
    "setting": (lambda: meshard.config.update("chekc", 1), ["<lambda>"]),
    "jitted": (lambda: meshard.jit(condition)(mnp.ones(3)), ["<lambda>", "condition"]),
    "jitted, lowered": (
        lambda: meshard.jit(condition).lower(mnp.ones(3)),
        ["<lambda>", "condition"],
    ),
    "jitted, its arguments": (lambda: meshard.jit(body)("a"), ["<lambda>"]),
    "explained": (lambda: meshard.explain(body, mnp.ones(3)), ["<lambda>", "body"]),
    "body": (lambda: over_x(condition)(mnp.ones(8)), ["<lambda>", "condition"]),
    "body, its results": (lambda: over_x(lambda t: t.sum())(mnp.ones(8)), ["<lambda>"]),
    "jitted body": (lambda: meshard.jit(over_x(body))(mnp.ones(8)), ["<lambda>", "body"]),
    "scan": (lambda: lax.scan(divided, 0.0, mnp.ones(3)), ["<lambda>", "divided"]),
    "cond": (lambda: lax.cond(True, divided, body, mnp.ones(3)), ["<lambda>", "divided"]),
    "tree": (lambda: meshard.tree.map(divided, {"a": 1}), ["<lambda>", "divided"]),
    "callback": (
        lambda: meshard.make_array_from_callback((8,), NamedSharding(mesh(), P("x")), divided),
        ["<lambda>", "divided"],
    ),
    "context manager": (budgeted, ["budgeted"]),
    "inside of blocks": (in_user_block, ["in_user_block", "divided"]),
    "checkpoint": (lambda: meshard.checkpoint.template("lama"), ["<lambda>"]),
    "plan": (lambda: meshard.plan_reshard(mnp.ones(3), P("x")), ["<lambda>"]),
    "iterator": (
        lambda: list(
            meshard.resharding.reshard_iter({"a": mnp.ones(3)}, mesh().devices[0, 0], dtype="x")
        ),
        ["<lambda>"],
    ),
    "elastic": (lambda: meshard.elastic.restore(3), ["<lambda>"]),
    "NumPy's function": (lambda: np.concatenate([mnp.ones(3), mnp.ones((2, 2))]), ["<lambda>"]),
    "simulated": (lambda: simulate(2, 1, divided), ["<lambda>", "divided"]),
    "simulated, refused": (lambda: simulate(2, 1, lambda: mnp.ones(3)[8]), ["<lambda>"] * 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_traceback_ends_at_the_users_line(name: str) -> None:
    call, expected = CALLS[name]
    error = raised(call)
    assert internal_frames(error) == []
    if "NumPy" not in name:
        assert lines(error) == expected
    assert ROOT not in "".join(traceback.format_exception(error))


def test_what_formats_the_exception_makes_no_difference() -> None:
    told: list[str] = []

    def run() -> None:
        try:
            meshard.jit(condition)(mnp.ones(3))
        except ConcretizationError:
            told.append(traceback.format_exc())

    async def later() -> None:
        run()

    run()
    asyncio.run(later())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(told) == 3
    for text in told:
        assert text.count('File "') == 2, text


def test_a_notebooks_cell_is_told_as_the_users_line() -> None:
    source = "import meshard.numpy as mnp\nmnp.ones(3).reshape(4)\n"
    told = io.StringIO()
    notebook = code.InteractiveInterpreter({"__name__": "__main__"})
    with contextlib.redirect_stderr(told):
        notebook.runcode(compile(source, "<ipython-input-1>", "exec"))
    assert told.getvalue().count('File "') == 1
    assert '"<ipython-input-1>", line 2' in told.getvalue()


SCRIPT = """
import sys
import meshard, meshard.numpy as mnp

@meshard.jit
def step(x):
    if x > 0:
        return x
    return -x

if "again" in sys.argv:
    meshard.config.update("traceback", sys.argv[-1])
step(1.0)
"""


def script(tmp_path: Path, *arguments: str, **environment: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    given = {k: v for k, v in os.environ.items() if k != "MESHARD_TRACEBACK"}
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=given | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_script_shows_its_own_lines_and_all_of_them_if_it_is_asked(tmp_path: Path) -> None:
    told = script(tmp_path)
    assert told.count('File "') == 2
    assert told.count("script.py") >= 2
    assert "ConcretizationError" in told
    full = script(tmp_path, MESHARD_TRACEBACK="full")
    assert full.count('File "') > 8
    assert script(tmp_path, "again", "full").count('File "') > 8
    assert script(tmp_path, "again", "short", MESHARD_TRACEBACK="full").count('File "') == 2


def test_the_setting_takes_two_values() -> None:
    with pytest.raises(ArgumentError, match="traceback must be 'short' or 'full', not 'none'"):
        meshard.config.update("traceback", "none")


# --- what is cut, and what is not


def test_full_keeps_all_frames() -> None:
    boundary.TRACEBACK.value = "full"
    assert len(internal_frames(raised(lambda: mnp.ones(3).reshape(5)))) > 2


def test_what_the_library_has_answered_is_not_shown_but_what_users_have_caught_is() -> None:
    made = library("""
        from meshard.errors import ArgumentError
        def refuse(inner=None):
            try:
                {}["no such key"] if inner is None else inner()
            except LookupError:
                raise ArgumentError("refused")
        def told():
            try:
                {}["no such key"]
            except LookupError as error:
                raise ArgumentError("refused") from error
    """)

    def users() -> None:
        raise LookupError("the user's")

    def again() -> None:
        try:
            users()
        except LookupError:
            made.refuse()

    hidden = raised(made.refuse)
    assert hidden.__suppress_context__
    assert "no such key" not in "".join(traceback.format_exception(hidden))
    for call in (lambda: made.refuse(users), again):
        text = "".join(traceback.format_exception(raised(call)))
        assert "the user's" in text
        assert "in users" in text
    cause = raised(made.told)
    assert isinstance(cause.__context__, KeyError)
    assert "no such key" not in "".join(traceback.format_exception(cause))
    boundary.TRACEBACK.value = "full"
    assert "no such key" in "".join(traceback.format_exception(raised(made.told)))


def test_frames_of_the_user_stay_between() -> None:
    made = library("""
        def outer(f):
            return inner(f)
        def inner(f):
            return f()
    """)

    def again(depth: int) -> Any:
        return made.outer(lambda: again(depth - 1)) if depth else divided()

    error = raised(lambda: made.outer(lambda: again(2)))
    assert lines(error) == [
        "<lambda>",
        "<lambda>",
        "again",
        "<lambda>",
        "again",
        "<lambda>",
        "again",
        "divided",
    ]


def test_an_exception_that_is_raised_again_keeps_its_frames() -> None:
    made = library("""
        def call(f):
            try:
                return f()
            except ZeroDivisionError as error:
                raise error
    """)
    assert lines(raised(lambda: made.call(divided))) == ["<lambda>", "divided"]
    kept = raised(divided)
    assert lines(raised(lambda: made.call(lambda: throw(kept)))) == [
        "<lambda>",
        "<lambda>",
        "throw",
        "raised",
        "divided",
    ]


def throw(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_interrupts_pass_as_they_are(kind: type[BaseException]) -> None:
    made = library("def call(f, *args): return f(*args)")
    error = kind("x")
    found = raised(lambda: made.call(throw, error))
    assert found is error
    assert lines(found) == ["<lambda>", "throw"]
    assert not hasattr(found, "__notes__")


def test_groups_are_cut_in_every_part() -> None:
    made = library("""
        def several(*functions):
            found = []
            for f in functions:
                try:
                    f()
                except Exception as error:
                    found.append(error)
            raise ExceptionGroup("several", found)
    """)
    group = raised(lambda: made.several(divided, lambda: made.several(divided)))
    assert isinstance(group, ExceptionGroup)
    assert internal_frames(group) == []
    first, second = group.exceptions
    assert isinstance(second, ExceptionGroup)
    assert [f.name for f in traceback.extract_tb(first.__traceback__)] == ["divided"]
    assert [f.name for f in traceback.extract_tb(second.__traceback__)] == ["<lambda>"]


def test_packages_are_cut_where_the_library_has_called_them_only() -> None:
    made = library("""
        import json
        def read(text): return json.loads(text)
    """)
    assert lines(raised(lambda: made.read("["))) == ["<lambda>"]
    assert "decode" in lines(raised(lambda: json.loads("[")))

    def hook(pairs: object) -> None:
        json.loads("[")

    made = library("""
        import json
        def read(text, hook): return json.loads(text, object_hook=hook)
    """)
    found = lines(raised(lambda: made.read("{}", hook)))
    assert found[:2] == ["<lambda>", "hook"]
    assert found[-1] == "raw_decode"


def test_an_error_that_was_not_meant_says_how_to_see_where() -> None:
    made = library("def fail(): return {}['key']")
    error = raised(made.fail)
    assert error.__notes__ == ["Raised inside meshard; MESHARD_TRACEBACK=full shows where."]
    assert not hasattr(raised(lambda: meshard.tree.map(divided, 1)), "__notes__")


def test_arrays_of_internal_frames_are_not_kept_alive() -> None:
    made = library("""
        def work():
            large = Large()
            raise ValueError
        class Large:
            pass
    """)
    error = raised(made.work)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert all("large" not in frame.f_locals for frame in frames)


# --- who has a boundary


def has_boundary(function: Any) -> bool:
    return function.__code__.co_consts[-1:] == (boundary._leave,)


def functions_of(kind: type) -> Iterator[tuple[str, Any]]:
    for owner in kind.__mro__:
        if boundary.is_library(owner.__module__) and not issubclass(owner, Exception):
            for function in boundary._members(owner):
                if getattr(function, "__module__", None) == owner.__module__:
                    yield f"{owner.__name__}.{function.__name__}", function


def test_every_public_function_and_method_has_a_boundary() -> None:
    for name, value in public_names():
        if inspect.isclass(value) and not issubclass(value, BaseException):
            for method, function in functions_of(value):
                assert has_boundary(function), f"{name}: {method}"
        elif isinstance(value, types.FunctionType) and boundary.is_library(value.__module__):
            assert has_boundary(value), name
            own = value.__code__.co_filename
            assert not own.endswith("contextlib.py"), f"{name}: make it by boundary.context"


HANDED_OUT: dict[str, Callable[[], Any]] = {
    "x.at": lambda: mnp.ones(3).at,
    "x.at[0]": lambda: mnp.ones(3).at[0],
    "jit": lambda: meshard.jit(divided),
    "jit, traced": lambda: meshard.jit(lambda x: x).trace(1.0),
    "jit, lowered": lambda: meshard.jit(lambda x: x).lower(1.0),
    "jit, compiled": lambda: meshard.jit(lambda x: x).lower(1.0).compile(),
    "shard_map": lambda: over_x(divided),
    "ledger": meshard.debug.ledger,
    "profile": meshard.debug.profile,
    "explain": lambda: meshard.explain(lambda x: x, 1.0),
    "plan_reshard": lambda: meshard.plan_reshard(mnp.ones(8), NamedSharding(mesh(), P("x"))),
    "namespace info": lambda: mnp.__array_namespace_info__(),
    "finfo": lambda: mnp.finfo("float32"),
}


@pytest.mark.parametrize("name", HANDED_OUT)
def test_what_functions_hand_out_has_a_boundary(name: str) -> None:
    value = HANDED_OUT[name]()
    for method, function in functions_of(type(value)):
        assert has_boundary(function), method


def test_values_without_data_have_a_boundary() -> None:
    seen: list[type] = []

    def look(x: Any) -> Any:
        seen.append(type(x))
        return x

    meshard.jit(look)(1.0)
    over_x(look)(mnp.ones(8))
    meshard.jit(over_x(look))(mnp.ones(8))
    assert len(set(seen)) >= 2
    for kind in seen:
        for method, function in functions_of(kind):
            assert has_boundary(function), method


# --- how it is done


def test_nothing_is_added_where_nothing_is_raised() -> None:
    """The instructions are those of before, and no frame is added."""

    def depth() -> int:
        return len(inspect.stack(0))

    made = library("def call(f): return f()")
    assert made.call(depth) == depth() + 1
    before = types.FunctionType(call_of(1), {}).__code__
    after = with_handler(before)
    assert after.co_code[: len(before.co_code)] == before.co_code
    assert after.co_consts[: len(before.co_consts)] == before.co_consts
    assert list(before.co_lines()) == [r for r in after.co_lines() if r[2] is not None]


def with_handler(code: types.CodeType) -> types.CodeType:
    assert boundary._HANDLER is not None
    return boundary._with_handler(boundary._HANDLER, code)


def call_of(constants: int) -> types.CodeType:
    source = (
        f"def f(x):\n    {[n + 0.25 for n in range(constants)]!r}.append(x)\n    return 1 // x\n"
    )
    found: dict[str, Any] = {"__name__": "meshard.made_by_a_test"}
    exec(source.replace("[", "list((").replace("]", ",))"), found)
    code: types.CodeType = found["f"].__code__
    return code.replace(co_consts=(*code.co_consts, *(n + 0.5 for n in range(constants))))


@pytest.mark.parametrize("constants", [1, 250, 251, 252, 253, 254, 255, 256, 257, 600])
def test_functions_may_have_many_constants(constants: int) -> None:
    f = types.FunctionType(call_of(constants), {"__name__": "meshard.made_by_a_test"})
    boundary._bound(f)
    assert f(1) == 1
    assert lines(raised(lambda: f(0))) == ["<lambda>"]


def test_a_python_that_compiles_in_another_way_shows_full_tracebacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f() -> None:
        raise ValueError

    for template in ("def _template(): pass", "def _template():\n try: 0.5()\n except: raise"):
        monkeypatch.setattr(boundary, "_TEMPLATE", template)
        assert boundary._handler() is None
    monkeypatch.setattr(boundary, "_HANDLER", None)
    boundary._bound(f)
    assert not has_boundary(f)


def all_codes() -> Iterator[types.CodeType]:
    """Yield the code of all functions of modules that are loaded: thousands of shapes."""
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            for one in (value, *(vars(value).values() if inspect.isclass(value) else ())):
                if type(one) is types.FunctionType:
                    yield one.__code__


def test_every_instruction_of_any_function_has_one_handler() -> None:
    tried = 0
    for found in all_codes():
        if found.co_consts[-1:] == (boundary._leave,):
            continue
        tried += 1
        made = with_handler(found)
        before, after = (
            list(boundary._entries(found.co_exceptiontable)),
            list(boundary._entries(made.co_exceptiontable)),
        )
        assert [entry for entry in after if entry in before] == before
        at = 0
        for start, size, _, _ in after:
            assert start == at
            assert size > 0
            at = start + size
        end = len(found.co_code) // 2
        assert at > end
        assert len(made.co_code) // 2 > at
        assert b"".join(map(boundary._line, before)) == found.co_exceptiontable
    assert tried > 5000


def test_functions_do_what_they_did() -> None:
    made = library("""
        import contextlib
        def whole(a, /, b, *rest, c=3, **more):
            kept = lambda: (a, b, rest, c, more)
            a = a + 1
            return kept()
        def tried(f, log):
            try:
                with contextlib.suppress(KeyError):
                    for n in range(3):
                        try:
                            log.append(f(n))
                        except (IndexError, TypeError) as error:
                            log.append(type(error).__name__)
                            if n == 2:
                                raise ValueError(n) from error
                        else:
                            log.append("fine")
                        finally:
                            log.append("finally")
            finally:
                log.append("end")
            return log
        def numbers(n):
            for k in range(n):
                got = yield k
                if got:
                    yield got * 10
            return "done"
    """)
    assert made.whole(1, 2, 4, c=5, d=6) == (2, 2, (4,), 5, {"d": 6})
    assert str(inspect.signature(made.whole)) == "(a, /, b, *rest, c=3, **more)"
    assert made.tried(lambda n: n, []) == [
        0,
        "fine",
        "finally",
        1,
        "fine",
        "finally",
        2,
        "fine",
        "finally",
        "end",
    ]
    log: list[object] = []
    error = raised(lambda: made.tried(lambda n: [5][n], log))
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, IndexError)
    assert log == [5, "fine", "finally", "IndexError", "finally", "IndexError", "finally", "end"]
    assert made.tried(lambda n: {}[n], []) == ["finally", "end"]
    assert sys.exception() is None
    counted = made.numbers(3)
    assert [next(counted), counted.send(4), next(counted), next(counted)] == [0, 40, 1, 2]
    with pytest.raises(StopIteration, match="done"):
        next(counted)
    counted = made.numbers(3)
    next(counted)
    assert lines(raised(lambda: counted.throw(KeyError("x")))) == ["<lambda>"]
    made.numbers(3).close()
    try:
        raise LookupError("outer")
    except LookupError:
        raised(lambda: made.tried(lambda n: [5][n], []))
        assert isinstance(sys.exception(), LookupError)


def test_the_same_functions_are_listed_and_pickled() -> None:
    assert pickle.loads(pickle.dumps(mnp.sin)) is mnp.sin
    assert inspect.getsource(meshard.device_put).startswith("def device_put(")
    assert mnp.sum.__code__ == bounded(mnp.sum).__code__


def test_a_deep_recursion_is_told_as_one() -> None:
    def again(x: Any) -> Any:
        return meshard.tree.map(again, [x])

    error = raised(lambda: again(1))
    assert isinstance(error, (RecursionError, MeshardError))
    assert set(lines(error)[1:]) <= {"again"}


def test_shared_tracebacks_are_not_changed() -> None:
    """The frames that are kept are copied: others may hold the same traceback."""
    made = library("def call(f): return f()")
    inner = raised(divided)
    trace = inner.__traceback__
    before = traceback.extract_tb(trace)
    raised(lambda: made.call(lambda: throw(inner)))
    assert traceback.extract_tb(trace) == before
    assert users_frames(None) is None


def test_contexts_of_generators_leave_the_users_frames() -> None:
    def use() -> None:
        with meshard.debug.ledger():
            raise ShapeError("the user's own")

    error = raised(use)
    assert lines(error) == ["use"]

    @meshard.debug.ledger()
    def decorated() -> int:
        return 3

    assert decorated() == 3
    assert decorated() == 3
