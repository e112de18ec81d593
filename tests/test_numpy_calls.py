"""NumPy's functions on arrays: meshard's own, or NumPy's where a process has the values."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special

import meshard
from meshard.errors import NotAddressableError
from meshard.runtime.simulated import simulate
from meshard.sharding import NamedSharding, P

from .numpys import unheard_of
from .worlds import alone, mesh, put

VALUE = np.arange(16.0).reshape(8, 2)

ANSWER_BY_TYPE = {
    *("numpy.can_cast", "numpy.common_type", "numpy.iscomplexobj", "numpy.isrealobj", "numpy.ndim"),
    *("numpy.result_type", "numpy.shape", "numpy.size"),
}


def of_numpy() -> Iterator[Callable[..., Any]]:
    """Find every function of NumPy that asks its arguments' classes, the deprecated ones too."""
    for module in (np, np.linalg, np.fft):
        for name in sorted(dir(module)):
            found = getattr(module, name)
            if callable(getattr(found, "_implementation", None)):
                yield found


def has(function: Callable[..., Any]) -> bool:
    """Whether meshard has a function of this name."""
    module = function.__module__.replace("numpy", "meshard.numpy")
    return hasattr(importlib.import_module(module), function.__name__)


def laid_out(*spec: Any, on: meshard.sharding.Mesh | None = None) -> meshard.Array:
    """Make an array without a word to other processes, which `device_put` compares values with."""
    sharding = NamedSharding(on or mesh(), P(*spec))
    return meshard.make_array_from_callback(VALUE.shape, sharding, lambda index: VALUE[index])


def alone_in_a_job(body: Callable[[], Any]) -> Any:
    """Run a body in process 1 of two, while the other does nothing: it must not wait for it."""

    def program() -> Any:
        return body() if meshard.process_index() == 1 else None

    return simulate(2, 4, program, deadline=5)[1]


@pytest.mark.no_job
@pytest.mark.filterwarnings(r"ignore:numpy\.\w+ is deprecated:DeprecationWarning")
def test_no_function_answers_for_values_that_are_elsewhere() -> None:
    def body() -> tuple[set[str], list[str]]:
        x, answered, refusals = laid_out("i", "j"), set(), []
        for function in of_numpy():
            name = f"{function.__module__}.{function.__name__}"
            if has(function) and name not in ANSWER_BY_TYPE:
                continue
            notation = [("ij->", x)] if "einsum" in name else []
            for args in (x,), (x, x), ([x, x],), (x, 1), (x, [1]), *notation:
                try:
                    function(*args)
                except NotAddressableError as error:
                    refusals.append(str(error).replace(name, "NAME"))
                except (TypeError, ValueError, AttributeError):  # it takes other arguments
                    pass
                else:
                    answered.add(name)
        return answered, refusals

    answered, refusals = alone_in_a_job(body)
    assert answered == ANSWER_BY_TYPE
    start = "NAME: This array float64[8,2] spans processes: process 1 holds 4 of its 8 pieces"
    advised = [text for text in refusals if text.startswith(start)]
    assert len(advised) > 30
    assert all("the function of this name in meshard.numpy" in text for text in advised)
    # A list of arrays is not asked, where a function takes one array; NumPy then reads its arrays.
    assert all(
        text.removeprefix("iteration: ").startswith(("NAME: This", "This")) for text in refusals
    )


@pytest.mark.no_job
def test_nothing_else_that_takes_arrays_answers_either(tmp_path: Any) -> None:
    looks: dict[str, Callable[[Any], Any]] = {
        "asarray": np.asarray,
        "array of two": lambda x: np.array([x, x]),
        "into": lambda x: np.add(x, 1, out=np.zeros((8, 2))),
        "missing": scipy.special.j0,
        "reduce": scipy.special.agm.reduce,
        "at": lambda x: np.add.at(np.zeros((8, 2)), 0, x),
        "index": lambda x: np.arange(16)[x],
        "assign": lambda x: np.zeros((8, 2)).__setitem__(slice(None), x),
        "testing": lambda x: np.testing.assert_array_equal(x, x),
        "nditer": np.nditer,
        "fromiter": lambda x: np.fromiter(x, float),
        "dlpack": np.from_dlpack,
        "choice": np.random.default_rng(0).choice,
        "list": list,
        "unpacked": lambda x: (*x,),
        "reversed": lambda x: list(reversed(x)),
        "sum of rows": sum,
        "item": lambda x: x.item(3),
        "tolist": lambda x: x.tolist(),
        "bytes": lambda x: x.tobytes(),
        "pickle": pickle.dumps,
        "device_get": meshard.device_get,
    }

    def body() -> None:
        x = laid_out("i", "j")
        for name, look in looks.items():
            with pytest.raises(NotAddressableError, match=r"holds 4 of its 8 pieces") as caught:
                look(x.astype(np.int64) if name == "index" else x)
            assert "meshard.multihost_utils.process_allgather(x)" in str(caught.value), name

    # Making the arrays that are looked at takes no message: this process is alone.
    alone_in_a_job(body)


@pytest.mark.no_job
def test_looking_at_what_is_here_asks_nobody() -> None:
    def body() -> None:
        x = laid_out("i", "j")
        assert len(x) == 8
        for text in str(x), repr(x), f"{x}", f"{x:.2f}", f"{x!r}":
            assert text.startswith("Array(shape=(8, 2), dtype=float64, sharding=NamedSharding(")
            assert text.count(" on device ") == 4
            assert "\n  [4:6, 0:1] on device 4:\n  [[ 8.]\n   [10.]]\n" in text
        assert "device 7" in x._repr_html_() or "cpu:7" in x._repr_html_()
        assert len(x.addressable_shards) == 4
        assert [s.data is None for s in x.global_shards] == [True] * 4 + [False] * 4
        for same in copy.copy(x), copy.deepcopy(x), x.block_until_ready():
            assert same.sharding == x.sharding
        assert not x.is_fully_addressable
        assert any(one is x for one in meshard.live_arrays())

    alone_in_a_job(body)


@pytest.mark.no_job
def test_an_array_of_another_process_is_refused_by_its_name() -> None:
    def body() -> None:
        y = meshard.device_put(VALUE, meshard.devices()[1])
        assert "no piece is on this process" in str(y)
        found = r"This array float64\[8,2\] is on process 0, and this is process 1, which holds no"
        for look in np.asarray, unheard_of, list, np.from_dlpack:
            with pytest.raises(NotAddressableError, match=found):
                look(y)

    alone_in_a_job(body)


@pytest.mark.no_job
def test_where_a_process_has_all_of_it_numpy_works() -> None:
    def body() -> None:
        replicas = laid_out()
        columns = laid_out(None, "j")  # each process has both
        own = meshard.device_put(VALUE, meshard.local_devices()[2])
        for x in replicas, columns, own, laid_out(on=mesh((8,), ("i",))):
            assert np.array_equal(x, VALUE)
            np.testing.assert_array_equal(np.concatenate([x, x]), np.concatenate([VALUE, VALUE]))
            assert float(np.sum(x)) == VALUE.sum()
            np.testing.assert_array_equal(np.add(x, 1), VALUE + 1)
            assert [float(row.sum()) for row in x] == VALUE.sum(1).tolist()
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)), VALUE)

    alone_in_a_job(body)


def test_in_one_process_functions_give_what_they_give_for_arrays_of_values() -> None:
    def body() -> None:
        x = put(VALUE, "i", "j")
        for function in np.sum, np.mean, np.sort, np.cumsum, np.ravel, np.linalg.norm, np.fft.fft:
            np.testing.assert_array_equal(np.asarray(function(x)), function(VALUE))
        assert isinstance(np.sum(x), meshard.Array)  # by the method of that name, as in JAX
        assert np.array_equal(x, VALUE)
        assert not np.array_equal(x, VALUE + 1)
        assert np.result_type(x, np.float32) == np.float64
        assert np.einsum("ij->", x) == VALUE.sum()

    alone(body)


def test_other_classes_are_asked_too() -> None:
    class Other:
        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
            return f"{func.__name__} of the other"

    def body() -> None:
        x = put(VALUE, "i")
        assert np.concatenate([x, Other()]) == "concatenate of the other"
        assert isinstance(np.asarray([1], like=x), meshard.Array)

    alone(body)


def test_reversed_gives_the_rows_from_the_last() -> None:
    def body() -> None:
        x = put(VALUE, "i", "j")
        np.testing.assert_array_equal([np.asarray(r) for r in reversed(x)], VALUE[::-1])
        with pytest.raises(TypeError, match="an array without dims cannot be iterated over"):
            reversed(x[0, 0])

    alone(body)


def test_fetching_is_explicit() -> None:
    def body() -> None:
        utils = meshard.multihost_utils
        for x in put(VALUE, "i", "j"), meshard.device_put(VALUE, meshard.devices()[5]):
            np.testing.assert_array_equal(utils.process_allgather(x), VALUE)
            for root in 0, 1:
                found = utils.gather(x, root=root)
                if meshard.process_index() == root:
                    np.testing.assert_array_equal(found, VALUE)
                else:
                    assert found is None
        first = put(VALUE, "i", "j")[0]  # an operation: every process takes part, and has the row
        assert np.asarray(first).tolist() == [0, 1]

    simulate(2, 4, body, deadline=5)
