"""Grids: what a value in a body says of itself, and when it is one value."""

import copy
import io
import pickle
from contextlib import redirect_stdout

import numpy as np
import pytest

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard.errors import ConcretizationError
from meshard.runtime.simulated import simulate
from meshard.sharding import P
from tests.worlds import alone, in_worlds, mesh

V = np.arange(64.0).reshape(8, 8)


TILES = P("i", "j")


def inside(body, *args, ins=TILES, **options):
    """Run a body for what it looks at; return that."""
    seen = []

    def run(*x):
        seen.append(body(*x))
        return mnp.zeros(())

    meshard.shard_map(run, mesh=mesh(), in_specs=ins, out_specs=P(), **options)(*(args or (V,)))
    return seen[0]


@in_worlds
def test_its_properties_are_those_of_the_local_array():
    def look(x):
        return (
            (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.itemsize, len(x), x.weak_type),
            (x.vma, x.aval.vma, x.aval.shape, x.aval.dtype, x.aval.ndim, x.aval.size),
            (x.aval.nbytes, x.aval.weak_type, x.aval.str_short(), repr(x.aval)),
        )

    first, second, third = inside(look)
    assert first == ((2, 4), np.float64, 2, 8, 64, 8, 2, False)
    assert second == ({"i", "j"}, {"i", "j"}, (2, 4), np.float64, 2, 8)
    assert third == (64, False, "float64[2,4]{V:(i,j)}", "float64[2,4]{V:(i,j)}")


@in_worlds
def test_types_name_the_axes():
    def look(x, y):
        return [
            meshard.typeof(v).str_short()
            for v in (x, x + y, lax.psum(x, "i"), lax.axis_index("j"), mnp.ones(3) + 0)
        ]

    assert inside(look, V[0], V[0, :4], ins=(P("i"), P("j"))) == [
        "float64[2]{V:i}",
        "float64[2]{V:(i,j)}",
        "float64[2]",
        "int32[]{V:j}",
        "float64[3]",
    ]


def printed(body, *args, shape=(2,), names=("i",), **options):
    def run():
        text = io.StringIO()
        mapped = meshard.shard_map(
            lambda *x: print(body(*x), file=text),
            mesh=meshard.make_mesh(shape, names),
            out_specs=P(),
            **options,
        )
        with redirect_stdout(text):
            mapped(*args)
        return text.getvalue()

    return run


def test_each_process_prints_the_cells_that_it_holds():
    run = printed(lambda x: x + 1, np.arange(4), in_specs=P("i"))
    assert alone(run) == "int64[2]{V:i}\nat (i) = (0):\n  [1 2]\nat (i) = (1):\n  [3 4]\n"
    assert simulate(2, 1, run, deadline=30) == [
        "int64[2]{V:i}\nat (i) = (0):\n  [1 2]\n",
        "int64[2]{V:i}\nat (i) = (1):\n  [3 4]\n",
    ]


def test_what_does_not_differ_is_printed_once():
    run = printed(lambda x: lax.psum(x, "i"), np.arange(4), in_specs=P("i"))
    assert alone(run) == "int64[2]\n  [2 4]\n"
    run = printed(lambda x: lax.pvary(x, "i"), np.arange(2), in_specs=P())
    assert alone(run) == "int64[2]{V:i}\n  [0 1]\n"


def test_large_values_print_their_type_only():
    run = printed(lambda x: x, np.zeros((2, 400)), in_specs=P("i"))
    assert alone(run) == "float64[1,400]{V:i}\n"


def test_many_cells_are_cut_short():
    run = printed(lambda x: lax.axis_index("i"), 0, shape=(20,), names=("i",), in_specs=P())
    text = alone(run, 20)
    assert text.count("at (i)") == 16
    assert text.endswith("and 4 more\n")


def test_cells_on_automatic_axes_print_whole():
    run = printed(
        lambda x: x * 2,
        np.arange(8).reshape(2, 4),
        shape=(2, 2),
        names=("i", "j"),
        in_specs=P("i"),
        axis_names={"i"},
    )
    assert alone(run) == (
        "int64[1,4]{V:i}\nat (i) = (0):\n  [[0 2 4 6]]\nat (i) = (1):\n  [[ 8 10 12 14]]\n"
    )


@in_worlds
def test_one_value_may_be_looked_at():
    def look(x):
        total = lax.psum(x.sum(), ("i", "j"))
        row = np.asarray(lax.pmax(x, ("i", "j")))
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 0
        assert np.array(lax.pmax(x, ("i", "j")), np.float32).dtype == np.float32
        return (
            (bool(total > 0), int(total), float(total), complex(total), total.item()),
            (f"{total:.1f}", lax.pmax(x, ("i", "j")).tolist(), row[-1, -1]),
            range(lax.pmax(lax.axis_index("i"), "i")),
        )

    first, second, third = inside(look)
    assert first == (True, 2016, 2016.0, 2016 + 0j, 2016.0)
    assert second == ("2016.0", V[-2:, -4:].tolist(), 63.0)
    assert third == range(3)


@in_worlds
def test_many_values_may_not():
    """The message says over which axes it varies, and what to do."""

    def look(x):
        for use in (
            bool,
            int,
            float,
            complex,
            np.asarray,
            lambda v: v.item(),
            lambda v: v.tolist(),
            lambda v: f"{v:.2f}",
            range,
            lambda v: 1 if v else 0,
            lambda v: [0, 1][v],
        ):
            with pytest.raises(ConcretizationError, match="over the mesh axes 'i', 'j': each dev"):
                use((x[0, 0] * 0).astype(int))
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(x)
        with pytest.raises(TypeError, match="an array without dims cannot be iterated over"):
            iter(x[0, 0])
        with pytest.raises(TypeError, match="without dims"):
            len(x[0, 0])
        assert x.copy() is x
        assert copy.copy(x) is x
        assert copy.deepcopy({"a": x})["a"] is x
        assert x.block_until_ready() is x
        return [row.shape for row in x]

    assert inside(look) == [(4,), (4,)]


@in_worlds
def test_it_lies_nowhere_by_itself():
    """What an array says of its place has an AttributeError that tells so."""

    def look(x):
        for name in ("addressable_shards", "devices", "is_fully_replicated", "delete"):
            with pytest.raises(AttributeError, match=f"{name}: this float64.2,4. is a value insid"):
                getattr(x, name)
        with pytest.raises(AttributeError, match="'Grid' object has no attribute 'nothing'"):
            x.nothing
        assert not hasattr(x, "addressable_data")
        return True

    assert inside(look)
