import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Layout, balanced_cuts, layout_of_boxes
from meshard.plan.move.assemble import Source, assemble, overlaps
from meshard.plan.move.part import Copy, Message, Part, Recipe
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing.strategies import box_shardings, meshes, specs
from meshard.testing.virtual import virtual_devices
from tests.lays import calm


def lines(size, shards, *, ids=None, replicas=1):
    """Return the layout of a line in parts, on devices numbered from 0."""
    ids = np.arange(shards * replicas) if ids is None else np.asarray(ids)
    return Layout((size,), (balanced_cuts(size, shards),), ids.reshape(shards, replicas))


def whole(shape, *ids):
    tensor = np.array(ids).reshape((1,) * len(shape) + (len(ids),))
    return Layout(shape, tuple((0, n) for n in shape), tensor)


EACH = {i: i for i in range(8)}
"""Every device a process of its own."""


# what a part says


def test_the_same_layout_is_all_aliases():
    part = assemble(lines(8, 2), [Source(lines(8, 2))])
    assert not part.sends
    assert not part.receives
    for piece, recipe in enumerate(part.recipes):
        assert recipe.alias == Copy(0, piece, (slice(0, 4, None),), piece, (slice(0, 4),), (4,))
        assert recipe == Recipe((4,), recipe.alias, (recipe.alias,), True, False)


def test_a_whole_array_becomes_views():
    part = assemble(lines(8, 4), [Source(whole((8,), 0, 1, 2, 3))])
    assert [r.alias.region for r in part.recipes] == [
        (slice(a, a + 2, None),) for a in (0, 2, 4, 6)
    ]


def test_parts_are_joined():
    part = assemble(whole((6,), 0), [Source(lines(6, 3))])
    (recipe,) = part.recipes
    assert recipe.alias is None
    assert [(c.origin, c.target) for c in recipe.copies] == [
        (0, (slice(0, 2),)),
        (1, (slice(2, 4),)),
        (2, (slice(4, 6),)),
    ]
    assert recipe.covered
    assert not recipe.layered


def test_a_view_that_would_pin_a_large_block_is_copied():
    few = layout_of_boxes((8,), [(0, Box((0,), (3,))), (1, Box((3,), (8,)))])
    source = Source(whole((8,), 0, 1))
    assert [r.alias is None for r in assemble(few, [source]).recipes] == [False, False]
    # Process 0 sees three of eight elements of its block, process 1 the other five.
    for me, view in ((0, False), (1, True)):
        mine = assemble(few, [source], EACH, me).recipes[me]
        assert (mine.alias is not None) == view
        assert len(mine.copies) == 1
    # Half of a block is worth keeping it.
    assert assemble(lines(8, 2), [source], EACH, 0).recipes[0].alias is not None


def test_steps_and_directions_are_no_views():
    for made in (DimMap.slice(8, None, None, 2), DimMap.flip(8)):
        part = assemble(whole((made.size,), 0), [Source(whole((8,), 0), (made,))])
        assert part.recipes[0].alias is None
    spread = assemble(whole((3,), 0), [Source(whole((1,), 0), (DimMap.broadcast(3),))])
    assert spread.recipes[0].alias.region == (slice(0, 1),)
    assert spread.recipes[0].alias.shape == (3,)


def test_fills_are_left_open():
    part = assemble(lines(6, 3), [Source(lines(4, 2), (DimMap.pad(4, 2, 0),))])
    assert [(r.covered, len(r.copies)) for r in part.recipes] == [(False, 0), (True, 1), (True, 1)]


def test_pieces_without_elements_need_nothing():
    part = assemble(lines(2, 4), [Source(whole((2,), 0))])
    assert [r.shape for r in part.recipes] == [(1,), (1,), (0,), (0,)]
    assert part.recipes[3] == Recipe((0,), None, (), True, False)


def test_several_sources_side_by_side_and_on_top():
    maps = [(DimMap.place(4, 6, 0),), (DimMap.place(2, 6, 4),)]
    part = assemble(
        whole((6,), 0), [Source(lines(n, 1), m) for n, m in zip((4, 2), maps, strict=True)]
    )
    assert [(c.operand, c.target) for c in part.recipes[0].copies] == [
        (0, (slice(0, 4),)),
        (1, (slice(4, 6),)),
    ]
    over = assemble(
        lines(6, 2), [Source(lines(6, 2)), Source(whole((2,), 0), (DimMap.place(2, 6, 0),))]
    )
    assert [r.layered for r in over.recipes] == [True, False]
    assert [c.operand for c in over.recipes[0].copies] == [0, 1]
    assert over.recipes[1].alias is not None


def test_elements_laid_at_a_distance():
    source = Source(whole((3,), 0), (DimMap.flip(3),), ((1, 3),))
    part = assemble(lines(10, 2), [Source(lines(10, 2)), source])
    laid = [[c for c in r.copies if c.operand == 1] for r in part.recipes]
    assert [(c.region, c.target) for c in laid[0]] == [
        ((slice(2, 0, -1),), (slice(1, 5, 3),)),
    ]
    assert [(c.region, c.target) for c in laid[1]] == [((slice(0, 1),), (slice(2, 3, 3),))]


def test_flat_pieces_are_boxes_of_the_source():
    scalar = assemble(whole((1,), 0), [Source(whole((), 0), flat=True)])
    assert [c.within for c in scalar.recipes[0].copies] == [(0, ())]
    part = assemble(lines(20, 1), [Source(whole((4, 5), 0), flat=True)])
    (copy,) = part.recipes[0].copies
    assert copy.within == (0, (4, 5))
    assert part.recipes[0].alias is None
    part = assemble(
        Layout((20,), ((0, 3, 16, 20),), np.arange(3).reshape(3, 1)),
        [Source(whole((4, 5), 0), flat=True)],
    )
    assert [c.within for c in part.recipes[1].copies] == [(0, (1, 2)), (2, (2, 5)), (12, (1, 1))]


# between processes


def test_messages_in_one_order_at_both_ends():
    source, destination = lines(6, 3), lines(6, 3, ids=[2, 0, 1])
    parts = [assemble(destination, [Source(source)], EACH, me) for me in range(3)]
    assert [[m.peer for m in p.sends] for p in parts] == [[2], [0], [1]]
    assert [[m.peer for m in p.receives] for p in parts] == [[1], [2], [0]]
    for me, part in enumerate(parts):
        for message in part.sends:
            assert Message(me, message.copies) in parts[message.peer].receives


def test_replicas_take_turns_to_send():
    # Devices 0 to 3 hold all; 4 to 7 want a quarter each: everybody sends once.
    source, destination = whole((8,), 0, 1, 2, 3), lines(8, 4, ids=[4, 5, 6, 7])
    parts = [assemble(destination, [Source(source)], EACH, me) for me in range(4)]
    assert [[m.peer for m in p.sends] for p in parts] == [[4], [5], [6], [7]]


def test_what_is_at_hand_is_not_received():
    source = whole((8,), 0, 1)
    part = assemble(lines(8, 2), [Source(source)], EACH, 1)
    assert part == Part((None, part.recipes[1]), (), ())
    assert part.recipes[1].copies[0].region == (slice(4, 8, None),)


def test_a_process_gets_a_box_once_for_all_its_devices():
    two = {i: i // 4 for i in range(8)}
    part = assemble(whole((8,), 4, 5, 6, 7), [Source(lines(8, 2))], two, 1)
    assert [(m.peer, len(m.copies)) for m in part.receives] == [(0, 2)]
    far = assemble(whole((8,), 4, 5, 6, 7), [Source(lines(8, 2))], two, 0)
    assert far.recipes == (None,)
    assert [(m.peer, sum(math.prod(c.shape) for c in m.copies)) for m in far.sends] == [(1, 8)]


def test_a_process_with_neither_end_has_nothing_to_do():
    assert assemble(lines(4, 2), [Source(lines(4, 2))], EACH, 7) == Part((None, None), (), ())


def test_overlaps_name_all_that_hold_a_cell():
    boxes = [(0, Box((0,), (4,))), (1, Box((2,), (6,)))]
    source = Source(layout_of_boxes((6,), boxes))
    assert overlaps(source, whole((6,), 5), 0) == [(2, [0]), (2, [0, 1]), (2, [1])]
    assert overlaps(Source(lines(6, 3)), lines(6, 2), 1) == [(1, [1]), (2, [2])]
    assert overlaps(Source(whole((), 0)), whole((), 1), 0) == [(1, [0])]


# against numbered elements


def layouts(shape, devices):
    named = meshes(devices).flatmap(
        lambda m: specs(m, len(shape)).map(lambda s: NamedSharding(m, s, uneven="balanced"))
    )
    return (named | box_shardings(shape, devices)).map(lambda s: s.layout(shape))


def run(parts, sources, values, destination, process_of, fill=-1):
    """Do what all processes' parts say, each with the blocks that it holds and what is sent."""
    made = []
    for me, part in enumerate(parts):
        blocks = {}
        for piece, recipe in enumerate(part.recipes):
            if recipe is None:
                continue
            block = np.full(recipe.shape, fill)
            todo = [(me, c) for c in recipe.copies]
            todo += [(m.peer, c) for m in part.receives for c in m.copies if c.piece == piece]
            for sender, copy in sorted(todo, key=lambda t: t[1].operand):
                layout = sources[copy.operand].layout
                assert sender in {process_of[d] for d in layout.holders(copy.origin)}
                origin = values[copy.operand][layout.box(copy.origin).slices]
                box = block
                if copy.within is not None:
                    at, shape = copy.within
                    box = block[at : at + math.prod(shape)].reshape(shape)
                box[copy.target] = origin[copy.region]
            blocks[piece] = block
        assert set(blocks) == {
            p
            for p in range(destination.piece_count)
            if me in {process_of[d] for d in destination.holders(p)}
        }
        made.append(blocks)
        for message in part.sends:
            back = [m.copies for m in parts[message.peer].receives if m.peer == me]
            assert back == [message.copies]
    return made


def check(sources, values, destination, expected, processes):
    process_of = {i: i % processes for i in range(8)}
    parts = [assemble(destination, sources, process_of, p) for p in range(processes)]
    for blocks in run(parts, sources, values, destination, process_of):
        for piece, block in blocks.items():
            assert (block == expected[destination.box(piece).slices]).all()


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@st.composite
def maps(draw, n):
    """Draw a map of one dim: slices, flips, rolls, pads and chains of them."""
    made = DimMap.identity(n)
    for _ in range(draw(st.integers(0, 3))):
        n = made.size
        kind = draw(st.sampled_from(["slice", "flip", "roll", "pad", "tile"]))
        if kind == "slice":
            ends = st.none() | st.integers(-n - 1, n + 1)
            step = draw(st.integers(-3, 3).filter(bool))
            made = DimMap.slice(n, draw(ends), draw(ends), step).after(made)
        elif kind == "flip":
            made = DimMap.flip(n).after(made)
        elif kind == "roll":
            made = DimMap.roll(n, draw(st.integers(-9, 9))).after(made)
        elif kind == "pad":
            made = DimMap.pad(n, draw(st.integers(0, 2)), draw(st.integers(0, 2))).after(made)
        else:
            made = DimMap.tile(n, draw(st.integers(0, 2))).after(made)
    return made


def mapped(value, chosen):
    """Return what maps make of a value, -1 where they read nothing."""
    where = [m.positions() for m in chosen]
    padded = np.pad(value, [(0, 1)] * value.ndim, constant_values=-1)
    return padded[np.ix_(*where)]


@calm
@given(st.data(), SHAPES, st.integers(1, 4))
def test_any_maps_between_any_layouts(data, shape, processes):
    devices = virtual_devices(8)
    value = np.arange(math.prod(shape)).reshape(shape)
    chosen = tuple(data.draw(maps(n)) for n in shape)
    expected = mapped(value, chosen)
    source = Source(data.draw(layouts(shape, devices)), chosen)
    check([source], [value], data.draw(layouts(expected.shape, devices)), expected, processes)


@calm
@given(st.data(), SHAPES, st.integers(1, 4))
def test_values_laid_over_an_array(data, shape, processes):
    devices = virtual_devices(8)
    below = np.arange(math.prod(shape)).reshape(shape)
    index = tuple(
        slice(
            data.draw(st.integers(0, n)), data.draw(st.integers(0, n)), data.draw(st.integers(1, 3))
        )
        for n in shape
    )
    above = 1000 + np.arange(below[index].size).reshape(below[index].shape)
    expected = below.copy()
    expected[index] = above
    lies = data.draw(layouts(shape, devices))
    onto = tuple((s.start, s.step) for s in index)
    sources = [Source(lies), Source(data.draw(layouts(above.shape, devices)), None, onto)]
    check(sources, [below, above], lies, expected, processes)


@calm
@given(st.data(), SHAPES, st.integers(1, 4))
def test_elements_in_one_line(data, shape, processes):
    devices = virtual_devices(8)
    value = np.arange(math.prod(shape)).reshape(shape)
    source = Source(data.draw(layouts(shape, devices)), flat=True)
    check([source], [value], data.draw(layouts((value.size,), devices)), value.ravel(), processes)


@pytest.mark.parametrize(
    "spec",
    [
        P("x", "y"),
        P(
            ("x", "y"),
        ),
        P(None, "y"),
        P(),
    ],
)
def test_work_grows_with_what_a_process_holds(spec):
    # One process of 64, each with one device: its part names a handful of peers' boxes only.
    devices = virtual_devices(64, devices_per_process=1)
    grid = np.array(devices, object).reshape(8, 8)
    mesh = Mesh(grid, ("x", "y"))
    a, b = (NamedSharding(mesh, s).layout((64, 64)) for s in (P("y", "x"), spec))
    part = assemble(b, [Source(a)], {d.id: d.process_index for d in devices}, 9)
    got = sum(math.prod(c.shape) for m in part.receives for c in m.copies)
    have = sum(math.prod(c.shape) for r in part.recipes if r is not None for c in r.copies)
    assert got + have == b.box(b.piece_of[9]).volume
    assert have == 64 if spec != P(("x", "y")) else have == 8
