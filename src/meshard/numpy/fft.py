"""Fourier transforms, with NumPy's names."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.ops.fft import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__, reference="numpy.fft")
