"""Recorded loaders: what they do to arrays is what they do to arrays without values, or refused."""

import doctest
import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from meshard.errors import ArgumentError, KeyMapError
from meshard.weights.makers import record as module
from meshard.weights.makers.record import record
from meshard.weights.maps.keymap import KeyMap, Sources
from tests.recipes import made, made_in_pieces

Weights = Mapping[str, Any]
Step = Callable[[random.Random, Any], Any]


def cut(rng: random.Random, x: Any) -> Any:
    index: list[Any] = []
    for n in x.shape[: rng.randint(1, x.ndim)]:
        a, b = sorted((rng.randint(0, n), rng.randint(0, n)))
        entries = [slice(a, b), slice(a - n if a < n else None, None), slice(None, None, 2)]
        entries += [slice(None, None, -1), slice(None, None, -2)]
        if all(isinstance(e, (slice, type(None))) for e in index):
            entries += [np.array([n - 1, 0, 0]), rng.randrange(-n, n)]
        index.append(rng.choice(entries))
        if rng.random() < 0.2:
            index.insert(rng.randint(0, len(index)), None)
    if rng.random() < 0.3 and all(isinstance(e, slice) for e in index):
        index.insert(rng.randint(0, len(index)), Ellipsis)
    return x[tuple(index)]


def shaped(rng: random.Random, x: Any) -> Any:
    n = x.size
    a = rng.choice([k for k in range(1, n + 1) if n % k == 0])
    return rng.choice(
        [
            lambda: x.reshape(a, -1),
            lambda: np.reshape(x, (-1, a)),
            lambda: x.ravel(),
            lambda: np.expand_dims(x, rng.randint(0, x.ndim)),
            lambda: np.squeeze(x),
            lambda: x[..., None],
            lambda: np.broadcast_to(x, (2, *x.shape)),
        ]
    )()


def turned(rng: random.Random, x: Any) -> Any:
    a, b = rng.randrange(x.ndim), rng.randrange(x.ndim)
    return rng.choice(
        [
            lambda: x.T,
            lambda: np.transpose(x, rng.sample(range(x.ndim), x.ndim)),
            lambda: x.swapaxes(a, b),
            lambda: np.moveaxis(x, a, b),
            lambda: np.flip(x, a),
            lambda: np.roll(x, rng.randint(-4, 4), rng.choice([a, None])),
            lambda: np.take(x, [0, x.shape[a] - 1], a),
        ]
    )()


def grown(rng: random.Random, x: Any) -> Any:
    a = rng.randrange(x.ndim)
    width = [(rng.randint(0, 2), rng.randint(0, 2)) for _ in range(x.ndim)]
    return rng.choice(
        [
            lambda: np.repeat(x, 2, a),
            lambda: x.repeat(3, axis=a),
            lambda: np.tile(x, (2, *[1] * (x.ndim - 1))),
            lambda: np.pad(x, width, constant_values=3),
            lambda: np.concatenate([x, np.zeros_like(x)], a),
            lambda: np.concatenate([np.full((2, *x.shape[1:]), 5, x.dtype), x]),
            lambda: np.stack([x, x], rng.randint(0, x.ndim)),
            lambda: np.vstack([x, x]),
            lambda: np.hstack([x, x]),
        ]
    )()


def parted(rng: random.Random, x: Any) -> Any:
    a = rng.randrange(x.ndim)
    parts = np.array_split(x, rng.randint(1, 4), axis=a)
    rng.shuffle(parts)
    rows = list(x)
    return rng.choice(
        [lambda: np.concatenate(parts, a), lambda: parts[0], lambda: np.stack(rows[::-1])]
    )()


STEPS: list[Step] = [cut, shaped, turned, grown, parted]


def program(seed: int) -> Callable[[Weights], dict[str, Any]]:
    """Return a loader that does the same random steps whenever it is called."""

    def loader(w: Weights) -> dict[str, Any]:
        rng = random.Random(seed)
        result = {}
        for name in w:
            x = w[name]
            for _ in range(rng.randint(1, 5)):
                if not x.ndim or not x.size or x.size > 500:
                    break
                x = rng.choice(STEPS)(rng, x)
            result[f"{name}.new"] = x
        if rng.random() < 0.3:
            result["both"] = np.concatenate([x.reshape(-1) for x in result.values()])
        return result

    return loader


@pytest.mark.parametrize("chunk", range(4))
def test_a_random_loader_is_recorded_as_what_it_does(chunk: int) -> None:
    inverted = 0
    for seed in range(chunk * 100, (chunk + 1) * 100):
        loader = program(seed)
        tensors = {
            "a": np.arange(24, dtype="i4").reshape(4, 6) + 1,
            "b": np.arange(30, dtype="i4").reshape(2, 3, 5) + 100,
        }
        sources = {n: (x.shape, x.dtype) for n, x in tensors.items()}
        map = record(loader, sources)
        mapped = map.apply(sources)
        expected = loader(tensors)
        assert mapped.recipes.keys() | mapped.tied.keys() == expected.keys()
        for name, recipe in mapped.recipes.items():
            assert recipe.shape == expected[name].shape, seed
            np.testing.assert_array_equal(made(recipe, tensors), expected[name])
            box, part = made_in_pieces(recipe, tensors, random.Random(seed))
            np.testing.assert_array_equal(part, expected[name][box.slices])
        inverted += comes_back(map, sources, tensors, expected)
    assert inverted > 10


def comes_back(map: KeyMap, sources: Sources, tensors: Any, expected: Any) -> bool:
    """Check that the inverse gives the sources again; false if it is refused."""
    held = {
        n: np.isin(x, np.concatenate([e.ravel() for e in expected.values()]))
        for n, x in tensors.items()
    }
    lost = any(not h.all() for h in held.values())
    try:
        inverse = map.inverse(sources)
    except KeyMapError as error:
        told = str(error)
        assert lost or "overlap in part" in told, told
        return False
    assert not lost
    shapes = {n: (x.shape, x.dtype) for n, x in expected.items()}
    for name, recipe in inverse.apply(shapes).recipes.items():
        np.testing.assert_array_equal(made(recipe, expected), tensors[name])
    return True


W: Sources = {"q": ((4, 6), "f4"), "k": ((4, 6), "f4"), "b": ((6,), "f4")}


def line_of(loader: Callable[..., object]) -> str:
    """Return the place of the line that says `here`."""
    lines, first = inspect.getsourcelines(loader)
    return f"{__file__}:{first + next(k for k, row in enumerate(lines) if '# here' in row)}"


def adds(w: Weights) -> dict[str, Any]:
    return {"x": w["q"] + w["k"]}  # here


def scales(w: Weights) -> dict[str, Any]:
    return {"x": np.multiply(w["q"], 2)}  # here


def asks(w: Weights) -> dict[str, Any]:
    if w["b"]:  # here
        return {"x": w["q"]}
    return {"x": w["k"]}


def compares(w: Weights) -> dict[str, Any]:
    return {"x": w["q"] if w["b"][0] > 0 else w["k"]}  # here


def looks_up(w: Weights) -> dict[str, Any]:
    return {"x": w["q"][w["b"]]}  # here


def sums(w: Weights) -> dict[str, Any]:
    return {"x": np.sum(w["q"], 0)}  # here


def sums_itself(w: Weights) -> dict[str, Any]:
    return {"x": w["q"].sum(0)}  # here


def floats(w: Weights) -> dict[str, Any]:
    return {"x": np.full((2, 2), float(w["b"][0]))}  # here


def fills(w: Weights) -> dict[str, Any]:
    out = np.empty((8, 6), "f4")
    out[:4] = w["q"]  # here
    return {"x": out}


def writes(w: Weights) -> dict[str, Any]:
    x = w["q"]
    x[0] = 0  # here
    return {"x": x}


def makes_values(w: Weights) -> dict[str, Any]:
    return {"x": np.concatenate([w["b"], np.arange(3, dtype="f4")])}  # here


def indexes_twice(w: Weights) -> dict[str, Any]:
    return {"x": w["q"][0, [1, 2]]}  # here


def rounds_twice(w: Weights) -> dict[str, Any]:
    return {"x": w["q"].astype("f2").astype("f4")}  # here


def misfits(w: Weights) -> dict[str, Any]:
    return {"x": np.concatenate([w["q"], w["k"][:, 1:]])}  # here


REFUSED: dict[Callable[[Weights], dict[str, Any]], str] = {
    adds: "not pure movement: np.add makes new values, and a map only moves them",
    scales: "np.multiply makes new values",
    asks: "a condition on an array depends on values, which a map does not have",
    compares: "np.greater makes new values",
    looks_up: "an index that is an array depends on values",
    sums: "np.sum is not known to move elements",
    sums_itself: "sum is not known to move elements",
    floats: r"float\(\) of an array depends on values",
    fills: "has no values, so that it cannot become a NumPy array, nor be written into one",
    writes: "cannot be written to; join parts by np.concatenate or np.stack",
    makes_values: "an array of several values that the loader makes itself",
    indexes_twice: "an array of indices beside an integer or another one is not known",
    rounds_twice: "a cast has rounded its elements to float16 before",
    misfits: r"arrays of shapes \[\(4, 6\), \(4, 5\)\] cannot be joined along dim 0",
}


@pytest.mark.parametrize("loader", REFUSED, ids=lambda f: f.__name__)
def test_what_is_not_movement_is_refused_with_the_loaders_line(
    loader: Callable[[Weights], dict[str, Any]],
) -> None:
    with pytest.raises(KeyMapError, match=REFUSED[loader]) as caught:
        record(loader, W)
    assert line_of(loader) in str(caught.value)


def test_a_loader_names_what_it_reads_and_returns() -> None:
    with pytest.raises(KeyMapError, match="reads 'v', but the sources are 'q', 'k', 'b'"):
        record(lambda w: {"x": w["v"]}, W)
    with pytest.raises(KeyMapError, match="returns a mapping of arrays by name; found a list"):
        record(lambda w: [w["q"]], W)  # type: ignore[arg-type, return-value]
    with pytest.raises(KeyMapError, match="returns arrays by name; found a int as 'x'"):
        record(lambda w: {"x": 3}, W)


def test_one_array_under_two_names_is_tied_and_comes_back() -> None:
    def loader(w: Weights) -> dict[str, Any]:
        x = w["q"].T
        return {"embed": x, "head": x, "copy": x.copy()}

    sources: Sources = {"q": ((4, 6), "f4")}
    map = record(loader, sources)
    mapped = map.apply(sources)
    assert mapped.tied == {"head": "embed"}
    assert list(mapped.recipes) == ["embed", "copy"]
    inverse = map.inverse(sources)
    back = inverse.apply({"embed": ((6, 4), "f4"), "copy": ((6, 4), "f4")}, tied={"head": "embed"})
    assert back.recipes["q"].shape == (4, 6)


def test_a_recorded_map_is_applied_after_others_and_refuses_other_shapes() -> None:
    map = record(lambda w: {"x": np.concatenate([w["q"], w["k"]])}, W)
    first = KeyMap(rest="drop").rename("model.{name}", "{name}").transpose("q").transpose("k")
    sources: Sources = {f"model.{n}": ((6, 4), "f4") for n in "qk"}
    tensors = {n: np.arange(24.0, dtype="f4").reshape(6, 4) + i for i, n in enumerate(sources)}
    mapped = first.then(map).apply(sources)
    expected = np.concatenate([x.T for x in tensors.values()])
    np.testing.assert_array_equal(made(mapped.recipes["x"], tensors), expected)
    with pytest.raises(KeyMapError, match=r"source 'q' was of shape \(4, 6\) .* found \(6, 4\)"):
        map.apply({"q": ((6, 4), "f4"), "k": ((6, 4), "f4")})
    with pytest.raises(KeyMapError, match="has no TOML form"):
        map.to_toml()
    with pytest.raises(KeyMapError, match="rest='drop' drops 'b'"):
        map.inverse(W)


def test_what_a_loader_leaves_out_is_told_by_the_inverse() -> None:
    sources: Sources = {"q": ((4, 6), "f4")}
    map = record(lambda w: {"x": w["q"][:3], "y": w["q"][1:, 1:]}, sources)
    with pytest.raises(KeyMapError, match="1 of the 24 elements of 'q' are lost"):
        map.inverse(sources)
    whole = record(lambda w: {"x": w["q"][:3], "y": w["q"][1:]}, sources)
    assert whole.inverse(sources).rules


def test_examples_in_docstrings_are_right() -> None:
    assert doctest.testmod(module).failed == 0


def test_odd_arguments_are_refused_by_name() -> None:
    sources: Sources = {"w": ((4, 2), "f4")}
    for loader, given, message in (
        (3, sources, "record: loader must be a function, got 3"),
        (lambda w: w, ["w"], r"record: sources must be a dict of shapes and dtypes by name, got"),
        (lambda w: {"w": w["w"].reshape("x")}, sources, "reshape: 'x' is not a shape"),
        (lambda w: {"w": w["w"][[[1], [2, 3]]]}, sources, "an index of type list is not known"),
        (lambda w: {"w": w["w"][slice("x")]}, sources, "an index of type slice is not known"),
        (
            lambda w: {"w": w["w"][np.array([True, False])]},
            sources,
            r"a mask of shape \(2,\) does not fit a dim of size 4",
        ),
    ):
        with pytest.raises((KeyMapError, ArgumentError), match=message):
            record(loader, given)  # type: ignore[arg-type]
