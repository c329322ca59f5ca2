"""One sandboxed child: started in its own session, bounded in every resource, ended as a whole tree.

`run` for a command with an end; `start` for a child that a block of code talks to; `spawn` for one that
outlives the call that made it. Runs on asyncio (also through anyio's asyncio backend).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal as signals
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Literal

from anyio import CancelScope

from cuteforge.kernels.errors import EnvironmentProblem, WorkerDied
from cuteforge.sandbox import proctree
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus, probe, wrap

Reason = Literal["exit", "timeout", "memory", "processes", "killed"]

WATCH_INTERVAL_S = 0.2
# How long output may still arrive after the child itself has ended.
_DRAIN_S = 1.0
_KILL_S = 5.0
_MARKER = "CUTEFORGE_CHILD"


@dataclass(frozen=True)
class Limits:
    """Bounds of one child and everything below it.

    `memory_bytes` is the tree's resident memory, watched, because RLIMIT_AS breaks CUDA. `cpu_s` and
    `file_bytes` (also of a memfd that the child grows) hold for each process. `processes` is watched; with
    isolation the kernel also bounds threads at 16 times that. `output_bytes` is how much of the end of
    stdout and of stderr is kept; the rest is read and counted.
    """

    wall_s: float
    cpu_s: int | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    output_bytes: int = 64 * 1024
    processes: int | None = 256
    nofile: int = 4096


@dataclass(frozen=True)
class Ended:
    """How a child ended. `signal` is set when one ended it, also inside the sandbox."""

    returncode: int
    signal: int | None
    reason: Reason
    stdout_tail: str
    stderr_tail: str
    stdout_total: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.reason == "exit" and self.returncode == 0


class _Tail:
    """The last `limit` bytes of a stream, and how many there were."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.total = 0

    async def drain(self, pipe: IO[bytes]) -> None:
        """Read a pipe to its end; the pipe is closed then, or when this is cancelled."""
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        try:
            await self._read(stream)
        finally:
            transport.close()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(1 << 16):
            self.total += len(chunk)
            self._data += chunk
            if len(self._data) > self._limit:
                del self._data[: len(self._data) - self._limit]

    def text(self) -> str:
        return self._data.decode("utf-8", "replace")


def _limited(argv: Sequence[str], limits: Limits) -> list[str]:
    """`argv` under resource limits; set by util-linux, since code between fork and exec is unsafe here."""
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        return list(argv)
    options = ["--core=0", f"--nofile={_capped_nofile(limits.nofile)}"]
    if limits.file_bytes is not None:
        options.append(f"--fsize={limits.file_bytes}")
    if limits.cpu_s is not None:
        options.append(f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}")
    return [prlimit, *options, "--", *argv]


def _capped_nofile(wanted: int) -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _limit_started(pid: int, limits: Limits) -> None:
    """The same limits for a process that has just started, where `prlimit` is not installed."""
    bounds: list[tuple[int, int | None]] = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _capped_nofile(limits.nofile)),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
    ]
    for kind, bound in bounds:
        if bound is not None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, kind, (bound, bound))


def _inner(spec: SandboxSpec, limits: Limits) -> SandboxSpec:
    """The spec with a hard bound on threads inside, where they are counted for the namespace alone."""
    if limits.processes is None or not os.path.exists("/usr/bin/prlimit"):
        return spec
    bound = max(1024, 16 * limits.processes)
    return replace(spec, argv=("/usr/bin/prlimit", f"--nproc={bound}", "--", *spec.argv))


class Child:
    """A running child. Made by `spawn` or `start`; whoever spawned it must `kill` or `wait` for it."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits, isolated: bool, marker: str) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self._process = process
        self._limits = limits
        self._isolated = isolated
        self._marker = marker
        self._started = time.monotonic()
        self._reason: Reason = "exit"
        self._known: set[proctree.ProcessId] = set()
        self._stdout = _Tail(limits.output_bytes)
        self._stderr = _Tail(limits.output_bytes)
        self._drains = [
            asyncio.create_task(self._stdout.drain(process.stdout)),
            asyncio.create_task(self._stderr.drain(process.stderr)),
        ]
        self._kill_asked = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise())

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._supervisor.done()

    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr so far."""
        return self._stderr.text()

    @property
    def stdout_tail(self) -> str:
        """The end of what it wrote to stdout so far."""
        return self._stdout.text()

    async def wait(self) -> Ended:
        """Until it has ended by itself or at a limit. Cancelling the wait does not end the child."""
        return await asyncio.shield(self._supervisor)

    async def kill(self) -> Ended:
        """End the whole tree and wait until nothing of it is left; not cancellable, harmless when ended."""
        # The supervisor does it, so that a native cancellation of this call cannot stop it half-way.
        self._kill_asked.set()
        with CancelScope(shield=True):
            await asyncio.shield(self._supervisor)
        return self._supervisor.result()

    async def _end(self, reason: Reason) -> None:
        if self._reason == "exit" and self._process.returncode is None:
            self._reason = reason
        members = set(self._known)
        members |= set(await asyncio.to_thread(self._members))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The group is the child's own: it was started as a session leader and is not reaped yet.
            if self._process.returncode is None:
                os.killpg(self.pid, signals.SIGKILL)
        await asyncio.to_thread(proctree.end_and_wait, members, _KILL_S)

    def _members(self) -> list[proctree.ProcessId]:
        found = proctree.tree(self.pid)
        if not self._isolated:
            # Without a pid namespace an orphan is handed to init: only its environment tells whose it was.
            found += [p for p in proctree.marked(self._marker) if p not in found]
        return found

    async def _exit(self) -> None:
        """Until the child itself has ended, whoever may still hold its pipes; it is reaped then."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        try:
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._process.wait()

    async def _supervise(self) -> Ended:
        exited = asyncio.ensure_future(self._exit())
        asked = asyncio.ensure_future(self._kill_asked.wait())
        deadline = self._started + self._limits.wall_s
        try:
            while not exited.done():
                pause = min(WATCH_INTERVAL_S, max(0.0, deadline - time.monotonic()))
                waited = {exited} if asked.done() else {exited, asked}
                await asyncio.wait(waited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if exited.done():
                    break
                if asked.done():
                    reason: Reason | None = "killed"
                elif time.monotonic() >= deadline:
                    reason = "timeout"
                else:
                    reason = await asyncio.to_thread(self._excess)
                if reason is not None:
                    await self._end(reason)
        finally:
            exited.cancel()
            asked.cancel()
        seconds = time.monotonic() - self._started
        if not self._isolated:
            await asyncio.to_thread(self._end_orphans)
        await asyncio.wait(self._drains, timeout=_DRAIN_S)
        for drain in self._drains:
            drain.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        return self._ended(seconds)

    def _end_orphans(self) -> None:
        """What a plain child left running; repeated because it may fork while it is looked at."""
        deadline = time.monotonic() + _KILL_S
        while (left := proctree.marked(self._marker)) and time.monotonic() < deadline:
            proctree.end_and_wait(left, 0.5)

    def _excess(self) -> Reason | None:
        members = self._members()
        self._known = set(members)
        limits = self._limits
        if limits.processes is not None and len(members) > limits.processes:
            return "processes"
        if (
            limits.memory_bytes is not None
            and proctree.resident_bytes(members) > limits.memory_bytes
            and proctree.proportional_bytes(members) > limits.memory_bytes
        ):
            return "memory"
        return None

    def _ended(self, seconds: float) -> Ended:
        code = self._process.returncode
        assert code is not None
        signal: int | None = None
        if code < 0:
            signal = -code
        elif self._isolated and 128 < code < 128 + signals.NSIG:
            # bubblewrap reports the end by a signal as a shell does.
            signal = code - 128
        return Ended(
            code, signal, self._reason, self._stdout.text(), self._stderr.text(), self._stdout.total, seconds
        )


async def spawn(
    spec: SandboxSpec, limits: Limits, pass_fds: Sequence[int] = (), status: SandboxStatus | None = None
) -> Child:
    """Start a child whose lifetime the caller manages.

    `pass_fds` are open at the same numbers inside. stdin is empty.

    Raises:
        EnvironmentProblem: the command could not be started at all.
        WorkerDied: the system had no process or memory left.
    """
    if status is None:
        status = await asyncio.to_thread(probe)
    isolated = status.kind != "none"
    if status.bwrap is not None and not status.bwrap.exists():
        raise EnvironmentProblem(
            f"bubblewrap at '{status.bwrap}' is gone.", "Reinstall it, then restart the server."
        )
    marker = f"{_MARKER}={uuid.uuid4().hex}"
    if isolated:
        argv = wrap(_inner(spec, limits), status)
    else:
        name, _, value = marker.partition("=")
        argv = wrap(replace(spec, env={**spec.env, name: value}), status)
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            argv = [setpriv, "--pdeathsig", "KILL", "--", *argv]
    try:
        # In this thread on purpose: the child is ended when the thread that started it ends.
        process = subprocess.Popen(
            _limited(argv, limits),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            f"'{error.filename}' could not be started: it does not exist.", "Run `cuteforge doctor`."
        ) from error
    except OSError as error:
        raise WorkerDied(f"A process could not be started: {error.strerror}.", "Try again later.") from error
    if shutil.which("prlimit") is None:
        _limit_started(process.pid, limits)
    return Child(process, limits, isolated, marker)


@contextlib.asynccontextmanager
async def start(
    spec: SandboxSpec, limits: Limits, pass_fds: Sequence[int] = (), status: SandboxStatus | None = None
) -> AsyncIterator[Child]:
    """A child for the length of a block: its whole tree is ended when the block is left in any way."""
    child = await spawn(spec, limits, pass_fds, status)
    try:
        yield child
    finally:
        await child.kill()


async def run(spec: SandboxSpec, limits: Limits, status: SandboxStatus | None = None) -> Ended:
    """Run a command to its end, or to a limit; cancelling ends its tree."""
    async with start(spec, limits, status=status) as child:
        return await child.wait()
