"""The words and colours of drawings: device labels, one-line summaries, the palette."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import refusal
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError

# Okabe and Ito's colours, which stay apart in every common kind of colour blindness, then the same
# hues lighter and darker. Twenty-three, a prime: rows of 8, 12 or 16 blocks do not repeat below
# each other.
PALETTE = (
    *("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bdbdbd"),
    *("#a6d8f5", "#f7cf7a", "#7fd0b6", "#f8f3a8", "#7db8dc", "#f2a878", "#e8c1d6", "#e3e3e3"),
    *("#1b6c99", "#8a5f00", "#00563f", "#8d8410", "#003f63", "#7d3700", "#853a63"),
)

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB", "RiB", "QiB")
_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_WRITTEN = re.compile(r"\s*(\d[\d,]*(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_MULTIPLES = {
    unit + suffix: base**power
    for base, suffix in ((1000, "b"), (1024, "ib"))
    for power, unit in enumerate("kmgtpezy", 1)
} | {"b": 1, "": 1, "byte": 1, "bytes": 1}
_SPELT = 10**15
"""Larger byte counts are given in units, since their digits would be hard to read."""
_COUNTED = 10**6
"""Smaller byte counts have all their digits where larger ones are given in units."""


def size_text(nbytes: int) -> str:
    """Return a number of bytes in readable units.

    >>> size_text(1023), size_text(1536), size_text((1 << 20) - 8), size_text(5 << 40)
    ('1,023 bytes', '1.5 KiB', '1.0 MiB', '5.0 TiB')
    """
    if nbytes < 1024:
        return f"{nbytes:,} byte{'s' * (nbytes != 1)}"
    power = (nbytes.bit_length() - 1) // 10
    power = min(power + (20 * nbytes >= 20479 * 1024**power), len(_UNITS))  # not 1,024.0 of a unit
    return f"{nbytes / 1024**power:,.1f} {_UNITS[power - 1]}"


def read_size(text: str) -> int | None:
    """Return the number of bytes that a text means, as tables print it, too; None if it means none.

    >>> read_size("1.5 KiB"), read_size("64MB"), read_size("512"), read_size("many")
    (1536, 64000000, 512, None)
    >>> read_size("1,023 bytes"), read_size(size_text(5 << 40)) == 5 << 40
    (1023, True)
    """
    found = _WRITTEN.fullmatch(text)
    if found is None or found[2].lower() not in _MULTIPLES:
        return None
    return int(Fraction(found[1].replace(",", "")) * _MULTIPLES[found[2].lower()])


def amount_text(nbytes: int) -> str:
    """Return a number of bytes for a column: all its digits, or a size with a unit if it is vast.

    >>> amount_text(12_345), amount_text(1 << 83)
    ('12,345', '8.0 YiB')
    """
    return f"{nbytes:,}" if nbytes < _SPELT else size_text(nbytes)


def bytes_text(nbytes: int) -> str:
    """Return a number of bytes for a sentence.

    >>> bytes_text(12_345), bytes_text(1 << 83)
    ('12,345 bytes', '8.0 YiB')
    """
    return f"{nbytes:,} bytes" if nbytes < _SPELT else size_text(nbytes)


def whole_text(nbytes: int) -> str:
    """Return a number of bytes for a headline: all its digits if they are few, or a unit.

    >>> whole_text(3_072), whole_text(17_179_869_184)
    ('3,072 bytes', '16.0 GiB')
    """
    return bytes_text(nbytes) if nbytes < _COUNTED else size_text(nbytes)


@final
class Unit(NamedTuple):
    """The unit of a column of numbers, so that they can be compared at a glance.

    Attributes:
        name: the unit, for the head of the column.
        size: what one of it is.
        digits: how many digits are shown behind the point.
    """

    name: str
    size: float
    digits: int

    def text(self, amount: float) -> str:
        """Return an amount without the unit; one that is too small for its digits is ``<0.1``."""
        least = 10**-self.digits
        # Not divided by a float: no float holds the largest amounts.
        told = amount if self.size == 1 else amount / self.size
        if 0 < told < least / 2:
            return f"<{least:.{self.digits}f}"
        return f"{told:,.{self.digits}f}"


def size_unit(amounts: Iterable[int]) -> Unit:
    """Return the unit of a column of byte counts: that of the largest, or bytes if all are small.

    >>> unit = size_unit([5 << 40, 1 << 40, 8192])
    >>> unit.name, unit.text(1 << 40), unit.text(8192), size_unit([8192]).text(8192)
    ('TiB', '1.00', '<0.01', '8,192')
    """
    most = max(amounts, default=0)
    if most < _COUNTED:
        return Unit("bytes", 1, 0)
    power = min((most.bit_length() - 1) // 10, len(_UNITS))
    return Unit(_UNITS[power - 1], 1024**power, 1 if most >= 100 << 10 * power else 2)


def time_unit(seconds: Iterable[float]) -> Unit:
    """Return the unit of a column of times: that of the longest.

    >>> unit = time_unit([0.25, 0.001])
    >>> unit.name, unit.text(0.25), unit.text(1e-3), unit.text(1e-9), unit.text(0)
    ('ms', '250.0', '1.0', '<0.1', '0.0')
    """
    most = max(seconds, default=0.0)
    name, size = next((x for x in _TIMES if most >= x[1]), _TIMES[-1])
    return Unit(name, size, 1 if most >= 100 * size else 2)


def count_text(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> count_text(1, "array"), count_text(1_200, "array"), count_text(2, "process")
    ('1 array', '1,200 arrays', '2 processes')
    >>> count_text(3, "copy")
    '3 copies'
    """
    if number == 1:
        return f"1 {what}"
    if what.endswith("y") and what[-2] not in "aeiou":
        return f"{number:,} {what[:-1]}ies"
    return f"{number:,} {what}es" if what.endswith("s") else f"{number:,} {what}s"


def check_sharding(sharding: object, what: str) -> None:
    """Refuse a value to be drawn that is not a sharding.

    Raises:
        ArgumentError: if it is not a sharding.
    """
    if not isinstance(sharding, Sharding):
        advice = "A mesh and a spec make one: NamedSharding(mesh, spec)."
        raise ArgumentError(refusal(what, "sharding", "a Sharding", sharding, advice))


def device_label(ids: Iterable[int], platform: str = "", *, most: int = 6) -> str:
    """Return device ids as people write them: ascending, runs of four and more as a range.

    Args:
        ids: the device ids.
        platform: the word before them.
        most: show at most this many parts; of more, the first two and the last, and the count.

    >>> device_label([3, 1], "CPU"), device_label(range(8)), device_label(range(0, 32, 2))
    ('CPU 1,3', '0-7', '0,2..30 (16)')
    """
    parts: list[str] = []
    run: list[int] = []
    numbers = sorted(set(ids))
    for number in [*numbers, None]:
        if number is not None and run and number == run[-1] + 1:
            run.append(number)
            continue
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 3 else map(str, run)
        run = [] if number is None else [number]
    text = ",".join(parts)
    if len(parts) > most:
        text = f"{','.join(parts[: min(2, most)])}..{parts[-1].split('-')[-1]} ({len(numbers)})"
    return f"{platform} {text}".strip()


def ink(color: str) -> str:
    """Return the text colour, black or white, that reads best on a background ``#rrggbb``.

    >>> ink("#f0e442"), ink("#003f63")
    ('#000000', '#ffffff')
    """
    light = 0.0
    for weight, place in ((0.2126, 1), (0.7152, 3), (0.0722, 5)):
        channel = int(color[place : place + 2], 16) / 255
        light += weight * (
            channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        )
    return "#000000" if (light + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def layout_summary(layout: Layout) -> str:
    """Return one line on the blocks of a layout: number, size, and devices for each.

    >>> import numpy as np
    >>> layout_summary(
    ...     Layout((30522, 384), ((0, 3816, 7632, 30522), (0, 384)), np.zeros((3, 1, 2)))
    ... )
    'uneven: 3816 x 2 + 22890 x 1 rows, each on 2 devices'
    """
    copies = f", each on {layout.replicas} devices" if layout.replicas > 1 else ""
    if not layout.regular:
        return f"irregular: {layout.piece_count} boxes"
    if layout.piece_count == 1:
        return f"whole on each of {layout.replicas} devices" if copies else "whole on 1 device"
    if layout.even:
        size = ",".join(map(str, layout.box(0).shape))
        return f"{layout.piece_count} blocks of [{size}]{copies}"
    units = {1: ("elements",), 2: ("rows", "columns")}.get(
        len(layout.shape), tuple(f"along dim {dim}" for dim in range(len(layout.shape)))
    )
    uneven = []
    for cuts, unit in zip(layout.cuts, units, strict=True):
        sizes = Counter(b - a for a, b in pairwise(cuts))
        if len(sizes) > 4:
            uneven.append(f"{min(sizes)} to {max(sizes)} {unit}")
        elif len(sizes) > 1:
            uneven.append(f"{' + '.join(f'{size} x {n}' for size, n in sizes.items())} {unit}")
    return f"uneven: {', '.join(uneven)}{copies}"


def sharding_summary(sharding: Sharding) -> str:
    """Return one line on a sharding: its spec and mesh if it has them.

    >>> from meshard.algebra.sharding import SingleDeviceSharding
    >>> sharding_summary(SingleDeviceSharding(Device(2)))
    'SingleDeviceSharding on CPU 2'
    """
    if isinstance(sharding, NamedSharding):
        return f"{sharding.spec!r} over {sharding.mesh!r}"
    ids = device_label((d.id for d in sharding.device_set), platform_of(sharding))
    return f"{type(sharding).__name__} on {ids}"


def platform_of(sharding: Sharding) -> str:
    """Return the platform of a sharding's first device, the word in ``CPU 0``."""
    return min(sharding.device_set, key=lambda d: d.id).platform.upper()


def process_summary(devices: Iterable[Device]) -> str:
    """Return which process owns which devices; empty if there is one process.

    >>> process_summary([Device(0), Device(1), Device(2, process_index=1)])
    'process 0: 0,1; process 1: 2'
    """
    owned: dict[int, list[int]] = {}
    for device in devices:
        owned.setdefault(device.process_index, []).append(device.id)
    if len(owned) < 2:
        return ""
    shown = sorted(owned.items())
    return "; ".join(f"process {process}: {device_label(ids)}" for process, ids in shown)


def headline(shape: tuple[int, ...], sharding: Sharding, dtype: str = "") -> tuple[str, ...]:
    """Return the parts of a drawing's title: array, sharding, blocks, processes.

    >>> from meshard.algebra.sharding import SingleDeviceSharding
    >>> headline((4, 2), SingleDeviceSharding(Device(2)), "int64")
    ('int64[4,2]', 'SingleDeviceSharding on CPU 2', 'whole on 1 device')
    """
    parts = (
        f"{dtype}[{','.join(map(str, shape))}]",
        sharding_summary(sharding),
        layout_summary(sharding.layout(shape)),
        process_summary(sharding.device_order),
    )
    return tuple([part for part in parts if part])


def wrap(words: Iterable[str], width: int, *, between: str = "  ") -> list[str]:
    """Return words in lines of at most ``width`` characters; a longer word has its own line.

    >>> wrap(["one", "two", "three"], 9)
    ['one  two', 'three']
    """
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(between) + len(word) <= width:
            lines[-1] += between + word
        else:
            lines.append(word)
    return lines


def time_text(seconds: float) -> str:
    """Return a time with three digits and a unit.

    >>> time_text(0.00123), time_text(4.56e-7), time_text(78.9), time_text(0.0)
    ('1.23 ms', '456 ns', '78.9 s', '0 ns')
    """
    unit, size = next((x for x in _TIMES if seconds >= x[1]), _TIMES[-1])
    text = f"{seconds / size:.3g}"
    return f"{seconds / size:,.0f} {unit}" if "e+" in text else f"{text} {unit}"
