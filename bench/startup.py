"""Start to `tools/list` over stdio, against an empty server of the SDK in the same environment.

`python bench/startup.py` prints JSON: median seconds of both and their ratio.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

EMPTY = "from mcp.server.mcpserver import MCPServer; MCPServer('empty').run()"
RUNS = 11


async def _once(arguments: list[str]) -> float:
    parameters = StdioServerParameters(command=sys.executable, args=arguments)
    started = time.perf_counter()
    async with Client(parameters) as client:
        await client.list_tools()
        return time.perf_counter() - started


async def _measure(runs: int) -> dict[str, float]:
    empty: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        serve = ["-m", "cuteforge.server.cli", "serve", "--home", str(Path(folder) / "home")]
        for arguments in (["-c", EMPTY], serve):
            # Once unmeasured, so that both find their bytecode and files in the page cache.
            await _once(arguments)
        for _ in range(runs):
            empty.append(await _once(["-c", EMPTY]))
            ours.append(await _once(serve))
    return {
        "empty_s": statistics.median(empty),
        "cuteforge_s": statistics.median(ours),
        "ratio": statistics.median(ours) / statistics.median(empty),
        "runs": runs,
    }


def measure(runs: int = RUNS) -> dict[str, float]:
    """Median seconds of both servers over alternating runs, and the ratio of the medians."""
    return anyio.run(_measure, runs)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
