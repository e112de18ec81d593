"""Replicas on one host are one memory: who builds, who looks, and that the values are the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
from meshard.plan.move.part import Copy, Message, Ownership, Part, Recipe, ownership, with_replicas
from meshard.runtime.settings import Table
from meshard.runtime.simulated import simulate
from meshard.sharding import NamedSharding, P

EAGER = Table(replicas=1)


@given(
    st.integers(0, 5),
    st.lists(st.integers(0, 7), min_size=1, unique=True),
    st.sets(st.integers(0, 7)),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
def test_every_process_has_the_piece_builds_it_or_maps_it_on_its_own_host(
    piece, wanted, complete, hosts
):
    complete &= set(wanted)
    found = ownership(piece, sorted(wanted), complete, hosts)
    for host in {hosts[p] for p in wanted}:
        here = [p for p in wanted if hosts[p] == host]
        of_host = [o for o in found if hosts[o.owner] == host]
        assert len(of_host) <= 1
        takers = {p for o in of_host for p in o.takers}
        assert not takers & complete
        builders = set(here) - takers - complete
        assert len(builders) == (0 if set(here) & complete or not here else 1)
        for o in of_host:
            assert takers
            assert o.owner in here
            assert o.owner not in takers


def test_pieces_take_turns():
    owners = {ownership(i, range(4), (), [0] * 4)[0].owner for i in range(8)}
    assert owners == {0, 1, 2, 3}


def test_messages_to_those_who_map_fall_away():
    def copy(piece):
        return Copy(0, 0, (slice(0, 2),), piece, (slice(0, 2),), (2,))

    recipe = Recipe((4,), None, (copy(0),), True, False)
    part = Part(
        (recipe, recipe),
        (Message(1, (copy(0),)), Message(2, (copy(0), copy(1)))),
        (Message(1, (copy(0), copy(1))),),
    )
    owned = [Ownership(0, 2, (0, 1))]
    less = with_replicas(part, owned, 0, 4).replicas
    assert less is not None
    assert less.taken == ((0, 2, (4,)),)
    assert less.lent == ()
    assert less.part.recipes == (None, recipe)
    assert [(m.peer, [c.piece for c in m.copies]) for m in less.part.sends] == [(2, [0, 1])]
    assert [(m.peer, [c.piece for c in m.copies]) for m in less.part.receives] == [(1, [1])]
    assert with_replicas(part, [], 0, 4) is part
    assert with_replicas(part, owned, 2, 4).replicas.lent == ((0, (0, 1)),)


SPECS = [P("i"), P(None, "i"), P(), P("j"), P("i", "j"), P(("j", "i")), P(None, ("i", "j"))]


@pytest.mark.parametrize("hosts", [(0, 0, 0, 0), (0, 1, 0, 1)])
def test_values_are_the_same_and_each_host_has_one_memory(hosts):
    value = np.arange(24.0 * 16).reshape(24, 16)

    def program():
        mesh = meshard.make_mesh((2, 4), ("i", "j"))
        seen = {}
        for before in SPECS:
            x = meshard.device_put(value, NamedSharding(mesh, before))
            for after in SPECS:
                y = meshard.reshard(x, NamedSharding(mesh, after))
                for shard in y.addressable_shards:
                    assert (np.asarray(shard.data) == value[shard.index]).all()
                    assert not np.asarray(shard.data).flags.writeable
                if before == P("j") and after == P("i"):
                    for shard in y.addressable_shards:
                        where = np.asarray(shard.data).__array_interface__["data"][0]
                        seen[shard.index[0].start] = where
        return seen

    told = simulate(4, 2, program, hosts=hosts, table=EAGER)
    for start in (None, 0, 12):
        for host in set(hosts):
            places = {
                t[start] for t, h in zip(told, hosts, strict=True) if h == host and start in t
            }
            assert len(places) <= 1


def test_small_replicas_are_sent():
    def program():
        mesh = meshard.make_mesh((2,), ("i",))
        x = meshard.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
        y = meshard.reshard(x, NamedSharding(mesh, P()))
        return np.asarray(y.addressable_shards[0].data).__array_interface__["data"][0], y

    (first, _), (second, _) = simulate(2, 1, program)
    assert first != second
    (first, _), (second, _) = simulate(2, 1, program, table=EAGER)
    assert first == second


def test_processes_out_of_step_are_told():
    def program():
        transport = meshard.runtime.world.here().transport
        if transport.index == 0:
            transport.share([(np.zeros(3), (1,))], [])
        else:
            transport.share([], [(0, (4,), np.dtype(float))])

    with pytest.raises(meshard.errors.TransportError, match=r"expects a replica float64\(4,\)"):
        simulate(2, 1, program)
