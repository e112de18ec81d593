"""Calls of every public array function with odd values, enumerated from the public surface.

`cases` yields each function of the array modules and each method of `Array` with a valid call,
whose arguments come from `BY_NAME`, by parameter name, or from `OVERRIDES` where a function needs
something else. `Case.call` replaces one argument by one of `ODD`, and `fault` says what is wrong
with what came of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard import nn, random
from meshard.errors import MeshardError
from meshard.runtime.array.array import Array
from meshard.runtime.array.at import Place
from meshard.runtime.array.operators import ArrayOperators
from tests.tracebacks import internal_frames, watched

MODULES = (mnp, mnp.linalg, mnp.fft, lax, nn, random)
NOT_TRIED = {"block_until_ready", "delete", "at", "save_html", "save_svg", "choose"}
"""Methods of `Array` that take no arguments, write files, would spoil the array for others, or
need integers."""


def _cyclic() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(20_000):
        found = [found]
    return found


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-1": lambda: -1,
    "99": lambda: 99,
    "10**30": lambda: 10**30,
    "-10**30": lambda: -(10**30),
    "1j": lambda: 1j,
    "True": lambda: True,
    "'x'": lambda: "x",
    "''": lambda: "",
    "b'x'": lambda: b"x",
    "{}": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{1, 2}": lambda: {1, 2},
    "[]": list,
    "()": lambda: (),
    "[None]": lambda: [None],
    "['x']": lambda: ["x"],
    "[0.5]": lambda: [0.5],
    "[10**30]": lambda: [10**30],
    "[0, 0]": lambda: [0, 0],
    "ragged": lambda: [[1], [1, 2]],
    "cyclic": _cyclic,
    "deep": _deep,
    "object()": object,
    "...": lambda: ...,
    "slice(None)": lambda: slice(None),
    "lambda": lambda: lambda *args: None,
    "generator": lambda: (i for i in (0, 1)),
    "int": lambda: int,
    "dtype": lambda: np.dtype("float32"),
    "np.array(0)": lambda: np.array(0),
    "np.array([0])": lambda: np.array([0]),
    "np.array('x')": lambda: np.array("x"),
    "np.array(object)": lambda: np.array([None, "x"], dtype=object),
    "np.datetime64": lambda: np.datetime64("2020-01-01"),
    "np.float64(1)": lambda: np.float64(1),
    "Array 0-d": lambda: mnp.asarray(1),
    "Array bool": lambda: mnp.ones((2, 1, 3), "bool"),
    "Array complex": lambda: mnp.ones((3,), "complex64"),
    "Array empty": lambda: mnp.zeros((0, 3)),
    "keys": lambda: random.split(random.key(0), 3),
}

SQUARE = np.eye(4) * 3 + 0.25
LINE = np.arange(4.0)
WHOLE = np.arange(4)


def square() -> Any:
    """Return a positive definite matrix."""
    return mnp.asarray(SQUARE)


def integers() -> Any:
    """Return a matrix of small integers."""
    return mnp.asarray(WHOLE.reshape(4, 1) + WHOLE)


def line() -> Any:
    """Return four floats in rising order."""
    return mnp.asarray(LINE)


def whole() -> Any:
    """Return four integers in rising order."""
    return mnp.asarray(WHOLE)


def mask() -> Any:
    """Return which elements of `square` lie on the diagonal."""
    return mnp.asarray(SQUARE > 1)


def _named(make: Callable[[], Any], names: str) -> dict[str, Callable[[], Any]]:
    return dict.fromkeys(names.split(), make)


BY_NAME: dict[str, Callable[[], Any]] = {
    "type1": lambda: np.dtype("float32"),
    "type2": lambda: np.dtype("int8"),
    **_named(square, "a x x1 x2 y A m array operand object fp z ary arr element lhs rhs elems"),
    **_named(square, "init init_val b a1 a2 ar src keys xs update on_true on_false"),
    **_named(line, "ar1 ar2 v xp bins test_elements logits"),
    **_named(whole, "indices"),
    **_named(mask, "condition pred mask"),
    **_named(lambda: [square(), square()], "arrays operands tup"),
    **_named(lambda: mnp.ones((1, 4, 2, 2)), "query value"),
    **_named(lambda: 0, "axis dimension start_dimension axis1 start lower minval loc left seed"),
    **_named(lambda: 0, "data split_axis concat_axis source start_index padding_value"),
    **_named(lambda: 0, "destination init_values which min"),
    **_named(lambda: 1, "axis2 k n N num size shift kth d fill_value mode"),
    **_named(lambda: 2, "stop upper maxval scale right concentration indices_or_sections repeats"),
    **_named(lambda: 2, "num_classes slice_size limit_index max df dfnum dfden lam mean"),
    **_named(lambda: 3, "exponent_bits mantissa_bits"),
    **_named(lambda: 0.5, "q p beta"),
    **_named(lambda: 3, "deg M new_shape"),
    **_named(lambda: 0, "obj ind val vals"),
    **_named(line, "filt"),
    **_named(lambda: (4, 4), "shape new_sizes sizes slice_sizes dimensions limit_indices"),
    **_named(lambda: (0, 0), "start_indices"),
    **_named(lambda: (0, 1), "axes broadcast_dimensions permutation"),
    **_named(lambda: 0, "other values device args index"),
    **_named(lambda: (1, 2), "reps"),
    **_named(lambda: np.float64, "dtype new_dtype type arg1 from_"),
    **_named(lambda: np.complex128, "arg2 to"),
    **_named(lambda: np.int32, "index_dtype"),
    **_named(lambda: random.key(0), "key"),
    **_named(lambda: "x", "axis_name"),
    **_named(lambda: lambda x: x, "f true_fun false_fun function cond_fun pyfunc"),
    **_named(lambda: lambda i, x: x, "fn body_fun computation"),
}
"""A valid argument for each required parameter, by its name."""

Given = dict[str, Callable[[], Any]]


def _integers(*names: str) -> Given:
    return dict.fromkeys(names, integers)


OVERRIDES: dict[str, Given] = {
    # integers where others take floats
    **{
        f"{door}.{name}": _integers("x", "x1", "x2", "y", "operand")
        for door, names in {
            "numpy": "bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_not invert gcd lcm "
            "bitwise_left_shift bitwise_right_shift left_shift right_shift",
            "lax": "bitwise_and bitwise_or bitwise_xor bitwise_not clz population_count reduce_and "
            "reduce_or reduce_xor shift_left shift_right_arithmetic shift_right_logical",
        }.items()
        for name in names.split()
    },
    # other ranks
    "numpy.bincount": {"x": whole},
    "numpy.vander": {"x": line},
    "numpy.cumulative_sum": {"x": line},
    "numpy.cumulative_prod": {"x": line},
    **dict.fromkeys(
        ("numpy.cross", "numpy.linalg.cross"),
        dict.fromkeys(("a", "b", "x1", "x2"), lambda: mnp.ones((4, 3))),
    ),
    "numpy.linalg.outer": {"x1": line, "x2": line},
    "numpy.apply_along_axis": {
        "func1d": lambda: lambda v, *more: v * 2,
        "axis": lambda: 0,
    },
    "numpy.gradient": {"f": square, "varargs": lambda: 2.0},
    "numpy.unwrap": {"p": line},
    "numpy.apply_over_axes": {"func": lambda: mnp.sum, "axes": lambda: (0,)},
    "numpy.block": {"arrays": lambda: [square(), square()]},
    **{f"numpy.{name}": {"inplace": lambda: False} for name in ("put", "fill_diagonal", "place")},
    "numpy.put_along_axis": {
        "indices": lambda: mnp.zeros((4, 4), "int32"),
        "values": lambda: 1.5,
        "inplace": lambda: False,
    },
    "numpy.convolve": {"a": line, "v": line},
    "numpy.correlate": {"a": line, "v": line},
    "numpy.histogram2d": {"x": line, "y": line},
    "numpy.histogramdd": {"sample": square},
    "numpy.insert": {"values": lambda: 2.0, "axis": lambda: 0},
    "numpy.ix_": {"args": whole},
    "numpy.ldexp": {"x2": lambda: 2},
    "numpy.lexsort": {"keys": lambda: [line(), line()]},
    "numpy.matvec": {"x2": line},
    "numpy.vecmat": {"x1": line},
    "numpy.packbits": {"a": integers},
    "numpy.unpackbits": {"a": lambda: mnp.ones(3, "uint8")},
    "numpy.piecewise": {"condlist": lambda: [mask()], "funclist": lambda: [1.0]},
    **{
        f"numpy.{name}": dict.fromkeys(("a1", "a2", "u", "v", "p", "seq_of_zeros"), line)
        for name in ("polyadd", "polysub", "polymul", "polydiv", "polyder", "polyint", "poly")
    },
    "numpy.roots": {"p": line},
    "numpy.polyfit": {"x": line, "y": line},
    "numpy.ravel_multi_index": {
        "multi_index": lambda: [whole(), whole()],
        "dims": lambda: (4, 4),
        "mode": lambda: "clip",
    },
    "numpy.bitwise_count": _integers("x"),
    "numpy.linalg.tensorinv": {"ind": lambda: 1},
    "numpy.linalg.tensorsolve": {"b": line},
    "numpy.choose": {"a": lambda: mnp.asarray([0, 1]), "choices": lambda: [line()[:2], 3]},
    "numpy.compress": {"condition": lambda: mnp.asarray([True, False])},
    "numpy.dsplit": {"ary": lambda: mnp.ones((2, 2, 4))},
    "numpy.geomspace": {"start": lambda: 1},
    "numpy.iinfo": {"type": lambda: np.int8},
    "numpy.interp": {"x": line, "xp": line, "fp": line},
    "numpy.isdtype": {"dtype": lambda: np.dtype("int8"), "kind": lambda: "integral"},
    "numpy.moveaxis": {"source": lambda: 0, "destination": lambda: 1},
    "numpy.pad": {"pad_width": lambda: 1},
    "numpy.polyval": {"p": line},
    "numpy.result_type": {"arrays_and_dtypes": lambda: np.float32},
    "numpy.searchsorted": {"a": line},
    "numpy.select": {"condlist": lambda: [mask()], "choicelist": lambda: [square()]},
    "numpy.take_along_axis": {"indices": lambda: mnp.zeros((4, 4), "int32")},
    "numpy.einsum": {"subscripts": lambda: "ij->i", "operands": square},
    "numpy.fromfunction": {"function": lambda: lambda *at: sum(at)},
    "numpy.indices": {"dimensions": lambda: (2, 3)},
    "numpy.mask_indices": {"n": lambda: 3, "mask_func": lambda: mnp.triu},
    "numpy.where": {"x": square, "y": square},
    "numpy.multi_dot": {"arrays": lambda: [square(), square(), square()]},
    "lax.broadcast_in_dim": {"shape": lambda: (2, 4, 4), "broadcast_dimensions": lambda: (1, 2)},
    "lax.cond": {"pred": lambda: True, "operands": square},
    "lax.broadcast_like": {"arr": line, "like_arr": line},
    "lax.broadcast_to_rank": {"rank": lambda: 2},
    **{
        f"lax.{name}": {
            "lhs": lambda: mnp.ones((1, 2, 5)),
            "rhs": lambda: mnp.ones((4, 2, 3)),
            "window_strides": lambda: (1,),
            "padding": lambda: [(1, 1)],
            "lhs_dilation": lambda: (1,),
            "rhs_dilation": lambda: (1,),
            "filter_shape": lambda: (3,),
        }
        for name in (
            *("conv", "conv_general_dilated", "conv_with_general_padding"),
            "conv_general_dilated_patches",
        )
    },
    "lax.conv_transpose": {
        "lhs": lambda: mnp.ones((1, 5, 2)),
        "rhs": lambda: mnp.ones((3, 2, 4)),
        "strides": lambda: (1,),
        "padding": lambda: "SAME",
    },
    "lax.conv_dimension_numbers": {
        "lhs_shape": lambda: (1, 2, 5),
        "rhs_shape": lambda: (4, 2, 3),
        "dimension_numbers": lambda: ("NCH", "OIH", "NCH"),
    },
    "lax.padtype_to_pads": {
        "in_shape": lambda: (5,),
        "window_shape": lambda: (3,),
        "window_strides": lambda: (1,),
        "padding": lambda: "SAME",
    },
    "lax.empty": {"shape": lambda: (2,), "dtype": lambda: "float32"},
    "lax.fft": {"fft_type": lambda: "FFT", "fft_lengths": lambda: (4,)},
    "lax.gather": {
        "start_indices": lambda: mnp.asarray([[1]]),
        "dimension_numbers": lambda: lax.GatherDimensionNumbers((1,), (0,), (0,)),
        "slice_sizes": lambda: (1, 4),
    },
    "lax.platform_dependent": {"default": lambda: lambda *args: args},
    "lax.ragged_dot": {
        "lhs": square,
        "rhs": lambda: mnp.ones((2, 4, 3)),
        "group_sizes": lambda: mnp.asarray([1, 2]),
    },
    "lax.reduce_window": {
        "init_value": lambda: 0.0,
        "computation": lambda: lax.add,
        "window_dimensions": lambda: (2, 1),
    },
    "lax.rng_bit_generator": {
        "key": lambda: mnp.arange(4, dtype="uint32"),
        "shape": lambda: (3,),
        "dtype": lambda: "uint32",
    },
    **{
        f"lax.{name}": {
            "scatter_indices": lambda: mnp.asarray([[1]]),
            "updates": lambda: mnp.ones((1, 4)),
            "func": lambda: mnp.sin,
            "update_shape": lambda: (1, 4),
            "dimension_numbers": lambda: lax.ScatterDimensionNumbers((1,), (0,), (0,)),
        }
        for name in (
            *("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min"),
            *("scatter_max", "scatter_apply"),
        )
    },
    "lax.dot_general": {"dimension_numbers": lambda: (((1,), (0,)), ((), ()))},
    "lax.expand_dims": {"dimensions": lambda: (0,)},
    "lax.fori_loop": {"upper": lambda: 2},
    "lax.index_take": {"idxs": lambda: [mnp.asarray([0, 1])], "axes": lambda: (0,)},
    "lax.integer_pow": {"y": lambda: 2},
    "lax.pad": {"padding_value": lambda: 0.0, "padding_config": lambda: [(0, 1, 0), (1, 0, 1)]},
    "lax.pcast": {"to": lambda: "varying"},
    "lax.ppermute": {"perm": lambda: [(0, 1)]},
    "lax.pshuffle": {"perm": lambda: [1, 0, 2, 3]},
    "lax.ragged_all_to_all": {
        "output": square,
        **{
            name: (lambda: mnp.ones(4, "int32"))
            for name in ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
        },
    },
    "lax.custom_linear_solve": {
        "matvec": lambda: lambda x: 2 * x,
        "b": square,
        "solve": lambda: lambda f, b: b / 2,
        "transpose_solve": lambda: lambda f, b: b / 2,
    },
    "lax.custom_root": {
        "f": lambda: lambda x: x - 1.0,
        "initial_guess": square,
        "solve": lambda: lambda f, x: x - f(x),
        "tangent_solve": lambda: lambda g, y: y,
    },
    "lax.reduce": {
        "operands": square,
        "init_values": lambda: 0.0,
        "computation": lambda: lambda x, y: x + y,
        "dimensions": lambda: (0,),
    },
    "lax.reduce_precision": {},
    "lax.rev": {"dimensions": lambda: (0,)},
    "lax.scan": {"f": lambda: lambda c, x: (c, x), "xs": square},
    "lax.select": {"pred": mask},
    "lax.select_n": {"which": mask, "cases": square},
    "lax.split": {"sizes": lambda: (1, 3)},
    "lax.squeeze": {"array": lambda: mnp.ones((1, 2)), "dimensions": lambda: (0,)},
    "lax.switch": {"branches": lambda: [lambda x: x, lambda x: -x], "operands": square},
    "lax.while_loop": {"cond_fun": lambda: lambda x: False, "body_fun": lambda: lambda x: x},
    "lax.with_sharding_constraint": {
        "shardings": lambda: meshard.sharding.SingleDeviceSharding(meshard.devices()[0])
    },
    "nn.dot_product_attention": {"key": lambda: mnp.ones((1, 4, 2, 2))},
    "lax.sort_key_val": {"values": square},
    "random.choice": {"a": line},
    "random.dirichlet": {"alpha": lambda: mnp.ones(3)},
    "random.generalized_normal": {"p": lambda: 2.0},
    "random.multivariate_normal": {"mean": line, "cov": square},
    "random.key_data": {"keys": lambda: random.key(0)},
    "random.key_impl": {"keys": lambda: random.key(0)},
    "random.wrap_key_data": {"key_bits_array": lambda: mnp.zeros(2, "uint32")},
    "random.triangular": {"mode": lambda: 1.0},
    "Array.at.apply": {"index": lambda: 0, "values": lambda: lambda x: x},
    **{
        f"Array.at.{how}": {"index": lambda: 0, "values": line}
        for how in ["set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max"]
    },
    "Array.compress": {"condition": lambda: [True, False]},
    "Array.__matmul__": {"other": square},
    "Array.__rmatmul__": {"other": square},
    "Array.__contains__": {"value": lambda: 0.25},
    "Array.item": {"args": lambda: 3},
    "Array.reshape": {"shape": lambda: 16},
    "Array.searchsorted": {"v": line},
    "Array.to_device": {"device": lambda: meshard.devices()[0]},
    "random.multinomial": {"n": lambda: 3, "p": lambda: mnp.asarray([0.5, 0.5])},
}
"""What single functions need instead."""


@dataclass(frozen=True)
class Case:
    """A function with a valid call of it.

    Attributes:
        name: the name without ``meshard.``.
        function: what is called.
        given: makers of the arguments of the valid call, by parameter name.
        in_mesh: whether the call needs the axes of a mesh, so that `shard_map` is around it.
    """

    name: str
    function: Callable[..., Any]
    given: Given
    in_mesh: bool = False

    def call(self, name: str | None = None, odd: Any = None) -> Any:
        """Call the function, with one argument replaced by an odd value."""
        values = self._values(name, odd)
        return _in_mesh(lambda: self._call(values)) if self.in_mesh else self._call(values)

    def traced(self, name: str, odd: Any) -> Any:
        """Call the function in `jit`, with its arrays traced and one argument replaced."""
        values = self._values(name, odd)
        arrays = {n: v for n, v in values.items() if n != name and type(v) is Array}
        static = {n: v for n, v in values.items() if n not in arrays}

        def traced(arrays: dict[str, Any]) -> int:
            self._call(static | arrays)
            return 0

        return meshard.jit(traced)(arrays)

    def _values(self, name: str | None, odd: Any) -> dict[str, Any]:
        return {n: make() for n, make in self.given.items() if n != name} | (
            {} if name is None else {name: odd}
        )

    def _call(self, values: dict[str, Any]) -> Any:
        args, kwargs = [], {}
        for p in inspect.signature(self.function).parameters.values():
            if p.name not in values:
                continue
            by_place = p.default is p.empty or p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)
            if p.kind is not p.KEYWORD_ONLY and by_place:
                args.append(values[p.name])
            else:
                kwargs[p.name] = values[p.name]
        return self.function(*args, **kwargs)


def fault(call: Callable[[], Any]) -> str | None:
    """Return what is wrong with how a call ends: with an error that is not one of meshard's.

    Nor may an error show meshard's frames.

    What a function of the caller's raises, one of this module's lambdas, is the caller's.
    """
    try:
        with watched() as origin:
            call()
    except MeshardError as error:
        frames = internal_frames(error)
        return f"{type(error).__name__} shows {', '.join(frames)}" if frames else None
    except Exception as error:
        last = origin(error)
        if last.filename == __file__ and last.name == "<lambda>":
            return None
        return f"{type(error).__name__} at {last.filename}:{last.lineno}: {str(error)[:200]}"
    return None


def _in_mesh(call: Callable[[], Any]) -> Any:
    mesh = meshard.sharding.Mesh(meshard.devices()[:4], ("x",))
    spec = meshard.P()

    def body() -> Any:
        call()
        return mnp.zeros(())

    return meshard.shard_map(body, mesh=mesh, in_specs=(), out_specs=spec)()


def parameters(case: Case) -> list[str]:
    """Return the names of a case's parameters that a call can give."""
    found = inspect.signature(case.function).parameters.values()
    return [p.name for p in found if p.kind is not p.VAR_KEYWORD]


def cases() -> Iterator[Case]:
    """Yield a case for each public function, and each method of `Array`."""
    for module in MODULES:
        door = module.__name__.removeprefix("meshard.")
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and not function.__module__.startswith("numpy"):
                yield _case(f"{door}.{name}", function)
    for name in sorted(dir(Array)):
        function = getattr(Array, name, None)
        if not inspect.isfunction(function) or name in NOT_TRIED:
            continue
        if not name.startswith("_") or name in _OPERATORS:
            yield _case(f"Array.{name}", _method(name, function))
    for name in sorted(dir(Place)):
        if not name.startswith("_"):
            yield _case(f"Array.at.{name}", _updating(name))


_OPERATORS = {*vars(ArrayOperators), "__getitem__", "__contains__"} - {
    *("__slots__", "__doc__", "__module__", "__hash__", "__setitem__")
}


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method as a function of its other arguments, on arrays that suit it."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return getattr(_OF.get(name, square)(), name)(*args, **kwargs)

    found = list(inspect.signature(function).parameters.values())[1:]
    method.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return method


_OF: dict[str, Callable[[], Any]] = {
    "searchsorted": line,
    **_named(whole, "__and__ __rand__ __or__ __ror__ __xor__ __rxor__ __invert__ __lshift__"),
    **_named(whole, "__rlshift__ __rshift__ __rrshift__"),
}


def _updating(name: str) -> Callable[..., Any]:
    """Return ``x.at[index].add(values)`` or its like as a function of index and values."""

    def update(index: Any, values: Any = None, mode: Any = None, fill_value: Any = None) -> Any:
        options = {} if mode is None else {"mode": mode}
        if name == "get":
            options |= {} if fill_value is None else {"fill_value": fill_value}
        place = square().at[index]
        return getattr(place, name)(*(() if name == "get" else (values,)), **options)

    return update


def _case(name: str, function: Callable[..., Any]) -> Case:
    own, given = OVERRIDES.get(name, {}), {}
    for p in inspect.signature(function).parameters.values():
        if p.name in own:
            given[p.name] = own[p.name]
        elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            given[p.name] = BY_NAME[p.name]
    return Case(name, function, given, "axis_name" in inspect.signature(function).parameters)
