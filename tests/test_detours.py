"""Detours: what one host alone would have to send goes by others, if that pays, and arrives."""

from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.runtime.moving import execute
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding
from tests.watch import watched

APART = [0, 1, 2, 3]


def _sent(hosts: list[int] | None, nbytes: int, move: Any) -> list[int]:
    """Return the bytes that each of four processes sends while an array goes from one to all."""
    value = np.arange(nbytes // 4, dtype=np.float32)

    def body() -> int:
        mesh = Mesh(np.array(meshard.devices()), ("i",))
        one = SingleDeviceSharding(meshard.devices()[0])
        x = meshard.device_put(value, one)
        with watched() as seen:
            found = move(x, NamedSharding(mesh, P()))
        np.testing.assert_array_equal(np.asarray(found), value)
        assert found.sharding == NamedSharding(mesh, P())
        return seen.sent

    return simulate(4, 1, body, hosts=hosts)


def _reshard(x: Any, to: Any) -> Any:
    return meshard.reshard({"a": x, "b": 0}, {"a": to, "b": None})["a"]


@pytest.mark.parametrize("move", [meshard.device_put, _reshard])
def test_one_host_does_not_send_everything_to_all(move: Any) -> None:
    size = 4 << 20
    sent = _sent(APART, size, move)
    assert sent[0] <= 2 * size
    assert sum(sent) == 3 * size


def test_the_direct_way_is_kept_where_no_detour_pays() -> None:
    size = 4 << 20
    assert _sent(APART, 1 << 16, meshard.device_put) == [3 << 16, 0, 0, 0]
    assert sum(_sent([0, 0, 0, 0], size, meshard.device_put)) <= 3 * size

    def donated(x: Any, to: Any) -> Any:
        return meshard.reshard(x, to, donate=True)

    assert _sent(APART, size, donated) == [3 * size, 0, 0, 0]
    assert _sent(APART, size, lambda x, to: meshard.reshard(x, to, max_bytes=1 << 20)) == [
        3 * size,
        0,
        0,
        0,
    ]


def test_programs_on_one_host_make_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any, **more: Any) -> Any:
        raise AssertionError("planned")

    monkeypatch.setattr("meshard.plan.planner.make_plan", refused)
    _sent([0, 0, 0, 0], 4 << 20, meshard.device_put)
    with pytest.raises(AssertionError, match="planned"):
        _sent(APART, 4 << 20, meshard.device_put)
    x = meshard.device_put(mnp.ones(1 << 20), meshard.devices()[0])
    assert execute.route_between(meshard.runtime.world.here(), x._type, x._type) is None
