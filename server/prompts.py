"""Prompts: how to work with the tools, filled with what is stored."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from mcp.server.mcpserver import MCPServer

from cuteforge.kernels.errors import CuteforgeError
from cuteforge.server.host import ServerHost

_OPTIMIZE = """Write a fast kernel with Cuteforge.

{subject}

Work in phases, and let the answers' `next` lead:
1. Correctness. Submit the simplest kernel that can be right: submit_candidate(then="check"). If it fails, name
   the cause from the diagnostics or the mismatch pattern first, then change only that with patch_apply.
   After five failed repairs of one idea, take another idea.
2. Structure. Once it is correct, make one structural change at a time (tiling, vector width, staging, fusion;
   see guideline://optimisation-menu), each with patch_apply(then="evaluate"), always from the best candidate.
   Do not tune constants yet.
3. Stop when the benchmark is near the roofline, or when three steps in a row gained less than 2 %.
Report the best candidate's id, its speedup with the interval, and the device it was measured on."""

_DEBUG = """Mend the kernel of candidate {candidate_id} with Cuteforge.

{subject}

In two steps, as guideline://debugging-procedure says:
1. Diagnose. State which line is wrong and why the evidence above follows from it. Change nothing yet.
2. Patch. The smallest patch_apply(candidate_id="{candidate_id}", then="check") that mends this cause; never a
   rewrite. If the evidence then differs, diagnose again from the new evidence."""


def register(server: MCPServer[Any], host: ServerHost) -> None:
    """Add the prompts to a server."""

    @server.prompt(title="Optimise a kernel")
    async def optimize_kernel(task_id: str = "", description: str = "") -> str:
        """The way from a task (or a description of one) to a fast, verified kernel."""
        if not task_id:
            what = description or "Ask me what the kernel must compute."
            subject = f"First define_task from a PyTorch reference of this:\n{what}"
            return _OPTIMIZE.format(subject=subject)
        from cuteforge.tools.render import task_text

        bench = await _workbench(host)
        task = await _stored(bench.store.task, task_id)
        return _OPTIMIZE.format(subject=f"{task_text(task)}\n{description}".strip())

    @server.prompt(title="Debug a kernel")
    async def debug_kernel(candidate_id: str) -> str:
        """Diagnose a failing candidate from its last records, then patch it locally."""
        from cuteforge.tools import render

        bench = await _workbench(host)
        candidate = await _stored(bench.store.candidate, candidate_id)
        texts: list[str] = []
        for kind, text in (("compile", render.compile_text), ("correctness", render.correctness_text)):
            found = await anyio.to_thread.run_sync(bench.store.latest, candidate_id, kind)
            if found is not None:
                texts.append(text(found[1]))
        if not texts:
            texts.append(
                f"Nothing has been run yet: call run_correctness(candidate_id={candidate_id}) first."
            )
        main = candidate.main_file
        texts.append(f"{main.path}:\n```\n{main.text}\n```")
        return _DEBUG.format(candidate_id=candidate_id, subject="\n".join(texts))


async def _workbench(host: ServerHost) -> Any:
    try:
        return await host.workbench()
    except CuteforgeError as error:
        raise ValueError(error.explain()) from error


async def _stored(read: Any, key: str) -> Any:
    # The SDK tells a client the text of a ValueError from a prompt.
    try:
        return await anyio.to_thread.run_sync(read, key)
    except CuteforgeError as error:
        raise ValueError(error.explain()) from error
