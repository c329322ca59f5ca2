"""The tool `run_correctness`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host

if TYPE_CHECKING:
    from cuteforge.sandbox.executor import CheckOptions


async def run_correctness(
    host: Host,
    candidate_id: str,
    case: Annotated[str, Field(description="default: all cases")] = "",
    seeds: Annotated[int, Field(ge=1, le=100)] = 5,
) -> Answer:
    """Compare a candidate with the reference over cases, input families and seeds, in a sandbox: pass or
    fail, error statistics, the mismatch pattern, integrity evidence. Compiles it first if needed."""

    def options() -> CheckOptions:
        from cuteforge.sandbox.executor import CheckOptions

        return CheckOptions(seeds=seeds, case=case or None)

    return await host.run(
        "check",
        candidate_id,
        lambda bench, progress: bench.run_correctness(candidate_id, options(), progress),
    )
