"""Key maps: what they make is what NumPy makes of whole tensors, or a refusal with its reason."""

import doctest
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import ml_dtypes
import numpy as np
import pytest

from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import KeyMapError
from meshard.weights.maps import blocks, fields, form, keymap, rules
from meshard.weights.maps.keymap import KeyMap, Sources
from meshard.weights.maps.recipe import Recipe
from meshard.weights.maps.scales import Scales
from tests.recipes import Array, made, made_in_pieces

T = TypeVar("T")
Tensors = dict[str, Array]


def sources_of(tensors: Tensors) -> Sources:
    return {name: (x.shape, x.dtype) for name, x in tensors.items()}


def applied(map: KeyMap, tensors: Tensors) -> Tensors:
    mapped = map.apply(sources_of(tensors))
    result = {name: made(recipe, tensors) for name, recipe in mapped.recipes.items()}
    return result | {other: result[name] for other, name in mapped.tied.items()}


def same(a: Tensors, b: Tensors) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert x.dtype == b[name].dtype, name
        np.testing.assert_array_equal(x, b[name], err_msg=name)


def tried(call: Callable[..., T], *args: object) -> T | str:
    """Return what a call returns, or its refusal's message."""
    try:
        return call(*args)
    except KeyMapError as error:
        return str(error)


def numbered(shape: tuple[int, ...], dtype: object = "f4", start: int = 0) -> Array:
    return (np.arange(np.prod(shape)) + start).reshape(shape).astype(dtype)


# --- random maps, and the same in NumPy, written without any of the map's own code


@dataclass
class Trial:
    """A map under construction, and the tensors as NumPy makes them."""

    rng: random.Random
    tensors: Tensors
    map: KeyMap = field(default_factory=lambda: KeyMap(rest="keep"))
    count: int = 0
    renamed: set[str] = field(default_factory=set)

    def new(self) -> str:
        self.count += 1
        return f"t.{self.count}"

    def pick(self, least: int = 1) -> str | None:
        names = [n for n, x in self.tensors.items() if x.ndim >= least and x.size]
        return self.rng.choice(names) if names else None

    def divisor(self, n: int) -> int:
        return self.rng.choice([k for k in range(1, n + 1) if n % k == 0])


def rows(x: Array, order: list[int], dim: int) -> Array:
    return np.take(x, np.array(order, int), dim)


def do_rename(t: Trial, name: str) -> None:
    if name in t.renamed:
        return
    new = t.new()
    t.map = t.map.rename(name, new)
    t.tensors[new] = t.tensors.pop(name)
    t.renamed.add(new)


def do_transpose(t: Trial, name: str) -> None:
    perm = t.rng.sample(range(t.tensors[name].ndim), t.tensors[name].ndim)
    t.map = t.map.transpose(name, perm)
    t.tensors[name] = t.tensors[name].transpose(perm)


def do_reshape(t: Trial, name: str) -> None:
    x = t.tensors[name]
    a = t.divisor(x.size)
    b = t.divisor(x.size // a)
    shape = (a, b, x.size // a // b)
    t.map = t.map.reshape(name, shape)
    t.tensors[name] = x.reshape(shape)


def do_rope(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d = t.rng.randrange(x.ndim)
    heads = t.divisor(x.shape[d])
    size = x.shape[d] // heads
    start = t.rng.choice([0, 0, t.rng.randint(0, size)])
    half = (size - start) // 2 if t.rng.random() < 0.5 else t.rng.randint(0, (size - start) // 2)
    if start + 2 * half != size and not t.rng.randint(0, 1):
        return
    to = t.rng.choice(["half", "interleaved"])
    order = list(range(x.shape[d]))
    for h in range(heads):
        for k in range(2):
            for j in range(half):
                apart, beside = (h * size + start + n for n in (k * half + j, 2 * j + k))
                if to == "half":
                    order[apart] = beside
                else:
                    order[beside] = apart
    rows_ = None if (start, 2 * half) == (0, size) else (start, start + 2 * half)
    t.map = t.map.rope(name, heads, to, dim=d, rows=rows_)
    t.tensors[name] = rows(x, order, d)


def do_pad(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d, multiple, value = t.rng.randrange(x.ndim), t.rng.randint(1, 5), t.rng.randint(0, 2)
    more = -x.shape[d] % multiple
    t.map = t.map.pad(name, dim=d, multiple=multiple, value=value)
    width = [(0, more if k == d else 0) for k in range(x.ndim)]
    t.tensors[name] = np.pad(x, width, constant_values=value)


def do_slice(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d = t.rng.randrange(x.ndim)
    a, b = sorted((t.rng.randint(0, x.shape[d]), t.rng.randint(0, x.shape[d])))
    t.map = t.map.slice(name, dim=d, start=a, stop=b)
    t.tensors[name] = rows(x, list(range(a, b)), d)


def do_repeat(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d, times = t.rng.randrange(x.ndim), t.rng.randint(1, 3)
    groups = t.divisor(x.shape[d])
    size = x.shape[d] // groups
    order = [g * size + k for g in range(groups) for _ in range(times) for k in range(size)]
    t.map = t.map.repeat(name, times, groups=groups, dim=d)
    t.tensors[name] = rows(x, order, d)


def do_cast(t: Trial, name: str) -> None:
    dtype = t.rng.choice(["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "int32"])
    t.map = t.map.cast(name, dtype)
    t.tensors[name] = t.tensors[name].astype(fields.dtype_named(dtype))


def do_split(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d = t.rng.randrange(x.ndim)
    groups = t.divisor(x.shape[d])
    one = x.shape[d] // groups
    first = t.rng.randint(0, one)
    each = (first, one - first)
    names = (t.new(), t.new())
    kind = t.rng.choice(["ranks", "groups"])
    sizes = [n * groups for n in each]
    t.map = t.map.split(name, names, sizes=sizes, dim=d, **{kind: groups})
    for new, (start, stop) in zip(names, ((0, first), (first, one)), strict=True):
        order = [g * one + k for g in range(groups) for k in range(start, stop)]
        t.tensors[new] = rows(x, order, d)
    del t.tensors[name]


def do_fuse(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d = t.rng.randrange(x.ndim)
    others = [
        n
        for n, y in t.tensors.items()
        if n != name and y.ndim == x.ndim and y.dtype == x.dtype
        if all(k == d or a == b for k, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)))
    ]
    if not others:
        return
    names = [name, *t.rng.sample(others, t.rng.randint(1, min(2, len(others))))]
    blocks = [t.tensors.pop(n) for n in names]
    groups = t.divisor(int(np.gcd.reduce([b.shape[d] for b in blocks])) or 1)
    parts = [np.split(b, groups, d) for b in blocks]
    new = t.new()
    kind = t.rng.choice(["ranks", "groups"])
    t.map = t.map.fuse(names, new, dim=d, **{kind: groups})
    t.tensors[new] = np.concatenate([p[g] for g in range(groups) for p in parts], d)


def do_unstack(t: Trial, name: str) -> None:
    x = t.tensors[name]
    d, new = t.rng.randrange(x.ndim), t.new()
    if x.shape[d] > 12:
        return
    t.map = t.map.unstack(name, new + ".{e}", dim=d)
    for k in range(x.shape[d]):
        t.tensors[f"{new}.{k}"] = np.take(x, k, d)
    del t.tensors[name]


def do_stack(t: Trial, name: str) -> None:
    found = re.fullmatch(r"(t\.\d+)\.(\d+)", name)
    if found is None:
        return
    stem = found[1]
    names = [n for n in t.tensors if n.startswith(stem + ".")]
    names.sort(key=lambda n: int(n.rpartition(".")[2]))
    if len({(t.tensors[n].shape, t.tensors[n].dtype) for n in names}) > 1:
        return
    if [int(n.rpartition(".")[2]) for n in names] != list(range(len(names))):
        return
    d, new = t.rng.randint(0, t.tensors[name].ndim), t.new()
    t.map = t.map.stack(stem + ".{e}", new, dim=d)
    t.tensors[new] = np.stack([t.tensors.pop(n) for n in names], d)


def do_drop(t: Trial, name: str) -> None:
    if t.rng.random() < 0.8 or len(t.tensors) < 2:
        return
    t.map = t.map.drop(name)
    del t.tensors[name]


def do_tie(t: Trial, name: str) -> None:
    if t.rng.random() < 0.7:
        return
    new = t.new()
    t.map = t.map.tie(name, new).untie(new)
    t.tensors[new] = t.tensors[name]


RULES: list[Callable[[Trial, str], None]] = [
    *(do_rename, do_transpose, do_reshape, do_rope, do_pad, do_slice, do_repeat, do_cast),
    *(do_split, do_split, do_fuse, do_fuse, do_fuse, do_unstack, do_stack, do_stack),
    *(do_drop, do_tie),
]


def trial(seed: int, rounds: int = 8) -> tuple[KeyMap, Tensors, Tensors]:
    """Return a random map, tensors, and what NumPy makes of them."""
    rng = random.Random(seed)
    tensors = {}
    for k in range(rng.randint(1, 4)):
        shape = (rng.choice([2, 4, 6, 8, 12]), rng.choice([1, 3, 4, 6]))
        dtype = rng.choice(["f4", "f4", "f4", ml_dtypes.bfloat16])
        tensors[f"s.{k}"] = numbered(shape, dtype, 3 * k)
    t = Trial(rng, dict(tensors))
    for _ in range(rng.randint(1, rounds)):
        name = t.pick()
        if name is None or sum(x.size for x in t.tensors.values()) > 3000:
            break
        rng.choice(RULES)(t, name)
    return t.map, tensors, t.tensors


@pytest.mark.parametrize("chunk", range(8))
def test_a_random_map_is_what_numpy_does_or_is_refused_for_casting_twice(chunk: int) -> None:
    refused = 0
    for seed in range(chunk * 150, (chunk + 1) * 150):
        map, tensors, expected = trial(seed)
        mapped = tried(map.apply, sources_of(tensors))
        if isinstance(mapped, str):
            assert "a cast has rounded its elements" in mapped
            refused += 1
            continue
        assert mapped.recipes.keys() == expected.keys()
        rng = random.Random(seed)
        for name, recipe in mapped.recipes.items():
            x = expected[name]
            assert (recipe.shape, recipe.dtype) == (x.shape, x.dtype), name
            np.testing.assert_array_equal(made(recipe, tensors), x)
            box, part = made_in_pieces(recipe, tensors, rng)
            np.testing.assert_array_equal(part, x[box.slices])
    assert refused < 40


LOST = re.compile("are lost|are rounded|shape is lost|in other blocks|has rounded its elements")
PARTED = re.compile("of several blocks|border of blocks|blocks of . and of . elements|taken apart")


@pytest.mark.parametrize("chunk", range(4))
def test_the_inverse_makes_the_sources_again_or_says_what_is_lost(chunk: int) -> None:
    inverted = 0
    for seed in range(chunk * 150, (chunk + 1) * 150):
        map, tensors, expected = trial(seed, 6)
        inverse = tried(map.inverse, sources_of(tensors))
        if isinstance(inverse, str):
            assert LOST.search(inverse), (seed, inverse)
            continue
        same(applied(inverse, expected), tensors)
        assert KeyMap.from_toml(inverse.to_toml()) == inverse
        inverted += 1
    assert inverted > 40


def test_a_map_then_another_is_one_after_the_other() -> None:
    done = 0
    for seed in range(200):
        first, tensors, between = trial(seed, 4)
        rng = random.Random(seed)
        second = Trial(rng, dict(between), count=100)
        for _ in range(4):
            name = second.pick()
            if name is None or sum(x.size for x in second.tensors.values()) > 3000:
                break
            rng.choice(RULES)(second, name)
        both = first.then(second.map)
        assert KeyMap.from_toml(both.to_toml()) == both
        mapped = tried(applied, both, tensors)
        if isinstance(mapped, str):
            assert "has rounded its elements" in mapped
            continue
        same(mapped, second.tensors)
        done += 1
    assert done > 100


def test_toml_gives_an_equal_map_and_equal_maps_print_alike() -> None:
    for seed in range(300):
        map, _, _ = trial(seed)
        again = KeyMap.from_toml(map.to_toml())
        assert again == map
        assert hash(again) == hash(map)
        assert str(again) == str(map)
        assert KeyMap([r.table for r in map.rules], rest="keep") == map


def test_examples_in_docstrings_are_right() -> None:
    for module in (blocks, fields, form, keymap, rules):
        assert doctest.testmod(module).failed == 0, module


# --- refusals, by their messages

W = {"a.q": ((8, 4), "f4"), "a.k": ((4, 4), "f4"), "b.q": ((8, 4), "f4"), "n": ((4,), "f4")}
KEEP = KeyMap(rest="keep")

REFUSED: dict[str, tuple[KeyMap, str]] = {
    "a pattern that matches nothing": (
        KEEP.rename("c.{name}", "d.{name}"),
        r"rule 1: rename c\.\{name\} -> d\.\{name\}: 'c\.\{name\}' matches nothing\. "
        r"There are 4 tensors, for instance",
    ),
    "one that matches what is taken": (
        KEEP.rename("a.q", "x").rename("{w}.q", "{w}.p").rope("b.q", 2),
        r"rule 3: rope b\.q, to half, heads 2: 'b\.q' matches nothing\. It would match 'b\.q', "
        r"which is taken by rule 2: rename",
    ),
    "no rule": (
        KeyMap().rename("a.{w}", "{w}"),
        r"no rule matches 2 of the tensors: 'b\.q', 'n'\. Add rules for them, or say",
    ),
    "a tensor renamed twice": (
        KEEP.rename("{w}.q", "q.{w}").rename("q.{w}", "x.{w}"),
        r"rule 2: .* 'q\.a' is matched twice: rule 1: .* has given it this name\. Write one",
    ),
    "a cycle": (
        KEEP.rename("n", "m").rename("m", "n"),
        r"'m' is matched twice: rule 1: rename n -> m has given it this name; 'n' is the name it "
        r"had: a cycle",
    ),
    "two tensors with one name": (
        KEEP.rename("{w}.q", "q"),
        r"two tensors get the name 'q': one made of 'b\.q', and one that was made by rule 1",
    ),
    "a name that is there": (
        KEEP.rename("n", "a.q"),
        r"two tensors get the name 'a\.q': one made of 'n', and one that is there already",
    ),
    "a family that lacks one": (
        KEEP.fuse(["{w}.q", "{w}.k"], "{w}.qk"),
        r"'b\.q' is there, but 'b\.k', which belongs to it, is not; tensors are joined only if",
    ),
    "one tensor twice in one": (
        KEEP.fuse(["a.q", "a.q"], "a.qq"),
        r"tensor 'a\.q' is matched twice by this rule",
    ),
    "sizes that differ elsewhere": (
        KEEP.transpose("a.k").reshape("a.k", (2, 8)).fuse(["a.q", "a.k"], "x"),
        r"tensors 'a\.q' of shape \(8, 4\), 'a\.k' of shape \(2, 8\): only dim 0 may differ "
        r"between tensors that are joined along it; found \(8, 4\) and \(2, 8\)",
    ),
    "dtypes that differ": (
        KEEP.cast("a.k", "float16").fuse(["a.q", "a.k"], "x"),
        r"tensors that are joined have one dtype; found float32 and float16",
    ),
    "ranks that do not divide": (
        KEEP.fuse(["a.q", "a.k"], "x", ranks=8),
        r"dim 0, of size 4, does not divide into 8 groups",
    ),
    "parts of another size": (
        KEEP.split("a.q", ["x", "y"], sizes=[5, 4]),
        r"the parts along dim 0 must have 8 elements together; 5 \+ 4 are 9",
    ),
    "a ratio that does not divide": (
        KEEP.split("a.q", ["x", "y"], ratio=[2, 1]),
        r"dim 0, of size 8, does not divide in the ratio 2 : 1",
    ),
    "a dim that does not exist": (
        KEEP.pad("n", dim=1, multiple=4),
        r"tensor 'n' of shape \(4,\): dim 1 does not exist; expected -1 to 0",
    ),
    "heads that do not divide": (
        KEEP.rope("a.q", 3),
        r"'a\.q' of shape \(8, 4\): dim 0, of size 8, does not divide into 3 heads",
    ),
    "rows beyond a head": (
        KEEP.rope("a.q", 2, rows=(2, 6)),
        r"rows 2 to 6 are not within a head of 4 rows",
    ),
    "heads without halves": (
        KEEP.rope("a.q", 8),
        r"a head of 1 rows does not divide into 2 halves",
    ),
    "experts of which one is missing": (
        KEEP.rename("a.q", "e.0").rename("b.q", "e.2").stack("e.{e}", "s"),
        r"'s' is stacked of numbers 0 to 2, but number 1 is missing; found 2",
    ),
    "experts of two shapes": (
        KEEP.rename("a.q", "e.0").rename("n", "e.1").stack("e.{e}", "s"),
        r"tensors that are stacked have one shape and dtype; found \(8, 4\) of float32 and \(4,\)",
    ),
    "one name of a tied tensor": (
        KEEP.tie("a.q", "t").transpose("a.q"),
        r"tensor 'a\.q' is tied to 't', which the rule does not match, and one tensor cannot be "
        r"changed under one name only",
    ),
    "a part of a tied tensor": (
        KEEP.tie("a.q", "t").fuse(["t", "a.k"], "x"),
        r"tensor 't' is tied to 'a\.q', which the rule does not match",
    ),
    "a tie of two tensors": (
        KEEP.tie("a.q", "b.q"),
        r"'b\.q' is another tensor, so that it cannot become a name of 'a\.q'",
    ),
    "an untie of one name": (KEEP.untie("n"), r"tensor 'n' is not tied to another name"),
    "a slice beyond the end": (
        KEEP.slice("a.q", start=2, stop=9),
        r"2 to 9 is not a range within dim 0, of size 8",
    ),
    "padding that would cut": (KEEP.pad("a.q", size=4), r"dim 0 has 8 elements, .* more than 4"),
    "padding that integers do not have": (
        KEEP.cast("n", "int8").pad("n", size=6, value=300),
        r"tensor 'n' of shape \(4,\): the value 300.0 is not one of int8, which has -128 to 127",
    ),
    "padding that a cast does not keep": (
        KEEP.pad("n", size=6, value=float("inf")).cast("n", "int32"),
        r"the value inf is not one of int32",
    ),
    "another number of elements": (
        KEEP.reshape("a.q", (5, -1)),
        r"its shape \(8, 4\) has 32 elements, and so must the new one; found \(5, -1\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_map_that_cannot_be_applied_is_refused_with_names_and_numbers(case: str) -> None:
    map, message = REFUSED[case]
    with pytest.raises(KeyMapError, match=message):
        map.apply(W)


NOT_INVERTED: dict[str, tuple[KeyMap, str]] = {
    "drop": (KEEP.drop("n"), r"rule 1: drop n: it drops 'n': 4 elements are lost"),
    "rest": (
        KeyMap(rest="drop").keep("n"),
        r"rest='drop' drops 'a\.q' and 2 other tensors, whose elements are lost",
    ),
    "cast": (
        KEEP.cast("a.q", "bfloat16"),
        r"it casts 'a\.q' from float32 to bfloat16, which does not hold all values of float32: 32 "
        r"elements are rounded",
    ),
    "slice": (
        KEEP.slice("a.q", start=2, stop=5),
        r"it keeps 2 to 5 along dim 0 of 'a\.q', of size 8: 20 elements are lost",
    ),
    "first copy": (
        KEEP.first_copy("a.q", 2),
        r"it keeps one of 2 copies in 'a\.q', and copies need not be equal: 16 elements are lost",
    ),
}


@pytest.mark.parametrize("case", NOT_INVERTED)
def test_a_map_that_loses_elements_has_no_inverse_and_says_which(case: str) -> None:
    map, message = NOT_INVERTED[case]
    with pytest.raises(KeyMapError, match=message):
        map.inverse(W)
    map.apply(W)


WRONG: dict[str, tuple[str, str]] = {
    "no TOML": ("rest = ", "A map cannot be read as TOML: "),
    "another table": (
        "[rules]\na = 1",
        r"A map has \[\[rule\]\] tables and rest, ",
    ),
    "another rest": ('rest = "forget"', "rest is 'refuse', 'keep' or 'drop', .* found 'forget'"),
    "two things": (
        '[[rule]]\nrename = "a"\nto = "b"\n\n[[rule]]\ndrop = "a"\nkeep = "a"',
        r"A rule \(line 5\) names one thing to do: rename, .* found keep and drop|drop and keep",
    ),
    "a word misspelt": (
        '[[rule]]\nrenam = "a"\nto = "b"',
        r"A rule \(line 1\) .*; found renam, to\. Did you mean 'rename'\?",
    ),
    "another parameter": (
        '[[rule]]\ncast = "a"\ndtpye = "f4"',
        r"cast \(line 1\): 'dtpye' is not one of its parameters",
    ),
    "nothing to rename to": ('[[rule]]\nrename = "a"', r"rename \(line 1\): to is missing"),
    "a place that nothing fills": (
        '# a map\n[[rule]]\nrename = "a.{i}"\nto = "b.{j}"',
        r"Rule \(line 2\): rename: 'b\.\{j\}' has the place \{j\}, which 'a\.\{i\}' does not have",
    ),
    "a brace": (
        '[[rule]]\ndrop = "layers.{i.weight"',
        r"(?s)Rule \(line 1\): The pattern cannot be read: this brace is not closed\.\n"
        r"  layers\.\{i\.weight\n         \^\n",
    ),
    "a dtype": ('[[rule]]\ncast = "a"\ndtype = "f99"', "cast: dtype: no dtype is named 'f99'"),
    "an object": ('[[rule]]\ncast = "a"\ndtype = "O"', "'O' is not a dtype of numbers"),
    "heads": ('[[rule]]\nrope = "a"', "rope: give heads, the number of heads in the whole tensor"),
    "a text for a number": (
        '[[rule]]\nrope = "a"\nheads = "8"',
        "rope: heads is made of integers; found '8'",
    ),
    "a number for a pattern": ("[[rule]]\ndrop = 3", "drop: drop is a pattern; found 3"),
    "groups of ranks": (
        '[[rule]]\nfuse = ["a", "b"]\nto = "c"\nranks = 2\ngroups = 2',
        "interleaved by ranks or by groups; found ranks=2 and groups=2",
    ),
    "a stack of nothing": (
        '[[rule]]\nstack = "a.{i}"\nto = "b.{i}"',
        r"stack: 'a\.\{i\}' must have the places of 'b\.\{i\}' and one more, the number",
    ),
    "how far to pad": ('[[rule]]\npad = "a"', "pad: give either the size or a number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_text_that_is_not_a_map_is_refused_with_its_line(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(KeyMapError, match=message):
        KeyMap.from_toml(text)


def test_errors_of_rules_in_toml_name_their_line() -> None:
    map = KeyMap.from_toml('rest = "keep"\n\n[[rule]]\ndrop = "n"\n\n[[rule]]\ndrop = "x"')
    with pytest.raises(KeyMapError, match=r"rule 2 \(line 6\): drop x: 'x' matches nothing"):
        map.apply(W)


ODD: dict[str, tuple[Callable[[], object], str]] = {
    "rules": (lambda: KeyMap("drop"), "KeyMap: rules must be a list or tuple of rules, got 'drop'"),
    "rest": (lambda: KeyMap(rest=np.array(["keep"] * 2)), "rest is 'refuse', 'keep' or 'drop'"),
    "one pattern to fuse": (
        lambda: KeyMap().fuse("abc", "d"),
        r"KeyMap.fuse: sources must be a list or tuple of patterns, got 'abc'",
    ),
    "patterns without an order": (
        lambda: KeyMap().fuse({"a", "b"}, "c"),
        "KeyMap.fuse: sources must be a list or tuple of patterns",
    ),
    "to": (lambda: KeyMap().split("a", 3), "KeyMap.split: to must be a list or tuple of patterns"),
    "perm": (lambda: KeyMap().transpose("a", 1), "perm must be a list or tuple of dims, got 1"),
    "shape": (lambda: KeyMap().reshape("a", 8), "shape must be a list or tuple of sizes, got 8"),
    "block": (lambda: KeyMap().scales("a", "b", 8), "block must be a list or tuple of sizes, got"),
    "other": (lambda: KeyMap().then({}), "KeyMap.then: other must be a KeyMap, got {}"),
    "sources": (lambda: KeyMap().apply(["w"]), "sources must be a dict of shapes and dtypes by n"),
    "a name of a tie": (
        lambda: KeyMap().apply({"w": ((2,), "f4")}, tied={3: "w"}),
        "KeyMap: a name in tied must be a string, got 3",
    ),
    "tied": (lambda: KeyMap().inverse({}, tied=["w"]), "tied must be a dict of names by name"),
    "a tied name": (
        lambda: KeyMap().apply({"w": ((2,), "f4")}, tied={"v": ["w"]}),
        r"KeyMap: tied\['v'\] must be a string, got \['w'\]",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_arguments_are_refused_by_name(case: str) -> None:
    call, message = ODD[case]
    with pytest.raises(KeyMapError, match=message):
        call()


# --- what has gone wrong elsewhere, each silently


def heads(n: int, size: int, dim: int, start: int = 0) -> Array:
    return numbered((n * size, dim), "f4", start)


def test_rope_is_permuted_with_the_heads_of_the_whole_tensor_whatever_cuts_it() -> None:
    """Cut first and converted afterwards, a shard's rows were taken for a head of that size."""
    q = heads(4, 6, 5)
    map = KeyMap().rope("q", 4, "half")
    whole = q.reshape(4, 3, 2, 5).swapaxes(1, 2).reshape(24, 5)
    (recipe,) = map.apply({"q": (q.shape, q.dtype)}).recipes.values()
    for cuts in ((0, 12, 24), (0, 9, 24), (0, 5, 10, 24)):
        for start, stop in itertools.pairwise(cuts):
            shard = made_box(recipe, {"q": q}, (start, 0), (stop, 5))
            np.testing.assert_array_equal(shard, whole[start:stop])
    with pytest.raises(KeyMapError, match="does not divide into 5 heads"):
        KeyMap().rope("q", 5).apply({"q": (q.shape, q.dtype)})


def made_box(
    recipe: Recipe, tensors: Tensors, starts: tuple[int, ...], stops: tuple[int, ...]
) -> Array:
    box = Box(starts, stops)
    out = np.zeros(box.shape, recipe.dtype)
    for term in recipe.terms:
        for part in term.within_target(box):
            source = tensors[term.source]
            part.target_view(out, starts)[...] = part.source_view(source, (0,) * source.ndim)
    return out


def test_a_fused_tensor_is_never_left_as_it_was_because_a_name_is_not_matched() -> None:
    """A loader went on where a name did not match, and qkv was never updated."""
    layers = {f"layers.{i}.{w}.weight": ((4, 4), "f4") for i in range(3) for w in "qkv"}
    names = ["layers.{i}.q.weight", "layers.{i}.k.weight", "layers.{i}.v.weight"]
    assert len(KeyMap().fuse(names, "{i}.qkv").apply(layers).recipes) == 3
    del layers["layers.1.v.weight"]
    for rest in ("refuse", "keep", "drop"):
        with pytest.raises(KeyMapError, match=r"1\.q\.weight' is there, but 'layers\.1\.v"):
            KeyMap(rest=rest).fuse(names, "{i}.qkv").apply(layers)
    other = {n.replace("weight", "kernel"): s for n, s in layers.items()}
    with pytest.raises(KeyMapError, match="matches nothing"):
        KeyMap(rest="keep").fuse(names, "{i}.qkv").apply(other)


def test_a_rename_is_undone_on_resume() -> None:
    """A rename on loading was not undone on saving, so that the next load found other names."""
    tensors = {f"model.layers.{i}.w": numbered((2, 2), start=i) for i in range(12)}
    map = KeyMap().rename("model.layers.{i}.{name}", "blocks.{i}.{name}")
    saved = applied(map, tensors)
    assert "blocks.11.w" in saved
    same(applied(map.inverse(sources_of(tensors)), saved), tensors)
    assert map.inverse(sources_of(tensors)) == KeyMap().rename(
        "blocks.{i}.{name}", "model.layers.{i}.{name}"
    )


def test_tied_tensors_stay_one_tensor_under_other_names() -> None:
    tensors = {"embed": numbered((4, 3))}
    map = KeyMap().pad("{name}", size=6).rename("{name}", "model.{name}")
    mapped = map.apply(sources_of(tensors), tied={"head": "embed"})
    assert mapped.tied == {"model.head": "model.embed"}
    assert list(mapped.recipes) == ["model.embed"]
    inverse = map.inverse(sources_of(tensors), tied={"head": "embed"})
    back = inverse.apply({"model.embed": ((6, 3), "f4")}, tied=mapped.tied)
    assert back.tied == {"head": "embed"}


def test_each_rank_has_its_heads_after_copies_of_grouped_heads() -> None:
    """Two key heads over four ranks: each rank has its two query heads and a copy of its key."""
    q, k, v = heads(8, 2, 3), heads(2, 2, 3, 100), heads(2, 2, 3, 200)
    map = (
        KeyMap()
        .repeat("k", 2, groups=2)
        .repeat("v", 2, groups=2)
        .fuse(["q", "k", "v"], "qkv", ranks=4)
    )
    tensors = {"q": q, "k": k, "v": v}
    qkv = applied(map, tensors)["qkv"]
    for rank in range(4):
        own = qkv[rank * 8 : (rank + 1) * 8]
        head = slice(rank // 2 * 2, rank // 2 * 2 + 2)
        expected = np.concatenate([q[rank * 4 : rank * 4 + 4], k[head], v[head]])
        np.testing.assert_array_equal(own, expected)
    same(applied(map.inverse(sources_of(tensors)), {"qkv": qkv}), tensors)


def test_a_table_says_what_each_tensor_is_made_of() -> None:
    map = KeyMap(rest="keep").fuse(["a.q", "a.k"], "a.qk").transpose("a.qk").tie("n", "m")
    assert map.preview(W).splitlines() == [
        "tensor  shape    dtype    made of    how",
        "a.qk    [4, 12]  float32  a.(q + k)  fuse, transpose",
        "b.q     [8, 4]   float32  b.q        as it is",
        "n       [4]      float32  n          as it is",
        "m                         n          tied",
    ]


def test_an_optional_rule_may_match_nothing() -> None:
    map = KeyMap(rest="keep").rename("x.{i}", "y.{i}", optional=True)
    assert list(map.apply(W).recipes) == list(W)
    assert KeyMap.from_toml(map.to_toml()) == map


# --- block scales


def spread(scales: Array, block: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return the scale of each element."""
    for dim, n in enumerate(block):
        scales = np.repeat(scales, n, dim)
    return scales[tuple([slice(n) for n in shape])]


def scaled_trial(seed: int) -> tuple[KeyMap, Tensors]:
    """Return a random map over tensors with scales, and tensors that are all different."""
    rng = random.Random(seed)
    block = (rng.choice([1, 2, 3]), rng.choice([1, 2, 4]))
    tensors: Tensors = {}
    for k in range(rng.randint(1, 3)):
        shape = (rng.choice([2, 4, 5, 6, 8]), rng.choice([2, 3, 4, 8]))
        blocks = tuple([-(-n // b) for n, b in zip(shape, block, strict=True)])
        tensors[f"s.{k}"] = numbered(shape, "f4", 1000 * k)
        tensors[f"s.{k}_scale"] = numbered(blocks, "f4", 100 * k + 1)
    weights = {n: x for n, x in tensors.items() if not n.endswith("_scale")}
    t = Trial(rng, weights, KeyMap(rest="keep").scales("{w*}", "{w*}_scale", block))
    for _ in range(rng.randint(1, 4)):
        name = t.pick()
        if name is None or sum(x.size for x in t.tensors.values()) > 2000:
            break
        rng.choice([r for r in RULES if r not in (do_cast, do_tie)])(t, name)
    return t.map, tensors


@pytest.mark.parametrize("chunk", range(4))
def test_scales_stay_those_of_their_elements_or_the_rule_is_refused(chunk: int) -> None:
    kept, inverted = 0, 0
    for seed in range(chunk * 150, (chunk + 1) * 150):
        map, tensors = scaled_trial(seed)
        mapped = tried(map.apply, sources_of(tensors))
        if isinstance(mapped, str):
            assert PARTED.search(mapped), mapped
            continue
        (declared,) = (r for r in map.rules if isinstance(r, Scales))
        each = {
            n: spread(tensors[f"{n}_scale"], declared.block, x.shape)
            for n, x in tensors.items()
            if not n.endswith("_scale")
        }
        for name, (other, block) in mapped.scales.items():
            recipe = mapped.recipes[name]
            expected = made(recipe, each)
            found = spread(made(mapped.recipes[other], tensors), block, recipe.shape)
            for f in recipe.fills:
                found[f.box.slices] = f.value
            np.testing.assert_array_equal(found, expected)
        kept += 1
        inverse = tried(map.inverse, sources_of(tensors))
        if isinstance(inverse, str):
            assert LOST.search(inverse) or PARTED.search(inverse), inverse
            continue
        same(applied(inverse, applied(map, tensors)), tensors)
        inverted += 1
    assert kept > 50
    assert inverted > 25


F8 = "float8_e4m3fn"
SCALED: Sources = {
    "a.weight": ((256, 300), F8),
    "a.weight_scale_inv": ((2, 3), "f4"),
    "b.weight": ((200, 300), F8),
    "b.weight_scale_inv": ((2, 3), "f4"),
    "c.weight": ((256, 300), "f4"),
}
SCALES = KeyMap(rest="keep").scales("{w*}.weight", "{w*}.weight_scale_inv", (128, 128))

UNSCALED: dict[str, tuple[KeyMap, str]] = {
    "a part that begins within a block": (
        SCALES.fuse(["b.weight", "a.weight"], "x.weight"),
        r"tensors 'b\.weight' .*: a part begins at element 200 of the result, which is not on a "
        r"border of blocks of 128 elements; a block has one scale",
    ),
    "a cut within a block": (
        SCALES.split("a.weight", ["x.weight", "y.weight"], sizes=[100, 156]),
        "a part begins at element 100 of the tensor",
    ),
    "the order of rows": (
        SCALES.rope("a.weight", 2),
        r"blocks of 128 x 128 elements would be taken apart along dim 0 of the result",
    ),
    "a cast": (SCALES.cast("a.weight", "bfloat16"), "a cast to bfloat16 would part them"),
    "a tensor without": (
        SCALES.cast("c.weight", F8).fuse(["a.weight", "c.weight"], "x.weight"),
        r"'c\.weight' has no block scales, and what it is joined with has some",
    ),
    "scales of another shape": (
        KeyMap(rest="keep").scales("{w*}.weight", "{w*}.weight_scale_inv", (64, 128)),
        r"'a\.weight' of shape \(256, 300\) has blocks of 64 x 128 elements, so that its scales "
        r"'a\.weight_scale_inv' have the shape \(4, 3\); found \(2, 3\)",
    ),
    "scales that come too late": (
        KeyMap(rest="keep")
        .transpose("a.weight")
        .scales("{w*}.weight", "{w*}.weight_scale_inv", (128, 128)),
        r"'a\.weight' and its scales 'a\.weight_scale_inv' were changed by rules before",
    ),
}


@pytest.mark.parametrize("case", UNSCALED)
def test_what_would_part_blocks_from_their_scales_is_refused(case: str) -> None:
    """Scales were left as they were where weights were cut, fused or converted."""
    map, message = UNSCALED[case]
    with pytest.raises(KeyMapError, match=message):
        map.apply(SCALED)


def test_scales_are_called_as_the_map_says() -> None:
    map = SCALES.rename("a.weight", "y")
    assert map.apply(SCALED).scales["y"] == ("y_scale_inv", (128, 128))
    names = ("x.{w}", "{w}.s")
    named = KeyMap(rest="keep").scales("{w}.weight", "{w}.weight_scale_inv", (128, 128), to=names)
    mapped = named.rename("{w}.weight", "x.{w}").apply(SCALED)
    assert mapped.scales == {
        "x.a": ("a.s", (128, 128)),
        "x.b": ("b.s", (128, 128)),
    }
    with pytest.raises(KeyMapError, match="nothing says what they are called"):
        named.apply(SCALED)


def test_layouts_that_cut_blocks_are_refused_and_others_say_where_scales_are_cut() -> None:
    mapped = SCALES.transpose("a.weight").apply(SCALED)
    mesh = Mesh(np.array([Device(i) for i in range(2)]), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    columns = NamedSharding(mesh, PartitionSpec(None, "x"))
    assert mapped.check_shardings({"a.weight": columns, "c.weight": rows}) == {
        "a.weight_scale_inv": ((0, 3), (0, 1, 2))
    }
    with pytest.raises(
        KeyMapError, match=r"'a\.weight' is cut at 150 along dim 0, within a block of 128 elements"
    ):
        mapped.check_shardings({"a.weight": rows})
    uneven = NamedSharding(mesh, PartitionSpec("x"), uneven=((0, 128, 300),))
    assert mapped.check_shardings({"a.weight": uneven})["a.weight_scale_inv"][0] == (0, 1, 3)


def test_a_last_row_by_itself_keeps_the_size_of_its_block() -> None:
    sources: Sources = {"w": ((129, 256), F8), "w_scale": ((2, 2), "f4")}
    map = KeyMap().scales("{w}", "{w}_scale", (128, 128)).split("w", ["a", "b"], sizes=[128, 1])
    mapped = map.apply(sources)
    assert mapped.scales == {n: (f"{n}_scale", (128, 128)) for n in "ab"}
    assert "fuse" in str(map.inverse(sources))


def test_the_first_rows_of_a_tensor_are_not_the_tensor() -> None:
    sources: Sources = {"w": ((8, 4), "f4"), "v": ((8, 4), "f4")}
    recipes = KeyMap(rest="keep").slice("w", stop=6).rename("v", "u").apply(sources).recipes
    assert not recipes["w"].is_identity
    assert recipes["u"].is_identity


# --- patterns: what they do is what rules for each name do, and they are undone by what fits

BESIDE = ("x.77.s", "qk.77", "z.77", "u.77", "ew.77", "ew.1.2", "l.q", "wide.one.5")
BY_PATTERN: list[Callable[[random.Random, KeyMap], KeyMap]] = [
    lambda r, m: m.rename("l.{i}.w", r.choice(["x.{i}.w", "w.{i}", "l.{i}.ww", "{i}"])),
    lambda r, m: m.rename("n.{name}", r.choice(["l.{name}", "{name}.n", "n.n.{name}"])),
    lambda r, m: m.rename("only.{name}", "the_only"),
    lambda r, m: m.fuse(["l.{i}.q", "l.{i}.k"], r.choice(["qk.{i}", "l.{i}.q"]), ranks=2),
    lambda r, m: m.split("l.{i}.v", r.choice([["z.{i}", "u.{i}"], ["v.{i}.a", "v.{i}.b"]])),
    lambda r, m: m.stack("e.{e}.w", r.choice(["ew", "e.w"]), dim=r.randint(0, 2)),
    lambda r, m: m.stack("f.{e}.{i}", r.choice(["f.{i}", "ew.{i}"])),
    lambda r, m: m.unstack("b.{i}", r.choice(["b.{i}.{e}", "ew.{i}.{e}", "wide.{i}.{e}"])),
    lambda r, m: m.pad("p.{i}", size=12).transpose("p.{i}"),
    lambda r, m: m.reshape(r.choice(["p.{i}", "{name}.{i}"]), (-1,)),
    lambda r, m: m.cast(r.choice(["l.{i}.{name}", "{name}.{i}"]), "float64"),
]


@pytest.mark.parametrize("chunk", range(3))
def test_maps_by_patterns_are_undone_whatever_else_has_such_names(chunk: int) -> None:
    exact = 0
    for seed in range(chunk * 100, (chunk + 1) * 100):
        rng = random.Random(seed)
        names = [f"l.{i}.{w}" for i in range(rng.randint(1, 3)) for w in ("q", "k", "v", "w")]
        names += [f"n.{w}" for w in "ab"] + ["only.one"] + rng.sample(BESIDE, rng.randint(0, 3))
        experts = rng.choice([["0", "1", "2"], ["00", "01", "02"], ["0"]])
        names += [f"e.{e}.w" for e in experts] + [f"f.{e}.{i}" for e in (1, 0) for i in range(2)]
        tensors = {n: numbered((4, 2), "f4", 10 * k) for k, n in enumerate(names)}
        tensors |= {f"b.{i}": numbered((3, 2), "f4", 5 * i) for i in range(2)}
        tensors |= {f"p.{i}": numbered((2 + i, 3), "f4", i) for i in range(2)}
        map = KeyMap(rest="keep")
        for step in rng.sample(BY_PATTERN, rng.randint(1, 4)):
            map = step(rng, map)
        mapped = tried(applied, map, tensors)
        if isinstance(mapped, str):
            assert re.search("get the name|matched twice|elements, and so|matches nothing", mapped)
            continue
        inverse = map.inverse(sources_of(tensors))
        same(applied(inverse, mapped), tensors)
        assert KeyMap.from_toml(inverse.to_toml()) == inverse
        exact += len(inverse.rules) > len(map.rules)
    assert exact > 5


def test_sources_that_are_not_tensors_are_refused() -> None:
    for sources, message in (
        ({3: ((2,), "f4")}, "sources have names; found 3"),
        ({"w": ((-2,), "f4")}, "source 'w' is a shape and a dtype"),
        ({"w": ((2.5,), "f4")}, "source 'w' is a shape and a dtype"),
        ({"w": 7}, "source 'w' is a shape and a dtype, or has them; found 7"),
        ({"w": ((2,), "f99")}, "or has them; found .*'f99'"),
    ):
        with pytest.raises(KeyMapError, match=message):
            KeyMap(rest="keep").apply(sources)  # type: ignore[arg-type]
    for tied, message in (
        ({"v": "u"}, "'v' is tied to 'u', but 'u' is not a source"),
        ({"w": "w"}, "are both sources"),
    ):
        with pytest.raises(KeyMapError, match=message):
            KeyMap(rest="keep").apply({"w": ((2,), "f4")}, tied=tied)
    with pytest.raises(KeyMapError, match=r"KeyMap.then: other must be a KeyMap, got 3"):
        KeyMap().then(3)  # type: ignore[arg-type]
