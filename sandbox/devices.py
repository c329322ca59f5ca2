"""The machine's processors, found without torch and without CUDA."""

from __future__ import annotations

import csv
import functools
import io
import os
import platform
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuteforge.sandbox.executor import Gpu

DEFAULT_ARCH = "sm_90a"
# Compute capabilities with an architecture-specific target, from `nvcc --help` of CUDA 12.9 and 13.0.
_SPECIFIC = frozenset({"90", "100", "101", "103", "110", "120", "121"})
_QUERY = "index,name,uuid,compute_cap,memory.total,driver_version"
_TIMEOUT_S = 20


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi` lists, in its order; empty without a working driver. Cached."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_gpus(done.stdout) if done.returncode == 0 else ()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """`nvidia-smi --query-gpu` output as GPUs; lines of another form are skipped.

    >>> parse_gpus("0, NVIDIA H200, GPU-1, 9.0, 143771, 580.95\\n")[0].memory_bytes
    150754820096
    """
    found: list[Gpu] = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != 6 or not row[0].isdigit() or not row[4].strip().isdigit():
            continue
        index, name, uuid, capability, mebibytes, driver = (cell.strip() for cell in row)
        found.append(
            Gpu(
                index=int(index),
                name=name,
                uuid=uuid,
                compute_capability=capability,
                memory_bytes=int(mebibytes) << 20,
                driver=driver,
            )
        )
    return tuple(found)


def device_nodes(gpu: Gpu) -> tuple[str, ...]:
    """The device node of this GPU alone, such as `/dev/nvidia3`.

    The node's number is the driver's minor, which differs from the index where some GPUs are hidden.
    """
    for information in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        text = information.read_text(errors="replace")
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        if gpu.uuid in text and minor:
            return (f"/dev/nvidia{minor[1]}",)
    return (f"/dev/nvidia{gpu.index}",)


def arch_for(gpu: Gpu | None) -> str:
    """The compile target of a GPU, with the `a` suffix where the hardware has such features.

    `wgmma` and TMA's newer forms exist only under the suffix. Without a GPU the target is `sm_90a`.

    >>> arch_for(None)
    'sm_90a'
    """
    if gpu is None:
        return DEFAULT_ARCH
    number = gpu.compute_capability.replace(".", "")
    return specific(number) or f"sm_{number}"


def specific(number: str) -> str | None:
    """The architecture-specific target of a compute capability such as `90`, if it has one."""
    return f"sm_{number}a" if number in _SPECIFIC else None


@functools.cache
def cpu_name() -> str:
    """The processor's model as the kernel names it."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def foreign_load(gpu: Gpu | None) -> list[str]:
    """What else keeps the device busy right now, as remarks on a measurement; empty when it is quiet.

    For a GPU: its compute processes and active throttling as `nvidia-smi` reports them, taken before this
    server's own processes touch it. For the CPU: more threads running than half of the processors (a load average would still hold what has
    just ended).
    """
    if gpu is None:
        running = _running_threads()
        return [f"{running} other thread(s) running on {cores()} cores"] if running > cores() / 2 else []
    remarks: list[str] = []
    # Each start of nvidia-smi costs a tenth of a second or more: the two run side by side.
    with ThreadPoolExecutor(2) as pool:
        processes = pool.submit(_smi, gpu, "--query-compute-apps=pid,used_memory")
        reasons = pool.submit(_smi, gpu, "--query-gpu=clocks_event_reasons.active")
        others, throttling = processes.result(), reasons.result()
    if others:
        remarks.append(f"{len(others)} other process(es) on the GPU before the run")
    # Bits of nvmlClocksEventReasons: hardware slowdown, thermal and power brakes; not idle or power cap.
    for row in throttling:
        mask = int(row[0], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", row[0]) else 0
        if mask & 0xE8:
            remarks.append(f"the GPU is throttling (reasons {row[0]})")
    return remarks


def _running_threads() -> int:
    """Runnable threads besides this one: the median of a few looks."""
    looks: list[int] = []
    for _ in range(5):
        with open("/proc/loadavg") as stream:
            looks.append(int(stream.read().split()[3].partition("/")[0]) - 1)
        time.sleep(0.02)
    return sorted(looks)[len(looks) // 2]


def _smi(gpu: Gpu, query: str) -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "-i", gpu.uuid, query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if row]
