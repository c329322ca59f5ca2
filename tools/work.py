"""Long work as its caller sees it: progress, and a queue where only so many run at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

Progress = Callable[[float, str], Awaitable[None]]


async def silent(fraction: float, message: str) -> None:
    """A Progress for work that is over before there is any to tell."""


class Reporter:
    """The latest progress of one piece of work; `ahead` counts the work before it while it is queued."""

    def __init__(self) -> None:
        self.fraction = 0.0
        self.message = ""
        self.ahead: int | None = None
        self._changed = anyio.Event()

    async def __call__(self, fraction: float, message: str) -> None:
        """Record a fraction in [0, 1] and a short text."""
        self._set(fraction, message, None)

    def queued(self, what: str, ahead: int) -> None:
        """Record that the work waits for `what` behind `ahead` others."""
        self._set(self.fraction, f"waiting for {what}, {ahead} ahead", ahead)

    def _set(self, fraction: float, message: str, ahead: int | None) -> None:
        # Progress must increase for MCP clients, whatever a step reports of itself.
        self.fraction = max(self.fraction, min(fraction, 1.0))
        self.message = message
        self.ahead = ahead
        self._changed.set()
        self._changed = anyio.Event()

    def finish(self) -> None:
        """Wake whoever waits: there will be no more progress."""
        self._changed.set()

    async def changed(self) -> None:
        """Return when there is newer progress."""
        await self._changed.wait()

    def part(self, low: float, high: float) -> Progress:
        """A view for one step that takes the range from `low` to `high` of the whole."""

        async def report(fraction: float, message: str) -> None:
            await self(low + (high - low) * min(max(fraction, 0.0), 1.0), message)

        return report


class Gate:
    """First come, first served, `slots` at a time."""

    def __init__(self, what: str, slots: int) -> None:
        self.what = what
        self._slots = slots
        self._running = 0
        self._waiting: list[tuple[anyio.Event, Reporter]] = []

    def _admit(self) -> None:
        while self._waiting and self._running < self._slots:
            ticket, _ = self._waiting.pop(0)
            self._running += 1
            ticket.set()
        for place, (_, reporter) in enumerate(self._waiting):
            reporter.queued(self.what, self._running + place)

    @asynccontextmanager
    async def slot(self, reporter: Reporter) -> AsyncIterator[None]:
        """Hold one of the slots; tells `reporter` its place while it waits."""
        entry = (anyio.Event(), reporter)
        self._waiting.append(entry)
        self._admit()
        try:
            await entry[0].wait()
            reporter.ahead = None
            yield
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            else:
                self._running -= 1
            self._admit()
