"""What the pages about NumPy and JAX say of both libraries: each row is asked of both."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.sharding import NamedSharding, P


class Both:
    """One mesh and one array in each library, and what an expression gives."""

    def __init__(self, jax: ModuleType) -> None:
        auto = (jax.sharding.AxisType.Auto,) * 2
        j = jax.make_mesh((4, 2), ("x", "y"), axis_types=auto)
        m = meshard.make_mesh((4, 2), ("x", "y"))
        jax_split = jax.sharding.NamedSharding(j, jax.sharding.PartitionSpec("x", "y"))
        rows = np.arange(32.0).reshape(8, 4)
        lows = {"b16": "bfloat16", "i32": "int32", "f32": "float32", "f8": "float8_e4m3fn"}
        self.names: dict[str, dict[str, Any]] = {}
        for who, numpy, lax, random, x in (
            ("jax", jax.numpy, jax.lax, jax.random, jax.device_put(rows, jax_split)),
            (
                "meshard",
                mnp,
                meshard.lax,
                meshard.random,
                meshard.device_put(rows, NamedSharding(m, P("x", "y"))),
            ),
        ):
            ones = {short: numpy.ones(1, dtype) for short, dtype in lows.items()}
            grad = (jax if who == "jax" else meshard).grad
            named = {"np": numpy, "lax": lax, "random": random, "x": x, "grad": grad}
            self.names[who] = {**named, **ones}

    def found(self, who: str, expression: str) -> str:
        try:
            value = eval(expression, {"numpy": np, **self.names[who]})
        except (ValueError, TypeError, IndexError):
            return "refused"
        return str(value.tolist()) if hasattr(value, "tolist") else str(value)


@pytest.fixture(scope="module")
def both(jax: ModuleType) -> Both:
    return Both(jax)


ROWS = [
    ("np.ones(3).dtype", "float32", "float64"),
    ("np.arange(3).dtype", "int32", "int64"),
    ("(i32 + f32).dtype", "float32", "float64"),
    ("(i32 / i32).dtype", "float32", "float64"),
    ("(f32 * numpy.float64(2)).dtype", "float32", "float64"),
    ("(f32 * 2.0).dtype", "float32", "float32"),
    ("(b16 + i32).dtype", "bfloat16", "bfloat16"),
    ("(b16 + f8).dtype", "refused", "float32"),
    ("np.arange(8.0)[9]", "7.0", "refused"),
    ("np.zeros(3).at[9].set(1)", "[0.0, 0.0, 0.0]", "refused"),
    ("np.zeros(3).at[9].set(1, mode='drop')", "[0.0, 0.0, 0.0]", "[0.0, 0.0, 0.0]"),
    ("lax.dynamic_slice(np.arange(5), (9,), (2,))", "[3, 4]", "[3, 4]"),
    ("x[[0, 1]].shape", "refused", "(2, 4)"),
    ("np.sum([1, 2])", "refused", "3"),
    ("x + [1, 2, 3, 4]", "refused", "refused"),
    ("tuple(x[1:].sharding.spec)", "(None, 'y')", "('x', 'y')"),
    ("tuple(x.reshape(-1).sharding.spec)", "('x',)", "(('x', 'y'),)"),
    ("random.PRNGKey(0)", "[0, 0]", "[0, 0]"),
    ("grad(lambda x: x ** np.zeros(()))(0.0)", "nan", "0.0"),
    ("grad(lambda x: np.logaddexp(x, numpy.inf))(0.0)", "1.0", "0.0"),
    ("numpy.isnan(grad(lambda a: np.linalg.eigh(a)[1].sum())(np.eye(2))).any()", "True", "False"),
    (
        "grad(lambda x: lax.cummax(x)[3])(np.ones(4))",
        "[0.25, 0.25, 0.25, 0.25]",
        "[0.0, 0.0, 0.0, 1.0]",
    ),
    ("grad(lambda x: np.sign(lax.complex(1.0, x)).imag)(0.0)", "0.0", "1.0"),
]


@pytest.mark.parametrize(("expression", "in_jax", "here"), ROWS, ids=[row[0] for row in ROWS])
def test_the_table_is_right(both: Both, expression: str, in_jax: str, here: str) -> None:
    assert (both.found("jax", expression), both.found("meshard", expression)) == (in_jax, here)


def test_integers_divided_by_zero(both: Both) -> None:
    assert both.found("jax", "np.arange(3) // 0") == "[-1, -2, -2]"
    with pytest.warns(RuntimeWarning):
        assert both.found("meshard", "np.arange(3) // 0") == "[0, 0, 0]"


def test_random_numbers_differ(both: Both) -> None:
    drawn = {who: both.found(who, "random.normal(random.key(0), (2,))") for who in both.names}
    assert drawn["jax"] != drawn["meshard"]


@pytest.mark.parametrize("name", ["pmap"])
def test_what_is_missing_says_what_to_use(jax: ModuleType, name: str) -> None:
    assert hasattr(jax, name)
    with pytest.raises(AttributeError, match="shard_map"):
        getattr(meshard, name)


def found(numpy: Any, expression: str) -> str:
    """What an expression gives, with the functions of one library."""
    names = {"np": numpy, "x": numpy.asarray(np.arange(32.0).reshape(8, 4)), "numpy": np}
    try:
        value = eval(expression, names)
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError):
        return "refused"
    return str(value.tolist()) if hasattr(value, "tolist") else str(value)


NUMPY_ROWS = [
    ("x.__setitem__(0, 1.0)", "None", "refused"),
    ("np.asarray([3, 1, 2]).sort()", "None", "[1, 2, 3]"),
    ("x.strides is None", "False", "refused"),
    ("np.zeros(2, order='F')", "[0.0, 0.0]", "refused"),
    ("np.reshape(x, (4, 8), order='F').shape", "(4, 8)", "(4, 8)"),
    ("isinstance(x.sum(), numpy.generic)", "True", "False"),
    ("(x + [1, 2, 3, 4]).shape", "(8, 4)", "refused"),
    ("np.add(x, [1, 2, 3, 4]).shape", "(8, 4)", "refused"),
    ("np.sum([1, 2])", "3", "3"),
    ("np.asarray([1, 2]) == None", "[False, False]", "False"),
    ("hash(x)", "refused", "refused"),
    ("np.add(x, 1, out=x).shape", "(8, 4)", "refused"),
    ("np.sum(x, where=x > 3)", "490.0", "490.0"),
    ("np.sum(x, initial=3, dtype='float32')", "499.0", "499.0"),
    ("np.add.reduce(x)[0]", "112.0", "112.0"),
    ("np.asarray(['a'])", "['a']", "refused"),
    ("np.asarray([1]).astype('object')", "[1]", "refused"),
    ("(np.ones(1, 'int32') + np.ones(1, 'float32')).dtype", "float64", "float64"),
    ("np.ones(1, 'uint8') + 300", "refused", "refused"),
    ("x[8]", "refused", "refused"),
    ("x[x > 29]", "[30.0, 31.0]", "[30.0, 31.0]"),
    ("x[[0, 1]].shape", "(2, 4)", "(2, 4)"),
    ("np.unique(np.asarray([3, 1, 3]))", "[1, 3]", "[1, 3]"),
    ("np.zeros(3).at[1].set(2.0)", "refused", "[0.0, 2.0, 0.0]"),
    ("np.asarray(numpy.arange(2, dtype='>f8')).dtype.isnative", "False", "True"),
]


@pytest.mark.parametrize(
    ("expression", "in_numpy", "here"), NUMPY_ROWS, ids=[row[0] for row in NUMPY_ROWS]
)
def test_the_table_about_numpy_is_right(expression: str, in_numpy: str, here: str) -> None:
    assert (found(np, expression), found(mnp, expression)) == (in_numpy, here)


@pytest.mark.parametrize("divide", ["np.ones(2) / 0", "np.arange(2) // 0"])
def test_both_warn_of_divisions_by_zero_unless_told_otherwise(divide: str) -> None:
    for numpy in (np, mnp):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            found(numpy, divide)
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            eval(divide, {"np": numpy})
