"""Tensors as NumPy arrays and back, over the same memory.

NumPy and PyTorch have no common protocol for bfloat16 and the 8-bit floats, so these pass as
integers of their size, and each side looks at the bits as what they are.
"""

from __future__ import annotations

from typing import Any, final

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, DtypeError
from meshard.interop.tensors.specs import DTensor, torch
from meshard.runtime.moving.readers import install_reader
from meshard.runtime.types import Block

_SAME = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL = (
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
)
_NUMPY: dict[Any, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name) for name in _SAME if hasattr(torch, name)
}
_BITS: dict[Any, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name))
    for name in _SMALL
    if hasattr(torch, name) and hasattr(ml_dtypes, name)
}
_NUMPY |= _BITS
_TORCH: dict[np.dtype[Any], Any] = {ours: theirs for theirs, ours in _NUMPY.items()}
_INTEGERS: dict[int, tuple[Any, np.dtype[Any]]] = {
    1: (torch.uint8, np.dtype(np.uint8)),
    2: (torch.int16, np.dtype(np.int16)),
}


def numpy_dtype(dtype: Any, what: str) -> np.dtype[Any]:
    """Return the NumPy dtype of tensors of a dtype.

    Raises:
        DtypeError: if NumPy and ml_dtypes have none.

    >>> import torch
    >>> numpy_dtype(torch.bfloat16, "f")
    dtype(bfloat16)
    """
    found = _NUMPY.get(dtype)
    if found is None:
        raise DtypeError(
            f"{what}: tensors of {dtype} have no counterpart among the dtypes of NumPy and "
            "ml_dtypes. Convert them first, or pass on their bits with x.view(torch.uint8)."
        )
    return found


def torch_dtype(dtype: Any, what: str) -> Any:
    """Return the dtype that PyTorch has for one of NumPy's or PyTorch's.

    Raises:
        DtypeError: if it has none.

    >>> torch_dtype("bfloat16", "f")
    torch.bfloat16
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        found = _TORCH.get(np.dtype(dtype))
    except TypeError:
        found = None
    if found is None:
        raise DtypeError(
            f"{what}: {shown(dtype)} is not a dtype of PyTorch's tensors, such as torch.float32 or "
            "'bfloat16'."
        )
    return found


def check_tensor(x: Any, what: str) -> None:
    """Refuse tensors whose elements are not in one strided piece of the host's memory.

    Raises:
        ArgumentError: if it is distributed, sparse, quantized, or on another device.
    """
    if isinstance(x, DTensor):
        raise ArgumentError(
            f"{what}: expected a tensor of this process, got a DTensor of shape "
            f"{tuple(x.shape)} over {x.device_mesh.size()} ranks. meshard.interop.torch.to_meshard "
            "makes an array of it without moving anything."
        )
    if x.is_quantized:
        raise ArgumentError(
            f"{what}: the tensor of {x.dtype} is quantized, so that its elements are not what its "
            "memory holds. Pass x.int_repr() and its scales, or x.dequantize()."
        )
    if x.layout is not torch.strided:
        raise ArgumentError(
            f"{what}: the tensor is sparse ({x.layout}), and arrays are dense. Pass x.to_dense()."
        )
    if x.device.type != "cpu":
        way = (
            "It has no data: make it with torch.empty_like(x, device='cpu')."
            if x.device.type == "meta"
            else "Pass x.cpu(), or move DTensors on their devices with meshard.interop.torch."
            "reshard."
        )
        raise ArgumentError(
            f"{what}: the tensor is on {x.device}, and arrays are in the host's memory. {way}"
        )


def as_numpy(x: Any, what: str = "array") -> Block:
    """Return a tensor of this process as a NumPy array of the same memory.

    It may be a `torch.nn.Parameter`, or require a gradient: the array takes no part in that. Only a
    tensor that is to be conjugated or negated when it is read is copied.

    Raises:
        ArgumentError: if it is distributed, sparse, quantized, or on another device.
        DtypeError: if NumPy and ml_dtypes have no such dtype.

    >>> import torch
    >>> x = torch.ones(2, dtype=torch.bfloat16)
    >>> as_numpy(x).dtype, as_numpy(x).ctypes.data == x.data_ptr()
    (dtype(bfloat16), True)
    """
    check_tensor(x, what)
    dtype = numpy_dtype(x.dtype, what)
    value = x.detach()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    if x.dtype in _BITS:
        return value.view(_INTEGERS[dtype.itemsize][0]).numpy().view(dtype)  # type: ignore[no-any-return]
    return value.numpy()  # type: ignore[no-any-return]


@final
class _Shown:
    """A block's memory as NumPy's protocol describes it, marked as writeable; it keeps the block.

    PyTorch has no read-only tensors, and warns of arrays that are.
    """

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: Block) -> None:
        self._block = block
        told = dict(block.__array_interface__)
        self.__array_interface__ = told | {"data": (told["data"][0], False)}


def as_tensor(block: Block, what: str) -> Any:
    """Return a NumPy array as a tensor of the same memory.

    Negative strides, which tensors cannot have, are copied; so is another byte order.

    Raises:
        DtypeError: if tensors cannot have the dtype.

    >>> as_tensor(np.ones(2, ml_dtypes.bfloat16), "f")
    tensor([1., 1.], dtype=torch.bfloat16)
    """
    wanted = _TORCH.get(block.dtype.newbyteorder("="))
    if wanted is None:
        raise DtypeError(
            f"{what}: PyTorch has no tensors of {block.dtype}. Convert the array with "
            "x.astype('float32') first."
        )
    if not block.dtype.isnative:
        block = block.astype(block.dtype.newbyteorder("="))
    if min(block.strides, default=0) < 0:
        block = block.copy()
    if wanted in _BITS:
        block = block.view(_INTEGERS[block.dtype.itemsize][1])
    if not block.flags.writeable:
        block = np.asarray(_Shown(block))
    tensor = torch.from_numpy(block)
    return tensor.view(wanted) if wanted in _BITS else tensor


install_reader("torch", as_numpy)
