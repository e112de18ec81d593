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

_REASONS: dict[str, str] = {
    "NumPy gives a view; here elements pass between devices, or pieces are copied": """
        numpy.array_split numpy.dsplit numpy.flip numpy.fliplr numpy.flipud numpy.from_dlpack
        numpy.hsplit numpy.ravel numpy.reshape numpy.rot90 numpy.split numpy.vsplit
        numpy.diag numpy.diagonal linalg.diagonal lax.collapse lax.reshape""",
    "a split dim of one-dim arrays is sorted across devices": """
        numpy.partition numpy.argpartition lax.top_k""",
    "sorted, and equal elements keep their order; NumPy hashes, or promises less": """
        numpy.argsort numpy.unique numpy.unique_all numpy.unique_inverse numpy.setxor1d
        numpy.union1d numpy.intersect1d lax.sort_key_val""",
    "more passes, in a form that keeps all digits and does not overflow": """
        nn.log1mexp nn.squareplus""",
    "computed in float64, step by step as compiled code does, so that both have the same bits; "
    "SciPy's time depends on the values": "lax.erf lax.erfc",
    "elements are counted on all devices first, so that each process knows the shape": """
        numpy.compress numpy.extract numpy.nonzero numpy.flatnonzero""",
    "what is cut off moves all borders between devices": "numpy.diff numpy.ediff1d",
    "what is not written to is zero, so that no run differs from another": """
        numpy.empty numpy.empty_like""",
    "eight or more blocks, each of which is asked for by itself; NumPy asks for one, and does not "
    "touch it": "numpy.zeros numpy.imag lax.imag numpy.eye numpy.identity numpy.diagflat",
    "a pass for each operation when run at once; jit makes them one": """
        nn.celu numpy.nanmean numpy.nanstd numpy.nansum numpy.nanvar numpy.polyval lax.round
        linalg.norm linalg.matrix_norm linalg.vector_norm linalg.vecdot numpy.array_equal
        numpy.array_equiv nn.one_hot lax.associative_scan numpy.tri""",
    "a product for each cell, on the workers; of this size that costs as much as the work": """
        numpy.dot numpy.inner numpy.matmul numpy.tensordot linalg.matmul linalg.tensordot
        linalg.multi_dot linalg.matrix_power lax.dot lax.dot_general numpy.vecdot""",
    "each cell's product by one thread of BLAS, so that bits do not depend on the threads": """
        numpy.cov numpy.corrcoef linalg.lstsq""",
    "the dim that is multiplied is split: operands are cut and copied to where they meet": """
        numpy.vdot lax.batch_matmul linalg.eigh""",
    "rows of an eighth of the length in each cell, and a step that joins what cells have": """
        lax.reduce_sum lax.reduce_prod lax.reduce_max lax.reduce_or lax.reduce_xor lax.argmax
        lax.argmin numpy.argmax numpy.argmin numpy.nanmax""",
    "replicas are computed once, as one cell by one worker": """
        numpy.repeat numpy.pad lax.pad numpy.take_along_axis numpy.tile""",
    "from a generator with a counter, tile by tile: no number depends on the layout. Functions of "
    "uniform numbers where NumPy rejects": """
        random.beta random.binomial random.chisquare random.choice random.f random.gamma
        random.randint random.t random.rayleigh random.bernoulli random.wald""",
    "random numbers are sorted, so that no element's place depends on the layout": """
        random.permutation""",
    "the shape depends on the positions, which are made for the whole matrix": """
        numpy.tril_indices numpy.triu_indices""",
    "the task of looking in every cell costs more than looking up three elements": """
        lax.index_take linalg.trace""",
}
SLOWER: dict[str, str] = {
    **{key: reason for reason, keys in _REASONS.items() for key in keys.split()},
    **dict.fromkeys(("expr.x.reshape(-1)",), "pieces are copied to where their rows are one line"),
    **dict.fromkeys(("expr.x[b]",), "elements are counted on all devices first"),
    **dict.fromkeys(("expr.x[q]",), "looking in every cell costs more than three elements"),
    **dict.fromkeys(("expr.x[::2] + 0",), "what is cut off moves all borders between devices"),
    **dict.fromkeys(
        (
            "expr.m @ s",
            "expr.m @ v",
            "expr.m.T @ m[:, :16]",
            "expr.m.T @ s",
            "expr.m.T @ v",
            "expr.v @ m.T",
        ),
        "a product for each cell, on the workers; of this size that costs as much as the work",
    ),
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
