"""What arguments are taken for, and what is said of those that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
from meshard import debug, resharding, tree
from meshard.algebra.arguments import (
    choice_of,
    count_of,
    flag_of,
    function_of,
    instance_of,
    integer_of,
    is_text,
    items_of,
    names_of,
    number_of,
    path_of,
    shape_of,
    shown,
    text_of,
)
from meshard.algebra.device import Device, device_ids_of, devices_of
from meshard.errors import (
    ArgumentError,
    MeshardError,
    OutOfRangeError,
    ShapeError,
    ShardingError,
    TreeError,
)
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices

MESH = Mesh(np.array(virtual_devices(8)).reshape(4, 2), ("x", "y"))
ROWS = NamedSharding(MESH, P("x"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (count_of(np.int8(3), "f", "n"), 3),
        (integer_of(-2, "f", "n"), -2),
        (number_of(np.float32(0.5), "f", "n"), 0.5),
        (flag_of(np.bool_(True), "f", "n"), True),
        (flag_of(0, "f", "n"), False),
        (flag_of(np.int8(1), "f", "n"), True),
        (flag_of(np.array(True), "f", "n"), True),
        (shape_of([2, -1], "f", inferred=True), (2, -1)),
        (text_of("a", "f", "n"), "a"),
        (choice_of("a", ("a", "b"), "f", "n"), "a"),
        (is_text(np.array(["a", "a"]), "a"), False),
        (function_of(len, "f", "n"), len),
        (instance_of(3, int, "f", "n"), 3),
        (items_of(range(2), "f", "n", "numbers"), (0, 1)),
        (names_of("xy", "f", "n"), ("xy",)),
        (names_of(["x", "y"], "f", "n"), ("x", "y")),
        (shape_of([np.int64(2), 3], "f"), (2, 3)),
        (shape_of(np.int8(4), "f"), (4,)),
        (shape_of(np.array(4), "f"), (4,)),
        (path_of("a/b", "f"), Path("a/b")),
        (devices_of([Device(1)], "f"), (Device(1),)),
        (device_ids_of({Device(4), 2}, "f", "n"), [2, 4]),
    ],
)
def test_what_arguments_mean(found: object, expected: object) -> None:
    assert found == expected
    assert type(found) is type(expected)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a count": (
        lambda: count_of(1.0, "f", "n"),
        ArgumentError,
        "a non-negative integer, got",
    ),
    "a bool": (lambda: count_of(True, "f", "n", least=1), ArgumentError, "integer of at least 1"),
    "a large count": (lambda: count_of(9, "f", "n", most=4), ArgumentError, "integer from 0 to 4"),
    "a negative one": (
        lambda: integer_of(5, "f", "n", most=4),
        ArgumentError,
        "at most 4",
    ),
    "a wide integer": (lambda: integer_of(2**63, "f", "n"), OutOfRangeError, "has 64 bits"),
    "any": (lambda: integer_of("x", "f", "n"), ArgumentError, "must be an integer, got"),
    "a text for a number": (lambda: number_of("1", "f", "n"), ArgumentError, "a finite number of"),
    "an id": (lambda: device_ids_of([-1], "f", "n"), ArgumentError, "each id in n must be"),
    "a size that fails": (lambda: shape_of([object()], "f"), ShapeError, "is not a shape"),
    "nan": (lambda: number_of(np.nan, "f", "n"), ArgumentError, "a finite number of at least 0"),
    "zero": (lambda: number_of(0, "f", "n", open_below=True), ArgumentError, "number above 0"),
    "a flag": (lambda: flag_of("yes", "f", "n"), ArgumentError, "True or False, got 'yes'"),
    "a choice": (lambda: choice_of("c", ("a", "b"), "f", "n"), ArgumentError, "'a' or 'b', got"),
    "a text": (lambda: text_of(b"a", "f", "n"), ArgumentError, "a string, got b'a' of type by"),
    "items": (lambda: items_of({}, "f", "n", "devices"), ArgumentError, "a list or tuple of devic"),
    "a name": (lambda: names_of(["x", 3], "f", "n"), ArgumentError, "holds 3 of type int"),
    "no function": (
        lambda: function_of(3, "f", "g"),
        ArgumentError,
        "f: g must be a function",
    ),
    "a size": (lambda: shape_of((2, -1), "f"), ShapeError, "sizes must be non-negative"),
    "a set": (lambda: shape_of({2, 3}, "f"), ShapeError, "f: .2, 3. is not a shape"),
    "items without an order": (
        lambda: items_of({1}, "f", "n", "names", ordered=True),
        ArgumentError,
        "a list or tuple of names, got .1. of type set",
    ),
    "an array": (
        lambda: text_of(np.zeros(3), "f", "n"),
        ArgumentError,
        r"a string, got a NumPy array of shape \(3,\) and dtype float64\.$",
    ),
    "a large size": (lambda: shape_of((1 << 63,), "f"), ShapeError, "integers of at most 63 bits"),
    "a path": (lambda: path_of("a\0b", "f"), ArgumentError, "path must be the path of a file"),
    "a device": (
        lambda: devices_of([3], "f"),
        ArgumentError,
        "holds 3 of type int, which is not a",
    ),
    # as users meet them
    "shard_shape": (lambda: ROWS.shard_shape("x"), ShapeError, "global_shape: 'x' is not a shape"),
    "make_mesh of a nested shape": (
        lambda: meshard.make_mesh(((4,), 4), ("x", "y")),
        ShapeError,
        r"make_mesh: axis_shapes: \(\(4,\), 4\) is not a shape",
    ),
    "make_mesh without names": (
        lambda: meshard.make_mesh((4, 2), None),
        ArgumentError,
        "axis_names must be a list or tuple of axis names, got None",
    ),
    "make_mesh of other devices": (
        lambda: meshard.make_mesh((1,), "x", devices=[3]),
        ArgumentError,
        "devices holds 3 of type int, which is not a Device",
    ),
    "BoxSharding of True": (
        lambda: BoxSharding((8, 8), True),
        ShardingError,
        "boxes must be a Mapping, got True of type bool. It maps each device to its box",
    ),
    "a mesh where a sharding is meant": (
        lambda: meshard.device_put(np.ones(8), MESH),
        ArgumentError,
        r"A mesh needs a spec as well: NamedSharding\(mesh, P\('x'\)\)",
    ),
    "donate": (
        lambda: meshard.reshard(np.ones(8), meshard.devices()[0], donate="no"),
        ArgumentError,
        "reshard: donate must be True or False, got 'no'",
    ),
    "progress": (
        lambda: meshard.reshard(np.ones(8), meshard.devices()[0], progress=3),
        ArgumentError,
        "progress must be a function, got 3 of type int. True shows a bar",
    ),
    "bounds of other shapes": (
        lambda: resharding.bounds_of(ROWS.layout((8,)), ROWS.layout((4,))),
        ShapeError,
        r"source lays out an array of shape \(8,\), destination one of shape \(4,\)",
    ),
    "hosts by another name": (
        lambda: resharding.bounds_of(ROWS.layout((8,)), ROWS.layout((8,)), {0: "a"}),
        ArgumentError,
        "each host in hosts must be a non-negative integer, got 'a'",
    ),
    "hosts of another shape": (
        lambda: resharding.bounds_of(ROWS.layout((8,)), ROWS.layout((8,)), lambda ids: [[0], 1]),
        ArgumentError,
        "hosts must return the hosts of an array of device ids",
    ),
    "ids that do not fit": (
        lambda: resharding.topology("8-gpu hosts").level([0, 1], [0, 1, 2]),
        ArgumentError,
        r"a has shape \(2,\) and b has shape \(3,\), which cannot be broadcast together",
    ),
    "a box of texts": (
        lambda: BoxSharding((8,), {meshard.devices()[0]: (slice("a", "b"),)}),
        ShardingError,
        "holds a slice whose ends are not integers",
    ),
    "devices that are none": (
        lambda: Mesh([[[]], [1]], "x"),
        ShardingError,
        "Mesh: devices",
    ),
    "virtual devices": (lambda: virtual_devices(10**30), ArgumentError, "integer from 1 to 16777"),
    "a huge drawing": (
        lambda: debug.drawing_text(ROWS.layout((8,)), scale=10**30),
        ArgumentError,
        "drawing_text: scale must be at most 100",
    ),
    "a leaf with many truths": (
        lambda: tree.all([np.array([1, 0])]),
        TreeError,
        r"the leaf array\(\[1, 0\]\) is neither true nor false",
    ),
    "trees first": (lambda: tree.map([1], len), ArgumentError, "The function comes first, and the"),
    "no structure": (lambda: tree.unflatten([1], [1]), ArgumentError, "must be a PyTreeSpec, got"),
    "nothing to fold": (lambda: tree.reduce(max, []), TreeError, "give an initializer to begin"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_and_what_is_said(case: str) -> None:
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message) as refused:
        call()
    assert isinstance(refused.value, MeshardError)


def test_values_are_shown_on_one_short_line() -> None:
    assert shown(np.arange(6).reshape(3, 2)) == "array([[0, 1], [2, 3], [4, 5]])"
    assert len(shown("x" * 1000)) <= 80
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a list that cannot be printed"
