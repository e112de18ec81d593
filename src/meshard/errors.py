"""All errors of meshard, as one tree.

Each class is also the builtin that NumPy or JAX raises in the same place, so code that catches
``ValueError`` continues to work::

    MeshardError
    ├── ShardingError        ValueError    an invalid mesh, spec or sharding
    │   ├── SpecError                      unknown or repeated axis, spec longer than the rank
    │   ├── AxisNameError    NameError     a named axis that is not bound where it is used
    │   ├── ReplicationError               values that are not replicated as claimed
    │   ├── IndivisibleError               a dim that its axes do not divide
    │   ├── CoverageError                  boxes or pieces that leave a gap or disagree
    │   ├── IncompatibleDevicesError       operands on different devices
    │   └── NoIntermediateShardingError    the reference's rules find no way between two shardings
    │       └── NoIntermediateShardingNeededError    and none is needed
    ├── ShapeError           ValueError, TypeError    shapes that do not match
    │   └── MatrixShapeError   numpy.linalg.LinAlgError    not a matrix, or not a square one
    ├── DtypeError           TypeError     a dtype that an operation cannot take
    ├── ArgumentError        ValueError, TypeError    any other invalid argument
    │   ├── OutOfRangeError  OverflowError   an integer too large for its dtype, or for 64 bits
    │   └── DimError         numpy.exceptions.AxisError    a dim that an array does not have
    ├── IndexingError        IndexError, TypeError    an index outside the array, or of a wrong type
    ├── ConcretizationError  TypeError     a value that is needed where there is none
    ├── BudgetError          RuntimeError  communication beyond the budget of a block of code
    ├── GatherError          TypeError     an array put together on the host where that is forbidden
    ├── LinAlgError          numpy.linalg.LinAlgError    a matrix without this result
    ├── TreeError            ValueError, TypeError    trees whose structures differ
    ├── RuleError            ValueError    a sharding rule that cannot be read
    ├── PlanError            ValueError    a plan that does not deliver, or a damaged file of one
    ├── CheckpointError      ValueError    files of arrays that cannot be read or written as asked
    │   ├── MissingFileError FileNotFoundError    a file or folder that does not exist
    │   ├── CorruptFileError               a file that is cut off, changed or contradicts itself
    │   ├── FileInUseError   FileExistsError    a target that exists and must not be overwritten
    │   └── StorageError     OSError       a disk that is full, or access that is not allowed
    ├── KeyMapError          ValueError    a map of tensors that is ambiguous or cannot be applied
    ├── DataLoss             RuntimeError  parts of an array that no live device holds
    ├── AllocationError      MemoryError, RuntimeError    memory that the system cannot provide
    ├── DeletedArrayError    RuntimeError  an array that was deleted or donated
    ├── NotAddressableError  RuntimeError  data that another process holds
    ├── ConfigError          RuntimeError  a setting that comes too late or does not exist
    ├── TransportError       RuntimeError  processes that cannot be reached or are out of step
    │   ├── AgreementError                 processes that run different operations
    │   └── ProcessLostError               processes that have died, or cannot be reached any more
    └── UnequalError         ValueError, AssertionError  values that differ between processes
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from typing import ClassVar, Self

import numpy as np

from meshard._version import DOCS

__all__ = [
    "AgreementError",
    "AllocationError",
    "ArgumentError",
    "AxisNameError",
    "BudgetError",
    "CheckpointError",
    "ConcretizationError",
    "ConfigError",
    "CorruptFileError",
    "CoverageError",
    "DataLoss",
    "DeletedArrayError",
    "DimError",
    "DtypeError",
    "FileInUseError",
    "GatherError",
    "IncompatibleDevicesError",
    "IndexingError",
    "IndivisibleError",
    "KeyMapError",
    "LinAlgError",
    "MatrixShapeError",
    "MeshardError",
    "MissingFileError",
    "NoIntermediateShardingError",
    "NoIntermediateShardingNeededError",
    "NotAddressableError",
    "OutOfRangeError",
    "PlanError",
    "ProcessLostError",
    "ReplicationError",
    "RuleError",
    "ShapeError",
    "ShardingError",
    "SpecError",
    "StorageError",
    "TransportError",
    "TreeError",
    "UnequalError",
]


_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Characters that move a terminal's cursor, colour or direction, or that nobody sees."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text whose control characters and marks of direction are escapes.

    Names come from files and from other people: printed as they are, they could rewrite what stands
    on a terminal. All tables, summaries and errors pass through this.

    Args:
        text: the text.
        lines: whether it may have several lines, and tabs.

    >>> visible("w\x1b[2J\n\u202e")
    'w\\x1b[2J\\n\\u202e'
    """
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: _escape(found[0], lines), text)


def _escape(character: str, lines: bool) -> str:
    if lines and character in "\n\t":  # a caret stands under what a tab has moved
        return character
    return character.encode("unicode_escape").decode("ascii")


class MeshardError(Exception):
    """The root of all errors of meshard.

    An error that needs more words than a message has ends with the address of its section in the
    guide, as a note (`BaseException.add_note`): ``str(error)`` is the message alone.
    """

    _section: ClassVar[str | None] = None
    _lines: ClassVar[bool] = True
    """Whether messages may have several lines; if not, a line break is one of a name."""

    def __init_subclass__(cls, explained: bool = False) -> None:
        """Let a class have a section in the guide, which its subclasses share."""
        super().__init_subclass__()
        if explained:
            cls._section = f"{DOCS}/errors.html#{cls.__name__.lower()}"

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make an error, with the address of its section."""
        builtin: type[BaseException] = cls
        new = OSError.__new__ if issubclass(builtin, OSError) else Exception.__new__
        error = new(cls, *cls._told(args), **kwargs)
        if cls._section is not None:
            error.__notes__ = [f"See {cls._section}"]
        return error

    def __init__(self, *args: object) -> None:
        super().__init__(*self._told(args))

    @classmethod
    def _told(cls, args: tuple[object, ...]) -> list[object]:
        return [visible(x, lines=cls._lines) if isinstance(x, str) else x for x in args]

    def add_note(self, note: str) -> None:
        """Add a note, before the address of the section."""
        super().add_note(note)
        if self._section is not None:
            self.__notes__[-2:] = self.__notes__[:-3:-1]


class ShardingError(MeshardError, ValueError):
    """An invalid mesh, spec or sharding."""


class SpecError(ShardingError):
    """A spec with an unknown or repeated axis, or longer than the array's rank."""


class AxisNameError(SpecError, NameError, explained=True):
    """A named axis that is not bound where it is used."""


class ReplicationError(ShardingError, explained=True):
    """A value that differs between devices on which it is claimed to be the same."""


class IndivisibleError(ShardingError, explained=True):
    """A dim whose size its mesh axes do not divide."""


class CoverageError(ShardingError, explained=True):
    """Boxes that leave a gap, or pieces that do not fit their place."""


class IncompatibleDevicesError(ShardingError, explained=True):
    """Operands committed to different sets of devices."""


class NoIntermediateShardingError(ShardingError, explained=True):
    """Two shardings between which the reference's rules find no intermediate one."""


class NoIntermediateShardingNeededError(NoIntermediateShardingError):
    """Two shardings that need no intermediate one: a dim's shards have a common factor."""


class ShapeError(MeshardError, ValueError, TypeError):
    """Shapes that do not match."""


class DtypeError(MeshardError, TypeError):
    """A dtype that an operation cannot take."""


class ArgumentError(MeshardError, ValueError, TypeError):
    """An argument that is invalid for another reason than its shape, dtype or sharding."""


class OutOfRangeError(ArgumentError, OverflowError):
    """An integer that does not fit into its dtype, or into 64 bits."""


class DimError(ArgumentError, np.exceptions.AxisError):
    """A dim that an array does not have."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.axis = self.ndim = None

    def __str__(self) -> str:
        return str(self.args[0])


class IndexingError(MeshardError, IndexError, ValueError, TypeError):
    """An index outside the array, or of a type that cannot index."""


class ConcretizationError(MeshardError, TypeError, explained=True):
    """A value that is needed where there is none: it differs by device, or is traced."""


class BudgetError(MeshardError, RuntimeError, explained=True):
    """Communication beyond the budget of a block of code."""


class GatherError(MeshardError, TypeError):
    """An array would be put together, and the setting ``on_gather`` forbids it."""


class LinAlgError(MeshardError, np.linalg.LinAlgError):
    """A matrix that is singular, not positive definite, or whose computation did not converge."""


class MatrixShapeError(ShapeError, LinAlgError):
    """A shape that is not a matrix's, or not a square one's."""


class DerivativeError(MeshardError, ValueError, TypeError, NotImplementedError):
    """An operation has no derivative here, or not in the direction that was asked for."""


class TreeError(MeshardError, ValueError, TypeError):
    """Trees whose structures differ."""


class RuleError(MeshardError, ValueError):
    """A sharding rule whose text cannot be read, or whose factors clash."""


class PlanError(MeshardError, ValueError):
    """A plan that does not deliver what it should, or a file of one that is cut or edited."""


class CheckpointError(MeshardError, ValueError):
    """Files of arrays that cannot be read or written as asked."""

    _lines = False


class MissingFileError(CheckpointError, FileNotFoundError):
    """A file or folder that does not exist, or that holds no arrays."""


class CorruptFileError(CheckpointError, explained=True):
    """A file that is cut off, was changed, or contradicts itself or another one."""


class FileInUseError(CheckpointError, FileExistsError):
    """A target that exists and must not be overwritten."""


class StorageError(CheckpointError, OSError):
    """A disk that is full, or a file or folder that may not be read or written."""


class KeyMapError(MeshardError, ValueError, explained=True):
    """A map of tensors that is ambiguous, or cannot be applied or inverted."""


class DataLoss(MeshardError, RuntimeError, explained=True):
    """Parts of an array that no live device holds.

    Attributes:
        boxes: the parts, as boxes of the array's index space.
        by_name: for a tree, the lost parts of each array, by the array's name.
    """

    def __init__(
        self,
        message: str,
        boxes: Sequence[object] = (),
        by_name: Mapping[str, Sequence[object]] | None = None,
    ) -> None:
        super().__init__(message)
        self.boxes: tuple[object, ...] = tuple(boxes)
        self.by_name: dict[str, tuple[object, ...]] = {
            name: tuple(parts) for name, parts in (by_name or {}).items()
        }


class AllocationError(MeshardError, MemoryError, RuntimeError, explained=True):
    """Memory for an array that the system cannot provide."""


class DeletedArrayError(MeshardError, RuntimeError, explained=True):
    """An array that was deleted or donated."""


class NotAddressableError(MeshardError, RuntimeError, explained=True):
    """Data that another process holds."""


class ConfigError(MeshardError, RuntimeError):
    """A setting that does not exist or comes too late."""


class TransportError(MeshardError, RuntimeError, explained=True):
    """Processes that cannot be reached or have come out of step."""


class AgreementError(TransportError, explained=True):
    """Processes that run different operations on arrays that span them."""


class ProcessLostError(TransportError, explained=True):
    """Processes that have died, or cannot be reached any more.

    All living processes that needed them raise the same error. `meshard.elastic.recover` goes on
    without them.

    Attributes:
        processes: their numbers, ascending.
        operation: the first operation that lacked them, as told in messages; None if unknown.
        step: its number among the operations of the same processes; None if unknown.
        line: file and line of the user's program that ran it; None if unknown.
        when: when the loss was found, in seconds since the epoch.
    """

    def __init__(
        self,
        message: str,
        processes: Sequence[int] = (),
        *,
        operation: str | None = None,
        step: int | None = None,
        line: str | None = None,
        when: float | None = None,
    ) -> None:
        super().__init__(message)
        self.processes: tuple[int, ...] = tuple(processes)
        self.operation = operation
        self.step = step
        self.line = line
        self.when = when


class UnequalError(MeshardError, ValueError, AssertionError, explained=True):
    """Values that should be the same on all processes, but differ."""


# --- what messages say of a name that is not known

_CLOSE = 0.7
_MOST = 2000  # names that are compared: a checkpoint may have many more


def nearest(name: str, names: Iterable[str], count: int = 2) -> list[str]:
    """Return the names that are spelled almost like another, the nearest first.

    Among names that are equally near, those that begin alike come first.
    """
    listed = [n for n in islice(names, _MOST) if not n.startswith("_")]
    folded = {n.lower(): n for n in reversed(listed)}
    wanted = name.lower()
    letters = sorted(wanted)  # two letters in the wrong order are the commonest mistake

    def nearness(candidate: str) -> tuple[bool, float, list[bool]]:
        alike = [a == b for a, b in zip(candidate, wanted, strict=False)]
        return sorted(candidate) == letters, likeness(candidate, wanted), alike

    found = get_close_matches(wanted, list(folded), len(folded) or 1, _CLOSE)
    return [folded[n] for n in sorted(found, key=nearness, reverse=True)[:count]]


def likeness(one: str, other: str) -> float:
    """Return how much two names are alike, from 0 to 1."""
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a sentence that names what is nearest, if anything is near: for the end of a message.

    >>> did_you_mean("modle", ["data", "model"])
    " Did you mean 'model'?"
    """
    found = nearest(name[:_LONG], names) if isinstance(name, str) else []
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


_LONG = 100
