"""The tool `job`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host, JobAction


async def job(
    host: Host,
    id: Annotated[str, Field(description="a job id that a call answered")],  # noqa: A002
    action: JobAction = "wait",
    seconds: Annotated[float, Field(description="longest wait", ge=0, le=600)] = 40,
) -> Answer:
    """Wait for, read, or cancel work that took longer than one call. A finished job gives the answer of the
    call that started it."""
    return await host.job(action, id, seconds)
