"""What an array tells of its memory to code that asks as it asks NumPy's arrays."""

from __future__ import annotations

from typing import NoReturn, final

from meshard.algebra.attributes import no_attribute
from meshard.errors import ArgumentError

_SHORT = {
    "C": "c_contiguous",
    "CONTIGUOUS": "c_contiguous",
    "F": "f_contiguous",
    "FORTRAN": "f_contiguous",
    "O": "owndata",
    "W": "writeable",
    "A": "aligned",
    "X": "writebackifcopy",
    "B": "behaved",
    "CA": "carray",
    "FA": "farray",
}


@final
class Flags:
    """What NumPy's ``x.flags`` says, of an array that no one writes to.

    Args:
        ndim: how many dims the array has.
        size: how many elements.

    Attributes:
        c_contiguous: True; the last dim is the fastest, as in ``np.asarray(x)``.
        f_contiguous: whether that is the same as the first dim.
        owndata: True.
        writeable: False.
        aligned: True.
        writebackifcopy: False.

    >>> flags = Flags(2, 6)
    >>> flags.writeable, flags["C_CONTIGUOUS"], flags.f_contiguous
    (False, True, False)
    """

    __slots__ = (
        *("aligned", "c_contiguous", "contiguous", "f_contiguous", "fortran", "owndata"),
        *("writeable", "writebackifcopy"),
        *("behaved", "carray", "farray", "fnc", "forc"),
    )

    def __init__(self, ndim: int, size: int) -> None:
        put = object.__setattr__
        flat = ndim < 2 or size == 0
        for name in ("c_contiguous", "contiguous", "owndata", "aligned", "forc"):
            put(self, name, True)
        for name in ("f_contiguous", "fortran"):
            put(self, name, flat)
        for name in ("writeable", "writebackifcopy", "behaved", "carray", "farray", "fnc"):
            put(self, name, False)

    def __getitem__(self, key: str) -> bool:
        """Return a flag by its name, in capitals, long or short, as NumPy has them."""
        name = _SHORT.get(key, key.lower() if key.isupper() else "")
        if name not in Flags.__slots__:
            raise KeyError(f"flags: {key!r} is not one of NumPy's, such as 'WRITEABLE' or 'C'.")
        found: bool = getattr(self, name)
        return found

    def __getattr__(self, name: str) -> bool:
        raise no_attribute(type(self), name, {})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"flags.{name} cannot be set: arrays are immutable. x.at[index].set(value) returns "
            "another array, and np.array(x) makes one of NumPy's that can be written to."
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Flags):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    def __hash__(self) -> int:
        return hash(self.f_contiguous)

    def __repr__(self) -> str:
        long = ("c_contiguous", "f_contiguous", "owndata", "writeable", "aligned")
        return "\n".join(f"  {n.upper()} : {getattr(self, n)}" for n in (*long, "writebackifcopy"))
