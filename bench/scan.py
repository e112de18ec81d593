"""A scan of every public function, beside NumPy (or SciPy) on the whole array.

Run ``python -m bench.scan [--only PATTERN] [--json FILE]``. The functions are those of the public
modules; `bench.scan_calls` says how each is called. Exit code 0 whatever the figures are.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench.__main__ import set_environment

MOST_RATIO = 1.3
"""What a large call may take, in units of NumPy's time."""
MOST_SECONDS = 100e-6
"""What a call on 1 KB may take; a large one that takes no longer is never too slow."""
LARGE = 1 << 20
DOORS = ("numpy", "linalg", "fft", "lax", "nn", "random")

_VIEW = "NumPy gives a view; here elements pass between devices, or pieces are copied"
_SORTED = "the whole dim is sorted, across devices if it is split: no selection is written yet"
_DIGITS = "more passes, in a form that keeps all digits and does not overflow"
_MASKED = "elements are counted on all devices first, so that each process knows the shape"
_BORDERS = "what is cut off moves all borders between devices"
_ZEROS = "what is not written to is zero, so that no run differs from another"
SLOWER: dict[str, str] = {
    **dict.fromkeys(
        [
            "numpy.array_split",
            "numpy.broadcast_arrays",
            "numpy.dsplit",
            "numpy.flip",
            "numpy.fliplr",
            "numpy.flipud",
            "numpy.from_dlpack",
            "numpy.hsplit",
            "numpy.ravel",
            "numpy.reshape",
            "numpy.rot90",
            "numpy.split",
            "numpy.vsplit",
            "numpy.diag",
            "numpy.diagonal",
            "linalg.diagonal",
            "lax.collapse",
            "lax.reshape",
            "expr.x.reshape(-1)",
        ],
        _VIEW,
    ),
    **dict.fromkeys(
        [
            "numpy.partition",
            "numpy.argpartition",
            "numpy.median",
            "numpy.quantile",
            "numpy.percentile",
            "lax.top_k",
        ],
        _SORTED,
    ),
    **dict.fromkeys(("nn.log1mexp", "nn.squareplus", "nn.logsumexp", "nn.softplus"), _DIGITS),
    **dict.fromkeys(("numpy.compress", "numpy.extract", "expr.x[b]", "numpy.nonzero"), _MASKED),
    **dict.fromkeys(("numpy.diff", "numpy.ediff1d", "expr.x[::2] + 0"), _BORDERS),
    **dict.fromkeys(("numpy.empty", "numpy.empty_like"), _ZEROS),
    "numpy.argsort": "equal elements keep their order, which NumPy does not promise by default",
}
"""Calls that may be slower, by ``door.name``, and why."""


@dataclass(frozen=True)
class Case:
    """One call, of meshard's function and of NumPy's."""

    key: str
    ours: str
    theirs: str
    function: Any
    peer: Any


@dataclass(frozen=True)
class Figure:
    """What one call took: seconds of meshard and of NumPy, or why there is none."""

    key: str
    form: str
    layout: str
    seconds: float = 0.0
    numpy: float = 0.0
    large: bool = True
    error: str = ""

    @property
    def ratio(self) -> float:
        """In units of NumPy's time."""
        return self.seconds / self.numpy if self.numpy else 0.0

    @property
    def slow(self) -> bool:
        """Whether it is slower than it may be."""
        return self.seconds > MOST_SECONDS and (self.ratio > MOST_RATIO or not self.large)


def cases() -> tuple[list[Case], dict[str, str]]:
    """Return all calls, and why some public functions have none."""
    import numpy as np

    import meshard.lax
    import meshard.nn
    import meshard.numpy as mnp
    import meshard.random
    from bench.scan_calls import EXPRESSIONS, REASONS, call_of

    modules = (mnp, mnp.linalg, mnp.fft, meshard.lax, meshard.nn, meshard.random)
    doors = dict(zip(DOORS, modules, strict=True))
    peers = {"linalg": np.linalg, "fft": np.fft, "nn": None, "random": None}
    found = [Case(f"expr.{text}", text, text, None, None) for text in EXPRESSIONS]
    left_out: dict[str, str] = {}
    for door, module in doors.items():
        for name in sorted(n for n in dir(module) if not n.startswith("_")):
            function = getattr(module, name)
            if not callable(function) or isinstance(function, type):
                continue
            key = f"{door}.{name}"
            peer = getattr(peers.get(door, np), name, None)
            call = call_of(door, name, peer)
            if name in REASONS.get(door, {}):
                left_out[key] = REASONS[door][name]
            elif call is None:
                left_out[key] = "no line says how it is called"
            else:
                found.append(Case(key, *call, function, peer))
    return found, left_out


def _best(call: Callable[[], Any], seconds: float, settle: float) -> float:
    """Return the least time of a few calls, a third of them at least after a rest."""
    call()
    best, end, count = float("inf"), time.perf_counter() + seconds, 0
    while count < 3 or (time.perf_counter() < end and count < 200):
        if settle and count < 4:
            time.sleep(settle)
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
        del result
        count += 1
        if best > 1.0:
            break
    return best


def scan(chosen: Sequence[Case], forms: Sequence[Any], seconds: float) -> Iterator[Figure]:
    """Measure calls, form by form; what NumPy cannot do in a form is left out."""
    from bench.scan_operands import Operands

    for form in forms:
        made: dict[Any, Any] = {}
        plain = Operands(form, None, made)
        laid_out = {layout: Operands(form, layout, made) for layout in form.layouts()}
        large = form.nbytes >= LARGE
        for case in chosen:
            theirs = _prepared(case.theirs, plain, {"peer": case.peer})
            settle = 0.03 if large and ("@" in case.theirs or "linalg" in case.key) else 0.0
            try:
                numpy = _best(theirs, seconds, settle)
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                yield Figure(case.key, str(form), "NumPy", error=told, large=large)
                continue
            for layout, names in laid_out.items():
                ours = _prepared(case.ours, names, {"f": case.function})
                try:
                    figure = _best(ours, seconds, settle)
                except Exception as error:
                    told = f"{type(error).__name__}: {error}"
                    yield Figure(case.key, str(form), layout, error=told, large=large)
                    continue
                yield Figure(case.key, str(form), layout, figure, numpy, large)
        gc.collect()


def _prepared(text: str, names: dict[str, Any], more: dict[str, Any]) -> Callable[[], Any]:
    """Return a function of no arguments that computes an expression, its operands at hand."""
    code = compile(text, "<scan>", "eval")
    used = [n for n in _all_names(code) if n not in more]
    space: dict[str, Any] = dict(more)
    for name in used:
        try:
            space[name] = names[name]
        except KeyError:  # an attribute, or a name of Python's
            continue
    function: Callable[[], Any] = eval(f"lambda: {text}", space)
    return function


def _all_names(code: Any) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            found |= _all_names(constant)
    return found


def _show(figures: Sequence[Figure], left_out: dict[str, str], everything: bool) -> None:
    """Print a line for each call: its worst layout at 16 MB and at 1 KB, the slow ones first."""
    from rich.markup import escape
    from rich.table import Table

    from bench.report import console

    worst: dict[tuple[str, bool], Figure] = {}
    for figure in figures:
        key = figure.key, figure.large
        if figure.error or (key in worst and _rank(worst[key]) >= _rank(figure)):
            continue
        worst[key] = figure
    table = Table(
        caption="the worst layout of each; ratio: meshard / NumPy", caption_justify="left"
    )
    for heading in ("call", "form", "layout", "meshard", "NumPy", "ratio", "reason"):
        table.add_column(
            heading, justify="right" if heading in ("meshard", "NumPy", "ratio") else "left"
        )
    shown = sorted(worst.values(), key=lambda f: (not f.large, -_rank(f)))
    for f in shown:
        if f.slow or everything:
            table.add_row(escape(f.key), f.form, f.layout, _time(f.seconds), _time(f.numpy),
                          f"{f.ratio:.2f}", SLOWER.get(f.key, ""))  # fmt: skip
    out = console()
    out.print(table)
    for large, what in ((True, f"slower than {MOST_RATIO} x NumPy"), (False, "above 100 us")):
        of = [f for f in worst.values() if f.large == large]
        slow = [f for f in of if f.slow]
        unexplained = [f for f in slow if f.key not in SLOWER]
        out.print(f"{'large' if large else '1 KB'}: {len(slow)} of {len(of)} {what}, "
                  f"{len(unexplained)} of them without a reason")  # fmt: skip
    errors = {f.key: f for f in figures if f.error and f.layout != "NumPy"}
    for f in errors.values():
        out.print(f"[red]{f.key}[/] {f.form} {f.layout}: {f.error[:120]}", markup=True)
    works = {f.key for f in figures if not f.error}
    for f in {f.key: f for f in figures if f.error and f.key not in works}.values():
        out.print(f"NumPy cannot run {f.key}: {f.error[:120]}", markup=False)
    if everything:
        for key, why in left_out.items():
            out.print(f"left out: {key}: {why}", markup=False)


def _rank(figure: Figure) -> float:
    return figure.ratio if figure.large else figure.seconds


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the calls and print the table; 0 always, for speed is shown and never asserted."""
    from bench.scan_operands import FORMS

    parser = argparse.ArgumentParser(prog="python -m bench.scan", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="calls whose name has this, or matches *")
    parser.add_argument("--form", default="", help="forms whose name has this, as in '16 MB 2-D'")
    parser.add_argument("--all", action="store_true", help="show the quick ones, too")
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="time for one call's repetitions"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found, left_out = cases()
    pattern = given.only or "*"
    glob = pattern if "*" in pattern else f"*{pattern}*"
    chosen = [c for c in found if any(fnmatchcase(c.key, g) for g in glob.split("|"))]
    forms = [f for f in FORMS if given.form in str(f)]
    figures = list(scan(chosen, forms, given.seconds))
    _show(figures, left_out, given.all)
    if given.json:
        given.json.write_text(json.dumps([asdict(f) for f in figures], indent=1))
    return 0


if __name__ == "__main__":
    set_environment()
    sys.exit(main())
