"""`ArrayType` and the world that interns it."""

import numpy as np

import meshard
from meshard.runtime import world as module
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P, SingleDeviceSharding

from .worlds import alone, mesh

F4 = np.dtype("f4")


def test_types_are_the_same_object_exactly_when_they_are_equal():
    def body() -> None:
        world, sharding = here(), NamedSharding(mesh(), P("i"))
        kind = world.type_of((8, 4), F4, sharding, True)
        assert world.type_of((8, 4), F4, NamedSharding(mesh(), P("i")), True) is kind
        for other in (
            world.type_of((8, 5), F4, sharding, True),
            world.type_of((8, 4), np.dtype("f8"), sharding, True),
            world.type_of((8, 4), F4, NamedSharding(mesh(), P("j")), True),
            world.type_of((8, 4), F4, sharding, False),
        ):
            assert other is not kind

    alone(body)


def test_a_type_says_all_but_the_data():
    def body() -> None:
        kind = here().type_of((8, 4), F4, NamedSharding(mesh(), P("i")), True)
        assert (kind.shape, kind.ndim, kind.size, kind.nbytes) == ((8, 4), 2, 32, 128)
        assert (kind.local, kind.addressable, kind.complete) == ((0, 1, 2, 3), True, True)
        assert (kind.weak_type, repr(kind), kind.str_short()) == (False, *["float32[8,4]"] * 2)
        assert kind.owner is here().mark

    alone(body)


def test_a_type_knows_what_its_process_holds():
    def body() -> list[tuple[tuple[int, ...], bool, bool]]:
        kinds = [
            here().type_of((8, 4), F4, sharding, True)
            for sharding in (
                NamedSharding(mesh(), P("i")),
                NamedSharding(mesh(), P(None, "j")),
                NamedSharding(mesh(), P()),
                SingleDeviceSharding(meshard.devices()[0]),
                SingleDeviceSharding(meshard.local_devices()[0]),
            )
        ]
        return [(k.local, k.addressable, k.complete) for k in kinds]

    first, second = simulate(2, 4, body, deadline=5)
    assert first == [
        ((0, 1), False, False),
        ((0, 1), False, True),
        ((0,), False, True),
        ((0,), True, True),
        ((0,), True, True),
    ]
    assert second == [
        ((2, 3), False, False),
        ((0, 1), False, True),
        ((0,), False, True),
        ((), False, False),
        ((0,), True, True),
    ]


def test_too_many_types_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MOST_TYPES", 3)

    def body() -> None:
        world = here()
        for n in range(20):
            world.type_of((n,), F4, SingleDeviceSharding(meshard.devices()[0]), True)
        assert len(world._types) <= 4

    alone(body)
