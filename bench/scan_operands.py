"""The operands of the scan: arrays of 16 MB or 1 KB by name, of one dim or two, laid out or not.

In: a form (bytes, dims) and a layout. Out: the names that an expression of `bench.scan_calls` may
use, for NumPy and for meshard. Each is made when an expression first uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

F = np.float32
LAYOUTS: dict[str, tuple[dict[str, int], tuple[Any, ...]]] = {
    "rows": ({"i": 8}, ("i", None)),
    "columns": ({"i": 8}, (None, "i")),
    "grid": ({"i": 4, "j": 2}, ("i", "j")),
    "replicas": ({"i": 8}, (None, None)),
}
"""By name: the mesh, and what the first two dims are split over."""


@dataclass(frozen=True)
class Form:
    """Sizes of operands: so many bytes of float32, in one dim or two."""

    nbytes: int
    ndim: int

    @property
    def side(self) -> int:
        """Rows, and columns, of a matrix."""
        return int((self.nbytes // 4) ** 0.5)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `x`."""
        return (self.nbytes // 4,) if self.ndim == 1 else (self.side, self.side)

    def layouts(self) -> list[str]:
        """The layouts that are different for this form."""
        return list(LAYOUTS) if self.ndim == 2 else ["rows", "replicas"]

    def __str__(self) -> str:
        size = f"{self.nbytes >> 20} MB" if self.nbytes >> 20 else f"{self.nbytes >> 10} KB"
        return f"{size} {self.ndim}-D"


FORMS = tuple(Form(nbytes, ndim) for nbytes in (16 << 20, 1 << 10) for ndim in (1, 2))


def _stack(form: Form) -> np.ndarray[Any, Any]:
    order = 4 if form.nbytes < 1 << 20 else 32
    return _floats((form.nbytes // 4 // order**2, order, order))


def _floats(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(shape, F) * F(0.9) + F(0.05)


def _whole(shape: tuple[int, ...], most: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(1, most, shape, np.int32)


def _definite(form: Form) -> np.ndarray[Any, Any]:
    m = _stack(form)
    return m @ m.transpose(0, 2, 1) + np.eye(m.shape[1], dtype=F)


_MAKERS: dict[str, Callable[[Form], Any]] = {
    "x": lambda form: _floats(form.shape),  # numbers in (0, 1)
    "y": lambda form: _floats(form.shape, 1),
    "z": lambda form: (_floats(form.shape) + 1j * _floats(form.shape, 1)).astype(np.complex64),
    "i": lambda form: _whole(form.shape, 1000),
    "j": lambda form: _whole(form.shape, 1000, 1),
    "c": lambda form: _whole(form.shape, 3) - 1,  # 0 or 1
    "b": lambda form: _floats(form.shape) > 0.5,
    "order": lambda form: np.argsort(_floats(form.shape), -1),
    "mask": lambda form: _floats(form.shape[:1]) > 0.5,
    "m": lambda form: _floats((form.side, form.side)),  # a matrix, whatever the dims
    "mz": lambda form: _floats((form.side, form.side)).astype(np.complex64),
    "u": lambda form: _floats((form.side * 16,)),  # one for each row of `tall`
    "tall": lambda form: _floats((form.side * 16, max(4, form.side // 16))),
    "wide": lambda form: _floats((16, form.nbytes // 64)),
    "triples": lambda form: _floats((form.nbytes // 16, 3)),
    "stack": _stack,
    "spd": _definite,
    "heads": lambda form: _floats(
        (max(1, form.nbytes >> 16), 16, 16, 64) if form.nbytes > 1 << 16 else (1, 4, 4, 16)
    ),
    "short": lambda form: _whole((form.nbytes // 64,), 16),
}
"""Operands that are laid out."""

_HOST: dict[str, Callable[[Form], Any]] = {
    "v": lambda form: _floats((form.side,)),  # one for each column of `m`
    "s": lambda form: _floats((form.side, 8)),
    "edges": lambda form: np.linspace(0, 1, 21, dtype=F),
    "q": lambda form: np.array([3, 1, 2]),
    "host": lambda form: _floats(form.shape),
}
"""Operands that are NumPy's for both, or on each device."""
_WHOLE = ("v", "s")


def _values(form: Form) -> dict[str, Any]:
    return {
        "F": F,
        "np": np,
        "shape": form.shape,
        "size": form.nbytes // 4,
        "n": form.shape[0] if form.ndim == 1 else form.side,
    }


class Operands(dict[str, Any]):
    """The names of one form, for NumPy or on a layout; values are made when they are looked up."""

    def __init__(self, form: Form, layout: str | None, made: dict[Any, Any]) -> None:
        super().__init__(_values(form))
        self.form = form
        self.layout = layout
        self.made = made
        if layout is None:
            from scipy import special

            self.update(at={}, special=special, rng=np.random.default_rng(0))
            self.update(soft=_soft, updated=_updated)
        else:
            import meshard

            self["line"] = {"device": self._sharding(1)}
            self["at"] = {"device": self._sharding(form.ndim)}
            self["out"] = {"out_sharding": self._sharding(form.ndim)}
            self["key"] = meshard.random.key(0)

    def _sharding(self, ndim: int, shape: tuple[int, ...] = ()) -> Any:
        """Return the layout for an array, whole along dims that it does not divide."""
        import meshard

        axes, spec = LAYOUTS[self.layout or ""]
        mesh = meshard.make_mesh(tuple(axes.values()), tuple(axes))
        fits = zip(spec[:ndim], shape or (0,) * ndim, strict=False)
        whole = [None if a is None or n % axes[a] else a for a, n in fits]
        return meshard.NamedSharding(mesh, meshard.P(*whole))

    def __missing__(self, name: str) -> Any:
        value = self._host(name)
        if self.layout is not None and name not in _HOST:
            import meshard

            value = meshard.device_put(value, self._sharding(value.ndim, value.shape))
        elif self.layout is not None and name in _WHOLE:
            import meshard

            value = meshard.device_put(value, self._sharding(0))
        self[name] = value
        return value

    def _host(self, name: str) -> Any:
        maker = _MAKERS.get(name) or _HOST.get(name)
        if maker is None:
            raise KeyError(name)
        key = self.form, name
        if key not in self.made:
            self.made[key] = maker(self.form)
        return self.made[key]


def _soft(x: Any) -> Any:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _updated(x: Any, index: Any, value: Any) -> Any:
    found = x.copy()
    found[index] = value
    return found


def names(text: str) -> Iterator[str]:
    """Yield the names that an expression uses."""
    yield from compile(text, "<scan>", "eval").co_names
