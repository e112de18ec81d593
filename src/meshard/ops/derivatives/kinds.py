"""What the derivative of an operation can be.

In: operands, results, parameters, tangents or cotangents, all of them values at hand. Out: tangents
of the results, or cotangents of the operands, made of operations, so that they are sharded, traced
and differentiated like everything else. None stands for a tangent or cotangent that is zero.

The pairing is that of JAX: ``Re(sum(g * t))``, without a conjugate. So what pulls back through a
holomorphic function multiplies by its derivative.

Cotangents made to fit: summed over what was broadcast on the way.

In: a cotangent and the value that it belongs to. Out: one of that value's shape and dtype; and, in
the body of a `shard_map`, summed over the axes over which the value is the same. A value is widened
without a word where it meets one that varies over more axes; the sum is the transpose of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from meshard.ops.array import create
from meshard.ops.dtypes.laws import is_float
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind, current
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayType


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an array or number."""
    return () if isinstance(x, (bool, int, float, complex)) else tuple(x.shape)


def dtype_of(x: Any) -> np.dtype[Any]:
    """Return the dtype of an array, or that which a number takes."""
    return as_array(x).dtype if isinstance(x, (bool, int, float, complex)) else x.dtype


def is_differentiable(x: Any) -> bool:
    """Whether a value is a float or complex number, or an array of them."""
    if isinstance(x, (bool, int)):
        return False
    dtype = x.dtype if not isinstance(x, (float, complex)) else None
    return dtype is None or is_float(dtype) or dtype.kind == "c"


def in_body(x: Any) -> bool:
    """Whether a value is one of a `shard_map` body."""
    return isinstance(x, Traced) and not isinstance(x.aval, ArrayType)


def varying(x: Any) -> frozenset[str]:
    """Return the axes over which a value varies; none outside of `shard_map` bodies."""
    found: frozenset[str] = x.aval.vma if in_body(x) else frozenset()
    return found


def shrunk(g: Any, like: Any) -> Any:
    """Return a cotangent in the shape and dtype of the value that it belongs to."""
    shape, wanted = shape_of(like), dtype_of(like)
    if isinstance(g, (bool, int, float, complex)):
        g = as_array(g)
    if g.shape != shape:
        g = _summed(g, shape)
    return converted(g, wanted)


def narrowed(g: Any, axes: frozenset[str]) -> Any:
    """Return the sum of a cotangent over mesh axes over which its value is the same."""
    return current().narrowed(g, tuple(sorted(axes)))


def converted(g: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value in another dtype; of complex numbers for reals the real part."""
    if g.dtype.kind == "c" and dtype.kind != "c":
        g = bind("real", g)
    return g if g.dtype == dtype else bind("astype", g, dtype=dtype)


def _summed(g: Any, shape: tuple[int, ...]) -> Any:
    """Return a value summed over the dims that broadcasting a shape has made, or made longer."""
    extra = g.ndim - len(shape)
    if extra < 0:  # the cotangent of fewer dims stands for all
        return expanded(g, shape)
    rest = tuple([d for d in range(extra, g.ndim) if g.shape[d] != 1 and shape[d - extra] == 1])
    if rest:
        g = bind("sum", g, axis=rest, keepdims=True, dtype=None)
    if extra:
        g = bind("sum", g, axis=tuple(range(extra)), keepdims=False, dtype=None)
    return g if g.shape == shape else expanded(g, shape)


def expanded(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a value broadcast to a shape."""
    return x if shape_of(x) == shape else bind("broadcast_to", as_array(x), shape=shape)


def tangent_like(t: Any, like: Any) -> Any:
    """Return a tangent in the shape and dtype of the result that it belongs to."""
    return converted(expanded(as_array(t), shape_of(like)), dtype_of(like))


Values = Sequence[Any]
_NUMBERS = (bool, int, float, complex)


def _array(x: Any) -> Any:
    return as_array(x) if isinstance(x, _NUMBERS) else x


@final
@dataclass(frozen=True, slots=True)
class Site:
    """One operation that has run.

    Attributes:
        name: the operation.
        params: its parameters.
        operands: what it was given: arrays, and Python numbers.
        results: what it returned.
        again: does the same to other operands, and returns a list of results.
        names: what the operands are called, for what is said of their gradients; empty for those
            without a name.
    """

    name: str
    params: Mapping[str, Any]
    operands: Values
    results: Values
    again: Callable[..., list[Any]]
    names: Sequence[str] = ()

    def of_arrays(self) -> Site:
        """Return the same with arrays for Python numbers."""
        if not any(isinstance(x, _NUMBERS) for x in self.operands):
            return self
        return replace(self, operands=[_array(x) for x in self.operands])

    @property
    def x(self) -> Any:
        """The first operand."""
        return self.operands[0]

    @property
    def y(self) -> Any:
        """The first result."""
        return self.results[0]


class Derivative:
    """The base of all kinds.

    Attributes:
        apart: whether it finds the cotangent of each operand by itself, so that nothing is computed
            twice if it is asked for one after another.
        kept_alone: whether it reads what was kept of the operation, neither operands nor results,
            and takes None for cotangents that are zero.
    """

    __slots__ = ()
    apart: ClassVar[bool] = False
    kept_alone: ClassVar[bool] = False

    def push(self, site: Site, tangents: Values) -> list[Any]:
        """Return the tangents of the results, given those of the operands."""
        raise NotImplementedError

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        """Return the cotangents of the operands that are wanted, given those of the results."""
        raise NotImplementedError


@final
class Flat(Derivative):
    """The results do not change where they are defined, or are not numbers that could."""

    __slots__ = ()


FLAT = Flat()


@final
@dataclass(frozen=True, slots=True)
class Refused(Derivative):
    """There is no derivative.

    Attributes:
        why: the reason, and what to do instead: the end of a message.
    """

    why: str


Factor = Callable[..., Any] | float | None


@final
@dataclass(frozen=True, slots=True)
class Partials(Derivative):
    """An elementwise operation with one result.

    Attributes:
        factors: for each operand the partial derivative: a number, or a function of ``(result,
            *operands, **params)`` that returns a value that broadcasts, or bools that say where it
            is one and where zero. None: the result does not depend on it smoothly.
    """

    factors: tuple[Factor, ...]
    apart: ClassVar[bool] = True

    def _part(self, site: Site, number: int, g: Any) -> Any:
        make = self.factors[number]
        factor = make(site.y, *site.operands, **site.params) if callable(make) else make
        return times(g, factor)

    def push(self, site: Site, tangents: Values) -> list[Any]:
        """Return the sum of all tangents, each times its factor."""
        parts = [
            self._part(site, i, t)
            for i, t in enumerate(tangents)
            if t is not None and self.factors[i] is not None
        ]
        return [tangent_like(total(parts), site.y) if parts else None]

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        """Return the cotangent times each factor, summed over dims that were broadcast."""
        (g,) = cotangents
        return [
            shrunk(self._part(site, i, g), x) if want and self.factors[i] is not None else None
            for i, (x, want) in enumerate(zip(site.operands, wanted, strict=True))
        ]


@final
@dataclass(frozen=True, slots=True)
class Linear(Derivative):
    """An operation that is linear in some operands.

    Attributes:
        transpose: from the site, the number of an operand and the cotangents to the cotangent of
            that operand, perhaps before it is summed over dims that were broadcast.
        of: the operands in which it is linear; None for all.
        together: whether it is linear in these as one, so that it makes the tangent of all
            tangents; else it is linear in each while the others stay.
    """

    transpose: Callable[[Site, int, Values], Any]
    of: tuple[int, ...] | None = None
    together: bool = True
    apart: ClassVar[bool] = True

    def _own(self, site: Site) -> Sequence[int]:
        return range(len(site.operands)) if self.of is None else self.of

    def push(self, site: Site, tangents: Values) -> list[Any]:
        """Return what the operation makes of tangents."""
        own = [i for i in self._own(site) if tangents[i] is not None]
        if not own:
            return [None] * len(site.results)
        given = list(site.operands)
        if self.together:
            for i in self._own(site):
                t = tangents[i]
                given[i] = _zero(given[i]) if t is None else t
            return site.again(*given)
        rows = []
        for i in own:
            rows.append(site.again(*[tangents[i] if k == i else x for k, x in enumerate(given)]))
        return [total(column) for column in zip(*rows, strict=True)]

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        """Return what the transposed operation makes of cotangents."""
        own, whole = self._own(site), site.of_arrays()
        found: list[Any] = [None] * len(site.operands)
        for i in own:
            if wanted[i]:
                g = self.transpose(whole, i, cotangents)
                found[i] = None if g is None else shrunk(g, site.operands[i])
        return found


@final
@dataclass(frozen=True, slots=True)
class Tangents(Derivative):
    """An operation with a formula for tangents, which is transposed to find cotangents.

    Attributes:
        formula: from the site and the operands' tangents, of which some may be None, to the
            tangents of the results. It is linear in these.
    """

    formula: Callable[[Site, Values], Sequence[Any]]

    def push(self, site: Site, tangents: Values) -> list[Any]:
        """Return what the formula gives."""
        return [
            None if t is None else tangent_like(t, y)
            for t, y in zip(self.formula(site.of_arrays(), tangents), site.results, strict=True)
        ]


@final
@dataclass(frozen=True, slots=True)
class Pulls(Derivative):
    """An operation with formulas for both ways.

    Attributes:
        forward: from the site and the operands' tangents to those of the results.
        backward: from the site, cotangents and the operands that are wanted to their cotangents.
    """

    forward: Callable[[Site, Values], Sequence[Any]]
    backward: Callable[[Site, Values, Sequence[bool]], Sequence[Any]]

    def push(self, site: Site, tangents: Values) -> list[Any]:
        """Return what the forward formula gives."""
        return [
            None if t is None else tangent_like(t, y)
            for t, y in zip(self.forward(site.of_arrays(), tangents), site.results, strict=True)
        ]

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        """Return what the backward formula gives."""
        found = self.backward(site.of_arrays(), cotangents, wanted)
        return [
            None if g is None or not want else shrunk(g, x)
            for g, x, want in zip(found, site.operands, wanted, strict=True)
        ]


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Return zeros like an array or a number."""
    return create.zeros_like(_array(x), dtype=dtype)


def _zero(x: Any) -> Any:
    """Return zeros like a value; for a Python number one that leaves dtypes to the others."""
    return type(x)(0) if isinstance(x, _NUMBERS) else zeros_like(x)


def times(g: Any, factor: Any) -> Any:
    """Return a product; with bools for factors the elements where they are true."""
    if type(factor) in (int, float) and factor == 1:
        return g
    dtype = getattr(factor, "dtype", None)
    if dtype is not None and dtype.kind == "b":
        return bind("where", factor, g, 0)
    return bind("multiply", g, factor)


def total(parts: Sequence[Any]) -> Any:
    """Return the sum of some values, of which some may be None."""
    found = None
    for part in parts:
        if part is not None:
            found = part if found is None else bind("add", found, part)
    return found
