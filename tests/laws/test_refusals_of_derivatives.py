"""Each refusal of the transformations is raised by some call, and its message is read.

The messages are found in the source: the longest piece of each that is the same whatever is
refused. Each must be in what some wrong call says.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import checkpoint_policies, lax
from meshard.errors import MeshardError
from meshard.transforms import derivatives
from tests.laws.test_derivatives_against_jax import OURS
from tests.misuses import MISUSES
from tests.test_custom_rules import REFUSED
from tests.transformed_calls import CALLS

ROOT = Path(derivatives.__file__).parents[1]
ROOMS = ("derivatives", "remat", "custom")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _ruled(rule: Callable[..., Any]) -> Any:
    f = meshard.custom_jvp(lambda x: x * 2)
    f.defjvp(rule)
    return f


def _way_back(back: Callable[..., Any]) -> Any:
    f = meshard.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (x * 2, x), back)
    return f


def _captured() -> Any:
    def outer(y: Any) -> Any:
        f = meshard.custom_jvp(lambda x: x * y)
        f.defjvp(lambda p, t: (f(*p), t[0] * y))
        return f(y)

    return meshard.grad(outer)(2.0)


def _by_name() -> Any:
    return meshard.custom_jvp(lambda x, *, y: x)(1.0, y=2.0)


def _of_no_argument() -> Any:
    return meshard.custom_jvp(lambda x: x, nondiff_argnames=["y"])


def _followed_elsewhere() -> Any:
    f = meshard.custom_vjp(lambda x, n: x * n, nondiff_argnums=(1,))
    f.defvjp(lambda x, n: (x, n), lambda n, kept, g: (g,))
    return meshard.grad(lambda n: f(1.0, n))(2.0)


MORE: list[Callable[[], Any]] = [
    lambda: meshard.grad(lambda x: x, reduce_axes=("i",))(1.0),
    lambda: meshard.grad(lambda x, y: x, argnums=(0, 0))(1.0, 2.0),
    lambda: meshard.grad(lambda x: x)("a"),
    lambda: meshard.grad(lambda x: complex(x).real * x)(1.0),
    lambda: meshard.grad(lambda x: x.tolist() * x)(1.0),
    lambda: meshard.grad(lambda x: mnp.linalg.eig(x)[1].real.sum())(np.eye(2)),
    lambda: meshard.grad(_ruled(lambda p, t: (p[0] * 2, (t[0], t[0]))))(1.0),
    lambda: meshard.grad(_ruled(lambda p, t: (p[0] * 2, t[0] ** 2)))(1.0),
    lambda: meshard.grad(_ruled(lambda p, t: (p[0] * 2, t[0].astype("float32"))))(mnp.ones(())),
    lambda: meshard.grad(lambda d: _way_back(lambda kept, g: ({"b": g},))(d["a"]))({"a": 1.0}),
    lambda: meshard.jvp(lambda x: x, (1.0,), [1.0]),
    lambda: meshard.grad(lambda x: lax.fori_loop(0, mnp.asarray(3), lambda i, y: y * x, x))(1.0),
    lambda: meshard.grad(meshard.remat(lambda x: x, static_argnums=3))(1.0),
    lambda: meshard.grad(
        meshard.remat(mnp.sin, policy=lambda *_, **__: checkpoint_policies.dots_saveable)  # type: ignore[arg-type,return-value]
    )(1.0),
    lambda: meshard.custom_jvp(lambda x: x)(1.0, 2.0),
    _captured,
    _by_name,
    _of_no_argument,
    _followed_elsewhere,
]


def _pieces(message: ast.expr) -> str:
    """Return the longest piece of a message that is the same in all cases."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    texts = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return max(texts, key=len, default="")


def refusals() -> Iterator[tuple[str, str]]:
    """Yield each refusal in the source: where it is, and a piece of its message."""
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    text = _pieces(node.exc.args[0])
                    if len(text) > 15:
                        yield f"{room}/{path.name}:{node.lineno}", text


@pytest.fixture(scope="module")
def messages() -> list[str]:
    calls: list[Callable[[], Any]] = [*MORE, *(call for _, _, call in REFUSED.values())]
    calls += [lambda f=f: f(OURS) for f in (*MISUSES.values(), *CALLS.values())]
    found = []
    for call in calls:
        try:
            with np.errstate(all="ignore"):
                call()
        except MeshardError as error:
            found.append(str(error))
        except Exception:
            continue
    return found


def test_each_refusal_is_raised_by_some_call(messages: list[str]) -> None:
    found = dict(refusals())
    assert len(found) > 40
    assert {at: text for at, text in found.items() if not any(text in m for m in messages)} == {}


def test_messages_are_sentences(messages: list[str]) -> None:
    for message in messages:
        first = message.partition("\nSee https")[0]
        assert first.endswith((".", "?")), first
        assert len(first) > 40, first
