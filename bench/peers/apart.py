"""A peer of a row in a process of its own: what hangs or aborts there ends nothing here.

`python -m bench.peers.apart ROW PEER` is that process.
"""

import sys

from bench.asked import MARK, PATIENCE, Asked


class Apart:
    """A peer that runs in another process, which is asked for each repetition."""

    def __init__(self, row: str, peer: str, patience: float = PATIENCE) -> None:
        """Start the process; it makes the peer when it warms up."""
        command = [sys.executable, "-m", "bench.peers.apart", row, peer]
        self._asked = Asked(command, f"the process of {peer}", patience=patience)

    def warm_up(self) -> None:
        """Make the peer there, and warm it up.

        Raises:
            JobError: it failed, ended, or did not answer.
        """
        self._asked.ask(what="warm")

    def sample(self) -> float:
        """Seconds for one call, as that process measures them."""
        seconds: float = self._asked.ask(what="sample")["seconds"]
        return seconds

    def end(self) -> None:
        """End the process."""
        self._asked.end()


def serve(row: str, name: str) -> None:
    """Answer requests until there are none."""
    import json

    from bench.harness import Peer, sentence
    from bench.rows import ROWS

    peer: Peer | None = None
    for line in sys.stdin:
        found: dict[str, object] = {}
        try:
            if json.loads(line)["what"] == "warm":
                peer = next(r for r in ROWS if r.key == row).peers()[name]()
                peer.warm_up()
            else:
                assert peer is not None
                found["seconds"] = peer.sample()
        except Exception as error:
            found["error"] = sentence(error)
        sys.stdout.write(f"{MARK}{json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    from bench.__main__ import set_environment

    set_environment()
    serve(*sys.argv[1:3])
