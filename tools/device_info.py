"""The tool `device_info`."""

from __future__ import annotations

from cuteforge.tools.answers import Answer
from cuteforge.tools.host import Host


async def device_info(host: Host) -> Answer:
    """GPUs, CPU, the toolchain found and from where, the sandbox; what is missing and how to get it."""
    return await (await host.workbench()).device_info()
