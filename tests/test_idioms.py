"""What code written for JAX does on every page: casts, shapes, callbacks, switches, small names."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.errors import ArgumentError, DtypeError, ShapeError, ShardingError
from meshard.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    P,
    get_abstract_mesh,
    get_mesh,
    use_abstract_mesh,
)
from tests.worlds import in_worlds, mesh, put, whole

CASTS = {n: getattr(mnp, n) for n in dir(mnp) if type(getattr(mnp, n)).__name__ == "Cast"}


# dtypes


@pytest.mark.parametrize("name", sorted(CASTS))
def test_a_dtype_is_a_dtype_wherever_one_is_asked_for_and_a_function(name: str) -> None:
    cast, dtype = CASTS[name], CASTS[name].dtype
    assert cast == dtype
    assert dtype == cast
    assert cast == dtype.type
    assert hash(cast) == hash(dtype.type)
    assert np.dtype(cast) == dtype
    assert np.zeros(2, cast).dtype == dtype
    assert isinstance(dtype.type(1), cast)
    assert pickle.loads(pickle.dumps(cast)) is copy.deepcopy(cast) is cast
    for given in (1, [0, 1], np.asarray([0, 1]), mnp.asarray([0, 1])):
        found = cast(given)
        assert (type(found), found.dtype) == (meshard.Array, dtype)
        assert np.asarray(found).tobytes() == np.asarray(given).astype(dtype).tobytes()
    assert meshard.jit(lambda x: cast(x))(mnp.asarray([0, 1])).dtype == dtype


def test_all_of_jaxs_casts_are_there(jax: ModuleType) -> None:
    names = {n for n in dir(jax.numpy) if type(getattr(jax.numpy, n)).__name__ == "_ScalarMeta"}
    rare = {"float6_e2m3fn", "float6_e3m2fn", "int1", "uint1", "float_", "complex_"}
    assert sorted(names - set(CASTS) - rare) == []


CLASSES = (
    *("generic", "number", "inexact", "floating", "complexfloating"),
    *("integer", "signedinteger", "unsignedinteger"),
)
WORDS = (
    *("bool", "signed integer", "unsigned integer", "integral"),
    *("real floating", "complex floating", "numeric"),
)


@pytest.mark.parametrize("name", sorted(CASTS))
def test_the_order_of_dtypes_is_jaxs(name: str, jax: ModuleType) -> None:
    jnp = jax.numpy
    if not hasattr(jnp, name):
        pytest.skip("JAX does not have this name")
    ours, theirs = getattr(mnp, name), getattr(jnp, name)
    for other in (*CLASSES, *CASTS):
        if hasattr(jnp, other):
            expected = jnp.issubdtype(theirs, getattr(jnp, other))
            for given in (ours, ours.dtype, ours.dtype.type):
                assert mnp.issubdtype(given, getattr(mnp, other)) == expected, other
    for word in WORDS:
        assert mnp.isdtype(ours, word) == jnp.isdtype(theirs, word), word


def test_typed_keys_are_told_by_their_dtype() -> None:
    key, dtypes = meshard.random.key(0), meshard.dtypes
    assert mnp.issubdtype(key.dtype, dtypes.prng_key)
    assert mnp.issubdtype(key.dtype, dtypes.extended)
    assert mnp.issubdtype(dtypes.prng_key, dtypes.extended)
    assert not mnp.issubdtype(key.dtype, np.number)
    assert not mnp.issubdtype(key.dtype, np.void)
    assert not mnp.issubdtype(meshard.random.PRNGKey(0).dtype, dtypes.prng_key)
    assert not mnp.issubdtype(np.dtype([("prng", "f4")]), dtypes.prng_key)
    assert not mnp.issubdtype(mnp.bfloat16, dtypes.extended)  # which JAX counts among NumPy's
    assert dtypes.canonicalize_dtype(key.dtype, allow_extended_dtype=True) == key.dtype
    with pytest.raises(DtypeError, match="typed random keys are not numbers"):
        dtypes.canonicalize_dtype(key.dtype)
    with pytest.raises(DtypeError, match="'floaty' is not a dtype"):
        dtypes.canonicalize_dtype("floaty")
    with pytest.raises(DtypeError, match="issubdtype: 'floaty' is not a dtype"):
        mnp.issubdtype("floaty", mnp.floating)
    with pytest.raises(DtypeError, match=r"finfo: type must be a dtype, .*: None is not a dtype"):
        mnp.finfo(None)  # type: ignore[arg-type]
    assert dtypes.float0 == meshard.grad(lambda x: x * 1.0, allow_int=True)(3).dtype


def test_numbers_have_no_dtype_that_astype_could_keep() -> None:
    assert mnp.astype(3, float, copy=False).dtype == np.float64
    assert mnp.astype(np.float32(3), "float32", copy=False).dtype == np.float32


@pytest.mark.parametrize("convert", [int, float])
def test_complex_numbers_are_not_cut_to_real_ones(convert: Any) -> None:
    with pytest.raises(DtypeError, match="a number of dtype complex128 is complex"):
        convert(mnp.asarray(2 + 3j))
    assert complex(mnp.asarray(2 + 3j)) == 2 + 3j
    assert convert(mnp.asarray(2 + 3j).real) == 2


def test_axes_may_be_none_at_all() -> None:
    # As of `nn.logsumexp(x, axes)` in a program that is also run without a mesh.
    assert lax.psum(3, ()) == 3
    assert lax.pmean(mnp.ones(2), ()).tolist() == [1, 1]
    assert lax.axis_size(()) == 1
    found = lax.axis_index(())
    assert (int(found), found.dtype) == (0, np.int32)


def test_softmax_of_nothing_is_nothing() -> None:
    for shape in ((0,), (3, 0), (0, 3)):
        for function in (nn.softmax, nn.log_softmax):
            assert function(mnp.zeros(shape)).shape == shape
            mask = mnp.ones(shape, bool)
            assert function(mnp.zeros(shape), where=mask).shape == shape


def test_positions_in_an_array_without_dims() -> None:
    for value in (0, 3):
        assert mnp.argwhere(mnp.asarray(value)).shape == np.argwhere(np.asarray(value)).shape
    assert mnp.argwhere(mnp.asarray(3), size=2).shape == (2, 0)
    assert meshard.jit(lambda x: mnp.argwhere(x, size=2))(mnp.asarray(3)).shape == (2, 0)


def test_jaxs_words_for_how_to_search() -> None:
    x = mnp.arange(4)
    for method in ("scan", "scan_unrolled", "sort", "compare_all"):
        assert mnp.searchsorted(x, 2, method=method).tolist() == 2
    with pytest.raises(ArgumentError, match="method must be 'scan', 'scan_unrolled', 'sort' or"):
        mnp.searchsorted(x, 2, method="quick")


def test_casts_keep_the_layout_and_other_dtypes_differ() -> None:
    x = put(np.arange(8.0), "i")
    assert mnp.int8(x).sharding == x.sharding
    assert mnp.float32 != mnp.float64
    assert mnp.bfloat16 == ml_dtypes.bfloat16
    assert np.issubdtype(mnp.float32, np.floating)
    assert repr(mnp.float32) == "meshard.numpy.float32"


# arrays from what is not one


class Held:
    """Something that says how JAX makes an array of it."""

    def __jax_array__(self) -> Any:
        return mnp.arange(3.0)


def test_objects_that_say_how_are_arrays() -> None:
    x = mnp.asarray([1.0, 2.0, 3.0])
    for found in (
        mnp.sin(Held()),
        x + Held(),
        Held() + x,
        mnp.asarray(Held()),
        meshard.jit(mnp.sin)(Held()),
    ):
        assert isinstance(found, meshard.Array)
    assert (x + Held()).tolist() == [1, 3, 5]
    assert mnp.stack([Held(), x]).shape == (2, 3)


def test_types_stand_for_arrays_where_only_the_type_matters() -> None:
    rows = NamedSharding(mesh((8,), ("i",)), P("i"))
    like = meshard.ShapeDtypeStruct((8, 2), "float32", sharding=rows)
    for made in (mnp.zeros_like, mnp.ones_like, mnp.empty_like, lambda x: mnp.full_like(x, 3)):
        found = made(like)
        assert (found.shape, found.dtype, found.sharding) == ((8, 2), np.float32, rows)
    assert (mnp.shape(like), mnp.ndim(like), mnp.size(like)) == ((8, 2), 2, 16)
    assert mnp.zeros_like(like, shape=(3,)).shape == (3,)
    for shape in (np.asarray([2, 3]), mnp.asarray([2, 3]), [np.int32(2), 3]):
        assert mnp.zeros(shape).shape == mnp.arange(6).reshape(shape).shape == (2, 3)


# meshes without devices


@in_worlds
def test_an_abstract_mesh_stands_for_the_one_that_is_set() -> None:
    real = mesh()
    axes = AbstractMesh((4, 2), ("i", "j"))
    assert axes == real.abstract_mesh == pickle.loads(pickle.dumps(axes))
    assert axes != real
    x, tiles = put(np.ones((8, 8)), "i"), NamedSharding(axes, P("i", "j"))
    assert tiles.shard_shape((8, 8)) == (2, 4)
    with pytest.raises(ShardingError, match="has no devices, and no mesh with its axes is set"):
        meshard.device_put(x, tiles)
    with meshard.make_mesh((2, 4), ("i", "j")), pytest.raises(ShardingError, match="no mesh with"):
        meshard.device_put(x, tiles)
    with real:
        assert get_mesh() == real
        assert get_abstract_mesh() == axes
        assert meshard.device_put(x, tiles).sharding == NamedSharding(real, P("i", "j"))
        constrained = meshard.jit(lambda x: meshard.lax.with_sharding_constraint(x * 2, tiles))(x)
        assert constrained.sharding == NamedSharding(real, P("i", "j"))
    double = meshard.shard_map(lambda t: 2 * t, mesh=axes, in_specs=P("i"), out_specs=P("i"))
    np.testing.assert_array_equal(whole(double(x)), 2 * np.ones((8, 8)))
    assert get_mesh() == Mesh((), ())
    assert get_mesh().empty
    with use_abstract_mesh(axes):
        assert get_abstract_mesh() is axes
    with pytest.raises(ArgumentError, match="must be an AbstractMesh"):
        use_abstract_mesh(real)
    with pytest.raises(ArgumentError, match=r"2 sizes .* and 1 names"):
        AbstractMesh((4, 2), ("i",))


# shard_map's arguments that are not arrays


@in_worlds
def test_arguments_without_a_spec_are_passed_on() -> None:
    x = put(np.arange(8.0), "i", on=mesh((8,), ("i",)))

    def over(body: Any, *specs: Any) -> Any:
        return meshard.shard_map(
            body, mesh=mesh((8,), ("i",)), in_specs=(*specs, P("i")), out_specs=P("i")
        )

    tree = {"a": "x", "b": 2.0}
    calls = {
        "text": (over(lambda n, t: t * len(n), None), "ab"),
        "function": (over(lambda f, t: f(t), None), lambda t: t * 2),
        "tree": (over(lambda n, t: t * len(n["a"]) * n["b"], {"a": None, "b": P()}), tree),
        "array": (over(lambda n, t: t * n.shape[0] / 4, None), x),
    }
    for name, (f, given) in calls.items():
        np.testing.assert_array_equal(whole(f(given, x)), 2 * np.arange(8.0), err_msg=name)
    assert over(lambda n, t: t if n is None else 0, None)(None, x).shape == (8,)


# switches


def test_functions_run_as_they_are_written() -> None:
    @meshard.jit
    def f(x: Any) -> Any:
        return x + 1 if float(x) > 0 else x

    with meshard.disable_jit():
        assert f(1.0) == 2
        with meshard.disable_jit(False), pytest.raises(TypeError, match="needs the value"):
            f(1.0)
    with pytest.raises(TypeError, match="needs the value"):
        f(1.0)
    meshard.clear_caches()
    with pytest.raises(TypeError, match="needs the value"):
        f(1.0)


def test_programs_are_forgotten() -> None:
    traced = []
    f = meshard.jit(lambda x: (traced.append(1), x)[1])
    f(1), f(1)
    meshard.clear_caches()
    assert (f(1).item(), len(traced)) == (1, 2)


def test_names_of_scopes_are_listed() -> None:
    @meshard.named_scope("block")
    def f(x: Any) -> Any:
        with meshard.named_scope("mix"):
            return 2 * x

    assert "block/mix" in str(meshard.make_jaxpr(f)(1.0))
    g = meshard.named_call(lambda x: 2 * x, name="own")
    assert "own" in meshard.jit(g).lower(1.0).as_text()
    program, shapes = meshard.make_jaxpr(lambda x, n: x * n, static_argnums=1, return_shape=True)(
        meshard.ShapeDtypeStruct((2,), "float32"), 3
    )
    assert (shapes.shape, "multiply" in str(program)) == ((2,), True)
    with pytest.raises(ArgumentError, match="axis_env is not taken"):
        meshard.make_jaxpr(f, axis_env=[("i", 2)])
    with pytest.raises(ArgumentError, match="name must be a string"):
        meshard.named_scope(3).__enter__()


def test_constants_are_computed_while_a_function_is_traced() -> None:
    @meshard.jit
    def f(x: Any) -> Any:
        with meshard.ensure_compile_time_eval():
            assert bool(mnp.asarray(1) < 2)
        return x

    assert f(3) == 3


def test_small_names() -> None:
    assert meshard.default_backend() == "cpu"
    assert meshard.jacobian is meshard.jacrev
    with pytest.raises(AttributeError, match="default_float"):
        meshard.enable_x64


# what is pickled


FUNCTIONS = {
    "jit": lambda k: meshard.jit(lambda x: x + k),
    "static": lambda k: meshard.jit(lambda x, n=2: x + k - n + 2, static_argnames="n"),
    "grad": lambda k: meshard.jit(meshard.grad(lambda x: x * x / 2 + k * x)),
    "shard_map": lambda k: meshard.jit(
        meshard.shard_map(lambda x: x + k, mesh=mesh((1,), ("i",)), in_specs=P(), out_specs=P())
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_no_module_names_are_pickled_with_what_they_hold(name: str) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    f = pickle.loads(cloudpickle.dumps(FUNCTIONS[name](3.0)))
    assert float(f(2.0)) == 5


def test_functions_of_a_script_run_in_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    program = (
        "import cloudpickle, meshard, sys\\n"
        "@meshard.jit\\ndef f(x): return x + k\\n"
        "k = 3\\nsys.stdout.buffer.write(cloudpickle.dumps(f))"
    ).replace("\\n", "\n")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=True
    )
    assert cloudpickle.loads(done.stdout)(2).item() == 5


# initial weights


INITIALIZERS = {
    "uniform": ((), (40, 30)),
    "normal": ((), (40, 30)),
    "truncated_normal": ((0.5,), (40, 30)),
    "glorot_uniform": ((), (60, 40)),
    "glorot_normal": ((), (60, 40)),
    "lecun_uniform": ((), (3, 3, 20, 40)),
    "lecun_normal": ((), (60, 40)),
    "he_uniform": ((), (60, 40)),
    "he_normal": ((0, 1), (60, 40)),
    "orthogonal": ((2.0,), (30, 20)),
    "delta_orthogonal": ((), (3, 10, 20)),
    "constant": ((3.0,), (4,)),
}


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", INITIALIZERS)
def test_initial_weights_are_distributed_as_jaxs(jax: ModuleType, name: str, dtype: str) -> None:
    if dtype == "complex64" and name in ("truncated_normal", "uniform"):
        pytest.skip("JAX takes no complex dtype there")
    args, shape = INITIALIZERS[name]
    mine = getattr(nn.initializers, name)(*args)(meshard.random.key(1), shape, dtype)
    theirs = getattr(jax.nn.initializers, name)(*args)(jax.random.key(1), shape, dtype)
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(np.std(mine), np.std(theirs), rtol=0.1, atol=1e-6)
    spread = np.abs(np.asarray(theirs)).max()
    np.testing.assert_allclose(np.abs(np.asarray(mine)).max(), spread, rtol=0.35)


@in_worlds
def test_weights_are_drawn_where_they_will_be() -> None:
    rows = NamedSharding(mesh((8,), ("i",)), P("i"))
    init = nn.initializers.he_normal(dtype="float32")
    split = init(meshard.random.key(0), (16, 4), out_sharding=rows)
    assert split.sharding == rows
    np.testing.assert_array_equal(whole(split), whole(init(meshard.random.key(0), (16, 4))))
    assert nn.initializers.zeros(None, (8,), out_sharding=rows).sharding == rows


def test_odd_initializers_are_refused() -> None:
    key = meshard.random.key(0)
    with pytest.raises(ShapeError, match=r"the shape \(3,\) has 1 dims"):
        nn.initializers.lecun_normal()(key, (3,))
    with pytest.raises(ArgumentError, match="mode must be 'fan_in'"):
        nn.initializers.variance_scaling(1.0, "fan", "normal")
    with pytest.raises(ArgumentError, match="distribution must be 'truncated_normal'"):
        nn.initializers.variance_scaling(1.0, "fan_in", "gamma")
    with pytest.raises(ArgumentError, match="dtype must be a float or complex dtype"):
        nn.initializers.normal()(key, (3,), "int32")
    with pytest.raises(ShapeError, match="must have two dims at least"):
        nn.initializers.orthogonal()(key, (3,))
    with pytest.raises(ShapeError, match="three, four or five dims"):
        nn.initializers.delta_orthogonal()(key, (3, 3))
    with pytest.raises(ShapeError, match="3 inputs and 2 outputs"):
        nn.initializers.delta_orthogonal()(key, (3, 3, 2))
