"""`vectorize` is NumPy's: the same results, and the same calls are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import MeshardError
from meshard.sharding import NamedSharding, P
from meshard.transforms.batching.vectorize import Signature
from tests.worlds import mesh, whole

A, B, W = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 1, 3), np.ones((4, 2, 3))


def scaled(x: Any, n: Any = 2) -> Any:
    """Return a multiple."""
    return x * n


Call = Callable[[Any], Any]
CALLS: dict[str, Call] = {
    "numbers": lambda m: m.vectorize(scaled)(A),
    "two arguments": lambda m: m.vectorize(lambda x, y: x + y)(A, np.arange(3)),
    "dims of one": lambda m: m.vectorize(lambda x, y: x + y)(np.ones((2, 1)), np.ones((1, 3))),
    "two results": lambda m: m.vectorize(lambda x: (x, x + 1))(A),
    "a number": lambda m: m.vectorize(scaled)(3),
    "a list": lambda m: m.vectorize(scaled)([1, 2]),
    "complex": lambda m: m.vectorize(lambda x: x * 1j)(A),
    "a product": lambda m: m.vectorize(m.dot, signature="(n),(n)->()")(A, B),
    "a matrix": lambda m: m.vectorize(m.dot, signature="(n,m),(m)->(n)")(W, A[0]),
    "spaces": lambda m: m.vectorize(m.dot, signature=" ( n ) , ( n )->( ) ")(A, A),
    "no dims": lambda m: m.vectorize(lambda x, y: x * y, signature="(),()->()")(A, 2.0),
    "sized dims": lambda m: m.vectorize(m.dot, signature="(3),(3)->()")(A, A),
    "results of two ranks": lambda m: m.vectorize(
        lambda x: (m.sum(x), x * 2), signature="(n)->(),(n)"
    )(A),
    "a new dim": lambda m: m.vectorize(lambda x: m.concatenate([x, x]), signature="(n)->(k)")(A),
    "a name": lambda m: m.vectorize(scaled)(A, n=3),
    "a name of several": lambda m: m.vectorize(scaled)(A, n=np.arange(3)),
    "a position left out": lambda m: m.vectorize(scaled, excluded={1})(A, 3),
    "a name left out": lambda m: m.vectorize(scaled, excluded=["n"])(A, n=3),
    "a list left out": lambda m: m.vectorize(
        lambda w, x: w[0] * m.sum(x), signature="(k)->()", excluded={0}
    )([2.0, 3.0], A),
    "a position that is not there": lambda m: m.vectorize(scaled, excluded={5})(A, 3),
    "None": lambda m: m.vectorize(lambda x, y: x if y is None else x + y)(A, None),
    "dtypes": lambda m: m.vectorize(scaled, otypes=[np.int32])(A),
    "characters": lambda m: m.vectorize(lambda x: (x, x * 1.5), otypes="df")(A),
    "nothing of a dtype": lambda m: m.vectorize(scaled, otypes=[np.float32])(np.ones((0, 3))),
    "a decorator": lambda m: m.vectorize(signature="(n)->()")(lambda x: m.sum(x))(A),
    "cached": lambda m: m.vectorize(scaled, cache=True)(A),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_numpy(name: str) -> None:
    expected, found = CALLS[name](np), CALLS[name](mnp)
    assert isinstance(found, tuple) == isinstance(expected, tuple)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for y, x in pairs:
        np.testing.assert_array_equal(whole(y), np.asarray(x), strict=True)


REFUSED: dict[str, tuple[Call, str]] = {
    "another arrow": (
        lambda m: m.vectorize(m.dot, signature="(n),(n)-()"),
        "like '.n,m.,.m.->.n.'",
    ),
    "a comma too many": (
        lambda m: m.vectorize(m.dot, signature="(n,),(n)->()"),
        "signature must be",
    ),
    "no brackets": (lambda m: m.vectorize(m.dot, signature="n,n->"), "signature must be"),
    "a number": (lambda m: m.vectorize(m.dot, signature=3), "not 3"),
    "one argument": (
        lambda m: m.vectorize(m.dot, signature="(n),(n)->()")(A),
        "of 2 arguments, but 1",
    ),
    "a name more": (
        lambda m: m.vectorize(scaled, signature="(k)->(k)")(A, n=3),
        "'n', go to excluded=",
    ),
    "sizes": (
        lambda m: m.vectorize(m.dot, signature="(n),(n)->()")(A, np.ones(4)),
        "size 4, .* be 3",
    ),
    "few dims": (
        lambda m: m.vectorize(m.dot, signature="(n,m),(m)->(n)")(np.ones(3), np.ones(3)),
        "argument 0 of shape .3,. must have at least 2 dims",
    ),
    "fronts": (lambda m: m.vectorize(lambda x, y: x)(np.ones(2), np.ones(3)), "do not broadcast"),
    "dims of a result": (
        lambda m: m.vectorize(lambda x: x, signature="(n)->()")(A),
        "result 0 of one example has shape .3,., but .* its dims are ..",
    ),
    "size of a result": (
        lambda m: m.vectorize(lambda x: x[:2], signature="(n)->(n)")(A),
        "'n' of result 0 has size 2, but it must be 3",
    ),
    "sizes of results": (
        lambda m: m.vectorize(lambda x: (m.append(x, x), x), signature="(n)->(k),(k)")(A),
        "'k' of result 1 has size 3, but it must be 6",
    ),
    "results": (lambda m: m.vectorize(lambda x: (x, x), signature="(n)->(n)")(A), "returned 2"),
    "one result": (lambda m: m.vectorize(lambda x: x, signature="(n)->(n),(n)")(A), "returned 1"),
    "dtypes": (lambda m: m.vectorize(lambda x: (x, x), otypes="d")(A), "otypes has 1 dtypes"),
    "a text": (lambda m: m.vectorize(scaled, excluded="n")(A, n=2), "excluded"),
}
BEYOND_NUMPY = ("dtypes", "a text")


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_refuses_is_refused(name: str) -> None:
    f, words = REFUSED[name]
    if name not in BEYOND_NUMPY:
        with pytest.raises((ValueError, TypeError)):
            f(np)(A, A) if name in ("another arrow", "a comma too many", "no brackets") else f(np)
    with pytest.raises(MeshardError, match=words):
        f(mnp)


def test_what_is_refused_beside_numpy() -> None:
    for excluded in ({-1}, {True}, {1.5}):
        with pytest.raises(MeshardError, match=r"excluded holds names .* counted from 0"):
            mnp.vectorize(scaled, excluded=excluded)
    with pytest.raises(MeshardError, match="otypes"):
        mnp.vectorize(scaled, otypes=3)
    with pytest.raises(MeshardError, match=r"argument 1 is None, but .* has the dims n"):
        mnp.vectorize(mnp.dot, signature="(n),(n)->()")(A, None)
    with pytest.raises(MeshardError, match="returned a list"):
        mnp.vectorize(lambda x: [x, x], signature="(n)->(n),(n)")(A)


def test_signatures_print_as_typed() -> None:
    text = "(n, m),(m) -> (),(n)"
    parsed = Signature.parse(text)
    assert str(parsed) == text
    assert (parsed.inputs, parsed.outputs) == ((("n", "m"), ("m",)), ((), ("n",)))


def test_what_it_is_called() -> None:
    assert mnp.vectorize(scaled).__doc__ == "Return a multiple."
    assert mnp.vectorize(scaled, doc="Other words.").__doc__ == "Other words."
    assert mnp.vectorize(scaled).__name__ == "scaled"


def test_split_arguments_stay_split_and_have_gradients() -> None:
    x = meshard.device_put(np.arange(24.0).reshape(8, 3), NamedSharding(mesh(), P("i")))
    f = mnp.vectorize(lambda a, b: mnp.dot(a, b) * a, signature="(n),(n)->(n)")
    for run in (f, meshard.jit(f)):
        found = run(x, np.ones(3))
        assert found.sharding.spec[:1] == ("i",)
        np.testing.assert_allclose(whole(found), whole(x).sum(1, keepdims=True) * whole(x))
    slope = meshard.grad(lambda v: mnp.sum(f(v, np.ones(3))))(x)
    np.testing.assert_allclose(whole(slope), 2 * whole(x).sum(1, keepdims=True) + 0 * whole(x))
