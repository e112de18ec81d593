"""Patterns and texts of maps: what they match, and that noise is refused and nothing else."""

import dataclasses
import random
import string

import pytest

from meshard.errors import KeyMapError
from meshard.weights.maps.fields import exactly, parse
from meshard.weights.maps.keymap import RULES, KeyMap


def test_places_take_digits_parts_or_any_text() -> None:
    cases = {
        ("layers.{i}.w", "layers.12.w"): {"i": "12"},
        ("layers.{i}.w", "layers.x.w"): None,
        ("{name}.w", "a_b.w"): {"name": "a_b"},
        ("{name}.w", "a.b.w"): None,
        ("{*}.w", "a.b.w"): {"*": "a.b"},
        ("{head*}.{e}.{w}", "a.b.3.c"): {"head*": "a.b", "e": "3", "w": "c"},
        ("a{{{i}}}", "a{7}"): {"i": "7"},
        ("a.b", "a.b"): {},
        ("a.b", "axb"): None,
    }
    for (text, name), filling in cases.items():
        pattern = parse(text)
        assert pattern.match(name) == filling, text
        assert dict(pattern.matches({name: 0})) == ({} if filling is None else {name: filling})
        if filling is not None:
            assert pattern.expand(filling) == name


def test_a_name_is_a_pattern_of_itself() -> None:
    rng = random.Random(0)
    for _ in range(300):
        name = "".join(rng.choices("ab.{}*0\\^[", k=rng.randint(1, 12)))
        assert parse(exactly(name)).match(name) == {}
        assert parse(exactly(name)).match(name + "x") is None


WRONG = {
    "a.{i": "not closed",
    "a.}b": "was not opened",
    "a.{}": "name of a place is expected here",
    "a.{1x}": "name of a place is expected here",
    "{i}.{i}": "is there twice",
    "{a}{b}": "cannot be told",
    "{a}_{b}_{c}_{d}": "have no dot between them",
    "{a*}.{b*}.{c*}.{d}": "match any text",
    "": "1 to 1024 printable characters",
    "a\nb": "1 to 1024 printable characters",
    "x" * 2000: "of 2000 characters",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_pattern_that_cannot_be_read_is_pointed_at(text: str) -> None:
    with pytest.raises(KeyMapError, match=WRONG[text]) as caught:
        parse(text)
    lines = str(caught.value).splitlines()
    if len(lines) > 1:
        assert lines[1].strip() == text.strip()
        assert lines[2].strip() == "^"


def test_a_pattern_does_not_take_long_on_any_name() -> None:
    """The limit of the test is what tells: a pattern with one place more would take minutes."""
    for text in ("{a*}x{b*}x{c}y", "{a}x{b}x{c}y", "{*}.{a}x{b}y"):
        pattern = parse(text)
        assert pattern.match("x" * 200 + "z") is None


SEED = """
rest = "keep"
[[rule]]
rename = "model.{i}.{name}"
to = "m.{i}.{name}"
[[rule]]
fuse = ["m.{i}.q", "m.{i}.k"]
to = "m.{i}.qk"
dim = 0
ranks = 2
[[rule]]
split = "m.{i}.gu"
to = ["m.{i}.g", "m.{i}.u"]
ratio = [1, 1]
[[rule]]
rope = "m.{i}.v"
heads = 2
[[rule]]
pad = "m.{i}.o"
multiple = 8
value = 0.5
[[rule]]
cast = "{*}"
dtype = "bfloat16"
optional = true
"""

W = {f"model.{i}.{n}": ((4, 4), "f4") for i in range(2) for n in ("q", "k", "gu", "v", "o")}


def mutated(rng: random.Random, text: str) -> str:
    chars = list(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(chars))
        match rng.randrange(5):
            case 0:
                del chars[at]
            case 1:
                chars.insert(at, rng.choice(string.printable + "é\x00\ud800"))
            case 2:
                chars[at] = rng.choice('{}[]"=.*0123456789-')
            case 3:
                other = rng.randrange(len(chars))
                chars[at:at] = chars[other : other + rng.randint(1, 40)]
            case _:
                chars[at : at + rng.randint(1, 20)] = rng.choice(
                    [
                        "999999999999999999999",
                        "true",
                        "nan",
                        "[[]]",
                        '"O"',
                        "-1",
                        "1e999",
                        '""',
                        "{",
                    ]
                )
        if not chars:
            chars = list("x")
    return "".join(chars)


def test_damaged_texts_give_a_map_or_a_refusal_and_nothing_else() -> None:
    read = applied = 0
    for seed in range(3000):
        text = mutated(random.Random(seed), SEED)
        try:
            map = KeyMap.from_toml(text)
            read += 1
            assert KeyMap.from_toml(map.to_toml()) == map or "nan" in text
            map.apply(W)
            applied += 1
        except KeyMapError:
            continue
    assert read > 100
    assert applied > 20


PATTERNS = ["{*}", "model.{i}.{name}", "model.{i}.q", "x.{i}"]
VALUES: list[object] = [
    *(*PATTERNS, "x", "", "{", "bfloat16", "f4", "half", "O", True, None, {"a": 1}),
    *(0, 1, 2, 3, 4, -1, -2, 2**40, 2**62, 2**70, 0.5, float("nan"), float("inf")),
    *([1, 0], [0, 0], [4, -1], [-1, -1], [2, 2], [1, 3], ["x.{i}", "y.{i}"], [], [[1]], ["x", 3]),
    *(["model.{i}.q", "model.{i}.k"], [2**61, 8]),
]


SUITED: dict[str, list[object]] = {
    "to": ["x.{i}", "x.{i}.{name}", "half", ["x.{i}", "y.{i}"], "model.{name}", "interleaved"],
    "dtype": ["bfloat16", "float16", "f8", "float8_e4m3fn", "i4"],
    "perm": [[1, 0], [0, 1], [-1, 0], None],
    "shape": [[2, 8], [-1], [4, -1], [2, 2, 2, 2], [16, 1]],
    "sizes": [[1, 3], [2, 2], None],
    "ratio": [[1, 3], [1, 1], None],
    "by": ["model.{i}.{name}", "model.{i}.q"],
    "block": [[2, 2], [1, 4], [4, 4], [2**40, 1]],
    "optional": [True, False],
}
NUMBERS: list[object] = [0, 1, 2, 4, 8, -1, 2**40, 3]


def test_rules_of_random_values_give_tensors_or_a_refusal() -> None:
    applied = 0
    for seed in range(4000):
        rng = random.Random(seed)
        listed = []
        for _ in range(rng.randint(1, 3)):
            kind = rng.choice(list(RULES))
            names = [f.name for f in dataclasses.fields(RULES[kind])]
            table: dict[str, object] = {
                kind: rng.choice(PATTERNS if rng.random() < 0.8 else VALUES)
            }
            for name in names:
                needed = name in ("to", "dtype", "shape", "heads", "by", "block")
                if name not in ("source", "line") and (needed or rng.random() < 0.4):
                    suited = SUITED.get(name, NUMBERS)
                    table[name] = rng.choice(suited if rng.random() < 0.95 else VALUES)
            listed.append(table)
        try:
            map = KeyMap(listed, rest="keep")
            mapped = map.apply(W)
            str(mapped)
            applied += 1
            map.inverse(W)
        except KeyMapError:
            continue
    assert applied > 300


def test_deep_and_long_texts_are_refused_in_time() -> None:
    deep = "a = " + "[" * 20_000 + "]" * 20_000
    with pytest.raises(KeyMapError, match="cannot be read as TOML"):
        KeyMap.from_toml(deep)
    with pytest.raises(KeyMapError, match="at most"):
        KeyMap.from_toml("[[stage]]\n" * 300)
    with pytest.raises(KeyMapError, match="at most"):
        KeyMap.from_toml(3)  # type: ignore[arg-type]
    many = '[[rule]]\nkeep = "x"\n' * 5000
    assert len(KeyMap.from_toml(many).rules) == 5000


def test_random_patterns_give_a_pattern_or_a_refusal() -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        text = "".join(rng.choices("{}*.ab_i0 ", k=rng.randint(0, 14)))
        try:
            pattern = parse(text)
        except KeyMapError:
            continue
        pattern.match("a.b_0.i")
