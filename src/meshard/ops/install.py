"""Installs this floor below the doors: the base interpreter, and the functions of methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meshard.ops.array import create, elementwise, index, nonzero, shape, take, update
from meshard.ops.array import dynamic as _rows  # noqa: F401  (indices that are traced bind its rows)
from meshard.ops.engine.eager import EAGER
from meshard.ops.lax import elementwise as bits
from meshard.ops.linalg import contract
from meshard.ops.linalg import norms as matrix
from meshard.ops.made import repeats
from meshard.ops.nn import functions as nn
from meshard.ops.reductions import composed, moments, partition, reduce, scan, sets, sort
from meshard.runtime.doors import install
from meshard.runtime.moving.make import device_put
from meshard.runtime.moving.place import moved_to

_METHODS: dict[str, Callable[..., Any]] = {
    "all": reduce.all,
    "any": reduce.any,
    "argmax": reduce.argmax,
    "argmin": reduce.argmin,
    "apply_at": update.apply_at,
    "argpartition": partition.argpartition,
    "argsort": sort.argsort,
    "asarray": create.asarray,
    "astype": elementwise.astype,
    "choose": composed.choose,
    "clip": elementwise.clip,
    "compress": sets.compress,
    "conj": elementwise.conjugate,
    "copy": create.copy,
    "cumprod": scan.cumprod,
    "cumsum": scan.cumsum,
    "device_put": device_put,
    "diagonal": matrix.diagonal,
    "divmod": elementwise.divmod,
    "dot": contract.dot,
    "get_at": update.get_at,
    "getitem": index.getitem,
    "imag": elementwise.imag,
    "matmul": contract.matmul,
    "matrix_transpose": shape.matrix_transpose,
    "max": reduce.max,
    "mean": moments.mean,
    "min": reduce.min,
    "nonzero": nonzero.nonzero,
    "partition": partition.partition,
    "prod": reduce.prod,
    "ptp": reduce.ptp,
    "ravel": shape.ravel,
    "real": elementwise.real,
    "repeat": repeats.repeat,
    "reshape": shape.reshape,
    "round": elementwise.round,
    "searchsorted": sort.searchsorted,
    "softmax": nn.softmax,
    "sort": sort.sort,
    "squeeze": shape.squeeze,
    "std": moments.std,
    "sum": reduce.sum,
    "swapaxes": shape.swapaxes,
    "take": take.take,
    "trace": matrix.trace,
    "to_device": partial(moved_to, what="to_device"),
    "transpose": shape.transpose,
    "update_at": update.update_at,
    "var": moments.var,
    "view": bits.view,
}
install(EAGER, _METHODS)
