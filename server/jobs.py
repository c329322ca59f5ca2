"""Long work: inline while that is short, a job with an id afterwards.

A job belongs to the server, not to the request that started it. While its id has not been handed out, nobody
else can ask for its result, so it ends with its request; afterwards it goes on until it is done, cancelled,
or past its deadline.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.abc

from cuteforge.kernels.errors import CuteforgeError, DeadlineExceeded
from cuteforge.server.faults import InternalFault, report_fault
from cuteforge.tools.answers import Answer
from cuteforge.tools.work import Gate, Progress, Reporter

State = Literal["running", "done", "failed", "cancelled"]
Work = Callable[[Progress], Awaitable[Answer]]


@dataclass(eq=False)
class Job:
    """One piece of work and its end. Exactly one of `answer` and `error` is set once it is over."""

    id: str
    kind: str
    subject: str
    reporter: Reporter = field(default_factory=Reporter)
    state: State = "running"
    answer: Answer | None = None
    error: CuteforgeError | InternalFault | None = None
    handed_out: bool = False
    finished: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def result(self) -> Answer:
        """The answer; raises the error that the work ended with."""
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise CuteforgeError(
                f"Job {self.id} was cancelled.", "Start the work again if it is still needed."
            )
        return self.answer


class Jobs:
    """Runs jobs in a task group, each behind the gate of its kind.

    `keep` stores the end of a job whose id was handed out.
    """

    def __init__(
        self,
        group: anyio.abc.TaskGroup,
        gates: dict[str, Gate],
        deadline: Callable[[str], float],
        keep: Callable[[Job], Awaitable[None]],
    ) -> None:
        self._group = group
        self._gates = gates
        self._deadline = deadline
        self._keep = keep
        self._live: dict[str, Job] = {}

    def find(self, job_id: str) -> Job | None:
        """A job of this server that is not over, or whose end could not be stored."""
        return self._live.get(job_id)

    def unfinished(self) -> list[Job]:
        """Handed-out jobs that are still running."""
        return [job for job in self._live.values() if job.handed_out and job.state == "running"]

    def start(self, kind: str, subject: str, work: Work) -> Job:
        """Start work; it waits for its turn before it runs."""
        job = Job(id=f"j_{secrets.token_hex(6)}", kind=kind, subject=subject)
        self._live[job.id] = job
        self._group.start_soon(self._drive, job, work)
        return job

    async def inline(
        self, job: Job, seconds: float, listener: Progress, hand_out: Callable[[Job], Awaitable[None]]
    ) -> bool:
        """Wait for a job and tell `listener` its progress; True if it is over within `seconds`.

        Otherwise `hand_out` is called, and from then on the job survives its request. A cancelled wait cancels
        a job that has not been handed out, and returns when its processes are gone.
        """
        try:
            with anyio.move_on_after(seconds):
                await self._follow(job, listener)
            if job.finished.is_set():
                return True
            # Shielded: a row without its job, or a job without its row, would be waited for in vain.
            with anyio.CancelScope(shield=True):
                await hand_out(job)
                job.handed_out = True
                if job.finished.is_set():
                    await self._settle(job)
            return False
        except BaseException:
            if not job.handed_out:
                job.scope.cancel()
                with anyio.CancelScope(shield=True):
                    await job.finished.wait()
            raise
        finally:
            if not job.handed_out:
                self._live.pop(job.id, None)

    async def _follow(self, job: Job, listener: Progress) -> None:
        told: tuple[float, str] | None = None
        while not job.finished.is_set():
            with anyio.move_on_after(1.0):
                await job.reporter.changed()
            latest = (job.reporter.fraction, job.reporter.message)
            if latest != told and latest[1]:
                told = latest
                await listener(*latest)

    async def wait(self, job: Job, seconds: float, listener: Progress) -> None:
        """Wait for a handed-out job, at most `seconds`."""
        with anyio.move_on_after(seconds):
            await self._follow(job, listener)

    async def cancel(self, job: Job) -> None:
        """End a job and its process tree; returns when that is done."""
        job.scope.cancel()
        await job.finished.wait()

    async def _drive(self, job: Job, work: Work) -> None:
        try:
            with job.scope:
                await self._attempt(job, work)
            if job.state == "running":
                job.state = "cancelled"
        finally:
            if job.state == "running":
                # The server stops: its task group, not the job's own scope, was cancelled.
                job.state = "cancelled"
            job.finished.set()
            job.reporter.finish()
            with anyio.CancelScope(shield=True):
                await self._settle(job)

    async def _attempt(self, job: Job, work: Work) -> None:
        limit = self._deadline(job.kind)
        try:
            with anyio.move_on_after(limit) as deadline:
                async with self._gates[job.kind].slot(job.reporter):
                    job.answer = await work(job.reporter)
                job.state = "done"
            if deadline.cancelled_caught:
                job.state = "failed"
                job.error = DeadlineExceeded(
                    f"The {job.kind} work was stopped after {limit:.0f} s; its processes are ended.",
                    "Use smaller cases, or start the server with a larger "
                    f"CUTEFORGE_{job.kind.upper()}_SECONDS.",
                )
        except CuteforgeError as error:
            job.state = "failed"
            job.error = error
        except Exception as error:  # noqa: BLE001 - a fault in one job must not end the others
            job.state = "failed"
            job.error = report_fault(error, f"job {job.kind}")

    async def _settle(self, job: Job) -> None:
        if not job.handed_out:
            return
        try:
            await self._keep(job)
        except CuteforgeError as error:
            # The result stays in memory for `job read`: a full disk must not lose it while the server lives.
            report_fault(error, "storing a job's result")
            return
        self._live.pop(job.id, None)
