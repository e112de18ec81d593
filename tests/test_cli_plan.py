"""`meshard plan`: its figures, the lists of tensors that it reads, its refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
from meshard.cli import main
from meshard.cli.errors import CommandError
from meshard.cli.written.notation import mesh_of
from meshard.cli.written.tensors import Tensor, read_listing, rule_of, selected
from meshard.resharding import plan_reshard
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P
from tests.commands import documented, on_terminal, status

LISTED = {
    "embed.weight": {"shape": [32000, 512], "dtype": "bfloat16"},
    "layers.0.q_proj.weight": {"shape": [512, 512], "dtype": "bfloat16"},
    "layers.1.q_proj.weight": {"shape": [512, 512], "dtype": "bfloat16"},
    "norm.weight": {"shape": [512], "dtype": "float32"},
}
FROM = ("--from", "P('fsdp')", "--from-mesh", "fsdp=8")


@pytest.fixture
def listing(tmp_path: Path) -> str:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(LISTED))
    return str(path)


def test_the_figures_are_those_of_plan_reshard(
    listing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ("--to", "*.q_proj.weight=P('model', None)", "--to", "P()", "--to-mesh", "model=4")
    ends = ("--to-devices", "6:10", "--topology", "two racks", "--max-bytes", "1MB")
    assert main(["plan", listing, *FROM, *rules, *ends, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("plan")
    before = NamedSharding(mesh_of("fsdp=8").on(), P("fsdp"))
    after = mesh_of("model=4").on(range(6, 10))
    tree = {
        name: meshard.ShapeDtypeStruct(x["shape"], x["dtype"], sharding=before)
        for name, x in LISTED.items()
    }
    targets = {
        name: NamedSharding(after, P("model", None) if "q_proj" in name else P()) for name in LISTED
    }
    plan = plan_reshard(tree, targets, topology="two racks", max_bytes=10**6)
    for key in ("bytes_moved", "lower_bound_bytes", "ratio", "most_sent", "peak_bytes", "rounds"):
        assert found[key] == getattr(plan, key), key
    assert found["seconds"] == plan.simulate("two racks").seconds
    assert found["arrays"] == 4
    assert sum(group["bytes_moved"] for group in found["groups"]) == plan.bytes_moved
    names = [name for group in found["groups"] for name in group["names"]]
    assert sorted(names) == sorted(LISTED)


def test_one_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    to = ("--to", "P(None, 'model')", "--to-mesh", "data=2,model=4", "--html", str(page))
    assert main(["plan", "--shape", "64x32", "--dtype", "int8", *FROM, *to]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "Plan: 1 array, 2.0 KiB, on 8 imaginary devices, 0-7"
    assert max(map(len, lines)) <= 100
    assert re.search(
        r"1  x +\[64,32\] +P\('fsdp',\) +P\(None, 'model'\) +[a-z-]+ +2,048 +3,584", printed.out
    )
    assert re.search(r"moved +3,584 bytes  1.000 x the least possible", printed.out)
    assert printed.err == f"wrote {page}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_topology_tells_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rack.toml"
    path.write_text('name = "rack"\n[[levels]]\nname = "rack"\nlatency = 0\nbandwidth = 1e3\n')
    arguments = ["plan", "--shape", "64x32", "--dtype", "int8", *FROM, "--to", "P(None, 'fsdp')"]
    assert main([*arguments, "--topology", str(path)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"time +224 ms +on rack\nlimit +device 0 +sends 224 bytes", told)
    assert "224 ms on rack for 1,792 bytes" in told


def test_rows_have_a_limit(listing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", listing, *FROM, "--to", "P()", "--limit", "1"]) == 0
    told = capsys.readouterr().out
    assert "and 3 more arrays in 2 groups" in told
    assert re.search(r"in 2 groups, [\d,]+ bytes moved", told)


def test_on_a_terminal_the_title_is_bold() -> None:
    printed, code = on_terminal("plan", "--shape", "8", *FROM, "--to", "P()")
    assert code == 0
    title = "Plan: 1 array, 32 bytes, on 8 imaginary devices, 0-7"
    assert printed.startswith(f"\x1b[1m{title}\x1b[0m\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--to", "*.qproj=P()", "--to", "P()"], 1, "--to: no name matches '*.qproj'; there is "),
        (
            ["--to", "*.q_proj.weight=P()"],
            1,
            "--to says nothing about embed.weight and 1 more; a spec without a pattern is for the "
            'rest: --to "P()" leaves them whole on every device\n',
        ),
        (
            ["--to", "*=P()", "--to", "*.q_proj.weight=P()"],
            1,
            "--to: 2 names match '*.q_proj.weight', but all match a pattern before it, which "
            "counts; layers.0.q_proj.weight is one of them\n",
        ),
        (["--to", "P(None, 'fsdp')"], 1, "--to: norm.weight: P(None, 'fsdp') is for 2 or more"),
        (["--to", "P('fsdp')", "--to-mesh", "fsdp=7"], 1, "which fsdp=7 does not divide; --uneven"),
        (
            ["--to", "P()", "--to", "P('fsdp')"],
            2,
            "--to is given P() and P('fsdp'), both for all names; give one of them a pattern",
        ),
        (["--to", "P('a')"], 2, "meshard plan: the mesh has no axis 'a'; its axes: 'fsdp'\n"),
        (["--to", "=P()"], 2, "the pattern before = is empty; for all names write the spec alone"),
        (["--to", "nonsense"], 2, "write a spec, P('data'), or one for a pattern of names"),
        (["--to", "a=P(b)"], 2, "b is not quoted; write 'b'\n    P(b)\n      ^\n"),
        (["--to", "P()", "--to-devices", "0:3"], 2, "fsdp=8 has 8 devices, but 3 are named"),
        (["--to", "P()", "--topology", "two rack"], 2, "; did you mean 'two racks'? The presets"),
        (["--to", "P()", "--topology", "no.toml"], 1, "no.toml cannot be read: No such file"),
        (["--to", "P()", "--max-bytes", "2"], 1, "max_bytes=2 allows 0 bytes at a time to each"),
        (["--to", "P()", "--max-bytes", "much"], 2, "'much' is not a positive number of bytes;"),
        (["--to", "P()", "--shape", "8"], 2, "give a FILE that lists tensors, or the --shape of"),
        (["--to", "P()", "--select", "*.k"], 1, "no name matches '*.k'; there is "),
    ],
)
def test_refusals(
    arguments: list[str],
    code: int,
    message: str,
    listing: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status(["plan", listing, *FROM, *arguments]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("meshard plan: ")
    assert printed.out == ""


def listed(folder: Path, text: str | bytes) -> dict[str, Tensor]:
    path = folder / "list.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_listing(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: Expecting property name"),
        ('{"a": {}, "a": {}}', "is not JSON: the name 'a' occurs twice"),
        ("[" * 100_000, "is not JSON: "),
        ("[]", "does not list tensors; it should be {"),
        ("{}", "does not list tensors; it should be {"),
        ('{"a": 3}', '\'a\' should be {"shape": [...], "dtype": "..."}, not 3'),
        ('{"a": {"shape": [1, -2], "dtype": "int8"}}', "the shape of 'a' should be a list of at"),
        ('{"a": {"shape": [true], "dtype": "int8"}}', "non-negative integers, not [true]"),
        ('{"a": {"shape": [1], "dtype": "int9"}}', "'a': dtype: dtype must be a dtype"),
        ('{"a": {"shape": [1], "dtype": 8}}', "'a': dtype should be a name, not 8"),
        ('{"a": {"shape": [1], "dtype": "object"}}', "'a': dtype: dtype object is not a numeric"),
        (
            '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
            "names 2 tensors but not their shapes, which are in the headers of its files: "
            "model-1.safetensors and 1 more, of which there is not one beside it",
        ),
    ],
)
def test_a_listing_that_is_none(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        listed(tmp_path, text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "list.json"))


def test_a_listing_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"none\.json cannot be read: No such file"):
        read_listing(tmp_path / "none.json")


def test_an_index_that_lists_its_tensors(tmp_path: Path) -> None:
    index = {"metadata": {"tensors": LISTED}, "weight_map": dict.fromkeys(LISTED, "x.safetensors")}
    found = listed(tmp_path, json.dumps(index))
    assert {name: [*x.shape] for name, x in found.items()} == {
        name: x["shape"] for name, x in LISTED.items()
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["shape", "dtype", "weight_map", "metadata", "a"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_file_is_a_listing_or_refused(text: bytes, tmp_path: Path) -> None:
    found: dict[str, Tensor] | str
    try:
        found = listed(tmp_path, text)
    except CommandError as error:
        found = str(error)
    assert found
    assert isinstance(found, dict) or found.startswith(str(tmp_path / "list.json"))


def test_patterns_select_names() -> None:
    names = ["a.weight", "b.weight", "b.bias"]
    assert selected(names, []) == names
    assert selected(names, ["*.bias", "a.*"]) == ["a.weight", "b.bias"]
    rule = rule_of(" *.weight = P('x') ")
    assert (rule.pattern, rule.spec.spec) == ("*.weight", P("x"))
    assert rule_of("P('x')").pattern is None
