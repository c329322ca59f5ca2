"""What ptxas says each kernel was allotted: `-Xptxas -v` as KernelResources."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cuteforge.kernels.records import KernelResources

MAX_KERNELS = 32
MAX_NAME = 200

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for")
_PROPERTIES = re.compile(r"Function properties for '?([^'\s]+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def parse_ptxas(log: str) -> tuple[KernelResources, ...]:
    """The kernels of a log by mangled name, in order.

    ptxas names static shared memory only when there is some, so a `Used` line without it means 0 bytes;
    constant memory is None when the log does not speak of it.
    """
    found: dict[str, dict[str, int]] = {}
    entry: str | None = None
    described: str | None = None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = described = match[1]
            found.setdefault(entry, {})
        elif match := _PROPERTIES.search(line):
            described = match[1]
        elif (match := _STACK.search(line)) and described is not None and described == entry:
            stack, stores, loads = map(int, match.groups())
            found[entry] |= {"stack_bytes": stack, "spill_store_bytes": stores, "spill_load_bytes": loads}
        elif (match := _REGISTERS.search(line)) and entry is not None:
            found[entry]["registers"] = int(match[1])
            shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", line)
            found[entry]["static_shared_bytes"] = int(shared[1]) if shared else 0
            barriers = re.search(r"used (\d+) barriers", line)
            if barriers:
                found[entry]["barriers"] = int(barriers[1])
            constants = re.findall(r"(\d+) bytes cmem\[\d+\]", line)
            if constants:
                found[entry]["constant_bytes"] = sum(map(int, constants))
            entry = None
    return tuple(
        KernelResources.model_validate({"name": name, **values})
        for name, values in list(found.items())[:MAX_KERNELS]
    )


def renamed(kernels: tuple[KernelResources, ...], names: Mapping[str, str]) -> tuple[KernelResources, ...]:
    """The kernels under readable names, where `names` has one; long names are cut."""
    return tuple(k.model_copy(update={"name": names.get(k.name, k.name)[:MAX_NAME]}) for k in kernels)
