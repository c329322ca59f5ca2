"""The tool `benchmark`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host

if TYPE_CHECKING:
    from cuteforge.sandbox.executor import BenchmarkOptions


async def benchmark(
    host: Host,
    candidate_id: str,
    baselines: Annotated[
        list[Literal["eager", "compile"]], Field(description="besides the parent and the best")
    ] = ["eager"],  # noqa: B006
    case: Annotated[str, Field(description="default: all cases")] = "",
    samples: Annotated[int, Field(ge=10, le=2000)] = 100,
) -> Answer:
    """Time a correct candidate, interleaved with the reference (eager, torch.compile), its parent and the
    best so far: medians with intervals, a verdict faster/slower/indistinguishable, share of the roofline."""

    def options() -> BenchmarkOptions:
        from cuteforge.sandbox.executor import BenchmarkOptions

        return BenchmarkOptions(baselines=tuple(dict.fromkeys(baselines)), case=case or None, samples=samples)

    return await host.run(
        "benchmark", candidate_id, lambda bench, progress: bench.benchmark(candidate_id, options(), progress)
    )
