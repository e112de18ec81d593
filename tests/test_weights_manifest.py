"""The manifest: its text says all there is to say, and does not grow with the devices."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshard.errors import CorruptFileError
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices
from meshard.weights.native import manifest
from meshard.weights.native.manifest import DataFile, Entry, Manifest, Saver, grouped, read_manifest
from tests.checkpoints import run
from tests.lays import calm, lays, shapes

NAMES = st.text(st.sampled_from("ab.0123{}é٣\n\"'"), max_size=25)


@settings(calm, max_examples=60)
@given(st.data(), st.lists(NAMES, unique=True, max_size=8))
def test_a_text_gives_an_equal_manifest(data: st.DataObject, names: list[str]) -> None:
    shapes_ = [data.draw(shapes(most=5)) for _ in names]
    drawn = [data.draw(lays(shape)) for shape in shapes_]
    dtypes = [np.dtype(data.draw(st.sampled_from(["f4", "i8", "c16"]))) for _ in names]

    def body() -> None:
        entries = []
        for name, shape, dtype, lay in zip(names, shapes_, dtypes, drawn, strict=True):
            x = lay.put(np.zeros(shape))
            entries.append(Entry(name, shape, dtype, x.sharding))
        files = (DataFile(0, 100, 200, 1 << 63), DataFile(3, 1, 2, 3))
        tree, who = {"dict": {"n": {"value": 3}}}, Saver("it", 1, "job", 2, "0123")
        made = Manifest(grouped(entries), tree, {"b": "a"}, "data-1", files, 9, who)
        assert {e.name for e in made.entries} == set(names)
        assert read_manifest(made.to_text(), "it") == made

    run(1, body)


def deepseek() -> list[tuple[str, tuple[int, ...], tuple[Any, ...]]]:
    """Return names, shapes and specs of some 92,000 tensors, as DeepSeek-V3 has them."""
    found: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
        ("model.embed_tokens.weight", (129280, 7168), ("tp",)),
        ("lm_head.weight", (129280, 7168), ("tp",)),
    ]
    for layer in range(61):
        head = f"model.layers.{layer}"
        found += [(f"{head}.input_layernorm.weight", (7168,), ())]
        found += [(f"{head}.self_attn.o_proj.weight", (7168, 16384), (None, "tp"))]
        for expert in range(256):
            inner = f"{head}.mlp.experts.{expert}"
            for name, shape in (
                ("gate", (2048, 7168)),
                ("up", (2048, 7168)),
                ("down", (7168, 2048)),
            ):
                found.append((f"{inner}.{name}_proj.weight", shape, ("tp",)))
                scale = tuple(-(-n // 128) for n in shape)
                found.append((f"{inner}.{name}_proj.weight_scale_inv", scale, ()))
    return found


@pytest.mark.timeout(60)
def test_the_text_does_not_grow_with_the_devices() -> None:
    tensors = deepseek()
    assert len(tensors) > 92_000
    sizes = []
    for count in (64, 16_384):
        devices = np.asarray(virtual_devices(count, 8)).reshape(-1, 32)
        mesh = Mesh(devices, ("dp", "tp"))
        shardings = {spec: NamedSharding(mesh, P(*spec)) for *_, spec in tensors}
        entries = [Entry(n, s, np.dtype("u1"), shardings[spec]) for n, s, spec in tensors]
        with mock.patch.object(manifest, "native_pieces", side_effect=AssertionError) as pieces:
            text = Manifest(grouped(entries)).to_text()
        assert not pieces.called
        sizes.append(len(text))
    assert max(sizes) < 2_000_000
    assert sizes[1] - sizes[0] < 10 * (16_384 - 64) // 8  # a mesh names the processes once
    made = read_manifest(text, "it")
    assert len(made.entries) == len(tensors)
    assert {e.name for e in made.entries} == {name for name, *_ in tensors}


@pytest.mark.parametrize("change", [
    lambda text: text[:-1],
    lambda text: text + " ",
    lambda text: text.replace("data", "dato"),
    lambda text: "",
    lambda text: text.replace('"checksum"', '"check"'),
])  # fmt: skip
def test_a_changed_text_is_refused(change: Any) -> None:
    text = Manifest(()).to_text()
    assert read_manifest(text, "it") == Manifest(())
    with pytest.raises(
        CorruptFileError, match="it: the checkpoint's manifest is cut off or was ch"
    ):
        read_manifest(change(text), "it")
