"""Sandboxes started ahead: torch imported, CUDA untouched, each used once.

Importing torch costs seconds; a request that finds a warm sandbox pays a few milliseconds for it instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from cuteforge.kernels.errors import WorkerDied
from cuteforge.sandbox.bubblewrap import SandboxSpec, SandboxStatus
from cuteforge.sandbox.channel import Channel, ChannelClosed, ChannelViolation
from cuteforge.sandbox.process import Child, Limits, spawn

_START_TIMEOUT_S = 180.0


@dataclass
class Worker:
    """A sandboxed process and the executor's channel to it."""

    child: Child
    channel: Channel

    async def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message. Raises WorkerDied when the process has ended."""
        try:
            message, fds = await anyio.to_thread.run_sync(
                self.channel.receive, timeout_s, abandon_on_cancel=True
            )
        except (ChannelClosed, ChannelViolation, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            ended = await self.child.kill()
            raise WorkerDied(
                f"A worker process ended ({ended.reason}, exit {ended.returncode}): "
                f"{ended.stderr_tail.strip()[-600:] or 'it wrote nothing'}.",
                "Repeat the call; if it recurs, run `cuteforge doctor` and free memory.",
            ) from error
        for fd in fds:
            os.close(fd)
        return message

    async def end(self) -> None:
        """Close the channel and end the process tree."""
        self.channel.close()
        await self.child.kill()


async def start_worker(
    module: str, spec_parts: dict[str, Any], limits: Limits, status: SandboxStatus
) -> Worker:
    """Start `python -m module FD` in a sandbox with a control channel at FD."""
    channel, other = Channel.pair()
    try:
        argv = (sys.executable, "-m", module, str(other.fileno()))
        child = await spawn(SandboxSpec(argv=argv, **spec_parts), limits, (other.fileno(),), status)
    except BaseException:
        channel.close()
        raise
    finally:
        other.close()
    return Worker(child, channel)


class WarmPool:
    """Keeps `size` torch workers ready. Must be used on one asyncio event loop."""

    def __init__(self, size: int, spec_parts: dict[str, Any], limits: Limits, status: SandboxStatus) -> None:
        self._size = size
        self._spec_parts = spec_parts
        self._limits = limits
        self._status = status
        self._ready: deque[Worker] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False

    def warm_up(self) -> None:
        """Start what is missing, in the background."""
        missing = self._size - len(self._ready) - len(self._starting)
        for _ in range(0 if self._closed else missing):
            task = asyncio.create_task(self._start_spare())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start_spare(self) -> None:
        # A spare that cannot be started is no failure yet: `take` tries again and reports it.
        with contextlib.suppress(WorkerDied, TimeoutError):
            self._ready.append(await self._start())

    async def _start(self) -> Worker:
        worker = await start_worker(
            "cuteforge.sandbox.torch_worker", self._spec_parts, self._limits, self._status
        )
        try:
            await worker.receive(_START_TIMEOUT_S)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await worker.end()
            raise
        return worker

    async def settle(self) -> None:
        """Wait until no spare is starting: its imports would disturb a measurement."""
        if self._starting:
            await asyncio.wait(set(self._starting))

    async def take(self, refill: bool = True) -> Worker:
        """A worker that is ready for its one order; the caller must `end` it.

        With `refill` the next spare is started at once, else at the next `warm_up`.

        Raises:
            WorkerDied: none could be started.
        """
        while True:
            while self._ready:
                worker = self._ready.popleft()
                if worker.child.running:
                    if refill:
                        self.warm_up()
                    return worker
                await worker.end()
            if not self._starting:
                break
            # One is on its way: waiting for it is never longer than starting another.
            await asyncio.wait(set(self._starting), return_when=asyncio.FIRST_COMPLETED)
            if not self._ready and not self._starting:
                break
        worker = await self._start()
        if refill:
            self.warm_up()
        return worker

    async def aclose(self) -> None:
        """End every worker, also those that are still starting."""
        self._closed = True
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        while self._ready:
            await self._ready.popleft().end()
