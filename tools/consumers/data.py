"""The data of the tables: small problems with an uneven number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS, COLUMNS, CLASSES = 101, 6, 3


def problem() -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays that calls are made of, by name."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, ROWS)
    X = random.normal(size=(ROWS, COLUMNS)) + labels[:, None]
    score = random.random((ROWS, CLASSES))
    target = X @ random.normal(size=COLUMNS) + random.normal(size=ROWS)
    return {
        "X": X,
        "P": np.abs(X) + 0.5,
        "Z": random.normal(size=(ROWS, COLUMNS)),
        "y": labels,
        "b": (labels > 0).astype(np.int64),
        "p": random.integers(0, CLASSES, ROWS),
        "q": random.integers(0, 2, ROWS),
        "t": target,
        "u": target + random.normal(size=ROWS),
        "w": random.random(ROWS) + 0.5,
        "s": random.random(ROWS),
        "S": score / score.sum(axis=1, keepdims=True),
        "L": random.integers(0, 2, (ROWS, CLASSES)),
        "M": random.integers(0, 2, (ROWS, CLASSES)),
    }
