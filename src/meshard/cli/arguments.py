"""What the options of commands are made of: readers of numbers, and the class of a command.

In: the texts that a user typed. Out: their values, or wrong usage that says what was expected.
Nothing here imports more than click.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from meshard.cli.main import NAME, Narrow
from meshard.runtime.settings import JOB_LAW, job_of

T = TypeVar("T")
R = TypeVar("R")


class Command(Narrow):
    """A command whose errors begin with its whole name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, and keep its name for its errors."""
        ctx.meta[NAME] = ctx.command_path
        return super().parse_args(ctx, args)


def gathered(kind: Callable[..., T]) -> Callable[[Callable[[T], R]], Callable[..., R]]:
    """Return a decorator that passes all arguments and options as one value of a class."""

    def decorated(function: Callable[[T], R]) -> Callable[..., R]:
        @wraps(function)
        def command(**given: Any) -> R:
            return function(kind(**given))

        return command

    return decorated


def positive(text: str) -> int:
    """Return a positive integer.

    Raises:
        BadParameter: if the text is not one.
    """
    number = int(_number(text, int))
    if number < 1:
        raise click.BadParameter(f"{number} is not a positive number")
    return number


def natural(text: str | int) -> int:
    """Return a non-negative integer.

    Raises:
        BadParameter: if the text is not one.
    """
    number = int(_number(str(text), int))
    if number < 0:
        raise click.BadParameter(f"{number} is negative")
    return number


def hosts_and_slots(text: str) -> tuple[tuple[str, int], ...]:
    """Return hosts, and how many processes each takes: one where nothing is said.

    Raises:
        BadParameter: if the text is not a list such as ``a:4,b:4``.
    """
    found: dict[str, int] = {}
    for one in text.split(",") if text else ():
        name, colon, count = one.strip().partition(":")
        if not name or name in found or (colon and not (count.isdecimal() and int(count))):
            raise click.BadParameter(
                f"{text!r} is not a list of different hosts and of how many processes each takes, "
                "such as a:4,b:4"
            )
        found[name] = int(count) if colon else 1
    return tuple(found.items())


def job_name(text: str) -> str:
    """Return the name of a job.

    Raises:
        BadParameter: if the text cannot be one.
    """
    try:
        return job_of(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {JOB_LAW}") from None


def seconds(text: str) -> float:
    """Return a positive number of seconds.

    Raises:
        BadParameter: if the text is not one.
    """
    number = _number(text, float)
    if not 0 < number < math.inf:
        raise click.BadParameter(f"{text} is not a positive number of seconds")
    return number


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise click.BadParameter(f"invalid number value: {text!r}") from None
