"""The tool `compile`."""

from __future__ import annotations

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host


async def compile_candidate(host: Host, candidate_id: str) -> Answer:
    """Compile a candidate: diagnostics at your own lines, or registers, shared memory, spills, stack,
    occupancy and SASS mix of each kernel. Needs no GPU."""
    return await host.run(
        "compile", candidate_id, lambda bench, progress: bench.compile(candidate_id, progress)
    )
