"""The processes below one process, as `/proc` shows them: who they are and what memory they hold."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class ProcessId(NamedTuple):
    """A process and its start time in clock ticks: together they are never reused."""

    pid: int
    started: int


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time of a process; None once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except _GONE:
        return None
    # The command name is in parentheses and may hold anything, parentheses included.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """The process of that number, or None if there is none or only its zombie is left."""
    found = _stat(pid)
    return None if found is None or found[0] in "ZX" else ProcessId(pid, found[2])


def alive(process: ProcessId) -> bool:
    """Whether it still runs; a zombie does not."""
    return identify(process.pid) == process


def _children(pid: int) -> list[int] | None:
    """Direct children of all threads, or None where the kernel does not list them."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except _GONE:
        return found
    for thread in threads:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except _GONE:
            if Path(f"/proc/{pid}/task/{thread}").exists():
                return None
    return found


def _all_parents() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            found.setdefault(stat[1], []).append(int(entry))
    return found


def tree(root: int) -> list[ProcessId]:
    """`root` and everything below it that still runs, parents first."""
    table: dict[int, list[int]] | None = None
    found: list[ProcessId] = []
    pending = [root]
    seen: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid in seen:
            continue
        seen.add(pid)
        identity = identify(pid)
        if identity is not None:
            found.append(identity)
        children = _children(pid) if table is None else table.get(pid, [])
        if children is None:
            table = _all_parents()
            children = table.get(pid, [])
        pending += children
    return found


def marked(marker: str) -> list[ProcessId]:
    """Every process of this user whose initial environment holds `marker`, a `NAME=value`."""
    needle = marker.encode()
    found: list[ProcessId] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(*_GONE):
            if needle in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                identity = identify(int(entry))
                found += [identity] if identity is not None else []
    return found


def resident_bytes(processes: Iterable[ProcessId]) -> int:
    """Sum of resident memory; pages shared between them count once for each."""
    total = 0
    for process in processes:
        with contextlib.suppress(*_GONE, IndexError):
            total += int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * _PAGE
    return total


def proportional_bytes(processes: Iterable[ProcessId]) -> int:
    """Sum of proportional memory (PSS): shared pages count in equal parts; slower than `resident_bytes`."""
    total = 0
    for process in processes:
        with contextlib.suppress(*_GONE):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def end(processes: Iterable[ProcessId]) -> None:
    """SIGKILL to each that still is the process it was."""
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


def end_and_wait(processes: Iterable[ProcessId], timeout_s: float) -> list[ProcessId]:
    """`end` them and wait until they are gone; returns those that remain at the timeout."""
    remaining = list(processes)
    end(remaining)
    deadline = time.monotonic() + timeout_s
    while remaining := [p for p in remaining if alive(p)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return remaining
