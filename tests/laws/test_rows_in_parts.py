"""A kernel that does not learn which part it computes gives parts of what it gives for the whole.

Sharding and segments rely on it: they split each factor of a row's rule that need not be whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meshard.numpy as mnp
from meshard.errors import MeshardError
from meshard.ops.engine.decide import lasting_rule
from meshard.ops.row import REGISTRY, Op
from tests.sites import Operation, operations

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def rule_of(op: Op, site: Operation) -> Any:
    """Return the rule of a call; None if its operands do not fit it."""
    types = [mnp.asarray(x)._type if isinstance(x, np.ndarray) else type(x) for x in site.operands]
    try:
        return lasting_rule(op, types, dict(site.params))
    except MeshardError:
        return None


def divisible(rule: Any) -> Iterator[tuple[str, list[int | None], list[int]]]:
    """Yield each factor that may be split, and its dim in operands and results."""
    terms = [*rule.inputs, *rule.outputs]
    for factor in rule.sizes.keys() - rule.whole:
        places = [[i for i, dim in enumerate(term) if factor in dim] for term in terms]
        alone = all(len(dim) == 1 for term in terms for dim in term if factor in dim)
        if rule.sizes[factor] > 1 and alone and all(len(p) < 2 for p in places):
            dims = [p[0] if p else None for p in places]
            given, made = dims[: len(rule.inputs)], dims[len(rule.inputs) :]
            if any(d is not None for d in given) and None not in made:
                yield factor, given, made  # type: ignore[misc]


def test_parts_are_parts_of_the_whole() -> None:
    tried = set()
    for name, sites in operations().items():
        op = REGISTRY[name]
        if not isinstance(op, Op) or op.local is not None or "accumulator" in _options(op):
            continue
        for site in sites:
            rule = rule_of(op, site)
            for factor, given, made in divisible(rule) if rule is not None else ():
                half = rule.sizes[factor] // 2
                whole, *parts = (
                    _computed(op, site, given, part)
                    for part in (slice(None), slice(0, half), slice(half, None))
                )
                for k, dim in enumerate(made):
                    joined = np.concatenate([p[k] for p in parts], dim)
                    np.testing.assert_allclose(joined, whole[k], 1e-9, 1e-9, err_msg=str(site))
                tried.add(name)
    assert len(tried) > 90


def _options(op: Op) -> tuple[str, ...]:
    """Return the names of what the engine gives to a kernel besides the parameters."""
    return ("accumulator",) if op.partial and op.partial.accumulates == "wide" else ()


def _computed(op: Op, site: Operation, dims: list[int | None], part: slice) -> Any:
    operands = [
        x[(*[slice(None)] * dim, part)] if dim is not None and isinstance(x, np.ndarray) else x
        for x, dim in zip(site.operands, dims, strict=True)
    ]
    found = op.kernel(*operands, **dict(site.params))
    return found if isinstance(found, tuple) else (found,)
