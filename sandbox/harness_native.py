"""Runs a compiled candidate inside the sandbox: a shared library's launcher, or a kernel of a cubin.

`python -m cuteforge.sandbox.harness_native FD`: FD is the control channel from the executor, whose single
message carries the configuration and two descriptors, the link to the judge and the artefact. Needs
cuda-python for CUDA and nothing beyond the standard library for the CPU target; never torch.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cuteforge.kernels import launch
from cuteforge.kernels.errors import CuteforgeError
from cuteforge.sandbox.channel import Channel
from cuteforge.sandbox.harness import CandidateError, Program, serve
from cuteforge.sandbox.memory import Buffer, CudaMemory, HostMemory, Memory, cuda_call

_SCALARS: dict[str, Any] = {"bool": ctypes.c_bool, "float": ctypes.c_double, "int": ctypes.c_int64}


@dataclass
class BoundSet:
    """The buffers of one set, mapped here, and the call prepared over them."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: dict[str, int | float | bool] = field(default_factory=dict)
    invoke: Callable[[], int] = lambda: 0


class _Native:
    """What launcher and kernel entries share: mapping, calling, timing."""

    def __init__(self, config: dict[str, Any], memory: Memory) -> None:
        self.config = config
        self.memory = memory
        self.sets: dict[int, BoundSet] = {}

    def bind(self, key: int, tensors: list[dict[str, Any]], names: dict[str, Any], fds: list[int]) -> None:
        bound = BoundSet(names=names)
        for tensor, fd in zip(tensors, fds, strict=True):
            read_only = tensor["role"] != "output"
            bound.buffers[tensor["name"]] = self.memory.attach(fd, int(tensor["nbytes"]), read_only)
        try:
            bound.invoke = self.prepare(bound)
        except CuteforgeError as error:
            raise CandidateError(error.explain(), alive=True) from error
        self.sets[key] = bound

    def release(self, key: int) -> None:
        for buffer in self.sets.pop(key).buffers.values():
            self.memory.free(buffer)

    def prepare(self, bound: BoundSet) -> Callable[[], int]:
        """A function that makes one call over the set and returns its error code."""
        raise NotImplementedError

    def values(self, bound: BoundSet) -> dict[str, int | float | bool]:
        """Sizes, scalars and numeric defines, for launch expressions."""
        defines = {k: v for k, v in self.config.get("defines", {}).items() if not isinstance(v, str)}
        return {**bound.names, **defines}


def _launcher(
    library: ctypes.CDLL, config: dict[str, Any], bound: BoundSet, stream: int | None
) -> Callable[[], int]:
    function = library.cuteforge_launch
    function.restype = ctypes.c_int
    arguments: list[Any] = []
    for kind, name in config["arguments"]:
        if kind == "tensor":
            arguments.append(ctypes.c_void_p(bound.buffers[name].address))
        elif kind == "stream":
            arguments.append(ctypes.c_void_p(stream))
        else:
            value = bound.names[name]
            arguments.append(_SCALARS[type(value).__name__](value))
    packed = tuple(arguments)

    def invoke() -> int:
        return int(function(*packed))

    return invoke


class CpuLauncher(_Native):
    """A launcher for the CPU target."""

    def __init__(self, config: dict[str, Any], artefact_fd: int) -> None:
        super().__init__(config, HostMemory())
        self._library = load_library(artefact_fd)

    def prepare(self, bound: BoundSet) -> Callable[[], int]:
        """See _Native.prepare."""
        return _launcher(self._library, self.config, bound, None)

    def call(self, key: int) -> None:
        """See Program.call."""
        code = self.sets[key].invoke()
        if code:
            raise CandidateError(f"cuteforge_launch returned {code}", alive=True)

    def timed(self, keys: list[int], calls: int) -> float:
        """See Program.timed."""
        plan = [self.sets[keys[i % len(keys)]].invoke for i in range(calls)]
        failed = 0
        start = time.perf_counter_ns()
        for invoke in plan:
            failed |= invoke()
        elapsed = time.perf_counter_ns() - start
        if failed:
            raise CandidateError("cuteforge_launch returned an error in a timed block", alive=True)
        return float(max(elapsed, 1))


class _Cuda(_Native):
    """What CUDA entries share: context, stream, events."""

    def __init__(self, config: dict[str, Any]) -> None:
        from cuda.bindings import driver

        self.driver = driver
        cuda_call(driver.cuInit(0))
        device = cuda_call(driver.cuDeviceGet(0))
        cuda_call(driver.cuCtxSetCurrent(cuda_call(driver.cuDevicePrimaryCtxRetain(device))))
        super().__init__(config, CudaMemory())
        self.stream = cuda_call(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._start = cuda_call(driver.cuEventCreate(0))
        self._end = cuda_call(driver.cuEventCreate(0))

    def _finish(self, what: str) -> None:
        try:
            cuda_call(self.driver.cuCtxSynchronize())
        except CuteforgeError as error:
            raise CandidateError(f"{what}: {error.cause}") from error

    def call(self, key: int) -> None:
        """See Program.call."""
        code = self.sets[key].invoke()
        if code:
            # The context may be poisoned: the synchronisation tells.
            self._finish(f"the launch returned {self._name(code)}")
            raise CandidateError(f"the launch returned {self._name(code)}", alive=True)
        self._finish("the kernel failed")

    def _name(self, code: int) -> str:
        # cudaError_t and CUresult agree in their common codes.
        try:
            _, text = self.driver.cuGetErrorString(self.driver.CUresult(code))
        except ValueError:
            return str(code)
        return f"{code} ({text.decode()})" if isinstance(text, bytes) else str(code)

    def timed(self, keys: list[int], calls: int) -> float:
        """See Program.timed."""
        plan = [self.sets[keys[i % len(keys)]].invoke for i in range(calls)]
        failed = 0
        cuda_call(self.driver.cuCtxSynchronize())
        cuda_call(self.driver.cuEventRecord(self._start, self.stream))
        for invoke in plan:
            failed |= invoke()
        cuda_call(self.driver.cuEventRecord(self._end, self.stream))
        self._finish("the kernel failed in a timed block")
        if failed:
            raise CandidateError("a launch failed in a timed block", alive=True)
        return float(cuda_call(self.driver.cuEventElapsedTime(self._start, self._end))) * 1e6


class CudaLauncher(_Cuda):
    """A launcher in a shared library that nvcc built; its CUDA runtime joins the primary context."""

    def __init__(self, config: dict[str, Any], artefact_fd: int) -> None:
        super().__init__(config)
        self._library = load_library(artefact_fd)

    def prepare(self, bound: BoundSet) -> Callable[[], int]:
        """See _Native.prepare."""
        return _launcher(self._library, self.config, bound, int(self.stream))


class CudaKernel(_Cuda):
    """A `__global__` function of a cubin, launched by expressions."""

    def __init__(self, config: dict[str, Any], artefact_fd: int) -> None:
        super().__init__(config)
        with open(artefact_fd, "rb") as stream:
            self._image = stream.read()
        try:
            self._module = cuda_call(self.driver.cuModuleLoadData(self._image))
            name = str(config["lowered_name"]).encode()
            self._function = cuda_call(self.driver.cuModuleGetFunction(self._module, name))
        except CuteforgeError as error:
            raise CandidateError(f"the cubin cannot be loaded: {error.cause}") from error
        self._launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
        self._launch.restype = ctypes.c_int
        self._launch.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint] * 7,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]

    def _parameter_sizes(self) -> list[int]:
        sizes: list[int] = []
        while True:
            error, _, size = self.driver.cuFuncGetParamInfo(self._function, len(sizes))
            if error != self.driver.CUresult.CUDA_SUCCESS:
                return sizes
            sizes.append(int(size))

    def prepare(self, bound: BoundSet) -> Callable[[], int]:
        """See _Native.prepare. Scalars take the width that the kernel's parameter has."""
        entry = self.config["entry"]
        values = self.values(bound)
        sizes = self._parameter_sizes()
        if len(sizes) != len(entry["args"]):
            raise CandidateError(
                f"the kernel takes {len(sizes)} parameters, the entry gives {len(entry['args'])} args",
                alive=True,
            )
        cells: list[Any] = []
        for expression, size in zip(entry["args"], sizes, strict=True):
            argument = launch.argument(expression, values, bound.buffers)
            if isinstance(argument, launch.Pointer):
                cells.append(ctypes.c_uint64(bound.buffers[argument.name].address))
            else:
                cells.append(_scalar_cell(argument, size, expression))
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*[ctypes.addressof(cell) for cell in cells])
        grid = launch.dim3(entry["grid"], values)
        block = launch.dim3(entry["block"], values)
        shared = int(launch.evaluate(entry["shared_bytes"], values))
        if shared > 48 * 1024:
            attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cuda_call(self.driver.cuFuncSetAttribute(self._function, attribute, shared))
        function, stream, entry_point = int(self._function), int(self.stream), self._launch

        def invoke() -> int:
            # `cells` must outlive the launch: naming it keeps it in the closure.
            _ = cells
            return int(entry_point(function, *grid, *block, shared, stream, pointers, None))

        return invoke


def _scalar_cell(scalar: launch.Scalar, size: int, expression: str) -> Any:
    kinds: dict[str | None, Any] = {
        "i32": ctypes.c_int32,
        "i64": ctypes.c_int64,
        "u32": ctypes.c_uint32,
        "f32": ctypes.c_float,
        "f64": ctypes.c_double,
    }
    kind: Any = kinds.get(scalar.ctype)
    if kind is None:
        if isinstance(scalar.value, float):
            kind = {4: ctypes.c_float, 8: ctypes.c_double}.get(size)
        else:
            kind = {1: ctypes.c_uint8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}.get(size)
    if kind is None or ctypes.sizeof(kind) != size:
        raise CandidateError(
            f"argument '{expression}' does not fit a parameter of {size} bytes; cast it with i32(), i64(), "
            "u32(), f32() or f64()",
            alive=True,
        )
    cell = kind(scalar.value)
    if not isinstance(scalar.value, float) and int(cell.value) != int(scalar.value):
        raise CandidateError(f"argument '{expression}' = {scalar.value} overflows its parameter", alive=True)
    return cell


def load_library(fd: int) -> ctypes.CDLL:
    """Open a shared library from a descriptor. Raises CandidateError with the linker's own words."""
    try:
        return ctypes.CDLL(f"/proc/self/fd/{fd}", mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise CandidateError(f"the shared library cannot be loaded: {error}") from error


def _program(config: dict[str, Any], artefact_fd: int) -> Program:
    if config["target"] == "cpu":
        return CpuLauncher(config, artefact_fd)
    if config["entry"]["kind"] == "kernel":
        return CudaKernel(config, artefact_fd)
    return CudaLauncher(config, artefact_fd)


def main(control_fd: int) -> None:
    """Take the configuration from the executor and serve the judge."""
    control = Channel.from_fd(control_fd)
    config, (link_fd, artefact_fd) = control.receive()
    control.close()
    link = Channel.from_fd(link_fd)

    def load() -> Program:
        try:
            return _program(config, artefact_fd)
        except CuteforgeError as error:
            raise CandidateError(error.explain()) from error

    serve(link, load)


if __name__ == "__main__":
    main(int(sys.argv[1]))
