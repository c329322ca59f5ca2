"""What a tool needs of the server that carries it: the workbench, and a place for long work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol

from cuteforge.tools.answers import Answer

if TYPE_CHECKING:
    from cuteforge.sandbox.executor import Progress
    from cuteforge.tools.workbench import Workbench

JobKind = Literal["derive", "compile", "check", "benchmark"]
JobAction = Literal["wait", "read", "cancel"]


class Host(Protocol):
    """Implemented by the server; nothing is opened before the first call."""

    async def workbench(self) -> Workbench:
        """The workbench, opened with the first call of any tool.

        Raises:
            EnvironmentProblem: the store or the machine cannot be used.
        """
        ...

    async def run(
        self, kind: JobKind, subject: str, work: Callable[[Workbench, Progress], Awaitable[Answer]]
    ) -> Answer:
        """Run long work: its answer, or, once the inline time is over, a job's id and state."""
        ...

    async def job(self, action: JobAction, job_id: str, seconds: float) -> Answer:
        """Read, wait for, or cancel a job that was handed out.

        Raises:
            NotFound: there is no such job.
        """
        ...
