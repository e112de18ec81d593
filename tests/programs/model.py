"""NumPy by the names of `meshard`: what the results of every public function must be.

``numpy``, ``lax``, ``nn`` and ``array`` (for methods and indexing) have the names of meshard's
modules. What is not defined here is NumPy's own function.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from meshard import random
from tests.programs.lax_model import Lax
from tests.programs.nn_model import NN
from tests.programs.numpy_model import NUMPY
from tests.worlds import alone


class _Array:
    """Indexing, and updates at an index."""

    @staticmethod
    def getitem(x: Any, index: Any) -> Any:
        return x[index]

    select = getitem

    @staticmethod
    def set(x: Any, index: Any, values: Any) -> Any:
        out = x.copy()
        out[index] = values
        return out

    @staticmethod
    def eigh(x: Any) -> Any:
        return np.linalg.eigvalsh(x), x

    @staticmethod
    def eig(x: Any) -> Any:
        kind = np.result_type(x, np.complex64)
        return np.linalg.eigvalsh(x).astype(kind), x.astype(kind)

    @staticmethod
    def eigvals(x: Any) -> Any:
        return np.linalg.eigvalsh(x).astype(np.result_type(x, np.complex64))

    @staticmethod
    def svd(x: Any, full: bool) -> Any:
        u, s, v = np.linalg.svd(x, full)
        return s, np.zeros(u.shape), np.zeros(v.shape), x


def _at(ufunc: np.ufunc) -> Any:
    def update(x: Any, index: Any, values: Any) -> Any:
        out = x.copy()
        ufunc.at(out, index, np.asarray(values, x.dtype))
        return out

    return staticmethod(update)


for _name, _ufunc in (("add", np.add), ("multiply", np.multiply), ("min", np.minimum)):
    setattr(_Array, _name, _at(_ufunc))
_Array.max = _at(np.maximum)  # type: ignore[attr-defined]


class _Random:
    """Random numbers: what one device draws by itself. Their distributions are a law elsewhere."""

    def __init__(self) -> None:
        self._drawn: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def draw(*args: Any, lay: Any = None, grid: Any = None, **kwargs: Any) -> Any:
            args = (int(args[0]), *args[1:])
            asked = repr((name, args, kwargs))
            if asked not in self._drawn:
                self._drawn[asked] = alone(lambda: on_one_device(name, args, kwargs), 1)
            return self._drawn[asked]

        return draw


def random_call(name: str, seed: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `meshard.random` with the key of a seed; return plain numbers."""
    key = random.key(seed)
    if name == "wrap_key_data":
        return random.key_data(random.wrap_key_data(random.key_data(key)))
    found = getattr(random, name)(key, *args, **kwargs)
    return random.key_data(found) if name in ("split", "fold_in", "clone") else found


def on_one_device(name: str, args: Any, kwargs: Any) -> Any:
    """Return what one device draws, as NumPy's arrays."""
    return np.asarray(random_call(name, *args, **kwargs))


MODEL = SimpleNamespace(numpy=NUMPY, lax=Lax(), nn=NN(), array=_Array(), random=_Random())
MODEL.mapped = MODEL.random
