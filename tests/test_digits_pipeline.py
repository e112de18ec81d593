"""The pipeline of examples/digits_pipeline.py gives what it gives on NumPy's arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import meshard
from meshard.debug import ledger
from meshard.sharding import NamedSharding, P
from tests.test_examples import EXAMPLES, load

from .worlds import in_processes

datasets = pytest.importorskip("sklearn.datasets")


def test_it_gives_what_it_gives_on_numpys_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    example = load("digits_pipeline")
    images, digits = datasets.load_digits(return_X_y=True)
    images, labels = images[:301], np.eye(10)[digits[:301]]
    known = example.pipeline().fit(images, labels).predict(images).argmax(axis=1)

    def body() -> Any:
        mesh = meshard.make_mesh((8,), ("data",))
        rows = NamedSharding(mesh, P("data"), uneven="balanced")
        with ledger() as log:
            x, y = meshard.device_put((images, labels), rows)
            found = example.digits_of(x, y, example.pipeline())
        assert found.sharding.spec == P("data")
        assert log.to_host == []
        return np.asarray(meshard.multihost_utils.process_allgather(found, tiled=True))

    np.testing.assert_array_equal(in_processes(body, (2, 4)), known)


def test_it_runs_by_itself() -> None:
    path = EXAMPLES / "digits_pipeline.py"
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=os.environ, timeout=100
    )
    assert "right: 92.8%" in done.stdout, done.stderr
    assert "to the host: []" in done.stdout
    assert "_ridge.py" in done.stdout
