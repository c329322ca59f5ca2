"""Resources: tasks, candidates' files, runs, the device report, guides."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import Completion, CompletionArgument, PromptReference, ResourceTemplateReference

from cuteforge.kernels.errors import CuteforgeError, InvalidRequest
from cuteforge.server.host import ServerHost

_JSON = "application/json"
_MARKDOWN = "text/markdown"
MAX_COMPLETIONS = 50


def _refused(error: CuteforgeError) -> ResourceError:
    kind = ResourceNotFoundError if isinstance(error, InvalidRequest) else ResourceError
    return kind(error.explain())


def register(server: MCPServer[Any], host: ServerHost) -> None:
    """Add the resources and the completion of their ids to a server."""

    @server.resource("task://{task_id}", name="task", mime_type=_JSON)
    async def task(task_id: str) -> str:
        """A task: definition, spec card and the generated task.h."""
        from cuteforge.server.reading import task_json

        return await _read(task_json, task_id)

    @server.resource("task://{task_id}/export", name="task export", mime_type=_JSON)
    async def export(task_id: str) -> str:
        """A task with all candidates and records: what is needed to repeat it."""
        from cuteforge.server.reading import export_json

        return await _read(export_json, task_id)

    @server.resource("candidate://{candidate_id}/{+file}", name="candidate file", mime_type="text/plain")
    async def candidate(candidate_id: str, file: str) -> str:
        """One source file of a candidate."""
        from cuteforge.server.reading import candidate_file

        return await _read(candidate_file, candidate_id, file)

    @server.resource("run://{run_id}", name="run record", mime_type=_JSON)
    async def run(run_id: str) -> str:
        """The whole record of a compilation, correctness run or benchmark."""
        from cuteforge.server.reading import run_json

        return await _read(run_json, run_id)

    @server.resource("device://info", name="device report", mime_type=_JSON)
    async def device() -> str:
        """What this machine can do."""
        try:
            report = await (await host.workbench()).executor.describe()
        except CuteforgeError as error:
            raise _refused(error) from error
        return report.model_dump_json(indent=1)

    @server.resource("guideline://{guide_id}", name="guide", mime_type=_MARKDOWN)
    async def guideline(guide_id: str) -> str:
        """A guide to writing kernels."""
        from cuteforge.guidelines.loader import guide

        try:
            found = await anyio.to_thread.run_sync(guide, guide_id)
        except CuteforgeError as error:
            raise _refused(error) from error
        return f"# {found.title}\n\n{found.text}"

    async def _read(function: Any, *args: str) -> str:
        try:
            bench = await host.workbench()
            text: str = await anyio.to_thread.run_sync(lambda: function(bench, *args))
        except CuteforgeError as error:
            raise _refused(error) from error
        return text

    # The SDK's decorator has no annotations.
    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
    async def complete(
        ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: object
    ) -> Completion | None:
        del ref, context
        if argument.name == "guide_id":
            from cuteforge.guidelines.loader import guides

            names = list(await anyio.to_thread.run_sync(guides))
        elif argument.name == "task_id":
            bench = await host.workbench()
            names = [task.id for task in await anyio.to_thread.run_sync(bench.store.tasks)]
        else:
            return None
        fitting = [name for name in names if name.startswith(argument.value)]
        return Completion(
            values=fitting[:MAX_COMPLETIONS], total=len(fitting), has_more=len(fitting) > MAX_COMPLETIONS
        )
