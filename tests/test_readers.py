"""Readers: values of libraries that NumPy cannot convert by itself."""

import importlib.metadata
from types import SimpleNamespace

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import DtypeError
from meshard.runtime.memory.pages import HUGE, on_huge_pages
from meshard.runtime.moving import readers


class Strange:
    """An array of a library that does not let NumPy look."""

    __module__ = "strange.arrays"

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("of a dtype of its own")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(readers, "_INSTALLED", dict(readers._INSTALLED))
    monkeypatch.setattr(readers, "_KNOWN", {})


def read(x, what):
    assert what in ("array", "device_put", "asarray")
    return x.values


def test_a_reader_that_is_installed():
    with pytest.raises(DtypeError, match="of a dtype of its own"):
        mnp.asarray(Strange([1, 2]))
    readers.install_reader("strange", read)
    assert mnp.asarray(Strange([1, 2])).tolist() == [1, 2]
    tree = meshard.device_put({"x": Strange([3.0])}, meshard.devices()[0])
    assert tree["x"].tolist() == [3.0]
    assert (mnp.ones(2) + mnp.asarray(Strange([1, 2]))).tolist() == [2, 3]


def test_a_reader_that_is_an_entry_point(monkeypatch):
    asked = []

    def entry_points(group):
        asked.append(group)
        other = SimpleNamespace(name="other", load=lambda: None)
        return [other, SimpleNamespace(name="strange", load=lambda: read)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    for _ in range(2):
        assert mnp.asarray(Strange([1, 2])).tolist() == [1, 2]
    assert asked == ["meshard.readers"]
    assert readers.reader_of(np.ndarray) is None
    assert readers.reader_of(meshard.Array) is None
    assert asked == ["meshard.readers"]


def test_huge_pages_are_asked_for_within_a_range():
    block = np.empty(3 * HUGE, np.uint8)
    on_huge_pages(block.ctypes.data, block.nbytes)
    on_huge_pages(block.ctypes.data, 100)
    block.fill(7)
    assert int(block[-1]) == 7
