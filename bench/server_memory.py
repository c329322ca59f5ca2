"""Resident memory of the server process after many calls over stdio.

`python bench/server_memory.py [calls]` prints JSON with megabytes (10^6 bytes) before and after.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

CALLS = 1000
REFERENCE = "import torch\n\ndef reference(x):\n    return torch.relu(x)\n"
KERNEL = """#include "task.h"
extern "C" int cuteforge_launch(const float* x, float* out, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) out[i] = x[i] > 0 ? x[i] : 0;
  return 0;
}
"""


def _resident_mb(home: str) -> float:
    """Resident memory of the child of this process that serves `home`, children of it not included."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            if parent == os.getpid() and home in line:
                pages = int((entry / "statm").read_text().split()[1])
                return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise RuntimeError("the server process was not found")


async def _measure(calls: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as home:
        arguments = ["-m", "cuteforge.server.cli", "serve", "--home", home, "--log-level", "WARNING"]
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:

            async def call(tool: str, **given: object) -> dict[str, object]:
                result = await client.call_tool(tool, given)
                if result.is_error:
                    raise RuntimeError(str(result.content))
                structured: dict[str, object] = result.structured_content
                return structured

            await client.list_tools()
            started = _resident_mb(home)
            task = await call(
                "define_task",
                source=REFERENCE,
                inputs=[{"name": "x", "shape": ["rows", "cols"]}],
                cases=[{"name": "small", "sizes": {"rows": 8, "cols": 33}}],
                target="cpu",
            )
            task_id = task["task_id"]
            candidate = ""
            for number in range(calls - 1):
                kind = number % 4
                if kind == 0:
                    files = {"relu.cpp": f"{KERNEL}// {number}\n"}
                    candidate = str(
                        (await call("submit_candidate", task_id=task_id, files=files))["candidate_id"]
                    )
                elif kind == 1:
                    patch = (
                        f"<<<<<<< SEARCH\n  return 0;\n=======\n  // {number}\n  return 0;\n>>>>>>> REPLACE\n"
                    )
                    await call("patch_apply", candidate_id=candidate, patch=patch)
                elif kind == 2:
                    await call("history", task_id=task_id)
                elif number % 40 == 3:
                    await call("compile", candidate_id=candidate)
                else:
                    await call("device_info")
            return {"calls": calls, "after_start_mb": started, "after_calls_mb": _resident_mb(home)}


def measure(calls: int = CALLS) -> dict[str, float]:
    """Megabytes of resident memory after the start, and after `calls` mixed calls."""
    return anyio.run(_measure, calls)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS), indent=1))
