"""Fourier transforms, with NumPy's names."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.fft import (
    fft as fft,
    fft2 as fft2,
    fftfreq as fftfreq,
    fftn as fftn,
    fftshift as fftshift,
    hfft as hfft,
    ifft as ifft,
    ifft2 as ifft2,
    ifftn as ifftn,
    ifftshift as ifftshift,
    ihfft as ihfft,
    irfft as irfft,
    irfft2 as irfft2,
    irfftn as irfftn,
    rfft as rfft,
    rfft2 as rfft2,
    rfftfreq as rfftfreq,
    rfftn as rfftn,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__, reference="numpy.fft")
