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


def leave(kind: ArrayType, what: str) -> None:
    """Tell that a process is about to put an array together on the host.

    Args:
        kind: the array's type; an array of one block is never put together.
        what: who asks, as in ``"np.asarray"``.

    Raises:
        GatherError: if the setting ``on_gather`` is ``"error"``.
    """
    law = ON_GATHER.value
    world = here()
    if law == "allow" and not world.ledgers:
        return
    told = (
        f"{what}: puts {kind.str_short()} together on the host: {bytes_text(kind.nbytes)} from "
        f"{kind.layout.piece_count} blocks"
    )
    if law == "error":
        raise GatherError(
            f"{told}, and on_gather is 'error'. Use functions of meshard.numpy, which work on the "
            "blocks where they are, or reduce the array first. To allow it again: "
            "meshard.config.update('on_gather', 'allow')."
        )
    if law == "warn":
        level = frames_below_user()
        warnings.warn(f"{told}. on_gather='warn' says so.", UserWarning, stacklevel=level)
    record = HostRecord(what, kind.str_short(), kind.nbytes, user_line())
    for log in world.ledgers:
        log._gathered(record)
