"""The steps of a program as one function of Python: the list of calls that a call of jit runs.

In: for each step the slots that it reads, sets and lets go of. Out: a function with a line for each
step, and nothing else to do between them; and the step that raised an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, Protocol, final

Function = Callable[[Any, Sequence[Any]], Any]
"""From the world, or a body, and the values that are given to what is returned."""


class Slotted(Protocol):
    """What is known of a step: the slots that it reads, sets and lets go of."""

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""

    @property
    def writes(self) -> tuple[int, ...]:
        """The slots that it sets."""

    @property
    def dead(self) -> tuple[int, ...]:
        """The slots that nobody reads any more."""


@final
class Prepared:
    """Some steps, written as the text of one function and compiled.

    Args:
        steps: the steps.
        given: the slots of the values that the function is given.
        results: the slots that it returns, as a list.
        numbers: the slots that have a value before the program runs.
        sole: whether it returns the first of the results itself instead.

    With one step that adds a number, for example, the text is::

        def run(where, given):
            (v0,) = given
            v2 = r0(
                where,
                (
                    v0,
                    v1,
                ),
            )
            v0 = None
            return [v2]
    """

    def __init__(
        self,
        steps: Sequence[Slotted],
        given: Iterable[int],
        results: Sequence[int],
        numbers: Mapping[int, Any],
        *,
        sole: bool = False,
    ) -> None:
        self._numbers = {f"v{slot}": value for slot, value in numbers.items()}
        unpacked = _names(given)
        lines = ["def run(where, given):", f" {unpacked} = given" if unpacked else " pass"]
        lines += [_line(number, step) for number, step in enumerate(steps)]
        lines.append(f" return v{results[0]}" if sole else f" return [{_names(results)}]")
        made: dict[str, Any] = {}
        exec("\n".join(lines), made)  # the text holds numbers of slots, and nothing else
        self._code: CodeType = made["run"].__code__

    def function(self, runs: Iterable[Callable[..., Any]]) -> Function:
        """Return the function, given what each step runs."""
        names = {f"r{number}": run for number, run in enumerate(runs)}
        return FunctionType(self._code, {"__name__": __name__} | names | self._numbers)

    def step_of(self, error: BaseException) -> int:
        """Return the number of the step that raised an error."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._code:
            trace = trace.tb_next
        return 0 if trace is None else max(0, trace.tb_lineno - _LINES_BEFORE)


_LINES_BEFORE = 3  # counted from 1: the head of the function, and the line that unpacks


def _line(number: int, step: Slotted) -> str:
    found = f"r{number}(where, ({_names(step.reads)}))"
    set_ = f"{_names(step.writes)} = " if len(step.writes) != 1 else f"v{step.writes[0]} = "
    gone = "".join(f"v{slot} = " for slot in step.dead)
    return f" {set_ if step.writes else ''}{found}" + (f"; {gone}None" if gone else "")


def _names(slots: Iterable[int]) -> str:
    """Return slots as the items of a tuple."""
    return "".join(f"v{slot}, " for slot in slots)
