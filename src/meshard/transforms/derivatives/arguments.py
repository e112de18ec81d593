"""Arguments and results of functions that are differentiated: flat, typed, and checked.

In: a function of trees, and which arguments count. Out: a function of flat values, and refusals
that name the argument.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import described, function_of, integer_of
from meshard.errors import ArgumentError, DtypeError, MeshardError, ShapeError, TreeError
from meshard.ops.engine.eager import WEAK
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import dtype_name
from meshard.transforms.body.body import Body
from meshard.transforms.derivatives.levels import differentiable
from meshard.transforms.tracing.arguments import argument_name

float0 = np.dtype([("float0", np.void, 0)])
"""The dtype of tangents and cotangents of integers and bools: it has no values but one."""


def is_float0(x: Any) -> bool:
    """Whether a value is the tangent of an integer or a bool."""
    return isinstance(x, np.ndarray) and x.dtype == float0


def float0_like(x: Any) -> np.ndarray[Any, Any]:
    """Return the one tangent that an integer or bool has."""
    return np.zeros(np.shape(x) if type(x) in WEAK else x.shape, float0)


def value_of(x: Any, told: str) -> Any:
    """Return a leaf of the arguments as an array, or the Python number that it is.

    Raises:
        ArgumentError: if it is neither; ``told`` begins the message.
    """
    if isinstance(x, (Array, Traced)) or type(x) in WEAK:
        return x
    try:
        return as_array(x)
    except (MeshardError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{told} is {described(x)}, which is neither an array nor a number."
        ) from error


def strong(x: Any) -> Any:
    """Return a value as an array; in a body as a value of it."""
    body = innermost()
    if isinstance(body, Body):
        return body.lift(x)
    return as_array(x) if type(x) in WEAK else x


def type_text(x: Any) -> str:
    """Return a value's type as in ``float64[3]``."""
    if type(x) in WEAK:
        return type(x).__name__
    return f"{dtype_name(x.dtype)}[{','.join(map(str, x.shape))}]"


def name_of(f: Any) -> str:
    """Return what messages call a function."""
    return getattr(f, "__name__", None) or type(f).__name__


def numbers_of(argnums: Any, what: str) -> tuple[int, ...]:
    """Return the numbers of arguments.

    Raises:
        ArgumentError: if they are not integers.
    """
    if isinstance(argnums, (tuple, list)):
        found = tuple([integer_of(n, what, "argnums") for n in argnums])
        if not found:
            raise ArgumentError(f"{what}: argnums is empty; name at least one argument.")
        return found
    return (integer_of(argnums, what, "argnums"),)


def places_of(numbers: Sequence[int], count: int, what: str) -> list[int]:
    """Return the positions of arguments among those that are passed.

    Raises:
        ArgumentError: if there are fewer arguments, or one is named twice.
    """
    found = []
    for n in numbers:
        if not -count <= n < count:
            needs = n + 1 if n >= 0 else -n
            raise ArgumentError(
                f"{what}: differentiating with respect to argnums={n} requires at least {needs} "
                f"positional arguments, but {count} were passed."
            )
        found.append(n % count)
    if len(set(found)) < len(found):
        raise ArgumentError(f"{what}: argnums={tuple(numbers)} names an argument twice.")
    return found


@final
@dataclass
class Flattened:
    """A function of trees as one of the flat leaves of some arguments.

    Attributes:
        f: the function.
        name: what messages call it.
        args: all arguments by position.
        kwargs: those by name, which are constants.
        places: which arguments count.
        has_aux: whether the function returns a pair, of which the second is passed on.
        leaves: the leaves of the arguments that count, as values.
        tree: their tree.
        out_tree: the tree of the results, once it has run.
        aux: what else it returned, as values of the code around it.
    """

    f: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: Sequence[int]
    has_aux: bool
    leaves: list[Any]
    tree: Any
    out_tree: Any = None
    aux: tuple[list[Any], Any] | None = None
    results: list[Any] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        what: str,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: Sequence[int],
        has_aux: bool,
    ) -> Flattened:
        """Return a function on the leaves of some of its arguments."""
        name = name_of(f)
        leaves, tree = trees.flatten(tuple([args[p] for p in places]))
        values = [
            value_of(x, f"{what} of {name!r}: {told_leaf(f, args, places, i)}")
            for i, x in enumerate(leaves)
        ]
        return cls(f, name, args, kwargs, places, has_aux, values, tree)

    def told(self, number: int) -> str:
        """Return what messages call a leaf."""
        return told_leaf(self.f, self.args, self.places, number)

    @cached_property
    def names(self) -> list[str]:
        """What the leaves are called in the function, as in ``w['bias']``."""
        known: list[inspect.Parameter] | None = None
        with contextlib.suppress(ValueError, TypeError):
            known = list(inspect.signature(self.f).parameters.values())
        own = tuple([self.args[p] for p in self.places])
        return [
            argument_name(known, self.places[first]) + "".join(f"[{k!r}]" for k in rest)
            for (first, *rest), _ in trees.leaves_with_plain_path(own)
        ]

    def __call__(self, *values: Any) -> list[Any]:
        """Call the function on leaves; return its flat results, then what is passed on."""
        args = list(self.args)
        for place, x in zip(self.places, trees.unflatten(self.tree, list(values)), strict=True):
            args[place] = x
        found = self.f(*args, **self.kwargs)
        rest: list[Any] = []
        if self.has_aux:
            if not isinstance(found, (tuple, list)) or len(found) != 2:
                raise ArgumentError(
                    f"{self.name!r} with has_aux=True must return a pair, of the results and what "
                    f"else is to be passed on; it returned {described(found)}."
                )
            found, aux = found
            rest, structure = trees.flatten(aux)
            self.aux = rest, structure
        leaves, self.out_tree = trees.flatten(found)
        self.results = [value_of(x, f"a result of {self.name!r}") for x in leaves]
        return [*self.results, *rest]

    def split(self, results: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the results, and the tree of what is passed on."""
        count = len(self.results)
        own = [strong(x) if type(x) in WEAK else x for x in results[:count]]
        if self.aux is None:
            return own, None
        return own, trees.unflatten(self.aux[1], list(results[count:]))


def told_leaf(f: Any, args: tuple[Any, ...], places: Sequence[int], number: int) -> str:
    """Return what messages call a leaf of some arguments: ``argument 0 ('w')['bias']``."""
    own = tuple([args[p] for p in places])
    first, *rest = trees.leaves_with_plain_path(own)[number][0]
    path = "".join(f"[{k!r}]" for k in rest)
    try:
        names = list(inspect.signature(f).parameters)
        return f"argument {places[first]} ({names[places[first]]!r}){path}"
    except (ValueError, TypeError, IndexError):
        return f"argument {places[first]}{path}"


def check_input(what: str, flat: Flattened, holomorphic: bool, allow_int: bool) -> None:
    """Refuse arguments that cannot be differentiated.

    Raises:
        DtypeError: if one is of integers or bools, or not complex where it must be.
    """
    for number, x in enumerate(flat.leaves):
        told = f"{what} of {flat.name!r}: {flat.told(number)} is {type_text(x)}"
        if not differentiable(x):
            if not allow_int:
                raise DtypeError(
                    f"{told}, but derivatives need floats or complex numbers. Convert it, or leave "
                    "it out of argnums; with allow_int=True its gradient is of dtype float0."
                )
        elif holomorphic and not _is_complex(x):
            raise DtypeError(f"{told}, but with holomorphic=True arguments must be complex.")


def check_forward(what: str, flat: Flattened, holomorphic: bool) -> None:
    """Refuse arguments of functions whose Jacobian is computed column by column.

    Raises:
        DtypeError: if one is not real, or not complex where it must be.
    """
    for number, x in enumerate(flat.leaves):
        told = f"{what} of {flat.name!r}: {flat.told(number)} is {type_text(x)}"
        if holomorphic and not _is_complex(x):
            raise DtypeError(f"{told}, but with holomorphic=True arguments must be complex.")
        if not holomorphic and (_is_complex(x) or not differentiable(x)):
            raise DtypeError(
                f"{told}, but it takes real floats. Pass holomorphic=True if the function is "
                "holomorphic; otherwise use jvp."
            )


def _is_complex(x: Any) -> bool:
    return isinstance(x, complex) if type(x) in WEAK else x.dtype.kind == "c"


def check_result(what: str, flat: Flattened, results: Sequence[Any], holomorphic: bool) -> None:
    """Refuse what is not one number that can be differentiated.

    Raises:
        ShapeError: if there is more than one.
        DtypeError: if it is of the wrong kind.
    """
    of = f"{what} of {flat.name!r}"
    if len(results) != 1 or flat.out_tree != trees.structure(0):
        raise ShapeError(
            f"{of}: a gradient is defined for a function that returns one number; this returned "
            f"{len(results)} of them in a tree. Use vjp or jacrev, or add them up; what else it "
            "returns can be passed on with has_aux=True."
        )
    (y,) = results
    if y.shape:
        raise ShapeError(
            f"{of}: a gradient is defined for a function that returns one number; this returned "
            f"an array of shape {y.shape}. Sum or average it, or use vjp or jacrev."
        )
    check_results(what, flat, results, holomorphic)


def check_results(what: str, flat: Flattened, results: Sequence[Any], holomorphic: bool) -> None:
    """Refuse results of a kind that cannot be differentiated.

    Raises:
        DtypeError: if one is of integers, or complex without ``holomorphic``.
    """
    for y in results:
        told = f"{what} of {flat.name!r}: the result is {type_text(y)}"
        if not differentiable(y):
            raise DtypeError(f"{told}, but derivatives need floats. Use vjp for such functions.")
        if holomorphic and not _is_complex(y):
            raise DtypeError(f"{told}, but with holomorphic=True results must be complex.")
        if not holomorphic and _is_complex(y):
            raise DtypeError(
                f"{told}, but it must be real. Pass holomorphic=True if the function is "
                "holomorphic; otherwise use vjp."
            )


def check_types(
    what: str, given: Sequence[Any], like: Sequence[Any], told: Callable[[int], str], kind: str
) -> list[Any]:
    """Return tangents or cotangents of some values as values; None for those that have none.

    Args:
        what: the function.
        given: the tangents or cotangents.
        like: the values.
        told: what messages call each value, by its number.
        kind: ``"tangent"`` or ``"cotangent"``.

    Raises:
        ShapeError: if a shape is another than its value's.
        DtypeError: if a dtype is.
    """
    found: list[Any] = []
    for number, (t, x) in enumerate(zip(given, like, strict=True)):
        if is_float0(t) or (isinstance(t, np.ndarray) and t.dtype.names == ("float0",)):
            if differentiable(x):
                raise DtypeError(
                    f"{what}: the {kind} of {told(number)} is of dtype float0, which is for "
                    f"integers and bools, but the value is {type_text(x)}."
                )
            found.append(None)
            continue
        value = value_of(t, f"{what}: the {kind} of {told(number)}")
        if not differentiable(x):
            raise DtypeError(
                f"{what}: the {kind} of {told(number)} is {type_text(value)}, but the value is "
                f"{type_text(x)}: the {kind} of integers and bools has the dtype float0, as "
                "numpy.zeros(shape, meshard.float0) makes it."
            )
        found.append(_fitting(what, value, strong(x), told(number), kind))
    return found


def _fitting(what: str, value: Any, x: Any, told: str, kind: str) -> Any:
    number = type(value) in WEAK and not (_is_complex(value) and not _is_complex(x))
    made = strong(value)
    if made.shape != x.shape:
        raise ShapeError(
            f"{what}: the {kind} of {told} has shape {made.shape}, but the value has shape "
            f"{x.shape}. They must be equal."
        )
    if made.dtype != x.dtype:
        if not number:
            raise DtypeError(
                f"{what}: the {kind} of {told} has dtype {dtype_name(made.dtype)}, but the value "
                f"has {dtype_name(x.dtype)}. They must be equal; convert it with astype."
            )
        made = made.astype(x.dtype)
    return made


def check_tree(what: str, tree: Any, like: Any, kind: str) -> list[Any]:
    """Return the leaves of a tree that must have the structure of another.

    Raises:
        TreeError: if it has not.
    """
    leaves, found = trees.flatten(tree)
    if found != like:
        raise TreeError(f"{what}: the {kind} have the tree {found}, but the values have {like}.")
    return leaves


def checked_function(f: Any, what: str) -> Callable[..., Any]:
    """Return a function.

    Raises:
        ArgumentError: if it is none.
    """
    return function_of(f, what, "fun")
