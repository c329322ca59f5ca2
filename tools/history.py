"""The tool `history`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host


async def history(
    host: Host,
    task_id: Annotated[str, Field(description="default: list the tasks")] = "",
    action: Literal["show", "checkout", "export"] = "show",
    candidate_id: Annotated[str, Field(description="for checkout: where to continue from")] = "",
) -> Answer:
    """The tree of a task's candidates with the best marked, and the phase of the work; check a candidate out,
    or export everything that is needed to repeat the task."""
    bench = await host.workbench()
    return await bench.history(task_id or None, action, candidate_id or None)
