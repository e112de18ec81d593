"""Arrays that leave their devices: what is put together on the host is told, warned of, or refused.

In: the type of an array that is spread over several blocks, and who asks for all of it. Out: a
record in each open ledger, and what the setting ``on_gather`` says.
"""

from __future__ import annotations

import warnings

from meshard.errors import GatherError
from meshard.plan.captions import bytes_text
from meshard.plan.show.record import HostRecord
from meshard.runtime.callers import frames_below_user, user_line
from meshard.runtime.settings import ON_GATHER
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here


def gather_law() -> str:
    """Return what the setting ``on_gather`` says: ``"allow"``, ``"warn"`` or ``"error"``."""
    return ON_GATHER.value


def gather(kind: ArrayType, what: str) -> None:
    """Say that all of an array is about to be brought to every device.

    Args:
        kind: the array's type.
        what: who needs it, as in ``"linalg.eigh"``.

    Raises:
        GatherError: if the setting ``on_gather`` is ``"error"``.
    """
    told = (
        f"{what}: brings {kind.str_short()} together on every device: {bytes_text(kind.nbytes)} "
        f"from {kind.layout.piece_count} blocks"
    )
    _say(
        told,
        "Split a leading dim of a stack of matrices instead, or decompose a smaller one, such as "
        "x.T @ x of a tall matrix.",
    )


def leave(kind: ArrayType, what: str) -> None:
    """Tell that a process is about to put an array together on the host.

    Args:
        kind: the array's type; an array of one block is never put together.
        what: who asks, as in ``"np.asarray"``.

    Raises:
        GatherError: if the setting ``on_gather`` is ``"error"``.
    """
    world = here()
    if ON_GATHER.value == "allow" and not world.ledgers:
        return
    told = (
        f"{what}: puts {kind.str_short()} together on the host: {bytes_text(kind.nbytes)} from "
        f"{kind.layout.piece_count} blocks"
    )
    _say(
        told,
        "Use functions of meshard.numpy, which work on the blocks where they are, or reduce the "
        "array first.",
    )
    record = HostRecord(what, kind.str_short(), kind.nbytes, user_line())
    for log in world.ledgers:
        log._gathered(record)


def _say(told: str, instead: str) -> None:
    """Refuse, or warn of, what brings an array together, as the setting says."""
    law = ON_GATHER.value
    if law == "error":
        raise GatherError(
            f"{told}, and on_gather is 'error'. {instead} To allow it again: "
            "meshard.config.update('on_gather', 'allow')."
        )
    if law == "warn":
        warnings.warn(
            f"{told}. on_gather='warn' says so.", UserWarning, stacklevel=frames_below_user()
        )
