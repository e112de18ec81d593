"""The table of distributions: what one has of its own is a row, the rest is here.

In: a header, which is a function's name, parameters and first sentence, and a `Distribution`, which
says how its numbers come about. Out: the public function, with its checks, its documentation, its
samplers and rows.

A formula makes numbers of uniform ones, and there are two ways to run it. With numbers as
parameters it runs while each tile is drawn. With arrays it is an elementwise row on uniform
numbers that are drawn where the parameters are laid out. Both give the same numbers, so that it
does not matter whether a parameter is a Python number, an array, or traced.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, final

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import shape_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import as_dtype, is_float
from meshard.ops.engine.later import Advised, is_array, is_traced, when_laid_out
from meshard.ops.random.keys import DOMAINS
from meshard.ops.random.tiles import (
    Draw,
    Request,
    asked_dtype,
    has_sampler,
    refuse_place,
    register_sampler,
)
from meshard.ops.row import Dtype, Op, register
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_sharding, placed
from meshard.runtime.types import Block, dtype_name

P = ParamSpec("P")


# dtypes


@final
@dataclass(frozen=True, slots=True)
class DtypeLaw:
    """Which dtypes a function's result may have.

    Attributes:
        kinds: what it may be, as messages say it.
        takes: whether a dtype is one.
        default: the dtype where none is asked for; None for the default float.

    >>> INTEGER("int8", "randint"), INTEGER(None, "randint")
    (dtype('int8'), dtype('int64'))
    """

    kinds: str
    takes: Callable[[Dtype], bool]
    default: Dtype | None = None

    def __call__(self, dtype: Any, what: str) -> Dtype:
        """Return the dtype of a result.

        Raises:
            ArgumentError: if it is of another kind.
        """
        default = dtype is None and self.default is not None
        wanted: Dtype = as_dtype(self.default if default else dtype)
        if not self.takes(wanted):
            raise ArgumentError(
                f"dtype argument to {what} must be {self.kinds}, got {wanted.name}."
            )
        return wanted


def _holds_floats(dtype: Dtype) -> bool:
    # The one float dtype of powers of two alone can hold no distribution.
    return dtype.kind == "f" or (is_float(dtype) and dtype != ml_dtypes.float8_e8m0fnu)


FLOAT = DtypeLaw("a float dtype", _holds_floats)
FLOAT_OR_COMPLEX = DtypeLaw(
    "a float or complex dtype", lambda dtype: dtype.kind == "c" or _holds_floats(dtype)
)
INTEGER = DtypeLaw("an int dtype", lambda dtype: dtype.kind in "iu", np.dtype(np.int64))
UNSIGNED = DtypeLaw("an unsigned int dtype", lambda dtype: dtype.kind == "u", np.dtype(np.uint64))
ANY = DtypeLaw("a dtype", lambda dtype: True)
SIGNED = DtypeLaw("a dtype that holds -1", lambda dtype: dtype.kind not in "ub", np.dtype(np.int64))
BOOL = DtypeLaw("a bool dtype", lambda dtype: dtype.kind == "b", np.dtype(np.bool_))


# parameters, shapes and places


def parameter(what: str, name: str, given: Any) -> Any:
    """Return a distribution's parameter: a Python float, or an array of real numbers.

    Raises:
        DtypeError: if it is not a real number.
    """
    if isinstance(given, (int, float, np.integer, np.floating, np.bool_)):
        return float(given)
    wanted = f"{what}: {name} must be a real number or an array of such"
    try:
        x = as_array(given)
    except DtypeError as error:
        raise DtypeError(f"{wanted}; {error}") from error
    if x.dtype.kind not in "biu" and not is_float(x.dtype):
        raise DtypeError(f"{wanted}; its dtype is {dtype_name(x.dtype)}.")
    return x


def with_dims(what: str, name: str, given: Any, least: int = 1) -> Any:
    """Return a parameter that is an array of at least that many dims.

    Raises:
        ShapeError: if it has fewer.
    """
    ndim = 0 if isinstance(given, float) else given.ndim
    if ndim < least:
        raise ShapeError(f"{what} requires {name}.ndim >= {least}, got {name}.ndim == {ndim}.")
    return given


def result_shape(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape asked for; without one, that of the parameters together.

    Raises:
        ShapeError: if the parameters do not broadcast to it.
    """
    shapes = {n: tuple(p.shape) for n, p in parameters.items() if is_array(p)}
    sizes = None if shape is None and parameters else shape_of(shape, what)
    if not shapes:
        return sizes or ()
    given = list(shapes.values()) + ([] if sizes is None else [sizes])
    try:
        found = np.broadcast_shapes(*given)
    except ValueError:
        found = None
    if found is None or (sizes is not None and found != sizes):
        listed = ", ".join(f"{n} has {s}" for n, s in shapes.items())
        asked = "" if sizes is None else f" and shape={sizes} is asked for"
        raise ShapeError(
            f"{what}: incompatible shapes for broadcasting: {listed}{asked}. The parameters must "
            "broadcast to the result's shape."
        )
    return found


def finished(what: str, result: Any, place: Any, dtype: Dtype | None = None) -> Array:
    """Return a computed result in its dtype, laid out as asked."""
    if dtype is not None and result.dtype != dtype:
        result = result.astype(dtype)
    if isinstance(result, Traced):
        refuse_place(what, place)
    return placed(result, as_sharding(place, what))


def check_mode(what: str, mode: str | None) -> None:
    """Refuse a mode that is none of JAX's; all give the full precision here."""
    if mode not in (None, "low", "high"):
        raise ArgumentError(f"{what}: got mode={mode!r}, expected 'high' or 'low'.")


# formulas


def to_dtype(values: Any, dtype: Dtype, *arguments: Any) -> Block:
    """Convert computed float64 numbers; to integers with the ends of their range as limits."""
    found = np.asarray(values)
    if dtype.kind not in "iu" or found.dtype.kind != "f":
        return found.astype(dtype, copy=False)
    info = np.iinfo(dtype)
    whole = found.astype(dtype)
    whole = np.where(found >= float(info.max), info.max, whole)
    return np.where(found <= float(info.min), info.min, whole).astype(dtype, copy=False)


def elementwise_row(
    name: str, function: Callable[..., Any], arity: int, cast: Callable[..., Any] = to_dtype
) -> None:
    """Add an elementwise row whose results have the dtype of the parameter ``dtype``."""

    def kernel(*operands: Any, dtype: Dtype) -> Block:
        with np.errstate(all="ignore"):
            return np.asarray(cast(function(*operands), dtype, *operands))

    rule = ", ".join(["..."] * arity) + " -> ..."
    register(Op(f"random_{name}", rule, kernel, dtypes=asked_dtype))


@final
@dataclass(frozen=True, slots=True)
class Formula:
    """A distribution's numbers as a function of uniform ones and of its parameters.

    Attributes:
        function: takes blocks of uniform numbers, and then the parameters.
        uniforms: how many uniform numbers one element takes.
        cast: converts computed numbers to a dtype; it takes the function's arguments besides.
    """

    function: Callable[..., Any]
    uniforms: int = 1
    cast: Callable[..., Any] = to_dtype

    def register(self, name: str, parameters: int) -> None:
        """Add the sampler, and the row for parameters that are arrays."""
        assert name in DOMAINS, f"{name}: give it a number, at the end of ops/random/keys.DOMAINS"
        function, count, cast = self.function, self.uniforms, self.cast

        def sampler(draw: Draw, out: Block, *constants: float) -> None:
            operands = (*[draw.uniforms(out.size, i) for i in range(count)], *constants)
            out[...] = cast(function(*operands), out.dtype, *operands)

        register_sampler(name, sampler)
        if parameters:
            elementwise_row(f"{name}_of", function, count + parameters, cast)

    def transformed(self, request: Request, key: Any, *parameters: Any) -> Array:
        """Draw uniform numbers where the result is best laid out, and transform them."""
        beside = request._replace(key=key).beside(*parameters)
        numbers = [beside.uniforms(i) for i in range(self.uniforms)]
        result = bind(f"random_{request.what}_of", *numbers, *parameters, dtype=request.dtype)
        return finished(request.what, result, request.place)


@final
@dataclass(frozen=True, slots=True)
class _Transformed(Advised):
    """A formula's numbers, from the key and the parameters.

    Attributes:
        formula: the formula.
        request: what is asked for.
    """

    formula: Formula
    request: Request

    def __call__(self, *operands: Any) -> Any:
        """Return the numbers."""
        return self.formula.transformed(self.request, *operands)


# rows


@final
@dataclass(frozen=True, slots=True)
class ShapeLaw:
    """How the shape asked for and those of parameters make the result's.

    Attributes:
        text: what the argument ``shape`` is.
        meet: from the function's name, the shape asked for and the parameters to the result's.
    """

    text: str
    meet: Callable[[str, Any, Mapping[str, Any]], tuple[int, ...]]


TO_SHAPE = ShapeLaw("the result's shape, to which the parameters broadcast", result_shape)


@final
@dataclass(frozen=True, slots=True)
class Distribution:
    """What one distribution has of its own: a decorator of its header.

    The header is a function without a body. Its name is the streams' domain too. It has the
    arguments ``key`` and ``shape``, perhaps ``dtype``, ``mode`` and ``out_sharding``, and the
    parameters. A sampler of the same name draws where all parameters are numbers.

    Attributes:
        formula: makes numbers of uniform ones; it adds the sampler.
        parameters: what each parameter is, by name and in the formula's order.
        example: the parameters in an example, and the shape where there is no ``out_sharding``.
        dtypes: the dtypes that the result may have.
        shapes: how the result's shape is found.
        sample: what makes the array otherwise: by operations, from a `Request` and the parameters.
            Where there is a formula, it makes the complex numbers.
        accept: checks one parameter, from the function's name, its name and its value.
    """

    formula: Formula | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    example: str = ""
    dtypes: DtypeLaw = FLOAT
    shapes: ShapeLaw = TO_SHAPE
    sample: Callable[..., Any] | None = None
    accept: Callable[[str, str, Any], Any] = parameter

    def __call__(self, header: Callable[P, None]) -> Callable[P, Array]:
        """Return the public function."""
        what, check, signature = header.__name__, checked(header), inspect.signature(header)
        names = tuple(signature.parameters)
        defaults = {
            n: p.default for n, p in signature.parameters.items() if p.default is not p.empty
        }
        if self.formula is not None:
            self.formula.register(what, len(self.parameters))

        @functools.wraps(header)
        def function(*args: P.args, **kwargs: P.kwargs) -> Array:
            check(*args, **kwargs)
            return self._draw(what, {**defaults, **dict(zip(names, args, strict=False)), **kwargs})

        function.__doc__ = self._documentation(header, signature)
        function.__annotations__ = {**header.__annotations__, "return": Array}
        signature = signature.replace(return_annotation="Array")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def _draw(self, what: str, given: Mapping[str, Any]) -> Array:
        if "mode" in given and "mode" not in self.parameters:
            check_mode(what, given["mode"])
        dtype = self.dtypes(given.get("dtype"), what)
        values = {n: self.accept(what, n, given[n]) for n in self.parameters}
        shape = self.shapes.meet(what, given["shape"], values)
        key, place, operands = given["key"], given.get("out_sharding"), tuple(values.values())
        formula = None if self.sample is not None and dtype.kind == "c" else self.formula
        sampled = formula is self.formula and has_sampler(what)
        if sampled and not any(map(is_array, operands)):
            return Request(what, key, shape, dtype, place).drawn(what, *operands)
        if is_traced(key, *operands):
            refuse_place(what, place)
        request = Request(what, key, shape, dtype, as_sharding(place, what))
        if formula is not None:
            found: Array = when_laid_out(what, _Transformed(formula, request), key, *operands)
            return found
        assert self.sample is not None
        return finished(what, self.sample(request, *operands), place, dtype)

    def _documentation(self, header: Callable[..., Any], signature: inspect.Signature) -> str:
        arguments = signature.parameters
        default = self.dtypes.default or "the default float"
        together = "; by default that of the parameters" * (arguments["shape"].default is None)
        place = "where the key and the parameters are" if self.parameters else "the key's place"
        known = {
            "key": "one key, typed or plain",
            "shape": f"{self.shapes.text}{together}" if self.parameters else "the global shape",
            "dtype": f"{self.dtypes.kinds}; {default} by default",
            "mode": '``"low"`` or ``"high"``, as in JAX; all numbers are precise here',
            "unroll": "accepted as in JAX; there is no loop to unroll",
            "out_sharding": f"how the result is laid out; None for {place}",
            **self.parameters,
        }
        refused = "``dtype``" if "dtype" in arguments else "``mode``"
        real = ", or a parameter is not made of real numbers" if self.parameters else ""
        broadcast = ", or a parameter does not broadcast to it" if self.parameters else ""
        raises = {
            "ArgumentError": f"if {refused} is of another kind",
            "DtypeError": f"if ``key`` is not a key{real}",
            "ShapeError": f"if ``shape`` is not a shape{broadcast}",
        }
        call = f"random.{header.__name__}(key, {self.example}".removesuffix(", ")
        if "out_sharding" in arguments:
            raises["ShardingError"] = "if the result cannot be laid out so"
            call += ', shape=(8,), out_sharding=P("i"))'
        else:
            draw = f"lambda key: {call})"
            call = f'meshard.jit(\n...         {draw}, out_shardings=P("i")\n...     )(key)'
        return _DOCUMENTATION.format(
            text=inspect.cleandoc(header.__doc__ or ""),
            arguments=_items({n: known[n] for n in arguments}),
            raises=_items(raises),
            call=call,
        )


_DOCUMENTATION = """{text}

Args:
{arguments}

Raises:
{raises}

>>> import meshard
>>> from meshard import P, random
>>> key = random.key(0)
>>> with meshard.make_mesh((1,), ("i",)):
...     x = {call}
>>> x.sharding.spec
P('i',)
"""


def _items(items: Mapping[str, str]) -> str:
    """Return a docstring's list of names and what they are."""
    lines = [f"    {name}: {text}." for name, text in items.items()]
    return "\n".join(
        line if len(line) <= 92 else textwrap.fill(line, 92, subsequent_indent=" " * 8)
        for line in lines
    )
