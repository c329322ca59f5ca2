"""The tool `patch_apply`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host
from cuteforge.tools.submit_candidate import KIND_OF, Then
from cuteforge.tools.work import silent


async def patch_apply(
    host: Host,
    candidate_id: Annotated[str, Field(description="the candidate to change")],
    patch: Annotated[
        str, Field(description="unified diff, or <<<<<<< SEARCH / ======= / >>>>>>> REPLACE blocks")
    ] = "",
    edits: Annotated[
        list[dict[str, Any]],
        Field(
            description="or line edits {op: replace|insert|delete, start_line, end_line, text, file}, 1-based"
        ),
    ] = [],  # noqa: B006
    note: Annotated[str, Field(description="what changed and why")] = "",
    dry_run: bool = False,
    write_back: Annotated[
        str, Field(description="also write the patched file here, if it still holds the unpatched text")
    ] = "",
    then: Annotated[Then, Field(description="evaluate = compile, check, benchmark")] = "none",
) -> Answer:
    """Make a new candidate by a local change to another: all of the patch applies, each part at exactly one
    place, or nothing is stored and the current text around the best match is shown."""

    async def work(bench: Any, progress: Any) -> Answer:
        answer: Answer = await bench.patch_apply(
            candidate_id, patch or None, edits or None, then, progress, note, dry_run, write_back or None
        )
        return answer

    if then == "none" or dry_run:
        return await work(await host.workbench(), silent)
    return await host.run(KIND_OF[then], candidate_id, work)
