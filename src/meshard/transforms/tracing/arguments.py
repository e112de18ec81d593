"""The arguments of a jitted function: which are static, which are given up, what they are called.

In: positional and keyword arguments. Out: their leaves, the key of what is static, and names for
messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

from meshard.algebra.arguments import items_of, names_of, refusal, shown
from meshard.errors import ArgumentError, did_you_mean
from meshard.runtime.trees.trees import leaves


@final
class Statics:
    """The static arguments of one call; equal where all of them are.

    Raises:
        ArgumentError: if one cannot be hashed.
    """

    __slots__ = ("_hash", "_types", "named", "placed")

    def __init__(
        self, what: str, placed: tuple[tuple[int, Any], ...], named: tuple[tuple[str, Any], ...]
    ) -> None:
        self.placed = placed
        self.named = named
        self._types = tuple([type(v) for _, v in (*placed, *named)])
        try:
            self._hash = hash((placed, named, self._types))
        except TypeError:
            for name, value in (*placed, *named):
                try:
                    hash(value)
                except TypeError as error:
                    raise ArgumentError(
                        f"{what}: the static argument {name!r} is {shown(value)} of type "
                        f"{type(value).__name__}, which is not hashable, so that no program can be "
                        "kept for it. Non-hashable static arguments are not supported: give a "
                        "tuple instead of a list, or pass it as an array."
                    ) from error
            raise

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Statics)
            and self._types == other._types
            and self.placed == other.placed
            and self.named == other.named
        )


def _numbers(given: Any, what: str, name: str) -> tuple[int, ...]:
    if given is None:
        return ()
    found = (given,) if isinstance(given, int) else items_of(given, what, name, "integers")
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise ArgumentError(refusal(what, name, "an integer or a tuple of them", given))
    return cast(tuple[int, ...], found)


def _names(given: Any, what: str, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    return names_of(given, what, name, "names of arguments")


def _positional(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters that can be given by position, one for each position."""
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def argument_name(parameters: Sequence[inspect.Parameter] | None, number: int) -> str:
    """Return what an argument by position is called in a function, as in ``x`` or ``args[2]``.

    Args:
        parameters: those of the function; None if it does not tell them.
        number: the argument's position.
    """
    placed = _positional(parameters or ())
    if number < len(placed):
        return placed[number].name
    more = [p for p in parameters or () if p.kind == p.VAR_POSITIONAL]
    return f"{more[0].name}[{number - len(placed)}]" if more else f"args[{number}]"


def _inferred(
    placed: Sequence[inspect.Parameter], numbers: frozenset[int], names: frozenset[str]
) -> tuple[frozenset[int], frozenset[str]]:
    """Return positions and names of parameters of which either is given."""
    either = {i: p.name for i, p in enumerate(placed) if p.kind == p.POSITIONAL_OR_KEYWORD}
    names |= {name for i, name in either.items() if i in numbers}
    return numbers | {i for i, p in enumerate(placed) if p.name in names}, names


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JitOptions:
    """What `jit` was told, but the function.

    Attributes:
        in_shardings: how the arguments must be laid out.
        out_shardings: likewise the results.
        static_argnums: the positions of static arguments.
        static_argnames: their names.
        donate_argnums: the positions of arguments that are given up.
        donate_argnames: their names.
        keep_unused: whether arguments that the function does not use are looked at.
    """

    in_shardings: Any = None
    out_shardings: Any = None
    static_argnums: Any = None
    static_argnames: Any = None
    donate_argnums: Any = None
    donate_argnames: Any = None
    keep_unused: bool = False


@final
class Arguments:
    """Which arguments of a function are static, and which are given up.

    Args:
        f: the function.
        what: how messages call it.
        options: the positions and names of static arguments, and of those that are given up.

    Raises:
        ArgumentError: if a position or name is none of the function's, or static and given up.
    """

    def __init__(self, f: Callable[..., Any], what: str, options: JitOptions) -> None:
        self._what = what
        try:
            signature: inspect.Signature | None = inspect.signature(f)
        except (ValueError, TypeError):
            signature = None
        self._parameters = list(signature.parameters.values()) if signature is not None else None
        self.static_nums, self.static_names = self._resolved(
            "static", options.static_argnums, options.static_argnames
        )
        self.donate_nums, self.donate_names = self._resolved(
            "donate", options.donate_argnums, options.donate_argnames
        )
        both = self.static_names & self.donate_names
        nums = self.static_nums & self.donate_nums
        if both or nums:
            told = ", ".join([*map(repr, sorted(both)), *map(str, sorted(nums))])
            raise ArgumentError(
                f"{what}: the argument {told} is both static and donated; a static "
                "argument is not an array, so it cannot be donated."
            )

    def _resolved(self, kind: str, nums: Any, names: Any) -> tuple[frozenset[int], frozenset[str]]:
        """Return positions and names; of an argument that can be given either way, both."""
        given = _numbers(nums, self._what, f"{kind}_argnums")
        by_name = _names(names, self._what, f"{kind}_argnames")
        if self._parameters is None:
            return frozenset(given), frozenset(by_name)
        placed = _positional(self._parameters)
        variable = any(p.kind == p.VAR_POSITIONAL for p in self._parameters)
        if not variable:
            self._check_numbers(kind, given, len(placed))
        if not any(p.kind == p.VAR_KEYWORD for p in self._parameters):
            self._check_names(kind, by_name, [p.name for p in self._parameters])
        numbers = frozenset(n if n >= 0 or variable else n + len(placed) for n in given)
        if nums is None or names is None:  # the other one is inferred, as in JAX
            return _inferred(placed, numbers, frozenset(by_name))
        return numbers, frozenset(by_name)

    def _check_numbers(self, kind: str, numbers: tuple[int, ...], count: int) -> None:
        """Refuse positions that are none of the function's."""
        if not all(-count <= n < count for n in numbers):
            raise ArgumentError(
                f"{self._what}: {kind}_argnums={numbers}, but the function accepts only {count} "
                "positional arguments."
            )

    def _check_names(self, kind: str, names: tuple[str, ...], known: Sequence[str]) -> None:
        """Refuse names that are none of the function's."""
        for name in names:
            if name not in known:
                raise ArgumentError(
                    f"{self._what}: {kind}_argnames={names}, but the function has no argument "
                    f"{name!r}; it has {', '.join(map(repr, known)) or 'none'}."
                    f"{did_you_mean(name, known)}"
                )

    @property
    def any_static(self) -> bool:
        """Whether some argument is static."""
        return bool(self.static_nums or self.static_names)

    def without_statics(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Statics | None]:
        """Return the arguments without the static ones, and those."""
        if not self.any_static:
            return args, kwargs, None
        count = len(args)
        nums = {n if n >= 0 else n + count for n in self.static_nums}
        placed = tuple([(i, x) for i, x in enumerate(args) if i in nums])
        named = tuple(sorted((k, v) for k, v in kwargs.items() if k in self.static_names))
        rest = tuple([x for i, x in enumerate(args) if i not in nums])
        others = {k: v for k, v in kwargs.items() if k not in self.static_names}
        return rest, others, Statics(self._what, placed, named)

    @staticmethod
    def with_statics(
        args: Sequence[Any], kwargs: dict[str, Any], statics: Statics | None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return all arguments again."""
        if statics is None:
            return list(args), kwargs
        found = list(args)
        for place, value in statics.placed:
            found.insert(place, value)
        return found, {**kwargs, **dict(statics.named)}

    def donated(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], statics: Statics | None
    ) -> tuple[bool, ...]:
        """Return for each leaf of the arguments without static ones whether it is given up."""
        if not self.donate_nums and not self.donate_names:
            return ()
        static = {place for place, _ in statics.placed} if statics is not None else set[int]()
        total = len(args) + len(static)
        places = [i for i in range(total) if i not in static]
        wanted = {n if n >= 0 else n + total for n in self.donate_nums}
        found: list[bool] = []
        for place, x in zip(places, args, strict=True):
            found += [place in wanted] * len(leaves(x))
        for key in sorted(kwargs):
            found += [key in self.donate_names] * len(leaves(kwargs[key]))
        return tuple(found)

    def told(self, path: Sequence[Any], statics: Statics | None) -> str:
        """Return what messages call the leaf at a path of ``(args, kwargs)``."""
        place, first, *rest = path
        tail = "".join(f"[{k!r}]" for k in rest)
        if place == 1:
            return f"{first}{tail}"
        for static, _ in statics.placed if statics is not None else ():
            if static <= first:
                first += 1
        return argument_name(self._parameters, first) + tail
