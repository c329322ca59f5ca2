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
_REMEDY = "Remove it, or set XDG_RUNTIME_DIR to a private folder."

OnWait = Callable[[], Awaitable[None]]


def _folder() -> Path:
    # A server started without a session's environment must find the leases of one that has it.
    for runtime in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        if os.path.isabs(runtime) and os.path.isdir(runtime):
            return Path(runtime) / "cuteforge"
    return Path("/tmp") / f"cuteforge-{os.getuid()}"


def lease_path(device: str) -> Path:
    """The lock file of a device (a GPU's UUID, or `cpu`), in a folder of this user alone.

    Raises:
        EnvironmentProblem: the folder cannot be made, or it exists and belongs to somebody else.
    """
    folder = _folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"'{folder}', where leases of devices are kept, cannot be made: {error.strerror}.", _REMEDY
        ) from error
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EnvironmentProblem(
            f"'{folder}' is not a folder of this user, so leases of devices cannot be kept there.", _REMEDY
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", device)[:100]
    return folder / f"device-{name}.lock"


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EnvironmentProblem(
            f"The lease '{path}' cannot be opened: {error.strerror}.", _REMEDY
        ) from error


def _is_current(handle: int, path: Path) -> bool:
    """Whether the file that was locked is still the one that others will lock."""
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


class _Announcement:
    """Calls `on_wait` at most once, however many locks have to be waited for."""

    def __init__(self, on_wait: OnWait | None) -> None:
        self._on_wait = on_wait

    async def __call__(self) -> None:
        on_wait, self._on_wait = self._on_wait, None
        if on_wait is not None:
            await on_wait()


async def _acquire(path: Path, exclusive: bool, waiting: OnWait) -> int:
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    pause = _FIRST_PAUSE_S
    handle = _open(path)
    try:
        while True:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                await waiting()
                await anyio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_S)
                continue
            if _is_current(handle, path):
                # Cleaners of /tmp go by age: a lock that is used must not look old.
                os.utime(handle)
                return handle
            stale, handle = handle, _open(path)
            os.close(stale)
    except BaseException:
        os.close(handle)
        raise


@asynccontextmanager
async def lease(path: Path, exclusive: bool, on_wait: OnWait | None = None) -> AsyncIterator[None]:
    """Hold a device for a block; `on_wait` is called once if it has to be waited for.

    A gate file beside the lock is taken first by everybody, so that a measurement that waits is not passed
    for ever by correctness runs that share. Waiting can be cancelled.

    Raises:
        EnvironmentProblem: the lock file cannot be opened; a symbolic link is not followed.
    """
    waiting = _Announcement(on_wait)
    gate = await _acquire(path.with_suffix(".gate"), True, waiting)
    try:
        handle = await _acquire(path, exclusive, waiting)
    finally:
        os.close(gate)
    try:
        yield
    finally:
        os.close(handle)
