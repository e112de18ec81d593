"""The ledger: what operations, reshards and collectives move between devices, and its budget.

Code that moves elements between devices calls `communicated` beforehand, if a ledger is open
(``if world.ledgers:``). The figures are those of all devices, from the plan, so that they are the
same on every process. A budget is a ledger with a limit: it refuses communication that would exceed
it before anything has moved.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, final

from meshard.algebra.arguments import shown
from meshard.algebra.boundary import context
from meshard.errors import ArgumentError, BudgetError
from meshard.plan.captions import bytes_text, read_size
from meshard.plan.file.json_values import fields
from meshard.plan.move.wires import Wire
from meshard.plan.show.pictured import Drawn
from meshard.plan.show.record import (
    HostRecord,
    Record,
    bytes_by_line,
    host_table,
    lines_table,
    records_table,
)
from meshard.runtime.callers import stated_purpose, user_line
from meshard.runtime.world import RuntimeWorld, here

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

_TOTALS = ("total_bytes", "bytes_per_device", "received")
_FIELDS = ("what", "purpose", "kind", "axes", "array", "line", *_TOTALS)


@final
class Ledger(Drawn):
    """The communications that happened while it was open, in order.

    `ledger` and `budget` make it, and it stays readable afterwards. It prints as a table, with one
    row for all similar communications of one line: how many there were, the most bytes that one
    device receives in one of them, and the bytes of all of them on all devices.

    Arrays of several blocks that were put together on the host are listed apart, in ``to_host``:
    the totals are about devices.
    """

    def __init__(self, limit: int | None = None, per_device: int | None = None) -> None:
        self.records: list[Record] = []
        self.to_host: list[HostRecord] = []
        self._limit = limit
        self._per_device = per_device
        self._received: dict[int, int] = {}
        self._total = 0

    @property
    def total_bytes(self) -> int:
        """Bytes that devices received from others, summed over all devices."""
        return self._total

    @property
    def bytes_per_device(self) -> int:
        """The most bytes that one device received from others."""
        return max(self._received.values(), default=0)

    @property
    def received(self) -> dict[int, int]:
        """For each device id the bytes that it received from others."""
        return dict(self._received)

    def by_line(self) -> dict[str, int]:
        """Return the bytes that each line of the user's program moved, the most first."""
        return bytes_by_line(self.records)

    def to_json(self) -> str:
        """Return totals and records as the text of a JSON object.

        Its keys are ``total_bytes``, ``bytes_per_device``, ``received`` and ``records``; each
        record has ``what``, ``purpose``, ``kind``, ``axes``, ``array``, ``line``,
        ``total_bytes``, ``bytes_per_device`` and ``received``. If arrays were put together on the
        host, ``to_host`` lists these, each with ``what``, ``array``, ``nbytes`` and ``line``.
        """
        found = {
            **fields(self, *_TOTALS),
            "records": [fields(record, *_FIELDS) for record in self.records],
        }
        if self.to_host:
            found["to_host"] = [fields(r, "what", "array", "nbytes", "line") for r in self.to_host]
        return json.dumps(found)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __str__(self) -> str:
        parts = [self._table()] if self.records or not self.to_host else []
        return "\n\n".join(parts + [host_table(self.to_host)] * bool(self.to_host))

    def _table(self) -> str:
        if not self.records:
            return "no communication"
        count = len(self.records)
        note = (
            f"{count:,} communication{'s' if count > 1 else ''}, {self.total_bytes:,} bytes over "
            f"all devices, at most {self.bytes_per_device:,} on one device"
        )
        return records_table(self.records, note)

    def __repr__(self) -> str:
        return f"Ledger({len(self.records)} communications, {self.total_bytes} bytes)"

    def _title(self) -> str:
        from meshard.runtime.watching.run_pictures import ledger_title

        return ledger_title(self.records, self.total_bytes)

    def _svg(self) -> Markup:
        from meshard.runtime.watching.run_pictures import ledger_svg

        return ledger_svg(self.records, self._title())

    def _parts(self) -> Iterator[Markup]:
        from meshard.runtime.watching.run_pictures import ledger_parts

        facts = [
            f"{bytes_text(self.total_bytes)} over all devices",
            f"at most {bytes_text(self.bytes_per_device)} on one device",
        ]
        for limit, what in ((self._limit, "over all"), (self._per_device, "on each")):
            if limit is not None:
                facts.append(f"allowed: {bytes_text(limit)} {what}")
        return ledger_parts(self.records, facts)

    def _check(self, coming: Sequence[Record]) -> None:
        """Refuse communications that would exceed the limits."""
        total, received = self._total, dict(self._received)
        for record in coming:
            total += record.total_bytes
            for device, count in record.received.items():
                received[device] = received.get(device, 0) + count
            if self._limit is not None and total > self._limit:
                raise BudgetError(
                    self._refusal(
                        f"{self._limit:,} bytes over all devices",
                        total - record.total_bytes,
                        record,
                        f"{record.total_bytes:,} more",
                    )
                )
            if self._per_device is None:
                continue
            device = max(received, key=lambda d: received[d])
            if received[device] > self._per_device:
                own = record.received.get(device, 0)
                raise BudgetError(
                    self._refusal(
                        f"{self._per_device:,} bytes on each device",
                        received[device] - own,
                        record,
                        f"{own:,} more to device {device}",
                    )
                )

    def _refusal(self, limit: str, used: int, record: Record, more: str) -> str:
        array = f" of {record.array}" if record.array else ""
        axes = f" along {', '.join(map(repr, record.axes))}" if record.axes else ""
        purpose = f" ({record.purpose})" if record.purpose else ""
        text = (
            f"budget: the limit is {limit}, of which {used:,} are used, and {record.what} at "
            f"{record.line}{purpose} would move {more} ({record.kind}{array}{axes}). It was "
            "refused before anything moved. Lay the operands out so that less moves, or raise the "
            "limit; meshard.debug.ledger() shows every communication."
        )
        if not self.records:
            return f"{text} Nothing had moved before."
        return f"{text} The lines that moved most:\n{lines_table(self.records)}"

    def _gathered(self, record: HostRecord) -> None:
        self.to_host.append(record)

    def _add(self, record: Record) -> None:
        self.records.append(record)
        self._total += record.total_bytes
        for device, count in record.received.items():
            self._received[device] = self._received.get(device, 0) + count


@context
def ledger() -> Iterator[Ledger]:
    """Record what operations, reshards and collectives move, within a ``with`` statement.

    It counts the bytes that each device must receive from other devices, as if each had its own
    memory, even if devices of one process share blocks. Operations without such bytes are not
    recorded. An uncommitted array on one device counts as present on all, since every process can
    make it; so does a value that is placed from the host. The figures come from the plans for all
    devices, and are the same on every process. All threads of this process are seen.

    Returns:
        The `Ledger`; ledgers may nest, and each sees all that happens inside it.

    >>> import numpy as np, meshard
    >>> from meshard.debug import ledger
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("i",)), meshard.P("i"))
    >>> x = meshard.device_put(np.ones((16, 4)), rows)
    >>> with ledger() as log:
    ...     y = x * 2
    ...     total = y.sum(axis=0)
    >>> for record in log:
    ...     print(record.what, record.kind, record.axes, record.total_bytes)
    sum all-reduce ('i',) 448
    >>> log.total_bytes, log.bytes_per_device
    (448, 56)
    """
    with _open(Ledger()) as log:
        yield log


@context
def budget(
    limit: int | str | None = None, *, per_device: int | str | None = None
) -> Iterator[Ledger]:
    """Refuse communication beyond a limit, within a ``with`` statement, before anything moves.

    It counts as `ledger` does; budgets may nest, and all of them hold.

    Args:
        limit: the most bytes that devices may receive, all devices together, as a number or as in
            ``"10 MB"``, ``"1.5 GiB"``, ``"64 KiB"``; 0 allows no communication.
        per_device: the most bytes that any one device may receive.

    Returns:
        A `Ledger` of what was used.

    Raises:
        BudgetError: at the operation that would exceed a limit; what it reads is left as it was.
        ArgumentError: if a size cannot be read, or neither limit is given.

    >>> import numpy as np, meshard
    >>> from meshard.debug import budget
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((8,), ("i",)), meshard.P("i"))
    >>> x = meshard.device_put(np.ones((16, 4)), rows)
    >>> with budget("1 MB") as used:
    ...     total = x.sum(axis=0)
    >>> used.total_bytes
    448
    >>> with budget(0):
    ...     total = x.sum(axis=0)
    Traceback (most recent call last):
        ...
    meshard.errors.BudgetError: budget: the limit is 0 bytes over all devices, ...
    """
    if limit is None and per_device is None:
        raise ArgumentError(
            "budget: no limit is given. Say how many bytes may move, as in budget('10 MB') or "
            "budget(per_device='1 MB')."
        )
    with _open(Ledger(_size(limit, "limit"), _size(per_device, "per_device"))) as used:
        yield used


@contextlib.contextmanager
def _open(log: Ledger) -> Iterator[Ledger]:
    world = here()
    world.ledgers = (*world.ledgers, log)
    try:
        yield log
    finally:
        world.ledgers = tuple(other for other in world.ledgers if other is not log)


def _size(given: object, name: str) -> int | None:
    """Return the number of bytes that a number or a text means."""
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if isinstance(given, str) and (size := read_size(given)) is not None:
        return size
    raise ArgumentError(
        f"budget: {name} must be a number of bytes, such as 1000, or a text such as '10 MB', "
        f"'1.5 GiB' or '64 KiB', but got {shown(given)} of type {type(given).__name__}."
    )


def communicated(
    world: RuntimeWorld,
    kind: str,
    axes: Sequence[str],
    received: Mapping[int, int] | Callable[[], Mapping[int, int]],
    what: str,
    *,
    array: str = "",
) -> None:
    """Record one communication in all open ledgers, before it happens.

    Callers check ``if world.ledgers:`` first, so that nothing is counted without a ledger.

    Args:
        world: whose ledgers are open.
        kind: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"permute"``, ...
        axes: the mesh axes that it goes along.
        received: for each device id the bytes that it receives from other devices, of all
            processes' devices; or a function that returns this. If it is empty, nothing is
            recorded.
        what: the operation, as in ``"psum"``.
        array: what moves, as in ``"float64[4,8]"``.

    Raises:
        BudgetError: if it exceeds an open budget; no ledger has then recorded it.
    """
    figures = received() if callable(received) else received
    _noted(world, [(what, kind, tuple(axes), array, figures)])


def wired(world: RuntimeWorld, what: str, wires: Sequence[Wire]) -> None:
    """Record the communications of one plan in all open ledgers, all of them or none.

    Raises:
        BudgetError: if they exceed an open budget.
    """
    _noted(world, [(what, w.kind, w.axes, w.array, w.received) for w in wires])


def _noted(
    world: RuntimeWorld, found: Sequence[tuple[str, str, tuple[str, ...], str, Mapping[int, int]]]
) -> None:
    crossing = [f for f in found if any(f[4].values())]
    if not crossing:
        return
    place = user_line(), stated_purpose()
    records = [Record(*f, *place) for f in crossing]
    for log in world.ledgers:
        log._check(records)
    for log in world.ledgers:
        for record in records:
            log._add(record)
