"""PyTorch views of buffers, without a copy. Imported only inside the sandbox."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from cuteforge.sandbox.memory import GUARD_BYTES, POISON, Buffer, CudaMemory, HostMemory, Memory

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def dtype_name(value: torch.dtype) -> str:
    """PyTorch's name for an element type, without `torch.`."""
    return str(value).removeprefix("torch.")


class _CudaBytes:
    """Device memory as NumPy's array interface describes it."""

    def __init__(self, address: int, nbytes: int, read_only: bool) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, read_only),
            "strides": None,
            "version": 3,
        }


def memory_for(target: str) -> Memory:
    """The memory of a task's target, with the GPU's primary context made current for `cuda`."""
    if target == "cpu":
        return HostMemory()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    return CudaMemory()


def raw_bytes(
    buffer: Buffer, target: str, address: int | None = None, nbytes: int | None = None
) -> torch.Tensor:
    """A flat uint8 view of a buffer: its data, or `nbytes` from `address`."""
    start = buffer.address if address is None else address
    count = buffer.nbytes if nbytes is None else nbytes
    if count == 0:
        return torch.empty(0, dtype=torch.uint8, device="cuda" if target == "cuda" else "cpu")
    if target == "cuda":
        # torch warns about read-only interfaces and offers no read-only tensor: the MMU enforces it.
        return torch.as_tensor(_CudaBytes(start, count, False), device="cuda")
    storage = (ctypes.c_uint8 * count).from_address(start)
    return torch.frombuffer(storage, dtype=torch.uint8)


def typed(buffer: Buffer, target: str, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """The buffer's data as a contiguous tensor of that dtype and shape."""
    kind = TORCH_DTYPES[dtype]
    if buffer.nbytes == 0:
        return torch.empty(tuple(shape), dtype=kind, device="cuda" if target == "cuda" else "cpu")
    return raw_bytes(buffer, target).view(kind).view(tuple(shape))


def poison(buffer: Buffer, target: str) -> None:
    """Fill data and guards with POISON."""
    raw_bytes(buffer, target, buffer.base, buffer.total).fill_(POISON)


def guard_damage(buffer: Buffer, target: str) -> str | None:
    """Where a guard was overwritten, or None: the nearest damaged byte to the data on either side."""
    before = raw_bytes(buffer, target, buffer.base, GUARD_BYTES)
    after_start = buffer.address + buffer.nbytes
    after = raw_bytes(buffer, target, after_start, buffer.base + buffer.total - after_start)
    found: list[str] = []
    hits = (before != POISON).nonzero()
    if hits.numel():
        found.append(f"{GUARD_BYTES - int(hits.max())} bytes before the start")
    hits = (after != POISON).nonzero()
    if hits.numel():
        found.append(f"{int(hits.min())} bytes past the end")
    return " and ".join(found) or None


def scalar_text(value: torch.Tensor) -> str:
    """One element as text that keeps its precision."""
    item: Any = value.item()
    return f"{item:.9g}" if isinstance(item, float) else str(item)
