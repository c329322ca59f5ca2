"""Assembly: the MCP server with its tools, resources and prompts. Importing it is cheap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from mcp.server.mcpserver import MCPServer

from cuteforge.server import prompts, resources
from cuteforge.server.config import Settings
from cuteforge.server.host import ServerHost
from cuteforge.server.logging import configure
from cuteforge.server.mcp_tools import tools

INSTRUCTIONS = (
    "Cuteforge compiles, checks and benchmarks GPU (CuTe, CUDA, Triton) and CPU kernels on this machine. The "
    "loop: define_task from a PyTorch reference; submit_candidate with then='evaluate', the simplest correct "
    "kernel first; mend what fails with patch_apply, as small a change as the diagnosis allows; once it is "
    "correct, one structural optimisation at a time, always from the best candidate. Every answer suggests the "
    "next call. Work that takes longer than a call answers a job id: wait for it with `job`."
)


def build_server(settings: Settings) -> MCPServer[ServerHost]:
    """The server for these settings. Store, executor and everything heavy open with the first tool call."""
    configure(settings.log_level)
    host = ServerHost(settings)

    @asynccontextmanager
    async def lifespan(_: MCPServer[ServerHost]) -> AsyncIterator[ServerHost]:
        async with host.running():
            yield host

    server: MCPServer[ServerHost] = MCPServer(
        "cuteforge",
        title="Cuteforge",
        version=version("cuteforge"),
        instructions=INSTRUCTIONS,
        tools=list(tools(host)),
        lifespan=lifespan,
        log_level=settings.log_level,
    )
    resources.register(server, host)
    prompts.register(server, host)
    return server
