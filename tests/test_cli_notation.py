"""What is written in a command line: specs, meshes, shapes, dtypes, sizes and devices."""

from __future__ import annotations

from collections.abc import Callable

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshard.cli.written import notation
from meshard.cli.written.notation import dtype_named, ids_of, mesh_of, shape_of, size_of, spec_of
from meshard.sharding import PartitionSpec as P

NAMES = st.sampled_from(["data", "model", "x", "é", "a b", "'", '"'])
ENTRIES = st.none() | NAMES | st.lists(NAMES, max_size=3).map(tuple)


@given(st.lists(ENTRIES, max_size=5))
def test_a_spec_is_read_as_it_prints(entries: list[object]) -> None:
    spec = P(*entries)
    read = spec_of(repr(spec))
    assert read.spec == spec
    axes = [axis for dim in spec.axes(len(spec)) for axis in dim]
    assert [name for name, _ in read.places] == axes


@given(st.dictionaries(st.from_regex(r"[a-z_]\w*", fullmatch=True), st.integers(1, 4), max_size=4))
def test_a_mesh_is_read_as_it_prints(axes: dict[str, int]) -> None:
    if not axes or not all(name.isascii() for name in axes):
        return
    read = mesh_of(", ".join(f"{name} = {size}" for name, size in axes.items()))
    assert dict(zip(read.names, read.sizes, strict=True)) == axes
    mesh = read.on()
    assert dict(mesh.shape) == axes
    assert [d.id for d in mesh.flat_devices] == list(range(read.count))


@pytest.mark.parametrize("read", [spec_of, mesh_of, shape_of, dtype_named, size_of, ids_of])
@settings(deadline=None, max_examples=60)
@given(
    text=st.text(max_size=30)
    | st.text("P()'xy,[]{}=:0123456789* .\\", max_size=30)
    | st.integers(0, 6).map(lambda n: "P" + "(" * 10**n)
)
def test_any_text_is_read_or_refused(read: Callable[[str], object], text: str) -> None:
    try:
        assert read(text) is not None
    except click.BadParameter as error:
        lines = error.message.splitlines()
        assert lines[0]
        assert max(map(len, lines[1:]), default=0) <= 80


def refusal(read: Callable[[str], object], text: str) -> tuple[str, int]:
    """Return the reason of a refusal, and the character that the caret is under."""
    with pytest.raises(click.BadParameter) as caught:
        read(text)
    reason, shown, caret = caught.value.message.split("\n")
    assert shown == f"    {text}"
    assert caret.strip() == "^"
    return reason, caret.index("^") - 4


@pytest.mark.parametrize(
    ("read", "text", "reason", "at"),
    [
        (spec_of, "P(data, 'm')", "data is not quoted; write 'data'", 2),
        (spec_of, "P('é', ('x', 3))", "expected an axis such as 'data', a tuple of axes, or", 13),
        (spec_of, "P('a'", "it cannot be read ('(' was never closed); a spec is written P(", 1),
        (spec_of, "Q('a')", "a spec is written P(...), with an axis, a tuple of axes or None", 0),
        (spec_of, "P('a', b=1)", "it has no keywords", 7),
        (spec_of, "P(P.UNCONSTRAINED)", "UNCONSTRAINED does not say where the elements are", 2),
        (spec_of, "P(*'ab')", "expected an axis", 2),
        (spec_of, "P(open('x'))", "expected an axis", 2),
        (
            mesh_of,
            "data=4,",
            "a mesh is written as axes and their sizes, such as data=4,model=2",
            7,
        ),
        (mesh_of, "a=2, a=3", "the axis 'a' is named twice", 5),
        (mesh_of, "a=2,b=0", "a size is from 1 to 16,777,216", 6),
        (mesh_of, "a=10000,b=10000", "it has 100,000,000 devices; 16,777,216 are the most", 0),
        (shape_of, "10x-3", "a shape is written as sizes, such as 1024x512, or scalar", 3),
        (dtype_named, "bf16", "there is no such dtype; did you mean bfloat16?", 0),
        (dtype_named, "object", "there is no such dtype: bool, int8, ", 0),
        (ids_of, "0,4:2", "the range 4:2 is empty; it ends before its second number", 2),
        (ids_of, "1:2:3", "devices are written as ids and ranges of them, such as 0,2,8:12", 0),
        (ids_of, "0:99999999", "these are more than 16,777,216 devices", 0),
        (ids_of, "0,0", "a device is named twice", 0),
    ],
)
def test_a_refusal_points_at_the_place(
    read: Callable[[str], object], text: str, reason: str, at: int
) -> None:
    found, place = refusal(read, text)
    assert reason in found
    assert place == at


def test_axes_are_those_of_the_mesh() -> None:
    mesh = mesh_of("data=2,model=2").on()
    read = spec_of("P(('data', 'modl'))")
    reason, at = refusal(lambda text: read.over(mesh), read.text)
    assert reason == (
        "the mesh has no axis 'modl'; its axes: 'data', 'model'; did you mean 'model'?"
    )
    assert at == 11
    twice = spec_of("P('data', 'data')")
    reason, at = refusal(lambda text: twice.over(mesh), twice.text)
    assert reason == "axis 'data' is named twice; it can split one dim only"
    assert at == 10
    assert spec_of("P('data')").over(mesh, "balanced").uneven == "balanced"


def test_a_mesh_needs_as_many_devices() -> None:
    mesh = mesh_of("data=2,model=2")
    assert [d.id for d in mesh.on(ids_of("8:12")).flat_devices] == [8, 9, 10, 11]
    with pytest.raises(click.UsageError, match="data=2,model=2 has 4 devices, but 3 are named"):
        mesh.on(range(3))


def test_a_long_text_is_shown_in_part() -> None:
    with pytest.raises(click.BadParameter) as caught:
        spec_of("P(" + "'a', " * 60 + "b)")
    _, shown, caret = caught.value.message.split("\n")
    assert shown[caret.index("^")] == "b"
    assert len(shown) <= 80
    with pytest.raises(click.BadParameter, match="it has 5,001 characters, and 1,000 are the most"):
        spec_of("P(" + "'a', " * 1000)


def test_sizes() -> None:
    assert [size_of(text) for text in ("1GB", "64 MiB", "500")] == [10**9, 64 << 20, 500]
    with pytest.raises(click.BadParameter, match="'0' is not a positive number of bytes; write"):
        size_of("0")


def test_values() -> None:
    assert dtype_named("bfloat16").itemsize == 2
    assert all(isinstance(dtype_named(name), np.dtype) for name in notation._DTYPES)
    assert shape_of("scalar") == ()
