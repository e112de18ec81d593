"""Jitted functions and their stages as pages: arguments, results, and the programs that are kept.

In: traces and programs. Out: tables. Each is cut where it would grow without limit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshard.plan.captions import count_text, sharding_summary, size_text
from meshard.plan.show.page import Markup, element, folded, preformatted
from meshard.plan.show.report import Table
from meshard.runtime.types import ArrayType
from meshard.transforms.explain.costs import costs
from meshard.transforms.lowering.executable import Executable
from meshard.transforms.program.program import Kind
from meshard.transforms.tracing.signature import Trace

_MOST_VALUES, _MOST_PROGRAMS, _MOST_WORDS, _MOST_TOLD = 60, 20, 90, 6


def signature_text(f: Callable[..., Any], name: str) -> str:
    """Return a function's name and its arguments, as far as they are known."""
    try:
        text = f"{name}{inspect.signature(f)}"
    except (TypeError, ValueError):
        text = f"{name}(...)"
    return _cut(" ".join(text.split()))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_WORDS else f"{text[: _MOST_WORDS - 1]}…"


def _type_text(kind: Kind) -> str:
    return kind.str_short() if isinstance(kind, ArrayType) else kind.__name__


def _values(
    head: str, names: Sequence[str], kinds: Sequence[Kind], donated: Sequence[bool] = ()
) -> Markup:
    """Return a table of arguments or results: name, type, and how each is laid out."""
    rows = []
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if number >= _MOST_VALUES:
            break
        placed = isinstance(kind, ArrayType) and not kind.unplaced
        told = _cut(sharding_summary(kind.sharding)) if placed else "anywhere"
        given_up = ", donated" * (number < len(donated) and donated[number])
        rows.append((name, _type_text(kind), f"{told}{given_up}"))
    rest = len(kinds) - len(rows)
    notes = [f"and {rest:,} more"] if rest else []
    return Table((head, "type", "layout"), rows, "<<<", notes).html()


def traced_parts(trace: Trace, kinds: Sequence[Kind], text: str) -> Iterator[Markup]:
    """Yield what a traced function's page shows: its arguments and its operations."""
    if kinds:
        yield _values("argument", trace.told, kinds, trace.donated)
    yield preformatted(text)


def placed_parts(
    trace: Trace, given: Sequence[Kind], returns: Sequence[Kind], cost: Mapping[str, float]
) -> Iterator[Markup]:
    """Yield what the page of a lowered function shows first: costs, arguments and results."""
    words = [f"{cost['flops']:,.0f} operations on numbers"]
    words += [f"{size_text(round(cost[k]))} {k.removeprefix('bytes ')}" for k in list(cost)[1:]]
    yield element("p", " · ".join(words))
    if given:
        yield _values("argument", trace.told, given, trace.donated)
    paths = ["".join(f"[{k!r}]" for k in path) for path in trace.out_tree.paths()]
    yield _values("result", [f"result{path}" for path in paths], returns)


def jitted_parts(
    programs: Sequence[tuple[Trace, Sequence[Kind], Executable]],
) -> Iterator[Markup]:
    """Yield what the page of a jitted function shows: a row for each program that is kept.

    Args:
        programs: the trace of each, how its arguments are laid out, and what runs.
    """
    if not programs:
        yield element("p", "no program yet: the first call makes one for its arguments")
        return
    yield element("p", f"{count_text(len(programs), 'program')}, one for each kind of arguments")
    rows = []
    for trace, given, executable in programs[-_MOST_PROGRAMS:]:
        told = [f"{name}: {_type_text(kind)}" for name, kind in zip(trace.told, given, strict=True)]
        more = [f"and {len(told) - _MOST_TOLD:,} more"] * (len(told) > _MOST_TOLD)
        moved = costs(executable)["bytes communicated"]
        rows.append(
            (
                ", ".join([*told[:_MOST_TOLD], *more]) or "no arguments",
                ", ".join(map(_type_text, executable.returns[:_MOST_TOLD])),
                f"{len(executable.steps):,}",
                f"{round(moved):,}",
            )
        )
    rest = len(programs) - len(rows)
    notes = [f"and {count_text(rest, 'older program')}"] * bool(rest)
    yield Table(("arguments", "results", "steps", "bytes moved"), rows, "<<>>", notes).html()
    yield folded("the last one, as text", preformatted(str(programs[-1][0].program)))
