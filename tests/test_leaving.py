"""Arrays that leave their devices: the setting ``on_gather``, and what ledgers list."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.debug import budget, ledger
from meshard.errors import GatherError

from .worlds import alone, put

GRID = np.arange(32.0).reshape(8, 4)

WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "np.asarray": (np.asarray, "np.asarray"),
    "np.array": (np.array, "np.asarray"),
    "to_numpy": (lambda x: x.to_numpy(), "np.asarray"),
    "tolist": (lambda x: x.tolist(), "tolist()"),
    "tobytes": (lambda x: x.tobytes(), "tobytes()"),
    "format": (lambda x: f"{x[:1]:.2f}" if x.size == 1 else format(x.tolist(), ""), "tolist()"),
    "pickle": (pickle.dumps, "pickling"),
    "dlpack": (np.from_dlpack, "__dlpack__"),
    "device_get": (meshard.device_get, "device_get"),
    "testing": (lambda x: np.testing.assert_array_less(-1, x), "np.asarray"),
    "save": (lambda x: np.savetxt("/dev/null", x), "np.asarray"),
}
STAYS: dict[str, Callable[[Any], Any]] = {
    "repr": repr,
    "str": str,
    "page": lambda x: x._repr_html_(),
    "sum": lambda x: float(x.sum()),
    "item": lambda x: x.item(3),
    "rows": lambda x: [float(r.sum()) for r in x],
    "in": lambda x: 3.0 in x,
    "np.sum": lambda x: float(np.sum(x)),
    "one block": lambda x: np.asarray(mnp.ones(8)),
    "shards": lambda x: [np.asarray(s.data) for s in x.addressable_shards],
}


@pytest.fixture(autouse=True)
def allowed_again() -> Iterator[None]:
    yield
    meshard.config.update("on_gather", "allow")


@pytest.mark.parametrize("name", WAYS)
def test_every_way_out_is_told(name):
    way, what = WAYS[name]

    def body() -> None:
        x = put(GRID, "i", "j")
        with ledger() as log:
            way(x)
        assert [r.what for r in log.to_host] == [what]
        assert (log.to_host[0].array, log.to_host[0].nbytes) == ("float64[8,4]", 256)
        assert "test_leaving.py" in log.to_host[0].line
        assert (log.total_bytes, len(log)) == (0, 0)
        meshard.config.update("on_gather", "warn")
        told = rf"{what.replace('(', '[(]').replace(')', '[)]')}: puts float64\[8,4\] together on"
        with pytest.warns(UserWarning, match=told):
            way(x)
        meshard.config.update("on_gather", "error")
        with pytest.raises(GatherError, match=rf"{told} the host: 256 bytes from 8 blocks"):
            way(x)

    alone(body)


@pytest.mark.parametrize("name", STAYS)
def test_what_puts_nothing_together_is_free(name):
    def body() -> None:
        x = put(GRID, "i", "j")
        meshard.config.update("on_gather", "error")
        with ledger() as log:
            STAYS[name](x)
        assert not log.to_host

    alone(body)


def test_a_scalar_that_is_spread_is_put_together_too() -> None:
    def body() -> None:
        x = meshard.device_put(
            np.ones((1, 1)),
            meshard.NamedSharding(put(GRID).sharding.mesh, meshard.P("i"), uneven="ceil"),
        )
        meshard.config.update("on_gather", "error")
        with pytest.raises(GatherError, match=r"bool\(\): puts float64\[1,1\] together"):
            bool(x)

    alone(body)


def test_the_warning_names_the_users_line() -> None:
    def body() -> None:
        x = put(GRID, "i", "j")
        meshard.config.update("on_gather", "warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            np.asarray(x)
        assert [w.filename for w in caught] == [__file__]

    alone(body)


def test_a_ledger_lists_them_apart() -> None:
    def body() -> None:
        x = put(GRID, "i", "j")
        with ledger() as log:
            for _ in range(2):
                np.asarray(x)
            x.sum()
        communications, host = str(log).split("\n\n")
        assert "all-reduce" in communications
        assert "2 put together on the host, 512 bytes" in host
        assert "np.asarray" in host
        assert [r["nbytes"] for r in json.loads(log.to_json())["to_host"]] == [256, 256]
        with ledger() as log:
            np.asarray(x)
        assert "no communication" not in str(log)
        with budget(0) as used:  # a budget is about devices
            np.asarray(x)
        assert len(used.to_host) == 1

    alone(body)
