"""Buffers that the judge owns and a candidate maps: guarded, poisoned, inputs read-only to the candidate.

Layout of one buffer, all of it filled with `POISON` before use::

    | guard (GUARD_BYTES) | data (nbytes) | guard, at least GUARD_BYTES, up to the allocation's end |

`POISON` is 0xFF, so an unwritten floating-point element is a NaN of a payload that arithmetic does not
produce, and a write past either end of the data changes a guard byte unless it happens to write 0xFF.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any, Protocol

from cuteforge.kernels.errors import EnvironmentProblem

GUARD_BYTES = 4096
POISON = 0xFF

_F_ADD_SEALS = 1033
_F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10


@dataclass
class Buffer:
    """One mapped buffer. `address` is that of the data in this process, `fd` the handle to pass on."""

    nbytes: int
    total: int
    base: int
    fd: int
    read_only: bool

    @property
    def address(self) -> int:
        """Where the data begins."""
        return self.base + GUARD_BYTES


class Memory(Protocol):
    """Makes, maps and frees buffers on one kind of device."""

    def create(self, nbytes: int, read_only: bool) -> Buffer:
        """Allocate a buffer; `read_only` is what importers get, the owner may always write."""
        ...

    def attach(self, fd: int, nbytes: int, read_only: bool) -> Buffer:
        """Map a buffer created by another process. The descriptor is consumed."""
        ...

    def free(self, buffer: Buffer) -> None:
        """Unmap it and close its descriptor."""
        ...


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


class HostMemory:
    """Buffers in sealed memfds, for the CPU target."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap = libc.mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        self._munmap = libc.munmap
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    @staticmethod
    def _total(nbytes: int) -> int:
        return _round_up(GUARD_BYTES + nbytes + GUARD_BYTES, mmap.PAGESIZE)

    def _map(self, fd: int, total: int, writable: bool) -> int:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = self._mmap(None, total, protection, mmap.MAP_SHARED, fd, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise EnvironmentProblem(
                f"Mapping {total} bytes of shared memory failed: {os.strerror(ctypes.get_errno())}.",
                "Free memory, or use smaller cases.",
            )
        return int(address)

    def create(self, nbytes: int, read_only: bool) -> Buffer:
        """See Memory.create. A read-only buffer is sealed: no other process can map it for writing."""
        import fcntl

        total = self._total(nbytes)
        fd = os.memfd_create("cuteforge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, total)
        base = self._map(fd, total, writable=True)
        seals = _F_SEAL_SHRINK | _F_SEAL_GROW | (_F_SEAL_FUTURE_WRITE if read_only else 0)
        fcntl.fcntl(fd, _F_ADD_SEALS, seals)
        return Buffer(nbytes, total, base, fd, read_only)

    def attach(self, fd: int, nbytes: int, read_only: bool) -> Buffer:
        """See Memory.attach."""
        total = self._total(nbytes)
        base = self._map(fd, total, writable=not read_only)
        return Buffer(nbytes, total, base, fd, read_only)

    def free(self, buffer: Buffer) -> None:
        """See Memory.free."""
        self._munmap(buffer.base, buffer.total)
        os.close(buffer.fd)


class CudaMemory:
    """Buffers from CUDA's virtual-memory API, passed on as POSIX descriptors (one GPU: device 0).

    The calling thread must have the device's primary context current.
    Source: CUDA driver API, "Virtual Memory Management".
    """

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._handle_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._location = driver.CUmemLocation()
        self._location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._location.id = 0
        self._property = driver.CUmemAllocationProp()
        self._property.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._property.location = self._location
        self._property.requestedHandleTypes = self._handle_type
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._step = int(cuda_call(driver.cuMemGetAllocationGranularity(self._property, minimum)))

    def _total(self, nbytes: int) -> int:
        return _round_up(GUARD_BYTES + nbytes + GUARD_BYTES, self._step)

    def _map(self, handle: Any, total: int, writable: bool) -> int:
        driver = self._driver
        base = cuda_call(driver.cuMemAddressReserve(total, 0, 0, 0))
        cuda_call(driver.cuMemMap(base, total, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = self._location
        flags = driver.CUmemAccess_flags
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        cuda_call(driver.cuMemSetAccess(base, total, [access], 1))
        # The mapping keeps the memory alive; the handle itself is no longer needed.
        cuda_call(driver.cuMemRelease(handle))
        return int(base)

    def create(self, nbytes: int, read_only: bool) -> Buffer:
        """See Memory.create."""
        total = self._total(nbytes)
        handle = cuda_call(self._driver.cuMemCreate(total, self._property, 0))
        fd = int(cuda_call(self._driver.cuMemExportToShareableHandle(handle, self._handle_type, 0)))
        return Buffer(nbytes, total, self._map(handle, total, writable=True), fd, read_only)

    def attach(self, fd: int, nbytes: int, read_only: bool) -> Buffer:
        """See Memory.attach."""
        total = self._total(nbytes)
        handle = cuda_call(self._driver.cuMemImportFromShareableHandle(fd, self._handle_type))
        return Buffer(nbytes, total, self._map(handle, total, writable=not read_only), fd, read_only)

    def free(self, buffer: Buffer) -> None:
        """See Memory.free."""
        cuda_call(self._driver.cuMemUnmap(buffer.base, buffer.total))
        cuda_call(self._driver.cuMemAddressFree(buffer.base, buffer.total))
        os.close(buffer.fd)


def cuda_call(result: tuple[Any, ...]) -> Any:
    """The value of a cuda-python driver call, or EnvironmentProblem naming the driver's error."""
    from cuda.bindings import driver

    error, *values = result
    if error == driver.CUresult.CUDA_SUCCESS:
        return values[0] if len(values) == 1 else tuple(values)
    _, text = driver.cuGetErrorString(error)
    message = text.decode() if isinstance(text, bytes) else str(error)
    remedy = "Free GPU memory or use smaller cases." if "memory" in message else "Run `cuteforge doctor`."
    raise EnvironmentProblem(f"The CUDA driver answered '{message}' ({error.name}).", remedy)
