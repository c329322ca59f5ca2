"""Who may use a device: leases between all processes of one user on one machine.

A lease is an advisory lock (flock) on a file for the device: the kernel frees it when its holder ends,
however it ends. Correctness runs share a device; a measurement has it alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from cuteforge.kernels.errors import EnvironmentProblem

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "cuteforge"
    return Path("/tmp") / f"cuteforge-{os.getuid()}"


def lease_path(device: str) -> Path:
    """The lock file of a device (a GPU's UUID, or `cpu`), in a folder of this user alone.

    Raises:
        EnvironmentProblem: the folder exists and belongs to somebody else.
    """
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EnvironmentProblem(
            f"'{folder}' is not a folder of this user, so GPU leases cannot be kept there.",
            "Remove it, or set XDG_RUNTIME_DIR to a private folder.",
        )
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", device)[:100]
    return folder / f"device-{name}.lock"


async def _acquire(path: Path, exclusive: bool, on_wait: Callable[[], Awaitable[None]] | None) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(path, flags, 0o600)
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    pause = _FIRST_PAUSE_S
    told = False
    try:
        while True:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait is not None and not told:
                    told = True
                    await on_wait()
                await anyio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_S)
            else:
                return handle
    except BaseException:
        os.close(handle)
        raise


@asynccontextmanager
async def lease(
    path: Path, exclusive: bool, on_wait: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[None]:
    """Hold a device for a block; `on_wait` is called once if it has to be waited for.

    A gate file beside the lock is taken first by everybody, so that a measurement that waits is not passed
    for ever by correctness runs that share.
    """
    gate = await _acquire(path.with_suffix(".gate"), True, on_wait)
    try:
        handle = await _acquire(path, exclusive, on_wait)
    finally:
        os.close(gate)
    try:
        yield
    finally:
        os.close(handle)
