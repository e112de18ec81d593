"""Values that keep what they were made with: in goes an assignment, out comes a refusal."""

from __future__ import annotations

from typing import NoReturn


class Frozen:
    """A value whose attributes cannot be set: ``__init__`` writes them into ``vars(self)``.

    Meshes and shardings are shared by all arrays that they lay out, and are keys of caches. If one
    changed, it would be wrong about where every one of these arrays is.
    """

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse.

        Raises:
            AttributeError: always; the message says what to make instead.
        """
        kind = type(self).__name__
        raise AttributeError(
            f"{kind}.{name} cannot be set: arrays share it, and none of them would move. Make "
            f"a new {kind}, and move arrays with meshard.device_put."
        )

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted.")
