"""The page of NumPy's names: for each one whether meshard has it, and what differs.

    python docs/machinery/numpy_names.py            what the page must be
    python docs/machinery/numpy_names.py --write    writes it

In: the public names of ``numpy``, ``numpy.linalg`` and ``numpy.fft``, and of NumPy's array.
Out: ``docs/numpy_names.md``. Signatures are compared by `inspect`. A name that meshard lacks has
its reason in `REASONS`; the test of the page names those without one.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

import meshard
import meshard.numpy as mnp

PAGE = Path(__file__).resolve().parents[1] / "numpy_names.md"
SPACES: dict[str, tuple[object, object]] = {
    "numpy": (np, mnp),
    "numpy.linalg": (np.linalg, mnp.linalg),
    "numpy.fft": (np.fft, mnp.fft),
    "numpy.ndarray": (np.ndarray, meshard.Array),
}
"""By NumPy's name of a space: NumPy's, and meshard's."""

REASONS = {
    "only numbers": "arrays hold numbers: no text, dates, records or Python objects",
    "Python's": "it is about Python's numbers and texts; NumPy's own does it",
    "memory": "arrays have no memory layout that can be seen; `np.asarray(x)` has one",
    "immutable": "arrays are immutable; `x.at[index].set(y)` returns another",
    "files": "`meshard.save`, `meshard.load` and `meshard.checkpoint`; NumPy reads texts",
    "settings": "it is about NumPy's own texts and errors, and NumPy's own does it",
    "one by one": "calls Python for each element; `vectorize`, `apply_along_axis`, `lax.map`",
    "older": "an older class or name that NumPy's documentation advises against",
    "80 bits": "floats of 80 or 128 bits depend on the machine",
    "a module": "a module of its own, which meshard does not have",
    "random": "`meshard.random`: keys instead of hidden state",
    "inside NumPy": "it is about NumPy's package, not about arrays",
    "rare": "rarely used; on `np.asarray(x)`",
    "a method": "`meshard.numpy` has the function",
}

NOT_HERE: dict[str, str] = {
    name: why
    for why, names in {
        "only numbers": "bytes_ character datetime64 timedelta64 flexible object_ str_ void record "
        "recarray rec busday_count busday_offset busdaycalendar is_busday isnat datetime_as_string "
        "datetime_data strings char",
        "Python's": "base_repr binary_repr isscalar iterable typename mintypecode typecodes "
        "sctypeDict ScalarType False_ True_ min_scalar_type common_type dtypes info ndindex "
        "einsum_path emath broadcast",
        "memory": "ascontiguousarray asfortranarray isfortran may_share_memory shares_memory "
        "little_endian memmap frombuffer require base byteswap ctypes data strides setflags "
        "getfield setfield",
        "immutable": "copyto putmask fill resize put",
        "files": "load loadtxt genfromtxt fromfile fromregex fromstring fromiter save savetxt "
        "savez savez_compressed dump dumps tofile",
        "settings": "array2string array_repr array_str format_float_positional "
        "format_float_scientific get_printoptions set_printoptions printoptions getbufsize "
        "setbufsize geterr seterr geterrcall seterrcall",
        "one by one": "frompyfunc nditer nested_iters ndenumerate flatiter ufunc",
        "older": "asmatrix bmat matrix poly1d row_stack ma",
        "80 bits": "clongdouble complex256 float128 longdouble",
        "a module": "polynomial",
        "random": "random",
        "inside NumPy": "core ctypeslib exceptions f2py lib get_include show_config show_runtime "
        "test testing typing",
        "rare": "asarray_chkfinite",
    }.items()
    for name in names.split()
}
"""For each name that is not here the reason, by its name in `REASONS`."""

EVERYWHERE = {"like", "subok", "out"}
"""Arguments of NumPy's functions that the head of the page speaks of."""


@dataclass(frozen=True)
class Answer:
    """What is said of one name.

    Attributes:
        name: in full, such as ``numpy.linalg.norm``.
        here: whether meshard has it.
        lacks: arguments that are not taken.
        adds: arguments that only meshard takes.
        why: why it is not here; empty if nothing says so.
    """

    name: str
    here: bool
    lacks: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    why: str = ""

    @property
    def said(self) -> str:
        """The answer as the page has it."""
        if not self.here:
            return f"not here: {self.why}"
        parts = []
        if self.lacks:
            parts.append(f"without {', '.join(f'`{n}`' for n in self.lacks)}")
        if self.adds:
            parts.append(f"also `{'`, `'.join(self.adds)}`")
        return "; ".join(parts)


def public(space: object) -> list[str]:
    """Return the public names of a module or a class of NumPy's."""
    return [name for name in dir(space) if not name.startswith("_")]


def parameters(value: object) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of a function by name; None if it does not say."""
    if isinstance(value, np.ufunc | type | ModuleType) or not callable(value):
        return None
    try:
        return dict(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return None


def compared(theirs: object, ours: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments that only NumPy's function takes, and those that only ours does."""
    first, second = parameters(theirs), parameters(ours)
    if first is None or second is None:
        return (), ()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in (*first.values(), *second.values()))
    lacks = [
        n
        for n, p in first.items()
        if p.default is not p.empty and n not in EVERYWHERE and n not in second
    ]
    adds = [n for n, p in second.items() if p.default is not p.empty and n not in first]
    positional = {n for n, p in first.items() if p.kind is p.POSITIONAL_ONLY}
    adds = [n for n in adds if n not in positional]
    return tuple(lacks), () if open_ended else tuple(adds)


def misplaced(theirs: object, ours: object) -> str:
    """Return the first argument that has another place than in NumPy; an empty string if none."""
    first, second = parameters(theirs), parameters(ours)
    for mine, other in zip(_in_order(second), _in_order(first), strict=False):
        named = mine.POSITIONAL_ONLY not in (mine.kind, other.kind)
        if named and mine.name not in (other.name, other.name.removeprefix("a_")):
            return f"{mine.name} where NumPy has {other.name}"
    return ""


def _in_order(found: dict[str, inspect.Parameter] | None) -> list[inspect.Parameter]:
    """Return the parameters that may be given by their place."""
    every = () if found is None else found.values()
    return [p for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def answers() -> Iterator[Answer]:
    """Yield what is said of each public name of NumPy's."""
    for space, (theirs, ours) in SPACES.items():
        for name in public(theirs):
            full = f"{space}.{name}"
            if not hasattr(ours, name):
                why = NOT_HERE.get(name, "")
                yield Answer(full, False, why=REASONS.get(why, ""))
                continue
            lacks, adds = compared(getattr(theirs, name), getattr(ours, name))
            yield Answer(full, True, lacks, adds)


HEAD = """# NumPy's names, one by one

This page is made by `docs/machinery/numpy_names.py`, which walks NumPy {version}'s public names and
compares signatures. Of {count} names {here} are here, {same} of them with every argument that NumPy
takes.

What holds for all of them is on [another page](differs_from_numpy.md), and not repeated here:
elementwise functions are called with arrays alone, without `out=`, `where=`, `casting=`, `order=`,
`dtype=` and `subok=`; elsewhere `out=` may be None, where NumPy counts it among the arguments;
there are no subclasses, so no `like=`. Where a function takes more than NumPy's, that is JAX's or
the Array API standard's: `size=` for results of a known size under `jit`, `device=`, `descending=`.
"""


def page() -> str:
    """Return the page."""
    found = list(answers())
    here = [a for a in found if a.here]
    version = ".".join(np.__version__.split(".")[:2])
    same = sum(not a.lacks for a in here)
    lines = [HEAD.format(version=version, count=len(found), here=len(here), same=same)]
    for space in SPACES:
        own = [a for a in found if a.name.rpartition(".")[0] == space]
        lines += [f"## `{space}`", ""]
        plain = [a for a in own if a.here and not a.said]
        lines += ["Here, with the same arguments:", "", _listed(plain), ""]
        differ = [a for a in own if a.here and a.said]
        if differ:
            lines += ["| here | with differences |", "|---|---|"]
            lines += [f"| `{_short(a)}` | {a.said} |" for a in differ] + [""]
        missing = Counter(a.why for a in own if not a.here)
        if missing:
            lines += ["| not here | why |", "|---|---|"]
            for why in missing:
                of_it = [a for a in own if not a.here and a.why == why]
                lines.append(f"| {_listed(of_it)} | {why} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _short(answer: Answer) -> str:
    return answer.name.rpartition(".")[2]


def _listed(own: list[Answer]) -> str:
    return ", ".join(f"`{_short(a)}`" for a in own)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
